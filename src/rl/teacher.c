/* Owns the talk with teachers: which server a sample belongs to, the question, the check of the
 * answer, and its record. A question has no effect on the server, so one that was in flight at a
 * kill may be asked again. */
#include "rl/teacher.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "net/http_client.h"
#include "rl/journal.h"
#include "rl/sample.h"

#define TEACHER_INFLIGHT 32
#define TEACHER_TRIES    30
#define TEACHER_BATCH    64 /* answers of one commit */

struct teacher_server {
    char *name, *url;
};

struct teacher {
    struct http_client *client;
    struct teacher_server *servers;
    int n;
    char *key;
    double timeout_s;
    int inflight;
    struct journal *j; /* or NULL */
    int64_t rollout;   /* that is trained */
    int fresh;         /* answers put into the journal and not committed */
};

/* ---- servers ---- */

/* http://host:port, with or without a path. */
static char *teacher_url(const char *text)
{
    const char *host = strstr(text, "://"), *path = host ? strchr(host + 3, '/') : NULL;
    size_t n = strlen(text), m = strlen("/generate") + 1;
    char *out = mem_alloc(n + m);

    memcpy(out, text, n + 1);
    if (!path || !path[1]) {
        memcpy(out + (path ? (size_t)(path - text) : n), "/generate", m);
    }
    return out;
}

int teacher_open(const struct teacher_opts *o, struct teacher **out, struct err *e)
{
    struct teacher *t = mem_alloc(sizeof *t);
    int rc;

    t->key = mem_strdup(o->key);
    t->timeout_s = o->timeout_s;
    t->inflight = o->inflight > 0 ? o->inflight : TEACHER_INFLIGHT;
    t->j = o->journal && o->journal->find ? o->journal : NULL;
    t->servers = mem_alloc(sizeof *t->servers * (size_t)(o->nurls + 1));
    for (int64_t i = 0; i < o->nurls; i++) {
        const char *eq = strchr(o->urls[i], '=');
        struct teacher_server *s = &t->servers[t->n++];
        s->name = mem_alloc((size_t)(eq - o->urls[i]) + 1);
        memcpy(s->name, o->urls[i], (size_t)(eq - o->urls[i]));
        s->url = teacher_url(eq + 1);
    }
    rc = http_client_new(&t->client, &(struct http_client_opts){.max_inflight = t->inflight}, e);
    if (rc != STATUS_OK) {
        teacher_close(t);
        return rc;
    }
    *out = t;
    return STATUS_OK;
}

void teacher_close(struct teacher *t)
{
    if (!t) {
        return;
    }
    http_client_free(t->client);
    for (int i = 0; i < t->n; i++) {
        mem_free(t->servers[i].name);
        mem_free(t->servers[i].url);
    }
    mem_free(t->servers);
    mem_free(t->key);
    mem_free(t);
}

void teacher_now(struct teacher *t, int64_t rollout)
{
    t->rollout = rollout;
}

/* The server that the sample's metadata names, or the default. */
static int teacher_of(const struct teacher *t, const struct sample *s, const char **url,
                      struct err *e)
{
    const char *name = json_string_value(json_object_get(s->metadata, t->key));
    const char *other = NULL;

    for (int i = 0; i < t->n; i++) {
        if (name && strcmp(t->servers[i].name, name) == 0) {
            *url = t->servers[i].url;
            return STATUS_OK;
        }
        if (strcmp(t->servers[i].name, "default") == 0) {
            other = t->servers[i].url;
        }
    }
    if (!other) {
        return ERR(e, STATUS_INPUT,
                   "sample %lld: --opd-teacher-urls has neither its teacher %.80s nor a default",
                   (long long)s->index, name ? name : "(none named)");
    }
    *url = other;
    return STATUS_OK;
}

/* ---- a question and its answer ---- */

/* One sample's question: its tokens' log-probs, or lists. */
struct teacher_job {
    const struct sample *s;
    float *logps;
    const struct teacher_lists *l; /* NULL: log-probs */
    int32_t *all;                  /* tokens that every position is asked for, ascending */
    int nall;
    uint64_t ask; /* hash of the question */
};

