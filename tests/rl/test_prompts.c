/* The data source: order, wrap, counters, cursor, filter, and what it says about bad files. */
#include "support.h"

#include <unistd.h>

#include "base/rng.h"
#include "base/status.h"
#include "rl/prompts.h"

static char path[] = "/tmp/test_prompts_XXXXXX";
static struct err e;

static void write_file(const char *text)
{
    FILE *f = fopen(path, "wb");
    fputs(text, f);
    fclose(f);
}

/* n rows whose prompt is their number. */
static void write_rows(int n)
{
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < n; i++) {
        fprintf(f, "{\"input\": \"%d\", \"label\": %d}\n", i, 100 + i);
    }
    fclose(f);
}

static struct prompts *open_ok(struct prompts_opts o)
{
    struct prompts *p;
    o.path = o.path ? o.path : path;
    o.group_size = o.group_size ? o.group_size : 1;
    memset(&e, 0, sizeof e);
    assert_ok(prompts_open(&p, &o, &e), &e);
    return p;
}

static const struct prompts_row *row_at(struct prompts *p, int64_t i)
{
    const struct prompts_row *r = NULL;
    assert_ok(prompts_row(p, i, &r, &e), &e);
    return r;
}

static void expect(struct prompts *p, const int *rows, int n)
{
    struct prompts_group g[64];
    assert_ok(prompts_next(p, n, g, &e), &e);
    for (int i = 0; i < n; i++) {
        char want[16];
        snprintf(want, sizeof want, "%d", rows[i]);
        assert_string_equal(json_string_value(g[i].row->prompt), want);
    }
}

static void order_and_wrap(void **state)
{
    static const int first[] = {7, 3, 2, 8, 5, 6, 9, 4, 0, 1};
    static const int second[] = {8, 1, 5, 6, 9, 7, 3, 2, 4, 0};
    struct prompts *p;
    struct prompts_group g[64];
    (void)state;
    write_rows(10);
    p = open_ok((struct prompts_opts){.shuffle = 1, .seed = 42, .label_key = "label"});
    assert_int_equal(prompts_count(p), 10);
    expect(p, first, 7); /* epoch 0 is shuffled with seed + 0 */
    expect(p, (int[]){4, 0, 1, 8, 1, 5}, 6);
    expect(p, second + 3, 7);
    prompts_close(p);

    /* a request beyond tail and data wraps as often as it needs */
    p = open_ok((struct prompts_opts){.shuffle = 1, .seed = 42});
    assert_ok(prompts_next(p, 35, g, &e), &e);
    assert_int_equal(g[0].epoch, 0);
    assert_int_equal(g[10].epoch, 1);
    assert_int_equal(g[34].epoch, 3);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(g[10 + i].row_index, second[i]);
    }
    prompts_close(p);

    p = open_ok((struct prompts_opts){.seed = 42});
    expect(p, (int[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1}, 12);
    prompts_close(p);
}

static void counters_and_fields(void **state)
{
    struct prompts *p;
    struct prompts_group g[3];
    (void)state;
    write_file("{\"q\": [{\"role\": \"user\", \"content\": \"hi\"}], \"a\": \"42\","
               " \"metadata\": {\"k\": 1}, \"tools\": \"[{\\\"name\\\": \\\"f\\\"}]\"}\r\n"
               "\n   \n"
               "{\"q\": \"text\", \"a\": null, \"tools\": [], \"metadata\": null}");
    p = open_ok((struct prompts_opts){.input_key = "q", .label_key = "a", .group_size = 8});
    assert_int_equal(prompts_count(p), 2);
    assert_ok(prompts_next(p, 3, g, &e), &e);
    assert_int_equal(g[0].group_index, 0);
    assert_int_equal(g[2].group_index, 2);
    assert_int_equal(g[1].index, 8);
    assert_int_equal(g[2].index, 16);
    assert_int_equal(g[2].row_index, 0);
    assert_true(json_is_array(g[0].row->prompt));
    assert_string_equal(json_string_value(g[0].row->label), "42");
    assert_int_equal(json_integer_value(json_object_get(g[0].row->metadata, "k")), 1);
    assert_int_equal(json_array_size(g[0].row->tools), 1);
    assert_int_equal(g[0].row->line, 1);
    assert_int_equal(g[1].row->line, 4); /* blank lines are no rows, lines are still counted */
    assert_true(json_is_null(g[1].row->label));
    assert_int_equal(json_object_size(g[1].row->metadata), 0);
    assert_int_equal(json_array_size(g[1].row->tools), 0);
    assert_string_equal(json_string_value(row_at(p, 1)->prompt), "text");
    assert_int_equal(row_at(p, 1)->line, 4);
    assert_string_equal(json_string_value(g[1].row->prompt), "text"); /* still there */
    prompts_close(p);
    p = open_ok((struct prompts_opts){.input_key = "q"});
    assert_null(row_at(p, 0)->label);
    prompts_close(p);
}

