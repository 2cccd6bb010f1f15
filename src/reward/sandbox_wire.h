/* What the pool and the first process inside a sandbox say to each other, over a SOCK_SEQPACKET
 * pair that is descriptor 3 inside. Also compiled into that process (sandbox_init.c) and spelt out
 * in sandbox_zygote.py: whoever changes a field changes all three.
 *
 *     <- "ready"                                         once
 *     -> struct sandbox_wire_case, blob; descriptors     per case
 *     <- struct sandbox_wire_reply                       after all processes of the case are gone
 *
 * The first process cannot be reached by the others: no signal, no ptrace, and not dumpable, so
 * that /proc has its memory closed. Still its reply is believed only as far as it says how a
 * program ended; whether the output is right is found outside. */
#ifndef REWARD_SANDBOX_WIRE_H
#define REWARD_SANDBOX_WIRE_H

#include <stdint.h>

enum {
    SANDBOX_WIRE_FD = 3,
    SANDBOX_WIRE_FDS = 5, /* input, output, errors, source, harness (or none: 4 only) */
    SANDBOX_WIRE_BLOB = 65536
};

struct sandbox_wire_case {
    int64_t cpu_s, memory, processes, file_size, files; /* limits; 0 processes: none set */
    int64_t serial;                                     /* number of the case in its sandbox */
    int64_t nargs;                                      /* words in the blob, each with its NUL */
};

struct sandbox_wire_reply {
    int64_t status;  /* as wait gives it; -1 when the program could not be started */
    int64_t cpu_us;  /* of the program and what it waited for */
    int64_t peak_kb; /* resident, of its largest process */
    int64_t error;   /* errno, when status is -1 */
};

#endif
