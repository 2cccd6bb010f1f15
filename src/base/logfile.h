/* A file of log lines beside stderr, each with the time in UTC:
 *
 *     struct logfile *f;
 *     logfile_open("logs", "serve", &f, &e);    logs/serve-4711.log, by the process's number
 *     ... log_info(...) ...
 *     logfile_close(f);
 *
 * The folder is made where it is missing. A file that is there is written on behind its end. A line
 * that cannot be written is lost; that it was is told once on stderr. */
#ifndef BASE_LOGFILE_H
#define BASE_LOGFILE_H

struct err;
struct logfile;

int logfile_open(const char *dir, const char *name, struct logfile **out, struct err *e);
const char *logfile_path(const struct logfile *f);
void logfile_close(struct logfile *f); /* NULL is fine */

#endif
