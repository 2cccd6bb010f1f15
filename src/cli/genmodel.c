/* Owns the order in which a model, its tokenizer, its device and an engine are opened. */
#include "cli/genmodel.h"

#include <stddef.h>
#include <string.h>

#include "base/status.h"
#include "model/weights.h"
#include "model/wfile.h"

#define O(f) offsetof(struct genmodel_opts, f)
const struct conf_opt genmodel_table[] = {
    {"hf-checkpoint", CONF_STR, NULL, NULL, "model: a Hugging Face folder or a GGUF file",
     O(hf_checkpoint), "model", NULL},
    {"threads", CONF_INT, "0", "[0,4096]", "0 takes all cores", O(threads), "machine", NULL},
    {"device", CONF_STR, "cpu", NULL,
     "cpu, or torch:cpu, torch:cuda, torch:cuda:N: ATen through libtorch", O(device), "machine",
     NULL},
    {"libtorch", CONF_STR, NULL, NULL,
     "folder of libtorch_cpu.so; unset: the system's, or that of python3's torch", O(libtorch),
     "machine", NULL},
    {"isa", CONF_STR, "auto", NULL, "auto, scalar, avx2, avx512 or amx", O(isa), "machine", NULL},
    {"numeric-leaves", CONF_INT, "0", "[0,8]", "leaves of split contractions; 0 from the model",
     O(leaves), "machine", NULL},
    {0}};

/* All but the weights. */
static int genmodel_prepare(struct genmodel *m, const struct genmodel_opts *o, int chat,
                            struct err *e)
{
    struct plan plan;
    int leaves, rc = wfile_open(o->hf_checkpoint, &m->file, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    leaves = o->leaves ? (int)o->leaves : weights_default_leaves(wfile_arch(m->file));
    plan_init(&plan, leaves, 0);
    rc = device_open(o->device, strcmp(o->device, "cpu") == 0 ? o->isa : o->libtorch,
                     (int)o->threads, &plan, &m->dev, e);
    if (rc == STATUS_OK) {
        rc = promptenc_open(&m->enc, m->file, NULL, chat && wfile_chat_template(m->file) != NULL,
                            NULL, e);
    }
    return rc;
}

int genmodel_open(struct genmodel *m, const struct genmodel_opts *o, const struct engine_opts *eo,
                  int chat, struct err *e)
{
    int rc = genmodel_prepare(m, o, chat, e);

    if (rc == STATUS_OK) {
        rc = weights_open(m->file, m->dev, 0, 0, &m->w, e);
    }
    if (rc == STATUS_OK && eo) {
        rc = engine_open(m->w, eo, &m->engine, e);
    }
    return rc;
}

int genmodel_attach(struct genmodel *m, const struct genmodel_opts *o, int fd, struct err *e)
{
    int rc = genmodel_prepare(m, o, 0, e);

    if (rc == STATUS_OK) {
        rc = weights_attach(fd, wfile_arch(m->file), m->dev, &m->w, e);
    }
    return rc;
}

void genmodel_close(struct genmodel *m)
{
    engine_close(m->engine);
    weights_release(m->w);
    promptenc_close(&m->enc);
    device_close(m->dev);
    wfile_close(m->file);
}
