/* Owns the flags that repeat the model's shape. Only what is given is looked at: that a switch is
 * not there says nothing, because scripts may leave the shape out altogether. */
#include "rl/modelargs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "model/arch.h"

#define O(f) offsetof(struct modelargs, f)
#define SIZE "[1,1073741824]"
#define ROW(name, type, range, doc, f)                                                             \
    {                                                                                              \
        name, type, NULL, range, doc "; checked against config.json", O(f), "model shape", NULL    \
    }

const struct conf_opt modelargs_table[] = {
    ROW("num-layers", CONF_INT, SIZE, "layers", layers),
    ROW("hidden-size", CONF_INT, SIZE, "width of the model", hidden),
    ROW("ffn-hidden-size", CONF_INT, SIZE, "width of the MLP", ffn),
    ROW("num-attention-heads", CONF_INT, SIZE, "query heads", heads),
    ROW("group-query-attention", CONF_SWITCH, NULL, "fewer key heads than query heads", grouped),
    ROW("num-query-groups", CONF_INT, SIZE, "key heads", groups),
    ROW("kv-channels", CONF_INT, SIZE, "width of a head", head_dim),
    ROW("vocab-size", CONF_INT, SIZE, "tokens", vocab),
    ROW("normalization", CONF_STR, NULL, "RMSNorm", norm),
    ROW("norm-epsilon", CONF_FLOAT, "(0,1)", "added to the mean of squares", norm_eps),
    ROW("swiglu", CONF_SWITCH, NULL, "the MLP's activation", swiglu),
    ROW("disable-bias-linear", CONF_SWITCH, NULL, "projections without a bias", no_bias),
    ROW("add-qkv-bias", CONF_SWITCH, NULL, "but these", qkv_bias),
    ROW("qk-layernorm", CONF_SWITCH, NULL, "norms of queries and keys", qk_norm),
    ROW("untie-embeddings-and-output-weights", CONF_SWITCH, NULL, "an output layer of its own",
        untied),
    ROW("position-embedding-type", CONF_STR, NULL, "rope", positions),
    ROW("use-rotary-position-embeddings", CONF_SWITCH, NULL, "the same", rope),
    ROW("rotary-base", CONF_FLOAT, "(0,inf)", "base of the angles", theta),
    ROW("rotary-percent", CONF_FLOAT, "(0,1]", "share of a head that is turned", rotary),
    ROW("rotary-interleaved", CONF_SWITCH, NULL, "neighbours are turned together", interleaved),
    ROW("post-self-attn-layernorm", CONF_SWITCH, NULL, "a norm of attention's output", post_attn),
    ROW("post-mlp-layernorm", CONF_SWITCH, NULL, "a norm of the MLP's output", post_mlp),
    ROW("multi-latent-attention", CONF_SWITCH, NULL, "keys and values from a latent", latent),
    ROW("q-lora-rank", CONF_INT, SIZE, "latent attention: rank of queries", q_latent),
    ROW("kv-lora-rank", CONF_INT, SIZE, "latent attention: rank of keys and values", kv_latent),
    ROW("qk-head-dim", CONF_INT, SIZE, "latent attention: width of a query head", qk_dim),
    ROW("v-head-dim", CONF_INT, SIZE, "latent attention: width of a value head", v_dim),
    ROW("qk-pos-emb-head-dim", CONF_INT, SIZE, "latent attention: width that rope turns",
        qk_rope_dim),
    ROW("num-experts", CONF_INT, SIZE, "experts of a layer", experts),
    {"model-args-mismatch", CONF_CHOICE, "refuse", "refuse|note",
     "a shape that is not config.json's is refused, or told in the log: for a script of a large "
     "model that is tried on a small one",
     O(mismatch), "model shape", NULL},
    {0}};

/* What config.json says of one flag, as text, beside what was given. */
struct modelargs_pair {
    const char *flag;
    char given[64], model[64];
};

typedef void modelargs_fn(void *arg, const struct modelargs_pair *p);

struct modelargs_walk {
    modelargs_fn *fn;
    void *arg;
};

static void pair_int(const struct modelargs_walk *w, const char *flag, int64_t given, int64_t model)
{
    struct modelargs_pair p = {.flag = flag};
    if (given != CONF_UNSET && given != model) {
        snprintf(p.given, sizeof p.given, " %lld", (long long)given);
        snprintf(p.model, sizeof p.model, "%lld", (long long)model);
        w->fn(w->arg, &p);
    }
}

