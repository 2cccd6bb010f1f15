/* Owns the system call filter of sandboxes: a list of what programs need, everything else refused.
 *
 * A list of permitted calls, because the kernel gains calls every year and a list of forbidden ones
 * would let them in. Written as a table of our own instead of with libseccomp: the filter is one
 * walk over numbers and six looks at an argument, and the table needs no library on the user's
 * machine. Refusals, from mild to hard:
 *   ENOSYS   calls that are not listed: the C library falls back to older ones, which are;
 *   ENOTSUP  extended attributes: as on a file system that has none;
 *   EPERM    calls that are known and meant to be refused, whatever the arguments, and listed calls
 *            with arguments that are not permitted (new namespaces, sockets other than AF_UNIX);
 *   SIGSYS   calls of another instruction set (32 bits, x32), which the numbers would not fit.
 * User and network namespaces stand behind it: the filter makes the kernel's surface small, it does
 * not carry the isolation alone. */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/status.h"
#include "reward/sandbox_int.h"

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif

#if defined(__x86_64__)
#define ARCH_HERE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH_HERE AUDIT_ARCH_AARCH64
#else
#error "the sandbox's filter does not know this processor"
#endif

static const int permitted[] = {
    /* files */
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_preadv2,
    SYS_pwritev2,
    SYS_lseek,
    SYS_openat,
    SYS_close,
    SYS_close_range,
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_fcntl,
    SYS_flock,
    SYS_fsync,
    SYS_fdatasync,
    SYS_truncate,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_getdents64,
    SYS_getcwd,
    SYS_chdir,
    SYS_fchdir,
    SYS_renameat,
    SYS_renameat2,
    SYS_mkdirat,
    SYS_unlinkat,
    SYS_linkat,
    SYS_symlinkat,
    SYS_readlinkat,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_utimensat,
    SYS_umask,
    SYS_mknodat,
    SYS_sendfile,
    SYS_copy_file_range,
    SYS_fadvise64,
    /* memory */
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_msync,
    SYS_brk,
    SYS_membarrier,
    /* processes and threads */
    SYS_exit,
    SYS_exit_group,
    SYS_wait4,
    SYS_waitid,
    SYS_execve,
    SYS_execveat,
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getresuid,
    SYS_getresgid,
    SYS_getgroups,
    SYS_getpgid,
    SYS_getsid,
    SYS_setsid,
    SYS_setpgid,
    SYS_futex,
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_set_tid_address,
    SYS_rseq,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_setaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_getpriority,
    SYS_getrlimit,
    SYS_setrlimit,
    SYS_prlimit64,
    SYS_getrusage,
    SYS_times,
    SYS_capget,
    SYS_getcpu,
    SYS_pidfd_open,
    SYS_pidfd_send_signal,
    SYS_restart_syscall,
    /* signals and time */
    SYS_kill,
    SYS_tkill,
    SYS_tgkill,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigsuspend,
    SYS_rt_sigpending,
    SYS_rt_sigtimedwait,
    SYS_rt_sigqueueinfo,
    SYS_sigaltstack,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_getitimer,
    SYS_setitimer,
    /* waiting, sockets (their family is looked at below), the rest */
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_getsockname,
    SYS_getpeername,
    SYS_sendto,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_shutdown,
    SYS_setsockopt,
    SYS_getsockopt,
    SYS_getrandom,
    SYS_uname,
    SYS_sysinfo,
#ifdef SYS_epoll_pwait2
    SYS_epoll_pwait2,
#endif
#if defined(__x86_64__)
    /* the older forms that only this processor still has */
    SYS_open,
    SYS_creat,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_pipe,
    SYS_dup2,
    SYS_getdents,
    SYS_rename,
    SYS_mkdir,
    SYS_rmdir,
    SYS_unlink,
    SYS_link,
    SYS_symlink,
    SYS_readlink,
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_utime,
    SYS_utimes,
    SYS_futimesat,
    SYS_mknod,
    SYS_fork,
    SYS_vfork,
    SYS_getpgrp,
    SYS_alarm,
    SYS_pause,
    SYS_poll,
    SYS_select,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_eventfd,
    SYS_time,
    SYS_arch_prctl,
#endif
};

/* Known and refused: said with EPERM, so that a program sees a refusal and not an old kernel. */
static const int refused[] = {
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kcmp,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_open_by_handle_at,
    SYS_name_to_handle_at,
    SYS_kexec_load,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_quotactl,
    SYS_syslog,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_seccomp,
    SYS_capset,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_setfsuid,
    SYS_setfsgid,
    SYS_setpriority,
    SYS_sched_setscheduler,
    SYS_sched_setparam,
    SYS_sched_setattr,
    SYS_ioprio_set,
    SYS_mlock,
    SYS_mlock2,
    SYS_mlockall,
    SYS_mbind,
    SYS_set_mempolicy,
    SYS_migrate_pages,
    SYS_move_pages,
    SYS_shmget,
    SYS_shmat,
    SYS_shmctl,
    SYS_semget,
    SYS_semop,
    SYS_semctl,
    SYS_msgget,
    SYS_msgsnd,
    SYS_msgrcv,
    SYS_mq_open,
    SYS_memfd_create,
    SYS_inotify_init1,
    SYS_fanotify_init,
    SYS_io_setup,
    SYS_timer_create,
    SYS_timerfd_create,
    SYS_signalfd4,
    SYS_splice,
    SYS_tee,
    SYS_vmsplice,
#ifdef SYS_io_uring_setup
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
#endif
#ifdef SYS_pidfd_getfd
    SYS_pidfd_getfd,
#endif
#ifdef SYS_open_tree
    SYS_open_tree,
    SYS_move_mount,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
#endif
#ifdef SYS_mount_setattr
    SYS_mount_setattr,
#endif
#if defined(__x86_64__)
    SYS_iopl,
    SYS_ioperm,
    SYS_modify_ldt,
    SYS_inotify_init,
    SYS_signalfd,
    SYS_uselib,
    SYS_ustat,
#endif
};

