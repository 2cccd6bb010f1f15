/* The GGUF container, its blocks dequantised, the texts made of its metadata; and files that are
 * cut, corrupted or of a kind we refuse. */
#include "fixture.h"

#include <jansson.h>
#include <math.h>

#include "model/gguf.h"
#include "model/gguf_text.h"
#include "num/dtype.h"

static struct gguf *open_bytes(const struct buf *b)
{
    const char *path = fixture_path("t.gguf");
    struct gguf *g = NULL;
    struct err e = {0};
    fixture_write(path, b->data, b->len);
    assert_ok(gguf_open(path, &g, &e), &e);
    return g;
}

static void open_bad(const struct buf *b, int code, const char *word)
{
    const char *path = fixture_path("bad.gguf");
    struct gguf *g = NULL;
    struct err e = {0};
    fixture_write(path, b->data, b->len);
    assert_int_equal(gguf_open(path, &g, &e), code);
    if (!strstr(e.msg, word) || !strstr(e.msg, path)) {
        fail_msg("message \"%s\" lacks \"%s\"", e.msg, word);
    }
}

/* ---- metadata ---- */

static void test_metadata(void **state)
{
    struct buf b;
    struct gguf *g;
    const struct gguf_kv *kv;
    const uint8_t *at;
    (void)state;

    buf_init(&b, 1 << 16);
    fixture_header(&b, 0, 9);
    fixture_kv_u32(&b, "u32", 4000000000u);
    fixture_kv_f32(&b, "f32", 0.1f);
    fixture_kv_bool(&b, "yes", 1);
    fixture_kv_str(&b, "text", "hello");
    fixture_str(&b, "i8");
    fixture_le(&b, 1, 4);
    fixture_le(&b, 0xfe, 1);
    fixture_str(&b, "i64");
    fixture_le(&b, 11, 4);
    fixture_le(&b, (uint64_t)-5, 8);
    fixture_kv_array(&b, "words", 8, 3);
    fixture_str(&b, "a");
    fixture_str(&b, "");
    fixture_str(&b, "ccc");
    fixture_kv_array(&b, "ints", 5, 2);
    fixture_le(&b, (uint64_t)-7, 4);
    fixture_le(&b, 9, 4);
    fixture_kv_array(&b, "nested", 9, 2); /* two arrays: one of a u16, one empty */
    fixture_le(&b, 2, 4);
    fixture_le(&b, 1, 8);
    fixture_le(&b, 77, 2);
    fixture_le(&b, 8, 4);
    fixture_le(&b, 0, 8);

    g = open_bytes(&b);
    assert_int_equal(gguf_kv(g, "u32")->i, 4000000000ll);
    assert_true(gguf_kv(g, "f32")->f == (double)0.1f);
    assert_int_equal(gguf_kv(g, "yes")->i, 1);
    assert_int_equal(gguf_kv(g, "yes")->type, GGUF_BOOL);
    assert_int_equal(gguf_kv(g, "i8")->i, -2);
    assert_int_equal(gguf_kv(g, "i64")->i, -5);
    kv = gguf_kv(g, "text");
    assert_int_equal(kv->str.n, 5);
    assert_memory_equal(kv->str.s, "hello", 5);
    kv = gguf_kv(g, "words");
    assert_int_equal(kv->elem, GGUF_STRING);
    assert_int_equal(kv->count, 3);
    at = kv->data;
    assert_int_equal(gguf_next_string(&at).n, 1);
    assert_int_equal(gguf_next_string(&at).n, 0);
    assert_memory_equal(gguf_next_string(&at).s, "ccc", 3);
    kv = gguf_kv(g, "ints");
    assert_int_equal(gguf_array_int(kv, 0), -7);
    assert_int_equal(gguf_array_int(kv, 1), 9);
    assert_int_equal(gguf_kv(g, "nested")->count, 2);
    assert_null(gguf_kv(g, "none"));
    gguf_close(g);
    buf_fini(&b);
}

/* ---- values ---- */

/* The value of a half by its definition. */
static float half(uint16_t h)
{
    int exp = h >> 10 & 31, man = h & 1023;
    double v = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
    return (float)(h & 0x8000 ? -v : v);
}

