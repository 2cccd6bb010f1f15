/* Owns the way from text to a field, by the option's type, and back: ranges, choices, lists, JSON,
 * templates. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/conf_int.h"
#include "base/mem.h"
#include "base/status.h"

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

void conf_value_clear(const struct conf_opt *o, void *field)
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

/* The pointer kinds start as NULL whatever the caller's memory held. */
void conf_value_init(const struct conf_opt *o, void *field)
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
    conf_value_clear(o, field);
}

int conf_value_is_switch(enum conf_type t)
{
    return t == CONF_SWITCH || t == CONF_BOOL || t == CONF_OFF;
}

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

int conf_value_bool(const char *t)
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
        conf_value_clear(o, field);
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
        conf_value_clear(o, field);
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
int conf_value_set(const struct conf_entry *en, const char *const *tok, int n, const char *from,
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
        b = conf_value_bool(tok[0]);
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
        conf_value_clear(o, en->field);
        *(char **)en->field = mem_strdup(tok[0]);
        break;
    case CONF_JSON: rc = set_json(en->field, tok[0], from, e); break;
    default: ASSERT(0);
    }
    return rc;
}

/* A blank-separated text into tokens inside `copy`; returns their number. */
int conf_value_words(char *copy, const char **tok, int max)
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
int conf_value_text(const struct conf_entry *en, const char *text, const char *from, struct err *e)
{
    const char **tok;
    char *copy;
    int n, rc;

    if (en->o->type != CONF_STRS && en->o->type != CONF_INTS) {
        return conf_value_set(en, &text, 1, from, e);
    }
    tok = mem_alloc((CONF_MAX_LIST + 1) * sizeof *tok);
    copy = mem_strdup(text);
    n = conf_value_words(copy, tok, CONF_MAX_LIST + 1);
    rc = conf_value_set(en, tok, n, from, e);
    mem_free(copy);
    mem_free(tok);
    return rc;
}

json_t *conf_value_json(const struct conf_entry *en)
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
