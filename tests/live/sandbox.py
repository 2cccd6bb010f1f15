"""Hostile programs against the sandbox, for tests/live/sandbox.sh.

    sandbox.py DEMO PYTHON WORK [UID]

DEMO is the driver of the sandbox (tests/reward/sandbox_demo.c), WORK a folder that the programs must
not reach. With UID all of it runs as that user. Each attempt is a program that says ESCAPED when it
got what it must not get and HELD with the reason when not; the reason is checked, and where it does no
harm the same program runs outside first, as a control: there it must say ESCAPED. The last line is
`escapes=E attempts=N controls=C left=L`: L counts processes, files, mounts and shared memory that were
not there before.
"""
import ctypes
import json
import os
import pwd
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

DEMO, PYTHON, WORK = sys.argv[1:4]
UID = int(sys.argv[4]) if len(sys.argv) > 4 else os.getuid()
TOKEN = "tok%016x" % random.SystemRandom().getrandbits(64)  # what must never be seen inside
ENV_TOKEN = TOKEN + "-env"
HALF, REST = TOKEN[:9], TOKEN[9:]  # so that a program can look for it without holding it

PRELUDE = '''
import ctypes, errno, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
class Held(Exception): pass
def sc(n, *args):
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(n), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if r == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return r
def refused(what):
    try:
        what()
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))
    raise SystemExit(print("ESCAPED", what))
'''


def wrap(body):
    lines = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    return PRELUDE + "try:\n" + lines + '''
    print("ESCAPED")
except OSError as e:
    print("HELD", errno.errorcode.get(e.errno, type(e).__name__))
except Held as e:
    print("HELD", e)
'''


ATTEMPTS = []


def attempt(name, body, held, control=True, **more):
    """One program. `held`: what its output must match when it was held; control: whether it runs
    outside first, or the text of a milder program to run there."""
    ATTEMPTS.append(dict(name=name, jobs=[dict(source=wrap(body), cases=[{}], compare="nothing",
                                               keep=True, **more)],
                         held=held, control=wrap(body) if control is True else
                         wrap(control) if control else None, check=None))


def scheme(name, check, *jobs, control=None):
    """Jobs of one attempt, one after the other, and a function that says what is wrong (or None)."""
    for job in jobs:
        job.setdefault("cases", [{}])
        job.setdefault("compare", "nothing")
        job.setdefault("keep", True)
    ATTEMPTS.append(dict(name=name, jobs=list(jobs), held=None, check=check,
                         control=wrap(control) if control else None))


def number(name):
    return {"socket": 41, "ptrace": 101, "process_vm_readv": 310, "unshare": 272, "setns": 308,
            "clone": 56, "clone3": 435, "mount": 165, "umount2": 166, "chroot": 161,
            "pivot_root": 155, "add_key": 248, "keyctl": 250, "bpf": 321, "perf_event_open": 298,
            "userfaultfd": 323, "memfd_create": 319, "shmget": 29, "inotify_init1": 294,
            "personality": 135, "io_uring_setup": 425, "open_by_handle_at": 304, "kexec_load": 246,
            "init_module": 175, "syslog": 103, "setuid": 105, "sethostname": 170,
            "clock_settime": 227, "sched_setscheduler": 144, "fsopen": 430, "move_mount": 429,
            "pidfd_open": 434, "pidfd_getfd": 438, "mq_open": 240, "msgget": 68, "seccomp": 317,
            "fanotify_init": 300, "swapon": 167, "iopl": 172, "mlockall": 151, "quotactl": 179,
            "setpriority": 141, "kcmp": 312, "vmsplice": 278, "timer_create": 222}[name]


# ---- the network ----

def network(port, port6, udp):
    attempt("tcp to the host", f"s = socket.create_connection(('127.0.0.1', {port}), 3)\ns.send(b'x')",
            "EPERM")
    if port6:
        attempt("tcp over ipv6",
                f"s = socket.socket(socket.AF_INET6)\ns.settimeout(3)\ns.connect(('::1', {port6}))",
                "EPERM")
    attempt("udp to the host",
            f"s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            f"s.sendto(b'x', ('127.0.0.1', {udp}))", "EPERM")
    attempt("a name looked up", "import urllib.request\ntry:\n"
            f"    urllib.request.urlopen('http://localhost:{port}/', timeout=3)\n"
            "except OSError as e:\n"
            "    if not isinstance(e, ConnectionError):\n"
            "        raise\n"
            "except Exception:\n    pass", "OSError|URLError|gaierror|EPERM|HELD")
    attempt("netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)", "EPERM")
    attempt("raw packets", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3)", "EPERM",
            control=UID == 0)
    attempt("vsock", "socket.socket(40, socket.SOCK_STREAM)", "EPERM", control=False)
    attempt("a socket by bare system call", f"sc({number('socket')}, 2, 1, 0)", "EPERM")
    attempt("an abstract socket of the host",
            f"s = socket.socket(socket.AF_UNIX)\ns.connect('\\0{TOKEN[:8]}')", "ECONNREFUSED")
    attempt("a socket file of the host",
            f"s = socket.socket(socket.AF_UNIX)\ns.connect({WORK + '/sock'!r})", "ENOENT")
    attempt("a server of its own", "s = socket.socket()\ns.bind(('0.0.0.0', 0))\ns.listen(1)", "EPERM")


