/* Owns data files: what kind of file it is, the one pass that finds its rows, and reading single
 * rows afterwards. The pass goes over a map in waves of a few megabytes that are let go again, so a
 * file may be far larger than memory; rows are read with pread, so a file that is cut while a run
 * goes on gives an error and not a signal. */
#include "rl/rowfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "rl/parquet.h"
#include "rl/rowscan.h"
#include "rl/spool.h"
#include "rl/unpack.h"

#define PIECE      ((int64_t)1 << 16) /* line ends are counted per piece */
#define TASK       ((int64_t)1 << 20) /* bytes of a task, a multiple of PIECE */
#define WAVE       32                 /* tasks at a time */
#define FIRST_READ ((size_t)8192)

/* --- opening --- */

static ssize_t read_at(int fd, void *p, size_t n, int64_t at)
{
    size_t got = 0;
    while (got < n) {
        ssize_t k = pread(fd, (char *)p + got, n - got, at + (int64_t)got);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k < 0) {
            return -1;
        }
        if (k == 0) {
            break;
        }
        got += (size_t)k;
    }
    return (ssize_t)got;
}

/* Puts the unpacked text in the place of the file. */
static int take_spool(struct rowfile *f, struct spool *s, struct err *e)
{
    int64_t size = s->written;
    int fd = spool_take(s, e);

    if (fd < 0) {
        return STATUS_IO;
    }
    close(f->fd);
    f->fd = fd;
    f->size = size;
    f->spooled = 1;
    return STATUS_OK;
}

static int unpack_file(struct rowfile *f, enum unpack_kind kind, struct err *e)
{
    struct spool s;
    int rc = spool_open(&s, f->path, spool_limit(f->size), e);

    if (rc == STATUS_OK) {
        rc = unpack_to(&s, kind, f->fd, f->path, e);
    }
    if (rc == STATUS_OK) {
        rc = take_spool(f, &s, e);
    }
    spool_close(&s);
    return rc;
}

static int unpack_parquet(struct rowfile *f, const char *const *columns, int ncolumns,
                          struct err *e)
{
    struct spool s;
    int rc = spool_open(&s, f->path, spool_limit(f->size), e);

    if (rc == STATUS_OK) {
        rc = parquet_to_lines(f->fd, f->path, columns, ncolumns, &s, e);
    }
    if (rc == STATUS_OK) {
        rc = take_spool(f, &s, e);
        f->parquet = 1;
    }
    spool_close(&s);
    return rc;
}

/* 1 when the text's first byte that is no blank opens an array. */
static int starts_array(const struct rowfile *f)
{
    char head[512];
    for (int64_t at = 0;; at += (int64_t)sizeof head) {
        ssize_t n = read_at(f->fd, head, sizeof head, at);
        for (ssize_t i = 0; i < n; i++) {
            if (!rowscan_blank(head + i, 1)) {
                return head[i] == '[';
            }
        }
        if (n < (ssize_t)sizeof head) {
            return 0;
        }
    }
}

