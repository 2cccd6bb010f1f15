/* The file of engines and the control server: what they say becomes of the port's engines. */
#include "support.h"

#include <unistd.h>

#include "base/fsio.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/fixture.h"
#include "net/http_client.h"
#include "rl/fakeengine.h"
#include "run/ctlserver.h"
#include "run/fleetfile.h"

static struct fakeengine_host h;
static struct port_http *port;
static struct fleetfile *fleetfile;
static struct err e;

static void put(const char *path, const char *text)
{
    assert_ok(fsio_write_atomic(path, text, strlen(text), &e), &e);
}

static void open_port(void)
{
    struct port_http_opts o = {
        .nengines = 1, .room = 3, .host = &h.host, .sync = &h.sync, .slow_s = 0.2};

    fakeengine_open(&h, 1);
    assert_ok(port_http_open(&o, &port, &e), &e);
    while (port_http_start(port, &e) == STATUS_AGAIN) {
    }
}

static void close_port(void)
{
    fleetfile_close(fleetfile);
    fleetfile = NULL;
    port_http_close(port);
    fakeengine_close(&h);
}

static int has(const char *url)
{
    return port_http_find(port, url) >= 0;
}

static void test_file(void **state)
{
    char *path = mem_strdup(fixture_path("engines.txt"));
    char *text;
    size_t n;
    (void)state;

    open_port();
    /* a file that is not there is an empty one */
    assert_ok(fleetfile_open(path, port, &fleetfile, &e), &e);
    put(path, "# ours\n\n  127.0.0.1:7 # the first\r\nhttp://127.0.0.1:8/\n127.0.0.1:7\n");
    fleetfile_look(fleetfile, 10.0);
    assert_true(has("http://127.0.0.1:7") && has("http://127.0.0.1:8"));
    put(path, "# ours\n127.0.0.1:8 # stays\n127.0.0.1:9");
    fleetfile_look(fleetfile, 10.5); /* not yet */
    assert_false(has("http://127.0.0.1:9"));
    fleetfile_look(fleetfile, 11.0);
    assert_true(has("http://127.0.0.1:8") && has("http://127.0.0.1:9"));
    assert_false(has("http://127.0.0.1:7"));
    /* a slip changes nothing */
    put(path, "127.0.0.1:8\nnonsense\n");
    fleetfile_look(fleetfile, 12.0);
    assert_true(has("http://127.0.0.1:8") && has("http://127.0.0.1:9"));
    put(path, "# ours\n127.0.0.1:8 # stays\n127.0.0.1:9");
    fleetfile_look(fleetfile, 13.0);
    /* what is asked for is in the file, and what people wrote there stays */
    assert_ok(fleetfile_drop(fleetfile, "http://127.0.0.1:9", &e), &e);
    assert_int_equal(fleetfile_drop(fleetfile, "http://127.0.0.1:9", &e), STATUS_NOTFOUND);
    assert_ok(fleetfile_add(fleetfile, "127.0.0.1:10", &e), &e);
    assert_int_equal(fleetfile_add(fleetfile, "127.0.0.1:10", &e), STATUS_INPUT);
    assert_int_equal(fleetfile_add(fleetfile, "127.0.0.1", &e), STATUS_INPUT);
    assert_ok(fsio_read(path, 4096, &text, &n, &e), &e);
    assert_string_equal(text, "# ours\n127.0.0.1:8 # stays\nhttp://127.0.0.1:10\n");
    mem_free(text);
    close_port();
    /* the next start finds them */
    open_port();
    assert_ok(fleetfile_open(path, port, &fleetfile, &e), &e);
    assert_true(has("http://127.0.0.1:8") && has("http://127.0.0.1:10"));
    close_port();
    /* and says which line is none */
    open_port();
    put(path, "127.0.0.1:8\nnonsense\n");
    assert_int_equal(fleetfile_open(path, port, &fleetfile, &e), STATUS_INPUT);
    assert_non_null(strstr(e.msg, "line 2: nonsense has no port"));
    assert_non_null(strstr(e.msg, "engines.txt"));
    close_port();
    mem_free(path);
}

/* Asks the control server, which is attended meanwhile. The status; the answer goes to *out. */
static int ask(struct ctlserver *c, const char *method, const char *path, const char *body,
               json_t **out)
{
    struct http_client *hc;
    struct http_client_event *ev = NULL;
    struct http_client_request q = {
        .method = method, .body = body, .len = body ? strlen(body) : 0, .total_s = 10};
    char url[128];
    int status;

    assert_ok(http_client_new(&hc, &(struct http_client_opts){0}, &e), &e);
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", ctlserver_port(c), path);
    q.url = url;
    assert_ok(http_client_start(hc, &q, NULL, &e), &e);
    while (!ev) {
        ctlserver_attend(c);
        ev = http_client_take(hc, 0.01);
    }
    status = ev->status;
    json_decref(*out);
    *out = json_loadb(ev->data, ev->len, 0, NULL);
    http_client_release(hc, ev);
    http_client_free(hc);
    return status;
}

static void test_control(void **state)
{
    char *path = mem_strdup(fixture_path("more.txt"));
    struct ctlserver_opts o = {0};
    struct ctlserver *c;
    json_t *a = NULL;
    (void)state;

    open_port();
    assert_ok(fleetfile_open(path, port, &fleetfile, &e), &e);
    o.engines = port;
    o.fleetfile = fleetfile;
    assert_ok(ctlserver_open(&o, &c, &e), &e);
    assert_int_equal(ask(c, "GET", "/health", NULL, &a), 200);
    assert_int_equal(ask(c, "GET", "/engines", NULL, &a), 200);
    assert_int_equal(json_array_size(json_object_get(a, "engines")), 1);
    assert_int_equal(ask(c, "POST", "/engines", "{\"url\":\"127.0.0.1:7\"}", &a), 202);
    assert_true(has("http://127.0.0.1:7"));
    assert_int_equal(ask(c, "POST", "/engines", "{\"url\":\"127.0.0.1:7\"}", &a), 400);
    assert_int_equal(ask(c, "POST", "/engines", "{\"url\":7}", &a), 400);
    assert_int_equal(ask(c, "POST", "/engines", "[", &a), 400);
    assert_int_equal(ask(c, "GET", "/engines/1", NULL, &a), 200);
    assert_string_equal(json_string_value(json_object_get(a, "url")), "http://127.0.0.1:7");
    assert_true(json_is_false(json_object_get(a, "own")));
    assert_int_equal(ask(c, "GET", "/engines/2", NULL, &a), 404);
    assert_int_equal(ask(c, "GET", "/engines/x", NULL, &a), 400);
    assert_int_equal(ask(c, "DELETE", "/engines/1", NULL, &a), 202);
    assert_false(has("http://127.0.0.1:7"));
    assert_int_equal(ask(c, "DELETE", "/engines/1", NULL, &a), 404);
    assert_int_equal(ask(c, "DELETE", "/engines/0", NULL, &a), 202); /* the run's own */
    assert_int_equal(ask(c, "PUT", "/engines", "{}", &a), 405);
    ctlserver_close(c);
    /* without a file none is added */
    o.fleetfile = NULL;
    assert_ok(ctlserver_open(&o, &c, &e), &e);
    assert_int_equal(ask(c, "POST", "/engines", "{\"url\":\"127.0.0.1:7\"}", &a), 400);
    ctlserver_close(c);
    ctlserver_close(NULL);
    json_decref(a);
    close_port();
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_file), cmocka_unit_test(test_control)};
    log_set_level(LOG_ERROR + 1);
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
