/* Owns the pool: which job runs in which sandbox, until when, and what its end means.
 *
 * Sandboxes are used for one job and thrown away. The time that takes is hidden by starting the
 * next ones while jobs run: the interpreter inside is up and waits before its job is known. A
 * sandbox that served several jobs would be faster to hand out, but whatever the first job did to
 * the interpreter, its files or its processes would have to be undone by code that runs in the
 * place it did it to. Cases of one job share the job's sandbox, each in a process of its own, with
 * all others killed in between: a program can only deceive itself there, for what is expected is
 * not inside.
 *
 * All waiting is one poll over all sandboxes with the nearest deadline as limit. */
#include "reward/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "reward/sandbox_int.h"

enum { MAX_WORKERS = 64, MAX_CASES = 100000, MAX_START_FAILURES = 3, JUDGE_OUTPUT = 65536 };
static const double START_S = 30, LOOK_S = 0.05, ENDING_S = 10, HEAR_S = 0.2;
static const size_t SOURCE_MAX = (size_t)256 << 20, QUEUE_BYTES = (size_t)1 << 30;

struct test {
    char *input, *expected, *args;
    size_t ninput, nexpected, nargs_bytes;
    int nargs;
};

struct job {
    struct job *next;
    struct sandbox_job j; /* pointers of ours */
    char *source, *entry;
    struct test *tests;
    size_t bytes;
};

struct done {
    struct done *next;
    struct sandbox_result r;
};

struct cell {
    struct sandbox_box box;
    int taken;     /* by a slot */
    double ending; /* killed and not reaped yet: deadline; else 0 */
};

/* A job that runs. */
struct slot {
    struct job *job;
    struct cell *cell, *judge; /* NULL: waits for one */
    struct sandbox_result r;
    int at, serial, retried;
    int source_fd;
    double began;
    double judged; /* when the judge was heard while the program's end was not; else 0 */
};

struct sandbox {
    struct sandbox_cage cage;
    int nslots, ncells, spares, queue_max;
    struct slot *slots;
    struct cell *cells;
    struct job *head, *tail;
    struct done *first, *last;
    size_t queued_bytes;
    int pending, start_failures, native_seen, wake_fd;
    char start_error[400];
};

const char *sandbox_verdict_name(enum sandbox_verdict v)
{
    static const char *const names[] = {"passed",       "wrong output",        "time-out",
                                        "memory limit", "output limit",        "run-time error",
                                        "crashed",      "refused system call", "not run"};
    return (unsigned)v < sizeof names / sizeof *names ? names[v] : "?";
}

/* ---- jobs ---- */

static void job_free(struct job *j)
{
    if (!j) {
        return;
    }
    for (int i = 0; j->tests && i < j->j.ncases; i++) {
        mem_free(j->tests[i].input);
        mem_free(j->tests[i].expected);
        mem_free(j->tests[i].args);
    }
    mem_free(j->tests);
    mem_free(j->source);
    mem_free(j->entry);
    mem_free(j);
}

static char *copy(const char *p, size_t n)
{
    char *c = mem_try(n + 1);

    if (c && n) {
        memcpy(c, p, n);
    }
    return c;
}

static int copy_test(struct test *t, const struct sandbox_case *c, size_t *bytes, struct err *e)
{
    struct buf b;

    t->ninput = c->input ? c->input_len : 0;
    t->nexpected = c->expected ? c->expected_len : 0;
    t->input = copy(c->input, t->ninput);
    t->expected = copy(c->expected, t->nexpected);
    if (!t->input || !t->expected) {
        return ERR(e, STATUS_NOMEM, "no memory for the cases of a job");
    }
    buf_init(&b, SANDBOX_WIRE_BLOB);
    for (int i = 0; c->args && c->args[i]; i++, t->nargs++) {
        buf_add(&b, c->args[i], strlen(c->args[i]) + 1);
    }
    if (buf_status(&b) != 0 || t->nargs > 1000) {
        buf_fini(&b);
        return ERR(e, STATUS_INPUT, "the arguments of a case are longer than %d bytes",
                   (int)SANDBOX_WIRE_BLOB);
    }
    t->args = buf_take(&b, &t->nargs_bytes);
    *bytes += t->ninput + t->nexpected + t->nargs_bytes + sizeof *t;
    return 0;
}

