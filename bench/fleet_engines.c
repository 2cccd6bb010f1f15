/* Many engines in one process, for bench/fleet.sh: each has a port of its own and answers as `miles
 * serve` does, after a drawn time and with made-up tokens and log-probs.
 *
 *     fleet_engines --engines 1000 --info INFO.json --sums SUMS.json --vocab 49152 --urls URLS
 *
 * INFO.json and SUMS.json are what a real `miles serve` of the same model says of its numbers and
 * of its weights. URLS gets one address a line; then `ready url=... engines=N` is printed, and the
 * process serves until it is ended. What a sample is answered with depends on its number alone, as
 * with a real engine; how long that takes depends on the number too.
 *
 * An answer must cost next to nothing, because the controller is what is measured: tokens and
 * log-probs are written out once, as one long text, and an answer is a stretch of it. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/conf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"

#define FLEET_TABLE  8192        /* tokens that are written out; a power of two */
#define FLEET_BODY   (64u << 20) /* longest request */
#define FLEET_EVENTS 512

struct fleet_opts {
    char *info, *sums, *urls;
    int64_t engines, vocab, tokens, min_ms, max_ms;
};

#define O(f) offsetof(struct fleet_opts, f)
static const struct conf_opt fleet_table[] = {
    {"engines", CONF_INT, "1000", "[1,10000]", "how many", O(engines), "fleet", NULL},
    {"info", CONF_STR, NULL, NULL, "file with the answer of /get_server_info", O(info), "fleet",
     NULL},
    {"sums", CONF_STR, NULL, NULL, "file with the answer of /weights_checker", O(sums), "fleet",
     NULL},
    {"urls", CONF_STR, NULL, NULL, "file that gets the addresses", O(urls), "fleet", NULL},
    {"vocab", CONF_INT, "49152", "[16,10000000]", "tokens are below it", O(vocab), "fleet", NULL},
    {"tokens", CONF_INT, "256", "[1,8192]", "of a sample, at most", O(tokens), "fleet", NULL},
    {"min-ms", CONF_INT, "500", "[0,3600000]", "that a request takes at least", O(min_ms), "fleet",
     NULL},
    {"max-ms", CONF_INT, "2000", "[0,3600000]", "and at most", O(max_ms), "fleet", NULL},
    {0}};

struct fleet_engine {
    char version[24]; /* of its weights */
};

/* A connection. One request is read, answered when its time has come, then the next. */
struct fleet_conn {
    int fd, engine;
    int listens; /* 1: the engine's own socket */
    int busy;    /* a request is being answered */
    int writes;  /* EPOLLOUT is watched */
    int gone;    /* closed while an answer was waiting */
    double due;  /* of the answer that waits */
    size_t sent;
    struct buf in, out;
};

static struct {
    struct fleet_opts o;
    struct fleet_engine *engines;
    char *info, *sums;
    struct buf ids, logps;          /* all of the table, twice over */
    int id_at[2 * FLEET_TABLE + 1]; /* where each begins */
    int logp_at[2 * FLEET_TABLE + 1];
    struct fleet_conn **heap; /* answers that wait, by time */
    size_t nheap, cap_heap;
    int epfd;
} fleet;

static uint64_t fleet_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* ---- what is answered ---- */

static void fleet_write_table(void)
{
    buf_init(&fleet.ids, 1 << 24);
    buf_init(&fleet.logps, 1 << 24);
    for (int i = 0; i < 2 * FLEET_TABLE; i++) {
        uint64_t h = fleet_mix((uint64_t)(i % FLEET_TABLE) + 1);
        int id = (int)(3 + h % (uint64_t)(fleet.o.vocab - 3));
        fleet.id_at[i] = (int)fleet.ids.len;
        fleet.logp_at[i] = (int)fleet.logps.len;
        buf_printf(&fleet.ids, "%d,", id);
        buf_printf(&fleet.logps, "[%.9g,%d,null],",
                   (double)(-(float)(h >> 40) / 16777216.0f * 4.0f), id);
    }
    fleet.id_at[2 * FLEET_TABLE] = (int)fleet.ids.len;
    fleet.logp_at[2 * FLEET_TABLE] = (int)fleet.logps.len;
}