/* Two rows of 64 values of random blocks of a type, with their bytes. */
static void random_blocks(struct buf *b, int type, uint64_t seed, int odd)
{
    uint64_t s = seed * 0x9e3779b97f4a7c15ull + 1;
    for (int k = 0; k < 4; k++) {
        int halves = type == 3 ? 2 : 1, bytes = type == 3 ? 16 : 32;
        for (int i = 0; i < halves; i++) {
            uint32_t h = fixture_rand(&s) & 0xffff;
            if (!odd && (h & 0x7c00) == 0x7c00) {
                h ^= 0x4000; /* finite */
            }
            fixture_le(b, odd ? h | 0x7c00 : h, 2);
        }
        for (int i = 0; i < bytes; i++) {
            fixture_le(b, fixture_rand(&s) & 0xff, 1);
        }
    }
}

static float want_value(const uint8_t *data, int type, int i)
{
    const uint8_t *p = data + i / 32 * (type == 3 ? 20 : 34);
    int j = i % 32;
    volatile float prod; /* each step rounded to f32 */
    if (type == 8) {
        return half((uint16_t)(p[0] | p[1] << 8)) * (float)(int8_t)p[2 + j];
    }
    prod =
        half((uint16_t)(p[0] | p[1] << 8)) * (float)(j < 16 ? p[4 + j] & 15 : p[4 + j - 16] >> 4);
    return prod + half((uint16_t)(p[2] | p[3] << 8));
}

static void check_blocks(int type, uint64_t seed)
{
    struct buf b, data;
    struct gguf *g;
    const struct gguf_tensor *t;
    struct err e = {0};
    float f[128], row[64];
    uint16_t h[128];

    buf_init(&b, 1 << 16);
    buf_init(&data, 1 << 16);
    random_blocks(&data, type, seed, 0);
    fixture_header(&b, 1, 0);
    fixture_tensor(&b, "x", 64, 2, (uint32_t)type, 0);
    fixture_align(&b);
    buf_add(&b, data.data, data.len);
    g = open_bytes(&b);
    t = gguf_tensor_at(g, 0);
    assert_int_equal(t->count, 128);
    assert_ok(gguf_rows_f32(t, 0, 2, f, &e), &e);
    assert_ok(gguf_rows_bf16(t, 0, 2, h, &e), &e);
    for (int i = 0; i < 128; i++) {
        float want = want_value((const uint8_t *)data.data, type, i);
        assert_memory_equal(&f[i], &want, 4);
        assert_int_equal(h[i], dtype_to_bf16(want));
    }
    assert_ok(gguf_rows_f32(t, 1, 1, row, &e), &e);
    assert_memory_equal(row, f + 64, sizeof row);
    gguf_close(g);
    buf_fini(&b);
    buf_fini(&data);
}

static void test_quants(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        check_blocks(3, seed);
        check_blocks(8, seed);
    }
}

static size_t from_hex(const char *text, uint8_t *out, size_t max)
{
    size_t n = strlen(text) / 2;
    assert_true(n <= max);
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        assert_int_equal(sscanf(text + 2 * i, "%2x", &v), 1);
        out[i] = (uint8_t)v;
    }
    return n;
}

/* tests/golden/gguf_blocks.json: the gguf package's values of random blocks. */
static void test_golden_blocks(void **state)
{
    json_error_t je;
    json_t *list = json_load_file(TEST_GOLDEN_DIR "/gguf_blocks.json", 0, &je), *c;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(list), 8);
    json_array_foreach(list, i, c)
    {
        uint8_t blocks[2048], want[4096];
        uint16_t got[2048];
        size_t bytes = from_hex(json_string_value(json_object_get(c, "blocks")), blocks, 2048);
        size_t n = from_hex(json_string_value(json_object_get(c, "bf16")), want, 4096) / 2;
        struct gguf *g;
        struct buf b;
        struct err e = {0};
        buf_init(&b, 1 << 16);
        fixture_header(&b, 1, 0);
        fixture_tensor(&b, "x", (int64_t)n, 0,
                       (uint32_t)json_integer_value(json_object_get(c, "type")), 0);
        fixture_align(&b);
        buf_add(&b, blocks, bytes);
        g = open_bytes(&b);
        assert_string_equal(gguf_tensor_at(g, 0)->type_name,
                            json_string_value(json_object_get(c, "name")));
        assert_ok(gguf_rows_bf16(gguf_tensor_at(g, 0), 0, 1, got, &e), &e);
        for (size_t k = 0; k < n; k++) {
            if (got[k] != (want[2 * k] | want[2 * k + 1] << 8)) {
                fail_msg("%s value %zu: %04x, not %02x%02x", gguf_tensor_at(g, 0)->type_name, k,
                         got[k], want[2 * k + 1], want[2 * k]);
            }
        }
        gguf_close(g);
        buf_fini(&b);
    }
    json_decref(list);
}

