/* The parts of the router that need no network: prompts' hashes, what is remembered of them, the
 * choice of a worker, and a worker's health and circuit breaker. */
#include "support.h"

#include "base/mem.h"
#include "serve/router_policy.h"
#include "serve/router_worker.h"

/* ---- keys ---- */

static int common(const char *a, const char *b)
{
    struct router_key x = {0}, y = {0};
    int n = 0;
    router_key_read(&x, a, strlen(a));
    router_key_read(&y, b, strlen(b));
    while (n < x.n && n < y.n && x.hash[n] == y.hash[n]) {
        n++;
    }
    for (int i = n; i < x.n && i < y.n; i++) {
        assert_true(x.hash[i] != y.hash[i]); /* once apart, never together again */
    }
    router_key_fini(&x);
    router_key_fini(&y);
    return n;
}

static int blocks(const char *body)
{
    struct router_key k = {0};
    int n;
    router_key_read(&k, body, strlen(body));
    n = k.n;
    assert_true(n == 0 || (k.len > (size_t)(n - 1) * ROUTER_KEY_BLOCK &&
                           k.len <= (size_t)n * ROUTER_KEY_BLOCK));
    assert_int_equal(router_key_bytes(&k, n), k.len);
    router_key_fini(&k);
    return n;
}

/* `{"field": "xxx...`tail"}` with n letters. */
static char *body_of(const char *before, size_t n, const char *tail)
{
    size_t len = strlen(before) + n + strlen(tail) + 1;
    char *s = mem_alloc(len);
    strcpy(s, before);
    for (size_t i = 0; i < n; i++) {
        s[strlen(before) + i] = (char)('a' + i * i % 23);
    }
    strcat(s, tail);
    return s;
}

static void keys_of_prompts(void **state)
{
    char *a = body_of("{\"text\": \"", 1000, " one\"}");
    char *b = body_of("{\"sampling_params\": {\"a\": [1, {\"text\": 3}]}, \"text\": \"", 1000,
                      " two, and more\", \"stream\": true}");
    char *c = body_of("{\"text\": \"x", 1000, " one\"}");
    (void)state;
    assert_int_equal(common(a, a), blocks(a));
    assert_int_equal(blocks(a), 8);
    assert_int_equal(common(a, b), 7); /* 1001 bytes with the quote: seven whole blocks */
    assert_int_equal(common(a, c), 0);
    mem_free(a);
    mem_free(b);
    mem_free(c);
    /* White space outside of texts does not count, inside it does. */
    assert_int_equal(common("{\"input_ids\": [1, 2, 3]}", "{ \"input_ids\" :[1,2,3] }"), 1);
    assert_int_equal(common("{\"text\": \"a b\"}", "{\"text\": \"ab\"}"), 0);
    /* A quote that is escaped does not end a text. */
    assert_int_equal(common("{\"text\": \"a\\\"\", \"n\": 1}", "{\"text\": \"a\\\"\", \"n\": 2}"),
                     1);
    assert_int_equal(common("{\"text\": \"a\\\" b\"}", "{\"text\": \"a\\\"b\"}"), 0);
    /* A text and messages of the same bytes are not the same prompt; nor with other tools. */
    assert_int_equal(common("{\"prompt\": \"a\"}", "{\"text\": \"a\"}"), 0);
    assert_int_equal(common("{\"tools\": [1], \"messages\": [2]}", "{\"messages\": [2]}"), 0);
    assert_int_equal(
        common("{\"tools\": [1], \"messages\": [2]}", "{\"messages\": [2],\"tools\": [1]}"), 1);
    /* Null is as good as absent. */
    assert_int_equal(common("{\"text\": null, \"input_ids\": [5]}", "{\"input_ids\": [5]}"), 1);
}

