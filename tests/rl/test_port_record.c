/* The port that never asks twice: answers are those of the engine whether they come from it, from
 * the journal, or from both; nothing is seen that is not on disk; nothing recorded is asked. */
#include "fakeport.h"

#include "base/rng.h"
#include "rl/port_record.h"
#include "rl/sample.h"
#include "run/ledger.h"

static struct err e;

enum { GROUPS = 6, PER = 4, ALL = GROUPS * PER };

/* A run of the port over a ledger in folder `name`. */
struct use {
    struct fakeport f;
    struct ledger *ledger;
    struct journal counted; /* the ledger's, with commits counted */
    struct port_record *p;
    const struct rollout_port *port;
    int commits;
};

static int count_commit(void *self, struct err *err)
{
    struct use *u = self;
    struct journal *j = ledger_journal(u->ledger);
    u->commits++;
    return j->commit(j->self, err);
}

static int pass_put(void *self, enum journal_event kind, const struct journal_key *k,
                    const void *data, size_t n, struct err *err)
{
    struct journal *j = ledger_journal(((struct use *)self)->ledger);
    return j->put(j->self, kind, k, data, n, err);
}

static int pass_find(void *self, enum journal_event kind, const struct journal_key *k, void **data,
                     size_t *n, struct err *err)
{
    struct journal *j = ledger_journal(((struct use *)self)->ledger);
    return j->find(j->self, kind, k, data, n, err);
}

/* A clock that stands still unless it is moved. */
static double slow_clock;
static double slow_now(void *self)
{
    (void)self;
    return slow_clock;
}

static void use_open(struct use *u, const char *name, uint64_t order, int closed)
{
    struct ledger_opts o = {.dir = fakeport_path(name), .mode = LEDGER_WAL, .closed = closed};
    memset(u, 0, sizeof *u);
    fakeport_open(&u->f, order);
    u->f.world.now = slow_now;
    assert_ok(ledger_open(&o, &u->ledger, &e), &e);
    u->counted = (struct journal){
        .put = pass_put, .find = pass_find, .commit = count_commit, .self = u, .closed = closed};
    assert_ok(
        port_record_open(closed ? NULL : &u->f.rollout, &u->counted, &u->f.world, NULL, &u->p, &e),
        &e);
    u->port = port_record_port(u->p);
}

static void use_close(struct use *u)
{
    port_record_close(u->p);
    ledger_close(u->ledger, "done");
    fakeport_close(&u->f);
}

static struct port_group group_of(int i)
{
    static int32_t tokens[GROUPS][4];
    for (int k = 0; k < 4; k++) {
        tokens[i][k] = i * 5 + k;
    }
    return (struct port_group){.id = 100 + i,
                               .tokens = tokens[i],
                               .ntokens = 4,
                               .n = PER,
                               .max_new = 8,
                               .temperature = 1,
                               .top_p = 1,
                               .top_k = -1,
                               .seed = 7,
                               .stream = RNG_TRAIN,
                               .sample = i * PER,
                               .rollout = 2,
                               .version = 5};
}

struct seen {
    int have, n;
    int32_t tokens[FAKEPORT_LEN];
    float logps[FAKEPORT_LEN];
    enum port_finish finish;
    int64_t version;
};

/* Polls up to `most` answers into seen (ALL); the number. */
static int drain(struct use *u, struct seen *seen, int most)
{
    struct port_answer a;
    int n = 0, rc = STATUS_AGAIN;
    while (n < most && (rc = u->port->poll(u->port->self, &a, &e)) != STATUS_END) {
        struct seen *s;
        if (rc == STATUS_AGAIN) {
            slow_clock += 0.003;
            continue;
        }
        assert_ok(rc, &e);
        assert_in_range(a.group, 100, 100 + GROUPS - 1);
        assert_in_range(a.sample, 0, PER - 1);
        s = &seen[(a.group - 100) * PER + a.sample];
        assert_int_equal(s->have, 0);
        s->have = 1;
        s->n = a.ntokens;
        s->finish = a.finish;
        s->version = a.version;
        memcpy(s->tokens, a.tokens, sizeof *a.tokens * (size_t)a.ntokens);
        memcpy(s->logps, a.logps, sizeof *a.logps * (size_t)a.ntokens);
        n++;
    }
    return n;
}

