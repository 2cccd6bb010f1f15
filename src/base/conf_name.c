/* Owns what is said to names that are no options: known flags of other programs, which are answered
 * and noted, and slips, which are refused with the nearest names. */
#include <string.h>

#include "base/buf.h"
#include "base/conf_int.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

int conf_name_same(const char *known, const char *key, size_t len)
{
    size_t i;
    for (i = 0; i < len && known[i]; i++) {
        if (known[i] == '*') {
            return 1;
        }
        if (known[i] != (key[i] == '_' ? '-' : key[i])) {
            return 0;
        }
    }
    return i == len && (!known[i] || known[i] == '*');
}

const struct conf_known *conf_name_known(const struct conf *c, const char *key, size_t len)
{
    for (int i = 0; i < c->nknown; i++) {
        for (const struct conf_known *k = c->known[i]; k->name; k++) {
            if (conf_name_same(k->name, key, len)) {
                return k;
            }
        }
    }
    return NULL;
}

static int min3(int a, int b, int c)
{
    a = a < b ? a : b;
    return a < c ? a : c;
}

/* Edits between two names; '-' and '_' are the same letter. */
static int distance(const char *a, size_t na, const char *b)
{
    int row[CONF_MAX_NAME + 1];
    size_t nb = strlen(b);
    nb = nb > CONF_MAX_NAME ? CONF_MAX_NAME : nb;
    na = na > CONF_MAX_NAME ? CONF_MAX_NAME : na;
    for (size_t j = 0; j <= nb; j++) {
        row[j] = (int)j;
    }
    for (size_t i = 1; i <= na; i++) {
        int diag = row[0];
        char ca = a[i - 1] == '_' ? '-' : a[i - 1];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            char cb = b[j - 1] == '_' ? '-' : b[j - 1];
            int next = min3(row[j] + 1, row[j - 1] + 1, diag + (ca != cb));
            diag = row[j];
            row[j] = next;
        }
    }
    return row[nb];
}

/* Names near to one that is not known, nearest first; '*' names none. */
struct near {
    const char *name[3];
    int dist[3];
    int n;
};

static void near_add(struct near *a, const char *key, size_t len, const char *name)
{
    /* a beginning of a name, as argparse would complete it, is nearer than any slip */
    int d = len >= 3 && strncmp(key, name, len) == 0 ? 0 : distance(key, len, name);
    int i = a->n;

    if (strchr(name, '*')) {
        return;
    }
    while (i > 0 && d < a->dist[i - 1]) {
        i--;
    }
    if (i == 3) {
        return;
    }
    a->n += a->n < 3;
    for (int j = a->n - 1; j > i; j--) {
        a->name[j] = a->name[j - 1];
        a->dist[j] = a->dist[j - 1];
    }
    a->name[i] = name;
    a->dist[i] = d;
}

static void nearest(const struct conf *c, const char *key, size_t len, struct near *a)
{
    memset(a, 0, sizeof *a);
    for (int i = 0; i < c->n; i++) {
        near_add(a, key, len, c->ents[i].o->name);
    }
    for (int i = 0; i < c->nknown; i++) {
        for (const struct conf_known *k = c->known[i]; k->name; k++) {
            near_add(a, key, len, k->name);
        }
    }
}

const char *conf_name_near(const struct conf *c, const char *key, size_t len, int most)
{
    struct near a;

    nearest(c, key, len, &a);
    return a.n && distance(key, len, a.name[0]) <= most ? a.name[0] : NULL;
}

int conf_name_unknown(const struct conf *c, const char *key, size_t len, const char *from,
                      struct err *e)
{
    char more[2 * (CONF_MAX_NAME + 4)] = "";
    struct near a;

    nearest(c, key, len, &a);
    if (!a.n) {
        return ERR(e, STATUS_INPUT, "unknown option %.200s: there are none here", from);
    }
    for (int i = 1; i < a.n && a.dist[i] <= a.dist[0] + 1 && a.dist[i] * 3 < (int)len; i++) {
        size_t at = strlen(more);
        snprintf(more + at, sizeof more - at, ", --%s", a.name[i]);
    }
    return ERR(e, STATUS_INPUT, "unknown option %.200s; the nearest known one%s --%s%s", from,
               *more ? "s are" : " is", a.name[0], more);
}

static char *join_words(const char *const *tok, int n)
{
    struct buf b;
    char *s;

    buf_init(&b, CONF_MAX_TEXT);
    for (int i = 0; i < n; i++) {
        buf_str(&b, i ? " " : "");
        buf_str(&b, tok[i]);
    }
    s = mem_strdup(buf_status(&b) == 0 ? b.data : "");
    buf_fini(&b);
    return s;
}

