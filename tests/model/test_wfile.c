/* A model on disk under Hugging Face's names, from a folder (one file, shards) and from GGUF; the
 * export of a folder; and what is said when pieces are missing or wrong. */
#include "fixture.h"

#include <jansson.h>
#include <pthread.h>
#include <sys/stat.h>

#include "model/hfdir.h"
#include "model/safetensors.h"
#include "model/wfile.h"
#include "num/dtype.h"

/* ---- fixtures ---- */

/* Value k of tensor i of the folder; exact in bf16. */
static float folder_value(int i, int64_t k)
{
    return (float)((k * 29 + i * 13) % 251 - 125) / 64.0f;
}

/* Writes tensors [from, to) of the tiny llama as one file. */
static void write_weights(const char *dir, const char *name, int from, int to,
                          enum safetensors_dtype dtype)
{
    char *path = fsio_join(dir, name);
    struct safetensors_writer *w;
    struct err e = {0};

    assert_ok(safetensors_writer_open(path, &w, &e), &e);
    for (int i = from; i < to; i++) {
        const struct fixture_shape *s = &fixture_shapes[i];
        assert_ok(safetensors_writer_add(w, s->hf, dtype, s->cols ? 2 : 1,
                                         (int64_t[]){s->rows, s->cols}, &e),
                  &e);
    }
    assert_ok(safetensors_writer_begin(w, &e), &e);
    for (int i = from; i < to; i++) {
        for (int64_t k = 0; k < fixture_count(i); k++) {
            float f = folder_value(i, k);
            uint16_t h = dtype_to_bf16(f);
            assert_ok(dtype == SAFETENSORS_F32 ? safetensors_writer_write(w, &f, 4, &e)
                                               : safetensors_writer_write(w, &h, 2, &e),
                      &e);
        }
    }
    assert_ok(safetensors_writer_commit(w, &e), &e);
    mem_free(path);
}

/* An empty folder of that name. */
static const char *new_folder(const char *name)
{
    const char *dir = fixture_path(name);
    struct err e = {0};
    assert_ok(fsio_remove_tree(dir, &e), &e);
    assert_ok(fsio_mkdirs(dir, &e), &e);
    return dir;
}

static const char *llama_folder(const char *name, enum safetensors_dtype dtype)
{
    const char *dir = new_folder(name);
    fixture_text(dir, "config.json", fixture_config);
    write_weights(dir, "model.safetensors", 0, FIXTURE_TENSORS, dtype);
    return dir;
}

static const char *llama_gguf(const char *name)
{
    const char *path = fixture_path(name);
    struct buf b;
    buf_init(&b, 1 << 20);
    fixture_llama_gguf(&b, "smollm");
    fixture_write(path, b.data, b.len);
    buf_fini(&b);
    return path;
}

static struct wfile *open_ok(const char *path)
{
    struct wfile *w = NULL;
    struct err e = {0};
    assert_ok(wfile_open(path, &w, &e), &e);
    return w;
}

static void open_bad(const char *path, int code, const char *w1, const char *w2)
{
    struct wfile *w = NULL;
    struct err e = {0};
    assert_int_equal(wfile_open(path, &w, &e), code);
    if (!strstr(e.msg, w1) || !strstr(e.msg, w2)) {
        fail_msg("message \"%s\" lacks \"%s\" or \"%s\"", e.msg, w1, w2);
    }
    assert_null(w);
}

/* Every tensor of w has the folder's values, by both reads. */
static void check_folder_values(const struct wfile *w)
{
    static float f[8192];
    static uint16_t h[8192];
    struct err e = {0};

    assert_int_equal(wfile_tensor_count(w), FIXTURE_TENSORS);
    for (int i = 0; i < FIXTURE_TENSORS; i++) {
        const struct fixture_shape *s = &fixture_shapes[i];
        const struct wfile_tensor *t = wfile_find(w, s->hf);
        assert_non_null(t);
        assert_int_equal(t->count, fixture_count(i));
        assert_int_equal(t->dim[0], s->rows);
        assert_int_equal(t->ndim, s->cols ? 2 : 1);
        assert_ok(wfile_read_f32(w, s->hf, f, t->count, &e), &e);
        assert_ok(wfile_read_bf16(w, s->hf, h, t->count, &e), &e);
        for (int64_t k = 0; k < t->count; k++) {
            assert_true(f[k] == folder_value(i, k));
            assert_int_equal(h[k], dtype_to_bf16(folder_value(i, k)));
        }
    }
}

