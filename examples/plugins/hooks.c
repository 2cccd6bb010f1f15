/* Hooks in C. Those with plain arguments get them as JSON text (docs/extending.md): a filter is
 * --dynamic-sampling-filter-path hooks.so:keep_all; the ones with a model see its parameters:
 * --custom-megatron-before-train-step-hook-path hooks.so:shrink.
 *
 *     cc -shared -fPIC -I include -o hooks.so examples/plugins/hooks.c */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "miles_plugin.h"

static int keep_call(void *self, const char *argv, char **answer, struct miles_why *why)
{
    (void)self, (void)argv;
    *answer = strdup("{\"keep\": true, \"reason\": null}");
    if (!*answer) {
        snprintf(why->text, sizeof why->text, "no memory");
        return 1;
    }
    return 0;
}

/* Says on stderr that it was called: for hooks that answer nothing. */
static int say_call(void *self, const char *argv, char **answer, struct miles_why *why)
{
    (void)self, (void)answer, (void)why;
    fprintf(stderr, "hook called with %.200s\n", argv);
    return 0;
}

static int shrink_params(void *self, const char *argv, struct miles_param *p, int n,
                         struct miles_why *why)
{
    (void)self, (void)argv;
    for (int i = 0; i < n; i++) {
        if (strcmp(p[i].name, "model.norm.weight") == 0) {
            for (int64_t k = 0; k < p[i].rows * p[i].cols; k++) {
                p[i].data[k] *= 0.999f;
            }
            return 0;
        }
    }
    snprintf(why->text, sizeof why->text, "the model has no model.norm.weight");
    return 1;
}

#define PLUGIN .abi = MILES_PLUGIN_ABI, .size = sizeof(struct miles_plugin)

const struct miles_plugin keep_all = {PLUGIN, .name = "keep_all", .call = keep_call};
const struct miles_plugin say = {PLUGIN, .name = "say", .call = say_call};
const struct miles_plugin shrink = {PLUGIN, .name = "shrink", .params = shrink_params};
