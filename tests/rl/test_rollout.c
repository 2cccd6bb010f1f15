/* Rollouts with a fake engine: what is kept, dropped, cut and asked for is what a simulation that
 * counts every tick says, for every speed and order of the engine; failed rewards take groups out.
 */
#include "fakeport.h"

#include <math.h>

#include "base/rng.h"
#include "reward/hub.h"
#include "rl/buffer.h"
#include "rl/filter.h"
#include "rl/prompts.h"
#include "rl/rollout.h"

static struct err e;

/* Rows with a label, without one (every third, when bad), with their number as the prompt. */
static struct prompts *open_rows(int n, int group, int bad)
{
    struct prompts_opts o = {.path = fakeport_path("rows.jsonl"),
                             .input_key = "q",
                             .label_key = "label",
                             .group_size = group};
    struct prompts *p = NULL;
    struct buf b;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < n; i++) {
        buf_printf(&b,
                   bad && i % 3 == 2 ? "{\"q\": \"row %d\", \"label\": null}\n"
                                     : "{\"q\": \"row %d\", \"label\": \"a b c\"}\n",
                   i);
    }
    fakeport_text("rows.jsonl", b.data);
    buf_fini(&b);
    assert_ok(prompts_open(&p, &o, &e), &e);
    return p;
}

static struct hub *open_hub(const char *type)
{
    struct hub_opts o = {.rm_type = type};
    struct hub *h = NULL;
    assert_ok(hub_open(&o, &h, &e), &e);
    return h;
}

/* ---- a rollout and where its groups come from ---- */

struct source {
    struct prompts *p;
    struct buffer *buffer; /* or NULL */
    int asked, drops;
    char reasons[4096];
};

static int more(void *arg, struct rollout *r, int64_t n, struct err *err)
{
    struct source *src = arg;
    struct sample ***old = NULL;
    int nold = 0, rc = STATUS_OK;
    src->asked++;
    if (src->buffer) {
        rc = buffer_take(src->buffer, 0, n, &old, &nold, err);
    }
    for (int i = 0; rc == STATUS_OK && i < nold; i++) {
        rc = rollout_resume(r, old[i], err);
        mem_free(old[i]);
    }
    mem_free(old);
    for (int64_t i = nold; rc == STATUS_OK && i < n; i++) {
        struct prompts_group g;
        struct batch_item it;
        assert_ok(prompts_next(src->p, 1, &g, &e), &e);
        it = (struct batch_item){g.row, g.group_index, g.index};
        rc = rollout_add(r, &it, err);
    }
    return rc;
}

static int dropped(void *arg, const struct sample *first, const char *reason, struct err *err)
{
    struct source *src = arg;
    size_t n = strlen(src->reasons);
    (void)err;
    src->drops++;
    snprintf(src->reasons + n, sizeof src->reasons - n, "%lld:%s ", (long long)first->index,
             reason);
    return STATUS_OK;
}

static struct rollout_cfg config(struct fakeport *f, struct hub *hub, struct source *src, int n,
                                 int target)
{
    struct rollout_cfg c;
    memset(&c, 0, sizeof c);
    c.batch.port = &f->rollout;
    c.batch.hub = hub;
    c.batch.enc = &f->enc;
    c.batch.n = n;
    c.batch.proto.max_new = 16;
    c.batch.proto.seed = 42;
    c.batch.proto.stream = RNG_TRAIN;
    c.target = c.wave = target;
    c.more = more;
    c.dropped = dropped;
    c.arg = src;
    return c;
}

static int run(struct rollout *r)
{
    int rc = STATUS_AGAIN;
    for (int guard = 0; rc == STATUS_AGAIN; guard++) {
        assert_true(guard < 400000);
        rc = rollout_tick(r, &e);
    }
    return rc;
}

static char *text_of(struct sample **s, int n)
{
    json_t *a = json_array();
    char *text;
    for (int i = 0; i < n; i++) {
        json_array_append_new(a, sample_to_json(s[i]));
        assert_true(i == 0 || s[i]->index > s[i - 1]->index);
    }
    text = json_dumps(a, JSON_COMPACT);
    json_decref(a);
    return text;
}

/* ---- without a filter ---- */

/* The same samples, rewards and replacements for every order in which answers come, scored one by
 * one or as groups. */
