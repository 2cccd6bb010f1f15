/* Owns the hooks that see the model: the optimizer's masters are laid out in one block, by the
 * names of Hugging Face's tensors, the function reads and writes there, and parameters that differ
 * afterwards are written back, masters and weights alike. A model that was changed has a new
 * version, so that nobody takes what was computed before for its own. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/plugin.h"
#include "base/status.h"
#include "miles_plugin.h"
#include "model/weights.h"
#include "reward/hookcall.h"
#include "rl/extend_int.h"
#include "train/optim.h"

struct image {
    struct optim *optim;
    float *base;
    size_t bytes;
    int nparts;
};

static int64_t param_count(const struct param *p)
{
    return (int64_t)p->rows * p->cols;
}

static void image_plan(struct image *m)
{
    const struct weights *w = m->optim->w;
    for (int i = 0; i < w->nparams; i++) {
        m->bytes += sizeof(float) * (size_t)param_count(&w->params[i]);
        m->nparts += w->params[i].nparts;
    }
}

static int image_fill(const struct image *m, struct err *e)
{
    const struct weights *w = m->optim->w;
    float *x = m->base;

    for (int i = 0; i < w->nparams; i++) {
        const struct param *p = &w->params[i];
        for (int64_t r = 0; r < p->rows; r += OPTIM_ROWS) {
            int64_t n = p->rows - r < OPTIM_ROWS ? p->rows - r : OPTIM_ROWS;
            int rc = optim_read(m->optim, OPTIM_MASTER, i, r, n, x, e);
            if (rc != STATUS_OK) {
                return rc;
            }
            x += n * p->cols;
        }
    }
    return STATUS_OK;
}

/* Writes parameter i back when it differs; *changed counts. */
static int image_take(const struct image *m, int i, const float *x, float *rows, int *changed,
                      struct err *e)
{
    const struct param *p = &m->optim->w->params[i];
    int differs = 0;

