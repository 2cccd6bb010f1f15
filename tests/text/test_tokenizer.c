/* The tokenizer against the package: goldens made by it, vendors' files, hostile input. Also a
 * filter that the parity script drives. */
#include "support.h"

#include <pthread.h>
#include <time.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "text/tokenizer.h"
#include "text/tokstream.h"
#include "text/unicode.h"

/* ---- as a filter: test_tokenizer --stdin FILE_tokenizer.json ----
 *
 * Each line of stdin is an object: {"text": ..., "special": bool} or {"hex": ..., "special": bool}
 * is answered with a JSON list of ids, {"ids": [...], "skip": bool} with a JSON string. */

static int unhex(const char *s, char *out)
{
    int n = 0;

    for (; s[0] && s[1]; s += 2) {
        unsigned v = 0;
        if (sscanf(s, "%2x", &v) != 1) {
            return -1;
        }
        out[n++] = (char)v;
    }
    return n;
}

static int filter_encode(const struct tokenizer *t, const json_t *in, struct err *e)
{
    const json_t *text = json_object_get(in, "text");
    const char *hex = json_string_value(json_object_get(in, "hex"));
    int special = json_is_true(json_object_get(in, "special"));
    char *raw = hex ? mem_alloc(strlen(hex) + 1) : NULL;
    const char *s = raw ? raw : json_string_value(text);
    size_t len = raw ? (size_t)unhex(hex, raw) : json_string_length(text);
    int32_t *ids = NULL;
    size_t n = 0;
    size_t i;
    int rc = s ? tokenizer_encode(t, s, len, special, &ids, &n, e) : STATUS_INPUT;

    if (rc == 0) {
        putchar('[');
        for (i = 0; i < n; i++) {
            printf(i ? ",%d" : "%d", (int)ids[i]);
        }
        puts("]");
    }
    mem_free(ids);
    mem_free(raw);
    return rc;
}