/* ---- folders ---- */

static void test_folder(void **state)
{
    static const enum safetensors_dtype dtypes[] = {SAFETENSORS_BF16, SAFETENSORS_F32};
    (void)state;
    for (int k = 0; k < 2; k++) {
        const char *dir = llama_folder("hf", dtypes[k]);
        struct err e = {0};
        struct wfile *w;
        float f[1];

        fixture_text(dir, "generation_config.json", "{\"eos_token_id\": [3, 0]}");
        fixture_text(dir, "tokenizer.json", "{\"version\": \"1.0\"}");
        w = open_ok(dir);
        check_folder_values(w);
        assert_int_equal(wfile_arch(w)->hidden, 64);
        assert_int_equal(wfile_arch(w)->head_dim, 16);
        assert_int_equal(wfile_arch(w)->n_eos, 2);
        assert_int_equal(wfile_arch(w)->eos_id[0], 3);
        assert_string_equal(wfile_config_json(w), fixture_config);
        assert_string_equal(wfile_tokenizer_json(w), "{\"version\": \"1.0\"}");
        assert_null(wfile_tokenizer_config_json(w));
        assert_null(wfile_chat_template(w));
        assert_string_equal(wfile_tensor_at(w, 0)->name, "model.embed_tokens.weight");
        assert_null(wfile_find(w, "lm_head.weight"));
        assert_int_equal(wfile_read_f32(w, "lm_head.weight", f, 1, &e), STATUS_NOTFOUND);
        assert_non_null(strstr(e.msg, "lm_head.weight"));
        assert_int_equal(wfile_read_bf16(w, "model.norm.weight", NULL, 63, &e), STATUS_INPUT);
        assert_non_null(strstr(e.msg, "64"));
        wfile_close(w);
    }
}

/* An index for a split before tensor `at`. */
static void write_index(const char *dir, int at, const char *second)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_str(&b, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int i = 0; i < FIXTURE_TENSORS; i++) {
        buf_printf(&b, "%s\"%s\": \"%s\"", i ? "," : "", fixture_shapes[i].hf,
                   i < at ? "model-00001-of-00002.safetensors" : second);
    }
    buf_str(&b, "}}");
    fixture_text(dir, "model.safetensors.index.json", b.data);
    buf_fini(&b);
}

static void test_sharded(void **state)
{
    static const char *const first = "model-00001-of-00002.safetensors";
    static const char *const second = "model-00002-of-00002.safetensors";
    const char *dir = new_folder("shards");
    struct wfile *w;
    (void)state;

    fixture_text(dir, "config.json", fixture_config);
    write_weights(dir, first, 0, 4, SAFETENSORS_BF16);
    write_weights(dir, second, 4, FIXTURE_TENSORS, SAFETENSORS_BF16);
    write_index(dir, 4, second);
    w = open_ok(dir);
    check_folder_values(w);
    assert_string_equal(wfile_tensor_at(w, 4)->name, fixture_shapes[4].hf);
    wfile_close(w);

    write_index(dir, 5, second); /* tensor 4 is said to be in the first file */
    open_bad(dir, STATUS_FORMAT, fixture_shapes[4].hf, first);
    write_index(dir, 4, "model-00003-of-00002.safetensors");
    open_bad(dir, STATUS_NOTFOUND, "model-00003", "");
    write_index(dir, 4, "../x.safetensors");
    open_bad(dir, STATUS_FORMAT, "index.json", "plain file name");
    fixture_text(dir, "model.safetensors.index.json", "{\"weight_map\": {}}");
    open_bad(dir, STATUS_FORMAT, "index.json", "0 files");
    fixture_text(dir, "model.safetensors.index.json", "{\"weight\"");
    open_bad(dir, STATUS_FORMAT, "index.json", "");
    fixture_text(dir, "model.safetensors.index.json", "{}");
    open_bad(dir, STATUS_FORMAT, "index.json", "weight_map");
}

