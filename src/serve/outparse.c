/* Owns the tags that chat models write around what is not said to the user. The text is split anew
 * each time it has grown; a piece that may be the beginning of a tag is held back until it is
 * known, so what was told once never changes. */
#include "serve/outparse.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define OUTPARSE_MAX (1u << 28)

static const char THINK[] = "<think>", THINK_END[] = "</think>";
static const char CALL[] = "<tool_call>", CALL_END[] = "</tool_call>";

/* Bytes at the end of the text that are the beginning of `tag`. */
static size_t outparse_held(const char *text, size_t len, const char *tag)
{
    size_t n = strlen(tag) - 1;
    n = n < len ? n : len;
    while (n > 0 && memcmp(text + len - n, tag, n) != 0) {
        n--;
    }
    return n;
}

static size_t outparse_blank(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && strchr(" \n\r\t", text[n])) {
        n++;
    }
    return n;
}

int outparse_named(const char *list, const char *name)
{
    size_t n = strlen(name);

    for (; list; list = strchr(list, '|')) {
        list += *list == '|';
        if (strncmp(list, name, n) == 0 && (list[n] == '|' || !list[n])) {
            return 1;
        }
    }
    return 0;
}

int outparse_opens(const char *text, size_t len)
{
    while (len > 0 && strchr(" \n\r\t", text[len - 1])) {
        len--;
    }
    return len >= sizeof THINK - 1 &&
           memcmp(text + len - (sizeof THINK - 1), THINK, sizeof THINK - 1) == 0;
}

/* The reasoning at the beginning; what is left of the text. */
static void outparse_think(struct outparse *o, const struct outparse_rules *q, const char **text,
                           size_t *len, int last)
{
    size_t skip = outparse_blank(*text, *len);
    const char *at = *text, *end;
    size_t n = *len;

    if (!q->inside) {
        if (n - skip < sizeof THINK - 1 && !last &&
            memcmp(at + skip, THINK, n - skip) == 0) { /* it may still become the tag */
            *len = 0;
            return;
        }
        if (n - skip < sizeof THINK - 1 || memcmp(at + skip, THINK, sizeof THINK - 1) != 0) {
            return;
        }
        at += skip + sizeof THINK - 1;
        n -= skip + sizeof THINK - 1;
    } else if (n - skip >= sizeof THINK - 1 && memcmp(at + skip, THINK, sizeof THINK - 1) == 0) {
        at += skip + sizeof THINK - 1; /* said once more by the model itself */
        n -= skip + sizeof THINK - 1;
    }
    skip = outparse_blank(at, n);
    at += skip;
    n -= skip;
    end = memmem(at, n, THINK_END, sizeof THINK_END - 1);
    if (!end) {
        buf_add(&o->reasoning, at, n - (last ? 0 : outparse_held(at, n, THINK_END)));
        *len = 0;
        return;
    }
    buf_add(&o->reasoning, at, (size_t)(end - at));
    n -= (size_t)(end - at) + sizeof THINK_END - 1;
    at = end + sizeof THINK_END - 1;
    skip = outparse_blank(at, n);
    *text = at + skip;
    *len = n - skip;
}

/* Takes a call out of what stands between the tags. 0 when it is none. */
static int outparse_call(struct outparse *o, const char *id, int choice, const char *text,
                         size_t len)
{
    json_t *v = json_loadb(text, len, 0, NULL);
    json_t *args = json_object_get(v, "arguments");
    const char *name = json_string_value(json_object_get(v, "name"));
    struct outparse_call *c;
    char *dump;

    args = args ? args : json_object_get(v, "parameters");
    if (!name || o->ncalls == OUTPARSE_MAX_CALLS) {
        json_decref(v);
        return 0;
    }
    dump = json_is_string(args) ? NULL : json_dumps(args, JSON_ENCODE_ANY);
    o->calls =
        mem_realloc(o->calls, sizeof *c * (size_t)o->ncalls, sizeof *c * (size_t)(o->ncalls + 1));
    c = &o->calls[o->ncalls];
    c->name = mem_strdup(name);
    c->arguments = mem_strdup(json_is_string(args) ? json_string_value(args) : dump ? dump : "{}");
    snprintf(c->id, sizeof c->id, "call_%.64s_%d_%d", id, choice, o->ncalls);
    o->ncalls++;
    free(dump);
    json_decref(v);
    return 1;
}

static void outparse_calls(struct outparse *o, const char *id, int choice, const char *text,
                           size_t len, int last)
{
    while (len > 0) {
        const char *at = memmem(text, len, CALL, sizeof CALL - 1), *body, *end;
        size_t n = at ? (size_t)(at - text) : len, skip;
        if (!at) {
            buf_add(&o->content, text, n - (last ? 0 : outparse_held(text, n, CALL)));
            return;
        }
        buf_add(&o->content, text, n);
        body = at + sizeof CALL - 1;
        end = memmem(body, len - (size_t)(body - text), CALL_END, sizeof CALL_END - 1);
        if (!end) {
            if (last && !outparse_call(o, id, choice, body, len - (size_t)(body - text))) {
                buf_add(&o->content, at, len - n);
            }
            return;
        }
        if (!outparse_call(o, id, choice, body, (size_t)(end - body))) {
            buf_add(&o->content, at, (size_t)(end - at) + sizeof CALL_END - 1);
        }
        len -= (size_t)(end - text) + sizeof CALL_END - 1;
        text = end + sizeof CALL_END - 1;
        skip = outparse_blank(text, len); /* between calls */
        text += skip;
        len -= skip;
    }
}

void outparse_split(struct outparse *o, const struct outparse_rules *q, const char *id, int choice,
                    const char *text, size_t len, int last)
{
    memset(o, 0, sizeof *o);
    buf_init(&o->content, OUTPARSE_MAX);
    buf_init(&o->reasoning, OUTPARSE_MAX);
    if (q->reasoning) {
        outparse_think(o, q, &text, &len, last);
    }
    if (q->tools) {
        outparse_calls(o, id, choice, text, len, last);
    } else {
        buf_add(&o->content, text, len);
    }
}

void outparse_fini(struct outparse *o)
{
    for (int i = 0; i < o->ncalls; i++) {
        mem_free(o->calls[i].name);
        mem_free(o->calls[i].arguments);
    }
    mem_free(o->calls);
    buf_fini(&o->content);
    buf_fini(&o->reasoning);
}
