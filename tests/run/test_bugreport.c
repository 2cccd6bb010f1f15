/* Reports: what is in the archive, by tar itself; what is cut, and that no secret is left. */
#include "runkit.h"

#include "base/buf.h"
#include "run/bugreport.h"
#include "run/tarfile.h"

static struct err e;

/* What a command prints. */
static char *output(const char *command)
{
    FILE *p = popen(command, "r");
    char *text = mem_alloc(1 << 20);
    size_t n;
    assert_non_null(p);
    n = fread(text, 1, (1 << 20) - 1, p);
    text[n] = 0;
    assert_int_equal(pclose(p), 0);
    return text;
}

static void archives(void **state)
{
    const char *ends[] = {".tar.gz", ".tgz"};
    char big[1500], command[700], name[40], *got;
    (void)state;
    memset(big, 'b', sizeof big);
    for (int i = 0; i < 2; i++) {
        struct tarfile t;
        snprintf(name, sizeof name, "x%s", ends[i]);
        tarfile_init(&t, 1 << 20);
        tarfile_add(&t, "d/empty", "", 0);
        tarfile_add(&t, "d/block", big, 512);
        tarfile_add(&t, "d/big", big, sizeof big);
        assert_ok(tarfile_write(&t, runkit_at(name), &e), &e);
        tarfile_fini(&t);
        snprintf(command, sizeof command, "tar -xzOf %s d/big && tar -tzf %s", runkit_at(name),
                 runkit_at(name));
        got = output(command);
        assert_memory_equal(got, big, sizeof big);
        assert_string_equal(got + sizeof big, "d/empty\nd/block\nd/big\n");
        mem_free(got);
    }
    {
        struct tarfile t;
        tarfile_init(&t, 4096);
        tarfile_add(&t, "a", "a", 1);
        assert_int_equal(tarfile_write(&t, runkit_at("x.zip"), &e), STATUS_INPUT);
        assert_ok(tarfile_write(&t, runkit_at("x.tar.zst"), &e), &e);
        tarfile_fini(&t);
        tarfile_init(&t, 1024);
        tarfile_add(&t, "a", big, sizeof big);
        assert_int_equal(tarfile_write(&t, runkit_at("y.tgz"), &e), STATUS_NOMEM);
        tarfile_fini(&t);
    }
}

static void a_run(void **state)
{
    struct buf log;
    char command[900], *got, *name;
    int files;
    (void)state;
    buf_init(&log, 1 << 22);
    for (int i = 0; i < 5000; i++) {
        buf_printf(&log, "2026-01-31T10:00:00.000Z info train: line %d\n", i);
    }
    buf_str(&log, "GET http://user:hunter2@host/ with --wandb-key abcdef012345\n");
    runkit_put("myrun/log.txt", log.data);
    buf_fini(&log);
    runkit_put("myrun/config.json", "{\"options\": {\"wandb_key\": \"0badcafe\", \"lr\": 0.5}}");
    runkit_put("myrun/manifest.json", "not json, hf_token=xyzzy");
    runkit_put("myrun/metrics.jsonl", "{\"rollout/step\":0}\n{\"rollout/step\":1}\n");
    runkit_put("myrun/engines/engine_0.log", "api_key: sesame\nready\n");
    assert_ok(bugreport_write(runkit_at("myrun"), runkit_at("r.tar.gz"), &files, &e), &e);
    assert_int_equal(files, 7);
    snprintf(command, sizeof command,
             "cd %s && tar -xzf r.tar.gz && find miles-report-myrun -type f | sort", runkit_dir);
    got = output(command);
    assert_string_equal(got, "miles-report-myrun/config.json\n"
                             "miles-report-myrun/engines/engine_0.log\n"
                             "miles-report-myrun/files.txt\n"
                             "miles-report-myrun/log.txt\n"
                             "miles-report-myrun/machine.txt\n"
                             "miles-report-myrun/manifest.json\n"
                             "miles-report-myrun/metrics.jsonl\n");
    mem_free(got);
    snprintf(
        command, sizeof command,
        "cd %s/miles-report-myrun && ! grep -rE 'hunter2|abcdef012345|0badcafe|xyzzy|sesame' .",
        runkit_dir);
    mem_free(output(command));
    got = runkit_text("miles-report-myrun/log.txt");
    assert_non_null(strstr(got, "line 0\n"));
    assert_non_null(strstr(got, "line 199\n"));
    assert_null(strstr(got, "line 200\n"));
    assert_non_null(strstr(got, "bytes are left out"));
    assert_non_null(strstr(got, "line 4001\n"));
    assert_null(strstr(got, "line 4000\n"));
    assert_non_null(strstr(got, "http://...@host/ with --wandb-key ...\n"));
    mem_free(got);
    got = runkit_text("miles-report-myrun/machine.txt");
    assert_non_null(strstr(got, "usable cores:"));
    mem_free(got);
    name = bugreport_name(runkit_at("myrun"));
    assert_string_equal(name, "miles-report-myrun.tar.gz");
    mem_free(name);
    assert_int_equal(bugreport_write(runkit_at("engines"), runkit_at("r.tgz"), &files, &e),
                     STATUS_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(archives), cmocka_unit_test(a_run)};
    return cmocka_run_group_tests(tests, runkit_setup, runkit_teardown);
}
