/* Everything that listens to a run beside its run folder: hashes, trace, TensorBoard, wandb,
 * MLflow.
 *
 *     conf_add(c, watch_table, &o);
 *     ... conf_parse ...
 *     watch_check(&o, &e);                             contradictions
 *     watch_open(&o, &run, &w, &e);
 *     loop_cfg.hashes = watch_hashes; loop_cfg.hashes_arg = w;
 *     ...
 *     watch_close(w);
 *
 *     RUN/hashes.jsonl        rl/stephash.h
 *     RUN/trace.json          run/trace.h
 *     RUN/tensorboard/        run/tbevents.h
 */
#ifndef RUN_WATCH_H
#define RUN_WATCH_H

#include <jansson.h>
#include <stdint.h>

#include "base/conf.h"

struct err;
struct watch;

struct watch_opts {
    int use_wandb, wandb_mode; /* enum: online, offline, disabled; -1 unset */
    char *wandb_dir, *wandb_key, *wandb_host, *wandb_team, *wandb_group, *wandb_project;
    char *wandb_run_id, *wandb_run_name;
    int disable_wandb_random_suffix, wandb_always_use_train_step;
    int use_mlflow;
    char *mlflow_tracking_uri, *mlflow_experiment_name, *mlflow_run_name, *mlflow_run_id;
    int use_tensorboard;
    char *tb_project_name, *tb_experiment_name, *tensorboard_dir;
};

extern const struct conf_opt watch_table[];

/* Borrowed during the call. */
struct watch_run {
    const char *dir;      /* the run folder */
    const char *python;   /* interpreter for trackers; NULL: python3 */
    const json_t *config; /* options in force */
    int64_t from;         /* first rollout */
    int one_step;         /* a rollout is one optimizer step, so that all axes are the same */
};

int watch_check(const struct watch_opts *o, struct err *e);
int watch_open(const struct watch_opts *o, const struct watch_run *r, struct watch **out,
               struct err *e);
void watch_hashes(void *w, json_t *row);
void watch_close(struct watch *w); /* NULL is fine */

#endif
