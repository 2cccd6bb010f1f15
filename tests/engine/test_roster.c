/* What the engine shares, takes back and hands out early must not show in any answer: the prefix
 * cache, memory that runs out, requests that come, end and are watched while others run, weights
 * that change under them. Every answer is compared bit for bit with the one that the same request
 * gets alone, or derived again from whole-sequence passes; the pages are counted after each step.
 */
#include "engine/jobs.h"

/* ---- one engine, step by step ---- */

static struct engine *open_engine(int running, int pages, int chunk)
{
    struct engine_opts o = {.max_running = running,
                            .max_context = CONTEXT,
                            .kv_bytes = pages * (int64_t)device_kv_page_bytes(model.dev, 2, 1, 32),
                            .chunk = chunk};
    struct engine *g = NULL;
    struct err e = {0};
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    return g;
}

static void submit(struct engine *g, const struct job *j)
{
    struct err e = {0};
    struct engine_group q = j->q;
    q.tokens = j->prompt;
    assert_ok(engine_submit(g, &q, &e), &e);
}

static void step(struct engine *g)
{
    struct err e = {0};
    assert_ok(engine_step(g, &e), &e);
    assert_ok(engine_check(g, &e), &e);
}

static struct engine_stats stats_of(const struct engine *g)
{
    struct engine_stats st;
    engine_get_stats(g, &st);
    return st;
}

static void drain(struct engine *g, struct batch *b)
{
    struct engine_stats st;
    int left = 1 << 20;
    for (int i = 0; engine_busy(g); i++) {
        assert_true(i < MAX_STEPS);
        step(g);
        take_answers(g, b, &left);
    }
    st = stats_of(g);
    assert_int_equal(st.pages_free + st.pages_cached, st.pages);
}

static void close_engine(struct engine *g)
{
    engine_flush(g);
    assert_int_equal(stats_of(g).pages_free, stats_of(g).pages);
    engine_close(g);
}

static void assert_same(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->finish, b->finish);
    assert_true(answer_equal(a, b, a->n, 0));
}

/* The weights become others, and a version later the same again. */
static void change_weights(void)
{
    struct err e = {0};
    uint16_t *p = model.w->final_norm->w16.data;
    for (int i = 0; i < spec.hidden; i += 3) {
        p[i] ^= 0x8000;
    }
    assert_ok(weights_publish(model.w, &e), &e);
}

/* ---- the prefix cache ---- */

/* One prompt for all samples of a group, also when they cannot all run at once. */
static void test_group(void **state)
{
    (void)state;
    for (int running = 1; running <= 6; running += 5) {
        for (int chunk = 1; chunk < 300; chunk += 63) {
            struct batch *b = mem_alloc(sizeof *b);
            struct engine *g = open_engine(running, 60, chunk);
            struct job *j = job_add(b, 200, 6, 20, 3);
            j->q.forget = chunk & 1;
            submit(g, j);
            drain(g, b);
            assert_int_equal(stats_of(g).prompt_rows, 199);
            assert_int_equal(stats_of(g).preempted, 0);
            assert_true((stats_of(g).pages_cached == 0) == j->q.forget);
            for (int k = 0; k < 6; k++) {
                assert_int_equal(j->answer[k].cached, k ? 199 : 0);
            }
            oracle_batch(b);
            close_engine(g);
            mem_free(b);
        }
    }
}

/* A conversation: each turn finds all rows of the turns before. */
static void test_turns(void **state)
{
    struct engine *g = open_engine(4, 40, 64);
    struct batch *b = mem_alloc(sizeof *b), *alone = mem_alloc(sizeof *alone);
    uint64_t s = 17;
    int known = 0;

    (void)state;
    job_add(b, 30, 1, 25, 1)->q.ignore_eos = 1;
    for (int turn = 0; turn < 4; turn++) {
        struct job *j = &b->job[0];
        struct engine *fresh = open_engine(1, 5, 512);
        memset(j->answer, 0, sizeof j->answer);
        *alone = *b;
        submit(g, j);
        drain(g, b);
        submit(fresh, &alone->job[0]);
        drain(fresh, alone);
        close_engine(fresh);
        assert_int_equal(j->answer[0].cached, known);
        assert_same(&j->answer[0], &alone->job[0].answer[0]);
        oracle_batch(b);
        /* the answer and the next question; the answer's last token has no row yet */
        memcpy(j->prompt + j->q.ntokens, j->answer[0].tokens, 4 * 25);
        known = j->q.ntokens + 24;
        j->q.ntokens += 25;
        for (int i = 0; i < 5 + turn; i++) {
            j->prompt[j->q.ntokens++] = tinymodel_below(&s, VOCAB);
        }
    }
    close_engine(g);
    mem_free(b);
    mem_free(alone);
}

