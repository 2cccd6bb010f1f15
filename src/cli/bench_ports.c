/* Owns `miles bench ports`: samples a minute through the HTTP port of a running `miles serve`
 * against the engine in this process, same model, same options. Turns alternate, because the speed
 * of a shared machine wanders; both sides must give the same tokens and log-probs, bit for bit. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/bench.h"
#include "cli/genmodel.h"
#include "model/weights.h"
#include "rl/port_http.h"
#include "rl/port_native.h"

#define PORTS_ROUNDS 64

struct ports_opts {
    struct genmodel_opts model;
    char *url;
    int64_t groups, samples, max_tokens, rounds, running, context;
};

#define O(f) offsetof(struct ports_opts, f)
static const struct conf_opt ports_table[] = {
    {"hf-checkpoint", CONF_STR, NULL, NULL, "model: a Hugging Face folder or a GGUF file",
     O(model.hf_checkpoint), "model", NULL},
    {"url", CONF_STR, NULL, NULL, "address of a miles serve with the same model", O(url), "work",
     NULL},
    {"groups", CONF_INT, "32", "[1,4096]", "prompts of a turn", O(groups), "work", NULL},
    {"samples", CONF_INT, "8", "[1,256]", "samples of each prompt", O(samples), "work", NULL},
    {"max-tokens", CONF_INT, "64", "[1,1024]", "new tokens of each sample", O(max_tokens), "work",
     NULL},
    {"rounds", CONF_INT, "5", "[1,64]", "turns of each side", O(rounds), "work", NULL},
    {"max-running", CONF_INT, "256", "[1,65536]",
     "samples the engine here decodes at once: as the server", O(running), "work", NULL},
    {"context", CONF_INT, "2048", "[64,1048576]",
     "tokens of prompt and response the engine here may take: as the server", O(context), "work",
     NULL},
    {"threads", CONF_INT, "0", "[0,4096]", "0 takes all cores", O(model.threads), "machine", NULL},
    {"isa", CONF_STR, "auto", NULL, "auto, scalar, avx2, avx512 or amx", O(model.isa), "machine",
     NULL},
    {0}};

struct ports {
    const struct ports_opts *o;
    struct genmodel m;
    struct port_native here;
    struct port_http *there;
    const char *url;
    json_t *manifest;
    int32_t **prompts; /* (groups) */
    int *lengths;
};

/* What a turn gave, whatever the order it came in. */
struct ports_turn {
    double seconds;
    int64_t tokens;
    uint64_t digest;
};

static uint64_t ports_hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ p[i]) * 1099511628211ull;
    }
    return h;
}

static void ports_add(struct ports_turn *t, const struct port_answer *a)
{
    int64_t name[2] = {a->group, a->sample};
    uint64_t h = ports_hash(14695981039346656037ull, name, sizeof name);

    h = ports_hash(h, a->tokens, sizeof *a->tokens * (size_t)a->ntokens);
    t->digest += ports_hash(h, a->logps, sizeof *a->logps * (size_t)a->ntokens);
    t->tokens += a->ntokens;
}

static int ports_run(const struct ports *b, const struct rollout_port *r, uint64_t seed,
                     struct ports_turn *t, struct err *e)
{
    struct port_answer a;
    double t0 = bench_now();
    int rc = STATUS_OK;

    memset(t, 0, sizeof *t);
    for (int i = 0; rc == STATUS_OK && i < b->o->groups; i++) {
        struct port_group g = {.id = i,
                               .tokens = b->prompts[i],
                               .ntokens = b->lengths[i],
                               .n = (int)b->o->samples,
                               .max_new = (int)b->o->max_tokens,
                               .temperature = 1.0f,
                               .top_p = 1.0f,
                               .top_k = -1,
                               .ignore_eos = 1,
                               .seed = seed,
                               .sample = i * b->o->samples};
        rc = r->submit(r->self, &g, e);
    }
    while (rc == STATUS_OK || rc == STATUS_AGAIN) {
        rc = r->poll(r->self, &a, e);
        if (rc == STATUS_OK) {
            ports_add(t, &a);
        }
    }
    t->seconds = bench_now() - t0;
    return rc == STATUS_END ? STATUS_OK : rc;
}

