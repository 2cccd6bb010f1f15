/* Owns samples that functions of the user's are making: a call for each, at most so many at once,
 * and answers as they come. */
#include "rl/port_hook.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "reward/hookcall.h"
#include "rl/genwire.h"
#include "rl/sample.h"

enum { CALLS_MAX = 1024 }; /* at the function at once; others wait here */

struct hook_call {
    struct hook_call *next;
    int64_t group;
    int sample;
    json_t *argv, *given; /* given: the sample, until it is made */
    int sent, dropped;
};

struct port_hook {
    struct hookcall *h;
    const char *flag;
    int spare;
    const struct rollout_port *inner;
    struct rollout_port port;
    struct hook_call *calls, **end; /* all that are not polled, in order */
    int sent, failed, made;
    struct sample *answer; /* the last one that was told */
};

/* As an engine takes them, with a seed of the sample's own, so that a function that hands them on
 * gets the same tokens each time (contract C3). */
static json_t *hook_params(const struct port_group *g, int i)
{
    json_t *p = json_pack(
        "{s:i,s:f,s:f,s:i,s:b,s:b,s:I}", "max_new_tokens", g->max_new, "temperature",
        (double)g->temperature, "top_p", (double)g->top_p, "top_k", g->top_k > 0 ? g->top_k : -1,
        "ignore_eos", g->ignore_eos, "skip_special_tokens", 0, "sampling_seed",
        (json_int_t)genwire_seed(g->seed, g->stream, (uint64_t)g->sample + (uint64_t)i));
    if (g->nstop) {
        json_t *stop = json_array();
        for (int k = 0; k < g->nstop; k++) {
            json_array_append_new(stop, json_integer(g->stop[k]));
        }
        json_object_set_new(p, "stop_token_ids", stop);
    }
    return p;
}

/* The sample that the function gets: its prompt, and what it has of a response. */
static json_t *hook_sample(const struct port_group *g, int i)
{
    json_t *s = sample_to_json(g->of);
    json_object_set_new(s, "index", json_integer(g->sample + i));
    json_object_set_new(s, "rollout_id", json_integer(g->sample + i));
    json_object_set_new(s, "status", json_string("pending"));
    return s;
}

static int hook_submit(void *self, const struct port_group *g, struct err *e)
{
    struct port_hook *p = self;

    if (!g->of) {
        return ERR(e, STATUS_FAIL, "a generate function needs to know its sample");
    }
    for (int i = 0; i < g->n; i++) {
        struct hook_call *c = mem_alloc(sizeof *c);
        c->group = g->id;
        c->sample = i;
        c->given = hook_sample(g, i);
        c->argv = json_pack("[O,o,b]", c->given, hook_params(g, i), g->stream == RNG_EVAL);
        *p->end = c;
        p->end = &c->next;
    }
    return STATUS_OK;
}

static int hook_send(struct port_hook *p, struct err *e)
{
    for (struct hook_call *c = p->calls; c && p->sent < CALLS_MAX; c = c->next) {
        int rc;
        if (c->sent || c->dropped) {
            continue;
        }
        rc = hookcall_submit(p->h, (int64_t)(intptr_t)c, c->argv, e);
        if (rc != STATUS_OK) {
            return rc == STATUS_AGAIN ? STATUS_OK : rc;
        }
        c->sent = 1;
        p->sent++;
        json_decref(c->argv);
        c->argv = NULL;
    }
    return STATUS_OK;
}

static void hook_forget(struct port_hook *p, struct hook_call *c)
{
    struct hook_call **at = &p->calls;
    while (*at != c) {
        at = &(*at)->next;
    }
    *at = c->next;
    if (p->end == &c->next) {
        p->end = at;
    }
    json_decref(c->argv);
    json_decref(c->given);
    mem_free(c);
}

/* An answer without tokens: of what an abort ended. */
static void hook_aborted(const struct hook_call *c, struct port_answer *a)
{
    memset(a, 0, sizeof *a);
    a->group = c->group;
    a->sample = c->sample;
    a->finish = PORT_ABORT;
}

static int hook_answer(struct port_hook *p, struct hook_call *c, const json_t *value,
                       struct port_answer *a, struct err *e)
{
    json_t *first = json_array_get(value, 0), *more = json_array();
    struct sample *s;
    int rc;

