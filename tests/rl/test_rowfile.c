/* Data files of all kinds but Parquet: arrays, packed files, lists of files, bad rows skipped, long
 * lines over the borders of tasks, files that change. */
#include "support.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "rl/prompts.h"
#include "rl/spool.h"
#include "rl/unpack.h"

static char dir[] = "/tmp/test_rowfile_XXXXXX";
static struct err e;

static const char *file(const char *name)
{
    static char path[4][256];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", dir, name);
    return path[next];
}

static void put(const char *name, const void *p, size_t n)
{
    FILE *f = fopen(file(name), "wb");
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

static void put_gzip(const char *name, const char *text, size_t n, const char *mode)
{
    gzFile f = gzopen(file(name), mode);
    assert_int_equal(gzwrite(f, text, (unsigned)n), (int)n);
    gzclose(f);
}

static void put_zstd(const char *name, const char *text, size_t n)
{
    size_t cap = ZSTD_compressBound(n);
    char *out = malloc(cap);
    put(name, out, ZSTD_compress(out, cap, text, n, 3));
    free(out);
}

static struct prompts *open_rows(const char *path, int skip)
{
    struct prompts_opts o = {.path = path, .group_size = 1, .skip_bad = skip};
    struct prompts *p = NULL;
    memset(&e, 0, sizeof e);
    assert_ok(prompts_open(&p, &o, &e), &e);
    return p;
}

static void fails(const char *path, int skip, int status, const char *part)
{
    struct prompts_opts o = {.path = path, .group_size = 1, .skip_bad = skip};
    struct prompts *p = NULL;
    int rc = prompts_open(&p, &o, &e);
    if (rc != status || !strstr(e.msg, part)) {
        fail_msg("status %d, \"%s\" lacks \"%s\"", rc, e.msg, part);
    }
}

/* The prompts in file order are these words; closes p. */
static void expect(struct prompts *p, const char *words)
{
    char **w, copy[512];
    int n;
    snprintf(copy, sizeof copy, "%s", words);
    n = support_words(copy, &w);
    assert_int_equal(prompts_count(p), n);
    for (int i = 0; i < n; i++) {
        const struct prompts_row *r;
        assert_ok(prompts_row(p, i, &r, &e), &e);
        assert_string_equal(json_string_value(r->prompt), w[i]);
    }
    prompts_close(p);
}

static const char three[] = "{\"input\": \"a\"}\n{\"input\": \"b\"}\n{\"input\": \"c\"}\n";

static void packed(void **state)
{
    char both[256];
    (void)state;
    put_gzip("x.jsonl.gz", three, strlen(three), "wb");
    expect(open_rows(file("x.jsonl.gz"), 0), "a b c");
    put_gzip("x.jsonl.gz", three, strlen(three), "ab"); /* two members */
    expect(open_rows(file("x.jsonl.gz"), 0), "a b c a b c");
    put_zstd("x.zst", three, strlen(three));
    expect(open_rows(file("x.zst"), 0), "a b c");
    snprintf(both, sizeof both, "%s@[1:],%s@[:-2]", file("x.zst"), file("x.jsonl.gz"));
    expect(open_rows(both, 0), "b c a b c a");
    truncate(file("x.jsonl.gz"), 30);
    fails(file("x.jsonl.gz"), 0, STATUS_FORMAT, "gzip data ends too early");
    truncate(file("x.zst"), 20);
    fails(file("x.zst"), 0, STATUS_FORMAT, "zstd data ends too early");
    put("bad.gz", "\x1f\x8b\x08\0\0\0\0\0\0\0\xff\xff\xff\xff", 14);
    fails(file("bad.gz"), 0, STATUS_FORMAT, "damaged gzip data");
    put("bad.zst", "\x28\xb5\x2f\xfd\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff", 14);
    fails(file("bad.zst"), 0, STATUS_FORMAT, "damaged zstd data");
    put_gzip("rows.gz", "{\"input\": \"a\"}\n{\"input\": }\n", 28, "wb");
    fails(file("rows.gz"), 0, STATUS_INPUT, "rows.gz:2:11: ");
}

/* A megabyte may come out, sixteen would. */
static void bomb(void **state)
{
    size_t n = (size_t)1 << 24;
    char *blank = malloc(n);
    (void)state;
    memset(blank, ' ', n);
    put_gzip("bomb.gz", blank, n, "wb1");
    put_zstd("bomb.zst", blank, n);
    free(blank);
    for (int i = 0; i < 2; i++) {
        const char *path = file(i ? "bomb.zst" : "bomb.gz");
        int fd = open(path, O_RDONLY);
        struct spool s;
        assert_ok(spool_open(&s, path, 1 << 20, &e), &e);
        assert_int_equal(unpack_to(&s, i ? UNPACK_ZSTD : UNPACK_GZIP, fd, path, &e), STATUS_INPUT);
        assert_non_null(strstr(e.msg, "unpacks to more than 1048576 bytes"));
        assert_true(s.written <= 1 << 20);
        spool_close(&s);
        close(fd);
    }
    assert_int_equal(spool_limit(1000), (1 << 30) + 100000);
}

static void arrays(void **state)
{
    const struct prompts_row *r;
    struct prompts *p;
    (void)state;
    put_text("a.json", "[{\"input\": \"a\"},\n {\n  \"input\": \"b\"}\n\n,{\"input\":\"c\"}]\n");
    expect(open_rows(file("a.json"), 0), "a b c");
    p = open_rows(file("a.json"), 0);
    assert_ok(prompts_row(p, 1, &r, &e), &e);
    assert_int_equal(r->line, 2);
    assert_ok(prompts_row(p, 2, &r, &e), &e);
    assert_int_equal(r->line, 5);
    prompts_close(p);
    put_text("b.json", "  [ ]  ");
    fails(file("b.json"), 0, STATUS_INPUT, "no prompts are left");
    put_text("b.json", "[{\"input\": \"a\"},\n {\"input\": 1}]");
    fails(file("b.json"), 0, STATUS_INPUT, "b.json:2: \"input\" is neither");
    expect(open_rows(file("b.json"), 1), "a");
    put_text("b.json", "[{\"input\": \"a\"},\n {\"input\" 1}]");
    fails(file("b.json"), 0, STATUS_INPUT, "b.json:2:11: ':' expected");
    put_text("b.json", "[{\"input\": \"a\"},\n\n {\"input\":\n1 2}]");
    fails(file("b.json"), 0, STATUS_INPUT, "b.json:4:3: '}' expected");
    put_text("b.json", "[{\"input\": \"a\"}\n {\"input\": \"b\"}]");
    fails(file("b.json"), 1, STATUS_INPUT, "b.json:2:2: ',' or ']' is missing");
    put_text("b.json", "[{\"input\": \"a\"},");
    fails(file("b.json"), 1, STATUS_INPUT, "b.json:1:17: the array's element does not end");
    put_text("b.json", "[{\"input\": \"a\"}] x");
    fails(file("b.json"), 1, STATUS_INPUT, "b.json:1:18: more text behind");
    put_zstd("c.json", "[{\"input\":\"a\"}]", 15);
    expect(open_rows(file("c.json"), 0), "a");
}

static void lists(void **state)
{
    char list[1024];
    (void)state;
    put_text("x", three);
    put_text("y", "{\"input\": \"d\"}\n");
    put_text("odd,name", "{\"input\": \"e\"}\n");
    snprintf(list, sizeof list, "%s,%s@[-1:]", file("y"), file("x"));
    expect(open_rows(list, 0), "d c");
    snprintf(list, sizeof list, "%s@[0:0],%s", file("x"), file("y"));
    expect(open_rows(list, 0), "d");
    expect(open_rows(file("odd,name"), 0), "e");
    snprintf(list, sizeof list, "%s@[:]", file("odd,name"));
    expect(open_rows(list, 0), "e");
    snprintf(list, sizeof list, "%s,", file("x"));
    fails(list, 0, STATUS_INPUT, "a file name is missing");
    snprintf(list, sizeof list, "%s,%s", file("x"), file("none"));
    fails(list, 0, STATUS_NOTFOUND, "none");
    fails(dir, 0, STATUS_INPUT, "not a regular file");
    assert_int_equal(mkfifo(file("pipe"), 0600), 0);
    fails(file("pipe"), 0, STATUS_INPUT, "not a regular file"); /* at once: nobody writes to it */
    put_text("x.parquet", three);
    fails(file("x.parquet"), 0, STATUS_INPUT, "x.parquet does not begin as a Parquet file");
}

static void skipping(void **state)
{
    char with[256];
    struct prompts *p;
    (void)state;
    put_text("s", "{\"input\": \"a\"}\nnonsense\n{\"input\": \"b\"}\n{\"inputs\": 1}\n\n"
                  "{\"input\": \"c\"}\n{\"input\": \"\xff\"}\n{\"input\": \"d\"}");
    fails(file("s"), 0, STATUS_INPUT, "s:2:");
    p = open_rows(file("s"), 1);
    assert_int_equal(prompts_skipped(p), 3);
    expect(p, "a b c d");
    snprintf(with, sizeof with, "%s@[1:3]", file("s")); /* slices count good rows */
    expect(open_rows(with, 1), "b c");
    put_text("s", "x\ny\n");
    fails(file("s"), 1, STATUS_INPUT, "no prompts are left");
}

/* Rows of random length, some longer than a task's megabyte, with blank and bad ones between. */
static void long_rows(void **state)
{
    struct rng_py g;
    struct buf b;
    struct prompts *p;
    int64_t want[4000], n = 0, line = 0, bad = 0;
    (void)state;
    rng_py_seed(&g, 3);
    buf_init(&b, (size_t)1 << 28);
    while (n < 2000) {
        int64_t kind = rng_py_randbelow(&g, 100);
        int64_t len = kind < 2 ? 3000000 : kind < 10 ? 60000 : rng_py_randbelow(&g, 300);
        line++;
        if (kind > 95) {
            buf_str(&b, kind == 96 ? "  \n" : "{\"input\": oops}\n");
            bad += kind != 96;
            continue;
        }
        buf_printf(&b, "{\"input\": \"%lld", (long long)n);
        for (int64_t i = 0; i < len; i++) {
            buf_char(&b, i % 7 ? 'x' : ' ');
        }
        buf_str(&b, "\"}\n");
        want[n++] = line;
    }
    assert_int_equal(buf_status(&b), 0);
    put("long", b.data, b.len);
    buf_fini(&b);
    p = open_rows(file("long"), 1);
    assert_int_equal(prompts_count(p), n);
    assert_int_equal(prompts_skipped(p), bad);
    for (int64_t i = 0; i < n; i++) {
        const struct prompts_row *r;
        assert_ok(prompts_row(p, i, &r, &e), &e);
        assert_int_equal(atoi(json_string_value(r->prompt)), i);
        assert_int_equal(r->line, want[i]);
    }
    prompts_close(p);
    unlink(file("long"));
}

static void changed(void **state)
{
    const struct prompts_row *r;
    struct prompts_group g[2];
    struct prompts *p;
    json_t *before, *after;
    (void)state;
    put_text("x", three);
    p = open_rows(file("x"), 0);
    assert_ok(prompts_next(p, 2, g, &e), &e);
    before = prompts_state(p);
    put_text("x", "{\"input\": \"a\"}\n");
    assert_int_equal(prompts_row(p, 0, &r, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "was changed while it was in use"));
    assert_int_equal(prompts_next(p, 2, g, &e), STATUS_INPUT);
    after = prompts_state(p);
    assert_true(json_equal(before, after));
    json_decref(before);
    json_decref(after);
    prompts_close(p);
}

static int cleanup(void **state)
{
    char cmd[64];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed),  cmocka_unit_test(bomb),     cmocka_unit_test(arrays),
        cmocka_unit_test(lists),   cmocka_unit_test(skipping), cmocka_unit_test(long_rows),
        cmocka_unit_test(changed),
    };
    if (!mkdtemp(dir)) {
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, cleanup);
}
