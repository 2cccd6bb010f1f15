/* The engine on a small model: what a sample says depends on its weights, prompt, parameters and
 * key alone (contracts C1 to C3). Every answer is derived again from whole-sequence passes, token
 * by token and log-prob by log-prob, bit for bit; limits, chunks, memory and order must not show.
 */
#include "engine/jobs.h"

/* Prompts around the ends of pages, all ways of sampling, groups of several sizes. */
static void batch_usual(struct batch *b)
{
    struct job *j;

    b->n = 0;
    job_add(b, 1, 3, 70, 1);
    job_add(b, 2, 2, 30, 2)->q.ignore_eos = 1;
    j = job_add(b, 63, 4, 5, 3);
    j->q.sampling =
        (struct sampler_params){.temperature = 0.7f, .top_p = 1.0f, .min_p = 0.0f, .top_k = 20};
    j = job_add(b, 64, 1, 66, 4);
    j->q.sampling =
        (struct sampler_params){.temperature = 1.2f, .top_p = 0.9f, .min_p = 0.0f, .top_k = -1};
    j->q.ignore_eos = 1;
    j = job_add(b, 65, 3, 2, 5);
    j->q.sampling =
        (struct sampler_params){.temperature = 0.0f, .top_p = 1.0f, .min_p = 0.0f, .top_k = -1};
    j = job_add(b, 130, 5, 64, 6);
    j->q.sampling =
        (struct sampler_params){.temperature = 1.0f, .top_p = 0.95f, .min_p = 0.02f, .top_k = 50};
    j->q.nstop = 2;
    j->q.stop[0] = 11;
    j->q.stop[1] = 12;
    j->q.ignore_eos = 1;
    job_add(b, 1, 1, 1, 7)->q.key.stream = 1;
    job_add(b, 129, 1, 127, 8);
}

/* ---- tests -------------------------------------------------------------------------------------
 */

static void test_derived(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {.max_running = 64, .max_context = CONTEXT, .chunk = 512};
    int64_t prompts = 0, tokens = 0, cached = 0;

    (void)state;
    batch_usual(b);
    batch_run(b, model.w, &o, NULL);
    assert_true(oracle_batch(b) > 0);
    for (int i = 0; i < b->n; i++) {
        prompts += b->job[i].q.ntokens - 1;
        for (int k = 0; k < b->job[i].q.n; k++) {
            tokens += b->job[i].answer[k].n;
            cached += k ? 0 : b->job[i].answer[k].cached; /* from another job's prompt */
            assert_true(!k || b->job[i].answer[k].cached == b->job[i].q.ntokens - 1);
        }
    }
    /* a group's prompt is computed once */
    assert_int_equal(b->stats.prompt_rows + cached, prompts);
    assert_int_equal(b->stats.decode_rows, tokens);
    /* samples of a group differ; the greedy group's do not */
    assert_memory_not_equal(b->job[5].answer[0].logps, b->job[5].answer[1].logps, sizeof(float));
    assert_memory_equal(b->job[4].answer[0].tokens, b->job[4].answer[2].tokens, sizeof(int32_t));
    mem_free(b);
}

/* Two threads and weights that cannot be trained: the same answers. */
static void test_threads(void **state)
{
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);
    struct engine_opts o = {.max_running = 64, .max_context = CONTEXT, .chunk = 512};
    struct tinymodel two;

    (void)state;
    batch_usual(want);
    batch_usual(b);
    tinymodel_open(&two, folder, "cpu", "auto", 2, 2, 0, 0);
    batch_run(want, model.w, &o, NULL);
    batch_run(b, two.w, &o, NULL);
    assert_same_answers(want, b, "threads");
    tinymodel_close(&two);
    mem_free(b);
    mem_free(want);
}

static void test_limits(void **state)
{
    static const int running[] = {1, 3, 64}, chunks[] = {1, 7, 64, 512};
    static const int orders[3][8] = {
        {0, 1, 2, 3, 4, 5, 6, 7}, {7, 6, 5, 4, 3, 2, 1, 0}, {3, 0, 7, 5, 1, 6, 4, 2}};
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);
    struct engine_opts o = {0};

    (void)state;
    batch_usual(want);
    batch_usual(b);
    assert_int_equal(b->n, 8);
    batch_run(want, model.w, &o, NULL);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 4; k++) {
            /* memory for everything; for no more than the largest sample */
            for (int small = 0; small < 2; small++) {
                o = (struct engine_opts){.max_running = running[i],
                                         .max_context = CONTEXT,
                                         .kv_bytes = small * 4 * 16384,
                                         .chunk = chunks[k]};
                batch_run(b, model.w, &o, orders[(i + k + small) % 3]);
                assert_same_answers(want, b, "limits");
                assert_true(!small || b->stats.pages == CONTEXT / PLAN_KV_BLOCK);
            }
        }
    }
    mem_free(b);
    mem_free(want);
}

