/* Verdicts for tests/live/math_verify.sh: reads lines [given, truth] of JSON, writes lines
 * [right, reason, milliseconds of work, question or null] of math_equal. With --miles: the formula
 * that Miles gives to sympy for the pair, and what our zero test says of it: 1, 0, or -1 when it
 * leaves the question to sympy. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/mem.h"
#include "reward/mathequal.h"
#include "reward/mathexpr.h"
#include "reward/mathgrade.h"

static double work_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static json_t *equal_line(const char *given, const char *truth)
{
    struct mathverdict v;
    double t0 = work_now();
    json_t *out;

    mathequal_compare(given, truth, &v);
    out = json_pack("[i,s,f,s?]", v.right, v.reason, work_now() - t0, v.ask);
    mathverdict_fini(&v);
    return out;
}

static json_t *miles_line(const char *given, const char *truth)
{
    char *a = mathgrade_norm(truth), *b = mathgrade_norm(given);
    struct buf f;
    json_t *out;
    int zero;

    buf_init(&f, 1 << 20);
    buf_printf(&f, "(%s)-(%s)", a ? a : "", b ? b : "");
    zero = mathexpr_zero(f.data, f.len);
    if (zero == 1 && mathexpr_rounds(f.data, f.len)) {
        zero = -1;
    }
    out = json_pack("[s,i]", f.data, zero);
    buf_fini(&f);
    mem_free(a);
    mem_free(b);
    return out ? out : json_null();
}

int main(int argc, char **argv)
{
    int miles = argc > 1 && strcmp(argv[1], "--miles") == 0, rc = 0;
    char *line = NULL;
    size_t cap = 0;

    while (rc == 0 && getline(&line, &cap, stdin) > 0) {
        json_t *in = json_loads(line, 0, NULL), *out;
        const char *given = json_string_value(json_array_get(in, 0));
        const char *truth = json_string_value(json_array_get(in, 1));
        char *text;

        if (!given || !truth) {
            fprintf(stderr, "not a pair: %s", line);
            rc = 1;
        } else {
            out = miles ? miles_line(given, truth) : equal_line(given, truth);
            text = json_dumps(out, JSON_COMPACT | JSON_ENCODE_ANY);
            puts(text);
            free(text);
            json_decref(out);
        }
        json_decref(in);
    }
    free(line);
    return rc;
}