# ---- system calls ----

def calls():
    page = "buf = ctypes.create_string_buffer(4096)\n"
    attempt("ptrace of process 1", f"sc({number('ptrace')}, 16, 1, 0, 0)", "EPERM",
            control=f"sc({number('ptrace')}, 0, 0, 0, 0)")
    attempt("memory of process 1 by process_vm_readv",
            page + f"iov = (ctypes.c_ulong * 2)(ctypes.addressof(buf), 8)\n"
            f"sc({number('process_vm_readv')}, os.getpid(), iov, 1, iov, 1, 0)", "EPERM")
    attempt("a new user namespace", f"sc({number('unshare')}, 0x10000000)", "EPERM")
    attempt("a new mount namespace", f"sc({number('unshare')}, 0x20000)", "EPERM", control=UID == 0)
    attempt("clone into a user namespace",
            f"pid = sc({number('clone')}, 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\n"
            "os.waitpid(pid, 0)", "EPERM")
    attempt("clone3 into a user namespace",
            "args = (ctypes.c_ulong * 11)(0x10000000, 0, 0, 0, 17)\n"
            f"pid = sc({number('clone3')}, args, 88)\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)",
            "ENOSYS")
    attempt("namespaces of process 1", "fd = os.open('/proc/1/ns/net', os.O_RDONLY)\n"
            f"sc({number('setns')}, fd, 0)", "EPERM|EACCES", control=False)
    attempt("mount", f"sc({number('mount')}, b'none', b'/tmp', b'tmpfs', 0, 0)", "EPERM",
            control=False)
    attempt("unmount", f"sc({number('umount2')}, b'/proc', 2)", "EPERM", control=False)
    attempt("the new mount calls", f"sc({number('fsopen')}, b'tmpfs', 0)", "EPERM",
            control=UID == 0)
    attempt("chroot", "os.mkdir('r')\nos.chroot('r')", "EPERM", control=False)
    attempt("pivot_root", f"sc({number('pivot_root')}, b'/', b'/')", "EPERM", control=False)
    attempt("keys of the kernel", f"sc({number('add_key')}, b'user', b'k{TOKEN[:6]}', b'v', 1, -1)",
            "EPERM")
    attempt("the session's keyring", f"sc({number('keyctl')}, 0, -3, 0)", "EPERM",
            control=False)
    attempt("bpf", page + f"try:\n    sc({number('bpf')}, 0, buf, 120)\n"
            "except OSError as e:\n    if e.errno != errno.EINVAL: raise", "EPERM", control=UID == 0)
    attempt("perf_event_open",
            page + f"try:\n    sc({number('perf_event_open')}, buf, 0, -1, -1, 0)\n"
            "except OSError as e:\n    if e.errno in (errno.EPERM, errno.EACCES): raise", "EPERM",
            control=UID == 0)
    attempt("userfaultfd", f"sc({number('userfaultfd')}, 1)", "EPERM")
    attempt("io_uring", page + f"try:\n    sc({number('io_uring_setup')}, 0, buf)\n"
            "except OSError as e:\n    if e.errno not in (errno.EINVAL, errno.EFAULT): raise",
            "EPERM", control=False)
    attempt("memory without a name", f"sc({number('memfd_create')}, b'x', 0)", "EPERM")
    attempt("shared memory of System V", f"i = sc({number('shmget')}, 0, 4096, 0o1600)\nsc(31, i, 0, 0)",
            "EPERM")
    attempt("message queues", f"i = sc({number('msgget')}, 0, 0o1600)\nsc(71, i, 0, 0)", "EPERM")
    attempt("inotify", f"sc({number('inotify_init1')}, 0)", "EPERM")
    attempt("fanotify", f"sc({number('fanotify_init')}, 0x200, 0)", "EPERM|ENOSYS", control=False)
    attempt("no random addresses", f"sc({number('personality')}, 0x40000)", "EPERM")
    attempt("files by handle", page + f"sc({number('open_by_handle_at')}, -100, buf, 0)", "EPERM",
            control=False)
    attempt("another kernel", f"sc({number('kexec_load')}, 0, 0, 0, 0)", "EPERM", control=False)
    attempt("a kernel module", page + f"sc({number('init_module')}, buf, 10, b'')", "EPERM",
            control=False)
    attempt("the kernel's log", page + f"sc({number('syslog')}, 3, buf, 4096)", "EPERM",
            control=UID == 0)
    attempt("to be root", f"sc({number('setuid')}, 0)\nif os.getuid(): raise Held('no change')",
            "EPERM", control=UID == 0)
    attempt("the host's name", f"sc({number('sethostname')}, b'x', 1)", "EPERM", control=False)
    attempt("the clock", "t = struct.pack('qq', 0, 0)\n"
            f"sc({number('clock_settime')}, 0, t)", "EPERM", control=False)
    attempt("real-time priority", "p = struct.pack('i', 1)\n"
            f"sc({number('sched_setscheduler')}, 0, 1, p)", "EPERM", control=False)
    attempt("higher priority", f"sc({number('setpriority')}, 0, 0, -5)", "EPERM", control=False)
    attempt("a descriptor of process 1", f"fd = sc({number('pidfd_open')}, 1, 0)\n"
            f"sc({number('pidfd_getfd')}, fd, 3, 0)", "EPERM", control=False)
    attempt("locked memory", f"sc({number('mlockall')}, 2)", "EPERM", control=UID == 0)
    attempt("input into a terminal", "import fcntl\nfcntl.ioctl(0, 0x5412, b'x')", "EPERM",
            control=False)
    attempt("a filter of its own", f"sc({number('seccomp')}, 0, 0, 0)", "EPERM", control=False)
    attempt("ports of the machine", f"sc({number('iopl')}, 3)", "EPERM", control=False)
    code = "48c7c0{nr}{trap}c3"
    run = ("import mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('%s'))\n"
           "f = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
           "print('ESCAPED', f())\nsys.stdout.flush()\nos._exit(0)")
    for name, nr, trap in (("calls of 32 bits", "14000000", "cd80"),
                           ("calls of the x32 kind", "27000040", "0f05")):
        body = PRELUDE + run % code.format(nr=nr, trap=trap)
        scheme("machine code: " + name, lambda r: None if r[0]["verdict"] == "refused system call"
               else "verdict " + r[0]["verdict"], dict(source=body))
    attempt("machine code: a socket",
            "import mmap\nm = mmap.mmap(-1, 4096, prot=7)\n"
            # socket(2, 1, 0) by its own hand: the filter does not care who calls.
            "m.write(bytes.fromhex('48c7c02900000048c7c70200000048c7c60100000048c7c2000000000f05c3'))\n"
            "f = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
            "r = f()\nif r < 0: raise OSError(-r, '')\nos.close(r)", "EPERM")