static void keys_of_conversations(void **state)
{
    struct router_key x = {0}, y = {0};
    char one[4096], two[8192];
    int n = 0;
    (void)state;
    snprintf(one, sizeof one,
             "{\"model\": \"m\", \"messages\": [{\"role\": \"user\", \"content\": \"%0600d\"}]}",
             1);
    snprintf(
        two, sizeof two,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"%0600d\"}, {\"role\": \"assistant\", "
        "\"content\": \"%0300d\"}, {\"role\": \"user\", \"content\": \"and?\"}]}",
        1, 2);
    router_key_read(&x, one, strlen(one));
    router_key_read(&y, two, strlen(two));
    while (n < x.n && n < y.n && x.hash[n] == y.hash[n]) {
        n++;
    }
    assert_int_equal(n, x.n - 1); /* all but its last, short block */
    assert_true(n >= 4);
    router_key_fini(&x);
    router_key_fini(&y);
}

static void keys_of_nonsense(void **state)
{
    static const char *const bodies[] = {
        "",
        "{",
        "{}",
        "[]",
        "null",
        "{\"text\"",
        "{\"text\":",
        "{\"text\": \"",
        "{\"text\": \"a\\",
        "{\"text\": [[[",
        "{\"text\" \"a\"}",
        "{text: 1}",
        "{\"a\": }}}}",
        "\"text\"",
        "{\"n\": 1}",
        "{\"\": 1,",
        "{\"text\": null}",
        "{\"text\": \"\\",
    };
    char body[256];
    struct router_key k = {0};
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        assert_int_equal(blocks(bodies[i]), 0);
    }
    /* Every prefix of a good body, and every byte of it changed, in a block of its own: a reader
     * that goes beyond the end is found by the sanitizers. */
    strcpy(body,
           "{\"a\": [1, {\"b\": \"\\\"\"}], \"messages\": [{\"x\": \"y\\\\\"}, 2], \"z\": null}");
    for (size_t n = 0; n <= strlen(body); n++) {
        for (int c = 0; c < 256; c += n % 7 == 0 ? 1 : 51) {
            char *copy = malloc(n + 1);
            memcpy(copy, body, n);
            if (n > 0) {
                copy[n / 2] = (char)c;
            }
            router_key_read(&k, copy, n);
            assert_in_range(k.n, 0, 1);
            free(copy);
        }
    }
    router_key_fini(&k);
}

static void keys_are_bounded(void **state)
{
    char *big = body_of("{\"text\": \"", (ROUTER_KEY_MAX + 10) * (size_t)ROUTER_KEY_BLOCK, "\"}");
    (void)state;
    assert_int_equal(blocks(big), ROUTER_KEY_MAX);
    mem_free(big);
}

/* ---- what is remembered ---- */

static struct router_key chain(uint64_t root, int n)
{
    struct router_key k = {.n = n, .cap = n, .len = (size_t)n * ROUTER_KEY_BLOCK};
    k.hash = mem_alloc(sizeof *k.hash * (size_t)n);
    for (int i = 0; i < n; i++) {
        k.hash[i] = router_key_hash(i ? k.hash[i - 1] : root, "x", 1);
    }
    return k;
}

