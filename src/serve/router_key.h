/* The beginning of a request's prompt as a chain of hashes, one for each block of it, by which a
 * router tells whose prefix cache may hold it.
 *
 *     struct router_key k = {0};
 *     router_key_read(&k, body, n);          text, input_ids, prompt, messages or input
 *     ... k.hash[i] stands for all blocks up to i ...
 *     router_key_fini(&k);
 *
 * The body is not parsed: its JSON is skimmed once, and the prompt's bytes are taken as they are
 * written there, without white space outside of texts. So one client's requests with a common
 * prefix have common hashes; a text and its token ids do not. What is not JSON has no blocks. The
 * last block may be short: it is shared by equal prompts only. */
#ifndef SERVE_ROUTER_KEY_H
#define SERVE_ROUTER_KEY_H

#include <stddef.h>
#include <stdint.h>

enum {
    ROUTER_KEY_BLOCK = 128, /* bytes */
    ROUTER_KEY_MAX = 4096   /* blocks; what follows them is not looked at */
};

struct router_key {
    uint64_t *hash;
    int n, cap;
    size_t len; /* bytes of all blocks */
};

void router_key_read(struct router_key *k, const char *body, size_t n);
/* One block: all of s. For names of sessions. */
void router_key_name(struct router_key *k, const char *s, size_t n);
void router_key_fini(struct router_key *k);
/* Bytes of the first `blocks` blocks. */
size_t router_key_bytes(const struct router_key *k, int blocks);
/* A 64-bit hash that is the same in every process. */
uint64_t router_key_hash(uint64_t seed, const void *p, size_t n);

#endif
