/* What a grader of mathematical answers says: right, wrong or unknown, and by what rule.
 *
 *     struct mathverdict v;
 *     mathequal_grade(response, n, label, &v);
 *     if (v.right < 0 && v.ask) ask mathsym (see mathsym.h), whose verdict is the final one;
 *     else if (v.right < 0) the reward has failed for v.reason;
 *     mathverdict_fini(&v);
 *
 * The reason is there for every verdict: "equal text", "different number: 3 != 4", "no \boxed{}".
 */
#ifndef REWARD_MATHVERDICT_H
#define REWARD_MATHVERDICT_H

enum { MATHVERDICT_REASON = 240 };

struct mathverdict {
    int right;                       /* 1, 0, or -1: unknown */
    char reason[MATHVERDICT_REASON]; /* one line of UTF-8, never empty */
    char *ask; /* only when unknown: the question that sympy may decide, as JSON; else NULL */
};

void mathverdict_set(struct mathverdict *v, int right, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Frees ask. Takes NULL. */
void mathverdict_fini(struct mathverdict *v);

#endif
