/* Two that look over the controller's shoulder, and break promises on request (enum sim_plant): a
 * journal around the ledger, and a rollout port on either side of the one that records.
 *
 *     simwatch_journal(w, ledger_journal(l));          what was committed must be found again
 *     simwatch_inner(w, port_http_port(p));            what was committed is not asked again
 *     simwatch_outer(w, port_record_port(r));
 *     simwatch_check(w, &e)                            after a restart: all of it is there */
#ifndef SIM_SIMWATCH_H
#define SIM_SIMWATCH_H

#include <stdint.h>

#include "rl/journal.h"
#include "rl/port.h"

struct sim;
struct simtrain;
struct simwatch;

struct simwatch *simwatch_new(struct sim *s, struct simtrain *t);
void simwatch_free(struct simwatch *w); /* NULL is fine */
/* Each lasts until the next of its kind; what they stand around is borrowed. */
struct journal *simwatch_journal(struct simwatch *w, struct journal *inner);
const struct rollout_port *simwatch_inner(struct simwatch *w, const struct rollout_port *inner);
const struct rollout_port *simwatch_outer(struct simwatch *w, const struct rollout_port *inner);
/* The controller has ended: what was not committed is nobody's promise. */
void simwatch_restart(struct simwatch *w);
/* Looks every committed entry up. */
void simwatch_check(struct simwatch *w);
/* A reward is asked for; ask is the hash of the sample's tokens. */
void simwatch_reward(void *w, int64_t sample, uint64_t ask);

#endif
