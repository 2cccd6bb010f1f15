/* Owns the training data in memory and the order in which it is served. The file is parsed whole at
 * open: a bad line stops the run before the first token is sampled, not at step 900. The order of
 * an epoch is a function of (seed, epoch, rows), so the cursor is four numbers. */
#include "rl/prompts.h"

#include <stdio.h>
#include <string.h>

#include "base/conf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"

#define MAX_LINE ((size_t)64 << 20)
#define MAX_ROWS ((int64_t)1 << 28)
#define MAX_NEXT ((int64_t)1 << 24)

struct prompts {
    struct prompts_row *rows;
    int64_t n, cap, dropped;
    int shuffle;
    uint64_t seed;
    int64_t group_size;
    int64_t *order; /* of the current epoch */
    int64_t offset, epoch, group_index, index;
};

/* Python slice bounds; CONF_UNSET where left out. */
struct slice {
    int64_t from, to;
};

/* What a load needs besides the source. */
struct load {
    const struct prompts_opts *o;
    char *path;
    const char *input_key, *metadata_key, *tool_key;
    struct slice slice;
    struct err *e;
};

/* --- one row --- */

static int row_err(const struct load *l, int64_t line, const char *fmt, const char *arg)
{
    char what[512];
    snprintf(what, sizeof what, fmt, arg);
    return ERR(l->e, STATUS_INPUT, "%.400s:%lld: %s", l->path, (long long)line, what);
}

static int check_prompt(const struct load *l, int64_t line, const json_t *p)
{
    size_t i;
    json_t *m;

    if (json_is_string(p)) {
        return 0;
    }
    if (!json_is_array(p) || json_array_size(p) == 0) {
        return row_err(l, line, "\"%.100s\" is neither text nor a list of messages", l->input_key);
    }
    json_array_foreach(p, i, m)
    {
        if (!json_is_object(m) || !json_is_string(json_object_get(m, "role"))) {
            return row_err(l, line, "\"%.100s\" has a message without a role", l->input_key);
        }
    }
    return 0;
}

/* Tools may be a list, or that list written as JSON text. */
static int take_tools(const struct load *l, int64_t line, json_t *v, json_t **out)
{
    json_t *list;

    if (!v || json_is_null(v)) {
        return 0;
    }
    list = json_is_string(v) ? json_loads(json_string_value(v), 0, NULL) : json_incref(v);
    if (!list) {
        return row_err(l, line, "\"%.100s\" is text that is not JSON", l->tool_key);
    }
    if (!json_is_array(list)) {
        json_decref(list);
        return row_err(l, line, "\"%.100s\" is not a list of tools", l->tool_key);
    }
    *out = list;
    return 0;
}

static int take_metadata(const struct load *l, int64_t line, json_t *v, json_t **out)
{
    if (!v || json_is_null(v)) {
        *out = json_object();
    } else if (json_is_object(v)) {
        *out = json_incref(v);
    } else {
        return row_err(l, line, "\"%.100s\" is not an object", l->metadata_key);
    }
    return 0;
}

static void row_fini(struct prompts_row *r)
{
    json_decref(r->prompt);
    json_decref(r->label);
    json_decref(r->metadata);
    json_decref(r->tools);
    memset(r, 0, sizeof *r);
}

static int fill_row(const struct load *l, json_t *obj, int64_t line, struct prompts_row *r)
{
    json_t *prompt = json_object_get(obj, l->input_key);
    json_t *label = l->o->label_key ? json_object_get(obj, l->o->label_key) : NULL;
    int rc;

    if (!prompt) {
        return row_err(l, line, "no key \"%.100s\" (--input-key)", l->input_key);
    }
    if (l->o->label_key && !label) {
        return row_err(l, line, "no key \"%.100s\" (--label-key)", l->o->label_key);
    }
    rc = check_prompt(l, line, prompt);
    rc = rc ? rc : take_metadata(l, line, json_object_get(obj, l->metadata_key), &r->metadata);
    rc = rc ? rc : take_tools(l, line, json_object_get(obj, l->tool_key), &r->tools);
    if (rc == 0) {
        r->prompt = json_incref(prompt);
        r->label = json_incref(label);
        r->line = line;
    }
    return rc;
}

static int parse_row(const struct load *l, const char *p, size_t n, int64_t line,
                     struct prompts_row *r)
{
    json_error_t je;
    json_t *obj;
    int rc;

    if (n > MAX_LINE) {
        return row_err(l, line, "the line is longer than %s", "64 MiB");
    }
    obj = json_loadb(p, n, JSON_DECODE_ANY, &je);
    if (!obj) {
        return ERR(l->e, STATUS_INPUT, "%.400s:%lld: column %d: %.200s", l->path, (long long)line,
                   je.column, je.text);
    }
    rc = json_is_object(obj) ? fill_row(l, obj, line, r)
                             : row_err(l, line, "the line is not %s", "a JSON object");
    json_decref(obj);
    return rc;
}

