/* Holds a command whose processes are not ours to know: what `miles guard` does.
 *
 *     struct guard_opts o = {.argv = words, .life_fd = 3, .private_tmp = 1};
 *     guard_run(&o, &status, &e);                 status: of the command, as wait gives it
 *
 * When the command ends, when SIGTERM was passed on and it has ended, or when the other end of
 * life_fd is closed (whoever held it is gone, however it went), every process that came from it is
 * killed: those that left its group or session and those that lost their parents too. Takes over
 * the process's signals and children: for a process that does nothing else.
 *
 * Shared memory is tidied up too, which SGLang leaves in /dev/shm however it ends: files of the
 * names that it, Python, NCCL and CUDA give, newer than the guard, that one of the processes was
 * seen to have mapped. */
#ifndef RUN_GUARD_H
#define RUN_GUARD_H

struct err;

struct guard_opts {
    const char *const *argv; /* NULL at the end */
    int life_fd;             /* end of file: the one who asked is gone; -1: its death as parent */
    int private_tmp; /* TMPDIR is a new folder, removed at the end: not all tidy up after SIGKILL */
};

int guard_run(const struct guard_opts *o, int *status, struct err *e);

#endif
