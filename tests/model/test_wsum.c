/* Sums of tensors: those that SGLang tells, in its names and shapes; drawn ones are a part of
 * them. */
#include "model/tinymodel.h"

#include "base/map.h"
#include "base/sha256.h"
#include "model/wsum.h"

static struct err e;
static const struct tinymodel_spec specs[] = {
    {"qwen2", 0, 2, 64, 2, 2, 32, 64, 50, 128, 0}, /* biases, a separate output layer */
    {"glm4", 0, 1, 64, 2, 1, 32, 64, 40, 64, 0},   /* gate and up are one tensor of the file */
};

/* Values of SGLang's gpu_tensor_hash, computed by its own kernel in Triton's interpreter. */
static void test_gpu(void **state)
{
    static const struct {
        size_t n;
        uint64_t sum;
    } golden[] = {{2, 0x81ee51955324f8d8ull},     {64, 0xd79d027934e0f33full},
                  {1152, 0x676e198d2e032c30ull},  {32768, 0x017ae3038b626945ull},
                  {32772, 0xbcd2318fcb09121bull}, {200000, 0x1a814820fe657de2ull}};
    uint8_t *p = mem_alloc(200000);

    (void)state;
    for (int i = 0; i < 200000; i++) {
        p[i] = (uint8_t)(i * 7 + i / 256);
    }
    assert_int_equal(wsum_bytes(WSUM_GPU, p, 0), 0);
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        assert_int_equal(wsum_bytes(WSUM_GPU, p, golden[i].n), golden[i].sum);
    }

    mem_free(p);
}

static void test_sha(void **state)
{
    (void)state;
    assert_int_equal(wsum_bytes(WSUM_SHA256, "abc", 3), 0xba7816bf8f01cfeaull);
}

static int64_t at(const struct map *m, const char *name)
{
    int64_t v = 0;
    if (!map_get(m, name, strlen(name), &v)) {
        fail_msg("no %s", name);
    }
    return v;
}

/* The values of some tensors of the folder, one after the other, and `zeros` more. */
static int64_t sum_of(const struct wfile *f, const char *const *names, int n, int64_t zeros)
{
    uint16_t *v = mem_alloc(1 << 20);
    int64_t used = 0, sum;

    for (int i = 0; i < n; i++) {
        int64_t count = wfile_find(f, names[i])->count;
        assert_ok(wfile_read_bf16(f, names[i], v + used, count, &e), &e);
        used += count;
    }
    sum = (int64_t)wsum_bytes(WSUM_SHA256, v, (size_t)(used + zeros) * 2);
    mem_free(v);
    return sum;
}

#define L "model.layers.1."
static void test_names(void **state)
{
    static const char *const qkv[] = {L "self_attn.q_proj.weight", L "self_attn.k_proj.weight",
                                      L "self_attn.v_proj.weight"};
    static const char *const bias[] = {L "self_attn.q_proj.bias", L "self_attn.k_proj.bias",
                                       L "self_attn.v_proj.bias"};
    static const char *const mlp[] = {L "mlp.gate_proj.weight", L "mlp.up_proj.weight"};
    static const char *const down[] = {L "mlp.down_proj.weight"};
    static const char *const norm[] = {"model.norm.weight"}, *const head[] = {"lm_head.weight"};
    static const char *const embed[] = {"model.embed_tokens.weight"};
    struct tinymodel m;
    struct map s;

    (void)state;
    tinymodel_open(&m, tinymodel_write(&specs[0]), "cpu", "auto", 2, 1, 0, 0);
    map_init(&s);
    assert_ok(wsum_take(m.w, &(struct wsum_opts){0}, &s, &e), &e);
    assert_int_equal(s.count, m.w->nparams);
    assert_int_equal(at(&s, L "self_attn.qkv_proj.weight"), sum_of(m.file, qkv, 3, 0));
    assert_int_equal(at(&s, L "self_attn.qkv_proj.bias"), sum_of(m.file, bias, 3, 0));
    assert_int_equal(at(&s, L "mlp.gate_up_proj.weight"), sum_of(m.file, mlp, 2, 0));
    assert_int_equal(at(&s, L "mlp.down_proj.weight"), sum_of(m.file, down, 1, 0));
    assert_int_equal(at(&s, "model.norm.weight"), sum_of(m.file, norm, 1, 0));
    assert_int_equal(at(&s, "lm_head.weight"), sum_of(m.file, head, 1, 0));
    map_fini(&s);
    map_init(&s);
    assert_ok(wsum_take(m.w, &(struct wsum_opts){.pad = 64}, &s, &e), &e);
    assert_int_equal(at(&s, "lm_head.weight"), sum_of(m.file, head, 1, 14 * 64));
    assert_int_equal(at(&s, "model.embed_tokens.weight"), sum_of(m.file, embed, 1, 14 * 64));
    assert_int_equal(at(&s, "model.norm.weight"), sum_of(m.file, norm, 1, 0));
    map_fini(&s);
    tinymodel_close(&m);
    tinymodel_open(&m, tinymodel_write(&specs[1]), "cpu", "auto", 1, 1, 0, 1);
    map_init(&s);
    assert_ok(wsum_take(m.w, &(struct wsum_opts){0}, &s, &e), &e);
    (void)at(&s, "model.layers.0.mlp.gate_up_proj.weight");
    map_fini(&s);
    tinymodel_close(&m);
}