static void test_templates(void **state)
{
    const char *dir = llama_folder("tmpl", SAFETENSORS_BF16);
    char *jinja = fsio_join(dir, "chat_template.jinja");
    struct wfile *w;
    (void)state;

    /* The length that transformers writes for "no limit" is beyond 64 bits. */
    fixture_text(dir, "tokenizer_config.json",
                 "{\"model_max_length\": 1000000000000000019884624838656,"
                 " \"chat_template\": \"one {{ x }}\"}");
    w = open_ok(dir);
    assert_string_equal(wfile_chat_template(w), "one {{ x }}");
    wfile_close(w);
    fixture_text(dir, "tokenizer_config.json",
                 "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"},"
                 " {\"name\": \"default\", \"template\": \"two\"}]}");
    w = open_ok(dir);
    assert_string_equal(wfile_chat_template(w), "two");
    wfile_close(w);
    fixture_text(dir, "chat_template.jinja", "three\n");
    w = open_ok(dir);
    assert_string_equal(wfile_chat_template(w), "three\n");
    wfile_close(w);
    assert_int_equal(unlink(jinja), 0);
    fixture_text(dir, "tokenizer_config.json", "{\"chat_template\": 3}");
    open_bad(dir, STATUS_FORMAT, "tokenizer_config.json", "chat_template");
    fixture_text(dir, "tokenizer_config.json", "{");
    open_bad(dir, STATUS_FORMAT, "tokenizer_config.json", "line 1");
    mem_free(jinja);
}

static void test_missing_pieces(void **state)
{
    const char *dir;
    struct err e = {0};
    char *sub;
    (void)state;

    open_bad(fixture_path("nowhere"), STATUS_NOTFOUND, "nowhere", "give a Hugging Face folder");
    dir = new_folder("empty");
    open_bad(dir, STATUS_INPUT, "has no config.json", "give a Hugging Face folder or a .gguf file");
    fixture_text(dir, "config.json", fixture_config);
    open_bad(dir, STATUS_INPUT, "has no model.safetensors", "");
    fixture_text(dir, "pytorch_model.bin", "x");
    open_bad(dir, STATUS_INPUT, "pytorch_model.bin is not read", "safetensors");

    dir = new_folder("dist");
    fixture_text(dir, "common.pt", "x");
    open_bad(dir, STATUS_UNSUPPORTED, "torch_dist", "give the Hugging Face folder");
    dir = new_folder("dist");
    fixture_text(dir, "__0_0.distcp", "x");
    open_bad(dir, STATUS_UNSUPPORTED, "torch_dist", "__0_0.distcp");
    dir = new_folder("dist");
    fixture_text(dir, "latest_checkpointed_iteration.txt", "20\n");
    sub = fsio_join(dir, "iter_0000020");
    assert_ok(fsio_mkdirs(sub, &e), &e);
    open_bad(dir, STATUS_INPUT, "has no config.json", "");
    fixture_text(sub, "metadata.json", "{\"sharded_backend\": \"torch_dist\"}");
    open_bad(dir, STATUS_UNSUPPORTED, "torch_dist", "iter_0000020/metadata.json");
    mem_free(sub);

    dir = llama_folder("one", SAFETENSORS_BF16);
    sub = fsio_join(dir, "model.safetensors");
    open_bad(sub, STATUS_INPUT, "give its folder", "model.safetensors");
    mem_free(sub);
    fixture_text(fixture_dir, "x.gguf", "not one");
    open_bad(fixture_path("x.gguf"), STATUS_FORMAT, "not a gguf", "x.gguf");
}