# ---- files ----

def files():
    secret = WORK + "/secret"
    attempt("a file of the host", f"assert {TOKEN!r}[:8] in open({secret!r}).read()", "ENOENT")
    attempt("a file by a symbolic link", f"os.symlink({secret!r}, 'l')\nopen('l').read()\n",
            "ENOENT", control=f"p = {WORK + '/link1'!r}\nos.symlink({secret!r}, p)\nopen(p).read()\n"
            "os.unlink(p)")
    attempt("a file by the root of process 1", f"open('/proc/1/root' + {secret!r}).read()",
            "ENOENT|EACCES", control=f"open('/proc/self/root' + {secret!r}).read()")
    attempt("a file by many steps up", f"open('../' * 40 + {secret[1:]!r}).read()", "ENOENT")
    keys = os.path.join(pwd.getpwuid(0).pw_dir, ".ssh")
    attempt("the home of root, passwords, keys", f"for p in ({keys!r}, '/etc/passwd', '/etc/shadow', "
            "'/home', '/etc/ssl', '/var/lib', '/run', '/srv'):\n"
            "    if os.path.exists(p): raise SystemExit(print('ESCAPED', p))\n"
            "raise Held('ENOENT')", "ENOENT")
    attempt("what lies in /", "names = set(os.listdir('/')) - set('bin dev etc init lib lib32 lib64 "
            "proc sbin tmp usr zygote.pyc'.split())\n"
            f"names -= {{{PYTHON_TOP!r}}}\nraise Held('nothing else') if not names else Exception(names)",
            "nothing else", control=False)
    attempt("write beside the scratch", "why = []\n"
            "for p in ('/x', '/usr/x', '/usr/bin/x', '/etc/x', '/dev/x', '/proc/x', '/init', "
            "'/zygote.pyc', '/bin/sh'):\n"
            "    why.append(refused(lambda: open(p, 'a').write('x')))\n"
            "raise Held(' '.join(sorted(set(why))))", "(EROFS|ENOENT|EACCES|ENOTSUP| )+$",
            control=False)
    attempt("write into the host's folder", f"open({WORK + '/written'!r}, 'w').write('x')", "ENOENT")
    attempt("settings of the kernel", "why = []\n"
            "for p in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', "
            "'/proc/sys/vm/drop_caches', '/proc/sys/kernel/hostname', '/proc/1/oom_score_adj'):\n"
            "    why.append(refused(lambda: os.write(os.open(p, os.O_WRONLY), b'-1000')))\n"
            "raise Held(' '.join(sorted(set(why))))", "(EROFS|EACCES|EPERM|ENOENT| )+$", control=False)
    attempt("sysfs and control groups", "os.listdir('/sys')", "ENOENT")
    attempt("devices", "why = [refused(lambda: open(p, 'rb').read(1)) for p in ('/dev/mem', "
            "'/dev/kmsg', '/dev/vda', '/dev/sda', '/dev/tty', '/dev/fuse', '/dev/kvm', "
            "'/dev/net/tun', '/proc/kcore', '/proc/kmsg')]\nraise Held(' '.join(sorted(set(why))))",
            "(ENOENT|EPERM|EACCES| )+$", control=False)
    attempt("a device of its own", "why = [refused(lambda: os.mknod('d%d' % i, k | 0o600, "
            "os.makedev(1, 1))) for i, k in enumerate((0o20000, 0o60000))]\n"
            "raise Held(' '.join(why))", "EPERM EPERM",
            control=UID == 0 and f"p = {WORK + '/dev1'!r}\nos.mknod(p, 0o20600, os.makedev(1, 3))\n"
            "os.unlink(p)")
    attempt("descriptors left open", "found = []\nfor fd in range(3, 1024):\n"
            "    try:\n        os.fstat(fd)\n        found.append(fd)\n    except OSError: pass\n"
            "if not found: raise Held('EBADF')\nprint('ESCAPED', found)", "EBADF")
    attempt("the input of the next case", "fd = os.open('/proc/self/fd/0', os.O_RDWR)\n"
            "os.write(fd, b'changed')", "EPERM|EACCES", control="fd = os.memfd_create('x')\n"
            "fd = os.open('/proc/self/fd/%d' % fd, os.O_RDWR)\nos.write(fd, b'changed')")
    attempt("a set-uid program", "s = open('/proc/self/status').read()\n"
            "if 'NoNewPrivs:\\t1' in s and 'CapBnd:\\t0000000000000000' in s: "
            "raise Held('no new privileges')", "no new privileges")
    fill = ("n = 0\ntry:\n    with open('{p}', 'wb') as f:\n        while n < 80 << 20:\n"
            "            n += f.write(b'x' * 1048576)\n            f.flush()\n"
            "except OSError as e:\n    why = errno.errorcode[e.errno]\n"
            "    raise Held('%s after %d MB' % (why, n >> 20))\nfinally:\n"
            "    if os.path.exists('{p}'): os.unlink('{p}')")
    attempt("fill the scratch", "for i in range(9):\n    with open('f%d' % i, 'wb') as f:\n"
            "        for k in range(10):\n            f.write(b'x' * 1048576)\n            f.flush()",
            "ENOSPC", control=fill.format(p=WORK + "/big"))
    attempt("one large file", fill.format(p="big"), "(ENOSPC|EFBIG) after 6[0-9] MB",
            control=fill.format(p=WORK + "/big"))
    attempt("fill the shared memory", fill.format(p="/dev/shm/big"), "(ENOSPC|EFBIG) after 6[0-9] MB",
            control=False)
    attempt("a sparse file", "f = open('sparse', 'wb')\nf.truncate(1 << 40)", "EFBIG",
            control=f"p = {WORK + '/sparse'!r}\nf = open(p, 'wb')\nf.truncate(1 << 40)\nos.unlink(p)")
    attempt("more open files than permitted", "fds = [os.open('/dev/null', 0) for i in range(100)]",
            "EMFILE")
    scheme("more files than memory bears", lambda r: None
           if r[0]["verdict"] in ("memory limit", "time-out") or "ENOSPC" in r[0]["out"]
           else "verdict " + r[0]["verdict"],
           dict(source=wrap("i = 0\nwhile True:\n    open('/tmp/%d' % i, 'w').close()\n    i += 1"),
                limits=dict(wall=10, cpu=8)))
    scheme("a deep tree of folders", lambda r: None if "HELD deep" in r[0]["out"] else r[0]["out"],
           dict(source=wrap("for i in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\n"
                            "raise Held('deep')")))


