/* `miles generate`: one prompt, one or more answers, on this machine. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "cli/genmodel.h"
#include "num/device.h"

struct generate_opts {
    struct genmodel_opts model;
    char *prompt;
    int64_t max_tokens, n, seed, top_k;
    double temperature, top_p, min_p, repetition, frequency, presence;
    int raw, timing, logprobs, ignore_eos;
};

#define O(f) offsetof(struct generate_opts, f)
static const struct conf_opt generate_table[] = {
    {"prompt", CONF_STR, NULL, NULL, "what the user says", O(prompt), "prompt", NULL},
    {"raw", CONF_SWITCH, NULL, NULL, "take the prompt as it is, without the chat template", O(raw),
     "prompt", NULL},
    {"max-tokens", CONF_INT, "128", "[1,1000000]", "new tokens at most", O(max_tokens), "sampling",
     NULL},
    {"n", CONF_INT, "1", "[1,4096]", "answers", O(n), "sampling", NULL},
    {"temperature", CONF_FLOAT, "0", "[0,100]", "0 is greedy", O(temperature), "sampling", NULL},
    {"top-p", CONF_FLOAT, "1", "(0,1]", "nucleus", O(top_p), "sampling", NULL},
    {"top-k", CONF_INT, "-1", "[-1,1000000000]", "candidates; -1 takes all", O(top_k), "sampling",
     NULL},
    {"min-p", CONF_FLOAT, "0", "[0,1]", "least share of the likeliest candidate's probability",
     O(min_p), "sampling", NULL},
    {"repetition-penalty", CONF_FLOAT, "1", "(0,100]",
     "divides positive logits of tokens said before, multiplies negative ones", O(repetition),
     "sampling", NULL},
    {"frequency-penalty", CONF_FLOAT, "0", "[-100,100]",
     "taken from a token's logit for each time it was said", O(frequency), "sampling", NULL},
    {"presence-penalty", CONF_FLOAT, "0", "[-100,100]",
     "taken from a token's logit once it was said", O(presence), "sampling", NULL},
    {"seed", CONF_INT, "42", "[0,9223372036854775807]", "of the sampling", O(seed), "sampling",
     NULL},
    {"ignore-eos", CONF_SWITCH, NULL, NULL, "sample on past end tokens", O(ignore_eos), "sampling",
     NULL},
    {"logprobs", CONF_SWITCH, NULL, NULL, "print each token with its log-prob", O(logprobs),
     "output", NULL},
    {"timing", CONF_SWITCH, NULL, NULL, "print the time to the first token and tokens per second",
     O(timing), "output", NULL},
    {0}};

struct generate {
    struct genmodel m;
    double start, first, end;
    int tokens;
};

/* Seconds since the process started. */
static double since_start(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Start of this process on the same clock, from the kernel. */
static double process_start(void)
{
    FILE *f = fopen("/proc/self/stat", "re");
    char buf[1024], *p;
    unsigned long long ticks = 0;
    size_t n;
    if (!f) {
        return since_start();
    }
    n = fread(buf, 1, sizeof buf - 1, f);
    buf[n] = 0;
    fclose(f);
    p = strrchr(buf, ')');
    if (!p || sscanf(p + 1,
                     " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                     "%*d %*d %llu",
                     &ticks) != 1) {
        return since_start();
    }
    return (double)ticks / 100.0;
}

static int generate_print(struct generate *g, const struct generate_opts *o,
                          const struct engine_result *r, struct err *e)
{
    char *text = NULL;
    int rc = promptenc_decode(&g->m.enc, r->tokens, r->ntokens, 1, &text, e);
    if (rc == STATUS_OK) {
        printf("%s\n", text);
        for (int i = 0; o->logprobs && i < r->ntokens; i++) {
            printf("  %d\t%.9g\n", r->tokens[i], (double)r->logps[i]);
        }
        mem_free(text);
    }
    return rc;
}

static int generate_run(struct generate *g, const struct generate_opts *o, struct err *e)
{
    struct engine_group q;
    struct engine_result r;
    json_t *prompt = json_string(o->prompt);
    int32_t *ids = NULL;
    int n, rc;

    if (!prompt) {
        return ERR(e, STATUS_INPUT, "--prompt is not UTF-8");
    }
    memset(&q, 0, sizeof q);
    rc = promptenc_encode(&g->m.enc, prompt, NULL, &ids, &n, e);
    json_decref(prompt);
    if (rc == STATUS_OK) {
        q.tokens = ids;
        q.ntokens = n;
        q.n = (int)o->n;
        q.max_new = (int)o->max_tokens;
        q.sampling.temperature = (float)o->temperature;
        q.sampling.top_p = (float)o->top_p;
        q.sampling.top_k = (int)o->top_k;
        q.sampling.min_p = (float)o->min_p;
        q.sampling.repetition_penalty = (float)o->repetition;
        q.sampling.frequency_penalty = (float)o->frequency;
        q.sampling.presence_penalty = (float)o->presence;
        q.ignore_eos = o->ignore_eos;
        q.key.seed = (uint64_t)o->seed;
        rc = engine_submit(g->m.engine, &q, e);
    }
    while (rc == STATUS_OK && engine_busy(g->m.engine)) {
        struct engine_stats st;
        rc = engine_step(g->m.engine, e);
        engine_get_stats(g->m.engine, &st);
        if (st.decode_rows > 0 && g->first == 0.0) {
            g->first = since_start();
        }
        while (rc == STATUS_OK && engine_take(g->m.engine, &r)) {
            g->tokens += r.ntokens;
            rc = generate_print(g, o, &r, e);
        }
    }
    g->end = since_start();
    mem_free(ids);
    return rc;
}

int cmd_generate(int argc, char **argv)
{
    struct generate_opts o;
    struct generate g;
    struct err e = {0};
    struct conf *c = conf_new();
    int rc;

    memset(&g, 0, sizeof g);
    g.start = process_start();
    conf_add(c, genmodel_table, &o.model);
    conf_add(c, generate_table, &o);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles generate --hf-checkpoint DIR --prompt TEXT [--flag value ...]", c);
        conf_free(c);
        return CMD_OK;
    }
    if (rc == STATUS_OK && (!o.model.hf_checkpoint || !o.prompt)) {
        rc = ERR(&e, STATUS_INPUT, "--hf-checkpoint and --prompt are needed");
    }
    if (rc == STATUS_OK) {
        struct engine_opts eo = {.max_running = (int)(o.n < 256 ? o.n : 256)};
        rc = genmodel_open(&g.m, &o.model, &eo, !o.raw, &e);
    }
    if (rc == STATUS_OK) {
        rc = generate_run(&g, &o, &e);
    }
    if (rc == STATUS_OK && o.timing) {
        double decode = g.end - g.first;
        struct engine_stats st;
        engine_get_stats(g.m.engine, &st);
        fprintf(stderr, "first_token_s=%.3f tokens=%d tokens_per_s=%.1f isa=%s prompt_rows=%lld\n",
                g.first - g.start, g.tokens, decode > 0 ? (g.tokens - (int)o.n) / decode : 0.0,
                g.m.dev->isa, (long long)st.prompt_rows);
    }
    genmodel_close(&g.m);
    conf_free(c);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}
