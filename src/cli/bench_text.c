/* Owns `miles bench text`: how fast text becomes tokens, one thread, here and in the Python package
 * `tokenizers`, for every tokenizer of a folder. Both sides get the same documents, files cut at
 * line ends, and take turns in one run, because the speed of a shared machine wanders; the shortest
 * turn of each side counts, in processor time, which other programs disturb least. Their ids must
 * be equal.
 *
 * The package runs in a child that reads commands on its stdin and answers in lines; only the time
 * inside its batch call is counted there, no list of Python numbers is made in it. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/conf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "cli/bench.h"
#include "text/tokenizer.h"

#define TEXT_FILE_MAX ((size_t)1 << 28)
#define TEXT_WAIT_S   600.0

struct text_opts {
    char *test_data, *oracles, *python, *text;
    struct conf_strs tokenizers;
    int64_t rounds, document, max_bytes;
};

#define O(f) offsetof(struct text_opts, f)
static const struct conf_opt text_table[] = {
    {"test-data", CONF_STR, NULL, NULL, "folder with tokenizers/ and text/", O(test_data), "work",
     NULL},
    {"tokenizers", CONF_STRS, NULL, NULL,
     "names of folders in tokenizers/, each with a tokenizer.json; unset takes all", O(tokenizers),
     "work", NULL},
    {"text", CONF_STR, NULL, NULL, "folder of text files instead of text/ in --test-data", O(text),
     "work", NULL},
    {"document", CONF_INT, "16384", "[64,16777216]", "bytes at which files are cut into documents",
     O(document), "work", NULL},
    {"max-bytes", CONF_INT, "0", "[0,4294967296]",
     "takes every k-th document so that about so many bytes are left; 0 takes all", O(max_bytes),
     "work", NULL},
    {"rounds", CONF_INT, "3", "[1,64]", "turns of each side", O(rounds), "work", NULL},
    {"oracles", CONF_STR, NULL, NULL, "virtual environment with the tokenizers package", O(oracles),
     "machine", NULL},
    {"python", CONF_STR, NULL, NULL, "interpreter; unset: that of --oracles, or python3", O(python),
     "machine", NULL},
    {0}};

static const char text_script[] =
    "import gc, itertools, operator, os, struct, sys, time\n"
    "import tokenizers\n"
    "docs, tok = [], None\n"
    "gc.disable()\n"
    "print('ready', tokenizers.__version__, flush=True)\n"
    "for line in sys.stdin:\n"
    "    word, _, rest = line.rstrip('\\n').partition(' ')\n"
    "    if word == 'docs':\n"
    "        raw = open(rest, 'rb').read()\n"
    "        at = 0\n"
    "        while at < len(raw):\n"
    "            n, = struct.unpack_from('<q', raw, at)\n"
    "            docs.append(raw[at + 8:at + 8 + n].decode('utf-8', 'replace'))\n"
    "            at += 8 + n\n"
    "        print(len(docs), flush=True)\n"
    "    elif word == 'open':\n"
    "        tok = tokenizers.Tokenizer.from_file(rest)\n"
    "        tok.no_truncation(); tok.no_padding()\n"
    "        batch = getattr(tok, 'encode_batch_fast', tok.encode_batch)\n"
    "        print('ok', flush=True)\n"
    "    elif word == 'run':\n"
    "        t = time.process_time()\n"
    "        out = batch(docs, add_special_tokens=False)\n"
    "        t = time.process_time() - t\n"
    "        n = digest = 0\n"
    "        for x in out if rest == 'ids' else ():\n"
    "            ids = x.ids\n"
    "            n += len(ids)\n"
    "            digest += sum(map(operator.mul, ids, itertools.count(1)))\n"
    "        del out\n"
    "        print(repr(t), n, digest % (1 << 64), flush=True)\n";

struct text_doc {
    const char *s;
    size_t n;
};
struct text_bench {
    const struct text_opts *o;
    struct buf files; /* the text of all files, one after the other */
    struct text_doc *doc;
    size_t ndoc, capdoc, bytes;
    struct proc child;
    struct buf reply;
};

/* ---- documents ---- */

static int text_by_name(const void *x, const void *y)
{
    return strcmp(*(char *const *)x, *(char *const *)y);
}

