/* Owns who listens to a run. Files in the run folder are always written; other programs get what
 * they were asked for. */
#include "run/watch.h"

#include <stddef.h>
#include <string.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/status.h"
#include "run/hashlog.h"
#include "run/secret.h"
#include "run/tbevents.h"
#include "run/trace.h"
#include "run/trackers.h"

#define O(f) offsetof(struct watch_opts, f)

const struct conf_opt watch_table[] = {
    {"use-wandb", CONF_SWITCH, NULL, NULL, "metrics to Weights & Biases, by Python's package",
     O(use_wandb), "observability", NULL},
    {"wandb-mode", CONF_CHOICE, NULL, "online|offline|disabled",
     "offline keeps everything in --wandb-dir", O(wandb_mode), "observability", NULL},
    {"wandb-dir", CONF_STR, NULL, NULL, "folder for its files; the run folder when unset",
     O(wandb_dir), "observability", NULL},
    {"wandb-key", CONF_STR, NULL, NULL, "API key; never written to the run folder", O(wandb_key),
     "observability", NULL},
    {"wandb-host", CONF_STR, NULL, NULL, "URL of a server of one's own", O(wandb_host),
     "observability", NULL},
    {"wandb-team", CONF_STR, NULL, NULL, "team (entity)", O(wandb_team), "observability", NULL},
    {"wandb-group", CONF_STR, NULL, NULL, "group of runs; also the name of the run", O(wandb_group),
     "observability", NULL},
    {"wandb-project", CONF_STR, NULL, NULL, "project", O(wandb_project), "observability", NULL},
    {"wandb-run-name", CONF_STR, NULL, NULL, "name of the run", O(wandb_run_name), "observability",
     NULL},
    {"wandb-run-id", CONF_STR, NULL, NULL, "id of a run to go on with", O(wandb_run_id),
     "observability", NULL},
    {"disable-wandb-random-suffix", CONF_SWITCH, NULL, NULL, "no random end of the run's name",
     O(disable_wandb_random_suffix), "observability", "disable_wandb_random_suffix"},
    {"wandb-always-use-train-step", CONF_SWITCH, NULL, NULL,
     "train/step is the axis of all metrics", O(wandb_always_use_train_step), "observability",
     NULL},
    {"use-mlflow", CONF_SWITCH, NULL, NULL, "metrics to MLflow, by Python's package", O(use_mlflow),
     "observability", NULL},
    {"mlflow-tracking-uri", CONF_STR, NULL, NULL, "server or file store; MLflow's own when unset",
     O(mlflow_tracking_uri), "observability", NULL},
    {"mlflow-experiment-name", CONF_STR, "miles", NULL, "experiment", O(mlflow_experiment_name),
     "observability", NULL},
    {"mlflow-run-name", CONF_STR, NULL, NULL, "name of the run", O(mlflow_run_name),
     "observability", NULL},
    {"mlflow-run-id", CONF_STR, NULL, NULL, "id of a run to go on with", O(mlflow_run_id),
     "observability", NULL},
    {"use-tensorboard", CONF_SWITCH, NULL, NULL,
     "event files also below --tensorboard-dir; those in RUN/tensorboard are always written",
     O(use_tensorboard), "observability", NULL},
    {"tensorboard-dir", CONF_STR, NULL, NULL,
     "folder of them; $TENSORBOARD_DIR or tensorboard_log/PROJECT/EXPERIMENT when unset",
     O(tensorboard_dir), "observability", NULL},
    {"tb-project-name", CONF_STR, NULL, NULL, "PROJECT of that folder", O(tb_project_name),
     "observability", NULL},
    {"tb-experiment-name", CONF_STR, NULL, NULL, "EXPERIMENT of that folder", O(tb_experiment_name),
     "observability", NULL},
    {0}};

struct watch {
    struct hashlog *hashes;
    struct trace *trace;
    struct tbevents *tb, *tb_more;
    struct trackers *wandb, *mlflow;
};

int watch_check(const struct watch_opts *o, struct err *e)
{
    if (o->use_tensorboard && !o->tb_project_name && !o->tensorboard_dir &&
        !conf_env("TENSORBOARD_DIR")) {
        return ERR(e, STATUS_INPUT,
                   "--use-tensorboard needs --tb-project-name, --tensorboard-dir or "
                   "TENSORBOARD_DIR (RUN/tensorboard is written without it)");
    }
    if (o->use_wandb && !o->wandb_project && o->wandb_mode != 2) {
        log_info(TRACK, "--use-wandb without --wandb-project: wandb chooses one");
    }
    return STATUS_OK;
}

