/* Owns the way from a request's bytes to the hashes of its prompt. It must cost little beside the
 * forwarding itself, for prompts of a hundred thousand tokens too: that is why no tree of JSON
 * values is built. A wrong guess costs a prefix computed again and nothing else, so that malformed
 * bodies need no care beyond staying inside them; the worker will refuse them. */
#include "serve/router_key.h"

#include <string.h>

#include "base/mem.h"

uint64_t router_key_hash(uint64_t seed, const void *p, size_t n)
{
    const unsigned char *s = p;
    uint64_t h = seed ^ (n * 0x9e3779b97f4a7c15u), w;

    for (; n >= 8; n -= 8, s += 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    w = 0;
    memcpy(&w, s, n);
    h = (h ^ w) * 0xc4ceb9fe1a85ec53u;
    h ^= h >> 29;
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 32;
}

/* ---- skimming ---- */

struct span {
    const char *p, *end;
};

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && is_space(*p)) {
        p++;
    }
    return p;
}

/* After the closing quote of the text that opens at p; NULL when there is none. */
static const char *skip_text(const char *p, const char *end)
{
    for (p++; p < end; p++) {
        if (*p == '\\') {
            p++;
        } else if (*p == '"') {
            return p + 1;
        }
    }
    return NULL;
}

/* After the value that begins at p; NULL when it does not end. */
static const char *skip_value(const char *p, const char *end)
{
    size_t depth = 0;

    while (p < end) {
        if (*p == '"') {
            p = skip_text(p, end);
            if (!p) {
                return NULL;
            }
        } else if (*p == '[' || *p == '{') {
            depth++;
            p++;
        } else if (*p == ']' || *p == '}') {
            if (depth == 0) {
                return p; /* the end of what the value stands in */
            }
            depth--;
            p++;
        } else if (depth == 0 && (*p == ',' || is_space(*p))) {
            return p;
        } else {
            p++;
            continue;
        }
        if (depth == 0) {
            return p;
        }
    }
    return NULL;
}

enum { FIELD_IDS, FIELD_TEXT, FIELD_PROMPT, FIELD_MESSAGES, FIELD_INPUT, FIELD_TOOLS, FIELD_LORA };

static const char *const field_names[] = {"input_ids", "text",  "prompt",   "messages",
                                          "input",     "tools", "lora_path"};

enum { NFIELDS = sizeof field_names / sizeof field_names[0] };

/* The values of the fields of interest in the object that the body is. */
static void find_fields(const char *p, const char *end, struct span *found)
{
    p = skip_space(p, end);
    if (p == end || *p != '{') {
        return;
    }
    p++;
    for (;;) {
        const char *name, *name_end, *value;
        p = skip_space(p, end);
        if (p == end || *p != '"') {
            return;
        }
        name = p + 1;
        p = skip_text(p, end);
        if (!p) {
            return;
        }
        name_end = p - 1;
        p = skip_space(p, end);
        if (p == end || *p != ':') {
            return;
        }
        value = skip_space(p + 1, end);
        p = skip_value(value, end);
        if (!p) {
            return;
        }
        for (int i = 0; i < NFIELDS; i++) {
            size_t n = strlen(field_names[i]);
            if ((size_t)(name_end - name) == n && memcmp(name, field_names[i], n) == 0 &&
                !(p - value == 4 && memcmp(value, "null", 4) == 0)) {
                found[i] = (struct span){value, p};
            }
        }
        p = skip_space(p, end);
        if (p == end || *p != ',') {
            return;
        }
        p++;
    }
}

/* ---- blocks ---- */

static void add_block(struct router_key *k, uint64_t salt, const char *block, size_t n)
{
    if (k->n == k->cap) {
        int cap = k->cap ? 2 * k->cap : 16;
        k->hash =
            mem_realloc(k->hash, sizeof *k->hash * (size_t)k->cap, sizeof *k->hash * (size_t)cap);
        k->cap = cap;
    }
    k->hash[k->n] = router_key_hash(k->n ? k->hash[k->n - 1] : salt, block, n);
    k->n++;
    k->len += n;
}

static void add_blocks(struct router_key *k, uint64_t salt, struct span s)
{
    char block[ROUTER_KEY_BLOCK];
    size_t fill = 0;
    int quoted = 0, escaped = 0;

    for (const char *p = s.p; p < s.end && k->n < ROUTER_KEY_MAX; p++) {
        if (!quoted && is_space(*p)) {
            continue;
        }
        if (escaped) {
            escaped = 0;
        } else if (*p == '"') {
            quoted = !quoted;
        } else if (*p == '\\') {
            escaped = 1;
        }
        block[fill++] = *p;
        if (fill == sizeof block) {
            add_block(k, salt, block, fill);
            fill = 0;
        }
    }
    if (fill > 0 && k->n < ROUTER_KEY_MAX) {
        add_block(k, salt, block, fill);
    }
}

void router_key_read(struct router_key *k, const char *body, size_t n)
{
    static const int prompts[] = {FIELD_IDS, FIELD_TEXT, FIELD_MESSAGES, FIELD_PROMPT, FIELD_INPUT};
    struct span found[NFIELDS] = {{0}};
    uint64_t salt = 0;

    k->n = 0;
    k->len = 0;
    find_fields(body, body + n, found);
    /* What stands before the prompt in the model's eyes, or makes other values of it. */
    for (int i = FIELD_TOOLS; i <= FIELD_LORA; i++) {
        if (found[i].p) {
            salt = router_key_hash(salt + (uint64_t)i, found[i].p,
                                   (size_t)(found[i].end - found[i].p));
        }
    }
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        if (found[prompts[i]].p) {
            add_blocks(k, salt + (uint64_t)prompts[i], found[prompts[i]]);
            return;
        }
    }
}

void router_key_name(struct router_key *k, const char *s, size_t n)
{
    k->n = 0;
    k->len = 0;
    add_block(k, 0, s, n);
}

void router_key_fini(struct router_key *k)
{
    mem_free(k->hash);
    memset(k, 0, sizeof *k);
}

size_t router_key_bytes(const struct router_key *k, int blocks)
{
    return blocks >= k->n ? k->len : (size_t)blocks * ROUTER_KEY_BLOCK;
}