/* Prompts that part anywhere: as many rows are found as tokens are the same. */
static void test_parting(void **state)
{
    struct engine *g = open_engine(4, 100, 512);
    struct batch *b = mem_alloc(sizeof *b);

    (void)state;
    for (int at = 0; at < 150; at += 7) {
        struct job *j;
        b->n = 0;
        engine_flush(g);
        job_add(b, 150, 1, 3, 5);
        submit(g, &b->job[0]);
        drain(g, b);
        assert_int_equal(b->job[0].answer[0].cached, 0);
        j = job_add(b, 150, 1, 3, 5);
        j->prompt[at] = (j->prompt[at] + 1) % VOCAB;
        submit(g, j);
        drain(g, b);
        assert_int_equal(j->answer[0].cached, at);
        oracle_batch(b);
    }
    close_engine(g);
    mem_free(b);
}

/* Requests that arrive together share whole pages in the step that computes them. */
static void test_together(void **state)
{
    struct engine *g = open_engine(8, 100, 512);
    struct batch *b = mem_alloc(sizeof *b);

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct job *j = job_add(b, 140, 1, 4, 9);
        j->prompt[130 + i] = (j->prompt[130 + i] + 1) % VOCAB;
        submit(g, j);
    }
    step(g);
    assert_int_equal(stats_of(g).running, 3);
    drain(g, b);
    assert_int_equal(stats_of(g).prompt_rows, 139 + 2 * 11);
    assert_int_equal(b->job[2].answer[0].cached, 128);
    oracle_batch(b);
    close_engine(g);
    mem_free(b);
}

/* Rows of other weights are never read, nor is the cache lost while the weights stay. */
static void test_versions(void **state)
{
    struct engine *g = open_engine(4, 40, 512);
    struct batch *b = mem_alloc(sizeof *b);
    struct answer first;

    (void)state;
    for (int round = 0; round < 3; round++) {
        for (int again = 0; again < 2; again++) {
            b->n = 0;
            job_add(b, 100, 1, 20, 5)->q.ignore_eos = 1;
            submit(g, &b->job[0]);
            drain(g, b);
            oracle_batch(b);
            assert_int_equal(b->job[0].answer[0].cached, again ? 99 : 0);
            assert_int_equal(b->job[0].answer[0].version, model.w->version);
        }
        if (round == 0) {
            first = b->job[0].answer[0];
        } else if (round == 1) {
            assert_memory_not_equal(first.logps, b->job[0].answer[0].logps, 20 * sizeof(float));
        } else {
            assert_same(&first, &b->job[0].answer[0]);
        }
        change_weights();
    }
    change_weights();
    close_engine(g);
    mem_free(b);
}

/* ---- memory that runs out ---- */

static void test_preempted(void **state)
{
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);

    (void)state;
    for (int i = 0; i < 5; i++) {
        job_add(b, 10 + 30 * i, 2, 100, (uint64_t)(20 + i))->q.ignore_eos = 1;
    }
    for (int pages = 5; pages < 14; pages += 2) {
        struct engine *g = open_engine(10, pages, 40);
        batch_clear(b);
        for (int i = 0; i < b->n; i++) {
            submit(g, &b->job[i]);
        }
        drain(g, b);
        assert_true(pages > 11 || stats_of(g).preempted > 0);
        close_engine(g);
        if (pages == 5) {
            oracle_batch(b);
            *want = *b;
        }
        assert_same_answers(want, b, "preempted");
    }
    mem_free(b);
    mem_free(want);
}

