/* Owns the public face of the template interpreter: compile, render, free. */
#include "text/jinja.h"

#include <string.h>

#include "text/jinja_int.h"

int jinja_compile(const char *text, struct jinja **out, struct err *e)
{
    size_t n = strlen(text);
    struct jinja *j;
    int rc;

    if (n > JINJA_MAX_SOURCE) {
        return ERR(e, STATUS_INPUT, "the template has %zu bytes, at most %d are allowed", n,
                   JINJA_MAX_SOURCE);
    }
    j = mem_alloc(sizeof *j);
    arena_init(&j->arena, 64 << 10);
    map_init(&j->names);
    j->loop = jinja_lex_intern(j, "loop", 4);
    j->caller = jinja_lex_intern(j, "caller", 6);
    j->kwargs = jinja_lex_intern(j, "kwargs", 6);
    j->varargs = jinja_lex_intern(j, "varargs", 7);
    rc = jinja_lex(j, text, n, e);
    if (rc == 0) {
        rc = jinja_parse(j, e);
    }
    if (rc) {
        jinja_free(j);
        return rc;
    }
    jinja_scope(j);
    *out = j;
    return 0;
}

int jinja_render(const struct jinja *j, const json_t *vars, struct buf *out, struct err *e)
{
    return jinja_render_opts(j, vars, NULL, out, e);
}

static void give_spans(const struct jinja_run *r, const struct jinja_opts *o)
{
    if (o->spans) {
        *o->spans = mem_alloc((r->nspans + 1) * sizeof **o->spans);
        if (r->nspans) {
            memcpy(*o->spans, r->spans, r->nspans * sizeof **o->spans);
        }
        *o->nspans = r->nspans;
    }
}

int jinja_render_opts(const struct jinja *j, const json_t *vars, const struct jinja_opts *o,
                      struct buf *out, struct err *e)
{
    static const struct jinja_opts none;
    struct jinja_run r = {.j = j, .err = e, .line = 1};
    struct jinja_sb b = {0};
    struct jinja_val v;
    int rc;

    o = o ? o : &none;
    r.now = o->now;
    r.max_steps = o->max_steps ? o->max_steps : JINJA_MAX_STEPS;
    r.max_memory = o->max_memory ? o->max_memory : JINJA_MAX_MEMORY;
    r.root = &b;
    if (vars && !json_is_object(vars)) {
        return ERR(e, STATUS_INPUT, "the template's variables are not an object");
    }
    arena_init(&r.arena, 64 << 10);
    rc = vars ? jinja_value_from_json(&r, vars, 0, &v) : jinja_value_dict(&r, &v);
    if (rc == 0) {
        r.vars = v.d;
        rc = jinja_eval_root(&r, &b);
    }
    if (rc == 0) {
        size_t before = out->len;
        buf_add(out, b.p ? b.p : "", b.n);
        rc = buf_status(out);
        if (rc) {
            rc = ERR(e, rc, "the rendered text of %zu bytes does not fit the buffer (%zu of %zu)",
                     b.n, before, out->max);
        }
    }
    if (rc == 0) {
        give_spans(&r, o);
    }
    arena_fini(&r.arena);
    return rc;
}

int jinja_has_marks(const struct jinja *j)
{
    return j->marks;
}

void jinja_free(struct jinja *j)
{
    if (j) {
        map_fini(&j->names);
        arena_fini(&j->arena);
        mem_free(j);
    }
}