/* A prompt behind the first must not take the pages that the first needs to start. */
static void test_little_memory(void **state)
{
    static const struct {
        int ntokens, n, max_new;
    } jobs[][4] = {
        {{2, 1, 190}, {130, 1, 5}, {1, 1, 3}, {2, 2, 3}},
        {{1, 2, 250}, {60, 1, 190}, {190, 2, 60}, {1, 1, 255}},
        {{65, 3, 100}, {1, 1, 255}, {2, 1, 2}, {129, 2, 120}},
        {{64, 1, 2}, {1, 1, 200}, {2, 2, 100}, {3, 2, 100}},
        {{2, 6, 2}, {1, 1, 255}, {2, 1, 2}, {2, 1, 2}},
    };
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);

    (void)state;
    for (int i = 0; i < (int)(sizeof jobs / sizeof *jobs); i++) {
        struct engine_opts o = {.max_running = 64, .max_context = CONTEXT, .chunk = 512};
        b->n = want->n = 0;
        for (int k = 0; k < 4; k++) {
            uint64_t seed = (uint64_t)(50 + i * 4 + k);
            job_add(b, jobs[i][k].ntokens, jobs[i][k].n, jobs[i][k].max_new, seed)->q.ignore_eos =
                1;
            job_add(want, jobs[i][k].ntokens, jobs[i][k].n, jobs[i][k].max_new, seed)
                ->q.ignore_eos = 1;
        }
        batch_run(want, model.w, &o, NULL);
        for (int pages = 4; pages < 9; pages++) {
            o.kv_bytes = pages * (int64_t)device_kv_page_bytes(model.dev, 2, 1, 32);
            batch_run(b, model.w, &o, NULL);
            assert_int_equal(b->stats.pages, pages);
            assert_same_answers(want, b, "little memory");
        }
    }
    mem_free(b);
    mem_free(want);
}

/* Random batches under random limits. */
static void test_random(void **state)
{
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);
    uint64_t s = 5;

    (void)state;
    for (int round = 0; round < 12; round++) {
        struct engine_opts o = {.max_running = 64, .max_context = CONTEXT, .chunk = 512};
        int jobs = 1 + tinymodel_below(&s, 8);
        b->n = 0;
        for (int i = 0; i < jobs; i++) {
            int ntokens = 1 + tinymodel_below(&s, tinymodel_below(&s, 2) ? 8 : 180);
            int new = 1 + tinymodel_below(&s, tinymodel_below(&s, 3) ? 8 : CONTEXT - ntokens);
            struct job *j = job_add(b, ntokens, 1 + tinymodel_below(&s, MAX_N), new,
                                    (uint64_t)(1000 + round * 100 + i));
            j->q.sampling.temperature = (float)tinymodel_below(&s, 4) * 0.5f;
            j->q.sampling.top_k = tinymodel_below(&s, 3) * 10;
        }
        *want = *b;
        batch_run(want, model.w, &o, NULL);
        for (int k = 0; k < 3; k++) {
            o = (struct engine_opts){.max_running = 1 + tinymodel_below(&s, 8),
                                     .max_context = CONTEXT,
                                     .kv_bytes = (int64_t)(4 + tinymodel_below(&s, 13)) * 16384,
                                     .chunk = 1 + tinymodel_below(&s, 100)};
            batch_run(b, model.w, &o, NULL);
            assert_same_answers(want, b, "random limits");
        }
    }
    mem_free(b);
    mem_free(want);
}

