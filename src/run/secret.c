/* Owns what counts as a secret. */
#include "run/secret.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/mem.h"

#define SECRET_SHOWN "..."

/* Ends of names, with - read as _. */
static const char *const secret_ends[] = {
    "api_key",       "apikey",    "wandb_key", "access_key", "secret_key", "private_key",
    "password",      "passwd",    "secret",    "token",      "credential", "credentials",
    "authorization", "signature", "x_amz_sig", "bearer"};
/* Beginnings of values that say what they are, and how long such a value is at least. */
static const struct {
    const char *start;
    size_t min;
} secret_shapes[] = {{"sk-", 20},   {"hf_", 20},   {"ghp_", 20}, {"gho_", 20},  {"github_pat_", 20},
                     {"xoxb-", 20}, {"xoxp-", 20}, {"AKIA", 20}, {"glpat-", 20}};

static int secret_word(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-';
}

int secret_name(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof secret_ends / sizeof secret_ends[0]; i++) {
        const char *end = secret_ends[i];
        size_t len = strlen(end), k = 0;
        const char *tail = n >= len ? name + n - len : NULL;
        while (tail && k < len &&
               (tail[k] == '-' ? '_' : tolower((unsigned char)tail[k])) == end[k]) {
            k++;
        }
        /* a whole word of the name: token of hf_token, not of a made-up "brokentoken" */
        if (tail && k == len && (n == len || tail[-1] == '_' || tail[-1] == '-')) {
            return 1;
        }
    }
    return 0;
}

static int secret_shape(const char *value, size_t n)
{
    for (size_t i = 0; i < sizeof secret_shapes / sizeof secret_shapes[0]; i++) {
        size_t len = strlen(secret_shapes[i].start);
        if (n >= secret_shapes[i].min && memcmp(value, secret_shapes[i].start, len) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Where a value ends. */
static int secret_stops(char c)
{
    return isspace((unsigned char)c) || strchr("&\"'`,;)]}<>|", c) != NULL;
}

/* The value behind a name at text[at], if there is one: where it starts; 0: none. A flag's value
 * may follow a blank. */
static size_t secret_value(const char *text, size_t n, size_t name, size_t at)
{
    size_t v = at;
    int flag = name >= 2 && text[name - 1] == '-' && text[name - 2] == '-';

    flag |= at - name > 2 && text[name] == '-' && text[name + 1] == '-';
    if (v < n && (text[v] == '"' || text[v] == '\'')) { /* "name": or "name", */
        v++;
        flag |= v < n && text[v] == ',';
        v += v < n && text[v] == ',';
    }
    if (v < n && (text[v] == '=' || text[v] == ':')) {
        v++;
        flag = 1;
    }
    if (!flag) {
        return 0;
    }
    while (v < n && (text[v] == ' ' || text[v] == '"' || text[v] == '\'')) {
        v++;
    }
    if (n - v > 7 && strncasecmp(text + v, "bearer ", 7) == 0) {
        v += 7;
    }
    return v > at && v < n && !secret_stops(text[v]) ? v : 0;
}

/* Behind the user and password of a URL whose :// ends at `at`; 0: it has none. */
static size_t secret_userinfo(const char *text, size_t n, size_t at)
{
    for (size_t i = at; i < n && !secret_stops(text[i]) && text[i] != '/' && text[i] != '?'; i++) {
        if (text[i] == '@') {
            return i > at ? i : 0;
        }
    }
    return 0;
}

void secret_text(const char *text, size_t n, struct buf *out)
{
    size_t at = 0;

    while (at < n) {
        size_t end = at, v;
        if (n - at > 3 && memcmp(text + at, "://", 3) == 0) {
            buf_add(out, text + at, 3);
            at += 3;
            end = secret_userinfo(text, n, at);
            if (end) {
                buf_str(out, SECRET_SHOWN);
                at = end;
            }
            continue;
        }
        if (!secret_word(text[at])) {
            buf_char(out, text[at++]);
            continue;
        }
        while (end < n && secret_word(text[end])) {
            end++;
        }
        v = secret_name(text + at, end - at) ? secret_value(text, n, at, end) : 0;
        if (v) {
            buf_add(out, text + at, v - at);
            buf_str(out, SECRET_SHOWN);
            while (v < n && !secret_stops(text[v])) {
                v++;
            }
            end = v;
        } else if (secret_shape(text + at, end - at)) {
            buf_str(out, SECRET_SHOWN);
        } else {
            buf_add(out, text + at, end - at);
        }
        at = end;
    }
}

static json_t *secret_string(const char *text)
{
    struct buf b;
    json_t *j;

    buf_init(&b, strlen(text) * 4 + 64);
    secret_text(text, strlen(text), &b);
    j = json_string(b.data);
    buf_fini(&b);
    return j ? j : json_string(SECRET_SHOWN);
}

/* What stands for a string under a name; a new reference. */
static json_t *secret_shown(json_t *v, const char *name, int by_name)
{
    if (name && secret_name(name, strlen(name))) {
        return json_string(SECRET_SHOWN);
    }
    return by_name ? json_incref(v) : secret_string(json_string_value(v));
}

static void secret_walk(json_t *j, int by_name)
{
    if (json_is_object(j)) {
        const char *key;
        json_t *v;
        void *next;
        json_object_foreach_safe(j, next, key, v)
        {
            if (json_is_string(v)) {
                json_object_set_new(j, key, secret_shown(v, key, by_name));
            } else {
                secret_walk(v, by_name);
            }
        }
    } else if (json_is_array(j)) {
        for (size_t i = 0; i < json_array_size(j); i++) {
            json_t *v = json_array_get(j, i);
            const char *before = i ? json_string_value(json_array_get(j, i - 1)) : NULL;
            if (json_is_string(v)) { /* a list of flags: --api-key, then its value */
                before = before && before[0] == '-' ? before : NULL;
                json_array_set_new(j, i, secret_shown(v, before, by_name));
            } else {
                secret_walk(v, by_name);
            }
        }
    }
}

void secret_hide(json_t *j)
{
    secret_walk(j, 0);
}

void secret_hide_named(json_t *j)
{
    secret_walk(j, 1);
}
