/* Log lines: lower case, the exact cause, to stderr. What a program reads goes to stdout or a file.
 *
 *     log_warn(KV, "evicted %d pages", n);   ->   "miles: warn kv: evicted 3 pages"
 *
 * Any thread may log; a line is written whole. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_NONE }; /* the last: for a level */

/* A sink hears every line at or above the level; `text` has no newline and is valid for the call.
 */
typedef void log_sink_fn(void *arg, enum log_level level, const char *comp, const char *text);

void log_write(enum log_level level, const char *comp, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
const char *log_level_name(enum log_level level); /* "debug", ... */
/* Lines below this level are dropped. Default LOG_INFO. */
void log_set_level(enum log_level level);
/* 1: lines on stderr begin with the time in UTC, for a stderr that is a log file. */
void log_set_times(int on);
/* Adds a sink beside stderr (the run folder's log). At most 4; returns 0 or STATUS_NOMEM. */
int log_add_sink(log_sink_fn *fn, void *arg);
void log_remove_sink(log_sink_fn *fn, void *arg);
/* Called before each stderr line: lets a progress bar clear itself. NULL to remove. */
void log_set_before_line(void (*fn)(void *), void *arg);

#define log_debug(comp, ...) log_write(LOG_DEBUG, #comp, __VA_ARGS__)
#define log_info(comp, ...)  log_write(LOG_INFO, #comp, __VA_ARGS__)
#define log_warn(comp, ...)  log_write(LOG_WARN, #comp, __VA_ARGS__)
#define log_error(comp, ...) log_write(LOG_ERROR, #comp, __VA_ARGS__)

#endif
