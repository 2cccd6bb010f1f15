/* Owns the taking of weights that come as changes: what the engine holds is summed on the service's
 * thread, versions are fetched on another while samples go on, and only when all of it is there and
 * right the service's thread changes the weights. Whatever fails before leaves them as they are. */
#include <stdio.h>
#include <string.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "model/weights.h"
#include "serve/control_int.h"
#include "serve/front.h"
#include "serve/jfield.h"
#include "serve/pull.h"

struct control_delta {
    struct control_op *op;
    struct pull_opts o;
    struct pull *pull;
    struct wmanifest held; /* of what was held at the start: its sum alone */
    char held_name[256];
    enum engine_pause how;
    int64_t version;
};

static void control_delta_end(struct control_delta *x, int rc, const struct err *e)
{
    const char *label = NULL;
    struct buf out;

    buf_init(&out, 1 << 16);
    if (rc == STATUS_OK) {
        const struct pull_figures *f = pull_figures(x->pull);
        int n;
        (void)pull_layers(x->pull, &n);
        (void)jfield_text(x->op->body, "weight_version", &label, NULL);
        buf_str(&out, "{\"success\":true,\"message\":\"Succeeded to update model weights.\","
                      "\"weight_version\":");
        jfield_put_text(&out, label, strlen(label));
        buf_printf(&out,
                   ",\"versions\":%d,\"bytes\":%lld,\"files\":%d,\"resumed\":%d,"
                   "\"fetched_again\":%d,\"fetch_s\":%.6f}",
                   n, (long long)f->bytes, f->files, f->resumed, f->again, f->seconds);
    } else {
        log_warn(WEIGHTS, "version %lld is not taken, %s stays: %s", (long long)x->version,
                 x->held_name, e->msg);
    }
    control_finish(x->op, rc, &out, e);
    buf_fini(&out);
    pull_close(x->pull);
    mem_free(x);
}

/* ---- on the service's thread, when all is there ---- */

static int control_delta_patch(void *arg, struct weights *w, struct err *e)
{
    struct control_delta *x = arg;
    struct wpatch_held *held = &x->op->a->held;
    const struct wpatch_layer *layers;
    struct wpatch *p = NULL;
    int n, rc;

    layers = pull_layers(x->pull, &n);
    if (n == 0) {
        return STATUS_OK;
    }
    rc = wpatch_open(w, held, layers, n, &p, e);
    rc = rc ? rc : wpatch_verify(p, e);
    rc = rc ? rc : wpatch_commit(p, e);
    wpatch_close(p);
    return rc;
}

static int control_delta_apply(struct control_delta *x, struct err *e)
{
    struct api *a = x->op->a;
    const struct pull_figures *f = pull_figures(x->pull);
    const char *label = NULL;
    double start = proc_now();
    int n, rc = wpatch_hold(a->m.served.w, &a->held, e);

    if (rc == STATUS_OK && strcmp(a->held.m->sum, x->held.sum) != 0) {
        rc = ERR(e, STATUS_AGAIN, "the weights changed while others were fetched");
    }
    (void)jfield_text(x->op->body, "weight_version", &label, NULL);
    if (rc == STATUS_OK) {
        rc = service_change(a->service, x->how, control_delta_patch, x, label, e);
    }
    if (rc == STATUS_OK) {
        service_flush(a->service);
        (void)pull_layers(x->pull, &n);
        log_info(
            WEIGHTS,
            "weight_sync: version %s taken: %d versions, %.3f MB in %d files fetched in %.3f s "
            "(%d resumed, %d again), applied in %.3f s",
            label, n, (double)f->bytes / 1e6, f->files, f->seconds, f->resumed, f->again,
            proc_now() - start);
    }
    return rc;
}

static void control_delta_run(void *arg, struct service *s)
{
    struct control_delta *x = arg;
    struct err e = {0};
    int rc = control_delta_apply(x, &e);

    service_show(s);
    control_delta_end(x, rc, &e);
}

/* ---- on the fetching thread ---- */

static int control_delta_stop(void *arg)
{
    struct control_delta *x = arg;
    return atomic_load(&x->op->a->stopping) || reply_gone(&x->op->rp);
}

static void control_delta_pull(void *arg)
{
    struct control_delta *x = arg;
    struct err e = {0};
    int rc = control_delta_stop(x) ? ERR(&e, STATUS_AGAIN, "nobody waits for the weights any more")
                                   : pull_open(&x->o, &x->pull, &e);

    if (rc == STATUS_OK) {
        service_run(x->op->a->service, control_delta_run, x);
    } else {
        control_delta_end(x, rc, &e);
    }
}

/* ---- on the service's thread, at first ---- */

static int control_delta_read(struct control_delta *x, const json_t *body, struct err *e)
{
    static const char *const names[] = {"source", "weight_version",     "manifest",    "timeout_s",
                                        "only",   "abort_all_requests", "flush_cache", NULL};
    const char *label = NULL;
    int abort_all = 0, rc;

    if ((rc = jfield_known(body, "the request", names, e)) ||
        (rc = jfield_text(body, "source", &x->o.source, e)) ||
        (rc = jfield_text(body, "weight_version", &label, e)) ||
        (rc = jfield_text(body, "manifest", &x->o.manifest, e)) ||
        (rc = jfield_real(body, "timeout_s", 0.0, 1e9, &x->o.timeout_s, e)) ||
        (rc = jfield_bool(body, "only", &x->o.only, e)) ||
        (rc = jfield_bool(body, "abort_all_requests", &abort_all, e))) {
        return rc;
    }
    if (!x->o.source || !*x->o.source) {
        return ERR(e, STATUS_INPUT, "source is needed: a folder or an address of versions");
    }
    if (!label || conf_parse_int(label, &x->version) != STATUS_OK || x->version < 0) {
        return ERR(e, STATUS_INPUT, "weight_version is not the number of a version, as a text");
    }
    if (x->o.manifest && !wdelta_is_hash(x->o.manifest)) {
        return ERR(e, STATUS_INPUT, "manifest is not the hash of one: 32 digits of xxh3-128");
    }
    x->how = abort_all ? ENGINE_PAUSE_ABORT : ENGINE_PAUSE_RETRACT;
    return STATUS_OK;
}

static int control_do_delta(struct control_op *op, struct buf *out, struct err *e)
{
    struct api *a = op->a;
    struct control_delta *x = mem_alloc(sizeof *x);
    int rc = control_delta_read(x, op->body, e);

    (void)out;
    rc = rc ? rc : control_own_weights(a, e);
    rc = rc ? rc : wpatch_hold(a->m.served.w, &a->held, e);
    if (rc != STATUS_OK) {
        mem_free(x);
        return rc;
    }
    x->op = op;
    memcpy(x->held.sum, a->held.m->sum, WDELTA_HASH);
    snprintf(x->held_name, sizeof x->held_name, "%s", service_label(a->service));
    x->o.version = x->version;
    x->o.held = &x->held;
    x->o.held_name = x->held_name;
    x->o.stop = control_delta_stop;
    x->o.arg = x;
    front_run(a->puller, control_delta_pull, x);
    return STATUS_END;
}

void control_update_from_delta(void *arg, struct http_req *r)
{
    control_start_success(arg, r, control_do_delta);
}
