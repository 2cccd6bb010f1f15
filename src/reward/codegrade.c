/* Owns what the program and the tests of a sample are, and the thread that runs them.
 *
 * The sandbox pool makes progress only while somebody polls it, and a job of forty cases needs
 * forty turns: a training loop that looks in between its own work would starve it. So a thread owns
 * the pool; callers and thread share two lists under a lock. */
#include "reward/codegrade.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"

enum { TESTS_MAX = 256 << 20, CASES_MAX = 10000, WAIT_MS = 1000 };

/* ---- the program ---- */

/* The line at p (up to end, without its newline); *next is where the following one begins. */
static size_t line_at(const char *p, const char *end, const char **next)
{
    const char *nl = memchr(p, '\n', (size_t)(end - p));

    *next = nl ? nl + 1 : end;
    return (size_t)((nl ? nl : end) - p);
}

static const char *after_think(const char *text, size_t n)
{
    static const char mark[] = "</think>";
    const char *from = text, *at;

    while ((at = memmem(from, n - (size_t)(from - text), mark, sizeof mark - 1)) != NULL) {
        from = at + sizeof mark - 1;
    }
    return from;
}

/* 2 for a block of Python, 1 for one without a name, 0 for another; -1 when the line opens none.
 * *ticks is how many marks open it. */
static int fence(const char *line, size_t n, size_t *ticks)
{
    static const char *const names[] = {"python", "py", "python3", "Python", "Python3"};
    size_t i = 0, k = 0, len;

    while (i < n && (line[i] == ' ' || line[i] == '\t')) {
        i++;
    }
    while (i + k < n && line[i + k] == '`') {
        k++;
    }
    if (k < 3) {
        return -1;
    }
    *ticks = k;
    i += k;
    while (i < n && (line[i] == ' ' || line[i] == '\t')) {
        i++;
    }
    len = n - i;
    while (len && strchr(" \t\r", line[i + len - 1])) {
        len--;
    }
    if (len == 0) {
        return 1;
    }
    for (size_t j = 0; j < sizeof names / sizeof *names; j++) {
        size_t m = strlen(names[j]);
        if (len >= m && memcmp(line + i, names[j], m) == 0 &&
            (len == m || strchr(" {:", line[i + m]))) {
            return 2;
        }
    }
    return 0;
}

int codegrade_program(const char *response, size_t n, const char **program, size_t *len)
{
    const char *p = after_think(response, n), *end = response + n, *next, *from = NULL;
    size_t open_ticks = 0;
    int kind = 0, best = 0;

    for (; p < end; p = next) {
        size_t m = line_at(p, end, &next), ticks = 0;
        int f = fence(p, m, &ticks);
        if (!from && f >= 0) {
            from = next;
            kind = f;
            open_ticks = ticks;
        } else if (from && f == 1 && ticks >= open_ticks) {
            if (kind >= best && kind > 0) {
                *program = from;
                *len = (size_t)(p - from);
                best = kind;
            }
            from = NULL;
        }
    }
    return best > 0;
}

/* ---- the tests ---- */

/* A job in the making; what its pointers point to lies in the arena. */
struct made {
    struct arena a;
    struct sandbox_job j;
    struct sandbox_case *cases;
};

static const json_t *first_of(const json_t *o, const char *const *names)
{
    for (int i = 0; names[i]; i++) {
        const json_t *v = json_object_get(o, names[i]);
        if (v && !json_is_null(v)) {
            return v;
        }
    }
    return NULL;
}

/* A stdin or stdout: text, or a list of lines. NULL when it is neither. */
static const char *stream_text(struct arena *a, const json_t *v, size_t *n)
{
    struct buf b;
    const json_t *line;
    char *out;
    size_t i;

    if (json_is_string(v)) {
        *n = json_string_length(v);
        out = arena_alloc(a, *n + 1);
        memcpy(out, json_string_value(v), *n);
        return out;
    }
    if (!json_is_array(v)) {
        return NULL;
    }
    buf_init(&b, TESTS_MAX);
    json_array_foreach((json_t *)(uintptr_t)v, i, line)
    {
        if (json_is_string(line)) {
            buf_add(&b, json_string_value(line), json_string_length(line));
        } else {
            char *text = json_dumps(line, JSON_ENCODE_ANY | JSON_COMPACT);
            buf_str(&b, text ? text : "");
            free(text);
        }
        buf_char(&b, '\n');
    }
    out = buf_status(&b) == 0 ? arena_alloc(a, b.len + 1) : NULL;
    if (out) {
        memcpy(out, b.data, b.len);
        *n = b.len;
    }
    buf_fini(&b);
    return out;
}

