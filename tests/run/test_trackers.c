/* Trackers, with stand-ins for wandb and mlflow: what the packages are told, that a slow, a broken
 * and a missing one hold nothing up, and what the options come to. */
#include "runkit.h"

#include <time.h>

#include "base/conf.h"
#include "base/metric.h"
#include "run/trackers.h"
#include "run/watch.h"

static struct err e;

/* A package that writes down its calls; `first` is run by its first one. */
static void stand_in(const char *name, const char *first)
{
    char text[4000];
    int wandb = strcmp(name, "wandb.py") == 0;
    snprintf(text, sizeof text,
             "import json, time, os, sys\n"
             "out = open(os.environ['TRACK_OUT'], 'a')\n"
             "def note(*words):\n"
             "    out.write(json.dumps(words, sort_keys=True) + '\\n'); out.flush()\n"
             "%s\n",
             wandb ? "class Run:\n"
                     "    def define_metric(self, name, step_metric=None): pass\n"
                     "    def log(self, row): note('log', row)\n"
                     "    def finish(self): note('finish')\n"
                     "def Settings(**k): return k\n"
                     "def login(**k): note('login', k)\n"
                   : "def set_tracking_uri(u): note('uri', u)\n"
                     "def set_experiment(n): note('experiment', n)\n"
                     "def start_run(**k): note('start', k)\n"
                     "def log_params(p): note('params', p)\n"
                     "def log_metrics(m, step): note('metrics', step, m)\n"
                     "def end_run(): note('end')\n");
    if (wandb) {
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "def init(**k):\n"
                 "    %s\n"
                 "    k.pop('settings'); k.pop('reinit'); note('init', k)\n"
                 "    return Run()\n",
                 first);
    }
    runkit_put(name, text);
}

static char *calls(void)
{
    char *text = access(runkit_at("calls"), F_OK) == 0 ? runkit_text("calls") : mem_strdup("");
    unlink(runkit_at("calls"));
    return text;
}