/* Infinite and NaN scales give the same bits by rounding as by the general rule. */
static void test_odd_scales(void **state)
{
    static const int types[] = {3, 8};
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct buf b;
        struct gguf *g;
        struct err e = {0};
        float f[128];
        uint16_t h[128];
        int odd = 0;
        buf_init(&b, 1 << 16);
        fixture_header(&b, 1, 0);
        fixture_tensor(&b, "x", 64, 2, (uint32_t)types[k], 0);
        fixture_align(&b);
        random_blocks(&b, types[k], 5, 1);
        g = open_bytes(&b);
        assert_ok(gguf_rows_f32(gguf_tensor_at(g, 0), 0, 2, f, &e), &e);
        assert_ok(gguf_rows_bf16(gguf_tensor_at(g, 0), 0, 2, h, &e), &e);
        for (int i = 0; i < 128; i++) {
            assert_int_equal(h[i], dtype_to_bf16(f[i]));
            odd += !isfinite(f[i]);
        }
        assert_int_equal(odd, 128);
        gguf_close(g);
        buf_fini(&b);
    }
}

static void test_plain_types(void **state)
{
    const uint32_t f32[4] = {0x3f808000, 0x3f818000, 0x00000001, 0xff800000};
    const uint16_t f16[4] = {0x3c00, 0x0001, 0x8400, 0x7bff};
    const uint16_t bf16[4] = {0x3f80, 0x0001, 0xc000, 0x7f7f};
    struct buf b;
    struct gguf *g;
    struct err e = {0};
    float f[4];
    uint16_t h[4];
    (void)state;

    buf_init(&b, 1 << 16);
    fixture_header(&b, 3, 0);
    fixture_tensor(&b, "f32", 4, 0, 0, 0);
    fixture_tensor(&b, "f16", 4, 0, 1, 32);
    fixture_tensor(&b, "bf16", 4, 0, 30, 64);
    fixture_align(&b);
    buf_add(&b, f32, 16);
    fixture_align(&b);
    buf_add(&b, f16, 8);
    fixture_align(&b);
    buf_add(&b, bf16, 8);
    g = open_bytes(&b);
    assert_ok(gguf_rows_f32(gguf_find(g, "f32"), 0, 1, f, &e), &e);
    assert_memory_equal(f, f32, 16);
    assert_ok(gguf_rows_bf16(gguf_find(g, "f32"), 0, 1, h, &e), &e);
    assert_memory_equal(h, ((const uint16_t[]){0x3f80, 0x3f82, 0x0000, 0xff80}), 8);
    assert_ok(gguf_rows_f32(gguf_find(g, "f16"), 0, 1, f, &e), &e);
    assert_true(f[0] == 1.0f && f[1] == 0x1p-24f && f[2] == -0x1p-14f && f[3] == 65504.0f);
    assert_ok(gguf_rows_bf16(gguf_find(g, "f16"), 0, 1, h, &e), &e);
    assert_memory_equal(h, ((const uint16_t[]){0x3f80, 0x3380, 0xb880, 0x4780}), 8);
    assert_ok(gguf_rows_bf16(gguf_find(g, "bf16"), 0, 1, h, &e), &e);
    assert_memory_equal(h, bf16, 8);
    assert_ok(gguf_rows_f32(gguf_find(g, "bf16"), 0, 1, f, &e), &e);
    assert_true(f[0] == 1.0f && f[2] == -2.0f);
    assert_int_equal(gguf_rows_f32(gguf_find(g, "f32"), 0, 2, f, &e), STATUS_INPUT);
    assert_int_equal(gguf_rows_f32(gguf_find(g, "f32"), -1, 1, f, &e), STATUS_INPUT);
    gguf_close(g);
    buf_fini(&b);
}

