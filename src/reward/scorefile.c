/* Owns the scoring of a stream of rows: a window of rows in the order of the file, filled at its
 * end by the reader, finished anywhere by the hub, and written at its front. */
#include "reward/scorefile.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/status.h"
#include "reward/hub_int.h"

enum { WINDOW = 4096, TOLD = 20, GROUP_MAX = 1024 };
static const size_t LINE_MAX_BYTES = (size_t)64 << 20;
static const size_t WINDOW_BYTES = (size_t)256 << 20;

/* A row from reading to writing. */
struct slot {
    json_t *row; /* as read; NULL: the line is no row */
    int64_t line;
    size_t bytes;
    int done;
    struct hub_result r;
};

struct score {
    struct hub *hub;
    FILE *in;
    const char *name;
    const struct scorefile_opts *o;
    struct scorefile_stats *st;
    struct slot *slots; /* (WINDOW), by sequence number modulo */
    int64_t head, next; /* oldest not written, next to be read */
    size_t bytes;       /* of rows in the window */
    int64_t line;
    int told;
    json_t *group; /* samples of the group being read */
    int64_t group_at;
    json_t *group_key;
    char *block; /* of the file */
    size_t at, len;
    struct buf text; /* a line */
};

static struct slot *slot_of(struct score *s, int64_t seq)
{
    return &s->slots[seq % WINDOW];
}

/* ---- reading ---- */

/* The next line, without its end, in s->text. STATUS_END at the end of the file; *whole is 0 when
 * it was too long and left out. */
static int read_line(struct score *s, int *whole, struct err *e)
{
    int any = 0;

    buf_clear(&s->text);
    *whole = 1;
    for (;;) {
        char *nl;
        size_t n;
        if (s->at == s->len) {
            s->at = 0;
            s->len = fread(s->block, 1, 1 << 16, s->in);
            if (s->len == 0 && ferror(s->in)) {
                return ERR(e, STATUS_IO, "%s: %s", s->name, strerror(errno));
            }
            if (s->len == 0) {
                s->line += any;
                return any ? STATUS_OK : STATUS_END;
            }
        }
        any = 1;
        nl = memchr(s->block + s->at, '\n', s->len - s->at);
        n = nl ? (size_t)(nl - (s->block + s->at)) : s->len - s->at;
        if (*whole) {
            buf_add(&s->text, s->block + s->at, n);
            *whole = buf_status(&s->text) == 0;
        }
        s->at += n + (nl != NULL);
        if (nl) {
            s->line++;
            return STATUS_OK;
        }
    }
}

static int is_blank(const struct buf *b)
{
    for (size_t i = 0; i < b->len; i++) {
        if (!strchr(" \t\r", b->data[i]) || !b->data[i]) {
            return 0;
        }
    }
    return 1;
}

/* The row under our names for its fields. */
static json_t *sample_of(const struct score *s, json_t *row)
{
    const char *from[] = {s->o->prompt_key, s->o->response_key, s->o->label_key,
                          s->o->metadata_key};
    static const char *const to[] = {"prompt", "response", "label", "metadata"};
    json_t *sample = json_copy(row);

    for (int i = 0; i < 4; i++) {
        if (from[i] && strcmp(from[i], to[i]) != 0) {
            json_t *v = json_object_get(row, from[i]);
            if (v) {
                json_object_set(sample, to[i], v);
            } else {
                json_object_del(sample, to[i]);
            }
        }
    }
    return sample;
}

static void tell(struct score *s, int64_t line, const char *reason)
{
    if (s->told++ < TOLD) {
        log_warn(REWARD, "%s:%lld: %s", s->name, (long long)line, reason);
    } else if (s->told == TOLD + 1) {
        log_warn(REWARD, "%s: further rows without a reward are only counted", s->name);
    }
}

static void bad_line(struct score *s, struct slot *p, const char *reason)
{
    s->st->bad++;
    p->done = 1;
    p->r.failed = 1;
    hub_line(p->r.reason, sizeof p->r.reason, reason, strlen(reason));
    tell(s, p->line, p->r.reason);
}