static int check_job(const struct sandbox_job *j, struct err *e)
{
    if (j->ncases < 1 || j->ncases > MAX_CASES || !j->cases) {
        return ERR(e, STATUS_INPUT, "a job has %d cases; it may have 1 to %d", j->ncases,
                   (int)MAX_CASES);
    }
    if (j->language == SANDBOX_NATIVE ? j->style != SANDBOX_STDIO : j->path != NULL) {
        return ERR(e, STATUS_INPUT, "function tests are for Python, a path is for native programs");
    }
    if (j->style == SANDBOX_CALL && !(j->entry && *j->entry && strlen(j->entry) < 256)) {
        return ERR(e, STATUS_INPUT, "a function test names no function");
    }
    if (j->style == SANDBOX_ASSERT && j->ncases != 1) {
        return ERR(e, STATUS_INPUT, "test code is one case, not %d", j->ncases);
    }
    if (!j->path && (!j->source || j->source_len > SOURCE_MAX)) {
        return ERR(e, STATUS_INPUT, "a job has no program, or one of more than %zu bytes",
                   SOURCE_MAX);
    }
    if (j->limits.memory < 0 || j->limits.cpu_s < 0 || j->limits.wall_s < 0 ||
        j->limits.output < 0 || j->limits.processes < 0 || j->limits.files < 0 ||
        (j->limits.files > 0 && j->limits.files < 16)) {
        return ERR(e, STATUS_INPUT, "a limit of a job is negative, or files are fewer than 16");
    }
    return 0;
}

static void fill_limits(struct sandbox_limits *l, const struct sandbox_limits *from)
{
    l->wall_s = l->wall_s > 0 ? l->wall_s : from->wall_s;
    l->cpu_s = l->cpu_s > 0 ? l->cpu_s : from->cpu_s;
    l->memory = l->memory > 0 ? l->memory : from->memory;
    l->output = l->output > 0 ? l->output : from->output;
    l->processes = l->processes > 0 ? l->processes : from->processes;
    l->files = l->files > 0 ? l->files : from->files;
    l->scratch = l->scratch > 0 ? l->scratch : from->scratch;
}

static int job_new(const struct sandbox *s, const struct sandbox_job *from, struct job **out,
                   struct err *e)
{
    struct job *j;
    int rc = check_job(from, e);

    if (rc != 0) {
        return rc;
    }
    j = mem_alloc(sizeof *j);
    j->j = *from;
    fill_limits(&j->j.limits, &s->cage.limits);
    j->j.limits.scratch = s->cage.limits.scratch;
    j->entry = mem_strdup(from->entry ? from->entry : "");
    j->tests = mem_alloc((size_t)from->ncases * sizeof *j->tests);
    if (from->path) {
        rc = fsio_read(from->path, SOURCE_MAX, &j->source, &j->j.source_len, e);
    } else if (!(j->source = copy(from->source, from->source_len))) {
        rc = ERR(e, STATUS_NOMEM, "no memory for a job");
    }
    j->bytes = sizeof *j + j->j.source_len;
    for (int i = 0; rc == 0 && i < from->ncases; i++) {
        rc = copy_test(&j->tests[i], &from->cases[i], &j->bytes, e);
    }
    if (rc != 0) {
        job_free(j);
        return rc;
    }
    j->j.cases = NULL;
    j->j.source = j->j.path = j->j.entry = NULL;
    *out = j;
    return 0;
}

int sandbox_submit(struct sandbox *s, const struct sandbox_job *from, struct err *e)
{
    struct job *j = NULL;
    int rc;

    if (s->pending >= s->queue_max || (s->head && s->queued_bytes > QUEUE_BYTES)) {
        return STATUS_AGAIN;
    }
    rc = job_new(s, from, &j, e);
    if (rc != 0) {
        return rc;
    }
    if (s->tail) {
        s->tail->next = j;
    } else {
        s->head = j;
    }
    s->tail = j;
    s->queued_bytes += j->bytes;
    s->pending++;
    s->native_seen |= j->j.language == SANDBOX_NATIVE;
    s->start_failures = s->start_failures < MAX_START_FAILURES ? s->start_failures : 0;
    return 0;
}

/* ---- cells ---- */

static enum sandbox_box_kind kind_of(const struct job *j)
{
    return j->j.language == SANDBOX_NATIVE ? SANDBOX_BOX_NATIVE : SANDBOX_BOX_PYTHON;
}

/* Kills what is inside; the cell is free again once the kernel has let go of it. */
static void cell_end(struct cell *c)
{
    if (!c) {
        return;
    }
    c->taken = 0;
    if (c->box.state == SANDBOX_BOX_NONE) {
        return;
    }
    if (c->box.init_pidfd < 0 || c->box.proc.pidfd < 0) {
        sandbox_box_end(&c->box);
        return;
    }
    syscall(SYS_pidfd_send_signal, c->box.init_pidfd, SIGKILL, NULL, 0U);
    c->ending = proc_now() + ENDING_S;
}

/* A warm sandbox of a kind, taken; NULL when there is none. */
static struct cell *cell_take(struct sandbox *s, enum sandbox_box_kind kind)
{
    for (int i = 0; i < s->ncells; i++) {
        struct cell *c = &s->cells[i];
        if (c->box.state == SANDBOX_BOX_WARM && c->box.kind == kind && !c->taken && !c->ending) {
            c->taken = 1;
            c->box.state = SANDBOX_BOX_TAKEN;
            return c;
        }
    }
    return NULL;
}

