/* Owns which samples are trained together with one pass over their prompt. */
#include "train/bundle.h"

#include <string.h>

#include "train/trainer.h"

static int bundle_same(const struct train_sample *a, const struct train_sample *b)
{
    return a->prompt == b->prompt &&
           memcmp(a->tokens, b->tokens, sizeof *a->tokens * (size_t)a->prompt) == 0;
}

int64_t bundle_cut(const struct train_sample *s, const int64_t *pick, int64_t n, int64_t cap,
                   int64_t *start)
{
    int64_t bundles = 0, tokens = 0;

    for (int64_t i = 0; i < n; i++) {
        const struct train_sample *x = &s[pick[i]];
        if (i == 0 || tokens + x->response > cap || !bundle_same(x, &s[pick[i - 1]])) {
            start[bundles++] = i;
            tokens = x->prompt;
        }
        tokens += x->response;
    }
    start[bundles] = n;
    return bundles;
}

int64_t bundle_tokens(const struct train_sample *s, const int64_t *pick, int64_t n)
{
    int64_t tokens = n ? s[pick[0]].prompt : 0;
    for (int64_t i = 0; i < n; i++) {
        tokens += s[pick[i]].response;
    }
    return tokens;
}
