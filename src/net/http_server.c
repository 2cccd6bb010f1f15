/* Starting, draining and stopping a server, and what requests need of it from other threads. The
 * work of its thread is in http_server_io.c. */
#include "net/http_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/sha256.h"
#include "base/status.h"
#include "net/http_server_int.h"

enum {
    SPARE_FDS = 64,   /* descriptors left to the rest of the process */
    MAX_PEM = 1 << 20 /* bytes of a certificate or key file */
};

/* ---- shared with http_req.c ---- */

void http_server_wake(struct http_server *s, struct http_req *r)
{
    uint64_t one = 1;
    int first;
    if (r->on_list) {
        return;
    }
    r->on_list = 1;
    http_req_ref(r);
    pthread_mutex_lock(&s->mu);
    first = s->woken == NULL;
    r->next_woken = s->woken;
    s->woken = r;
    pthread_mutex_unlock(&s->mu);
    if (first && write(s->evfd, &one, sizeof one) < 0) {
        log_error(HTTP, "cannot wake the server: %s", strerror(errno));
    }
}

size_t http_server_stream_buffer(const struct http_server *s)
{
    return s->o.stream_buffer;
}

static const char *error_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
    }
}

void http_server_error_body(struct http_server *s, int status, const char *msg, struct buf *out,
                            const char **type)
{
    json_t *j;
    char *text;
    if (s->o.error_fn) {
        *type = s->o.error_fn(s->o.arg, status, msg, out);
        return;
    }
    /* A message may quote what a client sent: where that is not UTF-8 it is left out. */
    j = json_pack("{s:{s:s,s:s,s:n,s:i}}", "error", "message", msg, "type", error_type(status),
                  "param", "code", status);
    if (!j) {
        j = json_pack("{s:{s:s,s:s,s:n,s:i}}", "error", "message", "the request was refused",
                      "type", error_type(status), "param", "code", status);
    }
    text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    buf_str(out, text ? text : "{}");
    free(text);
    json_decref(j);
    *type = "application/json";
}

void http_server_hold(struct http_server *s)
{
    atomic_fetch_add(&s->refs, 1);
    atomic_fetch_add(&s->held, 1);
}

static void unref(struct http_server *s)
{
    if (atomic_fetch_sub(&s->refs, 1) == 1) {
        for (int i = 0; i < s->o.nroutes; i++) {
            mem_free((char *)s->routes[i].method);
            mem_free((char *)s->routes[i].path);
        }
        mem_free(s->routes);
        mem_free(s->key_hash);
        mem_free((char *)s->o.host);
        mem_free(s->cert);
        if (s->key) {
            explicit_bzero(s->key, strlen(s->key));
        }
        mem_free(s->key);
        pthread_mutex_destroy(&s->mu);
        pthread_cond_destroy(&s->idle);
        if (s->evfd >= 0) {
            close(s->evfd);
        }
        if (s->epfd >= 0) {
            close(s->epfd);
        }
        mem_free(s);
    }
}

void http_server_drop(struct http_server *s, size_t body_bytes)
{
    atomic_fetch_sub(&s->bodies, body_bytes);
    atomic_fetch_sub(&s->held, 1);
    unref(s);
}

/* ---- starting and stopping ---- */

static void log_library(void *arg, const char *fmt, va_list ap)
{
    char line[512];
    size_t n;
    (void)arg;
    vsnprintf(line, sizeof line, fmt, ap);
    n = strlen(line);
    while (n > 0 && (unsigned char)line[n - 1] <= ' ') {
        line[--n] = 0;
    }
    log_debug(HTTP, "%s", line);
}

/* Listens; *fd and *port are set on success. */
static int listen_on(const char *host, int port, int *out_fd, int *out_port, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    char service[16];
    int rc, fd = -1, on = 1;
    snprintf(service, sizeof service, "%d", port);
    rc = getaddrinfo(host, service, &hints, &list);
    if (rc) {
        return ERR(e, STATUS_INPUT, "cannot listen on %s: %s", host, gai_strerror(rc));
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) {
            rc = errno;
            continue;
        }
        /* So that a restart does not wait for connections of the last run to be forgotten. */
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, SOMAXCONN) ||
            getsockname(fd, (void *)&bound, &len)) {
            rc = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        return ERR(e, STATUS_IO, "cannot listen on %s port %d: %s", host, port, strerror(rc));
    }
    *out_fd = fd;
    *out_port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                  : ((struct sockaddr_in *)&bound)->sin_port);
    return STATUS_OK;
}