static void cache_finds_the_longest(void **state)
{
    struct router_cache *c = router_cache_new(100);
    struct router_key k = chain(1, 10), half = chain(1, 5), other = chain(2, 3);
    uint8_t usable[ROUTER_CACHE_SLOTS] = {0};
    uint16_t out[ROUTER_CACHE_WORKERS];
    int n;
    (void)state;
    memset(usable, 1, 20);
    assert_int_equal(router_cache_find(c, &k, usable, out, &n), 0);
    router_cache_add(c, &half, 3, 0);
    assert_int_equal(router_cache_find(c, &k, usable, out, &n), 5);
    assert_true(n == 1 && out[0] == 3);
    router_cache_add(c, &k, 4, 0);
    router_cache_add(c, &half, 3, 0);
    assert_int_equal(router_cache_find(c, &k, usable, out, &n), 10);
    assert_true(n == 1 && out[0] == 4);
    assert_int_equal(router_cache_find(c, &half, usable, out, &n), 5);
    assert_true(n == 2 && out[0] == 3 && out[1] == 4); /* the latest first */
    /* The one that knows most cannot be asked. */
    usable[4] = 0;
    assert_int_equal(router_cache_find(c, &k, usable, out, &n), 5);
    assert_true(n == 1 && out[0] == 3);
    usable[4] = 1;
    assert_int_equal(router_cache_find(c, &other, usable, out, &n), 0);
    assert_int_equal(router_cache_blocks(c), 10);
    assert_int_equal(router_cache_blocks_of(c, 3), 5);
    assert_int_equal(router_cache_blocks_of(c, 4), 10);
    router_cache_forget(c, 4);
    assert_int_equal(router_cache_blocks_of(c, 4), 0);
    assert_int_equal(router_cache_blocks(c), 5);
    assert_int_equal(router_cache_find(c, &k, usable, out, &n), 5);
    /* More workers than a block names: the oldest gives way. */
    for (uint16_t i = 5; i < 5 + ROUTER_CACHE_WORKERS; i++) {
        router_cache_add(c, &half, i, 0);
    }
    assert_int_equal(router_cache_blocks_of(c, 3), 0);
    assert_int_equal(router_cache_find(c, &half, usable, out, &n), 5);
    assert_true(n == ROUTER_CACHE_WORKERS && out[0] == 4 + ROUTER_CACHE_WORKERS && out[n - 1] == 5);
    router_cache_free(c);
    router_key_fini(&k);
    router_key_fini(&half);
    router_key_fini(&other);
}

static void cache_is_bounded(void **state)
{
    enum { MAX = 64, N = 1000 };
    struct router_cache *c = router_cache_new(MAX);
    uint8_t usable[ROUTER_CACHE_SLOTS];
    uint16_t out[ROUTER_CACHE_WORKERS];
    struct router_key keep = chain(7, 8), k;
    int n;
    (void)state;
    memset(usable, 1, sizeof usable);
    for (int i = 0; i < N; i++) {
        size_t sum = 0;
        k = chain(100 + (uint64_t)i, 1 + i % 20);
        router_cache_add(c, &k, (uint16_t)(i % 5), i);
        router_cache_add(c, &keep, 9, i); /* used all the time: never thrown out */
        assert_in_range(router_cache_blocks(c), 1, MAX);
        assert_int_equal(router_cache_find(c, &keep, usable, out, &n), 8);
        assert_int_equal(router_cache_find(c, &k, usable, out, &n), k.n);
        for (uint16_t w = 0; w < 10; w++) {
            sum += router_cache_blocks_of(c, w);
        }
        assert_int_equal(sum, router_cache_blocks(c)); /* no block here has two workers */
        router_key_fini(&k);
    }
    /* What went first of a prompt are its last blocks. */
    k = chain(100 + N - 1 - 19, 20);
    n = router_cache_find(c, &k, usable, out, &n);
    assert_true(n < 20);
    router_key_fini(&k);
    for (int w = 0; w < 5; w++) {
        router_cache_forget(c, (uint16_t)w);
    }
    assert_int_equal(router_cache_blocks(c), 8);
    router_cache_expire(c, N + 1);
    assert_int_equal(router_cache_blocks(c), 0);
    router_cache_add(c, &keep, 1, 0);
    assert_int_equal(router_cache_blocks(c), 8);
    router_cache_free(c);
    router_key_fini(&keep);
}

/* ---- the choice ---- */

static const struct router_worker_opts usual = {.health_failures = 3,
                                                .health_successes = 2,
                                                .check_s = 60,
                                                .startup_check_s = 5,
                                                .startup_s = 100,
                                                .cb_failures = 4,
                                                .cb_successes = 2,
                                                .cb_open_s = 30,
                                                .cb_window_s = 10};

