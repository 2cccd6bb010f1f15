/* Owns the comparison of a replay with its run: the first difference is kept, and ends it. */
#include "run/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/status.h"
#include "train/ckpt.h"

struct replay {
    json_t *rows; /* of the run */
    size_t at;
    char *save;
    struct optim *o;
    struct replay_counts counts;
    struct err err; /* code 0: no difference yet */
};

int replay_ignores(const char *column)
{
    return strncmp(column, "perf/", 5) == 0 || strcmp(column, "eval/duration_seconds") == 0 ||
           strncmp(column, "rollout/engine", 14) == 0 ||
           strcmp(column, "rollout/wrong_version_answers") == 0;
}

static int64_t replay_step(const json_t *row)
{
    const json_t *v = json_object_get(row, "rollout/step");
    v = v ? v : json_object_get(row, "eval/step");
    return v ? (int64_t)json_integer_value(v) : -1;
}

static void replay_text(const json_t *v, char *out, size_t size)
{
    char *s = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(12)) : NULL;
    snprintf(out, size, "%.80s", s ? s : "nothing");
    free(s);
}

/* Columns of a that b has otherwise or not at all. */
static int replay_columns(struct replay *r, const json_t *a, const json_t *b, int a_is_run)
{
    const char *name;
    json_t *x;

    json_object_foreach((json_t *)(uintptr_t)a, name, x)
    {
        const json_t *y = json_object_get(b, name);
        char was[88], is[88];
        if (replay_ignores(name) || (y && json_equal(x, y))) {
            continue;
        }
        replay_text(a_is_run ? x : y, was, sizeof was);
        replay_text(a_is_run ? y : x, is, sizeof is);
        ERR(&r->err, STATUS_NUMERIC, "rollout %lld, %s: recorded is %s, now it is %s",
            (long long)replay_step(a), name, was, is);
        return 0;
    }
    return 1;
}

/* The checkpoint of the rollout, where there is one. */
static void replay_weights(struct replay *r, int64_t rollout)
{
    char name[40], *dir;

    snprintf(name, sizeof name, "iter_%07lld", (long long)rollout);
    dir = r->save ? fsio_join(r->save, name) : NULL;
    if (dir && r->o && fsio_is_dir(dir)) {
        struct err e = {0};
        if (ckpt_compare(r->save, rollout, r->o, &e) != STATUS_OK) {
            r->err = e;
        }
        r->counts.checkpoints++;
    }
    mem_free(dir);
}

static void replay_row(void *arg, const json_t *row)
{
    struct replay *r = arg;
    char *text = json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(12)); /* as it is written */
    json_t *now = text ? json_loads(text, 0, NULL) : NULL;
    const json_t *was = json_array_get(r->rows, r->at);

    free(text);
    if (!r->err.code && was && now && replay_columns(r, was, now, 1) &&
        replay_columns(r, now, was, 0)) {
        r->at++;
        r->counts.rows++;
        if (json_object_get(now, "rollout/step")) {
            r->counts.rollouts++;
            replay_weights(r, replay_step(now));
        }
    }
    json_decref(now);
}

static int replay_read(struct replay *r, const char *path, int64_t first, struct err *e)
{
    char *text, *line, *end;
    size_t len;
    int number = 1, rc = fsio_read(path, (size_t)1 << 32, &text, &len, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    /* the end of a line that was being written when the run was killed is no row */
    for (line = text; rc == STATUS_OK && (end = memchr(line, '\n', len - (size_t)(line - text)));
         line = end + 1, number++) {
        json_t *row = json_loadb(line, (size_t)(end - line), 0, NULL);
        if (!row) {
            rc = ERR(e, STATUS_FORMAT, "%s, line %d is damaged: no row of metrics", path, number);
        } else if (replay_step(row) >= first) {
            json_array_append(r->rows, row);
        }
        json_decref(row);
    }
    mem_free(text);
    return rc;
}

int replay_open(const char *run, const char *save, int64_t first, struct replay **out,
                struct err *e)
{
    struct replay *r = mem_alloc(sizeof *r);
    char *path = fsio_join(run, "metrics.jsonl");
    int rc;

    r->rows = json_array();
    r->save = mem_strdup(save);
    rc = replay_read(r, path, first, e);
    rc = rc == STATUS_OK ? metric_add_sink(replay_row, r) : rc;
    mem_free(path);
    if (rc != STATUS_OK) {
        replay_close(r);
        return rc;
    }
    *out = r;
    return STATUS_OK;
}

void replay_close(struct replay *r)
{
    if (r) {
        metric_remove_sink(replay_row, r);
        json_decref(r->rows);
        mem_free(r->save);
        mem_free(r);
    }
}

void replay_watch(struct replay *r, struct optim *o)
{
    r->o = o;
}

int replay_status(struct replay *r, struct err *e)
{
    if (r->err.code && e) {
        *e = r->err;
    }
    return r->err.code ? r->err.code : r->at == json_array_size(r->rows) ? STATUS_END : STATUS_OK;
}

struct replay_counts replay_counts(const struct replay *r)
{
    return r->counts;
}
