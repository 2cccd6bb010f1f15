/* Owns the reading of config files. JSON goes through jansson, all else through libyaml, from whose
 * events the same values are made. Plain scalars of the top level stay text, so that numbers are
 * parsed once, strictly, by the option's type; inside a nested mapping, which is a value of its
 * own, they have the types that YAML gives them. Anchors, tags and further documents are refused by
 * line and column rather than half understood. */
#include "base/conf_file.h"

#include <string.h>
#include <yaml.h>

#include "base/conf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"

enum { MAX_FILE = 4 << 20, MAX_DEPTH = 64 };

struct reader {
    const char *name;
    yaml_parser_t parser;
    json_t *places; /* of the top level's keys, or NULL */
    int maps;       /* mappings that are open */
    struct err *e;
};

static int base64_decode(const char *s, char **out, size_t *len, struct err *e)
{
    static const char abc[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = strlen(s), k = 0;
    char *p = mem_try(n + 1);
    uint32_t acc = 0;
    int bits = 0;

    if (!p) {
        return ERR(e, STATUS_NOMEM, "config of %zu base64 characters", n);
    }
    for (size_t i = 0; i < n && s[i] != '='; i++) {
        const char *at = strchr(abc, s[i]);
        if (!at) {
            mem_free(p);
            return ERR(e, STATUS_INPUT, "base64 config: character %zu is not base64", i + 1);
        }
        acc = (acc << 6 | (uint32_t)(at - abc)) & 0xffffffu;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            p[k++] = (char)(acc >> bits & 0xff);
        }
    }
    p[k] = 0;
    *out = p;
    *len = k;
    return 0;
}

static int refuse(struct reader *y, const yaml_mark_t *at, const char *what)
{
    return ERR(y->e, STATUS_INPUT, "%s:%zu:%zu: %s", y->name, at->line + 1, at->column + 1, what);
}

static int next(struct reader *y, yaml_event_t *ev)
{
    const yaml_parser_t *p = &y->parser;

    if (yaml_parser_parse(&y->parser, ev)) {
        return STATUS_OK;
    }
    if (p->error == YAML_MEMORY_ERROR) {
        return ERR(y->e, STATUS_NOMEM, "%s: no memory to read it", y->name);
    }
    return ERR(y->e, STATUS_INPUT, "%s:%zu:%zu: %s%s%s", y->name, p->problem_mark.line + 1,
               p->problem_mark.column + 1, p->problem ? p->problem : "not yaml",
               p->context ? ", " : "", p->context ? p->context : "");
}

/* ---- scalars ---- */