static int filter_decode(const struct tokenizer *t, const json_t *in, struct err *e)
{
    const json_t *list = json_object_get(in, "ids");
    size_t n = json_array_size(list);
    int32_t *ids = mem_alloc((n + 1) * sizeof *ids);
    char *text = NULL;
    size_t len;
    size_t i;
    int rc;

    for (i = 0; i < n; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    rc = tokenizer_decode(t, ids, n, json_is_true(json_object_get(in, "skip")), &text, &len, e);
    if (rc == 0) {
        json_t *s = json_stringn(text, len);
        char *out = json_dumps(s, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        puts(out);
        free(out);
        json_decref(s);
    }
    mem_free(text);
    mem_free(ids);
    return rc;
}

static int filter(const char *path)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    char *json = NULL;
    char *line = NULL;
    size_t cap = 0;
    size_t len;
    int rc = fsio_read(path, (size_t)1 << 30, &json, &len, &e);

    rc = rc ? rc : tokenizer_open(json, &t, &e);
    while (rc == 0 && getline(&line, &cap, stdin) > 0) {
        json_error_t je;
        json_t *in = json_loads(line, JSON_ALLOW_NUL, &je);
        if (!in) {
            rc = ERR(&e, STATUS_INPUT, "stdin: %s", je.text);
        } else {
            rc = json_object_get(in, "ids") ? filter_decode(t, in, &e) : filter_encode(t, in, &e);
        }
        json_decref(in);
    }
    if (rc) {
        fprintf(stderr, "%s: %s\n", path, e.msg);
    }
    free(line);
    mem_free(json);
    tokenizer_close(t);
    return rc ? 1 : 0;
}

/* ---- goldens of the package: small tokenizers of every kind ---- */

/* "1 2 3", for messages. */
static const char *ids_text(const int32_t *ids, size_t n)
{
    static char text[2][2000];
    static int which;
    size_t i;
    size_t o = 0;

    which = !which;
    text[which][0] = 0;
    for (i = 0; i < n && o + 16 < sizeof text[0]; i++) {
        o += (size_t)snprintf(text[which] + o, sizeof text[0] - o, "%d ", (int)ids[i]);
    }
    return text[which];
}

static int32_t *ids_of(const json_t *list, size_t *n)
{
    int32_t *ids = mem_alloc((json_array_size(list) + 1) * sizeof *ids);

    for (*n = 0; *n < json_array_size(list); (*n)++) {
        ids[*n] = (int32_t)json_integer_value(json_array_get(list, *n));
    }
    return ids;
}

static void check_encode(const struct tokenizer *t, const char *what, const char *text, size_t len,
                         int special, const json_t *want)
{
    struct err e = {0};
    size_t nw, n;
    int32_t *w = ids_of(want, &nw);
    int32_t *ids = NULL;

    assert_ok(tokenizer_encode(t, text, len, special, &ids, &n, &e), &e);
    if (n != nw || memcmp(ids, w, n * sizeof *ids) != 0) {
        fail_msg("%s: '%s' gives %s, not %s", what, text, ids_text(ids, n), ids_text(w, nw));
    }
    mem_free(ids);
    mem_free(w);
}

static void check_decode(const struct tokenizer *t, const char *what, const json_t *list, int skip,
                         const json_t *want)
{
    struct err e = {0};
    size_t n, len;
    int32_t *ids = ids_of(list, &n);
    char *text;

    assert_ok(tokenizer_decode(t, ids, n, skip, &text, &len, &e), &e);
    if (len != json_string_length(want) || memcmp(text, json_string_value(want), len) != 0) {
        fail_msg("%s: %s gives '%s', not '%s'", what, ids_text(ids, n), text,
                 json_string_value(want));
    }
    assert_int_equal(text[len], 0);
    mem_free(text);
    mem_free(ids);
}

/* The bytes of single tokens, one after the other, are the decoded text when that is valid. */
static void check_bytes(const struct tokenizer *t, const json_t *list, const json_t *want)
{
    size_t n, i;
    int32_t *ids = ids_of(list, &n);
    char all[4096];
    size_t o = 0;

    for (i = 0; i < n; i++) {
        size_t k = 0;
        const char *b = tokenizer_token_bytes(t, ids[i], &k);
        assert_true(o + k < sizeof all);
        if (b) {
            memcpy(all + o, b, k);
            o += k;
        }
    }
    if (!memmem(json_string_value(want), json_string_length(want), "\xEF\xBF\xBD", 3)) {
        assert_int_equal(o, json_string_length(want));
        assert_memory_equal(all, json_string_value(want), o);
    }
    mem_free(ids);
}

/* Token by token, whole characters only, and together the same text. Where the text has replacement
 * characters, tokens that come later may still change it. */
static void check_stream(const struct tokenizer *t, const char *what, const json_t *list, int skip,
                         const json_t *want)
{
    struct tokstream s;
    struct err e = {0};
    struct buf out;
    size_t n, i;
    int32_t *ids = ids_of(list, &n);

    buf_init(&out, 1 << 20);
    tokstream_init(&s, t, skip);
    for (i = 1; i <= n; i++) {
        size_t from = out.len;
        assert_ok(tokstream_push(&s, ids, i, &out, &e), &e);
        assert_int_equal(unicode_valid_prefix(out.data + from, out.len - from), out.len - from);
    }
    assert_ok(tokstream_end(&s, ids, n, &out, &e), &e);
    if (!memmem(json_string_value(want), json_string_length(want), "\xEF\xBF\xBD", 3) &&
        (out.len != json_string_length(want) ||
         memcmp(out.data, json_string_value(want), out.len) != 0)) {
        fail_msg("%s: %s streams '%s', not '%s'", what, ids_text(ids, n), out.data,
                 json_string_value(want));
    }
    buf_fini(&out);
    mem_free(ids);
}

static int golden_file(const char *path)
{
    json_error_t je;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &je);
    size_t c, k;
    int checked = 0;

    assert_non_null(root);
    for (c = 0; c < json_array_size(json_object_get(root, "configs")); c++) {
        json_t *config = json_array_get(json_object_get(root, "configs"), c);
        json_t *parts = json_object_get(config, "parts");
        const char *name = json_string_value(json_object_get(config, "model"));
        json_t *whole = json_copy(parts);
        struct tokenizer *t = NULL;
        struct err e = {0};
        char what[1200];
        char *json, *shown;
        json_object_set(whole, "model", json_object_get(json_object_get(root, "models"), name));
        json = json_dumps(whole, c % 2 ? JSON_ENSURE_ASCII : 0);
        shown = json_dumps(parts, JSON_COMPACT);
        snprintf(what, sizeof what, "config %zu, %s, %.1000s", c, name, shown);
        free(shown);
        assert_ok(tokenizer_open(json, &t, &e), &e);
        for (k = 0; k < json_array_size(json_object_get(config, "cases")); k++) {
            json_t *row = json_array_get(json_object_get(config, "cases"), k);
            const json_t *text = json_array_get(row, 0);
            check_encode(t, what, json_string_value(text), json_string_length(text), 0,
                         json_array_get(row, 1));
            check_encode(t, what, json_string_value(text), json_string_length(text), 1,
                         json_array_get(row, 2));
            check_decode(t, what, json_array_get(row, 3), 0, json_array_get(row, 4));
            check_decode(t, what, json_array_get(row, 3), 1, json_array_get(row, 5));
            check_stream(t, what, json_array_get(row, 3), 0, json_array_get(row, 4));
            check_stream(t, what, json_array_get(row, 3), 1, json_array_get(row, 5));
            if (strncmp(name, "bytes", 5) == 0 && json_object_get(parts, "decoder")) {
                check_bytes(t, json_array_get(row, 3), json_array_get(row, 4));
            }
            checked++;
        }
        tokenizer_close(t);
        free(json);
        json_decref(whole);
    }
    json_decref(root);
    return checked;
}

