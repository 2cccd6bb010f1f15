/* Owns the file of engines: what it says, since when, and whether the controller has looked. The
 * file is read by the controller's own code (run/fleetfile.h), and lies on the simulated disk. */
#include "sim/simcrew.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "run/fleetfile.h"
#include "sim/sim.h"
#include "sim/simdisk.h"
#include "sim/simfleet.h"
#include "sim/simnet.h"

#define SIMCREW_FILE SIMDISK_ROOT "/engines"
#define SIMCREW_LOOK_S                                                                             \
    1.0 /* after which the controller has looked at the file when it is asked to */
#define SIMCREW_NOBODY 900 /* and more: engines that there are not */

struct simcrew_place {
    int listed;
    double out_at; /* since when it is not listed */
    int seen;      /* 1: the controller has looked at the file since */
};

struct simcrew {
    struct sim *s;
    struct simcrew_opts o;
    struct simcrew_place *p;
    int nobody;      /* the file names an engine that there is not; 0: it does not */
    int slip;        /* 1: a line of the file is none */
    double whole_at; /* since when all lines of it are some */
    struct fleetfile *file;
};

static int simcrew_listed(const struct simcrew *c)
{
    int n = 0;

    for (int i = 0; i < c->o.places; i++) {
        n += c->p[i].listed;
    }
    return n;
}

static void simcrew_write(struct simcrew *c)
{
    struct buf b;

    buf_init(&b, 1 << 16);
    for (int i = 0; i < c->o.places; i++) {
        if (c->p[i].listed) {
            buf_printf(&b, "engine-%d:30000 # of the crew\n", c->o.first + i);
        }
    }
    if (c->nobody) {
        buf_printf(&b, "engine-%d:30000\n", c->nobody);
    }
    buf_str(&b, c->slip ? "half a li" : "");
    simdisk_place(c->o.disk, SIMCREW_FILE, b.data ? b.data : "", b.len);
    buf_fini(&b);
}

/* ---- what they do ---- */

static void simcrew_add(struct simcrew *c, int i)
{
    c->p[i] = (struct simcrew_place){.listed = 1};
    simfleet_begin(c->o.fleet, c->o.first + i, sim_below(c->s, 2) ? 0 : sim_between(c->s, 0.1, 20));
    sim_note(c->s, "crew: engine %d is added", c->o.first + i);
}

static void simcrew_ends(void *arg, int64_t i)
{
    struct simcrew *c = arg;
    if (!c->p[i].listed) {
        simfleet_end(c->o.fleet, c->o.first + (int)i);
    }
}

/* Its process goes at once, later, or not at all. */
static void simcrew_remove(struct simcrew *c, int i)
{
    int64_t how = sim_below(c->s, 3);

    c->p[i] = (struct simcrew_place){.out_at = c->s->now};
    sim_note(c->s, "crew: engine %d is taken out", c->o.first + i);
    if (how == 0) {
        simfleet_end(c->o.fleet, c->o.first + i);
    } else if (how == 1) {
        sim_at(c->s, c->s->now + sim_between(c->s, 0, 30), simcrew_ends, c, i);
    }
}

/* Now and then they do something. Somebody must be there in the end: an empty file is filled. */
static void simcrew_acts(void *arg, int64_t unused)
{
    struct simcrew *c = arg;
    int i = (int)sim_below(c->s, c->o.places), had = c->slip;

    (void)unused;
    c->slip = 0;
    c->whole_at = had ? c->s->now : c->whole_at;
    if (!c->p[i].listed && (sim_fault(c->s, SIM_ADDED) || !simcrew_listed(c))) {
        simcrew_add(c, i);
    } else if (c->p[i].listed && sim_fault(c->s, SIM_REMOVED)) {
        simcrew_remove(c, i);
    } else if (sim_fault(c->s, SIM_ADDED_NOBODY)) {
        c->nobody = c->nobody ? 0 : SIMCREW_NOBODY + (int)sim_below(c->s, 3);
    } else if (sim_fault(c->s, SIM_SLIP)) {
        c->slip = 1;
    } else if (!had) {
        sim_at(c->s, c->s->now + sim_between(c->s, 0.5, 8), simcrew_acts, c, 0);
        return;
    }
    simcrew_write(c);
    sim_at(c->s, c->s->now + sim_between(c->s, 0.5, 8), simcrew_acts, c, 0);
}

/* ---- what is promised ---- */

static void simcrew_asked(void *arg, int engine, const char *path)
{
    const struct simcrew *c = arg;
    int i = engine - c->o.first;

    if (i >= 0 && i < c->o.places && c->p[i].seen && strcmp(path, "/generate") == 0) {
        sim_broken(c->s, "engine %d was taken out %.1f s ago and gets samples", engine,
                   c->s->now - c->p[i].out_at);
    }
}

void simcrew_attend(void *arg)
{
    struct simcrew *c = arg;

    if (c->s->plant != SIM_PLANT_GONE) {
        fleetfile_look(c->file, c->s->now);
    }
    for (int i = 0; i < c->o.places && !c->slip; i++) {
        double since = c->p[i].out_at > c->whole_at ? c->p[i].out_at : c->whole_at;
        c->p[i].seen |= !c->p[i].listed && c->s->now >= since + SIMCREW_LOOK_S;
    }
}

/* ---- beginning and end ---- */

int simcrew_open(struct simcrew *c, struct port_http *port, struct err *e)
{
    c->slip = 0; /* a run that does not start because of one is not started again before it is
                    mended */
    simcrew_write(c);
    return fleetfile_open(SIMCREW_FILE, port, &c->file, e);
}

void simcrew_close(struct simcrew *c)
{
    fleetfile_close(c->file);
    c->file = NULL;
}

struct simcrew *simcrew_new(struct sim *s, const struct simcrew_opts *o)
{
    struct simcrew *c = mem_alloc(sizeof *c);

    c->s = s;
    c->o = *o;
    c->p = mem_alloc(sizeof *c->p * (size_t)o->places);
    for (int i = 0; i < o->listed; i++) {
        c->p[i].listed = 1;
        simfleet_begin(o->fleet, o->first + i, 0);
    }
    simnet_watch(o->net, simcrew_asked, c);
    sim_at(s, s->now + sim_between(s, 0.5, 8), simcrew_acts, c, 0);
    return c;
}

void simcrew_free(struct simcrew *c)
{
    if (c) {
        simcrew_close(c);
        mem_free(c->p);
        mem_free(c);
    }
}
