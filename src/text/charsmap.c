/* Owns the map that SentencePiece compiles from its normalization rules. The blob is a length in
 * bytes, so many bytes of 32-bit trie units, and then the replacements, each ended by a NUL; a leaf
 * holds where its replacement starts. Looking up goes by grapheme cluster first, as the package
 * does: the shortest string of the map that begins a cluster of less than 6 bytes replaces all of
 * it. Indices out of a hostile blob are checked at every step. */
#include "text/charsmap.h"

#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/base64.h"
#include "text/unicode.h"

#define CLUSTER_BYTES 6

struct charsmap {
    uint32_t *unit;
    size_t nunit;
    char *text; /* the replacements */
    size_t ntext;
};

int charsmap_open(const char *base64, size_t n, struct charsmap **out, struct err *e)
{
    char *raw = mem_try(n / 4 * 3 + 3);
    struct charsmap *m = NULL;
    uint32_t size = 0;
    size_t len = 0;
    int rc = STATUS_OK;

    if (!raw) {
        return ERR(e, STATUS_NOMEM, "no memory for a character map of %zu bytes", n);
    }
    if (!base64_decode(base64, n, raw, &len) || len < 4) {
        rc = ERR(e, STATUS_FORMAT, "precompiled_charsmap is not base64 of a map");
        goto out;
    }
    memcpy(&size, raw, 4);
    if (size % 4 || size > len - 4 || size == 0) {
        rc = ERR(e, STATUS_FORMAT, "precompiled_charsmap: a trie of %u bytes in %zu", size, len);
        goto out;
    }
    m = mem_alloc(sizeof *m);
    m->nunit = size / 4;
    m->unit = mem_try(size);
    m->ntext = len - 4 - size;
    m->text = mem_try(m->ntext + 1);
    if (!m->unit || !m->text) {
        charsmap_close(m);
        rc = ERR(e, STATUS_NOMEM, "no memory for a character map of %zu bytes", len);
        goto out;
    }
    memcpy(m->unit, raw + 4, size);
    memcpy(m->text, raw + 4 + size, m->ntext);
    if (unicode_valid_prefix(m->text, m->ntext) < m->ntext) {
        charsmap_close(m);
        rc = ERR(e, STATUS_FORMAT, "precompiled_charsmap: replacements that are not utf-8");
        goto out;
    }
    *out = m;
out:
    mem_free(raw);
    return rc;
}

void charsmap_close(struct charsmap *m)
{
    if (m) {
        mem_free(m->unit);
        mem_free(m->text);
        mem_free(m);
    }
}

static size_t offset_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* The replacement of the shortest string of the map that s begins with; NULL when there is none. */
static const char *find(const struct charsmap *m, const char *s, size_t n, size_t *len)
{
    size_t at = offset_of(m->unit[0]);
    size_t i;

    for (i = 0; i < n && s[i]; i++) {
        uint32_t unit;
        at ^= (unsigned char)s[i];
        if (at >= m->nunit) {
            return NULL;
        }
        unit = m->unit[at];
        if ((unit & ((1u << 31) | 0xFF)) != (unsigned char)s[i]) {
            return NULL;
        }
        at ^= offset_of(unit);
        if (unit >> 8 & 1) {
            size_t from = at < m->nunit ? m->unit[at] & ((1u << 31) - 1) : SIZE_MAX;
            if (from > m->ntext || ((unsigned char)m->text[from] & 0xC0) == 0x80) {
                return NULL;
            }
            *len = strlen(m->text + from);
            return m->text + from;
        }
    }
    return NULL;
}

void charsmap_apply(const struct charsmap *m, const char *s, size_t n, struct buf *out)
{
    while (n > 0) {
        size_t k = unicode_grapheme(s, n);
        size_t len, i, w;
        const char *to = k < CLUSTER_BYTES ? find(m, s, k, &len) : NULL;
        if (to) {
            buf_add(out, to, len);
        } else {
            for (i = 0; i < k; i += w) {
                w = unicode_width((unsigned char)s[i]);
                to = find(m, s + i, w, &len);
                buf_add(out, to ? to : s + i, to ? len : w);
            }
        }
        s += k;
        n -= k;
    }
}
