/* Owns the processes of a hunt. Each job has seeds of its own, from + job, + jobs, ..., and a place
 * in shared memory where it adds up what it found: when it dies there is nothing to be read from
 * it. */
#include "sim/simhunt.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"

struct simhunt_job {
    atomic_llong next; /* seed */
    struct simhunt_found f;
};

struct simhunt_all {
    atomic_llong violations;
    struct simhunt_job jobs[];
};

static void simhunt_keep(struct simhunt_all *a, struct simhunt_job *j, int64_t seed,
                         const struct simrun_result *r)
{
    struct simhunt_violation *v;

    j->f.violations++;
    atomic_fetch_add(&a->violations, 1);
    if (j->f.nkept == SIMHUNT_KEPT) {
        return;
    }
    v = &j->f.kept[j->f.nkept++];
    v->seed = seed;
    v->event = r->event;
    memcpy(v->broken, r->broken, sizeof v->broken);
    memcpy(v->what, r->what, sizeof v->what);
    memcpy(v->last, r->last, sizeof v->last);
}

/* The seeds of one job, in a process of its own. The exit code. */
static int simhunt_work(const struct simhunt_opts *o, struct simhunt_all *a, struct simhunt_job *j)
{
    static struct simrun_result r;
    struct simrun_shared sh;
    struct err e = {0};

    if (simrun_share(&sh, &e) != STATUS_OK) {
        return 1;
    }
    while (atomic_load(&j->next) < o->to && (!o->most || atomic_load(&a->violations) < o->most)) {
        int64_t seed = atomic_load(&j->next);
        simrun_seed(&sh, (uint64_t)seed, o->plant, 0, &r);
        j->f.seeds++;
        j->f.events += r.event;
        j->f.starts += r.starts;
        j->f.samples += r.samples;
        j->f.seconds += r.seconds;
        for (int i = 0; i < SIM_NFAULTS; i++) {
            j->f.hits[i] += r.hits[i];
        }
        for (int i = 0; i < SIM_NDEEDS; i++) {
            j->f.did[i] += r.did[i];
        }
        if (r.broken[0]) {
            simhunt_keep(a, j, seed, &r);
        }
        atomic_store(&j->next, seed + o->jobs);
    }
    simrun_unshare(&sh);
    return 0;
}

static pid_t simhunt_fork(const struct simhunt_opts *o, struct simhunt_all *a, int job)
{
    pid_t parent = getpid(), pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(1);
        }
        _exit(simhunt_work(o, a, &a->jobs[job]));
    }
    return pid;
}

/* A process that was ended by a signal: the seed it was at is to blame. */
static void simhunt_died(const struct simhunt_opts *o, struct simhunt_all *a, int job, int sig)
{
    static struct simrun_result r;
    struct simhunt_job *j = &a->jobs[job];
    int64_t seed = atomic_load(&j->next);

    memset(&r, 0, sizeof r);
    snprintf(r.broken, sizeof r.broken, "the process was ended by signal %d (%s)", sig,
             strsignal(sig));
    j->f.seeds++;
    simhunt_keep(a, j, seed, &r);
    atomic_store(&j->next, seed + o->jobs);
}

static int simhunt_reap(const struct simhunt_opts *o, struct simhunt_all *a, pid_t *pid,
                        struct err *e)
{
    int status, job = 0;
    pid_t p = wait(&status);

    while (job < o->jobs && pid[job] != p) {
        job++;
    }
    if (p < 0 || job == o->jobs) {
        return errno == EINTR ? STATUS_OK : ERR(e, STATUS_CHILD, "a process is not to be found");
    }
    pid[job] = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
        return ERR(e, STATUS_CHILD, "a process ended with code %d", WEXITSTATUS(status));
    }
    if (WIFSIGNALED(status)) {
        simhunt_died(o, a, job, WTERMSIG(status));
        pid[job] = simhunt_fork(o, a, job);
    }
    return STATUS_OK;
}

static void simhunt_add(struct simhunt_found *out, const struct simhunt_found *f)
{
    out->seeds += f->seeds;
    out->violations += f->violations;
    out->events += f->events;
    out->starts += f->starts;
    out->samples += f->samples;
    out->seconds += f->seconds;
    for (int i = 0; i < SIM_NFAULTS; i++) {
        out->hits[i] += f->hits[i];
    }
    for (int i = 0; i < SIM_NDEEDS; i++) {
        out->did[i] += f->did[i];
    }
    for (int i = 0; i < f->nkept && out->nkept < SIMHUNT_KEPT; i++) {
        out->kept[out->nkept++] = f->kept[i];
    }
}

int simhunt_run(const struct simhunt_opts *o, struct simhunt_found *out, struct err *e)
{
    size_t bytes = sizeof(struct simhunt_all) + sizeof(struct simhunt_job) * (size_t)o->jobs;
    struct simhunt_all *a =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[SIMHUNT_JOBS] = {0};
    int rc = STATUS_OK, left = o->jobs;

    memset(out, 0, sizeof *out);
    if (a == MAP_FAILED) {
        return ERR(e, STATUS_NOMEM, "no memory for %d processes' findings", o->jobs);
    }
    fflush(stdout);
    for (int i = 0; i < o->jobs; i++) {
        atomic_store(&a->jobs[i].next, o->from + i);
        pid[i] = simhunt_fork(o, a, i);
    }
    while (rc == STATUS_OK && left) {
        rc = simhunt_reap(o, a, pid, e);
        left = 0;
        for (int i = 0; i < o->jobs; i++) {
            left += pid[i] > 0;
        }
    }
    for (int i = 0; i < o->jobs; i++) {
        if (pid[i] > 0) {
            kill(pid[i], SIGKILL);
            waitpid(pid[i], NULL, 0);
        }
        simhunt_add(out, &a->jobs[i].f);
    }
    munmap(a, bytes);
    return rc;
}
