/* The bytes of a fuzzer's input as a file with a path, in memory. */
#ifndef TESTS_FUZZ_FUZZ_FILE_H
#define TESTS_FUZZ_FUZZ_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FUZZ_FILE_CHECK(x) ((x) ? (void)0 : abort())

static int fuzz_file_fd = -1;

/* The path of a file that holds these bytes; they stay until the next call. */
static inline const char *fuzz_file(const uint8_t *data, size_t n)
{
    static char path[64];
    if (fuzz_file_fd < 0) {
        fuzz_file_fd = memfd_create("fuzz", MFD_CLOEXEC);
        FUZZ_FILE_CHECK(fuzz_file_fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fuzz_file_fd);
    }
    FUZZ_FILE_CHECK(ftruncate(fuzz_file_fd, 0) == 0);
    FUZZ_FILE_CHECK(pwrite(fuzz_file_fd, data, n, 0) == (ssize_t)n);
    return path;
}

#endif
