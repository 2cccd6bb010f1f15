/* Owns how options get their values: one path from text to field for every source, so a flag, an
 * environment variable and a config key cannot differ in what they accept. The conf owns every
 * string it puts into a struct; setting an option again frees the value before. */
#include "base/conf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/conf_file.h"
#include "base/conf_int.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/status.h"

/* Where a value comes from, for messages: "--lr", "MILES_LR", "file.yaml: lr". */
struct origin {
    enum conf_source source;
    const char *text;
};

const char *conf_env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static char *underscored(const char *name)
{
    char *s = mem_strdup(name);
    for (char *p = s; *p; p++) {
        if (*p == '-') {
            *p = '_';
        }
    }
    return s;
}

struct conf *conf_new(void)
{
    struct conf *c = mem_alloc(sizeof *c);
    map_init(&c->by_key);
    return c;
}

void conf_free(struct conf *c)
{
    if (!c) {
        return;
    }
    for (int i = 0; i < c->n; i++) {
        conf_value_clear(c->ents[i].o, c->ents[i].field);
        mem_free(c->ents[i].dest);
        mem_free(c->ents[i].name_);
    }
    map_fini(&c->by_key);
    mem_free(c->ents);
    for (int i = 0; i < c->nnoted; i++) {
        mem_free(c->noted[i].name);
        mem_free(c->noted[i].text);
    }
    mem_free(c->noted);
    mem_free(c->known);
    mem_free(c->args);
    mem_free(c);
}

/* --- tables --- */

void conf_add(struct conf *c, const struct conf_opt *opts, void *base)
{
    for (const struct conf_opt *o = opts; o->type != CONF_END; o++) {
        struct conf_entry *en;
        c->ents = mem_room(c->ents, sizeof *c->ents, c->n, &c->cap);
        en = &c->ents[c->n];
        en->o = o;
        en->field = (char *)base + o->offset;
        en->name_ = underscored(o->name);
        en->dest = o->dest ? mem_strdup(o->dest) : mem_strdup(en->name_);
        ASSERT(strlen(o->name) < CONF_MAX_NAME);
        ASSERT(map_put(&c->by_key, en->name_, strlen(en->name_), 2 * c->n));
        if (strcmp(en->dest, en->name_) != 0) {
            ASSERT(
                map_put(&c->by_key, en->dest, strlen(en->dest), 2 * c->n + (o->type == CONF_OFF)));
        }
        conf_value_init(o, en->field);
        if (o->def) {
            struct err e = {0};
            if (conf_value_text(en, o->def, o->name, &e)) {
                fprintf(stderr, "miles: default of %s\n", e.msg);
                ASSERT(!"a default must parse");
            }
        }
        c->n++;
    }
}

void conf_add_known(struct conf *c, const struct conf_known *known)
{
    size_t old = (size_t)c->nknown * sizeof *c->known;
    c->known = mem_realloc(c->known, old, old + sizeof *c->known);
    c->known[c->nknown++] = known;
}

void conf_positional(struct conf *c, int min, int max)
{
    c->min_args = min;
    c->max_args = max;
}

/* key with dashes or underscores; *plain tells that a CONF_OFF was named by its dest. */
static struct conf_entry *find(const struct conf *c, const char *key, size_t len, int *plain)
{
    char k[CONF_MAX_NAME];
    int64_t v;
    if (len >= sizeof k) {
        return NULL;
    }
    for (size_t i = 0; i < len; i++) {
        k[i] = key[i] == '-' ? '_' : key[i];
    }
    if (!map_get(&c->by_key, k, len, &v)) {
        return NULL;
    }
    *plain = (int)(v & 1);
    return c->ents[v / 2].o->type == CONF_PASS ? NULL : &c->ents[v / 2];
}

