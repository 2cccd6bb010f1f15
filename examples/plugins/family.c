/* A family of models that miles does not know by itself: --custom-model-provider-path
 * family.so:quiet_llama. Its config.json says "model_type": "quiet_llama"; it is a Llama whose
 * attention normalises each head of q and k.
 *
 *     cc -shared -fPIC -I include -o family.so examples/plugins/family.c */
#include <string.h>

#include "miles_plugin.h"

static int model(void *self, char **row, struct miles_why *why)
{
    (void)self, (void)why;
    *row = strdup("{\"model_type\": \"quiet_llama\", \"like\": \"llama\", \"qk_norm\": true}");
    return *row ? 0 : 1;
}

const struct miles_plugin quiet_llama = {.abi = MILES_PLUGIN_ABI,
                                         .size = sizeof(struct miles_plugin),
                                         .name = "quiet_llama",
                                         .model = model};