/* The oldest goes on whatever happens: it has a token in every step. */
static void test_oldest(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine *g = open_engine(6, 6, 64);
    struct engine_result r;
    int tokens = 0;

    (void)state;
    for (int i = 0; i < 6; i++) {
        job_add(b, 20, 1, 200, (uint64_t)(40 + i))->q.ignore_eos = 1;
        submit(g, &b->job[i]);
    }
    while (tokens < 199) {
        int seen = 0;
        step(g);
        for (int at = 0; engine_peek(g, &at, &r);) {
            seen += r.group == 1000;
            assert_true(r.group != 1000 || r.ntokens == tokens + 1);
        }
        assert_int_equal(seen, 1);
        tokens++;
    }
    step(g);
    assert_true(engine_take(g, &r));
    assert_int_equal(r.group, 1000);
    assert_true(stats_of(g).preempted > 0);
    engine_close(g);
    mem_free(b);
}

/* ---- requests in motion ---- */

/* Tokens as they come: each step shows one more, and they are those of the answer. */
static void test_stream(void **state)
{
    struct engine *g = open_engine(3, 9, 30);
    struct batch *b = mem_alloc(sizeof *b);
    static struct answer seen[MAX_JOBS][MAX_N];
    int left = 1 << 20;

    (void)state;
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < 6; i++) {
        submit(g, job_add(b, 5 + 25 * i, 2, 30, (uint64_t)i));
    }
    while (engine_busy(g)) {
        struct engine_result r;
        step(g);
        for (int at = 0; engine_peek(g, &at, &r);) {
            struct answer *a = &seen[r.group - 1000][r.sample];
            assert_int_equal(r.finish, ENGINE_RUNNING);
            assert_int_equal(r.ntokens, a->n + 1);
            assert_memory_equal(a->tokens, r.tokens, sizeof(int32_t) * (size_t)a->n);
            assert_memory_equal(a->logps, r.logps, sizeof(float) * (size_t)a->n);
            answer_copy(a, &r);
        }
        take_answers(g, b, &left);
    }
    for (int i = 0; i < b->n; i++) {
        for (int k = 0; k < 2; k++) {
            const struct answer *a = &b->job[i].answer[k];
            assert_int_equal(seen[i][k].n, a->n - 1); /* the last one comes with the answer */
            assert_memory_equal(seen[i][k].logps, a->logps, sizeof(float) * (size_t)(a->n - 1));
        }
    }
    oracle_batch(b);
    close_engine(g);
    mem_free(b);
}

static int take_all(struct engine *g, struct engine_result *r, struct answer *a)
{
    int n = 0;
    while (engine_take(g, r)) {
        answer_copy(a, r);
        n++;
    }
    return n;
}

static void test_abort(void **state)
{
    struct engine *g = open_engine(2, 20, 16);
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);
    struct engine_result r;
    struct answer a;

    (void)state;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 3; i++) {
        job_add(b, 40, 3, 50, (uint64_t)i)->q.ignore_eos = 1;
    }
    *want = *b;
    batch_run(want, model.w, &(struct engine_opts){0}, NULL);
    assert_int_equal(engine_abort(g, 1000), 0);
    for (int i = 0; i < 3; i++) {
        submit(g, &b->job[i]);
    }
    assert_int_equal(engine_abort(g, 1002), 3); /* has not begun */
    assert_int_equal(engine_abort(g, 1002), 0);
    for (int k = 0; k < 3; k++) {
        assert_true(engine_take(g, &r));
        assert_int_equal(r.group, 1002);
        assert_int_equal(r.sample, k);
        assert_int_equal(r.ntokens, 0);
        assert_int_equal(r.finish, ENGINE_ABORT);
    }
    assert_false(engine_take(g, &r));
    assert_int_equal(stats_of(g).waiting, 6);
    step(g); /* in the middle of the prompt */
    assert_int_equal(engine_abort(g, 1000), 3);
    assert_int_equal(take_all(g, &r, &a), 3);
    assert_int_equal(stats_of(g).waiting, 3);
    for (int i = 0; i < 20; i++) {
        step(g);
        assert_int_equal(take_all(g, &r, &a), 0);
    }
    assert_int_equal(engine_abort(g, 1001), 3); /* two run, one waits */
    for (int k = 0; k < 3; k++) {
        assert_true(engine_take(g, &r));
        assert_int_equal(r.group, 1001);
        assert_int_equal(r.finish, ENGINE_ABORT);
        assert_true(k == 2 ? r.ntokens == 0 : r.ntokens > 5);
        if (r.ntokens) {
            const struct answer *x = &want->job[1].answer[r.sample];
            assert_memory_equal(r.tokens, x->tokens, sizeof(int32_t) * (size_t)r.ntokens);
            assert_memory_equal(r.logps, x->logps, sizeof(float) * (size_t)r.ntokens);
        }
    }
    assert_false(engine_take(g, &r));
    assert_false(engine_busy(g));
    close_engine(g);
    mem_free(b);
    mem_free(want);
}