/* The entry that takes flags of this name for another program. */
static struct conf_entry *find_pass(const struct conf *c, const char *key, size_t len)
{
    for (int i = 0; i < c->n; i++) {
        if (c->ents[i].o->type == CONF_PASS && conf_name_same(c->ents[i].o->name, key, len)) {
            return &c->ents[i];
        }
    }
    return NULL;
}

/* Appends --key and its n values. */
static int pass_on(struct conf_entry *en, const char *key, size_t len, const char *const *tok,
                   int n, struct err *e)
{
    struct conf_strs *l = en->field;
    size_t old = (size_t)l->n * sizeof *l->v;
    char *flag = mem_alloc(len + 3);

    if (l->n + n + 1 > CONF_MAX_LIST) {
        mem_free(flag);
        return ERR(e, STATUS_INPUT, "--%s: more than %d words", en->o->name, (int)CONF_MAX_LIST);
    }
    l->v = mem_realloc(l->v, old, old + ((size_t)n + 1) * sizeof *l->v);
    memcpy(flag, "--", 2);
    for (size_t i = 0; i < len; i++) {
        flag[i + 2] = key[i] == '_' ? '-' : key[i];
    }
    l->v[l->n++] = flag;
    for (int i = 0; i < n; i++) {
        l->v[l->n++] = mem_strdup(tok[i]);
    }
    return 0;
}

/* --- environment --- */

static void env_name(const char *name, char *out, size_t cap)
{
    snprintf(out, cap, "MILES_%s", name);
    for (char *p = out; *p; p++) {
        if (*p == '-') {
            *p = '_';
        } else if (*p >= 'a' && *p <= 'z') {
            *p = (char)(*p - 'a' + 'A');
        }
    }
}

/* Value text for an entry named by its flag: --disable-x true means x is 0. */
static int set_named(struct conf_entry *en, int plain, const char *text, const struct origin *at,
                     struct err *e)
{
    int rc = conf_value_text(en, text, at->text, e);
    if (rc == 0) {
        if (en->o->type == CONF_OFF && !plain) {
            *(int *)en->field = !*(int *)en->field;
        }
        en->source = at->source;
    }
    return rc;
}

/* Names close to an option are likely slips; others are somebody else's variables. */
static void warn_env(const struct conf *c)
{
    extern char **environ;
    for (char **v = environ; v && *v; v++) {
        char key[CONF_MAX_NAME];
        size_t n = 0;
        int plain;
        const char *near;
        const char *p = *v + 6;
        if (strncmp(*v, "MILES_", 6) != 0) {
            continue;
        }
        for (; p[n] && p[n] != '=' && n < sizeof key - 1; n++) {
            key[n] = (char)(p[n] >= 'A' && p[n] <= 'Z' ? p[n] - 'A' + 'a' : p[n]);
        }
        if (p[n] != '=' || n < 4 || find(c, key, n, &plain) || conf_name_known(c, key, n)) {
            continue;
        }
        near = conf_name_near(c, key, n, 2);
        if (near) {
            char want[CONF_MAX_NAME + 8];
            env_name(near, want, sizeof want);
            log_warn(conf, "MILES_%.*s is no option; did you mean %s?", (int)n, p, want);
        }
    }
}

/* The text of an environment variable; lists are blank-separated, as those of options. */
static int env_known(struct conf *c, const struct conf_known *k, const char *text, const char *from,
                     struct err *e)
{
    int list = k->type == CONF_STRS || k->type == CONF_INTS;
    const char **tok = mem_alloc((CONF_MAX_LIST + 1) * sizeof *tok);
    char *copy = mem_strdup(text);
    int n = 1, rc;

    tok[0] = copy;
    if (list) {
        n = conf_value_words(copy, tok, CONF_MAX_LIST + 1);
    }
    rc = conf_name_answer(c, k, k->name, strlen(k->name), tok, n, from, e);
    mem_free(copy);
    mem_free(tok);
    return rc;
}

