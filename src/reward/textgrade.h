/* Rewards that compare text: token F1, and the "dapo" check of a final "Answer: ..." line.
 *
 * Pure functions, any thread; linear in the length of the text but for a sort of the words. */
#ifndef REWARD_TEXTGRADE_H
#define REWARD_TEXTGRADE_H

#include <jansson.h>
#include <stddef.h>

struct err;

/* What an F1 was made of. */
struct textgrade_words {
    size_t answer, truth, common; /* words */
    int contradicts;              /* one side is yes, no or noanswer and the other is not */
};

/* F1 of the words of both texts after SQuAD's normalisation (lower case, no ASCII punctuation, no
 * articles). yes, no and noanswer must be met exactly. 0 to 1; *w says of what. */
double textgrade_f1(const char *answer, const char *truth, struct textgrade_words *w);

/* The last "Answer: ..." within the last 300 characters of the response against the label, both
 * normalised; the label must be a number and is cut to an integer. *out is {"score": 1.0 or -1.0,
 * "acc": bool, "pred": text}, the caller's to decref. STATUS_INPUT when the label is no number. */
int textgrade_dapo(const char *response, size_t n, const char *label, json_t **out, struct err *e);

/* The normal form of a dapo answer; free with mem_free. */
char *textgrade_dapo_form(const char *answer);

#endif
