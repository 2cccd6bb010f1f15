/* Owns the list of engines in a file, and what follows from its changes. The file is the truth: who
 * asks for an engine through the control server changes it, too, so that nothing is forgotten when
 * the run is killed and started again. */
#include "run/fleetfile.h"

#include <string.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "rl/port_http.h"
#include "run/place.h"

#define FLEETFILE_LOOK_S 1.0
#define FLEETFILE_MAX    (4u << 20) /* bytes of the file */

struct fleetfile_list {
    char **v;
    size_t n, cap;
};

struct fleetfile {
    char *path;
    struct port_http *port;
    struct fleetfile_list have;
    char *seen; /* as it was read last; NULL: it could not be */
    int full;   /* 1: there was no room for some */
    double next_look;
};

static void fleetfile_list_fini(struct fleetfile_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        mem_free(l->v[i]);
    }
    mem_free(l->v);
    *l = (struct fleetfile_list){0};
}

static int fleetfile_list_has(const struct fleetfile_list *l, const char *url)
{
    for (size_t i = 0; i < l->n; i++) {
        if (strcmp(l->v[i], url) == 0) {
            return 1;
        }
    }
    return 0;
}

/* The address in a line of n bytes; *url NULL: it has none. */
static int fleetfile_line(const char *line, size_t n, char **url, struct err *e)
{
    const char *hash = memchr(line, '#', n);
    char *text;
    int rc = STATUS_OK;

    n = hash ? (size_t)(hash - line) : n;
    while (n && strchr(" \t\r", line[n - 1])) {
        n--;
    }
    while (n && strchr(" \t", *line)) {
        line++;
        n--;
    }
    *url = NULL;
    if (n) {
        text = mem_strndup(line, n);
        rc = place_engine_url(text, url, e);
        mem_free(text);
    }
    return rc;
}

/* Calls fn for every line, with its address or NULL. */
typedef void fleetfile_fn(void *arg, const char *line, size_t n, const char *url);

static int fleetfile_each(const char *text, fleetfile_fn *fn, void *arg, struct err *e)
{
    int number = 1, rc = STATUS_OK;

    for (; rc == STATUS_OK && *text; number++) {
        size_t n = strcspn(text, "\n");
        char *url;
        rc = fleetfile_line(text, n, &url, e);
        if (rc == STATUS_OK) {
            fn(arg, text, n, url);
            mem_free(url);
        } else {
            err_prefix(e, "line %d", number);
        }
        text += n + (text[n] == '\n');
    }
    return rc;
}

static void fleetfile_collect(void *arg, const char *line, size_t n, const char *url)
{
    struct fleetfile_list *l = arg;

    (void)line, (void)n;
    if (url && !fleetfile_list_has(l, url)) {
        ASSERT(l->n < l->cap || mem_grow((void **)&l->v, &l->cap, 8, sizeof *l->v));
        l->v[l->n++] = mem_strdup(url);
    }
}

static int fleetfile_text(const struct fleetfile *r, char **text, struct err *e)
{
    size_t n;

    if (!fsio_is_file(r->path)) {
        *text = mem_strdup("");
        return STATUS_OK;
    }
    return fsio_read(r->path, FLEETFILE_MAX, text, &n, e);
}

/* The port gets what the file has more, and loses what it has no more. Those that there is no room
 * for are tried again when others have gone. */
static void fleetfile_apply(struct fleetfile *r, struct fleetfile_list *want)
{
    struct err e = {0};
    int was = r->full;

    r->full = 0;
    for (size_t i = 0; i < want->n; i++) {
        if (port_http_find(r->port, want->v[i]) < 0 &&
            port_http_add(r->port, want->v[i], NULL, &e) != STATUS_OK) {
            r->full = 1;
        }
    }
    if (r->full && !was) {
        log_error(LAUNCH, "%s: %s", r->path, e.msg);
    }
    for (size_t i = 0; i < r->have.n; i++) {
        int engine = port_http_find(r->port, r->have.v[i]);
        if (engine >= 0 && !fleetfile_list_has(want, r->have.v[i])) {
            (void)port_http_remove(r->port, engine, NULL);
        }
    }
    fleetfile_list_fini(&r->have);
    r->have = *want;
    *want = (struct fleetfile_list){0};
}

