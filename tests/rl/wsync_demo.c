/* A trainer for engines outside the process (tests/live/wsync.sh): weights in shared memory that
 * move along random gradients, and both kinds of weight sync over them.
 *
 *     wsync_demo MODEL FOLDER THREADS
 *
 * Prints `ready fd=N tensors=N bytes=N`, then answers each line of its standard input with one:
 *
 *     step                   version=V seconds=S            all values have moved
 *     write ON               ok                             as around a step: 1, then 0
 *     KIND prepare           ok seconds=S                   KIND is shared or folder
 *     KIND before|check K    PATH BODY, or end
 *     KIND take              PATH BODY
 *     KIND judge K ANSWER    ok seconds=S
 *     KIND settled           ok bytes=B                     of folders that stand
 *
 * What fails is `error TEXT`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "model/weights.h"
#include "model/wfile.h"
#include "num/device.h"
#include "rl/port_native.h"
#include "rl/wsync_folder.h"
#include "rl/wsync_shared.h"
#include "train/optim.h"

static struct {
    struct wfile *file;
    struct device *dev;
    struct weights *w;
    struct optim *optim;
    struct tensor *grad;
    struct port_native ports;
    struct wsync_shared *shared;
    struct wsync_folder *folder;
    uint64_t seed;
} demo;

static int open_all(const char *model, const char *dir, int threads, struct err *e)
{
    struct wsync_folder_opts fo = {.dir = dir, .keep = 2, .spoil = 1};
    struct wsync_shared_opts so = {0};
    struct plan plan;
    int rc = wfile_open(model, &demo.file, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    plan_init(&plan, weights_default_leaves(wfile_arch(demo.file)), 0);
    if ((rc = device_open("cpu", "auto", threads, &plan, &demo.dev, e)) ||
        (rc = weights_open(demo.file, demo.dev, WEIGHTS_TRAIN | WEIGHTS_SHARED, 0, &demo.w, e)) ||
        (rc = optim_open(demo.w, NULL, &demo.optim, e)) ||
        (rc = port_native_open(&demo.ports, demo.w, NULL, demo.file, NULL, NULL, e))) {
        return rc;
    }
    so.w = fo.w = demo.w;
    fo.train = &demo.ports.train;
    if ((rc = wsync_shared_open(&so, &demo.shared, e)) ||
        (rc = wsync_folder_open(&fo, &demo.folder, e))) {
        return rc;
    }
    demo.grad = mem_alloc(sizeof *demo.grad * (size_t)demo.w->nparams);
    for (int i = 0; rc == STATUS_OK && i < demo.w->nparams; i++) {
        const struct param *p = &demo.w->params[i];
        rc = device_tensor(demo.dev, &demo.grad[i], DTYPE_I64, p->rows, p->cols, e);
    }
    return rc;
}

static void close_all(void)
{
    for (int i = 0; demo.grad && i < demo.w->nparams; i++) {
        device_tensor_free(&demo.grad[i]);
    }
    mem_free(demo.grad);
    wsync_folder_close(demo.folder);
    wsync_shared_close(demo.shared);
    port_native_close(&demo.ports);
    optim_close(demo.optim);
    weights_release(demo.w);
    device_close(demo.dev);
    wfile_close(demo.file);
}

/* Small enough for the model to go on making sense for a few steps. */
static int step(struct err *e)
{
    const struct optim_hyper h = {1e-4, 0.9, 0.98, 1e-8, 0.0, 0.0};
    double norm;

    for (int i = 0; i < demo.w->nparams; i++) {
        struct tensor *g = &demo.grad[i];
        int64_t *v = g->data;
        for (int64_t k = 0; k < g->rows * g->ld; k++) {
            demo.seed = demo.seed * 6364136223846793005ull + 1442695040888963407ull;
            v[k] = (int64_t)(demo.seed >> 20) - ((int64_t)1 << 43);
        }
    }
    return optim_step(demo.optim, demo.grad, &h, &norm, e);
}