static void order_does_not_show(void **state)
{
    char *want = NULL;
    (void)state;
    for (uint64_t order = 0; order < 16; order++) {
        struct source src = {.p = open_rows(20, 4, 1)};
        struct hub *h = open_hub("f1");
        struct fakeport f;
        struct rollout_cfg c;
        struct rollout *r;
        struct sample **s;
        char *got;
        int n;
        fakeport_open(&f, order % 8);
        f.slots = order >= 8 ? 1 + (int)order % 5 : 0;
        c = config(&f, h, &src, 4, 7);
        c.batch.group_rm = order % 2;
        r = rollout_new(&c);
        assert_ok(run(r), &e);
        /* rows 2 and 5 fail, then 8, which replaces one of them */
        assert_int_equal(src.drops, 3);
        assert_non_null(strstr(src.reasons, "no label"));
        assert_int_equal(rollout_done_samples(r), 10 * 4);
        s = rollout_samples(r, &n);
        got = text_of(s, n);
        assert_int_equal(n, 7 * 4);
        assert_null(rollout_leftover(r));
        if (want) {
            assert_string_equal(got, want);
            free(got);
        } else {
            static const int rows[] = {0, 1, 3, 4, 6, 7, 9};
            for (int i = 0; i < n; i++) {
                char prompt[16];
                snprintf(prompt, sizeof prompt, "row %d", rows[i / 4]);
                assert_string_equal(json_string_value(s[i]->prompt), prompt);
                assert_int_equal(s[i]->group_index, rows[i / 4]);
                assert_int_equal(s[i]->index, rows[i / 4] * 4 + i % 4);
                assert_int_equal(s[i]->rollout_id, s[i]->index);
                assert_int_equal(s[i]->prompt_len, 5);
                assert_true(s[i]->reward >= 0.0 && s[i]->reward <= 1.0);
                assert_int_equal(s[i]->segments[0].exact, 1);
                assert_int_equal(strlen(s[i]->response), s[i]->response_len);
            }
            want = got;
        }
        rollout_free(r);
        hub_close(h);
        prompts_close(src.p);
        fakeport_close(&f);
    }
    free(want);
}

/* An evaluation keeps a failed sample, failed and without a reward. */
static void failed_stays(void **state)
{
    struct source src = {.p = open_rows(3, 2, 1)};
    struct hub *h = open_hub("f1");
    struct fakeport f;
    struct rollout_cfg c;
    struct rollout *r;
    struct sample **s;
    int n;
    (void)state;
    fakeport_open(&f, 5);
    c = config(&f, h, &src, 2, 3);
    c.keep_failed = 1;
    r = rollout_new(&c);
    assert_ok(run(r), &e);
    s = rollout_samples(r, &n);
    assert_int_equal(n, 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(s[i]->status == SAMPLE_FAILED, i >= 4);
        assert_int_equal(isnan(s[i]->reward), i >= 4);
    }
    rollout_free(r);
    hub_close(h);
    prompts_close(src.p);
    fakeport_close(&f);
}

static void no_hub(void **state)
{
    struct source src = {.p = open_rows(5, 3, 0)};
    struct fakeport f;
    struct rollout_cfg c;
    struct rollout *r;
    struct sample **s;
    int n, truncated = 0;
    (void)state;
    fakeport_open(&f, 2);
    c = config(&f, NULL, &src, 3, 5);
    r = rollout_new(&c);
    assert_ok(run(r), &e);
    s = rollout_samples(r, &n);
    assert_int_equal(n, 15);
    for (int i = 0; i < n; i++) {
        assert_true(isnan(s[i]->reward));
        assert_true(s[i]->status == SAMPLE_COMPLETED || s[i]->status == SAMPLE_TRUNCATED);
        truncated += s[i]->status == SAMPLE_TRUNCATED;
    }
    assert_true(truncated > 0 && truncated < n);
    assert_int_equal(rollout_tick(r, &e), STATUS_OK);
    rollout_free(r);
    rollout_free(NULL);
    prompts_close(src.p);
    fakeport_close(&f);
}

/* ---- against a simulation ---- */

enum { MOST = 512 }; /* groups */

struct rules {
    int n, target, wave, places, by_sample, partial;
    int keep_of; /* a group is kept when the sum of its lengths has this rest */
};

struct sim_sample {
    int64_t len, has;
    int state; /* 0 waits, 1 runs, 2 finished */
};

