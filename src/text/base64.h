/* Base64 (RFC 4648, the standard alphabet), as vocabularies and character maps are stored in it. */
#ifndef TEXT_BASE64_H
#define TEXT_BASE64_H

#include <stddef.h>

/* Decodes n characters into out, which has room for 3 * (n / 4) + 3 bytes; padding may be left out.
 * 1 and *len, or 0 when they are no base64. */
int base64_decode(const char *s, size_t n, char *out, size_t *len);

#endif
