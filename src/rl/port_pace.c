/* Owns the judgement on how engines do with samples. An engine that fails one sample after the
 * other (rl/breaker.h), or that takes far longer than all of them for what it answers, or about
 * what it does not answer, gets no samples for a while; then one, and when that comes back as it
 * should, all it can take.
 *
 * Answers differ in length, so an answer is held against what the other engines together take for
 * as many tokens, and never against less than their mean: an engine that happens to get short ones
 * is not a slow one. Its own answers are no part of it: one of four would never be found to take
 * five times as long as all. Each costs a few additions, however many engines there are; what is
 * not answered is found by a look at the oldest, once a second. */
#include "base/log.h"
#include "base/world.h"
#include "rl/port_http_int.h"

#define PORT_PACE_ENGINE 16  /* answers that an engine's mean remembers */
#define PORT_PACE_LEAST  4   /* answers of an engine before it is judged */
#define PORT_PACE_KNOWN  16  /* and of all */
#define PORT_PACE_LOOK_S 1.0 /* between two looks at what is not answered */

double port_pace_chance(struct port_http *p)
{
    return (double)(world_random(p->o.world) >> 11) * 0x1p-53;
}

double port_pace_clock(const struct port_http *p)
{
    return port_http_now(p) - p->away;
}

int port_pace_usable(const struct port_http *p, struct port_engine *en, double now)
{
    return en->state == PORT_ENGINE_READY && !en->suspect && !en->wake && !en->removed &&
           en->load < p->o.concurrency && breaker_takes(&en->gate, now, en->load);
}

/* Of the sum of all engines: with sign -1 the engine's part goes, with 1 it comes. */
static void port_pace_count(struct port_http *p, const struct port_engine *en, double sign)
{
    p->pace.seconds += sign * en->pace.seconds;
    p->pace.tokens += sign * en->pace.tokens;
    p->pace.n += sign * en->pace.n;
}

static void port_pace_forget(struct port_http *p, struct port_engine *en)
{
    port_pace_count(p, en, -1.0);
    en->pace = (struct port_pace){0};
}

void port_pace_reset(struct port_http *p, struct port_engine *en)
{
    if (en->pace.n > 0.5 && en->slow_at <= 0.0) {
        p->past = en->pace;
    }
    port_pace_forget(p, en);
    en->gate = (struct breaker){0};
    en->slow_at = en->move_at = 0.0;
}

double port_pace_behind(const struct port_engine *en)
{
    return en->pace.expected > 0.0 ? en->pace.seconds / en->pace.expected : 0.0;
}

double port_pace_mean(const struct port_engine *en)
{
    return en->pace.n > 0.5 ? en->pace.seconds / en->pace.n : 0.0;
}

static void port_pace_add(struct port_http *p, struct port_engine *en, double seconds,
                          double tokens, double expected)
{
    struct port_pace *x = &en->pace;
    double keep = 1.0 - 1.0 / PORT_PACE_ENGINE;

    port_pace_count(p, en, -1.0);
    x->seconds = x->seconds * keep + seconds;
    x->tokens = x->tokens * keep + tokens;
    x->expected = x->expected * keep + expected;
    x->n = x->n * keep + 1.0;
    x->answers++;
    port_pace_count(p, en, 1.0);
    p->pace.answers++;
}

/* Seconds that the other engines together take for so many tokens. Where they have answered
 * nothing: what one took before it was started anew, else what this one did; 0: not known yet. */
static double port_pace_expected(const struct port_http *p, const struct port_engine *en,
                                 double tokens)
{
    struct port_pace x = {.seconds = p->pace.seconds - en->pace.seconds,
                          .tokens = p->pace.tokens - en->pace.tokens,
                          .n = p->pace.n - en->pace.n};
    double mean, each;

    x = x.n < 0.5 ? p->past : x;
    x = x.n < 0.5 ? en->pace : x;
    if (p->o.slow_factor <= 0.0 || p->pace.answers < PORT_PACE_KNOWN || x.n < 0.5 ||
        x.tokens < 0.5) {
        return 0.0;
    }
    mean = x.seconds / x.n;
    each = x.seconds / x.tokens * tokens;
    return each > mean ? each : mean;
}

/* Somebody must be left to do its work. */
static int port_pace_others(struct port_http *p, const struct port_engine *en)
{
    for (int i = 0; i < p->o.nengines; i++) {
        const struct port_engine *o = &p->engines[i];
        if (o != en && o->state == PORT_ENGINE_READY && !o->removed &&
            o->gate.state == BREAKER_CLOSED) {
            return 1;
        }
    }
    return 0;
}

