/* Owns answers between the engines and the loop: runs of samples that wait for an engine, answers
 * that wait for the disk, answers that may be seen. Groups of the loop are told apart from those of
 * the engines, because a group of which some samples are known becomes several. */
#include "rl/port_record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/world.h"
#include "rl/sample.h"

#define PORT_RECORD_WAIT_S 0.02    /* an answer waits so long for others to be recorded with it, */
#define PORT_RECORD_WAIT_X 20      /* or so many times what the last commit took, */
#define PORT_RECORD_MOST_S 1.0     /* but never longer */
#define PORT_RECORD_BATCH  4096    /* or until there are so many */
#define PORT_RECORD_IDLE   1000    /* polls after which a replay is stuck */
#define PORT_RECORD_HELD   3600000 /* polls of a millisecond that rewards may take */
#define PORT_RECORD_MAGIC  0x31534e41u
#define PORT_RECORD_MADE                                                                           \
    0x324e4d41u /* behind the head: the sample that a function made, as JSON                       \
                 */

/* Some samples of one of the loop's groups, asked of the engines as one group. */
struct port_record_run {
    struct port_group g; /* its tokens are owned; id is the engines' */
    int64_t outer;       /* the loop's id */
    int first;           /* sample of the loop's group that is its sample 0 */
    uint64_t ask;
    int left;    /* answers to come; 0: free */
    int sent;    /* the engines have it */
    int aborted; /* the loop has asked for its end */
};

struct port_record_answer {
    struct port_answer a; /* group is the loop's; arrays owned, in one block */
    void *block;
    struct sample *made; /* that a.made is, owned; or NULL */
};

/* Those from head on; what is before it was taken. */
struct port_record_list {
    struct port_record_answer *v;
    size_t head, n, cap;
};

struct port_record {
    const struct rollout_port *inner;
    struct journal *j;
    const struct world *world;
    struct rollout_port port;
    struct port_record_run *runs; /* by g.id */
    size_t nruns, cap_runs;
    size_t first; /* run: all before it are sent or done */
    size_t live;  /* runs that are not done */
    int64_t next_id;
    struct port_record_list fresh; /* put into the journal, not committed */
    struct port_record_list ready; /* to be handed out */
    struct port_record_list held;  /* ends that were asked for: told when that is asked again */
    double fresh_since, wait_s;
    struct port_record_answer handed; /* the answer that was handed out last */
    int log_fd;                       /* -1: none */
    int idle;                         /* polls in a row that a replay had nothing for */
    struct port_record_stats stats;
};

/* ---- entries ---- */

struct port_record_head {
    uint32_t magic, ntokens;
    uint8_t finish, exact, asked_end, logps;
    uint32_t nexperts;
    int64_t version;
};

/* With its segments, so that what is exact stays so, and its siblings. */
static json_t *port_record_object(const struct sample *s)
{
    json_t *j = sample_to_json(s), *list = json_array();

    json_object_set_new(j, "segments", sample_segments_json(s));
    for (int i = 0; i < s->nsiblings; i++) {
        json_array_append_new(list, port_record_object(s->siblings[i]));
    }
    json_object_set_new(j, "siblings", list);
    return j;
}

/* NULL: the sample cannot be written as JSON. */
static void *port_record_pack_made(const struct port_answer *a, struct port_record_head h,
                                   size_t *n)
{
    json_t *j = port_record_object(a->made);
    char *text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(17)), *p;
    size_t len;

    json_decref(j);
    if (!text) {
        return NULL;
    }
    len = strlen(text);
    h.magic = PORT_RECORD_MADE;
    *n = sizeof h + len;
    p = mem_alloc(*n);
    memcpy(p, &h, sizeof h);
    memcpy(p + sizeof h, text, len);
    free(text);
    return p;
}