static void test_small_goldens(void **state)
{
    (void)state;
    assert_true(golden_file(TEST_GOLDEN_DIR "/tokenizer_small.json") > 400);
    assert_true(golden_file(TEST_GOLDEN_DIR "/tokenizer_kinds.json") > 200);
}

/* ---- goldens of the vendors' tokenizers ---- */

static char *read_data(const char *rel, size_t *len)
{
    struct err e = {0};
    char *s;

    assert_ok(fsio_read(support_data(rel), (size_t)1 << 30, &s, len, &e), &e);
    return s;
}

static struct tokenizer *open_family(const char *family)
{
    struct err e = {0};
    struct tokenizer *t;
    char rel[200];
    size_t len;
    char *json;

    snprintf(rel, sizeof rel, "tokenizers/%s/tokenizer.json", family);
    json = read_data(rel, &len);
    assert_ok(tokenizer_open(json, &t, &e), &e);
    mem_free(json);
    return t;
}

/* Cases of NAME.inp.txt, split by a marker line, against the ids in NAME.out.txt, a line each. */
static int check_pair(const struct tokenizer *t, const char *name)
{
    static const char mark[] = "\n__ggml_vocab_test__\n";
    char rel[200];
    size_t nin, nout;
    char *in, *out, *s, *line;
    int cases = 0;

    snprintf(rel, sizeof rel, "tokenizers/golden/%s.inp.txt", name);
    in = read_data(rel, &nin);
    snprintf(rel, sizeof rel, "tokenizers/golden/%s.out.txt", name);
    out = read_data(rel, &nout);
    s = in;
    line = out;
    for (;;) {
        char *end = strstr(s, mark);
        char *eol = strchr(line, '\n');
        size_t len;
        json_t *want = json_array();
        if (!end) {
            json_decref(want);
            break;
        }
        len = (size_t)(end - s);
        assert_non_null(eol);
        *eol = 0;
        for (;;) {
            char *stop;
            long id = strtol(line, &stop, 10);
            if (stop == line) {
                break;
            }
            json_array_append_new(want, json_integer(id));
            line = stop;
        }
        *end = 0;
        check_encode(t, name, s, len, 0, want);
        json_decref(want);
        line = eol + 1;
        s = end + strlen(mark);
        cases++;
    }
    mem_free(in);
    mem_free(out);
    return cases;
}

static void test_vendor_goldens(void **state)
{
    static const char *const pairs[][2] = {{"qwen2.5", "qwen2"}, {"llama-3.1", "llama-bpe"},
                                           {"gpt2", "gpt-2"},    {"llama-2", "llama-spm"},
                                           {"phi-3", "phi-3"},   {"gemma-4", "gemma-4"}};
    size_t i;
    (void)state;

    for (i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct tokenizer *t = open_family(pairs[i][0]);
        assert_true(check_pair(t, pairs[i][1]) >= 45);
        tokenizer_close(t);
    }
}