static void test_refused_types(void **state)
{
    static const struct {
        uint32_t type;
        const char *name;
    } types[] = {{7, "Q5_1"}, {13, "Q5_K"}, {15, "Q8_K"}, {39, "MXFP4"}, {4000, "type 4000"}};
    struct buf b;
    struct gguf *g;
    struct err e = {0};
    float f[256];
    (void)state;

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        buf_init(&b, 1 << 16);
        fixture_header(&b, 1, 0);
        fixture_tensor(&b, "w", 256, 0, types[i].type, 0);
        g = open_bytes(&b);
        assert_int_equal(gguf_tensor_at(g, 0)->readable, 0);
        assert_int_equal(gguf_rows_f32(gguf_tensor_at(g, 0), 0, 1, f, &e), STATUS_UNSUPPORTED);
        assert_non_null(strstr(e.msg, types[i].name));
        gguf_close(g);
        buf_fini(&b);
    }
    /* A row that is not whole blocks cannot be read either. */
    buf_init(&b, 1 << 16);
    fixture_header(&b, 1, 0);
    fixture_tensor(&b, "w", 33, 0, 8, 0);
    g = open_bytes(&b);
    assert_int_equal(gguf_rows_f32(gguf_tensor_at(g, 0), 0, 1, f, &e), STATUS_UNSUPPORTED);
    gguf_close(g);
    buf_fini(&b);
}

/* ---- malformed files ---- */

static void test_malformed(void **state)
{
    struct buf b;
    (void)state;

    buf_init(&b, 1 << 16);
    buf_str(&b, "GGML");
    open_bad(&b, STATUS_FORMAT, "not a gguf");
    buf_clear(&b);
    buf_str(&b, "GGUF");
    fixture_le(&b, 1, 4);
    open_bad(&b, STATUS_UNSUPPORTED, "version 1");
    buf_clear(&b);
    buf_str(&b, "GGUF");
    fixture_le(&b, 0x03000000, 4);
    open_bad(&b, STATUS_UNSUPPORTED, "big-endian");
    buf_clear(&b);
    fixture_header(&b, UINT64_MAX, 0);
    open_bad(&b, STATUS_FORMAT, "beyond");
    buf_clear(&b);
    fixture_header(&b, 0, 60000);
    open_bad(&b, STATUS_FORMAT, "fit");
    buf_clear(&b);
    fixture_header(&b, 0, 1);
    fixture_kv_array(&b, "k", 8, UINT64_MAX);
    open_bad(&b, STATUS_FORMAT, "ends inside k");
    buf_clear(&b);
    fixture_header(&b, 0, 1);
    fixture_kv_array(&b, "k", 10, UINT64_MAX / 4);
    open_bad(&b, STATUS_FORMAT, "ends inside k");
    buf_clear(&b);
    fixture_header(&b, 0, 1);
    fixture_kv_array(&b, "k", 99, 1);
    open_bad(&b, STATUS_FORMAT, "unknown type 99");
    buf_clear(&b);
    fixture_header(&b, 0, 1);
    fixture_kv_array(&b, "k", 9, 1);
    for (int i = 0; i < 200; i++) {
        fixture_le(&b, 9, 4);
        fixture_le(&b, 1, 8);
    }
    open_bad(&b, STATUS_FORMAT, "unknown type 9");
    buf_clear(&b);
    fixture_header(&b, 0, 2);
    fixture_kv_u32(&b, "k", 1);
    fixture_kv_u32(&b, "k", 1);
    open_bad(&b, STATUS_FORMAT, "twice");
    buf_clear(&b);
    fixture_header(&b, 0, 1);
    fixture_str(&b, "k");
    fixture_le(&b, 10, 4);
    fixture_le(&b, UINT64_MAX, 8);
    open_bad(&b, STATUS_FORMAT, "beyond");
    buf_clear(&b);
    fixture_header(&b, 0, 1);
    fixture_kv_u32(&b, "general.alignment", 24);
    open_bad(&b, STATUS_FORMAT, "alignment");
    buf_fini(&b);
}

