/* The virtual clock against a simulation that counts every tick, with random lengths, places and
 * arrivals; and that the order in which lengths become known never shows. */
#include "support.h"

#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "rl/vclock.h"

enum { MOST = 400 };

struct plan {
    int n, wave, places; /* jobs; how many come at a time */
    int64_t key[MOST];
    int64_t len[MOST];
};

struct story {
    int order[MOST];
    int64_t at[MOST];
    int64_t tokens[MOST]; /* of every job when `half` had finished */
};

static void draw(struct plan *p, struct rng_py *r)
{
    int scale = 1 + (int)rng_py_randbelow(r, 40);
    p->n = 1 + (int)rng_py_randbelow(r, MOST);
    p->wave = 1 + (int)rng_py_randbelow(r, p->n);
    p->places = 1 + (int)rng_py_randbelow(r, 2 * p->n);
    for (int i = 0; i < p->n; i++) {
        p->key[i] = i;
        p->len[i] = 1 + rng_py_randbelow(r, scale);
    }
    for (int i = p->n - 1; i > 0 && rng_py_randbelow(r, 2); i--) {
        int64_t j = rng_py_randbelow(r, i + 1), t = p->key[i];
        p->key[i] = p->key[j];
        p->key[j] = t;
    }
}

/* A wave comes at first, and whenever a third of what came has finished. */
static int more(const struct plan *p, int come, int done)
{
    int n = come == 0 || done * 3 == come ? p->wave : 0;
    return come + n > p->n ? p->n - come : n;
}

/* Tick by tick: each running sample gains one token; those that have all of theirs finish. */
static void naive(const struct plan *p, struct story *s)
{
    int64_t has[MOST] = {0};
    int state[MOST] = {0}, come = 0, done = 0, running = 0; /* 0 waits, 1 runs, 2 done */
    come += more(p, come, done);
    for (int64_t now = 0; done < p->n; now++) {
        int found = 1;
        for (int i = 0; now && i < come; i++) {
            has[i] += state[i] == 1;
        }
        while (found) {
            int best = -1;
            for (int i = 0; i < come; i++) {
                if (state[i] == 1 && has[i] == p->len[i] &&
                    (best < 0 || p->key[i] < p->key[best])) {
                    best = i;
                }
            }
            found = best >= 0;
            if (found) {
                state[best] = 2;
                running--;
                s->order[done] = best;
                s->at[done++] = now;
                for (int i = 0; done == p->n / 2 && i < p->n; i++) {
                    s->tokens[i] = has[i];
                }
                come += more(p, come, done);
            }
        }
        if (running == 0 && done == come) { /* nothing would ever come: the test's own end */
            come += p->wave < p->n - come ? p->wave : p->n - come;
        }
        for (int i = 0; i < come && running < p->places; i++) {
            if (state[i] == 0) {
                state[i] = 1;
                running++;
            }
        }
    }
}

/* The clock, told lengths and progress in an order of its own. */
static void clocked(const struct plan *p, struct story *s, struct rng_py *r)
{
    struct vclock *v = vclock_new(p->places);
    int64_t told[MOST] = {0};
    int come = 0, done = 0, want = more(p, 0, 0), known[MOST] = {0};
    int64_t talk = 1 + rng_py_randbelow(r, 8);
    while (done < p->n) {
        int job, rc;
        while (want--) {
            assert_int_equal(vclock_add(v, p->key[come]), come);
            come++;
        }
        want = 0;
        /* news of any job, also of those that wait on the clock */
        for (int k = 0; k < talk; k++) {
            int i = (int)rng_py_randbelow(r, come);
            int64_t n = told[i] + rng_py_randbelow(r, 5);
            if (known[i]) {
                continue;
            }
            if (n >= p->len[i]) {
                vclock_finish(v, i, p->len[i]);
                known[i] = 1;
            } else {
                vclock_reach(v, i, n);
                told[i] = n;
            }
        }
        rc = vclock_next(v, &job);
        if (rc == STATUS_AGAIN) {
            assert_true(job < 0 || !known[job]);
            continue;
        }
        if (rc == STATUS_END) {
            assert_int_equal(done, come);
            want = p->wave < p->n - come ? p->wave : p->n - come;
            continue;
        }
        assert_true(known[job]);
        assert_true(vclock_done(v, job));
        s->order[done] = job;
        s->at[done++] = vclock_now(v);
        for (int i = 0; done == p->n / 2 && i < p->n; i++) {
            s->tokens[i] = i < come ? vclock_tokens(v, i) : 0;
        }
        want = more(p, come, done);
    }
    vclock_free(v);
}

static void as_the_simulation(void **state)
{
    struct rng_py r;
    (void)state;
    rng_py_seed(&r, 14);
    for (int k = 0; k < 300; k++) {
        struct story want = {{0}, {0}, {0}}, got = {{0}, {0}, {0}};
        struct plan p;
        draw(&p, &r);
        naive(&p, &want);
        for (int times = 0; times < 3; times++) {
            clocked(&p, &got, &r);
            assert_memory_equal(got.order, want.order, sizeof(int) * (size_t)p.n);
            assert_memory_equal(got.at, want.at, sizeof(int64_t) * (size_t)p.n);
            assert_memory_equal(got.tokens, want.tokens, sizeof(int64_t) * (size_t)p.n);
        }
    }
}

/* By hand: three samples, two places. */
static void by_hand(void **state)
{
    struct vclock *v = vclock_new(2);
    int a = vclock_add(v, 5), b = vclock_add(v, 6), c = vclock_add(v, 7), job = -1;
    (void)state;
    assert_int_equal(vclock_next(v, &job), STATUS_AGAIN);
    assert_int_equal(job, -1); /* no length is known */
    vclock_finish(v, b, 3);
    assert_int_equal(vclock_next(v, &job), STATUS_AGAIN);
    assert_int_equal(job, a);
    assert_true(vclock_reach(v, a, 2));
    assert_false(vclock_reach(v, a, 2));
    assert_int_equal(vclock_next(v, &job), STATUS_AGAIN);
    assert_int_equal(job, a); /* with three tokens it is first, by its key */
    vclock_reach(v, a, 3);
    assert_int_equal(vclock_next(v, &job), STATUS_OK);
    assert_int_equal(job, b);
    assert_int_equal(vclock_now(v), 3);
    assert_int_equal(vclock_tokens(v, a), 3);
    assert_true(vclock_known(v, a));
    assert_int_equal(vclock_tokens(v, c), 0);
    assert_int_equal(vclock_next(v, &job), STATUS_AGAIN);
    assert_int_equal(job, -1);
    vclock_finish(v, c, 1);
    assert_int_equal(vclock_next(v, &job), STATUS_AGAIN);
    assert_int_equal(job, a); /* both may end in tick 4, a first */
    vclock_finish(v, a, 4);
    assert_int_equal(vclock_next(v, &job), STATUS_OK);
    assert_int_equal(job, a);
    assert_int_equal(vclock_now(v), 4);
    assert_true(vclock_done(v, c)); /* in this tick too, though it was not told yet */
    assert_int_equal(vclock_next(v, &job), STATUS_OK);
    assert_int_equal(job, c);
    assert_int_equal(vclock_now(v), 4);
    assert_int_equal(vclock_next(v, &job), STATUS_END);
    vclock_free(v);
    vclock_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_simulation),
                                       cmocka_unit_test(by_hand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
