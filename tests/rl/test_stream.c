/* Sampling that never stops, with a fake engine: bounds of what is in flight, waiting and stale;
 * and that a run which follows the events of another has its samples, at every speed and from every
 * checkpoint. */
#include "fakeport.h"

#include "base/rng.h"
#include "reward/hub.h"
#include "rl/filter.h"
#include "rl/prompts.h"
#include "rl/stream.h"

static struct err e;

enum { GROUP = 3, WANT = 4, MOST = 100000 };

struct line {
    struct fakeport f;
    struct prompts *p;
    struct hub *hub;
    struct stream *s;
    int64_t events[MOST];
    int64_t nevents; /* written so far */
    int64_t known;   /* of another run: these are followed */
    int64_t rollout;
    int asked, dropped, most_flight, most_queue;
    int64_t most_stale, stale;
    int ahead;             /* 1: the next rollout is wanted while one is trained */
    struct buf said, told; /* all that rollouts took; what was reported of them */
};

static int more(void *arg, struct stream *s, struct err *err)
{
    struct line *l = arg;
    struct prompts_group g;
    struct batch_item it;
    l->asked++;
    assert_ok(prompts_next(l->p, 1, &g, &e), &e);
    it = (struct batch_item){g.row, g.group_index, g.index};
    return stream_add(s, &it, err);
}

static int dropped(void *arg, const struct sample *first, const char *reason, struct err *err)
{
    (void)first;
    (void)err;
    assert_non_null(reason);
    ((struct line *)arg)->dropped++;
    return STATUS_OK;
}

static int find(void *arg, int64_t number, int64_t *event, struct err *err)
{
    struct line *l = arg;
    (void)err;
    if (number >= l->known) {
        return STATUS_NOTFOUND;
    }
    *event = l->events[number];
    return STATUS_OK;
}

static int put(void *arg, int64_t number, int64_t event, struct err *err)
{
    struct line *l = arg;
    (void)err;
    assert_true(number < MOST && number == l->nevents);
    l->events[number] = event;
    l->nevents++;
    return STATUS_OK;
}

static struct stream *open_stream(struct line *l, int by_sample, int64_t max_stale, int retry,
                                  struct filter *filter)
{
    struct stream_cfg c;
    memset(&c, 0, sizeof c);
    c.batch.port = &l->f.rollout;
    c.batch.hub = l->hub;
    c.batch.enc = &l->f.enc;
    c.batch.n = GROUP;
    c.batch.proto.max_new = 16;
    c.batch.proto.seed = 42;
    c.batch.proto.stream = RNG_TRAIN;
    c.flight = 5;
    c.capacity = 6;
    c.by_sample = by_sample;
    c.max_staleness = max_stale;
    c.retry = retry;
    c.filter = filter;
    c.more = more;
    c.dropped = dropped;
    c.find = find;
    c.put = put;
    c.rollout = &l->rollout;
    c.arg = l;
    return stream_new(&c);
}

static void line_open(struct line *l, uint64_t order, int slots)
{
    struct prompts_opts o = {.path = fakeport_path("rows.jsonl"),
                             .input_key = "q",
                             .label_key = "label",
                             .group_size = GROUP};
    struct hub_opts h = {.rm_type = "f1"};
    struct buf b;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < 40; i++) {
        buf_printf(&b, "{\"q\": \"row %d\", \"label\": %s}\n", i,
                   i % 7 == 3 ? "null" : "\"a b c\"");
    }
    fakeport_text("rows.jsonl", b.data);
    buf_fini(&b);
    memset(l, 0, sizeof *l);
    fakeport_open(&l->f, order);
    l->f.slots = slots;
    l->f.spread = 16;
    l->f.drift = 1;
    l->f.weights = &l->f.published;
    l->f.exact = 0;
    buf_init(&l->said, 1 << 24);
    buf_init(&l->told, 1 << 24);
    assert_ok(prompts_open(&l->p, &o, &e), &e);
    assert_ok(hub_open(&h, &l->hub, &e), &e);
}

static void line_close(struct line *l)
{
    stream_free(l->s);
    prompts_close(l->p);
    hub_close(l->hub);
    buf_fini(&l->said);
    buf_fini(&l->told);
    fakeport_close(&l->f);
}

