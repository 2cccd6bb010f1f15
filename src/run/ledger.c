/* Owns the ledger. Rows wait in memory until commit, so that a commit that fails on a full disk can
 * be made again as a whole: first the bytes of the segments, then one transaction that points to
 * them. After a failed transaction the database is opened anew, which is how SQLite takes back what
 * was half done. The journal's calls take turns: training asks and records beside the loop. */
#include "run/ledger.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/patience.h"
#include "base/status.h"
#include "run/ledger_disk.h"
#include "run/ledger_vfs.h"
#include "run/runlock.h"
#include "run/segfile.h"

#define LEDGER_FORMAT  2
#define LEDGER_WAITING 65536 /* rows that may wait for a commit */

static const char *const ledger_names[JOURNAL_NEVENTS] = {
    "prompts", "answer", "reward", "drop", "step", "publish", "saved", "decision", "kept"};

static const char ledger_schema[] =
    "CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS attempts(id INTEGER PRIMARY KEY, started TEXT, ended TEXT,"
    " host TEXT, pid INTEGER, program TEXT, command TEXT, options TEXT, first_rollout INTEGER,"
    " outcome TEXT);"
    "CREATE TABLE IF NOT EXISTS segments(id INTEGER PRIMARY KEY, bytes INTEGER);"
    "CREATE TABLE IF NOT EXISTS answers(rollout INTEGER, eval_set INTEGER, sample INTEGER,"
    " start INTEGER, version INTEGER, ask INTEGER, segment INTEGER, offset INTEGER,"
    " length INTEGER, xxh3 INTEGER, attempt INTEGER,"
    " PRIMARY KEY(rollout, eval_set, sample, start, version, ask)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS rewards(rollout INTEGER, eval_set INTEGER, sample INTEGER,"
    " start INTEGER, version INTEGER, ask INTEGER, value TEXT, xxh3 INTEGER, attempt INTEGER,"
    " PRIMARY KEY(rollout, eval_set, sample, start, version, ask)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS decisions(rollout INTEGER, eval_set INTEGER, sample INTEGER,"
    " start INTEGER, version INTEGER, ask INTEGER, value TEXT, xxh3 INTEGER, attempt INTEGER,"
    " PRIMARY KEY(rollout, eval_set, sample, start, version, ask)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS events(rollout INTEGER, kind TEXT, seq INTEGER, data TEXT,"
    " attempt INTEGER, PRIMARY KEY(rollout, kind, seq)) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS rewards_of ON rewards(sample, ask);";

/* Statements are made once per opening of the database. */
enum ledger_stmt {
    LEDGER_PUT_ANSWER,
    LEDGER_PUT_REWARD,
    LEDGER_PUT_DECISION,
    LEDGER_PUT_EVENT,
    LEDGER_PUT_SEGMENT,
    LEDGER_GET_ANSWER,
    LEDGER_GET_REWARD,
    LEDGER_GET_TRAINED,
    LEDGER_GET_DECISION,
    LEDGER_GET_EVENT,
    LEDGER_NSTMTS
};

#define LEDGER_KEY                                                                                 \
    " WHERE rollout=?1 AND eval_set=?2 AND sample=?3 AND start=?4 AND version=?5 AND ask=?6"

static const char *const ledger_sql[LEDGER_NSTMTS] = {
    "INSERT OR REPLACE INTO answers VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)",
    "INSERT OR REPLACE INTO rewards VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9)",
    "INSERT OR REPLACE INTO decisions VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9)",
    "INSERT OR REPLACE INTO events VALUES(?1,?2,?3,?4,?5)",
    "INSERT OR REPLACE INTO segments VALUES(?1,?2)",
    "SELECT segment, offset, length, xxh3 FROM answers" LEDGER_KEY,
    "SELECT value, xxh3 FROM rewards" LEDGER_KEY,
    /* a sample of the training is one over all rollouts: what it earned is not asked twice */
    "SELECT value, xxh3 FROM rewards WHERE eval_set=?2 AND sample=?3 AND start=?4 AND ask=?6"
    " ORDER BY rollout LIMIT 1",
    "SELECT value, xxh3 FROM decisions" LEDGER_KEY,
    "SELECT data FROM events WHERE rollout=?1 AND kind=?2 AND seq=?3",
};

/* A row that waits for its commit. */
struct ledger_row {
    enum journal_event kind;
    int entry; /* 1: an entry, with key; 0: an event, with key.rollout and seq */
    struct journal_key key;
    int64_t seq;
    struct segfile_at at; /* of an answer */
    char *text;           /* of anything else, NUL behind it */
    size_t n;             /* of an entry: its bytes */
};