/* No samples from now on; those it has are taken back when `move_s` have passed. */
static void port_pace_drain(struct port_http *p, struct port_engine *en, double now, double move_s)
{
    breaker_open(&en->gate, now, port_pace_chance(p));
    en->slow_at = 0.0;
    en->move_at = now + move_s;
    port_pace_forget(p, en);
    p->stats.drained++;
}

static void port_pace_try(struct port_http *p, struct port_engine *en, int slow, double seconds,
                          double expected)
{
    if (slow) {
        breaker_open(&en->gate, port_http_now(p), port_pace_chance(p));
        log_warn(ENGINE,
                 "%s is still slow: %.2f s for what the others take %.2f s for; it gets "
                 "no samples for %.1f s",
                 port_engine_name(en), seconds, expected, en->gate.until - port_http_now(p));
    } else if (breaker_good(&en->gate)) {
        log_info(ENGINE,
                 "%s is well: %.2f s for what the others take %.2f s for; it gets samples "
                 "again",
                 port_engine_name(en), seconds, expected);
    }
}

void port_pace_answered(struct port_http *p, struct port_engine *en, int tokens, double seconds)
{
    double expected = port_pace_expected(p, en, tokens), now = port_http_now(p);
    double clock = port_pace_clock(p);
    int slow = expected > 0.0 && seconds > p->o.slow_factor * expected;

    if (en->gate.state == BREAKER_OPEN) {
        return; /* of a sample that was sent before */
    }
    if (en->gate.state == BREAKER_TRIAL) {
        port_pace_try(p, en, slow, seconds, expected);
        if (en->gate.state == BREAKER_CLOSED) {
            port_pace_add(p, en, seconds, tokens, expected);
        }
        return;
    }
    breaker_good(&en->gate);
    port_pace_add(p, en, seconds, tokens, expected);
    if (expected <= 0.0 || en->pace.answers < PORT_PACE_LEAST ||
        port_pace_behind(en) <= p->o.slow_factor) {
        en->slow_at = 0.0;
        return;
    }
    en->slow_at = en->slow_at > 0.0 ? en->slow_at : clock;
    if (clock - en->slow_at >= p->o.slow_s && port_pace_others(p, en)) {
        log_warn(ENGINE,
                 "%s is slow: %.1f times as long as the others for the same tokens, for %.0f s; "
                 "it gets no samples, and the %d it has are moved in %.0f s",
                 port_engine_name(en), port_pace_behind(en), clock - en->slow_at, en->load,
                 p->o.slow_s);
        port_pace_drain(p, en, now, p->o.slow_s);
    }
}

void port_pace_failed(struct port_http *p, struct port_engine *en, const char *why)
{
    double now = port_http_now(p);

    if (breaker_bad(&en->gate, now, port_pace_chance(p))) {
        log_warn(ENGINE,
                 "%s fails one sample after the other and gets none for %.1f s; the last: "
                 "%s",
                 port_engine_name(en), en->gate.until - now, why);
    }
}

/* The oldest samples: is somebody so long about one that the longest answer there can be would have
 * come from any other? */
static void port_pace_look(struct port_http *p, double now)
{
    double clock = port_pace_clock(p);

    for (struct port_http_link *x = p->flying.next; x != &p->flying; x = x->next) {
        struct port_http_unit *u = (struct port_http_unit *)x;
        struct port_engine *en = u->call->engine < 0 ? NULL : &p->engines[u->call->engine];
        double age = clock - u->sent, expected;
        if (age < p->o.slow_s) {
            return; /* the others are younger */
        }
        expected = en ? port_pace_expected(p, en, u->set->g.max_new) : 0.0;
        if (en && en->move_at <= 0.0 && !u->set->aborted && expected > 0.0 &&
            age > p->o.slow_s + p->o.slow_factor * expected && port_pace_others(p, en)) {
            log_warn(ENGINE,
                     "%s is slow: %.0f s without an answer, and the others take %.1f s for the "
                     "longest there can be; it gets no samples, and the %d it has are moved",
                     port_engine_name(en), age, expected, en->load);
            port_pace_drain(p, en, now, 0.0);
        }
    }
}

static void port_pace_move(struct port_http *p, struct port_engine *en)
{
    int n =
        port_http_take_back(p, en->index, en->removed ? "its engine goes" : "its engine is slow");

    en->move_at = 0.0;
    if (n) {
        log_info(ENGINE, "%s: %d sample%s moved to others", port_engine_name(en), n,
                 n == 1 ? " is" : "s are");
    }
}

void port_pace_tick(struct port_http *p, double now)
{
    if (now < p->next_pace) {
        return;
    }
    p->next_pace = now + PORT_PACE_LOOK_S;
    port_pace_look(p, now);
    for (int i = 0; i < p->o.nengines; i++) {
        if (p->engines[i].move_at > 0.0 && now >= p->engines[i].move_at) {
            port_pace_move(p, &p->engines[i]);
        }
    }
}
