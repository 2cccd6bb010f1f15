/* Owns functions that make rollouts and give prompts: what they ask of the run, and what they
 * answer with. */
#include <string.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "reward/hookcall.h"
#include "rl/extend_int.h"
#include "rl/memo.h"
#include "rl/sample.h"
#include "rl/train_opts.h"

#define EXTEND_TAKEN 1000 /* groups that are taken again at a time */

void extend_set_feed(struct extend *x, const struct extend_feed *f)
{
    if (x) {
        x->feed = f;
    }
}

int extend_answer(void *arg, int64_t id, const char *what, const json_t *argv, json_t **out,
                  struct err *e)
{
    struct extend *x = arg;
    const struct extend_feed *f = x->feed;

    (void)id;
    if (!f) {
        return ERR(e, STATUS_UNSUPPORTED, "this run has no data source to ask");
    }
    if (strcmp(what, "get_samples") == 0) {
        int64_t n = json_integer_value(json_array_get(argv, 0));
        int rc = f->get(f->self, n, out, e);
        x->taken += rc == STATUS_OK ? n : 0;
        return rc;
    }
    if (strcmp(what, "add_samples") == 0) {
        return f->add(f->self, json_array_get(argv, 0), e);
    }
    if (strcmp(what, "get_buffer_length") == 0) {
        *out = json_integer(f->length(f->self));
        return STATUS_OK;
    }
    return ERR(e, STATUS_UNSUPPORTED, "the data source has no %.60s", what);
}

/* ---- whole rollouts ---- */

static struct hookcall *rollout_hook(struct extend *x, int evaluation)
{
    struct hookcall *h = evaluation ? x->hook[EXTEND_EVAL] : NULL;
    return h ? h : x->hook[EXTEND_ROLLOUT];
}

/* The data goes on behind the prompts that a recorded rollout took. */
static int rollout_take(const struct extend *x, int64_t n, struct err *e)
{
    int rc = STATUS_OK;

    for (int64_t some; rc == STATUS_OK && n > 0 && x->feed; n -= some) {
        json_t *groups = NULL;
        some = n < EXTEND_TAKEN ? n : EXTEND_TAKEN;
        rc = x->feed->get(x->feed->self, some, &groups, e);
        json_decref(groups);
    }
    return rc;
}

int extend_rollout_begin(struct extend *x, int64_t rollout, int64_t version, int evaluation,
                         struct err *e)
{
    const char *path = evaluation && x->o->eval_function_path ? x->o->eval_function_path
                                                              : x->o->rollout_function_path;
    json_t *argv;
    int rc;

    x->taken = 0;
    x->key = (struct journal_key){.rollout = rollout,
                                  .sample = JOURNAL_WHOLE,
                                  .version = version,
                                  .set = evaluation,
                                  .ask = XXH3_64bits(path, strlen(path))};
    rc = memo_find(x->journal, &x->key, &x->known, e);
    if (rc == STATUS_OK) {
        return rollout_take(x, json_integer_value(json_object_get(x->known, "taken")), e);
    }
    if (rc != STATUS_NOTFOUND || (x->journal && x->journal->closed)) {
        return rc;
    }
    argv = json_pack("[I,b]", (json_int_t)rollout, evaluation);
    rc = hookcall_submit(rollout_hook(x, evaluation), 0, argv, e);
    json_decref(argv);
    return rc;
}

void extend_rolled_free(struct extend_rolled *r)
{
    for (int i = 0; i < r->n; i++) {
        sample_free(r->s[i]);
    }
    mem_free(r->s);
    json_decref(r->metrics);
    json_decref(r->data);
    mem_free(r->skip);
    memset(r, 0, sizeof *r);
}

/* The samples of groups, or of a plain list, one after the other. */
static int take_samples(const json_t *groups, struct extend_rolled *out, struct err *e)
{
    size_t total = 0;
    int rc = STATUS_OK;

    for (size_t i = 0; i < json_array_size(groups); i++) {
        const json_t *g = json_array_get(groups, i);
        total += json_is_array(g) ? json_array_size(g) : 1;
    }
    out->s = mem_alloc(sizeof *out->s * (total + 1));
    for (size_t i = 0; rc == STATUS_OK && i < json_array_size(groups); i++) {
        const json_t *g = json_array_get(groups, i);
        size_t n = json_is_array(g) ? json_array_size(g) : 1;
        for (size_t k = 0; rc == STATUS_OK && k < n; k++) {
            rc = sample_from_json(json_is_array(g) ? json_array_get(g, k) : g, &out->s[out->n], e);
            out->n += rc == STATUS_OK;
        }
    }
    return rc;
}

/* What a function's answer says. */
static int rolled_of(const json_t *answer, const char *flag, int evaluation,
                     struct extend_rolled *out, struct err *e)
{
    const char *skip = json_string_value(json_object_get(answer, "skip"));
    int rc = STATUS_OK;

