/* Owns the files of --dump-details that are not rollouts. */
#include "rl/details.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/wfile.h"
#include "rl/sample.h"
#include "rl/train_opts.h"
#include "train/trainer.h"

static void details_name(char **field, const char *dir, const char *name)
{
    if (!*field) {
        *field = fsio_join(dir, name);
    }
}

void details_derive(struct train_opts *o)
{
    const char *dir = o->dump_details;

    if (dir) {
        details_name(&o->save_debug_rollout_data, dir, "rollout_data/{rollout_id}.jsonl");
        details_name(&o->save_debug_train_data, dir, "train_data/{rollout_id}_{rank}.jsonl");
        details_name(&o->save_debug_trajectory_data, dir, "trajectory/{rollout_id}.jsonl");
    }
}

/* ---- files of lines ---- */

/* A template's file for a rollout; one process trains, so the rank is 0. */
static int details_open(struct fsio_out *f, const char *pattern, int64_t rollout, struct err *e)
{
    char id[32], *path, *slash;
    struct buf b;
    int rc = STATUS_OK;

    buf_init(&b, 1 << 16);
    for (const char *p = pattern; *p; p++) { /* {rank} is not conf_expand's */
        int rank = strncmp(p, "{rank}", 6) == 0;
        buf_char(&b, rank ? '0' : *p);
        p += rank ? 5 : 0;
    }
    snprintf(id, sizeof id, "%lld", (long long)rollout);
    path = conf_expand(b.data, id);
    slash = strrchr(path, '/');
    if (slash && slash != path) {
        *slash = 0;
        rc = fsio_mkdirs(path, e);
        *slash = '/';
    }
    rc = rc == STATUS_OK ? fsio_out_open(f, path, e) : rc;
    mem_free(path);
    buf_fini(&b);
    return rc;
}

static int details_line(struct fsio_out *f, json_t *j, struct err *e)
{
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    int rc = text ? fsio_out_write(f, text, strlen(text), e)
                  : ERR(e, STATUS_NOMEM, "no memory to write a sample");

    rc = rc == STATUS_OK ? fsio_out_write(f, "\n", 1, e) : rc;
    free(text);
    json_decref(j);
    return rc;
}

static int details_close(struct fsio_out *f, int rc, struct err *e)
{
    if (rc != STATUS_OK) {
        fsio_out_abort(f);
        return rc;
    }
    return fsio_out_commit(f, e);
}

/* ---- the trainer's side ---- */

static void details_floats(json_t *j, const char *key, const float *v, int n)
{
    json_t *a;

    if (!v) {
        return;
    }
    a = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(a, isfinite(v[i]) ? json_real((double)v[i]) : json_null());
    }
    json_object_set_new(j, key, a);
}

static json_t *details_sample(const struct details_train *d, int i)
{
    const struct train_sample *t = &d->t[i];
    json_t *j = json_object(), *a;

    json_object_set_new(j, "index", json_integer(d->s[i]->index));
    json_object_set_new(j, "group_index", json_integer(d->s[i]->group_index));
    json_object_set_new(j, "response_length", json_integer(t->response));
    json_object_set_new(j, "total_length", json_integer(t->prompt + t->response));
    json_object_set_new(j, "raw_reward", json_real((double)d->raw[i]));
    json_object_set_new(j, "reward", json_real((double)d->shaped[i]));
    json_object_set_new(j, "truncated", json_integer(d->s[i]->status == SAMPLE_TRUNCATED));
    json_object_set_new(j, "on_policy", json_boolean(t->on_policy));
    json_object_set_new(j, "exact", json_boolean(t->exact));
    a = json_array();
    for (int k = 0; k < t->response; k++) {
        json_array_append_new(a, json_integer(t->mask ? t->mask[k] : 1));
    }
    json_object_set_new(j, "loss_masks", a);
    details_floats(j, "log_probs", t->old, t->response);
    details_floats(j, "ref_log_probs", t->ref, t->response);
    details_floats(j, "rollout_log_probs", t->roll, t->response);
    details_floats(j, "teacher_log_probs", d->teacher ? d->teacher[i] : NULL, t->response);
    details_floats(j, "values", d->value ? d->value[i].old : NULL, t->response);
    details_floats(j, "advantages", t->adv, t->response);
    details_floats(j, "returns", d->value ? d->value[i].adv : NULL, t->response);
    return j;
}