enum { NW = 5 };
static struct router_worker *w[NW];

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < NW; i++) {
        char url[32];
        snprintf(url, sizeof url, "http://h%d:1//", i);
        w[i] = router_worker_new(url, NULL, &usual, 0);
        w[i]->slot = (uint16_t)i;
    }
    assert_string_equal(w[2]->url, "http://h2:1");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < NW; i++) {
        router_worker_unref(w[i]);
    }
    return 0;
}

static struct router_policy_opts opts_of(enum router_policy_kind kind)
{
    return (struct router_policy_opts){.kind = kind,
                                       .cache_threshold = 0.3,
                                       .balance_abs = 8,
                                       .balance_rel = 1.5,
                                       .max_bytes = 1 << 20,
                                       .max_idle_s = 100,
                                       .seed = 5};
}

static void picks_by_prefix(void **state)
{
    struct router_policy_opts o = opts_of(ROUTER_POLICY_CACHE_AWARE);
    struct router_key k = chain(1, 10), more = chain(1, 30), most = chain(1, 40), none = {0};
    struct router_policy p;
    struct router_worker *first;
    (void)state;
    router_policy_init(&p, &o);
    first = router_policy_pick(&p, w, NW, &k, 0);
    first->load = 5;
    for (int i = 0; i < 20; i++) { /* though it is the most loaded */
        assert_ptr_equal(router_policy_pick(&p, w, NW, &k, 0), first);
    }
    assert_int_equal(p.hits, 20);
    assert_int_equal(p.misses, 1);
    assert_ptr_equal(router_policy_pick(&p, w, NW, &more, 0),
                     first); /* 10 of 30 is more than 0.3 */
    assert_ptr_equal(router_policy_pick(&p, w, NW, &most, 0),
                     first); /* and it knows 30 of 40 now */
    /* Apart: 8 more are not enough, 9 are. */
    first->load = 8;
    assert_ptr_equal(router_policy_pick(&p, w, NW, &k, 0), first);
    first->load = 9;
    assert_ptr_not_equal(router_policy_pick(&p, w, NW, &k, 0), first);
    assert_int_equal(p.balanced, 1);
    /* Two know it now: the less loaded of them. */
    first->load = 1;
    assert_ptr_not_equal(router_policy_pick(&p, w, NW, &k, 0), first);
    for (int i = 0; i < NW; i++) {
        w[i]->load = w[i] == first ? 1 : 2;
    }
    assert_ptr_equal(router_policy_pick(&p, w, NW, &k, 0), first);
    /* A worker that is gone is forgotten. */
    router_policy_forget(&p, first->slot);
    assert_ptr_not_equal(router_policy_pick(&p, w, NW, &k, 0), first);
    /* No prompt: the least loaded. */
    w[3]->load = 0;
    assert_ptr_equal(router_policy_pick(&p, w, NW, &none, 0), w[3]);
    assert_null(router_policy_pick(&p, w, 0, &k, 0));
    router_policy_fini(&p);
    router_key_fini(&k);
    router_key_fini(&more);
    router_key_fini(&most);
}

static void short_matches_do_not_count(void **state)
{
    struct router_policy_opts o = opts_of(ROUTER_POLICY_CACHE_AWARE);
    struct router_key k = chain(1, 3), more = chain(1, 10);
    struct router_policy p;
    struct router_worker *first;
    (void)state;
    router_policy_init(&p, &o);
    first = router_policy_pick(&p, w, NW, &k, 0);
    first->load = 1;
    assert_ptr_not_equal(router_policy_pick(&p, w, NW, &more, 0), first); /* 0.3 is not more */
    assert_int_equal(p.misses, 2);
    router_policy_fini(&p);
    router_key_fini(&k);
    router_key_fini(&more);
}

