/* What a chat model wrote, taken apart: its reasoning (<think> ... </think>), its calls of tools
 * (<tool_call> {"name": ..., "arguments": {...}} </tool_call>) and what it says to the user.
 *
 *     struct outparse o;
 *     outparse_split(&o, &rules, id, 0, text, len, 0);      text so far; the parts only grow
 *     ... o.content.data ... o.calls[i] ...
 *     outparse_fini(&o); */
#ifndef SERVE_OUTPARSE_H
#define SERVE_OUTPARSE_H

#include <stddef.h>

#include "base/buf.h"

/* Names that SGLang has for what is looked for. */
#define OUTPARSE_TOOLS     "hermes|qwen|qwen25"
#define OUTPARSE_REASONING "qwen3|deepseek-r1"

/* 1 when the name is one of such a list. */
int outparse_named(const char *list, const char *name);

struct outparse_rules {
    int tools, reasoning; /* 1: look for it */
    int inside;           /* 1: the text begins inside the reasoning */
};

#define OUTPARSE_MAX_CALLS 128

struct outparse_call {
    char id[96];
    char *name, *arguments; /* the latter JSON text */
};

struct outparse {
    struct buf content, reasoning;
    int ncalls;
    struct outparse_call *calls;
};

/* last: no more text will come, so nothing is held back: a tag that never closed is content. `id`
 * and `choice` name the calls, so that they have the same ids whenever the text is split. */
void outparse_split(struct outparse *o, const struct outparse_rules *q, const char *id, int choice,
                    const char *text, size_t len, int last);
void outparse_fini(struct outparse *o);
/* 1 when a prompt ends with an open <think>. */
int outparse_opens(const char *text, size_t len);

#endif