static const char *json_text(struct arena *a, const json_t *v, size_t *n)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT), *out = NULL;

    if (text) {
        *n = strlen(text);
        out = arena_strndup(a, text, *n);
    }
    free(text);
    return out;
}

/* The arguments of a call: a list, or text with one JSON value a line. NULL when it is neither. */
static const char *call_arguments(struct arena *a, const json_t *v, size_t *n)
{
    json_t *list, *item;
    const char *p, *end, *next, *out;

    if (json_is_array(v)) {
        return json_text(a, v, n);
    }
    if (!json_is_string(v)) {
        return NULL;
    }
    list = json_array();
    p = json_string_value(v);
    end = p + json_string_length(v);
    for (; p < end; p = next) {
        size_t m = line_at(p, end, &next);
        if (m == 0) {
            continue;
        }
        item = json_loadb(p, m, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (!item || json_array_append_new(list, item) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    out = json_text(a, list, n);
    json_decref(list);
    return out;
}

/* The value a call shall give: JSON, or text that is JSON. */
static const char *call_value(struct arena *a, const json_t *v, size_t *n)
{
    if (json_is_string(v)) {
        json_t *inner = json_loadb(json_string_value(v), json_string_length(v),
                                   JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        const char *out;
        if (inner) {
            out = json_text(a, inner, n);
            json_decref(inner);
            return out;
        }
    }
    return json_text(a, v, n);
}

static int add_case(struct made *m, const json_t *in, const json_t *out, struct err *e)
{
    struct sandbox_case *c = &m->cases[m->j.ncases];
    int call = m->j.style == SANDBOX_CALL;

    c->input =
        call ? call_arguments(&m->a, in, &c->input_len) : stream_text(&m->a, in, &c->input_len);
    c->expected =
        call ? call_value(&m->a, out, &c->expected_len) : stream_text(&m->a, out, &c->expected_len);
    if (!c->input || !c->expected) {
        return ERR(e, STATUS_INPUT, "test %d has no %s that can be used", m->j.ncases + 1,
                   c->input ? "output" : "input");
    }
    m->j.ncases++;
    return 0;
}

static int room_for(struct made *m, size_t n, struct err *e)
{
    if (n == 0 || n > CASES_MAX) {
        return ERR(e, STATUS_INPUT, "there are %zu tests; 1 to %d can be run", n, (int)CASES_MAX);
    }
    m->cases = arena_alloc(&m->a, n * sizeof *m->cases);
    m->j.cases = m->cases;
    return 0;
}

static void set_entry(struct made *m, const json_t *name)
{
    const char *s = json_string_value(name);

    if (s && *s) {
        m->j.entry = arena_strdup(&m->a, s);
    }
}

/* {"inputs": [...], "outputs": [...], "fn_name"} */
static int read_lists(struct made *m, const json_t *in, const json_t *out, const json_t *name,
                      struct err *e)
{
    size_t n = json_array_size(in);
    int rc;

    if (!json_is_array(in) || !json_is_array(out) || n != json_array_size(out)) {
        return ERR(e, STATUS_INPUT, "the tests have %zu inputs and %zu outputs", n,
                   json_array_size(out));
    }
    set_entry(m, name);
    m->j.style = m->j.entry ? SANDBOX_CALL : SANDBOX_STDIO;
    rc = room_for(m, n, e);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = add_case(m, json_array_get(in, i), json_array_get(out, i), e);
    }
    return rc;
}

/* [{"input", "output"}...] */
static int read_cases(struct made *m, const json_t *list, struct err *e)
{
    static const char *const outs[] = {"output", "expected_output", "expected", NULL};
    static const char *const kinds[] = {"testtype", "type", NULL};
    static const char *const names[] = {"fn_name", "func_name", NULL};
    const json_t *one = json_array_get(list, 0);
    const char *kind = json_string_value(first_of(one, kinds));
    const json_t *name = first_of(one, names);
    int rc = room_for(m, json_array_size(list), e);

    name = name ? name : first_of(json_object_get(one, "metadata"), names);
    if (kind && (strcmp(kind, "functional") == 0 || strcmp(kind, "function_call") == 0) && !name) {
        return ERR(e, STATUS_INPUT, "functional tests name no function");
    }
    if (!(kind && strcmp(kind, "stdin") == 0)) {
        set_entry(m, name);
    }
    m->j.style = m->j.entry ? SANDBOX_CALL : SANDBOX_STDIO;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        one = json_array_get(list, i);
        rc = add_case(m, json_object_get(one, "input"), first_of(one, outs), e);
    }
    return rc;
}

/* Test code: text, or a list of texts, behind what prepares them. */
static int read_code(struct made *m, const json_t *setup, const json_t *code, const json_t *name,
                     struct err *e)
{
    const json_t *parts[2] = {setup, code};
    struct buf b;
    int rc = room_for(m, 1, e);

    buf_init(&b, TESTS_MAX);
    for (int i = 0; rc == 0 && i < 2; i++) {
        size_t n = 0;
        const char *text = parts[i] ? stream_text(&m->a, parts[i], &n) : "";
        if (!text) {
            rc = ERR(e, STATUS_INPUT, "the test code is neither text nor a list of texts");
        } else {
            buf_add(&b, text, n);
            buf_char(&b, '\n');
        }
    }
    if (rc == 0 && buf_status(&b) != 0) {
        rc = ERR(e, STATUS_INPUT, "the test code is too long");
    }
    if (rc == 0) {
        m->cases[0].input = arena_strndup(&m->a, b.data, b.len);
        m->cases[0].input_len = b.len;
        m->j.style = SANDBOX_ASSERT;
        m->j.ncases = 1;
        set_entry(m, name);
    }
    buf_fini(&b);
    return rc;
}

static int read_tests(struct made *m, const json_t *t, const json_t *metadata, struct err *e)
{
    static const char *const codes[] = {"test",    "test_code",   "test_list",
                                        "asserts", "assert_case", NULL};
    static const char *const names[] = {"entry_point", "fn_name", "func_name", NULL};
    static const char *const setups[] = {"test_setup_code", "test_imports", NULL};
    const json_t *code = first_of(t, codes), *name = first_of(t, names);

    name = name ? name : first_of(metadata, names);
    if (json_object_get(t, "inputs")) {
        return read_lists(m, json_object_get(t, "inputs"), json_object_get(t, "outputs"), name, e);
    }
    if (code) {
        return read_code(m, first_of(t, setups), code, name, e);
    }
    if (json_is_array(t) && json_is_object(json_array_get(t, 0))) {
        return read_cases(m, t, e);
    }
    if (json_is_array(t) && json_is_string(json_array_get(t, 0))) {
        return read_code(m, first_of(metadata, setups), t, name, e);
    }
    if (json_is_string(t) && strstr(json_string_value(t), "assert")) {
        return read_code(m, first_of(metadata, setups), t, name, e);
    }
    return ERR(e, STATUS_INPUT,
               "the label holds no tests: give {\"inputs\", \"outputs\"}, a list of {\"input\", "
               "\"output\"}, or code with assert");
}

static void read_limits(struct made *m, const json_t *metadata)
{
    double s = json_number_value(json_object_get(metadata, "time_limit"));
    double mb = json_number_value(json_object_get(metadata, "memory_limit"));

    if (s > 0 && s <= 3600) {
        m->j.limits.cpu_s = s;
        m->j.limits.wall_s = 2 * s + 2; /* others use the processor too */
    }
    if (mb >= 16 && mb <= 1048576) {
        m->j.limits.memory = (int64_t)mb << 20;
    }
}

static int read_sample(struct made *m, const json_t *sample, struct err *e)
{
    static const char *const places[] = {"tests", "input_output", "test_cases", "test_list", NULL};
    const json_t *metadata = json_object_get(sample, "metadata");
    const json_t *label = json_object_get(sample, "label");
    json_t *inner = NULL;
    int rc;

    if (!label || json_is_null(label)) {
        label = first_of(metadata, places);
    }
    if (!label) {
        return ERR(e, STATUS_INPUT, "the sample has no tests: neither label nor metadata.tests");
    }
    if (json_is_string(label)) {
        inner =
            json_loadb(json_string_value(label), json_string_length(label), JSON_ALLOW_NUL, NULL);
    }
    rc = read_tests(m, inner ? inner : label, metadata, e);
    json_decref(inner);
    read_limits(m, metadata);
    m->j.compare = SANDBOX_NUMBERS;
    return rc;
}

/* ---- the thread ---- */

struct item {
    struct item *next, *prev;
    struct made m; /* on its way in */
    int no_program;
    struct codegrade_result r; /* on its way out */
};

struct list {
    struct item *first, *last;
};

struct codegrade {
    int share, queue_max, pending, wake;
    pthread_t thread;
    struct sandbox_opts opts;
    struct sandbox *box;  /* the thread's */
    struct item *running; /* the thread's: those that the pool has */
    pthread_mutex_t lock;
    pthread_cond_t ready;
    struct list in, out;
    int stop, opened; /* opened: 0 not yet, 1 yes, -1 failed */
    struct err why;
};

static void list_add(struct list *l, struct item *i)
{
    i->next = NULL;
    if (l->last) {
        l->last->next = i;
    } else {
        l->first = i;
    }
    l->last = i;
}

static struct item *list_take(struct list *l)
{
    struct item *i = l->first;

    if (i) {
        l->first = i->next;
        l->last = l->first ? l->last : NULL;
    }
    return i;
}

static void item_free(struct item *i)
{
    arena_fini(&i->m.a);
    mem_free(i);
}

static void give(struct codegrade *c, struct item *i)
{
    pthread_mutex_lock(&c->lock);
    list_add(&c->out, i);
    pthread_cond_signal(&c->ready);
    pthread_mutex_unlock(&c->lock);
}

static void set_result(const struct codegrade *c, struct item *i, const struct sandbox_result *r)
{
    struct codegrade_result *o = &i->r;
    int all = r->total > 0 && r->passed == r->total && r->first_bad < 0;

    o->failed = r->failed;
    o->passed = r->passed;
    o->total = r->total;
    memcpy(o->reason, r->reason, sizeof o->reason);
    if (!r->failed) {
        o->reward = all ? 1 : c->share && r->total > 0 ? (double)r->passed / r->total : 0;
        o->why = all ? CODEGRADE_RIGHT : o->reward > 0 ? CODEGRADE_PARTIAL : CODEGRADE_WRONG;
    }
}

/* Moves what was submitted into the pool. */
static void take_in(struct codegrade *c)
{
    for (;;) {
        struct item *i;
        struct err e = {0};
        int rc;

        pthread_mutex_lock(&c->lock);
        i = list_take(&c->in);
        pthread_mutex_unlock(&c->lock);
        if (!i) {
            return;
        }
        i->m.j.id = (int64_t)(intptr_t)i;
        i->m.j.go_on = c->share;
        rc = i->no_program ? 0 : sandbox_submit(c->box, &i->m.j, &e);
        arena_reset(&i->m.a); /* the pool has its copies */
        if (rc != 0) {
            i->r.failed = 1;
            snprintf(i->r.reason, sizeof i->r.reason, "%.255s",
                     rc == STATUS_AGAIN ? "the sandbox's queue is full" : e.msg);
        }
        if (rc != 0 || i->no_program) {
            give(c, i);
        } else {
            i->prev = NULL;
            i->next = c->running;
            if (i->next) {
                i->next->prev = i;
            }
            c->running = i;
        }
    }
}

static void leave_running(struct codegrade *c, struct item *i)
{
    if (i->prev) {
        i->prev->next = i->next;
    } else {
        c->running = i->next;
    }
    if (i->next) {
        i->next->prev = i->prev;
    }
}

static void *thread_main(void *arg)
{
    struct codegrade *c = arg;
    struct sandbox_result r;
    int stop = 0, rc = sandbox_open(&c->opts, &c->box, &c->why);

    pthread_mutex_lock(&c->lock);
    c->opened = rc == 0 ? 1 : -1;
    pthread_cond_broadcast(&c->ready);
    pthread_mutex_unlock(&c->lock);
    while (rc == 0 && !stop) {
        uint64_t n;
        (void)!read(c->wake, &n, sizeof n);
        take_in(c);
        if (sandbox_poll(c->box, WAIT_MS / 1000.0, &r, NULL) == 0) {
            struct item *i = (struct item *)(intptr_t)r.id;
            leave_running(c, i);
            set_result(c, i, &r);
            sandbox_result_fini(&r);
            give(c, i);
        }
        pthread_mutex_lock(&c->lock);
        stop = c->stop;
        pthread_mutex_unlock(&c->lock);
    }
    /* Here and not in codegrade_close: the sandboxes are children of this thread. */
    sandbox_close(c->box);
    while (c->running) {
        struct item *i = c->running;
        c->running = i->next;
        item_free(i);
    }
    return NULL;
}

static void wake(struct codegrade *c)
{
    uint64_t one = 1;
    (void)!write(c->wake, &one, sizeof one);
}

/* ---- public ---- */

int codegrade_open(const struct codegrade_opts *o, struct codegrade **out, struct err *e)
{
    struct codegrade *c = mem_alloc(sizeof *c);
    pthread_condattr_t attr;

    c->share = o->share;
    c->queue_max = o->queue_max > 0 ? o->queue_max : 4096;
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->wake < 0) {
        mem_free(c);
        return ERR(e, STATUS_IO, "cannot make an event descriptor: %s", strerror(errno));
    }
    c->opts = (struct sandbox_opts){.workers = o->workers,
                                    .queue_max = c->queue_max + 1,
                                    .python = o->python && *o->python ? o->python : NULL,
                                    .wake_fd = c->wake,
                                    .limits = o->limits};
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->ready, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&c->thread, NULL, thread_main, c) != 0) {
        c->opened = -2;
        codegrade_close(c);
        return ERR(e, STATUS_IO, "cannot start the thread of the sandboxes");
    }
    pthread_mutex_lock(&c->lock);
    while (!c->opened) {
        pthread_cond_wait(&c->ready, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    if (c->opened < 0) {
        int rc = ERR(e, c->why.code, "%s", c->why.msg);
        codegrade_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

int codegrade_check(const json_t *sample, struct err *e)
{
    struct made m = {.cases = NULL};
    int rc;

    arena_init(&m.a, 1 << 14);
    rc = read_sample(&m, sample, e);
    arena_fini(&m.a);
    return rc;
}

int codegrade_submit(struct codegrade *c, void *user, const json_t *sample, struct err *e)
{
    const json_t *response = json_object_get(sample, "response");
    const char *program = NULL;
    size_t len = 0;
    struct item *i;
    int rc;

    if (c->pending >= c->queue_max) {
        return STATUS_AGAIN;
    }
    if (!json_is_string(response)) {
        return ERR(e, STATUS_INPUT, "the sample has no response");
    }
    i = mem_alloc(sizeof *i);
    arena_init(&i->m.a, 1 << 14);
    i->r.user = user;
    rc = read_sample(&i->m, sample, e);
    if (rc != 0) {
        item_free(i);
        return rc;
    }
    if (codegrade_program(json_string_value(response), json_string_length(response), &program,
                          &len)) {
        i->m.j.source = arena_strndup(&i->m.a, program, len);
        i->m.j.source_len = len;
    } else {
        i->no_program = 1;
        i->r.why = CODEGRADE_NO_PROGRAM;
        i->r.total = i->m.j.ncases;
        snprintf(i->r.reason, sizeof i->r.reason, "the response has no closed ```python block");
    }
    c->pending++;
    pthread_mutex_lock(&c->lock);
    list_add(&c->in, i);
    pthread_mutex_unlock(&c->lock);
    wake(c);
    return 0;
}

int codegrade_poll(struct codegrade *c, double wait_s, struct codegrade_result *out, struct err *e)
{
    struct timespec until;
    struct item *i;
    int rc = 0;

    (void)e;
    if (c->pending == 0) {
        return STATUS_AGAIN;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    wait_s = wait_s > 0 ? wait_s : 0;
    until.tv_sec += (time_t)wait_s;
    until.tv_nsec += (long)((wait_s - (double)(time_t)wait_s) * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&c->lock);
    while (!(i = list_take(&c->out)) && wait_s > 0 && rc == 0) {
        rc = pthread_cond_timedwait(&c->ready, &c->lock, &until);
    }
    pthread_mutex_unlock(&c->lock);
    if (!i) {
        return STATUS_AGAIN;
    }
    c->pending--;
    *out = i->r;
    item_free(i);
    return 0;
}

int codegrade_pending(const struct codegrade *c)
{
    return c->pending;
}

void codegrade_close(struct codegrade *c)
{
    struct item *i;

    if (!c) {
        return;
    }
    if (c->opened != -2) {
        pthread_mutex_lock(&c->lock);
        c->stop = 1;
        pthread_mutex_unlock(&c->lock);
        wake(c);
        pthread_join(c->thread, NULL);
    }
    while ((i = list_take(&c->in)) || (i = list_take(&c->out))) {
        item_free(i);
    }
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->ready);
    close(c->wake);
    mem_free(c);
}