static void test_malformed_tensors(void **state)
{
    struct buf b;
    (void)state;

    buf_init(&b, 1 << 16);
    fixture_header(&b, 1, 0);
    fixture_tensor(&b, "w", 32, 2, 0, 0);
    fixture_align(&b);
    buf_str(&b, "only a few bytes");
    open_bad(&b, STATUS_FORMAT, "tensor w");
    buf_clear(&b);
    fixture_header(&b, 1, 0);
    fixture_tensor(&b, "w", INT64_MAX, 2, 0, 0);
    open_bad(&b, STATUS_FORMAT, "dimension");
    buf_clear(&b);
    fixture_header(&b, 1, 0);
    fixture_tensor(&b, "w", 1ll << 40, 1ll << 19, 0, UINT64_MAX - 31);
    open_bad(&b, STATUS_FORMAT, "tensor w");
    buf_clear(&b);
    fixture_header(&b, 1, 0);
    fixture_str(&b, "w");
    fixture_le(&b, 5, 4);
    for (int i = 0; i < 64; i++) {
        buf_char(&b, 0);
    }
    open_bad(&b, STATUS_FORMAT, "5 dimensions");
    buf_clear(&b);
    fixture_header(&b, 1, 0);
    fixture_tensor(&b, "w", 2, 0, 0, 4); /* not at a multiple of the alignment */
    for (int i = 0; i < 64; i++) {
        buf_char(&b, 0);
    }
    open_bad(&b, STATUS_FORMAT, "offset 4");
    buf_clear(&b);
    fixture_header(&b, 2, 0);
    fixture_tensor(&b, "w", 2, 0, 0, 0);
    fixture_tensor(&b, "w", 2, 0, 0, 0);
    open_bad(&b, STATUS_FORMAT, "twice");
    buf_fini(&b);
}

static void test_truncated(void **state)
{
    const char *path = fixture_path("cut.gguf");
    struct buf b;
    (void)state;

    buf_init(&b, 1 << 20);
    fixture_llama_gguf(&b, "smollm");
    for (size_t n = 0; n < b.len; n += n < 4096 ? 1 : 61) {
        struct gguf *g = NULL;
        struct err e = {0};
        fixture_write(path, b.data, n);
        assert_int_equal(gguf_open(path, &g, &e), STATUS_FORMAT);
        assert_true(e.msg[0] != 0);
    }
    buf_fini(&b);
}

static void test_corrupted(void **state)
{
    const char *path = fixture_path("rot.gguf");
    struct buf good, b;
    int opened = 0, refused = 0;
    (void)state;

    buf_init(&good, 1 << 20);
    buf_init(&b, 1 << 20);
    fixture_llama_gguf(&good, "qwen2");
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        uint64_t s = seed * 0x9e3779b97f4a7c15ull;
        struct gguf *g = NULL;
        struct gguf_text t;
        struct err e = {0};
        static float f[8192];
        buf_clear(&b);
        buf_add(&b, good.data, good.len);
        for (uint32_t k = fixture_rand(&s) % 4 + 1; k; k--) {
            b.data[fixture_rand(&s) % 2600] =
                (char)(fixture_rand(&s) % 3 ? fixture_rand(&s) : 0xff);
        }
        fixture_write(path, b.data, b.len);
        if (gguf_open(path, &g, &e) != STATUS_OK) {
            assert_true(e.msg[0] != 0);
            refused++;
            continue;
        }
        opened++;
        if (gguf_text_make(g, &t, &e) == STATUS_OK) {
            json_t *j = json_loads(t.tokenizer, 0, NULL);
            assert_non_null(j);
            json_decref(j);
            gguf_text_fini(&t);
        }
        for (int i = 0; i < gguf_tensor_count(g); i++) {
            const struct gguf_tensor *x = gguf_tensor_at(g, i);
            if (x->readable && x->count <= 8192) {
                assert_ok(gguf_rows_f32(x, 0, x->count / x->dim[0], f, &e), &e);
            }
        }
        gguf_close(g);
    }
    assert_true(opened > 100 && refused > 100);
    buf_fini(&b);
    buf_fini(&good);
}

/* ---- texts ---- */

