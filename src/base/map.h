/* A hash map from byte strings to 64-bit values; keys are copied. Iteration follows insertion
 * order, so that nothing downstream depends on hash values.
 *
 *     struct map m; map_init(&m);
 *     map_put(&m, "a", 1, 42);
 *     int64_t v; if (map_get(&m, "a", 1, &v)) ...
 *     map_fini(&m); */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

struct map_entry {
    const char *key; /* NUL-terminated copy, owned by the map */
    size_t len;
    int64_t value;
};
struct map {
    struct map_entry *entries; /* in insertion order */
    size_t count;
    size_t cap_entries;
    uint32_t *slots; /* 1 + index into entries, 0 = free */
    size_t nslots;
    void *arena; /* key bytes */
};

void map_init(struct map *m);
void map_fini(struct map *m);
/* Adds or replaces. Returns 1 when the key was new. */
int map_put(struct map *m, const char *key, size_t len, int64_t value);
/* 1 and *value when present, else 0. value may be NULL. */
int map_get(const struct map *m, const char *key, size_t len, int64_t *value);

#endif
