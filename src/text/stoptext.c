/* Owns where a response's text ends. Text is searched only from where a stop string could begin
 * that was not complete before. */
#include "text/stoptext.h"

#include <string.h>

#include "base/status.h"

void stoptext_init(struct stoptext *t, const struct tokenizer *tok, int skip_special,
                   const struct stoptext_stop *stops, int nstops, size_t max)
{
    memset(t, 0, sizeof *t);
    tokstream_init(&t->stream, tok, skip_special);
    buf_init(&t->text, max);
    t->stops = stops;
    t->nstops = nstops;
    for (int i = 0; i < nstops; i++) {
        t->longest = stops[i].n > t->longest ? stops[i].n : t->longest;
    }
}

void stoptext_fini(struct stoptext *t)
{
    buf_fini(&t->text);
}

static void stoptext_search(struct stoptext *t, size_t from)
{
    for (int i = 0; i < t->nstops; i++) {
        const struct stoptext_stop *s = &t->stops[i];
        const char *at = memmem(t->text.data + from, t->text.len - from, s->s, s->n);
        size_t pos = at ? (size_t)(at - t->text.data) : 0;
        if (at && (!t->matched || pos < t->matched_at)) {
            t->matched = s;
            t->matched_at = pos;
        }
    }
}

/* Bytes at the end of the text that are the beginning of a stop string. */
static size_t stoptext_held(const struct stoptext *t)
{
    size_t most = t->text.len < t->longest ? t->text.len : t->longest, held = 0;

    for (int i = 0; i < t->nstops; i++) {
        const struct stoptext_stop *s = &t->stops[i];
        size_t k = s->n - 1 < most ? s->n - 1 : most;
        while (k > held && memcmp(t->text.data + t->text.len - k, s->s, k) != 0) {
            k--;
        }
        held = k > held ? k : held;
    }
    return held;
}

int stoptext_push(struct stoptext *t, const int32_t *ids, size_t n, int last, struct err *e)
{
    size_t before = t->text.len, from;
    int rc;

    if (!t->stream.tok || t->matched) {
        return t->matched ? STATUS_END : STATUS_OK;
    }
    rc = last ? tokstream_end(&t->stream, ids, n, &t->text, e)
              : tokstream_push(&t->stream, ids, n, &t->text, e);
    if (rc == STATUS_OK) {
        rc = buf_status(&t->text) ? ERR(e, STATUS_NOMEM, "the text of a response is too long")
                                  : STATUS_OK;
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    if (t->nstops && t->text.len > before) {
        from = before + 1 > t->longest ? before + 1 - t->longest : 0;
        stoptext_search(t, from);
    }
    if (t->matched) {
        t->shown = t->matched_at;
        return STATUS_END;
    }
    t->shown = last ? t->text.len : t->text.len - stoptext_held(t);
    return STATUS_OK;
}