/* Rows [from, from + n) of a tensor of the folder with `cols` columns, and of them the columns [c0,
 * c0 + nc), behind what is in v. */
static int64_t put(const struct wfile *f, const char *name, int64_t cols, const int64_t rows[2],
                   const int64_t c[2], uint16_t *v)
{
    int64_t count = wfile_find(f, name)->count, n = 0;
    uint16_t *all = mem_alloc((size_t)count * 2);

    assert_ok(wfile_read_bf16(f, name, all, count, &e), &e);
    for (int64_t r = rows[0]; r < rows[0] + rows[1]; r++) {
        for (int64_t k = c[0]; k < c[0] + c[1]; k++) {
            v[n++] = all[r * cols + k];
        }
    }
    mem_free(all);
    return n;
}
#define R(a, n)                                                                                    \
    (const int64_t[])                                                                              \
    {                                                                                              \
        a, n                                                                                       \
    }

/* What each of four ranks of an SGLang holds: 4 heads over 2 of keys and values of 32, 128 columns
 * of the MLP, 50 tokens filled up to 64. */
static void test_split(void **state)
{
    static const struct tinymodel_spec spec = {"qwen2", 0, 2, 64, 4, 2, 32, 128, 50, 128, 0};
    struct tinymodel m;
    uint16_t *v = mem_alloc(1 << 20);

    (void)state;
    tinymodel_open(&m, tinymodel_write(&spec), "cpu", "auto", 1, 1, 0, 0);
    for (int r = 0; r < 4; r++) {
        struct wsum_opts o = {.pad = 64, .tp_rank = r, .tp_size = 4};
        struct map s;
        int64_t n, have = r < 3 ? 16 : 2;
        map_init(&s);
        assert_ok(wsum_take(m.w, &o, &s, &e), &e);
        n = put(m.file, L "self_attn.q_proj.weight", 64, R(32 * r, 32), R(0, 64), v);
        n += put(m.file, L "self_attn.k_proj.weight", 64, R(32 * (r / 2), 32), R(0, 64), v + n);
        n += put(m.file, L "self_attn.v_proj.weight", 64, R(32 * (r / 2), 32), R(0, 64), v + n);
        assert_int_equal(at(&s, L "self_attn.qkv_proj.weight"),
                         wsum_bytes(WSUM_SHA256, v, (size_t)n * 2));
        n = put(m.file, L "self_attn.q_proj.bias", 1, R(32 * r, 32), R(0, 1), v);
        n += put(m.file, L "self_attn.k_proj.bias", 1, R(32 * (r / 2), 32), R(0, 1), v + n);
        n += put(m.file, L "self_attn.v_proj.bias", 1, R(32 * (r / 2), 32), R(0, 1), v + n);
        assert_int_equal(at(&s, L "self_attn.qkv_proj.bias"),
                         wsum_bytes(WSUM_SHA256, v, (size_t)n * 2));
        n = put(m.file, L "self_attn.o_proj.weight", 128, R(0, 64), R(32 * r, 32), v);
        assert_int_equal(at(&s, L "self_attn.o_proj.weight"),
                         wsum_bytes(WSUM_SHA256, v, (size_t)n * 2));
        n = put(m.file, L "mlp.gate_proj.weight", 64, R(32 * r, 32), R(0, 64), v);
        n += put(m.file, L "mlp.up_proj.weight", 64, R(32 * r, 32), R(0, 64), v + n);
        assert_int_equal(at(&s, L "mlp.gate_up_proj.weight"),
                         wsum_bytes(WSUM_SHA256, v, (size_t)n * 2));
        n = put(m.file, L "mlp.down_proj.weight", 128, R(0, 64), R(32 * r, 32), v);
        assert_int_equal(at(&s, L "mlp.down_proj.weight"),
                         wsum_bytes(WSUM_SHA256, v, (size_t)n * 2));
        n = put(m.file, "model.norm.weight", 1, R(0, 64), R(0, 1), v);
        assert_int_equal(at(&s, "model.norm.weight"), wsum_bytes(WSUM_SHA256, v, (size_t)n * 2));
        n = put(m.file, "lm_head.weight", 64, R(16 * r, have), R(0, 64), v);
        memset(v + n, 0, (size_t)(16 * 64 - n) * 2);
        assert_int_equal(at(&s, "lm_head.weight"), wsum_bytes(WSUM_SHA256, v, 16 * 64 * 2));
        map_fini(&s);
        map_init(&s);
        o.tp_size = 3;
        assert_int_equal(wsum_take(m.w, &o, &s, &e), STATUS_UNSUPPORTED);
        map_fini(&s);
    }
    mem_free(v);
    tinymodel_close(&m);
}