/* Every parameter of the choice and every kind of log-prob, alone and among the others. */
static void batch_choices(struct batch *b)
{
    static const struct sampler_bias bias[] = {{7, 6.0f}, {8, -100.0f}, {7, 0.5f}};
    struct job *j;

    b->n = 0;
    j = job_add(b, 20, 2, 60, 1);
    j->q.sampling.repetition_penalty = 1.5f;
    j->q.top = TOP;
    j = job_add(b, 70, 2, 60, 2);
    j->q.sampling.frequency_penalty = 0.7f;
    j->q.sampling.temperature = 0.6f;
    j->q.prompt_logps = 1;
    j->q.top = 2;
    j = job_add(b, 150, 1, 60, 3);
    j->q.sampling.presence_penalty = 1.5f;
    j->q.sampling.top_p = 0.8f;
    j->q.prompt_logps = 1;
    j->q.prompt_from = 64;
    j->q.prompt_temperature = 0.5f;
    j = job_add(b, 64, 3, 80, 4);
    j->q.sampling.temperature = 0.0f;
    j->q.sampling.repetition_penalty = 1.2f;
    j->q.sampling.frequency_penalty = 0.3f;
    j->q.sampling.presence_penalty = 0.4f;
    j->q.sampling.nbias = 3;
    j->q.sampling.bias = bias;
    j->q.min_new = 70;
    j->q.nstop = 1;
    j->q.stop[0] = 7;
    j = job_add(b, 100, 2, 30, 5);
    j->q.sampling.nbias = 2;
    j->q.sampling.bias = bias;
    j->q.sampling.min_p = 0.05f;
    j->q.prompt_logps = 1;
    j->q.prompt_from = 99;
    j->q.min_new = 10;
    j = job_add(b, 90, 2, 0, 6); /* nothing but the prompt's */
    j->q.prompt_logps = 1;
    j->q.top = TOP;
    j = job_add(b, 1, 1, 5, 7);
    j->q.prompt_logps = 1;
    j->q.top = 1;
}

static void test_choices(void **state)
{
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);
    struct engine_opts o = {.max_running = 64, .max_context = CONTEXT};

    (void)state;
    batch_choices(want);
    batch_choices(b);
    batch_run(want, model.w, &o, NULL);
    oracle_batch(want);
    for (int i = 0; i < want->job[3].q.min_new; i++) { /* biased towards it, yet it has to wait */
        assert_int_not_equal(want->job[3].answer[0].tokens[i], 7);
    }
    assert_int_equal(want->job[3].answer[0].finish, ENGINE_STOP);
    assert_int_equal(want->job[5].answer[1].n, 0);
    assert_int_equal(want->job[5].answer[1].finish, ENGINE_LENGTH);
    for (int k = 0; k < 4; k++) {
        static const int running[] = {1, 2, 5, 40}, chunk[] = {1, 33, 512, 64};
        o = (struct engine_opts){.max_running = running[k],
                                 .max_context = CONTEXT,
                                 .kv_bytes = (5 + k) * 16384,
                                 .chunk = chunk[k]};
        batch_run(b, model.w, &o, NULL);
        assert_same_answers(want, b, "choices");
    }
    mem_free(b);
    mem_free(want);
}

/* A stop token ends the same answer earlier; the longer limit only goes on. */
static void test_stop(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {.max_context = CONTEXT};
    struct answer full;
    int at = 10;

    (void)state;
    b->n = 0;
    job_add(b, 9, 1, 40, 3)->q.ignore_eos = 1;
    batch_run(b, model.w, &o, NULL);
    full = b->job[0].answer[0];
    assert_int_equal(full.n, 40);
    assert_int_equal(full.finish, ENGINE_LENGTH);
    while (is_one_of(full.tokens[at], full.tokens, at)) {
        at++;
        assert_true(at < 40);
    }
    b->job[0].q.nstop = ENGINE_MAX_STOP;
    for (int i = 0; i < ENGINE_MAX_STOP; i++) {
        b->job[0].q.stop[i] = i == ENGINE_MAX_STOP - 1 ? full.tokens[at] : VOCAB + i;
    }
    batch_run(b, model.w, &o, NULL);
    assert_int_equal(b->job[0].answer[0].n, at + 1); /* the stop token is part of it */
    assert_int_equal(b->job[0].answer[0].finish, ENGINE_STOP);
    assert_memory_equal(b->job[0].answer[0].tokens, full.tokens, sizeof(int32_t) * (size_t)at + 4);
    assert_memory_equal(b->job[0].answer[0].logps, full.logps, sizeof(float) * (size_t)at + 4);
    b->job[0].q.max_new = at; /* one short of the stop token */
    batch_run(b, model.w, &o, NULL);
    assert_int_equal(b->job[0].answer[0].n, at);
    assert_int_equal(b->job[0].answer[0].finish, ENGINE_LENGTH);
    mem_free(b);
}

