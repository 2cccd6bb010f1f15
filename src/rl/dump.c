/* Owns the file format of debug rollout data. */
#include "rl/dump.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "rl/sample.h"

#define DUMP_MAX ((size_t)8 << 30)

static int dump_line(struct fsio_out *o, json_t *j, struct err *e)
{
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    int rc = text ? fsio_out_write(o, text, strlen(text), e)
                  : ERR(e, STATUS_NOMEM, "no memory to write a sample");
    if (rc == STATUS_OK) {
        rc = fsio_out_write(o, "\n", 1, e);
    }
    free(text);
    json_decref(j);
    return rc;
}

int dump_write(const char *path, int64_t rollout_id, struct sample *const *s, int n, struct err *e)
{
    struct fsio_out o;
    const char *slash = strrchr(path, '/');
    int rc = STATUS_OK;

    if (slash && slash != path) {
        char *dir = mem_strndup(path, (size_t)(slash - path));
        rc = fsio_mkdirs(dir, e);
        mem_free(dir);
    }
    if (rc == STATUS_OK) {
        rc = fsio_out_open(&o, path, e);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    rc = dump_line(&o,
                   json_pack("{s:s,s:i,s:I,s:i}", "format", "miles-rollout", "version", 1,
                             "rollout_id", (json_int_t)rollout_id, "samples", n),
                   e);
    for (int i = 0; rc == STATUS_OK && i < n; i++) {
        rc = dump_line(&o, sample_to_json(s[i]), e);
    }
    if (rc != STATUS_OK) {
        fsio_out_abort(&o);
        return rc;
    }
    return fsio_out_commit(&o, e);
}

void dump_print(int64_t rollout_id, struct sample *const *s, int n)
{
    for (int i = 0; i < n; i++) {
        json_t *j = json_pack(
            "{s:I,s:I,s:I,s:s,s:O?,s:O?,s:s?,s:i}", "rollout_id", (json_int_t)rollout_id, "index",
            (json_int_t)s[i]->index, "group_index", (json_int_t)s[i]->group_index, "status",
            sample_status_name(s[i]->status), "prompt", s[i]->prompt, "label", s[i]->label,
            "response", s[i]->response, "response_length", s[i]->response_len);
        char *text;

        if (j && isfinite(s[i]->reward)) {
            json_object_set_new(j, "reward", json_real(s[i]->reward));
        }
        text = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
        if (text) {
            puts(text);
        }
        free(text);
        json_decref(j);
    }
    fflush(stdout);
}

static int dump_header(const json_t *j, const char *path, size_t bytes, int *n, struct err *e)
{
    const char *f = json_string_value(json_object_get(j, "format"));
    json_int_t v = json_integer_value(json_object_get(j, "version"));
    json_int_t k = json_integer_value(json_object_get(j, "samples"));
    if (!f || strcmp(f, "miles-rollout") != 0 || v != 1) {
        return ERR(e, STATUS_FORMAT, "%s line 1: not a miles-rollout file of version 1", path);
    }
    if (k < 1 || (uint64_t)k > bytes / 3) { /* a line is at least {} and a newline */
        return ERR(e, STATUS_FORMAT, "%s line 1: %lld samples", path, (long long)k);
    }
    *n = (int)k;
    return STATUS_OK;
}

int dump_read(const char *path, struct sample ***out, int *n, struct err *e)
{
    const uint8_t *data;
    size_t len, at = 0;
    struct sample **s = NULL;
    int want = 0, got = 0, line = 0;
    int rc = fsio_map(path, &data, &len, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    if (len > DUMP_MAX) {
        rc = ERR(e, STATUS_INPUT, "%s is larger than 8 GiB", path);
    }
    while (rc == STATUS_OK && at < len) {
        const uint8_t *nl = memchr(data + at, '\n', len - at);
        size_t end = nl ? (size_t)(nl - data) : len;
        json_error_t je;
        json_t *j = json_loadb((const char *)data + at, end - at, 0, &je);
        line++;
        if (!j) {
            rc = ERR(e, STATUS_FORMAT, "%s line %d: %s", path, line, je.text);
        } else if (line == 1) {
            rc = dump_header(j, path, len, &want, e);
            s = rc == STATUS_OK ? mem_alloc(sizeof *s * (size_t)want) : NULL;
        } else if (got == want) {
            rc = ERR(e, STATUS_FORMAT, "%s line %d: more samples than the header says (%d)", path,
                     line, want);
        } else {
            rc = sample_from_json(j, &s[got], e);
            if (rc != STATUS_OK) {
                err_prefix(e, "%s line %d", path, line);
            } else {
                got++;
            }
        }
        json_decref(j);
        at = end + 1;
    }
    fsio_unmap(data, len);
    if (rc == STATUS_OK && (!want || got != want)) {
        rc = ERR(e, STATUS_FORMAT, "%s has %d samples, its header says %d", path, got, want);
    }
    if (rc != STATUS_OK) {
        for (int i = 0; i < got; i++) {
            sample_free(s[i]);
        }
        mem_free(s);
        return rc;
    }
    *out = s;
    *n = want;
    return STATUS_OK;
}