static int parse_env(struct conf *c, struct err *e)
{
    char name[CONF_MAX_NAME + 8];
    struct origin at = {CONF_FROM_ENV, name};
    int rc;

    for (int i = 0; i < c->n; i++) {
        struct conf_entry *en = &c->ents[i];
        const char *v;
        if (en->o->type == CONF_PASS) {
            continue;
        }
        env_name(en->o->name, name, sizeof name);
        v = conf_env(name);
        if (v && (rc = set_named(en, 0, v, &at, e)) != 0) {
            return rc;
        }
        if (strcmp(en->dest, en->name_) != 0) {
            env_name(en->dest, name, sizeof name);
            v = conf_env(name);
            if (v && (rc = set_named(en, 1, v, &at, e)) != 0) {
                return rc;
            }
        }
    }
    for (int i = 0; i < c->nknown; i++) {
        for (const struct conf_known *k = c->known[i]; k->name; k++) {
            const char *v;
            if (strchr(k->name, '*')) {
                continue;
            }
            env_name(k->name, name, sizeof name);
            v = conf_env(name);
            if (v && (rc = env_known(c, k, v, name, e)) != 0) {
                return rc;
            }
        }
    }
    warn_env(c);
    return 0;
}

/* --- config file --- */

/* Text of a scalar JSON value; 0 when it is none. */
static int json_text(const json_t *v, char *out, size_t cap)
{
    switch (json_typeof(v)) {
    case JSON_TRUE: snprintf(out, cap, "true"); return 1;
    case JSON_FALSE: snprintf(out, cap, "false"); return 1;
    case JSON_INTEGER: snprintf(out, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(v)); return 1;
    case JSON_REAL: snprintf(out, cap, "%.17g", json_real_value(v)); return 1;
    default: return 0;
    }
}

/* Words of a JSON value (a scalar is one word); *out and its strings are owned by the caller. */
static int json_words(const json_t *v, char ***out, int *n)
{
    size_t k = json_is_array(v) ? json_array_size(v) : 1;
    char **w = mem_alloc((k ? k : 1) * sizeof *w);
    for (size_t i = 0; i < k; i++) {
        const json_t *x = json_is_array(v) ? json_array_get(v, i) : v;
        char text[64];
        if (json_is_string(x)) {
            w[i] = mem_strdup(json_string_value(x));
        } else if (json_text(x, text, sizeof text)) {
            w[i] = mem_strdup(text);
        } else {
            while (i--) {
                mem_free(w[i]);
            }
            mem_free(w);
            return 0;
        }
    }
    *out = w;
    *n = (int)k;
    return 1;
}

static void free_words(char **w, int n)
{
    for (int i = 0; i < n; i++) {
        mem_free(w[i]);
    }
    mem_free(w);
}

static int set_from_json(struct conf_entry *en, int plain, const json_t *v, const char *from,
                         struct err *e)
{
    json_t *before = en->source == CONF_FROM_FLAG ? conf_value_json(en) : NULL;
    char **w;
    int n, rc;

    if (json_is_null(v)) {
        if (en->o->type == CONF_SWITCH || en->o->type == CONF_OFF) {
            return ERR(e, STATUS_INPUT, "%s: null is not true or false", from);
        }
        conf_value_clear(en->o, en->field);
        rc = 0;
    } else if (en->o->type == CONF_JSON && !json_is_string(v)) {
        json_t *copy = json_deep_copy(v);
        conf_value_clear(en->o, en->field);
        *(json_t **)en->field = copy;
        rc = 0;
    } else if (json_words(v, &w, &n)) {
        rc = json_is_array(v) && en->o->type != CONF_STRS && en->o->type != CONF_INTS
                 ? ERR(e, STATUS_INPUT, "%s takes one value, not a list", from)
                 : conf_value_set(en, (const char *const *)w, n, from, e);
        free_words(w, n);
        if (rc == 0 && en->o->type == CONF_OFF && !plain) {
            *(int *)en->field = !*(int *)en->field;
        }
    } else {
        rc = ERR(e, STATUS_INPUT, "%s: this kind of value does not fit the option", from);
    }
    if (rc == 0 && before) {
        json_t *after = conf_value_json(en);
        if (!json_equal(before, after)) {
            log_info(conf, "%s overrides --%s", from, en->o->name);
        }
        json_decref(after);
    }
    json_decref(before);
    en->source = rc == 0 ? CONF_FROM_FILE : en->source;
    return rc;
}

