/* Owns the process's log level and sinks. One mutex orders the lines. */
#include "base/log.h"

#include <ctype.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "base/status.h"

#define LOG_SINKS 4

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static enum log_level log_min = LOG_INFO;
static struct {
    log_sink_fn *fn;
    void *arg;
} log_sinks[LOG_SINKS];
static int log_times;
static void (*log_before)(void *);
static void *log_before_arg;

void log_set_level(enum log_level level)
{
    log_min = level;
}

void log_set_times(int on)
{
    log_times = on;
}

/* "2026-01-31T23:59:59.123Z ", or nothing. */
static void log_when(char out[40])
{
    struct timespec now;
    struct tm day;
    size_t n;

    out[0] = 0;
    if (log_times) {
        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &day);
        n = strftime(out, 40, "%Y-%m-%dT%H:%M:%S", &day);
        snprintf(out + n, 40 - n, ".%03ldZ ", now.tv_nsec / 1000000);
    }
}

int log_add_sink(log_sink_fn *fn, void *arg)
{
    int rc = STATUS_NOMEM;
    pthread_mutex_lock(&log_lock);
    for (int i = 0; i < LOG_SINKS; i++) {
        if (!log_sinks[i].fn) {
            log_sinks[i].fn = fn;
            log_sinks[i].arg = arg;
            rc = STATUS_OK;
            break;
        }
    }
    pthread_mutex_unlock(&log_lock);
    return rc;
}

void log_remove_sink(log_sink_fn *fn, void *arg)
{
    pthread_mutex_lock(&log_lock);
    for (int i = 0; i < LOG_SINKS; i++) {
        if (log_sinks[i].fn == fn && log_sinks[i].arg == arg) {
            log_sinks[i].fn = NULL;
        }
    }
    pthread_mutex_unlock(&log_lock);
}

void log_set_before_line(void (*fn)(void *), void *arg)
{
    pthread_mutex_lock(&log_lock);
    log_before = fn;
    log_before_arg = arg;
    pthread_mutex_unlock(&log_lock);
}

const char *log_level_name(enum log_level level)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    return names[level];
}

void log_write(enum log_level level, const char *comp, const char *fmt, ...)
{
    char text[2048];
    char low[32], when[40];
    size_t n = 0;
    va_list ap;

    if (level < log_min) {
        return;
    }
    for (; comp[n] && n + 1 < sizeof low; n++) {
        low[n] = (char)tolower((unsigned char)comp[n]);
    }
    low[n] = 0;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&log_lock);
    if (log_before) {
        log_before(log_before_arg);
    }
    log_when(when);
    fprintf(stderr, "%smiles: %s %s: %s\n", when, log_level_name(level), low, text);
    for (int i = 0; i < LOG_SINKS; i++) {
        if (log_sinks[i].fn) {
            log_sinks[i].fn(log_sinks[i].arg, level, low, text);
        }
    }
    pthread_mutex_unlock(&log_lock);
}
