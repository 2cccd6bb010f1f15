/* A bare client for tests of the server: raw bytes over a loopback socket, every wait bounded. */
#ifndef TESTS_NET_NETPEER_H
#define TESTS_NET_NETPEER_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/proc.h"
#include "base/status.h"
#include "net/http_req.h"

static inline void netpeer_sleep(double s)
{
    struct timespec t = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

/* A connected socket, with time-outs of 20 seconds; -1 when refused. */
static inline int netpeer_connect_small(int port, int rcvbuf)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval t = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (rcvbuf) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

static inline int netpeer_connect(int port)
{
    return netpeer_connect_small(port, 0);
}

/* 0, or -1 when the peer does not take it. */
static inline int netpeer_send(int fd, const void *p, size_t n)
{
    const char *s = p;
    while (n > 0) {
        ssize_t k = send(fd, s, n, MSG_NOSIGNAL);
        if (k <= 0) {
            return -1;
        }
        s += k;
        n -= (size_t)k;
    }
    return 0;
}

static inline int netpeer_text(int fd, const char *s)
{
    return netpeer_send(fd, s, strlen(s));
}

/* Appends what comes; bytes read, 0 at the end, -1 on an error or time-out. */
static inline ssize_t netpeer_more(int fd, struct buf *b)
{
    char chunk[16384];
    ssize_t n = recv(fd, chunk, sizeof chunk, 0);
    if (n > 0) {
        buf_add(b, chunk, (size_t)n);
    }
    return n;
}

/* Reads until the peer closes. 0 for a proper end, -1 for a reset or time-out. */
static inline int netpeer_all(int fd, struct buf *b)
{
    ssize_t n;
    do {
        n = netpeer_more(fd, b);
    } while (n > 0);
    return n < 0 ? -1 : 0;
}

/* Undoes the chunked encoding of `in` from `pos`, into out unless that is NULL; 1 when the last
 * chunk is there, 0 when more must come, -1 when it is broken. *end is the position after it. */
static inline int netpeer_dechunk(const struct buf *in, size_t pos, struct buf *out, size_t *end)
{
    if (out) {
        buf_clear(out);
    }
    for (;;) {
        size_t left = in->len - pos;
        const char *line = in->data + pos, *eol = memmem(line, left < 32 ? left : 32, "\r\n", 2);
        char *stop;
        unsigned long n;
        if (!eol) {
            return 0;
        }
        n = strtoul(line, &stop, 16);
        if (stop == line) {
            return -1;
        }
        pos += (size_t)(eol - line) + 2;
        if (pos + n + 2 > in->len) {
            return 0;
        }
        if (out) {
            buf_add(out, in->data + pos, n);
        }
        pos += n + 2;
        if (n == 0) {
            *end = pos;
            return 1;
        }
    }
}

/* Reads one whole answer off a connection that stays open: head and body apart. Its status, 0 when
 * the connection closed before it was whole (head and body hold what came). `rest` holds what was
 * read beyond it and must be given again to the next call. */
static inline int netpeer_answer(int fd, struct buf *rest, struct buf *head, struct buf *body,
                                 int no_body)
{
    const char *sep, *cl;
    size_t n;
    int status;
    buf_clear(head);
    buf_clear(body);
    while (!(sep = strstr(rest->data, "\r\n\r\n"))) {
        if (netpeer_more(fd, rest) <= 0) {
            return 0;
        }
    }
    n = (size_t)(sep - rest->data) + 4;
    buf_add(head, rest->data, n);
    status = atoi(head->data + 9);
    if (status == 100) {
        buf_shift(rest, n);
        return netpeer_answer(fd, rest, head, body, no_body);
    }
    if (strcasestr(head->data, "\r\nTransfer-Encoding: chunked")) {
        size_t end = 0;
        int rc = 0;
        while (!no_body && (rc = netpeer_dechunk(rest, n, NULL, &end)) == 0) {
            if (netpeer_more(fd, rest) <= 0) {
                netpeer_dechunk(rest, n, body, &end);
                return 0;
            }
        }
        if (rc == 1) {
            netpeer_dechunk(rest, n, body, &end);
        }
        buf_shift(rest, no_body ? n : end);
        return rc < 0 ? 0 : status;
    }
    cl = strcasestr(head->data, "\r\nContent-Length:");
    if (!no_body && cl) {
        size_t len = strtoul(cl + 17, NULL, 10);
        while (rest->len < n + len) {
            if (netpeer_more(fd, rest) <= 0) {
                buf_add(body, rest->data + n, rest->len - n);
                return 0;
            }
        }
        buf_add(body, rest->data + n, len);
        n += len;
    }
    buf_shift(rest, n);
    return status;
}

/* One request on a connection of its own: the status, or 0 when no whole answer came. */
static inline int netpeer_ask(int port, const char *request, size_t len, struct buf *head,
                              struct buf *body)
{
    struct buf rest;
    int fd = netpeer_connect(port), status = 0;
    buf_init(&rest, 256u << 20);
    if (fd >= 0) {
        netpeer_send(fd, request, len);
        status = netpeer_answer(fd, &rest, head, body, strncmp(request, "HEAD", 4) == 0);
        close(fd);
    }
    buf_fini(&rest);
    return status;
}

/* Pushes a pattern into a server's answer until nothing moves for half a second: every buffer on
 * the way is full then. Returns the bytes taken, SIZE_MAX when a push failed. */
static inline size_t netpeer_fill(struct http_req *r, size_t most)
{
    char piece[4096];
    size_t pushed = 0;
    for (double quiet = proc_now() + 0.5; proc_now() < quiet && pushed < most;) {
        int rc;
        for (size_t i = 0; i < sizeof piece; i++) {
            piece[i] = (char)('a' + (pushed + i) % 23);
        }
        rc = http_req_push(r, piece, sizeof piece);
        if (rc == STATUS_OK) {
            pushed += sizeof piece;
            quiet = proc_now() + 0.5;
        } else if (rc == STATUS_AGAIN) {
            netpeer_sleep(0.001);
        } else {
            return SIZE_MAX;
        }
    }
    return pushed;
}

/* How far a body is that pattern. */
static inline size_t netpeer_filled(const struct buf *b)
{
    size_t n = 0;
    while (n < b->len && b->data[n] == (char)('a' + n % 23)) {
        n++;
    }
    return n;
}

#endif
