/* A scratch folder for the tests of run/, with files that are written and read whole. */
#ifndef TESTS_RUN_RUNKIT_H
#define TESTS_RUN_RUNKIT_H

#include "support.h"

#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

static char runkit_dir[64];

static inline int runkit_setup(void **state)
{
    (void)state;
    strcpy(runkit_dir, "/dev/shm/miles-test-run-XXXXXX");
    if (mkdtemp(runkit_dir)) {
        return 0;
    }
    strcpy(runkit_dir, "/tmp/miles-test-run-XXXXXX");
    return mkdtemp(runkit_dir) ? 0 : -1;
}

static inline int runkit_teardown(void **state)
{
    (void)state;
    return fsio_remove_tree(runkit_dir, NULL);
}

/* A path in the folder, in one of 16 rotating buffers. */
static inline const char *runkit_at(const char *name)
{
    static char path[16][512];
    static int next;
    next = (next + 1) % 16;
    snprintf(path[next], sizeof path[next], "%s/%s", runkit_dir, name);
    return path[next];
}

static inline void runkit_put(const char *name, const char *text)
{
    char dir[512];
    FILE *f;
    snprintf(dir, sizeof dir, "%s", runkit_at(name));
    *strrchr(dir, '/') = 0;
    assert_int_equal(fsio_mkdirs(dir, NULL), STATUS_OK);
    f = fopen(runkit_at(name), "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* The whole file; free with mem_free. */
static inline char *runkit_text(const char *name)
{
    struct err e = {0};
    char *data = NULL;
    size_t len;
    assert_ok(fsio_read(runkit_at(name), 1 << 28, &data, &len, &e), &e);
    return data;
}

/* Log lines of the run so far, at info and above. */
static char runkit_lines[1 << 16];

static inline void runkit_hear(void *arg, enum log_level level, const char *comp, const char *text)
{
    size_t n = strlen(runkit_lines);
    (void)arg;
    (void)level;
    snprintf(runkit_lines + n, sizeof runkit_lines - n, "%s: %s\n", comp, text);
}

static inline void runkit_listen(void)
{
    runkit_lines[0] = 0;
    log_add_sink(runkit_hear, NULL);
}

static inline void runkit_deaf(void)
{
    log_remove_sink(runkit_hear, NULL);
}

#endif
