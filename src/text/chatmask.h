/* A conversation as tokens, with the mask of those to train on: what supervised training and merged
 * multi-turn samples need.
 *
 *     struct chatmask m;
 *     rc = chatmask_make(tmpl, tok, CHATMASK_AUTO, messages, &opts, &m, &e);
 *     ... m.ids[i], m.mask[i], i < m.n; m.response tokens count from the first trained one ...
 *     chatmask_fini(&m);
 *
 * Kinds `qwen`, `qwen3` and `distill_qwen` are Miles' --loss-mask-type and give its tokens and
 * masks. They put a conversation together from messages rendered one by one, which need not be what
 * the template makes of the whole: `differs` says where. `marks` follows {% generation %} blocks
 * and gives transformers' return_assistant_tokens_mask; `prefix` renders the conversation up to
 * each assistant turn, without it and with it, and refuses a template that later changes what it
 * wrote. A message whose step_loss_mask is not 1 is not trained, but for `marks`, where the
 * template alone decides. */
#ifndef TEXT_CHATMASK_H
#define TEXT_CHATMASK_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct chat_opts;
struct chat_template;
struct err;
struct tokenizer;

enum chatmask_kind {
    CHATMASK_AUTO, /* marks where the template has them, else prefix */
    CHATMASK_MARKS,
    CHATMASK_PREFIX,
    CHATMASK_QWEN, /* a tokenizer with the token <｜Assistant｜> is taken as distill_qwen */
    CHATMASK_QWEN3,
    CHATMASK_DISTILL_QWEN
};
#define CHATMASK_KINDS "auto|marks|prefix|qwen|qwen3|distill_qwen" /* in the enum's order */

struct chatmask {
    int32_t *ids;
    uint8_t *mask; /* 1: trained */
    size_t n;
    size_t response; /* tokens from the first trained one to the end; 0 when none is */
    long differs;    /* first token that is not that of the whole rendered at once; -1: none */
};

/* o: as for chat_apply, without generation prompt and open message. *out is set on success only. */
int chatmask_make(const struct chat_template *t, const struct tokenizer *tok,
                  enum chatmask_kind kind, const json_t *messages, const struct chat_opts *o,
                  struct chatmask *out, struct err *e);
void chatmask_fini(struct chatmask *m); /* a zeroed one is fine */

/* Where each token's text ends in `text`, in bytes: *ends has n entries, free it with mem_free; the
 * first token begins at 0. Where the tokenizer composed characters (NFC), ends are in the composed
 * text, to which *composed (NULL else) is set: free it too. STATUS_UNSUPPORTED when tokens and text
 * do not fit together, as with tokenizers that change letters. */
int chatmask_align(const struct tokenizer *tok, const int32_t *ids, size_t n, const char *text,
                   size_t len, size_t **ends, char **composed, struct err *e);

#endif
