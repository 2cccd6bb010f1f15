/* Owns the file behind a log sink. Every line goes to the system at once: the last ones before a
 * crash are those that are wanted. */
#include "base/logfile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

struct logfile {
    FILE *out;
    char *path;
    int failed;
};

static void logfile_line(void *arg, enum log_level level, const char *comp, const char *text)
{
    struct logfile *f = arg;
    struct timespec now;
    struct tm day;
    char when[32];

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &day);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &day);
    if (fprintf(f->out, "%s.%03ldZ %s %s: %s\n", when, now.tv_nsec / 1000000, log_level_name(level),
                comp, text) < 0 ||
        fflush(f->out) != 0) {
        if (!f->failed) { /* a log line of its own would come back here */
            fprintf(stderr, "miles: error log: cannot write %s: %s\n", f->path, strerror(errno));
        }
        f->failed = 1;
        clearerr(f->out);
    }
}

int logfile_open(const char *dir, const char *name, struct logfile **out, struct err *e)
{
    struct logfile *f;
    char file[128];
    int rc = fsio_mkdirs(dir, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    snprintf(file, sizeof file, "%s-%ld.log", name, (long)getpid());
    f = mem_alloc(sizeof *f);
    f->path = fsio_join(dir, file);
    f->out = fopen(f->path, "ae");
    if (!f->out) {
        rc = ERR(e, STATUS_IO, "cannot open %s: %s", f->path, strerror(errno));
    } else if (log_add_sink(logfile_line, f) != STATUS_OK) {
        rc = ERR(e, STATUS_NOMEM, "too many places for log lines");
    }
    if (rc != STATUS_OK) {
        logfile_close(f);
        return rc;
    }
    *out = f;
    return STATUS_OK;
}

const char *logfile_path(const struct logfile *f)
{
    return f->path;
}

void logfile_close(struct logfile *f)
{
    if (f) {
        log_remove_sink(logfile_line, f);
        if (f->out) {
            fclose(f->out);
        }
        mem_free(f->path);
        mem_free(f);
    }
}
