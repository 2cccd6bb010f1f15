/* Rewards in C: --custom-rm-path reward.so:digits, --custom-reward-post-process-path
 * reward.so:digits.
 *
 *     cc -shared -fPIC -I include -o reward.so examples/plugins/reward.c */
#include <ctype.h>
#include <stddef.h>

#include "miles_plugin.h"

/* The share of digits in each response. */
static int reward(void *self, const struct miles_sample *s, int n, double *rewards,
                  struct miles_why *why)
{
    (void)self, (void)why;
    for (int i = 0; i < n; i++) {
        size_t digits = 0, len = 0;
        for (const char *p = s[i].response; *p; p++, len++) {
            digits += isdigit((unsigned char)*p) != 0;
        }
        rewards[i] = (double)digits / (double)(len ? len : 1);
    }
    return 0;
}

/* Each reward minus the mean of its group. */
static int shape(void *self, const struct miles_sample *s, int n, double *raw, double *shaped,
                 struct miles_why *why)
{
    (void)self, (void)why;
    for (int i = 0; i < n; i++) {
        double sum = 0;
        int count = 0;
        for (int k = 0; k < n; k++) {
            if (s[k].group_index == s[i].group_index) {
                sum += s[k].reward;
                count++;
            }
        }
        raw[i] = s[i].reward;
        shaped[i] = s[i].reward - sum / count;
    }
    return 0;
}

const struct miles_plugin digits = {.abi = MILES_PLUGIN_ABI,
                                    .size = sizeof(struct miles_plugin),
                                    .name = "digits",
                                    .reward = reward,
                                    .shape = shape};