/* n entries of the table from `first` on, without the comma behind the last. */
static void fleet_stretch(struct buf *b, const struct buf *table, const int *at, int first, int n)
{
    buf_add(b, table->data + at[first], (size_t)(at[first + n] - at[first] - 1));
}

static void fleet_sample(struct buf *b, const char *version, uint64_t sample, int n)
{
    int first = (int)(fleet_mix(sample) % FLEET_TABLE);

    buf_str(b, "{\"output_ids\":[");
    fleet_stretch(b, &fleet.ids, fleet.id_at, first, n);
    buf_printf(b,
               "],\"meta_info\":{\"id\":\"%llu\",\"finish_reason\":{\"type\":\"length\","
               "\"length\":%d},\"prompt_tokens\":1,\"weight_version\":\"%s\",\"num_retractions\":0,"
               "\"input_token_logprobs\":[],\"output_token_logprobs\":[",
               (unsigned long long)sample, n, version);
    fleet_stretch(b, &fleet.logps, fleet.logp_at, first, n);
    buf_printf(b,
               "],\"output_token_logprobs_length\":%d,\"weight_versions\":[{\"version\":\"%s\","
               "\"start\":0,\"end\":%d}],\"reasoning_tokens\":0,\"completion_tokens\":%d,"
               "\"cached_tokens\":0,\"e2e_latency\":1.0}}",
               n, version, n, n);
}

/* The number behind `name` in a request, quoted or not; `none` when it is not there. Prompts are
 * tokens, so that no text of theirs can look like a name. */
static uint64_t fleet_number(const char *body, const char *name, uint64_t none)
{
    const char *at = strstr(body, name);
    return at ? strtoull(at + strlen(name) + (at[strlen(name)] == '"'), NULL, 10) : none;
}

static void fleet_generate(struct fleet_conn *c, const char *body, struct buf *out)
{
    const char *params = strstr(body, "\"sampling_params\"");
    const char *version = fleet.engines[c->engine].version;
    uint64_t n = fleet_number(params ? params : body, "\"n\":", 1);
    uint64_t tokens = fleet_number(params ? params : body, "\"max_new_tokens\":", 1);
    uint64_t seed = fleet_number(params ? params : body, "\"sampling_seed\":", 0); /* SGLang's */
    uint64_t sample = fleet_number(params ? params : body, "\"sample\":", seed);
    uint64_t span = (uint64_t)(fleet.o.max_ms - fleet.o.min_ms + 1);

    tokens = tokens < (uint64_t)fleet.o.tokens ? tokens : (uint64_t)fleet.o.tokens;
    for (uint64_t i = 0; i < n; i++) {
        buf_char(out, i ? ',' : '[');
        fleet_sample(out, version, sample + i, (int)tokens);
    }
    buf_char(out, ']');
    c->due =
        proc_now() + (double)(fleet.o.min_ms + (int64_t)(fleet_mix(sample ^ 0x55) % span)) * 1e-3;
}

/* The weights that it is told to take are those it has from now on. */
static void fleet_take(struct fleet_conn *c, const char *body)
{
    char *version = fleet.engines[c->engine].version;
    snprintf(version, sizeof fleet.engines->version, "%llu",
             (unsigned long long)fleet_number(body, "\"weight_version\":", 0));
}

static void fleet_answer(struct fleet_conn *c, const char *path, const char *body)
{
    struct buf text;

    buf_init(&text, 1u << 30);
    c->due = 0.0;
    if (strcmp(path, "/generate") == 0) {
        fleet_generate(c, body, &text);
    } else if (strcmp(path, "/get_server_info") == 0) {
        buf_str(&text, fleet.info);
    } else if (strcmp(path, "/weights_checker") == 0) {
        buf_str(&text, fleet.sums);
    } else {
        if (strcmp(path, "/update_weights_from_disk") == 0) {
            fleet_take(c, body);
        }
        buf_str(&text, "{\"success\":true}");
    }
    buf_clear(&c->out);
    buf_printf(&c->out,
               "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
               text.len);
    buf_add(&c->out, text.data, text.len);
    c->sent = 0;
    buf_fini(&text);
}

