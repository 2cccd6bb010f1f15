/* The trace file: valid JSON when it was closed, when it was not, and when a run went on with it.
 */
#include "runkit.h"

#include <jansson.h>
#include <sys/wait.h>

#include "base/span.h"
#include "run/trace.h"

static struct err e;

/* Events as the viewers read them: a missing end is added. */
static json_t *events(const char *name, int closed)
{
    char *text = runkit_text(name), *all;
    size_t n = strlen(text);
    json_t *j;
    json_error_t je;
    if (closed) {
        j = json_loads(text, 0, &je);
    } else {
        assert_true(n > 2 && text[n - 1] == '\n' && text[n - 2] == ',');
        text[n - 2] = 0;
        all = malloc(n + 2);
        snprintf(all, n + 2, "%s]", text);
        j = json_loads(all, 0, &je);
        free(all);
    }
    if (!j) {
        fail_msg("%s: %s in %s", name, je.text, text);
    }
    mem_free(text);
    return j;
}

/* The spans of a file as "lane/name" with the number of each. */
static int count(const json_t *list, const char *name)
{
    size_t i;
    json_t *v;
    int n = 0;
    json_array_foreach((json_t *)(uintptr_t)list, i, v)
    {
        const char *ph = json_string_value(json_object_get(v, "ph"));
        if (strcmp(ph, "X") == 0 &&
            strcmp(json_string_value(json_object_get(v, "name")), name) == 0) {
            assert_true(json_number_value(json_object_get(v, "dur")) >= 0);
            assert_true(json_number_value(json_object_get(v, "ts")) > 1e15);
            n++;
        }
    }
    return n;
}

static void a_closed_file_is_json(void **state)
{
    struct trace *t;
    json_t *j, *v;
    size_t i;
    int lanes = 0;
    (void)state;
    assert_ok(trace_open(runkit_at("closed.json"), 0, &t, &e), &e);
    span_emit("loop", "rollout", 1, 2, 5);
    span_emit("engine 0", "odd \"name\"\n", 1, 1.5, -1);
    span_emit("loop", "train", 2, 4, 5);
    trace_close(t);
    span_emit("loop", "late", 1, 2, 5);
    j = events("closed.json", 1);
    assert_int_equal(count(j, "rollout"), 1);
    assert_int_equal(count(j, "odd \"name\"\n"), 1);
    assert_int_equal(count(j, "late"), 0);
    json_array_foreach(j, i, v)
    {
        lanes += strcmp(json_string_value(json_object_get(v, "name")), "thread_name") == 0;
        if (strcmp(json_string_value(json_object_get(v, "name")), "train") == 0) {
            assert_int_equal(json_integer_value(json_object_get(v, "dur")), 2000000);
            assert_int_equal(
                json_integer_value(json_object_get(json_object_get(v, "args"), "rollout")), 5);
        }
    }
    assert_int_equal(lanes, 2);
    json_decref(j);
}

/* Killed without a word, also in the middle of a line; then the run goes on, twice. */
static void a_killed_file_is_mended(void **state)
{
    struct trace *t;
    FILE *f;
    json_t *j;
    pid_t pid = fork();
    (void)state;
    if (pid == 0) {
        trace_open(runkit_at("killed.json"), 0, &t, &e);
        span_emit("loop", "first", 1, 2, 0);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    j = events("killed.json", 0);
    assert_int_equal(count(j, "first"), 1);
    json_decref(j);
    f = fopen(runkit_at("killed.json"), "ab");
    fputs("{\"name\":\"half", f);
    fclose(f);
    for (int i = 0; i < 2; i++) {
        assert_ok(trace_open(runkit_at("killed.json"), 1, &t, &e), &e);
        span_emit("loop", "more", 1, 2, 1);
        trace_close(t);
        j = events("killed.json", 1);
        assert_int_equal(count(j, "first"), 1);
        assert_int_equal(count(j, "half"), 0);
        assert_int_equal(count(j, "more"), i + 1);
        json_decref(j);
    }
    assert_ok(trace_open(runkit_at("killed.json"), 0, &t, &e), &e); /* anew */
    trace_close(t);
    j = events("killed.json", 1);
    assert_int_equal(count(j, "first"), 0);
    json_decref(j);
}

static void it_has_a_full_size(void **state)
{
    struct trace *t;
    char *text, name[4001];
    json_t *j;
    (void)state;
    memset(name, 'x', sizeof name - 1);
    name[4000] = 0;
    runkit_listen();
    assert_ok(trace_open(runkit_at("full.json"), 0, &t, &e), &e);
    for (int i = 0; i < TRACE_MAX / 4000 + 10; i++) {
        span_emit("loop", name, 1, 2, i);
    }
    trace_close(t);
    runkit_deaf();
    text = runkit_text("full.json");
    assert_true(strlen(text) <= TRACE_MAX);
    assert_true(strlen(text) > TRACE_MAX - 8192);
    mem_free(text);
    j = events("full.json", 1);
    assert_true(count(j, name) > 16000);
    json_decref(j);
    assert_non_null(strstr(runkit_lines, "full size"));
    unlink(runkit_at("full.json"));
}

static void a_folder_that_is_not_there(void **state)
{
    struct trace *t;
    (void)state;
    assert_int_equal(trace_open(runkit_at("none/trace.json"), 0, &t, &e), STATUS_IO);
    assert_non_null(strstr(e.msg, "none/trace.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_closed_file_is_json),
        cmocka_unit_test(a_killed_file_is_mended),
        cmocka_unit_test(it_has_a_full_size),
        cmocka_unit_test(a_folder_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, runkit_setup, runkit_teardown);
}
