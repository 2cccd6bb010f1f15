/* The benchmarks of `miles bench NAME`. Each gets its own arguments (argv[0] is its name), prints a
 * table and, as its last line, `name=value ...`, and returns the exit code of cmd.h. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

int bench_gemm(int argc, char **argv);
int bench_model(int argc, char **argv);
int bench_exactness(int argc, char **argv);

/* Seconds of a clock that only goes forward. */
double bench_now(void);
/* Keeps this process, and the threads that it will start, on its first n usable cores. */
void bench_pin(int n);

#endif
