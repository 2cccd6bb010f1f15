/* SGLang's /generate as a rollout port speaks it: the request of a prompt's samples, and the answer
 * with its tokens and log-probs.
 *
 *     struct genwire_ask q = {.g = &group, .first = 0, .count = 8, .rid = rid, .miles = 1};
 *     struct genwire_sample s[8];
 *     genwire_request(&body, &q);                          the body to be posted
 *     genwire_parse(text, len, &q, s, &e);                 the answer's; all of s is set, or none
 *     genwire_fini(&s[i]);
 *
 * A `miles serve` takes many samples of a prompt in one request and is told the key of their
 * randomness; SGLang takes one sample and a seed that is made of the key. */
#ifndef RL_GENWIRE_H
#define RL_GENWIRE_H

#include <stddef.h>
#include <stdint.h>

#include "rl/port.h"

struct buf;
struct err;

struct genwire_ask {
    const struct port_group *g;
    int first, count; /* which of the group's samples; count is 1 for SGLang */
    const char *rid;  /* the name to abort it by */
    int miles;        /* 1: to a `miles serve` */
    int experts;      /* 1: the experts that were chosen are wanted */
};

struct genwire_sample {
    int32_t *tokens; /* (ntokens) */
    float *logps;    /* (ntokens), finite */
    int ntokens;
    enum port_finish finish;
    char version[64];  /* of the last token, as the engine calls it; "" when it does not tell */
    int many_versions; /* 1: not all tokens are of that version, or rows of others were read */
    int32_t *experts;  /* or NULL */
    int64_t nexperts;
};

void genwire_request(struct buf *b, const struct genwire_ask *q);
/* STATUS_FORMAT says what of the answer is not as it must be. */
int genwire_parse(const char *text, size_t len, const struct genwire_ask *q,
                  struct genwire_sample *out, struct err *e);
void genwire_fini(struct genwire_sample *s);
/* What a sample's key is for an engine that takes one number: 63 bits. */
int64_t genwire_seed(uint64_t seed, uint32_t stream, uint64_t sample);

#endif