static void submit_all(struct use *u, int change)
{
    for (int i = 0; i < GROUPS; i++) {
        struct port_group g = group_of(i);
        int rc;
        g.temperature += (float)(change && i == 2);
        while ((rc = u->port->submit(u->port->self, &g, &e)) == STATUS_AGAIN) {
            fail_msg("no room was asked for");
        }
        assert_ok(rc, &e);
    }
}

static void test_asks_once(void **state)
{
    struct use u;
    struct seen one[ALL] = {0}, two[ALL] = {0}, three[ALL] = {0};
    (void)state;
    use_open(&u, "once", 3, 0);
    submit_all(&u, 0);
    assert_int_equal(drain(&u, one, ALL + 1), ALL);
    assert_int_equal(port_record_stats(u.p).asked, ALL);
    assert_true(u.commits < ALL); /* several answers at a time */
    use_close(&u);

    use_open(&u, "once", 9, 0);
    submit_all(&u, 0);
    assert_int_equal(drain(&u, two, ALL + 1), ALL);
    assert_int_equal(u.f.submitted, 0);
    assert_int_equal(port_record_stats(u.p).recalled, ALL);
    assert_memory_equal(one, two, sizeof one);
    use_close(&u);

    use_open(&u, "once", 0, 1); /* and without any engine */
    submit_all(&u, 0);
    assert_int_equal(drain(&u, three, ALL + 1), ALL);
    assert_memory_equal(one, three, sizeof one);
    use_close(&u);

    use_open(&u, "once", 4, 0); /* another question is another answer */
    submit_all(&u, 1);
    memset(two, 0, sizeof two);
    assert_int_equal(drain(&u, two, ALL + 1), ALL);
    assert_int_equal(port_record_stats(u.p).asked, PER);
    use_close(&u);
}

/* Stopped after any number of answers: the next one asks for what is missing and no more. */
static void test_some_recorded(void **state)
{
    struct seen whole[ALL] = {0};
    struct use u;
    (void)state;
    use_open(&u, "some", 3, 0);
    submit_all(&u, 0);
    drain(&u, whole, ALL + 1);
    use_close(&u);
    for (int k = 0; k <= ALL; k++) {
        struct seen first[ALL] = {0}, rest[ALL] = {0};
        struct ledger_counts n;
        char name[32];
        int64_t had;
        snprintf(name, sizeof name, "some-%d", k);
        use_open(&u, name, 11 + (uint64_t)k, 0);
        submit_all(&u, 0);
        assert_int_equal(drain(&u, first, k), k);
        assert_ok(ledger_count(u.ledger, &n, &e), &e);
        assert_true(n.answers >= k); /* seen is on disk */
        use_close(&u);

        use_open(&u, name, 50 + (uint64_t)k, 0);
        assert_ok(ledger_count(u.ledger, &n, &e), &e);
        had = n.answers;
        submit_all(&u, 0);
        assert_int_equal(drain(&u, rest, ALL + 1), ALL);
        assert_int_equal(port_record_stats(u.p).asked, ALL - had);
        assert_int_equal(port_record_stats(u.p).recalled, had);
        assert_memory_equal(rest, whole, sizeof whole);
        for (int i = 0; i < ALL; i++) {
            assert_true(!first[i].have || memcmp(&first[i], &whole[i], sizeof *whole) == 0);
        }
        use_close(&u);
    }
}

