/* Owns the joining of placement, processes, weight sync, port and what operators do to it, in the
 * order in which one needs the other: weights are there before engines that map them start, engines
 * end before the weights go. */
#include "run/engines.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/status.h"
#include "base/world.h"
#include "model/weights.h"
#include "rl/port_http.h"
#include "rl/train_opts.h"
#include "rl/wsync_delta.h"
#include "rl/wsync_folder.h"
#include "rl/wsync_shared.h"
#include "run/cmdline.h"
#include "run/ctlserver.h"
#include "run/fleetfile.h"
#include "run/launch.h"
#include "run/place.h"
#include "run/runlock.h"

#define ENGINES_SAY_S    5.0 /* until the first line while engines start, then twice that, ... */
#define ENGINES_SAY_MOST 60.0
#define ENGINES_SAY_MAX  4    /* engines whose last words are shown in one */
#define ENGINES_ROOM     1024 /* for those of --rollout-engines-file */

struct engines {
    struct engines_opts o;
    struct launch *launch; /* NULL: somebody else's engines */
    struct port_http *port;
    struct fleetfile *fleetfile;
    struct ctlserver *control;
    struct wsync_shared *shared;
    struct wsync_folder *folder;
    struct wsync_delta *delta;
    char **urls; /* of somebody else's */
    char *router, *log_dir, *disk_dir;
    struct runlock *lock; /* of --update-weight-disk-dir */
};

int engines_use(const struct place_opts *p, const struct train_opts *t)
{
    int own = p->backend == PLACE_MILES && !p->external && !p->engines_file &&
              p->transfer != PLACE_DISK_DELTA;
    /* who is to sample with older weights while training goes on cannot read the trainer's memory
     */
    int older = t->update_weights_interval != 1 || t->train_async || t->debug_skip_weight_update;
    return own && strcmp(t->device, "cpu") == 0 && !older ? WEIGHTS_SHARED : 0;
}

/* ---- weights ---- */

/* Engines have another working folder. What lies there from earlier runs is removed, so it must be
 * nobody's who still runs; the run folder has a lock of its own. */
static int engines_disk_dir(struct engines *g, struct err *e)
{
    const struct place_opts *p = g->o.place;
    char *dir = p->disk_dir ? mem_strdup(p->disk_dir) : fsio_join(g->o.run_dir, "weights");
    char full[PATH_MAX];
    int rc = patience_mkdirs(dir, e);

    if (rc == STATUS_OK && !realpath(dir, full)) {
        rc = ERR(e, STATUS_IO, "cannot find %s", dir);
    }
    if (rc == STATUS_OK) {
        g->disk_dir = mem_strdup(full);
        rc = p->disk_dir ? runlock_take(full, &g->lock, e) : STATUS_OK;
        rc = rc < 0 ? err_prefix(e, "--update-weight-disk-dir") : rc;
    }
    mem_free(dir);
    return rc;
}

static int engines_open_sync(struct engines *g, struct err *e)
{
    const struct place_opts *p = g->o.place;
    int rc;

    if (engines_use(p, g->o.train)) {
        struct wsync_shared_opts so = {.w = g->o.w, .all = p->check_equal};
        return wsync_shared_open(&so, &g->shared, e);
    }
    rc = engines_disk_dir(g, e);
    if (rc == STATUS_OK && p->transfer == PLACE_DISK_DELTA) {
        struct wsync_delta_opts wo = {.store = {.dir = g->disk_dir,
                                                .keep_s = p->delta_keep_s,
                                                .keep_bytes = p->delta_keep_bytes},
                                      .url = p->delta_url,
                                      .w = g->o.w,
                                      .world = g->o.world,
                                      .encoding = (enum wdelta_encoding)p->delta_encoding,
                                      .full_every = (int)p->delta_full_every,
                                      .all = p->check_equal,
                                      .fetch_s = p->sync_s};
        rc = wsync_delta_open(&wo, &g->delta, e);
    } else if (rc == STATUS_OK) {
        struct wsync_folder_opts fo = {
            .dir = g->disk_dir, .w = g->o.w, .train = g->o.trainer, .spoil = p->check_equal};
        rc = wsync_folder_open(&fo, &g->folder, e);
    }
    return rc;
}

