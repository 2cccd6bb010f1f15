/* Log lines: their form on stderr, levels, sinks, cutting, and whole lines from many threads. */
#include "support.h"

#include <pthread.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"

/* Everything written to stderr between capture and release, in out. */
static int saved_fd;
static FILE *captured;

static void capture(void)
{
    fflush(stderr);
    captured = tmpfile();
    assert_non_null(captured);
    saved_fd = dup(STDERR_FILENO);
    dup2(fileno(captured), STDERR_FILENO);
}

static void release(char *out, size_t max)
{
    size_t n;
    fflush(stderr);
    dup2(saved_fd, STDERR_FILENO);
    close(saved_fd);
    rewind(captured);
    n = fread(out, 1, max - 1, captured);
    out[n] = 0;
    fclose(captured);
}

struct heard {
    int n;
    enum log_level level;
    char comp[32], text[4096];
};

static void sink(void *arg, enum log_level level, const char *comp, const char *text)
{
    struct heard *h = arg;
    h->n++;
    h->level = level;
    snprintf(h->comp, sizeof h->comp, "%s", comp);
    snprintf(h->text, sizeof h->text, "%s", text);
}

static void form_and_levels(void **state)
{
    struct heard h = {0};
    char out[1024];
    (void)state;
    assert_int_equal(log_add_sink(sink, &h), 0);
    capture();
    log_debug(KV, "not at this level");
    log_info(TRAIN, "step %d", 3);
    log_warn(KV, "evicted %d pages", 2);
    log_error(Hub, "it is %s", "over");
    release(out, sizeof out);
    assert_string_equal(out, "miles: info train: step 3\n"
                             "miles: warn kv: evicted 2 pages\n"
                             "miles: error hub: it is over\n");
    assert_int_equal(h.n, 3);
    assert_int_equal(h.level, LOG_ERROR);
    assert_string_equal(h.comp, "hub");
    assert_string_equal(h.text, "it is over");
    log_set_level(LOG_ERROR);
    capture();
    log_warn(KV, "too low");
    release(out, sizeof out);
    assert_string_equal(out, "");
    assert_int_equal(h.n, 3);
    log_set_level(LOG_DEBUG);
    capture();
    log_debug(KV, "%s", "seen");
    release(out, sizeof out);
    assert_string_equal(out, "miles: debug kv: seen\n");
    log_set_level(LOG_INFO);
    log_remove_sink(sink, &h);
    capture();
    log_info(KV, "x");
    release(out, sizeof out);
    assert_int_equal(h.n, 4);
}

static void sinks_are_few(void **state)
{
    struct heard h[5] = {{0}};
    char out[256];
    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(log_add_sink(sink, &h[i]), 0);
    }
    assert_int_equal(log_add_sink(sink, &h[4]), STATUS_NOMEM);
    log_remove_sink(sink, &h[1]);
    assert_int_equal(log_add_sink(sink, &h[4]), 0);
    capture();
    log_info(A, "once");
    release(out, sizeof out);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(h[i].n, i != 1);
        log_remove_sink(sink, &h[i]);
    }
}

/* Long lines and long component names are cut, not overrun. */
static void long_lines(void **state)
{
    struct heard h = {0};
    char big[8192], out[8192];
    (void)state;
    memset(big, 'b', sizeof big - 1);
    big[sizeof big - 1] = 0;
    assert_int_equal(log_add_sink(sink, &h), 0);
    capture();
    log_write(LOG_INFO, big, "%s", big);
    release(out, sizeof out);
    log_remove_sink(sink, &h);
    assert_int_equal(strlen(h.comp), 31);
    assert_true(strlen(h.text) >= 1024 && strlen(h.text) < sizeof big - 1);
    assert_int_equal(out[strlen(out) - 1], '\n');
    assert_int_equal(strlen(out), strlen("miles: info : \n") + strlen(h.comp) + strlen(h.text));
}

static void before(void *arg)
{
    ++*(int *)arg;
}

static void before_line(void **state)
{
    int n = 0;
    char out[256];
    (void)state;
    log_set_before_line(before, &n);
    capture();
    log_info(A, "1");
    log_debug(A, "dropped");
    log_info(A, "2");
    release(out, sizeof out);
    assert_int_equal(n, 2);
    log_set_before_line(NULL, NULL);
    capture();
    log_info(A, "3");
    release(out, sizeof out);
    assert_int_equal(n, 2);
}

static void *talker(void *arg)
{
    for (int i = 0; i < 200; i++) {
        log_info(T, "%d says number %d of the line", *(int *)arg, i);
    }
    return NULL;
}

/* Lines of several threads come whole, and each thread's in its order. */
static void threads(void **state)
{
    static char out[1 << 16];
    pthread_t t[4];
    int id[4], next[4] = {0}, lines = 0;
    (void)state;
    capture();
    for (int i = 0; i < 4; i++) {
        id[i] = i;
        assert_int_equal(pthread_create(&t[i], NULL, talker, &id[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
    }
    release(out, sizeof out);
    for (char *s = strtok(out, "\n"); s; s = strtok(NULL, "\n")) {
        int who, what, end = 0;
        assert_int_equal(
            sscanf(s, "miles: info t: %d says number %d of the line%n", &who, &what, &end), 2);
        assert_int_equal(s[end], 0);
        assert_in_range(who, 0, 3);
        assert_int_equal(what, next[who]++);
        lines++;
    }
    assert_int_equal(lines, 800);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(form_and_levels), cmocka_unit_test(sinks_are_few),
        cmocka_unit_test(long_lines),      cmocka_unit_test(before_line),
        cmocka_unit_test(threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
