/* Config files of any bytes: what is read is an object that can be written as JSON, with a place
 * for no key that it has not; what fails says why and gives nothing out. */
#ifndef TESTS_FUZZ_FUZZ_CONF_H
#define TESTS_FUZZ_FUZZ_CONF_H

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/conf_file.h"
#include "base/mem.h"
#include "base/status.h"

enum { FUZZ_CONF_BYTES = 64 << 10 };

static void fuzz_conf_one(const uint8_t *data, size_t n)
{
    json_t *root = NULL, *places, *v;
    struct err e = {0};
    const char *key;
    char *text;

    if (n > FUZZ_CONF_BYTES) {
        return;
    }
    text = mem_alloc(n + 1);
    for (size_t i = 0; i < n; i++) {
        text[i] = (char)data[i];
    }
    places = json_object();
    if (conf_file_parse(text, n, "fuzz", &root, places, &e) == STATUS_OK) {
        char *out = json_dumps(root, 0);
        if (!json_is_object(root) || !out) {
            abort();
        }
        json_object_foreach(places, key, v)
        {
            if (!json_object_get(root, key) || json_array_size(v) != 2) {
                abort();
            }
        }
        free(out);
    } else if (root || !e.msg[0]) {
        abort();
    }
    json_decref(root);
    json_decref(places);
    mem_free(text);
}

#endif