static int open_file(struct rowfile *f, const char *const *columns, int ncolumns, struct err *e)
{
    uint8_t head[4];
    struct stat st;
    ssize_t n;
    enum unpack_kind kind;
    size_t len = strlen(f->path);
    int rc = STATUS_OK;

    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe's open would wait */
    if (f->fd < 0 || fstat(f->fd, &st) != 0) {
        return ERR(e, errno == ENOENT ? STATUS_NOTFOUND : STATUS_IO, "cannot open %.400s: %s",
                   f->path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return ERR(e, STATUS_INPUT, "%.400s is not a regular file", f->path);
    }
    f->size = st.st_size;
    f->mtime = st.st_mtim;
    n = read_at(f->fd, head, sizeof head, 0);
    if (n < 0) {
        return ERR(e, STATUS_IO, "cannot read %.400s: %s", f->path, strerror(errno));
    }
    kind = unpack_kind(head, (size_t)n);
    if (kind != UNPACK_NONE) {
        rc = unpack_file(f, kind, e);
    } else if (n == 4 && memcmp(head, "PAR1", 4) == 0) {
        rc = unpack_parquet(f, columns, ncolumns, e);
    } else if (len >= 8 && strcmp(f->path + len - 8, ".parquet") == 0) {
        rc = ERR(e, STATUS_INPUT, "%.400s does not begin as a Parquet file does", f->path);
    }
    f->array = rc == STATUS_OK && !f->parquet && starts_array(f);
    return rc;
}

int rowfile_open(struct rowfile *f, const char *path, const char *const *columns, int ncolumns,
                 struct err *e)
{
    int rc;

    memset(f, 0, sizeof *f);
    f->path = mem_strdup(path);
    rc = open_file(f, columns, ncolumns, e);
    if (rc != STATUS_OK) {
        rowfile_close(f);
    }
    return rc;
}

void rowfile_close(struct rowfile *f)
{
    if (f->path && f->fd >= 0) {
        close(f->fd);
    }
    mem_free(f->path);
    mem_free(f->lines);
    memset(f, 0, sizeof *f);
}

/* --- the pass over lines --- */

/* What one task found. */
struct found {
    uint64_t *off;
    int64_t n, cap;
    int64_t *bad; /* positions in off */
    int64_t nbad, bad_cap;
};

struct pass {
    struct rowfile *f;
    const char *data;
    int64_t base; /* first byte of the wave */
    struct found found[WAVE];
    int (*good)(void *arg, const char *text, size_t n);
    void *arg;
};

static void *grow(void *p, int64_t n, int64_t *cap, size_t size)
{
    if (n == *cap) {
        int64_t to = *cap ? *cap * 2 : 4096;
        p = mem_realloc(p, (size_t)*cap * size, (size_t)to * size);
        *cap = to;
    }
    return p;
}

static void add_found(struct found *t, uint64_t off, int good)
{
    t->off = grow(t->off, t->n, &t->cap, sizeof *t->off);
    t->off[t->n] = off;
    if (!good) {
        t->bad = grow(t->bad, t->nbad, &t->bad_cap, sizeof *t->bad);
        t->bad[t->nbad++] = t->n;
    }
    t->n++;
}

static int64_t count_lines(const char *p, int64_t n)
{
    const char *end = p + n;
    int64_t lines = 0;
    while (p < end && (p = memchr(p, '\n', (size_t)(end - p)))) {
        lines++;
        p++;
    }
    return lines;
}

/* Line ends of the task's pieces, as counts of their own for now. */
static void count_task(struct pass *s, int64_t from, int64_t to)
{
    for (int64_t at = from; at < to; at += PIECE) {
        int64_t n = to - at < PIECE ? to - at : PIECE;
        s->f->lines[at / PIECE] = count_lines(s->data + at, n);
    }
}

/* Rows that start in the task's bytes. */
static void lines_task(void *arg, int task, int worker)
{
    struct pass *s = arg;
    struct found *t = &s->found[task];
    int64_t from = s->base + task * TASK, to = from + TASK < s->f->size ? from + TASK : s->f->size;
    const char *p = s->data + from, *end = s->data + to, *all = s->data + s->f->size;

    (void)worker;
    t->n = t->nbad = 0;
    count_task(s, from, to);
    if (from > 0 && p[-1] != '\n') { /* the rest of a line that began before */
        p = memchr(p, '\n', (size_t)(end - p));
        p = p ? p + 1 : end;
    }
    while (p < end) {
        const char *nl = memchr(p, '\n', (size_t)(all - p));
        size_t n = (size_t)((nl ? nl : all) - p);
        if (!rowscan_blank(p, n)) {
            add_found(t, (uint64_t)(p - s->data), s->good(s->arg, p, n));
        }
        p = nl ? nl + 1 : all;
    }
}

static int collect(struct pass *s, int tasks, struct rowfile_index *x, struct err *e)
{
    for (int k = 0; k < tasks; k++) {
        struct found *t = &s->found[k];
        if (x->n + t->n > x->cap) {
            /* as many as the file will hold when its rows go on like this, and some more */
            double done = (double)(s->base + (k + 1) * TASK);
            double all = done < (double)s->f->size ? (double)s->f->size / done : 1.0;
            int64_t cap = (int64_t)((double)(x->n + t->n) * all * 1.02) + 1024;
            x->off =
                mem_realloc(x->off, (size_t)x->cap * sizeof *x->off, (size_t)cap * sizeof *x->off);
            x->cap = cap;
        }
        for (int64_t i = 0; i < t->nbad; i++) {
            x->bad = grow(x->bad, x->nbad, &x->bad_cap, sizeof *x->bad);
            x->bad[x->nbad++] = x->n + t->bad[i];
        }
        if (t->n) {
            memcpy(x->off + x->n, t->off, (size_t)t->n * sizeof *t->off);
        }
        x->n += t->n;
        if (x->n > ROWFILE_MAX_ROWS) {
            return ERR(e, STATUS_INPUT, "%.400s: more than %lld rows", s->f->path,
                       (long long)ROWFILE_MAX_ROWS);
        }
    }
    return STATUS_OK;
}

static int scan_waves(struct pass *s, struct pool *pool, pool_fn *task, struct rowfile_index *x,
                      struct err *e)
{
    int rc = STATUS_OK;

    for (s->base = 0; rc == STATUS_OK && s->base < s->f->size; s->base += WAVE * TASK) {
        int64_t left = s->f->size - s->base;
        int tasks = (int)(left > WAVE * TASK ? WAVE : (left + TASK - 1) / TASK);
        pool_run(pool, task, s, tasks);
        rc = collect(s, tasks, x, e);
        fsio_forget((const uint8_t *)s->data + s->base,
                    (size_t)(left < WAVE * TASK ? left : WAVE * TASK));
    }
    for (int k = 0; k < WAVE; k++) {
        mem_free(s->found[k].off);
        mem_free(s->found[k].bad);
    }
    return rc;
}

/* --- the pass over an array --- */

static void array_task(void *arg, int task, int worker)
{
    struct pass *s = arg;
    int64_t from = s->base + task * TASK, to = from + TASK < s->f->size ? from + TASK : s->f->size;
    (void)worker;
    s->found[task].n = s->found[task].nbad = 0;
    count_task(s, from, to);
}

static int array_fault(const struct rowfile *f, int64_t at, const char *why, struct err *e)
{
    int64_t line, column;
    rowfile_where(f, (uint64_t)at, &line, &column);
    return ERR(e, STATUS_INPUT, "%.400s:%lld:%lld: %s", f->path, (long long)line, (long long)column,
               why);
}

static int64_t skip_blank(const char *data, int64_t at, int64_t size)
{
    while (at < size && rowscan_blank(data + at, 1)) {
        at++;
    }
    return at;
}

/* One element that starts at *at; moves there behind its comma. *more: another follows. */
static int array_element(struct pass *s, int64_t *at, struct rowfile_index *x, int *more,
                         struct err *e)
{
    int64_t size = s->f->size;
    size_t n = rowscan_value(s->data + *at, (size_t)(size - *at));

    if (!n) {
        return array_fault(s->f, *at, "the array's element does not end", e);
    }
    if (x->n == ROWFILE_MAX_ROWS) {
        return ERR(e, STATUS_INPUT, "%.400s: more than %lld rows", s->f->path,
                   (long long)ROWFILE_MAX_ROWS);
    }
    x->off = grow(x->off, x->n, &x->cap, sizeof *x->off);
    x->off[x->n] = (uint64_t)*at;
    if (!s->good(s->arg, s->data + *at, n)) {
        x->bad = grow(x->bad, x->nbad, &x->bad_cap, sizeof *x->bad);
        x->bad[x->nbad++] = x->n;
    }
    x->n++;
    *at = skip_blank(s->data, *at + (int64_t)n, size);
    if (*at == size || (s->data[*at] != ',' && s->data[*at] != ']')) {
        return array_fault(s->f, *at, "',' or ']' is missing in the array of rows", e);
    }
    *more = s->data[*at] == ',';
    *at = skip_blank(s->data, *at + 1, size);
    return STATUS_OK;
}

static int scan_array(struct pass *s, struct rowfile_index *x, struct err *e)
{
    int64_t size = s->f->size, at = skip_blank(s->data, 0, size), forgot = 0;
    int more = 1, rc = STATUS_OK;

    at = skip_blank(s->data, at + 1, size);
    if (at < size && s->data[at] == ']') {
        at = skip_blank(s->data, at + 1, size);
        more = 0;
    }
    while (rc == STATUS_OK && more) {
        rc = array_element(s, &at, x, &more, e);
        if (at - forgot > WAVE * TASK) {
            fsio_forget((const uint8_t *)s->data + forgot, (size_t)(at - forgot));
            forgot = at;
        }
    }
    if (rc == STATUS_OK && at < size) {
        rc = array_fault(s->f, at, "more text behind the array of rows", e);
    }
    return rc;
}

int rowfile_index(struct rowfile *f, struct pool *pool,
                  int (*good)(void *arg, const char *text, size_t n), void *arg,
                  struct rowfile_index *x, struct err *e)
{
    struct pass s = {.f = f, .good = good, .arg = arg};
    int64_t sum = 0;
    void *map;
    int rc;

    memset(x, 0, sizeof *x);
    if (f->size == 0) {
        return STATUS_OK;
    }
    map = mmap(NULL, (size_t)f->size, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (map == MAP_FAILED) {
        return ERR(e, STATUS_IO, "cannot map %.400s: %s", f->path, strerror(errno));
    }
    madvise(map, (size_t)f->size, MADV_SEQUENTIAL);
    s.data = map;
    f->npieces = (f->size + PIECE - 1) / PIECE;
    mem_free(f->lines);
    f->lines = mem_alloc((size_t)f->npieces * sizeof *f->lines);
    rc = scan_waves(&s, pool, f->array ? array_task : lines_task, x, e);
    for (int64_t i = 0; i < f->npieces; i++) {
        int64_t n = f->lines[i];
        f->lines[i] = sum;
        sum += n;
    }
    if (rc == STATUS_OK && f->array) {
        rc = scan_array(&s, x, e);
    }
    munmap(map, (size_t)f->size);
    if (rc != STATUS_OK) {
        rowfile_index_fini(x);
    }
    return rc;
}

void rowfile_index_fini(struct rowfile_index *x)
{
    mem_free(x->off);
    mem_free(x->bad);
    memset(x, 0, sizeof *x);
}

/* --- single rows --- */

/* Length of the row in the n bytes at p; -1: it goes on. */
static int64_t row_length(const struct rowfile *f, const char *p, size_t n, int last)
{
    const char *nl;

    if (f->array) {
        size_t len = rowscan_value(p, n);
        return len ? (int64_t)len : -1;
    }
    nl = memchr(p, '\n', n);
    return nl ? nl - p : last ? (int64_t)n : -1;
}

static int check_same(const struct rowfile *f, struct err *e)
{
    struct stat st;
    if (!f->spooled &&
        (fstat(f->fd, &st) != 0 || st.st_size != f->size || st.st_mtim.tv_sec != f->mtime.tv_sec ||
         st.st_mtim.tv_nsec != f->mtime.tv_nsec)) {
        return ERR(e, STATUS_INPUT, "%.400s was changed while it was in use", f->path);
    }
    return STATUS_OK;
}

int rowfile_read(const struct rowfile *f, uint64_t off, struct buf *b, struct err *e)
{
    int64_t left = f->size - (int64_t)off, len = -1;
    size_t want = FIRST_READ;
    int rc = check_same(f, e);

    buf_clear(b);
    while (rc == STATUS_OK && len < 0) {
        char piece[FIRST_READ];
        size_t have = b->len;
        int last = (int64_t)want >= left;
        want = last ? (size_t)left : want;
        while (b->len < want) {
            size_t k = want - b->len < sizeof piece ? want - b->len : sizeof piece;
            if (read_at(f->fd, piece, k, (int64_t)(off + b->len)) != (ssize_t)k) {
                return ERR(e, STATUS_IO, "cannot read %.400s at byte %llu", f->path,
                           (unsigned long long)(off + b->len));
            }
            buf_add(b, piece, k);
            if (buf_status(b) != STATUS_OK) {
                return ERR(e, STATUS_INPUT, "%.400s: the row at byte %llu is longer than 64 MiB",
                           f->path, (unsigned long long)off);
            }
        }
        len = row_length(f, b->data, b->len, last);
        if (len < 0 && (last || b->len == have)) {
            return ERR(e, STATUS_INPUT, "%.400s: the row at byte %llu does not end", f->path,
                       (unsigned long long)off);
        }
        want *= 4;
    }
    if (rc == STATUS_OK) {
        b->len = (size_t)len;
        b->data[b->len] = 0;
    }
    return rc;
}

void rowfile_where(const struct rowfile *f, uint64_t off, int64_t *line, int64_t *column)
{
    int64_t end = (int64_t)off, from = end > 0 ? (end - 1) / PIECE * PIECE : 0;
    char *text;

    *line = *column = -1;
    if (!f->lines || end > f->size) {
        return;
    }
    text = mem_alloc((size_t)PIECE);
    for (int64_t n = end - from, at = n; read_at(f->fd, text, (size_t)n, from) == (ssize_t)n;
         n = at = PIECE, from -= PIECE) {
        if (*line < 0) {
            *line = 1 + f->lines[from / PIECE] + count_lines(text, n);
            *column = 1;
        }
        while (at > 0 && text[at - 1] != '\n') {
            *column += (text[--at] & 0xc0) != 0x80; /* characters, not bytes */
        }
        if (at > 0 || from == 0) {
            break; /* the line began in this piece */
        }
    }
    mem_free(text);
}
