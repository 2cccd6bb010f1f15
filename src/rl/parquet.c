/* Owns the way from columns back to rows. Each leaf of the schema is a stream of values with two
 * levels: how much of its path is there, and at which list a value goes on. Rows are put together
 * by walking the schema; where the streams of one struct or list do not agree, the file is damaged.
 * A row goes out as one line of JSON, so that all that follows (checking, slices, order) is the
 * same as for JSON lines. */
#include "rl/parquet.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/jtext.h"
#include "rl/parquet_int.h"
#include "rl/promptrow.h"
#include "rl/spool.h"

struct rows {
    struct parquet_meta m;
    struct parquet_column *col; /* of each leaf */
    struct buf line;
    struct err *e;
    int at_leaf; /* the column at fault, -1: none in particular */
    int64_t row; /* of the file, from 1 */
};

static int emit_field(struct rows *r, int at);

static int fault(struct rows *r, int leaf, const char *why)
{
    r->at_leaf = leaf;
    return ERR(r->e, STATUS_FORMAT, "%s", why);
}

static int peek(struct rows *r, int leaf, int *more)
{
    int rc = parquet_column_peek(&r->col[leaf], more, r->e);
    if (rc) {
        r->at_leaf = leaf;
    }
    return rc;
}

static int take(struct rows *r, int leaf, const uint8_t **p, size_t *n)
{
    int rc = parquet_column_take(&r->col[leaf], p, n, r->e);
    if (rc) {
        r->at_leaf = leaf;
    }
    return rc;
}

/* The levels of the first leaf below a node say what is there of it. */
static int lead_def(struct rows *r, const struct parquet_node *n, int *def)
{
    int more, rc = peek(r, n->leaf, &more);

    if (rc == 0 && !more) {
        rc = fault(r, n->leaf, "it has fewer values than its neighbours");
    }
    *def = rc ? 0 : r->col[n->leaf].def;
    return rc;
}

/* Passes over a node that is not there, in each of its columns. */
static int take_absent(struct rows *r, const struct parquet_node *n)
{
    int rc = 0;

    for (int i = n->leaf; rc == 0 && i < n->leaf + n->nleaves; i++) {
        const uint8_t *p;
        size_t len;
        int more;
        rc = peek(r, i, &more);
        if (rc == 0 && (!more || r->col[i].def >= n->def)) {
            rc = fault(r, i, "its levels disagree with its neighbours'");
        }
        rc = rc ? rc : take(r, i, &p, &len);
    }
    return rc;
}

static int emit_leaf(struct rows *r, const struct parquet_node *n)
{
    const uint8_t *p;
    size_t len;
    int rc = take(r, n->leaf, &p, &len);

    if (rc) {
        return rc;
    }
    if (!p) {
        return fault(r, n->leaf, "its levels disagree with its neighbours'");
    }
    rc = parquet_text_value(n, p, len, &r->line, r->e);
    if (rc) {
        r->at_leaf = n->leaf;
    }
    return rc;
}

static int emit_members(struct rows *r, int at, int names)
{
    const struct parquet_node *n = &r->m.node[at];
    int rc = 0, first = 1;

    for (int c = at + 1; rc == 0 && c < n->next; c = r->m.node[c].next) {
        if (!r->m.node[c].wanted) {
            continue;
        }
        if (!first) {
            buf_char(&r->line, ',');
        }
        first = 0;
        if (names && jtext_string(&r->line, r->m.node[c].name, strlen(r->m.node[c].name)) != 0) {
            return fault(r, r->m.node[c].leaf, "its name is not UTF-8");
        }
        if (names) {
            buf_char(&r->line, ':');
        }
        rc = emit_field(r, c);
    }
    return rc;
}

/* Whether the repeated group of a list only wraps the element. Some old writers repeat the element
 * itself; the names tell. */
static int is_wrapper(const struct rows *r, int repeated)
{
    const struct parquet_node *n = &r->m.node[repeated];
    size_t len = strlen(n->name);

    return n->nchildren == 1 && strcmp(n->name, "array") != 0 &&
           (len < 6 || strcmp(n->name + len - 6, "_tuple") != 0);
}

static int emit_content(struct rows *r, int at);

/* After an element: 1 when another follows, and all columns of the list say so. */
static int list_goes_on(struct rows *r, const struct parquet_node *n, int *on)
{
    int rc = 0;

    for (int i = n->leaf; rc == 0 && i < n->leaf + n->nleaves; i++) {
        int more, is;
        rc = peek(r, i, &more);
        is = more && r->col[i].rep == n->rep;
        if (rc == 0 && ((more && r->col[i].rep > n->rep) || (i > n->leaf && is != *on))) {
            rc = fault(r, i, "its levels disagree with its neighbours'");
        }
        *on = is;
    }
    return rc;
}

