/* Evaluation sets, and what is told of them: an evaluation that is made again says the same.
 *
 *     struct simeval_told told = {0};              or that of the run without faults
 *     simeval_new(&sim, &train_opts, fd, &told, &v, &e);
 *     simeval_open(v, &e);                         one life of the controller begins:
 *     cfg.evals = simeval_sets(v, &cfg.nevals);
 *     simeval_close(v);
 *     simeval_free(v);
 *
 * It hears the rows of metrics of the process: one at a time. */
#ifndef SIM_SIMEVAL_H
#define SIM_SIMEVAL_H

struct err;
struct loop_eval_set;
struct sim;
struct simeval;
struct train_opts;

enum { SIMEVAL_STEPS = 16, SIMEVAL_SETS = 2 };

/* The mean reward of each set after so many rollouts, where it is known. */
struct simeval_told {
    int known[SIMEVAL_STEPS][SIMEVAL_SETS];
    double mean[SIMEVAL_STEPS][SIMEVAL_SETS];
};

/* fd: the questions, the same for all sets. told is borrowed, and what is missing is filled in. */
int simeval_new(struct sim *s, const struct train_opts *o, int fd, struct simeval_told *told,
                struct simeval **out, struct err *e);
void simeval_free(struct simeval *v); /* NULL is fine */
int simeval_open(struct simeval *v, struct err *e);
void simeval_close(struct simeval *v);
struct loop_eval_set *simeval_sets(struct simeval *v, int *n);

#endif
