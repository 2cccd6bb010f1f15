/* The evaluation sets of a run: the pairs of --eval-prompt-data, or the list of --eval-config,
 * where each set may have its own keys and sampling.
 *
 *     struct evalset *sets;
 *     int n;
 *     evalset_read(&opts, &sets, &n, &e);           in the order in which they are given
 *     evalset_free(sets, n);
 *
 * The file is YAML or JSON: {eval: {defaults: {...}, datasets: [{name, path, ...}, ...]}}; the
 * outer `eval` may be left out, and datasets may be a mapping by name. What a set does not say is
 * taken from defaults, then from --eval-*, then from the training rollout. */
#ifndef RL_EVALSET_H
#define RL_EVALSET_H

#include <jansson.h>
#include <stdint.h>

struct err;
struct train_opts;

struct evalset {
    char *name, *path;
    char *input_key, *label_key, *tool_key, *metadata_key; /* NULL as in struct prompts_opts */
    int64_t n;                                             /* samples per prompt */
    double temperature, top_p;
    int64_t top_k, max_response_len;
    int32_t stop[16];
    int nstop;
    json_t *metadata; /* object whose keys each sample's metadata gets; or NULL */
};

/* STATUS_INPUT names the file, the set and the key. Validated options. */
int evalset_read(const struct train_opts *o, struct evalset **out, int *n, struct err *e);
/* The same from the content of a file; name is for messages. */
int evalset_parse(const struct train_opts *o, const json_t *root, const char *name,
                  struct evalset **out, int *n, struct err *e);
void evalset_free(struct evalset *s, int n);

#endif
