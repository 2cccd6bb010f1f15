/* Config files for conf.c: YAML or JSON.
 *
 *     json_t *root, *places = json_object();
 *     rc = conf_file_read("run.yaml", &root, places, &e);      also "base64:..." instead of a path
 *     ... json_object_get(places, "lr") is [line, column] ... */
#ifndef BASE_CONF_FILE_H
#define BASE_CONF_FILE_H

#include <jansson.h>

struct err;

/* Reads a file (or "base64:..." text) into an object. Plain values of the top level, and of lists
 * there, are strings, true, false or null; inside nested mappings they are typed. In JSON files all
 * are. A key given twice, an anchor or a tag is an error; errors name line and column. *out is
 * owned by the caller; places, when not NULL, is an object that gets [line, column] of each key of
 * the top level (of YAML only: JSON does not tell). */
int conf_file_read(const char *path, json_t **out, json_t *places, struct err *e);
/* The same from memory; name is for messages. */
int conf_file_parse(const char *text, size_t len, const char *name, json_t **out, json_t *places,
                    struct err *e);

#endif