/* The taker ends a sample where it likes; the others do not notice. */
static void test_end(void **state)
{
    struct engine *g = open_engine(4, 40, 64);
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);
    int left = 1 << 20;

    (void)state;
    for (int i = 0; i < 2; i++) {
        job_add(b, 40, 2, 50, (uint64_t)i)->q.ignore_eos = 1;
    }
    *want = *b;
    batch_run(want, model.w, &(struct engine_opts){0}, NULL);
    submit(g, &b->job[0]);
    submit(g, &b->job[1]);
    while (engine_busy(g)) {
        struct engine_result r;
        step(g);
        for (int at = 0; engine_peek(g, &at, &r);) {
            if (r.group == 1001 && r.sample == 1 && r.ntokens == 20) {
                assert_int_equal(engine_end(g, 1001, 1, 17, ENGINE_STOP), 1);
                assert_int_equal(engine_end(g, 1001, 1, 17, ENGINE_STOP), 0);
            }
        }
        take_answers(g, b, &left);
    }
    assert_int_equal(b->job[1].answer[1].n, 17);
    assert_int_equal(b->job[1].answer[1].finish, ENGINE_STOP);
    want->job[1].answer[1].n = 17;
    want->job[1].answer[1].finish = ENGINE_STOP;
    assert_same_answers(want, b, "one ended");
    assert_int_equal(engine_end(g, 1001, 1, 17, ENGINE_STOP), 0);
    close_engine(g);
    mem_free(b);
    mem_free(want);
}

/* ---- weights that change ---- */

/* Runs two jobs for some steps, pauses, changes the weights, and goes on. */
static struct engine *run_changed(struct batch *b, enum engine_pause how, int steps, int *n)
{
    struct engine *g = open_engine(4, 40, 64);
    struct engine_result r;
    struct err e = {0};
    int left = 1 << 20;

    b->n = 0;
    job_add(b, 70, 2, 60, 1)->q.ignore_eos = 1;
    job_add(b, 40, 1, 60, 2)->q.ignore_eos = 1;
    for (int i = 0; i < b->n; i++) {
        submit(g, &b->job[i]);
    }
    for (int i = 0; i < steps; i++) {
        step(g);
    }
    n[0] = n[1] = n[2] = 0;
    for (int at = 0; engine_peek(g, &at, &r);) {
        n[r.group == 1001 ? 2 : r.sample] = r.ntokens;
    }
    engine_pause(g, how);
    assert_int_equal(engine_step(g, &e), STATUS_AGAIN);
    for (int at = 0; engine_peek(g, &at, &r);) {
        fail_msg("a step that did nothing gave a token");
    }
    assert_ok(engine_check(g, &e), &e);
    if (how == ENGINE_PAUSE_ABORT) {
        take_answers(g, b, &left);
    }
    change_weights();
    engine_resume(g);
    drain(g, b);
    return g;
}

static const struct answer *changed_answer(const struct batch *b, int k)
{
    return k == 2 ? &b->job[1].answer[0] : &b->job[0].answer[k];
}

static void check_marks(const struct answer *a, int n, int mixed)
{
    for (int i = 0; i < a->n; i++) {
        assert_int_equal(a->versions[i], i < n ? model.w->version - 1 : model.w->version);
        assert_int_equal(a->mixed[i], mixed && i >= n);
    }
    assert_int_equal(a->version, model.w->version);
}

