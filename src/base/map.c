/* Owns an open-addressing table with linear probing; FNV-style hashing over 8-byte steps. Entries
 * are never removed (no user needs it). */
#include "base/map.h"

#include <string.h>

#include "base/mem.h"

static uint64_t map_hash(const char *p, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15ull ^ n;
    while (n) {
        uint64_t w = 0;
        size_t k = n < 8 ? n : 8;
        memcpy(&w, p, k);
        h = (h ^ w) * 0xff51afd7ed558ccdull;
        h ^= h >> 32;
        p += k;
        n -= k;
    }
    return h ^ (h >> 29);
}

void map_init(struct map *m)
{
    memset(m, 0, sizeof *m);
    m->arena = mem_alloc(sizeof(struct arena));
    arena_init(m->arena, 1 << 16);
}

void map_fini(struct map *m)
{
    if (m->arena) {
        arena_fini(m->arena);
        mem_free(m->arena);
    }
    mem_free(m->entries);
    mem_free(m->slots);
    memset(m, 0, sizeof *m);
}

/* The slot that holds the key, or the free one where it would go. */
static size_t map_slot(const struct map *m, const char *key, size_t len)
{
    size_t i = (size_t)map_hash(key, len) & (m->nslots - 1);
    while (m->slots[i]) {
        const struct map_entry *e = &m->entries[m->slots[i] - 1];
        if (e->len == len && memcmp(e->key, key, len) == 0) {
            break;
        }
        i = (i + 1) & (m->nslots - 1);
    }
    return i;
}

static void map_grow(struct map *m)
{
    size_t n = m->nslots ? m->nslots * 2 : 64;
    mem_free(m->slots);
    m->slots = mem_alloc(n * sizeof *m->slots);
    m->nslots = n;
    for (size_t i = 0; i < m->count; i++) {
        m->slots[map_slot(m, m->entries[i].key, m->entries[i].len)] = (uint32_t)i + 1;
    }
}

int map_put(struct map *m, const char *key, size_t len, int64_t value)
{
    size_t i;

    if (m->count * 2 >= m->nslots) {
        map_grow(m);
    }
    i = map_slot(m, key, len);
    if (m->slots[i]) {
        m->entries[m->slots[i] - 1].value = value;
        return 0;
    }
    if (m->count == m->cap_entries) {
        size_t cap = m->cap_entries ? m->cap_entries * 2 : 32;
        m->entries =
            mem_realloc(m->entries, m->count * sizeof *m->entries, cap * sizeof *m->entries);
        m->cap_entries = cap;
    }
    m->entries[m->count].key = arena_strndup(m->arena, key, len);
    m->entries[m->count].len = len;
    m->entries[m->count].value = value;
    m->slots[i] = (uint32_t)++m->count;
    return 1;
}

int map_get(const struct map *m, const char *key, size_t len, int64_t *value)
{
    size_t i;
    if (!m->nslots) {
        return 0;
    }
    i = map_slot(m, key, len);
    if (!m->slots[i]) {
        return 0;
    }
    if (value) {
        *value = m->entries[m->slots[i] - 1].value;
    }
    return 1;
}
