/* `miles bench NAME`: picks the benchmark. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/conf.h"
#include "base/status.h"
#include "cli/bench.h"
#include "cli/cmd.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *doc;
} benches[] = {
    {"gemm", bench_gemm, "products of common layers against oneDNN"},
    {"exactness", bench_exactness, "random cases: the same bits on every path"},
    {"model", bench_model, "prefill, training and decode against the bare products or reads"},
    {"decode", bench_decode,
     "sampling with 1 to 128 sequences against the bare products and reads"},
    {"ports", bench_ports, "samples through a server's HTTP port against the engine in-process"},
    {"text", bench_text, "text to tokens against the Python package tokenizers"},
};

#define NBENCHES ((int)(sizeof benches / sizeof benches[0]))

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void bench_pin(int n)
{
    cpu_set_t have, want;
    if (sched_getaffinity(0, sizeof have, &have) != 0) {
        return;
    }
    CPU_ZERO(&want);
    for (int i = 0; i < CPU_SETSIZE && n > 0; i++) {
        if (CPU_ISSET(i, &have)) {
            CPU_SET(i, &want);
            n--;
        }
    }
    sched_setaffinity(0, sizeof want, &want);
}

int bench_main(int argc, char **argv, const struct conf_opt *table, void *opts,
               int (*run)(const void *opts, struct err *e))
{
    struct conf *c = conf_new();
    struct err e = {0};
    int rc;

    conf_add(c, table, opts);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        char line[64];
        snprintf(line, sizeof line, "miles bench %s [--flag value ...]", argv[0]);
        cmd_help(line, c);
        rc = STATUS_OK;
    } else if (rc == STATUS_OK) {
        rc = run(opts, &e);
    }
    conf_free(c);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}

static void usage(FILE *out)
{
    fprintf(out, "usage: miles bench NAME [--flag value ...]\n\n");
    for (int i = 0; i < NBENCHES; i++) {
        fprintf(out, "  %-10s %s\n", benches[i].name, benches[i].doc);
    }
    fprintf(out, "\n`miles bench NAME --help` lists the flags of a benchmark.\n");
}

int cmd_bench(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return CMD_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(stdout);
        return CMD_OK;
    }
    for (int i = 0; i < NBENCHES; i++) {
        if (strcmp(argv[1], benches[i].name) == 0) {
            return benches[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "miles: unknown benchmark %s\n\n", argv[1]);
    usage(stderr);
    return CMD_USAGE;
}
