/* Spans: what sinks hear, and how phases of a lane follow each other. */
#include "support.h"

#include "base/span.h"
#include "base/status.h"

struct heard {
    int n;
    char text[16][64];
    double t0[16], t1[16];
};

static void hear(void *arg, const struct span *s)
{
    struct heard *h = arg;
    assert_true(h->n < 16);
    snprintf(h->text[h->n], sizeof h->text[0], "%s %s %lld", s->lane, s->name,
             (long long)s->rollout);
    h->t0[h->n] = s->t0;
    h->t1[h->n++] = s->t1;
}

static void sinks_hear_until_removed(void **state)
{
    struct heard h = {0};
    (void)state;
    span_emit("a", "before", 0, 1, -1);
    assert_int_equal(span_add_sink(hear, &h), STATUS_OK);
    span_emit("trainer", "step", 1.5, 2.5, 7);
    span_remove_sink(hear, &h);
    span_emit("a", "after", 0, 1, -1);
    assert_int_equal(h.n, 1);
    assert_string_equal(h.text[0], "trainer step 7");
    assert_true(h.t0[0] == 1.5 && h.t1[0] == 2.5);
}

static void sinks_have_a_bound(void **state)
{
    struct heard h[5] = {{0}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(span_add_sink(hear, &h[i]), STATUS_OK);
    }
    assert_int_equal(span_add_sink(hear, &h[4]), STATUS_NOMEM);
    for (int i = 0; i < 4; i++) {
        span_remove_sink(hear, &h[i]);
    }
}

static void phases_follow(void **state)
{
    struct heard h = {0};
    struct span_lane l = {0};
    (void)state;
    span_add_sink(hear, &h);
    span_enter(&l, "loop", NULL, 0); /* nothing to end */
    span_enter(&l, "loop", "rollout", 3);
    span_enter(&l, "loop", "rollout", 3); /* the same one */
    span_enter(&l, "loop", "train", 3);
    span_enter(&l, "loop", "train", 4); /* the same phase of another rollout */
    span_enter(&l, "loop", NULL, -1);
    span_enter(&l, "loop", NULL, -1);
    span_remove_sink(hear, &h);
    assert_int_equal(h.n, 3);
    assert_string_equal(h.text[0], "loop rollout 3");
    assert_string_equal(h.text[1], "loop train 3");
    assert_string_equal(h.text[2], "loop train 4");
    for (int i = 0; i < 3; i++) {
        assert_true(h.t1[i] >= h.t0[i]);
        assert_true(i == 0 || h.t0[i] == h.t1[i - 1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sinks_hear_until_removed),
        cmocka_unit_test(sinks_have_a_bound),
        cmocka_unit_test(phases_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