/* Retracted: from the change on, the answers are those of the new weights on all tokens. */
static void test_retract(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    (void)state;
    for (int steps = 3; steps < 40; steps += 9) {
        int n[3];
        struct engine *g = run_changed(b, ENGINE_PAUSE_RETRACT, steps, n);
        struct oracle o;
        oracle_open(&o);
        for (int k = 0; k < 3; k++) {
            const struct answer *a = changed_answer(b, k);
            assert_true(n[k] > 0);
            check_marks(a, n[k], 0);
            oracle_span(&o, &b->job[k == 2], k % 2, n[k], a->n);
        }
        close_engine(g);
        change_weights(); /* as they were */
        for (int k = 0; k < 3; k++) {
            oracle_span(&o, &b->job[k == 2], k % 2, 0, n[k]);
        }
        oracle_close(&o);
    }
    mem_free(b);
}

/* In place: the rows that were there stay; each further token is what the new weights make of
 * them. Derived again row by row, half of the rows under the old weights. */
static void oracle_in_place(struct oracle *o, const struct job *j, int sample, int n)
{
    const struct answer *a = &j->answer[sample];
    struct device *d = model.dev;
    struct row_seq seq = {0, 0, 0, o->pages, 0};
    int32_t tok[CONTEXT], pos[CONTEXT], zero = 0;
    int have = j->q.ntokens + n - 1;
    struct rows rows = {have, 1, &seq, pos};
    struct logit_spec spec = {.temperature = j->q.sampling.temperature};

    for (int i = 0; i < j->q.ntokens + a->n - 1; i++) {
        tok[i] = i < j->q.ntokens ? j->prompt[i] : a->tokens[i - j->q.ntokens];
        pos[i] = i;
    }
    change_weights(); /* the old ones */
    seq.nrows = have;
    forward_run(o->f, &rows, tok, &o->kv);
    change_weights();
    for (int i = n; i < a->n; i++) {
        struct tensor x = tensor_rows(&o->logits, 0, 1), p = tensor_rows(&o->probs, 0, 1);
        double u =
            rng_uniform(j->q.key.seed, 0, j->q.key.sample + (uint64_t)sample, 0, (uint32_t)i);
        float logp, max;
        seq = (struct row_seq){0, 1, have, o->pages, 0};
        rows = (struct rows){1, 1, &seq, pos + have};
        forward_run(o->f, &rows, tok + have, &o->kv);
        forward_logits(o->f, &zero, 1, &o->logits);
        d->ops->logp(d, &x, &spec, a->tokens + i, &model.w->vocab_leaves, &logp, &max, NULL, NULL);
        d->ops->exps(d, &x, &max, &p);
        assert_int_equal(a->tokens[i], sampler_pick(o->s, &j->q.sampling, device_host_row(&x, 0),
                                                    device_host_row(&p, 0), VOCAB, max, u));
        assert_memory_equal(&logp, a->logps + i, sizeof logp);
        have++;
    }
}

static void test_in_place(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    (void)state;
    for (int steps = 5; steps < 40; steps += 17) {
        int n[3];
        struct engine *g = run_changed(b, ENGINE_PAUSE_IN_PLACE, steps, n);
        struct oracle o;
        oracle_open(&o);
        for (int k = 0; k < 3; k++) {
            check_marks(changed_answer(b, k), n[k], 1);
        }
        for (int k = 0; k < 3; k++) {
            oracle_in_place(&o, &b->job[k == 2], k % 2, n[k]);
        }
        close_engine(g);
        change_weights();
        oracle_close(&o);
    }
    mem_free(b);
}

/* Mixed rows stay with their sample: whoever comes later finds none of them. */
static void test_in_place_cache(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    int n[3];
    struct engine *g = run_changed(b, ENGINE_PAUSE_IN_PLACE, 10, n);

    (void)state;
    batch_clear(b);
    b->job[0].q.n = 1;
    submit(g, &b->job[0]);
    drain(g, b);
    assert_int_equal(b->job[0].answer[0].cached, 0);
    b->n = 1;
    oracle_batch(b);
    close_engine(g);
    change_weights();
    mem_free(b);
}

/* Taken back after a change in place, a sample computes its rows again: from then on its tokens are
 * those of the new weights and say so. */