static void start_failed(struct sandbox *s, const char *why)
{
    s->start_failures++;
    snprintf(s->start_error, sizeof s->start_error, "%.399s", why);
    log_warn(REWARD, "%s", why);
}

/* Starts sandboxes of a kind until `want` are warm or on their way. */
static void cells_fill(struct sandbox *s, enum sandbox_box_kind kind, int want)
{
    struct cell *room[2 * MAX_WORKERS + MAX_WORKERS];
    int have = 0, free_cells = 0;
    struct err e = {0};

    for (int i = 0; i < s->ncells; i++) {
        struct cell *c = &s->cells[i];
        if (c->box.state == SANDBOX_BOX_NONE) {
            room[free_cells++] = c;
        }
        have += c->box.kind == kind && !c->ending &&
                (c->box.state == SANDBOX_BOX_STARTING ||
                 (c->box.state == SANDBOX_BOX_WARM && !c->taken));
    }
    while (have < want && free_cells > 0 && s->start_failures < MAX_START_FAILURES) {
        struct cell *c = room[--free_cells];
        memset(c, 0, sizeof *c);
        if (sandbox_box_start(&c->box, &s->cage, kind, &e) != 0) {
            c->box.state = SANDBOX_BOX_NONE;
            start_failed(s, e.msg);
            return;
        }
        have++;
    }
}

/* ---- results ---- */

void sandbox_result_fini(struct sandbox_result *r)
{
    for (int i = 0; r->cases && i < r->ncases; i++) {
        mem_free(r->cases[i].output);
    }
    mem_free(r->cases);
    r->cases = NULL;
    r->ncases = 0;
}

static void push(struct sandbox *s, const struct sandbox_result *r)
{
    struct done *d = mem_alloc(sizeof *d);

    d->r = *r;
    if (s->last) {
        s->last->next = d;
    } else {
        s->first = d;
    }
    s->last = d;
}

/* The job is over: its sandboxes go, its result waits to be polled. */
static void slot_finish(struct sandbox *s, struct slot *t, const char *failed)
{
    struct sandbox_result *r = &t->r;

    cell_end(t->cell);
    cell_end(t->judge);
    r->seconds = proc_now() - t->began;
    if (failed) {
        r->failed = 1;
        r->passed = 0;
        snprintf(r->reason, sizeof r->reason, "%.255s", failed);
    } else if (r->first_bad < 0) {
        snprintf(r->reason, sizeof r->reason, "passed %d of %d", r->passed, r->total);
    }
    push(s, r);
    if (t->source_fd >= 0) {
        close(t->source_fd);
    }
    job_free(t->job);
    memset(t, 0, sizeof *t);
    t->source_fd = -1;
}

/* ---- what an end means ---- */

/* The last line of stderr that says something. */
static void last_words(const struct sandbox_box *b, char *out, size_t n)
{
    char flat[sizeof b->err];
    size_t len = b->err_total < sizeof b->err ? b->err_total : sizeof b->err;
    size_t start, end = len;

    for (size_t i = 0; i < len; i++) {
        flat[i] = b->err[(b->err_total - len + i) % sizeof b->err];
    }
    while (end > 0 && (flat[end - 1] == '\n' || flat[end - 1] == ' ')) {
        end--;
    }
    for (start = end; start > 0 && flat[start - 1] != '\n'; start--) {
    }
    sandbox_compare_quote(out, n, flat + start, end - start);
}

/* Verdict of a program that ended by itself, by its wait status. */
static enum sandbox_verdict judge_status(const struct sandbox_box *b, const struct job *j,
                                         char *why, size_t n)
{
    const struct sandbox_wire_reply *r = &b->reply;
    int status = (int)r->status;
    char said[128];

    last_words(b, said, sizeof said);
    if (r->status == -1) {
        snprintf(why, n, "cannot be run: %s", strerror((int)(r->error & 0xfff)));
        return SANDBOX_EXITED;
    }
    if (WIFSIGNALED(status)) {
        int sig = WTERMSIG(status);
        int spent = (double)r->cpu_us >= 1e6 * ceil(j->j.limits.cpu_s);
        if (sig == SIGXCPU || (sig == SIGKILL && spent)) {
            snprintf(why, n, "more than %g cpu seconds", ceil(j->j.limits.cpu_s));
            return SANDBOX_TIMEOUT;
        }
        if (sig == SIGSYS) {
            snprintf(why, n, "a system call that is not permitted");
            return SANDBOX_REFUSED;
        }
        if (sig == SIGABRT && strstr(said, "bad_alloc")) {
            snprintf(why, n, "%s", said);
            return SANDBOX_MEMORY;
        }
        snprintf(why, n, "killed by signal %d (%s)%s%s", sig, strsignal(sig), *said ? ": " : "",
                 said);
        return SANDBOX_CRASHED;
    }
    if (WEXITSTATUS(status) != 0) {
        snprintf(why, n, "exit status %d%s%s", WEXITSTATUS(status), *said ? ": " : "", said);
        return strncmp(said, "MemoryError", 11) == 0 || strstr(said, "bad_alloc") ? SANDBOX_MEMORY
                                                                                  : SANDBOX_EXITED;
    }
    return SANDBOX_PASSED;
}

