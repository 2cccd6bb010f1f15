/* Owns what is written behind a rollout: export, metrics, reference and checkpoint, in that order.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/patience.h"
#include "base/status.h"
#include "rl/loop_int.h"

/* The checkpoint of a rollout is on disk. */
int loop_saved(void *arg, int64_t rollout, struct err *e)
{
    const struct loop *l = arg;
    char name[32], *ckpt, *hf = NULL;
    int rc;

    snprintf(name, sizeof name, "iter_%07lld", (long long)rollout);
    ckpt = fsio_join(l->c.o->save, name);
    snprintf(name, sizeof name, "%lld", (long long)rollout);
    hf = l->c.o->save_hf ? conf_expand(l->c.o->save_hf, name) : NULL;
    rc = extend_saved(l->c.extend, rollout, ckpt, hf, e);
    mem_free(ckpt);
    mem_free(hf);
    return rc;
}

/* 1 when every file of the folder is one that an export writes: such a folder may be replaced. Else
 * the first other name is put into `other` ("" when there is none). */
static int loop_is_export(const char *dir, char *other, size_t size)
{
    static const char *const names[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "chat_template.jinja",
                                        ".",
                                        ".."};
    DIR *d = opendir(dir);
    struct dirent *de;
    int all = d != NULL, found = 0;

    while (d && all && (de = readdir(d))) {
        int known = strncmp(de->d_name, "model", 5) == 0 && strstr(de->d_name, ".safetensors");
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            size_t k = strlen(names[i]); /* a killed run may have left one half written */
            known |= strncmp(de->d_name, names[i], k) == 0 &&
                     (!de->d_name[k] || strcmp(de->d_name + k, ".tmp") == 0);
        }
        found |= strstr(de->d_name, ".safetensors") != NULL;
        all = known;
        if (!known) {
            snprintf(other, size, "%s", de->d_name);
        }
    }
    if (d) {
        closedir(d);
    }
    return all && found;
}

static int loop_export(struct loop *l, struct err *e)
{
    char id[32], *dir;
    char other[256] = "";
    int rc = STATUS_OK;
    snprintf(id, sizeof id, "%lld", (long long)l->rollout);
    dir = conf_expand(l->c.o->save_hf, id);
    if (loop_is_export(dir, other, sizeof other)) {
        char *model = realpath(l->c.o->hf_checkpoint ? l->c.o->hf_checkpoint : dir, NULL);
        char *here = realpath(dir, NULL);
        if (l->c.o->hf_checkpoint && model && here && strcmp(model, here) == 0) {
            rc = ERR(e, STATUS_INPUT, "--save-hf %s is the model the run started from", dir);
        } else {
            rc = fsio_remove_tree(dir, e); /* an earlier export */
        }
        free(model);
        free(here);
    } else if (other[0]) {
        rc = ERR(e, STATUS_INPUT, "--save-hf %s holds %s: give a new folder", dir, other);
    }
    if (rc == STATUS_OK) {
        rc = l->c.train->export_hf(l->c.train->self, dir, e);
    }
    mem_free(dir);
    return rc;
}

/* The user's own log of a rollout: our metrics of it are left out when it says so. */
static int loop_log(struct loop *l, struct err *e)
{
    int n, quiet, rc;
    struct sample **s = turn_samples(&l->train, &n);
    const char *name;
    json_t *value;
    void *next;

    rc = extend_log_rollout(l->c.extend, l->rollout, s, n, l->train.row, loop_now(l) - l->t_step,
                            &quiet, e);
    json_object_foreach_safe(l->train.row, next, name, value)
    {
        if (quiet && strncmp(name, "rollout/", 8) == 0 && strcmp(name, "rollout/step") != 0) {
            json_object_del(l->train.row, name);
        }
    }
    return rc;
}

/* The reference beside the checkpoint, when it has changed since the last. */
static int loop_save_ref(struct loop *l, struct err *e)
{
    char *dir;
    int rc;

    if (l->ref_rollout == l->ref_saved) {
        return STATUS_OK;
    }
    dir = keeper_ref(l->c.o->save, l->ref_rollout);
    rc = fsio_remove_tree(dir, e); /* of a run that went on from an earlier checkpoint */
    rc = rc == STATUS_OK ? l->c.train->export_ref(l->c.train->self, dir, e) : rc;
    mem_free(dir);
    l->ref_saved = rc == STATUS_OK ? l->ref_rollout : l->ref_saved;
    return rc;
}

/* The reference first: a checkpoint is whole when it is there. */
int loop_checkpoint(struct loop *l, struct err *e)
{
    struct patience wait = {0};
    int rc = STATUS_OK;

    if (!l->c.train || !l->c.o->save) {
        return STATUS_OK;
    }
    do {
        rc = loop_save_ref(l, e);
    } while (patience_again(&wait, rc, l->c.o->save, e));
    rc = rc == STATUS_OK ? extend_source_save(l->c.extend, l->rollout, e) : rc;
    return rc == STATUS_OK ? keeper_save(&l->keeper, e) : rc;
}

/* Writes the rollout's export and metrics, and its checkpoint last: a run that is killed behind the
 * checkpoint has lost nothing of what came before it. */
int loop_write(struct loop *l, int due, struct err *e)
{
    const struct train_opts *o = l->c.o;
    struct patience wait = {0};
    int rc = STATUS_OK;
    double t0 = loop_now(l);

    if (l->c.train && due && o->save_hf) {
        loop_say(l, "save", 0, 1, NULL);
        do {
            rc = loop_export(l, e);
        } while (patience_again(&wait, rc, o->save_hf, e));
        metric_put(l->train.row, "perf/export_hf_time", loop_now(l) - t0);
    }
    if (l->keeper.blocked_s > 0.0) { /* by the checkpoint before */
        metric_put(l->train.row, "perf/save_model_time", l->keeper.blocked_s);
        l->keeper.blocked_s = 0.0;
    }
    metric_put(l->train.row, "perf/peak_memory_gib", (double)mem_peak() / 1073741824.0);
    metric_put(l->train.row, "perf/step_time", loop_now(l) - l->t_step);
    rc = rc == STATUS_OK ? loop_log(l, e) : rc;
    loop_say(l, "step", 1, 1, l->train.row);
    metric_emit(l->train.row);
    l->train.row = NULL;
    keeper_trained(&l->keeper, l->rollout, loop_state(l));
    if (rc == STATUS_OK && due) {
        loop_say(l, "save", 0, 1, NULL);
        rc = loop_checkpoint(l, e);
    }
    return rc;
}