    for (size_t i = 1; i < json_array_size(value); i++) {
        json_array_append(more, json_array_get(value, i));
    }
    json_object_set_new(first, "siblings", more);
    rc = sample_from_json(first, &s, e);
    if (rc != STATUS_OK) {
        return err_prefix(e, "--%s", p->flag);
    }
    sample_free(p->answer);
    p->answer = s;
    p->made++;
    memset(a, 0, sizeof *a);
    a->group = c->group;
    a->sample = c->sample;
    a->made = s;
    a->tokens = s->tokens + s->prompt_len;
    a->logps = s->logps;
    a->ntokens = s->response_len;
    a->finish = s->status == SAMPLE_TRUNCATED                               ? PORT_LENGTH
                : s->status == SAMPLE_ABORTED || s->status == SAMPLE_FAILED ? PORT_ABORT
                                                                            : PORT_STOP;
    a->version = s->nsegments ? s->segments[s->nsegments - 1].version : -1;
    return STATUS_OK;
}

/* A call that failed: a sample without a response, and why. */
static int hook_spare(struct port_hook *p, struct hook_call *c, const char *reason,
                      struct port_answer *a, struct err *e)
{
    json_t *list = json_pack("[O]", c->given);
    int rc;

    json_object_set_new(c->given, "status", json_string("failed"));
    json_object_set_new(c->given, "reward_reason", json_sprintf("--%s: %s", p->flag, reason));
    rc = hook_answer(p, c, list, a, e);
    json_decref(list);
    return rc;
}

static int hook_poll(void *self, struct port_answer *a, struct err *e)
{
    struct port_hook *p = self;
    struct worker_result r;
    struct hook_call *c;
    int rc = hook_send(p, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    if (!p->calls) {
        return STATUS_END;
    }
    for (c = p->calls; c; c = c->next) { /* dropped before the function had it */
        if (c->dropped && !c->sent) {
            hook_aborted(c, a);
            hook_forget(p, c);
            return STATUS_OK;
        }
    }
    rc = hookcall_poll(p->h, 0.05, &r, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    c = (struct hook_call *)(intptr_t)r.id;
    p->sent--;
    if (c->dropped) {
        hook_aborted(c, a);
    } else if (r.failed) {
        p->failed++;
        rc = p->spare ? hook_spare(p, c, r.reason, a, e)
                      : ERR(e, STATUS_CHILD, "--%s: %s", p->flag, r.reason);
    } else {
        rc = hook_answer(p, c, r.value, a, e);
    }
    json_decref(r.value);
    hook_forget(p, c);
    return rc;
}

static void hook_abort(void *self, int64_t group)
{
    struct port_hook *p = self;
    for (struct hook_call *c = p->calls; c; c = c->next) {
        c->dropped |= group < 0 || c->group == group;
    }
}

static int hook_control(void *self, enum port_control what, struct err *e)
{
    struct port_hook *p = self;
    return p->inner && p->inner->control ? p->inner->control(p->inner->self, what, e) : STATUS_OK;
}

static int hook_publish(void *self, int64_t version, struct err *e)
{
    struct port_hook *p = self;
    return p->inner->publish(p->inner->self, version, e);
}

static void hook_report(void *self, json_t *row)
{
    struct port_hook *p = self;
    if (p->inner && p->inner->report) {
        p->inner->report(p->inner->self, row);
    }
}

int port_hook_open(const struct port_hook_opts *o, struct port_hook **out, struct err *e)
{
    struct port_hook *p = mem_alloc(sizeof *p);
    struct hookcall_opts h = {.flag = o->flag ? o->flag : "custom-generate-function-path",
                              .path = o->path,
                              .python = o->python,
                              .count = o->workers,
                              .timeout_s = o->timeout_s,
                              .args = o->args};
    int rc = hookcall_open(&h, &p->h, e);

    p->flag = h.flag;
    p->spare = o->spare;
    p->end = &p->calls;
    p->inner = o->inner;
    p->port = (struct rollout_port){.submit = hook_submit,
                                    .poll = hook_poll,
                                    .abort = hook_abort,
                                    .control = hook_control,
                                    .publish = o->inner && o->inner->publish ? hook_publish : NULL,
                                    .report = hook_report,
                                    .self = p};
    if (rc != STATUS_OK) {
        port_hook_close(p);
        return rc;
    }
    *out = p;
    return STATUS_OK;
}

const struct rollout_port *port_hook_port(struct port_hook *p)
{
    return &p->port;
}

void port_hook_close(struct port_hook *p)
{
    if (!p) {
        return;
    }
    hookcall_close(p->h);
    while (p->calls) {
        hook_forget(p, p->calls);
    }
    sample_free(p->answer);
    mem_free(p);
}
