/* Bodies of requests to `miles serve`: one of each sort that is served, and ways to spoil it. A
 * body is taken for what it is, JSON: values change their type or leave their range, fields vanish,
 * come twice, take each other's names or places, lists grow and nest; bytes are changed last.
 *
 *     struct buf b; buf_init(&b, FUZZ_BODY_MAX);
 *     const char *path = fuzz_body_make(&rng, &b);     a body, and where it goes
 *     fd = fuzz_body_open(port, path, &b);
 */
#ifndef TESTS_FUZZ_FUZZ_BODY_H
#define TESTS_FUZZ_FUZZ_BODY_H

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "net/netpeer.h"

enum { FUZZ_BODY_MAX = 1 << 20, FUZZ_BODY_PLACES = 512 };

struct fuzz_body_seed {
    const char *path, *body;
};

static const struct fuzz_body_seed fuzz_body_seeds[] = {
    {"/generate",
     "{\"text\":[\"ab\",\"c\"],\"rid\":[\"x\",\"y\"],\"return_logprob\":true,"
     "\"logprob_start_len\":0,\"top_logprobs_num\":2,\"return_text_in_logprobs\":true,"
     "\"sampling_params\":{\"max_new_tokens\":3,\"temperature\":0.5,\"top_p\":0.9,\"top_k\":5,"
     "\"min_p\":0.1,\"stop\":[\"zz\",\"q\"],\"stop_token_ids\":[7],\"n\":2,\"logit_bias\":{\"4\":1}"
     ",\"frequency_penalty\":0.1,\"presence_penalty\":-0.5,\"repetition_penalty\":1.2,"
     "\"sampling_seed\":1,\"skip_special_tokens\":false,\"no_stop_trim\":true}}"},
    {"/generate", "{\"input_ids\":[[1,2,3],[4]],\"stream\":true,\"sampling_params\":{"
                  "\"max_new_tokens\":4,\"min_new_tokens\":1,\"ignore_eos\":true,"
                  "\"stream_interval\":2}}"},
    {"/generate", "{\"input_ids\":[5,6,7,8],\"return_logprob\":true,\"logprob_start_len\":2,"
                  "\"sampling_params\":{\"max_new_tokens\":0}}"},
    {"/generate", "{\"text\":\"hello\",\"sampling_params\":{}}"},
    {"/v1/chat/completions",
     "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
     "\"text\":\"hi\"}]},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\","
     "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}],"
     "\"max_tokens\":3,\"logprobs\":true,\"top_logprobs\":1,\"stream\":true,\"tools\":[{\"type\":"
     "\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],"
     "\"tool_choice\":\"auto\",\"stream_options\":{\"include_usage\":true}}"},
    {"/v1/chat/completions",
     "{\"messages\":[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":"
     "\"a\"}],\"max_completion_tokens\":2,\"n\":2,\"stop\":[\"x\"],\"seed\":3,"
     "\"chat_template_kwargs\":{\"k\":1},\"response_format\":{\"type\":\"text\"},"
     "\"frequency_penalty\":1,\"logit_bias\":{\"3\":-100},\"user\":\"u\"}"},
    {"/v1/completions", "{\"prompt\":[\"ab\",[3,4]],\"echo\":true,\"logprobs\":1,\"max_tokens\":2,"
                        "\"seed\":4,\"stop\":\"x\",\"n\":2}"},
    {"/v1/completions", "{\"prompt\":\"abc\",\"echo\":true,\"logprobs\":0,\"max_tokens\":2}"},
    {"/v1/completions", "{\"prompt\":\"abc\",\"stream\":true,\"max_tokens\":4,\"temperature\":0,"
                        "\"top_p\":0.5,\"suffix\":null}"},
    {"/abort_request", "{\"rid\":\"x\",\"abort_all\":false}"},
    {"/pause_generation", "{\"mode\":\"retract\"}"},
    {"/continue_generation", "{}"},
    {"/flush_cache", "{}"},
    {"/get_weights_by_name", "{\"name\":\"model.norm.weight\",\"truncate_size\":3}"},
    {"/update_weight_version", "{\"new_version\":\"v\",\"abort_all_requests\":false}"},
    {"/update_weights_from_disk", "{\"model_path\":\"/nowhere\",\"weight_version\":\"2\","
                                  "\"abort_all_requests\":true,\"load_format\":null}"},
    {"/weights_checker", "{\"action\":\"checksum\"}"},
    {"/weights_checker", "{\"action\":\"checksum\",\"miles_draw\":{\"seed\":1,\"bytes\":9999}}"},
    {"/update_weights_from_shared", "{\"weight_version\":\"3\"}"},
    {"/release_memory_occupation", "{\"tags\":[\"kv_cache\",\"weights\"]}"},
    {"/resume_memory_occupation", "{\"tags\":[\"kv_cache\"]}"},
};
#define FUZZ_BODY_SEEDS (sizeof fuzz_body_seeds / sizeof *fuzz_body_seeds)

