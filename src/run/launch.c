/* Owns the processes of a run's engines and of its router: their words, ports, logs and end. What
 * an engine is worth once it runs is the port's business (rl/port_http.h); here it is a process
 * that is starting, runs at an address, or has ended for a reason. */
#include "run/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/conf.h"
#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/proc.h"
#include "base/status.h"
#include "run/cmdline.h"

#define LAUNCH_HOST        "127.0.0.1"
#define LAUNCH_PORT_FROM   15000 /* below what the system gives to outgoing connections */
#define LAUNCH_PORT_TO     32000
#define LAUNCH_OUT_MAX     65536 /* bytes of stdout until it says that it is ready */
#define LAUNCH_TAIL        4096  /* bytes at a log's end that are looked at */
#define LAUNCH_TAIL_LINES  12
#define LAUNCH_ROUTER_S    60.0 /* for the router to listen; one that lived longer may fail again */
#define LAUNCH_ROUTER_LIFE 5    /* starts in a row without that */

struct launch_child {
    struct proc proc;
    char name[24]; /* "engine 0" */
    char *log;
    off_t log_from; /* where the lines of this start begin */
    struct buf out;
    char url[128];
    int port, nccl_port;
    char why[420]; /* how it ended; errors that carry it have half a kilobyte */
};

struct launch {
    struct launch_opts o;
    struct cmdline words, router_words;
    char program[512];
    struct launch_child *engines, router;
    struct port_http_host host;
    double router_at; /* started */
    int router_starts, router_given_up;
};

/* ---- words ---- */

static void launch_self(struct launch *l)
{
    ssize_t n = l->o.program ? 0 : readlink("/proc/self/exe", l->program, sizeof l->program - 1);
    struct stat a, b;

    if (l->o.program) {
        snprintf(l->program, sizeof l->program, "%s", l->o.program);
        return;
    }
    l->program[n > 0 ? n : 0] = 0;
    /* The name is nicer in a list of processes; the link is right when the file was replaced. */
    if (n <= 0 || stat(l->program, &a) || stat("/proc/self/exe", &b) || a.st_ino != b.st_ino ||
        a.st_dev != b.st_dev) {
        snprintf(l->program, sizeof l->program, "/proc/self/exe");
    }
}

static int launch_port_free(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), ok;

    a.sin_addr.s_addr = htonl(INADDR_ANY); /* free at every address */
    ok = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return ok;
}

static int launch_port_ours(const struct launch *l, int port)
{
    for (int i = 0; i < l->o.nengines; i++) {
        if (l->engines[i].port == port || l->engines[i].nccl_port == port) {
            return 1;
        }
    }
    return 0;
}

/* A port that nobody listens on now. Runs begin to look at different places. */
static int launch_pick_port(const struct launch *l, int *out, struct err *e)
{
    static unsigned turn;
    int span = LAUNCH_PORT_TO - LAUNCH_PORT_FROM;
    unsigned from = (unsigned)getpid() * 131u + turn++ * 7u;

    for (int i = 0; i < span; i++) {
        int port = LAUNCH_PORT_FROM + (int)((from + (unsigned)i) % (unsigned)span);
        if (!launch_port_ours(l, port) && launch_port_free(port)) {
            *out = port;
            return STATUS_OK;
        }
    }
    return ERR(e, STATUS_IO, "no port between %d and %d is free", LAUNCH_PORT_FROM, LAUNCH_PORT_TO);
}

/* The words of an SGLang server, held by a guard. */
static int launch_fill(const struct launch *l, const struct launch_child *c, int engine,
                       struct cmdline *out, struct err *e)
{
    static const char *const names[] = {"model",     "host",    "port",   "nccl_port", "gpus",
                                        "first_gpu", "threads", "engine", NULL};
    static const char *const guard[] = {"miles", "guard", "--life-fd", "3", "--private-tmp", "--"};
    char port[16], nccl[16], gpus[16], first[16], threads[16], number[16];
    const char *const values[] = {
        l->o.model ? l->o.model : "", LAUNCH_HOST, port, nccl, gpus, first, threads, number, NULL};
    struct cmdline words;
    int rc;

