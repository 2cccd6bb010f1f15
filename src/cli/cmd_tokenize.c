/* Owns `miles tokenize`: text to ids and back, with the tokenizer of a model's folder, of a GGUF
 * file, or with a vocabulary alone. A text is an argument, a whole file, or each line of one. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/conf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "model/wfile.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text/words.h"

#define TOKENIZE_MAX_FILE ((size_t)1 << 30)
#define TOKENIZE_MAX_TEXT ((size_t)1 << 28)
#define TOKENIZE_MAX_ARGS 4096

struct tokenize_opts {
    char *checkpoint, *pattern, *file;
    int decode, lines, special, skip_special, pieces, json;
};

#define O(f) offsetof(struct tokenize_opts, f)
static const struct conf_opt tokenize_table[] = {
    {"hf-checkpoint", CONF_STR, NULL, NULL,
     "a folder with a tokenizer.json, such a file, a GGUF file, or a tiktoken file", O(checkpoint),
     "tokenizer", NULL},
    {"pattern", CONF_STR, "cl100k", NULL,
     "how a tiktoken file's text is cut: gpt2, cl100k, o200k, qwen2, qwen3.5, tekken, or a regex",
     O(pattern), "tokenizer", NULL},
    {"file", CONF_STR, NULL, NULL, "takes the text of a file, - for stdin, instead of arguments",
     O(file), "input", NULL},
    {"lines", CONF_SWITCH, NULL, NULL, "every line of the file is a text of its own", O(lines),
     "input", NULL},
    {"decode", CONF_SWITCH, NULL, NULL, "input is ids, separated by blanks or commas, to be text",
     O(decode), "input", NULL},
    {"special", CONF_SWITCH, NULL, NULL,
     "adds the tokens that the model's template puts around text", O(special), "output", NULL},
    {"skip-special", CONF_SWITCH, NULL, NULL, "leaves special tokens out of decoded text",
     O(skip_special), "output", NULL},
    {"pieces", CONF_SWITCH, NULL, NULL, "shows what each token stands for", O(pieces), "output",
     NULL},
    {"json", CONF_SWITCH, NULL, NULL, "one JSON object for each text", O(json), "output", NULL},
    {0}};

static int tokenize_has_suffix(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* ---- the tokenizer ---- */

static int tokenize_open_file(const char *path, const char *pattern, struct tokenizer **t,
                              struct err *e)
{
    const char *known = words_named(pattern);
    char *data = NULL;
    size_t n = 0;
    int rc = fsio_read(path, TOKENIZE_MAX_FILE, &data, &n, e);

    if (rc == STATUS_OK) {
        size_t i = strspn(data, " \t\r\n");
        rc = data[i] == '{' ? tokenizer_open(data, t, e)
                            : tokenizer_open_tiktoken(data, n, known ? known : pattern, NULL, t, e);
        rc = rc == STATUS_OK ? rc : err_prefix(e, "%s", path);
    }
    mem_free(data);
    return rc;
}

static int tokenize_open_gguf(const char *path, struct tokenizer **t, struct err *e)
{
    struct wfile *w = NULL;
    int rc = wfile_open(path, &w, e);

    if (rc == STATUS_OK && !wfile_tokenizer_json(w)) {
        rc = ERR(e, STATUS_NOTFOUND, "%s: the file has no tokenizer", path);
    }
    rc = rc == STATUS_OK ? tokenizer_open(wfile_tokenizer_json(w), t, e) : rc;
    wfile_close(w);
    return rc;
}

static int tokenize_open(const struct tokenize_opts *o, struct tokenizer **t, struct err *e)
{
    const char *path = o->checkpoint;
    char *in;
    int rc;

    if (!path) {
        return ERR(e, STATUS_INPUT,
                   "--hf-checkpoint is needed: a model's folder or a tokenizer.json");
    }
    if (!fsio_is_dir(path)) {
        return tokenize_has_suffix(path, ".gguf") ? tokenize_open_gguf(path, t, e)
                                                  : tokenize_open_file(path, o->pattern, t, e);
    }
    in = fsio_join(path, "tokenizer.json");
    rc = fsio_is_file(in) ? tokenize_open_file(in, o->pattern, t, e)
                          : ERR(e, STATUS_NOTFOUND, "%s: there is no tokenizer.json in it", path);
    mem_free(in);
    return rc;
}

/* ---- one text ---- */

/* What the token stands for; bytes that are no character by themselves as <0xNN>. */
static void tokenize_piece(const struct tokenizer *t, int32_t id, struct buf *out)
{
    size_t n = 0, i = 0;
    const char *s = tokenizer_token_bytes(t, id, &n);

    buf_clear(out);
    while (s && i < n) {
        size_t k = unicode_valid_prefix(s + i, n - i);
        buf_add(out, s + i, k);
        i += k;
        if (i < n) {
            buf_printf(out, "<0x%02X>", (unsigned char)s[i++]);
        }
    }
}

