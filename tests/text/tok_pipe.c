/* A tokenizer behind a pipe, for tests/live/tokenizers.sh: tok_pipe FILE_tokenizer.json [THREADS]
 * A FILE.tiktoken is read in tiktoken's format, with the pattern of cl100k.
 *
 * stdin holds batches: a count, then that many items of an op (1 byte), a length (4 bytes, little
 * end first, like all numbers here) and so many bytes. Ops: e text to ids, E with special tokens,
 * d ids to text, D without special tokens, s and S the same token by token through tokstream. The
 * answers of a batch follow in order, each a length and its bytes; an item that failed has length
 * 0xFFFFFFFF. Threads share one tokenizer and take items in turn. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/tokenizer.h"
#include "text/tokstream.h"
#include "text/unicode.h"
#include "text/words.h"

#define FAILED UINT32_MAX

struct item {
    char op;
    char *data;
    uint32_t n;
    char *answer;
    uint32_t nanswer;
};
struct batch {
    const struct tokenizer *t;
    struct item *item;
    uint32_t n;
    int threads;
};
struct worker {
    pthread_t id;
    struct batch *b;
    int k;
};

static int ends_whole(const char *s, size_t n)
{
    return unicode_valid_prefix(s, n) == n;
}

/* One, two or three tokens at a time; every part must be whole characters. */
static int stream(const struct tokenizer *t, const int32_t *ids, size_t n, int skip,
                  struct item *it, struct err *e)
{
    struct tokstream s;
    struct buf out;
    size_t i = 0;
    int rc = STATUS_OK;

    buf_init(&out, (size_t)1 << 30);
    tokstream_init(&s, t, skip);
    while (i < n && rc == STATUS_OK) {
        size_t from = out.len;
        i += 1 + i % 3;
        i = i < n ? i : n;
        rc = tokstream_push(&s, ids, i, &out, e);
        if (rc == STATUS_OK && !ends_whole(out.data + from, out.len - from)) {
            rc = ERR(e, STATUS_FAIL, "half a character after %zu of %zu tokens", i, n);
        }
    }
    rc = rc == STATUS_OK ? tokstream_end(&s, ids, n, &out, e) : rc;
    if (rc == STATUS_OK) {
        size_t len;
        it->answer = buf_take(&out, &len);
        it->nanswer = (uint32_t)len;
    }
    buf_fini(&out);
    return rc;
}

static int run(const struct tokenizer *t, struct item *it, struct err *e)
{
    const int32_t *ids = (const int32_t *)(void *)it->data;
    size_t n = 0;
    int rc;

    switch (it->op) {
    case 'e':
    case 'E':
        rc = tokenizer_encode(t, it->data, it->n, it->op == 'E', (int32_t **)(void *)&it->answer,
                              &n, e);
        n *= sizeof *ids;
        break;
    case 'd':
    case 'D': rc = tokenizer_decode(t, ids, it->n / 4, it->op == 'D', &it->answer, &n, e); break;
    case 's':
    case 'S': return stream(t, ids, it->n / 4, it->op == 'S', it, e);
    default: rc = ERR(e, STATUS_INPUT, "op %d", it->op);
    }
    it->nanswer = (uint32_t)n;
    return rc;
}

static void *work(void *arg)
{
    struct worker *w = arg;

    for (uint32_t i = (uint32_t)w->k; i < w->b->n; i += (uint32_t)w->b->threads) {
        struct err e = {0};
        if (run(w->b->t, &w->b->item[i], &e) != STATUS_OK) {
            fprintf(stderr, "tok_pipe: %s\n", e.msg);
            w->b->item[i].nanswer = FAILED;
        }
    }
    return NULL;
}

static int get(void *p, size_t n)
{
    return fread(p, 1, n, stdin) == n;
}

/* 1 a batch was done, 0 the end. */
static int batch(const struct tokenizer *t, int threads)
{
    struct batch b = {t, NULL, 0, threads};
    struct worker w[16];
    int ok = get(&b.n, 4) && b.n > 0;

    if (!ok) {
        return 0;
    }
    b.item = mem_alloc(b.n * sizeof *b.item);
    for (uint32_t i = 0; i < b.n && ok; i++) {
        struct item *it = &b.item[i];
        ok = get(&it->op, 1) && get(&it->n, 4);
        if (ok) {
            it->data = mem_alloc((size_t)it->n + 1);
            ok = get(it->data, it->n);
        }
    }
    for (int k = 0; k < threads; k++) {
        w[k].b = &b;
        w[k].k = k;
        if (pthread_create(&w[k].id, NULL, work, &w[k]) != 0) {
            abort();
        }
    }
    for (int k = 0; k < threads; k++) {
        pthread_join(w[k].id, NULL);
    }
    for (uint32_t i = 0; i < b.n; i++) {
        struct item *it = &b.item[i];
        fwrite(&it->nanswer, 1, 4, stdout);
        fwrite(it->answer, 1, it->nanswer == FAILED ? 0 : it->nanswer, stdout);
        mem_free(it->data);
        mem_free(it->answer);
    }
    mem_free(b.item);
    return fflush(stdout) == 0 && ok;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    char *json = NULL;
    size_t n;
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    int rc = argc > 1 ? fsio_read(argv[1], (size_t)1 << 30, &json, &n, &e)
                      : ERR(&e, STATUS_INPUT, "usage: tok_pipe FILE [THREADS]");

    if (rc == 0 && strlen(argv[1]) > 9 && strcmp(argv[1] + strlen(argv[1]) - 9, ".tiktoken") == 0) {
        rc = tokenizer_open_tiktoken(json, n, words_named("cl100k"), NULL, &t, &e);
    } else if (rc == 0) {
        rc = tokenizer_open(json, &t, &e);
    }
    mem_free(json);
    if (rc) {
        fprintf(stderr, "tok_pipe: %s\n", e.msg);
        return 1;
    }
    while (batch(t, threads < 1 ? 1 : threads > 16 ? 16 : threads)) {
    }
    tokenizer_close(t);
    return 0;
}