/* A vocabulary that its ranks do not divide: 50 tokens are filled up to 192. */
static void test_split_vocab(void **state)
{
    static const struct tinymodel_spec spec = {"llama", 1, 1, 96, 3, 3, 32, 96, 50, 128, 0};
    struct tinymodel m;
    uint16_t *v = mem_alloc(64 * 96 * 2);

    (void)state;
    tinymodel_open(&m, tinymodel_write(&spec), "cpu", "auto", 1, 1, 0, 0);
    for (int r = 0; r < 3; r++) {
        struct wsum_opts o = {.pad = 64, .tp_rank = r, .tp_size = 3};
        struct map s;
        memset(v, 0, 64 * 96 * 2);
        if (r == 0) {
            put(m.file, "model.embed_tokens.weight", 96, R(0, 50), R(0, 96), v);
        }
        map_init(&s);
        assert_ok(wsum_take(m.w, &o, &s, &e), &e);
        assert_int_equal(at(&s, "model.embed_tokens.weight"),
                         wsum_bytes(WSUM_SHA256, v, 64 * 96 * 2));
        map_fini(&s);
    }
    mem_free(v);
    tinymodel_close(&m);
}

static int read_file(void *arg, const char *name, uint16_t *dst, int64_t count, struct err *err)
{
    return wfile_read_bf16(arg, name, dst, count, err);
}

/* Values that are not in memory. */
static void test_elsewhere(void **state)
{
    struct tinymodel a, b;
    struct map x, y;
    char hx[65], hy[65];

    (void)state;
    tinymodel_open(&a, tinymodel_write(&specs[0]), "cpu", "auto", 1, 1, 0, 0);
    tinymodel_open(&b, tinymodel_write(&specs[0]), "cpu", "auto", 1, 1, 0, 0); /* other values */
    map_init(&x);
    map_init(&y);
    assert_ok(wsum_take(b.w, &(struct wsum_opts){0}, &x, &e), &e);
    assert_ok(wsum_take(a.w, &(struct wsum_opts){.read = read_file, .arg = b.file}, &y, &e), &e);
    wsum_total(&x, hx);
    wsum_total(&y, hy);
    assert_string_equal(hx, hy);
    map_fini(&y);
    map_init(&y);
    assert_ok(wsum_take(a.w, &(struct wsum_opts){0}, &y, &e), &e);
    wsum_total(&y, hy);
    assert_string_not_equal(hx, hy);
    map_fini(&x);
    map_fini(&y);
    tinymodel_close(&a);
    tinymodel_close(&b);
}

static void test_draw(void **state)
{
    struct tinymodel m;
    struct map all, some[3];
    char a[65], b[65];
    int differ = 0;

    (void)state;
    tinymodel_open(&m, tinymodel_write(&specs[0]), "cpu", "auto", 1, 1, 0, 0);
    map_init(&all);
    assert_ok(wsum_take(m.w, &(struct wsum_opts){0}, &all, &e), &e);
    for (int i = 0; i < 3; i++) {
        struct wsum_opts o = {.bytes = 60000, .seed = i == 2 ? 0 : (uint64_t)i};
        map_init(&some[i]);
        assert_ok(wsum_take(m.w, &o, &some[i], &e), &e);
        assert_true(some[i].count > 0 && some[i].count < all.count);
        for (size_t k = 0; k < some[i].count; k++) {
            assert_int_equal(some[i].entries[k].value, at(&all, some[i].entries[k].key));
        }
    }
    assert_int_equal(some[0].count, some[2].count);
    for (size_t k = 0; k < some[0].count; k++) {
        assert_string_equal(some[0].entries[k].key, some[2].entries[k].key);
        differ |= k >= some[1].count || strcmp(some[0].entries[k].key, some[1].entries[k].key) != 0;
    }
    assert_true(differ);
    wsum_total(&all, a);
    map_fini(&some[0]);
    map_init(&some[0]);
    for (size_t k = all.count; k-- > 0;) { /* the order does not matter */
        map_put(&some[0], all.entries[k].key, all.entries[k].len, all.entries[k].value);
    }
    wsum_total(&some[0], b);
    assert_string_equal(a, b);
    map_put(&some[0], "model.norm.weight", 17, 1);
    wsum_total(&some[0], b);
    assert_string_not_equal(a, b);
    for (int i = 0; i < 3; i++) {
        map_fini(&some[i]);
    }
    map_fini(&all);
    assert_ok(weights_drop(m.w, &e), &e);
    map_init(&all);
    assert_int_equal(wsum_take(m.w, &(struct wsum_opts){0}, &all, &e), STATUS_AGAIN);
    map_fini(&all);
    tinymodel_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpu),         cmocka_unit_test(test_sha),
        cmocka_unit_test(test_names),       cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_vocab), cmocka_unit_test(test_elsewhere),
        cmocka_unit_test(test_draw),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
