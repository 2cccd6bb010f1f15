/* Owns the metadata of Parquet files: Thrift's compact protocol, the schema, row groups and page
 * headers. Nothing is believed: every length is held against the bytes that are there. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "rl/parquet_int.h"

#define MAX_NODES 65536
#define MAX_DEPTH 64
#define MAX_SKIP  32 /* nesting of fields that are not looked at */

/* Thrift's types in the compact protocol. */
enum {
    T_STOP,
    T_TRUE,
    T_FALSE,
    T_BYTE,
    T_I16,
    T_I32,
    T_I64,
    T_DOUBLE,
    T_BINARY,
    T_LIST,
    T_SET,
    T_MAP,
    T_STRUCT
};

static uint8_t get_byte(struct parquet_thrift *t)
{
    if (t->bad || t->p == t->end) {
        t->bad = 1;
        return 0;
    }
    return *t->p++;
}

static uint64_t get_varint(struct parquet_thrift *t)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        uint8_t b = get_byte(t);
        if (shift < 64) {
            v |= (uint64_t)(b & 0x7f) << shift;
        }
        if (!(b & 0x80)) {
            return v;
        }
    }
    t->bad = 1;
    return 0;
}

static int64_t get_int(struct parquet_thrift *t)
{
    uint64_t v = get_varint(t);
    return (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
}

static const uint8_t *get_binary(struct parquet_thrift *t, size_t *n)
{
    uint64_t len = get_varint(t);
    const uint8_t *p = t->p;

    if (t->bad || len > (uint64_t)(t->end - t->p)) {
        t->bad = 1;
        *n = 0;
        return t->end;
    }
    t->p += len;
    *n = (size_t)len;
    return p;
}

/* Type of the next field, T_STOP at the end; *id is the last one's number before. */
static int get_field(struct parquet_thrift *t, int *id)
{
    uint8_t b = get_byte(t);
    int type = b & 15;

    if (t->bad || type == T_STOP) {
        return T_STOP;
    }
    *id = b >> 4 ? *id + (b >> 4) : (int)(int16_t)get_int(t);
    return t->bad ? T_STOP : type;
}

static uint64_t get_list(struct parquet_thrift *t, int *type)
{
    uint8_t b = get_byte(t);
    uint64_t n = b >> 4 == 15 ? get_varint(t) : (uint64_t)(b >> 4);

    *type = b & 15;
    if (n > (uint64_t)(t->end - t->p)) { /* an element has a byte at least */
        t->bad = 1;
        n = 0;
    }
    return n;
}

static void skip_value(struct parquet_thrift *t, int type, int depth);

static void skip_element(struct parquet_thrift *t, int type, int depth)
{
    if (type == T_TRUE || type == T_FALSE) {
        get_byte(t); /* in lists a boolean has a byte of its own */
    } else {
        skip_value(t, type, depth);
    }
}

static void skip_many(struct parquet_thrift *t, int type, int depth)
{
    int kind = 0, key = 0;
    uint64_t n;

    if (type == T_MAP) {
        n = get_varint(t);
        if (n > (uint64_t)(t->end - t->p)) {
            t->bad = 1;
            return;
        }
        if (n) {
            uint8_t b = get_byte(t);
            key = b >> 4;
            kind = b & 15;
        }
    } else {
        n = get_list(t, &kind);
    }
    for (uint64_t i = 0; i < n && !t->bad; i++) {
        if (type == T_MAP) {
            skip_element(t, key, depth + 1);
        }
        skip_element(t, kind, depth + 1);
    }
}

static void skip_value(struct parquet_thrift *t, int type, int depth)
{
    size_t n;
    int id = 0;

    if (depth > MAX_SKIP) {
        t->bad = 1;
        return;
    }
    switch (type) {
    case T_TRUE:
    case T_FALSE: break;
    case T_BYTE: get_byte(t); break;
    case T_I16:
    case T_I32:
    case T_I64: get_varint(t); break;
    case T_DOUBLE:
        for (int i = 0; i < 8; i++) {
            get_byte(t);
        }
        break;
    case T_BINARY: get_binary(t, &n); break;
    case T_LIST:
    case T_SET:
    case T_MAP: skip_many(t, type, depth); break;
    case T_STRUCT:
        while ((type = get_field(t, &id)) != T_STOP) {
            skip_value(t, type, depth + 1);
        }
        break;
    default: t->bad = 1; break;
    }
}

static int is_int(int type)
{
    return type == T_I16 || type == T_I32 || type == T_I64;
}

/* --- the schema --- */

static int64_t get_unit(struct parquet_thrift *t)
{
    int id = 0, type, unit = 0;
    while ((type = get_field(t, &id)) != T_STOP) {
        unit = id >= 1 && id <= 3 ? 3 * id : unit;
        skip_value(t, type, 0);
    }
    return unit;
}

/* The fields of TIME, TIMESTAMP, DECIMAL and INTEGER, which do not get in each other's way. */
static void read_logical_args(struct parquet_thrift *t, struct parquet_node *n, int kind)
{
    int id = 0, type;

    while ((type = get_field(t, &id)) != T_STOP) {
        if (kind == 5 && id == 1 && is_int(type)) {
            n->scale = (int)get_int(t);
        } else if ((kind == 7 || kind == 8) && id == 1) {
            n->utc = type == T_TRUE;
            skip_value(t, type, 0);
        } else if ((kind == 7 || kind == 8) && id == 2 && type == T_STRUCT) {
            n->unit = (int)get_unit(t);
        } else if (kind == 10 && id == 1 && type == T_BYTE) {
            n->bits = get_byte(t);
        } else if (kind == 10 && id == 2) {
            n->logical = type == T_TRUE ? PARQUET_SIGNED : PARQUET_UNSIGNED;
            skip_value(t, type, 0);
        } else {
            skip_value(t, type, 0);
        }
    }
}

static void read_logical(struct parquet_thrift *t, struct parquet_node *n)
{
    static const uint8_t kinds[] = {
        PARQUET_UNKNOWN,   PARQUET_STRING,   PARQUET_MAP,    PARQUET_LIST,
        PARQUET_STRING,    PARQUET_DECIMAL,  PARQUET_DATE,   PARQUET_TIME,
        PARQUET_TIMESTAMP, PARQUET_INTERVAL, PARQUET_SIGNED, PARQUET_NULL,
        PARQUET_STRING,    PARQUET_PLAIN,    PARQUET_UUID,   PARQUET_FLOAT16};
    int id = 0, type;

    while ((type = get_field(t, &id)) != T_STOP) {
        n->logical = id >= 1 && id <= 15 ? (enum parquet_logical)kinds[id] : PARQUET_UNKNOWN;
        if (type == T_STRUCT) {
            read_logical_args(t, n, id);
        } else {
            skip_value(t, type, 0);
        }
    }
}

static void set_converted(struct parquet_node *n, int64_t v)
{
    static const uint8_t kinds[] = {PARQUET_STRING,    PARQUET_MAP,      PARQUET_MAP,
                                    PARQUET_LIST,      PARQUET_STRING,   PARQUET_DECIMAL,
                                    PARQUET_DATE,      PARQUET_TIME,     PARQUET_TIME,
                                    PARQUET_TIMESTAMP, PARQUET_TIMESTAMP};

    if (v >= 0 && v <= 10) {
        n->logical = (enum parquet_logical)kinds[v];
        n->unit = v == 7 || v == 9 ? 3 : 6;
        n->utc = v == 9 || v == 10;
    } else if (v >= 11 && v <= 18) {
        n->logical = v < 15 ? PARQUET_UNSIGNED : PARQUET_SIGNED;
        n->bits = 8 << (v - 11) % 4;
    } else if (v == 19) {
        n->logical = PARQUET_STRING;
    } else if (v == 21) {
        n->logical = PARQUET_INTERVAL;
    } else if (v != 20) {
        n->logical = PARQUET_UNKNOWN;
    }
}

/* One element of the flat list; depths are found later. */
static void read_node(struct parquet_thrift *t, struct parquet_node *n)
{
    int id = 0, type, has_logical = 0;
    int64_t converted = -1, v;
    size_t len;

    n->type = -1;
    while ((type = get_field(t, &id)) != T_STOP) {
        if (id == 4 && type == T_BINARY) {
            const uint8_t *s = get_binary(t, &len);
            mem_free(n->name);
            n->name = mem_strndup((const char *)s, len);
        } else if (id == 10 && type == T_STRUCT) {
            read_logical(t, n);
            has_logical = 1;
        } else if (is_int(type)) {
            v = get_int(t);
            v = v < INT32_MIN ? INT32_MIN : v > INT32_MAX ? INT32_MAX : v;
            switch (id) {
            case 1: n->type = (int)v; break;
            case 2: n->length = (int)v; break;
            case 3: n->repetition = (int)v; break;
            case 5: n->nchildren = (int)v; break;
            case 6: converted = v; break;
            case 7: n->scale = (int)v; break;
            default: break;
            }
        } else {
            skip_value(t, type, 0);
        }
    }
    if (!has_logical && converted >= 0) {
        set_converted(n, converted);
    }
}

static int check_node(const struct parquet_node *n, int root, struct err *e)
{
    const char *name = n->name ? n->name : "";

    if (n->nchildren < 0 || n->nchildren > MAX_NODES ||
        (!root && (n->repetition < 0 || n->repetition > PARQUET_REPEATED || !n->name))) {
        return ERR(e, STATUS_FORMAT, "the schema is damaged at \"%.100s\"", name);
    }
    if (root || n->nchildren) {
        return 0;
    }
    if (n->type < 0 || n->type >= PARQUET_NTYPES) {
        return ERR(e, STATUS_FORMAT, "\"%.100s\" has a physical type %d", name, n->type);
    }
    if (n->type == PARQUET_FIXED && (n->length < 1 || n->length > 1 << 20)) {
        return ERR(e, STATUS_FORMAT, "\"%.100s\" has values of %d bytes", name, n->length);
    }
    return 0;
}

/* Gives the node at `at` and all below their levels and leaves; returns the next one. */
static int place_nodes(struct parquet_meta *m, int at, int parent, int depth)
{
    struct parquet_node *n = &m->node[at];
    int next = at + 1;

    if (depth > MAX_DEPTH) {
        return -1;
    }
    n->parent = parent;
    n->leaf = m->nleaves;
    if (parent >= 0) {
        n->def = m->node[parent].def + (n->repetition != PARQUET_REQUIRED);
        n->rep = m->node[parent].rep + (n->repetition == PARQUET_REPEATED);
    }
    if (!n->nchildren && parent >= 0) {
        m->nleaves++;
    }
    for (int i = 0; i < n->nchildren; i++) {
        if (next < 0 || next >= m->nnodes) {
            return -1;
        }
        next = place_nodes(m, next, at, depth + 1);
    }
    n->next = next;
    n->nleaves = m->nleaves - n->leaf;
    return next;
}

static int read_schema(struct parquet_meta *m, struct parquet_thrift *t, struct err *e)
{
    int type, rc = 0;
    uint64_t n = get_list(t, &type);

    if (m->node || n < 1 || n > MAX_NODES || type != T_STRUCT) {
        return ERR(e, STATUS_FORMAT, "the schema has %llu elements", (unsigned long long)n);
    }
    m->node = mem_alloc((size_t)n * sizeof *m->node);
    m->nnodes = (int)n;
    for (int i = 0; rc == 0 && i < m->nnodes; i++) {
        read_node(t, &m->node[i]);
        rc = t->bad ? ERR(e, STATUS_FORMAT, "the schema is damaged")
                    : check_node(&m->node[i], i == 0, e);
    }
    if (rc == 0 && (place_nodes(m, 0, -1, 0) != m->nnodes || m->nleaves == 0)) {
        rc = ERR(e, STATUS_FORMAT, "the schema's elements do not form a tree");
    }
    return rc;
}

/* --- footer and row groups --- */

static int read_footer(struct parquet_meta *m, struct parquet_thrift *t, struct err *e)
{
    int id = 0, type, kind, rc = 0;

    while (rc == 0 && (type = get_field(t, &id)) != T_STOP) {
        if (id == 2 && type == T_LIST) {
            rc = read_schema(m, t, e);
        } else if (id == 3 && is_int(type)) {
            m->rows = get_int(t);
        } else if (id == 4 && type == T_LIST) {
            struct parquet_thrift list = *t;
            m->ngroups = (int64_t)get_list(&list, &kind);
            m->groups = list;
            if (kind != T_STRUCT && m->ngroups) {
                t->bad = 1;
            }
            skip_value(t, type, 0);
        } else if (id == 8) {
            rc = ERR(e, STATUS_UNSUPPORTED, "the file is encrypted");
        } else {
            skip_value(t, type, 0);
        }
    }
    if (rc == 0 && (t->bad || !m->node || m->rows < 0)) {
        rc = ERR(e, STATUS_FORMAT, "the footer is damaged");
    }
    return rc;
}

int parquet_meta_read(struct parquet_meta *m, const uint8_t *data, size_t len, struct err *e)
{
    struct parquet_thrift t = {0};
    const uint8_t *tail;
    uint32_t n;
    int rc;

    memset(m, 0, sizeof *m);
    if (len < 12 || memcmp(data, "PAR1", 4) != 0) {
        return ERR(e, STATUS_FORMAT, "not a Parquet file");
    }
    tail = data + len - 8;
    if (memcmp(tail + 4, "PARE", 4) == 0) {
        return ERR(e, STATUS_UNSUPPORTED, "the footer is encrypted");
    }
    n = (uint32_t)tail[0] | (uint32_t)tail[1] << 8 | (uint32_t)tail[2] << 16 |
        (uint32_t)tail[3] << 24;
    if (memcmp(tail + 4, "PAR1", 4) != 0 || n > len - 12) {
        return ERR(e, STATUS_FORMAT, "the footer is missing: the file is cut or damaged");
    }
    t.p = tail - n;
    t.end = tail;
    rc = read_footer(m, &t, e);
    if (rc) {
        parquet_meta_fini(m);
    }
    return rc;
}

void parquet_meta_fini(struct parquet_meta *m)
{
    for (int i = 0; i < m->nnodes; i++) {
        mem_free(m->node[i].name);
    }
    mem_free(m->node);
    memset(m, 0, sizeof *m);
}

static void read_chunk_meta(struct parquet_thrift *t, struct parquet_chunk *c)
{
    int64_t data = 0, dict = 0, v;
    int id = 0, type;

    while ((type = get_field(t, &id)) != T_STOP) {
        if (!is_int(type)) {
            skip_value(t, type, 0);
            continue;
        }
        v = get_int(t);
        switch (id) {
        case 1: c->type = v >= 0 && v < PARQUET_NTYPES ? (int)v : -1; break;
        case 4: c->codec = v >= 0 && v < 256 ? (int)v : 255; break;
        case 5: c->values = v; break;
        case 7: c->bytes = v; break;
        case 9: data = v; break;
        case 11: dict = v; break;
        default: break;
        }
    }
    c->at = dict > 0 && dict < data ? dict : data;
}

static int read_chunk(struct parquet_thrift *t, struct parquet_chunk *c, struct err *e)
{
    int id = 0, type, found = 0;

    memset(c, 0, sizeof *c);
    while ((type = get_field(t, &id)) != T_STOP) {
        if (id == 3 && type == T_STRUCT) {
            read_chunk_meta(t, c);
            found = 1;
        } else if (id == 1) {
            return ERR(e, STATUS_UNSUPPORTED, "a column lies in another file");
        } else if (id == 8 || id == 9) {
            return ERR(e, STATUS_UNSUPPORTED, "a column is encrypted");
        } else {
            skip_value(t, type, 0);
        }
    }
    return found ? 0 : ERR(e, STATUS_FORMAT, "a column has no metadata");
}

int parquet_meta_group(struct parquet_meta *m, struct parquet_chunk *chunk, int64_t *rows,
                       struct err *e)
{
    struct parquet_thrift *t = &m->groups;
    int id = 0, type, kind, columns = 0, rc = 0;

    *rows = -1;
    while (rc == 0 && (type = get_field(t, &id)) != T_STOP) {
        if (id == 1 && type == T_LIST) {
            uint64_t n = get_list(t, &kind);
            if (columns || n != (uint64_t)m->nleaves || kind != T_STRUCT) {
                return ERR(e, STATUS_FORMAT, "a row group has %llu columns, the schema %d",
                           (unsigned long long)n, m->nleaves);
            }
            for (columns = 0; rc == 0 && columns < m->nleaves; columns++) {
                rc = read_chunk(t, &chunk[columns], e);
            }
        } else if (id == 3 && is_int(type)) {
            *rows = get_int(t);
        } else {
            skip_value(t, type, 0);
        }
    }
    if (rc == 0 && (t->bad || columns != m->nleaves || *rows < 0)) {
        rc = ERR(e, STATUS_FORMAT, "the metadata of a row group is damaged");
    }
    return rc;
}

/* --- page headers --- */

static void read_data_header(struct parquet_thrift *t, struct parquet_page *p, int v2)
{
    int id = 0, type;

    p->compressed = 1;
    while ((type = get_field(t, &id)) != T_STOP) {
        if (v2 && id == 7) {
            p->compressed = type == T_TRUE;
            skip_value(t, type, 0);
            continue;
        }
        if (!is_int(type)) {
            skip_value(t, type, 0);
            continue;
        }
        int64_t v = get_int(t);
        if (id == 1) {
            p->values = v;
        } else if (id == (v2 ? 4 : 2)) {
            p->encoding = v >= 0 && v < 256 ? (int)v : 255;
        } else if (v2 && id == 5) {
            p->def_bytes = v;
        } else if (v2 && id == 6) {
            p->rep_bytes = v;
        } else if (!v2 && id == 3) {
            p->def_encoding = v >= 0 && v < 256 ? (int)v : 255;
        } else if (!v2 && id == 4) {
            p->rep_encoding = v >= 0 && v < 256 ? (int)v : 255;
        }
    }
}

int parquet_meta_page(const uint8_t *p, size_t n, struct parquet_page *out, struct err *e)
{
    struct parquet_thrift t = {.p = p, .end = p + n};
    int id = 0, type;

    memset(out, 0, sizeof *out);
    out->type = -1;
    out->packed = out->unpacked = out->values = -1;
    out->def_encoding = out->rep_encoding = PARQUET_ENC_RLE;
    while ((type = get_field(&t, &id)) != T_STOP) {
        if (type == T_STRUCT && (id == 5 || id == 7 || id == 8)) {
            read_data_header(&t, out, id == 8);
        } else if (is_int(type)) {
            int64_t v = get_int(&t);
            switch (id) {
            case 1: out->type = v >= 0 && v < 256 ? (int)v : 255; break;
            case 2: out->unpacked = v; break;
            case 3: out->packed = v; break;
            case 4:
                out->crc = (uint32_t)v;
                out->has_crc = 1;
                break;
            default: break;
            }
        } else {
            skip_value(&t, type, 0);
        }
    }
    out->header = (size_t)(t.p - p);
    if (t.bad || out->packed < 0 || out->unpacked < 0 || out->type < 0) {
        return ERR(e, STATUS_FORMAT, "a page header is damaged");
    }
    return 0;
}