    snprintf(port, sizeof port, "%d", c->port);
    snprintf(nccl, sizeof nccl, "%d", c->nccl_port);
    snprintf(gpus, sizeof gpus, "%d", l->o.gpus);
    snprintf(first, sizeof first, "%d", engine * l->o.gpus);
    snprintf(threads, sizeof threads, "%d", l->o.threads);
    snprintf(number, sizeof number, "%d", engine);
    cmdline_copy(&words, &l->words);
    rc = cmdline_fill(&words, names, values, e);
    for (size_t i = 0; rc == STATUS_OK && i < sizeof guard / sizeof guard[0]; i++) {
        cmdline_add(out, guard[i]);
    }
    for (int i = 0; rc == STATUS_OK && i < words.n; i++) {
        cmdline_add(out, words.v[i]);
    }
    cmdline_fini(&words);
    return rc;
}

static void launch_own_words(const struct cmdline *words, int port, struct cmdline *out)
{
    char text[16];

    snprintf(text, sizeof text, "%d", port);
    cmdline_add(out, "miles");
    for (int i = 0; i < words->n; i++) {
        cmdline_add(out, words->v[i]);
    }
    cmdline_add(out, "--host");
    cmdline_add(out, LAUNCH_HOST);
    cmdline_add(out, "--port");
    cmdline_add(out, text);
}

/* ---- logs ---- */

/* The first line of a start: when, and the command without its keys. */
static void launch_log_head(int fd, const struct cmdline *words)
{
    struct buf b;
    char when[32];
    time_t t = time(NULL);
    struct tm tm;

    buf_init(&b, 1 << 20);
    localtime_r(&t, &tm);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
    buf_printf(&b, "=== %s starting:", when);
    for (int i = 0; i < words->n; i++) {
        int secret = i > 0 && strstr(words->v[i - 1], "api-key") != NULL;
        buf_printf(&b, " %s", secret ? "..." : words->v[i]);
    }
    buf_str(&b, "\n");
    if (write(fd, b.data, b.len) < 0) {
        log_warn(LAUNCH, "cannot write an engine's log: %s", strerror(errno));
    }
    buf_fini(&b);
}

static int launch_log_open(struct launch_child *c, const struct cmdline *words, int *out,
                           struct err *e)
{
    int fd = open(c->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

    if (fd < 0) {
        return ERR(e, STATUS_IO, "cannot open %s: %s", c->log, strerror(errno));
    }
    launch_log_head(fd, words);
    c->log_from = lseek(fd, 0, SEEK_END);
    *out = fd;
    return STATUS_OK;
}

/* The last `lines` lines of this start, oldest first, with `sep` between them. Empty lines do not
 * count. */
static void launch_tail(const struct launch_child *c, int lines, const char *sep, char *out,
                        size_t size)
{
    char text[LAUNCH_TAIL + 1];
    int fd = open(c->log, O_RDONLY | O_CLOEXEC);
    off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END), from;
    ssize_t n = 0;
    size_t at, used = 0, sep_n = strlen(sep);

    out[0] = 0;
    from = end - LAUNCH_TAIL > c->log_from ? end - LAUNCH_TAIL : c->log_from;
    if (fd >= 0 && end > from) {
        n = pread(fd, text, LAUNCH_TAIL, from);
    }
    if (fd >= 0) {
        close(fd);
    }
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) {
        n--;
    }
    if (n <= 0) {
        return;
    }
    text[n] = 0;
    for (at = (size_t)n; at > 0; at--) { /* back to where these lines, as far as they fit, begin */
        if (text[at - 1] == '\n' && text[at] != '\n' && (--lines == 0)) {
            break;
        }
        if ((size_t)n - at + 40 > size) {
            break;
        }
    }
    for (; text[at] && used + 4 < size; at++) {
        if (text[at] == '\n') {
            if (used && text[at + 1] != '\n') {
                memcpy(out + used, sep, sep_n);
                used += sep_n;
            }
        } else if ((unsigned char)text[at] >= 32) {
            out[used++] = text[at];
        }
    }
    out[used] = 0;
}