static void picks_by_load(void **state)
{
    struct router_policy_opts o = opts_of(ROUTER_POLICY_LEAST_LOAD);
    struct router_key none = {0};
    struct router_policy p;
    int got[NW] = {0};
    (void)state;
    router_policy_init(&p, &o);
    for (int i = 0; i < 10 * NW; i++) {
        router_policy_pick(&p, w, NW, &none, 0)->load++;
    }
    for (int i = 0; i < NW; i++) {
        assert_int_equal(w[i]->load, 10);
        w[i]->load = i;
    }
    assert_ptr_equal(router_policy_pick(&p, w, NW, &none, 0), w[0]);
    router_policy_fini(&p);

    o = opts_of(ROUTER_POLICY_POWER_OF_TWO);
    router_policy_init(&p, &o);
    for (int i = 0; i < 1000; i++) {
        got[router_policy_pick(&p, w, NW, &none, 0)->slot]++;
    }
    assert_int_equal(got[NW - 1], 0); /* never the most loaded */
    for (int i = 1; i < NW; i++) {
        assert_true(got[i] < got[i - 1]);
    }
    assert_true(got[NW - 2] > 50); /* 1 of 10 pairs */
    assert_ptr_equal(router_policy_pick(&p, w, 1, &none, 0), w[0]);
    router_policy_fini(&p);

    o = opts_of(ROUTER_POLICY_ROUND_ROBIN);
    router_policy_init(&p, &o);
    for (int i = 0; i < 3 * NW; i++) {
        assert_ptr_equal(router_policy_pick(&p, w, NW, &none, 0), w[i % NW]);
    }
    router_policy_fini(&p);

    o = opts_of(ROUTER_POLICY_RANDOM);
    router_policy_init(&p, &o);
    memset(got, 0, sizeof got);
    for (int i = 0; i < 1000; i++) {
        got[router_policy_pick(&p, w, NW, &none, 0)->slot]++;
    }
    for (int i = 0; i < NW; i++) {
        assert_in_range(got[i], 140, 260);
    }
    router_policy_fini(&p);
}

/* With a worker less, only its own keys move, and they come back with it. */
static void check_hashing(enum router_policy_kind kind)
{
    enum { N = 500 };
    struct router_policy_opts o = opts_of(kind);
    struct router_policy p, q;
    struct router_worker *less[NW - 1] = {w[0], w[1], w[3], w[4]};
    int got[NW] = {0}, moved = 0;
    router_policy_init(&p, &o);
    o.seed = 77;
    router_policy_init(&q, &o); /* another router agrees */
    for (int i = 0; i < N; i++) {
        struct router_key k = {0};
        struct router_worker *a, *b;
        char name[32];
        snprintf(name, sizeof name, "session %d", i);
        router_key_name(&k, name, strlen(name));
        a = router_policy_pick(&p, w, NW, &k, 0);
        assert_ptr_equal(router_policy_pick(&q, w, NW, &k, 0), a);
        b = router_policy_pick(&p, less, NW - 1, &k, 0);
        got[a->slot]++;
        moved += a != b;
        assert_true(a == b || a == w[2]);
        router_key_fini(&k);
    }
    assert_int_equal(moved, got[2]);
    for (int i = 0; i < NW; i++) {
        assert_in_range(got[i], N / NW / 2, N / NW * 2);
    }
    router_policy_fini(&p);
    router_policy_fini(&q);
}

static void picks_by_hash(void **state)
{
    struct router_policy_opts o = opts_of(ROUTER_POLICY_PREFIX_HASH);
    struct router_key a = chain(1, 8), b = chain(1, 100);
    struct router_worker *first;
    struct router_policy p;
    (void)state;
    check_hashing(ROUTER_POLICY_CONSISTENT_HASHING);
    check_hashing(ROUTER_POLICY_PREFIX_HASH);
    router_policy_init(&p, &o);
    first = router_policy_pick(&p, w, NW, &a, 0);
    assert_ptr_equal(router_policy_pick(&p, w, NW, &b, 0), first); /* the same first kilobyte */
    first->load = 8;
    assert_ptr_equal(router_policy_pick(&p, w, NW, &b, 0), first);
    first->load = 9;
    assert_ptr_not_equal(router_policy_pick(&p, w, NW, &b, 0), first);
    router_policy_fini(&p);
    router_key_fini(&a);
    router_key_fini(&b);
}