static void slices(void **state)
{
    static const struct {
        const char *slice;
        int first, count;
    } t[] = {{"@[2:5]", 2, 3}, {"@[:3]", 0, 3},  {"@[7:]", 7, 3},   {"@[:]", 0, 10},
             {"@[-3:]", 7, 3}, {"@[:-8]", 0, 2}, {"@[8:99]", 8, 2}, {"@[-99:1]", 0, 1}};
    (void)state;
    write_rows(10);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char with[64], want[8];
        struct prompts *p;
        snprintf(with, sizeof with, "%s%s", path, t[i].slice);
        p = open_ok((struct prompts_opts){.path = with});
        assert_int_equal(prompts_count(p), t[i].count);
        snprintf(want, sizeof want, "%d", t[i].first);
        assert_string_equal(json_string_value(row_at(p, 0)->prompt), want);
        prompts_close(p);
    }
}

struct lengths {
    _Atomic int calls;
    int seen, sum, last;
};

/* A prompt of n has n tokens. */
static int tokens_number(void *arg, const struct prompts_row *row, struct err *err)
{
    struct lengths *l = arg;
    (void)err;
    l->calls++;
    return atoi(json_string_value(row->prompt));
}

static void seen_number(void *arg, int tokens)
{
    struct lengths *l = arg;
    assert_true(tokens >= l->last); /* shortest first, whichever thread measured it */
    l->last = tokens;
    l->seen++;
    l->sum += tokens;
}

static int tokens_fails(void *arg, const struct prompts_row *row, struct err *err)
{
    (void)arg;
    if (row->line >= 3) {
        return err && row->line == 3 ? ERR(err, STATUS_FORMAT, "no template") : STATUS_FORMAT;
    }
    return 1;
}

static void filter(void **state)
{
    struct lengths l = {0};
    struct prompts_opts o = {.path = path, .group_size = 1, .tokens = tokens_fails};
    struct prompts_opts few = {.tokens = tokens_number,
                               .seen = seen_number,
                               .arg = &l,
                               .max_tokens = 4999,
                               .sure_bytes = 32,
                               .full = 100};
    struct prompts *p;
    (void)state;
    write_rows(9);
    p = open_ok((struct prompts_opts){
        .tokens = tokens_number, .seen = seen_number, .arg = &l, .max_tokens = 4});
    assert_int_equal(prompts_count(p), 5);
    assert_int_equal(prompts_dropped(p), 4);
    assert_int_equal(l.calls, 9);
    assert_int_equal(l.seen, 5);
    assert_int_equal(l.sum, 10);
    assert_int_equal(prompts_measured(p), 5);
    assert_string_equal(json_string_value(row_at(p, 4)->prompt), "4");
    prompts_close(p);
    assert_int_equal(prompts_open(&p, &o, &e), STATUS_FORMAT);
    assert_non_null(strstr(e.msg, ":3: no template")); /* the first in the file's order */
    assert_int_equal(prompts_open(&p, &o, NULL), STATUS_FORMAT);
    write_rows(1);
    o.tokens = tokens_number;
    o.arg = &l;
    o.max_tokens = 1;
    assert_int_equal(prompts_open(&p, &o, &e), STATUS_OK);
    prompts_close(p);
    write_file("{\"input\": \"7\"}\n");
    assert_int_equal(prompts_open(&p, &o, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "1 of them too long"));

    /* lines of up to 32 bytes are known to be short: of these a few are measured all the same */
    write_rows(10000);
    memset(&l, 0, sizeof l);
    p = open_ok(few);
    assert_int_equal(prompts_count(p), 5000);
    assert_int_equal(prompts_dropped(p), 5000);
    assert_int_equal(row_at(p, 4999)->line, 5000);
    assert_true(l.calls > 9000 && l.calls <= 9000 + 200);
    prompts_close(p);
    memset(&l, 0, sizeof l);
    few.max_tokens = 0; /* no filter: only the probe */
    p = open_ok(few);
    assert_int_equal(prompts_count(p), 10000);
    assert_true(l.calls >= 100 && l.calls <= 201);
    assert_int_equal(l.seen, l.calls);
    assert_true(l.last >= 1000); /* longer lines are among them */
    prompts_close(p);
}

