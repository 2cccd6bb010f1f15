/* The control server of a run (--control-server-port): who operates it sees the engines, adds some
 * and takes some out, while samples are drawn. On 127.0.0.1 only.
 *
 *     GET    /engines       all, with state, version, load and why each was lost last
 *     GET    /engines/N     one
 *     POST   /engines       {"url": "10.0.0.9:30000"}; the run's file of engines names it from then
 * on DELETE /engines/N     it finishes its samples, or they are moved, and it is gone GET /health
 * 200, at once
 *
 *     ctlserver_open(&o, &c, &e);
 *     ctlserver_attend(c);                    by the port's thread, again and again
 *     ctlserver_close(c);
 *
 * Requests are taken by a thread of the server's own and answered by ctlserver_attend, so that the
 * port is only ever touched by its own thread; while the trainer trains they wait. */
#ifndef RUN_CTLSERVER_H
#define RUN_CTLSERVER_H

struct ctlserver;
struct err;
struct port_http;
struct fleetfile;

/* Borrowed until ctlserver_close. */
struct ctlserver_opts {
    int port; /* 0 picks a free one */
    struct port_http *engines;
    struct fleetfile *fleetfile; /* NULL: none can be added */
};

int ctlserver_open(const struct ctlserver_opts *o, struct ctlserver **out, struct err *e);
int ctlserver_port(const struct ctlserver *c);
void ctlserver_attend(struct ctlserver *c);
void ctlserver_close(struct ctlserver *c); /* NULL is fine */

#endif