/* The wanted groups, and what is told of them. */
static void take(struct line *l, int k)
{
    json_t *row = json_object();
    struct sample **s;
    char *text;
    int n;

    s = stream_take(l->s, &n);
    assert_int_equal(n, WANT * GROUP);
    for (int i = 0; i < n; i++) {
        json_t *j = sample_to_json(s[i]);
        int64_t behind = l->f.published - s[i]->segments[0].version;
        text = json_dumps(j, JSON_COMPACT);
        assert_true(i == 0 || s[i]->index > s[i - 1]->index);
        l->most_stale = behind > l->most_stale ? behind : l->most_stale;
        buf_printf(&l->said, "%d %s\n", k, text);
        free(text);
        json_decref(j);
    }
    for (int i = 0; i < n; i++) {
        sample_free(s[i]);
    }
    mem_free(s);
    stream_report(l->s, row);
    l->stale +=
        json_integer_value(json_object_get(row, "rollout/fully_async/stale_groups_filtered"));
    text = json_dumps(row, JSON_COMPACT);
    buf_printf(&l->told, "%d %s\n", k, text);
    free(text);
    json_decref(row);
}

/* A tick, as the loop makes it: what is wanted is taken as soon as it is there. */
static void tick(struct line *l, int k, int *have)
{
    int rc = stream_tick(l->s, &e);

    assert_true(rc >= 0);
    l->most_flight = l->f.nq > l->most_flight ? l->f.nq : l->most_flight;
    if (!*have && rc == STATUS_OK) {
        take(l, k);
        *have = 1;
    }
}

/* Rollouts from..to-1: each is "trained" for some ticks while the stream goes on and the next may
 * be taken, and then the engines get new weights. */
static void go(struct line *l, int from, int to, uint64_t pace)
{
    int have = 0, wanted = 0, rc;

    for (int k = from; k < to; k++) {
        if (!wanted) {
            stream_want(l->s, WANT);
        }
        for (int guard = 0; !have; guard++) {
            assert_true(guard < 100000);
            tick(l, k, &have);
        }
        wanted = l->ahead && k + 1 < to;
        have = !wanted;
        if (wanted) {
            stream_want(l->s, WANT);
        }
        pace = fakeport_mix(pace);
        for (int i = 0; i < (int)(pace % 60); i++) {
            tick(l, k + 1, &have);
        }
        for (int guard = 0; (rc = stream_trained(l->s, k, &e)) == STATUS_AGAIN; guard++) {
            assert_true(guard < 100000);
            tick(l, k + 1, &have);
        }
        assert_ok(rc, &e);
        have = have && wanted;
        l->f.published = k + 1;
        stream_version(l->s, k + 1);
    }
}

static int queued(struct line *l)
{
    json_t *row = json_object();
    int n;
    stream_report(l->s, row);
    n = (int)json_integer_value(json_object_get(row, "rollout/fully_async/queue_size"));
    json_decref(row);
    return n;
}

/* Never more in flight, waiting or stale than was said. */
static void bounds(void **state)
{
    (void)state;
    for (int k = 0; k < 8; k++) {
        struct line l;
        int retry = k % 2, by_sample = k / 2 % 2;
        line_open(&l, (uint64_t)k + 1, 2 + 3 * k);
        l.s = open_stream(&l, by_sample, k < 4 ? 1 : -1, retry, NULL);
        stream_version(l.s, 0);
        go(&l, 0, 25, (uint64_t)k * 77 + 5);
        assert_true(l.most_flight <= 5 * GROUP);
        assert_true(k >= 4 || l.most_stale <= 1);
        assert_true(l.dropped > 0);
        assert_true(l.nevents > 25 * (1 + WANT));
        /* finished groups that wait: the buffer, and what was in flight when it became full; where
         * samples make room, that may be one sample of each group */
        for (int i = 0; i < 3000; i++) {
            assert_true(stream_tick(l.s, &e) >= 0);
        }
        assert_true(queued(&l) <= 6 + (by_sample ? 5 * GROUP : 5));
        assert_true(stream_idle(l.s));
        line_close(&l);
    }
}

/* A group that is too old is sampled again under the weights of now, or gone. */
static void too_old(void **state)
{
    (void)state;
    for (int retry = 0; retry < 2; retry++) {
        struct line l;
        line_open(&l, 5, 40);
        l.s = open_stream(&l, 0, 0, retry, NULL);
        stream_version(l.s, 0);
        go(&l, 0, 12, 3);
        assert_int_equal(l.most_stale, 0);
        assert_true(l.stale > 0);
        /* with retry no prompt is lost but those without a label */
        for (int i = 0; retry && i < 20; i++) {
            char key[32];
            snprintf(key, sizeof key, "\"prompt\":\"row %d\"", i);
            assert_int_equal(strstr(l.said.data, key) != NULL, i % 7 != 3);
        }
        line_close(&l);
    }
}