/* Lengths that were counted once are taken from the file, as long as nothing has changed. */
static void kept_lengths(void **state)
{
    static char cache[] = "/tmp/test_prompts_cache_XXXXXX";
    struct lengths l = {0};
    struct prompts_opts o = {.tokens = tokens_number,
                             .seen = seen_number,
                             .arg = &l,
                             .max_tokens = 499,
                             .full = 100,
                             .cache = cache,
                             .cache_key = "one",
                             .shuffle = 1};
    static const int calls[] = {1000, 0, 1000, 1000, 1000, 1000, 0};
    struct prompts_group first[500], g[500];
    (void)state;
    close(mkstemp(cache));
    unlink(cache);
    write_rows(1000);
    for (int round = 0; round < 7; round++) {
        struct prompts *p;
        FILE *f;
        memset(&l, 0, sizeof l);
        o.cache_key = round == 2 ? "two" : "one";
        o.max_tokens = round == 3 ? 498 : 499;
        if (round == 5) { /* one bit of it is wrong */
            f = fopen(cache, "r+b");
            fseek(f, 60, SEEK_SET);
            fputc(1, f);
            fclose(f);
        }
        p = open_ok(o);
        assert_int_equal(l.calls, calls[round]);
        assert_int_equal(prompts_count(p), o.max_tokens + 1);
        assert_int_equal(prompts_dropped(p), 999 - o.max_tokens);
        assert_int_equal(l.seen, o.max_tokens + 1);
        assert_int_equal(prompts_measured(p), l.seen);
        assert_int_equal(l.last, o.max_tokens);
        assert_ok(prompts_next(p, 400, round ? g : first, &e), &e);
        for (int i = 0; round && round != 3 && i < 400; i++) {
            assert_int_equal(g[i].row_index, first[i].row_index);
        }
        prompts_close(p);
    }
    write_rows(1000); /* the file is another one now */
    memset(&l, 0, sizeof l);
    prompts_close(open_ok(o));
    assert_int_equal(l.calls, 1000);
    unlink(cache);
}

static void cursor(void **state)
{
    struct prompts_opts o = {.shuffle = 1, .seed = 7, .group_size = 4};
    struct prompts *a, *b;
    struct prompts_group ga[20], gb[20];
    json_t *s, *copy;
    char *text;
    (void)state;
    write_rows(10);
    a = open_ok(o);
    b = open_ok(o);
    assert_ok(prompts_next(a, 10, ga, &e), &e); /* at the very end of an epoch */
    s = prompts_state(a);
    text = json_dumps(s, 0);
    copy = json_loads(text, 0, NULL);
    assert_ok(prompts_restore(b, copy, &e), &e);
    for (int round = 0; round < 5; round++) {
        assert_ok(prompts_next(a, 7, ga, &e), &e);
        assert_ok(prompts_next(b, 7, gb, &e), &e);
        for (int i = 0; i < 7; i++) {
            assert_int_equal(ga[i].row_index, gb[i].row_index);
            assert_int_equal(ga[i].group_index, gb[i].group_index);
            assert_int_equal(ga[i].index, gb[i].index);
            assert_int_equal(ga[i].epoch, gb[i].epoch);
        }
    }
    json_object_set_new(copy, "sample_offset", json_integer(11));
    assert_int_equal(prompts_restore(b, copy, &e), STATUS_INPUT);
    json_object_set_new(copy, "sample_offset", json_integer(-1));
    assert_int_equal(prompts_restore(b, copy, &e), STATUS_FORMAT);
    json_object_set_new(copy, "sample_offset", json_string("x"));
    assert_int_equal(prompts_restore(b, copy, &e), STATUS_FORMAT);
    assert_int_equal(prompts_restore(b, NULL, &e), STATUS_FORMAT);
    free(text);
    json_decref(s);
    json_decref(copy);
    prompts_close(a);
    prompts_close(b);
}

static void expect_bad(const char *text, const char *part)
{
    struct prompts_opts o = {.path = path, .label_key = "label", .group_size = 1};
    struct prompts *p;
    int rc;
    write_file(text);
    rc = prompts_open(&p, &o, &e);
    if (rc != STATUS_INPUT || !strstr(e.msg, part)) {
        fail_msg("status %d, \"%s\" lacks \"%s\"", rc, e.msg, part);
    }
    assert_non_null(strstr(e.msg, path));
}

