/* The logs of a run and of its engines as one, by time.
 *
 *     struct logmerge_opts o = {.run = "runs/1", .level = LOG_INFO, .grep = "weight_sync"};
 *     logmerge_run(&o, stdout, &e);
 *
 * A line is TIME SOURCE LEVEL TEXT, the time in UTC. Sources are log.txt ("run") and what lies in
 * RUN/engines or the folder of --sglang-log-dir. A line without a time of its own (a stack trace,
 * a program that writes none) goes with the one before it in its file. */
#ifndef RUN_LOGMERGE_H
#define RUN_LOGMERGE_H

#include <stdio.h>

#include "base/log.h"

struct err;
struct world;

struct logmerge_opts {
    const char *run;
    enum log_level level; /* and above */
    const char *grep;     /* extended regular expression, or NULL */
    int follow;           /* goes on with what is written, until the world stops */
    const struct world *world;
    double wait_s; /* between two looks; 0: 0.2 */
};

int logmerge_run(const struct logmerge_opts *o, FILE *out, struct err *e);

/* Seconds since 1970 of the time that a line begins with, and where its text begins; NAN: none.
 * Level, when it names one in its first words, else -1. */
double logmerge_parse(const char *line, const char **text, int *level);

#endif