/* ---- answers that wait ---- */

static void fleet_later(struct fleet_conn *c)
{
    size_t i = fleet.nheap++;

    if (i == fleet.cap_heap) {
        ASSERT(mem_grow((void **)&fleet.heap, &fleet.cap_heap, 1024, sizeof *fleet.heap));
    }
    for (; i > 0 && fleet.heap[(i - 1) / 2]->due > c->due; i = (i - 1) / 2) {
        fleet.heap[i] = fleet.heap[(i - 1) / 2];
    }
    fleet.heap[i] = c;
}

static struct fleet_conn *fleet_next(void)
{
    struct fleet_conn *top = fleet.heap[0], *last = fleet.heap[--fleet.nheap];
    size_t i = 0, k;

    while ((k = 2 * i + 1) < fleet.nheap) {
        k += k + 1 < fleet.nheap && fleet.heap[k + 1]->due < fleet.heap[k]->due;
        if (fleet.heap[k]->due >= last->due) {
            break;
        }
        fleet.heap[i] = fleet.heap[k];
        i = k;
    }
    fleet.heap[i] = last;
    return top;
}

/* ---- connections ---- */

static void fleet_free(struct fleet_conn *c)
{
    buf_fini(&c->in);
    buf_fini(&c->out);
    mem_free(c);
}

static void fleet_close(struct fleet_conn *c)
{
    close(c->fd);
    if (c->busy && !c->writes) { /* it is in the heap */
        c->gone = 1;
    } else {
        fleet_free(c);
    }
}

static struct fleet_conn *fleet_watch(int fd, int engine, int listens)
{
    struct fleet_conn *c = mem_alloc(sizeof *c);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};

    c->fd = fd;
    c->engine = engine;
    c->listens = listens;
    buf_init(&c->in, FLEET_BODY);
    buf_init(&c->out, 1u << 30);
    ASSERT(epoll_ctl(fleet.epfd, EPOLL_CTL_ADD, fd, &ev) == 0);
    return c;
}

static void fleet_accept(const struct fleet_conn *l)
{
    int fd, one = 1;

    while ((fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fleet_watch(fd, l->engine, 0);
    }
}

static int fleet_take_request(struct fleet_conn *c);

/* Sends what the connection takes. 0: it is closed. */
static int fleet_send(struct fleet_conn *c)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    int was = c->writes;

    while (c->sent < c->out.len) {
        ssize_t k = send(c->fd, c->out.data + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);
        if (k < 0 && errno == EAGAIN) {
            break;
        }
        if (k <= 0) {
            c->writes = 1;
            fleet_close(c);
            return 0;
        }
        c->sent += (size_t)k;
    }
    c->writes = c->sent < c->out.len;
    c->busy = c->writes;
    if (c->writes != was) {
        ev.events |= c->writes ? EPOLLOUT : 0u;
        epoll_ctl(fleet.epfd, EPOLL_CTL_MOD, c->fd, &ev);
    }
    return c->busy || fleet_take_request(c);
}

/* Answers the next request, if it is there whole. 0: the connection is closed. */
static int fleet_take_request(struct fleet_conn *c)
{
    char *end = strstr(c->in.data, "\r\n\r\n"), *path, *stop, *length;
    size_t head, body;

    if (c->busy || !end) {
        return 1;
    }
    head = (size_t)(end - c->in.data) + 4;
    *end = 0;
    length = strcasestr(c->in.data, "\r\nContent-Length:");
    body = length ? strtoul(length + 17, NULL, 10) : 0;
    *end = '\r';
    if (c->in.len < head + body) {
        return 1;
    }
    path = strchr(c->in.data, ' ');
    stop = path ? strpbrk(path + 1, " ?") : NULL;
    if (!stop) {
        fleet_close(c);
        return 0;
    }
    *stop = 0;
    fleet_answer(c, path + 1, c->in.data + head);
    buf_shift(&c->in, head + body);
    c->busy = 1;
    if (c->due > 0.0) {
        fleet_later(c);
        return 1;
    }
    return fleet_send(c);
}

