/* The training loop with a fake engine, trainer and clock: what is trained does not depend on the
 * order of answers nor on where the run was stopped and resumed; cadences; failures. */
#include "fakeport.h"

#include <math.h>

#include "base/metric.h"
#include "reward/hub.h"
#include "rl/evalset.h"
#include "rl/extend.h"
#include "rl/filter.h"
#include "rl/journal.h"
#include "rl/loop.h"
#include "rl/prompts.h"
#include "rl/train_opts.h"

static struct err e;

/* ---- a run ---- */

struct run {
    struct fakeport f;
    struct conf *conf;
    struct train_opts o;
    struct hub *hub;
    struct prompts *data;
    struct loop_eval_set evals[2];
    struct evalset *sets; /* two, by --eval-prompt-data one x two x */
    int nsets;
    struct loop_cfg c;
    struct journal journal;
    int events[JOURNAL_NEVENTS], fail_event; /* the event that the journal refuses; -1 none */
    int64_t decisions;                       /* of a stream: the next one's number */
    json_t *rows;                            /* metrics, in order */
    int progress;
    int64_t start, sched_pos, num_rollout;
    const char *dataset; /* cursor as JSON, or NULL */
    const char *buffer;  /* unfinished groups as JSON, or NULL */
    const char *waiting; /* a rollout that is not yet trained, or NULL */
    const char *stream;  /* what was in flight, or NULL */
};

static void on_metric(void *arg, const json_t *row)
{
    json_array_append_new(((struct run *)arg)->rows, json_deep_copy(row));
}

static void on_progress(void *arg, const struct loop_progress *p)
{
    struct run *r = arg;
    r->progress++;
    assert_non_null(p->phase);
    assert_true(p->done >= 0 && p->total >= 0);
}

static int on_record(void *self, enum journal_event ev, int64_t rollout, const json_t *data,
                     struct err *err)
{
    struct run *r = self;
    (void)rollout;
    assert_true(json_is_object(data));
    r->events[ev]++;
    if (ev == JOURNAL_DECISION) {
        assert_int_equal(json_integer_value(json_object_get(data, "number")), r->decisions++);
    }
    return (int)ev == r->fail_event ? ERR(err, STATUS_IO, "the ledger is full") : STATUS_OK;
}

/* Thirty rows; those named in `bad` have no label, so that their reward fails. */
static void write_rows(const char *name, int n, const char *bad)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < n; i++) {
        buf_printf(&b, "{\"q\": \"row %d\", \"label\": %s}\n", i,
                   bad[0] == '*' || strchr(bad, 'a' + i % 26) ? "null" : "\"a b c 1 2 3\"");
    }
    fakeport_text(name, b.data);
    buf_fini(&b);
}

/* Opens everything but the loop. args end with NULL and come after the common ones. */
static void run_open(struct run *r, uint64_t order, const char *const *args)
{
    const char *argv[64] = {"--hf-checkpoint",
                            "x",
                            "--prompt-data",
                            "x",
                            "--input-key",
                            "q",
                            "--label-key",
                            "label",
                            "--rollout-batch-size",
                            "3",
                            "--n-samples-per-prompt",
                            "4",
                            "--rollout-max-response-len",
                            "8",
                            "--rm-type",
                            "f1",
                            "--lr",
                            "0.5",
                            "--rollout-shuffle"};
    int argc = 19;
    struct hub_opts h = {.rm_type = "f1"};
    struct prompts_opts p = {.input_key = "q", .label_key = "label", .seed = 42, .shuffle = 1};
    memset(r, 0, sizeof *r);
    for (; *args; args++) {
        argv[argc++] = *args;
    }
    fakeport_open(&r->f, order);
    r->conf = conf_new();
    conf_add(r->conf, train_opts_table, &r->o);
    assert_ok(conf_parse(r->conf, argc, (char *const *)(uintptr_t)argv, &e), &e);
    for (int i = 0; i < argc; i++) {
        r->o.train_async |= strcmp(argv[i], "--fully-async") == 0;
    }
    assert_ok(train_opts_validate(&r->o, &e), &e);
    assert_ok(hub_open(&h, &r->hub, &e), &e);
    p.path = fakeport_path("rows.jsonl");
    p.group_size = r->o.n_samples_per_prompt;
    assert_ok(prompts_open(&r->data, &p, &e), &e);
    p.path = fakeport_path("eval.jsonl");
    p.shuffle = 0;
    p.group_size = r->o.n_samples_per_eval_prompt;
    if (r->o.eval_interval != CONF_UNSET) {
        assert_ok(evalset_read(&r->o, &r->sets, &r->nsets, &e), &e);
        assert_int_equal(r->nsets, 2);
        for (int i = 0; i < 2; i++) {
            assert_ok(prompts_open(&r->evals[i].data, &p, &e), &e);
            r->evals[i].set = &r->sets[i];
        }
        r->c.nevals = 2;
    }
    r->rows = json_array();
    r->fail_event = -1;
    r->journal = (struct journal){.record = on_record, .self = r};
    r->num_rollout = r->o.num_rollout;
    r->c.o = &r->o;
    r->c.rollout = &r->f.rollout;
    r->c.train = &r->f.train;
    r->c.hub = r->c.eval_hub = r->hub;
    r->c.enc = &r->f.enc;
    r->c.data = r->data;
    r->c.evals = r->evals;
    r->c.world = &r->f.world;
    r->c.journal = &r->journal;
    r->c.progress = on_progress;
    r->c.progress_arg = r;
}

/* Turns the loop to its end; its status. */
static int run_go(struct run *r)
{
    struct loop *l = NULL;
    json_t *buffer = r->buffer ? json_loads(r->buffer, 0, NULL) : NULL;
    json_t *waiting = r->waiting ? json_loads(r->waiting, 0, NULL) : NULL;
    json_t *stream = r->stream ? json_loads(r->stream, 0, NULL) : NULL;
    int rc;
    r->c.stream = stream;
    r->c.buffer = buffer;
    r->c.waiting = waiting;
    r->c.start_rollout = r->start;
    r->c.num_rollout = r->num_rollout;
    r->c.sched_pos = r->sched_pos;
    if (r->dataset) {
        json_t *d = json_loads(r->dataset, 0, NULL);
        assert_non_null(d);
        assert_ok(prompts_restore(r->data, d, &e), &e);
        json_decref(d);
    }
    memset(&e, 0, sizeof e);
    metric_add_sink(on_metric, r);
    rc = loop_open(&r->c, &l, &e);
    json_decref(buffer);
    json_decref(waiting);
    json_decref(stream);
    rc = rc == STATUS_OK ? STATUS_AGAIN : rc;
    for (int guard = 0; rc == STATUS_AGAIN; guard++) {
        assert_true(guard < 200000 || r->c.overlap);
        rc = loop_tick(l, &e);
    }
    if (rc == STATUS_OK) {
        assert_int_equal(loop_tick(l, &e), STATUS_OK); /* finished stays finished */
    }
    loop_close(l);
    metric_remove_sink(on_metric, r);
    return rc;
}

