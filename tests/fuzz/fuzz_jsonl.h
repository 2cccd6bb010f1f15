/* Any bytes as a data file: it opens or gives a cause; rows that were counted can be read, the same
 * ones each time; and the fast look at a line never takes one that the parser refuses. */
#ifndef TESTS_FUZZ_FUZZ_JSONL_H
#define TESTS_FUZZ_FUZZ_JSONL_H

#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "fuzz/fuzz_file.h"
#include "rl/promptrow.h"
#include "rl/prompts.h"
#include "rl/rowscan.h"

static void fuzz_jsonl_line(const struct promptrow_keys *k, const char *p, size_t n)
{
    struct promptrow_fault f;
    struct prompts_row r;
    int sure = rowscan_sure(&k->scan, p, n), rc = promptrow_parse(k, p, n, &r, &f);
    size_t value = rowscan_value(p, n);
    FUZZ_FILE_CHECK(value <= n);
    FUZZ_FILE_CHECK(!sure || rc == 0);
    if (rc == 0) {
        promptrow_fini(&r);
    }
}

/* Rows of the file, -1 when it is refused. */
static int64_t fuzz_jsonl_open(const char *path, int skip)
{
    struct prompts_opts o = {.path = path,
                             .label_key = "label",
                             .skip_bad = skip,
                             .group_size = 2,
                             .shuffle = 1,
                             .threads = 1};
    struct err e = {0};
    struct prompts *p = NULL;
    int64_t n;
    if (prompts_open(&p, &o, &e) != 0) {
        FUZZ_FILE_CHECK(e.code < 0 && e.msg[0]);
        return -1;
    }
    n = prompts_count(p);
    FUZZ_FILE_CHECK(n >= 1 && (skip || prompts_skipped(p) == 0));
    for (int64_t i = 0; i < n && i < 64; i++) {
        const struct prompts_row *r;
        struct prompts_group g;
        FUZZ_FILE_CHECK(prompts_row(p, i, &r, &e) == 0 && r->prompt && r->metadata && r->line > 0);
        FUZZ_FILE_CHECK(prompts_next(p, 1, &g, &e) == 0 && g.index == 2 * i);
    }
    prompts_close(p);
    return n;
}

static void fuzz_jsonl_one(const uint8_t *data, size_t n)
{
    const char *p = (const char *)data, *end = p + n, *path = fuzz_file(data, n);
    struct promptrow_keys k;
    int64_t strict, skipping;
    log_set_level(LOG_ERROR); /* of every skipped row a line is written */
    strict = fuzz_jsonl_open(path, 0);
    skipping = fuzz_jsonl_open(path, 1);
    FUZZ_FILE_CHECK(strict < 0 || strict == skipping);
    promptrow_keys(&k, NULL, "label", NULL, NULL);
    while (p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((nl ? nl : end) - p);
        fuzz_jsonl_line(&k, p, len);
        p += len + 1;
    }
}

#endif
