/* Owns the comparison of two runs. */
#include "run/rundiff.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "rl/dump.h"
#include "rl/sample.h"

struct rundiff_side {
    const char *name;
    char *dir;       /* run folder; NULL: only a file of hashes was given */
    char *path;      /* of the hashes */
    json_t *options; /* of config.json, or NULL */
    FILE *in;
    char *line;
    size_t cap;
    int64_t number; /* of the line */
    json_t *head;   /* the first row, or NULL */
};

struct rundiff {
    struct rundiff_side s[2];
    FILE *out;
    json_t *tensors, *gradients; /* names, borrowed from rows that are kept */
    json_t *named;               /* the row that has gradients */
    int64_t steps;
    char element[64];
};

/* The fields of a step, in the order in which they come to be. */
static const struct rundiff_field {
    const char *key, *phase, *words;
    int tensors; /* 1: one hash for each tensor; 2: for each parameter of a gradient */
} rundiff_fields[] = {{"prompts", "data", "the prompts", 0},
                      {"tokens", "tokens", "the sampled tokens", 0},
                      {"rollout_log_probs", "tokens", "the log-probs of the sampled tokens", 0},
                      {"rewards", "rewards", "the rewards", 0},
                      {"old_log_probs", "log_probs", "the old policy's log-probs", 0},
                      {"ref_log_probs", "log_probs", "the reference's log-probs", 0},
                      {"advantages", "advantages", "the advantages", 0},
                      {"gradient", "gradient", "the gradient", 2},
                      {"weights", "weights", "the weights", 1},
                      {"masters", "optimizer", "the f32 masters", 1},
                      {"exp_avg", "optimizer", "Adam's first moment", 1},
                      {"exp_avg_sq", "optimizer", "Adam's second moment", 1}};
#define RUNDIFF_FIELDS ((int)(sizeof rundiff_fields / sizeof rundiff_fields[0]))

/* ---- reading ---- */

static int rundiff_open_side(struct rundiff_side *s, const char *given, struct err *e)
{
    char *config;

    s->name = given;
    if (fsio_is_dir(given)) {
        s->dir = mem_strdup(given);
        s->path = fsio_join(given, "hashes.jsonl");
        config = fsio_join(given, "config.json");
        s->options = json_load_file(config, 0, NULL);
        mem_free(config);
    } else {
        s->path = mem_strdup(given);
    }
    s->in = fopen(s->path, "re");
    if (!s->in) {
        return ERR(e, STATUS_INPUT, "cannot read %s: %s%s", s->path, strerror(errno),
                   s->dir ? " (is it the folder of a run?)" : "");
    }
    return STATUS_OK;
}

static void rundiff_close_side(struct rundiff_side *s)
{
    if (s->in) {
        fclose(s->in);
    }
    free(s->line);
    json_decref(s->options);
    json_decref(s->head);
    mem_free(s->dir);
    mem_free(s->path);
}

/* The next row; STATUS_END behind the last. A line without its end was being written. */
static int rundiff_next(struct rundiff_side *s, json_t **row, struct err *e)
{
    ssize_t n = getline(&s->line, &s->cap, s->in);
    json_error_t je;
    json_t *j;
    const char *f;

    if (n <= 0 || s->line[n - 1] != '\n') {
        return STATUS_END;
    }
    s->number++;
    j = json_loadb(s->line, (size_t)n, 0, &je);
    f = json_string_value(json_object_get(j, "format"));
    if (!j) {
        return ERR(e, STATUS_INPUT, "%s line %lld: %s", s->path, (long long)s->number, je.text);
    }
    if (s->number == 1 && (!f || strcmp(f, "miles-hashes") != 0 ||
                           json_integer_value(json_object_get(j, "version")) != 1)) {
        json_decref(j);
        return ERR(e, STATUS_INPUT, "%s line 1: not a miles-hashes file of version 1", s->path);
    }
    *row = j;
    return STATUS_OK;
}

static const char *rundiff_option(const struct rundiff_side *s, const char *name)
{
    return json_string_value(json_object_get(json_object_get(s->options, "options"), name));
}

/* ---- elements: samples ---- */

static int rundiff_load_samples(const struct rundiff_side *s, int64_t rollout, struct sample ***out,
                                int *n)
{
    const char *dump = rundiff_option(s, "save_debug_rollout_data");
    const char *details = rundiff_option(s, "dump_details");
    char id[32], *path, *given = NULL;
    int rc;

    if (!dump && details) {
        given = fsio_join(details, "rollout_data/{rollout_id}.jsonl");
        dump = given;
    }
    if (!dump) {
        return 0;
    }
    snprintf(id, sizeof id, "%lld", (long long)rollout);
    path = conf_expand(dump, id);
    rc = dump_read(path, out, n, NULL);
    mem_free(path);
    mem_free(given);
    return rc == STATUS_OK;
}

