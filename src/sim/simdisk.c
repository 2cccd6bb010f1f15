/* Owns files and folders in memory, each in two states: as the controller sees it, and as it is on
 * the platter. Between the two lies a list of writes that a loss of power may keep, drop or tear.
 */
#include "sim/simdisk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "sim/sim.h"

enum { SIMDISK_SECTOR = 512, SIMDISK_NAME = 48 };

struct simdisk_node;

struct simdisk_entry {
    char name[SIMDISK_NAME];
    struct simdisk_node *node;
};

struct simdisk_dir {
    struct simdisk_entry *e;
    size_t n, cap;
};

struct simdisk_bytes {
    char *p;
    size_t n, cap;
};

/* A write that is not on the platter; p NULL: the file was cut to `at`. */
struct simdisk_write {
    int64_t at;
    size_t n;
    char *p;
};

struct simdisk_node {
    int folder;
    struct simdisk_bytes now, safe; /* of a file */
    struct simdisk_write *w;
    size_t nw, cap_w;
    struct simdisk_dir names, safe_names; /* of a folder */
    struct simdisk_node *parent;          /* where it was made, until that is durable */
    char made_as[SIMDISK_NAME];
};

struct simdisk_fd {
    struct simdisk_node *node;
    int64_t at;
};

struct simdisk {
    struct sim *s;
    struct fsio_disk table;
    struct simdisk_node **nodes; /* all that ever were, freed at the end */
    size_t nnodes, cap_nodes;
    struct simdisk_node *root;
    struct simdisk_fd *fds;
    size_t nfds, cap_fds;
    double full_until;
};

/* ---- nodes ---- */

static struct simdisk_node *simdisk_node(struct simdisk *d, int folder)
{
    struct simdisk_node *n = mem_alloc(sizeof *n);

    n->folder = folder;
    if (d->nnodes == d->cap_nodes) {
        ASSERT(mem_grow((void **)&d->nodes, &d->cap_nodes, 64, sizeof *d->nodes));
    }
    d->nodes[d->nnodes++] = n;
    return n;
}

static struct simdisk_entry *simdisk_find(struct simdisk_dir *d, const char *name)
{
    for (size_t i = 0; i < d->n; i++) {
        if (strcmp(d->e[i].name, name) == 0) {
            return &d->e[i];
        }
    }
    return NULL;
}

static void simdisk_put(struct simdisk_dir *d, const char *name, struct simdisk_node *node)
{
    struct simdisk_entry *e = simdisk_find(d, name);

    if (!e) {
        if (d->n == d->cap) {
            ASSERT(mem_grow((void **)&d->e, &d->cap, 8, sizeof *d->e));
        }
        e = &d->e[d->n++];
        snprintf(e->name, sizeof e->name, "%s", name);
    }
    e->node = node;
}

static void simdisk_take(struct simdisk_dir *d, struct simdisk_entry *e)
{
    memmove(e, e + 1, sizeof *e * (size_t)(d->e + --d->n - e));
}

static void simdisk_copy_dir(struct simdisk_dir *to, const struct simdisk_dir *from)
{
    to->n = 0;
    for (size_t i = 0; i < from->n; i++) {
        simdisk_put(to, from->e[i].name, from->e[i].node);
    }
}

/* The folder of path and the last word of it, "" for the root; NULL with errno. */
static struct simdisk_node *simdisk_walk(struct simdisk *d, const char *path, char *last)
{
    struct simdisk_node *at = d->root;
    const char *p = path + strlen(SIMDISK_ROOT);
    size_t len;

    last[0] = 0;
    for (p += strspn(p, "/"); (len = strcspn(p, "/")) > 0; p += len + strspn(p + len, "/")) {
        if (last[0]) {
            struct simdisk_entry *e = simdisk_find(&at->names, last);
            if (!e || !e->node->folder) {
                errno = e ? ENOTDIR : ENOENT;
                return NULL;
            }
            at = e->node;
        }
        snprintf(last, SIMDISK_NAME, "%.*s", (int)len, p);
    }
    return at;
}

