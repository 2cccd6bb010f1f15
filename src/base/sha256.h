/* SHA-256 (FIPS 180-4), for checksums of weights, files and deterministic choices.
 *
 *     char hex[65];
 *     sha256_hex("abc", 3, hex);                  one call
 *     struct sha256 s; uint8_t d[32];
 *     sha256_init(&s); sha256_update(&s, p, n); sha256_final(&s, d);
 *
 * No allocation, no locks; a struct sha256 belongs to one thread at a time. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t h[8];
    uint64_t bytes; /* so far */
    uint8_t block[64];
};

void sha256_init(struct sha256 *s);
/* n may be 0; p may be NULL then. */
void sha256_update(struct sha256 *s, const void *p, size_t n);
/* Ends the hash; call sha256_init before using s again. */
void sha256_final(struct sha256 *s, uint8_t out[32]);
/* Hash of n bytes as 64 lower-case digits and a NUL. */
void sha256_hex(const void *p, size_t n, char out[65]);
/* 32 bytes as 64 lower-case digits and a NUL. */
void sha256_digits(const uint8_t digest[32], char out[65]);
/* 1: plain C from here on, 0: what the machine has; for tests. */
void sha256_use_plain(int on);

#endif