static int one_of(const char *s, const char *const *words)
{
    for (int i = 0; words[i]; i++) {
        if (strcasecmp(s, words[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

/* YAML's types of plain scalars, as far as JSON has them. */
static json_t *typed(const char *s)
{
    static const char *const trues[] = {"yes", "on", NULL};
    static const char *const falses[] = {"no", "off", NULL};
    int64_t i;
    double x;

    if (one_of(s, trues) || one_of(s, falses)) {
        return json_boolean(one_of(s, trues));
    }
    if (conf_parse_int(s, &i) == 0) {
        return json_integer(i);
    }
    return conf_parse_float(s, &x) == 0 ? json_real(x) : json_string(s);
}

static int scalar(struct reader *y, const yaml_event_t *ev, int nested, json_t **out)
{
    static const char *const nulls[] = {"null", "~", "", NULL};
    static const char *const trues[] = {"true", NULL};
    static const char *const falses[] = {"false", NULL};
    const char *s = (const char *)ev->data.scalar.value;

    if (strlen(s) != ev->data.scalar.length) {
        return refuse(y, &ev->start_mark, "this value has a zero byte");
    }
    if (ev->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) {
        *out = json_string(s);
    } else if (one_of(s, nulls)) {
        *out = json_null();
    } else if (one_of(s, trues) || one_of(s, falses)) {
        *out = json_boolean(one_of(s, trues));
    } else {
        *out = nested ? typed(s) : json_string(s);
    }
    return *out ? STATUS_OK : refuse(y, &ev->start_mark, "this value is not utf-8");
}

/* ---- collections ---- */

static int node(struct reader *y, const yaml_event_t *ev, int depth, json_t **out);

static int sequence(struct reader *y, int depth, json_t *list)
{
    yaml_event_t ev;
    int rc = next(y, &ev), end = 0;

    while (rc == STATUS_OK && !end) {
        json_t *v = NULL;
        end = ev.type == YAML_SEQUENCE_END_EVENT;
        rc = end ? STATUS_OK : node(y, &ev, depth, &v);
        if (v) {
            json_array_append_new(list, v);
        }
        yaml_event_delete(&ev);
        rc = rc == STATUS_OK && !end ? next(y, &ev) : rc;
    }
    return rc;
}

static int pair(struct reader *y, const yaml_event_t *key, int depth, json_t *map)
{
    const char *k = (const char *)key->data.scalar.value;
    yaml_event_t ev;
    json_t *v = NULL;
    int rc;

    if (key->type != YAML_SCALAR_EVENT || key->data.scalar.anchor || key->data.scalar.tag ||
        strlen(k) != key->data.scalar.length) {
        return refuse(y, &key->start_mark, "this key is not a plain name");
    }
    if (strcmp(k, "<<") == 0) {
        return refuse(y, &key->start_mark, "merged mappings are not supported");
    }
    if (json_object_get(map, k)) {
        return ERR(y->e, STATUS_INPUT, "%s:%zu:%zu: key %.80s is given twice", y->name,
                   key->start_mark.line + 1, key->start_mark.column + 1, k);
    }
    rc = next(y, &ev);
    if (rc != STATUS_OK) {
        return rc;
    }
    rc = node(y, &ev, depth, &v);
    yaml_event_delete(&ev);
    if (rc == STATUS_OK && json_object_set_new(map, k, v) != 0) {
        rc = refuse(y, &key->start_mark, "this key is not utf-8");
    }
    if (rc == STATUS_OK && y->maps == 1 && y->places) {
        json_object_set_new(y->places, k,
                            json_pack("[I,I]", (json_int_t)key->start_mark.line + 1,
                                      (json_int_t)key->start_mark.column + 1));
    }
    return rc;
}

static int mapping(struct reader *y, int depth, json_t *map)
{
    yaml_event_t ev;
    int rc = next(y, &ev), end = 0;

    y->maps++;
    while (rc == STATUS_OK && !end) {
        end = ev.type == YAML_MAPPING_END_EVENT;
        rc = end ? STATUS_OK : pair(y, &ev, depth, map);
        yaml_event_delete(&ev);
        rc = rc == STATUS_OK && !end ? next(y, &ev) : rc;
    }
    y->maps--;
    return rc;
}

/* The value that an event begins; depth 0 is the document's own. *out is set only on success. */
static int node(struct reader *y, const yaml_event_t *ev, int depth, json_t **out)
{
    json_t *v = NULL;
    int rc;

    if (ev->type == YAML_ALIAS_EVENT || (ev->type == YAML_SCALAR_EVENT && ev->data.scalar.anchor) ||
        (ev->type == YAML_SEQUENCE_START_EVENT && ev->data.sequence_start.anchor) ||
        (ev->type == YAML_MAPPING_START_EVENT && ev->data.mapping_start.anchor)) {
        return refuse(y, &ev->start_mark, "anchors are not supported");
    }
    if ((ev->type == YAML_SCALAR_EVENT && ev->data.scalar.tag) ||
        (ev->type == YAML_SEQUENCE_START_EVENT && ev->data.sequence_start.tag) ||
        (ev->type == YAML_MAPPING_START_EVENT && ev->data.mapping_start.tag)) {
        return refuse(y, &ev->start_mark, "tags are not supported");
    }
    if (depth == MAX_DEPTH) {
        return refuse(y, &ev->start_mark, "nested too deeply");
    }
    if (ev->type == YAML_SCALAR_EVENT) {
        return scalar(y, ev, y->maps > 1, out);
    }
    v = ev->type == YAML_MAPPING_START_EVENT ? json_object() : json_array();
    rc =
        ev->type == YAML_MAPPING_START_EVENT ? mapping(y, depth + 1, v) : sequence(y, depth + 1, v);
    if (rc != STATUS_OK) {
        json_decref(v);
        return rc;
    }
    *out = v;
    return STATUS_OK;
}

/* The one document of a file: a mapping, or nothing. */
static int document(struct reader *y, json_t **out)
{
    int rc = STATUS_OK, end = 0;
    json_t *root = NULL;

    while (rc == STATUS_OK && !end) {
        yaml_event_t ev;
        rc = next(y, &ev);
        if (rc != STATUS_OK) {
            break;
        }
        switch (ev.type) {
        case YAML_STREAM_START_EVENT:
        case YAML_DOCUMENT_END_EVENT: break;
        case YAML_DOCUMENT_START_EVENT:
            rc = root ? refuse(y, &ev.start_mark, "a second document begins here") : STATUS_OK;
            break;
        case YAML_STREAM_END_EVENT: end = 1; break;
        case YAML_MAPPING_START_EVENT: rc = node(y, &ev, 0, &root); break;
        case YAML_SCALAR_EVENT:
            if (ev.data.scalar.length == 0) {
                break;
            }
            /* fall through */
        default: rc = refuse(y, &ev.start_mark, "not `key: value`");
        }
        yaml_event_delete(&ev);
    }
    if (rc != STATUS_OK) {
        json_decref(root);
        return rc;
    }
    *out = root ? root : json_object();
    return STATUS_OK;
}

static int yaml_text(const char *text, size_t len, const char *name, json_t **out, json_t *places,
                     struct err *e)
{
    struct reader y = {.name = name, .places = places, .e = e};
    int rc;

    if (!yaml_parser_initialize(&y.parser)) {
        return ERR(e, STATUS_NOMEM, "%s: no memory to read it", name);
    }
    yaml_parser_set_encoding(&y.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&y.parser, (const unsigned char *)text, len);
    rc = document(&y, out);
    yaml_parser_delete(&y.parser);
    return rc;
}

int conf_file_parse(const char *text, size_t len, const char *name, json_t **out, json_t *places,
                    struct err *e)
{
    size_t i = 0;
    json_error_t je;

    if (memchr(text, 0, len)) {
        return ERR(e, STATUS_INPUT, "%s: has a zero byte", name);
    }
    while (i < len && strchr(" \t\r\n", text[i])) {
        i++;
    }
    if (i == len || text[i] != '{') {
        return yaml_text(text, len, name, out, places, e);
    }
    *out = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    if (!*out) {
        return ERR(e, STATUS_INPUT, "%s:%d:%d: %s", name, je.line, je.column, je.text);
    }
    return STATUS_OK;
}

int conf_file_read(const char *path, json_t **out, json_t *places, struct err *e)
{
    char *data;
    size_t len;
    int b64 = strncmp(path, "base64:", 7) == 0;
    int rc =
        b64 ? base64_decode(path + 7, &data, &len, e) : fsio_read(path, MAX_FILE, &data, &len, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    rc = conf_file_parse(data, len, b64 ? "base64 config" : path, out, places, e);
    mem_free(data);
    return rc;
}