static void expect_refused(struct engine *g, const struct engine_group *q, const char *what)
{
    struct err e = {0};
    struct engine_stats st;
    if (engine_submit(g, q, &e) != STATUS_INPUT) {
        fail_msg("not refused: %s", what);
    }
    assert_true(e.msg[0] != 0);
    engine_get_stats(g, &st);
    assert_int_equal(st.waiting, 0);
    assert_int_equal(engine_busy(g), 0);
}

static void test_refused(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {.max_running = 4, .max_context = CONTEXT};
    struct engine *g;
    struct err e = {0};
    struct engine_group good, q;
    int left = 1;

    (void)state;
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    assert_int_equal(engine_step(g, &e), STATUS_END);
    b->n = 0;
    good = job_add(b, 5, 1, 3, 1)->q;
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        q = good;                                                                                  \
        q.field = (value);                                                                         \
        expect_refused(g, &q, #field " = " #value);                                                \
    } while (0)
    REFUSED(ntokens, 0);
    REFUSED(ntokens, -1);
    REFUSED(n, 0);
    REFUSED(n, -3);
    REFUSED(max_new, 0);
    REFUSED(max_new, CONTEXT - 4);
    REFUSED(max_new, INT_MAX);
    REFUSED(nstop, -1);
    REFUSED(nstop, ENGINE_MAX_STOP + 1);
    REFUSED(sampling.temperature, NAN);
    REFUSED(sampling.temperature, INFINITY);
    REFUSED(sampling.temperature, -1.0f);
    REFUSED(sampling.top_p, NAN);
    REFUSED(sampling.top_p, -0.5f);
    REFUSED(sampling.min_p, NAN);
    REFUSED(sampling.min_p, -0.5f);
    REFUSED(sampling.repetition_penalty, -1.0f);
    REFUSED(sampling.repetition_penalty, NAN);
    REFUSED(sampling.frequency_penalty, INFINITY);
    REFUSED(sampling.presence_penalty, NAN);
    REFUSED(sampling.nbias, -1);
    REFUSED(top, -1);
    REFUSED(top, VOCAB + 1);
    good.prompt_logps = 1;
    REFUSED(prompt_from, 6);
    REFUSED(prompt_from, -1);
    REFUSED(prompt_temperature, NAN);
    REFUSED(max_new, -1);
    good.prompt_logps = 0;
    good.sampling.nbias = 1;
    REFUSED(sampling.bias, (&(struct sampler_bias){VOCAB, 1.0f}));
    REFUSED(sampling.bias, (&(struct sampler_bias){-1, 1.0f}));
    REFUSED(sampling.bias, (&(struct sampler_bias){1, NAN}));
    good.sampling.nbias = 0;
#undef REFUSED
    b->job[0].prompt[3] = VOCAB;
    expect_refused(g, &good, "a token after the vocabulary");
    b->job[0].prompt[3] = -1;
    expect_refused(g, &good, "a negative token");
    b->job[0].prompt[3] = VOCAB - 1;
    good.max_new = CONTEXT - 5; /* the longest that fits */
    good.stop[0] = -1;
    assert_ok(engine_submit(g, &good, &e), &e);
    b->job[0].q.max_new = good.max_new;
    while (engine_busy(g)) {
        assert_ok(engine_step(g, &e), &e);
        take_answers(g, b, &left);
    }
    assert_int_equal(left, 0);
    b->job[0].q = good;
    b->job[0].q.tokens = b->job[0].prompt;
    oracle_batch(b);
    engine_close(g);
    mem_free(b);
}

/* The budget of memory is kept: what does not fit is refused, what fits is not. */
static void test_budget(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {
        .max_running = 4, .max_context = CONTEXT, .kv_bytes = 2 * 16384 + 16000};
    struct engine *g;
    struct err e = {0};
    struct engine_group q;

    (void)state;
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    engine_get_stats(g, &b->stats);
    assert_int_equal(b->stats.pages, 2);
    q = job_add(b, 100, 1, 29, 1)->q;
    expect_refused(g, &q, "more than two pages");
    engine_close(g);
    b->n = 0;
    job_add(b, 100, 3, 28, 1)->q.ignore_eos = 1;
    batch_run(b, model.w, &o, NULL);
    oracle_batch(b);
    o.kv_bytes = 0;
    o.mem_fraction = 1e-4;
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    engine_get_stats(g, &b->stats);
    assert_in_range(b->stats.pages, 1, (int)(mem_available() / 16384 / 1000));
    engine_close(g);
    mem_free(b);
}

