/* The products of attention run bare: those of a block of queries of one group of heads with as
 * many keys as a query sees on average, nothing between them.
 *
 *     struct bench_scores *s = bench_scores_new(dev, group, head_dim, keys);
 *     for (...) bench_scores_round(s);
 *     bench_scores_seconds(s, flops, backward);     as long as so many operations take
 *     bench_scores_free(s);
 */
#ifndef CLI_BENCH_SCORES_H
#define CLI_BENCH_SCORES_H

struct device;
struct bench_scores;

struct bench_scores *bench_scores_new(struct device *d, int group, int head_dim, int keys);
void bench_scores_round(struct bench_scores *s);
/* flops: of the two products of a forward pass, or of the five of a backward pass. */
double bench_scores_seconds(const struct bench_scores *s, double flops, int backward);
void bench_scores_free(struct bench_scores *s);

#endif