static void *port_record_pack(const struct port_answer *a, int asked_end, size_t *n)
{
    struct port_record_head h = {.magic = PORT_RECORD_MAGIC,
                                 .ntokens = (uint32_t)a->ntokens,
                                 .finish = (uint8_t)a->finish,
                                 .exact = (uint8_t)a->exact,
                                 .asked_end = (uint8_t)asked_end,
                                 .logps = a->logps != NULL,
                                 .nexperts = (uint32_t)(a->experts ? a->nexperts : 0),
                                 .version = a->version};
    size_t tokens = 4 * (size_t)h.ntokens, logps = h.logps ? tokens : 0;
    size_t experts = 4 * (size_t)h.nexperts;
    char *p, *at;

    if (a->made) {
        return port_record_pack_made(a, h, n);
    }
    *n = sizeof h + tokens + logps + experts;
    at = p = mem_alloc(*n);
    memcpy(at, &h, sizeof h);
    at += sizeof h;
    if (tokens) {
        memcpy(at, a->tokens, tokens);
    }
    at += tokens;
    if (logps) {
        memcpy(at, a->logps, logps);
    }
    at += logps;
    if (experts) {
        memcpy(at, a->experts, experts);
    }
    return p;
}

/* A sample that a function made. */
static int port_record_read_made(const char *text, size_t n, struct port_record_answer *x,
                                 struct err *e)
{
    json_error_t je;
    json_t *j = json_loadb(text, n, 0, &je);
    int rc = j ? sample_from_json(j, &x->made, e)
               : ERR(e, STATUS_FORMAT, "a recorded sample is not JSON: %.120s", je.text);

    json_decref(j);
    if (rc == STATUS_OK) {
        x->a.made = x->made;
        x->a.tokens = x->made->tokens + x->made->prompt_len;
        x->a.logps = x->made->logps;
        x->a.ntokens = x->made->response_len;
    }
    return rc;
}

/* Fills the answer of x: its arrays lead into data. */
static int port_record_read(const void *data, size_t n, struct port_record_answer *x,
                            int *asked_end, struct err *e)
{
    struct port_record_head h = {0};
    const char *at = (const char *)data + sizeof h;
    struct port_answer *a = &x->a;
    size_t want = sizeof h;

    if (n >= sizeof h) {
        memcpy(&h, data, sizeof h);
        want += h.magic == PORT_RECORD_MADE
                    ? n - sizeof h
                    : 4 * ((size_t)h.ntokens * (h.logps ? 2 : 1) + h.nexperts);
    }
    if ((h.magic != PORT_RECORD_MAGIC && h.magic != PORT_RECORD_MADE) || n != want ||
        h.finish > PORT_ABORT) {
        return ERR(e, STATUS_FORMAT, "a recorded answer of %zu bytes is not one", n);
    }
    memset(a, 0, sizeof *a);
    a->finish = (enum port_finish)h.finish;
    a->exact = h.exact;
    a->version = h.version;
    *asked_end = h.asked_end;
    if (h.magic == PORT_RECORD_MADE) {
        return port_record_read_made(at, n - sizeof h, x, e);
    }
    a->ntokens = (int)h.ntokens;
    a->tokens = (const int32_t *)at;
    at += 4 * (size_t)h.ntokens;
    a->logps = h.logps ? (const float *)at : NULL;
    at += h.logps ? 4 * (size_t)h.ntokens : 0;
    a->experts = h.nexperts ? (const int32_t *)at : NULL;
    a->nexperts = h.nexperts;
    return STATUS_OK;
}

/* Hash of what the tokens of a group's samples depend on besides the weights. */
static uint64_t port_record_ask(const struct port_group *g)
{
    struct {
        uint64_t tokens, texts, seed;
        float temperature, top_p;
        int32_t top_k, ignore_eos, max_new, nstop;
        int32_t stop[16];
        uint32_t stream, pad;
    } q;

    memset(&q, 0, sizeof q);
    q.tokens = XXH3_64bits(g->tokens, sizeof *g->tokens * (size_t)g->ntokens);
    for (int i = 0; i < g->ntexts; i++) {
        q.texts = XXH3_64bits_withSeed(g->texts[i], strlen(g->texts[i]), q.texts + 1);
    }
    q.seed = g->seed;
    q.temperature = g->temperature;
    q.top_p = g->top_p;
    q.top_k = g->top_k;
    q.ignore_eos = g->ignore_eos;
    q.max_new = g->max_new;
    q.nstop = g->nstop;
    memcpy(q.stop, g->stop, sizeof *g->stop * (size_t)g->nstop);
    q.stream = g->stream;
    return XXH3_64bits(&q, sizeof q);
}

