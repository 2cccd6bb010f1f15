/* Any bytes as a Parquet file: rows as lines of JSON, or a cause; never more than may be written.
 */
#ifndef TESTS_FUZZ_FUZZ_PARQUET_H
#define TESTS_FUZZ_FUZZ_PARQUET_H

#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "fuzz/fuzz_file.h"
#include "rl/parquet.h"
#include "rl/spool.h"

#define FUZZ_PARQUET_LIMIT (1 << 20)

/* Each line is an object, but for what JSON allows and jansson does not (NUL, huge numbers). */
static void fuzz_parquet_lines(int fd, size_t n)
{
    char *text = mem_alloc(n + 1), *p = text;
    FUZZ_FILE_CHECK(pread(fd, text, n, 0) == (ssize_t)n);
    while (p < text + n) {
        char *nl = memchr(p, '\n', (size_t)(text + n - p));
        json_error_t je;
        json_t *o;
        FUZZ_FILE_CHECK(nl && *p == '{' && nl[-1] == '}');
        o = json_loadb(p, (size_t)(nl - p), JSON_ALLOW_NUL, &je);
        FUZZ_FILE_CHECK(o || json_error_code(&je) == json_error_numeric_overflow ||
                        json_error_code(&je) == json_error_null_byte_in_key ||
                        json_error_code(&je) == json_error_stack_overflow);
        json_decref(o);
        p = nl + 1;
    }
    mem_free(text);
}

static void fuzz_parquet_one(const uint8_t *data, size_t n)
{
    static const char *const columns[] = {"prompt", "label", "metadata", "tools"};
    struct err e = {0};
    struct spool s;
    int rc, fd;
    FUZZ_FILE_CHECK(spool_open(&s, "fuzz", FUZZ_PARQUET_LIMIT, &e) == 0);
    rc = parquet_bytes_to_lines(data, n, "fuzz", columns, 4, &s, &e);
    FUZZ_FILE_CHECK(rc == 0 || (rc < 0 && e.code == rc && e.msg[0]));
    if (rc == 0) {
        size_t len = (size_t)s.written;
        fd = spool_take(&s, &e);
        FUZZ_FILE_CHECK(fd >= 0 && len <= FUZZ_PARQUET_LIMIT);
        fuzz_parquet_lines(fd, len);
        close(fd);
    }
    spool_close(&s);
}

#endif