static void run_close(struct run *r)
{
    json_decref(r->rows);
    hub_close(r->hub);
    prompts_close(r->data);
    for (int i = 0; i < r->c.nevals; i++) {
        prompts_close(r->evals[i].data);
    }
    evalset_free(r->sets, r->nsets);
    conf_free(r->conf);
    fakeport_close(&r->f);
}

/* Values of a metric over the run as text: "0 2 4". */
static const char *series(const struct run *r, const char *name)
{
    static char out[4][512];
    static int next;
    size_t i, n = 0;
    json_t *row;
    next = (next + 1) % 4;
    out[next][0] = 0;
    json_array_foreach(r->rows, i, row)
    {
        json_t *v = json_object_get(row, name);
        if (v) {
            n += (size_t)snprintf(out[next] + n, sizeof out[next] - n, n ? " %g" : "%g",
                                  json_number_value(v));
        }
    }
    return out[next];
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- tests ---- */

static void order_does_not_show(void **state)
{
    char want[65] = "", got[65];
    json_t *rows = NULL;
    (void)state;
    write_rows("rows.jsonl", 30, "bgm");
    write_rows("eval.jsonl", 5, "c");
    for (uint64_t order = 0; order < 8; order++) {
        struct run r;
        run_open(&r, order,
                 ARGS("--num-rollout", "5", "--eval-interval", "2", "--eval-prompt-data", "one",
                      "x", "two", "x"));
        r.f.room =
            order < 6 ? 0 : (int)order - 2; /* one group of 4 at a time, with and without rest */
        assert_ok(run_go(&r), &e);
        assert_int_equal(r.f.steps, 5);
        assert_int_equal(r.f.turned_away > 0, order >= 6);
        assert_int_equal(r.f.scored, 0); /* exact log-probs are the old ones */
        assert_int_equal(r.f.exact_samples[4], 12);
        assert_int_equal(r.f.with_old[0], 12);
        fakeport_weights(&r.f, got);
        if (!want[0]) {
            strcpy(want, got);
            rows = json_deep_copy(r.rows);
        }
        assert_string_equal(got, want);
        assert_string_equal(series(&r, "rollout/step"), "0 1 2 3 4");
        assert_int_equal(json_array_size(r.rows), json_array_size(rows));
        for (size_t i = 0; i < json_array_size(rows); i++) {
            json_t *a = json_array_get(rows, i), *b = json_array_get(r.rows, i), *v;
            const char *key;
            json_object_foreach(a, key, v)
            {
                int timing = strncmp(key, "perf/", 5) == 0 || strstr(key, "duration") != NULL;
                if (!timing && !json_equal(v, json_object_get(b, key))) {
                    fail_msg("row %zu: %s differs", i, key);
                }
            }
        }
        run_close(&r);
    }
    json_decref(rows);
}

/* Evaluations: before the first step, every k-th, and at the end; both sets each time. */
static void evaluations(void **state)
{
    static const struct {
        const char *rollouts, *interval;
        int skip;
        const char *steps;
    } cases[] = {
        {"5", "2", 0, "0 0 2 2 4 4 5 5"}, {"4", "2", 0, "0 0 2 2 4 4"}, {"4", "2", 1, "2 2 4 4"},
        {"3", "10", 0, "0 0 3 3"},        {"2", "1", 1, "1 1 2 2"},
    };
    (void)state;
    write_rows("rows.jsonl", 30, "");
    write_rows("eval.jsonl", 5, "c");
    for (int k = 0; k < 5; k++) {
        struct run r;
        run_open(&r, 3,
                 ARGS("--num-rollout", cases[k].rollouts, "--eval-interval", cases[k].interval,
                      "--eval-prompt-data", "one", "x", "two", "x", "--n-samples-per-eval-prompt",
                      "2", cases[k].skip ? "--skip-eval-before-train" : "--colocate"));
        assert_ok(run_go(&r), &e);
        assert_string_equal(series(&r, "eval/step"), cases[k].steps);
        /* one row of five fails: its reward is none, not zero */
        assert_non_null(strstr(series(&r, "eval/one-none_reward_ratio"), "0.2"));
        assert_true(json_number_value(json_object_get(json_array_get(r.rows, cases[k].skip ? 1 : 0),
                                                      "eval/one")) >= 0.0);
        run_close(&r);
    }
}

/* A set's own sampling, metadata and pass@k; those of another do not show. */
static void evaluation_sets(void **state)
{
    struct run r;
    json_t *row;
    (void)state;
    write_rows("rows.jsonl", 30, "");
    write_rows("eval.jsonl", 5, "");
    run_open(&r, 3,
             ARGS("--num-rollout", "1", "--eval-interval", "1", "--skip-eval-before-train",
                  "--eval-prompt-data", "one", "x", "two", "x", "--log-passrate",
                  "--save-debug-rollout-data", fakeport_path("sets-{rollout_id}")));
    r.sets[1].n = 4;
    r.sets[1].max_response_len = 2;
    r.sets[1].metadata = json_pack("{s:s,s:i}", "rm_type", "f1", "note", 3);
    assert_ok(run_go(&r), &e);
    row = json_array_get(r.rows, 1);
    assert_true(json_number_value(json_object_get(row, "eval/one/response_len/max")) > 2);
    assert_null(json_object_get(row, "eval/one-pass@1"));
    row = json_array_get(r.rows, 2);
    assert_true(json_number_value(json_object_get(row, "eval/two/response_len/max")) == 2);
    assert_non_null(json_object_get(row, "eval/two-pass@1"));
    assert_non_null(json_object_get(row, "eval/two-pass@4"));
    assert_non_null(json_object_get(json_array_get(r.rows, 0), "passrate/pass@2"));
    {
        char *text = NULL;
        size_t n;
        assert_ok(fsio_read(fakeport_path("sets-eval_two_1"), 1 << 20, &text, &n, &e), &e);
        assert_non_null(strstr(text, "\"note\":"));
        mem_free(text);
        assert_ok(fsio_read(fakeport_path("sets-eval_one_1"), 1 << 20, &text, &n, &e), &e);
        assert_null(strstr(text, "\"note\":"));
        mem_free(text);
    }
    run_close(&r);
}

/* Evaluating neither moves the data nor what is trained. */
static void evaluation_is_apart(void **state)
{
    char a[65], b[65];
    struct run r;
    (void)state;
    write_rows("rows.jsonl", 30, "bg");
    write_rows("eval.jsonl", 5, "c");
    run_open(&r, 1, ARGS("--num-rollout", "4"));
    assert_ok(run_go(&r), &e);
    fakeport_weights(&r.f, a);
    run_close(&r);
    run_open(&r, 1,
             ARGS("--num-rollout", "4", "--eval-interval", "1", "--eval-prompt-data", "one", "x",
                  "two", "x"));
    assert_ok(run_go(&r), &e);
    fakeport_weights(&r.f, b);
    run_close(&r);
    assert_string_equal(a, b);
}

static const char *saved(const struct run *r)
{
    static char out[256];
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < r->f.saves; i++) {
        n += (size_t)snprintf(out + n, sizeof out - n, n ? " %lld" : "%lld",
                              (long long)r->f.saved_iteration[i]);
    }
    return out;
}