int details_train(const struct train_opts *o, const struct details_train *d, struct err *e)
{
    struct fsio_out f;
    int rc;

    if (!o->save_debug_train_data) {
        return STATUS_OK;
    }
    rc = details_open(&f, o->save_debug_train_data, d->rollout, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    rc = details_line(&f,
                      json_pack("{s:s,s:i,s:I,s:i,s:i}", "format", "miles-train", "version", 1,
                                "rollout_id", (json_int_t)d->rollout, "rank", 0, "samples", d->n),
                      e);
    for (int i = 0; rc == STATUS_OK && i < d->n; i++) {
        rc = details_line(&f, details_sample(d, i), e);
    }
    return details_close(&f, rc, e);
}

/* ---- conversations ---- */

static json_t *details_talk(const struct sample *s)
{
    json_t *messages = json_is_array(s->prompt) ? json_copy(s->prompt) : json_array();

    if (json_is_string(s->prompt)) {
        json_array_append_new(messages,
                              json_pack("{s:s,s:O}", "role", "user", "content", s->prompt));
    }
    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "assistant", "content",
                                              s->response ? s->response : ""));
    return json_pack("{s:I,s:I,s:s,s:o,s:O?,s:o,s:i}", "index", (json_int_t)s->index, "group_index",
                     (json_int_t)s->group_index, "status", sample_status_name(s->status), "reward",
                     isfinite(s->reward) ? json_real(s->reward) : json_null(), "label", s->label,
                     "messages", messages, "response_length", s->response_len);
}

int details_trajectory(const struct train_opts *o, int64_t rollout, struct sample *const *s, int n,
                       struct err *e)
{
    struct fsio_out f;
    int rc;

    if (!o->save_debug_trajectory_data) {
        return STATUS_OK;
    }
    rc = details_open(&f, o->save_debug_trajectory_data, rollout, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    for (int i = 0; rc == STATUS_OK && i < n; i++) {
        rc = details_line(&f, details_talk(s[i]), e);
    }
    return details_close(&f, rc, e);
}

/* ---- tokenizer ---- */

int details_tokenizer(const struct train_opts *o, const struct wfile *f, struct err *e)
{
    const struct {
        const char *name, *text;
    } files[] = {{"tokenizer.json", wfile_tokenizer_json(f)},
                 {"tokenizer_config.json", wfile_tokenizer_config_json(f)},
                 {"chat_template.jinja", wfile_chat_template(f)},
                 {"config.json", wfile_config_json(f)},
                 {"generation_config.json", wfile_generation_config_json(f)}};
    char *dir;
    int rc;

    if (!o->dump_details) {
        return STATUS_OK;
    }
    dir = fsio_join(o->dump_details, "tokenizer");
    rc = fsio_mkdirs(dir, e);
    for (size_t i = 0; rc == STATUS_OK && i < sizeof files / sizeof files[0]; i++) {
        if (files[i].text) {
            char *path = fsio_join(dir, files[i].name);
            rc = fsio_write_atomic(path, files[i].text, strlen(files[i].text), e);
            mem_free(path);
        }
    }
    mem_free(dir);
    return rc;
}

/* ---- fewer samples ---- */

int details_subsample(struct sample **s, int n, double share)
{
    int groups = 0, keep, head, kept = 0;

    for (int i = 0; i < n; i++) {
        groups += i == 0 || s[i]->group_index != s[i - 1]->group_index;
    }
    keep = (int)(share * groups);
    keep = keep < 1 ? 1 : keep;
    head = (keep + 1) / 2;
    for (int i = 0, j, g = 0; i < n; i = j, g++) {
        int stays = g < head || g >= groups - (keep - head);
        int64_t id = s[i]->group_index; /* the sample may be freed below */
        for (j = i; j < n && s[j]->group_index == id; j++) {
            if (stays) {
                s[kept++] = s[j];
            } else {
                sample_free(s[j]);
            }
        }
    }
    return kept;
}
