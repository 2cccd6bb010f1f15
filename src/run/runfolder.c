/* Owns the files of a run folder. Each metrics row is on disk before the run goes on; one that a
 * full disk cut short is written again from its beginning. */
#include "run/runfolder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/patience.h"
#include "base/status.h"

struct runfolder {
    char *dir;
    FILE *log;
    int metrics;         /* descriptor; -1: none */
    int64_t metrics_len; /* bytes of whole rows */
    int failed;
    struct err err;
};

char *runfolder_default(void)
{
    char name[64];
    time_t t = time(NULL);
    struct tm tm;
    localtime_r(&t, &tm);
    strftime(name, sizeof name, "runs/%Y%m%d-%H%M%S", &tm);
    return mem_strdup(name);
}

static int runfolder_append(struct runfolder *r, const char *text, size_t n)
{
    struct stat st;
    size_t done = 0;

    if (fstat(r->metrics, &st) == 0 && st.st_nlink == 0) {
        return ERR(&r->err, STATUS_NOTFOUND, "%s/metrics.jsonl was removed while the run goes on",
                   r->dir);
    }
    while (done < n) {
        long k = fsio_sys_pwrite(r->metrics, text + done, n - done, r->metrics_len + (int64_t)done);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k < 0) {
            break;
        }
        done += (size_t)k;
    }
    if (done == n && fsio_sys_sync(r->metrics) == 0) {
        r->metrics_len += (int64_t)n;
        return STATUS_OK;
    }
    ERR(&r->err, STATUS_IO, "cannot write %s/metrics.jsonl: %s", r->dir, strerror(errno));
    if (ftruncate(r->metrics, r->metrics_len) != 0) {
        log_debug(RUN, "half a row of metrics stays until the next try");
    }
    return STATUS_IO;
}

static void runfolder_metric(void *arg, const json_t *row)
{
    struct runfolder *r = arg;
    char *text = json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(12));
    struct patience wait = {0};
    size_t n = text ? strlen(text) : 0;

    if (r->failed || !text) {
        free(text);
        return;
    }
    text[n] = '\n'; /* in the place of the NUL */
    do {
        r->failed = runfolder_append(r, text, n + 1);
    } while (patience_again(&wait, r->failed, r->dir, &r->err));
    free(text);
}

static void runfolder_log(void *arg, enum log_level level, const char *comp, const char *text)
{
    struct runfolder *r = arg;
    char when[32];
    struct timespec t;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    fprintf(r->log, "%s.%03ldZ %s %s: %s\n", when, t.tv_nsec / 1000000, log_level_name(level), comp,
            text);
    fflush(r->log);
}

static int runfolder_json(const char *dir, const char *name, const json_t *j, struct err *e)
{
    char *path = fsio_join(dir, name), *text = json_dumps(j, JSON_INDENT(2));
    int rc = text ? fsio_write_atomic(path, text, strlen(text), e)
                  : ERR(e, STATUS_NOMEM, "no memory for %s", path);
    free(text);
    mem_free(path);
    return rc;
}

/* Step of a metrics row: rollout/step or eval/step; -1 when it has none. */
static int64_t runfolder_step(const char *line, size_t n)
{
    json_t *j = json_loadb(line, n, 0, NULL), *v;
    int64_t step = -1;
    if (j) {
        v = json_object_get(j, "rollout/step");
        v = v ? v : json_object_get(j, "eval/step");
        step = v ? json_integer_value(v) : -1;
        json_decref(j);
    }
    return step;
}

/* Keeps the rows before step *arg: the evaluation due there is made again by the resumed run. */
static int runfolder_keep(void *arg, const char *line, size_t n)
{
    int64_t step = runfolder_step(line, n);
    return step >= 0 && step < *(const int64_t *)arg;
}

static int runfolder_trim(const char *path, int64_t from, struct err *e)
{
    return from == 0 || !fsio_is_file(path) ? fsio_write_atomic(path, "", 0, e)
                                            : fsio_keep_lines(path, runfolder_keep, &from, e);
}

/* config.json, manifest.json, and of metrics.jsonl what stays. */
static int runfolder_files(const char *dir, const json_t *config, const json_t *manifest,
                           const char *metrics, int64_t from, struct err *e)
{
    int rc = runfolder_json(dir, "config.json", config, e);

    rc = rc == STATUS_OK ? runfolder_json(dir, "manifest.json", manifest, e) : rc;
    return rc == STATUS_OK ? runfolder_trim(metrics, from, e) : rc;
}

int runfolder_open(const char *dir, const json_t *config, const json_t *manifest, int64_t from,
                   struct runfolder **out, struct err *e)
{
    struct runfolder *r = mem_alloc(sizeof *r);
    char *metrics = fsio_join(dir, "metrics.jsonl"), *log = fsio_join(dir, "log.txt");
    struct patience wait = {0};
    int rc = patience_mkdirs(dir, e);

    r->dir = mem_strdup(dir);
    r->metrics = -1;
    if (rc == STATUS_OK) {
        do {
            rc = runfolder_files(dir, config, manifest, metrics, from, e);
        } while (patience_again(&wait, rc, dir, e));
    }
    if (rc == STATUS_OK) {
        r->metrics = open(metrics, O_WRONLY | O_CLOEXEC);
        r->metrics_len = r->metrics >= 0 ? (int64_t)lseek(r->metrics, 0, SEEK_END) : -1;
        r->log = fopen(log, "ae");
        if (r->metrics_len < 0 || !r->log) {
            rc = ERR(e, STATUS_IO, "cannot write in %s: %s", dir, strerror(errno));
        }
    }
    if (rc == STATUS_OK) {
        log_add_sink(runfolder_log, r);
        metric_add_sink(runfolder_metric, r);
        *out = r;
    } else {
        runfolder_close(r);
    }
    mem_free(metrics);
    mem_free(log);
    return rc;
}

int runfolder_status(struct runfolder *r, struct err *e)
{
    if (r->failed && e) {
        *e = r->err;
    }
    return r->failed;
}

void runfolder_close(struct runfolder *r)
{
    if (r) {
        log_remove_sink(runfolder_log, r);
        metric_remove_sink(runfolder_metric, r);
        if (r->metrics >= 0) {
            close(r->metrics);
        }
        if (r->log) {
            fclose(r->log);
        }
        mem_free(r->dir);
        mem_free(r);
    }
}