static int teacher_order(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* The tokens of all positions, each once. */
static void teacher_union(struct teacher_job *j)
{
    int n = j->s->response_len * j->l->k, kept = 0;

    j->all = mem_alloc(sizeof *j->all * (size_t)(n + 1));
    memcpy(j->all, j->l->own, sizeof *j->all * (size_t)n);
    qsort(j->all, (size_t)n, sizeof *j->all, teacher_order);
    for (int i = 0; i < n; i++) {
        if (!kept || j->all[kept - 1] != j->all[i]) {
            j->all[kept++] = j->all[i];
        }
    }
    j->nall = kept;
}

static void teacher_ids(struct buf *b, const int32_t *ids, int n)
{
    buf_char(b, '[');
    for (int i = 0; i < n; i++) {
        buf_printf(b, i ? ",%d" : "%d", ids[i]);
    }
    buf_char(b, ']');
}

/* What is asked for beside the tokens' own log-probs. */
static void teacher_ask_lists(struct buf *b, struct teacher_job *j)
{
    const struct teacher_lists *l = j->l;

    if (l->top) {
        buf_printf(b, ",\"top_logprobs_num\":%d", l->k);
    }
    if (l->own && l->per_position) {
        buf_str(b, ",\"token_ids_logprob\":[");
        for (int p = 0; p < j->s->response_len; p++) {
            buf_str(b, p ? "," : "");
            teacher_ids(b, l->own + (size_t)p * (size_t)l->k, l->k);
        }
        buf_char(b, ']');
    } else if (l->own) {
        teacher_union(j);
        buf_str(b, ",\"token_ids_logprob\":");
        teacher_ids(b, j->all, j->nall);
    }
}

/* The log-prob of the first token asked for is not told, so they are asked for from the prompt's
 * last token on. */
static void teacher_question(struct teacher_job *j, struct buf *b)
{
    const struct sample *s = j->s;

    buf_str(b, "{\"input_ids\":");
    teacher_ids(b, s->tokens, s->prompt_len + s->response_len);
    buf_printf(b,
               ",\"sampling_params\":{\"temperature\":0,\"max_new_tokens\":0,"
               "\"skip_special_tokens\":false},\"return_logprob\":true,\"logprob_start_len\":%d",
               s->prompt_len - 1);
    if (j->l) {
        teacher_ask_lists(b, j);
    }
    buf_char(b, '}');
    j->ask = XXH3_64bits(b->data, b->len);
}

static int teacher_send(struct teacher *t, struct teacher_job *j, const struct buf *b,
                        struct err *e)
{
    struct http_header type = {"Content-Type", "application/json"};
    struct http_client_request q = {.method = "POST",
                                    .headers = &type,
                                    .nheaders = 1,
                                    .body = b->data,
                                    .len = b->len,
                                    .tries = TEACHER_TRIES,
                                    .idempotent = 1,
                                    .retry_5xx = 3,
                                    .total_s = t->timeout_s,
                                    .user = j};
    int rc = teacher_of(t, j->s, &q.url, e);

    return rc == STATUS_OK ? http_client_start(t->client, &q, NULL, e) : rc;
}

/* ---- the record ---- */

static struct journal_key teacher_key(const struct teacher *t, const struct teacher_job *j)
{
    return (struct journal_key){.rollout = t->rollout,
                                .sample = j->s->index,
                                .ask = j->ask,
                                .set = JOURNAL_TEACHER,
                                .start = j->s->branch};
}

/* What the job is to be filled with, part by part: all have four bytes a value. */
static int teacher_parts(const struct teacher_job *j, void *part[3], size_t *values)
{
    int n = 0;

    *values = (size_t)j->s->response_len * (size_t)(j->l ? j->l->k : 1);
    if (j->logps) {
        part[n++] = j->logps;
    }
    if (j->l && j->l->top) {
        part[n++] = j->l->top;
        part[n++] = j->l->top_logp;
    }
    if (j->l && j->l->own) {
        part[n++] = j->l->own_logp;
    }
    return n;
}

static int teacher_put(struct teacher *t, const struct teacher_job *j, struct err *e)
{
    struct journal_key k = teacher_key(t, j);
    void *part[3];
    size_t values;
    int n = teacher_parts(j, part, &values), rc;
    char *data = mem_alloc(4 * values * (size_t)n + 1);

    for (int i = 0; i < n; i++) {
        memcpy(data + 4 * values * (size_t)i, part[i], 4 * values);
    }
    rc = t->j->put(t->j->self, JOURNAL_ANSWER, &k, data, 4 * values * (size_t)n, e);
    mem_free(data);
    t->fresh++;
    return rc;
}

/* STATUS_NOTFOUND: it is to be asked. */
static int teacher_find(const struct teacher *t, const struct teacher_job *j, struct err *e)
{
    struct journal_key k = teacher_key(t, j);
    void *part[3], *data;
    size_t values, len;
    int n = teacher_parts(j, part, &values);
    int rc = t->j ? t->j->find(t->j->self, JOURNAL_ANSWER, &k, &data, &len, e) : STATUS_NOTFOUND;

    if (rc == STATUS_OK) {
        rc = len == 4 * values * (size_t)n ? STATUS_OK : STATUS_NOTFOUND;
        for (int i = 0; rc == STATUS_OK && i < n; i++) {
            memcpy(part[i], (const char *)data + 4 * values * (size_t)i, 4 * values);
        }
        mem_free(data);
    }
    if (rc == STATUS_NOTFOUND && t->j && t->j->closed) {
        return ERR(e, STATUS_END,
                   "what the teacher said of sample %lld in rollout %lld is not "
                   "recorded",
                   (long long)k.sample, (long long)k.rollout);
    }
    return rc;
}

static int teacher_commit(struct teacher *t, struct err *e)
{
    t->fresh = 0;
    return t->j->commit(t->j->self, e);
}

/* Fills the job from the record, or asks: then *open is one more. */
static int teacher_ask(struct teacher *t, struct teacher_job *j, int *open, struct err *e)
{
    struct buf b;
    int rc;

    buf_init(&b, (size_t)1 << 30);
    teacher_question(j, &b);
    rc = buf_status(&b) == STATUS_OK
             ? teacher_find(t, j, e)
             : ERR(e, STATUS_NOMEM, "no memory to ask for sample %lld", (long long)j->s->index);
    if (rc == STATUS_NOTFOUND) {
        rc = teacher_send(t, j, &b, e);
        *open += rc == STATUS_OK;
    }
    buf_fini(&b);
    return rc;
}

/* ---- the answer ---- */

/* [log-prob, token, text] */
static int teacher_triple(const json_t *x, float *logp, int32_t *id, struct err *e)
{
    const json_t *lp = json_array_get(x, 0), *token = json_array_get(x, 1);

    if (!json_is_number(lp) || !isfinite((float)json_number_value(lp)) || !json_is_integer(token)) {
        return ERR(e, STATUS_CHILD, "an entry is not [log-prob, token]");
    }
    *logp = (float)json_number_value(lp);
    *id = (int32_t)json_integer_value(token);
    return STATUS_OK;
}

/* The entries of a list that speak of the response: the last response_len of it. */
static int teacher_part(const json_t *meta, const char *name, size_t want, const json_t **list,
                        size_t *skip, struct err *e)
{
    size_t have;

    *list = json_object_get(meta, name);
    have = json_array_size(*list);
    if (have < want) {
        return ERR(e, STATUS_CHILD, "%zu entries of %s for a response of %zu tokens", have, name,
                   want);
    }
    *skip = have - want;
    return STATUS_OK;
}

static int teacher_read_logps(const struct teacher_job *j, const json_t *meta, struct err *e)
{
    const struct sample *s = j->s;
    size_t n = (size_t)s->response_len, skip = 0;
    const json_t *list;
    int rc = teacher_part(meta, "input_token_logprobs", n, &list, &skip, e);

    for (size_t i = 0; rc == STATUS_OK && i < n; i++) {
        int32_t id, token = s->tokens[(size_t)s->prompt_len + i];
        float logp;
        rc = teacher_triple(json_array_get(list, skip + i), &logp, &id, e);
        if (rc == STATUS_OK && id != token) {
            rc = ERR(e, STATUS_CHILD, "response token %zu is %d, the answer speaks of %d", i,
                     (int)token, (int)id);
        }
        if (rc == STATUS_OK && j->logps) {
            j->logps[i] = logp;
        }
    }
    return rc;
}

static int teacher_read_top(const struct teacher_job *j, const json_t *meta, struct err *e)
{
    const struct teacher_lists *l = j->l;
    size_t n = (size_t)j->s->response_len, k = (size_t)l->k, skip = 0;
    const json_t *list;
    int rc = teacher_part(meta, "input_top_logprobs", n, &list, &skip, e);

    for (size_t i = 0; rc == STATUS_OK && i < n; i++) {
        const json_t *row = json_array_get(list, skip + i);
        if (json_array_size(row) < k) {
            return ERR(e, STATUS_CHILD, "%zu candidates at response token %zu, %zu were asked for",
                       json_array_size(row), i, k);
        }
        for (size_t c = 0; rc == STATUS_OK && c < k; c++) {
            rc = teacher_triple(json_array_get(row, c), &l->top_logp[i * k + c], &l->top[i * k + c],
                                e);
        }
    }
    return rc;
}

/* Log-probs of the asked-for tokens, found by their numbers. */
static int teacher_read_own(const struct teacher_job *j, const json_t *meta, struct err *e)
{
    const struct teacher_lists *l = j->l;
    size_t n = (size_t)j->s->response_len, k = (size_t)l->k, skip = 0;
    const json_t *list;
    int rc = teacher_part(meta, "input_token_ids_logprobs", n, &list, &skip, e);

    for (size_t i = 0; rc == STATUS_OK && i < n; i++) {
        const json_t *row = json_array_get(list, skip + i);
        for (size_t c = 0; rc == STATUS_OK && c < k; c++) {
            int32_t want = l->own[i * k + c], id;
            size_t at = c;
            if (j->all) {
                const int32_t *found =
                    bsearch(&want, j->all, (size_t)j->nall, sizeof *j->all, teacher_order);
                at = found ? (size_t)(found - j->all) : 0;
            }
            rc = teacher_triple(json_array_get(row, at), &l->own_logp[i * k + c], &id, e);
            if (rc == STATUS_OK && id != want) {
                rc = ERR(e, STATUS_CHILD, "token %d was asked for, the answer speaks of %d",
                         (int)want, (int)id);
            }
        }
    }
    return rc;
}

static int teacher_read(const struct teacher_job *j, const json_t *answer, struct err *e)
{
    const json_t *one = json_is_array(answer) ? json_array_get(answer, 0) : answer;
    const json_t *meta = json_object_get(one, "meta_info");
    int rc = teacher_read_logps(j, meta, e);

    if (rc == STATUS_OK && j->l && j->l->top) {
        rc = teacher_read_top(j, meta, e);
    }
    if (rc == STATUS_OK && j->l && j->l->own) {
        rc = teacher_read_own(j, meta, e);
    }
    return rc;
}

static int teacher_answer(const struct http_client_event *ev, struct err *e)
{
    const struct teacher_job *j = ev->user;
    json_error_t je;
    json_t *answer;
    int rc;

    if (ev->outcome != HTTP_CLIENT_OK) {
        rc = ERR(e, STATUS_CHILD, "no answer within %.0f s (%d tries): %.160s", ev->total_s,
                 ev->tries, ev->error);
    } else if (ev->status != 200) {
        rc = ERR(e, STATUS_CHILD, "the server answers %d: %.160s", ev->status,
                 ev->data ? ev->data : "");
    } else {
        answer = json_loadb(ev->data, ev->len, 0, &je);
        rc = answer ? teacher_read(j, answer, e)
                    : ERR(e, STATUS_CHILD, "the answer is not JSON: %.120s", je.text);
        json_decref(answer);
    }
    return rc == STATUS_OK ? rc : err_prefix(e, "teacher of sample %lld", (long long)j->s->index);
}

/* Asks side by side until all have answered, or one has failed. */
static int teacher_run(struct teacher *t, struct teacher_job *jobs, int n, struct err *e)
{
    int asked = 0, open = 0, rc = STATUS_OK;

    while (open || (rc == STATUS_OK && asked < n)) {
        struct http_client_event *ev;
        while (rc == STATUS_OK && asked < n && open < t->inflight) {
            if (jobs[asked].s->response_len) {
                rc = teacher_ask(t, &jobs[asked], &open, e);
            }
            asked++;
        }
        ev = open ? http_client_take(t->client, 1.0) : NULL; /* each has a deadline of its own */
        if (ev) {
            open--;
            rc = rc == STATUS_OK ? teacher_answer(ev, e) : rc;
            rc = rc == STATUS_OK && t->j ? teacher_put(t, ev->user, e) : rc;
            http_client_release(t->client, ev);
        }
        if (rc == STATUS_OK && t->fresh && (t->fresh >= TEACHER_BATCH || (!open && asked == n))) {
            rc = teacher_commit(t, e);
        }
    }
    for (int i = 0; i < n; i++) {
        mem_free(jobs[i].all);
    }
    return rc;
}

int teacher_score(struct teacher *t, struct sample *const *s, int n, float *const *out,
                  struct err *e)
{
    struct teacher_job *jobs = mem_alloc(sizeof *jobs * (size_t)(n + 1));
    int rc;

    for (int i = 0; i < n; i++) {
        jobs[i] = (struct teacher_job){.s = s[i], .logps = out[i]};
    }
    rc = teacher_run(t, jobs, n, e);
    mem_free(jobs);
    return rc;
}

int teacher_top(struct teacher *t, struct sample *const *s, int n, const struct teacher_lists *l,
                struct err *e)
{
    struct teacher_job *jobs = mem_alloc(sizeof *jobs * (size_t)(n + 1));
    int rc;

    for (int i = 0; i < n; i++) {
        jobs[i] = (struct teacher_job){.s = s[i], .l = &l[i]};
    }
    rc = teacher_run(t, jobs, n, e);
    mem_free(jobs);
    return rc;
}