struct sim {
    struct sim_sample s[MOST * 8];
    int left[MOST], fate[MOST]; /* fate 0 in flight, 1 kept, 2 dropped */
    int groups, kept, waves;
    int64_t now, wasted;
};

/* Whether the filter of these tests keeps it: some do, some do not. */
static int keeps(const struct rules *p, int64_t sum)
{
    return sum % 3 != p->keep_of;
}

static void sim_ask(const struct rules *p, struct sim *m, const int64_t *len)
{
    for (;;) {
        int groups = 0, samples = 0;
        for (int g = 0; g < m->groups; g++) {
            groups += m->fate[g] == 0;
            for (int i = 0; i < p->n; i++) {
                samples += m->s[g * p->n + i].state != 2;
            }
        }
        if (p->by_sample ? samples + p->n > (p->target - m->kept) * p->n
                         : groups >= p->target - m->kept) {
            return;
        }
        m->waves++;
        for (int k = 0; k < p->wave; k++) {
            int g = m->groups++;
            assert_true(g < MOST);
            m->left[g] = p->n;
            m->fate[g] = 0;
            for (int i = 0; i < p->n; i++) {
                m->s[g * p->n + i] = (struct sim_sample){len[g * p->n + i], 0, 0};
            }
        }
    }
}

/* Every tick by itself. */
static void simulate(const struct rules *p, struct sim *m, const int64_t *len)
{
    memset(m, 0, sizeof *m);
    sim_ask(p, m, len);
    for (;; m->now++) {
        int running = 0;
        for (int i = 0; m->now && i < m->groups * p->n; i++) {
            m->s[i].has += m->s[i].state == 1;
        }
        for (int i = 0; i < m->groups * p->n; i++) {
            int g = i / p->n;
            int64_t sum = 0;
            if (m->s[i].state != 1 || m->s[i].has < m->s[i].len) {
                continue;
            }
            m->s[i].state = 2;
            if (--m->left[g] == 0) {
                for (int k = 0; k < p->n; k++) {
                    sum += m->s[g * p->n + k].len;
                }
                m->fate[g] = keeps(p, sum) ? 1 : 2;
                m->kept += m->fate[g] == 1;
                m->wasted += m->fate[g] == 2 ? sum : 0;
                if (m->kept == p->target) {
                    return;
                }
            }
            sim_ask(p, m, len);
        }
        for (int i = 0; i < m->groups * p->n; i++) {
            running += m->s[i].state == 1;
        }
        for (int i = 0; i < m->groups * p->n && running < p->places; i++) {
            if (m->s[i].state == 0) {
                m->s[i].state = 1;
                running++;
            }
        }
    }
}

/* The filter as Python knows it, over the answers' lengths. */
static struct filter *open_filter(int keep_of)
{
    static const char text[] = "def f%d(args, samples):\n"
                               "    keep = sum(s.response_length for s in samples) %% 3 != %d\n"
                               "    return (keep, 'rest')\n";
    struct filter_opts o = {0};
    struct filter *f = NULL;
    char code[512], name[64], path[300];
    snprintf(name, sizeof name, "keep%d.py", keep_of);
    snprintf(code, sizeof code, text, keep_of, keep_of);
    fakeport_text(name, code);
    snprintf(path, sizeof path, "%s:f%d", fakeport_path(name), keep_of);
    assert_ok(filter_open(FILTER_DYNAMIC, path, &o, &f, &e), &e);
    return f;
}

/* The lengths that the fake engine will give, by letting it answer. */
static void lengths(const struct rules *p, int groups, int64_t *len)
{
    struct source src = {.p = open_rows(groups, p->n, 0)};
    struct fakeport f;
    struct rollout_cfg c;
    struct rollout *r;
    struct sample **s;
    int n;
    fakeport_open(&f, 0);
    f.spread = 16;
    c = config(&f, NULL, &src, p->n, groups);
    r = rollout_new(&c);
    assert_ok(run(r), &e);
    s = rollout_samples(r, &n);
    assert_int_equal(n, groups * p->n);
    for (int i = 0; i < n; i++) {
        len[i] = s[i]->response_len;
    }
    rollout_free(r);
    prompts_close(src.p);
    fakeport_close(&f);
}