static int known_from_json(struct conf *c, const struct conf_known *k, const char *key,
                           const json_t *v, const char *from, struct err *e)
{
    char name[CONF_MAX_NAME], **w;
    int n, rc;

    if (json_is_null(v)) {
        return 0;
    }
    if (!json_words(v, &w, &n)) {
        return conf_name_refuse(k, from, e);
    }
    snprintf(name, sizeof name, "%s", key);
    for (char *p = name; *p; p++) {
        *p = *p == '_' ? '-' : *p;
    }
    rc = conf_name_answer(c, k, name, strlen(name), (const char *const *)w, n, from, e);
    free_words(w, n);
    return rc;
}

static int pass_from_json(struct conf_entry *en, const char *key, const json_t *v, const char *from,
                          struct err *e)
{
    char **w = NULL;
    int n = 0, rc;

    if (json_is_null(v) || json_is_false(v)) {
        return 0;
    }
    if (!json_is_true(v) && !json_words(v, &w, &n)) {
        return ERR(e, STATUS_INPUT, "%s: this kind of value does not fit a flag", from);
    }
    rc = pass_on(en, key, strlen(key), (const char *const *)w, n, e);
    free_words(w, n);
    en->source = CONF_FROM_FILE;
    return rc;
}

/* "file:line:column: key", as far as it is known. */
static void file_place(char *out, size_t cap, const char *file, const char *key, const json_t *at)
{
    if (at) {
        snprintf(out, cap, "%.300s:%d:%d: %.128s", file,
                 (int)json_integer_value(json_array_get(at, 0)),
                 (int)json_integer_value(json_array_get(at, 1)), key);
    } else {
        snprintf(out, cap, "%.300s: %.128s", file, key);
    }
}

static int parse_file(struct conf *c, struct err *e)
{
    int plain, rc;
    struct conf_entry *en = find(c, "custom-config-path", 18, &plain);
    const char *path = en && en->o->type == CONF_STR ? *(char **)en->field : NULL;
    json_t *root, *v, *places;
    const char *key, *shown;

    if (!path) {
        return 0;
    }
    places = json_object();
    rc = conf_file_read(path, &root, places, e);
    if (rc) {
        json_decref(places);
        return err_prefix(e, "--custom-config-path");
    }
    shown = strncmp(path, "base64:", 7) == 0 ? "base64 config" : path;
    json_object_foreach(root, key, v)
    {
        char from[512];
        struct conf_entry *x = find(c, key, strlen(key), &plain);
        const struct conf_known *k = x ? NULL : conf_name_known(c, key, strlen(key));
        struct conf_entry *pass = x || k ? NULL : find_pass(c, key, strlen(key));
        file_place(from, sizeof from, shown, key, json_object_get(places, key));
        if (x == en) {
            rc = ERR(e, STATUS_INPUT, "%s: a config file cannot name another", from);
        } else if (x) {
            rc = set_from_json(x, plain, v, from, e);
        } else if (k) {
            rc = known_from_json(c, k, key, v, from, e);
        } else if (pass) {
            rc = pass_from_json(pass, key, v, from, e);
        } else {
            rc = conf_name_unknown(c, key, strlen(key), from, e);
        }
        if (rc) {
            break;
        }
    }
    json_decref(root);
    json_decref(places);
    return rc;
}

/* --- flags --- */

struct argv_pos {
    int argc, i;
    char *const *argv;
};