/* Writes the verdict of the current case down. */
static void note(struct slot *t, enum sandbox_verdict v, const char *why)
{
    struct sandbox_outcome *o = &t->r.cases[t->at];
    const struct sandbox_box *b = t->cell ? &t->cell->box : NULL;

    o->verdict = v;
    o->status = -1;
    if (b) {
        o->seconds = proc_now() - b->began;
        if (b->told) {
            o->status = (int)b->reply.status;
            o->cpu_seconds = 1e-6 * (double)(b->reply.cpu_us > 0 ? b->reply.cpu_us : 0);
            o->peak = b->reply.peak_kb > 0 && b->reply.peak_kb < INT64_MAX / 1024
                          ? b->reply.peak_kb * 1024
                          : 0;
        }
        if (t->job->j.keep_output) {
            size_t most = (size_t)t->job->j.limits.output;
            o->output_len = b->out.len < most ? b->out.len : most;
            o->output = copy(b->out.data, o->output_len);
        }
    }
    if (v == SANDBOX_PASSED) {
        t->r.passed++;
    } else if (t->r.first_bad < 0) {
        t->r.first_bad = t->at;
        t->r.verdict = v;
        snprintf(t->r.reason, sizeof t->r.reason, "case %d of %d: %s: %.180s", t->at + 1,
                 t->job->j.ncases, sandbox_verdict_name(v), why);
    }
}

/* 1 when the program ended by a signal that nobody can withstand, from itself or from a machine
 * short of memory: then it gets a second chance. */
