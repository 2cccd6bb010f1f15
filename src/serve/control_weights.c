/* Owns what a server does with its weights and its memory on request: taking other weights,
 * following those of a run, telling what they are, giving memory back. All of it runs on the
 * service's thread. */
#include <string.h>

#include "base/conf.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/status.h"
#include "model/weights.h"
#include "model/wfile.h"
#include "model/wsum.h"
#include "net/http_req.h"
#include "num/dtype.h"
#include "serve/control_int.h"
#include "serve/jfield.h"

/* ---- weights ---- */

/* Everything that the new file must have is looked for before the first value changes. */
static int control_check_file(const struct weights *w, const struct wfile *f, struct err *e)
{
    const struct arch *a = &w->arch, *b = wfile_arch(f);

    if (strcmp(a->family, b->family) != 0 || a->n_layers != b->n_layers || a->hidden != b->hidden ||
        a->n_heads != b->n_heads || a->n_kv_heads != b->n_kv_heads || a->head_dim != b->head_dim ||
        a->intermediate != b->intermediate || a->vocab != b->vocab) {
        return ERR(e, STATUS_INPUT,
                   "the files are those of another model: %s of %d layers, not %s "
                   "of %d",
                   b->family, b->n_layers, a->family, a->n_layers);
    }
    for (int i = 0; i < w->nparams; i++) {
        const struct param *p = &w->params[i];
        for (int k = 0; k < p->nparts; k++) {
            const struct wfile_tensor *t = wfile_find(f, p->part[k].name);
            int64_t n =
                p->kind == WEIGHTS_VECTOR ? p->part[k].rows : (int64_t)p->part[k].rows * p->cols;
            if (!t || (p->nparts > 1 && t->count != n)) {
                return ERR(e, STATUS_INPUT, "the files have no tensor %s of the model's shape",
                           p->part[k].name);
            }
        }
    }
    return STATUS_OK;
}

static int control_read_file(void *arg, const char *name, uint16_t *dst, int64_t count,
                             struct err *e)
{
    return wfile_read_bf16(arg, name, dst, count, e);
}

static int control_load(void *arg, struct weights *w, struct err *e)
{
    return weights_reload(w, control_read_file, arg, e);
}

int control_own_weights(const struct api *a, struct err *e)
{
    return a->m.served.w->attached
               ? ERR(e, STATUS_INPUT,
                     "the weights are those of the run that started this server (--weights-fd): it "
                     "alone changes them, and /update_weights_from_shared follows it")
               : STATUS_OK;
}

static int control_do_update(struct control_op *op, struct buf *out, struct err *e)
{
    const char *path = NULL, *label = NULL, *format = NULL;
    struct wfile *f = NULL;
    struct api *a = op->a;
    int abort_all = 0, rc;

    if ((rc = jfield_text(op->body, "model_path", &path, e)) ||
        (rc = jfield_text(op->body, "load_format", &format, e)) ||
        (rc = jfield_text(op->body, "weight_version", &label, e)) ||
        (rc = jfield_bool(op->body, "abort_all_requests", &abort_all, e))) {
        return rc;
    }
    if (!path) {
        return ERR(e, STATUS_INPUT, "model_path is needed");
    }
    if ((rc = control_own_weights(a, e))) {
        return rc;
    }
    rc = wfile_open(path, &f, e);
    if (rc != STATUS_OK) {
        e->code = STATUS_INPUT;
        return STATUS_INPUT;
    }
    rc = control_check_file(a->m.served.w, f, e);
    if (rc == STATUS_OK) {
        rc = service_change(a->service, abort_all ? ENGINE_PAUSE_ABORT : ENGINE_PAUSE_RETRACT,
                            control_load, f, label, e);
    }
    wfile_close(f);
    if (rc == STATUS_OK) {
        mem_free(a->path);
        a->path = mem_strdup(path);
        buf_str(out, "{\"success\":true,\"message\":\"Succeeded to update model weights.\","
                     "\"num_paused_requests\":0}");
    }
    return rc;
}

void control_update_from_disk(void *arg, struct http_req *r)
{
    control_start_success(arg, r, control_do_update);
}

static int control_follow(void *arg, struct weights *w, struct err *e)
{
    const int64_t *version = arg;
    return weights_follow(w, *version, e);
}