/* An engine with little room: what it has none for waits or is turned away, and all of it comes. */
static void test_little_room(void **state)
{
    struct seen whole[ALL] = {0}, seen[ALL] = {0};
    struct use u;
    int sent = 0, got = 0;
    (void)state;
    use_open(&u, "room", 3, 0);
    submit_all(&u, 0);
    drain(&u, whole, ALL + 1);
    use_close(&u);
    use_open(&u, "room-2", 5, 0);
    u.f.room = PER;
    while (got < ALL) {
        while (sent < GROUPS) {
            struct port_group g = group_of(sent);
            int rc = u.port->submit(u.port->self, &g, &e);
            if (rc == STATUS_AGAIN) {
                break;
            }
            assert_ok(rc, &e);
            sent++;
        }
        assert_true(sent < GROUPS || got + PER * 2 >= ALL - PER * 2 || got > 0);
        got += drain(&u, seen, 1);
    }
    assert_true(u.f.turned_away > 0);
    assert_memory_equal(seen, whole, sizeof whole);
    use_close(&u);
}

/* Groups come and go for long: each sample is answered once, and the order of asking stays. */
static void test_many(void **state)
{
    enum { MANY = 400 };
    static uint8_t seen[MANY][PER];
    struct port_answer a;
    struct use u;
    int sent = 0, got = 0, rc;
    (void)state;

    use_open(&u, "many", 17, 0);
    while (got < MANY * PER) {
        for (int k = 0; k < 1 + sent % 5 && sent < MANY; k++, sent++) {
            struct port_group g = group_of(sent % GROUPS);
            g.id = sent;
            g.sample = sent * PER;
            assert_ok(u.port->submit(u.port->self, &g, &e), &e);
        }
        for (int k = 0; k < 3 * PER && (rc = u.port->poll(u.port->self, &a, &e)) != STATUS_END;
             k++) {
            slow_clock += 0.003;
            if (rc == STATUS_OK) {
                assert_in_range(a.group, 0, sent - 1);
                assert_int_equal(seen[a.group][a.sample]++, 0);
                got++;
            }
        }
    }
    assert_int_equal(u.port->poll(u.port->self, &a, &e), STATUS_END);
    assert_int_equal(port_record_stats(u.p).asked, MANY * PER);
    use_close(&u);
}

static void test_refused(void **state)
{
    struct use u;
    struct seen seen[ALL] = {0};
    struct port_group g;
    (void)state;
    use_open(&u, "refused", 3, 0);
    u.f.fail_submit = 2;
    g = group_of(0);
    assert_ok(u.port->submit(u.port->self, &g, &e), &e);
    g = group_of(1);
    assert_int_equal(u.port->submit(u.port->self, &g, &e), STATUS_INPUT);
    g = group_of(2);
    assert_ok(u.port->submit(u.port->self, &g, &e), &e);
    assert_int_equal(drain(&u, seen, ALL), 2 * PER);
    assert_int_equal(seen[PER].have, 0);
    use_close(&u);
}

/* Ended when a few answers are there: the next time the finished ones come at once, the others show
 * as far as they had come, and end when they are ended again. */
static void test_ended(void **state)
{
    (void)state;
    for (int closed = 0; closed < 2; closed++) {
        struct seen one[ALL] = {0}, two[ALL] = {0};
        struct use u;
        char name[32];
        int before, cut = 0;

        snprintf(name, sizeof name, "ended-%d", closed);
        use_open(&u, name, 21, 0);
        u.f.slots = 3;
        submit_all(&u, 0);
        before = drain(&u, one, 5);
        u.port->abort(u.port->self, -1);
        assert_int_equal(before + drain(&u, one, ALL + 1), ALL);
        use_close(&u);

        use_open(&u, name, 33, closed);
        submit_all(&u, 0);
        for (int i = 0; i < ALL; i++) {
            int got = u.port->progress(u.port->self, 100 + i / PER, i % PER);
            assert_int_equal(got, one[i].finish == PORT_ABORT ? one[i].n
                                  : one[i].n                  ? one[i].n - 1
                                                              : 0);
            cut += one[i].finish == PORT_ABORT;
        }
        assert_true(cut > 2 && cut < ALL - 2);
        assert_int_equal(drain(&u, two, ALL - cut), ALL - cut); /* none of those that were cut */
        for (int i = 0; i < ALL; i++) {
            assert_int_equal(two[i].have, one[i].finish != PORT_ABORT);
        }
        u.port->abort(u.port->self, -1);
        assert_int_equal(drain(&u, two, ALL + 1), cut);
        assert_int_equal(u.f.submitted, 0);
        assert_memory_equal(one, two, sizeof one);
        use_close(&u);
    }
}

