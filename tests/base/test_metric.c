/* Metric rows: values, what is not finite, sinks, ownership. */
#include "support.h"

#include <math.h>
#include <pthread.h>

#include "base/metric.h"
#include "base/status.h"

struct heard {
    int n;
    char last[512];
};

static void sink(void *arg, const json_t *row)
{
    struct heard *h = arg;
    char *text = json_dumps(row, JSON_COMPACT);
    h->n++;
    snprintf(h->last, sizeof h->last, "%s", text);
    free(text);
}

static void values(void **state)
{
    struct heard h = {0};
    json_t *row = json_object();
    (void)state;
    assert_int_equal(metric_add_sink(sink, &h), 0);
    metric_put_int(row, "rollout/step", 9007199254740993);
    metric_put(row, "train/loss", 0.25);
    metric_put(row, "train/nan", NAN);
    metric_put(row, "train/inf", -INFINITY);
    metric_put(row, "train/loss", -0.5); /* the last one wins, in its first place */
    json_incref(row);
    metric_emit(row);
    assert_int_equal(row->refcount, 1); /* emit took one */
    json_decref(row);
    metric_remove_sink(sink, &h);
    assert_int_equal(h.n, 1);
    assert_string_equal(h.last, "{\"rollout/step\":9007199254740993,\"train/loss\":-0.5,"
                                "\"train/nan\":null,\"train/inf\":null}");
    metric_emit(json_object());
    assert_int_equal(h.n, 1);
}

static void sinks_are_few(void **state)
{
    struct heard h[9] = {{0}};
    (void)state;
    for (int i = 0; i < 8; i++) {
        assert_int_equal(metric_add_sink(sink, &h[i]), 0);
    }
    assert_int_equal(metric_add_sink(sink, &h[8]), STATUS_NOMEM);
    metric_remove_sink(sink, &h[3]);
    assert_int_equal(metric_add_sink(sink, &h[8]), 0);
    metric_emit(json_object());
    for (int i = 0; i < 9; i++) {
        assert_int_equal(h[i].n, i != 3);
        metric_remove_sink(sink, &h[i]);
    }
}

static void *emitter(void *arg)
{
    (void)arg;
    for (int i = 0; i < 500; i++) {
        json_t *row = json_object();
        metric_put_int(row, "i", i);
        metric_emit(row);
    }
    return NULL;
}

static void threads(void **state)
{
    struct heard h = {0};
    pthread_t t[4];
    (void)state;
    assert_int_equal(metric_add_sink(sink, &h), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, emitter, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
    }
    metric_remove_sink(sink, &h);
    assert_int_equal(h.n, 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(sinks_are_few),
        cmocka_unit_test(threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
