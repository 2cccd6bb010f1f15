/* Owns the point up to which a list of tokens has become text. A token's text may depend on the one
 * before (spaces) and may end inside a character. So tokens are decoded together with some that are
 * out already, and what might still become characters is held back: it shows as replacement
 * characters at the end, which for byte tokens may stand for whole characters before it. */
#include "text/tokstream.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/tokenizer.h"

void tokstream_init(struct tokstream *t, const struct tokenizer *tok, int skip_special)
{
    memset(t, 0, sizeof *t);
    t->tok = tok;
    t->skip_special = skip_special;
}

/* Length of the text without what may still become a character. */
static size_t tokstream_certain(const char *text, size_t len)
{
    while (len >= 3 && memcmp(text + len - 3, "\xef\xbf\xbd", 3) == 0) {
        len -= 3;
    }
    return len;
}

static int tokstream_go(struct tokstream *t, const int32_t *ids, size_t n, int all, struct buf *out,
                        struct err *e)
{
    char *text;
    size_t len, end;
    int rc;

    if (n == 0) { /* ids may be NULL then */
        return STATUS_OK;
    }
    rc = tokenizer_decode(t->tok, ids + t->from, n - t->from, t->skip_special, &text, &len, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    end = all ? len : tokstream_certain(text, len);
    if (end > t->done) {
        /* Byte tokens may have made characters and make none any more with those that followed:
         * what is out is out, and the rest begins with a whole character. */
        size_t at = t->done;
        while (at < end && ((unsigned char)text[at] & 0xC0) == 0x80) {
            at++;
        }
        buf_add(out, text + at, end - at);
        t->done = end;
        if (end == len) { /* the next tokens need no more before them than these */
            mem_free(text);
            text = NULL;
            t->from = t->to;
            t->to = n;
            rc = tokenizer_decode(t->tok, ids + t->from, n - t->from, t->skip_special, &text,
                                  &t->done, e);
        }
    }
    mem_free(text);
    return rc;
}

int tokstream_push(struct tokstream *t, const int32_t *ids, size_t n, struct buf *out,
                   struct err *e)
{
    return tokstream_go(t, ids, n, 0, out, e);
}

int tokstream_end(struct tokstream *t, const int32_t *ids, size_t n, struct buf *out, struct err *e)
{
    return tokstream_go(t, ids, n, 1, out, e);
}