/* The engines become those of the text, which is the file's now; takes it. */
static int fleetfile_take(struct fleetfile *r, char *text, struct err *e)
{
    struct fleetfile_list want = {0};
    int rc = fleetfile_each(text, fleetfile_collect, &want, e);

    mem_free(r->seen);
    r->seen = text;
    if (rc == STATUS_OK) {
        fleetfile_apply(r, &want);
    } else {
        err_prefix(e, "%s", r->path);
    }
    fleetfile_list_fini(&want);
    return rc;
}

static int fleetfile_read(struct fleetfile *r, struct err *e)
{
    char *text = NULL;
    int rc = fleetfile_text(r, &text, e);

    return rc == STATUS_OK ? fleetfile_take(r, text, e) : rc;
}

void fleetfile_look(struct fleetfile *r, double now)
{
    struct err e = {0};
    char *text = NULL;
    int rc, could = r->seen != NULL;

    if (now < r->next_look) {
        return;
    }
    r->next_look = now + FLEETFILE_LOOK_S;
    rc = fleetfile_text(r, &text, &e);
    if (rc != STATUS_OK) {
        mem_free(r->seen);
        r->seen = NULL;
        if (!could) {
            return; /* it was said */
        }
    } else if (could && strcmp(text, r->seen) == 0 && !r->full) {
        mem_free(text);
        return;
    } else {
        rc = fleetfile_take(r, text, &e);
    }
    if (rc != STATUS_OK) {
        log_error(LAUNCH, "the engines stay as they are: %s", e.msg);
    }
}

/* The file with a line more, or without those that name `drop`. */
struct fleetfile_edit {
    struct buf b;
    const char *drop;
    int found;
};

static void fleetfile_copy(void *arg, const char *line, size_t n, const char *url)
{
    struct fleetfile_edit *x = arg;

    if (url && x->drop && strcmp(url, x->drop) == 0) {
        x->found = 1;
        return;
    }
    buf_add(&x->b, line, n);
    buf_char(&x->b, '\n');
}

static int fleetfile_write(struct fleetfile *r, const char *add, const char *drop, struct err *e)
{
    struct fleetfile_edit x = {.drop = drop};
    char *text = NULL;
    int rc = fleetfile_text(r, &text, e);

    buf_init(&x.b, FLEETFILE_MAX);
    rc = rc == STATUS_OK ? fleetfile_each(text, fleetfile_copy, &x, e) : rc;
    if (rc == STATUS_OK && drop && !x.found) {
        rc = ERR(e, STATUS_NOTFOUND, "it does not name %s", drop);
    }
    if (add) {
        buf_printf(&x.b, "%s\n", add);
    }
    rc = rc == STATUS_OK ? buf_status(&x.b) : rc;
    rc = rc == STATUS_OK ? fsio_write_atomic(r->path, x.b.data, x.b.len, e) : rc;
    buf_fini(&x.b);
    mem_free(text);
    return rc == STATUS_OK ? fleetfile_read(r, e) : rc;
}

int fleetfile_add(struct fleetfile *r, const char *addr, struct err *e)
{
    char *url = NULL;
    int rc = place_engine_url(addr, &url, e);

    if (rc == STATUS_OK &&
        (fleetfile_list_has(&r->have, url) || port_http_find(r->port, url) >= 0)) {
        rc = ERR(e, STATUS_INPUT, "%s is an engine already", url);
    }
    rc = rc == STATUS_OK ? fleetfile_write(r, url, NULL, e) : rc;
    mem_free(url);
    return rc;
}

int fleetfile_drop(struct fleetfile *r, const char *url, struct err *e)
{
    return fleetfile_write(r, NULL, url, e);
}

int fleetfile_open(const char *path, struct port_http *port, struct fleetfile **out, struct err *e)
{
    struct fleetfile *r = mem_alloc(sizeof *r);
    int rc;

    r->path = mem_strdup(path);
    r->port = port;
    rc = fleetfile_read(r, e);
    if (rc == STATUS_OK) {
        *out = r;
    } else {
        fleetfile_close(r);
    }
    return rc;
}

void fleetfile_close(struct fleetfile *r)
{
    if (r) {
        fleetfile_list_fini(&r->have);
        mem_free(r->seen);
        mem_free(r->path);
        mem_free(r);
    }
}
