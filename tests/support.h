/* What every test shares: where the test data is and how a test that cannot run says so.
 *
 * MILES_TEST_DATA names the folder with tokenizers, templates and math sets. Unset, a test that
 * needs it prints why and exits 77 (ctest shows "Skipped"); under CI=true that is a failure
 * instead. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The path of `rel` inside MILES_TEST_DATA, in a static buffer of 8 rotating entries. */
static inline const char *support_data(const char *rel)
{
    static char path[8][1024];
    static int next;
    const char *root = getenv("MILES_TEST_DATA");
    if (!root || !*root) {
        const char *ci = getenv("CI");
        fprintf(stderr, "SKIP: MILES_TEST_DATA is not set, %s cannot be read\n", rel);
        exit(ci && strcmp(ci, "true") == 0 ? 1 : 77);
    }
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", root, rel);
    return path[next];
}

/* The words of a line, cut at blanks, in static memory until the next call; their number. */
static inline int support_words(const char *line, char ***words)
{
    static char copy[4096];
    static char *v[128];
    int n = 0;

    snprintf(copy, sizeof copy, "%s", line);
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " ")) {
        v[n++] = w;
    }
    *words = v;
    return n;
}

/* Fails the test with the error's text when rc is not 0. */
#define assert_ok(rc, e)                                                                           \
    do {                                                                                           \
        int rc_ = (rc);                                                                            \
        if (rc_ != 0) {                                                                            \
            fail_msg("status %d: %s (%s)", rc_, (e)->msg, (e)->where ? (e)->where : "?");          \
        }                                                                                          \
    } while (0)

#endif