static int program_killed(const struct sandbox_box *b)
{
    int status = (int)b->reply.status;
    return b->told && b->reply.status >= 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/* The case is run once more, in a sandbox that is not there yet: whoever took the last one (a
 * killer for want of memory, an operator) may have taken the spares with it. */
static void slot_again(struct sandbox *s, struct slot *t)
{
    t->retried = 1;
    t->judged = 0;
    cell_end(t->cell);
    cell_end(t->judge);
    t->cell = t->judge = NULL;
    for (int i = 0; i < s->ncells; i++) {
        struct cell *c = &s->cells[i];
        if (!c->taken && !c->ending && c->box.kind == kind_of(t->job)) {
            cell_end(c);
        }
    }
}
/* The judge has spoken. */
static void note_tests(struct sandbox *s, struct slot *t)
{
    const struct sandbox_box *b = &t->judge->box;
    json_t *o = json_loadb(b->out.data, b->out.len, JSON_DISABLE_EOF_CHECK, NULL);
    const char *failed = json_string_value(json_object_get(o, "failed"));
    const char *text = json_string_value(json_object_get(o, "why"));
    json_int_t passed = json_integer_value(json_object_get(o, "passed"));
    json_int_t total = json_integer_value(json_object_get(o, "total"));
    char why[256] = "", said[128] = "";

    if (failed) {
        sandbox_compare_quote(why, sizeof why, failed, strlen(failed));
        json_decref(o);
        slot_finish(s, t, why);
        return;
    }
    if (text) {
        sandbox_compare_quote(why, sizeof why, text, strlen(text));
    }
    if (total == 0 && program_killed(&t->cell->box) && !t->retried) {
        json_decref(o);
        slot_again(s, t);
        return;
    }
    last_words(&t->cell->box, said, sizeof said);
    if (o && total > 0 && total <= MAX_CASES && passed >= 0 && passed <= total) {
        note(t, passed == total ? SANDBOX_PASSED : SANDBOX_WRONG, why);
        t->r.passed = (int)passed;
        t->r.total = (int)total;
        if (passed < total) {
            snprintf(t->r.reason, sizeof t->r.reason, "%d of %d tests held; %.200s", (int)passed,
                     (int)total, why);
        }
    } else {
        if (*said) {
            snprintf(why + strlen(why), sizeof why - strlen(why), "%s%s", *why ? "; " : "", said);
        }
        note(t, SANDBOX_EXITED, *why ? why : "the tests came to no end");
    }
    json_decref(o);
    slot_finish(s, t, NULL);
}

/* ---- running ---- */

static void slot_next(struct sandbox *s, struct slot *t)
{
    int bad = t->r.cases[t->at].verdict != SANDBOX_PASSED;

    t->at++;
    t->retried = 0;
    t->judged = 0;
    if (t->at == t->job->j.ncases || (bad && !t->job->j.go_on)) {
        slot_finish(s, t, NULL);
    }
}

/* The current case ends here with a verdict and its sandbox with it. */
static void slot_cut(struct sandbox *s, struct slot *t, enum sandbox_verdict v, const char *why)
{
    note(t, v, why);
    cell_end(t->cell);
    cell_end(t->judge);
    t->cell = t->judge = NULL;
    slot_next(s, t);
}

/* A sandbox is gone that should be there. Whether the program did it or the machine shows when it
 * is tried again: what happens twice is the program's. */
static void slot_lost(struct sandbox *s, struct slot *t)
{
    if (!t->retried) {
        slot_again(s, t);
    } else {
        slot_cut(s, t, SANDBOX_CRASHED, "it took its sandbox down");
    }
}

static int start_case(struct slot *t, struct cell *c, int harness, int in, int source,
                      const char *words, size_t nwords, int nargs, int64_t output, struct err *e)
{
    const struct sandbox_limits *l = &t->job->j.limits;
    struct sandbox_wire_case w = {.cpu_s = (int64_t)ceil(l->cpu_s),
                                  .memory = l->memory,
                                  .processes = l->processes,
                                  .file_size = l->scratch,
                                  .files = l->files,
                                  .serial = t->serial,
                                  .nargs = nargs};
    int fds[SANDBOX_WIRE_FDS] = {in, -1, -1, source, harness};

    return sandbox_box_run(&c->box, &w, words, nwords, fds, l->wall_s, output, e);
}

/* Hands the current case to the slot's sandbox (and the tests to the judge's). */
static void slot_start(struct sandbox *s, struct slot *t)
{
    const struct job *j = t->job;
    const struct test *c = &j->tests[t->at];
    const int *code = s->cage.code_fds;
    size_t nentry = *j->entry ? strlen(j->entry) + 1 : 0;
    int pair[2] = {-1, -1}, in = -1, tests = -1, rc = 0;
    struct err e = {0};

    if (j->j.style == SANDBOX_ASSERT) {
        tests = sandbox_memfd(c->input, c->ninput);
        if (tests < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
            rc = ERR(&e, STATUS_IO, "cannot make a pair of sockets: %s", strerror(errno));
        }
        rc = rc ? rc
                : start_case(t, t->cell, code[SANDBOX_CODE_SERVE], pair[0], t->source_fd, "", 0, 0,
                             JUDGE_OUTPUT, &e);
        rc = rc ? rc
                : start_case(t, t->judge, code[SANDBOX_CODE_JUDGE], pair[1], tests, j->entry,
                             nentry, nentry != 0, JUDGE_OUTPUT, &e);
    } else if ((in = sandbox_memfd(c->input, c->ninput)) < 0) {
        rc = ERR(&e, STATUS_IO, "cannot make a memory file: %s", strerror(errno));
    } else if (j->j.style == SANDBOX_CALL) {
        rc = start_case(t, t->cell, code[SANDBOX_CODE_CALL], in, t->source_fd, j->entry, nentry, 1,
                        j->j.limits.output, &e);
    } else {
        rc = start_case(t, t->cell, -1, in, t->source_fd, c->args, c->nargs_bytes, c->nargs,
                        j->j.limits.output, &e);
    }
    t->serial++;
    for (int i = 0; i < 2; i++) {
        if (pair[i] >= 0) {
            close(pair[i]);
        }
    }
    if (in >= 0) {
        close(in);
    }
    if (tests >= 0) {
        close(tests);
    }
    if (rc == STATUS_CHILD) {
        slot_lost(s, t);
    } else if (rc != 0) {
        slot_finish(s, t, e.msg);
    }
}

/* The program of a case has ended by itself. */
static void slot_ended(struct sandbox *s, struct slot *t)
{
    const struct test *c = &t->job->tests[t->at];
    struct sandbox_box *b = &t->cell->box;
    enum sandbox_compare rule = t->job->j.compare;
    char why[256] = "";
    enum sandbox_verdict v;
    int right;

    b->state = SANDBOX_BOX_TAKEN;
    if (b->over_output || b->out.len > (size_t)t->job->j.limits.output) {
        snprintf(why, sizeof why, "more than %lld bytes", (long long)t->job->j.limits.output);
        slot_cut(s, t, SANDBOX_OUTPUT, why);
        return;
    }
    if (b->reply.status == -1 && (b->reply.error == EAGAIN || b->reply.error == ENOMEM)) {
        if (t->retried) {
            slot_finish(s, t, "the system has no room for another process");
        } else {
            slot_lost(s, t);
        }
        return;
    }
    if (b->reply.status == -1 && (b->reply.error == EACCES || b->reply.error == EPERM)) {
        slot_finish(s, t, "this system lets no program in memory be run (vm.memfd_noexec)");
        return;
    }
    v = judge_status(b, t->job, why, sizeof why);
    if (v == SANDBOX_CRASHED && program_killed(b) && !t->retried) {
        slot_again(s, t);
        return;
    }
    if (v == SANDBOX_PASSED) {
        right = t->job->j.style == SANDBOX_CALL
                    ? sandbox_compare_value(rule, b->out.data, b->out.len, c->expected,
                                            c->nexpected, why, sizeof why)
                    : sandbox_compare_text(rule, b->out.data, b->out.len, c->expected, c->nexpected,
                                           why, sizeof why);
        v = right ? SANDBOX_PASSED : SANDBOX_WRONG;
    }
    note(t, v, why);
    slot_next(s, t);
}

/* Looks after a slot whose case runs. */
static void slot_look(struct sandbox *s, struct slot *t, double now)
{
    struct sandbox_box *b = &t->cell->box, *j = t->judge ? &t->judge->box : NULL;
    char why[96];
    int rc = sandbox_box_read(b, NULL);
    int judged = j ? sandbox_box_read(j, NULL) : STATUS_AGAIN;
    const char *excess = NULL;

    if (j && judged < 0) {
        if (t->retried) {
            slot_finish(s, t, "the sandbox of the tests ended");
        } else {
            slot_lost(s, t);
        }
        return;
    }
    if (j && judged == 0) {
        /* Where the program's end cut the tests short, it matters how it ended. */
        if (rc == STATUS_AGAIN && !t->judged) {
            t->judged = now;
        }
        if (rc != STATUS_AGAIN || now >= t->judged + HEAR_S ||
            !memmem(j->out.data, j->out.len, "\"total\": 0", 10)) {
            note_tests(s, t);
        } else {
            b->next_look = now + HEAR_S;
        }
        return;
    }
    if (!j && rc == 0) {
        slot_ended(s, t);
        return;
    }
    if (rc < 0) {
        slot_lost(s, t);
        return;
    }
    if (now >= b->deadline) {
        snprintf(why, sizeof why, "not done after %g s", t->job->j.limits.wall_s);
        slot_cut(s, t, SANDBOX_TIMEOUT, why);
        return;
    }
    if (now >= b->next_look) {
        b->next_look = now + LOOK_S;
        excess = sandbox_box_excess(b, &t->job->j.limits);
        if (!excess && j) {
            excess = sandbox_box_excess(j, &t->job->j.limits);
        }
        if (excess) {
            snprintf(why, sizeof why, "more %s than permitted", excess);
            slot_cut(s, t, SANDBOX_MEMORY, why);
        }
    }
}

/* Gives slots their job and their sandboxes. */
static void dispatch(struct sandbox *s)
{
    int want[2] = {s->spares, s->native_seen ? s->spares : 0};
    int ahead[2] = {0, 0};
    struct job *j;

    for (int i = 0; i < s->nslots; i++) {
        struct slot *t = &s->slots[i];
        if (!t->job && s->head) {
            j = s->head;
            s->head = j->next;
            s->tail = s->head ? s->tail : NULL;
            s->queued_bytes -= j->bytes;
            t->job = j;
            t->began = proc_now();
            t->r = (struct sandbox_result){.id = j->j.id, .total = j->j.ncases, .first_bad = -1};
            t->r.ncases = j->j.ncases;
            t->r.cases = mem_alloc((size_t)j->j.ncases * sizeof *t->r.cases);
            for (int k = 0; k < j->j.ncases; k++) {
                t->r.cases[k].verdict = SANDBOX_SKIPPED;
            }
            t->source_fd = sandbox_memfd(j->source, j->j.source_len);
            if (t->source_fd < 0) {
                slot_finish(s, t, "cannot make a memory file for the program");
                continue;
            }
        }
        if (t->job && !t->cell) {
            t->cell = cell_take(s, kind_of(t->job));
            ahead[kind_of(t->job)] += !t->cell;
        }
        if (t->job && t->job->j.style == SANDBOX_ASSERT && t->cell && !t->judge) {
            t->judge = cell_take(s, SANDBOX_BOX_PYTHON);
            ahead[SANDBOX_BOX_PYTHON] += !t->judge;
        }
    }
    for (int k = 0; k < 2; k++) {
        cells_fill(s, (enum sandbox_box_kind)k, want[k] > ahead[k] ? want[k] : ahead[k]);
    }
    if (s->start_failures >= MAX_START_FAILURES) {
        /* None can be had now: who waits for one hears so; who comes later tries again. */
        for (int i = 0; i < s->nslots; i++) {
            struct slot *t = &s->slots[i];
            if (t->job && (!t->cell || (t->job->j.style == SANDBOX_ASSERT && !t->judge))) {
                slot_finish(s, t, s->start_error);
                s->start_failures = 0;
            }
        }
    }
}

/* Cells that start or end. */
static void cells_look(struct sandbox *s, double now)
{
    struct err e = {0};

    for (int i = 0; i < s->ncells; i++) {
        struct cell *c = &s->cells[i];
        if (c->ending) {
            if (proc_ended(&c->box.proc, NULL) || now >= c->ending) {
                sandbox_box_end(&c->box);
                c->ending = 0;
            }
        } else if (c->box.state == SANDBOX_BOX_STARTING) {
            int rc = sandbox_box_hello(&c->box, &e);
            if (rc == STATUS_AGAIN && now >= c->box.started + START_S) {
                rc = ERR(&e, STATUS_TIMEOUT, "a sandbox was not up after %g s", START_S);
            }
            if (rc < 0) {
                sandbox_box_end(&c->box);
                start_failed(s, e.msg);
            } else if (rc == 0) {
                s->start_failures = 0;
            }
        } else if (c->box.state == SANDBOX_BOX_WARM && !c->taken &&
                   proc_ended(&c->box.proc, NULL)) {
            sandbox_box_end(&c->box); /* somebody killed a spare */
        }
    }
}

/* ---- the loop ---- */

static int add_poll(struct pollfd *fds, int n, int fd)
{
    if (fd >= 0) {
        fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    return n;
}

/* Waits until something happens in a sandbox, at most until `limit`. */
static void wait_for(struct sandbox *s, double limit)
{
    struct pollfd fds[4 * 3 * MAX_WORKERS + 1];
    int n = add_poll(fds, 0, s->wake_fd > 0 ? s->wake_fd : -1);
    double now = proc_now();

    for (int i = 0; i < s->ncells; i++) {
        const struct cell *c = &s->cells[i];
        const struct sandbox_box *b = &c->box;
        if (c->ending || b->state == SANDBOX_BOX_WARM) {
            n = add_poll(fds, n, b->proc.pidfd);
            limit = c->ending && c->ending < limit ? c->ending : limit;
        } else if (b->state == SANDBOX_BOX_STARTING) {
            n = add_poll(fds, n, b->control);
            limit = b->started + START_S < limit ? b->started + START_S : limit;
        } else if (b->state == SANDBOX_BOX_BUSY) {
            n = add_poll(fds, n, b->told ? -1 : b->control);
            n = add_poll(fds, n, b->out_fd);
            n = add_poll(fds, n, b->err_fd);
            limit = b->deadline < limit ? b->deadline : limit;
            limit = b->next_look < limit ? b->next_look : limit;
        }
    }
    if (limit > now) {
        struct timespec ts;
        double left = limit - now;
        ts.tv_sec = (time_t)left;
        ts.tv_nsec = (long)((left - (double)ts.tv_sec) * 1e9);
        ppoll(fds, (nfds_t)n, &ts, NULL);
    }
}

static void turn(struct sandbox *s, double limit)
{
    double now = proc_now();

    cells_look(s, now);
    for (int i = 0; i < s->nslots; i++) {
        struct slot *t = &s->slots[i];
        if (t->job && t->cell && t->cell->box.state == SANDBOX_BOX_BUSY) {
            slot_look(s, t, now);
        }
    }
    dispatch(s);
    for (int i = 0; i < s->nslots; i++) {
        struct slot *t = &s->slots[i];
        int ready = t->job && t->cell && t->cell->box.state == SANDBOX_BOX_TAKEN &&
                    (t->job->j.style != SANDBOX_ASSERT || t->judge);
        if (ready) {
            slot_start(s, t);
        }
    }
    if (!s->first) {
        wait_for(s, limit);
    }
}

int sandbox_poll(struct sandbox *s, double wait_s, struct sandbox_result *out, struct err *e)
{
    double limit = proc_now() + (wait_s > 0 ? wait_s : 0);
    struct pollfd wake = {.fd = s->wake_fd > 0 ? s->wake_fd : -1, .events = POLLIN};
    struct done *d;

    (void)e;
    if (s->pending == 0 && s->wake_fd <= 0) {
        turn(s, 0);
        return STATUS_AGAIN;
    }
    for (;;) {
        turn(s, limit);
        if (s->first || proc_now() >= limit || poll(&wake, 1, 0) > 0) {
            break;
        }
    }
    d = s->first;
    if (!d) {
        return STATUS_AGAIN;
    }
    s->first = d->next;
    s->last = s->first ? s->last : NULL;
    s->pending--;
    *out = d->r;
    mem_free(d);
    return 0;
}

int sandbox_pending(const struct sandbox *s)
{
    return s->pending;
}

/* ---- open and close ---- */

static const struct sandbox_limits defaults = {.wall_s = 12,
                                               .cpu_s = 6,
                                               .memory = (int64_t)1 << 30,
                                               .scratch = (int64_t)64 << 20,
                                               .output = 1 << 20,
                                               .processes = 32,
                                               .files = 64};

static int cage_open(struct sandbox_cage *c, const struct sandbox_opts *o, struct err *e)
{
    struct sandbox_opts full = *o;

    fill_limits(&full.limits, &defaults);
    if (full.limits.files < 16 || full.limits.memory < (16 << 20)) {
        return ERR(e, STATUS_INPUT, "a sandbox needs at least 16 files and 16 MB of memory");
    }
    return sandbox_cage_init(c, &full, e);
}

/* Starts one sandbox and waits for it: what is missing here is found now, not at the first job. */
static int try_one(struct sandbox *s, enum sandbox_box_kind kind, struct err *e)
{
    struct cell *c = &s->cells[0];
    double limit = proc_now() + START_S;
    int rc = sandbox_box_start(&c->box, &s->cage, kind, e);

    if (rc != 0) {
        c->box.state = SANDBOX_BOX_NONE;
        return rc;
    }
    while ((rc = sandbox_box_hello(&c->box, e)) == STATUS_AGAIN) {
        struct pollfd f = {.fd = c->box.control, .events = POLLIN};
        if (proc_now() >= limit) {
            rc = ERR(e, STATUS_TIMEOUT, "a sandbox was not up after %g s", START_S);
            break;
        }
        poll(&f, 1, 100);
    }
    if (rc != 0) {
        sandbox_box_end(&c->box);
    }
    return rc;
}

int sandbox_open(const struct sandbox_opts *o, struct sandbox **out, struct err *e)
{
    struct sandbox *s = mem_alloc(sizeof *s);
    struct err first = {0};
    int rc;

    s->nslots = o->workers > 0 ? o->workers : pool_cores();
    s->nslots = s->nslots < MAX_WORKERS ? s->nslots : MAX_WORKERS;
    s->spares = o->spares < 0 ? 0 : o->spares > 0 ? o->spares : 2 * s->nslots;
    s->spares = s->spares < MAX_WORKERS / 2 ? s->spares : MAX_WORKERS / 2;
    s->wake_fd = o->wake_fd;
    s->queue_max = o->queue_max > 0 ? o->queue_max : 4096;
    s->ncells = s->nslots * 2 + s->spares * 2;
    s->ncells = s->ncells < 3 * MAX_WORKERS ? s->ncells : 3 * MAX_WORKERS;
    s->slots = mem_alloc((size_t)s->nslots * sizeof *s->slots);
    s->cells = mem_alloc((size_t)s->ncells * sizeof *s->cells);
    for (int i = 0; i < s->nslots; i++) {
        s->slots[i].source_fd = -1;
    }
    rc = cage_open(&s->cage, o, e);
    if (rc != 0) {
        s->ncells = 0;
        sandbox_close(s);
        return rc;
    }
    rc = try_one(s, SANDBOX_BOX_PYTHON, &first);
    if (rc == STATUS_CHILD) {
        /* Inside containers a new /proc may be forbidden: most programs live without. */
        s->cage.proc_ok = 0;
        rc = try_one(s, SANDBOX_BOX_PYTHON, NULL);
        if (rc == 0) {
            log_warn(REWARD, "sandboxes have no /proc here: %s", first.msg);
        }
    }
    if (rc != 0) {
        ERR(e, rc, "%s", first.msg);
        sandbox_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void sandbox_close(struct sandbox *s)
{
    if (!s) {
        return;
    }
    for (int i = 0; i < s->nslots; i++) {
        if (s->slots[i].job) {
            slot_finish(s, &s->slots[i], "the sandbox was closed");
        }
    }
    for (int i = 0; i < s->ncells; i++) {
        cell_end(&s->cells[i]); /* all at once, then each is waited for */
    }
    for (int i = 0; i < s->ncells; i++) {
        sandbox_box_end(&s->cells[i].box);
    }
    while (s->head) {
        struct job *j = s->head;
        s->head = j->next;
        job_free(j);
    }
    while (s->first) {
        struct done *d = s->first;
        s->first = d->next;
        sandbox_result_fini(&d->r);
        mem_free(d);
    }
    sandbox_cage_fini(&s->cage);
    mem_free(s->slots);
    mem_free(s->cells);
    mem_free(s);
}

int sandbox_spawn(const struct sandbox_opts *so, const struct proc_opts *o, struct proc *p,
                  struct err *e)
{
    struct sandbox_cage c;
    int rc = cage_open(&c, so, e);

    if (rc == 0) {
        rc = sandbox_cage_spawn(&c, o, o->argv, -1, NULL, p, e);
        sandbox_cage_fini(&c);
    }
    return rc;
}
