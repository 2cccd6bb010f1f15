/* Rules of the options of losses other than the policy's, of distillation and of the copies of the
 * model, behind train_opts_validate. */
#ifndef RL_ALGO_OPTS_H
#define RL_ALGO_OPTS_H

struct err;
struct train_opts;

/* Refuses, and takes Miles' names of built-in functions out of the paths that gave them. */
int algo_opts_check(struct train_opts *o, struct err *e);

#endif
