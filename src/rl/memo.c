/* Owns how JSON lies in the journal: its text in pieces, of which the last is shorter than the
 * others. They are committed together, so either all of them are there or none. */
#include "rl/memo.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "rl/journal.h"

#define MEMO_PIECE ((size_t)16 << 20)
#define MEMO_MOST  ((size_t)1 << 36)

static int memo_load(const struct buf *text, const struct journal_key *k, json_t **out,
                     struct err *e)
{
    json_error_t je;

    *out = buf_status(text) == STATUS_OK
               ? json_loadb(text->data, text->len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &je)
               : NULL;
    if (buf_status(text) != STATUS_OK) {
        return ERR(e, STATUS_NOMEM, "no memory for what a function answered in rollout %lld",
                   (long long)k->rollout);
    }
    return *out ? STATUS_OK
                : ERR(e, STATUS_FORMAT,
                      "what a function answered in rollout %lld cannot be read: %s",
                      (long long)k->rollout, je.text);
}

int memo_find(struct journal *j, const struct journal_key *k, json_t **out, struct err *e)
{
    struct journal_key at = *k;
    struct buf text;
    size_t n = MEMO_PIECE;
    int rc = j && j->find ? STATUS_OK : STATUS_NOTFOUND;

    buf_init(&text, MEMO_MOST);
    for (at.start = 0; rc == STATUS_OK && n == MEMO_PIECE; at.start++) {
        void *piece = NULL;
        rc = j->find(j->self, JOURNAL_ANSWER, &at, &piece, &n, e);
        if (rc == STATUS_OK) {
            buf_add(&text, piece, n);
            mem_free(piece);
        }
    }
    rc = rc == STATUS_OK ? memo_load(&text, k, out, e) : rc;
    buf_fini(&text);
    if (rc == STATUS_NOTFOUND && j && j->closed) {
        return ERR(e, rc, "what a function answered in rollout %lld is not recorded",
                   (long long)k->rollout);
    }
    return rc;
}

int memo_put(struct journal *j, const struct journal_key *k, const json_t *value, struct err *e)
{
    struct journal_key at = *k;
    char *text;
    size_t n, done = 0, part = MEMO_PIECE;
    int rc = STATUS_OK;

    if (!j || !j->put) {
        return STATUS_OK;
    }
    text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (!text) {
        return ERR(e, STATUS_NOMEM, "what a function answered in rollout %lld cannot be written",
                   (long long)k->rollout);
    }
    n = strlen(text);
    for (at.start = 0; rc == STATUS_OK && part == MEMO_PIECE; at.start++) {
        part = n - done < MEMO_PIECE ? n - done : MEMO_PIECE;
        rc = j->put(j->self, JOURNAL_ANSWER, &at, text + done, part, e);
        done += part;
    }
    free(text);
    return rc == STATUS_OK ? j->commit(j->self, e) : rc;
}