static void saving(void **state)
{
    struct run r;
    const char *hf = fakeport_path("hf-{rollout_id}");
    (void)state;
    write_rows("rows.jsonl", 30, "");
    run_open(&r, 1,
             ARGS("--num-rollout", "7", "--save", "s", "--save-interval", "3", "--save-hf", hf));
    assert_ok(run_go(&r), &e);
    assert_string_equal(saved(&r), "2 5 6");
    assert_int_equal(r.f.exports, 3);
    assert_string_equal(r.f.export_dir, fakeport_path("hf-6"));
    assert_int_equal(r.events[JOURNAL_SAVED], 3);
    run_close(&r);
    /* without an interval, at the end only; an exact multiple is saved once */
    run_open(&r, 1, ARGS("--num-rollout", "2", "--save", "s"));
    assert_ok(run_go(&r), &e);
    assert_string_equal(saved(&r), "1");
    run_close(&r);
    run_open(&r, 1, ARGS("--num-rollout", "4", "--save", "s", "--save-interval", "2"));
    assert_ok(run_go(&r), &e);
    assert_string_equal(saved(&r), "1 3");
    run_close(&r);
    /* a save that fails ends the run with its cause */
    run_open(&r, 1, ARGS("--num-rollout", "4", "--save", "s", "--save-interval", "1"));
    r.f.fail_save = 2;
    assert_int_equal(run_go(&r), STATUS_IO);
    assert_non_null(strstr(e.msg, "no space left"));
    assert_int_equal(r.f.steps, 2);
    run_close(&r);
}

static void row_is_there(void *arg, int64_t iteration)
{
    const struct run *r = arg;
    size_t n = json_array_size(r->rows);
    json_t *last = n ? json_array_get(r->rows, n - 1) : NULL;
    assert_non_null(last);
    assert_int_equal(json_integer_value(json_object_get(last, "rollout/step")), iteration);
    assert_int_equal(r->f.exports, r->f.saves);
}

/* A run that is killed right after its checkpoint resumes behind that rollout: the rollout's
 * metrics and its export must have been written before. */
static void checkpoint_comes_last(void **state)
{
    struct run r;
    (void)state;
    write_rows("rows.jsonl", 30, "");
    run_open(&r, 1,
             ARGS("--num-rollout", "4", "--save", "s", "--save-interval", "1", "--save-hf",
                  fakeport_path("last-{rollout_id}")));
    r.f.on_save = row_is_there;
    r.f.on_save_arg = &r;
    assert_ok(run_go(&r), &e);
    assert_int_equal(r.f.saves, 4);
    run_close(&r);
}

/* An export never removes what is not an export of this run: a model, or a user's folder that
 * happens to hold a config.json. */
static void export_spares_files(void **state)
{
    const char *dir = fakeport_path("precious");
    struct run r;
    (void)state;
    write_rows("rows.jsonl", 30, "");
    assert_ok(fsio_mkdirs(dir, &e), &e);
    fakeport_text("precious/config.json", "{}");
    fakeport_text("precious/thesis.txt", "years of work");
    run_open(&r, 1, ARGS("--num-rollout", "1", "--save-hf", dir));
    (void)run_go(&r);
    assert_true(fsio_is_file(fakeport_path("precious/thesis.txt")));
    assert_true(fsio_is_file(fakeport_path("precious/config.json")));
    run_close(&r);
}

static void stop_request(void **state)
{
    struct run r;
    (void)state;
    write_rows("rows.jsonl", 30, "");
    write_rows("eval.jsonl", 3, "");
    run_open(&r, 1,
             ARGS("--num-rollout", "9", "--save", "s", "--save-interval", "4", "--eval-interval",
                  "1", "--eval-prompt-data", "one", "x", "two", "x"));
    r.f.stop_after_steps = 2;
    assert_ok(run_go(&r), &e);
    assert_int_equal(r.f.steps, 2);
    assert_string_equal(saved(&r), "1");
    assert_string_equal(series(&r, "rollout/step"), "0 1");
    assert_string_equal(series(&r, "eval/step"), "0 0 1 1"); /* it goes home at once */
    run_close(&r);
    /* the debug exit saves too, and leaves the schedule as it is */
    run_open(&r, 1, ARGS("--num-rollout", "9", "--save", "s", "--debug-exit-after-rollout", "3"));
    assert_ok(run_go(&r), &e);
    assert_int_equal(r.f.steps, 3);
    assert_string_equal(saved(&r), "2");
    assert_true(r.f.lr[0] == 0.5 && r.f.lr[2] > 0.5 * 6 / 9 && r.f.lr[2] < 0.5);
    run_close(&r);
}

/* A run that was stopped after any rollout and resumed from its state trains what a run that never
 * stopped trains, at the same learning rates. */
