/* Owns what the kinds of weight sync share: requests, the folder weights lie in, and reading what
 * an engine says that it holds. */
#include "rl/wsync.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/status.h"

int wsync_home(const char *dir, char **out, struct err *e)
{
    int rc = patience_mkdirs(dir, e);
    char *real;

    if (rc != STATUS_OK) {
        return rc;
    }
    if (fsio_sys_simulated(dir)) {
        *out = mem_strdup(dir);
        return STATUS_OK;
    }
    real = realpath(dir, NULL);
    if (!real) {
        rc = ERR(e, STATUS_IO, "weights cannot be written to %s: %s", dir, strerror(errno));
    } else {
        *out = mem_strdup(real);
    }
    free(real);
    return rc;
}

int wsync_clean(const char *dir, int (*ours)(const char *name), int say, struct err *e)
{
    struct fsio_names l;
    int rc = fsio_list(dir, &l, e);

    for (size_t i = 0; rc == STATUS_OK && i < l.n; i++) {
        if (ours(l.name[i])) {
            char *path = fsio_join(dir, l.name[i]);
            if (say) {
                log_info(WSYNC, "removing %s, which an earlier run left", path);
            }
            rc = fsio_remove_tree(path, e);
            mem_free(path);
        }
    }
    fsio_names_fini(&l);
    return rc;
}

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

/* Where the rank stands; what it does not tell is as if it were alone. */
struct wsync_rank {
    int tp_rank, tp_size, pp_size;
};

static void wsync_place(const json_t *rank, struct wsync_rank *at)
{
    const json_t *info = json_array_get(json_object_get(rank, "parallelism_info"), 0);

    *at = (struct wsync_rank){0, 1, 1};
    (void)json_unpack((json_t *)(uintptr_t)info, "{s?i,s?i,s?i}", "tp_rank", &at->tp_rank,
                      "tp_size", &at->tp_size, "pp_size", &at->pp_size);
}

/* Tensors that the rank holds are marked in `seen`. */
static int wsync_judge_rank(const struct map *sums, const json_t *told, int some, uint8_t *seen,
                            struct err *e)
{
    for (size_t i = 0; i < sums->count; i++) {
        const struct map_entry *x = &sums->entries[i];
        const char *has = wsync_find(told, x->key);
        char want[17];
        snprintf(want, sizeof want, "%016llx", (unsigned long long)x->value);
        if (!has && !some) {
            return ERR(e, STATUS_NOTFOUND, "tensor %s: the engine has none of that name", x->key);
        }
        if (has && strcmp(has, want) != 0) {
            return ERR(e, STATUS_FAIL, "tensor %s: the engine's sum is %.32s, the trainer's %s",
                       x->key, has, want);
        }
        seen[i] |= has != NULL;
    }
    return STATUS_OK;
}

static int wsync_judge_ranks(wsync_sums_fn *get, void *arg, const json_t *ranks, struct err *e)
{
    const struct map *sums = NULL;
    const json_t *rank;
    uint8_t *seen = NULL;
    size_t i;
    int rc = STATUS_OK;

    json_array_foreach(ranks, i, rank)
    {
        const json_t *told = json_object_get(rank, "checksums");
        struct wsync_rank at;
        wsync_place(rank, &at);
        if (!json_is_object(told)) {
            rc = ERR(e, STATUS_FORMAT, "the engine tells no checksums of its weights");
            break;
        }
        sums = get(arg, at.tp_rank, at.tp_size, e);
        if (!sums) {
            rc = e && e->code ? e->code : STATUS_UNSUPPORTED;
            break;
        }
        if (!seen) { /* every rank has the same names */
            seen = mem_alloc(sums->count + 1);
        }
        rc = wsync_judge_rank(sums, told, at.pp_size > 1, seen, e);
        if (rc != STATUS_OK) {
            break;
        }
    }
    for (i = 0; rc == STATUS_OK && i < sums->count; i++) {
        if (!seen[i]) {
            rc = ERR(e, STATUS_NOTFOUND, "tensor %s: no rank of the engine has it",
                     sums->entries[i].key);
        }
    }
    mem_free(seen);
    return rc;
}

int wsync_judge_sums(wsync_sums_fn *sums, void *arg, const json_t *answer, struct err *e)
{
    const json_t *ranks = json_object_get(answer, "ranks");
    const char *why = json_string_value(json_object_get(answer, "message"));

    if (!json_is_true(json_object_get(answer, "success")) || json_array_size(ranks) == 0) {
        return ERR(e, STATUS_NOTFOUND, "the engine cannot tell what weights it holds: %.200s",
                   why ? why : "no reason given");
    }
    return wsync_judge_ranks(sums, arg, ranks, e);
}