static void test_smollm2(void **state)
{
    static const char chat[] = "<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n";
    struct tokenizer *t;
    struct timespec a, b;
    struct err e = {0};
    size_t n, len, k;
    int32_t *ids;
    char *text, *json;
    double ms;
    (void)state;

    json = read_data("tokenizers/smollm2/tokenizer.json", &len);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    assert_ok(tokenizer_open(json, &t, &e), &e);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
    print_message("smollm2 opens in %.1f ms of cpu\n", ms);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(ms < 150);
#endif
    mem_free(json);
    assert_int_equal(tokenizer_vocab_size(t), 49152);
    assert_int_equal(tokenizer_id(t, "<|im_start|>"), 1);
    assert_int_equal(tokenizer_id(t, "<|im_end|>"), 2);
    assert_int_equal(tokenizer_id(t, "\xC4\xA0the"), 260);
    assert_int_equal(tokenizer_id(t, "no such token"), -1);
    assert_true(tokenizer_is_special(t, 1));
    assert_false(tokenizer_is_special(t, 260));
    assert_false(tokenizer_is_special(t, -1));
    assert_false(tokenizer_is_special(t, 49152));
    assert_null(tokenizer_token_bytes(t, 49152, &k));
    assert_null(tokenizer_token_bytes(t, -1, &k));
    assert_non_null(tokenizer_token_bytes(t, 260, &k));
    assert_int_equal(k, 4);
    assert_memory_equal(tokenizer_token_bytes(t, 260, &k), " the", 4);

    assert_ok(tokenizer_encode(t, chat, strlen(chat), 1, &ids, &n, &e), &e);
    assert_string_equal(ids_text(ids, n), "1 4093 198 1780 314 216 33 34 1232 216 35 32 47 2 198 ");
    assert_ok(tokenizer_decode(t, ids, n, 0, &text, &len, &e), &e);
    assert_string_equal(text, chat);
    mem_free(text);
    assert_ok(tokenizer_decode(t, ids, n, 1, &text, &len, &e), &e);
    assert_string_equal(text, "user\nWhat is 12 + 30?\n");
    mem_free(text);
    mem_free(ids);
    tokenizer_close(t);
}

static void test_special_template(void **state)
{
    struct tokenizer *t = open_family("llama-3.1");
    struct err e = {0};
    size_t n;
    int32_t *ids;
    (void)state;

    assert_ok(tokenizer_encode(t, "hello", 5, 1, &ids, &n, &e), &e);
    assert_string_equal(ids_text(ids, n), "128000 15339 ");
    mem_free(ids);
    assert_ok(tokenizer_encode(t, "hello", 5, 0, &ids, &n, &e), &e);
    assert_string_equal(ids_text(ids, n), "15339 ");
    mem_free(ids);
    assert_ok(tokenizer_encode(t, "", 0, 0, &ids, &n, &e), &e);
    assert_int_equal(n, 0);
    assert_non_null(ids);
    mem_free(ids);
    tokenizer_close(t);
}

/* ---- a small byte-level tokenizer made here ---- */

/* 256 byte tokens, then "ab" 256, "abab" 257; `parts` is put at the top level. */
static char *small_json(const char *parts, const char *model_parts)
{
    json_t *vocab = json_object();
    char *v, *out;
    int b;

    for (b = 0; b < 256; b++) {
        /* the byte alphabet, written out here on its own */
        int plain = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        int cp = plain ? b : b <= 0x20 ? 0x100 + b : b <= 0xA0 ? 0x121 + b - 0x7F : 0x143;
        char key[3] = {(char)cp, 0, 0};
        if (cp >= 0x80) {
            key[0] = (char)(0xC0 | cp >> 6);
            key[1] = (char)(0x80 | (cp & 0x3F));
        }
        json_object_set_new(vocab, key, json_integer(b));
    }
    json_object_set_new(vocab, "ab", json_integer(256));
    json_object_set_new(vocab, "abab", json_integer(257));
    v = json_dumps(vocab, 0);
    out = mem_alloc(strlen(v) + strlen(parts) + strlen(model_parts) + 400);
    sprintf(out,
            "{%s%s\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
            "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",%s%s\"vocab\":%s,"
            "\"merges\":[\"a b\",[\"ab\",\"ab\"]]}}",
            parts, *parts ? "," : "", model_parts, *model_parts ? "," : "", v);
    free(v);
    json_decref(vocab);
    return out;
}

static struct tokenizer *open_small(const char *parts, const char *model_parts)
{
    struct err e = {0};
    struct tokenizer *t;
    char *json = small_json(parts, model_parts);

    assert_ok(tokenizer_open(json, &t, &e), &e);
    mem_free(json);
    return t;
}

