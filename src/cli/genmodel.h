/* A model opened to be sampled from, with its tokenizer and an engine: what `generate`, `chat` and
 * `serve` share.
 *
 *     conf_add(c, genmodel_table, &opts);
 *     genmodel_open(&m, &opts, &engine_opts, 1, &e);
 *     ... m.engine ...
 *     genmodel_close(&m); */
#ifndef CLI_GENMODEL_H
#define CLI_GENMODEL_H

#include "base/conf.h"
#include "engine/engine.h"
#include "rl/promptenc.h"

struct device;
struct err;
struct weights;
struct wfile;

struct genmodel_opts {
    char *hf_checkpoint, *isa, *device, *libtorch;
    int64_t threads, leaves;
};
extern const struct conf_opt genmodel_table[];

struct genmodel {
    struct wfile *file;
    struct device *dev;
    struct weights *w;
    struct promptenc enc;
    struct engine *engine;
};

/* chat: prompts are rendered with the model's chat template where it has one. eo NULL: no engine.
 * On failure m can be closed. */
int genmodel_open(struct genmodel *m, const struct genmodel_opts *o, const struct engine_opts *eo,
                  int chat, struct err *e);
/* The same without an engine, over the weights that another process of this host shares under
 * descriptor `fd`: the model's files give the rest. */
int genmodel_attach(struct genmodel *m, const struct genmodel_opts *o, int fd, struct err *e);
void genmodel_close(struct genmodel *m);

#endif
