/* A run's spans (base/span.h) as a file that chrome://tracing and ui.perfetto.dev show:
 *
 *     struct trace *t;
 *     trace_open("RUN/trace.json", 0, &t, &e);      1: go on behind what is there
 *     ...
 *     trace_close(t);
 *
 * The file is a JSON array with one event a line, each written at once. One whose writer was killed
 * lacks the closing bracket, which the viewers do without; a run that goes on repairs it. A process
 * id stands for each start of the run. The file has at most TRACE_MAX bytes: what comes then is
 * left out, and that is logged once. */
#ifndef RUN_TRACE_H
#define RUN_TRACE_H

#include <stdint.h>

struct err;
struct trace;

#define TRACE_MAX (64 << 20)

int trace_open(const char *path, int resume, struct trace **out, struct err *e);
void trace_close(struct trace *t); /* NULL is fine */

#endif