static void rundiff_free_samples(struct sample **s, int n)
{
    for (int i = 0; s && i < n; i++) {
        sample_free(s[i]);
    }
    mem_free(s);
}

/* The first place where two lists of tokens differ; -1: nowhere. */
static int rundiff_tokens(const int32_t *a, int na, const int32_t *b, int nb)
{
    int n = na < nb ? na : nb;
    for (int i = 0; i < n; i++) {
        if (a[i] != b[i]) {
            return i;
        }
    }
    return na == nb ? -1 : n;
}

/* Whether two samples differ in this field; tells where. */
static int rundiff_sample(struct rundiff *d, const char *key, const struct sample *a,
                          const struct sample *b, int i)
{
    int at;

    if (strcmp(key, "prompts") == 0) {
        at = rundiff_tokens(a->tokens, a->prompt_len, b->tokens, b->prompt_len);
        if (at < 0 && a->index == b->index) {
            return 0;
        }
        fprintf(d->out, "  sample %d: index %lld and %lld", i, (long long)a->index,
                (long long)b->index);
        if (at >= 0 && at < a->prompt_len && at < b->prompt_len) {
            fprintf(d->out, ", token %d of the prompt is %d and %d", at, a->tokens[at],
                    b->tokens[at]);
        } else if (at >= 0) {
            fprintf(d->out, ", prompts of %d and %d tokens", a->prompt_len, b->prompt_len);
        }
        fputc('\n', d->out);
    } else if (strcmp(key, "tokens") == 0) {
        const int32_t *x = a->tokens + a->prompt_len, *y = b->tokens + b->prompt_len;
        at = rundiff_tokens(x, a->response_len, y, b->response_len);
        if (at < 0) {
            return 0;
        }
        if (at < a->response_len && at < b->response_len) {
            fprintf(d->out, "  sample %d (index %lld): token %d of the response is %d and %d\n", i,
                    (long long)a->index, at, x[at], y[at]);
        } else {
            fprintf(d->out, "  sample %d (index %lld): responses of %d and %d tokens\n", i,
                    (long long)a->index, a->response_len, b->response_len);
        }
    } else if (strcmp(key, "rollout_log_probs") == 0) {
        for (at = 0; a->logps && b->logps && at < a->response_len && at < b->response_len; at++) {
            if (memcmp(&a->logps[at], &b->logps[at], sizeof *a->logps) != 0) {
                break;
            }
        }
        if (!a->logps || !b->logps || at == a->response_len || at == b->response_len) {
            return 0;
        }
        fprintf(d->out, "  sample %d (index %lld): log-prob %d is %.9g and %.9g\n", i,
                (long long)a->index, at, (double)a->logps[at], (double)b->logps[at]);
    } else {
        if (memcmp(&a->reward, &b->reward, sizeof a->reward) == 0) {
            return 0;
        }
        at = 0;
        fprintf(d->out, "  sample %d (index %lld): reward %.9g and %.9g\n", i, (long long)a->index,
                a->reward, b->reward);
    }
    snprintf(d->element, sizeof d->element, "%d:%d", i, at);
    return 1;
}

static void rundiff_samples(struct rundiff *d, const char *key, int64_t rollout)
{
    struct sample **s[2] = {NULL, NULL};
    int n[2] = {0, 0}, have = 1, found = 0;

    for (int k = 0; k < 2; k++) {
        if (!rundiff_load_samples(&d->s[k], rollout, &s[k], &n[k])) {
            fprintf(d->out,
                    "  %s did not keep the samples of rollout %lld: --dump-details DIR, or "
                    "--save-debug-rollout-data 'DIR/{rollout_id}.jsonl', would have\n",
                    d->s[k].name, (long long)rollout);
            have = 0;
        }
    }
    for (int i = 0; have && !found && i < n[0] && i < n[1]; i++) {
        found = rundiff_sample(d, key, s[0][i], s[1][i], i);
    }
    if (have && !found && n[0] != n[1]) {
        fprintf(d->out, "  %d and %d samples\n", n[0], n[1]);
    }
    rundiff_free_samples(s[0], n[0]);
    rundiff_free_samples(s[1], n[1]);
}

/* ---- elements: tensors ---- */

