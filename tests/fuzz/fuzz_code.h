/* What the code reward reads, against any bytes: lines "---" divide a response, a label, an output
 * and the expected one. The program lies inside the response, tests are understood or refused with
 * a cause, equal texts are equal by every rule, and what is quoted is one line of UTF-8. */
#ifndef TESTS_FUZZ_FUZZ_CODE_H
#define TESTS_FUZZ_FUZZ_CODE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "reward/codegrade.h"
#include "reward/sandbox_int.h"
#include "text/unicode.h"

#define FUZZ_CODE_CHECK(x) ((x) ? (void)0 : abort())

static void fuzz_code_tests(const char *label, size_t n)
{
    json_t *sample = json_object(), *value = json_loadb(label, n, JSON_DECODE_ANY, NULL);
    struct err e = {0};
    int rc;

    value = value ? value : json_stringn(label, n);
    value = value ? value : json_string("assert");
    json_object_set_new(sample, "label", value);
    rc = codegrade_check(sample, &e);
    FUZZ_CODE_CHECK(rc == 0 || (rc == STATUS_INPUT && e.msg[0]));
    json_decref(sample);
}

static void fuzz_code_compare(const char *a, size_t na, const char *b, size_t nb)
{
    char why[200];

    for (int rule = SANDBOX_LINES; rule <= SANDBOX_NUMBERS; rule++) {
        why[0] = 0;
        if (!sandbox_compare_text((enum sandbox_compare)rule, a, na, b, nb, why, sizeof why)) {
            FUZZ_CODE_CHECK(why[0] && unicode_valid_prefix(why, strlen(why)) == strlen(why));
        }
        FUZZ_CODE_CHECK(
            sandbox_compare_text((enum sandbox_compare)rule, a, na, a, na, why, sizeof why));
        sandbox_compare_value((enum sandbox_compare)rule, a, na, b, nb, why, sizeof why);
        FUZZ_CODE_CHECK(
            sandbox_compare_value((enum sandbox_compare)rule, b, nb, b, nb, why, sizeof why));
    }
    for (size_t room = 6; room < 40; room += 7) {
        sandbox_compare_quote(why, room, a, na);
        FUZZ_CODE_CHECK(strlen(why) < room && !strchr(why, '\n'));
        FUZZ_CODE_CHECK(unicode_valid_prefix(why, strlen(why)) == strlen(why));
    }
}

static void fuzz_code_one(const uint8_t *data, size_t n)
{
    const char *part[4] = {"", "", "", ""}, *at = (const char *)data, *end = at + n,
               *program = NULL;
    size_t len[4] = {0}, m = 0;

    for (int i = 0; i < 4 && at; i++) {
        const char *cut = i < 3 && n ? memmem(at, (size_t)(end - at), "\n---\n", 5) : NULL;
        part[i] = at;
        len[i] = (size_t)((cut ? cut : end) - at);
        at = cut ? cut + 5 : NULL;
    }
    if (codegrade_program(part[0], len[0], &program, &m)) {
        FUZZ_CODE_CHECK(program >= part[0] && program + m <= part[0] + len[0]);
    }
    fuzz_code_tests(part[1], len[1]);
    fuzz_code_compare(part[2], len[2], part[3], len[3]);
}

#endif