/* A JSON string in plain output too, so that line ends and blanks are seen. */
static void tokenize_quote(const struct buf *b)
{
    json_t *s = json_stringn(b->data, b->len);
    char *text = json_dumps(s, JSON_ENCODE_ANY);

    printf("%s", text ? text : "\"\"");
    free(text);
    json_decref(s);
}

static int tokenize_json(const struct tokenizer *t, const struct tokenize_opts *o,
                         const int32_t *ids, size_t n, const char *text, size_t len, struct err *e)
{
    json_t *row = json_object(), *list = json_array(), *pieces = json_array();
    struct buf b;
    int rc = STATUS_OK;

    buf_init(&b, TOKENIZE_MAX_TEXT);
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, json_integer(ids[i]));
        if (o->pieces) {
            tokenize_piece(t, ids[i], &b);
            json_array_append_new(pieces, json_stringn(b.data, b.len));
        }
    }
    json_object_set_new(row, "ids", list);
    if (text) {
        json_object_set_new(row, "text", json_stringn(text, len));
    }
    if (o->pieces) {
        json_object_set(row, "pieces", pieces);
    }
    if (json_dumpf(row, stdout, JSON_COMPACT) != 0) {
        rc = ERR(e, STATUS_IO, "cannot write the output");
    }
    putchar('\n');
    buf_fini(&b);
    json_decref(pieces);
    json_decref(row);
    return rc;
}

static void tokenize_table_out(const struct tokenizer *t, const int32_t *ids, size_t n)
{
    struct buf b;

    buf_init(&b, TOKENIZE_MAX_TEXT);
    for (size_t i = 0; i < n; i++) {
        tokenize_piece(t, ids[i], &b);
        printf("%7" PRId32 "  ", ids[i]);
        tokenize_quote(&b);
        printf("%s\n", tokenizer_is_special(t, ids[i]) ? "  special" : "");
    }
    buf_fini(&b);
}

static int tokenize_encode(const struct tokenizer *t, const struct tokenize_opts *o,
                           const char *text, size_t len, struct err *e)
{
    int32_t *ids = NULL;
    size_t n = 0;
    int rc = tokenizer_encode(t, text, len, o->special, &ids, &n, e);

    if (rc == STATUS_OK && o->json) {
        rc = tokenize_json(t, o, ids, n, NULL, 0, e);
    } else if (rc == STATUS_OK && o->pieces) {
        tokenize_table_out(t, ids, n);
    } else if (rc == STATUS_OK) {
        for (size_t i = 0; i < n; i++) {
            printf(i ? " %" PRId32 : "%" PRId32, ids[i]);
        }
        putchar('\n');
    }
    mem_free(ids);
    return rc;
}

/* "1 2 3", "1,2,3", "[1, 2, 3]" into ids, which has room for one in every two bytes. */
static int tokenize_ids(const struct tokenizer *t, const char *text, size_t len, int32_t *ids,
                        size_t *n, struct err *e)
{
    size_t i = 0, line = 1, start = 0;

    *n = 0;
    while (i < len) {
        size_t k, bytes;
        int64_t v = 0;
        if (strchr(" \t\r\n,[]", text[i]) && text[i]) {
            line += text[i] == '\n';
            start = text[i] == '\n' ? i + 1 : start;
            i++;
            continue;
        }
        for (k = i; k < len && text[k] >= '0' && text[k] <= '9' && k - i < 10; k++) {
            v = v * 10 + (text[k] - '0');
        }
        if (k == i || (k < len && (!text[k] || !strchr(" \t\r\n,[]", text[k])))) {
            return ERR(e, STATUS_INPUT, "line %zu, column %zu: '%.*s' is not a token id", line,
                       i - start + 1, (int)strcspn(text + i, " \t\r\n,[]"), text + i);
        }
        if (v > INT32_MAX || !tokenizer_token_bytes(t, (int32_t)v, &bytes)) {
            return ERR(e, STATUS_INPUT, "line %zu, column %zu: no token has id %" PRId64, line,
                       i - start + 1, v);
        }
        ids[(*n)++] = (int32_t)v;
        i = k;
    }
    return STATUS_OK;
}

static int tokenize_decode(const struct tokenizer *t, const struct tokenize_opts *o,
                           const char *text, size_t len, struct err *e)
{
    int32_t *ids = mem_alloc((len / 2 + 1) * sizeof *ids);
    char *out = NULL;
    size_t n = 0, nout = 0;
    int rc = tokenize_ids(t, text, len, ids, &n, e);

    if (rc == STATUS_OK && o->pieces && !o->json) {
        tokenize_table_out(t, ids, n);
    } else if (rc == STATUS_OK) {
        rc = tokenizer_decode(t, ids, n, o->skip_special, &out, &nout, e);
        if (rc == STATUS_OK && o->json) {
            rc = tokenize_json(t, o, ids, n, out, nout, e);
        } else if (rc == STATUS_OK) {
            fwrite(out, 1, nout, stdout);
            putchar('\n');
        }
    }
    mem_free(out);
    mem_free(ids);
    return rc;
}