# ---- processes, memory, time ----

def resources():
    forks = ("pids = []\ntry:\n    for i in range(100):\n        pid = os.fork()\n"
             "        if pid == 0:\n            time.sleep(30)\n            os._exit(0)\n"
             "        pids.append(pid)\n"
             "except OSError as e:\n"
             "    raise Held('%s after %d' % (errno.errorcode[e.errno], len(pids)))\n"
             "finally:\n    for p in pids: os.kill(p, 9); os.waitpid(p, 0)")
    attempt("a hundred processes", forks, "EAGAIN after (2|3)[0-9]")
    attempt("a hundred threads", "import threading\nn = 0\nstop = threading.Event()\ntry:\n"
            "    for i in range(100):\n"
            "        threading.Thread(target=stop.wait, daemon=True).start()\n        n += 1\n"
            "except RuntimeError:\n    raise Held('refused after %d' % n)\nfinally:\n    stop.set()",
            "refused after (2|3)[0-9]")
    scheme("a fork bomb", lambda r: None if not r[0]["failed"] and r[0]["verdict"] != "passed"
           else "verdict " + r[0]["verdict"],
           dict(source="import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
                limits=dict(wall=2)),
           control="pid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0)")
    scheme("a shell's fork bomb", lambda r: None if not r[0]["failed"] else r[0]["reason"],
           dict(language="native", source="#!/bin/bash\n:(){ :|:& };:\nsleep 5\n", limits=dict(wall=2)))
    attempt("all the memory", "x = []\ntry:\n    while len(x) < 30: x.append(bytearray(64 << 20))\n"
            "except MemoryError:\n    raise Held('MemoryError after %d' % len(x))",
            "MemoryError after 1[0-9]$", control="x = bytearray(64 << 20)")
    scheme("memory of many processes", lambda r: None if r[0]["verdict"] == "memory limit"
           else "verdict " + r[0]["verdict"],
           dict(source="import os, time\nfor i in range(12):\n    if os.fork() == 0:\n"
                       "        x = bytearray(120 << 20)\n        time.sleep(20)\n        os._exit(0)\n"
                       "time.sleep(20)", limits=dict(memory=400 << 20, wall=15)))
    scheme("memory shared by many", lambda r: None if r[0]["verdict"] == "memory limit"
           else "verdict " + r[0]["verdict"],
           dict(source="import mmap, os, time\nfor i in range(12):\n    if os.fork() == 0:\n"
                       "        m = mmap.mmap(-1, 100 << 20)\n"
                       "        for k in range(0, 100 << 20, 4096): m[k] = 1\n"
                       "        time.sleep(20)\n        os._exit(0)\ntime.sleep(20)",
                limits=dict(memory=400 << 20, wall=15)))
    scheme("no end of output", lambda r: None if r[0]["verdict"] == "output limit"
           else "verdict " + r[0]["verdict"],
           dict(source="import os\nwhile True: os.write(1, b'x' * 65536)"))
    scheme("no end of errors", lambda r: None if r[0]["verdict"] == "time-out"
           else "verdict " + r[0]["verdict"],
           dict(source="import os\nwhile True: os.write(2, b'x' * 65536)", limits=dict(wall=1.5)))
    scheme("pipes that nobody reads", lambda r: None if not r[0]["failed"] and
           r[0]["verdict"] in ("run-time error", "time-out") else "verdict " + r[0]["verdict"],
           dict(source="import os\nwhile True:\n    a, b = os.pipe()\n    os.set_blocking(b, False)\n"
                       "    while True:\n        try: os.write(b, b'x' * 65536)\n"
                       "        except BlockingIOError: break", limits=dict(wall=5)))
    scheme("threads that never end", lambda r: None if r[0]["verdict"] == "time-out" and
           "not done after" in r[0]["reason"] else r[0]["reason"],
           dict(source="import threading, time\nfor i in range(8):\n"
                       "    threading.Thread(target=time.sleep, args=(1000,)).start()",
                limits=dict(wall=1)))
    scheme("threads that compute without end", lambda r: None if r[0]["verdict"] == "time-out"
           else r[0]["reason"],
           dict(source="import threading\ndef f():\n    while True: pass\nfor i in range(8):\n"
                       "    threading.Thread(target=f).start()", limits=dict(cpu=1, wall=20)))
    scheme("all signals ignored", lambda r: None if r[0]["verdict"] == "time-out"
           else r[0]["reason"],
           dict(source="import signal\nfor s in range(1, 65):\n"
                       "    try: signal.signal(s, signal.SIG_IGN)\n"
                       "    except (OSError, ValueError): pass\nwhile True: pass",
                limits=dict(cpu=1, wall=20)))
    scheme("a child that outlives its parent's time", lambda r: None if r[0]["seconds"] < 8
           else "took %g s" % r[0]["seconds"],
           dict(source="import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n"))
    scheme("a core file", lambda r: None if r[0]["verdict"] == "crashed" and
           "HELD" not in r[0]["out"] and not [f for f in os.listdir(WORK) if f.startswith("core")]
           else r[0]["reason"], dict(source="import os\nos.abort()"))