static void emit(int step)
{
    json_t *row = json_object();
    metric_put_int(row, "rollout/step", step);
    metric_put_int(row, "train/step", 2 * step);
    metric_put(row, "train/pass@1", 0.5);
    json_object_set_new(row, "perf/none", json_null());
    metric_emit(row);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static json_t *wandb_options(void)
{
    return json_loads("{\"wandb_mode\": null, \"wandb_dir\": \"d\", \"wandb_key\": \"k\","
                      " \"wandb_host\": null, \"wandb_team\": \"t\", \"wandb_group\": \"g\","
                      " \"wandb_project\": \"p\", \"wandb_run_id\": null,"
                      " \"wandb_run_name\": null, \"disable_wandb_random_suffix\": true,"
                      " \"wandb_always_use_train_step\": false}",
                      0, NULL);
}

static struct trackers *open_wandb(double close_s)
{
    json_t *options = wandb_options(), *config = json_pack("{s:f}", "lr", 0.5);
    struct trackers_opts o = {TRACKERS_WANDB, NULL, options, config, close_s};
    struct trackers *t = trackers_open(&o);
    json_decref(options);
    json_decref(config);
    return t;
}

static void wandb_is_told(void **state)
{
    char *got;
    struct trackers *t;
    (void)state;
    stand_in("wandb.py", "pass");
    t = open_wandb(0);
    assert_non_null(t);
    emit(1);
    emit(2);
    trackers_close(t);
    emit(3);
    got = calls();
    assert_string_equal(got, "[\"login\", {\"key\": \"k\"}]\n"
                             "[\"init\", {\"config\": {\"lr\": 0.5}, \"dir\": \"d\", "
                             "\"entity\": \"t\", \"group\": \"g\", \"name\": \"g\", "
                             "\"project\": \"p\"}]\n"
                             "[\"log\", {\"perf/none\": NaN, \"rollout/step\": 1, "
                             "\"train/pass@1\": 0.5, \"train/step\": 2}]\n"
                             "[\"log\", {\"perf/none\": NaN, \"rollout/step\": 2, "
                             "\"train/pass@1\": 0.5, \"train/step\": 4}]\n"
                             "[\"finish\"]\n");
    mem_free(got);
}

static void mlflow_is_told(void **state)
{
    json_t *options = json_loads("{\"mlflow_tracking_uri\": \"u\", \"mlflow_experiment_name\": "
                                 "\"x\", \"mlflow_run_name\": \"n\", \"mlflow_run_id\": null}",
                                 0, NULL);
    json_t *config = json_pack("{s:f,s:n}", "lr", 0.5, "none");
    struct trackers_opts o = {TRACKERS_MLFLOW, NULL, options, config, 0};
    struct trackers *t;
    char *got;
    (void)state;
    stand_in("mlflow.py", "");
    t = trackers_open(&o);
    assert_non_null(t);
    emit(1);
    trackers_close(t);
    got = calls();
    assert_string_equal(got, "[\"uri\", \"u\"]\n[\"experiment\", \"x\"]\n"
                             "[\"start\", {\"run_name\": \"n\"}]\n"
                             "[\"params\", {\"lr\": \"0.5\"}]\n"
                             "[\"metrics\", 1, {\"rollout/step\": 1.0}]\n"
                             "[\"metrics\", 2, {\"train/pass_1\": 0.5, \"train/step\": 2.0}]\n"
                             "[\"end\"]\n");
    mem_free(got);
    json_decref(options);
    json_decref(config);
}

/* One that hangs: rows are not waited for, closing waits as long as it may. */
static void a_slow_one(void **state)
{
    struct trackers *t;
    double t0;
    (void)state;
    stand_in("wandb.py", "time.sleep(60)");
    t = open_wandb(0.5);
    assert_non_null(t);
    runkit_listen();
    t0 = now();
    for (int i = 0; i < 3000; i++) {
        emit(i);
    }
    assert_true(now() - t0 < 5.0);
    t0 = now();
    trackers_close(t);
    assert_true(now() - t0 < 5.0);
    runkit_deaf();
    assert_non_null(strstr(runkit_lines, "wandb does not keep up"));
    assert_non_null(strstr(runkit_lines, "within 0 s"));
    assert_non_null(strstr(runkit_lines, "rows of metrics were left out"));
    mem_free(calls());
}

static void a_broken_one(void **state)
{
    const char *how[][2] = {{"raise ValueError('no such team')", "no such team"},
                            {"os._exit(3)", "exit status 3"}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct trackers *t;
        stand_in("wandb.py", how[i][0]);
        runkit_listen();
        t = open_wandb(5);
        assert_non_null(t);
        for (int k = 0; k < 50 && !strstr(runkit_lines, "goes on without it"); k++) {
            emit(k);
            usleep(100000);
        }
        trackers_close(t);
        runkit_deaf();
        assert_non_null(strstr(runkit_lines, how[i][1]));
        assert_non_null(strstr(runkit_lines, "the run goes on without it"));
        mem_free(calls());
    }
    {
        json_t *options = wandb_options(), *config = json_object();
        struct trackers_opts o = {TRACKERS_WANDB, "/no/such/python", options, config, 1};
        runkit_listen();
        assert_null(trackers_open(&o));
        runkit_deaf();
        assert_non_null(strstr(runkit_lines, "the run goes on without it"));
        json_decref(options);
        json_decref(config);
    }
}

/* Parses flags into options; the status of watch_check. */
static int checked(const char *line)
{
    struct watch_opts o;
    struct conf *c = conf_new();
    char **words;
    int n = support_words(line, &words), rc;
    conf_add(c, watch_table, &o);
    memset(&e, 0, sizeof e);
    rc = conf_parse(c, n, words, &e);
    rc = rc == STATUS_OK ? watch_check(&o, &e) : rc;
    conf_free(c);
    return rc;
}

static void options_of_a_run(void **state)
{
    struct watch_opts o;
    struct watch_run r = {.dir = runkit_at("watched"), .from = 0, .one_step = 1};
    struct watch *w;
    struct conf *c = conf_new();
    char *line, **words;
    int n;
    (void)state;
    log_set_level(LOG_ERROR);
    assert_int_equal(checked("--use-tensorboard"), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "--tb-project-name"));
    assert_int_equal(checked("--use-tensorboard --tb-project-name p"), STATUS_OK);
    assert_int_equal(checked("--use-wandb --wandb-mode sometimes"), STATUS_INPUT);
    assert_int_equal(checked("--use-wandb --use-mlflow"), STATUS_OK);
    log_set_level(LOG_INFO);
    conf_add(c, watch_table, &o);
    line = mem_strdup(runkit_at("more"));
    {
        char flags[700];
        snprintf(flags, sizeof flags, "--use-tensorboard --tensorboard-dir %s", line);
        n = support_words(flags, &words);
        assert_ok(conf_parse(c, n, words, &e), &e);
    }
    assert_int_equal(fsio_mkdirs(runkit_at("watched"), NULL), STATUS_OK);
    r.config = NULL;
    assert_ok(watch_open(&o, &r, &w, &e), &e);
    emit(1);
    watch_hashes(w, json_pack("{s:i}", "rollout", 0));
    watch_close(w);
    assert_true(fsio_is_file(runkit_at("watched/hashes.jsonl")));
    assert_true(fsio_is_file(runkit_at("watched/trace.json")));
    assert_true(fsio_is_dir(runkit_at("watched/tensorboard")));
    assert_true(fsio_is_dir(line));
    mem_free(line);
    conf_free(c);
}

static int setup(void **state)
{
    int rc = runkit_setup(state);
    setenv("PYTHONPATH", runkit_dir, 1);
    setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    setenv("TRACK_OUT", runkit_at("calls"), 1);
    unsetenv("TENSORBOARD_DIR");
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wandb_is_told),    cmocka_unit_test(mlflow_is_told),
        cmocka_unit_test(a_slow_one),       cmocka_unit_test(a_broken_one),
        cmocka_unit_test(options_of_a_run),
    };
    return cmocka_run_group_tests(tests, setup, runkit_teardown);
}
