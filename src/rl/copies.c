/* Owns the memory of kept versions, and moves weights between the actor, its copies and files. */
#include "rl/copies.h"

#include "base/status.h"
#include "model/hfdir.h"
#include "model/weights.h"
#include "model/wfile.h"

int copies_open(struct copies *c, int n, struct err *e)
{
    int rc = STATUS_OK;

    ASSERT(n <= COPIES_MAX);
    c->n = 0;
    c->next = 0;
    while (rc == STATUS_OK && c->n < n) {
        rc = weights_open(c->src, c->actor->dev, 0, c->actor->positions, &c->kept[c->n], e);
        c->version[c->n] = -1;
        c->n += rc == STATUS_OK;
    }
    if (rc != STATUS_OK) {
        copies_close(c);
    }
    return rc;
}

void copies_close(struct copies *c)
{
    while (c->n) {
        weights_release(c->kept[--c->n]);
    }
}

static int copies_from_actor(void *arg, const char *name, uint16_t *dst, int64_t count,
                             struct err *e)
{
    return weights_read_bf16(arg, name, dst, count, e);
}

static int copies_from_file(void *arg, const char *name, uint16_t *dst, int64_t count,
                            struct err *e)
{
    return wfile_read_bf16(arg, name, dst, count, e);
}

struct weights *copies_find(const struct copies *c, int64_t version)
{
    for (int i = 0; i < c->n; i++) {
        if (c->version[i] == version) {
            return c->kept[i];
        }
    }
    return NULL;
}

int copies_keep(struct copies *c, struct err *e)
{
    int i = c->next, rc;

    if (!c->n || copies_find(c, c->actor->version)) {
        return STATUS_OK;
    }
    c->version[i] = -1;
    rc = weights_reload(c->kept[i], copies_from_actor, c->actor, e);
    if (rc != STATUS_OK) {
        return err_prefix(e, "--keep-old-actor");
    }
    c->version[i] = c->actor->version;
    c->next = (i + 1) % c->n;
    return STATUS_OK;
}

int copies_update_ref(struct copies *c, struct err *e)
{
    int rc = weights_reload(c->ref, copies_from_actor, c->actor, e);
    return rc == STATUS_OK ? rc : err_prefix(e, "--ref-update-interval");
}

/* What is not part of the computed model is as in the file that the run began with. */
static int copies_ref_tensor(void *arg, const char *name, uint16_t *dst, int64_t count,
                             struct err *e)
{
    struct copies *c = arg;
    int rc = weights_read_bf16(c->ref, name, dst, count, e);
    return rc == STATUS_NOTFOUND ? wfile_read_bf16(c->src, name, dst, count, e) : rc;
}

int copies_write_ref(struct copies *c, const char *dir, struct err *e)
{
    return hfdir_write(dir, c->src, copies_ref_tensor, c, e);
}

int copies_read_ref(struct copies *c, const char *dir, struct err *e)
{
    struct wfile *f;
    int rc = wfile_open(dir, &f, e);

    if (rc != STATUS_OK) {
        return err_prefix(e, "the reference of this checkpoint");
    }
    rc = weights_reload(c->ref, copies_from_file, f, e);
    wfile_close(f);
    return rc;
}
