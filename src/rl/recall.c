/* Owns rewards between the hub and the loop. Results that are ready together are recorded by one
 * commit, and only then handed out. */
#include "rl/recall.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/world.h"
#include "rl/sample.h"

#define RECALL_BATCH  4096 /* results of one commit at most */
#define RECALL_WAIT_S 0.02 /* a result waits so long for others while the loop has work, */
#define RECALL_WAIT_X 20   /* or so many times what the last commit took, */
#define RECALL_MOST_S 1.0  /* but never longer */

/* What the hub works on. */
struct recall_asked {
    int64_t id;
    struct journal_key key;
};

struct recall {
    struct hub *hub;
    struct journal *j;
    const struct world *world;
    struct recall_asked *asked; /* in the order of asking; results come nearly so */
    size_t nasked, cap_asked;
    struct hub_result *queue; /* to be handed out from head on; those before `safe` are on disk */
    size_t head, safe, n, cap;
    double since, wait_s; /* since when one waits for the disk */
};

struct recall *recall_new(struct hub *hub, struct journal *j, const struct world *w)
{
    struct recall *r = mem_alloc(sizeof *r);
    r->hub = hub;
    r->world = w ? w : world_system();
    r->j = j && j->find ? j : NULL; /* one that only listens has nothing to recall */
    return r;
}

void recall_free(struct recall *r)
{
    if (r) {
        for (size_t i = r->head; i < r->n; i++) {
            json_decref(r->queue[i].raw);
        }
        mem_free(r->asked);
        mem_free(r->queue);
        mem_free(r);
    }
}

/* What the n samples of a question are known by. Those of a group are scored together: when one of
 * them has grown, it is another question for all. */
static uint64_t recall_ask(struct sample *const *s, int n)
{
    uint64_t ask = 0;

    for (int i = 0; i < n; i++) {
        size_t bytes = sizeof *s[i]->tokens * (size_t)(s[i]->prompt_len + s[i]->response_len);
        ask = XXH3_64bits_withSeed(s[i]->tokens, bytes, ask);
    }
    return ask;
}

static struct journal_key recall_key(int64_t rollout, int set, const struct sample *s, uint64_t ask)
{
    return (struct journal_key){.rollout = rollout,
                                .sample = s->index,
                                .ask = ask,
                                .set = set,
                                .start = s->branch}; /* branches of one are scored apart */
}

static char *recall_pack(const struct hub_result *r)
{
    json_t *j = json_pack("{s:b,s:f,s:i}", "failed", r->failed, "reward", r->reward, "why", r->why);
    char *text;
    json_object_set_new_nocheck(j, "reason", json_string_nocheck(r->reason));
    if (r->raw) {
        json_object_set(j, "raw", r->raw);
    }
    text = json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    json_decref(j);
    return text;
}

static int recall_unpack(const char *text, size_t n, struct hub_result *r, struct err *e)
{
    json_error_t je;
    json_t *j = json_loadb(text, n, JSON_ALLOW_NUL, &je), *v;

    memset(r, 0, sizeof *r);
    if (!json_is_object(j)) {
        json_decref(j);
        return ERR(e, STATUS_FORMAT, "a recorded reward cannot be read: %s", je.text);
    }
    r->failed = json_is_true(json_object_get(j, "failed"));
    r->reward = json_number_value(json_object_get(j, "reward"));
    r->why = (enum hub_class)json_integer_value(json_object_get(j, "why"));
    v = json_object_get(j, "reason");
    snprintf(r->reason, sizeof r->reason, "%s", json_is_string(v) ? json_string_value(v) : "");
    r->raw = json_incref(json_object_get(j, "raw"));
    json_decref(j);
    return STATUS_OK;
}

static struct hub_result *recall_push(struct recall *r)
{
    if (r->head == r->n) {
        r->head = r->safe = r->n = 0;
    }
    if (r->n == r->cap) {
        ASSERT(mem_grow((void **)&r->queue, &r->cap, 64, sizeof *r->queue));
    }
    return &r->queue[r->n++];
}

/* A result that is on disk goes before those that are not. */
static void recall_known_push(struct recall *r, const struct hub_result *x)
{
    recall_push(r);
    memmove(&r->queue[r->safe + 1], &r->queue[r->safe], sizeof *x * (r->n - 1 - r->safe));
    r->queue[r->safe++] = *x;
}

/* The recorded result of one sample. */
static int recall_find(struct recall *r, const struct journal_key *k, struct hub_result *out,
                       struct err *e)
{
    void *text;
    size_t n;
    int rc = r->j ? r->j->find(r->j->self, JOURNAL_REWARD, k, &text, &n, e) : STATUS_NOTFOUND;

    if (rc == STATUS_OK) {
        rc = recall_unpack(text, n, out, e);
        mem_free(text);
    }
    return rc;
}

/* All of them from the journal: 0, or STATUS_NOTFOUND when one is missing. */
static int recall_known(struct recall *r, int64_t id, int64_t rollout, int set,
                        struct sample *const *s, int n, uint64_t ask, struct err *e)
{
    struct hub_result *found = mem_alloc(sizeof *found * (size_t)n);
    int rc = STATUS_OK, have = 0;

