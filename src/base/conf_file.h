/* Config files for conf.c: JSON, or the flat part of YAML that Miles' users write. */
#ifndef BASE_CONF_FILE_H
#define BASE_CONF_FILE_H

#include <jansson.h>

struct err;

/* Reads a file (or "base64:..." text) into an object. Values are strings, true, false, null, arrays
 * of those, or any JSON where the file had JSON. A key given twice is an error; errors name the
 * line. *out is owned by the caller. */
int conf_file_read(const char *path, json_t **out, struct err *e);
/* The same from memory; name is for messages. */
int conf_file_parse(const char *text, size_t len, const char *name, json_t **out, struct err *e);

#endif