static void check(const struct rules *p, const struct sim *m, struct rollout *r, json_t *row)
{
    struct sample **s, **left;
    int n, at = 0, groups = 0;
    s = rollout_samples(r, &n);
    assert_int_equal(n, p->target * p->n);
    for (int g = 0; g < m->groups; g++) {
        for (int i = 0; m->fate[g] == 1 && i < p->n; i++) {
            assert_int_equal(s[at]->index, g * p->n + i);
            assert_int_equal(s[at]->response_len, m->s[g * p->n + i].len);
            at++;
        }
    }
    assert_int_equal(at, n);
    assert_int_equal(json_integer_value(json_object_get(row, "rollout/waves")), m->waves);
    assert_int_equal(json_integer_value(json_object_get(row, "rollout/logical_ticks")), m->now);
    for (int g = 0; g < m->groups; g++) {
        if (m->fate[g] != 0) {
            continue;
        }
        groups++;
        if (!p->partial) {
            continue;
        }
        left = rollout_leftover(r);
        assert_non_null(left);
        for (int i = 0; i < p->n; i++) {
            const struct sim_sample *x = &m->s[g * p->n + i];
            int whole = x->has == x->len;
            assert_int_equal(left[i]->index, g * p->n + i);
            assert_int_equal(left[i]->response_len, x->has);
            assert_int_equal(left[i]->status == SAMPLE_ABORTED, !whole);
            assert_int_equal(left[i]->nsegments, x->has > 0);
            assert_int_equal(
                json_integer_value(json_object_get(left[i]->metadata, "start_rollout_id")),
                x->has ? 5 : 0);
            assert_int_equal(strlen(left[i]->response ? left[i]->response : ""), x->has);
            sample_free(left[i]);
        }
        mem_free(left);
    }
    assert_null(rollout_leftover(r));
    assert_int_equal(json_integer_value(json_object_get(row, "rollout/aborted_groups")), groups);
    if (p->partial) {
        assert_int_equal(json_integer_value(json_object_get(row, "rollout/wasted_tokens")),
                         m->wasted);
    }
}

static void as_the_simulation(void **state)
{
    static int64_t len[MOST * 8];
    static struct sim m;
    struct filter *filters[3];
    struct rng_py rng;
    int dropped_some = 0, left_some = 0;
    (void)state;
    rng_py_seed(&rng, 8);
    for (int i = 0; i < 3; i++) {
        filters[i] = open_filter(i);
    }
    for (int k = 0; k < 24; k++) {
        struct rules p = {.n = 1 + (int)rng_py_randbelow(&rng, 4)};
        p.target = 1 + (int)rng_py_randbelow(&rng, 6);
        p.wave = p.target + (int)rng_py_randbelow(&rng, 6);
        p.places = 1 + (int)rng_py_randbelow(&rng, 2 * p.wave * p.n);
        p.by_sample = (int)rng_py_randbelow(&rng, 2);
        p.partial = (int)rng_py_randbelow(&rng, 2);
        p.keep_of = (int)rng_py_randbelow(&rng, 3);
        lengths(&p, 200, len);
        simulate(&p, &m, len);
        assert_true(m.groups <= 200);
        for (int g = 0; g < m.groups; g++) {
            dropped_some += m.fate[g] == 2;
            left_some += m.fate[g] == 0;
        }
        for (int slots = 0; slots < 9; slots += 1 + slots) { /* 0, 1, 3, 7 */
            struct source src = {.p = open_rows(200, p.n, 0)};
            struct fakeport f;
            struct rollout_cfg c;
            struct rollout *r;
            json_t *row = json_object();
            fakeport_open(&f, (uint64_t)k + 1);
            f.spread = 16;
            f.slots = slots;
            c = config(&f, NULL, &src, p.n, p.target);
            c.wave = p.wave;
            c.by_sample = p.by_sample;
            c.concurrency = p.places;
            c.partial = p.partial;
            c.filter = filters[p.keep_of];
            c.id = 5;
            if (!slots) { /* an engine that tells nothing before it is done */
                f.rollout.progress = NULL;
                f.rollout.abort = fakeport_abort;
            }
            r = rollout_new(&c);
            assert_ok(run(r), &e);
            rollout_report(r, row);
            check(&p, &m, r, row);
            json_decref(row);
            rollout_free(r);
            prompts_close(src.p);
            fakeport_close(&f);
        }
    }
    assert_true(dropped_some > 20 && left_some > 20);
    for (int i = 0; i < 3; i++) {
        filter_close(filters[i]);
    }
}

/* ---- several rollouts: what is left over goes on ---- */