/* As floats: a script may have rounded as the model's file has not. */
static void pair_float(const struct modelargs_walk *w, const char *flag, double given, double model)
{
    struct modelargs_pair p = {.flag = flag};
    if (!isnan(given) && (float)given != (float)model) {
        snprintf(p.given, sizeof p.given, " %g", given);
        snprintf(p.model, sizeof p.model, "%g", model);
        w->fn(w->arg, &p);
    }
}

static void pair_text(const struct modelargs_walk *w, const char *flag, const char *given,
                      const char *model)
{
    struct modelargs_pair p = {.flag = flag};
    if (given && strcmp(given, model) != 0) {
        snprintf(p.given, sizeof p.given, " %.60s", given);
        snprintf(p.model, sizeof p.model, "%s", model);
        w->fn(w->arg, &p);
    }
}

static void pair_switch(const struct modelargs_walk *w, const char *flag, int given, int model)
{
    struct modelargs_pair p = {.flag = flag, .model = "it otherwise"};
    if (given && !model) {
        w->fn(w->arg, &p);
    }
}

static void modelargs_each(const struct modelargs *m, const struct arch *a,
                           const struct modelargs_walk *w)
{
    pair_int(w, "num-layers", m->layers, a->n_layers);
    pair_int(w, "hidden-size", m->hidden, a->hidden);
    pair_int(w, "ffn-hidden-size", m->ffn, a->intermediate);
    pair_int(w, "num-attention-heads", m->heads, a->n_heads);
    pair_int(w, "num-query-groups", m->groups, a->n_kv_heads);
    pair_int(w, "kv-channels", m->head_dim, a->head_dim);
    pair_int(w, "vocab-size", m->vocab, a->vocab);
    pair_text(w, "normalization", m->norm, "RMSNorm");
    pair_float(w, "norm-epsilon", m->norm_eps, a->rms_eps);
    pair_switch(w, "swiglu", m->swiglu, a->act == ACT_SILU);
    pair_switch(w, "disable-bias-linear", m->no_bias, !a->o_bias && !a->mlp_bias);
    pair_switch(w, "add-qkv-bias", m->qkv_bias, a->qkv_bias);
    pair_switch(w, "qk-layernorm", m->qk_norm, a->qk_norm);
    pair_switch(w, "untie-embeddings-and-output-weights", m->untied, !a->tie_embeddings);
    pair_text(w, "position-embedding-type", m->positions, "rope");
    pair_float(w, "rotary-base", m->theta, a->rope[ARCH_ATTN_FULL].theta);
    pair_float(w, "rotary-percent", m->rotary, (double)a->rot / a->head_dim);
    pair_switch(w, "rotary-interleaved", m->interleaved, a->interleaved);
    pair_switch(w, "post-self-attn-layernorm", m->post_attn, a->post_norms);
    pair_switch(w, "post-mlp-layernorm", m->post_mlp, a->post_norms);
    pair_switch(w, "multi-latent-attention", m->latent, a->kv_latent > 0);
    pair_int(w, "q-lora-rank", m->q_latent, a->q_latent);
    pair_int(w, "kv-lora-rank", m->kv_latent, a->kv_latent);
    pair_int(w, "qk-head-dim", m->qk_dim, 0);
    pair_int(w, "v-head-dim", m->v_dim, 0);
    pair_int(w, "qk-pos-emb-head-dim", m->qk_rope_dim, 0);
    pair_int(w, "num-experts", m->experts, a->n_experts);
}

static void modelargs_first(void *arg, const struct modelargs_pair *p)
{
    struct modelargs_pair *first = arg;
    if (!first->flag) {
        *first = *p;
    }
}

static void modelargs_note(void *arg, const struct modelargs_pair *p)
{
    (void)arg;
    log_info(TRAIN, "--%s%s: the model's config.json has %s, which is taken", p->flag, p->given,
             p->model);
}

int modelargs_check(const struct modelargs *m, const struct arch *a, struct err *e)
{
    struct modelargs_pair first = {0};
    struct modelargs_walk w = {m->mismatch ? modelargs_note : modelargs_first, &first};

    modelargs_each(m, a, &w);
    if (!first.flag) {
        return STATUS_OK;
    }
    return ERR(e, STATUS_INPUT,
               "--%s%s, but the model's config.json has %s: is it another model's? "
               "(--model-args-mismatch note goes on with config.json)",
               first.flag, first.given, first.model);
}