static int is_flag(const char *s)
{
    return s[0] == '-' && s[1] == '-' && s[2];
}

/* Values behind a flag: the text after '=', else the words up to the next flag (lists) or one. */
static int take_values(struct argv_pos *p, const char *eq, int list, const char **tok, int max)
{
    int n = 0;
    if (eq) {
        tok[0] = eq + 1;
        return 1;
    }
    while (p->i + 1 < p->argc && n < (list ? max : 1)) {
        const char *s = p->argv[p->i + 1];
        if (is_flag(s) || strcmp(s, "--") == 0) {
            break;
        }
        tok[n++] = s;
        p->i++;
    }
    return n;
}

static int flag_value(struct conf_entry *en, struct argv_pos *p, const char *eq, const char *shown,
                      struct err *e)
{
    int list = en->o->type == CONF_STRS || en->o->type == CONF_INTS;
    const char **tok;
    int n, rc;

    if (conf_value_is_switch(en->o->type)) {
        if (eq) {
            return ERR(e, STATUS_INPUT, "%s is a switch and takes no value", shown);
        }
        *(int *)en->field = en->o->type != CONF_OFF;
        en->source = CONF_FROM_FLAG;
        return 0;
    }
    tok = mem_alloc((CONF_MAX_LIST + 1) * sizeof *tok);
    n = take_values(p, eq, list, tok, CONF_MAX_LIST + 1);
    if (n == 0 && en->o->type == CONF_MODE) {
        *(int *)en->field = 0;
        rc = 0;
    } else {
        rc = n == 0 ? ERR(e, STATUS_INPUT, "%s needs a value", shown)
                    : conf_value_set(en, tok, n, shown, e);
    }
    mem_free(tok);
    en->source = rc == 0 ? CONF_FROM_FLAG : en->source;
    return rc;
}

static int known_flag(struct conf *c, const struct conf_known *k, struct argv_pos *p,
                      const char *name, size_t len, const char *eq, const char *shown,
                      struct err *e)
{
    static const char *const yes[] = {"true"};
    const char **tok;
    int n, rc;

    if (conf_value_is_switch(k->type)) {
        return eq ? ERR(e, STATUS_INPUT, "%s is a switch and takes no value", shown)
                  : conf_name_answer(c, k, name, len, yes, 1, shown, e);
    }
    tok = mem_alloc((CONF_MAX_LIST + 1) * sizeof *tok);
    n = take_values(p, eq, k->type == CONF_STRS || k->type == CONF_INTS, tok, CONF_MAX_LIST + 1);
    rc = conf_name_answer(c, k, name, len, tok, n, shown, e);
    mem_free(tok);
    return rc;
}

static int pass_flag(struct conf_entry *en, struct argv_pos *p, const char *name, size_t len,
                     const char *eq, struct err *e)
{
    const char **tok = mem_alloc((CONF_MAX_LIST + 1) * sizeof *tok);
    int n = take_values(p, eq, 1, tok, CONF_MAX_LIST + 1);
    int rc = pass_on(en, name, len, tok, n, e);

    mem_free(tok);
    en->source = CONF_FROM_FLAG;
    return rc;
}