/* Three rollouts; all that they kept and left, as text. */
static char *three(uint64_t order, int slots, int group_rm, int through_state)
{
    struct source src = {.p = open_rows(60, 3, 1), .buffer = buffer_new(3, NULL)};
    struct hub *h = open_hub("f1");
    struct filter *filter = open_filter(1);
    struct fakeport f;
    struct buf all;
    char *text, *out;
    int mixed = 0;
    buf_init(&all, 1 << 22);
    fakeport_open(&f, order);
    f.spread = 16;
    f.slots = slots;
    f.drift = 1;
    for (int k = 0; k < 4; k++) {
        struct rollout_cfg c = config(&f, h, &src, 3, 4);
        struct rollout *r;
        struct sample **s;
        json_t *st;
        int n;
        c.wave = 7;
        c.concurrency = 9;
        c.partial = 1;
        c.filter = filter;
        c.batch.group_rm = group_rm;
        c.id = k;
        f.version = k;
        r = rollout_new(&c);
        assert_ok(run(r), &e);
        s = rollout_samples(r, &n);
        text = text_of(s, n);
        buf_printf(&all, "%s\n", text);
        free(text);
        for (int i = 0; i < n; i++) {
            mixed += s[i]->nsegments > 1;
        }
        while ((s = rollout_leftover(r))) {
            buffer_put(src.buffer, s);
        }
        rollout_free(r);
        st = buffer_state(src.buffer);
        text = json_dumps(st, JSON_COMPACT);
        buf_printf(&all, "%s\n", text);
        json_decref(st);
        if (through_state) { /* as a checkpoint does it */
            buffer_free(src.buffer);
            src.buffer = buffer_new(3, NULL);
            st = json_loads(text, 0, NULL);
            assert_ok(buffer_restore(src.buffer, st, &e), &e);
            json_decref(st);
        }
        free(text);
    }
    assert_true(mixed > 3);
    buf_printf(&all, "%s\n", src.reasons);
    assert_int_equal(buf_status(&all), 0);
    out = mem_strdup(all.data);
    buf_fini(&all);
    buffer_free(src.buffer);
    filter_close(filter);
    hub_close(h);
    prompts_close(src.p);
    fakeport_close(&f);
    return out;
}

static void goes_on(void **state)
{
    (void)state;
    for (int group_rm = 0; group_rm < 2; group_rm++) {
        char *want = three(1, 3, group_rm, 0);
        for (int k = 0; k < 6; k++) {
            char *got = three((uint64_t)k + 2, k == 5 ? 20 : k, group_rm, k % 2);
            if (strcmp(got, want) != 0) {
                size_t at = 0;
                while (got[at] == want[at]) {
                    at++;
                }
                at = at > 300 ? at - 300 : 0;
                fail_msg("group_rm %d, k %d:\n%.600s\n%.600s", group_rm, k, got + at, want + at);
            }
            mem_free(got);
        }
        mem_free(want);
    }
}

/* ---- ends that are none ---- */

static void nothing_is_kept(void **state)
{
    static const char text[] = "def none(args, samples):\n    return False\n"
                               "def bad(args, samples):\n    raise ValueError('not today')\n";
    struct filter_opts fo = {0};
    struct source src = {.p = open_rows(20, 2, 0)};
    struct fakeport f;
    (void)state;
    fakeport_text("none.py", text);
    fakeport_open(&f, 2);
    for (int k = 0; k < 2; k++) {
        struct rollout_cfg c = config(&f, NULL, &src, 2, 1);
        char path[300];
        struct rollout *r;
        snprintf(path, sizeof path, "%s:%s", fakeport_path("none.py"), k ? "bad" : "none");
        assert_ok(filter_open(FILTER_DYNAMIC, path, &fo, &c.filter, &e), &e);
        r = rollout_new(&c);
        assert_int_equal(run(r), k ? STATUS_CHILD : STATUS_INPUT);
        assert_non_null(strstr(e.msg, k ? "not today" : "no_reason"));
        assert_non_null(strstr(e.msg, "--dynamic-sampling-filter-path"));
        rollout_free(r);
        filter_close(c.filter);
    }
    prompts_close(src.p);
    fakeport_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_does_not_show),
        cmocka_unit_test(failed_stays),
        cmocka_unit_test(no_hub),
        cmocka_unit_test(as_the_simulation),
        cmocka_unit_test(goes_on),
        cmocka_unit_test(nothing_is_kept),
    };
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