static void resume(void **state)
{
    const char *const args[] = {"--num-rollout",       "6", "--save", "s",
                                "--global-batch-size", "4", NULL};
    struct run whole;
    char want[65], got[65];
    (void)state;
    write_rows("rows.jsonl", 11, "bg");
    run_open(&whole, 4, args);
    assert_ok(run_go(&whole), &e);
    assert_int_equal(whole.f.steps, 18); /* three steps a rollout */
    fakeport_weights(&whole.f, want);
    for (int k = 1; k < 6; k++) {
        struct run a, b;
        json_t *s;
        char *dataset;
        run_open(&a, 7, args);
        a.f.stop_after_steps = 3 * k;
        assert_ok(run_go(&a), &e);
        assert_int_equal(a.f.saves, 1);
        s = json_loads(a.f.saved_state[0], 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(s, "rollout_id")), k - 1);
        assert_int_equal(json_integer_value(json_object_get(s, "sched_pos")), 12 * k);
        assert_int_equal(json_integer_value(json_object_get(s, "weight_version")), 3 * k);
        dataset = json_dumps(json_object_get(s, "dataset"), 0);
        run_open(&b, 9, args);
        b.f.digest = a.f.digest;
        b.f.version = json_integer_value(json_object_get(s, "weight_version"));
        b.start = a.f.saved_iteration[0] + 1;
        b.sched_pos = json_integer_value(json_object_get(s, "sched_pos"));
        b.dataset = dataset;
        assert_ok(run_go(&b), &e);
        assert_int_equal(b.f.steps, 18 - 3 * k);
        for (int i = 0; i < b.f.steps; i++) {
            assert_true(b.f.lr[i] == whole.f.lr[3 * k + i]);
        }
        fakeport_weights(&b.f, got);
        assert_string_equal(got, want);
        free(dataset);
        json_decref(s);
        run_close(&a);
        run_close(&b);
    }
    run_close(&whole);
}

/* ---- dynamic sampling and partial rollouts ---- */

static const char *const waves[] = {"--num-rollout",
                                    "5",
                                    "--over-sampling-batch-size",
                                    "6",
                                    "--partial-rollout",
                                    "--rollout-logical-concurrency",
                                    "9",
                                    "--save",
                                    "s",
                                    "--save-interval",
                                    "1",
                                    NULL};

static void waves_open(struct run *r, uint64_t order, int slots, const char *const *args)
{
    static const char text[] = "def third(args, samples):\n"
                               "    return sum(s.response_length for s in samples) % 3 > 0\n";
    struct filter_opts o = {0};
    char path[300];
    run_open(r, order, args);
    r->f.slots = slots;
    r->f.spread = 8;
    r->f.drift = 1;
    fakeport_text("third.py", text);
    snprintf(path, sizeof path, "%s:third", fakeport_path("third.py"));
    assert_ok(filter_open(FILTER_DYNAMIC, path, &o, &r->c.dynamic, &e), &e);
}

static void waves_close(struct run *r)
{
    filter_close(r->c.dynamic);
    run_close(r);
}

static int64_t total(const struct run *r, const char *name)
{
    int64_t sum = 0;
    for (size_t i = 0; i < json_array_size(r->rows); i++) {
        sum += json_integer_value(json_object_get(json_array_get(r->rows, i), name));
    }
    return sum;
}

/* Groups are dropped, cut and taken up again, and neither the order of answers nor the speed of the
 * engine shows in what is trained, saved or measured. */
static void waves_speed_does_not_show(void **state)
{
    char want[65] = "", got[65];
    char *saved_state[FAKEPORT_SAVES] = {0};
    json_t *rows = NULL;
    (void)state;
    write_rows("rows.jsonl", 30, "bgm");
    for (uint64_t order = 1; order < 9; order++) {
        struct run r;
        waves_open(&r, order, order == 8 ? 0 : (int)(order * order), waves);
        if (order == 8) {
            r.f.rollout.progress = NULL;
        }
        assert_ok(run_go(&r), &e);
        assert_int_equal(r.f.steps, 5);
        fakeport_weights(&r.f, got);
        if (!want[0]) {
            strcpy(want, got);
            rows = json_deep_copy(r.rows);
            assert_true(total(&r, "rollout/partial/samples") > 4);
            assert_true(total(&r, "rollout/partial/resumed_groups") > 4);
            assert_true(total(&r, "rollout/wasted_tokens") > 0);
            assert_true(r.events[JOURNAL_DROP] > 0);
        }
        assert_string_equal(got, want);
        for (int i = 0; i < r.f.saves; i++) {
            if (saved_state[i]) {
                assert_string_equal(saved_state[i], r.f.saved_state[i]);
            } else {
                saved_state[i] = r.f.saved_state[i];
                r.f.saved_state[i] = NULL;
            }
        }
        for (size_t i = 0; i < json_array_size(rows); i++) {
            json_t *a = json_array_get(rows, i), *b = json_array_get(r.rows, i), *v;
            const char *key;
            json_object_foreach(a, key, v)
            {
                if (strncmp(key, "perf/", 5) != 0 && !json_equal(v, json_object_get(b, key))) {
                    fail_msg("row %zu: %s differs", i, key);
                }
            }
        }
        waves_close(&r);
    }
    for (int i = 0; i < FAKEPORT_SAVES; i++) {
        free(saved_state[i]);
    }
    json_decref(rows);
}

/* Stopped after each rollout and resumed with the groups that were unfinished: the same bits. */
static void waves_resume(void **state)
{
    struct run whole;
    char want[65], got[65];
    (void)state;
    write_rows("rows.jsonl", 30, "bgm");
    waves_open(&whole, 1, 3, waves);
    assert_ok(run_go(&whole), &e);
    fakeport_weights(&whole.f, want);
    for (int k = 1; k < 5; k++) {
        struct run a, b;
        char *dataset, *buffer;
        json_t *s;
        waves_open(&a, (uint64_t)k, 2, waves);
        a.f.stop_after_steps = k;
        assert_ok(run_go(&a), &e);
        s = json_loads(a.f.saved_state[k - 1], 0, NULL);
        dataset = json_dumps(json_object_get(s, "dataset"), 0);
        buffer = json_dumps(json_object_get(s, "buffer"), 0);
        assert_true(strlen(buffer) > 200);
        waves_open(&b, 9, 5, waves);
        b.f.digest = a.f.digest;
        b.f.version = json_integer_value(json_object_get(s, "weight_version"));
        b.start = k;
        b.sched_pos = json_integer_value(json_object_get(s, "sched_pos"));
        b.dataset = dataset;
        b.buffer = buffer;
        assert_ok(run_go(&b), &e);
        fakeport_weights(&b.f, got);
        assert_string_equal(got, want);
        assert_string_equal(b.f.saved_state[b.f.saves - 1], whole.f.saved_state[4]);
        free(dataset);
        free(buffer);
        json_decref(s);
        waves_close(&a);
        waves_close(&b);
    }
    /* a buffer that does not fit is refused */
    {
        struct run r;
        waves_open(&r, 1, 3, waves);
        r.buffer = "[[{}]]";
        assert_int_equal(run_go(&r), STATUS_INPUT);
        assert_non_null(strstr(e.msg, "--n-samples-per-prompt is 4"));
        waves_close(&r);
    }
    waves_close(&whole);
}

