/* What a caller of many requests needs of the network, as a table, so that a simulator can stand in
 * for it. The calls do as those of net/http_client.h, which fills one with http_client_net. */
#ifndef NET_HTTP_NET_H
#define NET_HTTP_NET_H

#include <stdint.h>

struct err;
struct http_client_event;
struct http_client_request;

struct http_net {
    int (*start)(void *self, const struct http_client_request *q, uint64_t *id, struct err *e);
    void (*cancel)(void *self, uint64_t id);
    struct http_client_event *(*take)(void *self, double wait_s);
    void (*release)(void *self, struct http_client_event *ev);
    void *self;
};

#endif