static void test_in_place_again(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine *g = open_engine(4, 40, 64);
    struct oracle o;
    const struct answer *a = &b->job[0].answer[0];

    (void)state;
    job_add(b, 40, 1, 60, 3)->q.ignore_eos = 1;
    submit(g, &b->job[0]);
    for (int i = 0; i < 30; i++) {
        if (i == 10) {
            engine_pause(g, ENGINE_PAUSE_IN_PLACE);
            change_weights();
        } else if (i == 20) {
            engine_pause(g, ENGINE_PAUSE_RETRACT);
        }
        engine_resume(g);
        step(g);
    }
    drain(g, b);
    for (int i = 0; i < 60; i++) {
        assert_int_equal(a->versions[i], model.w->version - (i < 10));
        assert_int_equal(a->mixed[i], i >= 10 && i < 20);
    }
    oracle_open(&o);
    oracle_span(&o, &b->job[0], 0, 20, 60);
    oracle_close(&o);
    close_engine(g);
    change_weights();
    mem_free(b);
}

/* A prompt's log-probs are of one version, although the weights changed in its middle. */
static void test_scores_changed(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine *g = open_engine(4, 40, 30);
    struct job *j = job_add(b, 100, 2, 5, 3);

    (void)state;
    j->q.prompt_logps = 1;
    j->q.top = TOP;
    submit(g, j);
    step(g);
    step(g);
    engine_pause(g, ENGINE_PAUSE_RETRACT);
    change_weights();
    engine_resume(g);
    drain(g, b);
    oracle_batch(b);
    close_engine(g);
    change_weights();
    mem_free(b);
}

static void test_pause_abort(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    int n[3];
    struct engine *g = run_changed(b, ENGINE_PAUSE_ABORT, 10, n);

    (void)state;
    for (int k = 0; k < 3; k++) {
        assert_int_equal(changed_answer(b, k)->n, n[k]);
        assert_int_equal(changed_answer(b, k)->finish, ENGINE_ABORT);
    }
    close_engine(g);
    change_weights();
    mem_free(b);
}

/* ---- everything at once ---- */

enum { FLOW = 100 };

struct flow {
    struct job job[FLOW];
    struct answer want[FLOW][2];
    int seen[FLOW][2], submitted, left, aborted[FLOW], ended[FLOW][2];
};

/* Prompts that share beginnings, parameters of all kinds; each is answered alone first. */
static void flow_make(struct flow *f, uint64_t *s)
{
    static struct batch one;
    static const struct sampler_bias bias[] = {{3, 2.5f}, {60, -4.0f}, {61, 100.0f}};
    int32_t base[4][CONTEXT];
    struct engine *g = open_engine(1, 5, 512);

    for (int i = 0; i < 4 * CONTEXT; i++) {
        base[i / CONTEXT][i % CONTEXT] = tinymodel_below(s, VOCAB);
    }
    for (int i = 0; i < FLOW; i++) {
        int n = 1 + tinymodel_below(s, 180), same = tinymodel_below(s, n + 1);
        int longest = tinymodel_below(s, 2) ? 30 : CONTEXT - n;
        struct job *j;
        memset(&one, 0, sizeof one);
        j = job_add(&one, n, 1 + tinymodel_below(s, 2), 1 + tinymodel_below(s, longest),
                    (uint64_t)i);
        j->q.ignore_eos = tinymodel_below(s, 2);
        memcpy(j->prompt, base[tinymodel_below(s, 4)], sizeof(int32_t) * (size_t)same);
        j->q.sampling.temperature = (float)tinymodel_below(s, 3) * 0.7f;
        j->q.sampling.top_k = tinymodel_below(s, 3) * 10;
        j->q.forget = tinymodel_below(s, 2);
        if (tinymodel_below(s, 3) == 0) {
            j->q.sampling.repetition_penalty = 1.3f;
            j->q.sampling.frequency_penalty = 0.2f;
            j->q.sampling.presence_penalty = -0.3f;
            j->q.sampling.nbias = tinymodel_below(s, 3);
            j->q.sampling.bias = bias;
            j->q.min_new = tinymodel_below(s, 5);
        }
        if (tinymodel_below(s, 3) == 0) {
            j->q.prompt_logps = 1;
            j->q.prompt_from = tinymodel_below(s, n + 1);
            j->q.top = tinymodel_below(s, TOP + 1);
        }
        f->job[i] = *j;
        f->job[i].q.id = i;
        engine_flush(g);
        submit(g, j);
        drain(g, &one);
        for (int k = 0; k < j->q.n; k++) {
            f->want[i][k] = j->answer[k];
        }
    }
    close_engine(g);
}