/* A context beyond the model's positions would read past its rope table. */
static void test_long_context(void **state)
{
    struct engine_opts o = {.max_running = 4, .max_context = CONTEXT + 1};
    struct engine *g = NULL;
    struct err e = {0};

    (void)state;
    assert_int_equal(engine_open(model.w, &o, &g, &e), STATUS_INPUT);
    assert_null(g);
    o.max_context = CONTEXT;
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    engine_close(g);
    engine_close(NULL);
}

/* Closed in the middle: everything goes with it (the sanitizer build looks). */
static void test_close_running(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {.max_running = 3, .max_context = CONTEXT, .chunk = 20};
    struct engine *g;
    struct err e = {0};
    int left = 100;

    (void)state;
    batch_usual(b);
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    for (int i = 0; i < b->n; i++) {
        assert_ok(engine_submit(g, &b->job[i].q, &e), &e);
    }
    for (int i = 0; i < 25; i++) {
        assert_ok(engine_step(g, &e), &e);
        take_answers(g, b, &left);
    }
    assert_true(engine_busy(g));
    engine_close(g);
    assert_int_equal(model.w->refs, 1);
    mem_free(b);
}

/* A step allocates nothing, whatever starts or ends in it; nor does taking the answers. */
static void test_no_allocation(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {
        .max_running = 6, .max_context = CONTEXT, .kv_bytes = 7 * 16384, .chunk = 16};
    struct engine *g;
    struct err e = {0};
    int left = 1000, steps = 0;
    uint64_t count;

    (void)state;
    batch_usual(b);
    b->job[0].q.max_new = 250; /* three of them outgrow the memory together */
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    for (int i = 0; i < b->n; i++) {
        b->job[i].q.ignore_eos = 1; /* how many steps there are is not the model's choice */
        b->job[i].q.nstop = 0;
        assert_ok(engine_submit(g, &b->job[i].q, &e), &e);
    }
    count = mem_count();
    for (; engine_busy(g); steps++) {
        assert_ok(engine_step(g, &e), &e);
        take_answers(g, b, &left);
    }
    assert_int_equal(mem_count(), count);
    assert_true(steps > 100);
    engine_get_stats(g, &b->stats);
    assert_true(b->stats.preempted > 0 && b->stats.evicted > 0);
    engine_close(g);
    mem_free(b);
}

/* Answers name the version of the weights they were made with. */
static void test_version(void **state)
{
    struct batch *b = mem_alloc(sizeof *b), *want = mem_alloc(sizeof *want);
    struct engine_opts o = {.max_context = CONTEXT};
    struct err e = {0};

    (void)state;
    batch_usual(b);
    batch_usual(want);
    batch_run(want, model.w, &o, NULL);
    assert_int_equal(want->job[0].answer[0].version, 0);
    assert_ok(weights_publish(model.w, &e), &e);
    batch_run(b, model.w, &o, NULL);
    assert_int_equal(b->job[0].answer[0].version, 1);
    assert_same_answers(want, b, "the same values published again");
    weights_acquire(model.w);
    assert_int_equal(weights_publish(model.w, &e), STATUS_FAIL);
    weights_release(model.w);
    assert_int_equal(model.w->version, 1);
    mem_free(b);
    mem_free(want);
}

/* Pages of one version are never read under another: a change while samples run is an error. */
static void test_version_changed(void **state)
{
    struct batch *b = mem_alloc(sizeof *b);
    struct engine_opts o = {.max_context = CONTEXT};
    struct engine_result r;
    struct engine *g = NULL;
    struct err e = {0};

    (void)state;
    batch_usual(b);
    assert_ok(engine_open(model.w, &o, &g, &e), &e);
    assert_ok(engine_submit(g, &b->job[0].q, &e), &e);
    assert_ok(engine_step(g, &e), &e);
    assert_ok(weights_publish(model.w, &e), &e);
    assert_false(engine_take(g, &r));
    assert_int_equal(engine_step(g, &e), STATUS_NUMERIC);
    assert_non_null(strstr(e.msg, "running samples"));
    engine_close(g);
    mem_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_derived),       cmocka_unit_test(test_threads),
        cmocka_unit_test(test_limits),        cmocka_unit_test(test_little_memory),
        cmocka_unit_test(test_random),        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_choices),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_long_context),  cmocka_unit_test(test_budget),
        cmocka_unit_test(test_close_running), cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_version),       cmocka_unit_test(test_version_changed),
    };
    return cmocka_run_group_tests(tests, jobs_setup, jobs_teardown);
}
