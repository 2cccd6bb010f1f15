/* Owns reading base64. */
#include "text/base64.h"

#include <stdint.h>

static int value_of(int c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

int base64_decode(const char *s, size_t n, char *out, size_t *len)
{
    uint32_t bits = 0;
    size_t o = 0;
    size_t i;

    while (n > 0 && s[n - 1] == '=') {
        n--;
    }
    if (n % 4 == 1) {
        return 0;
    }
    for (i = 0; i < n; i++) {
        int v = value_of((unsigned char)s[i]);
        if (v < 0) {
            return 0;
        }
        bits = bits << 6 | (uint32_t)v;
        if (i % 4 == 3) {
            out[o++] = (char)(bits >> 16);
            out[o++] = (char)(bits >> 8);
            out[o++] = (char)bits;
        }
    }
    if (n % 4 == 2) {
        out[o++] = (char)(bits >> 4);
    } else if (n % 4 == 3) {
        out[o++] = (char)(bits >> 10);
        out[o++] = (char)(bits >> 2);
    }
    *len = o;
    return 1;
}