def signals(host_pid):
    attempt("a signal to a process of the host", f"os.kill({host_pid}, 0)", "ESRCH|EPERM")
    two = [{"input": "1"}, {"input": "2"}]

    def second_fine(r):
        return None if not r[0]["failed"] and r[0]["passed"] == 2 else r[0]["reason"]
    first = "import os, signal, sys\nif input() == '1':\n"
    scheme("kill process 1", second_fine,
           dict(source=first + "    os.kill(1, 9)\n    os.kill(os.getppid(), 9)", cases=two))
    scheme("stop process 1", second_fine,
           dict(source=first + "    os.kill(1, signal.SIGSTOP)\n    os.kill(1, signal.SIGINT)\n"
                       "    os.kill(1, signal.SIGSEGV)", cases=two))
    scheme("kill everything", lambda r: None if not r[0]["failed"] and
           r[0]["cases"][1]["verdict"] == "passed" else r[0]["reason"],
           dict(source=first + "    os.kill(-1, 9)", cases=two, go_on=True))
    scheme("a daemon for the next case", second_fine,
           dict(source="import os, time\nif input() == '1':\n    if os.fork() == 0:\n"
                       "        os.setsid()\n        if os.fork() == 0:\n            time.sleep(60)\n"
                       "        os._exit(0)\n    time.sleep(0.2)\nelse:\n"
                       "    n = [p for p in os.listdir('/proc') if p.isdigit()]\n"
                       "    assert len(n) == 2, n", cases=two),
           control="pid = os.fork()\nif pid == 0:\n    os.setsid()\n    time.sleep(3)\n    os._exit(0)\n"
                   "time.sleep(0.2)\nos.kill(pid, 0)")
    scheme("files for the next job", lambda r: None if "HELD nothing" in r[1]["out"] else r[1]["out"],
           dict(source="import os\nfor p in ('/tmp/leak', '/dev/shm/leak', 'leak'):\n"
                       "    open(p, 'w').write('x')\n    assert os.path.exists(p)"),
           dict(source=wrap("for p in ('/tmp/leak', '/dev/shm/leak', 'leak', '../leak'):\n"
                            "    if os.path.exists(p): print('ESCAPED', p)\n"
                            "if os.listdir('/tmp') != ['case0000']: print('ESCAPED', os.listdir('/tmp'))\n"
                            "raise Held('nothing')")))
    scheme("processes for the next job", lambda r: None if "HELD nothing" in r[1]["out"]
           else r[1]["out"],
           dict(source="import os, time\nfor i in range(5):\n    if os.fork() == 0:\n"
                       "        os.setsid()\n        time.sleep(60)\n"),
           dict(source=wrap("n = [p for p in os.listdir('/proc') if p.isdigit()]\n"
                            "if len(n) != 2: print('ESCAPED', n)\nraise Held('nothing')")))
    scheme("process 1 overwritten", lambda r: None if "PermissionError" in r[0]["reason"]
           else "not refused: " + r[0]["reason"],
           dict(source="import os, re\nfd = os.open('/proc/1/mem', os.O_RDWR)\n"
                       "for line in open('/proc/1/maps'):\n"
                       "    m = re.match(r'(\\w+)-(\\w+) rw', line)\n    if m:\n"
                       "        a, b = int(m[1], 16), int(m[2], 16)\n"
                       "        try: os.pwrite(fd, b'\\xff' * (b - a), a)\n        except OSError: pass\n"
                       "print('right')\nimport time\ntime.sleep(20)", compare="exact",
                cases=[{"expected": TOKEN}], limits=dict(wall=4)))