void launch_last_line(const struct launch *l, int engine, char *out, size_t size)
{
    char line[LAUNCH_TAIL + 1];

    launch_tail(&l->engines[engine], 1, "", line, sizeof line);
    snprintf(out, size, "%s", line);
}

/* ---- one child ---- */

static void launch_child_init(const struct launch *l, struct launch_child *c, const char *name,
                              const char *file)
{
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->why, sizeof c->why, "was not started");
    c->log = fsio_join(l->o.log_dir, file);
    buf_init(&c->out, LAUNCH_OUT_MAX);
    c->proc.to = c->proc.from = c->proc.life = c->proc.pidfd = -1;
}

static void launch_child_fini(struct launch_child *c)
{
    mem_free(c->log);
    buf_fini(&c->out);
}

/* Kills and reaps. A guard is first left to kill what it holds. */
static void launch_child_end(struct launch_child *c)
{
    struct proc *p = &c->proc;
    int want = 0, got;

    if (p->life >= 0) {
        close(p->life);
        p->life = -1;
        proc_poll(&p, &want, &got, 1, 5.0);
    }
    proc_end(p);
}

static int launch_child_start(struct launch *l, struct launch_child *c, const struct cmdline *words,
                              int guarded, struct err *e)
{
    struct proc_opts o = {.argv = (const char *const *)words->v,
                          .request_fd = -1,
                          .reply_fd = guarded ? -1 : 1,
                          .life_fd = guarded ? 3 : -1,
                          .path = l->program};
    int rc;

    launch_child_end(c);
    buf_clear(&c->out);
    c->why[0] = 0;
    rc = launch_log_open(c, words, &o.log_fd, e);
    if (rc != STATUS_OK) {
        return rc;
    }
    if (!guarded && c != &l->router && l->o.share_fd >= 0) {
        o.share_fd = l->o.share_fd;
        o.share_as = LAUNCH_SHARE_FD;
    }
    rc = proc_spawn(&c->proc, &o, e);
    close(o.log_fd);
    if (rc != STATUS_OK && e) {
        err_prefix(e, "%s", c->name);
    }
    return rc;
}

/* "ready url=http://127.0.0.1:30000 ..." */
static void launch_child_listen(struct launch_child *c)
{
    static const char word[] = "ready url=";
    const char *at;
    size_t n;

    if (proc_read(&c->proc, &c->out, NULL) == STATUS_NOMEM) {
        buf_clear(&c->out); /* it talks, and has nothing to say that is read here */
    }
    at = c->url[0] ? NULL : strstr(c->out.data, word);
    if (at && strchr(at, '\n')) {
        at += sizeof word - 1;
        n = strcspn(at, " \r\n");
        if (n < sizeof c->url) {
            memcpy(c->url, at, n);
            c->url[n] = 0;
        }
        buf_clear(&c->out);
    }
}

static int launch_child_alive(struct launch_child *c)
{
    char lines[LAUNCH_TAIL + 1], *line, *next;
    int status;
    size_t n;

    if (c->proc.pid == 0) {
        return 0;
    }
    launch_child_listen(c);
    if (!proc_ended(&c->proc, &status)) {
        return 1;
    }
    launch_child_end(c); /* and what it left behind */
    proc_describe(status, c->why, sizeof c->why);
    n = strlen(c->why);
    log_error(LAUNCH, "%s ended: %s; the last lines of %s:", c->name, c->why, c->log);
    launch_tail(c, LAUNCH_TAIL_LINES, "\n", lines, sizeof lines);
    for (line = lines; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) {
            *next++ = 0;
        }
        log_error(LAUNCH, "  %s: %s", c->name, line);
    }
    n += (size_t)snprintf(c->why + n, sizeof c->why - n, "; the last it said: ");
    launch_tail(c, LAUNCH_TAIL_LINES, " | ", c->why + n, sizeof c->why - n);
    return 0;
}

/* ---- the router ---- */

/* Again on the port it had, with the engines that are there: the port adds those that come later.
 */