/* The run that the weights belong to has changed them, and they are that version now. */
static int control_do_shared(struct control_op *op, struct buf *out, struct err *e)
{
    const char *label = NULL;
    struct api *a = op->a;
    int64_t version;
    int abort_all = 0, rc;

    if ((rc = jfield_text(op->body, "weight_version", &label, e)) ||
        (rc = jfield_bool(op->body, "abort_all_requests", &abort_all, e))) {
        return rc;
    }
    if (!label || conf_parse_int(label, &version) != STATUS_OK || version < 0) {
        return ERR(e, STATUS_INPUT, "weight_version is not the number of a version, as a text");
    }
    rc = service_change(a->service, abort_all ? ENGINE_PAUSE_ABORT : ENGINE_PAUSE_RETRACT,
                        control_follow, &version, label, e);
    if (rc == STATUS_OK) {
        service_flush(a->service);
        buf_str(out, "{\"success\":true,\"message\":\"Succeeded to update model weights.\","
                     "\"weight_version\":");
        jfield_put_text(out, label, strlen(label));
        buf_char(out, '}');
    }
    return rc;
}

void control_update_from_shared(void *arg, struct http_req *r)
{
    control_start_success(arg, r, control_do_shared);
}

static int control_do_version(struct control_op *op, struct buf *out, struct err *e)
{
    const char *label = NULL;
    int abort_all = 1, rc;

    if ((rc = jfield_text(op->body, "new_version", &label, e)) ||
        (rc = jfield_bool(op->body, "abort_all_requests", &abort_all, e))) {
        return rc;
    }
    if (!label || !*label || strlen(label) > 255) {
        return ERR(e, STATUS_INPUT, "new_version is not a text of 1 to 255 bytes");
    }
    if (abort_all) {
        service_abort(op->a->service, NULL);
    }
    service_set_label(op->a->service, label);
    buf_str(out, "{\"success\":true,\"message\":\"Weight version updated\",\"new_version\":");
    jfield_put_text(out, label, strlen(label));
    buf_char(out, '}');
    return STATUS_OK;
}

void control_update_version(void *arg, struct http_req *r)
{
    control_start_success(arg, r, control_do_version);
}

void control_get_version(void *arg, struct http_req *r)
{
    struct api *a = arg;
    struct service_stats st;

    service_get_stats(a->service, &st);
    jfield_reply(r, 200, json_pack("{s:s}", "weight_version", st.weight_version));
}

/* The bf16 values of a tensor; free with mem_unmap of its bytes. */
static int control_tensor(struct weights *w, const char *name, uint16_t **out, int64_t *rows,
                          int64_t *cols, struct err *e)
{
    int row0, n;
    struct param *p = weights_find(w, name, &row0, &n);
    int rc;

    if (!p) {
        return ERR(e, STATUS_NOTFOUND, "the model has no parameter %.80s", name);
    }
    if (w->dropped) {
        return ERR(e, STATUS_AGAIN, "the memory of the weights is released");
    }
    *rows = p->kind == WEIGHTS_VECTOR ? 1 : n;
    *cols = p->kind == WEIGHTS_VECTOR ? (p->nparts > 1 ? n : p->cols) : p->cols;
    *out = mem_map((size_t)(*rows * *cols) * 2);
    if (!*out) {
        return ERR(e, STATUS_NOMEM, "no memory for a copy of %.80s", name);
    }
    rc = weights_read_bf16(w, name, *out, *rows * *cols, e);
    if (rc != STATUS_OK) {
        mem_unmap(*out, (size_t)(*rows * *cols) * 2);
    }
    return rc;
}