/* A tensor of the checkpoint after a rollout; *values is the caller's. */
static int rundiff_load_tensor(const struct rundiff_side *s, int64_t rollout, const char *file,
                               const char *tensor, float **values, int64_t dim[2])
{
    const char *save = rundiff_option(s, "save");
    char name[64], *dir, *path;
    struct safetensors *f = NULL;
    const struct safetensors_tensor *t = NULL;
    int ok = 0;

    if (!save) {
        return 0;
    }
    snprintf(name, sizeof name, "iter_%07lld", (long long)rollout);
    dir = fsio_join(save, name);
    path = fsio_join(dir, file);
    if (fsio_is_file(path) && safetensors_open(path, &f, NULL) == STATUS_OK) {
        t = safetensors_find(f, tensor);
    }
    if (t) {
        *values = mem_alloc(sizeof **values * (size_t)t->count);
        ok = safetensors_read_f32(t, *values, t->count, NULL) == STATUS_OK;
        dim[0] = t->ndim > 1 ? t->dim[0] : 1;
        dim[1] = dim[0] ? t->count / dim[0] : 0;
    }
    safetensors_close(f);
    mem_free(path);
    mem_free(dir);
    return ok;
}

static int rundiff_tensor(struct rundiff *d, int64_t rollout, const char *file, const char *tensor,
                          const char *note)
{
    float *v[2] = {NULL, NULL};
    int64_t dim[2][2] = {{0, 0}, {0, 0}}, n, at = 0, differ = 0, first = -1;
    int have = 1;

    for (int k = 0; k < 2; k++) {
        have &= rundiff_load_tensor(&d->s[k], rollout, file, tensor, &v[k], dim[k]);
    }
    n = have && dim[0][0] == dim[1][0] && dim[0][1] == dim[1][1] ? dim[0][0] * dim[0][1] : 0;
    for (; at < n; at++) {
        if (memcmp(&v[0][at], &v[1][at], sizeof **v) != 0) {
            first = first < 0 ? at : first;
            differ++;
        }
    }
    if (first >= 0) {
        fprintf(d->out, "  %s%s [%lld, %lld] is %.9g and %.9g; %lld of its %lld values differ\n",
                tensor, note, (long long)(first / dim[0][1]), (long long)(first % dim[0][1]),
                (double)v[0][first], (double)v[1][first], (long long)differ, (long long)n);
        snprintf(d->element, sizeof d->element, "%lld,%lld", (long long)(first / dim[0][1]),
                 (long long)(first % dim[0][1]));
    }
    mem_free(v[0]);
    mem_free(v[1]);
    return first >= 0 ? 1 : have ? 0 : -1;
}