static int check_opts(const struct http_server_opts *o, struct err *e)
{
    if (o->port < 0 || o->port > 65535) {
        return ERR(e, STATUS_INPUT, "port %d is not between 0 and 65535", o->port);
    }
    if (!o->cert_file != !o->key_file) {
        return ERR(e, STATUS_INPUT, "TLS needs a certificate and a key, and only one is given");
    }
    if (o->nroutes < 1) {
        return ERR(e, STATUS_INPUT, "a server needs at least one route");
    }
    if (o->read_s < 0 || o->idle_s < 0 || o->stall_s < 0 || o->request_s < 0 ||
        o->max_connections < 0) {
        return ERR(e, STATUS_INPUT, "a limit of the server is negative");
    }
    for (int i = 0; i < o->nkeys; i++) {
        if (!o->keys[i] || !*o->keys[i]) {
            return ERR(e, STATUS_INPUT, "an API key is empty");
        }
    }
    if (o->cert_file && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        return ERR(e, STATUS_UNSUPPORTED, "libmicrohttpd was built without TLS");
    }
    return STATUS_OK;
}

static void set_defaults(struct http_server_opts *o)
{
    struct rlimit files;
    o->host = mem_strdup(o->host ? o->host : "127.0.0.1");
    o->max_connections = o->max_connections ? o->max_connections : 4096;
    o->max_header = o->max_header ? o->max_header : 32 << 10;
    o->max_body = o->max_body ? o->max_body : 64 << 20;
    o->max_bodies = o->max_bodies ? o->max_bodies : (size_t)1 << 30;
    o->stream_buffer = o->stream_buffer ? o->stream_buffer : 256 << 10;
    o->read_s = o->read_s > 0 ? o->read_s : 60;
    o->idle_s = o->idle_s > 0 ? o->idle_s : 75;
    o->stall_s = o->stall_s > 0 ? o->stall_s : 30;
    o->request_s = o->request_s > 0 ? o->request_s : 3600;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
        long most = (long)files.rlim_cur - SPARE_FDS;
        most = most < 1 ? 1 : most;
        if (most < o->max_connections) {
            log_warn(HTTP, "at most %ld connections: the system allows %ld open files", most,
                     (long)files.rlim_cur);
            o->max_connections = (int)most;
        }
    }
}

static void copy_opts(struct http_server *s, const struct http_server_opts *o)
{
    s->o = *o;
    set_defaults(&s->o);
    s->routes = mem_alloc(sizeof *s->routes * (size_t)o->nroutes);
    for (int i = 0; i < o->nroutes; i++) {
        s->routes[i] = o->routes[i];
        s->routes[i].method = mem_strdup(o->routes[i].method);
        s->routes[i].path = mem_strdup(o->routes[i].path);
    }
    s->key_hash = mem_alloc(32 * (size_t)(o->nkeys + 1));
    for (int i = 0; i < o->nkeys; i++) {
        struct sha256 h;
        sha256_init(&h);
        sha256_update(&h, o->keys[i], strlen(o->keys[i]));
        sha256_final(&h, s->key_hash[i]);
    }
    /* Not kept: what they point to is the caller's. */
    s->o.keys = NULL;
    s->o.routes = NULL;
    s->o.cert_file = s->o.key_file = NULL;
}

static int start_library(struct http_server *s, int fd, struct err *e)
{
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, s->cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, s->key},
        {MHD_OPTION_END, 0, NULL},
    };
    if (s->cert) {
        flags |= MHD_USE_TLS;
    } else {
        tls[0].option = MHD_OPTION_END;
    }
    s->mhd = MHD_start_daemon(
        flags, 0, NULL, NULL, http_server_on_request, s, MHD_OPTION_EXTERNAL_LOGGER, log_library,
        NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, http_server_on_completed,
        s, MHD_OPTION_NOTIFY_CONNECTION, http_server_on_connection, s, MHD_OPTION_URI_LOG_CALLBACK,
        http_server_on_uri, s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->o.max_connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, s->o.max_header, MHD_OPTION_CONNECTION_TIMEOUT, 0u,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_ARRAY,
        tls, MHD_OPTION_END);
    if (!s->mhd) {
        return ERR(e, STATUS_IO, "the HTTP library does not start%s",
                   s->cert ? ": are certificate and key PEM files that fit together?" : "");
    }
    return STATUS_OK;
}