static void test_wrong_shapes(void **state)
{
    const char *dir = llama_folder("shape", SAFETENSORS_BF16);
    char text[1024];
    char *at;
    (void)state;

    snprintf(text, sizeof text, "%s", fixture_config);
    at = strstr(text, "\"vocab_size\": 12");
    memcpy(at, "\"vocab_size\": 13", 16);
    fixture_text(dir, "config.json", text);
    open_bad(dir, STATUS_FORMAT, "model.embed_tokens.weight", "13 by 64");
    snprintf(text, sizeof text, "%s", fixture_config);
    at = strstr(text, "\"num_hidden_layers\": 1");
    memcpy(at, "\"num_hidden_layers\": 2", 22);
    fixture_text(dir, "config.json", text);
    open_bad(dir, STATUS_FORMAT, "model.layers.1.input_layernorm.weight", "missing");
    snprintf(text, sizeof text, "%s", fixture_config);
    at = strstr(text, "\"tie_word_embeddings\": true ");
    assert_null(at);
    at = strstr(text, "true");
    memcpy(at, "null", 4);
    fixture_text(dir, "config.json", text);
    open_bad(dir, STATUS_FORMAT, "lm_head.weight", "missing");
    snprintf(text, sizeof text, "%s", fixture_config);
    memcpy(strstr(text, "\"llama\""), "\"qwen2\"", 7);
    fixture_text(dir, "config.json", text);
    open_bad(dir, STATUS_FORMAT, "q_proj.bias", "missing");
    fixture_text(dir, "config.json", "{\"model_type\": \"mamba\"}");
    open_bad(dir, STATUS_UNSUPPORTED, "model_type", dir);
}

/* ---- GGUF ---- */

/* transformers: w.reshape(heads, half, 2, cols).swapaxes(1, 2), written out as four loops. */
static void unpermute(const float *in, float *out, int heads, int half, int cols)
{
    for (int h = 0; h < heads; h++) {
        for (int j = 0; j < 2; j++) {
            for (int i = 0; i < half; i++) {
                for (int c = 0; c < cols; c++) {
                    out[((h * 2 + j) * half + i) * cols + c] =
                        in[((h * half + i) * 2 + j) * cols + c];
                }
            }
        }
    }
}

/* What the tiny GGUF's tensor i holds, in Hugging Face's order. */
static void gguf_values(int i, float *out)
{
    static float raw[8192];
    for (int64_t k = 0; k < fixture_count(i); k++) {
        raw[k] = (float)fixture_q(i, k) / 128.0f;
    }
    if (strstr(fixture_shapes[i].gguf, "attn_q.")) {
        unpermute(raw, out, 4, 8, 64);
    } else if (strstr(fixture_shapes[i].gguf, "attn_k.")) {
        unpermute(raw, out, 2, 8, 64);
    } else {
        memcpy(out, raw, (size_t)fixture_count(i) * 4);
    }
}

static void check_gguf_values(const struct wfile *w, int f32_too)
{
    static float f[8192], want[8192];
    static uint16_t h[8192];
    struct err e = {0};

    assert_int_equal(wfile_tensor_count(w), FIXTURE_TENSORS);
    for (int i = 0; i < FIXTURE_TENSORS; i++) {
        const struct wfile_tensor *t = wfile_tensor_at(w, i);
        assert_string_equal(t->name, fixture_shapes[i].hf);
        assert_int_equal(t->dim[0], fixture_shapes[i].rows);
        assert_int_equal(t->dim[1], fixture_shapes[i].cols ? fixture_shapes[i].cols : 1);
        gguf_values(i, want);
        assert_ok(wfile_read_bf16(w, t->name, h, t->count, &e), &e);
        for (int64_t k = 0; k < t->count; k++) {
            assert_int_equal(h[k], dtype_to_bf16(want[k]));
        }
        if (f32_too) {
            assert_ok(wfile_read_f32(w, t->name, f, t->count, &e), &e);
            assert_memory_equal(f, want, (size_t)t->count * 4);
        }
    }
}

static void test_gguf(void **state)
{
    struct wfile *w = open_ok(llama_gguf("m.gguf"));
    const struct arch *a = wfile_arch(w);
    (void)state;

    check_gguf_values(w, 1);
    assert_string_equal(a->family, "llama");
    assert_int_equal(a->n_kv_heads, 2);
    assert_int_equal(a->vocab, 12);
    assert_int_equal(a->tie_embeddings, 1);
    assert_true(a->rms_eps == 1e-5f);
    assert_true(a->rope[0].theta == 100000.0);
    assert_int_equal(a->n_eos, 2);
    assert_int_equal(a->eos_id[0], 0);
    assert_int_equal(a->eos_id[1], 9);
    assert_string_equal(wfile_chat_template(w), fixture_template);
    assert_non_null(strstr(wfile_tokenizer_json(w), "\"BPE\""));
    wfile_close(w);
    wfile_close(NULL);
}