static struct simdisk_node *simdisk_get(struct simdisk *d, const char *path)
{
    char last[SIMDISK_NAME];
    struct simdisk_node *dir = simdisk_walk(d, path, last);
    struct simdisk_entry *e = dir && last[0] ? simdisk_find(&dir->names, last) : NULL;

    if (dir && !last[0]) {
        return dir;
    }
    if (dir && !e) {
        errno = ENOENT;
    }
    return e ? e->node : NULL;
}

/* ---- bytes ---- */

static void simdisk_size_to(struct simdisk_bytes *b, size_t n)
{
    if (n > b->cap) {
        size_t cap = b->cap ? b->cap : 256;
        while (cap < n) {
            cap *= 2;
        }
        b->p = mem_realloc(b->p, b->cap, cap);
        b->cap = cap;
    }
    if (n > b->n) {
        memset(b->p + b->n, 0, n - b->n);
    }
    b->n = n;
}

static void simdisk_apply(struct simdisk_bytes *b, const struct simdisk_write *w, size_t n)
{
    if (!w->p) {
        simdisk_size_to(b, (size_t)w->at);
    } else if (n) {
        if ((size_t)w->at + n > b->n) {
            simdisk_size_to(b, (size_t)w->at + n);
        }
        memcpy(b->p + w->at, w->p, n);
    }
}

static void simdisk_log(struct simdisk_node *f, int64_t at, const void *p, size_t n)
{
    struct simdisk_write *w;

    if (f->nw == f->cap_w) {
        ASSERT(mem_grow((void **)&f->w, &f->cap_w, 16, sizeof *f->w));
    }
    w = &f->w[f->nw++];
    *w = (struct simdisk_write){at, n, p ? mem_alloc(n + 1) : NULL};
    if (p) {
        memcpy(w->p, p, n);
    }
    simdisk_apply(&f->now, w, n);
}

static void simdisk_forget(struct simdisk_node *f)
{
    for (size_t i = 0; i < f->nw; i++) {
        mem_free(f->w[i].p);
    }
    f->nw = 0;
}

static void simdisk_settle(struct simdisk_node *f)
{
    for (size_t i = 0; i < f->nw; i++) {
        simdisk_apply(&f->safe, &f->w[i], f->w[i].n);
    }
    simdisk_forget(f);
}

/* Where it was made is durable now, and what that is in. */
static void simdisk_anchor(struct simdisk_node *n)
{
    while (n && n->parent) {
        struct simdisk_node *up = n->parent;
        struct simdisk_entry *e = simdisk_find(&up->names, n->made_as);
        if (e && e->node == n) { /* not moved or removed since */
            simdisk_put(&up->safe_names, n->made_as, n);
        }
        n->parent = NULL;
        n = up;
    }
}

/* ---- the calls ---- */

/* Everything that changes the disk is an event: the controller may end before it. -1: it has, or
 * the call fails. */
static int simdisk_change(struct simdisk *d, enum sim_fault f, const char *what, const char *name)
{
    if (d->s->dead) {
        errno = EIO;
        return -1;
    }
    sim_event(d->s, "disk: %s %s", what, name);
    d->s->now += 1e-5;
    if (d->s->dead) {
        errno = EIO;
        return -1;
    }
    if (f != SIM_NFAULTS && sim_fault(d->s, f)) {
        errno = f == SIM_WRITE_FAILS && sim_below(d->s, 2) ? ENOSPC : EIO;
        return -1;
    }
    return 0;
}

static struct simdisk_fd *simdisk_of(struct simdisk *d, int fd)
{
    size_t i = (size_t)(fd - FSIO_DISK_FD);

    if (i >= d->nfds || !d->fds[i].node) {
        errno = EBADF;
        return NULL;
    }
    return &d->fds[i];
}

void simdisk_fill(struct simdisk *d, double seconds)
{
    d->full_until = d->s->now + seconds;
}

int simdisk_full(const struct simdisk *d)
{
    return d->s->now < d->full_until;
}

static int64_t simdisk_room(void *self)
{
    return simdisk_full(self) ? 0 : (int64_t)1 << 40;
}

