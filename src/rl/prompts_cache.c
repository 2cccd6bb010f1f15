/* Owns what was found out about the lengths of prompts, and the file that keeps it: which rows are
 * dropped, and how many there are of each length. Tokenising millions of prompts takes minutes; a
 * run that is started again must not do it again. The file names what it was made from by a hash,
 * and is taken only when that and its own checksum are right; otherwise rows are measured. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/status.h"
#include "rl/prompts_int.h"

#define MAGIC      "miles lengths 1\n"
#define MAGIC_LEN  16
#define MAX_FILE   ((size_t)1 << 28)
#define MAX_TOKENS (1 << 24)

void prompts_lengths_init(struct prompts_lengths *x, int64_t n)
{
    memset(x, 0, sizeof *x);
    x->n = n;
    x->dropped = mem_alloc((size_t)(n + 7) / 8 + 1);
}

void prompts_lengths_fini(struct prompts_lengths *x)
{
    mem_free(x->dropped);
    mem_free(x->count);
    memset(x, 0, sizeof *x);
}

/* The entry of a length, in a table that grows with the longest prompt. */
static int64_t *entry(struct prompts_lengths *x, int tokens)
{
    if (tokens >= x->cap) {
        int cap = x->cap ? x->cap : 1024;
        while (cap <= tokens) {
            cap *= 2;
        }
        x->count = mem_realloc(x->count, (size_t)x->cap * sizeof *x->count,
                               (size_t)cap * sizeof *x->count);
        x->cap = cap;
    }
    return &x->count[tokens];
}

void prompts_lengths_add(struct prompts_lengths *x, int tokens)
{
    ++*entry(x, tokens);
}

void prompts_lengths_drop(struct prompts_lengths *x, int64_t row)
{
    x->dropped[row / 8] |= (uint8_t)(1u << row % 8);
}

/* --- the file --- */

static void put_int(struct buf *b, int64_t v)
{
    uint8_t le[8];
    for (int i = 0; i < 8; i++) {
        le[i] = (uint8_t)((uint64_t)v >> (8 * i));
    }
    buf_add(b, le, sizeof le);
}

static int64_t get_int(const char **p)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) {
        v |= (uint64_t)(uint8_t)(*p)[i] << (8 * i);
    }
    *p += 8;
    return (int64_t)v;
}

static void hash_text(struct sha256 *s, const char *text)
{
    sha256_update(s, text ? text : "", text ? strlen(text) + 1 : 0);
    sha256_update(s, text ? "t" : "n", 1);
}

/* Everything that the lengths and the rows' numbers depend on. */
static void hash_source(const struct prompts *p, const struct prompts_opts *o, uint8_t out[32])
{
    int64_t nums[] = {o->skip_bad, o->max_tokens, o->sure_bytes, o->full, p->n, p->skipped};
    struct sha256 s;

    sha256_init(&s);
    hash_text(&s, o->path);
    hash_text(&s, p->keys.input);
    hash_text(&s, p->keys.label);
    hash_text(&s, p->keys.metadata);
    hash_text(&s, p->keys.tools);
    hash_text(&s, o->cache_key);
    sha256_update(&s, nums, sizeof nums);
    for (int i = 0; i < p->nfiles; i++) {
        const struct rowfile *f = &p->files[i];
        int64_t is[] = {f->size, f->mtime.tv_sec, f->mtime.tv_nsec};
        sha256_update(&s, is, sizeof is);
    }
    sha256_final(&s, out);
}

/* MAGIC, hash of the source, number of rows, bits of the dropped ones, pairs of length and count,
 * SHA-256 of all that. */
void prompts_lengths_save(const struct prompts_lengths *x, const struct prompts *p,
                          const struct prompts_opts *o)
{
    uint8_t hash[32];
    struct err e = {0};
    struct sha256 s;
    struct buf b;

    buf_init(&b, MAX_FILE);
    hash_source(p, o, hash);
    buf_add(&b, MAGIC, MAGIC_LEN);
    buf_add(&b, hash, sizeof hash);
    put_int(&b, x->n);
    buf_add(&b, x->dropped, (size_t)(x->n + 7) / 8);
    for (int i = 0; i < x->cap; i++) {
        if (x->count[i]) {
            put_int(&b, i);
            put_int(&b, x->count[i]);
        }
    }
    sha256_init(&s);
    sha256_update(&s, b.data, b.len);
    sha256_final(&s, hash);
    buf_add(&b, hash, sizeof hash);
    if (buf_status(&b) != 0 || fsio_write_atomic(o->cache, b.data, b.len, &e) != 0) {
        log_warn(DATA, "the lengths of prompts are not kept for the next start: %s", e.msg);
    }
    buf_fini(&b);
}

static int take_pairs(struct prompts_lengths *x, const char *p, const char *end)
{
    while (end - p >= 16) {
        int64_t tokens = get_int(&p), count = get_int(&p);
        if (tokens < 0 || tokens > MAX_TOKENS || count < 1 || count > x->n) {
            return 0;
        }
        *entry(x, (int)tokens) = count;
    }
    return p == end;
}

int prompts_lengths_load(struct prompts_lengths *x, const struct prompts *p,
                         const struct prompts_opts *o)
{
    size_t bits = (size_t)(x->n + 7) / 8, least = MAGIC_LEN + 32 + 8 + bits + 32, len;
    uint8_t hash[32];
    struct sha256 s;
    const char *at;
    char *data;
    int ok;

    if (!fsio_is_file(o->cache) || fsio_read(o->cache, MAX_FILE, &data, &len, NULL) != 0) {
        return 0;
    }
    ok = len >= least && memcmp(data, MAGIC, MAGIC_LEN) == 0;
    if (ok) {
        hash_source(p, o, hash);
        ok = memcmp(data + MAGIC_LEN, hash, sizeof hash) == 0;
    }
    if (ok) {
        sha256_init(&s);
        sha256_update(&s, data, len - 32);
        sha256_final(&s, hash);
        ok = memcmp(data + len - 32, hash, sizeof hash) == 0;
    }
    at = data + MAGIC_LEN + 32;
    ok = ok && get_int(&at) == x->n;
    if (ok) {
        memcpy(x->dropped, at, bits);
        ok = take_pairs(x, at + bits, data + len - 32);
    }
    mem_free(data);
    return ok;
}
