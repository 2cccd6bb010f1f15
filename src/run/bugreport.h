/* What a bug report needs of a run, in one archive: configuration, numeric manifest, the first and
 * the last log lines of the run and of its engines, metrics, hashes, and facts of the machine.
 * Secrets are taken out (run/secret.h).
 *
 *     bugreport_write("runs/1", "report.tar.gz", &files, &e);
 */
#ifndef RUN_BUGREPORT_H
#define RUN_BUGREPORT_H

struct err;

/* *files: how many went into it. STATUS_INPUT when the folder is none of a run. */
int bugreport_write(const char *run, const char *path, int *files, struct err *e);
/* The name of an archive for this run: "miles-report-NAME.tar.gz". Free with mem_free. */
char *bugreport_name(const char *run);

#endif
