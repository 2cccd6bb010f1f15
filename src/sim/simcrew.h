/* The people who run the engines: they write engines into the file of --rollout-engines-file and
 * take them out while the run goes on, and start and end processes behind it.
 *
 *     struct simcrew *c = simcrew_new(&sim, &opts);
 *     simcrew_open(c, port, &e);                   one life of the controller begins:
 *     ... port's attend is simcrew_attend ...      it sees what they wrote
 *     simcrew_close(c);
 *     simcrew_free(c);
 *
 * What is promised of it: an engine that was taken out gets no samples once that was seen. */
#ifndef SIM_SIMCREW_H
#define SIM_SIMCREW_H

struct err;
struct port_http;
struct sim;
struct simcrew;
struct simdisk;
struct simfleet;
struct simnet;

struct simcrew_opts {
    struct simdisk *disk;
    struct simnet *net;
    struct simfleet *fleet;
    int first;  /* engine that is the first of the file */
    int places; /* engines that may be in it */
    int listed; /* that are, at the beginning */
};

struct simcrew *simcrew_new(struct sim *s, const struct simcrew_opts *o);
void simcrew_free(struct simcrew *c); /* NULL is fine */
int simcrew_open(struct simcrew *c, struct port_http *port, struct err *e);
void simcrew_attend(void *crew); /* as struct port_http_opts has it */
void simcrew_close(struct simcrew *c);

#endif
