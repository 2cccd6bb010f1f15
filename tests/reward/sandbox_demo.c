/* Drives the sandbox for the scripts in tests/live and bench.
 *
 *     sandbox_demo [--workers N] [--python P] [--spares N] < JOBS      one JSON object a line, out
 *     sandbox_demo --bench SECONDS FILE [python|native] [--workers N]  so many times; prints rate=N
 *
 * A job: {"id", "language", "style", "compare", "source" or "path", "entry", "go_on", "keep",
 * "cases": [{"input", "expected", "args"}], "limits": {"wall", "cpu", "memory", ...}}. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "reward/sandbox.h"

enum { MAX_CASES = 1000, MAX_ARGS = 64 };

static int pick(const json_t *o, const char *key, const char *const *names)
{
    const char *s = json_string_value(json_object_get(o, key));

    for (int i = 0; s && names[i]; i++) {
        if (strcmp(s, names[i]) == 0) {
            return i;
        }
    }
    return 0;
}

static const char *text(const json_t *o, const char *key, size_t *n)
{
    const json_t *v = json_object_get(o, key);

    *n = json_string_length(v);
    return json_string_value(v);
}

static int submit(struct sandbox *s, const json_t *o, struct err *e)
{
    static const char *const languages[] = {"python", "native", NULL};
    static const char *const styles[] = {"stdio", "call", "assert", NULL};
    static const char *const rules[] = {"lines", "exact", "numbers", "nothing", NULL};
    static struct sandbox_case cases[MAX_CASES];
    static const char *args[MAX_CASES][MAX_ARGS + 1];
    const json_t *list = json_object_get(o, "cases"), *lim = json_object_get(o, "limits");
    struct sandbox_job j = {
        .id = json_integer_value(json_object_get(o, "id")),
        .language = (enum sandbox_language)pick(o, "language", languages),
        .style = (enum sandbox_style)pick(o, "style", styles),
        .compare = (enum sandbox_compare)pick(o, "compare", rules),
        .path = json_string_value(json_object_get(o, "path")),
        .entry = json_string_value(json_object_get(o, "entry")),
        .cases = cases,
        .ncases = (int)json_array_size(list),
        .go_on = json_is_true(json_object_get(o, "go_on")),
        .keep_output = json_is_true(json_object_get(o, "keep")),
        .limits = {.wall_s = json_number_value(json_object_get(lim, "wall")),
                   .cpu_s = json_number_value(json_object_get(lim, "cpu")),
                   .memory = json_integer_value(json_object_get(lim, "memory")),
                   .output = json_integer_value(json_object_get(lim, "output")),
                   .processes = (int)json_integer_value(json_object_get(lim, "processes")),
                   .files = (int)json_integer_value(json_object_get(lim, "files"))}};

    memset(cases, 0, sizeof cases);
    j.source = text(o, "source", &j.source_len);
    for (int i = 0; i < j.ncases && i < MAX_CASES; i++) {
        const json_t *c = json_array_get(list, (size_t)i), *a = json_object_get(c, "args");
        size_t n = json_array_size(a);
        cases[i].input = text(c, "input", &cases[i].input_len);
        cases[i].expected = text(c, "expected", &cases[i].expected_len);
        for (size_t k = 0; k < n && k < MAX_ARGS; k++) {
            args[i][k] = json_string_value(json_array_get(a, k));
        }
        args[i][n] = NULL;
        cases[i].args = n ? args[i] : NULL;
    }
    return sandbox_submit(s, &j, e);
}

static void print(struct sandbox_result *r)
{
    json_t *cases = json_array(), *o;
    char *line;

    for (int i = 0; i < r->ncases; i++) {
        const struct sandbox_outcome *c = &r->cases[i];
        o = json_pack("{s:s, s:f, s:f, s:I, s:i}", "verdict", sandbox_verdict_name(c->verdict),
                      "seconds", c->seconds, "cpu", c->cpu_seconds, "peak", (json_int_t)c->peak,
                      "status", c->status);
        if (c->output) {
            json_t *out = json_stringn(c->output, c->output_len);
            json_object_set_new(o, "output", out ? out : json_null());
        }
        json_array_append_new(cases, o);
    }
    o = json_pack("{s:I, s:b, s:i, s:i, s:i, s:s, s:s, s:f, s:o}", "id", (json_int_t)r->id,
                  "failed", r->failed, "passed", r->passed, "total", r->total, "first_bad",
                  r->first_bad, "verdict", sandbox_verdict_name(r->verdict), "reason", r->reason,
                  "seconds", r->seconds, "cases", cases);
    line = json_dumps(o, JSON_COMPACT);
    puts(line ? line : "{}");
    fflush(stdout);
    free(line);
    json_decref(o);
    sandbox_result_fini(r);
}

static int serve(struct sandbox *s, struct err *e)
{
    char *line = NULL;
    size_t room = 0;
    struct sandbox_result r;
    int rc = 0, end = 0;

    while (rc == 0 && (!end || sandbox_pending(s))) {
        if (!end) {
            ssize_t n = getline(&line, &room, stdin);
            json_t *o = n > 0 ? json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL) : NULL;
            end = n <= 0;
            if (!end && !o) {
                rc = ERR(e, STATUS_INPUT, "a job is not JSON");
            }
            while (o && (rc = submit(s, o, e)) == STATUS_AGAIN) {
                if (sandbox_poll(s, 1, &r, e) == 0) {
                    print(&r);
                }
            }
            json_decref(o);
        }
        while (rc == 0 && sandbox_poll(s, end ? 1 : 0, &r, e) == 0) {
            print(&r);
        }
    }
    free(line);
    return rc;
}

static int bench(struct sandbox *s, double seconds, const char *file, int native, struct err *e)
{
    struct sandbox_case c = {
        .input = "3 4\n", .input_len = 4, .expected = "7\n", .expected_len = 2};
    struct sandbox_job j = {.cases = &c, .ncases = 1};
    struct sandbox_result r;
    char *source = NULL;
    double began;
    int done = 0, bad = 0, rc;

    rc = fsio_read(file, 1 << 28, &source, &j.source_len, e);
    j.source = source;
    j.language = native ? SANDBOX_NATIVE : SANDBOX_PYTHON;
    began = proc_now();
    while (rc == 0 && (proc_now() - began < seconds || sandbox_pending(s))) {
        while (rc == 0 && sandbox_pending(s) < 16 && proc_now() - began < seconds) {
            rc = sandbox_submit(s, &j, e);
        }
        if (rc == 0 && sandbox_poll(s, 1, &r, e) == 0) {
            done++;
            if (r.failed || r.passed != 1) {
                bad++;
                fprintf(stderr, "%s\n", r.reason);
            }
            sandbox_result_fini(&r);
        }
    }
    if (rc == 0) {
        printf("rate=%.1f bad=%d\n", done / (proc_now() - began), bad);
    }
    mem_free(source);
    return rc ? rc : bad ? STATUS_FAIL : 0;
}

int main(int argc, char **argv)
{
    struct sandbox_opts o = {.workers = 2};
    struct sandbox *s = NULL;
    struct err e = {0};
    const char *file = NULL;
    double seconds = 0;
    int native = 0, rc;

    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "--workers") == 0) {
            o.workers = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--spares") == 0) {
            o.spares = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--python") == 0) {
            o.python = argv[++i];
        } else if (strcmp(argv[i], "--bwrap") == 0) {
            o.bwrap = argv[++i];
        } else if (strcmp(argv[i], "--bench") == 0 && i + 3 < argc) {
            seconds = atof(argv[i + 1]);
            file = argv[i + 2];
            native = strcmp(argv[i + 3], "native") == 0;
            i += 3;
        }
    }
    rc = sandbox_open(&o, &s, &e);
    if (rc == 0) {
        rc = file ? bench(s, seconds, file, native, &e) : serve(s, &e);
    }
    sandbox_close(s);
    if (rc != 0) {
        fprintf(stderr, "sandbox_demo: %s\n", e.msg);
    }
    return rc != 0;
}
