/* libFuzzer over the bodies of `miles serve` (fuzz/fuzz_body.h), in one process with the server.
 * The first byte of an input says which path it goes to. Half of the changes are made to JSON. */
#include "serve/servekit.h"

#include "fuzz/fuzz_body.h"

static struct servekit fuzz_body_kit;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned seed);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct api_opts o = {
        .service = {.engine = {.max_running = 8, .max_context = 64, .kv_tokens = 512},
                    .max_queued = 48}};
    void *state = NULL;

    (void)argc;
    (void)argv;
    if (servekit_setup(&state) != 0) {
        abort();
    }
    servekit_start(&fuzz_body_kit, &o);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf b, answer;
    const char *path;
    int status;

    if (n < 1) {
        return 0;
    }
    path = fuzz_body_seeds[data[0] % FUZZ_BODY_SEEDS].path;
    buf_init(&b, FUZZ_BODY_MAX * 2);
    buf_init(&answer, 256 << 20);
    buf_add(&b, (const char *)data + 1, n - 1);
    status = servekit_answer(fuzz_body_open(fuzz_body_kit.port, path, &b), &answer);
    if (status != 200 && status != 400 && status != 503) {
        fprintf(stderr, "%s: %d %.*s\n", path, status, (int)answer.len, answer.data);
        abort();
    }
    servekit_undo(&fuzz_body_kit);
    buf_fini(&b);
    buf_fini(&answer);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t max, unsigned seed)
{
    uint64_t s = seed;
    struct buf b;

    if (n < 2 || max < 2 || fuzz_body_below(&s, 2)) {
        return LLVMFuzzerMutate(data, n, max);
    }
    buf_init(&b, FUZZ_BODY_MAX * 2);
    buf_add(&b, (const char *)data + 1, n - 1);
    if (fuzz_body_below(&s, 8) == 0) { /* anew */
        const struct fuzz_body_seed *x = &fuzz_body_seeds[data[0] % FUZZ_BODY_SEEDS];
        buf_clear(&b);
        buf_str(&b, x->body);
    }
    fuzz_body_spoil(&s, &b);
    n = b.len < max - 1 ? b.len : max - 1;
    memcpy(data + 1, b.data, n);
    buf_fini(&b);
    return n + 1;
}
