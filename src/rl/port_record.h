/* A rollout port around another one that never asks twice (contract C5): each finished answer is
 * recorded before the loop sees it, and samples whose answers are recorded are answered from there;
 * of a group the engines are asked for the missing ones only. Samples that a function makes
 * (rl/port_hook.h) are recorded whole.
 *
 *     port_record_open(engines, journal, world, NULL, &p);
 *     loop_cfg.rollout = port_record_port(p);
 *     ...
 *     port_record_close(p);
 *
 * Answers that arrive within a few hundredths of a second are recorded together: a disk takes as
 * long for one as for many. When an answer becomes visible does not matter to a run that decides in
 * logical time (contract C6). */
#ifndef RL_PORT_RECORD_H
#define RL_PORT_RECORD_H

#include <stdint.h>

#include "rl/journal.h"
#include "rl/port.h"

struct err;
struct port_record;
struct world;

struct port_record_stats {
    int64_t asked, recalled; /* samples: of the engines, from the journal */
};

/* inner NULL: a replay, in which a sample that is not recorded is an error. All are borrowed.
 * asked_log: file to which "sample rollout set start" of each sample that is asked of the engines
 * is appended, for tests; or NULL. */
int port_record_open(const struct rollout_port *inner, struct journal *j, const struct world *w,
                     const char *asked_log, struct port_record **out, struct err *e);
const struct rollout_port *port_record_port(struct port_record *p);
struct port_record_stats port_record_stats(const struct port_record *p);
void port_record_close(struct port_record *p); /* NULL is fine */

#endif
