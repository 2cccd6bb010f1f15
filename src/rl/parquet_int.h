/* What the files of the Parquet reader share: parquet_meta.c reads footer and page headers,
 * parquet_enc.c decodes levels and values, parquet_column.c turns pages into a stream of values,
 * parquet_text.c writes a value as JSON, parquet.c puts rows together. */
#ifndef RL_PARQUET_INT_H
#define RL_PARQUET_INT_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;

enum parquet_type {
    PARQUET_BOOLEAN,
    PARQUET_INT32,
    PARQUET_INT64,
    PARQUET_INT96,
    PARQUET_FLOAT,
    PARQUET_DOUBLE,
    PARQUET_BYTES,
    PARQUET_FIXED,
    PARQUET_NTYPES
};

enum { PARQUET_REQUIRED, PARQUET_OPTIONAL, PARQUET_REPEATED };

/* What a column means, from the logical or the older converted type. */
enum parquet_logical {
    PARQUET_PLAIN, /* nothing said */
    PARQUET_STRING,
    PARQUET_MAP,
    PARQUET_LIST,
    PARQUET_DECIMAL,
    PARQUET_DATE,
    PARQUET_TIME,
    PARQUET_TIMESTAMP,
    PARQUET_UNSIGNED,
    PARQUET_SIGNED,
    PARQUET_NULL,
    PARQUET_UUID,
    PARQUET_FLOAT16,
    PARQUET_INTERVAL,
    PARQUET_UNKNOWN /* one we do not know */
};

/* --- footer and page headers --- */

/* The compact protocol of Thrift over bytes; after a fault everything reads as zero. */
struct parquet_thrift {
    const uint8_t *p, *end;
    int bad;
};

struct parquet_node {
    char *name;
    int type;   /* enum parquet_type of a leaf */
    int length; /* of PARQUET_FIXED */
    int repetition;
    int nchildren; /* 0: a leaf */
    enum parquet_logical logical;
    int unit;          /* of times: 3, 6 or 9 digits of a second */
    int utc;           /* timestamps: adjusted to UTC */
    int scale;         /* of decimals */
    int bits;          /* of PARQUET_UNSIGNED and PARQUET_SIGNED; 0: of the type */
    int def, rep;      /* levels at which it is there */
    int parent, next;  /* positions in the list; next: behind all below */
    int leaf, nleaves; /* first leaf at or below it, and how many */
    int wanted;
};

/* Where one column's values lie in a row group. */
struct parquet_chunk {
    int type, codec;
    int64_t values;
    int64_t at, bytes; /* in the file */
};

struct parquet_meta {
    struct parquet_node *node; /* depth first, the root first */
    int nnodes, nleaves;
    int64_t rows;
    struct parquet_thrift groups; /* at the first row group */
    int64_t ngroups;
};

enum { PARQUET_DATA = 0, PARQUET_DICTIONARY = 2, PARQUET_DATA_V2 = 3 };

struct parquet_page {
    int type;
    int64_t packed, unpacked; /* bytes */
    int64_t values;
    int encoding, def_encoding, rep_encoding;
    int64_t def_bytes, rep_bytes; /* of PARQUET_DATA_V2 */
    int compressed;
    int has_crc;
    uint32_t crc;
    size_t header; /* bytes of the header itself */
};

int parquet_meta_read(struct parquet_meta *m, const uint8_t *data, size_t len, struct err *e);
void parquet_meta_fini(struct parquet_meta *m);
/* The next row group: chunk has a place for each leaf. */
int parquet_meta_group(struct parquet_meta *m, struct parquet_chunk *chunk, int64_t *rows,
                       struct err *e);
int parquet_meta_page(const uint8_t *p, size_t n, struct parquet_page *out, struct err *e);

/* --- encodings --- */

