/* Shared by the files of `miles train`: the run that is being opened, and who opens what of it.
 *
 *     cmd_train.c    the command: everything in order, the loop, the end
 *     train_data.c   prompts and evaluation sets, and how long they are
 *     train_plan.c   sizes of micro-batches and engines, the memory plan */
#ifndef CLI_TRAIN_INT_H
#define CLI_TRAIN_INT_H

#include <stdatomic.h>

#include "model/weights.h"
#include "rl/extend.h"
#include "rl/loop.h"
#include "rl/modelargs.h"
#include "rl/port_native.h"
#include "rl/promptenc.h"
#include "run/durable.h"
#include "run/metriccheck.h"
#include "run/place.h"
#include "run/watch.h"

struct prompts_row;

/* Prompts that were read, and what samples of them come to when every response has its full
 * length: what memory is planned with. */
struct train_prompts {
    int longest, shortest; /* tokens */
    int response, group;   /* most new tokens, samples of a prompt */
    int64_t n, tokens;     /* prompts, tokens of one sample of each */
    double pages, running; /* KV pages of one sample of each: alone, and among its group's */
};

struct train {
    struct conf *conf;
    struct train_opts o;
    struct place_opts place;
    struct modelargs shape_flags;
    struct metriccheck_opts asserted;
    struct metriccheck *checks;
    struct watch_opts watching;
    struct watch *watch;
    struct wfile *file, *ref_file;
    struct device *dev;
    struct weights *shape; /* of w: what memory is planned with */
    struct weights *w, *ref;
    struct wfile *teacher_file;
    struct weights *teacher; /* of --use-opd, in this process */
    struct teacher *far;     /* and behind HTTP */
    struct weights *critic;  /* of ppo, with ports of its own */
    struct port_native critic_ports;
    int critic_open;
    struct promptenc enc;
    struct prompts *data;
    struct evalset *sets;        /* as they are given */
    struct loop_eval_set *evals; /* those that are opened: all, or none */
    int nsets, nevals;
    int eval_typed; /* the set being read names its reward */
    struct hub *hub, *eval_hub;
    atomic_int own_types;         /* prompts name their reward */
    _Atomic int64_t untyped;      /* line of the first that does not, without --rm-type */
    struct port_hook *generate;   /* --custom-generate-function-path, or an agent's */
    struct session_api *sessions; /* of agents, or NULL */
    struct extend *extend;        /* the user's functions */
    struct filter *dynamic, *sample_filter, *all_samples, *buffer_filter;
    struct port_native ports;
    int ports_open;
    struct runfolder *run;
    char *run_dir;
    struct durable durable;
    int scored; /* a replay: rewards come from the ledger */
    int argc;
    char **argv;
    json_t *manifest;
    struct engines *engines; /* in processes of their own, or NULL */
    struct engine_opts engine;
    struct trainer_opts trainer;
    int rollout;                      /* samples are drawn */
    int remote;                       /* and not in this process */
    int64_t planned;                  /* bytes */
    struct train_prompts train, eval; /* eval: all sets */
    struct train_prompts *reading;    /* of the set being read */
    int positions;                    /* longest context of the run */
    int64_t start, num_rollout, sched_pos, critic_pos;
    int64_t ref_rollout; /* that the reference is of; -1: as it was given */
    json_t *state;       /* of the checkpoint */
};

static inline int train_use(const struct train_opts *o)
{
    return WEIGHTS_TRAIN | (o->no_weight_transposes ? WEIGHTS_NO_TRANSPOSES : 0);
}

static inline int train_has_ref(const struct train_opts *o)
{
    return train_opts_needs_ref(o) && !o->debug_rollout_only;
}

static inline int train_has_critic(const struct train_opts *o)
{
    return o->advantage_estimator == ADV_PPO && !o->debug_rollout_only;
}

/* Most tokens of a prompt and its response. */
static inline int64_t train_context(const struct train *t, int64_t tokens)
{
    int64_t most = t->o.sglang_context_length;
    return most != CONF_UNSET && tokens > most ? most : tokens;
}

/* Is the reward that this prompt names one that we know? Told here, before the first sample is
 * drawn; called from several threads. */
int train_reward_type(struct train *t, const struct prompts_row *row, struct err *e);

/* The session server of agents, in front of the engines at url; its address goes into args. */
int train_open_sessions(struct train *t, const char *url, json_t *args, struct err *e);
/* Refuses flags for engines that sessions could not keep; before any engine is started. */
int train_check_sessions(const struct train *t, struct err *e);

/* Does the option name something that is not built in? */
int train_named(const char *flag, const char *path);

int train_open_data(struct train *t, struct err *e);

/* 1: a dry run of a model without a tokenizer, whose prompts cannot be measured. */
int train_guesses(const struct train *t);

/* Memory is planned for a rollout of the longest prompts that the flags allow. */
int train_guess_prompts(struct train *t, struct err *e);

/* What the engine and the trainer will be opened with. */
int train_port_opts(struct train *t, struct err *e);

/* The most memory the run will hold, from the functions that size what will be allocated. */
void train_plan(struct train *t);

#endif