/* Functions of the user's see what Miles' would. */
static void waves_functions(void **state)
{
    static const char text[] =
        "import os\n"
        "def mark(args, groups):\n"
        "    assert len(groups) == 3 and all(len(g) == 4 for g in groups)\n"
        "    for g in groups:\n"
        "        g[1].remove_sample = True\n"
        "def see(args, groups, source):\n"
        "    with open(os.environ['SEEN'], 'a') as out:\n"
        "        out.write('%d %d\\n' % (len(groups), sum(len(g) for g in groups)))\n"
        "async def last(args, rollout_id, buffer, n):\n"
        "    assert rollout_id in (1, 2, 3, 4)\n"
        "    out = buffer[-2:]\n"
        "    buffer.clear()\n"
        "    return out[:n]\n";
    struct filter_opts o = {0};
    char path[300], seen[8] = "";
    size_t size;
    char *told = NULL;
    struct run r;
    (void)state;
    fakeport_text("seen", "");
    fakeport_text("fns.py", text);
    setenv("SEEN", fakeport_path("seen"), 1);
    write_rows("rows.jsonl", 30, "bgm");
    waves_open(&r, 1, 3, waves);
    snprintf(path, sizeof path, "%s:mark", fakeport_path("fns.py"));
    assert_ok(filter_open(FILTER_SAMPLE, path, &o, &r.c.sample_filter, &e), &e);
    snprintf(path, sizeof path, "%s:see", fakeport_path("fns.py"));
    assert_ok(filter_open(FILTER_ALL, path, &o, &r.c.all_samples, &e), &e);
    snprintf(path, sizeof path, "%s:last", fakeport_path("fns.py"));
    assert_ok(filter_open(FILTER_BUFFER, path, &o, &r.c.buffer_filter, &e), &e);
    assert_ok(run_go(&r), &e);
    assert_true(total(&r, "rollout/partial/thrown_groups") > 0);
    for (int i = 0; i < 5; i++) { /* a quarter of the samples has no token to train */
        assert_int_equal(r.f.idle[i], 3);
    }
    assert_ok(fsio_read(fakeport_path("seen"), 1 << 16, &told, &size, &e), &e);
    assert_int_equal(size > 20, 1);
    memcpy(seen, told, 1);
    assert_true(seen[0] >= '3');
    mem_free(told);
    filter_close(r.c.sample_filter);
    filter_close(r.c.all_samples);
    filter_close(r.c.buffer_filter);
    waves_close(&r);
    snprintf(path, sizeof path, "%s:gone", fakeport_path("fns.py"));
    assert_int_equal(filter_open(FILTER_SAMPLE, path, &o, &r.c.sample_filter, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "--rollout-sample-filter-path"));
    assert_non_null(strstr(e.msg, "gone"));
}

/* ---- one step ahead ---- */

/* where: 0 in one process, one after the other; 1 an engine elsewhere, one after the other; 2 and
 * at the same time. */
static void ahead_open(struct run *r, uint64_t order, int slots, int where)
{
    waves_open(r, order, slots, waves);
    r->c.ahead = 1;
    r->c.overlap = where == 2;
    if (where) {
        r->f.rollout.publish = fakeport_publish;
        r->f.weights = &r->f.published;
    }
}

/* Rollout k + 1 is of the weights before step k, however it is executed. */
static void ahead_is_one_schedule(void **state)
{
    char want[65] = "", got[65], *saved_state = NULL;
    struct run r;
    (void)state;
    write_rows("rows.jsonl", 30, "bgm");
    for (int k = 0; k < 9; k++) {
        ahead_open(&r, (uint64_t)k + 1, 1 + k * k, k % 3);
        assert_ok(run_go(&r), &e);
        assert_int_equal(r.f.steps, 5);
        assert_int_equal(r.events[JOURNAL_STEP], 5);
        assert_string_equal(series(&r, "rollout/step"), "0 1 2 3 4");
        assert_string_equal(series(&r, "rollout/weight_version/max"), "0 0 1 2 3");
        assert_int_equal(r.f.exact_samples[0], 12);
        assert_int_equal(r.f.exact_samples[1], 0); /* of older weights */
        fakeport_weights(&r.f, got);
        if (!want[0]) {
            strcpy(want, got);
            saved_state = r.f.saved_state[4];
            r.f.saved_state[4] = NULL;
        } else {
            assert_string_equal(r.f.saved_state[4], saved_state);
        }
        assert_string_equal(got, want);
        waves_close(&r);
    }
    free(saved_state);
    /* and it is another one than that of a run without */
    waves_open(&r, 1, 3, waves);
    assert_ok(run_go(&r), &e);
    fakeport_weights(&r.f, got);
    assert_string_not_equal(got, want);
    waves_close(&r);
}

/* A stopped run has the rollout that was sampled ahead in its checkpoint. */
static void ahead_resume(void **state)
{
    struct run whole;
    char want[65], got[65];
    (void)state;
    write_rows("rows.jsonl", 30, "bgm");
    ahead_open(&whole, 1, 3, 2);
    assert_ok(run_go(&whole), &e);
    fakeport_weights(&whole.f, want);
    for (int k = 1; k < 5; k++) {
        struct run a, b;
        char *dataset, *buffer, *waiting;
        json_t *s;
        ahead_open(&a, (uint64_t)k, 2, k % 3);
        a.f.stop_after_steps = k;
        assert_ok(run_go(&a), &e);
        assert_int_equal(a.f.steps, k);
        s = json_loads(a.f.saved_state[k - 1], 0, NULL);
        dataset = json_dumps(json_object_get(s, "dataset"), 0);
        buffer = json_dumps(json_object_get(s, "buffer"), 0);
        waiting = json_dumps(json_object_get(s, "waiting"), 0);
        assert_non_null(waiting);
        ahead_open(&b, 9, 5, (k + 1) % 3);
        b.f.digest = a.f.digest;
        b.f.version = json_integer_value(json_object_get(s, "weight_version"));
        b.start = k;
        b.sched_pos = json_integer_value(json_object_get(s, "sched_pos"));
        b.dataset = dataset;
        b.buffer = buffer;
        b.waiting = waiting;
        assert_ok(run_go(&b), &e);
        assert_int_equal(b.f.steps, 5 - k);
        fakeport_weights(&b.f, got);
        assert_string_equal(got, want);
        free(dataset);
        free(buffer);
        free(waiting);
        json_decref(s);
        waves_close(&a);
        waves_close(&b);
    }
    waves_close(&whole);
}