/* ---- samples that a function makes ---- */

static struct sample *made;

/* The fake engine's answer as a function would hand it on, with what only a sample can tell. */
static int make_poll(void *self, struct port_answer *a, struct err *err)
{
    static const uint8_t mask[FAKEPORT_LEN] = {1, 0, 1, 1, 0};
    const int32_t prompt[] = {3, 1, 4};
    int rc = fakeport_poll(self, a, err);

    if (rc == STATUS_OK) {
        sample_free(made);
        made = sample_new();
        made->index = a->sample;
        sample_set(made, prompt, 3, a->tokens, a->logps, a->ntokens, 6, 0);
        made->mask = mem_alloc((size_t)a->ntokens + 1);
        memcpy(made->mask, mask, (size_t)a->ntokens);
        made->response = mem_strdup("made");
        made->metadata = json_pack("{s:i}", "turns", a->sample);
        made->reward = a->sample / 3.0;
        made->remove = a->sample == 1;
        a->made = made;
    }
    return rc;
}

static void drain_made(struct use *u, char *(*texts)[ALL])
{
    struct port_answer a;
    int rc;

    while ((rc = u->port->poll(u->port->self, &a, &e)) != STATUS_END) {
        json_t *j;
        assert_true(rc >= 0);
        slow_clock += 0.01;
        if (rc != STATUS_OK) {
            continue;
        }
        assert_non_null(a.made);
        assert_ptr_equal(a.tokens, a.made->tokens + a.made->prompt_len);
        assert_int_equal(a.ntokens, a.made->response_len);
        j = sample_to_json(a.made);
        json_object_set_new(j, "segments", sample_segments_json(a.made));
        json_object_set_new(j, "finish", json_integer(a.finish));
        (*texts)[(a.group - 100) * PER + a.sample] = json_dumps(j, JSON_SORT_KEYS);
        json_decref(j);
    }
}

/* They come back whole, and the function is not called for them again. */
static void test_made(void **state)
{
    char *one[ALL] = {0}, *two[ALL] = {0};
    struct use u;

    (void)state;
    for (int again = 0; again < 2; again++) {
        use_open(&u, "made", 4, again);
        u.f.rollout.poll = make_poll;
        submit_all(&u, 0);
        drain_made(&u, again ? &two : &one);
        assert_int_equal(u.f.submitted, again ? 0 : GROUPS);
        use_close(&u);
    }
    for (int i = 0; i < ALL; i++) {
        assert_non_null(strstr(one[i], "\"turns\""));
        assert_string_equal(one[i], two[i]);
        free(one[i]);
        free(two[i]);
    }
    sample_free(made);
}

/* A replay without the answers says so, unless nobody waits for them. */
static void test_replay_of_nothing(void **state)
{
    struct seen seen[ALL] = {0};
    struct port_answer a;
    struct use u;
    int rc;
    (void)state;
    use_open(&u, "nothing", 1, 0);
    use_close(&u);
    use_open(&u, "nothing", 1, 1);
    submit_all(&u, 0);
    while ((rc = u.port->poll(u.port->self, &a, &e)) == STATUS_AGAIN) {
    }
    assert_int_equal(rc, STATUS_NOTFOUND);
    assert_non_null(strstr(e.msg, "sample 0 of rollout 2"));
    u.port->abort(u.port->self, -1);
    assert_int_equal(drain(&u, seen, ALL + 1), ALL);
    for (int i = 0; i < ALL; i++) {
        assert_true(seen[i].finish == PORT_ABORT && seen[i].n == 0);
    }
    use_close(&u);
}