    for (int64_t r = 0; !differs && r < p->rows; r += OPTIM_ROWS) {
        int64_t n = p->rows - r < OPTIM_ROWS ? p->rows - r : OPTIM_ROWS;
        int rc = optim_read(m->optim, OPTIM_MASTER, i, r, n, rows, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        differs = memcmp(rows, x + r * p->cols, sizeof *rows * (size_t)(n * p->cols)) != 0;
    }
    for (int64_t k = 0; differs && k < param_count(p); k++) {
        if (!isfinite(x[k])) {
            return ERR(e, STATUS_NUMERIC, "the hook wrote %g into %s", (double)x[k],
                       p->part[0].name);
        }
    }
    *changed += differs;
    return differs ? optim_write(m->optim, OPTIM_MASTER, i, x, e) : STATUS_OK;
}

static int image_back(const struct image *m, int *changed, struct err *e)
{
    struct weights *w = m->optim->w;
    const float *x = m->base;
    int cols = 1, rc = STATUS_OK;
    float *rows;

    for (int i = 0; i < w->nparams; i++) {
        cols = w->params[i].cols > cols ? w->params[i].cols : cols;
    }
    rows = mem_alloc(sizeof *rows * OPTIM_ROWS * (size_t)cols);
    *changed = 0;
    weights_writing(w, 1);
    for (int i = 0; rc == STATUS_OK && i < w->nparams; i++) {
        rc = image_take(m, i, x, rows, changed, e);
        x += param_count(&w->params[i]);
    }
    mem_free(rows);
    w->version += *changed > 0;
    weights_writing(w, 0);
    if (rc == STATUS_OK && *changed) {
        log_info(TRAIN, "a hook changed %d parameters: weights are version %lld now", *changed,
                 (long long)w->version);
    }
    return rc;
}

/* ---- calls ---- */

/* Part k of a parameter whose values begin at element `at`. */
static void part_view(const struct param *p, int k, int64_t at, int64_t *first, int64_t *rows,
                      int64_t *cols)
{
    int vector = p->kind == WEIGHTS_VECTOR;
    *rows = vector ? 1 : p->part[k].rows;
    *cols = vector ? p->part[k].rows : p->cols;
    *first = at + (vector ? p->part[k].row0 : (int64_t)p->part[k].row0 * p->cols);
}

static json_t *image_layout(const struct image *m)
{
    json_t *arrays = json_object(), *shapes = json_object();
    int64_t at = 0, first, rows, cols;

    for (int i = 0; i < m->optim->w->nparams; i++) {
        const struct param *p = &m->optim->w->params[i];
        for (int k = 0; k < p->nparts; k++) {
            part_view(p, k, at, &first, &rows, &cols);
            json_object_set_new(
                arrays, p->part[k].name,
                json_pack("[I,I,s]", (json_int_t)(4 * first), (json_int_t)(rows * cols), "f32"));
            json_object_set_new(shapes, p->part[k].name,
                                p->kind == WEIGHTS_VECTOR
                                    ? json_pack("[I]", (json_int_t)cols)
                                    : json_pack("[I,I]", (json_int_t)rows, (json_int_t)cols));
        }
        at += param_count(p);
    }
    return json_pack("{s:I,s:o,s:o}", "size", (json_int_t)m->bytes, "arrays", arrays, "shapes",
                     shapes);
}

static int call_plugin(struct plugin *p, const struct image *m, const json_t *argv, struct err *e)
{
    struct miles_param *v = mem_alloc(sizeof *v * (size_t)(m->nparts + 1));
    char *text = json_dumps(argv, JSON_COMPACT);
    struct miles_why why = {""};
    int64_t at = 0, first;
    int n = 0, rc;

    for (int i = 0; i < m->optim->w->nparams; i++) {
        const struct param *q = &m->optim->w->params[i];
        for (int k = 0; k < q->nparts; k++, n++) {
            part_view(q, k, at, &first, &v[n].rows, &v[n].cols);
            v[n].name = q->part[k].name;
            v[n].data = m->base + first;
        }
        at += param_count(q);
    }
    rc = plugin_table(p)->params(plugin_self(p), text ? text : "[]", v, n, &why);
    why.text[sizeof why.text - 1] = 0;
    free(text);
    mem_free(v);
    return rc == 0 ? STATUS_OK : plugin_failed(p, why.text, e);
}

/* Calls hook i with the model and argv (taken over). */
static int with_model(struct extend *x, enum extend_hook i, json_t *argv, json_t **answer,
                      int *changed, struct err *e)
{
    struct image m = {.optim = x->optim};
    struct plugin *p = hookcall_plugin(x->hook[i]);
    void *mem = NULL;
    int rc = STATUS_OK;

    ASSERT(x->optim);
    image_plan(&m);
    if (p) {
        mem = mem_map(m.bytes);
        rc = mem ? STATUS_OK : ERR(e, STATUS_NOMEM, "no %zu bytes for a hook's view", m.bytes);
    } else {
        rc = hookcall_memory(x->hook[i], m.bytes, &mem, e);
    }
    m.base = mem;
    rc = rc == STATUS_OK ? image_fill(&m, e) : rc;
    if (rc == STATUS_OK && p) {
        rc = call_plugin(p, &m, argv, e);
        json_decref(argv);
    } else if (rc == STATUS_OK) {
        json_array_insert_new(argv, 0, image_layout(&m));
        rc = extend_call(x, i, argv, answer, e);
    } else {
        json_decref(argv);
    }
    rc = rc == STATUS_OK ? image_back(&m, changed, e) : rc;
    if (p && mem) {
        mem_unmap(mem, m.bytes);
    }
    return rc;
}

int extend_before_scores(struct extend *x, const char *prefix, int *changed, struct err *e)
{
    json_t *answer = NULL;
    int rc;

    *changed = 0;
    if (!x || !x->hook[EXTEND_BEFORE_SCORES]) {
        return STATUS_OK;
    }
    rc = with_model(x, EXTEND_BEFORE_SCORES, json_pack("[s]", prefix), &answer, changed, e);
    json_decref(answer);
    return rc;
}

int extend_before_step(struct extend *x, int64_t rollout, int64_t step, const struct optim_hyper *h,
                       json_t *row, int *changed, struct err *e)
{
    json_t *answer = NULL, *value;
    const char *name;
    int rc;

    *changed = 0;
    if (!x || !x->hook[EXTEND_BEFORE_STEP]) {
        return STATUS_OK;
    }
    rc = with_model(x, EXTEND_BEFORE_STEP,
                    json_pack("[I,I,{s:f,s:f,s:f,s:f,s:f,s:f,s:I},{s:f}]", (json_int_t)rollout,
                              (json_int_t)step, "lr", h->lr, "beta1", h->beta1, "beta2", h->beta2,
                              "eps", h->eps, "weight_decay", h->weight_decay, "clip_grad", h->clip,
                              "step", (json_int_t)x->optim->step, "lr", h->lr),
                    &answer, changed, e);
    json_object_foreach(answer, name, value)
    {
        char full[160];
        snprintf(full, sizeof full, "train/%.140s", name);
        metric_put(row, full, json_is_number(value) ? json_number_value(value) : NAN);
    }
    json_decref(answer);
    return rc;
}