# ---- the harness ----

SCAN = '''
import os, re
def scan(pid, what):
    try:
        fd = os.open('/proc/%s/mem' % pid, os.O_RDONLY)
        maps = open('/proc/%s/maps' % pid).read().split('\\n')
    except OSError:
        return None
    for line in maps:
        m = re.match(r'(\\w+)-(\\w+) r', line)
        if m and 'vvar' not in line and 'vsyscall' not in line:
            a, b = int(m[1], 16), int(m[2], 16)
            try:
                data = os.pread(fd, b - a, a)
            except OSError:
                continue
            if what in data:
                return True
    return False
'''


def harness():
    # Whatever the program reads, what is expected is not there; that the search works is shown by
    # finding something that is.
    scheme("expected output in the memory", lambda r: None if not r[0]["passed"] and
           "HELD" in r[0]["out"] and "works" in r[0]["out"] else r[0]["out"] or r[0]["reason"],
           dict(source=SCAN + f"what = ('{HALF}' + chr(46) + '{REST}').replace('.', '').encode()\n"
                "known = scan('self', b'case0000')\n"
                "seen = [scan(p, what) for p in ('1',)]\n"
                "print('ESCAPED' if True in seen else 'HELD', 'works' if known else 'blind')\n",
                compare="exact", cases=[{"expected": TOKEN}]))
    scheme("expected output in the files", lambda r: None if "HELD" in r[0]["out"] else r[0]["out"],
           dict(source=f"import os\nwhat = ('{HALF}' + chr(46) + '{REST}').replace('.', '')\n"
                "found = []\nfor top in ('/tmp', '/dev', '/proc/1', '/proc/self'):\n"
                "    for d, _, names in os.walk(top):\n        for n in names:\n"
                "            p = os.path.join(d, n)\n"
                "            if not os.path.isfile(p) or 'kmsg' in p: continue\n"
                "            try:\n                with open(p, 'rb') as f:\n"
                "                    if what.encode() in f.read(1 << 16): found.append(p)\n"
                "            except OSError: pass\nprint('ESCAPED' if found else 'HELD', found)",
                compare="exact", cases=[{"expected": TOKEN}], limits=dict(wall=10)))
    scheme("the environment of the host", lambda r: None if "HELD" in r[0]["out"] else r[0]["out"],
           dict(source="import os\nall = repr(dict(os.environ))\nfor p in ('self', '1'):\n"
                       "    try: all += repr(open('/proc/%s/environ' % p, 'rb').read())\n"
                       "    except OSError: pass\n"
                       f"print('ESCAPED' if ('{HALF}' + '{REST}') in all else 'HELD')"),
           control=f"if '{TOKEN}' not in repr(dict(os.environ)): raise Held('not there')")
    wrong = [("to end early", "import os\nos._exit(0)"),
             ("a verdict printed", "print('passed 1 of 1')"),
             ("a verdict on every descriptor",
              "import os\nfor fd in range(64):\n"
              "    try: os.write(fd, b'\\0' * 32)\n    except OSError: pass"),
             ("to close everything", "import os\nos.closerange(0, 1024)"),
             ("other builtins", "import builtins, sys\nbuiltins.print = builtins.input = "
              "lambda *a: ''\nsys.stdout.write('x')\nsys.exit = exit = lambda *a: None"),
             ("an exit that lies", "import atexit, os\natexit.register(os._exit, 0)"),
             ("frames of the caller", "import sys\nf = sys._getframe()\nwhile f:\n"
              "    for v in list(f.f_locals.values()):\n        print(repr(v)[:200])\n    f = f.f_back"),
             ("what the collector knows", "import gc\nfor o in gc.get_objects():\n"
              f"    if isinstance(o, (str, bytes)) and '{HALF}' in repr(o): print(o)")]
    for name, source in wrong:
        scheme("harness: " + name, lambda r: None if not r[0]["failed"] and not r[0]["passed"]
               else "verdict " + r[0]["verdict"],
               dict(source=source, compare="lines", cases=[{"expected": TOKEN}]))
    scheme("harness: an honest program passes", lambda r: None if r[0]["passed"] == 1
           else r[0]["reason"], dict(source="print(input())", compare="lines",
                                     cases=[{"input": TOKEN, "expected": TOKEN}]))
    tests = "assert f(1) == 2\nassert f(5) == 6\nassert set([f(1)]) == {2}"
    cheats = [("equal to all", "class E:\n    __eq__ = lambda s, o: True\n    __hash__ = lambda s: 2\n"
               "def f(x): return E()"),
              ("an integer that lies", "class E(int):\n    __eq__ = lambda s, o: True\n"
               "    __hash__ = lambda s: 2\ndef f(x): return E(7)"),
              ("a set of its own", "def set(x): return {2}\ndef f(x): return 9"),
              ("no assertions", "import builtins, sys\nbuiltins.AssertionError = KeyError\n"
               "sys.flags = None\ndef f(x): return 0"),
              ("an end in the call", "import os\ndef f(x): os._exit(0)"),
              ("an exit in the call", "def f(x): raise SystemExit(0)"),
              ("the judge's own words", "import os\nos.write(4, b'{\"passed\": 3, \"total\": 3}\\n')\n"
               "def f(x):\n    os.write(3, b'\\0\\0\\0\\x20{\"passed\": 3, \"total\": 3, \"why\": \"\"}')\n"
               "    return 0"),
              ("too much for the judge", "def f(x): return 'x' * (200 << 20)"),
              ("depth for the judge", "import os\ndef f(x):\n    n = 100000\n"
               "    d = b'{\"v\":' + b'[' * n + b']' * n + b'}'\n"
               "    os.write(3, len(d).to_bytes(4, 'big') + d)\n    return 1"),
              ("the tests read", SCAN + "import gc\ndef f(x):\n"
               "    if scan('1', bytes(reversed(b'6 == )5(f'))): return x + 1\n    return 0")]
    for name, source in cheats:
        scheme("tests: " + name, lambda r: None if not r[0]["failed"] and r[0]["passed"] < r[0]["total"]
               or (not r[0]["failed"] and r[0]["total"] <= 1 and not r[0]["passed"])
               else "passed: " + r[0]["reason"],
               dict(source=source, style="assert", cases=[{"input": tests}],
                    limits=dict(wall=8)))
    scheme("tests: an honest program passes", lambda r: None if r[0]["passed"] == 3
           else r[0]["reason"],
           dict(source="def f(x): return x + 1", style="assert", cases=[{"input": tests}]))
    scheme("calls: a value made up", lambda r: None if not r[0]["failed"] and not r[0]["passed"]
           else r[0]["reason"],
           dict(source="import os\nos.write(4, b'true')\ndef f(x): os._exit(0)", style="call",
                compare="lines", entry="f", cases=[{"input": "[1]", "expected": "2"}]))


