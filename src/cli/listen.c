/* Owns the flags of a listening command and its signals: they are taken by the thread that waits
 * for them alone. */
#include "cli/listen.h"

#include <pthread.h>
#include <stddef.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/proc.h"
#include "net/http_server.h"

#define O(f) offsetof(struct listen_opts, f)
const struct conf_opt listen_table[] = {
    {"host", CONF_STR, "127.0.0.1", NULL, "address to listen on", O(host), "network", NULL},
    {"port", CONF_INT, "30000", "[0,65535]", "0 picks a free one", O(port), "network", NULL},
    {"api-key", CONF_STR, NULL, NULL,
     "asked for as `Authorization: Bearer KEY`, but for health and metrics", O(api_key), "network",
     NULL},
    {"ssl-certfile", CONF_STR, NULL, NULL, "PEM certificate: TLS, together with --ssl-keyfile",
     O(cert), "network", NULL},
    {"ssl-keyfile", CONF_STR, NULL, NULL, "PEM key", O(key), "network", NULL},
    {0}};

long listen_prepare(sigset_t *signals)
{
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a full disk must not end a server that logs to it */
    log_set_times(conf_env("MILES_LOG_TIMES") != NULL);
    return proc_raise_files(0); /* one for each connection */
}

void listen_fill(const struct listen_opts *o, struct http_server_opts *http)
{
    http->host = o->host;
    http->port = (int)o->port;
    http->keys = o->api_key ? (const char *const *)&o->api_key : NULL;
    http->nkeys = o->api_key != NULL;
    http->cert_file = o->cert;
    http->key_file = o->key;
}

const char *listen_scheme(const struct listen_opts *o)
{
    return o->cert ? "https" : "http";
}

int listen_wait(const sigset_t *signals)
{
    int sig = 0;

    sigwait(signals, &sig);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, signals, NULL);
    return sig;
}