static const struct wsync *engines_sync(struct engines *g)
{
    if (g->shared) {
        return wsync_shared_sync(g->shared);
    }
    return g->delta ? wsync_delta_sync(g->delta) : wsync_folder_sync(g->folder);
}

/* ---- processes ---- */

static int engines_open_launch(struct engines *g, struct err *e)
{
    const struct place_opts *p = g->o.place;
    struct place_run r = {g->o.max_running, g->o.max_context, g->shared ? LAUNCH_SHARE_FD : -1};
    struct cmdline words = {0}, router = {0};
    struct launch_opts lo = {.kind = p->backend == PLACE_MILES ? PORT_HTTP_MILES : PORT_HTTP_SGLANG,
                             .nengines = p->nengines,
                             .words = &words,
                             .router = p->use_router ? &router : NULL,
                             .model = g->o.train->hf_checkpoint,
                             .gpus = (int)p->gpus_per_engine,
                             .threads = p->engine_threads,
                             .share_fd = g->shared ? wsync_shared_fd(g->shared) : -1};
    int rc = place_engine_words(p, g->o.train, &r, &words, e);

    place_router_words(p, &router);
    g->log_dir = p->log_dir ? mem_strdup(p->log_dir) : fsio_join(g->o.run_dir, "engines");
    lo.log_dir = g->log_dir;
    if (rc == STATUS_OK) {
        rc = launch_open(&lo, &g->launch, e);
    }
    if (rc == STATUS_OK && p->use_router) {
        rc = launch_router_start(g->launch, e);
    }
    if (rc == STATUS_OK && p->use_router) {
        g->router = mem_strdup(launch_router_url(g->launch));
        log_info(LAUNCH, "the router listens at %s", g->router);
    }
    cmdline_fini(&words);
    cmdline_fini(&router);
    return rc;
}

/* ---- the port ---- */

/* What operators have asked for; by the port's thread. */
static void engines_attend(void *self)
{
    struct engines *g = self;

    if (g->fleetfile) {
        fleetfile_look(g->fleetfile, g->o.world->now(g->o.world->self));
    }
    if (g->control) {
        ctlserver_attend(g->control);
    }
}

static int engines_open_operators(struct engines *g, struct err *e)
{
    const struct place_opts *p = g->o.place;
    int rc = STATUS_OK;

    if (p->engines_file) {
        rc = fleetfile_open(p->engines_file, g->port, &g->fleetfile, e);
    }
    if (rc == STATUS_OK && p->control_port > 0) {
        struct ctlserver_opts co = {
            .port = (int)p->control_port, .engines = g->port, .fleetfile = g->fleetfile};
        rc = ctlserver_open(&co, &g->control, e);
    }
    if (rc == STATUS_OK && g->control) {
        log_info(LAUNCH, "the control server listens at http://127.0.0.1:%d",
                 ctlserver_port(g->control));
    }
    return rc;
}

static int engines_open_port(struct engines *g, struct err *e)
{
    const struct place_opts *p = g->o.place;
    struct port_http_opts po = {.kind =
                                    p->backend == PLACE_MILES ? PORT_HTTP_MILES : PORT_HTTP_SGLANG,
                                .nengines = p->nengines,
                                .urls = (const char *const *)g->urls,
                                .host = g->launch ? launch_host(g->launch) : NULL,
                                .router = g->router,
                                .api_key = p->api_key,
                                .sync = engines_sync(g),
                                .manifest = g->o.manifest,
                                .policy = (enum port_http_policy)p->policy,
                                .world = g->o.world,
                                .concurrency = (int)p->concurrency,
                                .start_s = p->start_s,
                                .request_s = (double)p->request_s,
                                .sync_s = p->sync_s,
                                .check_s = p->check_s,
                                .check_timeout_s = p->check_timeout_s,
                                .check_first_s = p->first_wait_s,
                                .room = p->engines_file ? ENGINES_ROOM : 0,
                                .slow_factor = p->slow_factor,
                                .slow_s = p->slow_s,
                                .attend = engines_attend,
                                .attend_self = g,
                                .say_sync = g->o.train->debug_weight_sync > 0};
    return port_http_open(&po, &g->port, e);
}