/* What fails on one side while the other works ends the run with its own cause. */
static void ahead_errors(void **state)
{
    struct run r;
    (void)state;
    write_rows("rows.jsonl", 30, "");
    for (int where = 0; where < 3; where++) {
        ahead_open(&r, 1, 3, where);
        r.f.fail_step = 2;
        assert_int_equal(run_go(&r), STATUS_NUMERIC);
        assert_non_null(strstr(e.msg, "not finite"));
        assert_string_equal(series(&r, "rollout/step"), "0");
        waves_close(&r);
        ahead_open(&r, 1, 3, where);
        r.f.fail_submit = 14;
        assert_int_equal(run_go(&r), STATUS_INPUT);
        assert_non_null(strstr(e.msg, "no room"));
        waves_close(&r);
    }
}

/* ---- sampling that never stops ---- */

static void endless_open(struct run *r, uint64_t order, int slots, int overlap, const char *unused)
{
    run_open(r, order,
             ARGS("--num-rollout", "8", "--fully-async", "--max-weight-staleness", "1", "--save",
                  "s", "--save-interval", "1", "--eval-interval", "3", "--eval-prompt-data", "one",
                  "x", "two", "x", "--async-unused-samples-handler", unused));
    r->f.slots = slots;
    r->f.spread = 8;
    r->f.drift = 1;
    r->f.exact = 0;
    r->c.ahead = 1;
    r->c.overlap = overlap;
    r->f.rollout.publish = fakeport_publish;
    r->f.weights = &r->f.published;
}

/* Goes on behind the checkpoint of a rollout: 1 when it had the next one whole. */
static int endless_resume(const struct run *r, int rollout, const char *steps)
{
    json_t *s = json_loads(r->f.saved_state[rollout], 0, NULL), *in = json_object_get(s, "stream");
    char *stream = json_dumps(in, 0), *dataset = json_dumps(json_object_get(s, "dataset"), 0);
    char *waiting = json_dumps(json_object_get(s, "waiting"), 0);
    struct run b;
    int whole = waiting != NULL;

    assert_non_null(stream);
    endless_open(&b, 7, 3, 1, "drop");
    b.start = rollout + 1;
    b.decisions = json_integer_value(json_object_get(in, "number"));
    b.f.version = json_integer_value(json_object_get(s, "weight_version"));
    b.dataset = dataset;
    b.stream = stream;
    b.waiting = waiting;
    assert_ok(run_go(&b), &e);
    assert_string_equal(series(&b, "rollout/step"), steps);
    run_close(&b);
    free(stream);
    free(dataset);
    free(waiting);
    json_decref(s);
    return whole;
}

/* Every rollout is trained, none is older than was said, every decision is recorded, evaluations
 * are made between; and a stopped run goes on with what was in flight, also when all that is left
 * is the training of a rollout that is there. */
static void endless(void **state)
{
    int whole = 0;

    (void)state;
    write_rows("rows.jsonl", 30, "bgm");
    write_rows("eval.jsonl", 5, "");
    for (int k = 0; k < 6; k++) {
        struct run r;
        endless_open(&r, (uint64_t)k + 1, 1 + k * 4, k % 2, k / 2 % 2 ? "retry" : "drop");
        r.f.step_us = 20000 * (k % 2); /* the next rollout may be whole before a step is made */
        assert_ok(run_go(&r), &e);
        assert_int_equal(r.f.steps, 8);
        assert_string_equal(series(&r, "rollout/step"), "0 1 2 3 4 5 6 7");
        assert_string_equal(series(&r, "eval/step"), "0 0 3 3 6 6 8 8");
        assert_true(r.events[JOURNAL_DECISION] > 8 * 4);
        for (size_t i = 0; i < json_array_size(r.rows); i++) {
            json_t *row = json_array_get(r.rows, i);
            int64_t step = json_integer_value(json_object_get(row, "rollout/step"));
            json_t *oldest = json_object_get(row, "rollout/weight_version/min");
            if (oldest) { /* one behind the engines, which may be one behind the trainer */
                assert_true(step - json_integer_value(oldest) <= 2);
                assert_non_null(json_object_get(row, "rollout/fully_async/queue_size"));
            }
        }
        endless_resume(&r, 3, "4 5 6 7");
        whole += endless_resume(&r, 6, "7");
        run_close(&r);
    }
    assert_true(whole > 0);
}

/* An evaluation that was due and not made before the stop is made when the run goes on. */
static void resume_evaluates(void **state)
{
    const char *const args[] = {"--num-rollout",
                                "4",
                                "--save",
                                "s",
                                "--eval-interval",
                                "2",
                                "--eval-prompt-data",
                                "one",
                                "x",
                                "two",
                                "x",
                                NULL};
    struct run a, b;
    char *dataset;
    json_t *s;
    (void)state;
    write_rows("rows.jsonl", 30, "");
    write_rows("eval.jsonl", 3, "");
    run_open(&a, 1, args);
    a.f.stop_after_steps = 2;
    assert_ok(run_go(&a), &e);
    assert_string_equal(series(&a, "eval/step"), "0 0");
    s = json_loads(a.f.saved_state[0], 0, NULL);
    dataset = json_dumps(json_object_get(s, "dataset"), 0);
    run_open(&b, 1, args);
    b.start = 2;
    b.dataset = dataset;
    assert_ok(run_go(&b), &e);
    assert_string_equal(series(&b, "eval/step"), "2 2 4 4");
    free(dataset);
    json_decref(s);
    run_close(&a);
    run_close(&b);
}

static void already_done(void **state)
{
    struct run r;
    (void)state;
    write_rows("rows.jsonl", 30, "");
    run_open(&r, 1, ARGS("--num-rollout", "3", "--save", "s"));
    r.start = 3;
    assert_ok(run_go(&r), &e);
    assert_int_equal(r.f.steps + r.f.saves + r.f.submitted, 0);
    run_close(&r);
}

/* Failed rewards: replaced by the next prompts, counted; too many of them end the run. */
static void failures(void **state)
{
    struct run r;
    (void)state;
    write_rows("rows.jsonl", 26, "acegikmoqsuwy"); /* every second row */
    run_open(&r, 2, ARGS("--num-rollout", "4"));
    assert_ok(run_go(&r), &e);
    assert_int_equal(r.f.steps, 4);
    for (int i = 0; i < 4; i++) {
        assert_true(r.f.first_tokens[i] >= 12);
    }
    {
        int sum = 0;
        for (size_t i = 0; i < json_array_size(r.rows); i++) {
            sum += (int)json_integer_value(
                json_object_get(json_array_get(r.rows, i), "rollout/reward_failed_groups"));
        }
        assert_true(sum > 0);
        assert_int_equal(r.f.submitted, 4 * 3 + sum);
        assert_int_equal(r.events[JOURNAL_PROMPTS], 4 * 3 + sum);
        assert_true(r.events[JOURNAL_DROP] > 0 && r.events[JOURNAL_DROP] <= sum);
    }
    run_close(&r);
    write_rows("rows.jsonl", 26, "*");
    run_open(&r, 2, ARGS("--num-rollout", "4"));
    assert_int_equal(run_go(&r), STATUS_CHILD);
    assert_non_null(strstr(e.msg, "no label"));
    assert_non_null(strstr(e.msg, "groups in one rollout"));
    assert_int_equal(r.f.steps, 0);
    assert_true(r.f.submitted <= 9 * 3 + 3);
    run_close(&r);
}

