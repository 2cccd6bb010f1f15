/* All graders of mathematics against any bytes. The input is an answer and a label with a line end
 * or a NUL between them. Whatever they are: a verdict with its reason, equal text is equal, the
 * rewards agree with their reasons, and the work is bounded. */
#ifndef TESTS_FUZZ_FUZZ_MATH_H
#define TESTS_FUZZ_FUZZ_MATH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "reward/mathequal.h"
#include "reward/mathexpr.h"
#include "reward/mathgrade.h"

static double fuzz_math_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fuzz_math_check(struct mathverdict *v)
{
    if (v->right < -1 || v->right > 1 || !v->reason[0] || (v->right >= 0 && v->ask) ||
        strlen(v->reason) >= MATHVERDICT_REASON) {
        abort();
    }
    mathverdict_fini(v);
}

static void fuzz_math_one(const uint8_t *data, size_t n)
{
    const char *s = (const char *)data;
    size_t k = 0;
    char *given, *truth, *boxed;
    struct mathverdict v;
    double t0;
    int right;

    if (n > 4096) {
        return;
    }
    while (k < n && s[k] != '\n' && s[k]) {
        k++;
    }
    given = mem_strndup(s, k);
    truth = mem_strndup(s + (k < n ? k + 1 : k), n - (k < n ? k + 1 : k));
    boxed = mem_alloc(n + 32);
    sprintf(boxed, "</think>\\boxed{%s}", given);

    t0 = fuzz_math_now();
    mathequal_compare(given, truth, &v);
    right = v.right;
    if (fuzz_math_now() - t0 > 2) { /* sanitizers and counters: twenty times the budget */
        abort();
    }
    fuzz_math_check(&v);
    mathequal_compare(given, truth, &v); /* the same again: it is a function */
    if (v.right != right) {
        abort();
    }
    fuzz_math_check(&v);
    mathequal_compare(given, given, &v);
    if (v.right == 0 && given[strspn(given, " \t\r\n$.,\\")] && strlen(given) < 200) {
        if (strcmp(v.reason, "the answer is empty") != 0) {
            abort(); /* equal text */
        }
    }
    fuzz_math_check(&v);
    mathequal_grade(s, n, truth, &v);
    fuzz_math_check(&v);
    mathgrade_math_why(boxed, strlen(boxed), truth, &v);
    right = v.right == 1;
    fuzz_math_check(&v);
    if (mathgrade_math(boxed, strlen(boxed), truth) != right) {
        abort();
    }
    mathgrade_deepscaler_why(s, n, truth, &v);
    fuzz_math_check(&v);
    mathgrade_gemma_why(s, n, truth, &v);
    fuzz_math_check(&v);
    right = mathexpr_zero(given, strlen(given));
    if (right < -1 || right > 1) {
        abort();
    }
    mem_free(boxed);
    mem_free(given);
    mem_free(truth);
}

#endif