enum list_kind { LIST_WRAPPED, LIST_PLAIN, LIST_PAIRS };

static int emit_list(struct rows *r, int repeated, enum list_kind kind)
{
    const struct parquet_node *n = &r->m.node[repeated];
    int def, on, rc = lead_def(r, n, &def);

    if (rc) {
        return rc;
    }
    if (def < n->def) {
        buf_str(&r->line, "[]");
        return take_absent(r, n);
    }
    buf_char(&r->line, '[');
    do {
        if (kind == LIST_PAIRS) {
            buf_char(&r->line, '[');
            rc = emit_members(r, repeated, 0);
            buf_char(&r->line, ']');
        } else {
            rc = kind == LIST_WRAPPED ? emit_field(r, repeated + 1) : emit_content(r, repeated);
        }
        on = 0;
        rc = rc ? rc : list_goes_on(r, n, &on);
        if (rc == 0 && on) {
            buf_char(&r->line, ',');
        }
        if (buf_status(&r->line) != 0) {
            return fault(r, n->leaf, "a row is longer than 64 MiB");
        }
    } while (rc == 0 && on);
    buf_char(&r->line, ']');
    return rc;
}

/* A node that is there. */
static int emit_content(struct rows *r, int at)
{
    const struct parquet_node *n = &r->m.node[at], *child = n + 1;
    int rc;

    if (!n->nchildren) {
        return emit_leaf(r, n);
    }
    if ((n->logical == PARQUET_LIST || n->logical == PARQUET_MAP) && n->nchildren == 1 &&
        child->repetition == PARQUET_REPEATED) {
        return emit_list(r, at + 1,
                         n->logical == PARQUET_MAP && child->nchildren ? LIST_PAIRS
                         : is_wrapper(r, at + 1)                       ? LIST_WRAPPED
                                                                       : LIST_PLAIN);
    }
    buf_char(&r->line, '{');
    rc = emit_members(r, at, 1);
    buf_char(&r->line, '}');
    return rc;
}

static int emit_field(struct rows *r, int at)
{
    const struct parquet_node *n = &r->m.node[at];
    int def, rc;

    if (n->repetition == PARQUET_REPEATED) {
        return emit_list(r, at, LIST_PLAIN);
    }
    if (n->repetition == PARQUET_OPTIONAL) {
        rc = lead_def(r, n, &def);
        if (rc || def < n->def) {
            buf_str(&r->line, "null");
            return rc ? rc : take_absent(r, n);
        }
    }
    return emit_content(r, at);
}

/* Every column stands at the start of a row, or at its end when `last`. */
static int check_border(struct rows *r, int last)
{
    for (int i = 0; i < r->m.nleaves; i++) {
        int more, rc;
        if (!r->col[i].node->wanted) {
            continue;
        }
        rc = peek(r, i, &more);
        if (rc) {
            return rc;
        }
        if (r->col[i].rep != 0 || more == last) {
            return fault(r, i,
                         last ? "it has more values than its row group has rows"
                              : "it has fewer rows than its row group");
        }
    }
    return 0;
}

static int write_group(struct rows *r, int64_t n, struct spool *s)
{
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < n; i++) {
        r->row++;
        rc = check_border(r, 0);
        if (rc) {
            break;
        }
        buf_clear(&r->line);
        buf_char(&r->line, '{');
        rc = emit_members(r, 0, 1);
        buf_str(&r->line, "}\n");
        if (rc == 0 && buf_status(&r->line) != 0) {
            rc = ERR(r->e, STATUS_INPUT, "row %lld is longer than 64 MiB", (long long)r->row);
        }
        rc = rc ? rc : spool_write(s, r->line.data, r->line.len, r->e);
    }
    return rc ? rc : check_border(r, 1);
}

/* Full name of a leaf, for messages. */
static void leaf_name(const struct rows *r, int leaf, char *out, size_t size)
{
    int at = (int)(r->col[leaf].node - r->m.node), path[72], n = 0;
    size_t used = 0;

    for (; at > 0 && n < 72; at = r->m.node[at].parent) {
        path[n++] = at;
    }
    out[0] = 0;
    while (n > 0 && used + 1 < size) {
        used += (size_t)snprintf(out + used, size - used, "%.60s%s", r->m.node[path[n - 1]].name,
                                 n > 1 ? "." : "");
        n--;
    }
}