/* ---- writing ---- */

static json_t *row_of(struct slot *p)
{
    json_t *row = p->row;

    if (!row) {
        return json_pack("{s:I,s:b,s:s,s:s}", "line", (json_int_t)p->line, "failed", 1, "reason",
                         p->r.reason, "class", "bad_row");
    }
    json_object_set_new(row, "reward",
                        p->r.raw      ? json_incref(p->r.raw)
                        : p->r.failed ? json_null()
                                      : json_real(p->r.reward));
    if (p->r.raw && !p->r.failed) {
        json_object_set_new(row, "reward_value", json_real(p->r.reward));
    }
    json_object_set_new(row, "failed", json_boolean(p->r.failed));
    json_object_set_new(row, "reason", json_string(p->r.reason));
    json_object_set_new(row, "class", json_string(hub_class_name(p->r.why)));
    return json_incref(row);
}

static int write_row(struct score *s, struct slot *p, struct err *e)
{
    json_t *row = row_of(p);
    int rc = STATUS_OK;

    if (json_dumpf(row, s->o->out, JSON_COMPACT | JSON_REAL_PRECISION(17)) != 0 ||
        putc('\n', s->o->out) == EOF) {
        rc = ERR(e, STATUS_IO, "cannot write the scored rows: %s", strerror(errno));
    }
    json_decref(row);
    return rc;
}

/* Writes and lets go what is done at the front. */
static int write_front(struct score *s, struct err *e)
{
    while (s->head < s->next && slot_of(s, s->head)->done) {
        struct slot *p = slot_of(s, s->head);
        int rc = s->o->out ? write_row(s, p, e) : STATUS_OK;
        if (rc != STATUS_OK) {
            return rc;
        }
        s->bytes -= p->bytes;
        json_decref(p->row);
        json_decref(p->r.raw);
        memset(p, 0, sizeof *p);
        s->head++;
    }
    return STATUS_OK;
}

/* ---- scoring ---- */

static void take_result(struct score *s, const struct hub_result *r)
{
    struct slot *p = slot_of(s, r->id);

    p->r = *r;
    p->done = 1;
    s->st->classes[r->why]++;
    if (r->failed) {
        s->st->failed++;
        tell(s, p->line, r->reason);
    } else {
        s->st->graded++;
        s->st->sum += r->reward;
    }
}

/* Takes what is ready; waits for the first up to wait_s. */
static int drain(struct score *s, double wait_s, struct err *e)
{
    struct hub_result r;
    int rc;

    while ((rc = hub_poll(s->hub, wait_s, &r, e)) == STATUS_OK) {
        take_result(s, &r);
        wait_s = 0;
    }
    return rc < 0 ? rc : write_front(s, e);
}

static int submit(struct score *s, int64_t seq, json_t *sample, struct err *e)
{
    struct hub_request q = {seq, sample};
    int rc;

    while ((rc = hub_submit(s->hub, &q, e)) == STATUS_AGAIN) {
        if ((rc = drain(s, 1.0, e)) != STATUS_OK) {
            return rc;
        }
    }
    return rc;
}

static int flush_group(struct score *s, struct err *e)
{
    int rc = s->group ? submit(s, s->group_at, s->group, e) : STATUS_OK;

    json_decref(s->group);
    json_decref(s->group_key);
    s->group = s->group_key = NULL;
    return rc;
}

/* Adds a sample to the group being read, after closing that when this one belongs to another. */
static int add_to_group(struct score *s, int64_t seq, json_t *sample, struct err *e)
{
    json_t *key = json_object_get(sample, "group_index");
    int rc = STATUS_OK;

    if (s->group && (!json_equal(key, s->group_key) || json_array_size(s->group) >= GROUP_MAX)) {
        rc = flush_group(s, e);
    }
    if (!s->group) {
        s->group = json_array();
        s->group_key = json_incref(key);
        s->group_at = seq;
    }
    json_array_append(s->group, sample);
    return rc;
}