static int one_flag(struct conf *c, struct argv_pos *p, struct err *e)
{
    static const char *const no[] = {"false"};
    const char *name = p->argv[p->i] + 2;
    const char *eq = strchr(name, '=');
    size_t len = eq ? (size_t)(eq - name) : strlen(name);
    char shown[CONF_MAX_NAME + 8];
    const struct conf_known *k;
    struct conf_entry *en;
    int plain = 0;

    snprintf(shown, sizeof shown, "--%.*s", len > CONF_MAX_NAME ? CONF_MAX_NAME : (int)len, name);
    en = memchr(name, '_', len) ? NULL : find(c, name, len, &plain);
    if (en && !plain && strlen(en->o->name) == len) {
        return flag_value(en, p, eq, shown, e);
    }
    if (len > 3 && memcmp(name, "no-", 3) == 0) {
        en = find(c, name + 3, len - 3, &plain);
        if (en && en->o->type == CONF_BOOL) {
            if (eq) {
                return ERR(e, STATUS_INPUT, "%s is a switch and takes no value", shown);
            }
            *(int *)en->field = 0;
            en->source = CONF_FROM_FLAG;
            return 0;
        }
        k = conf_name_known(c, name + 3, len - 3);
        if (k && k->type == CONF_BOOL) {
            return eq ? ERR(e, STATUS_INPUT, "%s is a switch and takes no value", shown)
                      : conf_name_answer(c, k, k->name, strlen(k->name), no, 1, shown, e);
        }
    }
    k = memchr(name, '_', len) ? NULL : conf_name_known(c, name, len);
    en = k || memchr(name, '_', len) ? NULL : find_pass(c, name, len);
    return k    ? known_flag(c, k, p, name, len, eq, shown, e)
           : en ? pass_flag(en, p, name, len, eq, e)
                : conf_name_unknown(c, name, len, shown, e);
}

static int parse_argv(struct conf *c, int argc, char *const *argv, struct err *e)
{
    struct argv_pos p = {argc, 0, argv};
    int rest = 0;

    mem_free(c->args);
    c->args = mem_alloc(((size_t)argc + 1) * sizeof *c->args);
    c->nargs = 0;
    for (; p.i < argc; p.i++) {
        const char *s = argv[p.i];
        if (!rest && strcmp(s, "--") == 0) {
            rest = 1;
        } else if (!rest && is_flag(s)) {
            int rc = one_flag(c, &p, e);
            if (rc) {
                return rc;
            }
        } else if (!rest && s[0] == '-' && s[1]) {
            return conf_name_unknown(c, s + 1, strlen(s + 1), s, e);
        } else if (c->nargs >= c->max_args) {
            return ERR(e, STATUS_INPUT, "\"%.200s\" stands where no argument belongs", s);
        } else {
            c->args[c->nargs++] = s;
        }
    }
    if (c->nargs < c->min_args) {
        return ERR(e, STATUS_INPUT, "%d arguments are needed, %d were given", c->min_args,
                   c->nargs);
    }
    return 0;
}

int conf_parse(struct conf *c, int argc, char *const *argv, struct err *e)
{
    int rc;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0 ||
            strcmp(argv[i], "--help-markdown") == 0) {
            c->markdown = strcmp(argv[i], "--help-markdown") == 0;
            return STATUS_END;
        }
    }
    rc = parse_env(c, e);
    rc = rc ? rc : parse_argv(c, argc, argv, e);
    return rc ? rc : parse_file(c, e);
}

int conf_nargs(const struct conf *c)
{
    return c->nargs;
}

const char *conf_arg(const struct conf *c, int i)
{
    ASSERT(i >= 0 && i < c->nargs);
    return c->args[i];
}

enum conf_source conf_source(const struct conf *c, const char *name)
{
    int plain;
    struct conf_entry *en = find(c, name, strlen(name), &plain);
    ASSERT(en);
    return en->source;
}

int conf_is_set(const struct conf *c, const char *name)
{
    return conf_source(c, name) != CONF_FROM_DEFAULT;
}

/* --- output --- */

json_t *conf_dump_json(const struct conf *c)
{
    json_t *root = json_object();
    for (int i = 0; i < c->n; i++) {
        json_object_set_new(root, c->ents[i].dest, conf_value_json(&c->ents[i]));
    }
    return root;
}

json_t *conf_dump_sources(const struct conf *c)
{
    static const char *const names[] = {"default", "env", "flag", "file"};
    json_t *root = json_object();
    for (int i = 0; i < c->n; i++) {
        json_object_set_new(root, c->ents[i].dest, json_string(names[c->ents[i].source]));
    }
    return root;
}