/* 1 when the text is what the known flag has by default. */
static int known_default(const struct conf_known *k, const char *text)
{
    double x, y;

    if (k->type == CONF_SWITCH) {
        return conf_value_bool(text) == 0;
    }
    if (!k->def) {
        return 0;
    }
    if (k->type == CONF_BOOL) {
        return conf_value_bool(text) == conf_value_bool(k->def);
    }
    if ((k->type == CONF_INT || k->type == CONF_FLOAT) && conf_parse_float(text, &x) == 0) {
        return conf_parse_float(k->def, &y) == 0 && x == y;
    }
    return strcmp(text, k->def) == 0;
}

int conf_name_refuse(const struct conf_known *k, const char *from, struct err *e)
{
    const char *why = k->why ? k->why : "";
    const char *colon = k->why ? ": " : "";

    if (k->answer == CONF_NEVER) {
        return ERR(e, STATUS_UNSUPPORTED, "%.200s does not apply here%s%s", from, colon, why);
    }
    if (k->def) {
        return ERR(e, STATUS_UNSUPPORTED,
                   "%.200s is known, not supported yet (only its default, %s, is)%s%s", from,
                   k->def, colon, why);
    }
    return ERR(e, STATUS_UNSUPPORTED, "%.200s is known, not supported yet%s%s", from, colon, why);
}

/* A value that goes nowhere must still be one: it is parsed into a field that nobody reads. */
static int known_value(const struct conf_known *k, const char *const *tok, int n, const char *from,
                       struct err *e)
{
    union {
        int i;
        int64_t n;
        double x;
        char *s;
        struct conf_strs strs;
        struct conf_ints ints;
        json_t *json;
    } field;
    struct conf_opt o = {.name = k->name, .type = k->type, .range = k->range};
    struct conf_entry en = {.o = &o, .field = &field};
    int rc;

    conf_value_init(&o, &field);
    rc = conf_value_set(&en, tok, n, from, e);
    conf_value_clear(&o, &field);
    return rc;
}

static void note(struct conf *c, const struct conf_known *k, const char *name, size_t len,
                 char *text)
{
    struct conf_note *t = NULL;

    for (int i = 0; i < c->nnoted && !t; i++) {
        if (strlen(c->noted[i].name) == len && memcmp(c->noted[i].name, name, len) == 0) {
            t = &c->noted[i];
            mem_free(t->text);
        }
    }
    if (!t) {
        size_t old = (size_t)c->nnoted * sizeof *c->noted;
        c->noted = mem_realloc(c->noted, old, old + sizeof *c->noted);
        t = &c->noted[c->nnoted++];
        t->name = mem_strndup(name, len);
    }
    t->k = k;
    t->text = text;
}

/* What is said to a known flag, given as `name` with n words; switches have the word true or
 * false. */
int conf_name_answer(struct conf *c, const struct conf_known *k, const char *name, size_t len,
                     const char *const *tok, int n, const char *from, struct err *e)
{
    char *text;
    int rc;

    if (n == 0 && k->answer == CONF_NOTED && !strchr(k->name, '*')) {
        return ERR(e, STATUS_INPUT, "%.200s needs a value", from);
    }
    text = join_words(tok, n);
    if (known_default(k, text)) {
        mem_free(text);
        return 0;
    }
    rc = k->answer == CONF_NOTED ? known_value(k, tok, n, from, e) : conf_name_refuse(k, from, e);
    if (rc) {
        mem_free(text);
        return rc;
    }
    if (conf_value_is_switch(k->type) || n == 0) {
        log_info(conf, "%s: no effect here: %s", from, k->why);
    } else {
        log_info(conf, "%s %s: no effect here: %s", from, text, k->why);
    }
    note(c, k, name, len, text);
    return 0;
}

const char *conf_noted(const struct conf *c, const char *name)
{
    for (int i = 0; i < c->nnoted; i++) {
        if (strcmp(c->noted[i].name, name) == 0) {
            return c->noted[i].text;
        }
    }
    return NULL;
}

json_t *conf_dump_noted(const struct conf *c)
{
    json_t *root = json_object();
    for (int i = 0; i < c->nnoted; i++) {
        json_t *s = json_string(c->noted[i].text);
        json_object_set_new(root, c->noted[i].name, s ? s : json_string("(not utf-8)"));
    }
    return root;
}