static void flow_answer(struct flow *f, const struct engine_result *r)
{
    static struct answer a;
    const struct answer *x = &f->want[r->group][r->sample];
    answer_copy(&a, r);
    assert_true(a.n <= x->n);
    a.nprompt = a.n ? a.nprompt : x->nprompt; /* aborted before or in the prompt */
    if (a.n) {
        assert_true(answer_equal(&a, x, a.n, r->top));
    }
    if (r->finish == ENGINE_RUNNING) {
        return;
    }
    if (!f->aborted[r->group] && !f->ended[r->group][r->sample]) {
        assert_int_equal(r->finish, x->finish);
        assert_int_equal(r->ntokens, x->n);
    }
    assert_int_equal(f->seen[r->group][r->sample]++, 0); /* once */
    f->left--;
}

/* What callers do between two steps. */
static void flow_event(struct flow *f, struct engine *g, uint64_t *s)
{
    struct engine_result r;
    int what = tinymodel_below(s, 150), i = tinymodel_below(s, FLOW);

    if (f->submitted < FLOW && tinymodel_below(s, 2)) {
        struct job *j = &f->job[f->submitted++];
        submit(g, j);
        f->left += j->q.n;
    }
    if (what == 0 && i < f->submitted) {
        f->aborted[i] |= engine_abort(g, i) > 0;
    } else if (what == 1) {
        for (int at = 0; engine_peek(g, &at, &r);) {
            if (!tinymodel_below(s, 4)) {
                f->ended[r.group][r.sample] = 1;
                assert_int_equal(engine_end(g, r.group, r.sample, r.ntokens, ENGINE_STOP), 1);
            }
        }
    } else if (what == 2) {
        engine_pause(g, tinymodel_below(s, 2) ? ENGINE_PAUSE_RETRACT : ENGINE_PAUSE_IN_PLACE);
        engine_resume(g);
    } else if (what == 3) {
        engine_flush(g);
    }
}

static void test_flow(void **state)
{
    struct flow *f = mem_alloc(sizeof *f);
    uint64_t s = 77;
    int64_t preempted = 0, evicted = 0, cached = 0;

    (void)state;
    flow_make(f, &s);
    for (int round = 0; round < 8; round++) {
        struct engine *g = open_engine(1 + 2 * round, 5 + tinymodel_below(&s, 4 + 2 * round),
                                       1 + tinymodel_below(&s, 120));
        struct engine_stats st;
        struct engine_result r;
        struct err e = {0};
        memset(f->seen, 0, sizeof f->seen);
        memset(f->aborted, 0, sizeof f->aborted);
        memset(f->ended, 0, sizeof f->ended);
        f->submitted = f->left = 0;
        while (f->submitted < FLOW || engine_busy(g)) {
            int rc;
            flow_event(f, g, &s);
            rc = engine_step(g, &e);
            assert_true(rc == STATUS_OK || rc == STATUS_END);
            assert_ok(engine_check(g, &e), &e);
            for (int at = 0; engine_peek(g, &at, &r);) {
                flow_answer(f, &r);
            }
            while (engine_take(g, &r)) {
                flow_answer(f, &r);
            }
        }
        assert_int_equal(f->left, 0);
        st = stats_of(g);
        assert_int_equal(st.pages_free + st.pages_cached, st.pages);
        preempted += st.preempted;
        evicted += st.evicted;
        cached += st.cached_tokens;
        close_engine(g);
    }
    assert_true(preempted > 5 && evicted > 100 && cached > 1000);
    mem_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_parting),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_preempted),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_end),
        cmocka_unit_test(test_retract),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_in_place_cache),
        cmocka_unit_test(test_pause_abort),
        cmocka_unit_test(test_oldest),
        cmocka_unit_test(test_in_place_again),
        cmocka_unit_test(test_scores_changed),
        cmocka_unit_test(test_flow),
    };
    return cmocka_run_group_tests(tests, jobs_setup, jobs_teardown);
}
