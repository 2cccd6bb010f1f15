/* Owns what a person sees while a run goes on. Lines go to stdout; the bar is rubbed out before a
 * log line is written. */
#include "cli/progress.h"

#include <math.h>
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
    p->best_eval = NAN;
    log_set_before_line(progress_rub, p);
}

void progress_close(struct progress *p)
{
    progress_rub(p);
    log_set_before_line(NULL, NULL);
}

static double value(const json_t *row, const char *name)
{
    json_t *v = json_object_get(row, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void progress_step(struct progress *p, const struct loop_progress *q)
{
    double diff = value(q->row, "train/forward_logp_max_diff");
    double loss = value(q->row, "train/loss"), norm = value(q->row, "train/grad_norm");
    (void)p;
    printf("step %lld/%lld  reward %.3f  len %.1f", (long long)q->rollout + 1,
           (long long)q->num_rollout, value(q->row, "rollout/raw_reward"),
           value(q->row, "rollout/response_len/mean"));
    if (isfinite(norm)) {
        printf("  loss %+.4f  grad %.3f", loss, norm);
    }
    if (json_object_get(q->row, "train/forward_logp_max_diff")) {
        printf("  forward_logp_max_diff %g", diff);
    }
    if (json_object_get(q->row, "train/mismatch_kl")) {
        printf("  mismatch_kl %.3g", value(q->row, "train/mismatch_kl"));
    }
    printf("  rollout %.1fs  train %.1fs  step %.1fs\n", value(q->row, "perf/rollout_time"),
           value(q->row, "perf/train_time"), value(q->row, "perf/step_time"));
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
            progress_step(p, q);
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