static struct simdisk_node *simdisk_make(struct simdisk *d, const char *path, int folder)
{
    char last[SIMDISK_NAME];
    struct simdisk_node *dir = simdisk_walk(d, path, last), *n;

    if (!dir) {
        return NULL;
    }
    if (!last[0] || simdisk_find(&dir->names, last)) {
        errno = EEXIST;
        return NULL;
    }
    if (simdisk_change(d, SIM_NFAULTS, folder ? "make folder" : "make", path) != 0) {
        return NULL;
    }
    if (simdisk_full(d)) {
        errno = ENOSPC;
        return NULL;
    }
    n = simdisk_node(d, folder);
    n->parent = dir;
    snprintf(n->made_as, sizeof n->made_as, "%s", last);
    simdisk_put(&dir->names, last, n);
    return n;
}

static int simdisk_open(void *self, const char *path, int flags)
{
    struct simdisk *d = self;
    struct simdisk_node *n = simdisk_get(d, path);
    size_t i = 0;

    if (!n && (flags & O_CREAT) && errno == ENOENT) {
        n = simdisk_make(d, path, 0);
    }
    if (!n) {
        return -1;
    }
    if ((flags & O_DIRECTORY) && !n->folder) {
        errno = ENOTDIR;
        return -1;
    }
    if ((flags & O_TRUNC) && n->now.n) {
        if (simdisk_change(d, SIM_NFAULTS, "empty", path) != 0) {
            return -1;
        }
        simdisk_log(n, 0, NULL, 0);
    }
    while (i < d->nfds && d->fds[i].node) {
        i++;
    }
    if (i == d->cap_fds) {
        ASSERT(mem_grow((void **)&d->fds, &d->cap_fds, 32, sizeof *d->fds));
    }
    d->nfds = i == d->nfds ? d->nfds + 1 : d->nfds;
    d->fds[i] = (struct simdisk_fd){n, 0};
    return FSIO_DISK_FD + (int)i;
}

static int simdisk_close(void *self, int fd)
{
    struct simdisk_fd *f = simdisk_of(self, fd);
    if (f) {
        f->node = NULL;
    }
    return f ? 0 : -1;
}

static long simdisk_read(void *self, int fd, void *p, size_t n, int64_t at)
{
    struct simdisk_fd *f = simdisk_of(self, fd);
    const struct simdisk_bytes *b = f ? &f->node->now : NULL;

    if (!f || f->node->folder) {
        return -1;
    }
    if (at < 0 || (size_t)at >= b->n) {
        return 0;
    }
    n = n < b->n - (size_t)at ? n : b->n - (size_t)at;
    memcpy(p, b->p + at, n);
    return (long)n;
}

static long simdisk_write(void *self, int fd, const void *p, size_t n, int64_t at)
{
    struct simdisk *d = self;
    struct simdisk_fd *f = simdisk_of(d, fd);

    if (!f || simdisk_change(d, SIM_WRITE_FAILS, "write", f->node->made_as) != 0) {
        return -1;
    }
    if (sim_fault(d->s, SIM_DISK_FULL)) {
        simdisk_fill(d, sim_between(d->s, 0.1, 200));
    }
    if (simdisk_full(d)) {
        errno = ENOSPC;
        return -1;
    }
    at = at < 0 ? f->at : at;
    simdisk_log(f->node, at, p, n);
    f->at = at + (int64_t)n;
    return (long)n;
}

/* The plant: what ends in .seg is not synced. */
static int simdisk_lies(const struct simdisk *d, const struct simdisk_node *n)
{
    size_t len = strlen(n->made_as);
    return d->s->plant == SIM_PLANT_FSYNC && len > 4 && strcmp(n->made_as + len - 4, ".seg") == 0;
}