static int ports_open(struct ports *b, struct err *e)
{
    struct engine_opts eo = {.max_running = (int)b->o->running, .max_context = (int)b->o->context};
    struct port_http_opts po = {.kind = PORT_HTTP_MILES, .nengines = 1, .urls = &b->url};
    struct genmodel_opts mo = b->o->model;
    int rc;

    b->url = b->o->url;
    if (!b->url) {
        return ERR(e, STATUS_INPUT, "--url is needed: the address of a miles serve");
    }
    mo.device = "cpu";
    rc = genmodel_open(&b->m, &mo, NULL, 1, e);
    if (rc == STATUS_OK) {
        rc = port_native_open(&b->here, b->m.w, NULL, b->m.file, &eo, NULL, e);
    }
    for (int64_t i = 0; rc == STATUS_OK && i < b->o->groups; i++) {
        json_t *q = json_sprintf("Natalia sold clips to %d of her friends in April, and then she "
                                 "sold half as many clips in May. How many clips did Natalia sell "
                                 "altogether in April and May?",
                                 (int)(40 + i));
        rc = promptenc_encode(&b->m.enc, q, NULL, &b->prompts[i], &b->lengths[i], e);
        json_decref(q);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    po.manifest = b->manifest = plan_manifest(&b->m.dev->plan);
    po.concurrency = (int)(2 * b->o->running);
    po.start_s = 60.0;
    rc = port_http_open(&po, &b->there, e);
    while (rc == STATUS_OK && (rc = port_http_start(b->there, e)) == STATUS_AGAIN) {
        rc = STATUS_OK;
    }
    return rc;
}

static int ports_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double ports_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, ports_order);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

static int ports_rounds(struct ports *b, struct err *e)
{
    const struct rollout_port *side[2] = {&b->here.rollout, port_http_port(b->there)};
    double speed[2][PORTS_ROUNDS], ratio[PORTS_ROUNDS], total;
    int rounds = (int)b->o->rounds, rc = STATUS_OK;

    total = (double)(b->o->groups * b->o->samples);
    for (int i = 0; i <= rounds; i++) { /* the first warms up */
        struct ports_turn t[2];
        for (int k = 0; k < 2; k++) { /* who begins changes */
            int s = (k + i) % 2;
            rc = ports_run(b, side[s], (uint64_t)i, &t[s], e);
            if (rc != STATUS_OK) {
                return rc;
            }
        }
        if (t[0].digest != t[1].digest || t[0].tokens != t[1].tokens) {
            return ERR(e, STATUS_NUMERIC,
                       "the server's answers differ: %" PRId64 " and %" PRId64
                       " tokens, digests %016" PRIx64 " and %016" PRIx64,
                       t[0].tokens, t[1].tokens, t[0].digest, t[1].digest);
        }
        if (i > 0) {
            speed[0][i - 1] = 60.0 * total / t[0].seconds;
            speed[1][i - 1] = 60.0 * total / t[1].seconds;
            ratio[i - 1] = t[0].seconds / t[1].seconds;
            printf("round %d: in-process %.1f samples/min, HTTP %.1f, ratio %.3f\n", i,
                   speed[0][i - 1], speed[1][i - 1], ratio[i - 1]);
            fflush(stdout);
        }
    }
    printf("ports_vs_inprocess=%.3f inprocess_samples_per_min=%.1f http_samples_per_min=%.1f "
           "bit_equal=1 groups=%" PRId64 " samples=%" PRId64 " tokens=%" PRId64 "\n",
           ports_median(ratio, rounds), ports_median(speed[0], rounds),
           ports_median(speed[1], rounds), b->o->groups, b->o->samples, b->o->max_tokens);
    return STATUS_OK;
}

static int ports_main(const void *opts, struct err *e)
{
    struct ports b;
    int rc;

    memset(&b, 0, sizeof b);
    b.o = opts;
    b.prompts = mem_alloc(sizeof *b.prompts * (size_t)b.o->groups);
    b.lengths = mem_alloc(sizeof *b.lengths * (size_t)b.o->groups);
    rc = ports_open(&b, e);
    if (rc == STATUS_OK) {
        rc = ports_rounds(&b, e);
    }
    port_http_close(b.there);
    json_decref(b.manifest);
    port_native_close(&b.here);
    for (int64_t i = 0; i < b.o->groups; i++) {
        mem_free(b.prompts[i]);
    }
    mem_free(b.prompts);
    mem_free(b.lengths);
    genmodel_close(&b.m);
    return rc;
}

int bench_ports(int argc, char **argv)
{
    struct ports_opts o = {0};
    return bench_main(argc, argv, ports_table, &o, ports_main);
}
