/* The benchmarks of `miles bench NAME`. Each gets its own arguments (argv[0] is its name), prints a
 * table and, as its last line, `name=value ...`, and returns the exit code of cmd.h. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

struct conf_opt;
struct err;

int bench_gemm(int argc, char **argv);
int bench_model(int argc, char **argv);
int bench_exactness(int argc, char **argv);
int bench_decode(int argc, char **argv);
int bench_ports(int argc, char **argv);
int bench_text(int argc, char **argv);

/* What every benchmark begins and ends with: parses the flags of `table` into opts, answers --help,
 * calls run(opts, &e) and gives the exit code. */
int bench_main(int argc, char **argv, const struct conf_opt *table, void *opts,
               int (*run)(const void *opts, struct err *e));
/* Seconds of a clock that only goes forward. */
double bench_now(void);
/* Keeps this process, and the threads that it will start, on its first n usable cores. */
void bench_pin(int n);

#endif