struct ledger {
    struct ledger_opts o;
    struct journal journal;
    pthread_mutex_t turn;
    char *dir, *path;
    struct runlock *lock;
    struct segfile *segments;
    sqlite3 *db;
    sqlite3_stmt *stmt[LEDGER_NSTMTS];
    struct ledger_row *rows;
    size_t nrows, cap_rows;
    struct map seqs; /* (rollout, kind) -> events so far in this process */
    int64_t attempt, points;
    int wal;
    int64_t commits;
    double commit_s; /* that they took */
};

int ledger_exists(const char *dir)
{
    char *path = fsio_join(dir, "ledger.db");
    int is = fsio_is_file(path);
    mem_free(path);
    return is;
}

/* A place where a crash must do no harm. */
static void ledger_point(struct ledger *l)
{
    if (l->o.kill_at && ++l->points == l->o.kill_at) {
        kill(getpid(), SIGKILL);
    }
}

/* ---- the database ---- */

static int ledger_fail(struct ledger *l, const char *what, struct err *e)
{
    int code = l->db ? sqlite3_errcode(l->db) & 0xff : SQLITE_CANTOPEN;
    int rc = code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? STATUS_FORMAT
             : code == SQLITE_NOMEM                          ? STATUS_NOMEM
                                                             : STATUS_IO;
    return ERR(e, rc, "cannot %s %s: %s%s", what, l->path,
               l->db ? sqlite3_errmsg(l->db) : "no memory",
               rc == STATUS_FORMAT ? ": it is damaged; to go on from the last checkpoint without "
                                     "it, take it away and give --load"
                                   : "");
}

static void ledger_db_close(struct ledger *l)
{
    for (int i = 0; i < LEDGER_NSTMTS; i++) {
        sqlite3_finalize(l->stmt[i]);
        l->stmt[i] = NULL;
    }
    sqlite3_close(l->db);
    l->db = NULL;
}

static int ledger_exec(struct ledger *l, const char *sql, struct err *e)
{
    return sqlite3_exec(l->db, sql, NULL, NULL, NULL) == SQLITE_OK ? STATUS_OK
                                                                   : ledger_fail(l, "write", e);
}

