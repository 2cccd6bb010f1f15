/* The native port's export: the weights in memory under the names of the folder they came from, and
 * what is not the text model's unchanged. */
#include "support.h"

#include "model/tinymodel.h"
#include "rl/port_native.h"

static const struct tinymodel_spec specs[] = {
    {"llama-vision", 1, 1, 64, 2, 1, 32, 64, 40, 64, 0},
    {"gemma2", 1, 2, 64, 2, 1, 32, 64, 40, 64, 0},
    {"glm4", 0, 1, 64, 2, 1, 32, 64, 40, 64, 0},
};

/* Turns the sign of every weight in memory. */
static void flip(void *values, size_t bytes)
{
    uint16_t *p = values;
    for (size_t i = 0; i < bytes / 2; i++) {
        p[i] ^= 0x8000;
    }
}

static void negate(struct weights *w)
{
    for (int i = 0; i < w->nparams; i++) {
        struct param *p = &w->params[i];
        flip(p->w16.data ? p->w16.data : p->view.fwd, p->w16.data ? p->w16.size : p->view.fwd_size);
    }
}

static void check_tensor(const struct wfile *from, const struct wfile *to, int i)
{
    const struct wfile_tensor *t = wfile_tensor_at(from, i);
    int trained = strcmp(t->name, "vision_tower.weight") != 0;
    uint16_t *a = mem_alloc((size_t)t->count * 2), *b = mem_alloc((size_t)t->count * 2);
    struct err e = {0};

    assert_string_equal(wfile_tensor_at(to, i)->name, t->name);
    assert_ok(wfile_read_bf16(from, t->name, a, t->count, &e), &e);
    assert_ok(wfile_read_bf16(to, t->name, b, t->count, &e), &e);
    for (int64_t k = 0; k < t->count; k++) {
        assert_int_equal(b[k], trained ? a[k] ^ 0x8000 : a[k]);
    }
    mem_free(a);
    mem_free(b);
}

static void test_export(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        const char *dir = tinymodel_write(&specs[i]);
        char name[32];
        struct tinymodel m;
        struct port_native p;
        struct wfile *out;
        struct err e = {0};
        snprintf(name, sizeof name, "out-%zu", i);
        tinymodel_open(&m, dir, "cpu", "auto", 1, 0, 0, 1);
        negate(m.w);
        assert_ok(port_native_open(&p, m.w, NULL, m.file, NULL, NULL, &e), &e);
        assert_ok(p.train.export_hf(p.train.self, fixture_path(name), &e), &e);
        assert_ok(wfile_open(fixture_path(name), &out, &e), &e);
        assert_int_equal(wfile_tensor_count(out), wfile_tensor_count(m.file));
        assert_memory_equal(wfile_arch(out), wfile_arch(m.file), sizeof(struct arch));
        for (int k = 0; k < wfile_tensor_count(out); k++) {
            check_tensor(m.file, out, k);
        }
        wfile_close(out);
        port_native_close(&p);
        tinymodel_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_export)};
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