/* Names in a folder, sorted; free each and the list with mem_free. */
static int text_names(const char *dir, char ***names, size_t *n, struct err *e)
{
    DIR *d = opendir(dir);
    struct dirent *en;
    size_t cap = 0;

    *names = NULL;
    *n = 0;
    if (!d) {
        return ERR(e, STATUS_IO, "%s: %s", dir, strerror(errno));
    }
    while ((en = readdir(d))) {
        if (en->d_name[0] == '.') {
            continue;
        }
        if (*n == cap) {
            *names = mem_realloc(*names, cap * sizeof **names, (2 * cap + 64) * sizeof **names);
            cap = 2 * cap + 64;
        }
        (*names)[(*n)++] = mem_strdup(en->d_name);
    }
    closedir(d);
    qsort(*names, *n, sizeof **names, text_by_name);
    return STATUS_OK;
}

static void text_names_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        mem_free(names[i]);
    }
    mem_free(names);
}

/* Cuts [at, end) of the gathered text behind the last line end that fits, or inside a line between
 * two characters. */
static void text_cut(struct text_bench *b, size_t at, size_t end)
{
    while (at < end) {
        size_t n = end - at < (size_t)b->o->document ? end - at : (size_t)b->o->document;
        const char *s = b->files.data + at;
        const char *nl = at + n < end ? memrchr(s, '\n', n) : NULL;
        if (nl) {
            n = (size_t)(nl + 1 - s);
        } else {
            while (at + n < end && n > 1 && ((unsigned char)s[n] & 0xC0) == 0x80) {
                n--;
            }
        }
        if (b->ndoc == b->capdoc) {
            size_t cap = 2 * b->capdoc + 256;
            b->doc = mem_realloc(b->doc, b->capdoc * sizeof *b->doc, cap * sizeof *b->doc);
            b->capdoc = cap;
        }
        b->doc[b->ndoc].s = (const char *)at; /* an offset until all files are there */
        b->doc[b->ndoc++].n = n;
        at += n;
    }
}

static int text_gather(struct text_bench *b, const char *dir, int depth, struct err *e)
{
    char **names;
    size_t n;
    int rc = text_names(dir, &names, &n, e);

    for (size_t i = 0; i < n && rc == STATUS_OK; i++) {
        char *path = fsio_join(dir, names[i]);
        char *data = NULL;
        size_t len = 0, at = b->files.len;
        if (fsio_is_dir(path)) {
            rc = depth < 8 ? text_gather(b, path, depth + 1, e) : STATUS_OK;
        } else {
            rc = fsio_read(path, TEXT_FILE_MAX, &data, &len, e);
            buf_add(&b->files, data, len);
            if (rc == STATUS_OK && buf_status(&b->files)) {
                rc = ERR(e, STATUS_NOMEM, "%s: the texts are too large together", dir);
            }
            text_cut(b, at, b->files.len);
        }
        mem_free(data);
        mem_free(path);
    }
    text_names_free(names, n);
    return rc;
}

/* Every k-th document, and pointers in place of offsets. */
static int text_choose(struct text_bench *b, struct err *e)
{
    size_t step = 1, n = 0;

    if (b->o->max_bytes > 0 && b->files.len > (size_t)b->o->max_bytes) {
        step = (b->files.len + (size_t)b->o->max_bytes - 1) / (size_t)b->o->max_bytes;
    }
    for (size_t i = 0; i < b->ndoc; i += step) {
        b->doc[n] = b->doc[i];
        b->doc[n].s = b->files.data + (size_t)b->doc[n].s;
        b->bytes += b->doc[n++].n;
    }
    b->ndoc = n;
    return n ? STATUS_OK : ERR(e, STATUS_INPUT, "there is no text in the folder");
}

/* ---- the package ---- */

static int text_ask(struct text_bench *b, const char *line, char *answer, size_t size,
                    struct err *e)
{
    size_t n = strlen(line), done = 0, len = 0;
    int rc = STATUS_OK;