/* Errors of ports and journal come out as they are, and nothing is acted on after them. */
static void errors(void **state)
{
    struct run r;
    (void)state;
    write_rows("rows.jsonl", 30, "");
    run_open(&r, 1, ARGS("--num-rollout", "4", "--save", "s"));
    r.f.fail_step = 2;
    assert_int_equal(run_go(&r), STATUS_NUMERIC);
    assert_int_equal(r.f.saves, 0);
    assert_string_equal(series(&r, "rollout/step"), "0");
    run_close(&r);
    run_open(&r, 1, ARGS("--num-rollout", "4"));
    r.f.fail_submit = 5;
    assert_int_equal(run_go(&r), STATUS_INPUT);
    assert_int_equal(r.f.steps, 1);
    run_close(&r);
    run_open(&r, 1, ARGS("--num-rollout", "4"));
    r.fail_event = JOURNAL_PROMPTS;
    assert_int_equal(run_go(&r), STATUS_IO);
    assert_string_equal(e.msg, "the ledger is full");
    assert_int_equal(r.f.submitted, 0);
    run_close(&r);
    run_open(&r, 1, ARGS("--num-rollout", "4", "--save", "s"));
    r.f.end_early = 20;
    assert_int_equal(run_go(&r), STATUS_FAIL);
    run_close(&r);
}

/* Several optimizer steps a rollout: after the first the samples are no longer exact; log-probs
 * that the engine does not vouch for are computed again. */
static void old_policy(void **state)
{
    struct run r;
    (void)state;
    write_rows("rows.jsonl", 30, "");
    run_open(&r, 1, ARGS("--num-rollout", "2", "--num-steps-per-rollout", "3"));
    assert_ok(run_go(&r), &e);
    assert_int_equal(r.f.steps, 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(r.f.exact_samples[i], i % 3 ? 0 : 4);
        assert_int_equal(r.f.with_old[i], 4);
    }
    assert_int_equal(r.f.scored, 0);
    run_close(&r);
    run_open(&r, 1, ARGS("--num-rollout", "2"));
    r.f.exact = 0;
    assert_ok(run_go(&r), &e);
    assert_int_equal(r.f.scored, 2);
    assert_int_equal(r.f.exact_samples[0], 0);
    assert_int_equal(r.f.with_old[0], 12);
    assert_int_equal(r.f.on_policy[0], 12);
    assert_int_equal(r.f.with_train[0], 0);
    run_close(&r);
    /* the engine's log-probs are the old policy, and only figures need the trainer's */
    for (int figures = 0; figures < 2; figures++) {
        run_open(&r, 1,
                 figures ? ARGS("--num-rollout", "1", "--use-rollout-logprobs",
                                "--num-steps-per-rollout", "3", "--get-mismatch-metrics",
                                "--custom-tis-function-path", "mis")
                         : ARGS("--num-rollout", "1", "--use-rollout-logprobs",
                                "--num-steps-per-rollout", "3"));
        r.f.exact = 0;
        assert_ok(run_go(&r), &e);
        assert_int_equal(r.f.scored, figures);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(r.f.with_train[i], figures ? 4 : 0);
            assert_int_equal(r.f.on_policy[i], i ? 0 : 4); /* the weights move */
        }
        run_close(&r);
    }
    run_open(&r, 1, ARGS("--num-rollout", "2", "--use-kl-loss", "--kl-loss-coef", "0.1"));
    assert_ok(run_go(&r), &e);
    assert_int_equal(r.f.scored_ref, 2);
    run_close(&r);
}

/* Engines elsewhere: which versions they were given, and when. */
struct published {
    struct fakeport *f;
    char said[256];
    int calls, fail; /* the call that fails; 0 none */
};
static struct published pub;

static int on_publish(void *self, int64_t version, struct err *err)
{
    struct fakeport *f = self;
    size_t n = strlen(pub.said);

    assert_int_equal(version, f->version);
    if (++pub.calls == pub.fail) {
        return ERR(err, STATUS_TIMEOUT, "engine 1 did not take them");
    }
    if (pub.calls % 3) {
        return STATUS_AGAIN; /* takes its time */
    }
    snprintf(pub.said + n, sizeof pub.said - n, "%d@%lld ", f->submitted, (long long)version);
    return STATUS_OK;
}

static void publishes(const char *const *args, const char *want, int fail)
{
    struct run r;
    run_open(&r, 1, args);
    memset(&pub, 0, sizeof pub);
    pub.fail = fail;
    r.f.rollout.publish = on_publish;
    if (fail) {
        assert_int_equal(run_go(&r), STATUS_TIMEOUT);
        assert_non_null(strstr(e.msg, "weight_sync of version"));
        assert_non_null(strstr(e.msg, "engine 1"));
    } else {
        assert_ok(run_go(&r), &e);
    }
    assert_string_equal(pub.said, want);
    run_close(&r);
}

/* Before the first rollout, and once for each that follows, whatever the steps of a rollout are;
 * not after the last. Prompts submitted so far @ version. */
static void weight_sync(void **state)
{
    (void)state;
    write_rows("rows.jsonl", 30, "");
    publishes(ARGS("--num-rollout", "3"), "0@0 3@1 6@2 ", 0);
    publishes(ARGS("--num-rollout", "3", "--num-steps-per-rollout", "3"), "0@0 3@3 6@6 ", 0);
    publishes(ARGS("--num-rollout", "5", "--update-weights-interval", "2"), "0@0 6@2 12@4 ", 0);
    publishes(ARGS("--num-rollout", "3"), "0@0 ", 5);
    publishes(ARGS("--num-rollout", "3"), "", 1);
}