static void test_invalid_utf8(void **state)
{
    static const struct {
        const char *in, *out; /* as bytes, "~" stands for U+FFFD */
    } cases[] = {
        {"a\xff"
         "b",
         "a~b"},
        {"\xe2\x82", "~"},
        {"\xe2\x82z", "~z"},
        {"\xf0\x9f\x98", "~"},
        {"\xed\xa0\x80", "~~~"},
        {"\xc0\xaf", "~~"},
        {"\xf4\x90\x80\x80", "~~~~"},
        {"\xe2\x28\xa1", "~(~"},
        {"\xf0\x9f\x98\x80\x80", "\xf0\x9f\x98\x80~"},
    };
    struct tokenizer *t = open_small("", "");
    size_t i, k, n, len;
    (void)state;

    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        int32_t *ids, raw[16];
        char want[64] = "";
        char *text;
        for (k = 0; cases[i].out[k]; k++) {
            char one[2] = {cases[i].out[k], 0};
            strcat(want, one[0] == '~' ? "\xEF\xBF\xBD" : one);
        }
        assert_ok(tokenizer_encode(t, cases[i].in, strlen(cases[i].in), 0, &ids, &n, &e), &e);
        assert_int_equal(n, strlen(want));
        for (k = 0; k < n; k++) {
            assert_int_equal(ids[k], (unsigned char)want[k]);
        }
        mem_free(ids);
        /* the same bytes as tokens decode to the same text */
        for (k = 0; cases[i].in[k]; k++) {
            raw[k] = (unsigned char)cases[i].in[k];
        }
        assert_ok(tokenizer_decode(t, raw, k, 0, &text, &len, &e), &e);
        assert_string_equal(text, want);
        mem_free(text);
    }
    tokenizer_close(t);
}

static void test_nul_in_text(void **state)
{
    struct tokenizer *t = open_small("", "");
    struct err e = {0};
    int32_t *ids;
    size_t n, len;
    char *text;
    (void)state;

    assert_ok(tokenizer_encode(t, "ab\0ab", 5, 0, &ids, &n, &e), &e);
    assert_string_equal(ids_text(ids, n), "256 0 256 ");
    assert_ok(tokenizer_decode(t, ids, n, 0, &text, &len, &e), &e);
    assert_int_equal(len, 5);
    assert_memory_equal(text, "ab\0ab", 6);
    mem_free(text);
    mem_free(ids);
    tokenizer_close(t);
}

/* Ids that name nothing, in and around the vocabulary. */
static void test_unknown_ids(void **state)
{
    static const int32_t ids[] = {'x', 300, -1, 1 << 30, 'y'};
    struct tokenizer *t = open_small("", "");
    struct err e = {0};
    size_t len;
    char *text;
    (void)state;

    assert_int_equal(tokenizer_vocab_size(t), 258);
    assert_ok(tokenizer_decode(t, ids, 5, 0, &text, &len, &e), &e);
    assert_string_equal(text, "xy");
    mem_free(text);
    assert_ok(tokenizer_decode(t, NULL, 0, 0, &text, &len, &e), &e);
    assert_int_equal(len, 0);
    mem_free(text);
    tokenizer_close(t);
}

/* A megabyte without a break must not take quadratic time. */
static void test_long_words(void **state)
{
    static const char *const unit[] = {"ab", "a ", "  ", "\xCC\xA3\xCC\x81"};
    struct tokenizer *t = open_small("\"normalizer\":{\"type\":\"NFC\"}", "");
    size_t size = (size_t)1 << 20;
    char *s = mem_alloc(size + 1);
    size_t u, i, n, len;
    (void)state;

    for (u = 0; u < sizeof unit / sizeof *unit; u++) {
        struct timespec a, b;
        struct err e = {0};
        size_t k = strlen(unit[u]);
        int32_t *ids;
        char *text;
        for (i = 0; i + k <= size; i += k) {
            memcpy(s + i, unit[u], k);
        }
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        assert_ok(tokenizer_encode(t, s, size, 0, &ids, &n, &e), &e);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        assert_int_equal(n, u == 0 ? size / 4 : size);
        assert_int_equal(ids[0], u == 0 ? 257 : (unsigned char)unit[u][0]);
        assert_true(b.tv_sec - a.tv_sec < 20);
        assert_ok(tokenizer_decode(t, ids, n, 0, &text, &len, &e), &e);
        assert_int_equal(len, size);
        if (u < 3) {
            assert_memory_equal(text, s, size);
        } else { /* all the dots below come before all the accents */
            assert_memory_equal(text, "\xCC\xA3\xCC\xA3", 4);
            assert_memory_equal(text + size - 4, "\xCC\x81\xCC\x81", 4);
        }
        mem_free(text);
        mem_free(ids);
    }
    mem_free(s);
    tokenizer_close(t);
}