static int ledger_db_open(struct ledger *l, struct err *e)
{
    int flags = SQLITE_OPEN_READWRITE | (l->o.closed ? 0 : SQLITE_OPEN_CREATE);
    const char *vfs = fsio_sys_simulated(l->path) ? ledger_disk() : ledger_vfs();
    int rc = STATUS_OK;

    if (sqlite3_open_v2(l->path, &l->db, flags, vfs) != SQLITE_OK) {
        rc = ledger_fail(l, "open", e);
        ledger_db_close(l);
        return rc;
    }
    sqlite3_busy_timeout(l->db, 10000);
    sqlite3_extended_result_codes(l->db, 1);
    if (!l->o.closed) {
        rc = ledger_exec(l,
                         l->wal ? "PRAGMA journal_mode=WAL"
                                : "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=DELETE",
                         e);
        /* a rollback journal commits by its removal, and only EXTRA waits for that */
        rc =
            rc ? rc
               : ledger_exec(l, l->wal ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=EXTRA", e);
        rc = rc ? rc : ledger_exec(l, ledger_schema, e);
    }
    for (int i = 0; rc == STATUS_OK && i < LEDGER_NSTMTS; i++) {
        if (sqlite3_prepare_v3(l->db, ledger_sql[i], -1, SQLITE_PREPARE_PERSISTENT, &l->stmt[i],
                               NULL) != SQLITE_OK) {
            rc = ledger_fail(l, "read", e);
        }
    }
    if (rc != STATUS_OK) {
        ledger_db_close(l);
    }
    return rc;
}

/* A write, again and again while the disk refuses it. After one that failed the database is opened
 * anew. */
static int ledger_patiently(struct ledger *l,
                            int (*write)(struct ledger *l, const void *arg, struct err *e),
                            const void *arg, struct err *e)
{
    struct patience wait = {0};
    int rc;

    do {
        rc = l->db ? STATUS_OK : ledger_db_open(l, e);
        rc = rc ? rc : write(l, arg, e);
        if (rc != STATUS_OK && l->db) {
            ledger_db_close(l);
        }
    } while (patience_again(&wait, rc, l->path, e));
    return rc;
}

/* Runs a statement that gives no rows. */
static int ledger_step(struct ledger *l, sqlite3_stmt *st, struct err *e)
{
    int rc = sqlite3_step(st) == SQLITE_DONE ? STATUS_OK : ledger_fail(l, "write", e);
    sqlite3_reset(st);
    return rc;
}

/* One value by a query of its own: -1 in *out when there is no row or it is NULL. */
static int ledger_number(struct ledger *l, const char *sql, int64_t *out, struct err *e)
{
    sqlite3_stmt *st;
    int rc = STATUS_OK;

    *out = -1;
    if (sqlite3_prepare_v2(l->db, sql, -1, &st, NULL) != SQLITE_OK) {
        return ledger_fail(l, "read", e);
    }
    switch (sqlite3_step(st)) {
    case SQLITE_ROW:
        *out = sqlite3_column_type(st, 0) == SQLITE_NULL ? -1 : sqlite3_column_int64(st, 0);
        break;
    case SQLITE_DONE: break;
    default: rc = ledger_fail(l, "read", e);
    }
    sqlite3_finalize(st);
    return rc;
}

static void ledger_bind_key(sqlite3_stmt *st, const struct journal_key *k)
{
    sqlite3_bind_int64(st, 1, k->rollout);
    sqlite3_bind_int64(st, 2, k->set);
    sqlite3_bind_int64(st, 3, k->sample);
    sqlite3_bind_int64(st, 4, k->start);
    sqlite3_bind_int64(st, 5, k->version);
    sqlite3_bind_int64(st, 6, (int64_t)k->ask);
}

/* Of an entry, and of what it is found by: a sample's reward is found without its rollout. SQLite
 * itself does not see a flipped bit in a value. */
static uint64_t ledger_sum(const struct journal_key *k, const void *data, size_t n)
{
    int64_t by[] = {k->set, k->sample, k->start, (int64_t)k->ask};
    return XXH3_64bits_withSeed(data, n, XXH3_64bits(by, sizeof by));
}

/* ---- recording ---- */

static struct ledger_row *ledger_push(struct ledger *l)
{
    if (l->nrows == l->cap_rows) {
        ASSERT(mem_grow((void **)&l->rows, &l->cap_rows, 256, sizeof *l->rows));
    }
    memset(&l->rows[l->nrows], 0, sizeof *l->rows);
    return &l->rows[l->nrows++];
}

static void ledger_drop_rows(struct ledger *l)
{
    for (size_t i = 0; i < l->nrows; i++) {
        mem_free(l->rows[i].text);
    }
    l->nrows = 0;
}

/* The text of an event as recorded; NULL: none. */
static char *ledger_event(struct ledger *l, int64_t rollout, enum journal_event ev, int64_t seq)
{
    sqlite3_stmt *st = l->stmt[LEDGER_GET_EVENT];
    char *text = NULL;

    sqlite3_bind_int64(st, 1, rollout);
    sqlite3_bind_text(st, 2, ledger_names[ev], -1, SQLITE_STATIC);
    sqlite3_bind_int64(st, 3, seq);
    if (sqlite3_step(st) == SQLITE_ROW) {
        text = mem_strdup((const char *)sqlite3_column_text(st, 0));
    }
    sqlite3_reset(st);
    return text;
}

/* An event that is recorded already is compared: a run that goes on must come to the same ones. */
static int ledger_repeated(struct ledger *l, int64_t rollout, enum journal_event ev, int64_t seq,
                           const char *text, int *same, struct err *e)
{
    char *was = ledger_event(l, rollout, ev, seq);
    int rc = STATUS_OK;

    *same = was && strcmp(was, text) == 0;
    if (!*same && l->o.closed) {
        rc = ERR(e, STATUS_NUMERIC, "rollout %lld, %s %lld: recorded is %.300s, now it is %.300s",
                 (long long)rollout, ledger_names[ev], (long long)seq, was ? was : "nothing", text);
    } else if (was && !*same) {
        log_warn(LEDGER,
                 "rollout %lld does not repeat: %s %lld was %.200s and is %.200s now; the later "
                 "one is kept",
                 (long long)rollout, ledger_names[ev], (long long)seq, was, text);
    }
    mem_free(was);
    return rc;
}

static int ledger_commit(struct ledger *l, struct err *e);

static int ledger_record(struct ledger *l, enum journal_event ev, int64_t rollout,
                         const json_t *data, struct err *e)
{
    char key[sizeof rollout + 1], *text;
    int64_t seq = 0;
    int same, rc;

    memcpy(key, &rollout, sizeof rollout);
    key[sizeof rollout] = (char)ev;
    map_get(&l->seqs, key, sizeof key, &seq);
    map_put(&l->seqs, key, sizeof key, seq + 1);
    text = json_dumps(data ? data : json_null(),
                      JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (!text) {
        return ERR(e, STATUS_NOMEM, "an event of rollout %lld cannot be written",
                   (long long)rollout);
    }
    rc = ledger_repeated(l, rollout, ev, seq, text, &same, e);
    if (rc == STATUS_OK && !same && !l->o.closed) {
        struct ledger_row *r = ledger_push(l);
        r->kind = ev;
        r->key.rollout = rollout;
        r->seq = seq;
        r->text = mem_strdup(text);
    }
    free(text);
    if (rc == STATUS_OK && (ev == JOURNAL_SAVED || l->nrows >= LEDGER_WAITING)) {
        rc = ledger_commit(l, e);
    }
    return rc;
}

static int ledger_put(struct ledger *l, enum journal_event kind, const struct journal_key *k,
                      const void *data, size_t n, struct err *e)
{
    struct ledger_row *r;

    if (l->o.closed) {
        return ERR(e, STATUS_INPUT, "a replay records nothing");
    }
    r = ledger_push(l);
    r->kind = kind;
    r->entry = 1;
    r->key = *k;
    if (kind == JOURNAL_ANSWER) {
        segfile_append(l->segments, data, n, &r->at);
    } else {
        r->text = mem_alloc(n + 1);
        memcpy(r->text, data, n);
        r->n = n;
    }
    return STATUS_OK;
}

static int ledger_write_row(struct ledger *l, const struct ledger_row *r, struct err *e)
{
    sqlite3_stmt *st;

    if (!r->entry) {
        st = l->stmt[LEDGER_PUT_EVENT];
        sqlite3_bind_int64(st, 1, r->key.rollout);
        sqlite3_bind_text(st, 2, ledger_names[r->kind], -1, SQLITE_STATIC);
        sqlite3_bind_int64(st, 3, r->seq);
        sqlite3_bind_text(st, 4, r->text, -1, SQLITE_STATIC);
        sqlite3_bind_int64(st, 5, l->attempt);
        return ledger_step(l, st, e);
    }
    st = l->stmt[r->kind == JOURNAL_ANSWER   ? LEDGER_PUT_ANSWER
                 : r->kind == JOURNAL_REWARD ? LEDGER_PUT_REWARD
                                             : LEDGER_PUT_DECISION];
    ledger_bind_key(st, &r->key);
    if (r->kind == JOURNAL_ANSWER) {
        sqlite3_bind_int64(st, 7, r->at.segment);
        sqlite3_bind_int64(st, 8, r->at.offset);
        sqlite3_bind_int64(st, 9, r->at.length);
        sqlite3_bind_int64(st, 10, (int64_t)r->at.sum);
        sqlite3_bind_int64(st, 11, l->attempt);
    } else {
        if (r->kind == JOURNAL_REWARD) { /* JSON, which a person may want to read */
            sqlite3_bind_text(st, 7, r->text, (int)r->n, SQLITE_STATIC);
        } else {
            sqlite3_bind_blob(st, 7, r->text, (int)r->n, SQLITE_STATIC);
        }
        sqlite3_bind_int64(st, 8, (int64_t)ledger_sum(&r->key, r->text, r->n));
        sqlite3_bind_int64(st, 9, l->attempt);
    }
    return ledger_step(l, st, e);
}

/* All rows that wait, in one transaction. */
static int ledger_write(struct ledger *l, const void *arg, struct err *e)
{
    sqlite3_stmt *st;
    int64_t segment, length;
    int rc = ledger_exec(l, "BEGIN IMMEDIATE", e);

    (void)arg;
    for (size_t i = 0; rc == STATUS_OK && i < l->nrows; i++) {
        rc = ledger_write_row(l, &l->rows[i], e);
    }
    if (rc == STATUS_OK) {
        segfile_end(l->segments, &segment, &length);
        st = l->stmt[LEDGER_PUT_SEGMENT];
        sqlite3_bind_int64(st, 1, segment);
        sqlite3_bind_int64(st, 2, length);
        rc = ledger_step(l, st, e);
    }
    ledger_point(l);
    return rc ? rc : ledger_exec(l, "COMMIT", e);
}

static double ledger_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int ledger_commit(struct ledger *l, struct err *e)
{
    struct patience wait = {0};
    double t0 = ledger_clock();
    int rc;

    if (!l->nrows) {
        return STATUS_OK;
    }
    ledger_point(l);
    do {
        rc = segfile_sync(l->segments, e);
    } while (patience_again(&wait, rc, l->dir, e));
    if (rc != STATUS_OK) {
        return rc;
    }
    ledger_point(l);
    rc = ledger_patiently(l, ledger_write, NULL, e);
    if (rc == STATUS_OK) {
        ledger_drop_rows(l);
        ledger_point(l);
    }
    l->commits++;
    l->commit_s += ledger_clock() - t0;
    return rc;
}

/* ---- looking up ---- */

static int ledger_find_answer(struct ledger *l, const struct journal_key *k, void **data, size_t *n,
                              struct err *e)
{
    sqlite3_stmt *st = l->stmt[LEDGER_GET_ANSWER];
    struct segfile_at at = {0};
    struct err why = {0};
    int step, rc;

    ledger_bind_key(st, k);
    step = sqlite3_step(st);
    if (step == SQLITE_ROW) {
        at =
            (struct segfile_at){sqlite3_column_int64(st, 0), sqlite3_column_int64(st, 1),
                                sqlite3_column_int64(st, 2), (uint64_t)sqlite3_column_int64(st, 3)};
    }
    sqlite3_reset(st);
    if (step != SQLITE_ROW) {
        return step == SQLITE_DONE ? STATUS_NOTFOUND : ledger_fail(l, "read", e);
    }
    rc = segfile_read(l->segments, &at, data, &why);
    *n = (size_t)at.length;
    if (rc != STATUS_OK && !l->o.closed) {
        log_error(LEDGER, "%s: sample %lld of rollout %lld is asked again", why.msg,
                  (long long)k->sample, (long long)k->rollout);
        return STATUS_NOTFOUND;
    }
    if (rc != STATUS_OK && e) {
        *e = why;
    }
    return rc;
}

/* An entry that is not what was written: a reward is asked again. */
static int ledger_damaged(struct ledger *l, enum journal_event kind, const struct journal_key *k,
                          struct err *e)
{
    if (kind == JOURNAL_REWARD && !l->o.closed) {
        log_error(LEDGER, "%s: the reward of sample %lld of rollout %lld is damaged: asked again",
                  l->path, (long long)k->sample, (long long)k->rollout);
        return STATUS_NOTFOUND;
    }
    return ERR(e, STATUS_FORMAT, "%s: a %s of rollout %lld (sample %lld) is damaged", l->path,
               ledger_names[kind], (long long)k->rollout, (long long)k->sample);
}

static int ledger_find(struct ledger *l, enum journal_event kind, const struct journal_key *k,
                       void **data, size_t *n, struct err *e)
{
    sqlite3_stmt *st;
    int step, whole = 1, rc = l->db ? STATUS_OK : ledger_db_open(l, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    if (kind == JOURNAL_ANSWER) {
        return ledger_find_answer(l, k, data, n, e);
    }
    st = l->stmt[kind != JOURNAL_REWARD ? LEDGER_GET_DECISION
                 : k->set               ? LEDGER_GET_REWARD
                                        : LEDGER_GET_TRAINED];
    ledger_bind_key(st, k);
    step = sqlite3_step(st);
    if (step == SQLITE_ROW) {
        const void *p = sqlite3_column_blob(st, 0);
        *n = (size_t)sqlite3_column_bytes(st, 0);
        whole = ledger_sum(k, p, *n) == (uint64_t)sqlite3_column_int64(st, 1);
        *data = whole ? mem_alloc(*n + 1) : NULL;
        if (whole && *n) {
            memcpy(*data, p, *n);
        }
    }
    sqlite3_reset(st);
    return step == SQLITE_ROW    ? whole ? STATUS_OK : ledger_damaged(l, kind, k, e)
              : step == SQLITE_DONE ? STATUS_NOTFOUND
                                 : ledger_fail(l, "read", e);
}

/* ---- pruning ---- */

/* Segments that no answer lies in and that are not being written. */
static int ledger_prune_segments(struct ledger *l, struct err *e)
{
    static const char sql[] = "SELECT id FROM segments WHERE id < (SELECT max(id) FROM segments)"
                              " AND id NOT IN (SELECT segment FROM answers)";
    sqlite3_stmt *st;
    char text[96];
    int rc = STATUS_OK, step;
    int64_t gone[64];
    int n = 0;

    if (sqlite3_prepare_v2(l->db, sql, -1, &st, NULL) != SQLITE_OK) {
        return ledger_fail(l, "read", e);
    }
    while (n < 64 && (step = sqlite3_step(st)) == SQLITE_ROW) {
        gone[n++] = sqlite3_column_int64(st, 0);
    }
    sqlite3_finalize(st);
    for (int i = 0; rc == STATUS_OK && i < n; i++) {
        rc = segfile_remove(l->segments, gone[i], e);
        snprintf(text, sizeof text, "DELETE FROM segments WHERE id=%lld", (long long)gone[i]);
        rc = rc ? rc : ledger_exec(l, text, e);
    }
    return rc;
}

/* The last rollout whose answers and rewards may go when `rollout` is the oldest checkpoint:
 * samples that were in flight then need theirs. */
static int64_t ledger_needless(struct ledger *l, int64_t rollout)
{
    char *saved = ledger_event(l, rollout, JOURNAL_SAVED, 0);
    json_t *data = saved ? json_loads(saved, 0, NULL) : NULL,
           *needs = json_object_get(data, "needs");
    int64_t upto = json_is_integer(needs) ? json_integer_value(needs) - 1 : rollout;

    json_decref(data);
    mem_free(saved);
    return upto;
}

static int ledger_prune_once(struct ledger *l, const void *arg, struct err *e)
{
    int64_t rollout = *(const int64_t *)arg;
    long long entries = ledger_needless(l, rollout);
    char text[320];
    int rc;

    snprintf(text, sizeof text,
             "BEGIN IMMEDIATE; DELETE FROM answers WHERE rollout<=%lld;"
             "DELETE FROM rewards WHERE rollout<=%lld; DELETE FROM decisions WHERE rollout<=%lld;"
             "DELETE FROM events WHERE rollout<=%lld AND kind<>'saved'; COMMIT",
             entries, entries, (long long)rollout, (long long)rollout);
    rc = ledger_exec(l, text, e);
    return rc ? rc : ledger_prune_segments(l, e);
}

static int ledger_prune(struct ledger *l, int64_t rollout, struct err *e)
{
    return l->o.closed ? STATUS_OK : ledger_patiently(l, ledger_prune_once, &rollout, e);
}

/* ---- the journal ---- */

static struct ledger *ledger_enter(void *self)
{
    struct ledger *l = self;
    pthread_mutex_lock(&l->turn);
    return l;
}

static int ledger_leave(struct ledger *l, int rc)
{
    pthread_mutex_unlock(&l->turn);
    return rc;
}

static int ledger_call_record(void *self, enum journal_event ev, int64_t rollout,
                              const json_t *data, struct err *e)
{
    struct ledger *l = ledger_enter(self);
    return ledger_leave(l, ledger_record(l, ev, rollout, data, e));
}

static int ledger_call_put(void *self, enum journal_event kind, const struct journal_key *k,
                           const void *data, size_t n, struct err *e)
{
    struct ledger *l = ledger_enter(self);
    return ledger_leave(l, ledger_put(l, kind, k, data, n, e));
}

static int ledger_call_find(void *self, enum journal_event kind, const struct journal_key *k,
                            void **data, size_t *n, struct err *e)
{
    struct ledger *l = ledger_enter(self);
    return ledger_leave(l, ledger_find(l, kind, k, data, n, e));
}

static int ledger_call_commit(void *self, struct err *e)
{
    struct ledger *l = ledger_enter(self);
    return ledger_leave(l, ledger_commit(l, e));
}

static int ledger_call_prune(void *self, int64_t rollout, struct err *e)
{
    struct ledger *l = ledger_enter(self);
    return ledger_leave(l, ledger_prune(l, rollout, e));
}

/* ---- attempts ---- */

static void ledger_now(char *out, size_t size)
{
    time_t t = time(NULL);
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static int ledger_begin(struct ledger *l, struct err *e)
{
    static const char sql[] = "INSERT INTO attempts(started, host, pid, program, command, options)"
                              " VALUES(?1,?2,?3,?4,?5,?6)";
    char when[40], host[128] = "";
    char *command =
        json_dumps(l->o.command ? l->o.command : json_null(), JSON_COMPACT | JSON_ENCODE_ANY);
    char *options = json_dumps(l->o.options ? l->o.options : json_null(),
                               JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    sqlite3_stmt *st;
    int rc;

    gethostname(host, sizeof host - 1);
    ledger_now(when, sizeof when);
    if (sqlite3_prepare_v2(l->db, sql, -1, &st, NULL) != SQLITE_OK) {
        rc = ledger_fail(l, "write", e);
    } else {
        sqlite3_bind_text(st, 1, when, -1, SQLITE_STATIC);
        sqlite3_bind_text(st, 2, host, -1, SQLITE_STATIC);
        sqlite3_bind_int64(st, 3, getpid());
        sqlite3_bind_text(st, 4, MILES_VERSION, -1, SQLITE_STATIC);
        sqlite3_bind_text(st, 5, command, -1, SQLITE_STATIC);
        sqlite3_bind_text(st, 6, options, -1, SQLITE_STATIC);
        rc = ledger_step(l, st, e);
        sqlite3_finalize(st);
        l->attempt = sqlite3_last_insert_rowid(l->db);
    }
    free(command);
    free(options);
    return rc;
}

static int ledger_first_rollout(struct ledger *l, const void *arg, struct err *e)
{
    char text[128];

    snprintf(text, sizeof text, "UPDATE attempts SET first_rollout=%lld WHERE id=%lld",
             (long long)*(const int64_t *)arg, (long long)l->attempt);
    return ledger_exec(l, text, e);
}

int ledger_started(struct ledger *l, int64_t rollout, struct err *e)
{
    return l->o.closed ? STATUS_OK : ledger_patiently(l, ledger_first_rollout, &rollout, e);
}

int64_t ledger_attempt(const struct ledger *l)
{
    return l->attempt;
}

struct ledger_value {
    const char *name, *value;
};

static int ledger_set_once(struct ledger *l, const void *arg, struct err *e)
{
    const struct ledger_value *v = arg;
    sqlite3_stmt *st;
    int rc;

    if (sqlite3_prepare_v2(l->db, "INSERT OR REPLACE INTO meta VALUES(?1,?2)", -1, &st, NULL) !=
        SQLITE_OK) {
        return ledger_fail(l, "write", e);
    }
    sqlite3_bind_text(st, 1, v->name, -1, SQLITE_STATIC);
    sqlite3_bind_text(st, 2, v->value, -1, SQLITE_STATIC);
    rc = ledger_step(l, st, e);
    sqlite3_finalize(st);
    return rc;
}

int ledger_set(struct ledger *l, const char *name, const char *value, struct err *e)
{
    return ledger_patiently(l, ledger_set_once, &(struct ledger_value){name, value}, e);
}

char *ledger_get(struct ledger *l, const char *name)
{
    sqlite3_stmt *st;
    char *value = NULL;

    if (sqlite3_prepare_v2(l->db, "SELECT value FROM meta WHERE name=?1", -1, &st, NULL) ==
        SQLITE_OK) {
        sqlite3_bind_text(st, 1, name, -1, SQLITE_STATIC);
        if (sqlite3_step(st) == SQLITE_ROW) {
            value = mem_strdup((const char *)sqlite3_column_text(st, 0));
        }
    }
    sqlite3_finalize(st);
    return value;
}

int ledger_saved(struct ledger *l, int64_t *iteration, struct err *e)
{
    int rc = ledger_number(l, "SELECT max(rollout) FROM events WHERE kind='saved'", iteration, e);
    return rc == STATUS_OK && *iteration < 0 ? STATUS_NOTFOUND : rc;
}

int ledger_first(struct ledger *l, int64_t *rollout, struct err *e)
{
    int rc = ledger_number(l, "SELECT min(rollout) FROM events WHERE kind<>'saved'", rollout, e);
    return rc == STATUS_OK && *rollout < 0 ? STATUS_NOTFOUND : rc;
}

int ledger_last(struct ledger *l, json_t **command, json_t **options, struct err *e)
{
    static const char sql[] =
        "SELECT command, options FROM attempts WHERE id<>?1 ORDER BY id DESC LIMIT 1";
    sqlite3_stmt *st;
    int rc = STATUS_NOTFOUND;

    if (sqlite3_prepare_v2(l->db, sql, -1, &st, NULL) != SQLITE_OK) {
        return ledger_fail(l, "read", e);
    }
    sqlite3_bind_int64(st, 1, l->attempt);
    if (sqlite3_step(st) == SQLITE_ROW) {
        *command = json_loads((const char *)sqlite3_column_text(st, 0), JSON_DECODE_ANY, NULL);
        *options = json_loads((const char *)sqlite3_column_text(st, 1), JSON_DECODE_ANY, NULL);
        rc = STATUS_OK;
    }
    sqlite3_finalize(st);
    return rc;
}

int ledger_count(struct ledger *l, struct ledger_counts *out, struct err *e)
{
    int rc = ledger_number(l, "SELECT count(*) FROM answers", &out->answers, e);
    rc = rc ? rc : ledger_number(l, "SELECT count(*) FROM rewards", &out->rewards, e);
    rc = rc ? rc : ledger_number(l, "SELECT count(*) FROM events", &out->events, e);
    return rc ? rc : ledger_number(l, "SELECT total(bytes) FROM segments", &out->bytes, e);
}

/* ---- opening ---- */

/* Where segments go on; rows that point behind what is whole are removed. */
static int ledger_open_segments(struct ledger *l, struct err *e)
{
    char *dir = fsio_join(l->dir, "segments"), text[128];
    int64_t segment, length, had;
    int rc;

    segfile_close(l->segments); /* of a try before */
    l->segments = NULL;
    rc = segfile_open(dir, &l->segments, e);
    mem_free(dir);
    rc = rc ? rc : ledger_number(l, "SELECT max(id) FROM segments", &segment, e);
    rc = rc ? rc
            : ledger_number(l, "SELECT bytes FROM segments ORDER BY id DESC LIMIT 1", &length, e);
    if (rc != STATUS_OK || l->o.closed) {
        return rc;
    }
    segment = segment < 0 ? 0 : segment;
    had = length = length < 0 ? 0 : length;
    rc = segfile_resume(l->segments, segment, &length, e);
    if (rc == STATUS_OK && length < had) {
        snprintf(text, sizeof text, "DELETE FROM answers WHERE segment=%lld AND offset>=%lld",
                 (long long)segment, (long long)length);
        rc = ledger_exec(l, text, e);
    }
    return rc;
}

static int ledger_check_format(struct ledger *l, struct err *e)
{
    char *was = ledger_get(l, "format"), now[16];
    int rc = STATUS_OK;

    snprintf(now, sizeof now, "%d", LEDGER_FORMAT);
    if (was && strcmp(was, now) != 0) {
        rc = ERR(e, STATUS_INPUT,
                 "%s has format %s, this program writes format %s: go on with the program that "
                 "began the run, or begin anew in another folder",
                 l->path, was, now);
    } else if (!was && !l->o.closed) {
        rc = ledger_set_once(l, &(struct ledger_value){"format", now}, e);
    }
    mem_free(was);
    return rc;
}

static int ledger_prepare(struct ledger *l, const void *arg, struct err *e)
{
    int rc = ledger_check_format(l, e);

    (void)arg;
    rc = rc ? rc : ledger_open_segments(l, e);
    return rc == STATUS_OK && !l->o.closed ? ledger_begin(l, e) : rc;
}

int ledger_open(const struct ledger_opts *o, struct ledger **out, struct err *e)
{
    struct ledger *l;
    int rc = o->closed ? STATUS_OK : patience_mkdirs(o->dir, e);

    if (rc == STATUS_OK && o->closed && !ledger_exists(o->dir)) {
        rc = ERR(e, STATUS_NOTFOUND, "%s has no ledger.db: a run without --save records nothing",
                 o->dir);
    }
    if (rc != STATUS_OK) {
        return rc;
    }
    l = mem_alloc(sizeof *l);
    l->o = *o;
    l->dir = mem_strdup(o->dir);
    l->path = fsio_join(o->dir, "ledger.db");
    l->wal = o->mode == LEDGER_WAL || (o->mode == LEDGER_AUTO && !fsio_is_remote(o->dir));
    map_init(&l->seqs);
    pthread_mutex_init(&l->turn, NULL);
    l->journal = (struct journal){.record = ledger_call_record,
                                  .put = ledger_call_put,
                                  .find = ledger_call_find,
                                  .commit = ledger_call_commit,
                                  .prune = ledger_call_prune,
                                  .self = l,
                                  .closed = o->closed};
    rc = runlock_take(o->dir, &l->lock, e);
    rc = rc ? rc : ledger_patiently(l, ledger_prepare, NULL, e);
    if (rc != STATUS_OK) {
        ledger_close(l, NULL);
        return rc;
    }
    *out = l;
    return STATUS_OK;
}

void ledger_close(struct ledger *l, const char *outcome)
{
    struct err e = {0};
    sqlite3_stmt *st = NULL;
    char when[40];

    if (!l) {
        return;
    }
    if (l->attempt && !l->o.closed) {
        if (ledger_commit(l, &e) != STATUS_OK) {
            log_error(LEDGER, "%s", e.msg);
        }
        log_info(LEDGER, "%lld commits took %.2f s", (long long)l->commits, l->commit_s);
        ledger_now(when, sizeof when);
        if (l->db &&
            sqlite3_prepare_v2(l->db, "UPDATE attempts SET ended=?1, outcome=?2 WHERE id=?3", -1,
                               &st, NULL) == SQLITE_OK) {
            sqlite3_bind_text(st, 1, when, -1, SQLITE_STATIC);
            sqlite3_bind_text(st, 2, outcome, -1, SQLITE_STATIC);
            sqlite3_bind_int64(st, 3, l->attempt);
            sqlite3_step(st);
        }
        sqlite3_finalize(st);
    }
    ledger_db_close(l);
    segfile_close(l->segments);
    runlock_drop(l->lock);
    ledger_drop_rows(l);
    map_fini(&l->seqs);
    pthread_mutex_destroy(&l->turn);
    mem_free(l->rows);
    mem_free(l->dir);
    mem_free(l->path);
    mem_free(l);
}

struct journal *ledger_journal(struct ledger *l)
{
    return &l->journal;
}