/* --- the file --- */

/* One line without its end; returns the start of the next. */
static const char *next_line(const char *p, const char *end, size_t *len)
{
    const char *nl = memchr(p, '\n', (size_t)(end - p));
    *len = (size_t)((nl ? nl : end) - p);
    return nl ? nl + 1 : end;
}

static int is_blank_line(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!strchr(" \t\r\f\v", p[i]) || !p[i]) {
            return 0;
        }
    }
    return 1;
}

static int64_t count_rows(const char *p, const char *end)
{
    int64_t n = 0;
    while (p < end) {
        size_t len;
        const char *next = next_line(p, end, &len);
        n += !is_blank_line(p, len);
        p = next;
    }
    return n;
}

static int64_t slice_bound(int64_t v, int64_t n, int64_t unset)
{
    if (v == CONF_UNSET) {
        return unset;
    }
    if (v < 0) {
        v = v < -n ? 0 : v + n;
    }
    return v > n ? n : v;
}

static int add_row(struct prompts *p, const struct load *l, struct prompts_row *r)
{
    int keep = l->o->keep ? l->o->keep(l->o->keep_arg, r, l->e) : 1;

    if (keep <= 0) {
        if (keep < 0 && l->e && l->e->code) {
            err_prefix(l->e, "%.400s:%lld", l->path, (long long)r->line);
        } else if (keep < 0) {
            row_err(l, r->line, "%s", "the prompt could not be checked");
        }
        row_fini(r);
        p->dropped += keep == 0;
        return keep;
    }
    if (p->n == p->cap) {
        int64_t cap = p->cap ? p->cap * 2 : 256;
        p->rows =
            mem_realloc(p->rows, (size_t)p->n * sizeof *p->rows, (size_t)cap * sizeof *p->rows);
        p->cap = cap;
    }
    p->rows[p->n++] = *r;
    return 0;
}

static int load_rows(struct prompts *p, const struct load *l, const char *data, size_t len)
{
    const char *s = data, *end = data + len;
    int64_t total = count_rows(data, end), line = 0, row = 0, from, to;

    if (total > MAX_ROWS) {
        return ERR(l->e, STATUS_INPUT, "%s: more than %lld rows", l->path, (long long)MAX_ROWS);
    }
    from = slice_bound(l->slice.from, total, 0);
    to = slice_bound(l->slice.to, total, total);
    while (s < end && row < to) {
        size_t n;
        const char *next = next_line(s, end, &n);
        line++;
        if (!is_blank_line(s, n)) {
            if (row++ >= from) {
                struct prompts_row r = {0};
                int rc = parse_row(l, s, n, line, &r);
                if (rc) {
                    row_fini(&r);
                    return rc;
                }
                rc = add_row(p, l, &r);
                if (rc) {
                    return rc;
                }
            }
        }
        s = next;
    }
    if (p->n == 0) {
        return ERR(
            l->e, STATUS_INPUT,
            "%s: no prompts are left (%lld rows in the file, %lld in the slice, %lld of them "
            "too long)",
            l->o->path, (long long)total, (long long)(to > from ? to - from : 0),
            (long long)p->dropped);
    }
    return 0;
}

/* "FILE@[a:b]" into path and bounds. */
static int split_path(struct load *l)
{
    const char *at = strrchr(l->o->path, '@');
    size_t n = strlen(l->o->path);
    const char *colon;
    char num[2][24];
    size_t k[2];

    l->slice = (struct slice){CONF_UNSET, CONF_UNSET};
    if (!at || at[1] != '[' || l->o->path[n - 1] != ']') {
        l->path = mem_strdup(l->o->path);
        return 0;
    }
    colon = strchr(at, ':');
    k[0] = colon ? (size_t)(colon - at - 2) : 0;
    k[1] = colon ? (size_t)(l->o->path + n - 1 - colon - 1) : 0;
    if (!colon || k[0] >= sizeof num[0] || k[1] >= sizeof num[1]) {
        return ERR(l->e, STATUS_INPUT, "%s: the slice is not @[from:to]", l->o->path);
    }
    snprintf(num[0], sizeof num[0], "%.*s", (int)k[0], at + 2);
    snprintf(num[1], sizeof num[1], "%.*s", (int)k[1], colon + 1);
    if ((*num[0] && conf_parse_int(num[0], &l->slice.from)) ||
        (*num[1] && conf_parse_int(num[1], &l->slice.to))) {
        return ERR(l->e, STATUS_INPUT, "%s: the slice is not @[from:to]", l->o->path);
    }
    l->path = mem_strndup(l->o->path, (size_t)(at - l->o->path));
    return 0;
}

static int ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static void reorder(struct prompts *p)
{
    struct rng_py r;
    for (int64_t i = 0; i < p->n; i++) {
        p->order[i] = i;
    }
    if (p->shuffle) {
        rng_py_seed(&r, p->seed + (uint64_t)p->epoch);
        rng_py_shuffle(&r, p->order, p->n);
    }
}

