/* Owns the first page of a shared image of weights. Sequence numbers go up by one when writing
 * begins and by one when it ends, so an odd one says that values are changing, and an unchanged one
 * that they did not. */
#include "model/wshare.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "base/region.h"
#include "base/status.h"

#define WSHARE_MAGIC  "MILESWTS"
#define WSHARE_LAYOUT 1 /* raised when the page or the order of tensors changes */
#define WSHARE_PAGE   4096

struct wshare_head {
    char magic[8]; /* set last: without it there is no image yet */
    uint32_t layout;
    char program[32];
    struct wshare_form form;
    _Alignas(64) atomic_llong version;
    atomic_ullong sequence;
};

struct wshare {
    struct region region;
    struct wshare_head *head;
    int nested;                  /* of the maker's wshare_writing */
    unsigned long long followed; /* sequence that a reader follows; odd: none */
};

_Static_assert(sizeof(struct wshare_head) <= WSHARE_PAGE, "the head fits its page");

int wshare_create(size_t bytes, struct wshare **out, struct err *e)
{
    struct wshare *s = mem_alloc(sizeof *s);
    int rc = region_create(&s->region, "miles-weights", bytes + WSHARE_PAGE, e);

    if (rc != STATUS_OK) {
        mem_free(s);
        return rc;
    }
    s->head = region_take(&s->region, WSHARE_PAGE);
    *out = s;
    return STATUS_OK;
}

static int wshare_check(const struct wshare_head *h, struct err *e)
{
    if (memcmp(h->magic, WSHARE_MAGIC, sizeof h->magic) != 0) {
        return ERR(e, STATUS_INPUT, "the shared memory holds no weights of ours");
    }
    if (h->layout != WSHARE_LAYOUT) {
        return ERR(e, STATUS_INPUT, "the shared weights have layout %u, this program reads %d",
                   h->layout, WSHARE_LAYOUT);
    }
    if (strncmp(h->program, MILES_VERSION, sizeof h->program) != 0) {
        return ERR(e, STATUS_INPUT, "the shared weights are those of miles %.31s, this is %s",
                   h->program, MILES_VERSION);
    }
    return STATUS_OK;
}

int wshare_attach(int fd, struct wshare **out, struct err *e)
{
    struct wshare *s = mem_alloc(sizeof *s);
    int rc = region_attach(&s->region, fd, e);

    if (rc == STATUS_OK) {
        s->head = region_take(&s->region, WSHARE_PAGE);
        s->followed = 1;
        rc = wshare_check(s->head, e);
    }
    if (rc != STATUS_OK) {
        wshare_close(s);
        return rc;
    }
    *out = s;
    return STATUS_OK;
}

void wshare_close(struct wshare *s)
{
    if (s) {
        region_close(&s->region);
        mem_free(s);
    }
}

int wshare_fd(const struct wshare *s)
{
    return s->region.fd;
}

struct region *wshare_region(struct wshare *s)
{
    return &s->region;
}

void wshare_describe(struct wshare *s, const struct wshare_form *f)
{
    struct wshare_head *h = s->head;

    h->layout = WSHARE_LAYOUT;
    strncpy(h->program, MILES_VERSION, sizeof h->program - 1);
    h->form = *f;
    atomic_thread_fence(memory_order_release);
    memcpy(h->magic, WSHARE_MAGIC, sizeof h->magic);
}

const struct wshare_form *wshare_form(const struct wshare *s)
{
    return &s->head->form;
}

void wshare_writing(struct wshare *s, int on, int64_t version)
{
    if (on) {
        if (s->nested++ == 0) {
            atomic_fetch_add(&s->head->sequence, 1);
        }
    } else if (--s->nested == 0) {
        atomic_store(&s->head->version, version);
        atomic_fetch_add(&s->head->sequence, 1);
    }
    ASSERT(s->nested >= 0);
}

int wshare_follow(struct wshare *s, int64_t version, struct err *e)
{
    unsigned long long now = atomic_load(&s->head->sequence);
    int64_t has = wshare_version(s);

    if (now % 2 || atomic_load(&s->head->sequence) != now) {
        return ERR(e, STATUS_AGAIN, "the shared weights are being written; version %lld is wanted",
                   (long long)version);
    }
    if (has != version) {
        return ERR(e, STATUS_INPUT, "the shared weights are version %lld, not %lld", (long long)has,
                   (long long)version);
    }
    s->followed = now;
    return STATUS_OK;
}

int wshare_steady(const struct wshare *s)
{
    return atomic_load(&s->head->sequence) == s->followed;
}

int64_t wshare_version(const struct wshare *s)
{
    return atomic_load(&s->head->version);
}