static void *read_all(void *arg)
{
    for (int n = 0; n < 20; n++) {
        check_gguf_values(arg, 0);
    }
    return NULL;
}

static void *read_bits(void *arg)
{
    const struct wfile *w = arg;
    uint64_t sum = 0;
    uint16_t *h = malloc(8192 * 2);
    for (int n = 0; n < 50; n++) {
        for (int i = 0; i < FIXTURE_TENSORS; i++) {
            const struct wfile_tensor *t = wfile_tensor_at(w, i);
            if (wfile_read_bf16(w, t->name, h, t->count, NULL) != 0) {
                sum = 0;
            }
            for (int64_t k = 0; k < t->count; k++) {
                sum = sum * 31 + h[k];
            }
        }
    }
    free(h);
    return (void *)(uintptr_t)sum;
}

static void test_threads(void **state)
{
    struct wfile *w = open_ok(llama_gguf("m.gguf"));
    pthread_t t[4];
    void *want = read_bits(w), *got;
    (void)state;

    read_all(w);
    assert_true(want != NULL);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, read_bits, w), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(t[i], &got), 0);
        assert_ptr_equal(got, want);
    }
    wfile_close(w);
}

/* A type that cannot be read is refused at open, by name. */
static void test_gguf_refused(void **state)
{
    const char *path = fixture_path("q.gguf");
    struct buf b;
    (void)state;

    buf_init(&b, 1 << 20);
    fixture_header(&b, 1, 21);
    fixture_llama_meta(&b, "smollm");
    fixture_tensor(&b, "token_embd.weight", 64, 12, 12, 0);
    fixture_write(path, b.data, b.len);
    open_bad(path, STATUS_UNSUPPORTED, "Q4_K", "token_embd.weight");
    buf_clear(&b);
    fixture_header(&b, 2, 21);
    fixture_llama_meta(&b, "smollm");
    fixture_tensor(&b, "token_embd.weight", 64, 12, 0, 0);
    fixture_tensor(&b, "blk.0.ffn_gate_exps.weight", 64, 12, 0, 0);
    fixture_align(&b);
    for (int i = 0; i < 64 * 12 * 4; i++) {
        buf_char(&b, 0);
    }
    fixture_write(path, b.data, b.len);
    open_bad(path, STATUS_UNSUPPORTED, "ffn_gate_exps", path);
    buf_fini(&b);
}

static void test_gguf_corrupted(void **state)
{
    const char *path = fixture_path("rot.gguf");
    struct buf good, b;
    int opened = 0, refused = 0;
    (void)state;

    buf_init(&good, 1 << 20);
    buf_init(&b, 1 << 20);
    fixture_llama_gguf(&good, "smollm");
    for (uint64_t seed = 1; seed <= 600; seed++) {
        uint64_t s = seed * 0xd1342543de82ef95ull;
        struct wfile *w = NULL;
        struct err e = {0};
        buf_clear(&b);
        buf_add(&b, good.data, good.len);
        b.data[fixture_rand(&s) % 2600] ^= (char)(1 << fixture_rand(&s) % 8);
        fixture_write(path, b.data, b.len);
        if (wfile_open(path, &w, &e) != STATUS_OK) {
            assert_true(e.msg[0] != 0 && e.code != 0);
            refused++;
            continue;
        }
        opened++;
        for (int i = 0; i < wfile_tensor_count(w); i++) {
            const struct wfile_tensor *t = wfile_tensor_at(w, i);
            static float f[8192];
            assert_true(t->count <= 8192);
            assert_ok(wfile_read_f32(w, t->name, f, t->count, &e), &e);
        }
        wfile_close(w);
    }
    assert_true(opened > 30 && refused > 100);
    buf_fini(&b);
    buf_fini(&good);
}

/* ---- export ---- */

static int get_wfile(void *arg, const char *name, uint16_t *dst, int64_t count, struct err *e)
{
    return wfile_read_bf16(arg, name, dst, count, e);
}

