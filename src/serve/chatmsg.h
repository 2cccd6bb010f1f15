/* The conversation of a chat request as templates take it: OpenAI's messages, tools and template
 * variables, checked and brought into one form.
 *
 *     const json_t *tools;
 *     json_t *messages, *kwargs;
 *     rc = chatmsg_tools(body, &tools, e);           borrowed from the body; NULL: none to be shown
 *     rc = chatmsg_messages(body, &messages, e);     the caller's, as kwargs are
 *     rc = chatmsg_kwargs(body, &kwargs, e);
 *
 * All errors are STATUS_INPUT and name the entry. */
#ifndef SERVE_CHATMSG_H
#define SERVE_CHATMSG_H

#include <jansson.h>

struct err;

/* Parts of text become one text, arguments of past tool calls become objects. */
int chatmsg_messages(const json_t *body, json_t **out, struct err *e);
int chatmsg_tools(const json_t *body, const json_t **out, struct err *e);
/* A reasoning_effort tells the template whether to think, by the names that templates have for
 * that, unless the client does so itself. */
int chatmsg_kwargs(const json_t *body, json_t **out, struct err *e);

#endif