static inline unsigned fuzz_body_below(uint64_t *s, unsigned n)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((*s >> 33) % n);
}

static json_t *fuzz_body_text(uint64_t *s)
{
    static const char *const texts[] = {"",
                                        "a",
                                        "x",
                                        "text",
                                        "null",
                                        "-1",
                                        "{{",
                                        "{% for %}",
                                        "/",
                                        "../..",
                                        "</s>",
                                        "<tool_call>{\"name\":",
                                        "\xf0\x9f\x98\x80",
                                        "\xcc\x81",
                                        "retract",
                                        "in_place",
                                        "abort",
                                        "snapshot",
                                        "compare",
                                        "reset_tensors",
                                        "model.embed_tokens.weight"};
    char many[3000];
    unsigned k = fuzz_body_below(s, sizeof texts / sizeof *texts + 3);

    if (k < sizeof texts / sizeof *texts) {
        return json_string(texts[k]);
    }
    if (k == sizeof texts / sizeof *texts) {
        return json_stringn("a\0b", 3);
    }
    memset(many, k & 1 ? 'a' : '<', sizeof many);
    return json_stringn(many, 1 + fuzz_body_below(s, sizeof many));
}

/* Something that the field did not expect, or that lies at an edge. */
static json_t *fuzz_body_value(uint64_t *s, int depth)
{
    static const json_int_t ints[] = {0,   1,    2,     -1,         3,          7,
                                      63,  64,   65,    96,         97,         255,
                                      256, 1024, 65536, 2147483647, 2147483648, 9007199254740993,
                                      -2,  -100, 4097,  1073741824, INT64_MAX,  INT64_MIN};
    static const double reals[] = {0.0, 0.5,  1.0,    -0.5,  1e-7,  1e-30, 1e30,
                                   2.0, 1e15, -1e308, 1e308, 1.001, 100.5, 3.0};
    json_t *v, *one;

    switch (fuzz_body_below(s, depth > 3 ? 6 : 9)) {
    case 0: return json_null();
    case 1: return json_boolean(fuzz_body_below(s, 2));
    case 2:
    case 3: return json_integer(ints[fuzz_body_below(s, sizeof ints / sizeof *ints)]);
    case 4: return json_real(reals[fuzz_body_below(s, sizeof reals / sizeof *reals)]);
    case 5: return fuzz_body_text(s);
    case 6: /* a list, often of one thing many times */
        v = json_array();
        one = fuzz_body_value(s, depth + 1);
        for (unsigned n = fuzz_body_below(s, fuzz_body_below(s, 8) ? 5 : 300); n > 0; n--) {
            json_array_append(v, one);
        }
        json_decref(one);
        return v;
    case 7:
        v = json_object();
        for (unsigned n = fuzz_body_below(s, 4); n > 0; n--) {
            char name[8] = {(char)('0' + fuzz_body_below(s, 75)), 0};
            json_object_set_new(v, name, fuzz_body_value(s, depth + 1));
        }
        return v;
    default:
        v = fuzz_body_value(s, depth + 1);
        for (unsigned n = fuzz_body_below(s, 40); n > 0; n--) {
            one = json_array();
            json_array_append_new(one, v);
            v = one;
        }
        return v;
    }
}