static int simdisk_sync(void *self, int fd)
{
    struct simdisk *d = self;
    struct simdisk_fd *f = simdisk_of(d, fd);

    if (!f || simdisk_change(d, SIM_SYNC_FAILS, "sync", f->node->made_as) != 0) {
        return -1;
    }
    d->s->now += sim_fault(d->s, SIM_DISK_SLOW) ? sim_between(d->s, 0.5, 8) : 1e-3;
    if (f->node->folder) {
        simdisk_copy_dir(&f->node->safe_names, &f->node->names);
    } else if (!simdisk_lies(d, f->node)) {
        simdisk_settle(f->node);
    }
    simdisk_anchor(f->node);
    return 0;
}

static int simdisk_truncate(void *self, int fd, int64_t size)
{
    struct simdisk *d = self;
    struct simdisk_fd *f = simdisk_of(d, fd);

    if (!f) {
        return -1;
    }
    if ((size_t)size == f->node->now.n) {
        return 0;
    }
    if (simdisk_change(d, SIM_NFAULTS, "cut", f->node->made_as) != 0) {
        return -1;
    }
    simdisk_log(f->node, size, NULL, 0);
    return 0;
}

static int64_t simdisk_size(void *self, int fd)
{
    struct simdisk_fd *f = simdisk_of(self, fd);
    return f ? (int64_t)f->node->now.n : -1;
}

static int simdisk_rename(void *self, const char *from, const char *to, int exchange)
{
    struct simdisk *d = self;
    char a[SIMDISK_NAME], b[SIMDISK_NAME];
    struct simdisk_node *da = simdisk_walk(d, from, a), *db = simdisk_walk(d, to, b), *n;
    struct simdisk_entry *ea = da ? simdisk_find(&da->names, a) : NULL;
    struct simdisk_entry *eb = db ? simdisk_find(&db->names, b) : NULL;

    if (!ea || !db || (exchange && !eb)) {
        errno = ENOENT;
        return -1;
    }
    if (eb && eb->node->folder && !exchange) {
        errno = ENOTEMPTY;
        return -1;
    }
    if (simdisk_change(d, SIM_RENAME_FAILS, exchange ? "exchange" : "rename", to) != 0) {
        return -1;
    }
    n = ea->node;
    if (exchange) {
        ea->node = eb->node;
        eb->node = n;
    } else {
        simdisk_take(&da->names, ea);
        simdisk_put(&db->names, b, n);
    }
    return 0;
}

static int simdisk_unlink(void *self, const char *path)
{
    struct simdisk *d = self;
    char last[SIMDISK_NAME];
    struct simdisk_node *dir = simdisk_walk(d, path, last);
    struct simdisk_entry *e = dir ? simdisk_find(&dir->names, last) : NULL;

    if (!e) {
        errno = ENOENT;
        return -1;
    }
    if (e->node->folder && e->node->names.n) {
        errno = ENOTEMPTY;
        return -1;
    }
    if (simdisk_change(d, SIM_NFAULTS, "remove", path) != 0) {
        return -1;
    }
    e = simdisk_find(&dir->names, last);
    simdisk_take(&dir->names, e);
    return 0;
}

static int simdisk_mkdir(void *self, const char *path)
{
    return simdisk_make(self, path, 1) ? 0 : -1;
}

static enum fsio_kind simdisk_kind(void *self, const char *path)
{
    const struct simdisk_node *n = simdisk_get(self, path);
    return !n ? FSIO_NOTHING : n->folder ? FSIO_FOLDER : FSIO_FILE;
}

static int simdisk_list(void *self, const char *path, void (*fn)(void *arg, const char *name),
                        void *arg)
{
    const struct simdisk_node *n = simdisk_get(self, path);

    if (!n || !n->folder) {
        return -1;
    }
    for (size_t i = 0; i < n->names.n; i++) {
        fn(arg, n->names.e[i].name);
    }
    return 0;
}

/* ---- the end of the controller ---- */