static void refused(const char *json, int code, const char *word)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    int rc = tokenizer_open(json, &t, &e);

    if (rc != code || !strstr(e.msg, word)) {
        fail_msg("status %d, '%s', where %d with '%s' was expected", rc, e.msg, code, word);
    }
    assert_null(t);
}

static void refused_small(const char *parts, const char *model_parts, int code, const char *word)
{
    char *json = small_json(parts, model_parts);

    refused(json, code, word);
    mem_free(json);
}

static void test_refusals(void **state)
{
    (void)state;
    refused_small("\"normalizer\":{\"type\":\"Magic\"}", "", STATUS_UNSUPPORTED, "Magic");
    refused_small("\"normalizer\":{\"type\":\"Precompiled\"}", "", STATUS_FORMAT, "Precompiled");
    refused_small("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA?\"}", "",
                  STATUS_FORMAT, "base64");
    refused_small("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/////w==\"}",
                  "", STATUS_FORMAT, "trie");
    refused_small("\"post_processor\":{\"type\":\"Magic\"}", "", STATUS_UNSUPPORTED, "Magic");
    refused_small("\"normalizer\":{\"type\":\"Sequence\"}", "", STATUS_FORMAT, "Sequence");
    refused_small("", "\"dropout\":0.1", STATUS_UNSUPPORTED, "dropout");
    refused_small("", "\"byte_fallback\":true", STATUS_UNSUPPORTED, "byte_fallback");
    refused_small("", "\"unk_token\":\"<nope>\"", STATUS_FORMAT, "<nope>");
    refused_small("\"added_tokens\":[{\"id\":1}]", "", STATUS_FORMAT, "added token");
    refused_small("\"added_tokens\":3", "", STATUS_FORMAT, "added_tokens");
    refused_small(
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
        "{\"id\":\"x\"}}]}",
        "", STATUS_FORMAT, "template");
    refused("{\"model\":{\"vocab\":{\"a\":1}},\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}",
            STATUS_UNSUPPORTED, "UnicodeScripts");
    refused("{\"model\":{\"vocab\":{\"a\":1}},\"decoder\":{\"type\":\"Magic\"}}",
            STATUS_UNSUPPORTED, "Magic");
    refused("{\"model\":{\"type\":\"Magic\",\"vocab\":{\"a\":1}}}", STATUS_UNSUPPORTED, "Magic");
    refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":{\"a\":1}}}", STATUS_FORMAT, "list");
    refused("{\"model\":{\"type\":\"BPE\",\"vocab\":[[\"a\",1.5]]}}", STATUS_FORMAT, "list");
    refused("{\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",0.5]]}}",
            STATUS_FORMAT, "unk_id 1");
    refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",nan]]}}", STATUS_FORMAT, "number");
    refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", STATUS_FORMAT, "pair");
    refused("{\"model\":{\"type\":\"BPE\"}}", STATUS_FORMAT, "vocabulary");
    refused("{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", STATUS_FORMAT, "id -1");
    refused("{\"model\":{\"vocab\":{\"a\":99999999},\"merges\":[]}}", STATUS_FORMAT, "id 99999999");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", STATUS_FORMAT, "merge 0");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", STATUS_FORMAT,
            "two tokens");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", STATUS_FORMAT, "pair");
    refused("{\"model\":{\"vocab\":{\"\\ud800\":0},\"merges\":[]}}", STATUS_FORMAT, "surrogate");
    refused("{\"model\":{\"vocab\":{\"\xff\":0},\"merges\":[]}}", STATUS_FORMAT, "utf-8");
    refused("{}", STATUS_FORMAT, "model");
    refused("", STATUS_FORMAT, "object");
    refused("[]", STATUS_FORMAT, "object");
}

