/* What options --...-path may name, and shared objects that are right and wrong. */
#include "support.h"

#include <unistd.h>

#include "base/plugin.h"
#include "base/status.h"
#include "miles_plugin.h"

#define SO TEST_BUILD_DIR "/plugin_broken_plugin.so"

static int resolve(const char *flag, const char *text, struct plugin_ref *r, struct err *e)
{
    const struct plugin_hook *h = plugin_hook(flag);
    assert_non_null(h);
    return plugin_resolve(h, text, r, e);
}

static void kinds(void **state)
{
    static const struct {
        const char *flag, *text;
        enum plugin_kind kind;
        const char *builtin;
    } t[] = {
        {"custom-rm-path", "pkg.mod.fn", PLUGIN_PYTHON, NULL},
        {"custom-rm-path", "recipes/add_reward.py:last_integer", PLUGIN_PYTHON, NULL},
        {"custom-rm-path", SO ":empty", PLUGIN_SO, NULL},
        {"custom-rm-path", "http://127.0.0.1:1/x.so:y", PLUGIN_URL, NULL},
        {"dynamic-sampling-filter-path", "check_no_aborted", PLUGIN_BUILTIN, "check_no_aborted"},
        {"dynamic-sampling-filter-path",
         "miles.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std",
         PLUGIN_BUILTIN, "check_reward_nonzero_std"},
        {"dynamic-sampling-filter-path", "mine.check_reward_nonzero_std", PLUGIN_PYTHON, NULL},
        {"custom-tis-function-path",
         "examples/train_infer_mismatch_helper/mis.py:compute_mis_weights_with_cp", PLUGIN_BUILTIN,
         "mis"},
        {"custom-tis-function-path", "miles.backends.training_utils.loss.icepop_function",
         PLUGIN_BUILTIN, "icepop"},
        {"custom-generate-function-path", "miles.rollout.generate_hub.agentic_tool_call.generate",
         PLUGIN_BUILTIN, "agent"},
        {"custom-generate-function-path", "mine.agentic_tool_call.generate", PLUGIN_PYTHON, NULL},
        {"data-source-path", "miles.rollout.data_source.RolloutDataSourceWithBuffer",
         PLUGIN_BUILTIN, "dataset"},
    };
    (void)state;
    assert_int_equal(chdir(TEST_SOURCE_DIR), 0);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct plugin_ref r;
        struct err e = {0};
        int rc = resolve(t[i].flag, t[i].text, &r, &e);
        if (rc != STATUS_OK) {
            fail_msg("%s: %s", t[i].text, e.msg);
        }
        assert_int_equal(r.kind, t[i].kind);
        if (t[i].builtin) {
            assert_string_equal(r.builtin, t[i].builtin);
        }
        plugin_ref_fini(&r);
    }
}

static void refused(void **state)
{
    static const struct {
        const char *flag, *text, *says;
    } t[] = {
        {"custom-rm-path", "word", "not something that can be called"},
        {"custom-rm-path", "", "not something that can be called"},
        {"custom-rm-path", ".a.b", "not something"},
        {"custom-rm-path", "a..b", "not something"},
        {"custom-rm-path", "a.b.", "not something"},
        {"custom-rm-path", "a.2b", "not something"},
        {"custom-rm-path", "nowhere.py:fn", "no file nowhere.py"},
        {"custom-rm-path", "nowhere.so:fn", "no file nowhere.so"},
        {"custom-rm-path", SO ":", "no symbol"},
        {"custom-rm-path", "recipes/add_reward.py:", "no name"},
        {"custom-loss-function-path", "http://h/", "over the network"},
        {"rollout-function-path", SO ":empty", "shared object cannot take"},
        {"custom-tis-function-path", "word", "one of tis, icepop, mis"},
    };
    (void)state;
    assert_int_equal(chdir(TEST_SOURCE_DIR), 0);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct plugin_ref r;
        struct err e = {0};
        assert_int_equal(resolve(t[i].flag, t[i].text, &r, &e), STATUS_INPUT);
        if (!strstr(e.msg, t[i].says) || !strstr(e.msg, t[i].flag)) {
            fail_msg("%s: %s", t[i].text, e.msg);
        }
    }
}

static void objects(void **state)
{
    static const struct {
        const char *symbol, *says;
    } t[] = {
        {"newer", "ABI 7, this program has 1"}, {"tiny", "no struct miles_plugin"},
        {"empty", "has no function `call`"},    {"older", "has no function `call`"},
        {"nothing", "no symbol nothing"},       {"shut", "it does not open"},
    };
    const struct plugin_hook *h = plugin_hook("custom-megatron-init-path");
    struct miles_why why = {""};
    struct plugin_ref r;
    struct plugin *p;
    struct err e = {0};
    char text[512];

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        snprintf(text, sizeof text, "%s:%s", SO, t[i].symbol);
        assert_int_equal(resolve(h->flag, text, &r, &e), STATUS_OK);
        assert_int_not_equal(plugin_open(h, &r, "{}", &p, &e), STATUS_OK);
        if (!strstr(e.msg, t[i].says) || !strstr(e.msg, "--custom-megatron-init-path")) {
            fail_msg("%s: %s", t[i].symbol, e.msg);
        }
        plugin_ref_fini(&r);
    }
    assert_int_equal(resolve(h->flag, SO ":broken", &r, &e), STATUS_OK);
    assert_int_equal(plugin_open(h, &r, "{}", &p, &e), STATUS_OK);
    assert_int_equal(plugin_table(p)->call(plugin_self(p), "[]", NULL, &why), 1);
    assert_string_equal(why.text, "it is broken");
    plugin_close(p);
    plugin_ref_fini(&r);
    /* a file that is no shared object */
    assert_int_equal(resolve(h->flag, TEST_SOURCE_DIR "/README.md.so:x", &r, &e), STATUS_INPUT);
}

/* Every row can be called: a name, a kind, a Python call, and a function for shared objects. */
static void table(void **state)
{
    int n = 0;
    (void)state;
    for (const struct plugin_hook *h; (h = plugin_hook_at(n)); n++) {
        assert_ptr_equal(plugin_hook(h->flag), h);
        assert_true(h->call && *h->call);
        assert_int_equal(!!(h->kinds & PLUGIN_SO), h->offset != 0);
        assert_int_equal(!!(h->kinds & PLUGIN_BUILTIN), h->names != NULL);
    }
    assert_true(n >= 20);
    assert_null(plugin_hook("no-such-path"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kinds), cmocka_unit_test(refused),
                                       cmocka_unit_test(objects), cmocka_unit_test(table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