static int launch_router_spawn(struct launch *l, struct err *e)
{
    struct launch_child *c = &l->router;
    struct cmdline words = {0};
    int rc;

    launch_own_words(&l->router_words, c->port, &words);
    if (c->port) {
        for (int i = 0, n = 0; i < l->o.nengines; i++) {
            if (l->engines[i].proc.pid && l->engines[i].url[0]) {
                if (n++ == 0) {
                    cmdline_add(&words, "--worker-urls");
                }
                cmdline_add(&words, l->engines[i].url);
            }
        }
    }
    rc = launch_child_start(l, c, &words, 0, e);
    l->router_at = proc_now();
    l->router_starts++;
    cmdline_fini(&words);
    return rc;
}

int launch_router_start(struct launch *l, struct err *e)
{
    struct launch_child *c = &l->router;
    struct proc *p = &c->proc;
    int want = PROC_READ, got, rc = launch_router_spawn(l, e);
    double deadline = proc_now() + LAUNCH_ROUTER_S;
    const char *colon;
    int64_t port;

    while (rc == STATUS_OK && !c->url[0]) {
        proc_poll(&p, &want, &got, 1, 0.2);
        if (!launch_child_alive(c)) {
            rc = ERR(e, STATUS_CHILD, "the router: %s", c->why);
        } else if (proc_now() > deadline) {
            rc = ERR(e, STATUS_TIMEOUT, "the router does not listen after %g seconds; see %s",
                     LAUNCH_ROUTER_S, c->log);
        }
    }
    colon = strrchr(c->url, ':');
    if (rc == STATUS_OK && colon && conf_parse_int(colon + 1, &port) == 0) {
        c->port = (int)port;
    }
    return rc;
}

/* Starts a router that has ended again, after pauses that grow; gives up after some in a row. */
static void launch_router_watch(struct launch *l)
{
    struct launch_child *c = &l->router;
    int was = c->proc.pid;
    double life = proc_now() - l->router_at;
    struct err e = {0};

    if (!c->port || l->router_given_up || launch_child_alive(c)) {
        return;
    }
    if (was) {
        l->router_starts = life > LAUNCH_ROUTER_S ? 0 : l->router_starts;
    }
    if (l->router_starts >= LAUNCH_ROUTER_LIFE) {
        l->router_given_up = 1;
        log_error(LAUNCH, "the router was started %d times in a row: given up", l->router_starts);
    } else if (life > 0.2 * (double)(1 << l->router_starts)) {
        int rc = launch_router_spawn(l, &e);
        if (rc == STATUS_OK) {
            log_info(LAUNCH, "the router is started again on port %d", c->port);
        } else {
            log_error(LAUNCH, "%s", e.msg);
        }
    }
}

const char *launch_router_url(const struct launch *l)
{
    return l->router.url[0] ? l->router.url : NULL;
}

/* ---- the host of the port ---- */

static int launch_start(void *self, int engine, struct err *e)
{
    struct launch *l = self;
    struct launch_child *c = &l->engines[engine];
    struct cmdline words = {0};
    int sglang = l->o.kind == PORT_HTTP_SGLANG, rc = STATUS_OK;

    if (l->router_given_up) {
        return ERR(e, STATUS_CHILD, "the router ended %d times in a row: %s", l->router_starts,
                   l->router.why);
    }
    c->url[0] = 0;
    if (sglang) {
        c->port = c->nccl_port = 0;
        rc = launch_pick_port(l, &c->port, e);
        rc = rc == STATUS_OK ? launch_pick_port(l, &c->nccl_port, e) : rc;
        rc = rc == STATUS_OK ? launch_fill(l, c, engine, &words, e) : rc;
    } else {
        launch_own_words(&l->words, 0, &words);
    }
    if (rc == STATUS_OK) {
        rc = launch_child_start(l, c, &words, sglang, e);
    }
    if (rc == STATUS_OK && sglang) {
        snprintf(c->url, sizeof c->url, "http://" LAUNCH_HOST ":%d", c->port);
    }
    if (rc == STATUS_OK) {
        log_info(LAUNCH, "%s is process %d, its log %s", c->name, c->proc.pid, c->log);
    }
    cmdline_fini(&words);
    return rc;
}

