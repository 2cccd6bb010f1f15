/* The template interpreter against any bytes: a template, and behind a line "---" its variables as
 * JSON (else some that chats have). Compiling and rendering end within their bounds, twice in the
 * same way; what fails gives nothing out; what is rendered is UTF-8, with its marks inside. */
#ifndef TESTS_FUZZ_FUZZ_JINJA_H
#define TESTS_FUZZ_FUZZ_JINJA_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/jinja.h"
#include "text/unicode.h"

enum { FUZZ_JINJA_BYTES = 16 << 10, FUZZ_JINJA_STEPS = 200 * 1000, FUZZ_JINJA_MEMORY = 24 << 20 };

static const char fuzz_jinja_vars[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", "
    "\"content\": [{\"type\": \"text\", \"text\": \"na\\u00efve \\ud83d\\ude42\"}]}, {\"role\": "
    "\"assistant\", \"content\": null, \"reasoning_content\": \"hm\", \"tool_calls\": [{\"id\": "
    "\"c1\", "
    "\"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": [1.5, null, true, "
    "\"x\"]}}}]}], "
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"documents\": null, "
    "\"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"n\": 7, \"l\": [3, 1, 2], \"s\": "
    "\"Ab "
    "c\", \"d\": {\"x\": {\"y\": 1}}}";

struct fuzz_jinja_result {
    int rc;
    struct buf out;
    struct jinja_span *spans;
    size_t nspans;
};

static void fuzz_jinja_render(const struct jinja *j, const json_t *vars,
                              struct fuzz_jinja_result *r)
{
    struct jinja_opts o = {.now = 1790000000,
                           .max_steps = FUZZ_JINJA_STEPS,
                           .max_memory = FUZZ_JINJA_MEMORY,
                           .spans = &r->spans,
                           .nspans = &r->nspans};
    struct err e = {0};

    memset(r, 0, sizeof *r);
    buf_init(&r->out, FUZZ_JINJA_MEMORY);
    r->rc = jinja_render_opts(j, vars, &o, &r->out, &e);
    if (r->rc > 0 || (r->rc && (r->out.len || !e.msg[0] || r->spans))) {
        abort();
    }
}

static void fuzz_jinja_check(const struct fuzz_jinja_result *a, const struct fuzz_jinja_result *b,
                             int utf8)
{
    if (a->rc != b->rc || a->out.len != b->out.len || a->nspans != b->nspans ||
        memcmp(a->out.data, b->out.data, a->out.len) != 0) {
        abort();
    }
    if (utf8 && unicode_valid_prefix(a->out.data, a->out.len) != a->out.len) {
        abort();
    }
    for (size_t i = 0; i < a->nspans; i++) {
        if (a->spans[i].start > a->spans[i].end || a->spans[i].start != b->spans[i].start ||
            a->spans[i].end != b->spans[i].end || a->spans[i].start > a->out.len) {
            abort();
        }
    }
}

static void fuzz_jinja_one(const uint8_t *data, size_t n)
{
    char *text, *cut;
    json_t *vars = NULL;
    struct jinja *j = NULL;
    struct err e = {0};
    int utf8;

    if (n > FUZZ_JINJA_BYTES) {
        return;
    }
    text = mem_strndup((const char *)data, n);
    cut = strstr(text, "\n---\n");
    if (cut) {
        *cut = 0;
        vars = json_loads(cut + 5, 0, NULL);
    }
    if (!json_is_object(vars)) {
        json_decref(vars);
        vars = json_loads(fuzz_jinja_vars, 0, NULL);
    }
    utf8 = unicode_valid_prefix(text, strlen(text)) == strlen(text);
    if (jinja_compile(text, &j, &e) == STATUS_OK) {
        struct fuzz_jinja_result a, b;
        fuzz_jinja_render(j, vars, &a);
        fuzz_jinja_render(j, vars, &b);
        fuzz_jinja_check(&a, &b, utf8);
        buf_fini(&a.out);
        buf_fini(&b.out);
        mem_free(a.spans);
        mem_free(b.spans);
    } else if (!e.msg[0] || j) {
        abort();
    }
    jinja_free(j);
    json_decref(vars);
    mem_free(text);
}

#endif