    while (rc == STATUS_OK && have < n) {
        struct journal_key k = recall_key(rollout, set, s[have], ask);
        rc = recall_find(r, &k, &found[have], e);
        found[have].id = id + have;
        have += rc == STATUS_OK;
    }
    for (int i = 0; i < have; i++) {
        if (rc == STATUS_OK) {
            recall_known_push(r, &found[i]);
        } else {
            json_decref(found[i].raw);
        }
    }
    mem_free(found);
    return rc;
}

/* In a replay: nobody asked for these rewards. They belong to answers that came when the rollout
 * was decided; here they come at once, and whoever counts on them sees a failure that was not
 * there. */
static void recall_unknown(struct recall *r, int64_t id, int n)
{
    for (int i = 0; i < n; i++) {
        struct hub_result x = {.id = id + i, .failed = 1, .why = HUB_BROKEN};
        snprintf(x.reason, sizeof x.reason, "its reward is not recorded");
        recall_known_push(r, &x);
    }
}

/* What the hub gets of a sample: a list of its tokens costs more than a quick grader, and is made
 * for those who read it. */
static json_t *recall_json(const struct recall *r, const struct sample *s)
{
    json_t *j = sample_brief_json(s);

    if (hub_reads_tokens(r->hub, j)) {
        json_decref(j);
        j = sample_to_json(s);
    }
    return j;
}

int recall_submit(struct recall *r, int64_t id, int64_t rollout, int set, struct sample *const *s,
                  int n, int group, struct err *e)
{
    uint64_t ask = recall_ask(s, n);
    int rc = recall_known(r, id, rollout, set, s, n, ask, e);
    json_t *j;

    if (rc != STATUS_NOTFOUND) {
        return rc;
    }
    if (!r->hub || (r->j && r->j->closed)) {
        recall_unknown(r, id, n);
        return STATUS_OK;
    }
    j = group ? json_array() : recall_json(r, s[0]);
    for (int i = 0; group && i < n; i++) {
        json_array_append_new(j, recall_json(r, s[i]));
    }
    rc = hub_submit(r->hub, &(struct hub_request){id, j}, e);
    json_decref(j);
    for (int i = 0; rc == STATUS_OK && r->j && i < n; i++) {
        if (r->nasked == r->cap_asked) {
            ASSERT(mem_grow((void **)&r->asked, &r->cap_asked, 256, sizeof *r->asked));
        }
        r->asked[r->nasked++] = (struct recall_asked){id + i, recall_key(rollout, set, s[i], ask)};
    }
    return rc;
}

static int recall_record(struct recall *r, const struct hub_result *result, struct err *e)
{
    size_t i = 0;
    char *text;
    int rc;

    while (i < r->nasked && r->asked[i].id != result->id) {
        i++;
    }
    ASSERT(i < r->nasked);
    text = recall_pack(result);
    rc = text ? r->j->put(r->j->self, JOURNAL_REWARD, &r->asked[i].key, text, strlen(text), e)
              : ERR(e, STATUS_FORMAT, "the reward of sample %lld cannot be written as JSON",
                    (long long)r->asked[i].key.sample);
    free(text);
    memmove(&r->asked[i], &r->asked[i + 1], sizeof *r->asked * (--r->nasked - i));
    return rc;
}

static double recall_now(const struct recall *r)
{
    return r->world->now(r->world->self);
}

static int recall_commit(struct recall *r, struct err *e)
{
    double t0 = recall_now(r);
    int rc = r->j ? r->j->commit(r->j->self, e) : STATUS_OK;

    r->wait_s = RECALL_WAIT_X * (recall_now(r) - t0);
    r->wait_s = r->wait_s < RECALL_WAIT_S   ? RECALL_WAIT_S
                : r->wait_s > RECALL_MOST_S ? RECALL_MOST_S
                                            : r->wait_s;
    r->safe = rc == STATUS_OK ? r->n : r->safe;
    return rc;
}

/* Takes what the hub has ready. A disk takes as long for one as for many: while the caller has
 * other work (wait_s 0) results are gathered for a while before they are recorded. */
static int recall_take(struct recall *r, double wait_s, struct err *e)
{
    struct hub_result got;
    int rc = STATUS_OK;

    while (r->n - r->safe < RECALL_BATCH &&
           (rc = hub_poll(r->hub, r->n == r->safe ? wait_s : 0.0, &got, e)) == STATUS_OK) {
        *recall_push(r) = got;
        r->since = r->n - r->safe == 1 ? recall_now(r) : r->since;
        rc = r->j ? recall_record(r, &got, e) : STATUS_OK;
        if (rc != STATUS_OK || !r->j) {
            break;
        }
    }
    if (rc < 0 || r->n == r->safe) {
        return rc;
    }
    if (r->j && wait_s <= 0 && r->n - r->safe < RECALL_BATCH &&
        recall_now(r) - r->since < r->wait_s) {
        return STATUS_AGAIN;
    }
    return recall_commit(r, e);
}

int recall_poll(struct recall *r, double wait_s, struct hub_result *out, struct err *e)
{
    int rc = STATUS_OK;

    if (r->head == r->safe) {
        rc = r->hub ? recall_take(r, wait_s, e) : STATUS_AGAIN;
    }
    if (rc == STATUS_OK) {
        *out = r->queue[r->head++];
    }
    return rc;
}
