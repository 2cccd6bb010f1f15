/* Hashes of a step: what each field depends on, and what the rows are. */
#include "fakeport.h"

#include "rl/sample.h"
#include "rl/stephash.h"
#include "train/statesum.h"

static struct err e;
static json_t *rows;

static void take(void *arg, json_t *row)
{
    (void)arg;
    json_array_append_new(rows, row);
}

static uint64_t weights = 5;

static int sums(void *self, int part, struct statesum *out, struct err *err)
{
    (void)self;
    (void)err;
    out->n = 2;
    out->name = mem_alloc(2 * sizeof *out->name);
    out->sum = mem_alloc(2 * sizeof *out->sum);
    strcpy(out->name[0], part == STATESUM_GRAD ? "g0" : "w0");
    strcpy(out->name[1], part == STATESUM_GRAD ? "g1" : "w1");
    out->sum[0] = (uint64_t)part;
    out->sum[1] = weights;
    return STATUS_OK;
}

#define N 3
struct step {
    struct sample *s[N];
    struct train_sample t[N];
    float logp[N][2], old[N][2], ref[N][2], adv[N][2], raw[N], shaped[N];
    struct stephash_rollout r;
};

static void step_open(struct step *x)
{
    int32_t ids[4] = {1, 2, 3, 4};
    memset(x, 0, sizeof *x);
    for (int i = 0; i < N; i++) {
        x->s[i] = sample_new();
        sample_set(x->s[i], ids, 2, ids + 2, x->logp[i], 2, 0, 1);
        x->s[i]->index = i;
        x->s[i]->reward = i;
        x->s[i]->label = json_string("7");
        x->t[i] = (struct train_sample){.response = 2, .old = x->old[i], .adv = x->adv[i]};
        x->t[i].ref = x->ref[i];
    }
    x->r = (struct stephash_rollout){4, x->s, x->t, x->raw, x->shaped, N};
}

static void step_close(struct step *x)
{
    for (int i = 0; i < N; i++) {
        sample_free(x->s[i]);
    }
}

/* One step; its row, borrowed from `rows`. */
static const json_t *hash(struct step *x, int full)
{
    struct trainer_port p = {.sums = sums};
    struct stephash h = {.actor = &p, .full = full, .emit = take};
    json_t *row = json_object();
    json_array_clear(rows);
    assert_ok(stephash_data(&h, &x->r, &e), &e);
    assert_ok(stephash_step(&h, 2, row, &e), &e);
    assert_true(json_is_number(json_object_get(row, "perf/hash_time")));
    json_decref(row);
    stephash_fini(&h);
    assert_int_equal(json_array_size(rows), 2);
    return json_array_get(rows, 1);
}

static void each_field(void **state)
{
    static const char *const fields[] = {"prompts",    "tokens",        "rollout_log_probs",
                                         "rewards",    "old_log_probs", "ref_log_probs",
                                         "advantages", "weights"};
    struct step x;
    json_t *was;
    (void)state;
    for (int f = 0; f < 8; f++) {
        const json_t *now;
        step_open(&x);
        was = json_deep_copy(hash(&x, 0));
        assert_true(json_equal(was, hash(&x, 0))); /* the same again */
        switch (f) {
        case 0: x.s[1]->tokens[0] = 9; break;
        case 1: x.s[1]->tokens[3] = 9; break;
        case 2: x.s[1]->logps[0] = -0.5f; break;
        case 3: x.s[1]->reward = 9; break;
        case 4: x.old[1][1] = -1; break;
        case 5: x.ref[1][1] = -1; break;
        case 6: x.adv[2][0] = 1; break;
        default: weights++; break;
        }
        now = hash(&x, 0);
        for (int k = 0; k < 8; k++) {
            int same = json_equal(json_object_get(was, fields[k]), json_object_get(now, fields[k]));
            if (same == (k == f)) {
                fail_msg("change %s: field %s is %s", fields[f], fields[k],
                         same ? "the same" : "another");
            }
        }
        json_decref(was);
        step_close(&x);
    }
}

static void rows_of_a_run(void **state)
{
    struct step x;
    const json_t *row, *head, *by;
    (void)state;
    step_open(&x);
    row = hash(&x, 0);
    head = json_array_get(rows, 0);
    assert_string_equal(json_string_value(json_object_get(head, "format")), "miles-hashes");
    assert_int_equal(json_array_size(json_object_get(head, "tensors")), 2);
    assert_int_equal(json_integer_value(json_object_get(row, "rollout")), 4);
    assert_int_equal(json_integer_value(json_object_get(row, "step")), 2);
    assert_string_equal(json_string_value(json_array_get(json_object_get(row, "gradients"), 1)),
                        "g1");
    assert_null(json_object_get(row, "by_sample"));
    assert_null(json_object_get(row, "exp_avg"));
    row = hash(&x, 1);
    by = json_object_get(json_object_get(row, "by_sample"), "rewards");
    assert_int_equal(json_array_size(by), N);
    assert_false(json_equal(json_array_get(by, 0), json_array_get(by, 1)));
    assert_int_equal(json_array_size(json_object_get(row, "exp_avg")), 2);
    x.r.t = NULL; /* nobody trains */
    row = hash(&x, 0);
    assert_null(json_object_get(row, "advantages"));
    assert_non_null(json_object_get(row, "rollout_log_probs"));
    step_close(&x);
}

static void nobody_listens(void **state)
{
    struct stephash h = {0};
    struct step x;
    json_t *row = json_object();
    (void)state;
    step_open(&x);
    assert_ok(stephash_data(&h, &x.r, &e), &e);
    assert_ok(stephash_step(&h, 0, row, &e), &e);
    assert_int_equal(json_object_size(row), 0);
    json_decref(row);
    step_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_field),
        cmocka_unit_test(rows_of_a_run),
        cmocka_unit_test(nobody_listens),
    };
    int rc;
    rows = json_array();
    rc = cmocka_run_group_tests(tests, fakeport_setup, fakeport_teardown);
    json_decref(rows);
    return rc;
}
