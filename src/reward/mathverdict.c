/* Owns the text of a verdict: one line, cut between characters, without what a terminal or a log
 * would obey, because parts of it come from a model's answer. */
#include "reward/mathverdict.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"

void mathverdict_set(struct mathverdict *v, int right, const char *fmt, ...)
{
    char text[4 * MATHVERDICT_REASON];
    size_t n = 0, len;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    len = strlen(text);
    for (size_t i = 0; i < len;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t k =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(len - i), &c);
        if (k <= 0 || c < 32 || (c >= 127 && c < 160)) {
            if (n + 1 >= sizeof v->reason) {
                break;
            }
            v->reason[n++] = k > 0 && (c == '\n' || c == '\t' || c == '\r') ? ' ' : '?';
            i += k > 0 ? (size_t)k : 1;
            continue;
        }
        if (n + (size_t)k >= sizeof v->reason) {
            break;
        }
        memcpy(v->reason + n, text + i, (size_t)k);
        n += (size_t)k;
        i += (size_t)k;
    }
    v->reason[n] = 0;
    v->right = right;
    v->ask = NULL;
}

void mathverdict_fini(struct mathverdict *v)
{
    if (v) {
        mem_free(v->ask);
        v->ask = NULL;
    }
}