static void sessions_stay(void **state)
{
    enum { N = 100 };
    static const enum router_policy_assign modes[] = {
        ROUTER_POLICY_ASSIGN_RANDOM, ROUTER_POLICY_ASSIGN_MIN_LOAD, ROUTER_POLICY_ASSIGN_MIN_GROUP};
    (void)state;
    for (int m = 0; m < 3; m++) {
        struct router_policy_opts o = opts_of(ROUTER_POLICY_MANUAL);
        struct router_worker *home[N];
        struct router_key k[N] = {{0}};
        struct router_policy p;
        o.assign = modes[m];
        router_policy_init(&p, &o);
        for (int i = 0; i < NW; i++) {
            w[i]->load = i == 1 ? 0 : 3;
        }
        for (int i = 0; i < N; i++) {
            char name[32];
            snprintf(name, sizeof name, "s%d", i);
            router_key_name(&k[i], name, strlen(name));
            home[i] = router_policy_pick(&p, w, NW, &k[i], 0);
            assert_true(modes[m] != ROUTER_POLICY_ASSIGN_MIN_LOAD || home[i] == w[1]);
        }
        for (int i = 0; i < NW && modes[m] == ROUTER_POLICY_ASSIGN_MIN_GROUP; i++) {
            assert_int_equal(router_cache_blocks_of(p.cache, (uint16_t)i), N / NW);
        }
        w[1]->load = 100; /* load does not move them */
        for (int i = 0; i < N; i++) {
            assert_ptr_equal(router_policy_pick(&p, w, NW, &k[i], 50), home[i]);
        }
        router_policy_flush(&p, 1); /* nor does an empty prefix cache */
        assert_ptr_equal(router_policy_pick(&p, w, NW, &k[0], 50), home[0]);
        /* Its worker cannot be asked: another, where it stays. */
        home[0] = router_policy_pick(&p, w + 2, NW - 2, &k[0], 60);
        assert_ptr_equal(router_policy_pick(&p, w, NW, &k[0], 70), home[0]);
        assert_int_equal(router_cache_blocks(p.cache), N);
        router_policy_pick(&p, w, NW, &k[0], 160); /* 100 seconds idle: forgotten */
        assert_int_equal(router_cache_blocks(p.cache), 1);
        for (int i = 0; i < N; i++) {
            router_key_fini(&k[i]);
        }
        router_policy_fini(&p);
    }
}

/* ---- a worker ---- */

static void health_counts(void **state)
{
    struct router_worker *x = w[0];
    (void)state;
    assert_false(router_worker_usable(x, 0));
    assert_true(x->next_check <= 0);
    assert_int_equal(router_worker_checked(x, 0, "no connection", 0), 0);
    assert_string_equal(router_worker_health_name(x), "starting");
    assert_string_equal(x->reason, "no connection");
    assert_true(x->next_check == 5);
    assert_int_equal(router_worker_checked(x, 1, "", 5), 1); /* one is enough at the start */
    assert_true(router_worker_usable(x, 5));
    assert_string_equal(x->reason, "");
    assert_true(x->next_check == 65);
    router_worker_suspect(x, 10);
    assert_true(x->next_check == 10);
    /* Not three in a row. */
    assert_int_equal(router_worker_checked(x, 0, "a", 10), 0);
    assert_true(x->next_check == 11); /* soon again while in doubt */
    assert_int_equal(router_worker_checked(x, 0, "b", 11), 0);
    assert_int_equal(router_worker_checked(x, 1, "", 12), 0);
    assert_true(x->next_check == 72);
    assert_int_equal(router_worker_checked(x, 0, "c", 72), 0);
    assert_int_equal(router_worker_checked(x, 0, "c", 73), 0);
    assert_true(router_worker_usable(x, 73));
    assert_int_equal(router_worker_checked(x, 0, "c", 74), -1);
    assert_false(router_worker_usable(x, 74));
    assert_true(x->next_check == 134);
    assert_int_equal(router_worker_checked(x, 1, "", 134), 0);
    assert_false(router_worker_usable(x, 134));
    assert_true(x->next_check == 135);
    assert_int_equal(router_worker_checked(x, 0, "d", 135), 0);
    assert_int_equal(router_worker_checked(x, 1, "", 195), 0);
    assert_int_equal(router_worker_checked(x, 1, "", 196), 1);
    assert_true(router_worker_usable(x, 196));
    x->stale = 1;
    assert_false(router_worker_usable(x, 196));
}