/* One line that was read. */
static int take_line(struct score *s, int whole, struct err *e)
{
    struct slot *p = slot_of(s, s->next);
    json_error_t je;
    json_t *row, *sample;
    char why[256];
    int64_t seq = s->next;
    int rc = STATUS_OK;

    if (whole && is_blank(&s->text)) {
        return STATUS_OK;
    }
    row = whole ? json_loadb(s->text.data, s->text.len, JSON_ALLOW_NUL, &je) : NULL;
    if (s->line == 1 && json_object_get(row, "format") && !json_object_get(row, "response")) {
        json_decref(row);
        return STATUS_OK;
    }
    s->next++;
    s->st->rows++;
    p->line = s->line;
    p->bytes = s->text.len;
    s->bytes += p->bytes;
    if (!whole) {
        bad_line(s, p, "the line is longer than 64 MiB");
    } else if (!row) {
        snprintf(why, sizeof why, "not JSON: column %d: %.160s", je.column, je.text);
        bad_line(s, p, why);
    } else if (!json_is_object(row)) {
        bad_line(s, p, "not a JSON object");
        json_decref(row);
    } else if (s->o->group && !json_object_get(row, "group_index")) {
        bad_line(s, p, "no group_index, which --group-rm needs");
        json_decref(row);
    } else {
        p->row = row;
        sample = sample_of(s, row);
        rc = s->o->group ? add_to_group(s, seq, sample, e) : submit(s, seq, sample, e);
        json_decref(sample);
        return rc;
    }
    return flush_group(s, e);
}

static int run(struct score *s, struct err *e)
{
    int rc = STATUS_OK, whole;

    while (rc == STATUS_OK && !(s->o->stop && *s->o->stop)) {
        while (rc == STATUS_OK && (s->next - s->head == WINDOW || s->bytes > WINDOW_BYTES)) {
            rc = s->group && hub_pending(s->hub) == 0 ? flush_group(s, e) : STATUS_OK;
            rc = rc == STATUS_OK ? drain(s, 1.0, e) : rc;
        }
        if (rc != STATUS_OK) {
            break;
        }
        rc = read_line(s, &whole, e);
        if (rc == STATUS_OK) {
            rc = take_line(s, whole, e);
        }
        if (rc == STATUS_OK && s->line % 64 == 0) {
            rc = drain(s, 0, e);
            if (s->o->tick) {
                s->o->tick(s->o->arg, s->st->rows);
            }
        }
    }
    rc = rc == STATUS_END ? STATUS_OK : rc;
    rc = rc == STATUS_OK ? flush_group(s, e) : rc;
    while (rc == STATUS_OK && s->head < s->next) {
        rc = drain(s, 1.0, e);
    }
    if (rc == STATUS_OK && s->o->out && fflush(s->o->out) != 0) {
        rc = ERR(e, STATUS_IO, "cannot write the scored rows: %s", strerror(errno));
    }
    return rc;
}

int scorefile_run(struct hub *h, FILE *in, const char *name, const struct scorefile_opts *o,
                  struct scorefile_stats *st, struct err *e)
{
    struct score s = {.hub = h, .in = in, .name = name, .o = o, .st = st};
    double t = proc_now();
    int rc;

    memset(st, 0, sizeof *st);
    s.slots = mem_alloc(sizeof *s.slots * WINDOW);
    s.block = mem_alloc(1 << 16);
    buf_init(&s.text, LINE_MAX_BYTES);
    rc = run(&s, e);
    st->seconds = proc_now() - t;
    for (; s.head < s.next; s.head++) {
        json_decref(slot_of(&s, s.head)->row);
        json_decref(slot_of(&s, s.head)->r.raw);
    }
    json_decref(s.group);
    json_decref(s.group_key);
    buf_fini(&s.text);
    mem_free(s.slots);
    mem_free(s.block);
    return rc;
}