static int asked(int rc, const struct wsync_request *r)
{
    char *text;

    if (rc == STATUS_END) {
        printf("end\n");
        return STATUS_OK;
    }
    if (rc == STATUS_OK) {
        text = json_dumps(r->body, JSON_COMPACT);
        printf("%s %s\n", r->path, text);
        free(text);
        json_decref(r->body);
    }
    return rc;
}

static int judge(const struct wsync *s, const char *args, struct err *e)
{
    double start = proc_now();
    char *text;
    int k = (int)strtol(args, &text, 10), rc;
    json_t *answer = json_loads(text, 0, NULL);

    rc = answer ? s->judge(s->self, demo.w->version, k, answer, e)
                : ERR(e, STATUS_INPUT, "no answer to judge");
    if (rc == STATUS_OK) {
        printf("ok seconds=%.3f\n", proc_now() - start);
    }
    json_decref(answer);
    return rc;
}

static int on_sync(const struct wsync *s, const char *what, const char *args, struct err *e)
{
    struct wsync_request r;
    int64_t v = demo.w->version;
    double start = proc_now();
    int rc;

    if (strcmp(what, "prepare") == 0) {
        rc = s->prepare(s->self, v, e);
        if (rc == STATUS_OK) {
            printf("ok seconds=%.3f\n", proc_now() - start);
        }
        return rc;
    }
    if (strcmp(what, "before") == 0) {
        return asked(s->before ? s->before(s->self, v, atoi(args), &r, e) : STATUS_END, &r);
    }
    if (strcmp(what, "take") == 0) {
        return asked(s->take(s->self, v, &r, e), &r);
    }
    if (strcmp(what, "check") == 0) {
        return asked(s->check(s->self, v, atoi(args), &r, e), &r);
    }
    if (strcmp(what, "judge") == 0) {
        return judge(s, args, e);
    }
    if (strcmp(what, "settled") == 0) {
        s->settled(s->self, v);
        printf("ok bytes=%lld\n", (long long)wsync_folder_bytes(demo.folder));
        return STATUS_OK;
    }
    return ERR(e, STATUS_INPUT, "unknown: %s", what);
}

/* The word at *p, ended by NUL; *p is what follows it. */
static char *word(char **p)
{
    char *at = *p, *end = at + strcspn(at, " \n");

    *p = *end ? end + 1 : end;
    *end = 0;
    return at;
}

static int on_line(char *line, struct err *e)
{
    double start = proc_now();
    char *first = word(&line);
    int rc;

    if (strcmp(first, "step") == 0) {
        rc = step(e);
        if (rc == STATUS_OK) {
            printf("version=%lld seconds=%.3f\n", (long long)demo.w->version, proc_now() - start);
        }
        return rc;
    }
    if (strcmp(first, "write") == 0) {
        weights_writing(demo.w, atoi(line));
        printf("ok\n");
        return STATUS_OK;
    }
    if (strcmp(first, "shared") == 0 || strcmp(first, "folder") == 0) {
        char *what = word(&line);
        return on_sync(first[0] == 's' ? wsync_shared_sync(demo.shared)
                                       : wsync_folder_sync(demo.folder),
                       what, line, e);
    }
    return ERR(e, STATUS_INPUT, "unknown: %s", first);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    char *line = NULL;
    size_t room = 0;

    if (argc != 4) {
        fprintf(stderr, "usage: wsync_demo MODEL FOLDER THREADS\n");
        return 2;
    }
    if (open_all(argv[1], argv[2], atoi(argv[3]), &e) != STATUS_OK) {
        fprintf(stderr, "wsync_demo: %s\n", e.msg);
        return 1;
    }
    printf("ready fd=%d tensors=%d bytes=%lld\n", wsync_shared_fd(demo.shared), demo.w->nparams,
           (long long)weights_bytes(demo.w, 0));
    fflush(stdout);
    while (getline(&line, &room, stdin) > 0) {
        memset(&e, 0, sizeof e);
        if (on_line(line, &e) != STATUS_OK) {
            printf("error %s\n", e.msg);
        }
        fflush(stdout);
    }
    free(line);
    close_all();
    return 0;
}
