/* Owns how a run behaves when a disk is full: it is cheaper to wait for somebody to make room than
 * to lose the place in the queue of a cluster. */
#include "base/patience.h"

#include <stdatomic.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/world.h"

#define PATIENCE_STEP_S 2.0 /* between two tries; the first comes sooner */
#define PATIENCE_TOLD   15  /* tries between two lines of the log */

static const struct world *_Atomic patience_world;
static _Atomic double patience_most;

void patience_set(const struct world *w, double most_s)
{
    atomic_store(&patience_world, w);
    atomic_store(&patience_most, most_s);
}

static int64_t patience_room(const char *path)
{
    char *p = fsio_nearest(path);
    int64_t room = fsio_room(p);

    mem_free(p);
    return room;
}

static void patience_say(const struct patience *p, const char *path, double left,
                         const struct err *e)
{
    int64_t room = patience_room(path);

    log_warn(DISK,
             "%s; paused: %.1f MiB are free for %s, make room or mend the disk; the next try is in "
             "%.1f s, the last in %.0f s",
             e && e->msg[0] ? e->msg : "a write failed", (double)room / 1048576.0, path,
             p->tries ? PATIENCE_STEP_S : PATIENCE_STEP_S / 4, left);
}

int patience_again(struct patience *p, int rc, const char *path, struct err *e)
{
    const struct world *w = atomic_load(&patience_world);
    double most = atomic_load(&patience_most), now, until;

    if (rc != STATUS_IO) {
        if (rc == STATUS_OK && p->tries) {
            log_info(DISK, "%s could be written after %.1f s: going on", path,
                     w->now(w->self) - p->since);
        }
        return 0;
    }
    if (!w || most <= 0) {
        return 0;
    }
    now = w->now(w->self);
    p->since = p->tries ? p->since : now;
    if (now - p->since >= most || w->stopping(w->self)) {
        return 0;
    }
    if (p->tries % PATIENCE_TOLD == 0) {
        patience_say(p, path, most - (now - p->since), e);
    }
    until = now + (p->tries++ ? PATIENCE_STEP_S : PATIENCE_STEP_S / 4);
    while (w->now(w->self) < until && !w->stopping(w->self)) {
        world_sleep(w, 0.02);
    }
    return 1;
}

int patience_mkdirs(const char *path, struct err *e)
{
    struct patience wait = {0};
    int rc = fsio_may_write(path, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    do {
        rc = fsio_mkdirs(path, e);
    } while (patience_again(&wait, rc, path, e));
    return rc;
}