/* Another engine, faster or slower, that follows what is written. */
static void follows(void **state)
{
    static struct line a, b;
    (void)state;
    for (int k = 0; k < 6; k++) {
        line_open(&a, 2, 3);
        a.ahead = k < 4;
        a.s = open_stream(&a, k % 2, 1, k / 2 % 2, NULL);
        stream_version(a.s, 0);
        go(&a, 0, 15, 9);
        line_open(&b, (uint64_t)k + 30, 1 + 7 * k);
        memcpy(b.events, a.events, sizeof a.events);
        b.known = b.nevents = a.nevents;
        b.ahead = a.ahead;
        b.s = open_stream(&b, k % 2, 1, k / 2 % 2, NULL);
        stream_version(b.s, 0);
        go(&b, 0, 15, (uint64_t)k * 5);
        assert_string_equal(b.said.data, a.said.data);
        assert_string_equal(b.told.data, a.told.data);
        assert_int_equal(b.asked, a.asked);
        assert_int_equal(b.dropped, a.dropped);
        line_close(&a);
        line_close(&b);
    }
}

/* Killed some time after a checkpoint: what was written is followed from there, and what comes
 * after it is new. */
static void goes_on(void **state)
{
    static struct line a, b;
    (void)state;
    for (int k = 1; k < 8; k++) {
        json_t *saved, *cursor, *back;
        char *text;
        size_t before;
        line_open(&a, (uint64_t)k, 4);
        a.s = open_stream(&a, k % 2, -1, 1, NULL);
        stream_version(a.s, 0);
        go(&a, 0, k, 1);
        saved = stream_state(a.s);
        cursor = prompts_state(a.p);
        before = a.said.len;
        go(&a, k, k + 6, 4);

        text = json_dumps(saved, 0);
        back = json_loads(text, 0, NULL);
        line_open(&b, (uint64_t)k + 50, 9);
        memcpy(b.events, a.events, sizeof a.events);
        b.known = b.nevents = a.nevents;
        b.f.published = k;
        assert_ok(prompts_restore(b.p, cursor, &e), &e);
        b.s = open_stream(&b, k % 2, -1, 1, NULL);
        stream_version(b.s, k);
        assert_ok(stream_restore(b.s, back, &e), &e);
        go(&b, k, k + 6, 8);
        /* samples that were in flight at the checkpoint are asked again under newer weights, so
         * their tokens may differ; a ledger of answers would give them. All others are the same. */
        {
            char *x = a.said.data + before, *y = b.said.data;
            int same = 0, lines = 0;
            while (*x && *y) {
                size_t m = strcspn(x, "\n"), n = strcspn(y, "\n");
                const char *at = strstr(x, "\"index\":"), *bt = strstr(y, "\"index\":");
                assert_int_equal(atoll(at + 8), atoll(bt + 8));
                same += m == n && memcmp(x, y, n) == 0;
                lines++;
                x += m + 1;
                y += n + 1;
            }
            assert_true(same >= lines - 5 * GROUP);
        }
        go(&b, k + 6, k + 9, 8);
        assert_true(b.nevents > a.nevents);
        free(text);
        json_decref(saved);
        json_decref(cursor);
        json_decref(back);
        line_close(&a);
        line_close(&b);
    }
}

/* Held until nothing is in flight, and let go again, as around an evaluation: who follows waits
 * where the other did, though what comes next is known. */
static void held(void **state)
{
    static struct line l[2];
    (void)state;
    for (int k = 0; k < 2; k++) {
        line_open(&l[k], (uint64_t)k * 9 + 1, 3 + 5 * k);
        memcpy(l[k].events, l[0].events, sizeof l[0].events);
        l[k].known = l[k].nevents = k ? l[0].nevents : 0;
        l[k].s = open_stream(&l[k], 1, -1, 0, NULL);
        stream_version(l[k].s, 0);
        for (int r = 0; r < 6; r++) {
            go(&l[k], r, r + 1, (uint64_t)(r + k));
            stream_hold(l[k].s, 1);
            for (int guard = 0; !stream_idle(l[k].s); guard++) {
                assert_true(guard < 100000);
                assert_ok(stream_tick(l[k].s, &e), &e);
            }
            buf_printf(&l[k].told, "%d held\n", l[k].asked);
            stream_hold(l[k].s, 0);
        }
    }
    assert_string_equal(l[1].said.data, l[0].said.data);
    assert_string_equal(l[1].told.data, l[0].told.data);
    line_close(&l[0]);
    line_close(&l[1]);
}

/* An event that cannot be is told, not waited for. */
static void wrong_events(void **state)
{
    static struct line l;
    (void)state;
    line_open(&l, 1, 3);
    l.events[0] = 4 * 999;
    l.known = 1;
    l.s = open_stream(&l, 0, -1, 0, NULL);
    stream_want(l.s, WANT);
    assert_int_equal(stream_tick(l.s, &e), STATUS_FORMAT);
    assert_non_null(strstr(e.msg, "event 0 speaks of sample 999"));
    line_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bounds),  cmocka_unit_test(too_old),
                                       cmocka_unit_test(follows), cmocka_unit_test(goes_on),
                                       cmocka_unit_test(held),    cmocka_unit_test(wrong_events)};
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
