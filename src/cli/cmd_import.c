/* Owns `miles import FILE.gguf DIR`: a model on disk written as a bf16 Hugging Face folder, for
 * other tools' sake; miles itself reads GGUF files as they are. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cli/cmd.h"
#include "model/hfdir.h"
#include "model/wfile.h"

static const char cmd_import_usage[] =
    "usage: miles import FILE.gguf DIR\n"
    "\n"
    "Writes the model of FILE.gguf as a Hugging Face folder: config.json, bf16 safetensors,\n"
    "tokenizer.json, chat template. DIR must not exist, or be an empty folder; it appears when "
    "all\n"
    "of it is on disk. Weights can be F32, F16, BF16, Q8_0 or Q4_1.\n";

static int cmd_import_read(void *arg, const char *name, uint16_t *dst, int64_t count, struct err *e)
{
    return wfile_read_bf16(arg, name, dst, count, e);
}

int cmd_import(int argc, char **argv)
{
    struct err e = {0};
    struct wfile *w = NULL;
    int rc;

    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(cmd_import_usage, stdout);
        return CMD_OK;
    }
    if (argc != 3 || argv[1][0] == '-' || argv[2][0] == '-') {
        fputs(cmd_import_usage, stderr);
        return CMD_USAGE;
    }
    rc = wfile_open(argv[1], &w, &e);
    if (rc == STATUS_OK) {
        rc = hfdir_write(argv[2], w, cmd_import_read, w, &e);
    }
    if (rc == STATUS_OK) {
        printf("%s: %d tensors\n", argv[2], wfile_tensor_count(w));
    }
    wfile_close(w);
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}