/* The folder that --use-tensorboard asks for; free with mem_free. */
static char *watch_tb_dir(const struct watch_opts *o)
{
    const char *dir = o->tensorboard_dir ? o->tensorboard_dir : conf_env("TENSORBOARD_DIR");
    char *project, *all;

    if (dir) {
        return mem_strdup(dir);
    }
    project = fsio_join("tensorboard_log", o->tb_project_name);
    all = o->tb_experiment_name ? fsio_join(project, o->tb_experiment_name) : mem_strdup(project);
    mem_free(project);
    return all;
}

static struct trackers *watch_wandb(const struct watch_opts *o, const struct watch_run *r,
                                    const json_t *config)
{
    static const char *const modes[] = {"online", "offline", "disabled"};
    const char *mode = o->wandb_mode >= 0 ? modes[o->wandb_mode] : NULL;
    struct trackers_opts t = {TRACKERS_WANDB, r->python, NULL, config, 0};
    json_t *options = json_pack(
        "{s:s?,s:s?,s:s?,s:s?,s:s?,s:s?,s:s?,s:s?,s:s?,s:b,s:b}", "wandb_mode", mode, "wandb_dir",
        o->wandb_dir ? o->wandb_dir : r->dir, "wandb_key", o->wandb_key, "wandb_host",
        o->wandb_host, "wandb_team", o->wandb_team, "wandb_group", o->wandb_group, "wandb_project",
        o->wandb_project, "wandb_run_id", o->wandb_run_id, "wandb_run_name", o->wandb_run_name,
        "disable_wandb_random_suffix", o->disable_wandb_random_suffix,
        "wandb_always_use_train_step", o->wandb_always_use_train_step);
    struct trackers *out;

    t.options = options;
    out = trackers_open(&t);
    json_decref(options);
    return out;
}

static struct trackers *watch_mlflow(const struct watch_opts *o, const struct watch_run *r,
                                     const json_t *config)
{
    struct trackers_opts t = {TRACKERS_MLFLOW, r->python, NULL, config, 0};
    json_t *options =
        json_pack("{s:s?,s:s?,s:s?,s:s?}", "mlflow_tracking_uri", o->mlflow_tracking_uri,
                  "mlflow_experiment_name", o->mlflow_experiment_name, "mlflow_run_name",
                  o->mlflow_run_name, "mlflow_run_id", o->mlflow_run_id);
    struct trackers *out;

    t.options = options;
    out = trackers_open(&t);
    json_decref(options);
    return out;
}

static int watch_files(struct watch *w, const struct watch_opts *o, const struct watch_run *r,
                       struct err *e)
{
    char *hashes = fsio_join(r->dir, "hashes.jsonl"), *trace = fsio_join(r->dir, "trace.json");
    char *tb = fsio_join(r->dir, "tensorboard");
    int rc = hashlog_open(hashes, r->from, &w->hashes, e);

    if (rc == STATUS_OK) {
        rc = trace_open(trace, r->from > 0, &w->trace, e);
    }
    if (rc == STATUS_OK) {
        rc = tbevents_open(tb, r->one_step ? r->from : -1, &w->tb, e);
    }
    if (rc == STATUS_OK && o->use_tensorboard) {
        char *dir = watch_tb_dir(o);
        rc = tbevents_open(dir, r->one_step ? r->from : -1, &w->tb_more, e);
        mem_free(dir);
    }
    mem_free(tb);
    mem_free(trace);
    mem_free(hashes);
    return rc;
}

int watch_open(const struct watch_opts *o, const struct watch_run *r, struct watch **out,
               struct err *e)
{
    struct patience wait = {0};
    struct watch *w;
    json_t *config;
    int rc;

    do {
        w = mem_alloc(sizeof *w);
        rc = watch_files(w, o, r, e);
        if (rc != STATUS_OK) {
            watch_close(w);
        }
    } while (patience_again(&wait, rc, r->dir, e));
    if (rc != STATUS_OK) {
        return rc;
    }
    config = json_deep_copy(r->config);
    secret_hide(config);
    w->wandb = o->use_wandb ? watch_wandb(o, r, config) : NULL;
    w->mlflow = o->use_mlflow ? watch_mlflow(o, r, config) : NULL;
    json_decref(config);
    *out = w;
    return STATUS_OK;
}

void watch_hashes(void *arg, json_t *row)
{
    struct watch *w = arg;
    hashlog_put(w->hashes, row);
}

void watch_close(struct watch *w)
{
    if (w) {
        trackers_close(w->wandb);
        trackers_close(w->mlflow);
        tbevents_close(w->tb);
        tbevents_close(w->tb_more);
        trace_close(w->trace);
        hashlog_close(w->hashes);
        mem_free(w);
    }
}
