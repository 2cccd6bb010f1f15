/* Whether a chat template and its tokenizer are fit for reinforcement learning: `miles template
 * check`.
 *
 *     struct chatcheck_in in = {.chat = tmpl, .tok = tok, .special = special, ...};
 *     json_t *report;
 *     rc = chatcheck_run(&in, &report, &e);
 *
 * The report: {"single_turn": bool, "multi_turn": bool, "end_of_turn": {"text", "id"} or null,
 * "checks": [{"check", "result", "detail"}]}. Results:
 *     ok       as it should be
 *     note     worth knowing, no obstacle
 *     refused  the template refuses such conversations, by its own words
 *     fails    an obstacle: `single_turn` or `multi_turn` is false because of it
 *
 * single_turn: a prompt renders, an answer ends with a token that stops generation, BOS is not
 * doubled. multi_turn: besides, a later prompt begins with the earlier prompt and the answer as it
 * was sampled, in text and in tokens; a template that breaks this makes the policy see another text
 * than it sampled. */
#ifndef TEXT_CHATCHECK_H
#define TEXT_CHATCHECK_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;
struct err;
struct tokenizer;

/* All borrowed. */
struct chatcheck_in {
    const struct chat_template *chat;
    const struct chat_template *tooled; /* for chats with tools; NULL: the same */
    const struct tokenizer *tok;
    const json_t *special, *kwargs; /* as in struct chat_opts */
    const int32_t *stops;           /* ids that end generation by the model's own configuration */
    size_t nstops;
};

/* *report is the caller's. Fails only when something other than the template is wrong. */
int chatcheck_run(const struct chatcheck_in *in, json_t **report, struct err *e);

#endif
