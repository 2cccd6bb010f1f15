/* Rewards of programs: the code in a response is run against the tests of its label.
 *
 *     struct codegrade *c;
 *     codegrade_open(&(struct codegrade_opts){.workers = 2}, &c, e);
 *     codegrade_submit(c, me, sample, e);
 *     while (codegrade_poll(c, 0.1, &r, e) == 0) { use(&r); }
 *     codegrade_close(c);
 *
 * The program is the last closed block ```python of the response, behind </think> when there is
 * one; without a block of that name the last one of no name. A response without is wrong, not
 * failed.
 *
 * The tests are the label, or where it is null the metadata's `tests`, `input_output`, `test_cases`
 * or `test_list`; text that is JSON counts as the JSON:
 *     {"inputs": [...], "outputs": [...]}                 stdin and stdout, as APPS and TACO have
 * it
 *     {"inputs", "outputs", "fn_name": "f"}               arguments and value of a function
 *     [{"input", "output", "testtype"?, "metadata": {"func_name"}?}]       LiveCodeBench's
 *     {"test": code, "entry_point": "f"}, {"test_list": [code...], "test_setup_code"}, [code...],
 *     or text with `assert`                                               test code
 * The metadata's `time_limit` (seconds) and `memory_limit` (megabytes) are those of a case.
 *
 * A thread of its own keeps the sandboxes going whatever the caller does. One thread calls. */
#ifndef REWARD_CODEGRADE_H
#define REWARD_CODEGRADE_H

#include <jansson.h>

#include "reward/sandbox.h"

struct codegrade;

struct codegrade_opts {
    const char *python; /* interpreter of the programs; NULL: python3 */
    int workers;        /* programs at the same time; 0: usable cores */
    int share;          /* 1: the reward is the share of cases passed; 0: 1 when all are, else 0 */
    int queue_max;      /* 0: 4096 */
    struct sandbox_limits limits;
};

enum codegrade_why {
    CODEGRADE_RIGHT,
    CODEGRADE_WRONG,
    CODEGRADE_PARTIAL,   /* share: some cases */
    CODEGRADE_NO_PROGRAM /* in the response */
};

struct codegrade_result {
    void *user;
    int failed; /* no verdict: the sandbox is at fault */
    double reward;
    enum codegrade_why why;
    int passed, total;
    char reason[256];
};

/* Errors as sandbox_open. */
int codegrade_open(const struct codegrade_opts *o, struct codegrade **out, struct err *e);
/* STATUS_INPUT with the cause when the sample has no response or no tests that can be understood;
 * STATUS_AGAIN when the queue is full. The sample is read during the call only. */
int codegrade_submit(struct codegrade *c, void *user, const json_t *sample, struct err *e);
/* One result; STATUS_AGAIN when none came within wait_s; at once when nothing is pending. */
int codegrade_poll(struct codegrade *c, double wait_s, struct codegrade_result *out, struct err *e);
int codegrade_pending(const struct codegrade *c);
void codegrade_close(struct codegrade *c); /* NULL is fine */

/* 0 when the tests of a sample can be understood, else STATUS_INPUT with the cause; runs nothing.
 */
int codegrade_check(const json_t *sample, struct err *e);
/* The program of a response: 1 with its place, 0 when there is none. */
int codegrade_program(const char *response, size_t n, const char **program, size_t *len);

#endif