/* A place in a body: a member of an object or an entry of a list. */
struct fuzz_body_place {
    json_t *in;
    const char *key; /* NULL: an entry */
    size_t at;
};

static void fuzz_body_walk(json_t *v, struct fuzz_body_place *p, size_t *n)
{
    const char *key;
    size_t i;
    json_t *x;

    if (json_is_object(v)) {
        json_object_foreach(v, key, x)
        {
            if (*n < FUZZ_BODY_PLACES) {
                p[(*n)++] = (struct fuzz_body_place){v, key, 0};
                fuzz_body_walk(x, p, n);
            }
        }
    } else if (json_is_array(v)) {
        json_array_foreach(v, i, x)
        {
            if (*n < FUZZ_BODY_PLACES) {
                p[(*n)++] = (struct fuzz_body_place){v, NULL, i};
                fuzz_body_walk(x, p, n);
            }
        }
    }
}

static json_t *fuzz_body_at(const struct fuzz_body_place *p)
{
    return p->key ? json_object_get(p->in, p->key) : json_array_get(p->in, p->at);
}

static void fuzz_body_put(const struct fuzz_body_place *p, json_t *v)
{
    if (p->key) {
        char name[512];
        snprintf(name, sizeof name, "%s", p->key); /* setting may move the object's own copy */
        json_object_set_new(p->in, name, v);
    } else {
        json_array_set_new(p->in, p->at, v);
    }
}

/* A part of any seed, and the name it has there. */
static json_t *fuzz_body_part(uint64_t *s, char *name, size_t cap)
{
    const struct fuzz_body_seed *seed = &fuzz_body_seeds[fuzz_body_below(s, FUZZ_BODY_SEEDS)];
    static struct fuzz_body_place places[FUZZ_BODY_PLACES];
    json_t *o = json_loads(seed->body, 0, NULL), *v;
    size_t n = 0, k;

    fuzz_body_walk(o, places, &n);
    if (!n) {
        json_decref(o);
        snprintf(name, cap, "tags");
        return json_array();
    }
    k = fuzz_body_below(s, (unsigned)n);
    snprintf(name, cap, "%s", places[k].key ? places[k].key : "text");
    v = json_deep_copy(fuzz_body_at(&places[k]));
    json_decref(o);
    return v;
}

/* One change of one place. */
static void fuzz_body_change(uint64_t *s, json_t *o)
{
    static struct fuzz_body_place places[FUZZ_BODY_PLACES];
    const struct fuzz_body_place *p;
    char name[64];
    size_t n = 0;
    json_t *v, *part;

    fuzz_body_walk(o, places, &n);
    if (!n) {
        json_object_set_new(o, "text", fuzz_body_value(s, 0));
        return;
    }
    p = &places[fuzz_body_below(s, (unsigned)n)];
    v = fuzz_body_at(p);
    switch (fuzz_body_below(s, 9)) {
    case 0:
    case 1: fuzz_body_put(p, fuzz_body_value(s, 0)); break;
    case 2: /* gone */
        if (p->key) {
            json_object_del(p->in, p->key);
        } else {
            json_array_remove(p->in, p->at);
        }
        break;
    case 3: /* many of it */
        if (json_is_array(p->in) || json_is_array(v)) {
            json_t *list = json_is_array(v) ? v : p->in;
            json_t *one = json_deep_copy(json_array_size(list) ? json_array_get(list, 0) : v);
            for (unsigned k = 1u << fuzz_body_below(s, 9); k > 0; k--) {
                json_array_append(list, one);
            }
            json_decref(one);
        }
        break;
    case 4: /* what belongs elsewhere */
        part = fuzz_body_part(s, name, sizeof name);
        fuzz_body_put(p, part);
        break;
    case 5: /* a field of another body */
        part = fuzz_body_part(s, name, sizeof name);
        json_object_set_new(json_is_object(v) ? v : o, name, part);
        break;
    case 6: /* another's name */
        part = fuzz_body_part(s, name, sizeof name);
        json_decref(part);
        if (p->key) {
            json_incref(v);
            json_object_del(p->in, p->key);
            json_object_set_new(p->in, name, v);
        }
        break;
    case 7: /* near by */
        if (json_is_integer(v)) {
            json_int_t step = (json_int_t)fuzz_body_below(s, 5) - 2;
            uint64_t near = (uint64_t)json_integer_value(v) + (uint64_t)step; /* may wrap */
            fuzz_body_put(p, json_integer((json_int_t)near));
        } else if (json_is_real(v)) {
            fuzz_body_put(p, json_real(-json_real_value(v)));
        } else if (json_is_string(v)) {
            fuzz_body_put(p, fuzz_body_text(s));
        }
        break;
    default: /* inside a list or an object */
        part = fuzz_body_below(s, 2) ? json_array() : json_object();
        if (json_is_array(part)) {
            json_array_append_new(part, json_deep_copy(v));
        } else {
            json_object_set_new(part, "text", json_deep_copy(v));
        }
        fuzz_body_put(p, part);
    }
}

