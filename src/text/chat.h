/* Conversations to prompt text, through the model's own chat template: equal to what
 * `apply_chat_template` of transformers gives.
 *
 *     struct chat_template *t;
 *     struct chat_text out;
 *     rc = chat_template_new(text, &t, &e);
 *     rc = chat_apply(t, messages, &(struct chat_opts){.add_generation_prompt = 1}, &out, &e);
 *     ... out.text ...
 *     chat_text_fini(&out);
 *     chat_template_free(t);
 *
 * One call for one render, with the template compiled in it:
 *
 *     rc = chat_render(tmpl, messages, NULL, NULL, 1, "<s>", "</s>", &text, &len, &e);
 *     mem_free(text);
 */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct chat_template; /* constant once made: any thread may render with it */
struct jinja_span;

int chat_template_new(const char *text, struct chat_template **out, struct err *e);
void chat_template_free(struct chat_template *t);           /* NULL is fine */
int chat_template_has_marks(const struct chat_template *t); /* {% generation %} is in it */
const char *chat_template_text(const struct chat_template *t);

/* All borrowed, all may be NULL or 0. */
struct chat_opts {
    const json_t *tools;     /* array of objects */
    const json_t *documents; /* array of objects */
    /* Further variables, e.g. {"enable_thinking": false}. They win over special tokens. As in
     * transformers `documents` and `continue_final_message` are options by these names, and what
     * else apply_chat_template calls its own (tools, tokenize, padding ...) is refused. */
    const json_t *kwargs;
    const json_t *special; /* {"bos_token": "<s>", ...}; a token that is not there is undefined */
    int add_generation_prompt;
    /* The last message's field that stays open, usually "content": the text ends with it. */
    const char *continue_field;
    int64_t now; /* strftime_now's time, seconds since 1970; 0: the clock */
};
struct chat_text {
    char *text; /* NUL-terminated; len does not count it */
    size_t len;
    struct jinja_span *spans; /* of generation marks, in code points (text/jinja.h) */
    size_t nspans;
};

/* messages: array of objects, at least one. A message's reasoning_content, thinking or reasoning is
 * shown to the template under the first two names, as transformers does. A template's own
 * raise_exception is STATUS_INPUT with its message. *out is set on success only. */
int chat_apply(const struct chat_template *t, const json_t *messages, const struct chat_opts *o,
               struct chat_text *out, struct err *e);
void chat_text_fini(struct chat_text *x); /* a zeroed one is fine */

/* The special tokens that a tokenizer_config.json names: every "x_token" that is a text or an
 * object with content, and those of extra_special_tokens where that is an object. A new object. */
json_t *chat_special_tokens(const json_t *tokenizer_config);

/* Renders a conversation with a template given as text. tools, kwargs: NULL for none; bos, eos:
 * token texts, NULL where the model has none. On success *text is from mem_alloc; *len (may be
 * NULL) does not count its NUL. */
int chat_render(const char *tmpl, const json_t *messages, const json_t *tools, const json_t *kwargs,
                int add_generation_prompt, const char *bos, const char *eos, char **text,
                size_t *len, struct err *e);

#endif
