/* Conversations to prompt text, through the model's own chat template.
 *
 *     char *text;
 *     size_t len;
 *     rc = chat_render(tmpl, messages, NULL, NULL, 1, "<s>", "</s>", &text, &len, &e);
 *     ...
 *     mem_free(text);
 */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include <jansson.h>
#include <stddef.h>

#include "base/status.h"

/* Renders a conversation.
 * tmpl: jinja text. messages: array of {role, content, ...}. tools: array or NULL. kwargs: object
 * of extra template variables or NULL, e.g. {"enable_thinking": false}; they win over bos_token and
 * eos_token, and may not name messages, tools or add_generation_prompt. bos, eos: token text, NULL
 * means "". All inputs are borrowed. On success *text is from mem_alloc and NUL-terminated; *len
 * (may be NULL) does not count the NUL. A template's own raise_exception is STATUS_INPUT. */
int chat_render(const char *tmpl, const json_t *messages, const json_t *tools, const json_t *kwargs,
                int add_generation_prompt, const char *bos, const char *eos, char **text,
                size_t *len, struct err *e);

#endif
