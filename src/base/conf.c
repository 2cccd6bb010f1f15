/* Owns how options get their values: one path from text to field for every source, so a flag, an
 * environment variable and a config key cannot differ in what they accept. The conf owns every
 * string it puts into a struct; setting an option again frees the value before. */
#include "base/conf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
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

int conf_parse_int(const char *text, int64_t *out)
{
    const char *p = text + (*text == '-' || *text == '+');
    char *end;
    long long v;

    if (!*p || p[strspn(p, "0123456789")]) {
        return STATUS_INPUT;
    }
    errno = 0;
    v = strtoll(text, &end, 10);
    if (errno || v == CONF_UNSET) {
        return STATUS_INPUT;
    }
    *out = v;
    return 0;
}

int conf_parse_float(const char *text, double *out)
{
    char *end;
    double v;

    /* keeps out hexadecimal, "inf", "nan" and blanks in front */
    if (!*text || text[strspn(text, "0123456789+-.eE")]) {
        return STATUS_INPUT;
    }
    v = strtod(text, &end);
    if (*end || !isfinite(v)) {
        return STATUS_INPUT;
    }
    *out = v;
    return 0;
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

static void clear_field(const struct conf_opt *o, void *field)
{
    switch (o->type) {
    case CONF_SWITCH: *(int *)field = 0; break;
    case CONF_OFF: *(int *)field = 1; break;
    case CONF_BOOL:
    case CONF_CHOICE:
    case CONF_MODE: *(int *)field = -1; break;
    case CONF_INT: *(int64_t *)field = CONF_UNSET; break;
    case CONF_FLOAT: *(double *)field = (double)NAN; break;
    case CONF_STR:
    case CONF_PATH:
        mem_free(*(char **)field);
        *(char **)field = NULL;
        break;
    case CONF_STRS:
    case CONF_PASS: {
        struct conf_strs *l = field;
        for (int64_t i = 0; i < l->n; i++) {
            mem_free(l->v[i]);
        }
        mem_free(l->v);
        memset(l, 0, sizeof *l);
        break;
    }
    case CONF_INTS:
        mem_free(((struct conf_ints *)field)->v);
        memset(field, 0, sizeof(struct conf_ints));
        break;
    case CONF_JSON:
        json_decref(*(json_t **)field);
        *(json_t **)field = NULL;
        break;
    case CONF_END: break;
    }
}

void conf_free(struct conf *c)
{
    if (!c) {
        return;
    }
    for (int i = 0; i < c->n; i++) {
        clear_field(c->ents[i].o, c->ents[i].field);
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

/* The pointer kinds start as NULL whatever the caller's memory held. */
static void init_field(const struct conf_opt *o, void *field)
{
    switch (o->type) {
    case CONF_STR:
    case CONF_PATH: *(char **)field = NULL; break;
    case CONF_STRS:
    case CONF_PASS: memset(field, 0, sizeof(struct conf_strs)); break;
    case CONF_INTS: memset(field, 0, sizeof(struct conf_ints)); break;
    case CONF_JSON: *(json_t **)field = NULL; break;
    default: break;
    }
    clear_field(o, field);
}

/* --- one value from text --- */

/* Splits "[lo,hi)" in place; returns 0 when the text is no range. */
static int split_range(char *r, char **lo, char **hi, int *lo_open, int *hi_open)
{
    size_t n = strlen(r);
    char *comma = strchr(r, ',');
    if (n < 5 || !comma || !strchr("[(", r[0]) || !strchr("])", r[n - 1])) {
        return 0;
    }
    *lo_open = r[0] == '(';
    *hi_open = r[n - 1] == ')';
    *comma = r[n - 1] = 0;
    *lo = r + 1;
    *hi = comma + 1;
    return 1;
}

static double bound(const char *s)
{
    double v = 0;
    if (strcmp(s, "inf") == 0) {
        return HUGE_VAL;
    }
    if (strcmp(s, "-inf") == 0) {
        return -HUGE_VAL;
    }
    ASSERT(conf_parse_float(s, &v) == 0);
    return v;
}

static int in_range_float(const char *range, double v)
{
    char r[64], *lo, *hi;
    int lo_open, hi_open;
    if (!range) {
        return 1;
    }
    snprintf(r, sizeof r, "%s", range);
    ASSERT(split_range(r, &lo, &hi, &lo_open, &hi_open));
    return (lo_open ? v > bound(lo) : v >= bound(lo)) && (hi_open ? v < bound(hi) : v <= bound(hi));
}

/* Whole bounds are compared as integers: a double cannot tell 2^63 - 1 from 2^63. */
static int in_range_int(const char *range, int64_t v)
{
    char r[64], *lo, *hi;
    int lo_open, hi_open;
    int64_t b;
    if (!range) {
        return 1;
    }
    snprintf(r, sizeof r, "%s", range);
    ASSERT(split_range(r, &lo, &hi, &lo_open, &hi_open));
    if (strcmp(lo, "-inf") != 0) {
        ASSERT(conf_parse_int(lo, &b) == 0);
        if (lo_open ? v <= b : v < b) {
            return 0;
        }
    }
    if (strcmp(hi, "inf") != 0) {
        ASSERT(conf_parse_int(hi, &b) == 0);
        if (hi_open ? v >= b : v > b) {
            return 0;
        }
    }
    return 1;
}

static int set_int(const struct conf_opt *o, const char *t, int64_t *out, const char *from,
                   struct err *e)
{
    int64_t v;
    if (conf_parse_int(t, &v)) {
        return ERR(e, STATUS_INPUT, "%s: \"%.100s\" is not a whole number", from, t);
    }
    if (!in_range_int(o->range, v)) {
        return ERR(e, STATUS_INPUT, "%s: %.100s is outside %s", from, t, o->range);
    }
    *out = v;
    return 0;
}

static int set_float(const struct conf_opt *o, const char *t, double *out, const char *from,
                     struct err *e)
{
    double v;
    if (conf_parse_float(t, &v)) {
        return ERR(e, STATUS_INPUT, "%s: \"%.100s\" is not a finite number", from, t);
    }
    if (!in_range_float(o->range, v)) {
        return ERR(e, STATUS_INPUT, "%s: %.100s is outside %s", from, t, o->range);
    }
    *out = v;
    return 0;
}

static int choice_index(const char *choices, const char *t)
{
    size_t n = strlen(t);
    const char *p = choices;
    for (int i = 0;; i++) {
        size_t k = strcspn(p, "|");
        if (k == n && memcmp(p, t, n) == 0) {
            return i;
        }
        if (!p[k]) {
            return -1;
        }
        p += k + 1;
    }
}

static int choice_name(const char *choices, int index, char *out, size_t cap)
{
    const char *p = choices;
    for (int i = 0; i < index; i++) {
        p += strcspn(p, "|");
        if (!*p) {
            return 0;
        }
        p++;
    }
    snprintf(out, cap, "%.*s", (int)strcspn(p, "|"), p);
    return index >= 0;
}

static int parse_bool(const char *t)
{
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    for (int i = 0; i < 8; i++) {
        if (strcasecmp(t, words[i]) == 0) {
            return i & 1;
        }
    }
    return -1;
}

static int check_template(const char *t, const char *from, struct err *e)
{
    static const char id[] = "{rollout_id}";
    for (const char *p = t; *p; p++) {
        if (*p == '{' && strncmp(p, id, sizeof id - 1) == 0) {
            p += sizeof id - 2;
        } else if ((*p == '{' || *p == '}') && p[1] == *p) {
            p++;
        } else if (*p == '{' || *p == '}') {
            return ERR(e, STATUS_INPUT,
                       "%s: \"%.200s\" has a brace that is not {rollout_id} (write {{ for a brace)",
                       from, t);
        }
    }
    return 0;
}

static int set_list(const struct conf_opt *o, void *field, const char *const *tok, int n,
                    const char *from, struct err *e)
{
    if (n > CONF_MAX_LIST) {
        return ERR(e, STATUS_INPUT, "%s: more than %d values", from, (int)CONF_MAX_LIST);
    }
    if (o->type == CONF_STRS) {
        struct conf_strs l = {mem_alloc((size_t)n * sizeof(char *)), n};
        for (int i = 0; i < n; i++) {
            l.v[i] = mem_strdup(tok[i]);
        }
        clear_field(o, field);
        *(struct conf_strs *)field = l;
    } else {
        struct conf_ints l = {mem_alloc((size_t)n * sizeof(int64_t)), n};
        for (int i = 0; i < n; i++) {
            int rc = set_int(o, tok[i], &l.v[i], from, e);
            if (rc) {
                mem_free(l.v);
                return rc;
            }
        }
        clear_field(o, field);
        *(struct conf_ints *)field = l;
    }
    return 0;
}

static int set_json(void *field, const char *t, const char *from, struct err *e)
{
    json_error_t je;
    json_t *v = json_loads(t, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &je);
    if (!v) {
        return ERR(e, STATUS_INPUT, "%s: not JSON: %s", from, je.text);
    }
    json_decref(*(json_t **)field);
    *(json_t **)field = v;
    return 0;
}

/* The only way into a field. n values; lists take all, the others exactly one. */
static int set_tokens(const struct conf_entry *en, const char *const *tok, int n, const char *from,
                      struct err *e)
{
    const struct conf_opt *o = en->o;
    int rc = 0, b;

    if (o->type == CONF_STRS || o->type == CONF_INTS) {
        return set_list(o, en->field, tok, n, from, e);
    }
    if (n != 1) {
        return ERR(e, STATUS_INPUT, "%s takes one value, %d were given", from, n);
    }
    switch (o->type) {
    case CONF_SWITCH:
    case CONF_OFF:
    case CONF_BOOL:
        b = parse_bool(tok[0]);
        if (b < 0) {
            return ERR(e, STATUS_INPUT, "%s: \"%.100s\" is not true or false", from, tok[0]);
        }
        *(int *)en->field = b;
        break;
    case CONF_INT: rc = set_int(o, tok[0], en->field, from, e); break;
    case CONF_FLOAT: rc = set_float(o, tok[0], en->field, from, e); break;
    case CONF_CHOICE:
    case CONF_MODE:
        b = choice_index(o->range, tok[0]);
        if (b < 0) {
            return ERR(e, STATUS_INPUT, "%s: \"%.100s\" is none of %s", from, tok[0], o->range);
        }
        *(int *)en->field = b;
        break;
    case CONF_PATH:
        rc = check_template(tok[0], from, e);
        if (rc) {
            break;
        }
        /* fall through */
    case CONF_STR:
        clear_field(o, en->field);
        *(char **)en->field = mem_strdup(tok[0]);
        break;
    case CONF_JSON: rc = set_json(en->field, tok[0], from, e); break;
    default: ASSERT(0);
    }
    return rc;
}

/* A blank-separated text into tokens inside `copy`; returns their number. */
static int split_words(char *copy, const char **tok, int max)
{
    int n = 0;
    for (char *p = copy; *p;) {
        p += strspn(p, " ");
        if (!*p || n == max) {
            break;
        }
        tok[n++] = p;
        p += strcspn(p, " ");
        if (*p) {
            *p++ = 0;
        }
    }
    return n;
}

/* Text from the environment or a default: lists are blank-separated. */
static int set_text(const struct conf_entry *en, const char *text, const char *from, struct err *e)
{
    const char **tok;
    char *copy;
    int n, rc;

    if (en->o->type != CONF_STRS && en->o->type != CONF_INTS) {
        return set_tokens(en, &text, 1, from, e);
    }
    tok = mem_alloc((CONF_MAX_LIST + 1) * sizeof *tok);
    copy = mem_strdup(text);
    n = split_words(copy, tok, CONF_MAX_LIST + 1);
    rc = set_tokens(en, tok, n, from, e);
    mem_free(copy);
    mem_free(tok);
    return rc;
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
        init_field(o, en->field);
        if (o->def) {
            struct err e = {0};
            if (set_text(en, o->def, o->name, &e)) {
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

static int same_key(const char *known, const char *key, size_t len)
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

static const struct conf_known *find_known(const struct conf *c, const char *key, size_t len)
{
    for (int i = 0; i < c->nknown; i++) {
        for (const struct conf_known *k = c->known[i]; k->name; k++) {
            if (same_key(k->name, key, len)) {
                return k;
            }
        }
    }
    return NULL;
}

/* The entry that takes flags of this name for another program. */
static struct conf_entry *find_pass(const struct conf *c, const char *key, size_t len)
{
    for (int i = 0; i < c->n; i++) {
        if (c->ents[i].o->type == CONF_PASS && same_key(c->ents[i].o->name, key, len)) {
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

static int unknown(const struct conf *c, const char *key, size_t len, const char *from,
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

/* --- known flags --- */

static int is_switch(enum conf_type t)
{
    return t == CONF_SWITCH || t == CONF_BOOL || t == CONF_OFF;
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
        return parse_bool(text) == 0;
    }
    if (!k->def) {
        return 0;
    }
    if (k->type == CONF_BOOL) {
        return parse_bool(text) == parse_bool(k->def);
    }
    if ((k->type == CONF_INT || k->type == CONF_FLOAT) && conf_parse_float(text, &x) == 0) {
        return conf_parse_float(k->def, &y) == 0 && x == y;
    }
    return strcmp(text, k->def) == 0;
}

static int refuse_known(const struct conf_known *k, const char *from, struct err *e)
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

    init_field(&o, &field);
    rc = set_tokens(&en, tok, n, from, e);
    clear_field(&o, &field);
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
static int answer_known(struct conf *c, const struct conf_known *k, const char *name, size_t len,
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
    rc = k->answer == CONF_NOTED ? known_value(k, tok, n, from, e) : refuse_known(k, from, e);
    if (rc) {
        mem_free(text);
        return rc;
    }
    if (is_switch(k->type) || n == 0) {
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
    int rc = set_text(en, text, at->text, e);
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
        struct near near;
        const char *p = *v + 6;
        if (strncmp(*v, "MILES_", 6) != 0) {
            continue;
        }
        for (; p[n] && p[n] != '=' && n < sizeof key - 1; n++) {
            key[n] = (char)(p[n] >= 'A' && p[n] <= 'Z' ? p[n] - 'A' + 'a' : p[n]);
        }
        if (p[n] != '=' || n < 4 || find(c, key, n, &plain) || find_known(c, key, n)) {
            continue;
        }
        nearest(c, key, n, &near);
        if (near.n && distance(key, n, near.name[0]) <= 2) {
            char want[CONF_MAX_NAME + 8];
            env_name(near.name[0], want, sizeof want);
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
        n = split_words(copy, tok, CONF_MAX_LIST + 1);
    }
    rc = answer_known(c, k, k->name, strlen(k->name), tok, n, from, e);
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

static json_t *entry_json(const struct conf_entry *en);

static int set_from_json(struct conf_entry *en, int plain, const json_t *v, const char *from,
                         struct err *e)
{
    json_t *before = en->source == CONF_FROM_FLAG ? entry_json(en) : NULL;
    char **w;
    int n, rc;

    if (json_is_null(v)) {
        if (en->o->type == CONF_SWITCH || en->o->type == CONF_OFF) {
            return ERR(e, STATUS_INPUT, "%s: null is not true or false", from);
        }
        clear_field(en->o, en->field);
        rc = 0;
    } else if (en->o->type == CONF_JSON && !json_is_string(v)) {
        json_t *copy = json_deep_copy(v);
        clear_field(en->o, en->field);
        *(json_t **)en->field = copy;
        rc = 0;
    } else if (json_words(v, &w, &n)) {
        rc = json_is_array(v) && en->o->type != CONF_STRS && en->o->type != CONF_INTS
                 ? ERR(e, STATUS_INPUT, "%s takes one value, not a list", from)
                 : set_tokens(en, (const char *const *)w, n, from, e);
        free_words(w, n);
        if (rc == 0 && en->o->type == CONF_OFF && !plain) {
            *(int *)en->field = !*(int *)en->field;
        }
    } else {
        rc = ERR(e, STATUS_INPUT, "%s: this kind of value does not fit the option", from);
    }
    if (rc == 0 && before) {
        json_t *after = entry_json(en);
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
        return refuse_known(k, from, e);
    }
    snprintf(name, sizeof name, "%s", key);
    for (char *p = name; *p; p++) {
        *p = *p == '_' ? '-' : *p;
    }
    rc = answer_known(c, k, name, strlen(name), (const char *const *)w, n, from, e);
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
        const struct conf_known *k = x ? NULL : find_known(c, key, strlen(key));
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
            rc = unknown(c, key, strlen(key), from, e);
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

    if (is_switch(en->o->type)) {
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
                    : set_tokens(en, tok, n, shown, e);
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

    if (is_switch(k->type)) {
        return eq ? ERR(e, STATUS_INPUT, "%s is a switch and takes no value", shown)
                  : answer_known(c, k, name, len, yes, 1, shown, e);
    }
    tok = mem_alloc((CONF_MAX_LIST + 1) * sizeof *tok);
    n = take_values(p, eq, k->type == CONF_STRS || k->type == CONF_INTS, tok, CONF_MAX_LIST + 1);
    rc = answer_known(c, k, name, len, tok, n, shown, e);
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
        k = find_known(c, name + 3, len - 3);
        if (k && k->type == CONF_BOOL) {
            return eq ? ERR(e, STATUS_INPUT, "%s is a switch and takes no value", shown)
                      : answer_known(c, k, k->name, strlen(k->name), no, 1, shown, e);
        }
    }
    k = memchr(name, '_', len) ? NULL : find_known(c, name, len);
    en = k || memchr(name, '_', len) ? NULL : find_pass(c, name, len);
    return k    ? known_flag(c, k, p, name, len, eq, shown, e)
           : en ? pass_flag(en, p, name, len, eq, e)
                : unknown(c, name, len, shown, e);
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
            return unknown(c, s + 1, strlen(s + 1), s, e);
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

static json_t *entry_json(const struct conf_entry *en)
{
    const void *f = en->field;
    char name[CONF_MAX_NAME];
    json_t *a;

    switch (en->o->type) {
    case CONF_SWITCH:
    case CONF_OFF: return json_boolean(*(const int *)f);
    case CONF_BOOL: return *(const int *)f < 0 ? json_null() : json_boolean(*(const int *)f);
    case CONF_INT:
        return *(const int64_t *)f == CONF_UNSET ? json_null() : json_integer(*(const int64_t *)f);
    case CONF_FLOAT:
        return isfinite(*(const double *)f) ? json_real(*(const double *)f) : json_null();
    case CONF_STR:
    case CONF_PATH:
        a = *(char *const *)f ? json_string(*(char *const *)f) : json_null();
        return a ? a : json_string("(not utf-8)");
    case CONF_CHOICE:
    case CONF_MODE:
        return choice_name(en->o->range, *(const int *)f, name, sizeof name) ? json_string(name)
                                                                             : json_null();
    case CONF_STRS:
    case CONF_PASS: {
        const struct conf_strs *l = f;
        if (!l->v) {
            return json_null();
        }
        a = json_array();
        for (int64_t i = 0; i < l->n; i++) {
            json_t *s = json_string(l->v[i]);
            json_array_append_new(a, s ? s : json_string("(not utf-8)"));
        }
        return a;
    }
    case CONF_INTS: {
        const struct conf_ints *l = f;
        if (!l->v) {
            return json_null();
        }
        a = json_array();
        for (int64_t i = 0; i < l->n; i++) {
            json_array_append_new(a, json_integer(l->v[i]));
        }
        return a;
    }
    case CONF_JSON: return *(json_t *const *)f ? json_deep_copy(*(json_t *const *)f) : json_null();
    default: return json_null();
    }
}

json_t *conf_dump_json(const struct conf *c)
{
    json_t *root = json_object();
    for (int i = 0; i < c->n; i++) {
        json_object_set_new(root, c->ents[i].dest, entry_json(&c->ents[i]));
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

char *conf_expand(const char *template_, const char *rollout_id)
{
    static const char id[] = "{rollout_id}";
    struct buf b;
    char *s;

    buf_init(&b, CONF_MAX_TEXT);
    for (const char *p = template_; *p; p++) {
        if (strncmp(p, id, sizeof id - 1) == 0) {
            buf_str(&b, rollout_id);
            p += sizeof id - 2;
        } else {
            if ((*p == '{' || *p == '}') && p[1] == *p) {
                p++;
            }
            buf_char(&b, *p);
        }
    }
    s = buf_status(&b) == 0 ? mem_strdup(b.data) : mem_strdup("");
    buf_fini(&b);
    return s;
}