/* A file cut anywhere is refused, whatever is missing; with a byte changed it never crashes. */
static void test_damaged_files(void **state)
{
    char *json = small_json("\"normalizer\":{\"type\":\"NFC\"},\"added_tokens\":[{\"id\":258,"
                            "\"content\":\"<x>\",\"special\":true}]",
                            "");
    size_t n = strlen(json);
    size_t i;
    unsigned seed = 1;
    (void)state;

    log_set_level(LOG_ERROR); /* a changed id is a warning each time */
    for (i = 0; i < n; i++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        char c = json[i];
        json[i] = 0;
        assert_int_not_equal(tokenizer_open(json, &t, &e), 0);
        json[i] = c;
    }
    for (i = 0; i < 2000; i++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        size_t at = (seed = seed * 1664525u + 1013904223u) % n;
        char c = json[at];
        json[at] = (char)((seed = seed * 1664525u + 1013904223u) >> 24);
        if (tokenizer_open(json, &t, &e) == 0) {
            int32_t *ids;
            size_t k;
            assert_ok(tokenizer_encode(t, "abab <x> \xC3\xA9", 11, 1, &ids, &k, &e), &e);
            mem_free(ids);
            tokenizer_close(t);
        } else {
            assert_true(e.msg[0] != 0);
        }
        json[at] = c;
    }
    log_set_level(LOG_INFO);
    mem_free(json);
}

/* Merges before the vocabulary, and the large parts in a file with much white space. */
static void test_file_order(void **state)
{
    static const char json[] =
        " { \"decoder\" : {\"type\":\"ByteLevel\"} , \"model\" : { \"merges\" :\n"
        " [ [ \"a\" , \"\\u0062\" ] ] , \"vocab\" : { \"a\" : 0 ,\n"
        " \"b\" : 1 , \"\\u0061b\" : 2 } } , \"pre_tokenizer\" : "
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false} } ";
    struct tokenizer *t;
    struct err e = {0};
    int32_t *ids;
    size_t n;
    (void)state;

    assert_ok(tokenizer_open(json, &t, &e), &e);
    assert_ok(tokenizer_encode(t, "abba!ab", 7, 0, &ids, &n, &e), &e);
    assert_string_equal(ids_text(ids, n), "2 1 0 2 "); /* "!" is no token and vanishes */
    mem_free(ids);
    tokenizer_close(t);
}

/* ---- threads ---- */

struct race {
    const struct tokenizer *t;
    int bad;
};

static void *race_main(void *arg)
{
    struct race *r = arg;
    char text[64];
    int i;

    for (i = 0; i < 20000; i++) {
        struct err e = {0};
        int32_t *ids;
        size_t n, len;
        char *back;
        sprintf(text, "abab %d word%d", i % 700, i % 900);
        if (tokenizer_encode(r->t, text, strlen(text), 0, &ids, &n, &e) ||
            tokenizer_decode(r->t, ids, n, 0, &back, &len, &e)) {
            r->bad++;
            continue;
        }
        r->bad += strcmp(back, text) != 0 || ids[0] != 257;
        mem_free(ids);
        mem_free(back);
    }
    return NULL;
}

static void test_threads(void **state)
{
    struct tokenizer *t = open_small("", "");
    struct race r[4];
    pthread_t th[4];
    int i;
    (void)state;

    for (i = 0; i < 4; i++) {
        r[i].t = t;
        r[i].bad = 0;
        assert_int_equal(pthread_create(&th[i], NULL, race_main, &r[i]), 0);
    }
    for (i = 0; i < 4; i++) {
        pthread_join(th[i], NULL);
        assert_int_equal(r[i].bad, 0);
    }
    tokenizer_close(t);
}

static const char *golden_arg;

static void test_golden_arg(void **state)
{
    (void)state;
    print_message("%d cases\n", golden_file(golden_arg));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_goldens),    cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_nul_in_text),      cmocka_unit_test(test_unknown_ids),
        cmocka_unit_test(test_long_words),       cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_damaged_files),    cmocka_unit_test(test_file_order),
        cmocka_unit_test(test_threads),          cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_special_template), cmocka_unit_test(test_vendor_goldens),
    };
    const struct CMUnitTest one[] = {cmocka_unit_test(test_golden_arg)};

    if (argc == 3 && strcmp(argv[1], "--stdin") == 0) {
        return filter(argv[2]);
    }
    if (argc == 3 && strcmp(argv[1], "--golden") == 0) {
        golden_arg = argv[2];
        return cmocka_run_group_tests(one, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
