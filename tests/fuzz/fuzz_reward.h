/* One input of the reward fuzzer: a letter for the type, then response, label and metadata (JSON),
 * with a NUL between them. Whatever they are, there is one result: finite, with a reason of one
 * line that is text, and no crash. */
#ifndef TESTS_FUZZ_REWARD_H
#define TESTS_FUZZ_REWARD_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "reward/hub.h"
#include "text/unicode.h"

static json_t *fuzz_reward_text(const uint8_t **p, const uint8_t *end)
{
    const uint8_t *nul = memchr(*p, 0, (size_t)(end - *p));
    size_t n = (size_t)((nul ? nul : end) - *p), len;
    char *text = unicode_lossy((const char *)*p, n, &len);
    json_t *s = json_stringn(text, len);

    *p = nul ? nul + 1 : end;
    mem_free(text);
    return s;
}

static void fuzz_reward_one(const uint8_t *data, size_t n)
{
    /* those that run in this process; without a Python, questions of algebra end as failed */
    static const char *const types[] = {"math",       "deepscaler", "gemma_math", "dapo",
                                        "f1",         "gpqa",       "math_equal", "boxed_gpqa",
                                        "boxed_dapo", "boxed_f1",   "boxed_math", "random"};
    static struct hub *hub;
    const uint8_t *p = data + 1, *end = data + n;
    struct hub_result r;
    json_t *sample, *metadata, *text;

    if (!hub) {
        struct hub_opts o = {.python = "/nowhere/python", .reward_key = "score"};
        log_set_level(LOG_ERROR);
        if (hub_open(&o, &hub, NULL) != STATUS_OK) {
            abort();
        }
    }
    if (n == 0) {
        return;
    }
    sample = json_object();
    json_object_set_new(sample, "response", fuzz_reward_text(&p, end));
    json_object_set_new(sample, "label", fuzz_reward_text(&p, end));
    metadata = json_loadb((const char *)p, (size_t)(end - p), 0, NULL);
    metadata = json_is_object(metadata) ? metadata : (json_decref(metadata), json_object());
    json_object_set_new(metadata, "rm_type",
                        json_string(types[data[0] % (sizeof types / sizeof *types)]));
    json_object_set_new(sample, "metadata", metadata);
    if (hub_submit(hub, &(struct hub_request){1, sample}, NULL) != STATUS_OK ||
        hub_poll(hub, 600, &r, NULL) != STATUS_OK || hub_pending(hub) != 0 || r.id != 1) {
        abort();
    }
    text = json_string(r.reason);
    if (!r.reason[0] || !text || strchr(r.reason, '\n') || !isfinite(r.reward) ||
        r.failed != (r.why >= HUB_BAD_SAMPLE) || (r.failed && r.reward != 0)) {
        abort();
    }
    json_decref(text);
    json_decref(r.raw);
    json_decref(sample);
}

#endif
