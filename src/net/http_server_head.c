/* What a client asks, up to the end of its body: the route, the key, and everything that is refused
 * before a handler hears of it. Runs on the server's thread. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/proc.h"
#include "base/sha256.h"
#include "net/http_server_int.h"

/* Of a refused body at most this much beyond max_body is read. */
enum { SWALLOW_MORE = 1024 * 1024 };

struct copy {
    struct http_req *r;
    struct http_header *h;
    int n;
};

static enum MHD_Result copy_pair(void *cls, enum MHD_ValueKind kind, const char *name,
                                 const char *value)
{
    struct copy *c = cls;
    (void)kind;
    c->h[c->n].name = arena_strdup(&c->r->mem, name);
    c->h[c->n++].value = arena_strdup(&c->r->mem, value ? value : "");
    return MHD_YES;
}

static struct http_header *copy_pairs(struct http_req *r, struct MHD_Connection *mc,
                                      enum MHD_ValueKind kind, int *n)
{
    int count = MHD_get_connection_values(mc, kind, NULL, NULL);
    struct copy c = {.r = r};
    c.h = arena_alloc(&r->mem, sizeof *c.h * (size_t)(count > 0 ? count : 1));
    MHD_get_connection_values(mc, kind, copy_pair, &c);
    *n = c.n;
    return c.h;
}

static const char *peer_name(struct http_req *r, struct MHD_Connection *mc)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    char host[INET6_ADDRSTRLEN] = "?", text[INET6_ADDRSTRLEN + 16];
    unsigned port = 0;
    if (info && info->client_addr && info->client_addr->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const void *)info->client_addr;
        inet_ntop(AF_INET, &a->sin_addr, host, sizeof host);
        port = ntohs(a->sin_port);
    } else if (info && info->client_addr && info->client_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const void *)info->client_addr;
        inet_ntop(AF_INET6, &a->sin6_addr, host, sizeof host);
        port = ntohs(a->sin6_port);
    }
    snprintf(text, sizeof text, "%s:%u", host, port);
    return arena_strdup(&r->mem, text);
}

static int path_fits(const struct http_server_route *t, const char *path)
{
    size_t n = strlen(t->path);
    if (n >= 3 && strcmp(t->path + n - 3, "...") == 0) {
        return strncmp(t->path, path, n - 3) == 0;
    }
    return strcmp(t->path, path) == 0;
}

