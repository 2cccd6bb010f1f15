/* Owns the reading of config files. JSON goes through jansson. YAML is the flat subset that option
 * files need: `key: value`, quoted strings, comments, `[a, b]`, block lists of scalars, `{...}` as
 * JSON. Plain scalars stay text, so that numbers are parsed once, strictly, by the option's type.
 * Nested mappings and anchors are refused by line rather than half understood. */
#include "base/conf_file.h"

#include <string.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"

enum { MAX_FILE = 4 << 20 };

struct yaml {
    const char *name;
    int line;
    json_t *root;
    char *list_key;
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

static int yaml_err(struct yaml *y, const char *what)
{
    return ERR(y->e, STATUS_INPUT, "%s:%d: %s", y->name, y->line, what);
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* Cuts a comment that starts outside quotes, then blanks at the end. */
static void strip_tail(char *s)
{
    char quote = 0;
    size_t n;
    for (size_t i = 0; s[i]; i++) {
        if (quote) {
            if (s[i + 1] && ((quote == '"' && s[i] == '\\') ||
                             (quote == '\'' && s[i] == '\'' && s[i + 1] == '\''))) {
                i++;
            } else if (s[i] == quote) {
                quote = 0;
            }
        } else if (s[i] == '#' && (i == 0 || is_blank(s[i - 1]))) {
            s[i] = 0;
            break;
        } else if ((s[i] == '"' || s[i] == '\'') && (i == 0 || strchr(" \t[{,:", s[i - 1]))) {
            quote = s[i];
        }
    }
    for (n = strlen(s); n && (is_blank(s[n - 1]) || s[n - 1] == '\r'); n--) {
        s[n - 1] = 0;
    }
}

static char *skip_blanks(char *s)
{
    while (is_blank(*s)) {
        s++;
    }
    return s;
}

/* A quoted scalar that fills s entirely; 'it''s' and "a\n" as YAML has them. */
static int quoted(struct yaml *y, const char *s, json_t **out)
{
    char q = s[0];
    struct buf b;
    size_t i;

    if (q == '"') { /* double quotes have JSON's escapes */
        *out = json_loads(s, JSON_DECODE_ANY, NULL);
        return *out ? 0 : yaml_err(y, "this quoted string does not end, or has a bad escape");
    }
    buf_init(&b, MAX_FILE);
    for (i = 1; s[i]; i++) {
        if (s[i] == '\'') {
            if (s[i + 1] != '\'') {
                break;
            }
            i++;
        }
        buf_char(&b, s[i]);
    }
    *out = s[i] == '\'' && !s[i + 1] ? json_string(b.data) : NULL;
    buf_fini(&b);
    return *out ? 0 : yaml_err(y, "this quoted string does not end, or is not utf-8");
}

static int scalar(struct yaml *y, const char *s, json_t **out)
{
    static const char *const nulls[] = {"null", "Null", "NULL", "~", ""};
    static const char *const trues[] = {"true", "True", "TRUE"};
    static const char *const falses[] = {"false", "False", "FALSE"};

    if (s[0] == '"' || s[0] == '\'') {
        return quoted(y, s, out);
    }
    if (s[0] && strchr("&*!|>%@`", s[0])) {
        return yaml_err(y, "this kind of yaml value is not supported");
    }
    for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++) {
        if (strcmp(s, nulls[i]) == 0) {
            *out = json_null();
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof trues / sizeof *trues; i++) {
        if (strcmp(s, trues[i]) == 0 || strcmp(s, falses[i]) == 0) {
            *out = json_boolean(strcmp(s, trues[i]) == 0);
            return 0;
        }
    }
    *out = json_string(s);
    return *out ? 0 : yaml_err(y, "this value is not utf-8");
}

/* [a, 'b', c]: JSON when it is, else scalars without commas or brackets inside. */
static int flow_list(struct yaml *y, char *s, json_t **out)
{
    size_t n = strlen(s);
    char *p, *end;

    *out = json_loads(s, 0, NULL);
    if (*out) {
        return 0;
    }
    if (s[n - 1] != ']') {
        return yaml_err(y, "this list does not end on its line");
    }
    s[n - 1] = 0;
    *out = json_array();
    for (p = skip_blanks(s + 1); *p; p = end) {
        json_t *v = NULL;
        char *tail;
        int rc;
        end = p + strcspn(p, ",");
        if (*end) {
            *end++ = 0;
        }
        for (tail = p + strlen(p); tail > p && is_blank(tail[-1]); tail--) {
            tail[-1] = 0;
        }
        rc = strpbrk(p, "[]{}") ? yaml_err(y, "lists inside lists are not supported")
                                : scalar(y, p, &v);
        if (rc) {
            json_decref(*out);
            return rc;
        }
        json_array_append_new(*out, v);
        end = skip_blanks(end);
    }
    return 0;
}

static int value(struct yaml *y, char *s, json_t **out)
{
    if (s[0] == '[') {
        return flow_list(y, s, out);
    }
    if (s[0] == '{') {
        *out = json_loads(s, JSON_REJECT_DUPLICATES, NULL);
        return *out ? 0 : yaml_err(y, "a value in braces must be JSON on one line");
    }
    return scalar(y, s, out);
}

static int list_item(struct yaml *y, char *s)
{
    json_t *v, *cur;
    int rc;

    if (!y->list_key) {
        return yaml_err(y, "a list item without a key above it");
    }
    s = skip_blanks(s + 1);
    rc = value(y, s, &v);
    if (rc) {
        return rc;
    }
    cur = json_object_get(y->root, y->list_key);
    if (!json_is_array(cur)) {
        cur = json_array();
        json_object_set_new(y->root, y->list_key, cur);
    }
    json_array_append_new(cur, v);
    return 0;
}

static int key_value(struct yaml *y, char *s)
{
    size_t n = 0;
    char *key = s, *val;
    json_t *v;
    int rc;

    while (s[n] && s[n] != ':' && !is_blank(s[n])) {
        n++;
    }
    val = skip_blanks(s + n);
    if (n == 0 || *val != ':' || (val[1] && !is_blank(val[1]))) {
        return yaml_err(y, "not `key: value`");
    }
    val = skip_blanks(val + 1);
    key[n] = 0;
    if (json_object_get(y->root, key)) {
        return ERR(y->e, STATUS_INPUT, "%s:%d: key %.80s is given twice", y->name, y->line, key);
    }
    mem_free(y->list_key);
    y->list_key = *val ? NULL : mem_strdup(key);
    rc = value(y, val, &v);
    if (rc) {
        return rc;
    }
    if (json_object_set_new(y->root, key, v)) {
        return yaml_err(y, "this key is not utf-8");
    }
    return 0;
}

static int yaml_line(struct yaml *y, char *line)
{
    char *s;
    strip_tail(line);
    s = skip_blanks(line);
    if (!*s || strcmp(line, "---") == 0) {
        return 0;
    }
    if (s[0] == '-' && (is_blank(s[1]) || !s[1])) {
        return list_item(y, s);
    }
    if (s != line) {
        return yaml_err(y, "nested keys are not supported: write the value as JSON in braces");
    }
    return key_value(y, s);
}

static int yaml_parse(const char *text, size_t len, const char *name, json_t **out, struct err *e)
{
    struct yaml y = {.name = name, .root = json_object(), .e = e};
    const char *p = text, *end = text + len;
    int rc = 0;

    while (p < end && !rc) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p);
        char *line = mem_strndup(p, n);
        y.line++;
        rc = yaml_line(&y, line);
        mem_free(line);
        p += n + 1;
    }
    mem_free(y.list_key);
    if (rc) {
        json_decref(y.root);
        return rc;
    }
    *out = y.root;
    return 0;
}

int conf_file_parse(const char *text, size_t len, const char *name, json_t **out, struct err *e)
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
        return yaml_parse(text, len, name, out, e);
    }
    *out = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
    if (!*out) {
        return ERR(e, STATUS_INPUT, "%s:%d: %s", name, je.line, je.text);
    }
    return 0;
}

int conf_file_read(const char *path, json_t **out, struct err *e)
{
    char *data;
    size_t len;
    int b64 = strncmp(path, "base64:", 7) == 0;
    int rc =
        b64 ? base64_decode(path + 7, &data, &len, e) : fsio_read(path, MAX_FILE, &data, &len, e);
    if (rc) {
        return rc;
    }
    rc = conf_file_parse(data, len, b64 ? "base64 config" : path, out, e);
    mem_free(data);
    return rc;
}
