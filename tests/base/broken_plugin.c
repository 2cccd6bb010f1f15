/* Plugins that must be refused. */
#include <stdio.h>

#include "miles_plugin.h"

static int call(void *self, const char *argv, char **answer, struct miles_why *why)
{
    (void)self, (void)argv, (void)answer;
    snprintf(why->text, sizeof why->text, "it is broken");
    return 1;
}

static int no_open(const char *args, void **self, struct miles_why *why)
{
    (void)args, (void)self;
    snprintf(why->text, sizeof why->text, "it does not open");
    return 1;
}

#define SIZE .size = sizeof(struct miles_plugin)

const struct miles_plugin newer = {.abi = MILES_PLUGIN_ABI + 6, SIZE, .name = "newer"};
const struct miles_plugin tiny = {.abi = MILES_PLUGIN_ABI, .size = 3, .name = "tiny"};
const struct miles_plugin empty = {.abi = MILES_PLUGIN_ABI, SIZE, .name = "empty"};
const struct miles_plugin shut = {
    .abi = MILES_PLUGIN_ABI, SIZE, .name = "shut", .open = no_open, .call = call};
const struct miles_plugin broken = {.abi = MILES_PLUGIN_ABI, SIZE, .name = "broken", .call = call};
/* An older one, that ends before `call`. */
const struct miles_plugin older = {.abi = MILES_PLUGIN_ABI,
                                   .size = offsetof(struct miles_plugin, call),
                                   .name = "older",
                                   .call = call};