static int method_fits(const struct http_server_route *t, const char *method)
{
    return strcmp(t->method, "*") == 0 || strcmp(t->method, method) == 0 ||
           (strcmp(t->method, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

/* Finds the route. 0, 404 or 405; `allow` gets the methods of the path. */
static int find_route(struct http_server *s, struct http_req *r, struct buf *allow)
{
    int found = 404;
    for (int i = 0; i < s->o.nroutes; i++) {
        const struct http_server_route *t = &s->routes[i];
        if (!path_fits(t, r->path)) {
            continue;
        }
        if (method_fits(t, r->method)) {
            r->route = t;
            return 0;
        }
        found = 405;
        if (allow->len > 0) {
            buf_str(allow, ", ");
        }
        buf_str(allow, t->method);
    }
    return found;
}

/* Compares hashes, each to its end, and with every key: the time tells nothing of them. */
static int key_ok(struct http_server *s, const char *auth)
{
    struct sha256 h;
    uint8_t got[32];
    int ok = 0;
    if (!auth || strncasecmp(auth, "Bearer ", 7) != 0) {
        return 0;
    }
    sha256_init(&h);
    sha256_update(&h, auth + 7, strlen(auth + 7));
    sha256_final(&h, got);
    for (int i = 0; i < s->o.nkeys; i++) {
        unsigned diff = 0;
        for (int j = 0; j < 32; j++) {
            diff |= (unsigned)(got[j] ^ s->key_hash[i][j]);
        }
        ok |= diff == 0;
    }
    return ok;
}

static void refuse(struct http_req *r, int status, const char *msg)
{
    r->refusal = status;
    r->refusal_msg = msg;
}

/* How many headers of that name; the last one's value in *value. */
static int count_header(const struct http_req *r, const char *name, const char **value)
{
    int n = 0;
    for (int i = 0; i < r->nheaders; i++) {
        if (strcasecmp(r->headers[i].name, name) == 0) {
            *value = r->headers[i].value;
            n++;
        }
    }
    return n;
}

int http_server_check_head(struct http_server *s, struct http_req *r, const char *version)
{
    const char *len = NULL, *enc = NULL, *expect = NULL;
    int nlen = count_header(r, "Content-Length", &len);
    int nenc = count_header(r, "Transfer-Encoding", &enc);
    int nexpect = count_header(r, "Expect", &expect);
    double bytes = len ? strtod(len, NULL) : 0; /* the library has checked that it is a number */
    struct buf allow;
    int found;
    if (strncmp(version, "HTTP/1.", 7) != 0) {
        refuse(r, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
        return 1;
    }
    if (nlen > 1 || nenc > 1 || (nlen && nenc)) {
        refuse(r, 400, "the length of the body is given twice");
        return 1;
    }
    if (nenc && strcasecmp(enc, "chunked") != 0) {
        refuse(r, 501, "the only transfer encoding known is chunked");
        return 1;
    }
    if (strstr(r->target, "%00")) {
        refuse(r, 400, "the path has a NUL");
        return 1;
    }
    if (nexpect && strcasecmp(expect, "100-continue") != 0) {
        refuse(r, 417, "the only expectation known is 100-continue");
        return 1;
    }
    buf_init(&allow, 256);
    found = find_route(s, r, &allow);
    if (s->o.nkeys && !(r->route && (r->route->flags & HTTP_SERVER_OPEN)) &&
        !key_ok(s, http_req_header(r, "Authorization"))) {
        refuse(r, 401, "no valid API key");
    } else if (found == 404) {
        refuse(r, 404, "no such path");
    } else if (found == 405) {
        char *msg = arena_alloc(&r->mem, 320);
        snprintf(msg, 320, "method not allowed here: %s", allow.data);
        refuse(r, 405, msg);
    } else if (atomic_load(&s->draining)) {
        refuse(r, 503, "the server is shutting down");
    } else if (bytes > (double)s->o.max_body) {
        refuse(r, 413, "the body is too large");
    }
    buf_fini(&allow);
    return r->refusal && (nexpect || bytes > (double)(s->o.max_body + SWALLOW_MORE));
}

struct http_req *http_server_open_req(struct http_server *s, struct http_server_conn *c,
                                      const char *url, const char *method)
{
    struct http_req *r = http_req_new(s);
    r->id = ++s->next_id;
    r->t_open = proc_now();
    r->conn = c;
    c->req = r;
    buf_init(&r->body, s->o.max_body + 1);
    r->method = arena_strdup(&r->mem, method);
    r->path = arena_strdup(&r->mem, url);
    r->target = arena_strdup(&r->mem, c->target ? c->target : url);
    r->peer = peer_name(r, c->mc);
    r->headers = copy_pairs(r, c->mc, MHD_HEADER_KIND, &r->nheaders);
    r->args = copy_pairs(r, c->mc, MHD_GET_ARGUMENT_KIND, &r->nargs);
    atomic_fetch_add(&s->requests, 1);
    atomic_fetch_add(&s->begun, 1);
    return r;
}

enum MHD_Result http_server_take_body(struct http_server *s, struct http_req *r, const char *data,
                                      size_t n)
{
    atomic_fetch_add(&s->bytes_in, n);
    if (!r->refusal && n > s->o.max_body - r->body.len) {
        refuse(r, 413, "the body is too large");
    } else if (!r->refusal && atomic_load(&s->bodies) + n > s->o.max_bodies) {
        refuse(r, 503, "too many bodies at once");
    }
    if (r->refusal) {
        r->swallowed += r->body.len + n;
        atomic_fetch_sub(&s->bodies, r->body.len);
        buf_fini(&r->body);
        buf_init(&r->body, s->o.max_body + 1);
        return r->swallowed <= s->o.max_body + SWALLOW_MORE ? MHD_YES : MHD_NO;
    }
    buf_add(&r->body, data, n);
    if (buf_status(&r->body)) {
        atomic_fetch_sub(&s->bodies, r->body.len);
        buf_clear(&r->body);
        refuse(r, 503, "no memory for the body");
        return MHD_YES;
    }
    atomic_fetch_add(&s->bodies, n);
    return MHD_YES;
}
