/* A circuit breaker: whether an engine may get samples, by how it did with the last ones.
 *
 *     if (breaker_takes(&b, now, load)) ... send one
 *     breaker_good(&b);                      it was answered well
 *     if (breaker_bad(&b, now, u)) ...       it was not; 1: from now on it gets none for a while
 *
 * Closed, it lets all pass. BREAKER_BAD failures in a row open it: nothing passes for a second,
 * twice as long the next time, a minute at most. Then one sample may try: a good answer closes it,
 * a bad one opens it again. Zero is a closed one. u: base/backoff.h. */
#ifndef RL_BREAKER_H
#define RL_BREAKER_H

#define BREAKER_BAD 3 /* failures in a row that open it */

enum breaker_state { BREAKER_CLOSED, BREAKER_OPEN, BREAKER_TRIAL };

struct breaker {
    enum breaker_state state;
    int bad;      /* failures in a row */
    int trips;    /* how often it was opened and did not prove itself since */
    int good;     /* good answers since it was closed */
    double until; /* of BREAKER_OPEN */
};

/* 1: a sample may be sent to an engine that has `load` of them. */
int breaker_takes(struct breaker *b, double now, int load);
/* 1: it is open, and nothing passes at that time. */
int breaker_holds(const struct breaker *b, double now);
/* 1: it was closed by this. */
int breaker_good(struct breaker *b);
/* 1: it was opened by this. */
int breaker_bad(struct breaker *b, double now, double u);
void breaker_open(struct breaker *b, double now, double u);
const char *breaker_name(const struct breaker *b);

#endif