/* Our epoll: the wake-up counter, and the library's own epoll inside it. */
static int start_events(struct http_server *s, struct err *e)
{
    struct epoll_event ev = {.events = EPOLLIN};
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info) {
        return ERR(e, STATUS_UNSUPPORTED, "libmicrohttpd was built without epoll");
    }
    ev.data.ptr = &s->mhd;
    if (epoll_ctl(s->epfd, EPOLL_CTL_ADD, info->epoll_fd, &ev)) {
        return ERR(e, STATUS_IO, "cannot watch the HTTP library: %s", strerror(errno));
    }
    ev.data.ptr = &s->evfd;
    if (epoll_ctl(s->epfd, EPOLL_CTL_ADD, s->evfd, &ev)) {
        return ERR(e, STATUS_IO, "cannot watch the wake-up counter: %s", strerror(errno));
    }
    return STATUS_OK;
}

int http_server_start(struct http_server **out, const struct http_server_opts *o, struct err *e)
{
    struct http_server *s;
    pthread_condattr_t attr;
    size_t len;
    int fd = -1, rc = check_opts(o, e);
    if (rc) {
        return rc;
    }
    s = mem_alloc(sizeof *s);
    atomic_init(&s->refs, 1);
    pthread_mutex_init(&s->mu, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->idle, &attr);
    pthread_condattr_destroy(&attr);
    copy_opts(s, o);
    s->epfd = epoll_create1(EPOLL_CLOEXEC);
    s->evfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epfd < 0 || s->evfd < 0) {
        rc = ERR(e, STATUS_IO, "no descriptors for a server: %s", strerror(errno));
        goto out;
    }
    if (o->cert_file && ((rc = fsio_read(o->cert_file, MAX_PEM, &s->cert, &len, e)) ||
                         (rc = fsio_read(o->key_file, MAX_PEM, &s->key, &len, e)))) {
        goto out;
    }
    rc = listen_on(s->o.host, o->port, &fd, &s->port, e);
    if (rc) {
        goto out;
    }
    rc = start_library(s, fd, e);
    if (rc) {
        close(fd);
        goto out;
    }
    rc = start_events(s, e);
    if (rc == STATUS_OK && pthread_create(&s->thread, NULL, http_server_loop, s)) {
        rc = ERR(e, STATUS_NOMEM, "no thread for the server");
    }
    if (rc) {
        MHD_stop_daemon(s->mhd);
        goto out;
    }
    *out = s;
    return STATUS_OK;
out:
    unref(s);
    return rc;
}

int http_server_port(const struct http_server *s)
{
    return s->port;
}

void http_server_stats(const struct http_server *s, struct http_server_stats *out)
{
    out->connections = atomic_load(&s->connections);
    out->requests = atomic_load(&s->requests);
    out->refused = atomic_load(&s->refused);
    for (int i = 0; i < 8; i++) {
        out->ended[i] = atomic_load(&s->ended[i]);
    }
    out->bytes_in = atomic_load(&s->bytes_in);
    out->bytes_out = atomic_load(&s->bytes_out);
    out->open = atomic_load(&s->open);
    out->active = atomic_load(&s->active);
    out->held = atomic_load(&s->held);
}

int http_server_draining(const struct http_server *s)
{
    return atomic_load(&s->draining);
}

static void nudge(struct http_server *s)
{
    uint64_t one = 1;
    if (write(s->evfd, &one, sizeof one) < 0) {
        log_error(HTTP, "cannot wake the server: %s", strerror(errno));
    }
}

/* Waits until no request is under way; 1 when that came about before the deadline. */
static int wait_idle(struct http_server *s, double deadline)
{
    struct timespec t = {.tv_sec = (time_t)deadline,
                         .tv_nsec = (long)((deadline - (double)(time_t)deadline) * 1e9)};
    int rc = 0, idle;
    pthread_mutex_lock(&s->mu);
    while (atomic_load(&s->begun) > 0 && rc == 0) {
        rc = pthread_cond_timedwait(&s->idle, &s->mu, &t);
    }
    idle = atomic_load(&s->begun) == 0;
    pthread_mutex_unlock(&s->mu);
    return idle;
}

int http_server_drain(struct http_server *s, double wait_s)
{
    atomic_store(&s->draining, 1);
    nudge(s);
    if (wait_idle(s, proc_now() + wait_s)) {
        return STATUS_OK;
    }
    atomic_store(&s->cut_all, 1);
    nudge(s);
    wait_idle(s, proc_now() + 10.0);
    return STATUS_TIMEOUT;
}

void http_server_free(struct http_server *s)
{
    if (s) {
        atomic_store(&s->stop, 1);
        nudge(s);
        pthread_join(s->thread, NULL);
        unref(s);
    }
}