static struct journal_key port_record_key(const struct port_group *g, int i, uint64_t ask)
{
    return (struct journal_key){.rollout = g->rollout,
                                .sample = g->sample + i,
                                .version = g->version,
                                .ask = ask,
                                .set = g->set,
                                .start = g->position};
}

/* ---- lists ---- */

static struct port_record_answer *port_record_push(struct port_record_list *l)
{
    if (l->head == l->n) {
        l->head = l->n = 0;
    }
    if (l->n == l->cap) {
        ASSERT(mem_grow((void **)&l->v, &l->cap, 64, sizeof *l->v));
    }
    memset(&l->v[l->n], 0, sizeof *l->v);
    return &l->v[l->n++];
}

static void port_record_drop(struct port_record_answer *x)
{
    mem_free(x->block);
    sample_free(x->made);
}

/* Those of a group, -1: of all, go to the end of another list, or where that is NULL away. */
static void port_record_move(struct port_record_list *l, int64_t group, struct port_record_list *to)
{
    size_t kept = l->head;

    for (size_t i = l->head; i < l->n; i++) {
        if (group >= 0 && l->v[i].a.group != group) {
            l->v[kept++] = l->v[i];
        } else if (to) {
            *port_record_push(to) = l->v[i];
        } else {
            port_record_drop(&l->v[i]);
        }
    }
    l->n = kept;
}

static struct port_record_run *port_record_find_run(struct port_record *p, int64_t id)
{
    size_t a = 0, b = p->nruns;

    while (a < b) {
        size_t m = a + (b - a) / 2;
        if (p->runs[m].g.id < id) {
            a = m + 1;
        } else {
            b = m;
        }
    }
    return a < p->nruns && p->runs[a].g.id == id && p->runs[a].left ? &p->runs[a] : NULL;
}

static void port_record_run_done(struct port_record *p, struct port_record_run *r)
{
    if (--r->left == 0) {
        mem_free((void *)(uintptr_t)r->g.tokens);
        r->g.tokens = NULL;
        p->live--;
    }
}

/* Room for one more run. Those that are done go when they are half of all, so that the order of
 * asking stays and each is moved once. */
static struct port_record_run *port_record_new_run(struct port_record *p)
{
    struct port_record_run *r;

    if (p->nruns == p->cap_runs && p->live <= p->nruns / 2) {
        size_t kept = 0, first = p->first;
        for (size_t i = 0; i < p->nruns; i++) {
            p->first -= i < first && !p->runs[i].left;
            if (p->runs[i].left) {
                p->runs[kept++] = p->runs[i];
            }
        }
        p->nruns = kept;
    }
    if (p->nruns == p->cap_runs) {
        ASSERT(mem_grow((void **)&p->runs, &p->cap_runs, 64, sizeof *p->runs));
    }
    r = &p->runs[p->nruns++];
    memset(r, 0, sizeof *r);
    r->g.id = p->next_id++;
    p->live++;
    return r;
}

/* ---- asking ---- */

static void port_record_log(struct port_record *p, const struct port_record_run *r)
{
    for (int i = 0; p->log_fd >= 0 && i < r->g.n; i++) {
        char line[160];
        int n = snprintf(line, sizeof line, "%lld %lld %d %d\n", (long long)r->g.sample + i,
                         (long long)r->g.rollout, r->g.set, r->g.position);
        if (write(p->log_fd, line, (size_t)n) != n) {
            continue; /* a help of tests */
        }
    }
}

/* Hands the engines what they have room for, in order. */
static int port_record_send(struct port_record *p, struct err *e)
{
    for (; p->first < p->nruns; p->first++) {
        struct port_record_run *r = &p->runs[p->first];
        int rc;
        if (!r->left || r->sent) {
            continue;
        }
        rc = p->inner->submit(p->inner->self, &r->g, e);
        if (rc != STATUS_OK) {
            return rc;
        }
        r->sent = 1;
        p->stats.asked += r->g.n;
        port_record_log(p, r);
    }
    return STATUS_OK;
}

