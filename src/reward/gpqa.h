/* Grading of multiple-choice answers, as the "gpqa" reward does it: a letter is looked for in the
 * response and compared with the right one; where one of the two is not to be had, the text of the
 * right choice is looked for.
 *
 *     gpqa_grade("The answer is B.", 16, label, metadata, &v, e)
 *
 * metadata (any of it may be missing): choices (a list, or an object of letter to text),
 * valid_letters, correct_letter, correct_answer, answer_text. The label: a letter, the number of a
 * choice from 0, or a choice's text. The rules are Miles', so that a run scores the same there and
 * here. Pure, any thread, linear in the length of the response. */
#ifndef REWARD_GPQA_H
#define REWARD_GPQA_H

#include <jansson.h>
#include <stddef.h>

struct err;

struct gpqa_verdict {
    int right;
    int answered;     /* a letter or the text of a choice was found */
    char reason[128]; /* "B is not C" */
};

/* STATUS_INPUT when nothing tells which answer is right. */
int gpqa_grade(const char *response, size_t n, const json_t *label, const json_t *metadata,
               struct gpqa_verdict *out, struct err *e);

/* The letter that the response chooses, 0 when there is none; `valid` is a string of capitals. */
char gpqa_letter(const char *response, size_t n, const char *valid);

#endif
