/* What the files of the data source share: prompts.c owns the order, prompts_load.c the opening,
 * prompts_cache.c the lengths of prompts. */
#ifndef RL_PROMPTS_INT_H
#define RL_PROMPTS_INT_H

#include <stdint.h>

#include "base/buf.h"
#include "rl/promptrow.h"
#include "rl/prompts.h"
#include "rl/rowfile.h"

#define PROMPTS_MAX_FILES 4096

/* A row's place: its file in the upper 16 bits, its first byte below. */
#define PROMPTS_OFFSET_BITS      48
#define PROMPTS_PLACE(file, off) ((uint64_t)(file) << PROMPTS_OFFSET_BITS | (off))
#define PROMPTS_FILE(place)      ((int)((place) >> PROMPTS_OFFSET_BITS))
#define PROMPTS_OFFSET(place)    ((place) & (((uint64_t)1 << PROMPTS_OFFSET_BITS) - 1))

struct prompts {
    struct promptrow_keys keys;
    char *names[4]; /* of the keys, owned */
    struct rowfile *files;
    int nfiles;
    uint64_t *place; /* of each row */
    int64_t n, dropped, skipped, measured;
    int shuffle;
    uint64_t seed;
    int64_t group_size;
    uint32_t *order; /* of the current epoch; NULL when not shuffled */
    int64_t offset, epoch, group_index, index;
    struct buf text;            /* of the row being read */
    struct prompts_row one;     /* of prompts_row */
    struct prompts_row *served; /* of the last prompts_next */
    int64_t nserved;
};

/* Fills files and places, slices, drops. */
int prompts_load(struct prompts *p, const struct prompts_opts *o, struct err *e);

/* Reads and parses the row at a place. `text` is the caller's, one per thread. */
int prompts_read(const struct prompts *p, uint64_t place, struct buf *text, struct prompts_row *r,
                 struct err *e);

/* Lengths of prompts, counted, and the rows that are too long. */
struct prompts_lengths {
    int64_t n;        /* rows before any is dropped */
    uint8_t *dropped; /* a bit for each */
    int64_t *count;   /* prompts of each length below cap */
    int cap;
};

void prompts_lengths_init(struct prompts_lengths *x, int64_t n);
void prompts_lengths_fini(struct prompts_lengths *x);
void prompts_lengths_add(struct prompts_lengths *x, int tokens);
void prompts_lengths_drop(struct prompts_lengths *x, int64_t row);
/* The file o->cache: 1 when it held what was found out about just these rows. */
int prompts_lengths_load(struct prompts_lengths *x, const struct prompts *p,
                         const struct prompts_opts *o);
void prompts_lengths_save(const struct prompts_lengths *x, const struct prompts *p,
                          const struct prompts_opts *o);

#endif