static void ask(struct router_worker *x, enum router_worker_end how, double now)
{
    assert_true(router_worker_usable(x, now));
    router_worker_began(x, now);
    router_worker_ended(x, how, now);
}

static void breaker_opens_and_closes(void **state)
{
    struct router_worker *x = w[0];
    (void)state;
    router_worker_checked(x, 1, "", 0);
    for (int i = 0; i < 3; i++) {
        ask(x, ROUTER_WORKER_BAD, 0);
    }
    ask(x, ROUTER_WORKER_GOOD, 0); /* not in a row */
    for (int i = 0; i < 3; i++) {
        ask(x, ROUTER_WORKER_BAD, 1);
    }
    ask(x, ROUTER_WORKER_NEUTRAL, 1);
    ask(x, ROUTER_WORKER_BAD, 12); /* not within the window */
    for (int i = 0; i < 2; i++) {
        ask(x, ROUTER_WORKER_BAD, 12);
    }
    assert_string_equal(router_worker_breaker_name(x), "closed");
    ask(x, ROUTER_WORKER_BAD, 13);
    assert_string_equal(router_worker_breaker_name(x), "open");
    assert_false(router_worker_usable(x, 42.9));
    assert_true(router_worker_usable(x, 43));
    assert_string_equal(router_worker_breaker_name(x), "half_open");
    /* Two may try, not a third. */
    router_worker_began(x, 43);
    router_worker_began(x, 43);
    assert_false(router_worker_usable(x, 43));
    router_worker_ended(x, ROUTER_WORKER_NEUTRAL, 43);
    assert_true(router_worker_usable(x, 43));
    router_worker_ended(x, ROUTER_WORKER_BAD, 44); /* at once open again */
    assert_false(router_worker_usable(x, 73.9));
    ask(x, ROUTER_WORKER_GOOD, 74);
    assert_string_equal(router_worker_breaker_name(x), "half_open");
    ask(x, ROUTER_WORKER_GOOD, 75);
    assert_string_equal(router_worker_breaker_name(x), "closed");
    assert_int_equal(x->opened, 2);
    assert_int_equal(x->load, 0);
    for (int i = 0; i < 3; i++) {
        ask(x, ROUTER_WORKER_BAD, 76);
    }
    assert_true(router_worker_usable(x, 76)); /* the count began anew */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_prompts),
        cmocka_unit_test(keys_of_conversations),
        cmocka_unit_test(keys_of_nonsense),
        cmocka_unit_test(keys_are_bounded),
        cmocka_unit_test(cache_finds_the_longest),
        cmocka_unit_test(cache_is_bounded),
        cmocka_unit_test_setup_teardown(picks_by_prefix, setup, teardown),
        cmocka_unit_test_setup_teardown(short_matches_do_not_count, setup, teardown),
        cmocka_unit_test_setup_teardown(picks_by_load, setup, teardown),
        cmocka_unit_test_setup_teardown(picks_by_hash, setup, teardown),
        cmocka_unit_test_setup_teardown(sessions_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(health_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(breaker_opens_and_closes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