static void make_texts(const char *pre, struct gguf_text *t)
{
    struct buf b;
    struct gguf *g;
    struct err e = {0};
    buf_init(&b, 1 << 20);
    fixture_llama_gguf(&b, pre);
    g = open_bytes(&b);
    assert_ok(gguf_text_make(g, t, &e), &e);
    gguf_close(g);
    buf_fini(&b);
}

static json_t *parse(const char *text)
{
    json_error_t je;
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, &je);
    if (!j) {
        fail_msg("%s in %s", je.text, text);
    }
    return j;
}

/* The JSON at `key` of root equals `want`. */
static void same_json(const json_t *root, const char *key, const char *want)
{
    json_t *w = json_loads(want, JSON_DECODE_ANY, NULL);
    assert_non_null(w);
    if (!json_equal(json_object_get(root, key), w)) {
        char *got = json_dumps(json_object_get(root, key), JSON_ENCODE_ANY | JSON_COMPACT);
        fail_msg("%s is %s, not %s", key, got ? got : "absent", want);
    }
    json_decref(w);
}

static void test_config(void **state)
{
    struct gguf_text t;
    json_t *j;
    (void)state;

    make_texts("smollm", &t);
    j = parse(t.config);
    same_json(j, "architectures", "[\"LlamaForCausalLM\"]");
    same_json(j, "model_type", "\"llama\"");
    same_json(j, "hidden_size", "64");
    same_json(j, "num_hidden_layers", "1");
    same_json(j, "num_attention_heads", "4");
    same_json(j, "num_key_value_heads", "2");
    same_json(j, "head_dim", "16");
    same_json(j, "intermediate_size", "96");
    same_json(j, "vocab_size", "12");
    same_json(j, "max_position_embeddings", "256");
    same_json(j, "rms_norm_eps", "9.9999997473787516e-06");
    same_json(j, "rope_parameters", "{\"rope_theta\": 100000.0, \"rope_type\": \"default\"}");
    same_json(j, "tie_word_embeddings", "true");
    same_json(j, "bos_token_id", "1");
    same_json(j, "eos_token_id", "0");
    same_json(j, "dtype", "\"bfloat16\"");
    json_decref(j);
    j = parse(t.generation_config);
    same_json(j, "eos_token_id", "[0, 9]");
    json_decref(j);
    j = parse(t.tokenizer_config);
    same_json(j, "bos_token", "\"<|start|>\"");
    same_json(j, "eos_token", "\"<|end|>\"");
    same_json(j, "model_max_length", "256");
    assert_string_equal(json_string_value(json_object_get(j, "chat_template")), fixture_template);
    json_decref(j);
    assert_string_equal(t.chat_template, fixture_template);
    gguf_text_fini(&t);
}

static void test_tokenizer(void **state)
{
    struct gguf_text t;
    json_t *j, *m;
    (void)state;

    make_texts("smollm", &t);
    j = parse(t.tokenizer);
    m = json_object_get(j, "model");
    same_json(m, "vocab",
              "{\"<|end|>\":0,\"<|start|>\":1,\"a\":2,\"b\":3,\"c\":4,\"\\u0120\":5,"
              "\"\\u0120a\":6,\"ab\":7,\"<think>\":8,\"<\\uff5cx\\uff5c>\":9,\"abc\":10,"
              "\"\\\"\":11}");
    same_json(m, "merges", "[\"a b\",\"\\u0120 a\",\"ab c\"]");
    same_json(m, "ignore_merges", "false");
    assert_int_equal(json_array_size(json_object_get(j, "added_tokens")), 4);
    m = json_array_get(json_object_get(j, "added_tokens"), 2);
    same_json(m, "id", "8");
    same_json(m, "content", "\"<think>\"");
    same_json(m, "special", "false");
    m = json_array_get(json_object_get(j, "added_tokens"), 3);
    same_json(m, "id", "9");
    same_json(m, "special", "true");
    same_json(j, "post_processor", "null");
    json_decref(j);
    gguf_text_fini(&t);
}

static void test_bos_template(void **state)
{
    struct gguf_text t;
    json_t *j, *p;
    (void)state;

    make_texts("llama-bpe", &t);
    j = parse(t.tokenizer);
    p = json_array_get(json_object_get(json_object_get(j, "post_processor"), "processors"), 1);
    same_json(p, "type", "\"TemplateProcessing\"");
    same_json(p, "single",
              "[{\"SpecialToken\":{\"id\":\"<|start|>\",\"type_id\":0}},"
              "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]");
    same_json(p, "special_tokens",
              "{\"<|start|>\":{\"id\":\"<|start|>\",\"ids\":[1],\"tokens\":[\"<|start|>\"]}}");
    json_decref(j);
    gguf_text_fini(&t);
}