/* Sampling only, then training on what was written. */
static void debug_modes(void **state)
{
    const char *path = fakeport_path("dump-{rollout_id}.jsonl");
    struct run a, b, c;
    (void)state;
    write_rows("rows.jsonl", 30, "");
    run_open(&a, 1, ARGS("--num-rollout", "3", "--save-debug-rollout-data", path));
    assert_ok(run_go(&a), &e);
    run_open(&b, 2, ARGS("--num-rollout", "3", "--debug-rollout-only"));
    b.c.train = NULL;
    assert_ok(run_go(&b), &e);
    assert_int_equal(b.f.steps, 0);
    assert_string_equal(series(&b, "rollout/step"), "0 1 2");
    run_open(&c, 1,
             ARGS("--num-rollout", "3", "--debug-train-only", "--load-debug-rollout-data", path));
    c.c.rollout = NULL;
    c.c.data = NULL;
    c.c.hub = NULL;
    assert_ok(run_go(&c), &e);
    assert_int_equal(c.f.steps, 3);
    assert_int_equal(c.f.scored, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(c.f.first_tokens[i], a.f.first_tokens[i]);
    }
    assert_string_equal(series(&c, "rollout/raw_reward"), series(&a, "rollout/raw_reward"));
    run_close(&c);
    /* no file for the fourth rollout */
    run_open(&c, 1,
             ARGS("--num-rollout", "4", "--debug-train-only", "--load-debug-rollout-data", path));
    c.c.rollout = NULL;
    c.c.data = NULL;
    c.c.hub = NULL;
    assert_int_equal(run_go(&c), STATUS_NOTFOUND);
    assert_non_null(strstr(e.msg, "dump-3.jsonl"));
    run_close(&a);
    run_close(&b);
    run_close(&c);
}

/* Samples from a file without log-probs cannot be trained with the engine's log-probs as the old
 * policy: that is said, neither guessed nor a crash. */
static void missing_log_probs(void **state)
{
    const char *path = fakeport_path("bare-{rollout_id}.jsonl");
    struct buf b;
    (void)state;
    buf_init(&b, 1 << 16);
    buf_str(&b, "{\"format\":\"miles-rollout\",\"version\":1,\"rollout_id\":0,\"samples\":12}\n");
    for (int i = 0; i < 12; i++) {
        buf_printf(&b,
                   "{\"index\":%d,\"group_index\":%d,\"tokens\":[1,2,3],\"response_length\":2,"
                   "\"reward\":%d}\n",
                   i, i / 4, i % 2);
    }
    fakeport_text("bare-0.jsonl", b.data);
    buf_fini(&b);
    write_rows("rows.jsonl", 30, "");
    for (int k = 0; k < 2; k++) {
        struct run r;
        run_open(&r, 1,
                 ARGS("--num-rollout", "1", "--debug-train-only", "--load-debug-rollout-data", path,
                      "--use-rollout-logprobs", "--kl-coef", k ? "0.1" : "0"));
        r.c.rollout = NULL;
        r.c.data = NULL;
        r.c.hub = NULL;
        assert_int_equal(run_go(&r), STATUS_INPUT);
        assert_non_null(strstr(e.msg, "log-probs"));
        assert_int_equal(r.f.steps, 0);
        run_close(&r);
    }
}

/* A run of two rollouts with that function for --custom-reward-post-process-path. */
static void shaped_open(struct run *r, char *path, const json_t *args, struct extend **x)
{
    run_open(r, 1, ARGS("--num-rollout", "2", "--custom-reward-post-process-path", path));
    assert_ok(extend_open(&(struct extend_opts){.o = &r->o, .args = args}, x, &e), &e);
    r->c.extend = *x;
}

/* --custom-reward-post-process-path: its lists take the place of the normalisation. */
static void shaped_by_function(void **state)
{
    static const char text[] =
        "def same(args, samples):\n"
        "    r = [s.get_reward_value(args) for s in samples]\n"
        "    assert len(r) == 12 and all(s.metadata == {} for s in samples)\n"
        "    return r, r\n"
        "def other(args, samples):\n"
        "    return [3.0] * len(samples), [s.index for s in samples]\n"
        "def short(args, samples):\n"
        "    return [0] * len(samples), [0]\n"
        "def one(args, samples):\n"
        "    return [0] * len(samples)\n";
    static const struct {
        const char *name, *error;
    } bad[] = {{"short", "1 rewards for a group of 12 samples"},
               {"one", "did not return raw and shaped rewards"}};
    json_t *args = json_pack("{s:n}", "reward_key");
    char path[400], want[65], got[65];
    struct extend *x = NULL;
    struct run r;
    (void)state;
    write_rows("rows.jsonl", 30, "");
    fakeport_text("shape.py", text);
    run_open(&r, 1, ARGS("--num-rollout", "2", "--disable-rewards-normalization"));
    assert_ok(run_go(&r), &e);
    fakeport_weights(&r.f, want);
    run_close(&r);
    snprintf(path, sizeof path, "%s:same", fakeport_path("shape.py"));
    shaped_open(&r, path, args, &x);
    assert_ok(run_go(&r), &e);
    fakeport_weights(&r.f, got);
    assert_string_equal(got, want);
    run_close(&r);
    extend_close(x);
    snprintf(path, sizeof path, "%s:other", fakeport_path("shape.py"));
    shaped_open(&r, path, args, &x);
    assert_ok(run_go(&r), &e);
    assert_string_equal(series(&r, "rollout/raw_reward"), "3 3");
    assert_string_equal(series(&r, "rollout/rewards"), "5.5 17.5");
    run_close(&r);
    extend_close(x);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s:%s", fakeport_path("shape.py"), bad[i].name);
        shaped_open(&r, path, args, &x);
        assert_int_equal(run_go(&r), STATUS_CHILD);
        assert_non_null(strstr(e.msg, bad[i].error));
        assert_int_equal(r.f.steps, 0);
        run_close(&r);
        extend_close(x);
    }
    json_decref(args);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_does_not_show),
        cmocka_unit_test(evaluations),
        cmocka_unit_test(evaluation_sets),
        cmocka_unit_test(evaluation_is_apart),
        cmocka_unit_test(saving),
        cmocka_unit_test(checkpoint_comes_last),
        cmocka_unit_test(export_spares_files),
        cmocka_unit_test(stop_request),
        cmocka_unit_test(resume),
        cmocka_unit_test(waves_speed_does_not_show),
        cmocka_unit_test(waves_resume),
        cmocka_unit_test(waves_functions),
        cmocka_unit_test(ahead_is_one_schedule),
        cmocka_unit_test(ahead_resume),
        cmocka_unit_test(ahead_errors),
        cmocka_unit_test(endless),
        cmocka_unit_test(resume_evaluates),
        cmocka_unit_test(already_done),
        cmocka_unit_test(failures),
        cmocka_unit_test(errors),
        cmocka_unit_test(old_policy),
        cmocka_unit_test(weight_sync),
        cmocka_unit_test(debug_modes),
        cmocka_unit_test(missing_log_probs),
        cmocka_unit_test(shaped_by_function),
    };
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
