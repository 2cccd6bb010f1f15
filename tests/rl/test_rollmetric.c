/* pass@k against its definition: of all ways to choose k of n answers, the share that has a right
 * one. */
#include "support.h"

#include <math.h>

#include "base/metric.h"
#include "rl/rollmetric.h"
#include "rl/sample.h"

static double by_counting(int n, int c, int k)
{
    int hit = 0, all = 0;
    for (int mask = 0; mask < 1 << n; mask++) {
        int bits = 0;
        for (int i = 0; i < n; i++) {
            bits += mask >> i & 1;
        }
        if (bits == k) {
            all++;
            hit += (mask & ((1 << c) - 1)) != 0;
        }
    }
    return (double)hit / all;
}

static void pass_at_k(void **state)
{
    (void)state;
    for (int n = 1; n <= 9; n++) {
        for (int c = 0; c <= n; c++) {
            struct sample *s[27];
            json_t *row = json_object();
            for (int i = 0; i < 3 * n; i++) {
                s[i] = sample_new();
                s[i]->group_index = i / n;
                s[i]->index = i;
                /* the second group has none right, the third is incomplete */
                s[i]->reward = i < n ? (i < c ? 1.0 : 0.25) : i < 2 * n ? 0.5 : 1.0;
            }
            s[3 * n - 1]->reward = NAN;
            rollmetric_passrate(row, "p/", s, 3 * n, n);
            for (int k = 1; k <= n; k *= 2) {
                char name[32];
                snprintf(name, sizeof name, "p/pass@%d", k);
                assert_true(fabs(json_number_value(json_object_get(row, name)) -
                                 by_counting(n, c, k) / 2) < 1e-12);
            }
            for (int i = 0; i < 3 * n; i++) {
                sample_free(s[i]);
            }
            json_decref(row);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pass_at_k)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
