/* Owns what the kinds of weight sync share: requests, and reading what an engine says that it
 * holds. */
#include "rl/wsync.h"

#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/status.h"

int wsync_ask(struct wsync_request *r, const char *path, json_t *body, struct err *e)
{
    if (!body) {
        return ERR(e, STATUS_NOMEM, "no memory for a request to %s", path);
    }
    snprintf(r->path, sizeof r->path, "%s", path);
    r->body = body;
    return STATUS_OK;
}

/* Some engines put a model of text under a longer name when it may see pictures, too: the tensor
 * whose name ends as ours does, from its layer on. */
static const char *wsync_find(const json_t *told, const char *name)
{
    const json_t *v = json_object_get(told, name);
    const char *tail = strstr(name, "layers."), *key, *found = NULL;
    size_t n;
    json_t *other;

    if (v || !tail) {
        return json_string_value(v);
    }
    n = strlen(tail);
    json_object_foreach((json_t *)(uintptr_t)told, key, other)
    {
        size_t len = strlen(key);
        if (len > n && key[len - n - 1] == '.' && strcmp(key + len - n, tail) == 0) {
            if (found) {
                return NULL; /* two of them: neither is known to be the one */
            }
            found = json_string_value(other);
        }
    }
    return found;
}

/* 1: the rank holds a part of each tensor only. */
static int wsync_split(const json_t *rank, int *size)
{
    const json_t *info = json_array_get(json_object_get(rank, "parallelism_info"), 0);

    *size = 1;
    (void)json_unpack((json_t *)(uintptr_t)info, "{s:i}", "tp_size", size);
    return *size > 1;
}

static int wsync_judge_rank(const struct map *sums, const json_t *rank, int *other, struct err *e)
{
    const json_t *told = json_object_get(rank, "checksums");
    int size;

    if (!json_is_object(told)) {
        return ERR(e, STATUS_FORMAT, "the engine tells no checksums of its weights");
    }
    if (wsync_split(rank, &size)) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "the engine splits its tensors over %d ranks; their sums can be compared with "
                   "the trainer's only where a rank has them whole",
                   size);
    }
    for (size_t i = 0; i < sums->count; i++) {
        const struct map_entry *x = &sums->entries[i];
        const char *has = wsync_find(told, x->key);
        char want[17];
        snprintf(want, sizeof want, "%016llx", (unsigned long long)x->value);
        if (!has) {
            return ERR(e, STATUS_NOTFOUND, "tensor %s: the engine has none of that name", x->key);
        }
        if (strcmp(has, want) != 0) {
            return ERR(e, STATUS_FAIL, "tensor %s: the engine's sum is %.32s, the trainer's %s",
                       x->key, has, want);
        }
    }
    if (other) {
        *other = (int)json_object_size(told) - (int)sums->count;
    }
    return STATUS_OK;
}

int wsync_judge_sums(const struct map *sums, const json_t *answer, int *other, struct err *e)
{
    const json_t *ranks = json_object_get(answer, "ranks"), *rank;
    const char *why = json_string_value(json_object_get(answer, "message"));
    size_t i;
    int rc = STATUS_OK;

    if (!json_is_true(json_object_get(answer, "success")) || json_array_size(ranks) == 0) {
        return ERR(e, STATUS_FAIL, "the engine cannot tell what weights it holds: %.200s",
                   why ? why : "no reason given");
    }
    json_array_foreach(ranks, i, rank)
    {
        rc = wsync_judge_rank(sums, rank, other, e);
        if (rc != STATUS_OK) {
            return rc;
        }
    }
    return rc;
}