static int read_groups(struct rows *r, const uint8_t *data, size_t len, int mapped, struct spool *s)
{
    struct parquet_chunk *chunk = mem_alloc((size_t)r->m.nleaves * sizeof *chunk);
    int rc = 0;

    for (int64_t g = 0; rc == 0 && g < r->m.ngroups; g++) {
        int64_t n;
        rc = parquet_meta_group(&r->m, chunk, &n, r->e);
        for (int i = 0; rc == 0 && i < r->m.nleaves; i++) {
            if (r->col[i].node->wanted) {
                rc = parquet_column_start(&r->col[i], &chunk[i], r->e);
                r->at_leaf = rc ? i : -1;
            }
        }
        rc = rc ? rc : write_group(r, n, s);
        if (rc && r->at_leaf >= 0) {
            char name[256];
            leaf_name(r, r->at_leaf, name, sizeof name);
            err_prefix(r->e, "row group %lld, column %s, row %lld", (long long)g, name,
                       (long long)r->row);
        }
        if (mapped) {
            fsio_forget(data, len);
        }
    }
    if (rc == 0 && r->row != r->m.rows) {
        rc = ERR(r->e, STATUS_FORMAT, "%lld rows where the footer says %lld", (long long)r->row,
                 (long long)r->m.rows);
    }
    mem_free(chunk);
    return rc;
}

/* Marks the wanted columns with all below; how many there are. */
static int mark_wanted(struct rows *r, const char *const *columns, int ncolumns)
{
    int found = 0;

    for (int at = 1; at < r->m.nnodes; at = r->m.node[at].next) {
        int is = 0;
        for (int i = 0; i < ncolumns; i++) {
            is |= strcmp(columns[i], r->m.node[at].name) == 0;
        }
        for (int c = at; is && c < r->m.node[at].next; c++) {
            r->m.node[c].wanted = 1;
        }
        found += is;
    }
    return found;
}

static int check_wanted(struct rows *r, const char *const *columns, int ncolumns)
{
    char have[400] = "", want[200] = "";
    size_t used = 0, asked = 0;

    if (mark_wanted(r, columns, ncolumns)) {
        return 0;
    }
    for (int at = 1; at < r->m.nnodes && used < sizeof have; at = r->m.node[at].next) {
        used += (size_t)snprintf(have + used, sizeof have - used, "%s%.60s", used ? ", " : "",
                                 r->m.node[at].name);
    }
    for (int i = 0; i < ncolumns && asked < sizeof want; i++) {
        asked += (size_t)snprintf(want + asked, sizeof want - asked, "%s%.60s", asked ? ", " : "",
                                  columns[i]);
    }
    return ERR(r->e, STATUS_INPUT, "no column is named %s; the file has %s", want, have);
}

static int to_lines(const uint8_t *data, size_t len, const char *path, const char *const *columns,
                    int ncolumns, int mapped, struct spool *s, struct err *e)
{
    struct rows r = {.at_leaf = -1, .e = e};
    struct err own = {0};
    int rc;

    r.e = e ? e : &own; /* causes are put together in it */
    rc = parquet_meta_read(&r.m, data, len, r.e);
    if (rc == 0) {
        buf_init(&r.line, PROMPTROW_MAX + 1);
        r.col = mem_alloc((size_t)r.m.nleaves * sizeof *r.col);
        for (int i = 0, leaf = 0; i < r.m.nnodes; i++) {
            if (i && !r.m.node[i].nchildren) {
                struct parquet_column *c = &r.col[leaf++];
                c->node = &r.m.node[i];
                c->data = data;
                c->len = len;
            }
        }
        rc = check_wanted(&r, columns, ncolumns);
        rc = rc ? rc : read_groups(&r, data, len, mapped, s);
        for (int i = 0; i < r.m.nleaves; i++) {
            parquet_column_fini(&r.col[i]);
        }
        mem_free(r.col);
        buf_fini(&r.line);
        parquet_meta_fini(&r.m);
    }
    return rc ? err_prefix(r.e, "%.400s", path) : 0;
}

int parquet_bytes_to_lines(const uint8_t *data, size_t len, const char *path,
                           const char *const *columns, int ncolumns, struct spool *s, struct err *e)
{
    return to_lines(data, len, path, columns, ncolumns, 0, s, e);
}

int parquet_to_lines(int fd, const char *path, const char *const *columns, int ncolumns,
                     struct spool *s, struct err *e)
{
    struct stat st;
    void *map;
    int rc;

    if (fstat(fd, &st) != 0 || st.st_size < 12) {
        return ERR(e, STATUS_FORMAT, "%.400s: not a Parquet file", path);
    }
    map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        return ERR(e, STATUS_IO, "cannot map %.400s: %s", path, strerror(errno));
    }
    rc = to_lines(map, (size_t)st.st_size, path, columns, ncolumns, 1, s, e);
    munmap(map, (size_t)st.st_size);
    return rc;
}
