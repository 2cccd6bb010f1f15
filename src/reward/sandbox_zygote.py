# The first process inside a sandbox of Python programs: an interpreter that is up before the job
# comes and forks one child per case. The counterpart of sandbox_init.c; the wire is sandbox_wire.h.
# It holds no secret: expected outputs never come here. Arguments: Python's module folders.
import sys
import os
import marshal
import _signal
import _socket
import resource

number = int.from_bytes
control = _socket.socket(fileno=3)
os.set_inheritable(3, False)


# Process 1 is closed to the others (its memory, its descriptors): what it says about a program's end
# must not be the program's words. `ctypes` would say this more plainly and take five times as long.
try:
    import _ctypes
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")
except (ImportError, OSError):
    prctl = 0


def dumpable(yes):
    if prctl:
        _ctypes.call_function(prctl, (4, yes, 0, 0, 0))


def limit(what, soft, hard):
    old = resource.getrlimit(what)[1]
    if old != resource.RLIM_INFINITY and old < hard:
        hard = old
    resource.setrlimit(what, (min(soft, hard), hard))


def child(case, blob, fds):
    cpu, memory, processes, file_size, files, serial, nargs = case
    dumpable(1)
    folder = "/tmp/case%04d" % (serial % 10000)
    try:
        os.mkdir(folder, 0o755)
        os.chdir(folder)
    except OSError:
        os.chdir("/tmp")
    texts = []
    for fd in fds[3:]:
        size = os.fstat(fd).st_size
        texts.append(os.pread(fd, size, 0) if size else b"")
    harness = texts[1] if len(texts) > 1 else None
    null = os.open("/dev/null", os.O_RDWR)
    # With a harness the program's own streams lead nowhere, and descriptors 3 and 4 are the
    # harness's: what it is given and what it says.
    wanted = [null, null, fds[2], fds[0], fds[1]] if harness else fds[:3]
    wanted = [os.dup2(fd, 40 + i, False) for i, fd in enumerate(wanted)]
    for i, fd in enumerate(wanted):
        os.dup2(fd, i, i < 3)
    os.closerange(len(wanted), 256)
    limit(resource.RLIMIT_CPU, cpu, cpu + 1)
    limit(resource.RLIMIT_FSIZE, file_size, file_size)
    limit(resource.RLIMIT_NOFILE, files, files)
    limit(resource.RLIMIT_STACK, 64 << 20, 64 << 20)
    limit(resource.RLIMIT_MEMLOCK, 0, 0)
    limit(resource.RLIMIT_MSGQUEUE, 0, 0)
    limit(resource.RLIMIT_SIGPENDING, 256, 256)
    if processes:
        limit(resource.RLIMIT_NPROC, processes + 1, processes + 1)
    limit(resource.RLIMIT_AS, memory, memory)
    module = type(sys)("__main__")
    module.__dict__["__builtins__"] = __builtins__
    module.__dict__["__file__"] = "main.py"
    sys.modules["__main__"] = module
    sys.argv[:] = ["main.py"] + [os.fsdecode(w) for w in blob.split(b"\0")[:nargs]]
    if harness:
        exec(marshal.loads(harness), {"source": texts[0], "module": module,
                                      "words": sys.argv[1:], "__name__": "harness"})
    else:
        exec(compile(texts[0], "main.py", "exec", dont_inherit=True), module.__dict__)


def leave(code):
    # What the interpreter would do at its end, without taking itself apart.
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        import atexit
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        code = code or 120
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)


def run(case, blob, fds):
    code = 1
    try:
        try:
            child(case, blob, fds)
            code = 0
        except SystemExit as stop:
            if stop.code is None:
                code = 0
            elif isinstance(stop.code, int):
                code = stop.code & 255
            else:
                print(stop.code, file=sys.stderr)
        except BaseException:
            kind, value, trace = sys.exc_info()
            while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
                trace = trace.tb_next
            sys.excepthook(kind, value, trace)
        leave(code)
    finally:
        os._exit(code)


def main():
    dumpable(0)
    control.send(b"ready")
    while True:
        data, extra, _, _ = control.recvmsg(131072, _socket.CMSG_SPACE(5 * 4))
        if len(data) < 56:
            os._exit(0)
        case = [number(data[i:i + 8], sys.byteorder, signed=True) for i in range(0, 56, 8)]
        fds = []
        for level, kind, raw in extra:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                fds += [number(raw[i:i + 4], sys.byteorder) for i in range(0, len(raw), 4)]
        status, cpu, peak, error = -1, 0, 0, 11
        try:
            pid = os.fork()
        except OSError as why:
            pid, error = -1, why.errno
        if pid == 0:
            control.close()
            run(case, data[56:], fds)
        for fd in fds:
            os.close(fd)
        while pid > 0:
            got, ended, use = os.wait4(-1, 0)
            if got == pid:
                status, cpu, error = ended, int((use.ru_utime + use.ru_stime) * 1e6), 0
                peak = use.ru_maxrss
                break
        try:
            os.kill(-1, 9)
        except OSError:
            pass
        try:
            while True:
                os.wait4(-1, 0)
        except OSError:
            pass
        control.send(b"".join(v.to_bytes(8, sys.byteorder, signed=True)
                              for v in (status, cpu, peak, error)))


sys.path[:] = sys.argv[1:]
del sys.argv[1:]
_signal.signal(_signal.SIGINT, _signal.SIG_DFL)
main()
