/* Owns a simulated run: the controller's own parts, put together as `miles train` does, around
 * engines, trainer, rewards, network, disk and clock that are not real. */
#include "sim/simrun.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/conf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/status.h"
#include "reward/hub.h"
#include "rl/filter.h"
#include "rl/loop.h"
#include "rl/port_http.h"
#include "rl/port_record.h"
#include "rl/prompts.h"
#include "rl/train_opts.h"
#include "run/durable.h"
#include "run/ledger.h"
#include "sim/simcrew.h"
#include "sim/simdisk.h"
#include "sim/simeval.h"
#include "sim/simfleet.h"
#include "sim/simnet.h"
#include "sim/simpace.h"
#include "sim/simplan.h"
#include "sim/simreward.h"
#include "sim/simtrain.h"
#include "sim/simwatch.h"
#include "text/tokenizer.h"

#define SIMRUN_SAVE   SIMDISK_ROOT "/save"
#define SIMRUN_DIR    SIMDISK_ROOT "/save/run"
#define SIMRUN_SLOW_S 4   /* for an engine that is slow or taken out to finish what it has */
#define SIMRUN_STARTS 100 /* of the controller; more is a run that does not end */

/* ---- what all seeds use ---- */

/* A tokenizer of digits, small letters and the blank: ids 0 to 36, and 37 for the end. */
static void simrun_tokenizer(struct buf *b)
{
    buf_str(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{"
               "\"id\":37,\"content\":\"<end>\",\"single_word\":false,\"lstrip\":false,"
               "\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":null,"
               "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
               "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{"
               "\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
               "\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
               "\"unk_token\":null,\"continuing_subword_prefix\":null,"
               "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,"
               "\"ignore_merges\":false,\"vocab\":{");
    for (int i = 0; i < 36; i++) {
        buf_printf(b, "\"%c\":%d,", i < 10 ? '0' + i : 'a' + i - 10, i);
    }
    buf_str(b, "\"\\u0120\":36,\"<end>\":37},\"merges\":[]}}");
}

/* A file of n rows; -1: there is no memory for it. */
static int simrun_rows(const char *of, int n)
{
    int fd = memfd_create("simulated prompts", MFD_CLOEXEC);
    struct buf b;

    buf_init(&b, 1 << 16);
    for (int i = 0; i < n; i++) {
        buf_printf(&b, "{\"q\":\"%s %d\"}\n", of, i);
    }
    if (fd >= 0 && write(fd, b.data, b.len) != (ssize_t)b.len) {
        close(fd);
        fd = -1;
    }
    buf_fini(&b);
    return fd;
}

int simrun_share(struct simrun_shared *sh, struct err *e)
{
    struct buf b;
    int rc;

    memset(sh, 0, sizeof *sh);
    buf_init(&b, 1 << 16);
    simrun_tokenizer(&b);
    rc = tokenizer_open(b.data, &sh->enc.tok, e);
    buf_fini(&b);
    rc = rc == STATUS_OK ? simdelta_models(&sh->models, e) : rc;
    sh->fd = simrun_rows("row", 40);
    sh->eval_fd = simrun_rows("question", 3);
    if (rc == STATUS_OK && (sh->fd < 0 || sh->eval_fd < 0)) {
        rc = ERR(e, STATUS_IO, "no memory for the prompts");
    }
    return rc;
}

void simrun_unshare(struct simrun_shared *sh)
{
    promptenc_close(&sh->enc);
    simdelta_models_fini(&sh->models);
    if (sh->fd >= 0) {
        close(sh->fd);
    }
    if (sh->eval_fd >= 0) {
        close(sh->eval_fd);
    }
}

/* ---- a run ---- */

struct simrun {
    struct sim s;
    struct simplan plan;
    struct simrun_shared *sh;
    struct conf *conf;
    struct train_opts o;
    struct simdisk *disk;
    struct simnet *net;
    struct simfleet *fleet;
    struct simcrew *crew; /* NULL: engines neither come nor go */
    struct simpace *pace; /* NULL: slow ones are borne */
    struct simtrain *train;
    struct simdelta *delta; /* NULL: weights are not tensors */
    struct simreward *reward, *eval_reward;
    struct simeval *evals; /* NULL: nothing is evaluated */
    struct simeval_told told;
    struct simwatch *watch;
    struct filter *dynamic;
    int64_t starts;
    uint64_t want; /* the weights of the run without faults; 0: not compared */
};

/* One life of the controller. */
struct simrun_life {
    struct durable d;
    struct prompts *data;
    struct hub *hub, *eval_hub;
    struct port_http *http;
    struct port_record *record;
    struct ledger *closed; /* of a replay */
    struct loop *loop;
    json_t *state;
    int64_t start, sched_pos;
};

static int simrun_prompts(struct simrun *r, struct simrun_life *l, struct err *e)
{
    char path[64];
    struct prompts_opts p = {.path = path,
                             .input_key = "q",
                             .shuffle = 1,
                             .seed = (uint64_t)r->o.rollout_seed,
                             .group_size = r->o.n_samples_per_prompt,
                             .threads = 1};
    int rc;

    snprintf(path, sizeof path, "/proc/self/fd/%d", r->sh->fd);
    rc = prompts_open(&l->data, &p, e);
    if (rc == STATUS_OK && json_is_object(json_object_get(l->state, "dataset"))) {
        rc = prompts_restore(l->data, json_object_get(l->state, "dataset"), e);
    }
    if (rc == STATUS_OK && r->evals) {
        rc = simeval_open(r->evals, e);
    }
    return rc;
}

static int simrun_resume(struct simrun *r, struct simrun_life *l, struct err *e)
{
    struct durable_from from;
    int rc = durable_from(&l->d, &from, e);

    simtrain_begin(r->train);
    if (rc == STATUS_OK && from.dir) {
        rc = simtrain_load(r->train, from.dir, from.iteration, &l->state, e);
        l->start = from.iteration + 1;
        l->sched_pos = json_integer_value(json_object_get(l->state, "sched_pos"));
        sim_note(&r->s, "goes on from checkpoint %lld", (long long)from.iteration);
    }
    return rc;
}

/* Now and then, by the port. */
static void simrun_attend(void *self)
{
    struct simrun *r = self;

    if (r->crew) {
        simcrew_attend(r->crew);
    }
    if (r->pace) {
        simpace_attend(r->pace);
    }
}

/* An engine is slow that takes so many times as long as all of them; 0: none is. */
static double simrun_slow_factor(const struct simrun *r)
{
    return !r->pace ? 0 : r->s.plant == SIM_PLANT_CRAWL ? 1e9 : 3;
}

static int simrun_engines(struct simrun *r, struct simrun_life *l, struct err *e)
{
    struct port_http_opts p = {.kind = PORT_HTTP_MILES,
                               .nengines = r->plan.engines,
                               .urls = simfleet_urls(r->fleet),
                               .host = simfleet_host(r->fleet),
                               .sync = r->delta ? simdelta_sync(r->delta) : simtrain_sync(r->train),
                               .policy = r->s.plant == SIM_PLANT_STALE ? PORT_HTTP_MARK
                                                                       : PORT_HTTP_REFUSE,
                               .world = &r->s.world,
                               .net = simnet_table(r->net),
                               .concurrency = r->plan.concurrency,
                               .start_s = 60,
                               .request_s = 240,
                               .sync_s = 60,
                               .check_s = 5,
                               .check_timeout_s = 5,
                               .room = r->plan.places,
                               .slow_factor = simrun_slow_factor(r),
                               .slow_s = SIMRUN_SLOW_S,
                               .attend = simrun_attend,
                               .attend_self = r};
    int rc = r->delta ? simdelta_open(r->delta, e) : STATUS_OK;

    rc = rc == STATUS_OK ? port_http_open(&p, &l->http, e) : rc;
    if (rc == STATUS_OK && r->pace) {
        simpace_open(r->pace, l->http);
    }
    rc = rc == STATUS_OK && r->crew ? simcrew_open(r->crew, l->http, e) : rc;

    while (rc == STATUS_OK && !r->s.dead) {
        rc = port_http_start(l->http, e);
        if (rc == STATUS_OK) {
            break;
        }
        rc = rc == STATUS_AGAIN ? STATUS_OK : rc;
        if (rc == STATUS_OK && r->s.stopping) {
            return STATUS_END;
        }
    }
    return rc;
}

static void simrun_cfg(struct simrun *r, struct simrun_life *l, struct loop_cfg *c)
{
    memset(c, 0, sizeof *c);
    c->o = &r->o;
    c->train = simtrain_port(r->train);
    c->hub = l->hub;
    c->eval_hub = l->eval_hub;
    c->evals = r->evals ? simeval_sets(r->evals, &c->nevals) : NULL;
    c->dynamic = r->dynamic;
    c->buffer = json_object_get(l->state, "buffer");
    c->waiting = json_object_get(l->state, "waiting");
    c->stream = json_object_get(l->state, "stream");
    c->ahead = r->o.train_async;
    c->enc = &r->sh->enc;
    c->data = l->data;
    c->world = &r->s.world;
    c->start_rollout = l->start;
    c->num_rollout = r->plan.rollouts;
    c->sched_pos = l->sched_pos;
    c->ref_rollout = -1;
}

static int simrun_open(struct simrun *r, struct simrun_life *l, struct loop_cfg *c, struct err *e)
{
    char *argv[1] = {"train"};
    json_t *options = json_pack("{s:s}", "hf_checkpoint", "simulated");
    struct hub_opts h = {.rm_type = "f1", .scorer = simreward_scorer(r->reward)};
    struct hub_opts eh = {.rm_type = "f1", .scorer = simreward_scorer(r->eval_reward)};
    struct journal *j;
    int rc = durable_open(&l->d, &r->o, SIMRUN_DIR, 1, argv, options, &r->s.world, e);

    json_decref(options);
    j = durable_journal(&l->d);
    if (rc == STATUS_OK && j) {
        j = simwatch_journal(r->watch, j);
        simwatch_check(r->watch);
    }
    rc = rc == STATUS_OK ? durable_folder(SIMRUN_SAVE, e) : rc;
    rc = rc == STATUS_OK ? hub_open(&h, &l->hub, e) : rc;
    rc = rc == STATUS_OK ? hub_open(&eh, &l->eval_hub, e) : rc;
    rc = rc == STATUS_OK ? simrun_resume(r, l, e) : rc;
    rc = rc == STATUS_OK ? simrun_prompts(r, l, e) : rc;
    rc = rc == STATUS_OK ? durable_started(&l->d, l->start, l->state, NULL, e) : rc;
    rc = rc == STATUS_OK ? simrun_engines(r, l, e) : rc;
    if (rc != STATUS_OK) {
        return rc;
    }
    simrun_cfg(r, l, c);
    c->rollout = port_http_port(l->http);
    c->journal = j;
    if (j) {
        rc = port_record_open(simwatch_inner(r->watch, c->rollout), j, &r->s.world, NULL,
                              &l->record, e);
        c->rollout = rc == STATUS_OK ? simwatch_outer(r->watch, port_record_port(l->record)) : NULL;
    }
    return rc == STATUS_OK ? loop_open(c, &l->loop, e) : rc;
}

static void simrun_close(struct simrun *r, struct simrun_life *l, int rc)
{
    loop_close(l->loop);
    port_record_close(l->record);
    if (r->crew) {
        simcrew_close(r->crew);
    }
    port_http_close(l->http);
    if (r->delta) {
        simdelta_close(r->delta);
    }
    hub_close(l->hub);
    hub_close(l->eval_hub);
    if (r->evals) {
        simeval_close(r->evals);
    }
    prompts_close(l->data);
    durable_close(&l->d, rc);
    ledger_close(l->closed, NULL);
    json_decref(l->state);
}

/* ---- lives ---- */

/* How the next life of the controller ends, if not by itself. */
static void simrun_fate(struct simrun *r)
{
    struct sim *s = &r->s;

    s->end_at = 0;
    if (s->rate > 0 && r->plan.ends > 0) {
        r->plan.ends--;
        s->end_at = s->event + 1 + sim_below(s, sim_below(s, 2) ? 200 : 1500);
        s->power = sim_below(s, 2) == 0;
    }
    s->stopping = 0;
    s->hit = simfleet_ailing(r->fleet); /* what befell them before goes on */
    if (sim_fault(s, SIM_FULL_AT_START)) {
        simdisk_fill(r->disk, sim_between(s, 0.1, 200));
    }
}

static void simrun_asks_to_stop(struct simrun *r)
{
    if (r->plan.stop_at && r->s.event >= r->plan.stop_at) {
        r->plan.stop_at = 0;
        r->s.stopping = 1;
        sim_count(&r->s, SIM_STOPPED);
    }
}

/* An error ends a run with words; only what faults explain may. */
static void simrun_judge_error(struct simrun *r, int rc, const struct err *e)
{
    int explained = rc == STATUS_CHILD || rc == STATUS_TIMEOUT || rc == STATUS_IO;

    sim_note(&r->s, "the run ends: %s: %s", status_name(rc), e->msg);
    if (!r->s.hit || !explained) {
        sim_broken(&r->s, "the run ends with an error that no fault explains: %s: %.300s",
                   status_name(rc), e->msg);
    } else if (rc == STATUS_IO && simdisk_full(r->disk) && !r->s.stopping) {
        sim_broken(&r->s, "the run ends instead of waiting for room on the disk: %.300s", e->msg);
    }
}

/* One life. 1: the run is finished. */
static int simrun_live(struct simrun *r)
{
    struct simrun_life l;
    struct loop_cfg c;
    struct err e = {0};
    int rc, finished;

    memset(&l, 0, sizeof l);
    simrun_fate(r);
    sim_note(&r->s, "start %lld", (long long)++r->starts);
    rc = simrun_open(r, &l, &c, &e);
    rc = rc == STATUS_OK ? STATUS_AGAIN : rc;
    while (rc == STATUS_AGAIN && !r->s.dead) {
        simrun_asks_to_stop(r);
        rc = loop_tick(l.loop, &e);
        sim_event(&r->s, "tick");
    }
    if (rc < 0 && !r->s.dead) {
        simrun_judge_error(r, rc, &e);
    }
    finished = rc == STATUS_OK && !r->s.dead && !r->s.stopping;
    if (!r->s.dead && rc < 0) {
        patience_set(NULL, 0);
    }
    simrun_close(r, &l, rc);
    return finished;
}

/* What is left when the controller is gone. */
static void simrun_between(struct simrun *r)
{
    struct sim *s = &r->s;
    int power = s->dead && s->power;

    s->dead = s->broken[0] != 0;
    simnet_reset(r->net);
    simfleet_orphaned(r->fleet);
    simreward_reset(r->reward);
    simreward_reset(r->eval_reward);
    simwatch_restart(r->watch);
    simdisk_restart(r->disk, power);
    s->now += 1;
}

static void simrun_whole(struct simrun *r)
{
    int finished = 0;

    while (!finished && !r->s.broken[0]) {
        if (r->starts >= SIMRUN_STARTS) {
            sim_broken(&r->s, "the run is not finished after %d starts", SIMRUN_STARTS);
            break;
        }
        if (r->starts == SIMRUN_STARTS / 2) {
            r->s.rate = 0; /* from here on nothing goes wrong any more */
        }
        finished = simrun_live(r);
        simrun_between(r);
    }
}

/* ---- around a run ---- */

static int simrun_setup(struct simrun *r, struct simrun_shared *sh, const struct simplan *p,
                        struct err *e)
{
    struct simtrain_promises t = {.staleness = p->staleness, .step_s = 0.4, .beside = p->beside};
    struct simreward_opts w = {.some_fail = p->some_fail, .chance = p->chance};
    int rc;

    r->plan = *p;
    r->sh = sh;
    for (int i = 0; i < r->plan.argc; i++) {
        r->plan.argv[i] = r->plan.words[i];
    }
    r->conf = conf_new();
    conf_add(r->conf, train_opts_table, &r->o);
    rc = conf_parse(r->conf, r->plan.argc, r->plan.argv, e);
    r->o.train_async = p->mode == SIMPLAN_AHEAD || p->mode == SIMPLAN_ASYNC;
    rc = rc == STATUS_OK ? train_opts_validate(&r->o, e) : rc;
    if (rc == STATUS_OK && r->o.dynamic_sampling_filter_path) {
        struct filter_opts f = {0};
        rc = filter_open(FILTER_DYNAMIC, r->o.dynamic_sampling_filter_path, &f, &r->dynamic, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    r->o.max_weight_staleness +=
        r->s.plant == SIM_PLANT_STALENESS && r->o.max_weight_staleness != CONF_UNSET;
    r->o.disk_wait = r->s.plant == SIM_PLANT_ROOM ? 0 : r->o.disk_wait;
    t.seed = (uint64_t)r->o.rollout_seed;
    r->disk = simdisk_new(&r->s);
    r->net = simnet_new(&r->s);
    r->train = simtrain_new(&r->s, &t);
    if (p->delta) {
        r->delta = simdelta_new(&r->s, &(struct simdelta_opts){.models = &sh->models,
                                                               .train = r->train,
                                                               .disk = r->disk,
                                                               .full_every = p->delta,
                                                               .overwrite = p->overwrite,
                                                               .keep_s = p->keep_s});
    }
    r->fleet = simfleet_new(&r->s, r->net,
                            &(struct simfleet_opts){.engines = p->engines,
                                                    .own = p->own,
                                                    .more = p->places,
                                                    .crawl = p->slow,
                                                    .delta = r->delta});
    r->pace = p->slow ? simpace_new(&r->s, r->fleet) : NULL;
    if (p->places) {
        r->crew = simcrew_new(&r->s, &(struct simcrew_opts){.disk = r->disk,
                                                            .net = r->net,
                                                            .fleet = r->fleet,
                                                            .first = p->engines,
                                                            .places = p->places,
                                                            .listed = p->listed});
    }
    r->watch = simwatch_new(&r->s, r->train);
    w.asked = r->o.group_rm ? NULL : simwatch_reward; /* a group that grew is another question */
    w.arg = r->watch;
    r->reward = simreward_new(&r->s, &w);
    w.asked = NULL;
    w.chance = 0;
    r->eval_reward = simreward_new(&r->s, &w);
    if (p->evals) {
        rc = simeval_new(&r->s, &r->o, sh->eval_fd, &r->told, &r->evals, e);
    }
    fsio_sys_use(simdisk_table(r->disk));
    sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, (int)(p->seed | 1), NULL);
    return rc;
}

static void simrun_teardown(struct simrun *r)
{
    fsio_sys_use(NULL);
    filter_close(r->dynamic);
    simcrew_free(r->crew);
    simpace_free(r->pace);
    simnet_free(r->net);
    simfleet_free(r->fleet);
    simreward_free(r->reward);
    simreward_free(r->eval_reward);
    simeval_free(r->evals);
    simdelta_free(r->delta);
    simtrain_free(r->train);
    simwatch_free(r->watch);
    simdisk_free(r->disk);
    conf_free(r->conf);
    sim_fini(&r->s);
}

/* 1: whatever goes wrong, the run ends in the bits of the run in which nothing does. */
static int simrun_compares(const struct simplan *p)
{
    return p->mode != SIMPLAN_ASYNC && !p->chance;
}

/* The weights of the same run when nothing goes wrong, and what its evaluations say. */
static uint64_t simrun_calm(struct simrun_shared *sh, const struct simplan *p, int trace,
                            struct simeval_told *told, char *broken, size_t size)
{
    struct simrun *r = mem_alloc(sizeof *r);
    struct simplan calm = *p;
    struct err e = {0};
    uint64_t weights = 0;

    calm.ends = calm.stop_at = 0;
    calm.chance = 0;
    sim_init(&r->s, sim_mix(p->seed, 2));
    r->s.trace = trace;
    sim_note(&r->s, "the run without faults");
    if (simrun_setup(r, sh, &calm, &e) != STATUS_OK) {
        snprintf(broken, size, "the run cannot be set up: %.300s", e.msg);
    } else {
        r->o.ledger_mode = LEDGER_OFF;
        simrun_whole(r);
        if (r->s.broken[0]) {
            snprintf(broken, size, "without a fault: %.300s", r->s.broken);
        }
        weights = simtrain_weights(r->train);
        *told = r->told;
    }
    simrun_teardown(r);
    mem_free(r);
    return weights;
}

/* The run once more from its ledger alone. */
static void simrun_replay(struct simrun *r)
{
    struct ledger_opts o = {.dir = SIMRUN_DIR, .closed = 1};
    uint64_t want = simtrain_weights(r->train);
    struct simrun_life l;
    struct loop_cfg c;
    struct err e = {0};
    int rc;

    memset(&l, 0, sizeof l);
    r->s.rate = 0;
    r->s.end_at = 0;
    sim_note(&r->s, "replay");
    simtrain_begin(r->train);
    rc = ledger_open(&o, &l.closed, &e);
    rc = rc == STATUS_OK ? simrun_prompts(r, &l, &e) : rc;
    rc = rc == STATUS_OK
             ? port_record_open(NULL, ledger_journal(l.closed), &r->s.world, NULL, &l.record, &e)
             : rc;
    if (rc == STATUS_OK) {
        char *save = r->o.save;
        simrun_cfg(r, &l, &c);
        r->o.save = NULL;
        c.rollout = port_record_port(l.record);
        c.journal = ledger_journal(l.closed);
        c.scored = c.away = 1;
        rc = loop_open(&c, &l.loop, &e);
        rc = rc == STATUS_OK ? STATUS_AGAIN : rc;
        while (rc == STATUS_AGAIN && !r->s.dead) {
            rc = loop_tick(l.loop, &e);
            sim_event(&r->s, "tick");
        }
        r->o.save = save;
    }
    if (!r->s.dead && rc != STATUS_OK) {
        sim_broken(&r->s, "the replay ends with an error: %s: %.300s", status_name(rc), e.msg);
    } else if (!r->s.dead && simtrain_weights(r->train) != want) {
        sim_broken(&r->s, "the replay's weights are %016llx, the run's %016llx",
                   (unsigned long long)simtrain_weights(r->train), (unsigned long long)want);
    }
    simrun_close(r, &l, rc);
}

static void simrun_verdict(struct simrun *r)
{
    int64_t all = r->plan.rollouts * r->plan.groups * r->plan.samples;
    uint64_t got = simtrain_weights(r->train);

    if (r->s.broken[0]) {
        return;
    }
    if (simtrain_samples(r->train) != all) {
        sim_broken(&r->s, "%lld samples are trained, not %lld",
                   (long long)simtrain_samples(r->train), (long long)all);
    } else if (simrun_compares(&r->plan) && got != r->want) {
        sim_broken(&r->s, "the weights are %016llx, without faults they are %016llx",
                   (unsigned long long)got, (unsigned long long)r->want);
    } else if (!r->plan.prunes && !simrun_compares(&r->plan)) {
        simrun_replay(r);
    }
}

static void simrun_tell(const struct simrun *r, struct simrun_result *out)
{
    const struct sim *s = &r->s;
    int64_t from = s->nlast > SIM_LAST ? s->nlast - SIM_LAST : 0;

    snprintf(out->broken, sizeof out->broken, "%s", s->broken);
    out->event = s->broken[0] ? s->broken_event : s->event;
    out->starts = r->starts;
    out->samples = r->train ? simtrain_samples(r->train) : 0;
    out->seconds = s->now - 1000;
    memcpy(out->hits, s->hits, sizeof out->hits);
    memcpy(out->did, s->did, sizeof out->did);
    for (int64_t i = from; i < s->nlast; i++) {
        memcpy(out->last[i - from], s->last[i % SIM_LAST], SIM_LINE);
    }
}

void simrun_seed(struct simrun_shared *sh, uint64_t seed, enum sim_plant plant, int trace,
                 struct simrun_result *out)
{
    struct simrun *r = mem_alloc(sizeof *r);
    struct simplan p;
    struct err e = {0};

    memset(out, 0, sizeof *out);
    simplan_draw(&p, seed);
    snprintf(out->what, sizeof out->what,
             "%s, %d engine%s %s and %d of %d that come and go, %lld rollouts of %lld x %lld, rate "
             "%.1f",
             simplan_mode_name(p.mode), p.engines, p.engines == 1 ? "" : "s",
             p.own ? "of its own" : "of others", p.listed, p.places, (long long)p.rollouts,
             (long long)p.groups, (long long)p.samples, p.rate);
    r->want = simrun_calm(sh, &p, trace, &r->told, out->broken, sizeof out->broken);
    if (!simrun_compares(&p)) {
        memset(&r->told, 0, sizeof r->told);
    }
    if (!out->broken[0]) {
        sim_init(&r->s, sim_mix(seed, 3));
        r->s.plant = plant;
        r->s.trace = trace;
        r->s.rate = p.rate;
        r->s.faults = p.faults;
        r->s.jump_at = p.jump_at > 0 ? r->s.now + p.jump_at : 0;
        sim_note(&r->s, "the run with faults:");
        for (int i = 0; i < p.argc; i++) {
            sim_note(&r->s, "    %s", p.words[i]);
        }
        if (simrun_setup(r, sh, &p, &e) == STATUS_OK) {
            simrun_whole(r);
            simrun_verdict(r);
        } else {
            sim_broken(&r->s, "the run cannot be set up: %.300s", e.msg);
        }
        simrun_tell(r, out);
        simrun_teardown(r);
    }
    mem_free(r);
}
