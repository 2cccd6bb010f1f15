/* Owns the opening of data: the list of files and slices, bad rows, and the filter by length. Rows
 * are found and checked with several threads; what comes out does not depend on their number. */
#include <stdio.h>
#include <string.h>

#include "base/conf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "rl/prompts_int.h"

#define SHOWN_BAD  8      /* bad rows that are logged one by one */
#define FULL_ROWS  200000 /* up to so many all are measured, */
#define PROBE_ROWS 16384  /* else so many, */
#define PROBE_LONG 1024   /* of these the ones with the longest text */
#define TASK_ROWS  64
#define WAVE_TASKS 256

/* One file of the list. Python slice bounds; CONF_UNSET where left out. */
struct part {
    char *path;
    int64_t from, to;
};

struct load {
    struct prompts *p;
    const struct prompts_opts *o;
    struct pool *pool;
    struct part *part;
    int nparts;
    int64_t rows, sliced; /* in the files, in the slices */
    struct err *e;
};

/* --- the list of files --- */

/* "FILE@[a:b]" into path and bounds. */
static int split_part(struct load *l, const char *text, size_t n, struct part *out)
{
    char *word = mem_strndup(text, n);
    char *at = strrchr(word, '@'), *colon;
    int rc = 0;

    out->from = out->to = CONF_UNSET;
    if (at && at[1] == '[' && word[n - 1] == ']') {
        colon = strchr(at, ':');
        word[n - 1] = 0;
        if (colon) {
            *colon = 0;
        }
        if (!colon || (at[2] && conf_parse_int(at + 2, &out->from)) ||
            (colon[1] && conf_parse_int(colon + 1, &out->to))) {
            rc = ERR(l->e, STATUS_INPUT, "%.*s: the slice is not @[from:to]", (int)n, text);
        }
        *at = 0;
    }
    if (rc == 0 && !*word) {
        rc = ERR(l->e, STATUS_INPUT, "%.400s: a file name is missing (--prompt-data)", l->o->path);
    }
    out->path = word;
    return rc;
}

static int split_list(struct load *l)
{
    const char *s = l->o->path;
    size_t n = strlen(s), room = 1;
    int rc;

    for (size_t i = 0; i < n; i++) {
        room += s[i] == ',';
    }
    if (room > PROMPTS_MAX_FILES) {
        return ERR(l->e, STATUS_INPUT, "more than %d data files", PROMPTS_MAX_FILES);
    }
    l->part = mem_alloc(room * sizeof *l->part);
    rc = split_part(l, s, n, &l->part[0]);
    l->nparts = 1;
    if (room == 1 || (rc == 0 && fsio_is_file(l->part[0].path))) {
        return rc;
    }
    mem_free(l->part[0].path);
    l->nparts = 0;
    for (rc = 0; rc == 0 && s;) {
        const char *comma = strchr(s, ',');
        rc = split_part(l, s, comma ? (size_t)(comma - s) : strlen(s), &l->part[l->nparts++]);
        s = comma ? comma + 1 : NULL;
    }
    return rc;
}

/* --- rows of a file --- */

static int good_row(void *arg, const char *text, size_t n)
{
    return promptrow_good(arg, text, n);
}

static int row_fault(const struct rowfile *f, uint64_t off, const struct promptrow_fault *t,
                     int64_t *at, struct err *e)
{
    int64_t line, column;

    rowfile_where(f, off, &line, &column);
    *at = line;
    if (f->parquet) {
        return ERR(e, STATUS_INPUT, "%.400s: row %lld: %s", f->path, (long long)line, t->why);
    }
    if (!t->column) {
        return ERR(e, STATUS_INPUT, "%.400s:%lld: %s", f->path, (long long)line, t->why);
    }
    column = t->line > 1 ? t->column : column - 1 + t->column;
    return ERR(e, STATUS_INPUT, "%.400s:%lld:%lld: %s", f->path, (long long)(line + t->line - 1),
               (long long)column, t->why);
}

int prompts_read(const struct prompts *p, uint64_t place, struct buf *text, struct prompts_row *r,
                 struct err *e)
{
    const struct rowfile *f = &p->files[PROMPTS_FILE(place)];
    uint64_t off = PROMPTS_OFFSET(place);
    struct promptrow_fault t;
    int64_t line, column;
    int rc = rowfile_read(f, off, text, e);