# ---- running ----

def python_top():
    """The first part of the interpreter's folder, where that is not /usr."""
    real = subprocess.run([PYTHON, "-c", "import sys; print(sys.base_prefix)"], text=True,
                          capture_output=True, check=True).stdout.strip()
    return real.split("/")[1]


def as_user():
    if UID != os.getuid():
        return ["setpriv", "--reuid=%d" % UID, "--regid=%d" % UID, "--clear-groups"]
    return []


def listen(family, kind, address):
    s = socket.socket(family, kind)
    s.bind(address)
    if kind == socket.SOCK_STREAM:
        s.listen(64)
    return s


def accept_all(s):
    # A control that connects must find somebody; it need not be told anything.
    def loop():
        while True:
            try:
                c, _ = s.accept()
                c.close()
            except OSError:
                return
    threading.Thread(target=loop, daemon=True).start()


def descendants(root):
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as f:
                    kids = [int(p) for p in f.read().split()]
                found += kids
                todo += kids
        except OSError:
            pass
    return found


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def traces():
    shm = set(os.listdir("/dev/shm"))
    with open("/proc/self/mounts") as f:
        mounts = set(f.read().split("\n"))
    return shm, mounts, set(os.listdir(WORK)), set(
        n for n in os.listdir("/tmp") if n.startswith(("case0", "leak", "bindfile")))


def settle(seconds, but=()):
    """The processes that are still below us after a while."""
    end = time.monotonic() + seconds
    while True:
        reap()
        left = [pid for pid in descendants(os.getpid()) if pid not in but]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def run_controls(env):
    bad = count = 0
    for a in ATTEMPTS:
        if not a["control"]:
            continue
        count += 1
        done = subprocess.run(as_user() + [PYTHON, "-c", a["control"]], capture_output=True, text=True,
                              env=env, cwd=WORK, timeout=60, pass_fds=(SECRET_FD,))
        if "ESCAPED" not in done.stdout:
            bad += 1
            print("control %-40s says %s %s" % (a["name"], done.stdout.strip(),
                                                done.stderr.strip()[-200:]), file=sys.stderr)
    return bad, count