static void bad_files(void **state)
{
    struct prompts_opts o = {.path = "/nonexistent.jsonl", .group_size = 1};
    char with[80];
    struct prompts *p;
    (void)state;
    expect_bad("{\"input\": \"a\", \"label\": 1}\n{\"input\": \"b\"\n", ":2:13: '}' expected");
    expect_bad("{\"input\": \"a\", \"label\": 1}\n{\"input\" \"b\"}\n", ":2:12: ':' expected");
    expect_bad("\n\n[1]\n", ":3: the row is not an object");
    expect_bad("{\"inputs\": \"a\", \"label\": 1}\n", ":1: no key \"input\" (--input-key)");
    expect_bad("{\"input\": \"a\"}\n", ":1: no key \"label\" (--label-key)");
    expect_bad("{\"input\": 3, \"label\": 1}\n", "neither text nor a list of messages");
    expect_bad("{\"input\": [], \"label\": 1}\n", "neither text nor a list of messages");
    expect_bad("{\"input\": [{\"content\": \"x\"}], \"label\": 1}\n", "a message without a role");
    expect_bad("{\"input\": \"a\", \"label\": 1, \"metadata\": 3}\n",
               "\"metadata\" is not an object");
    expect_bad("{\"input\": \"a\", \"label\": 1, \"tools\": {}}\n", "not a list of tools");
    expect_bad("{\"input\": \"a\", \"label\": 1, \"tools\": \"[\"}\n", "text that is not JSON");
    expect_bad("{\"input\": \"a\", \"label\": 1} x\n", ":1:");
    expect_bad("{\"input\": \"\xff\", \"label\": 1}\n", ":1:");
    expect_bad("", "no prompts are left");
    assert_int_equal(prompts_open(&p, &o, &e), STATUS_NOTFOUND);
    write_rows(3);
    for (int i = 0; i < 5; i++) {
        static const char *const bad[] = {"@[1]", "@[a:b]", "@[1:2:3]", "@[]", "@[5:2]"};
        snprintf(with, sizeof with, "%s%s", path, bad[i]);
        o.path = with;
        assert_int_equal(prompts_open(&p, &o, &e), STATUS_INPUT);
    }
    o.path = path;
    o.group_size = 0;
    assert_int_equal(prompts_open(&p, &o, &e), STATUS_INPUT);
    o.path = NULL;
    assert_int_equal(prompts_open(&p, &o, &e), STATUS_INPUT);
}

/* A malformed line outside the slice does not concern the slice. */
static void bad_line_outside_slice(void **state)
{
    struct prompts *p;
    char with[64];
    (void)state;
    write_file("{\"input\": \"a\"}\nnonsense\n{\"input\": \"c\"}\n");
    snprintf(with, sizeof with, "%s@[2:]", path);
    p = open_ok((struct prompts_opts){.path = with});
    assert_int_equal(row_at(p, 0)->line, 3);
    prompts_close(p);
}

/* Random bytes and damaged rows must give a status, never a crash. */
static void random_bytes(void **state)
{
    struct rng_py r;
    (void)state;
    rng_py_seed(&r, 5);
    for (int round = 0; round < 300; round++) {
        char text[] = "{\"input\": [{\"role\": \"user\"}], \"label\": \"x\", \"tools\": []}\n"
                      "{\"input\": \"b\", \"label\": 2, \"metadata\": {}}\n";
        struct prompts_opts o = {.path = path, .label_key = "label", .group_size = 1};
        struct prompts *p = NULL;
        FILE *f = fopen(path, "wb");
        for (int k = 0; k < 1 + round % 5; k++) {
            text[rng_py_randbelow(&r, (int64_t)sizeof text - 1)] = (char)rng_py_u32(&r);
        }
        fwrite(text, 1, sizeof text - 1, f);
        fclose(f);
        if (prompts_open(&p, &o, &e) == 0) {
            assert_true(prompts_count(p) >= 1);
            prompts_close(p);
        }
    }
}

static void gsm8k(void **state)
{
    struct prompts *p;
    (void)state;
    p = open_ok((struct prompts_opts){
        .path = support_data("gsm8k/train_rl.jsonl"), .input_key = "prompt", .label_key = "label"});
    assert_int_equal(prompts_count(p), 7473);
    assert_string_equal(json_string_value(row_at(p, 1)->label), "10");
    prompts_close(p);
}

static int cleanup(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_and_wrap), cmocka_unit_test(counters_and_fields),
        cmocka_unit_test(slices),         cmocka_unit_test(filter),
        cmocka_unit_test(kept_lengths),   cmocka_unit_test(cursor),
        cmocka_unit_test(bad_files),      cmocka_unit_test(bad_line_outside_slice),
        cmocka_unit_test(random_bytes),   cmocka_unit_test(gsm8k),
    };
    close(mkstemp(path));
    return cmocka_run_group_tests(tests, NULL, cleanup);
}