    if (rc == 0 && promptrow_parse(&p->keys, text->data, text->len, r, &t)) {
        rc = row_fault(f, off, &t, &line, e);
    }
    if (rc == 0) {
        rowfile_where(f, off, &line, &column);
        r->line = line;
    }
    return rc;
}

/* Says what is wrong with a bad row. */
static int bad_row(struct load *l, int file, uint64_t off, struct err *e)
{
    struct prompts_row r;
    int rc = prompts_read(l->p, PROMPTS_PLACE(file, off), &l->p->text, &r, e);
    if (rc == 0) {
        promptrow_fini(&r);
        rc = ERR(e, STATUS_INPUT, "%.400s was changed while it was read", l->p->files[file].path);
    }
    return rc;
}

/* Takes the bad rows out of the index. */
static void skip_bad(struct load *l, int file, struct rowfile_index *x)
{
    int64_t to = 0, b = 0;

    for (int64_t i = 0; i < x->n; i++) {
        if (b < x->nbad && x->bad[b] == i) {
            if (l->p->skipped++ < SHOWN_BAD) {
                struct err e = {0};
                bad_row(l, file, x->off[i], &e);
                log_warn(DATA, "skipped: %s", e.msg);
            }
            b++;
        } else {
            x->off[to++] = x->off[i];
        }
    }
    x->n = to;
    x->nbad = 0;
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

/* Appends the slice's rows. */
static int add_rows(struct load *l, int file, struct rowfile_index *x)
{
    struct prompts *p = l->p;
    int64_t from = slice_bound(l->part[file].from, x->n, 0);
    int64_t to = slice_bound(l->part[file].to, x->n, x->n);

    for (int64_t b = 0; b < x->nbad; b++) {
        if (x->bad[b] >= from && x->bad[b] < to) {
            return bad_row(l, file, x->off[x->bad[b]], l->e);
        }
    }
    l->rows += x->n;
    if (to <= from) {
        return 0;
    }
    if (p->n + to - from > ROWFILE_MAX_ROWS) {
        return ERR(l->e, STATUS_INPUT, "more than %lld rows", (long long)ROWFILE_MAX_ROWS);
    }
    if (file == 0) { /* the index is the list */
        memmove(x->off, x->off + from, (size_t)(to - from) * sizeof *x->off);
        p->place = x->off;
        p->n = to - from;
        x->off = NULL;
        return 0;
    }
    p->place = mem_realloc(p->place, (size_t)p->n * sizeof *p->place,
                           (size_t)(p->n + to - from) * sizeof *p->place);
    for (int64_t i = from; i < to; i++) {
        p->place[p->n++] = PROMPTS_PLACE(file, x->off[i]);
    }
    return 0;
}

static int load_file(struct load *l, int file)
{
    const struct promptrow_keys *k = &l->p->keys;
    const char *columns[] = {k->input, k->metadata, k->tools, k->label};
    struct rowfile *f = &l->p->files[file];
    struct rowfile_index x;
    int rc = rowfile_open(f, l->part[file].path, columns, k->label ? 4 : 3, l->e);

    if (rc) {
        return rc;
    }
    l->p->nfiles = file + 1;
    if ((uint64_t)f->size >> PROMPTS_OFFSET_BITS) {
        return ERR(l->e, STATUS_INPUT, "%.400s is too large", f->path);
    }
    rc = rowfile_index(f, l->pool, good_row, &l->p->keys, &x, l->e);
    if (rc) {
        return rc;
    }
    if (l->o->skip_bad) {
        skip_bad(l, file, &x);
    }
    rc = add_rows(l, file, &x);
    rowfile_index_fini(&x);
    return rc;
}

/* --- lengths in tokens --- */

/* Rows of a wave that are measured, and what came out. */
struct wave {
    struct load *l;
    const uint64_t *place; /* of rows to measure */
    int64_t n;
    int32_t *tokens;
    struct buf *text; /* of each worker */
    struct err *e;    /* of each task */
};

/* Bytes that a row's text has at most: up to the next one. */
static int64_t row_bytes(const struct prompts *p, int64_t i)
{
    uint64_t at = p->place[i];
    int file = PROMPTS_FILE(at);
    int64_t end = i + 1 < p->n && PROMPTS_FILE(p->place[i + 1]) == file
                      ? (int64_t)PROMPTS_OFFSET(p->place[i + 1])
                      : p->files[file].size;
    return end - (int64_t)PROMPTS_OFFSET(at);
}

/* The text size from which on a row is one of the longest. */
static int64_t long_bytes(const struct prompts *p, int64_t count)
{
    int64_t *heap = mem_alloc((size_t)count * sizeof *heap); /* smallest first */
    int64_t least;

    for (int64_t i = 0; i < p->n; i++) {
        int64_t v = row_bytes(p, i), at = 0;
        if (v <= heap[0]) {
            continue;
        }
        for (;;) {
            int64_t c = 2 * at + 1;
            c += c + 1 < count && heap[c + 1] < heap[c];
            if (c >= count || heap[c] >= v) {
                break;
            }
            heap[at] = heap[c];
            at = c;
        }
        heap[at] = v;
    }
    least = heap[0];
    mem_free(heap);
    return least;
}

static void measure_task(void *arg, int task, int worker)
{
    struct wave *w = arg;
    const struct prompts_opts *o = w->l->o;
    int64_t from = (int64_t)task * TASK_ROWS;
    int64_t to = from + TASK_ROWS < w->n ? from + TASK_ROWS : w->n;

    w->e[task].code = 0;
    for (int64_t i = from; i < to; i++) {
        struct prompts_row r;
        struct err *e = &w->e[task];
        int n = prompts_read(w->l->p, w->place[i], &w->text[worker], &r, e);
        if (n == 0) {
            n = o->tokens(o->arg, &r, e);
            if (n < 0) {
                const char *path = w->l->p->files[PROMPTS_FILE(w->place[i])].path;
                if (!e->code) {
                    ERR(e, n, "the prompt could not be measured");
                }
                err_prefix(e, "%.400s:%lld", path, (long long)r.line);
            }
            promptrow_fini(&r);
        }
        w->tokens[i] = n;
        if (n < 0) {
            return;
        }
    }
}

/* Measures the rows of the wave; the first error in their order counts. */
static int measure_wave(struct wave *w)
{
    int tasks = (int)((w->n + TASK_ROWS - 1) / TASK_ROWS);

    pool_run(w->l->pool, measure_task, w, tasks);
    for (int k = 0; k < tasks; k++) {
        if (w->e[k].code) {
            if (w->l->e) {
                *w->l->e = w->e[k];
            }
            return w->e[k].code;
        }
    }
    return 0;
}

/* Which rows must be measured. */
struct choice {
    int64_t sure;     /* bytes up to which the filter need not look */
    int64_t longest;  /* bytes from which on a row is one of the longest, */
    int64_t nlongest; /* and how many of them are still to be taken */
    int64_t step;     /* besides every step-th row; 1 takes all */
};

static int chosen(const struct prompts *p, struct choice *c, int64_t i)
{
    int64_t bytes = row_bytes(p, i);
    int is = i % c->step == 0 || bytes > c->sure;
    if (bytes >= c->longest && c->nlongest > 0) {
        c->nlongest--;
        is = 1;
    }
    return is;
}

static struct choice choose(const struct load *l)
{
    const struct prompts_opts *o = l->o;
    int64_t full = o->full > 0 ? o->full : FULL_ROWS;
    int64_t probe = PROBE_ROWS < full ? PROBE_ROWS : full;
    int64_t longest = PROBE_LONG < probe ? PROBE_LONG : probe;
    struct choice c = {INT64_MAX, INT64_MAX, 0, 1};

    if (l->p->n > full) {
        c.sure = o->max_tokens > 0 ? o->sure_bytes : INT64_MAX;
        c.longest = long_bytes(l->p, longest);
        c.nlongest = longest;
        c.step = l->p->n / (probe - longest + 1) + 1;
    }
    return c;
}

/* Measures the chosen rows, a wave of them at a time, and marks those that are too long. */
static int measure_rows(struct load *l, struct wave *w, int64_t most, struct prompts_lengths *x)
{
    struct prompts *p = l->p;
    struct choice c = choose(l);
    uint64_t *place = mem_alloc((size_t)most * sizeof *place);
    int64_t *row = mem_alloc((size_t)most * sizeof *row);
    int64_t i = 0;
    int rc = 0;

    w->place = place;
    while (rc == 0 && i < p->n) {
        for (w->n = 0; w->n < most && i < p->n; i++) {
            if (chosen(p, &c, i)) {
                row[w->n] = i;
                place[w->n++] = p->place[i];
            }
        }
        rc = measure_wave(w);
        for (int64_t k = 0; rc == 0 && k < w->n; k++) {
            if (l->o->max_tokens > 0 && w->tokens[k] > l->o->max_tokens) {
                prompts_lengths_drop(x, row[k]);
            } else {
                prompts_lengths_add(x, w->tokens[k]);
            }
        }
    }
    mem_free(place);
    mem_free(row);
    return rc;
}

static int measure(struct load *l, struct prompts_lengths *x)
{
    struct wave w = {.l = l};
    int64_t most = (int64_t)TASK_ROWS * WAVE_TASKS;
    int workers = pool_size(l->pool), rc;

    w.tokens = mem_alloc((size_t)most * sizeof *w.tokens);
    w.e = mem_alloc(WAVE_TASKS * sizeof *w.e);
    w.text = mem_alloc((size_t)workers * sizeof *w.text);
    for (int i = 0; i < workers; i++) {
        buf_init(&w.text[i], ROWFILE_MAX_ROW);
    }
    rc = measure_rows(l, &w, most, x);
    for (int i = 0; i < workers; i++) {
        buf_fini(&w.text[i]);
    }
    mem_free(w.text);
    mem_free(w.e);
    mem_free(w.tokens);
    return rc;
}

/* Takes out the rows that are too long and tells the lengths of the others. */
static void apply_lengths(struct load *l, const struct prompts_lengths *x)
{
    struct prompts *p = l->p;
    int64_t to = 0;

    for (int64_t i = 0; i < p->n; i++) {
        if (x->dropped[i / 8] >> i % 8 & 1) {
            p->dropped++;
        } else {
            p->place[to++] = p->place[i];
        }
    }
    p->n = to;
    for (int i = 0; i < x->cap; i++) {
        p->measured += x->count[i];
        for (int64_t k = 0; l->o->seen && k < x->count[i]; k++) {
            l->o->seen(l->o->arg, i);
        }
    }
}

static int filter(struct load *l)
{
    const struct prompts_opts *o = l->o;
    int64_t full = o->full > 0 ? o->full : FULL_ROWS;
    int kept = o->cache && o->max_tokens > 0 && l->p->n > full, rc = 0;
    struct prompts_lengths x;

    prompts_lengths_init(&x, l->p->n);
    if (kept && prompts_lengths_load(&x, l->p, o)) {
        log_info(DATA, "lengths of prompts are known from %s", o->cache);
    } else {
        if (kept) {
            log_info(DATA, "counting the tokens of %lld prompts", (long long)l->p->n);
        }
        prompts_lengths_fini(&x);
        prompts_lengths_init(&x, l->p->n);
        rc = measure(l, &x);
        if (rc == 0 && kept) {
            prompts_lengths_save(&x, l->p, o);
        }
    }
    if (rc == 0) {
        apply_lengths(l, &x);
    }
    prompts_lengths_fini(&x);
    return rc;
}

/* --- all of it --- */

static int load_all(struct load *l)
{
    struct prompts *p = l->p;
    int rc = 0;

    p->files = mem_alloc((size_t)l->nparts * sizeof *p->files);
    for (int i = 0; rc == 0 && i < l->nparts; i++) {
        rc = load_file(l, i);
    }
    l->sliced = p->n;
    if (rc == 0 && p->skipped) {
        log_warn(DATA, "%s: %lld bad rows were skipped (--skip-bad-lines)", l->o->path,
                 (long long)p->skipped);
    }
    if (rc == 0 && l->o->tokens && p->n) {
        rc = filter(l);
    }
    if (rc == 0 && p->n == 0) {
        rc = ERR(l->e, STATUS_INPUT,
                 "%.400s: no prompts are left (%lld rows in the file, %lld in the slice, %lld of "
                 "them too long)",
                 l->o->path, (long long)l->rows, (long long)l->sliced, (long long)p->dropped);
    }
    return rc;
}

int prompts_load(struct prompts *p, const struct prompts_opts *o, struct err *e)
{
    struct load l = {.p = p, .o = o, .e = e};
    int rc = split_list(&l);

    if (rc == 0) {
        l.pool = pool_new(o->threads);
        rc = load_all(&l);
        pool_free(l.pool);
    }
    for (int i = 0; i < l.nparts; i++) {
        mem_free(l.part[i].path);
    }
    mem_free(l.part);
    return rc;
}