def start_demo(env, *args):
    return subprocess.Popen(as_user() + [DEMO, "--python", PYTHON, *args], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, env=env, pass_fds=(SECRET_FD,))


def run_attempts(env):
    lines, owner = [], []
    for a in ATTEMPTS:
        for job in a["jobs"]:
            lines.append(json.dumps(dict(job, id=len(owner))))
            owner.append(a)
    demo = start_demo(env, "--workers", "1")
    out, _ = demo.communicate("\n".join(lines) + "\n", timeout=600)
    if demo.returncode:
        sys.exit("the driver ended with status %d" % demo.returncode)
    for line in out.splitlines():
        r = json.loads(line)
        r["out"] = "".join(c.get("output") or "" for c in r["cases"])
        owner[r["id"]].setdefault("results", []).append(r)
    escapes = 0
    for a in ATTEMPTS:
        results = sorted(a.get("results", []), key=lambda r: r["id"])
        wrong = None
        if len(results) != len(a["jobs"]):
            wrong = "no result"
        elif any(r["failed"] for r in results):
            wrong = "failed: " + results[0]["reason"]
        elif any("ESCAPED" in r["out"] for r in results):
            wrong = results[-1]["out"].strip()
        elif a["check"]:
            wrong = a["check"](results)
        elif not re.search("HELD.*(%s)" % a["held"], results[0]["out"]):
            wrong = "held for another reason: " + results[0]["out"].strip() + results[0]["reason"]
        if wrong is not None:
            escapes += 1
            print("ESCAPE %-40s %s" % (a["name"], wrong[:300]), file=sys.stderr)
        elif os.environ.get("SANDBOX_SHOW"):
            print("held   %-40s %s | %s" % (a["name"], results[-1]["out"].strip()[:60],
                                            results[-1]["reason"][:80]), file=sys.stderr)
    return escapes


def kill_supervisor(env):
    """The driver is killed with programs running: everything inside dies with it."""
    demo = start_demo(env, "--workers", "2")
    source = ("import os, signal, time\nfor i in range(3):\n    if os.fork() == 0: os.setsid()\n"
              "time.sleep(100)")
    for i in range(2):
        demo.stdin.write(json.dumps(dict(id=i, source=source, cases=[{}], limits=dict(wall=90))) + "\n")
    demo.stdin.close()
    end = time.monotonic() + 30
    while len(descendants(demo.pid)) < 12 and time.monotonic() < end:
        time.sleep(0.05)
    were = len(descendants(demo.pid))
    demo.kill()
    demo.wait()
    left = settle(10, (sleeper.pid,))
    ok = were >= 12 and not left
    if not ok:
        names = [open(f"/proc/{pid}/status").read().split("\n")[:3] for pid in left]
        print("ESCAPE the driver killed: %d processes, left %s" % (were, names), file=sys.stderr)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return 0 if ok else 1


def kill_starting(env):
    """The driver is killed while sandboxes start: none stays half made."""
    left = []
    for _ in range(8):
        demo = start_demo(env, "--workers", "4", "--spares", "8")
        for i in range(40):
            demo.stdin.write(json.dumps(dict(id=i, source="print(1)", cases=[{}])) + "\n")
        demo.stdin.flush()
        time.sleep(0.2 + 0.3 * random.random())
        demo.kill()
        demo.wait()
        left += settle(10, [sleeper.pid, *left])
    if left:
        print("ESCAPE the driver killed at the start: %d left" % len(left), file=sys.stderr)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return 1 if left else 0


PYTHON_TOP = python_top()
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans come to us and are counted

with open(WORK + "/secret", "w") as secret_file:
    secret_file.write(TOKEN)
os.chmod(WORK + "/secret", 0o644)
SECRET_FD = os.open(WORK + "/secret", os.O_RDONLY)
tcp = listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
udp = listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
try:
    tcp6 = listen(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0))
except OSError:
    tcp6 = None
abstract = listen(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + TOKEN[:8])
path = listen(socket.AF_UNIX, socket.SOCK_STREAM, WORK + "/sock")
os.chmod(WORK + "/sock", 0o777)
for server in (tcp, tcp6, abstract, path):
    if server:
        accept_all(server)
sleeper = subprocess.Popen(as_user() + ["sleep", "600"])

network(tcp.getsockname()[1], tcp6 and tcp6.getsockname()[1], udp.getsockname()[1])
calls()
files()
resources()
signals(sleeper.pid)
harness()

environment = {"PATH": "/usr/bin:/bin", "SECRET": ENV_TOKEN, "HOME": WORK}
bad_controls, controls = run_controls(environment)
before = traces()
escaped = run_attempts(environment) + kill_supervisor(environment) + kill_starting(environment)
sleeper.kill()
sleeper.wait()
still = settle(5)
after = traces()
kept = [sorted(b - a) for a, b in zip(before, after) if b - a]
if still or kept:
    print("left behind: processes %s, %s" % (still, kept), file=sys.stderr)
print("escapes=%d attempts=%d controls=%d left=%d" % (
    escaped, len(ATTEMPTS) + 2, controls, len(still) + sum(map(len, kept))))
sys.exit(1 if escaped or bad_controls or still or kept else 0)