static int read_source(struct prompts *p, const struct load *l)
{
    const uint8_t *data;
    size_t len;
    int rc;

    if (ends_with(l->path, ".parquet")) {
        return ERR(l->e, STATUS_UNSUPPORTED, "%s: parquet is not supported yet, give JSON lines",
                   l->path);
    }
    rc = fsio_map(l->path, &data, &len, l->e);
    if (rc) {
        return rc;
    }
    rc = load_rows(p, l, (const char *)data, len);
    fsio_unmap(data, len);
    return rc;
}

int prompts_open(struct prompts **out, const struct prompts_opts *o, struct err *e)
{
    struct load l = {.o = o, .e = e};
    struct prompts *p;
    int rc;

    if (!o->path || !*o->path) {
        return ERR(e, STATUS_INPUT, "no prompt file is given (--prompt-data)");
    }
    if (o->group_size < 1) {
        return ERR(e, STATUS_INPUT, "%lld samples per prompt", (long long)o->group_size);
    }
    l.input_key = o->input_key ? o->input_key : "input";
    l.metadata_key = o->metadata_key ? o->metadata_key : "metadata";
    l.tool_key = o->tool_key ? o->tool_key : "tools";
    p = mem_alloc(sizeof *p);
    p->shuffle = o->shuffle;
    p->seed = o->seed;
    p->group_size = o->group_size;
    rc = split_path(&l);
    rc = rc ? rc : read_source(p, &l);
    mem_free(l.path);
    if (rc) {
        prompts_close(p);
        return rc;
    }
    p->order = mem_alloc((size_t)p->n * sizeof *p->order);
    reorder(p);
    *out = p;
    return 0;
}

void prompts_close(struct prompts *p)
{
    if (!p) {
        return;
    }
    for (int64_t i = 0; i < p->n; i++) {
        row_fini(&p->rows[i]);
    }
    mem_free(p->rows);
    mem_free(p->order);
    mem_free(p);
}

int64_t prompts_count(const struct prompts *p)
{
    return p->n;
}

int64_t prompts_dropped(const struct prompts *p)
{
    return p->dropped;
}

const struct prompts_row *prompts_row(const struct prompts *p, int64_t i)
{
    ASSERT(i >= 0 && i < p->n);
    return &p->rows[i];
}

int prompts_next(struct prompts *p, int64_t n, struct prompts_group *out, struct err *e)
{
    if (n < 0 || n > MAX_NEXT || p->group_index > INT64_MAX / 2 - n ||
        p->index > INT64_MAX / 2 - n * p->group_size) {
        return ERR(e, STATUS_INPUT, "%lld prompts cannot be served at once", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        if (p->offset == p->n) {
            p->offset = 0;
            p->epoch++;
            reorder(p);
        }
        out[i].row_index = p->order[p->offset++];
        out[i].row = &p->rows[out[i].row_index];
        out[i].group_index = p->group_index++;
        out[i].index = p->index;
        out[i].epoch = p->epoch;
        p->index += p->group_size;
    }
    return 0;
}

/* --- cursor --- */

json_t *prompts_state(const struct prompts *p)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "sample_offset", (json_int_t)p->offset,
                     "epoch_id", (json_int_t)p->epoch, "sample_group_index",
                     (json_int_t)p->group_index, "sample_index", (json_int_t)p->index, "rows",
                     (json_int_t)p->n);
}

static int get_count(const json_t *state, const char *key, int64_t *out, struct err *e)
{
    const json_t *v = json_object_get(state, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT64_MAX / 4) {
        return ERR(e, STATUS_FORMAT, "prompt cursor: \"%s\" is not a count", key);
    }
    *out = json_integer_value(v);
    return 0;
}

int prompts_restore(struct prompts *p, const json_t *state, struct err *e)
{
    int64_t offset, epoch, group, index, rows;
    int rc = get_count(state, "sample_offset", &offset, e);

    rc = rc ? rc : get_count(state, "epoch_id", &epoch, e);
    rc = rc ? rc : get_count(state, "sample_group_index", &group, e);
    rc = rc ? rc : get_count(state, "sample_index", &index, e);
    rc = rc ? rc : get_count(state, "rows", &rows, e);
    if (rc) {
        return rc;
    }
    if (offset > p->n) {
        return ERR(e, STATUS_INPUT,
                   "the checkpoint stands at prompt %lld of %lld, the data has %lld",
                   (long long)offset, (long long)rows, (long long)p->n);
    }
    if (rows != p->n) {
        log_warn(prompts,
                 "the checkpoint was made with %lld prompts, the data has %lld: the order "
                 "goes on differently",
                 (long long)rows, (long long)p->n);
    }
    p->offset = offset;
    p->epoch = epoch;
    p->group_index = group;
    p->index = index;
    reorder(p);
    return 0;
}
