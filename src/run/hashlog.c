/* Owns RUN/hashes.jsonl. Rows are written whole; one that cannot be written is lost, and that is
 * told once: the run itself does not depend on them. */
#include "run/hashlog.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

struct hashlog {
    char *path;
    FILE *out;
    int failed;
    json_t *last; /* the last row that was kept, of a run that goes on */
    int kept;     /* rows that were there */
};

static int hashlog_is_head(const json_t *row)
{
    return json_object_get(row, "format") != NULL;
}

/* The rows before rollout `from`, and the head. */
struct hashlog_cut {
    struct hashlog *h;
    int64_t from;
};

static int hashlog_keep(void *arg, const char *line, size_t n)
{
    const struct hashlog_cut *c = arg;
    struct hashlog *h = c->h;
    json_t *row = json_loadb(line, n, 0, NULL);
    int keep = row && (json_integer_value(json_object_get(row, "rollout")) < c->from ||
                       (hashlog_is_head(row) && !h->kept));

    if (keep) {
        json_decref(h->last);
        h->last = json_incref(row);
        h->kept++;
    }
    json_decref(row);
    return keep;
}

int hashlog_open(const char *path, int64_t from, struct hashlog **out, struct err *e)
{
    struct hashlog *h = mem_alloc(sizeof *h);
    int rc = STATUS_OK;

    h->path = mem_strdup(path);
    if (from > 0 && fsio_is_file(path)) {
        rc = fsio_keep_lines(path, hashlog_keep, &(struct hashlog_cut){h, from}, e);
    }
    if (rc == STATUS_OK) {
        h->out = fopen(path, h->kept ? "ae" : "we");
        if (!h->out) {
            rc = ERR(e, STATUS_IO, "cannot write %s: %s", path, strerror(errno));
        }
    }
    if (rc != STATUS_OK) {
        hashlog_close(h);
        return rc;
    }
    *out = h;
    return STATUS_OK;
}

/* Whether the weights of a resumed run are those that it had. */
static void hashlog_check(struct hashlog *h, const json_t *head)
{
    const json_t *now = json_object_get(head, "weights"),
                 *then = json_object_get(h->last, "weights");

    if (now && then && !json_equal(now, then)) {
        log_warn(TRACE,
                 "the weights that the run goes on with are not those that it had after rollout "
                 "%lld (%s): was it given another checkpoint?",
                 (long long)json_integer_value(json_object_get(h->last, "rollout")), h->path);
    }
}

void hashlog_put(void *arg, json_t *row)
{
    struct hashlog *h = arg;
    char *text;

    if (h->kept && hashlog_is_head(row)) { /* one is there */
        hashlog_check(h, row);
        json_decref(row);
        return;
    }
    if (h->kept > 1) { /* and so are the names */
        json_object_del(row, "gradients");
    }
    text = json_dumps(row, JSON_COMPACT);
    if (!h->failed && (!text || fprintf(h->out, "%s\n", text) < 0 || fflush(h->out) != 0)) {
        log_warn(TRACE, "%s is not written on: %s", h->path, strerror(errno));
        h->failed = 1;
    }
    free(text);
    json_decref(row);
}

void hashlog_close(struct hashlog *h)
{
    if (h) {
        if (h->out) {
            fclose(h->out);
        }
        json_decref(h->last);
        mem_free(h->path);
        mem_free(h);
    }
}
