/* Owns what a person sees while a run goes on. Lines go to stdout; the bar is rubbed out before a
 * log line is written. */
#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "rl/loop.h"

static double progress_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void progress_rub(void *arg)
{
    struct progress *p = arg;
    if (p->drawn) {
        fputs("\r\033[K", stdout);
        fflush(stdout);
        p->drawn = 0;
    }
}

void progress_open(struct progress *p)
{
    memset(p, 0, sizeof *p);
    p->tty = isatty(STDOUT_FILENO);
    p->start = progress_now();
    log_set_before_line(progress_rub, p);
}

void progress_close(struct progress *p)
{
    progress_rub(p);
    log_set_before_line(NULL, NULL);
}

/* A step without a rollout, or without training, has no figures of it: they are left out. */
static void progress_step(const struct loop_progress *q)
{
    static const struct {
        const char *metric, *name;
        int digits;
        const char *unit;
    } shown[] = {
        {"rollout/raw_reward", "reward", 3, ""},
        {"rollout/response_len/mean", "len", 1, ""},
        {"train/loss", "loss", 4, ""},
        {"train/grad_norm", "grad", 3, ""},
        {"train/forward_logp_max_diff", "forward_logp_max_diff", -1, ""},
        {"train/mismatch_kl", "mismatch_kl", -1, ""},
        {"perf/rollout_time", "rollout", 1, "s"},
        {"perf/train_time", "train", 1, "s"},
        {"perf/step_time", "step", 1, "s"},
    };

    printf("step %lld/%lld", (long long)q->rollout + 1, (long long)q->num_rollout);
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        const json_t *v = json_object_get(q->row, shown[i].metric);
        int signs = strcmp(shown[i].name, "loss") == 0;
        if (!json_is_number(v)) {
            continue;
        }
        printf("  %s ", shown[i].name);
        if (shown[i].digits < 0) {
            printf("%.3g", json_number_value(v));
        } else {
            printf(signs ? "%+.*f%s" : "%.*f%s", shown[i].digits, json_number_value(v),
                   shown[i].unit);
        }
    }
    printf("\n");
    fflush(stdout);
}

static void progress_eval(struct progress *p, const struct loop_progress *q)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)q->row, key, v)
    {
        /* eval/NAME: the one key without a second part */
        if (strncmp(key, "eval/", 5) == 0 && !strpbrk(key + 5, "/-") &&
            strcmp(key, "eval/step") != 0 && strcmp(key, "eval/duration_seconds") != 0) {
            printf("eval after %lld steps  %s %.3f  (%.0f s since start)\n", (long long)q->rollout,
                   key + 5, json_number_value(v), progress_now() - p->start);
        }
    }
    fflush(stdout);
}

void progress_show(void *arg, const struct loop_progress *q)
{
    struct progress *p = arg;
    double now;
    int width = 24, fill;

    if (q->row) {
        progress_rub(p);
        if (strcmp(q->phase, "step") == 0) {
            progress_step(q);
        } else {
            progress_eval(p, q);
        }
        return;
    }
    now = progress_now();
    if (!p->tty || (p->drawn && now - p->last_draw < 0.1)) {
        return;
    }
    p->last_draw = now;
    fill = q->total > 0 ? width * q->done / q->total : 0;
    fill = fill > width ? width : fill;
    printf("\r\033[Kstep %lld/%lld %-7s [%.*s%*s] %d/%d", (long long)q->rollout + 1,
           (long long)q->num_rollout, q->phase, fill, "########################", width - fill, "",
           q->done, q->total);
    fflush(stdout);
    p->drawn = 1;
}