    while (done < n && (rc == STATUS_OK || rc == STATUS_AGAIN)) {
        size_t k = 0;
        rc = proc_write(&b->child, line + done, n - done, &k, e);
        done += k;
    }
    if (rc == STATUS_OK) {
        rc = proc_read_line(&b->child, &b->reply, proc_now() + TEXT_WAIT_S, &len, e);
    }
    if (rc == STATUS_END) {
        return ERR(e, STATUS_CHILD, "the Python child with the tokenizers package ended");
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    snprintf(answer, size, "%.*s", (int)(len - 1), b->reply.data);
    buf_shift(&b->reply, len);
    return STATUS_OK;
}

/* The documents go through a file: length in 8 bytes, text, over and over. */
static int text_send_docs(struct text_bench *b, struct err *e)
{
    char path[] = "/tmp/miles_bench_text.XXXXXX";
    char line[256], answer[256];
    int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    int rc = STATUS_OK;

    if (!f) {
        return ERR(e, STATUS_IO, "%s: %s", path, strerror(errno));
    }
    for (size_t i = 0; i < b->ndoc; i++) {
        int64_t n = (int64_t)b->doc[i].n;
        if (fwrite(&n, sizeof n, 1, f) != 1 ||
            fwrite(b->doc[i].s, 1, b->doc[i].n, f) != b->doc[i].n) {
            rc = ERR(e, STATUS_IO, "%s: %s", path, strerror(errno));
            break;
        }
    }
    if (fclose(f) != 0 && rc == STATUS_OK) {
        rc = ERR(e, STATUS_IO, "%s: %s", path, strerror(errno));
    }
    snprintf(line, sizeof line, "docs %s\n", path);
    if (rc == STATUS_OK) {
        rc = text_ask(b, line, answer, sizeof answer, e);
    }
    remove(path);
    return rc;
}

static int text_start(struct text_bench *b, struct err *e)
{
    char *own = b->o->oracles ? fsio_join(b->o->oracles, "bin/python") : NULL;
    const char *python = b->o->python ? b->o->python : own ? own : "python3";
    const char *argv[] = {
        "env", "TOKENIZERS_PARALLELISM=false", "RAYON_NUM_THREADS=1", python, "-c", text_script,
        NULL};
    struct proc_opts po = {.argv = argv, .request_fd = 0, .reply_fd = 1, .life_fd = -1};
    char answer[256];
    int rc = proc_spawn(&b->child, &po, e);

    if (rc == STATUS_OK) {
        rc = text_ask(b, "", answer, sizeof answer, e);
    }
    if (rc == STATUS_OK) {
        printf("tokenizers package: %s\n", answer + (strncmp(answer, "ready ", 6) == 0 ? 6 : 0));
        rc = text_send_docs(b, e);
    }
    mem_free(own);
    return rc;
}

/* ---- turns ---- */

struct text_turn {
    double seconds;
    uint64_t tokens, digest;
};

/* Seconds of processor time of this process. */
static double text_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int text_ours(const struct text_bench *b, const struct tokenizer *t, struct text_turn *r,
                     struct err *e)
{
    int rc = STATUS_OK;

    r->seconds = 0.0;
    r->tokens = r->digest = 0;
    for (size_t i = 0; i < b->ndoc && rc == STATUS_OK; i++) {
        double t0 = text_clock();
        int32_t *ids = NULL;
        size_t n = 0;
        rc = tokenizer_encode(t, b->doc[i].s, b->doc[i].n, 0, &ids, &n, e);
        r->seconds += text_clock() - t0;
        for (size_t k = 0; k < n; k++) {
            r->digest += (uint64_t)ids[k] * (k + 1);
        }
        r->tokens += n;
        mem_free(ids);
    }
    return rc;
}

static int text_theirs(struct text_bench *b, int ids, struct text_turn *r, struct err *e)
{
    char answer[256];
    int rc = text_ask(b, ids ? "run ids\n" : "run\n", answer, sizeof answer, e);

    if (rc == STATUS_OK &&
        sscanf(answer, "%lf %" SCNu64 " %" SCNu64, &r->seconds, &r->tokens, &r->digest) != 3) {
        rc = ERR(e, STATUS_CHILD, "the Python child answered '%.100s'", answer);
    }
    return rc;
}

static int text_compare(struct text_bench *b, const struct tokenizer *t, const char *name,
                        double *ratio, struct err *e)
{
    double best[2] = {INFINITY, INFINITY};
    struct text_turn turn[2];
    int rc = STATUS_OK;

    for (int i = 0; i < b->o->rounds && rc == STATUS_OK; i++) {
        for (int k = 0; k < 2 && rc == STATUS_OK; k++) { /* who begins changes */
            int s = (k + i) % 2;
            rc = s ? text_theirs(b, i == 0, &turn[1], e) : text_ours(b, t, &turn[0], e);
            best[s] = rc == STATUS_OK && turn[s].seconds < best[s] ? turn[s].seconds : best[s];
        }
        if (i == 0 && rc == STATUS_OK &&
            (turn[0].tokens != turn[1].tokens || turn[0].digest != turn[1].digest)) {
            rc = ERR(e, STATUS_NUMERIC,
                     "%s: ids differ from the package's: %" PRIu64 " and %" PRIu64 " tokens", name,
                     turn[0].tokens, turn[1].tokens);
        }
    }
    if (rc == STATUS_OK) {
        double mb = (double)b->bytes * 1e-6;
        *ratio = best[1] / best[0];
        printf("%-18s %9" PRIu64 " tokens  ours %7.2f MB/s  package %6.2f MB/s  ratio %6.2f\n",
               name, turn[0].tokens, mb / best[0], mb / best[1], *ratio);
        fflush(stdout);
    }
    return rc;
}

static int text_tokenizer(struct text_bench *b, const char *dir, const char *name, double *ratio,
                          struct err *e)
{
    char *folder = fsio_join(dir, name);
    char *path = fsio_join(folder, "tokenizer.json");
    struct tokenizer *t = NULL;
    struct buf line;
    char *json = NULL;
    char answer[256];
    size_t n;
    int rc = fsio_read(path, TEXT_FILE_MAX, &json, &n, e);