    memset(out, 0, sizeof *out);
    if (skip && !evaluation) {
        return ERR(e, STATUS_CHILD, "--%s: it skipped a rollout that is to be trained: %.200s",
                   flag, skip);
    }
    out->skip = skip ? mem_strdup(skip) : NULL;
    out->metrics = json_incref(json_object_get(answer, "metrics"));
    out->data = json_incref(json_object_get(answer, "data"));
    if (!evaluation) {
        rc = take_samples(json_object_get(answer, "samples"), out, e);
        rc = rc == STATUS_OK ? rc : err_prefix(e, "--%s", flag);
    }
    return rc;
}

/* The answer, in x->known. */
static int rollout_hear(struct extend *x, const char *flag, int evaluation, double wait_s,
                        struct err *e)
{
    struct worker_result r;
    int rc = hookcall_poll(rollout_hook(x, evaluation), wait_s, &r, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    if (r.failed) {
        return ERR(e, r.late ? STATUS_TIMEOUT : STATUS_CHILD, "--%s: %s", flag, r.reason);
    }
    x->known = json_pack("{s:o,s:I}", "answer", r.value, "taken", (json_int_t)x->taken);
    return STATUS_OK;
}

int extend_rollout_poll(struct extend *x, int evaluation, double wait_s, struct extend_rolled *out,
                        struct err *e)
{
    const char *flag = evaluation && extend_has(x, "eval-function-path") ? "eval-function-path"
                                                                         : "rollout-function-path";
    int fresh = !x->known;
    int rc = fresh ? rollout_hear(x, flag, evaluation, wait_s, e) : STATUS_OK;

    if (rc != STATUS_OK) {
        return rc;
    }
    rc = rolled_of(json_object_get(x->known, "answer"), flag, evaluation, out, e);
    rc = rc == STATUS_OK && fresh ? memo_put(x->journal, &x->key, x->known, e) : rc;
    json_decref(x->known);
    x->known = NULL;
    if (rc != STATUS_OK) {
        extend_rolled_free(out);
    }
    return rc;
}

/* ---- prompts ---- */

static int source_ask(struct extend *x, int64_t n, json_t **groups, struct err *e)
{
    int rc =
        extend_call(x, EXTEND_SOURCE, json_pack("[s,I]", "get_samples", (json_int_t)n), groups, e);

    if (rc == STATUS_OK && !json_is_array(*groups)) {
        rc = ERR(e, STATUS_CHILD, "--data-source-path: get_samples gave no list of groups");
    }
    for (size_t i = 0; rc == STATUS_OK && i < json_array_size(*groups); i++) {
        if (!json_is_object(json_array_get(json_array_get(*groups, i), 0))) {
            rc = ERR(e, STATUS_CHILD, "--data-source-path: group %zu of get_samples has no sample",
                     i);
        }
    }
    if (rc != STATUS_OK) {
        json_decref(*groups);
        *groups = NULL;
    }
    return rc;
}

/* The recorded groups in the place of those that the source gives now. */
static void source_recall(struct extend *x, int64_t rollout, json_t *known, json_t **groups)
{
    if (!json_equal(known, *groups) && !x->told++) {
        log_warn(LEDGER,
                 "--data-source-path: in rollout %lld it does not give the groups that it gave "
                 "before the restart; the recorded ones are used. Its load() is to put it back to "
                 "where it was at save()",
                 (long long)rollout);
    }
    json_decref(*groups);
    *groups = known;
}

int extend_source_get(struct extend *x, int64_t rollout, int64_t call, int64_t n, json_t **groups,
                      struct err *e)
{
    const int64_t ask[2] = {call, n};
    const struct journal_key key = {
        .rollout = rollout, .sample = JOURNAL_GROUPS, .ask = XXH3_64bits(ask, sizeof ask)};
    json_t *known = NULL;
    int rc = memo_find(x->journal, &key, &known, e);

    if ((x->journal && x->journal->closed) || (rc != STATUS_OK && rc != STATUS_NOTFOUND)) {
        *groups = known;
        return rc;
    }
    rc = source_ask(x, n, groups, e);
    if (rc == STATUS_OK && known) {
        source_recall(x, rollout, known, groups);
    } else if (rc == STATUS_OK) {
        rc = memo_put(x->journal, &key, *groups, e);
    } else {
        json_decref(known);
    }
    return rc;
}

static int source_tell(struct extend *x, json_t *argv, struct err *e)
{
    json_t *out;
    int rc = extend_call(x, EXTEND_SOURCE, argv, &out, e);
    json_decref(out);
    return rc;
}

int extend_source_add(struct extend *x, json_t *groups, struct err *e)
{
    return source_tell(x, json_pack("[s,o]", "add_samples", groups), e);
}

int extend_source_save(struct extend *x, int64_t rollout, struct err *e)
{
    return source_tell(x, json_pack("[s,I]", "save", (json_int_t)rollout), e);
}

int extend_source_load(struct extend *x, int64_t rollout, struct err *e)
{
    return source_tell(x, json_pack("[s,I]", "load", (json_int_t)rollout), e);
}

int extend_source_length(struct extend *x, int64_t *out, struct err *e)
{
    json_t *n = NULL;
    int rc = extend_call(x, EXTEND_SOURCE, json_pack("[s]", "length"), &n, e);

    *out = json_is_integer(n) ? json_integer_value(n) : -1;
    json_decref(n);
    return rc;
}
