/* A world that is a program: a clock that moves when somebody waits, a queue of what happens when,
 * chance from a seed, faults, and the end of the controller at any instant. Everything of one seed
 * happens in one thread and in one order, so a seed that fails fails again at the same event.
 *
 *     struct sim s;
 *     sim_init(&s, seed);
 *     sim_at(&s, s.now + 1.5, engine_comes_up, engine, 0);
 *     sim_wait(&s, 2.0, has_event, net);        what is due happens; ends early when has_event
 *     if (sim_fault(&s, SIM_CUT)) ...           chance, counted
 *     sim_fini(&s);
 *
 * What the parts promise each other is checked with sim_broken, which keeps the first breach. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include <stddef.h>
#include <stdint.h>

#include "base/world.h"

/* Every kind of fault; sim_fault_name tells what each is. */
enum sim_fault {
    /* the network */
    SIM_REFUSED,
    SIM_CONNECT_LATE,
    SIM_LOST,
    SIM_ANSWER_LOST,
    SIM_CUT,
    SIM_DELAYED,
    SIM_TWICE,
    SIM_GARBAGE,
    SIM_TRUNCATED,
    SIM_STATUS_500,
    SIM_STATUS_503,
    SIM_STATUS_429,
    /* engines */
    SIM_CRASH,
    SIM_HANG,
    SIM_SLOW,
    SIM_CRAWLS,
    SIM_SICK,
    SIM_FORGETS,
    SIM_FALLS_BACK,
    SIM_MISLABELS,
    SIM_KEEPS_OLD,
    SIM_TAKES_LATE,
    SIM_TAKES_WRONG,
    SIM_GIVES_UP,
    SIM_NO_START,
    /* changes of weights on their way */
    SIM_CHUNK_LOST,
    SIM_CHUNK_BAD,
    SIM_CHUNK_ROTS,
    /* the people who run them */
    SIM_ADDED,
    SIM_REMOVED,
    SIM_ADDED_NOBODY,
    SIM_SLIP,
    /* rewards */
    SIM_REWARD_FAILS,
    SIM_REWARD_SLOW,
    /* the disk */
    SIM_WRITE_FAILS,
    SIM_SYNC_FAILS,
    SIM_RENAME_FAILS,
    SIM_DISK_FULL,
    SIM_FULL_AT_START,
    SIM_DISK_SLOW,
    SIM_TORN,
    /* the controller */
    SIM_KILLED,
    SIM_POWER_LOST,
    SIM_STOPPED,
    SIM_CLOCK_JUMPS,
    SIM_NFAULTS
};
const char *sim_fault_name(enum sim_fault f);

/* What the controller is seen to do about them. */
enum sim_deed {
    SIM_DRAINED,
    SIM_READMITTED,
    SIM_EVALUATED,
    SIM_EVALUATED_AGAIN,
    SIM_TOOK_CHANGES,
    SIM_TOOK_WHOLE,
    SIM_NDEEDS
};
const char *sim_deed_name(enum sim_deed d);

/* Bugs that can be planted, to see that they are found. */
enum sim_plant {
    SIM_PLANT_NONE,
    SIM_PLANT_REQUEUE,   /* what an engine had when it was lost is not asked again */
    SIM_PLANT_FSYNC,     /* segment files are not synced */
    SIM_PLANT_STALENESS, /* groups one version too old are trained on */
    SIM_PLANT_TWICE,     /* an answer is taken twice */
    SIM_PLANT_STALE,     /* answers of weights other than those asked for are taken */
    SIM_PLANT_GONE,      /* an engine that was taken out is still used */
    SIM_PLANT_CRAWL,     /* an engine that crawls is not drained */
    SIM_PLANT_EVAL,      /* evaluations are sampled with the weights before */
    SIM_PLANT_ROOM,      /* nobody waits for room on a full disk */
    SIM_PLANT_DELTA,     /* what changed is told one version late */
    SIM_NPLANTS
};
const char *sim_plant_name(enum sim_plant p);

struct sim_timer {
    double at;
    uint64_t order;
    void (*fn)(void *arg, int64_t n);
    void *arg;
    int64_t n;
};

enum { SIM_LAST = 40, SIM_LINE = 200 }; /* lines that are kept of what happened */

struct sim {
    uint64_t seed, chance;
    double now;
    struct sim_timer *timers; /* a heap, the next first */
    size_t ntimers, cap_timers;
    uint64_t order;
    int64_t event;     /* things that happened so far */
    int64_t max_event; /* more is a wait that does not end */
    double max_now;
    int64_t end_at; /* the controller ends at this event; 0: at none */
    int power;      /* and with it what was not synced */
    int dead;       /* 1: it has ended: nothing it does is seen outside */
    int stopping;   /* 1: it is asked to stop */
    double jump_at; /* the clock jumps then; 0: never */
    double rate;    /* of faults: a factor of all chances; 0: there are none */
    int64_t faults; /* that may still come */
    int hit;        /* faults since the caller set it to 0 */
    int64_t hits[SIM_NFAULTS], did[SIM_NDEEDS];
    enum sim_plant plant;
    struct world world;
    int trace; /* 1: all of it goes to stdout */
    char last[SIM_LAST][SIM_LINE];
    int64_t nlast;
    char broken[400]; /* the first breach; "" none */
    int64_t broken_event;
};

void sim_init(struct sim *s, uint64_t seed);
void sim_fini(struct sim *s);

/* Chance: 64 bits; below n; in [0, 1); in [lo, hi]. */
uint64_t sim_u64(struct sim *s);
int64_t sim_below(struct sim *s, int64_t n);
double sim_unit(struct sim *s);
double sim_between(struct sim *s, double lo, double hi);
/* A pure function, for what must not depend on when it is asked. */
uint64_t sim_mix(uint64_t a, uint64_t b);

/* 1: the fault happens here. Counted. */
int sim_fault(struct sim *s, enum sim_fault f);
/* A fault that came otherwise. */
void sim_count(struct sim *s, enum sim_fault f);

/* fn happens at that time. */
void sim_at(struct sim *s, double at, void (*fn)(void *arg, int64_t n), void *arg, int64_t n);
/* Waits; ends early when ready(arg) is 1. ready may be NULL. */
void sim_wait(struct sim *s, double seconds, int (*ready)(void *arg), void *arg);
/* Something happened: it is counted and noted, and the controller may end here. */
void sim_event(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A line of the trace that is no event. */
void sim_note(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A promise was broken. */
void sim_broken(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
