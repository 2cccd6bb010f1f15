/* Supervised samples: a row of the data becomes a sample without an engine. The conversation is
 * rendered and tokenised, its mask says which tokens are trained; the sample's response begins with
 * the first of them (rl-math 9.2).
 *
 *     struct sftdata d = {.enc = &enc, .kind = CHATMASK_QWEN};
 *     sftdata_sample(&d, group.row, &s, &e);
 *
 * A row is a list of messages, or a text with its answer as the label, or messages that end before
 * the answer with that as the label. */
#ifndef RL_SFTDATA_H
#define RL_SFTDATA_H

#include <stdint.h>

struct err;
struct promptenc;
struct prompts_row;
struct sample;

struct sftdata {
    const struct promptenc *enc; /* with its chat template compiled */
    int kind;                    /* enum chatmask_kind */
    int told;                    /* that the mask's tokens are not the template's */
};

/* The caller owns *out; numbers are its to set. A conversation without a token to train on is one
 * of an empty response. The reward is 0. */
int sftdata_sample(struct sftdata *d, const struct prompts_row *row, struct sample **out,
                   struct err *e);
/* Tokens of the whole conversation; any thread. */
int sftdata_tokens(const struct sftdata *d, const struct prompts_row *row, int *n, struct err *e);

#endif
