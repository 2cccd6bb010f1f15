/* Verdicts of math_equal for tests/live/math_verify.sh: reads lines [given, truth] of JSON, writes
 * lines [right, reason, milliseconds of work, question or null]. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "reward/mathequal.h"

static double work_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    int rc = 0;

    while (rc == 0 && getline(&line, &cap, stdin) > 0) {
        json_t *in = json_loads(line, 0, NULL), *out;
        const char *given = json_string_value(json_array_get(in, 0));
        const char *truth = json_string_value(json_array_get(in, 1));
        struct mathverdict v;
        double t0;
        char *text;

        if (!given || !truth) {
            fprintf(stderr, "not a pair: %s", line);
            rc = 1;
        } else {
            t0 = work_now();
            mathequal_compare(given, truth, &v);
            out = json_pack("[i,s,f,s?]", v.right, v.reason, work_now() - t0, v.ask);
            text = json_dumps(out, JSON_COMPACT);
            puts(text);
            free(text);
            json_decref(out);
            mathverdict_fini(&v);
        }
        json_decref(in);
    }
    free(line);
    return rc;
}
