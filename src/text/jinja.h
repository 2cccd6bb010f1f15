/* Chat templates: an interpreter for the Jinja language as Hugging Face configures it.
 *
 *     struct jinja *j;
 *     struct buf out;
 *     buf_init(&out, 1 << 20);
 *     rc = jinja_compile("{% for m in messages %}{{ m.content }}{% endfor %}", &j, &e);
 *     if (rc == 0) rc = jinja_render(j, vars, &out, &e);
 *     jinja_free(j);
 *     buf_fini(&out);
 *
 * The settings are those of `apply_chat_template`: trim_blocks, lstrip_blocks, no trailing newline,
 * break and continue, `{% generation %}` as a transparent block, the immutable sandbox (lists and
 * dicts cannot be changed in place, ranges end at 100,000), raise_exception, strftime_now, and
 * tojson as json.dumps with ensure_ascii=False. Include, import, extends and block are refused with
 * STATUS_UNSUPPORTED. Where `{% generation %}` blocks stand in the text can be asked for.
 *
 * Templates come from outside: rendering is bounded in steps, memory, recursion and output, and
 * reads nothing but `vars` and, for strftime_now, the clock. */
#ifndef TEXT_JINJA_H
#define TEXT_JINJA_H

#include <jansson.h>

#include "base/buf.h"
#include "base/status.h"

struct jinja;

enum {
    JINJA_MAX_SOURCE = 1 << 20,  /* bytes of template text */
    JINJA_MAX_OUTPUT = 64 << 20, /* bytes of any one string, the result included */
    JINJA_MAX_MEMORY = 512 << 20,
    JINJA_MAX_STEPS = 100 * 1000 * 1000, /* evaluated nodes, plus work proportional to data */
    JINJA_MAX_DEPTH = 1200               /* nested evaluations */
};

/* A generation block in the rendered text, counted in code points: [start, end). Inside a macro, a
 * call or a set block, whose text is put in place later, the start is where the text stood when the
 * block was rendered: transformers counts so, and masks made there are compared with ours. */
struct jinja_span {
    size_t start, end;
};

/* All zero means the defaults. */
struct jinja_opts {
    int64_t now;               /* strftime_now's time, seconds since 1970; 0: the system's clock */
    int64_t max_steps;         /* 0: JINJA_MAX_STEPS */
    size_t max_memory;         /* 0: JINJA_MAX_MEMORY */
    struct jinja_span **spans; /* not NULL: set on success, in the order rendered; mem_free */
    size_t *nspans;            /* with spans: how many */
};

/* Parses `text` (UTF-8, NUL-terminated). On success *j is the caller's, to be freed with
 * jinja_free. STATUS_INPUT for a syntax error, STATUS_UNSUPPORTED for a tag we do not do; the
 * message names the line. */
int jinja_compile(const char *text, struct jinja **j, struct err *e);

/* Renders with the top-level variables of the object `vars` (borrowed; NULL means none) and appends
 * to `out`, which is untouched on error. A template's raise_exception gives STATUS_INPUT with its
 * message. Several threads may render one compiled template at a time. */
int jinja_render(const struct jinja *j, const json_t *vars, struct buf *out, struct err *e);
/* The same with options (NULL: none). */
int jinja_render_opts(const struct jinja *j, const json_t *vars, const struct jinja_opts *o,
                      struct buf *out, struct err *e);

int jinja_has_marks(const struct jinja *j); /* it has a {% generation %} block */

void jinja_free(struct jinja *j); /* NULL is fine */

#endif
