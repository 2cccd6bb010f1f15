/* Which engine gets the next samples: of those that may get some, the one with the least to do, and
 * of several the first. It costs the same among ten engines and ten thousand.
 *
 *     struct port_pick k;
 *     port_pick_init(&k, nengines);
 *     port_pick_set(&k, 7, 12);           engine 7 has 12 samples
 *     port_pick_set(&k, 7, -1);           it may get none
 *     port_pick_least(&k)                 -1: no engine may
 *     port_pick_fini(&k); */
#ifndef RL_PORT_PICK_H
#define RL_PORT_PICK_H

struct port_pick {
    int *heap, *at, *load; /* (n) engines; place of each in the heap, -1: none; its samples */
    int n;                 /* places */
    int count, idle;       /* engines that may get samples; those of them that have none */
};

void port_pick_init(struct port_pick *k, int engines);
void port_pick_fini(struct port_pick *k);
/* More engines, numbered behind the others; they may get none yet. */
void port_pick_grow(struct port_pick *k, int engines);
void port_pick_set(struct port_pick *k, int engine, int load);
int port_pick_least(const struct port_pick *k);

#endif
