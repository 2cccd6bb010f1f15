/* Owns the Python half of a worker: its first lines, and the files of python/miles_c, taken in by
 * the assembler so that they stay files that can be read, checked and installed by themselves. The
 * modules are sent and not installed, so that program and Python side are always of one version,
 * whatever the user's interpreter has. PYSIDE_DIR comes from the build. */
#include "reward/pyside.h"

#define BLOB(name, file)                                                                           \
    __asm__(".section .rodata\n"                                                                   \
            ".balign 16\npyside_" #name ":\n"                                                      \
            ".incbin \"" PYSIDE_DIR "/" file "\"\n"                                                \
            ".byte 0\n.previous\n");                                                               \
    extern const char pyside_##name[]

BLOB(init, "__init__.py");
BLOB(types, "types.py");
BLOB(shim, "shim.py");
BLOB(worker, "worker.py");
BLOB(hooks, "hooks.py");
BLOB(engine, "engine.py");
BLOB(agent, "agent.py");
BLOB(sandbox, "sandbox.py");
BLOB(memory, "memory.py");
BLOB(loss, "loss.py");
BLOB(params, "params.py");

json_t *pyside_modules(void)
{
    static const struct {
        const char *name, *text;
    } modules[] = {
        {"miles_c", pyside_init},          {"miles_c.types", pyside_types},
        {"miles_c.shim", pyside_shim},     {"miles_c.worker", pyside_worker},
        {"miles_c.hooks", pyside_hooks},   {"miles_c.engine", pyside_engine},
        {"miles_c.agent", pyside_agent},   {"miles_c.sandbox", pyside_sandbox},
        {"miles_c.memory", pyside_memory}, {"miles_c.loss", pyside_loss},
        {"miles_c.params", pyside_params},
    };
    json_t *out = json_object();

    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        json_object_set_new(out, modules[i].name, json_string(modules[i].text));
    }
    return out;
}

/* clang-format off */
const char pyside_boot[] =
    "import sys\n"
    "sys.path[:] = [p for p in sys.path if p]  # a json.py in the user's folder is not ours\n"
    "import fcntl, importlib.machinery, json, os, signal\n"
    "\n"
    "# Numbers above those user code is likely to close, and not inherited by what it starts.\n"
    "def raise_fd(fd):\n"
    "    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)\n"
    "    os.close(fd)\n"
    "    return high\n"
    "\n"
    "requests, replies, life = raise_fd(3), raise_fd(4), raise_fd(5)\n"
    "\n"
    "# When the main program is gone, end of file comes on `life` and the whole process group\n"
    "# goes: also what the function has started. Forked twice, so that the function's own\n"
    "# wait() never meets the watcher.\n"
    "def watch():\n"
    "    first = os.fork()\n"
    "    if first:\n"
    "        os.waitpid(first, 0)\n"
    "        return\n"
    "    if os.fork():\n"
    "        os._exit(0)\n"
    "    os.close(requests)\n"
    "    os.close(replies)\n"
    "    while True:\n"
    "        try:\n"
    "            os.read(life, 1)\n"
    "            os.killpg(os.getpgrp(), signal.SIGKILL)\n"
    "        except InterruptedError:\n"
    "            continue\n"
    "        except BaseException:\n"
    "            os._exit(0)\n"
    "\n"
    "watch()\n"
    "os.close(life)\n"
    "lines = os.fdopen(requests, \"rb\", closefd=False)\n"
    "setup = json.loads(lines.readline())\n"
    "\n"
    "# The modules that were sent, before any that is installed.\n"
    "class Carried:\n"
    "    texts = setup.pop(\"modules\")\n"
    "\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name in self.texts:\n"
    "            return importlib.machinery.ModuleSpec(name, self, is_package=name == \"miles_c\")\n"
    "        return None\n"
    "\n"
    "    def create_module(self, spec):\n"
    "        return None\n"
    "\n"
    "    def exec_module(self, module):\n"
    "        name = module.__name__\n"
    "        exec(compile(self.texts[name], \"<%s>\" % name, \"exec\"), module.__dict__)\n"
    "\n"
    "sys.meta_path.insert(0, Carried())\n"
    "import miles_c.worker\n"
    "miles_c.worker.main(setup, lines, replies)\n";
/* clang-format on */