static void fleet_read(struct fleet_conn *c)
{
    char part[65536];
    ssize_t k;

    while ((k = recv(c->fd, part, sizeof part, 0)) > 0) {
        buf_add(&c->in, part, (size_t)k);
        if (k < (ssize_t)sizeof part) {
            fleet_take_request(c);
            return;
        }
    }
    if (k == 0 || errno != EAGAIN) {
        fleet_close(c);
    } else {
        fleet_take_request(c);
    }
}

static void fleet_run(void)
{
    struct epoll_event ev[FLEET_EVENTS];

    for (;;) {
        double wait = fleet.nheap ? fleet.heap[0]->due - proc_now() : 1.0;
        int n = epoll_wait(fleet.epfd, ev, FLEET_EVENTS, wait > 0.0 ? (int)(wait * 1e3) + 1 : 0);
        for (int i = 0; i < n; i++) {
            struct fleet_conn *c = ev[i].data.ptr;
            if (c->listens) {
                fleet_accept(c);
            } else if (ev[i].events & EPOLLOUT) {
                fleet_send(c);
            } else {
                fleet_read(c);
            }
        }
        while (fleet.nheap && fleet.heap[0]->due <= proc_now()) {
            struct fleet_conn *c = fleet_next();
            if (c->gone) {
                fleet_free(c);
            } else {
                fleet_send(c);
            }
        }
    }
}

/* ---- beginning ---- */

static int fleet_listen(FILE *urls, int engine, int *port, struct err *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 1024) ||
        getsockname(fd, (struct sockaddr *)&a, &len)) {
        return ERR(e, STATUS_IO, "engine %d cannot listen: %s", engine, strerror(errno));
    }
    *port = ntohs(a.sin_port);
    fprintf(urls, "http://127.0.0.1:%d\n", *port);
    fleet_watch(fd, engine, 1);
    return STATUS_OK;
}

static int fleet_open(struct err *e)
{
    int rc, port = 0;
    size_t n;
    FILE *urls;

    if (!fleet.o.info || !fleet.o.sums || !fleet.o.urls || fleet.o.max_ms < fleet.o.min_ms) {
        return ERR(e, STATUS_INPUT,
                   "--info, --sums and --urls are needed, and --min-ms <= --max-ms");
    }
    if ((rc = fsio_read(fleet.o.info, FLEET_BODY, &fleet.info, &n, e)) ||
        (rc = fsio_read(fleet.o.sums, FLEET_BODY, &fleet.sums, &n, e))) {
        return rc;
    }
    proc_raise_files(0);
    fleet_write_table();
    fleet.engines = mem_alloc(sizeof *fleet.engines * (size_t)fleet.o.engines);
    fleet.epfd = epoll_create1(EPOLL_CLOEXEC);
    urls = fopen(fleet.o.urls, "w");
    if (!urls) {
        return ERR(e, STATUS_IO, "cannot write %s: %s", fleet.o.urls, strerror(errno));
    }
    for (int i = 0; rc == STATUS_OK && i < fleet.o.engines; i++) {
        rc = fleet_listen(urls, i, &port, e);
    }
    fclose(urls);
    if (rc == STATUS_OK) {
        printf("ready url=http://127.0.0.1:%d engines=%lld\n", port, (long long)fleet.o.engines);
        fflush(stdout);
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct conf *c = conf_new();
    struct err e = {0};
    int rc;

    conf_add(c, fleet_table, &fleet.o);
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        conf_help(c, stdout);
        return 0;
    }
    rc = rc == STATUS_OK ? fleet_open(&e) : rc;
    if (rc != STATUS_OK) {
        fprintf(stderr, "fleet_engines: %s\n", e.msg);
        return 1;
    }
    fleet_run();
    return 0;
}