static void test_export(void **state)
{
    struct wfile *w = open_ok(llama_gguf("m.gguf")), *out;
    const char *dir = fixture_path("export");
    struct err e = {0};
    char slash[300];
    (void)state;

    assert_ok(fsio_remove_tree(dir, &e), &e);
    /* What an interrupted export left is removed. */
    snprintf(slash, sizeof slash, "%s.tmp/old", dir);
    assert_ok(fsio_mkdirs(slash, &e), &e);
    snprintf(slash, sizeof slash, "%s//", dir);
    assert_ok(hfdir_write(slash, w, get_wfile, w, &e), &e);
    out = open_ok(dir);
    check_gguf_values(out, 0);
    assert_string_equal(wfile_config_json(out), wfile_config_json(w));
    assert_string_equal(wfile_tokenizer_json(out), wfile_tokenizer_json(w));
    assert_string_equal(wfile_tokenizer_config_json(out), wfile_tokenizer_config_json(w));
    assert_string_equal(wfile_generation_config_json(out), wfile_generation_config_json(w));
    assert_string_equal(wfile_chat_template(out), fixture_template);
    assert_memory_equal(wfile_arch(out), wfile_arch(w), sizeof(struct arch));
    wfile_close(out);
    snprintf(slash, sizeof slash, "%s.tmp", dir);
    assert_false(fsio_is_dir(slash));
    snprintf(slash, sizeof slash, "%s/old", dir);
    assert_false(fsio_is_dir(slash));

    assert_int_equal(hfdir_write(dir, w, get_wfile, w, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "not empty"));
    wfile_close(w);
}

static void test_export_shards(void **state)
{
    struct wfile *w = open_ok(llama_folder("src", SAFETENSORS_F32)), *out;
    const char *dir = new_folder("parts"); /* an empty folder is taken */
    struct err e = {0};
    struct stat st;
    char path[300];
    json_t *j;
    (void)state;

    /* The embedding (1,536 bytes) and the norm fill 2 kB; every matrix after it is above the limit.
     */
    assert_ok(hfdir_write_shards(dir, w, get_wfile, w, 2000, &e), &e);
    out = open_ok(dir);
    check_folder_values(out);
    /* The weights are bf16, and so config.json says, where the source said float32. */
    j = json_loads(wfile_config_json(out), 0, NULL);
    assert_string_equal(json_string_value(json_object_get(j, "torch_dtype")), "bfloat16");
    json_decref(j);
    wfile_close(out);
    snprintf(path, sizeof path, "%s/model-00001-of-00010.safetensors", dir);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 1536 + 128 && st.st_size < 2600);
    snprintf(path, sizeof path, "%s/model-00010-of-00010.safetensors", dir);
    assert_int_equal(stat(path, &st), 0);
    wfile_close(w);
}

static int get_failing(void *arg, const char *name, uint16_t *dst, int64_t count, struct err *e)
{
    if (strcmp(name, "model.norm.weight") == 0) {
        return ERR(e, STATUS_NUMERIC, "a nan in %s", name);
    }
    return wfile_read_bf16(arg, name, dst, count, e);
}

static void test_export_fails(void **state)
{
    struct wfile *w = open_ok(llama_gguf("m.gguf"));
    const char *dir = fixture_path("half");
    struct err e = {0};
    char tmp[300];
    (void)state;

    assert_int_equal(hfdir_write(dir, w, get_failing, w, &e), STATUS_NUMERIC);
    assert_string_equal(e.msg, "a nan in model.norm.weight");
    snprintf(tmp, sizeof tmp, "%s.tmp", dir);
    assert_false(fsio_is_dir(dir));
    assert_false(fsio_is_dir(tmp));
    fixture_text(fixture_dir, "plain", "x");
    assert_int_equal(hfdir_write(fixture_path("plain"), w, get_wfile, w, &e), STATUS_INPUT);
    assert_int_equal(hfdir_write("", w, get_wfile, w, &e), STATUS_INPUT);
    wfile_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder),         cmocka_unit_test(test_sharded),
        cmocka_unit_test(test_templates),      cmocka_unit_test(test_missing_pieces),
        cmocka_unit_test(test_wrong_shapes),   cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_threads),        cmocka_unit_test(test_gguf_refused),
        cmocka_unit_test(test_gguf_corrupted), cmocka_unit_test(test_export),
        cmocka_unit_test(test_export_shards),  cmocka_unit_test(test_export_fails),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