static int control_do_weights(struct control_op *op, struct buf *out, struct err *e)
{
    const char *name = NULL;
    int64_t most = 100, rows = 0, cols = 0;
    uint16_t *v;
    int rc;

    if ((rc = jfield_text(op->body, "name", &name, e)) ||
        (rc = jfield_int(op->body, "truncate_size", 1, 1 << 20, &most, e))) {
        return rc;
    }
    if (!name) {
        return ERR(e, STATUS_INPUT, "name is needed");
    }
    rc = control_tensor(op->a->m.served.w, name, &v, &rows, &cols, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    buf_char(out, '[');
    for (int64_t i = 0; i < rows && i < most; i++) {
        if (rows > 1) {
            buf_str(out, i ? ",[" : "[");
        }
        for (int64_t k = 0; k < cols && (rows > 1 || k < most); k++) {
            if (k) {
                buf_char(out, ',');
            }
            jfield_put_float(out, dtype_from_bf16(v[i * cols + k]));
        }
        if (rows > 1) {
            buf_char(out, ']');
        }
    }
    buf_char(out, ']');
    mem_unmap(v, (size_t)(rows * cols) * 2);
    return STATUS_OK;
}

void control_get_weights(void *arg, struct http_req *r)
{
    control_start(arg, r, control_do_weights);
}

static int control_sums(struct weights *w, struct map *sums, struct err *e)
{
    return wsum_take(w, &(struct wsum_opts){0}, sums, e);
}

static int control_noise(void *arg, const char *name, uint16_t *dst, int64_t count, struct err *e)
{
    uint64_t *seed = arg;

    (void)name;
    (void)e;
    for (int64_t i = 0; i < count; i++) {
        *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
        dst[i] = dtype_to_bf16((float)((double)(*seed >> 40) / (1 << 24) - 0.5));
    }
    return STATUS_OK;
}

static int control_scramble(void *arg, struct weights *w, struct err *e)
{
    uint64_t seed = 1;
    (void)arg;
    return weights_reload(w, control_noise, &seed, e);
}

static int control_compare(const struct map *old, const struct map *now, struct err *e)
{
    for (size_t i = 0; i < now->count; i++) {
        int64_t was;
        if (!map_get(old, now->entries[i].key, now->entries[i].len, &was) ||
            was != now->entries[i].value) {
            return ERR(e, STATUS_INPUT, "tensor %s is not what it was at the snapshot",
                       now->entries[i].key);
        }
    }
    return STATUS_OK;
}

/* The sum of every tensor, a hash over their names and sums, and one over that of all ranks, of
 * which there is one: as SGLang tells them. */
static void control_put_checksum(const struct map *sums, struct buf *out)
{
    struct sha256 h;
    uint8_t digest[32];
    char hex[65];

    buf_str(out, ",\"ranks\":[{\"checksums\":{");
    for (size_t i = 0; i < sums->count; i++) {
        buf_str(out, i ? "," : "");
        jfield_put_text(out, sums->entries[i].key, sums->entries[i].len);
        buf_printf(out, ":\"%016llx\"", (unsigned long long)sums->entries[i].value);
    }
    wsum_total(sums, hex);
    buf_printf(out,
               "},\"per_gpu_checksum\":\"%s\",\"parallelism_info\":[{\"role\":\"target\","
               "\"tp_rank\":0,\"tp_size\":1,\"dp_rank\":0,\"dp_size\":1,\"pp_rank\":0,"
               "\"pp_size\":1,\"rank\":0,\"size\":1}]}]",
               hex);
    sha256_init(&h);
    sha256_update(&h, hex, 64);
    sha256_final(&h, digest);
    sha256_digits(digest, hex);
    buf_printf(out, ",\"per_engine_checksum\":\"%s\"", hex);
}

/* miles_draw: only some tensors, the same for everybody who names the seed. */
static int control_draw(const json_t *body, struct wsum_opts *o, struct err *e)
{
    const json_t *draw = jfield_get(body, "miles_draw");
    int64_t seed = 0;
    int rc;

    memset(o, 0, sizeof *o);
    if (!draw) {
        return STATUS_OK;
    }
    if (!json_is_object(draw)) {
        return ERR(e, STATUS_INPUT, "miles_draw is not an object of seed and bytes");
    }
    if ((rc = jfield_int(draw, "seed", 0, INT64_MAX, &seed, e)) ||
        (rc = jfield_int(draw, "bytes", 0, INT64_MAX, &o->bytes, e))) {
        return rc;
    }
    o->seed = (uint64_t)seed;
    return STATUS_OK;
}

static int control_do_checker(struct control_op *op, struct buf *out, struct err *e)
{
    const char *action = "checksum";
    struct api *a = op->a;
    struct wsum_opts draw;
    struct map now;
    int rc;

    if ((rc = jfield_text(op->body, "action", &action, e)) ||
        (rc = control_draw(op->body, &draw, e))) {
        return rc;
    }
    if (a->m.served.w->dropped) {
        return ERR(e, STATUS_AGAIN, "the memory of the weights is released");
    }
    if (strcmp(action, "reset_tensors") == 0) {
        if ((rc = control_own_weights(a, e))) {
            return rc;
        }
        rc = service_change(a->service, ENGINE_PAUSE_RETRACT, control_scramble, NULL, NULL, e);
        if (rc == STATUS_OK) {
            buf_str(out, "{\"success\":true,\"message\":\"Success.\"}");
        }
        return rc;
    }
    if (strcmp(action, "snapshot") != 0 && strcmp(action, "compare") != 0 &&
        strcmp(action, "checksum") != 0) {
        return ERR(e, STATUS_INPUT, "unknown action %.40s", action);
    }
    if (strcmp(action, "checksum") != 0) {
        memset(&draw, 0, sizeof draw);
    }
    map_init(&now);
    rc = wsum_take(a->m.served.w, &draw, &now, e);
    if (rc == STATUS_OK && !weights_steady(a->m.served.w)) {
        rc = ERR(e, STATUS_AGAIN, "the weights changed while they were summed");
    }
    if (rc == STATUS_OK && strcmp(action, "compare") == 0) {
        rc = a->sums ? control_compare(a->sums, &now, e)
                     : ERR(e, STATUS_INPUT, "there is no snapshot to compare with");
    }
    if (rc == STATUS_OK) {
        buf_str(out, "{\"success\":true,\"message\":\"Success.\"");
        if (strcmp(action, "checksum") == 0) {
            control_put_checksum(&now, out);
            buf_str(out, ",\"weight_version\":");
            jfield_put_text(out, service_label(a->service), strlen(service_label(a->service)));
        }
        buf_char(out, '}');
    }
    if (rc == STATUS_OK && strcmp(action, "snapshot") == 0) {
        if (a->sums) {
            map_fini(a->sums);
        } else {
            a->sums = mem_alloc(sizeof *a->sums);
        }
        *a->sums = now;
        return rc;
    }
    map_fini(&now);
    return rc;
}

void control_checker(void *arg, struct http_req *r)
{
    control_start_success(arg, r, control_do_checker);
}

/* ---- memory ---- */

/* What the request speaks of: without tags of all. */
static int control_tags(const json_t *o, int *kv, int *weights, struct err *e)
{
    const json_t *tags = jfield_get(o, "tags"), *v;
    size_t i;

    *kv = *weights = !tags;
    if (tags && !json_is_array(tags)) {
        return ERR(e, STATUS_INPUT, "tags is not a list");
    }
    json_array_foreach(tags, i, v)
    {
        const char *tag = json_string_value(v);
        if (!tag || (strcmp(tag, "kv_cache") != 0 && strcmp(tag, "weights") != 0 &&
                     strcmp(tag, "cuda_graph") != 0)) {
            return ERR(e, STATUS_INPUT, "tags: entry %zu is not kv_cache, weights or cuda_graph",
                       i);
        }
        *kv |= strcmp(tag, "kv_cache") == 0;
        *weights |= strcmp(tag, "weights") == 0;
    }
    return STATUS_OK;
}

/* The weights' sums are kept: what is read again must be what was given up. */
static int control_drop_weights(struct api *a, struct err *e)
{
    struct map *sums;
    int rc;

    if (a->m.served.w->dropped) {
        return STATUS_OK;
    }
    sums = mem_alloc(sizeof *sums);
    map_init(sums);
    rc = control_sums(a->m.served.w, sums, e);
    if (rc == STATUS_OK) {
        rc = service_drop(a->service, e);
    }
    if (rc != STATUS_OK) {
        map_fini(sums);
        mem_free(sums);
        return rc;
    }
    if (a->kept) {
        map_fini(a->kept);
        mem_free(a->kept);
    }
    a->kept = sums;
    return STATUS_OK;
}

struct control_again {
    struct wfile *f;
    const struct map *kept;
};

static int control_load_again(void *arg, struct weights *w, struct err *e)
{
    const struct control_again *x = arg;
    struct map now;
    struct err other;
    int rc = control_load(x->f, w, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    map_init(&now);
    rc = control_sums(w, &now, e);
    if (rc == STATUS_OK && control_compare(x->kept, &now, &other) != STATUS_OK) {
        rc = ERR(e, STATUS_INPUT,
                 "the files are not the weights that were released; update_weights_from_disk takes "
                 "them as new ones");
    }
    map_fini(&now);
    return rc;
}

/* The weights come back from the files they were read from. */
static int control_restore_weights(struct api *a, struct err *e)
{
    struct control_again x = {NULL, a->kept};
    int rc;

    if (!a->m.served.w->dropped) {
        return STATUS_OK;
    }
    rc = wfile_open(a->path, &x.f, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    rc = control_check_file(a->m.served.w, x.f, e);
    if (rc == STATUS_OK) {
        rc = service_change(a->service, ENGINE_PAUSE_RETRACT, control_load_again, &x, NULL, e);
    }
    wfile_close(x.f);
    return rc;
}

static int control_do_release(struct control_op *op, struct buf *out, struct err *e)
{
    int kv, weights, rc = control_tags(op->body, &kv, &weights, e);

    (void)out;
    if (rc == STATUS_OK && weights && jfield_get(op->body, "tags")) {
        rc = control_own_weights(op->a, e);
    }
    if (rc == STATUS_OK && kv) {
        rc = service_release(op->a->service, e);
    }
    if (rc == STATUS_OK && weights && !op->a->m.served.w->attached) {
        rc = control_drop_weights(op->a, e);
    }
    return rc;
}

void control_release(void *arg, struct http_req *r)
{
    control_start(arg, r, control_do_release);
}

static int control_do_resume(struct control_op *op, struct buf *out, struct err *e)
{
    int kv, weights, rc = control_tags(op->body, &kv, &weights, e);

    (void)out;
    if (rc == STATUS_OK && weights) {
        rc = control_restore_weights(op->a, e);
    }
    if (rc == STATUS_OK && kv) {
        rc = service_restore(op->a->service, e);
    }
    return rc;
}

void control_resume(void *arg, struct http_req *r)
{
    control_start(arg, r, control_do_resume);
}
