/* Any bytes as a tokenizer.json (or a tiktoken file) and, behind the first NUL, a text for it: the
 * file is refused or opened, and an open tokenizer gives ids that it knows, the same ones from its
 * cache, and valid UTF-8 back. */
#ifndef TESTS_FUZZ_FUZZ_TOKENIZER_H
#define TESTS_FUZZ_FUZZ_TOKENIZER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/tokenizer.h"
#include "text/tokstream.h"
#include "text/unicode.h"
#include "text/words.h"

#define FUZZ_TOKENIZER_CHECK(x) ((x) ? (void)0 : abort())

static void fuzz_tokenizer_back(const struct tokenizer *t, const int32_t *ids, size_t n)
{
    struct tokstream s;
    struct buf out;
    char *text = NULL;
    size_t len = 0;

    if (tokenizer_decode(t, ids, n, (int)(n & 1), &text, &len, NULL) == STATUS_OK) {
        FUZZ_TOKENIZER_CHECK(unicode_valid_prefix(text, len) == len);
    }
    mem_free(text);
    buf_init(&out, (size_t)1 << 28);
    tokstream_init(&s, t, (int)(n & 1));
    for (size_t i = 1; i <= n && i <= 64; i++) {
        size_t from = out.len;
        if (tokstream_push(&s, ids, i, &out, NULL) != STATUS_OK) {
            break;
        }
        len = out.len - from;
        FUZZ_TOKENIZER_CHECK(unicode_valid_prefix(out.data + from, len) == len);
    }
    buf_fini(&out);
}

static void fuzz_tokenizer_use(const struct tokenizer *t, const char *text, size_t len)
{
    int32_t *a = NULL, *b = NULL;
    size_t na = 0, nb = 0;
    int rc = tokenizer_encode(t, text, len, 1, &a, &na, NULL);
    int again = tokenizer_encode(t, text, len, 1, &b, &nb, NULL);

    FUZZ_TOKENIZER_CHECK(rc == again && na == nb);
    if (rc == STATUS_OK) {
        FUZZ_TOKENIZER_CHECK(memcmp(a, b, na * sizeof *a) == 0);
        fuzz_tokenizer_back(t, a, na);
    }
    mem_free(a);
    mem_free(b);
}

static void fuzz_tokenizer_one(const uint8_t *data, size_t n)
{
    char *file = mem_strndup((const char *)data, n);
    size_t len = strlen(file);
    const char *text = len < n ? file + len + 1 : "The caf\xC3\xA9's 12 \xE6\xBC\xA2\xE5\xAD\x97.";
    size_t ntext = len < n ? n - len - 1 : strlen(text);
    struct tokenizer *t = NULL;
    int rc;

    log_set_level(LOG_ERROR);
    rc = file[0] == '{' || len == 0
             ? tokenizer_open(file, &t, NULL)
             : tokenizer_open_tiktoken(file, len, words_named("cl100k"), NULL, &t, NULL);
    FUZZ_TOKENIZER_CHECK((rc == STATUS_OK) == (t != NULL));
    if (t) {
        int32_t odd[4] = {0, -1, INT32_MAX, tokenizer_vocab_size(t) - 1};
        fuzz_tokenizer_back(t, odd, 4);
        fuzz_tokenizer_use(t, text, ntext);
        FUZZ_TOKENIZER_CHECK(tokenizer_id(t, "no such token, surely") < tokenizer_vocab_size(t));
    }
    tokenizer_close(t);
    mem_free(file);
}

#endif