/* A file after a loss of power: of the writes since its last sync any part is there. */
static void simdisk_tear(struct simdisk *d, struct simdisk_node *f, int64_t mood)
{
    for (size_t i = 0; i < f->nw; i++) {
        const struct simdisk_write *w = &f->w[i];
        int64_t fate = mood < 2 ? mood : sim_below(d->s, 3); /* 0 none of it, 1 all, 2 a part */
        size_t n = fate == 0 ? 0 : w->n;
        if (fate == 2) {
            n = (size_t)sim_below(d->s, (int64_t)w->n + 1);
            n = n < w->n ? n / SIMDISK_SECTOR * SIMDISK_SECTOR : n;
        }
        d->s->hits[SIM_TORN] += w->p && n < w->n;
        if (w->p ? n > 0 : fate != 0) {
            simdisk_apply(&f->safe, w, n);
        }
    }
    simdisk_forget(f);
    simdisk_size_to(&f->now, f->safe.n);
    if (f->safe.n) {
        memcpy(f->now.p, f->safe.p, f->safe.n);
    }
}

void simdisk_restart(struct simdisk *d, int power)
{
    int64_t mood = sim_below(d->s, 4); /* all is lost, nothing is, or some is */

    for (size_t i = 0; i < d->nnodes; i++) {
        struct simdisk_node *n = d->nodes[i];
        if (!power) {
            continue; /* the system has the rest, and writes it when it likes */
        }
        if (!n->folder) {
            simdisk_tear(d, n, mood);
        } else if (mood == 0 || (mood > 1 && sim_below(d->s, 2))) {
            simdisk_copy_dir(&n->names, &n->safe_names);
        } else {
            simdisk_copy_dir(&n->safe_names, &n->names);
        }
        n->parent = NULL;
    }
    d->nfds = 0;
    d->full_until = 0;
}

void simdisk_place(struct simdisk *d, const char *path, const void *p, size_t n)
{
    char last[SIMDISK_NAME];
    struct simdisk_node *dir = simdisk_walk(d, path, last), *f = simdisk_node(d, 0);

    ASSERT(dir && last[0]);
    simdisk_log(f, 0, p, n);
    simdisk_settle(f);
    simdisk_put(&dir->names, last, f);
    simdisk_put(&dir->safe_names, last, f);
}

int simdisk_spoil(struct simdisk *d, const char *path, uint64_t at)
{
    struct simdisk_node *n = simdisk_get(d, path);
    char other;

    if (!n || n->folder || !n->now.n) {
        return 0;
    }
    at %= n->now.n;
    other = (char)(n->now.p[at] ^ 1);
    simdisk_log(n, (int64_t)at, &other, 1);
    simdisk_settle(n);
    return 1;
}

int64_t simdisk_bytes(const struct simdisk *d)
{
    int64_t sum = 0;
    for (size_t i = 0; i < d->nnodes; i++) {
        sum += (int64_t)d->nodes[i]->now.n;
    }
    return sum;
}

struct simdisk *simdisk_new(struct sim *s)
{
    struct simdisk *d = mem_alloc(sizeof *d);

    d->s = s;
    d->root = simdisk_node(d, 1);
    d->table = (struct fsio_disk){.root = SIMDISK_ROOT,
                                  .open = simdisk_open,
                                  .close = simdisk_close,
                                  .read = simdisk_read,
                                  .write = simdisk_write,
                                  .sync = simdisk_sync,
                                  .truncate = simdisk_truncate,
                                  .size = simdisk_size,
                                  .rename = simdisk_rename,
                                  .unlink = simdisk_unlink,
                                  .mkdir = simdisk_mkdir,
                                  .kind = simdisk_kind,
                                  .list = simdisk_list,
                                  .room = simdisk_room,
                                  .self = d};
    return d;
}

void simdisk_free(struct simdisk *d)
{
    if (!d) {
        return;
    }
    for (size_t i = 0; i < d->nnodes; i++) {
        struct simdisk_node *n = d->nodes[i];
        simdisk_forget(n);
        mem_free(n->w);
        mem_free(n->now.p);
        mem_free(n->safe.p);
        mem_free(n->names.e);
        mem_free(n->safe_names.e);
        mem_free(n);
    }
    mem_free(d->nodes);
    mem_free(d->fds);
    mem_free(d);
}

const struct fsio_disk *simdisk_table(struct simdisk *d)
{
    return &d->table;
}