    buf_init(&line, 1 << 16);
    buf_printf(&line, "open %s\n", path);
    rc = rc == STATUS_OK ? tokenizer_open(json, &t, e) : rc;
    rc = rc == STATUS_OK ? text_ask(b, line.data, answer, sizeof answer, e) : rc;
    rc = rc == STATUS_OK ? text_compare(b, t, name, ratio, e) : rc;
    tokenizer_close(t);
    buf_fini(&line);
    mem_free(json);
    mem_free(path);
    mem_free(folder);
    return rc;
}

static int text_all(struct text_bench *b, const char *dir, struct err *e)
{
    char **names = NULL;
    size_t n = 0, done = 0;
    double sum = 0.0;
    int rc = STATUS_OK;

    if (b->o->tokenizers.n == 0) {
        rc = text_names(dir, &names, &n, e);
    }
    for (size_t i = 0; rc == STATUS_OK && i < (n ? n : (size_t)b->o->tokenizers.n); i++) {
        const char *name = n ? names[i] : b->o->tokenizers.v[i];
        char *folder = fsio_join(dir, name);
        char *path = fsio_join(folder, "tokenizer.json");
        double ratio;
        if (!n || fsio_is_file(path)) {
            rc = text_tokenizer(b, dir, name, &ratio, e);
            sum += rc == STATUS_OK ? log(ratio) : 0.0;
            done++;
        }
        mem_free(path);
        mem_free(folder);
    }
    text_names_free(names, n);
    if (rc == STATUS_OK && done == 0) {
        rc = ERR(e, STATUS_INPUT, "%s: there is no tokenizer in it", dir);
    }
    if (rc == STATUS_OK) {
        printf("encode_vs_hf=%.2f tokenizers=%zu documents=%zu bytes=%zu rounds=%" PRId64 "\n",
               exp(sum / (double)done), done, b->ndoc, b->bytes, b->o->rounds);
    }
    return rc;
}

static int text_main(const void *opts, struct err *e)
{
    struct text_bench b;
    char *text, *dir;
    int rc;

    memset(&b, 0, sizeof b);
    b.o = opts;
    if (!b.o->test_data) {
        return ERR(e, STATUS_INPUT, "--test-data is needed: a folder with tokenizers/ and text/");
    }
    text = b.o->text ? mem_strdup(b.o->text) : fsio_join(b.o->test_data, "text");
    dir = fsio_join(b.o->test_data, "tokenizers");
    buf_init(&b.files, (size_t)1 << 32);
    buf_init(&b.reply, 1 << 16);
    bench_pin(1);
    rc = text_gather(&b, text, 0, e);
    rc = rc == STATUS_OK ? text_choose(&b, e) : rc;
    rc = rc == STATUS_OK ? text_start(&b, e) : rc;
    rc = rc == STATUS_OK ? text_all(&b, dir, e) : rc;
    proc_end(&b.child);
    buf_fini(&b.reply);
    buf_fini(&b.files);
    mem_free(b.doc);
    mem_free(dir);
    mem_free(text);
    return rc;
}

int bench_text(int argc, char **argv)
{
    struct text_opts o = {0};
    return bench_main(argc, argv, text_table, &o, text_main);
}
