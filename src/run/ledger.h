/* The ledger of a run: what rl/journal.h says must be recorded, in SQLite and segment files of the
 * run folder (contract C5).
 *
 *     RUN/ledger.db        attempts, events, answers, rewards, decisions, segments
 *     RUN/segments/N.seg  tokens and log-probs of answers (run/segfile.h)
 *     RUN/lock             who writes it (run/runlock.h)
 *
 *     ledger_open(&o, &l, &e);
 *     loop_cfg.journal = ledger_journal(l);
 *     ...
 *     ledger_close(l, "finished");
 *
 * A row is committed after the bytes it points to are on disk. WAL on local disks, which readers
 * such as the sqlite3 shell may open while the run goes on; on network file systems, where WAL does
 * not work, a rollback journal and an exclusive lock. A full disk is waited for (base/patience.h).
 * The calls of ledger_journal may come from several threads, all others from one. */
#ifndef RUN_LEDGER_H
#define RUN_LEDGER_H

#include <jansson.h>
#include <stdint.h>

#include "rl/journal.h"

struct err;
struct ledger;

enum ledger_mode { LEDGER_AUTO, LEDGER_WAL, LEDGER_ROLLBACK, LEDGER_OFF }; /* of --ledger-mode */

struct ledger_opts {
    const char *dir; /* the run folder; made when missing */
    enum ledger_mode mode;
    /* 1: for a replay: nothing is written, and an event that is not as recorded is an error. */
    int closed;
    const json_t *command; /* words that the run was started with; copied; NULL when closed */
    const json_t *options; /* resolved; copied; NULL when closed */
    /* For tests: SIGKILL at the k-th point before, within or behind a commit. 0: never. */
    int64_t kill_at;
};

/* STATUS_INPUT when another process has the folder, with its name, or it cannot be written in;
 * STATUS_NOTFOUND when closed and there is none. Writes, this one's too, wait for room on a full
 * disk (base/patience.h). */
int ledger_open(const struct ledger_opts *o, struct ledger **out, struct err *e);
/* outcome: how the attempt ended, a word or two. NULL l is fine. */
void ledger_close(struct ledger *l, const char *outcome);
struct journal *ledger_journal(struct ledger *l);
int64_t ledger_attempt(const struct ledger *l); /* 1: the run's first start */
/* The rollout that this attempt begins with. */
int ledger_started(struct ledger *l, int64_t rollout, struct err *e);
/* Values by name, committed at once. get gives NULL when there is none; free with mem_free. */
int ledger_set(struct ledger *l, const char *name, const char *value, struct err *e);
char *ledger_get(struct ledger *l, const char *name);
/* The newest checkpoint that was recorded; STATUS_NOTFOUND. */
int ledger_saved(struct ledger *l, int64_t *iteration, struct err *e);
/* Command and options of the last attempt before this one, or of the last when closed; both the
 * caller's to decref. STATUS_NOTFOUND. */
int ledger_last(struct ledger *l, json_t **command, json_t **options, struct err *e);
/* The first rollout that more than its checkpoint is recorded of; STATUS_NOTFOUND. */
int ledger_first(struct ledger *l, int64_t *rollout, struct err *e);
/* 1: RUN has a ledger. */
int ledger_exists(const char *dir);

struct ledger_counts {
    int64_t answers, rewards, events, bytes; /* bytes of segments */
};
int ledger_count(struct ledger *l, struct ledger_counts *out, struct err *e);

#endif