static int tokenize_one(const struct tokenizer *t, const struct tokenize_opts *o, const char *text,
                        size_t len, struct err *e)
{
    size_t valid = o->decode ? len : unicode_valid_prefix(text, len);

    if (valid < len) {
        log_warn(TEXT, "byte %zu is not UTF-8: such bytes count as U+FFFD", valid);
    }
    return o->decode ? tokenize_decode(t, o, text, len, e) : tokenize_encode(t, o, text, len, e);
}

/* ---- where text comes from ---- */

static int tokenize_read(const char *path, char **data, size_t *n, struct err *e)
{
    struct buf b;
    char part[65536];
    size_t k;
    int rc;

    if (strcmp(path, "-") != 0) {
        return fsio_read(path, TOKENIZE_MAX_TEXT, data, n, e);
    }
    buf_init(&b, TOKENIZE_MAX_TEXT);
    while ((k = fread(part, 1, sizeof part, stdin)) > 0) {
        buf_add(&b, part, k);
    }
    rc = ferror(stdin)    ? ERR(e, STATUS_IO, "cannot read stdin")
         : buf_status(&b) ? ERR(e, STATUS_INPUT, "stdin has more than %zu bytes", TOKENIZE_MAX_TEXT)
                          : STATUS_OK;
    if (rc == STATUS_OK) {
        *data = buf_take(&b, n);
    }
    buf_fini(&b);
    return rc;
}

static int tokenize_file(const struct tokenizer *t, const struct tokenize_opts *o, const char *path,
                         struct err *e)
{
    char *data = NULL;
    size_t n = 0, at = 0, line = 0;
    int rc = tokenize_read(path, &data, &n, e);

    if (rc == STATUS_OK && !o->lines) {
        rc = tokenize_one(t, o, data, n, e);
        rc = rc == STATUS_OK ? rc : err_prefix(e, "%s", strcmp(path, "-") ? path : "stdin");
    }
    while (rc == STATUS_OK && o->lines && at < n) {
        const char *nl = memchr(data + at, '\n', n - at);
        size_t end = nl ? (size_t)(nl - data) : n;
        line++;
        rc = tokenize_one(t, o, data + at, end - at, e);
        if (rc != STATUS_OK) {
            err_prefix(e, "%s: text %zu", strcmp(path, "-") ? path : "stdin", line);
        }
        at = end + 1;
    }
    mem_free(data);
    return rc;
}

/* Each argument is a text; ids are one list over all of them. */
static int tokenize_args(const struct tokenizer *t, const struct tokenize_opts *o,
                         const struct conf *c, struct err *e)
{
    struct buf all;
    int rc = STATUS_OK;

    buf_init(&all, TOKENIZE_MAX_TEXT);
    for (int i = 0; i < conf_nargs(c) && rc == STATUS_OK; i++) {
        if (o->decode) {
            buf_str(&all, i ? " " : "");
            buf_str(&all, conf_arg(c, i));
        } else {
            rc = tokenize_one(t, o, conf_arg(c, i), strlen(conf_arg(c, i)), e);
            rc = rc == STATUS_OK ? rc : err_prefix(e, "argument %d", i + 1);
        }
    }
    if (rc == STATUS_OK && o->decode) {
        rc = tokenize_one(t, o, all.data, all.len, e);
    }
    buf_fini(&all);
    return rc;
}

static int tokenize_run(const struct tokenize_opts *o, const struct conf *c, struct err *e)
{
    struct tokenizer *t = NULL;
    int n = conf_nargs(c);
    int rc = STATUS_OK;

    if (o->file && n > 0) {
        return ERR(e, STATUS_INPUT, "give text as arguments or --file, not both");
    }
    if (o->lines && n > 0) {
        return ERR(e, STATUS_INPUT, "--lines is for --file and stdin");
    }
    rc = tokenize_open(o, &t, e);
    if (rc == STATUS_OK && n > 0) {
        rc = tokenize_args(t, o, c, e);
    }
    if (rc == STATUS_OK && n == 0) {
        rc = tokenize_file(t, o, o->file ? o->file : "-", e);
    }
    tokenizer_close(t);
    return rc;
}

int cmd_tokenize(int argc, char **argv)
{
    struct tokenize_opts o = {0};
    struct conf *c = conf_new();
    struct err e = {0};
    int rc;

    conf_add(c, tokenize_table, &o);
    conf_positional(c, 0, TOKENIZE_MAX_ARGS);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles tokenize --hf-checkpoint DIR [--flag value ...] [TEXT ...]", c);
        rc = STATUS_OK;
    } else if (rc == STATUS_OK) {
        rc = tokenize_run(&o, c, &e);
    }
    conf_free(c);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}