/* Bytes otherwise, left out, put in or said twice. */
static void fuzz_body_bytes(uint64_t *s, struct buf *b)
{
    static const char pieces[][12] = {"null", "-1",          "1e999", "[", "{",    "\"", "\\u0000",
                                      "true", "99999999999", "\xff",  ",", "[[]]", "{}", "0"};
    size_t at, n;
    struct buf out;

    if (b->len < 3) {
        return;
    }
    at = fuzz_body_below(s, (unsigned)b->len);
    n = fuzz_body_below(s, 6);
    n = n < b->len - at ? n : b->len - at;
    buf_init(&out, FUZZ_BODY_MAX * 2);
    buf_add(&out, b->data, at);
    switch (fuzz_body_below(s, 4)) {
    case 0:
        buf_char(&out, (char)fuzz_body_below(s, 256));
        buf_add(&out, b->data + at + 1, b->len - at - 1);
        break;
    case 1: buf_add(&out, b->data + at + n, b->len - at - n); break;
    case 2:
        buf_str(&out, pieces[fuzz_body_below(s, sizeof pieces / sizeof *pieces)]);
        buf_add(&out, b->data + at + n, b->len - at - n);
        break;
    default: buf_add(&out, b->data + at, n); buf_add(&out, b->data + at, b->len - at);
    }
    buf_fini(b);
    *b = out;
}

/* Spoils a body; what is not JSON any more only in its bytes. */
static inline void fuzz_body_spoil(uint64_t *s, struct buf *b)
{
    json_t *o = json_loadb(b->data, b->len, 0, NULL);
    char *text = NULL;

    if (json_is_object(o)) {
        for (unsigned k = 1 + fuzz_body_below(s, 3); k > 0; k--) {
            fuzz_body_change(s, o);
        }
        text = json_dumps(o, JSON_COMPACT);
        if (text && strlen(text) < FUZZ_BODY_MAX / 2) {
            buf_clear(b);
            buf_str(b, text);
        }
        free(text);
    }
    for (unsigned k = o && fuzz_body_below(s, 4) ? 0 : 1 + fuzz_body_below(s, 3); k > 0; k--) {
        fuzz_body_bytes(s, b);
    }
    json_decref(o);
}

static inline const char *fuzz_body_make(uint64_t *s, struct buf *b)
{
    const struct fuzz_body_seed *seed = &fuzz_body_seeds[fuzz_body_below(s, FUZZ_BODY_SEEDS)];

    buf_clear(b);
    buf_str(b, seed->body);
    fuzz_body_spoil(s, b);
    return seed->path;
}

/* Sends it to the server at the port; the connection on which the answer comes. */
static inline int fuzz_body_open(int port, const char *path, const struct buf *body)
{
    struct timeval patience = {.tv_sec = 300}; /* a slow machine is no finding */
    struct buf q;
    int fd = netpeer_connect(port);

    if (fd < 0) {
        abort();
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    buf_init(&q, 64u << 20);
    buf_printf(&q, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", path, body->len);
    buf_add(&q, body->data, body->len);
    netpeer_send(fd, q.data, q.len);
    buf_fini(&q);
    return fd;
}

#endif
