/* Looks whether slow engines are drained: samples must not stay with one that crawls while another
 * could make them, and one that is well again gets samples again.
 *
 *     struct simpace *p = simpace_new(&sim, fleet);
 *     simpace_open(p, port);                       one life of the controller begins
 *     simpace_attend(p);                           again and again, by the port
 *     simpace_free(p); */
#ifndef SIM_SIMPACE_H
#define SIM_SIMPACE_H

struct port_http;
struct sim;
struct simfleet;
struct simpace;

struct simpace *simpace_new(struct sim *s, struct simfleet *f);
void simpace_free(struct simpace *p); /* NULL is fine */
void simpace_open(struct simpace *p, struct port_http *port);
void simpace_attend(struct simpace *p);

#endif