static void test_names(void **state)
{
    char out[128];
    struct err e = {0};
    (void)state;
    for (int i = 0; i < FIXTURE_TENSORS; i++) {
        assert_ok(gguf_text_name(fixture_shapes[i].gguf, out, sizeof out, &e), &e);
        assert_string_equal(out, fixture_shapes[i].hf);
    }
    assert_ok(gguf_text_name("blk.31.attn_q_norm.weight", out, sizeof out, &e), &e);
    assert_string_equal(out, "model.layers.31.self_attn.q_norm.weight");
    assert_ok(gguf_text_name("blk.7.attn_v.bias", out, sizeof out, &e), &e);
    assert_string_equal(out, "model.layers.7.self_attn.v_proj.bias");
    assert_ok(gguf_text_name("output.weight", out, sizeof out, &e), &e);
    assert_string_equal(out, "lm_head.weight");
    assert_int_equal(gguf_text_name("blk.0.ffn_gate_exps.weight", out, sizeof out, &e),
                     STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "ffn_gate_exps"));
    assert_int_equal(gguf_text_name("rope_freqs.weight", out, sizeof out, &e), STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "rope"));
    assert_int_equal(gguf_text_name("blk.-1.attn_q.weight", out, sizeof out, &e),
                     STATUS_UNSUPPORTED);
    assert_int_equal(gguf_text_name("blk.0.attn_q.weight.x", out, sizeof out, &e),
                     STATUS_UNSUPPORTED);
}

/* A header of the embedding and the given keys over the tiny llama's: refused, naming the cause. */
static void text_bad(const char *pre, const char *key, const char *text, int64_t number, int code,
                     const char *word)
{
    struct buf b;
    struct gguf *g;
    struct gguf_text t;
    struct err e = {0};

    buf_init(&b, 1 << 20);
    fixture_header(&b, 1, 22);
    fixture_llama_meta(&b, pre);
    if (text) {
        fixture_kv_str(&b, key, text);
    } else {
        fixture_kv_u32(&b, key, (uint32_t)number);
    }
    fixture_tensor(&b, "token_embd.weight", 64, 12, 12, 0);
    g = open_bytes(&b);
    assert_int_equal(gguf_text_make(g, &t, &e), code);
    if (!strstr(e.msg, word)) {
        fail_msg("message \"%s\" lacks \"%s\"", e.msg, word);
    }
    assert_null(t.config);
    gguf_close(g);
    buf_fini(&b);
}

static void test_refused_texts(void **state)
{
    (void)state;
    text_bad("tekken", "x", NULL, 1, STATUS_UNSUPPORTED, "tekken");
    text_bad("smollm", "llama.rope.scaling.type", "yarn", 0, STATUS_UNSUPPORTED, "yarn");
    text_bad("smollm", "llama.expert_count", NULL, 8, STATUS_UNSUPPORTED, "llama.expert_count");
    text_bad("smollm", "llama.attention.sliding_window", NULL, 8, STATUS_UNSUPPORTED,
             "sliding_window");
    text_bad("smollm", "llama.attention.key_length", NULL, 32, STATUS_UNSUPPORTED, "key length 32");
    text_bad("smollm", "tokenizer.ggml.unknown_token_id", NULL, 12, STATUS_FORMAT,
             "unknown_token_id");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metadata),      cmocka_unit_test(test_quants),
        cmocka_unit_test(test_odd_scales),    cmocka_unit_test(test_golden_blocks),
        cmocka_unit_test(test_plain_types),   cmocka_unit_test(test_refused_types),
        cmocka_unit_test(test_malformed),     cmocka_unit_test(test_malformed_tensors),
        cmocka_unit_test(test_truncated),     cmocka_unit_test(test_corrupted),
        cmocka_unit_test(test_config),        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_bos_template),  cmocka_unit_test(test_names),
        cmocka_unit_test(test_refused_texts),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
