/* Owns the files that a sandbox needs inside and that come along in our binary: the init of native
 * sandboxes and the Python texts. Taken in by the assembler, so that they stay files that can be
 * read, checked and run by themselves. SANDBOX_INIT_FILE and SANDBOX_SOURCE_DIR come from the
 * build. */
#include "reward/sandbox_int.h"

#define BLOB(name, file)                                                                           \
    __asm__(".section .rodata\n"                                                                   \
            ".global " #name "\n.hidden " #name "\n.balign 16\n" #name ":\n"                       \
            ".incbin \"" file "\"\n"                                                               \
            ".global " #name "_end\n.hidden " #name "_end\n" #name "_end:\n"                       \
            ".byte 0\n.previous\n")

BLOB(sandbox_blob_init, SANDBOX_INIT_FILE);
BLOB(sandbox_blob_zygote, SANDBOX_SOURCE_DIR "/sandbox_zygote.py");
BLOB(sandbox_blob_call, SANDBOX_SOURCE_DIR "/sandbox_call.py");
BLOB(sandbox_blob_serve, SANDBOX_SOURCE_DIR "/sandbox_serve.py");
BLOB(sandbox_blob_judge, SANDBOX_SOURCE_DIR "/sandbox_judge.py");