/* What is waited for, and the last words of engines that are slow to start. */
static void engines_say(struct engines *g, double since)
{
    char said[512] = "", line[160];
    int up = port_http_ready(g->port, said, sizeof said);

    log_info(LAUNCH, "%d of %d engines are up after %.0f s; %s", up, g->o.place->nengines, since,
             said);
    for (int i = 0; g->launch && i < g->o.place->nengines && i < ENGINES_SAY_MAX; i++) {
        launch_last_line(g->launch, i, line, sizeof line);
        if (line[0]) {
            log_info(LAUNCH, "  engine %d said last: %s", i, line);
        }
    }
}

static int engines_wait(struct engines *g, struct err *e)
{
    const struct world *w = g->o.world;
    double start = w->now(w->self), said = start, pause = ENGINES_SAY_S;
    int rc;

    if (g->o.place->nengines > 0) {
        log_info(LAUNCH, "waiting for %d engine%s", g->o.place->nengines,
                 g->o.place->nengines > 1 ? "s" : "");
    } else {
        log_info(LAUNCH, "waiting for an engine of %s", g->o.place->engines_file);
    }
    while ((rc = port_http_start(g->port, e)) == STATUS_AGAIN) {
        double now = w->now(w->self);
        if (w->stopping(w->self)) {
            return ERR(e, STATUS_CHILD, "asked to stop while engines were starting");
        }
        if (now - said >= pause) {
            engines_say(g, now - start);
            said = now;
            pause = 2 * pause < ENGINES_SAY_MOST ? 2 * pause : ENGINES_SAY_MOST;
        }
    }
    if (rc == STATUS_OK) {
        log_info(LAUNCH, "all engines are up after %.1f s", w->now(w->self) - start);
    }
    return rc;
}

int engines_open(const struct engines_opts *o, struct engines **out, struct err *e)
{
    const struct place_opts *p = o->place;
    struct engines *g = mem_alloc(sizeof *g);
    int rc;

    g->o = *o;
    g->router = place_url(p, -1);
    if (p->external && p->nengines > 0) {
        g->urls = mem_alloc((size_t)p->nengines * sizeof *g->urls);
        for (int i = 0; i < p->nengines; i++) {
            g->urls[i] = place_url(p, i);
        }
    }
    rc = engines_open_sync(g, e);
    if (rc == STATUS_OK && !p->external) {
        rc = engines_open_launch(g, e);
    }
    if (rc == STATUS_OK) {
        rc = engines_open_port(g, e);
    }
    if (rc == STATUS_OK) {
        rc = engines_open_operators(g, e);
    }
    if (rc == STATUS_OK) {
        rc = engines_wait(g, e);
    }
    if (rc == STATUS_OK) {
        *out = g;
    } else {
        engines_close(g);
    }
    return rc;
}

const struct rollout_port *engines_port(struct engines *g)
{
    return port_http_port(g->port);
}

const char *engines_url(const struct engines *g)
{
    const struct port_http_host *host = g->launch ? launch_host(g->launch) : NULL;
    return g->router                         ? g->router
           : g->urls && g->o.place->nengines ? g->urls[0]
           : host                            ? host->url(host->self, 0)
                                             : NULL;
}

void engines_close(struct engines *g)
{
    if (!g) {
        return;
    }
    ctlserver_close(g->control);
    fleetfile_close(g->fleetfile);
    port_http_close(g->port);
    launch_close(g->launch);
    wsync_shared_close(g->shared);
    wsync_folder_close(g->folder);
    wsync_delta_close(g->delta);
    runlock_drop(g->lock);
    for (int i = 0; g->urls && i < g->o.place->nengines; i++) {
        mem_free(g->urls[i]);
    }
    mem_free(g->urls);
    mem_free(g->router);
    mem_free(g->log_dir);
    mem_free(g->disk_dir);
    mem_free(g);
}
