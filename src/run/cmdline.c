/* Owns the words of commands that a user writes as one text. */
#include "run/cmdline.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"

#define CMDLINE_MAX (1 << 20) /* bytes of a word */

void cmdline_add(struct cmdline *c, const char *word)
{
    size_t old = c->v ? ((size_t)c->n + 1) * sizeof *c->v : 0;
    c->v = mem_realloc(c->v, old, ((size_t)c->n + 2) * sizeof *c->v);
    c->v[c->n++] = mem_strdup(word);
    c->v[c->n] = NULL;
}

void cmdline_copy(struct cmdline *to, const struct cmdline *from)
{
    memset(to, 0, sizeof *to);
    for (int i = 0; i < from->n; i++) {
        cmdline_add(to, from->v[i]);
    }
}

void cmdline_fini(struct cmdline *c)
{
    for (int i = 0; i < c->n; i++) {
        mem_free(c->v[i]);
    }
    mem_free(c->v);
    memset(c, 0, sizeof *c);
}

/* Appends one word to b and gives what follows it; NULL when a quote has no end. */
static const char *cmdline_word(const char *p, struct buf *b)
{
    char quote = 0;

    for (; *p && (quote || !strchr(" \t\r\n", *p)); p++) {
        if (quote ? *p == quote : *p == '\'' || *p == '"') {
            quote = quote ? 0 : *p;
        } else if (*p == '\\' && quote != '\'' && p[1] && (!quote || strchr("\"\\", p[1]))) {
            buf_char(b, *++p);
        } else {
            buf_char(b, *p);
        }
    }
    return quote ? NULL : p;
}

int cmdline_split(struct cmdline *c, const char *text, struct err *e)
{
    struct buf b;
    int rc = STATUS_OK;

    memset(c, 0, sizeof *c);
    buf_init(&b, CMDLINE_MAX);
    for (const char *p = text + strspn(text, " \t\r\n"); rc == STATUS_OK && *p;) {
        buf_clear(&b);
        p = cmdline_word(p, &b);
        if (!p) {
            rc = ERR(e, STATUS_INPUT, "a quote does not end: %.300s", text);
            break;
        }
        if (buf_status(&b) != STATUS_OK) {
            rc = ERR(e, STATUS_INPUT, "a word has more than %d bytes", CMDLINE_MAX);
        }
        cmdline_add(c, b.data);
        p += strspn(p, " \t\r\n");
    }
    buf_fini(&b);
    if (rc != STATUS_OK) {
        cmdline_fini(c);
    }
    return rc;
}

/* The value of the name in braces at p, or NULL. */
static const char *cmdline_value(const char *p, size_t n, const char *const *names,
                                 const char *const *values)
{
    for (int i = 0; names[i]; i++) {
        if (strlen(names[i]) == n && memcmp(names[i], p, n) == 0) {
            return values[i];
        }
    }
    return NULL;
}

static int cmdline_fill_word(const char *word, const char *const *names, const char *const *values,
                             struct buf *b, struct err *e)
{
    for (const char *p = word; *p; p++) {
        size_t n = *p == '{' ? strcspn(p + 1, "{}") : 0;
        const char *value = n ? cmdline_value(p + 1, n, names, values) : NULL;
        if ((*p == '{' || *p == '}') && p[1] == *p) {
            buf_char(b, *p++);
        } else if (value && p[n + 1] == '}') {
            buf_str(b, value);
            p += n + 1;
        } else if (*p == '{' || *p == '}') {
            return ERR(e, STATUS_INPUT,
                       "%.200s has a brace that is no name known here (write {{ for a brace)",
                       word);
        } else {
            buf_char(b, *p);
        }
    }
    return buf_status(b) == STATUS_OK
               ? STATUS_OK
               : ERR(e, STATUS_INPUT, "a word has more than %d bytes", CMDLINE_MAX);
}

int cmdline_fill(struct cmdline *c, const char *const *names, const char *const *values,
                 struct err *e)
{
    struct buf b;
    int rc = STATUS_OK;

    buf_init(&b, CMDLINE_MAX);
    for (int i = 0; rc == STATUS_OK && i < c->n; i++) {
        buf_clear(&b);
        rc = cmdline_fill_word(c->v[i], names, values, &b, e);
        if (rc == STATUS_OK) {
            mem_free(c->v[i]);
            c->v[i] = mem_strdup(b.data);
        }
    }
    buf_fini(&b);
    return rc;
}

int cmdline_uses(const struct cmdline *c, const char *name)
{
    size_t n = strlen(name);

    for (int i = 0; i < c->n; i++) {
        for (const char *p = c->v[i]; (p = strchr(p, '{')) != NULL; p++) {
            if (p[1] == '{') {
                p++;
            } else if (strncmp(p + 1, name, n) == 0 && p[n + 1] == '}') {
                return 1;
            }
        }
    }
    return 0;
}