/* Answered with ENOTSUP, as a file system without them does: programs that copy files go on. */
static const int unsupported[] = {
    SYS_setxattr,   SYS_lsetxattr,   SYS_fsetxattr,    SYS_getxattr,
    SYS_lgetxattr,  SYS_fgetxattr,   SYS_listxattr,    SYS_llistxattr,
    SYS_flistxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
};

static const unsigned prctl_ok[] = {PR_SET_PDEATHSIG, PR_GET_PDEATHSIG,    PR_GET_DUMPABLE,
                                    PR_SET_DUMPABLE,  PR_SET_NAME,         PR_GET_NAME,
                                    PR_CAPBSET_READ,  PR_GET_NO_NEW_PRIVS, PR_SET_VMA};
/* Terminal questions (is it one, how wide) and the flags of descriptors. */
static const unsigned ioctl_ok[] = {TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX};
static const unsigned family_ok[] = {AF_UNIX};
static const unsigned personality_ok[] = {0xffffffffu}; /* the question */

enum { MAX_RULES = 1024 };

struct asmb {
    struct sock_filter code[MAX_RULES];
    unsigned n;
};

static void put(struct asmb *a, unsigned short op, unsigned k, unsigned char jt, unsigned char jf)
{
    ASSERT(a->n < MAX_RULES);
    a->code[a->n++] = (struct sock_filter){op, jt, jf, k};
}

static void put_load(struct asmb *a, size_t offset)
{
    put(a, BPF_LD | BPF_W | BPF_ABS, (unsigned)offset, 0, 0);
}

static void put_return(struct asmb *a, unsigned what)
{
    put(a, BPF_RET | BPF_K, what, 0, 0);
}

static void put_list(struct asmb *a, const int *list, size_t n, unsigned what)
{
    for (size_t i = 0; i < n; i++) {
        put(a, BPF_JMP | BPF_JEQ | BPF_K, (unsigned)list[i], 0, 1);
        put_return(a, what);
    }
}

/* Call `nr` is permitted when the low word of an argument is one of the list. The kernel reads that
 * word only in all of these. */
static void put_choice(struct asmb *a, int nr, int arg, const unsigned *ok, size_t n)
{
    put(a, BPF_JMP | BPF_JEQ | BPF_K, (unsigned)nr, 0, (unsigned char)(2 + 2 * n));
    put_load(a, offsetof(struct seccomp_data, args) + 8 * (size_t)arg);
    for (size_t i = 0; i < n; i++) {
        put(a, BPF_JMP | BPF_JEQ | BPF_K, ok[i], 0, 1);
        put_return(a, SECCOMP_RET_ALLOW);
    }
    put_return(a, SECCOMP_RET_ERRNO | EPERM);
}

#define COUNT(x) (sizeof(x) / sizeof *(x))

static void assemble(struct asmb *a)
{
    const unsigned spaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
                            CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

    put_load(a, offsetof(struct seccomp_data, arch));
    put(a, BPF_JMP | BPF_JEQ | BPF_K, ARCH_HERE, 1, 0);
    put_return(a, SECCOMP_RET_KILL_PROCESS);
    put_load(a, offsetof(struct seccomp_data, nr));
#if defined(__x86_64__)
    put(a, BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1); /* x32 */
    put_return(a, SECCOMP_RET_KILL_PROCESS);
#endif
    put_list(a, permitted, COUNT(permitted), SECCOMP_RET_ALLOW);
    put_list(a, refused, COUNT(refused), SECCOMP_RET_ERRNO | EPERM);
    put_list(a, unsupported, COUNT(unsupported), SECCOMP_RET_ERRNO | ENOTSUP);
    /* clone: its low byte is a signal number, where NEWTIME's bit lies too; clone does not know
     * NEWTIME. clone3 keeps its flags in memory, where no filter can look: it is not listed, and
     * the C library goes on with clone. */
    put(a, BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4);
    put_load(a, offsetof(struct seccomp_data, args));
    put(a, BPF_JMP | BPF_JSET | BPF_K, spaces, 0, 1);
    put_return(a, SECCOMP_RET_ERRNO | EPERM);
    put_return(a, SECCOMP_RET_ALLOW);
    put_choice(a, SYS_socket, 0, family_ok, COUNT(family_ok));
    put_choice(a, SYS_socketpair, 0, family_ok, COUNT(family_ok));
    put_choice(a, SYS_prctl, 0, prctl_ok, COUNT(prctl_ok));
    put_choice(a, SYS_ioctl, 1, ioctl_ok, COUNT(ioctl_ok));
    put_choice(a, SYS_personality, 0, personality_ok, COUNT(personality_ok));
    put_return(a, SECCOMP_RET_ERRNO | ENOSYS);
}

int sandbox_filter_fd(void)
{
    struct asmb a = {.n = 0};

    assemble(&a);
    return sandbox_memfd(a.code, a.n * sizeof a.code[0]);
}