/* Samples [first, first + n) of the group are to be asked of the engines. */
static void port_record_plan(struct port_record *p, const struct port_group *g, int first, int n,
                             uint64_t ask)
{
    size_t bytes = sizeof *g->tokens * (size_t)g->ntokens;
    int32_t *tokens = mem_alloc(bytes + 1);
    struct port_record_run *r = port_record_new_run(p);
    int64_t id = r->g.id;

    memcpy(tokens, g->tokens, bytes);
    r->g = *g;
    r->g.tokens = tokens;
    r->g.id = id;
    r->g.n = n;
    r->g.sample = g->sample + first;
    r->outer = g->id;
    r->first = first;
    r->ask = ask;
    r->left = n;
}

/* The recorded answer of sample i of the group. */
static int port_record_recall(struct port_record *p, const struct port_group *g, int i,
                              uint64_t ask, struct err *e)
{
    struct journal_key k = port_record_key(g, i, ask);
    struct port_record_answer x = {0};
    void *data;
    size_t n;
    int asked_end, rc = p->j->find(p->j->self, JOURNAL_ANSWER, &k, &data, &n, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    rc = port_record_read(data, n, &x, &asked_end, e);
    if (rc != STATUS_OK) {
        mem_free(data);
        return rc;
    }
    x.a.group = g->id;
    x.a.sample = i;
    x.block = data;
    *port_record_push(asked_end ? &p->held : &p->ready) = x;
    p->stats.recalled++;
    return STATUS_OK;
}

/* Takes back what was made of a group that the engines refuse. */
static void port_record_forget(struct port_record *p, int64_t outer)
{
    for (size_t i = 0; i < p->nruns; i++) {
        if (p->runs[i].left && p->runs[i].outer == outer && !p->runs[i].sent) {
            p->runs[i].left = 1;
            port_record_run_done(p, &p->runs[i]);
        }
    }
    port_record_move(&p->ready, outer, NULL);
    port_record_move(&p->held, outer, NULL);
}

static int port_record_submit(void *self, const struct port_group *g, struct err *e)
{
    struct port_record *p = self;
    uint64_t ask = port_record_ask(g);
    int run = 0, rc = p->inner ? port_record_send(p, e) : STATUS_OK;

    for (int i = 0; rc == STATUS_OK && i < g->n; i++) {
        rc = port_record_recall(p, g, i, ask, e);
        if (rc == STATUS_NOTFOUND) {
            run++;
            rc = STATUS_OK;
        } else if (rc == STATUS_OK && run) {
            port_record_plan(p, g, i - run, run, ask);
            run = 0;
        }
    }
    if (rc == STATUS_OK && run) {
        port_record_plan(p, g, g->n - run, run, ask);
    }
    if (rc == STATUS_OK && p->inner) {
        rc = port_record_send(p, e);
        rc =
            rc == STATUS_AGAIN ? STATUS_OK : rc; /* poll sends it; more is turned away until then */
    }
    if (rc < 0) {
        port_record_forget(p, g->id);
    }
    return rc;
}

/* ---- answers ---- */

/* An answer of the engines: into the journal, and into the list of those that wait for the disk. */
static int port_record_took(struct port_record *p, const struct port_answer *a, struct err *e)
{
    struct port_record_run *r = port_record_find_run(p, a->group);
    struct port_record_answer x = {0};
    struct journal_key k;
    int asked_end, rc;
    size_t n = 0;
    void *data;

    ASSERT(r);
    k = port_record_key(&r->g, a->sample, r->ask);
    asked_end = a->finish == PORT_ABORT && r->aborted;
    data = port_record_pack(a, asked_end, &n);
    rc = data ? p->j->put(p->j->self, JOURNAL_ANSWER, &k, data, n, e)
              : ERR(e, STATUS_FORMAT, "sample %lld cannot be written as JSON", (long long)k.sample);
    rc =
        rc == STATUS_OK ? port_record_read(data, n, &x, &asked_end, e) : rc; /* as it is recalled */
    if (rc != STATUS_OK) {
        mem_free(data);
        return rc;
    }
    if (!p->fresh.n) {
        p->fresh_since = p->world->now(p->world->self);
    }
    x.a.group = r->outer;
    x.a.sample = r->first + a->sample;
    x.block = data;
    *port_record_push(&p->fresh) = x;
    port_record_run_done(p, r);
    return STATUS_OK;
}

static int port_record_commit(struct port_record *p, struct err *e)
{
    double t0 = p->world->now(p->world->self);
    int rc = p->j->commit(p->j->self, e);

    p->wait_s = PORT_RECORD_WAIT_X * (p->world->now(p->world->self) - t0);
    p->wait_s = p->wait_s < PORT_RECORD_WAIT_S   ? PORT_RECORD_WAIT_S
                : p->wait_s > PORT_RECORD_MOST_S ? PORT_RECORD_MOST_S
                                                 : p->wait_s;
    if (rc == STATUS_OK) {
        port_record_move(&p->fresh, -1, &p->ready);
    }
    return rc;
}

/* The next answer that may be seen; 0 when there is none. */
static int port_record_next(struct port_record *p, struct port_answer *a)
{
    struct port_record_list *l = &p->ready;

    if (l->head == l->n) {
        return 0;
    }
    port_record_drop(&p->handed);
    p->handed = l->v[l->head++];
    *a = p->handed.a;
    return 1;
}

/* A replay waits for nothing: what is not recorded was never answered, and ends with nothing when
 * the loop ends it. When it does not, the record is not whole. */
static int port_record_missing(struct port_record *p, struct err *e)
{
    for (size_t i = 0; i < p->nruns; i++) {
        const struct port_record_run *r = &p->runs[i];
        if (r->left && ++p->idle > PORT_RECORD_IDLE) {
            return ERR(e, STATUS_NOTFOUND,
                       "no answer of sample %lld of rollout %lld is recorded for weights %lld",
                       (long long)r->g.sample, (long long)r->g.rollout, (long long)r->g.version);
        }
        if (r->left) {
            return STATUS_AGAIN;
        }
    }
    return p->held.n && ++p->idle <= PORT_RECORD_IDLE ? STATUS_AGAIN : STATUS_END;
}

static int port_record_poll(void *self, struct port_answer *a, struct err *e)
{
    struct port_record *p = self;
    struct port_answer got;
    int rc;

    if (port_record_next(p, a)) {
        p->idle = 0;
        return STATUS_OK;
    }
    if (!p->inner) {
        return port_record_missing(p, e);
    }
    rc = port_record_send(p, e);
    if (rc < 0) {
        return rc;
    }
    rc = p->inner->poll(p->inner->self, &got, e);
    if (rc == STATUS_OK) {
        int took = port_record_took(p, &got, e);
        rc = took == STATUS_OK ? STATUS_AGAIN : took;
    }
    if (rc >= 0 && p->fresh.n &&
        (rc == STATUS_END || p->fresh.n >= PORT_RECORD_BATCH ||
         p->world->now(p->world->self) - p->fresh_since >= p->wait_s)) {
        int done = port_record_commit(p, e);
        return done != STATUS_OK ? done : port_record_next(p, a) ? STATUS_OK : STATUS_AGAIN;
    }
    if (rc == STATUS_END && p->held.n) { /* the loop ends these when it has its rewards */
        world_sleep(p->world, 0.001);
        rc = ++p->idle < PORT_RECORD_HELD
                 ? STATUS_AGAIN
                 : ERR(e, STATUS_TIMEOUT, "%zu recorded answers that were cut off are not wanted",
                       p->held.n);
    }
    return rc;
}

static void port_record_abort(void *self, int64_t group)
{
    struct port_record *p = self;

    port_record_move(&p->held, group, &p->ready);
    for (size_t i = 0; i < p->nruns; i++) {
        struct port_record_run *r = &p->runs[i];
        if (!r->left || (group >= 0 && r->outer != group) || r->aborted) {
            continue;
        }
        r->aborted = 1;
        if (r->sent) {
            if (group >= 0) {
                p->inner->abort(p->inner->self, r->g.id);
            }
            continue;
        }
        for (int k = 0, n = r->g.n; k < n; k++) { /* never asked: it ends with nothing */
            struct port_record_answer *x = port_record_push(&p->ready);
            x->a.group = r->outer;
            x->a.sample = r->first + k;
            x->a.finish = PORT_ABORT;
            x->a.version = r->g.version;
            x->a.tokens = x->block = mem_alloc(sizeof(int32_t));
            x->a.logps = x->block;
            port_record_run_done(p, r);
        }
    }
    if (group < 0 && p->inner) {
        p->inner->abort(p->inner->self, -1);
    }
}

/* A finished answer that was not seen yet is told as all but its last token: it is not unfinished.
 */
static int port_record_progress(void *self, int64_t group, int sample)
{
    struct port_record *p = self;
    const struct port_record_list *lists[3] = {&p->ready, &p->fresh, &p->held};

    for (int k = 0; k < 3; k++) {
        for (size_t i = lists[k]->head; i < lists[k]->n; i++) {
            const struct port_record_answer *x = &lists[k]->v[i];
            if (x->a.group == group && x->a.sample == sample) {
                return x->a.finish == PORT_ABORT || !x->a.ntokens ? x->a.ntokens : x->a.ntokens - 1;
            }
        }
    }
    for (size_t i = 0; i < p->nruns; i++) {
        const struct port_record_run *r = &p->runs[i];
        if (r->left && r->sent && r->outer == group && sample >= r->first &&
            sample < r->first + r->g.n) {
            return p->inner->progress(p->inner->self, r->g.id, sample - r->first);
        }
    }
    return 0;
}

static int port_record_control(void *self, enum port_control what, struct err *e)
{
    struct port_record *p = self;
    return p->inner && p->inner->control ? p->inner->control(p->inner->self, what, e) : STATUS_OK;
}

static int port_record_publish(void *self, int64_t version, struct err *e)
{
    struct port_record *p = self;
    return p->inner->publish(p->inner->self, version, e);
}

static void port_record_report(void *self, json_t *row)
{
    struct port_record *p = self;
    p->inner->report(p->inner->self, row);
}

int port_record_open(const struct rollout_port *inner, struct journal *j, const struct world *w,
                     const char *asked_log, struct port_record **out, struct err *e)
{
    struct port_record *p = mem_alloc(sizeof *p);

    p->inner = inner;
    p->j = j;
    p->world = w;
    p->log_fd = -1;
    p->wait_s = PORT_RECORD_WAIT_S;
    p->port =
        (struct rollout_port){.submit = port_record_submit,
                              .poll = port_record_poll,
                              .abort = port_record_abort,
                              .control = port_record_control,
                              .publish = inner && inner->publish ? port_record_publish : NULL,
                              .progress = !inner || inner->progress ? port_record_progress : NULL,
                              .report = inner && inner->report ? port_record_report : NULL,
                              .self = p};
    if (asked_log) {
        p->log_fd = open(asked_log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (p->log_fd < 0) {
            mem_free(p);
            return ERR(e, STATUS_IO, "cannot open %s: %s", asked_log, strerror(errno));
        }
    }
    *out = p;
    return STATUS_OK;
}

const struct rollout_port *port_record_port(struct port_record *p)
{
    return &p->port;
}

struct port_record_stats port_record_stats(const struct port_record *p)
{
    return p->stats;
}

void port_record_close(struct port_record *p)
{
    if (!p) {
        return;
    }
    for (size_t i = 0; i < p->nruns; i++) {
        if (p->runs[i].left) {
            mem_free((void *)(uintptr_t)p->runs[i].g.tokens);
        }
    }
    port_record_move(&p->fresh, -1, NULL);
    port_record_move(&p->ready, -1, NULL);
    port_record_move(&p->held, -1, NULL);
    if (p->log_fd >= 0) {
        close(p->log_fd);
    }
    port_record_drop(&p->handed);
    mem_free(p->runs);
    mem_free(p->fresh.v);
    mem_free(p->ready.v);
    mem_free(p->held.v);
    mem_free(p);
}