/* The tensors of a parameter in which layers that share an input are one. */
static int rundiff_parts(const char *name, char out[3][160])
{
    static const struct {
        const char *fused, *parts[3];
    } known[] = {{"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
                 {"gate_up_proj", {"gate_proj", "up_proj", NULL}}};

    for (size_t k = 0; k < 2; k++) {
        const char *at = strstr(name, known[k].fused);
        int n = 0;
        for (; at && n < 3 && known[k].parts[n]; n++) {
            snprintf(out[n], 160, "%.*s%s%s", (int)(at - name), name, known[k].parts[n],
                     at + strlen(known[k].fused));
        }
        if (n) {
            return n;
        }
    }
    snprintf(out[0], 160, "%s", name);
    return 1;
}

static void rundiff_values(struct rundiff *d, const struct rundiff_field *f, int64_t rollout,
                           const char *tensor)
{
    char part[3][160], name[512];
    int n = rundiff_parts(tensor, part), got = -1;
    int moment = f->tensors == 2 || strncmp(f->key, "exp_avg", 7) == 0;

    for (int i = 0; got <= 0 && i < n; i++) {
        int one;
        snprintf(name, sizeof name, "%s%s%s",
                 f->tensors == 2 ? "exp_avg"
                 : moment        ? f->key
                                 : "",
                 moment ? "." : "", part[i]);
        one = rundiff_tensor(d, rollout, moment ? "optim.safetensors" : "model.safetensors", name,
                             f->tensors == 2 ? ", which the gradient went into," : "");
        got = one > got ? one : got;
    }
    if (got < 0) {
        fprintf(d->out,
                "  no checkpoint of rollout %lld in both runs: --save DIR --save-interval 1 would "
                "have kept the values\n",
                (long long)rollout);
    } else if (got == 0) {
        fprintf(d->out, "  the checkpoints of rollout %lld agree in it again\n",
                (long long)rollout);
    }
}

/* ---- words ---- */

/* Options that are not the same, but for places (by the beginning of their names). */
static void rundiff_options(struct rundiff *d)
{
    static const char *const places[] = {"run_dir", "save",    "load",  "critic_", "dump_",
                                         "log_dir", "threads", "wandb", "mlflow",  "tb_"};
    json_t *a = json_object_get(d->s[0].options, "options");
    json_t *b = json_object_get(d->s[1].options, "options"), *v;
    const char *key;
    int n = 0;

    if (!a || !b) {
        return;
    }
    json_object_foreach(a, key, v)
    {
        json_t *w = json_object_get(b, key);
        int skip = 0;
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            skip |= strncmp(key, places[i], strlen(places[i])) == 0;
        }
        if (!skip && w && !json_equal(v, w)) {
            char *x = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
            char *y = json_dumps(w, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
            fprintf(d->out, "%s%s %.80s and %.80s", n++ ? ", " : "options that differ: ", key, x,
                    y);
            free(x);
            free(y);
        }
    }
    fputs(n ? "\n" : "no option that matters differs\n", d->out);
}

/* The first of a list of hashes that differs, and how many do. */
static int rundiff_first(const json_t *a, const json_t *b, size_t *count)
{
    size_t n = json_array_size(a) < json_array_size(b) ? json_array_size(a) : json_array_size(b);
    int first = -1;

    *count = 0;
    for (size_t i = 0; i < n; i++) {
        if (!json_equal(json_array_get(a, i), json_array_get(b, i))) {
            first = first < 0 ? (int)i : first;
            ++*count;
        }
    }
    return first;
}

static void rundiff_last_line(const struct rundiff *d, int64_t rollout, int64_t step,
                              const char *phase, const char *tensor)
{
    char s[24] = "-";
    if (step >= 0) {
        snprintf(s, sizeof s, "%lld", (long long)step);
    }
    fprintf(d->out, "equal=0 rollout=%lld step=%s phase=%s tensor=%s element=%s\n",
            (long long)rollout, s, phase, tensor, d->element[0] ? d->element : "-");
}

/* Says all that is known of a field in which two rows differ. step -1: before the first. */
static void rundiff_tell(struct rundiff *d, const struct rundiff_field *f, const json_t *a,
                         const json_t *b, int64_t rollout, int64_t step)
{
    const json_t *x = json_object_get(a, f->key), *y = json_object_get(b, f->key);
    const char *tensor = "-";
    size_t count;

    if (step < 0) {
        fprintf(d->out, "%s differ before the first step: another model or checkpoint\n", f->words);
    } else {
        fprintf(d->out, "%s differ%s in step %lld of rollout %lld (phase %s)\n", f->words,
                f->words[strlen(f->words) - 1] == 's' ? "" : "s", (long long)step,
                (long long)rollout, f->phase);
    }
    if (f->tensors) {
        const json_t *names = f->tensors == 2 ? d->gradients : d->tensors;
        int i = rundiff_first(x, y, &count);
        const char *name = json_string_value(json_array_get(names, (size_t)(i < 0 ? 0 : i)));
        tensor = name ? name : "-";
        fprintf(d->out, "  %zu of %zu tensors, the first is %s\n", count, json_array_size(x),
                tensor);
        if (step >= 0) {
            rundiff_values(d, f, rollout, tensor);
        }
    } else {
        const json_t *p = json_object_get(json_object_get(a, "by_sample"), f->key);
        const json_t *q = json_object_get(json_object_get(b, "by_sample"), f->key);
        int i = rundiff_first(p, q, &count);
        if (i >= 0) {
            fprintf(d->out, "  %zu of %zu samples, the first is number %d\n", count,
                    json_array_size(p), i);
            snprintf(d->element, sizeof d->element, "%d", i);
        }
        if (strcmp(f->phase, "log_probs") == 0 || strcmp(f->phase, "advantages") == 0) {
            if (i < 0) {
                fprintf(d->out, "  --debug-determinism in both runs would have told the sample\n");
            }
        } else {
            rundiff_samples(d, f->key, rollout);
        }
    }
    rundiff_options(d);
    rundiff_last_line(d, rollout, step, f->phase, tensor);
}

/* ---- comparing ---- */

/* The first field in which two rows differ; NULL: none. What only one of them has is not compared.
 */
static const struct rundiff_field *rundiff_rows(const json_t *a, const json_t *b)
{
    for (int i = 0; i < RUNDIFF_FIELDS; i++) {
        const json_t *x = json_object_get(a, rundiff_fields[i].key);
        const json_t *y = json_object_get(b, rundiff_fields[i].key);
        if (x && y && !json_equal(x, y)) {
            return &rundiff_fields[i];
        }
    }
    return NULL;
}

static int rundiff_heads(struct rundiff *d, int *equal, struct err *e)
{
    const struct rundiff_field *f;
    int rc = STATUS_OK;

    for (int k = 0; rc == STATUS_OK && k < 2; k++) {
        rc = rundiff_next(&d->s[k], &d->s[k].head, e);
        if (rc == STATUS_END) {
            rc = ERR(e, STATUS_INPUT, "%s is empty: the run came to no step", d->s[k].path);
        }
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    d->tensors = json_object_get(d->s[0].head, "tensors");
    if (!json_equal(d->tensors, json_object_get(d->s[1].head, "tensors")) &&
        d->tensors != json_object_get(d->s[1].head, "tensors")) {
        fprintf(d->out, "the models have other tensors: %zu and %zu\n", json_array_size(d->tensors),
                json_array_size(json_object_get(d->s[1].head, "tensors")));
        *equal = 0;
        rundiff_last_line(d, 0, -1, "weights", "-");
        return STATUS_OK;
    }
    f = rundiff_rows(d->s[0].head, d->s[1].head);
    if (f) {
        *equal = 0;
        rundiff_tell(d, f, d->s[0].head, d->s[1].head,
                     json_integer_value(json_object_get(d->s[0].head, "rollout")), -1);
    }
    return STATUS_OK;
}

/* Compares the next step of both. STATUS_END: there is none, or they differ. */
static int rundiff_step(struct rundiff *d, int *equal, struct err *e)
{
    json_t *r[2] = {NULL, NULL};
    int rc[2];
    int64_t rollout, step;
    const struct rundiff_field *f;

    for (int k = 0; k < 2; k++) {
        rc[k] = rundiff_next(&d->s[k], &r[k], e);
    }
    if (rc[0] < 0 || rc[1] < 0 || rc[0] == STATUS_END || rc[1] == STATUS_END) {
        if (rc[0] >= 0 && rc[1] >= 0 && rc[0] != rc[1]) {
            fprintf(d->out, "equal in %lld steps; only %s has more\n", (long long)d->steps,
                    d->s[rc[0] == STATUS_END].name);
            *equal = 0;
            fprintf(d->out, "equal=0 rollout=- step=- phase=- tensor=- element=-\n");
        }
        json_decref(r[0]);
        json_decref(r[1]);
        return rc[0] < 0 ? rc[0] : rc[1] < 0 ? rc[1] : STATUS_END;
    }
    rollout = json_integer_value(json_object_get(r[0], "rollout"));
    step = json_integer_value(json_object_get(r[0], "step"));
    if (json_object_get(r[0], "gradients")) {
        json_decref(d->named);
        d->named = json_incref(r[0]);
        d->gradients = json_object_get(r[0], "gradients");
    }
    if (!json_equal(json_object_get(r[0], "rollout"), json_object_get(r[1], "rollout")) ||
        !json_equal(json_object_get(r[0], "step"), json_object_get(r[1], "step"))) {
        fprintf(d->out, "line %lld is rollout %lld in %s and rollout %lld in %s\n",
                (long long)d->s[0].number, (long long)rollout, d->s[0].name,
                (long long)json_integer_value(json_object_get(r[1], "rollout")), d->s[1].name);
        rundiff_last_line(d, rollout, step, "data", "-");
        *equal = 0;
    } else {
        f = rundiff_rows(r[0], r[1]);
        if (f) {
            *equal = 0;
            rundiff_tell(d, f, r[0], r[1], rollout, step);
        }
    }
    d->steps += *equal;
    json_decref(r[0]);
    json_decref(r[1]);
    return *equal ? STATUS_OK : STATUS_END;
}

int rundiff_run(const struct rundiff_opts *o, FILE *out, int *equal, struct err *e)
{
    struct rundiff d = {.out = out};
    int rc = rundiff_open_side(&d.s[0], o->a, e);

    *equal = 1;
    rc = rc == STATUS_OK ? rundiff_open_side(&d.s[1], o->b, e) : rc;
    rc = rc == STATUS_OK ? rundiff_heads(&d, equal, e) : rc;
    while (rc == STATUS_OK && *equal && (!o->steps || d.steps < o->steps)) {
        rc = rundiff_step(&d, equal, e);
    }
    rc = rc == STATUS_END ? STATUS_OK : rc;
    if (rc == STATUS_OK && *equal) {
        fprintf(out, "equal=1 steps=%lld\n", (long long)d.steps);
    }
    json_decref(d.named);
    rundiff_close_side(&d.s[0]);
    rundiff_close_side(&d.s[1]);
    return rc;
}