static int launch_alive(void *self, int engine, char *why, size_t size)
{
    struct launch *l = self;
    struct launch_child *c = &l->engines[engine];
    int alive;

    launch_router_watch(l);
    alive = launch_child_alive(c);
    if (l->router_given_up) {
        snprintf(why, size, "the router ended: %s", l->router.why);
        return 0;
    }
    if (!alive) {
        snprintf(why, size, "%s", c->why);
    }
    return alive;
}

static const char *launch_url(void *self, int engine)
{
    struct launch_child *c = &((struct launch *)self)->engines[engine];

    if (c->proc.pid && !c->url[0]) {
        launch_child_listen(c);
    }
    return c->url[0] ? c->url : NULL;
}

static void launch_kill(void *self, int engine)
{
    struct launch_child *c = &((struct launch *)self)->engines[engine];

    launch_child_end(c);
    snprintf(c->why, sizeof c->why, "was killed");
}

const struct port_http_host *launch_host(struct launch *l)
{
    return &l->host;
}

/* ---- open and close ---- */

int launch_open(const struct launch_opts *o, struct launch **out, struct err *e)
{
    struct launch *l = mem_alloc(sizeof *l);
    struct cmdline trial = {0};
    int rc = patience_mkdirs(o->log_dir, e);

    setenv("MILES_LOG_TIMES", "1", 1); /* for their logs to be merged with ours (run/logmerge.h) */
    l->o = *o;
    l->o.end_s = o->end_s > 0 ? o->end_s : o->kind == PORT_HTTP_SGLANG ? 60.0 : 20.0;
    cmdline_copy(&l->words, o->words);
    if (o->router) {
        cmdline_copy(&l->router_words, o->router);
    }
    launch_self(l);
    l->engines = mem_alloc((size_t)o->nengines * sizeof *l->engines);
    for (int i = 0; i < o->nengines; i++) {
        char name[24], file[32];
        snprintf(name, sizeof name, "engine %d", i);
        snprintf(file, sizeof file, "engine_%d.log", i);
        launch_child_init(l, &l->engines[i], name, file);
    }
    launch_child_init(l, &l->router, "the router", "router.log");
    l->host = (struct port_http_host){launch_start, launch_alive, launch_url, launch_kill, l};
    if (rc == STATUS_OK && o->kind == PORT_HTTP_SGLANG) {
        rc = launch_fill(l, &l->engines[0], 0, &trial, e);
        cmdline_fini(&trial);
    }
    if (rc == STATUS_OK) {
        *out = l;
    } else {
        launch_close(l);
    }
    return rc;
}

/* Waits until all of n have ended, at most until the deadline. */
static void launch_await(struct launch_child **cs, int n, double deadline)
{
    for (int i = 0; i < n; i++) {
        struct proc *p = &cs[i]->proc;
        int want = PROC_READ, got = 0;
        while (p->pid && !proc_ended(p, NULL) && proc_now() < deadline) {
            proc_poll(&p, &want, &got, 1, 0.1);
            if (got & PROC_READ) { /* a full pipe would hold it */
                buf_clear(&cs[i]->out);
                want = proc_read(p, &cs[i]->out, NULL) == STATUS_END ? 0 : want;
            }
        }
    }
}

void launch_close(struct launch *l)
{
    struct launch_child **all;
    int n = 0;

    if (!l) {
        return;
    }
    all = mem_alloc(((size_t)l->o.nengines + 1) * sizeof *all);
    all[n++] = &l->router;
    for (int i = 0; i < l->o.nengines; i++) {
        all[n++] = &l->engines[i];
    }
    for (int i = 0; i < n; i++) {
        proc_term(&all[i]->proc);
    }
    launch_await(all, n, proc_now() + l->o.end_s);
    for (int i = 0; i < n; i++) {
        if (all[i]->proc.pid && !proc_ended(&all[i]->proc, NULL)) {
            log_warn(LAUNCH, "%s did not end %g s after SIGTERM: killed", all[i]->name, l->o.end_s);
        }
        launch_child_end(all[i]);
        launch_child_fini(all[i]);
    }
    mem_free(all);
    mem_free(l->engines);
    cmdline_fini(&l->words);
    cmdline_fini(&l->router_words);
    mem_free(l);
}
