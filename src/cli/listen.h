/* A command that listens until it is told to end: what `serve` and `router` share.
 *
 *     conf_add(c, listen_table, &o.listen);
 *     files = listen_prepare(&l);            before the first thread
 *     listen_fill(&o.listen, &http_opts);
 *     ... start, print listen_scheme(&o.listen) and the port ...
 *     sig = listen_wait(&l);                 then drain and stop */
#ifndef CLI_LISTEN_H
#define CLI_LISTEN_H

#include <signal.h>
#include <stdint.h>

#include "base/conf.h"

struct http_server_opts;

struct listen_opts {
    char *host, *api_key, *cert, *key;
    int64_t port;
};
extern const struct conf_opt listen_table[];

/* SIGTERM and SIGINT are kept for listen_wait; threads started from here on do not get them. A
 * client that has gone is no signal. Returns how many files may be open. */
long listen_prepare(sigset_t *signals);
/* Address, key and TLS; the rest is left as it is. */
void listen_fill(const struct listen_opts *o, struct http_server_opts *http);
const char *listen_scheme(const struct listen_opts *o);
/* The signal that came. A second one ends the program at once. */
int listen_wait(const sigset_t *signals);

#endif