/* A port whose one sample a function made. */
struct maker {
    struct sample *s;
    int asked, told;
};

static int maker_submit(void *self, const struct port_group *g, struct err *err)
{
    (void)g;
    (void)err;
    ((struct maker *)self)->asked++;
    return STATUS_OK;
}

static int maker_poll(void *self, struct port_answer *a, struct err *err)
{
    struct maker *m = self;

    (void)err;
    if (m->told++) {
        return STATUS_END;
    }
    *a = (struct port_answer){.tokens = m->s->tokens + m->s->prompt_len,
                              .logps = m->s->logps,
                              .ntokens = m->s->response_len,
                              .finish = PORT_STOP,
                              .version = 4,
                              .made = m->s};
    return STATUS_OK;
}

/* What a function made is recorded whole, and not asked for again. */
static void test_made_whole(void **state)
{
    static const int32_t ids[] = {1, 2, 3, 4};
    static const float logps[] = {-0.1f, -1.5e-7f};
    struct maker m = {.s = sample_new()};
    struct fakeport f;

    (void)state;
    sample_set(m.s, ids, 2, ids + 2, logps, 2, 4, 1);
    m.s->reward = 0.75;
    m.s->mask = mem_alloc(2);
    m.s->mask[1] = 1;
    m.s->response = mem_strdup("said");
    m.s->siblings = mem_alloc(sizeof *m.s->siblings);
    m.s->siblings[0] = sample_new();
    sample_set(m.s->siblings[0], ids, 1, ids + 1, logps, 2, 4, 1);
    m.s->nsiblings = 1;
    fakeport_open(&f, 1);
    f.world.now = slow_now;
    for (int pass = 0; pass < 2; pass++) {
        struct rollout_port inner = {.submit = maker_submit, .poll = maker_poll, .self = &m};
        struct ledger_opts o = {.dir = fakeport_path("whole"), .mode = LEDGER_WAL};
        struct port_group g = group_of(0);
        struct port_record *p;
        struct port_answer a;
        struct ledger *l;
        int rc;
        g.n = 1;
        assert_ok(ledger_open(&o, &l, &e), &e);
        assert_ok(port_record_open(&inner, ledger_journal(l), &f.world, NULL, &p, &e), &e);
        assert_ok(port_record_port(p)->submit(p, &g, &e), &e);
        while ((rc = port_record_port(p)->poll(p, &a, &e)) == STATUS_AGAIN) {
            slow_clock += 0.1;
        }
        assert_ok(rc, &e);
        assert_non_null(a.made);
        assert_true(a.made != m.s && a.made->reward == 0.75 && a.group == 100);
        assert_string_equal(a.made->response, "said");
        assert_memory_equal(a.made->tokens, ids, sizeof ids);
        assert_memory_equal(a.made->logps, logps, sizeof logps);
        assert_int_equal(a.made->nsiblings, 1);
        assert_int_equal(a.made->siblings[0]->prompt_len, 1);
        assert_true(a.made->segments[0].exact && a.made->segments[0].version == 4);
        assert_int_equal(a.made->mask[0] * 2 + a.made->mask[1], 1);
        port_record_close(p);
        ledger_close(l, "done");
    }
    assert_int_equal(m.asked, 1);
    fakeport_close(&f);
    sample_free(m.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_asks_once),   cmocka_unit_test(test_some_recorded),
        cmocka_unit_test(test_little_room), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_ended),       cmocka_unit_test(test_made),
        cmocka_unit_test(test_made_whole),  cmocka_unit_test(test_replay_of_nothing),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
}
