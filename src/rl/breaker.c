/* Owns the states of a circuit breaker; time and chance are the caller's. */
#include "rl/breaker.h"

#include "base/backoff.h"

#define BREAKER_FIRST_S 1.0
#define BREAKER_MOST_S  60.0
#define BREAKER_PROVEN  16 /* good answers after which its past is forgotten */

int breaker_holds(const struct breaker *b, double now)
{
    return b->state == BREAKER_OPEN && now < b->until;
}

int breaker_takes(struct breaker *b, double now, int load)
{
    if (b->state == BREAKER_OPEN && !breaker_holds(b, now)) {
        b->state = BREAKER_TRIAL;
    }
    return b->state == BREAKER_CLOSED || (b->state == BREAKER_TRIAL && load == 0);
}

int breaker_good(struct breaker *b)
{
    int closed = b->state == BREAKER_TRIAL;

    if (b->state == BREAKER_OPEN) {
        return 0; /* of a sample that was sent before */
    }
    b->state = BREAKER_CLOSED;
    b->bad = 0;
    b->good = closed ? 0 : b->good + 1;
    if (b->good >= BREAKER_PROVEN) {
        b->trips = b->good = 0;
    }
    return closed;
}

void breaker_open(struct breaker *b, double now, double u)
{
    b->state = BREAKER_OPEN;
    b->until = now + backoff_s(BREAKER_FIRST_S, b->trips, BREAKER_MOST_S, u);
    b->trips += b->trips < 30;
    b->bad = b->good = 0;
}

int breaker_bad(struct breaker *b, double now, double u)
{
    if (b->state == BREAKER_OPEN) {
        return 0;
    }
    if (b->state == BREAKER_CLOSED && ++b->bad < BREAKER_BAD) {
        return 0;
    }
    breaker_open(b, now, u);
    return 1;
}

const char *breaker_name(const struct breaker *b)
{
    static const char *const names[] = {"closed", "open", "trial"};
    return names[b->state];
}