enum {
    PARQUET_ENC_PLAIN = 0,
    PARQUET_ENC_PLAIN_DICTIONARY = 2,
    PARQUET_ENC_RLE = 3,
    PARQUET_ENC_DELTA_BINARY_PACKED = 5,
    PARQUET_ENC_DELTA_LENGTH = 6,
    PARQUET_ENC_DELTA_BYTES = 7,
    PARQUET_ENC_RLE_DICTIONARY = 8,
    PARQUET_ENC_BYTE_STREAM_SPLIT = 9
};
const char *parquet_enc_name(int encoding);

/* Runs and bit-packed groups of small numbers. */
struct parquet_runs {
    const uint8_t *p, *end;
    int width; /* bits, up to 32 */
    uint64_t left;
    int packed;
    uint32_t value; /* of a run */
    uint64_t bit;   /* of packed ones, from p */
};
void parquet_runs_init(struct parquet_runs *r, const uint8_t *p, size_t n, int width);
int parquet_runs_next(struct parquet_runs *r, uint32_t *out); /* 0: there is none */

/* DELTA_BINARY_PACKED. */
struct parquet_delta {
    const uint8_t *p, *end;
    uint64_t per_block, per_mini, minis, total, given;
    uint64_t last, min;
    const uint8_t *widths;
    uint64_t mini;         /* of the block */
    uint64_t in_mini;      /* values of it already given */
    const uint8_t *packed; /* bits of the mini block */
    int width;
};
int parquet_delta_init(struct parquet_delta *d, const uint8_t *p, size_t n);
int parquet_delta_next(struct parquet_delta *d, int64_t *out);
/* What lies behind the numbers; NULL when they are damaged. */
const uint8_t *parquet_delta_end(struct parquet_delta d);

/* Values of a page. */
struct parquet_values {
    int type, length, encoding;
    const uint8_t *p, *end;
    int64_t n, given; /* of BYTE_STREAM_SPLIT */
    struct parquet_runs runs;
    struct parquet_delta prefix, delta;
    uint8_t *last; /* of DELTA_BYTES */
    size_t last_len, last_cap;
    uint8_t tmp[64];
};
/* n: values of the page, nulls left out where known; length: of PARQUET_FIXED. */
int parquet_values_init(struct parquet_values *v, int type, int length, int encoding,
                        const uint8_t *p, size_t len, int64_t n, struct err *e);
void parquet_values_fini(struct parquet_values *v);
/* The bytes of the next value, valid until the next call; dictionary encodings give the index as
 * four bytes. 0: there is none. */
int parquet_values_next(struct parquet_values *v, const uint8_t **p, size_t *n);

/* Snappy's block format; fills out[0, n) exactly. 0: damaged. */
int parquet_unsnap(const uint8_t *in, size_t len, uint8_t *out, size_t n);

/* --- columns --- */

struct parquet_column {
    const struct parquet_node *node;
    const uint8_t *data; /* the file */
    size_t len;
    struct parquet_chunk chunk;
    int64_t at, end;         /* pages still to be read */
    int64_t left, page_left; /* values with levels: of the chunk, of the page */
    uint8_t *page, *dict;    /* unpacked */
    size_t page_cap, dict_cap;
    size_t dict_len;
    const uint8_t **word; /* start of each byte array of the dictionary */
    int64_t nwords;
    int has_dict, indexed;
    struct parquet_runs reps, defs;
    struct parquet_values values;
    int have; /* rep and def hold the next value's levels */
    int rep, def;
};

int parquet_column_start(struct parquet_column *c, const struct parquet_chunk *chunk,
                         struct err *e);
/* Levels of the next value; rep is 0 at the end of the column, where *more is 0. */
int parquet_column_peek(struct parquet_column *c, int *more, struct err *e);
/* Takes the next value: its bytes, or *p NULL when it is not there (def below the leaf's). */
int parquet_column_take(struct parquet_column *c, const uint8_t **p, size_t *n, struct err *e);
void parquet_column_fini(struct parquet_column *c);

/* --- values as text --- */

/* Appends a leaf's value as JSON. */
int parquet_text_value(const struct parquet_node *node, const uint8_t *p, size_t n, struct buf *b,
                       struct err *e);

#endif
