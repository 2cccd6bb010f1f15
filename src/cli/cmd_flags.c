/* `miles flags`: what becomes of each flag of Miles. The answers are the option tables and the
 * tables of known flags, the same that the commands parse with; docs/miles-flags.tsv is the list of
 * names that must have one, with the answers beside them. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/conf.h"
#include "base/fsio.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cmd.h"
#include "cli/known_flags.h"
#include "cli/known_inproc.h"
#include "cli/known_sglang.h"
#include "rl/modelargs.h"
#include "rl/train_opts.h"
#include "run/metriccheck.h"
#include "run/place.h"
#include "run/watch.h"

#define FLAGS_FILE    "docs/miles-flags.tsv"
#define FLAGS_HEAD    "name\tsection\tkind\tdefault\tstate\tsentence"
#define FLAGS_COLUMNS 6

enum flags_state { FLAGS_WORKS, FLAGS_INAPPLICABLE, FLAGS_PLANNED, FLAGS_STATES };
static const char *const flags_states[] = {"works", "inapplicable", "planned"};

/* Of other programs of Miles, met in its documents. */
static const struct conf_known flags_elsewhere[] = {
#define VIEWER "of the dashboard's viewer, a program of its own, which is planned"
    {"host", CONF_STR, "0.0.0.0", CONF_LATER, VIEWER, NULL},
    {"port", CONF_INT, "7788", CONF_LATER, VIEWER, NULL},
    {"follow", CONF_SWITCH, NULL, CONF_LATER, VIEWER, NULL},
    {"tensor-lru", CONF_INT, "2", CONF_LATER, VIEWER, NULL},
    {"cache-dir", CONF_STR, NULL, CONF_LATER, VIEWER, NULL},
    {"demo", CONF_SWITCH, NULL, CONF_LATER, VIEWER, NULL},
    {"use-utilization-overview", CONF_SWITCH, NULL, CONF_LATER, VIEWER, NULL},
    {"low-mfu-threshold", CONF_FLOAT, "0.15", CONF_LATER, VIEWER, NULL},
#undef VIEWER
    {"extra-args", CONF_STR, NULL, CONF_NEVER,
     "of Miles' launchers: write the flags themselves, the last one wins", NULL},
    {0}};

/* Where answers are found, in order: the first wins. */
static const struct flags_table {
    const struct conf_opt *opts;
    const struct conf_known *known;
    const char *command; /* of the options */
    const char *prefix;  /* only names that begin so; NULL: all */
} flags_tables[] = {
    {train_opts_table, NULL, "train", NULL},
    {modelargs_table, NULL, "train", NULL},
    {place_table, NULL, "train", NULL},
    {metriccheck_table, NULL, "train", NULL},
    {watch_table, NULL, "train", NULL},
    {NULL, known_flags, NULL, NULL},
    {cmd_serve_table, NULL, "serve", "sglang-"},
    {NULL, known_sglang, NULL, NULL},
    {NULL, known_inproc, NULL, NULL},
    {cmd_router_table, NULL, "router", "router-"},
    {NULL, cmd_router_known, NULL, NULL},
    {NULL, flags_elsewhere, NULL, NULL},
};
#define NTABLES ((int)(sizeof flags_tables / sizeof flags_tables[0]))

/* One answer; text is borrowed. */
struct flags_answer {
    const char *name, *def, *text, *command;
    const char *choices;
    enum conf_type type;
    enum flags_state state;
    int accepted; /* inapplicable, and taken with a line in the log */
};

static void flags_from_opt(const struct conf_opt *o, const char *command, struct flags_answer *a)
{
    *a = (struct flags_answer){.name = o->name,
                               .def = o->def,
                               .text = o->doc,
                               .command = command,
                               .choices =
                                   o->type == CONF_CHOICE || o->type == CONF_MODE ? o->range : NULL,
                               .type = o->type,
                               .state = FLAGS_WORKS};
}

static void flags_from_known(const struct conf_known *k, struct flags_answer *a)
{
    *a =
        (struct flags_answer){.name = k->name,
                              .def = k->def,
                              .text = k->why,
                              .choices = k->type == CONF_CHOICE ? k->range : NULL,
                              .type = k->type,
                              .state = k->answer == CONF_LATER ? FLAGS_PLANNED : FLAGS_INAPPLICABLE,
                              .accepted = k->answer == CONF_NOTED};
}

typedef int flags_fn(void *arg, const struct flags_answer *a); /* not 0 ends the walk */

static int flags_each(flags_fn *fn, void *arg)
{
    struct flags_answer a;
    int rc = 0;

    for (int i = 0; i < NTABLES && !rc; i++) {
        const struct flags_table *t = &flags_tables[i];
        for (const struct conf_opt *o = t->opts; o && o->type != CONF_END && !rc; o++) {
            if (!t->prefix || strncmp(o->name, t->prefix, strlen(t->prefix)) == 0) {
                flags_from_opt(o, t->command, &a);
                rc = fn(arg, &a);
            }
        }
        for (const struct conf_known *k = t->known; k && k->name && !rc; k++) {
            flags_from_known(k, &a);
            rc = fn(arg, &a);
        }
    }
    return rc;
}

struct flags_find {
    const char *name;
    struct flags_answer found;
    size_t family; /* letters of a family's name that were found to fit, and one */
};

/* An exact name wins over families that it belongs to, and the longest of those over others. */
static int flags_match(void *arg, const struct flags_answer *a)
{
    struct flags_find *f = arg;
    const char *star = strchr(a->name, '*');

    if (strcmp(a->name, f->name) == 0) {
        f->found = *a;
        return 1;
    }
    if (star && (size_t)(star - a->name) + 1 > f->family &&
        strncmp(a->name, f->name, (size_t)(star - a->name)) == 0) {
        f->found = *a;
        f->family = (size_t)(star - a->name) + 1;
    }
    return 0;
}

/* 0: nobody knows the name. */
static int flags_find(const char *name, struct flags_answer *a)
{
    struct flags_find f = {.name = name};

    flags_each(flags_match, &f);
    *a = f.found;
    return f.found.name != NULL;
}

static const char *flags_kind(const struct flags_answer *a)
{
    switch (a->type) {
    case CONF_SWITCH:
    case CONF_OFF: return "switch";
    case CONF_BOOL: return "switch with a --no- twin";
    case CONF_INT: return "int";
    case CONF_FLOAT: return "float";
    case CONF_PATH: return "path template";
    case CONF_CHOICE:
    case CONF_MODE: return a->choices ? a->choices : "text";
    case CONF_STRS: return "list";
    case CONF_INTS: return "list of ints";
    case CONF_JSON: return "json";
    case CONF_PASS: return "flags and their values";
    default: return "text";
    }
}

static const char *flags_default(const struct flags_answer *a)
{
    int is_switch = a->type == CONF_SWITCH || a->type == CONF_OFF;
    return a->def ? a->def : is_switch ? "off" : "-";
}

/* ---- the list of names ---- */

struct flags_row {
    char *col[FLAGS_COLUMNS];
    int n, line;
};

typedef int flags_row_fn(void *arg, const struct flags_row *r, struct err *e);

static void flags_split(char *line, struct flags_row *r)
{
    r->n = 0;
    for (char *p = line; p; r->n++) {
        char *tab = strchr(p, '\t');
        if (r->n < FLAGS_COLUMNS) {
            r->col[r->n] = p;
        }
        if (tab) {
            *tab++ = 0;
        }
        p = tab;
    }
}

static int flags_read(const char *path, flags_row_fn *fn, void *arg, struct err *e)
{
    struct flags_row r = {.line = 0};
    char *text, *next;
    size_t len;
    int rc = fsio_read(path, 4 << 20, &text, &len, e);

    if (rc != STATUS_OK) {
        return rc;
    }
    for (char *p = text; rc == STATUS_OK && p && *p; p = next) {
        next = strchr(p, '\n');
        if (next) {
            *next++ = 0;
        }
        r.line++;
        if (r.line == 1) {
            rc = strcmp(p, FLAGS_HEAD) == 0
                     ? STATUS_OK
                     : ERR(e, STATUS_INPUT, "%s:1: the columns are not those of a list of flags",
                           path);
            continue;
        }
        flags_split(p, &r);
        rc = r.n == FLAGS_COLUMNS ? fn(arg, &r, e)
                                  : ERR(e, STATUS_INPUT, "%s:%d: %d columns, not %d", path, r.line,
                                        r.n, FLAGS_COLUMNS);
    }
    mem_free(text);
    return rc;
}

static void flags_print(FILE *out, const char *name, const char *section,
                        const struct flags_answer *a)
{
    fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\n", name, section, flags_kind(a), flags_default(a),
            flags_states[a->state], a->text);
}

/* The row as it should be. */
static int flags_write_row(void *arg, const struct flags_row *r, struct err *e)
{
    struct flags_answer a;

    (void)arg;
    if (!flags_find(r->col[0], &a)) {
        return ERR(e, STATUS_INPUT, "nothing is said to --%s", r->col[0]);
    }
    flags_print(stdout, r->col[0], r->col[1], &a);
    return STATUS_OK;
}

static int flags_write(const char *path, struct err *e)
{
    puts(FLAGS_HEAD);
    return flags_read(path, flags_write_row, NULL, e);
}

/* ---- the check ---- */

struct flags_check {
    const char *path;
    struct buf names; /* of the rows, each between line feeds */
    int rows, state[FLAGS_STATES], unanswered, wrong;
};

static int flags_known_row(const struct flags_check *c, const char *name)
{
    char key[160];
    snprintf(key, sizeof key, "\n%s\n", name);
    return strstr(c->names.data, key) != NULL;
}

static void flags_say(struct flags_check *c, const struct flags_row *r, const char *what,
                      const char *has, const char *is)
{
    fprintf(stderr, "%s:%d: %s of --%s is \"%s\", the program says \"%s\"\n", c->path, r->line,
            what, r->col[0], has, is);
    c->wrong++;
}

static int flags_check_row(void *arg, const struct flags_row *r, struct err *e)
{
    struct flags_check *c = arg;
    struct flags_answer a;
    const char *has[4] = {r->col[2], r->col[3], r->col[4], r->col[5]}, *is[4];
    static const char *const what[4] = {"kind", "default", "state", "sentence"};

    (void)e;
    c->rows++;
    if (flags_known_row(c, r->col[0])) {
        fprintf(stderr, "%s:%d: --%s is there twice\n", c->path, r->line, r->col[0]);
        c->wrong++;
    }
    buf_printf(&c->names, "%s\n", r->col[0]);
    if (!flags_find(r->col[0], &a) || !a.text || !*a.text) {
        fprintf(stderr, "%s:%d: nothing is said to --%s\n", c->path, r->line, r->col[0]);
        c->unanswered++;
        return STATUS_OK;
    }
    c->state[a.state]++;
    is[0] = flags_kind(&a);
    is[1] = flags_default(&a);
    is[2] = flags_states[a.state];
    is[3] = a.text;
    for (int i = 0; i < 4; i++) {
        if (strcmp(has[i], is[i]) != 0) {
            flags_say(c, r, what[i], has[i], is[i]);
        }
    }
    return STATUS_OK;
}

/* A known flag must be in the list, and have a sentence; one that an option has overtaken is told.
 */
static int flags_check_known(void *arg, const struct flags_answer *a)
{
    struct flags_check *c = arg;
    struct flags_answer first;

    if (a->state == FLAGS_WORKS) {
        return 0;
    }
    if (flags_find(a->name, &first) && first.state == FLAGS_WORKS) {
        if (first.type != CONF_PASS && strcmp(first.command, "train") == 0) {
            fprintf(stderr,
                    "note: --%s is an option and among the known flags: take it out there\n",
                    a->name);
        }
        return 0; /* those of other commands have two answers: there, and here */
    }
    if (!a->text || !*a->text) {
        fprintf(stderr, "no sentence is said to --%s\n", a->name);
        c->unanswered++;
    } else if (!flags_known_row(c, a->name)) {
        fprintf(stderr, "--%s has an answer and is not in %s\n", a->name, c->path);
        c->wrong++;
    }
    return 0;
}

static int flags_check(const char *path, struct err *e)
{
    struct flags_check c = {.path = path};
    int rc;

    buf_init(&c.names, 4 << 20);
    buf_char(&c.names, '\n');
    rc = flags_read(path, flags_check_row, &c, e);
    if (rc == STATUS_OK) {
        flags_each(flags_check_known, &c);
        printf("flags=%d works=%d inapplicable=%d planned=%d unanswered=%d\n", c.rows,
               c.state[FLAGS_WORKS], c.state[FLAGS_INAPPLICABLE], c.state[FLAGS_PLANNED],
               c.unanswered);
    }
    if (rc == STATUS_OK && (c.unanswered || c.wrong)) {
        rc = ERR(e, STATUS_FAIL,
                 "%d flags without an answer, %d rows that are not what the program says: "
                 "tools/flags_doc.sh writes them anew",
                 c.unanswered, c.wrong);
    }
    buf_fini(&c.names);
    return rc;
}

/* ---- one flag ---- */

struct flags_show {
    const char *pattern; /* NULL: all */
    int shown;
};

static int flags_fits(const char *pattern, const char *name)
{
    return !pattern || (strpbrk(pattern, "*?[") ? fnmatch(pattern, name, 0) == 0
                                                : strstr(name, pattern) != NULL);
}

static int flags_show_one(void *arg, const struct flags_answer *a)
{
    struct flags_show *s = arg;
    struct flags_answer first;

    if (!flags_fits(s->pattern, a->name) || !flags_find(a->name, &first) || first.text != a->text) {
        return 0;
    }
    printf("--%s: %s%s\n    %s, default %s%s%s\n    %s\n", a->name, flags_states[a->state],
           a->state != FLAGS_INAPPLICABLE ? ""
           : a->accepted                  ? ", accepted with a line in the log"
                                          : ", refused",
           flags_kind(a), flags_default(a), a->command ? ", of miles " : "",
           a->command ? a->command : "", a->text);
    s->shown++;
    return 0;
}

/* A name that only a family covers. */
static int flags_show(const char *pattern, struct err *e)
{
    struct flags_show s = {pattern, 0};
    struct flags_answer a;

    flags_each(flags_show_one, &s);
    if (!s.shown && s.pattern && flags_find(s.pattern, &a)) {
        printf("--%s is one of:\n", s.pattern);
        s.pattern = a.name;
        flags_each(flags_show_one, &s);
    }
    return s.shown ? STATUS_OK : ERR(e, STATUS_NOTFOUND, "no flag is called like %s", pattern);
}

struct flags_opts {
    int check, tsv;
};

#define O(f) offsetof(struct flags_opts, f)
static const struct conf_opt flags_opts_table[] = {
    {"check", CONF_SWITCH, NULL, NULL,
     "hold the list of Miles' flags (FILE, else " FLAGS_FILE ") against what the program says",
     O(check), "list", NULL},
    {"tsv", CONF_SWITCH, NULL, NULL, "write that list anew to stdout", O(tsv), "list", NULL},
    {0}};

/* A flag may be asked for as it is written. */
static int flags_is_pattern(const char *word)
{
    static const char *const own[] = {"--check", "--tsv", "--help", "--help-markdown"};

    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (strcmp(word, own[i]) == 0) {
            return 0;
        }
    }
    return strncmp(word, "--", 2) == 0 && word[2];
}

int cmd_flags(int argc, char **argv)
{
    struct conf *c = conf_new();
    struct flags_opts o;
    struct err e = {0};
    const char *arg;
    int rc;

    conf_add(c, flags_opts_table, &o);
    conf_positional(c, 0, 1);
    if (argc == 2 && flags_is_pattern(argv[1])) {
        argv[1] += 2;
    }
    rc = conf_parse(c, argc - 1, argv + 1, &e);
    if (rc == STATUS_END) {
        cmd_help("miles flags [PATTERN] | --check [FILE] | --tsv [FILE]", c);
        conf_free(c);
        return CMD_OK;
    }
    arg = rc == STATUS_OK && conf_nargs(c) ? conf_arg(c, 0) : NULL;
    if (rc == STATUS_OK && o.check && o.tsv) {
        rc = ERR(&e, STATUS_INPUT, "--check and --tsv exclude each other");
    }
    if (rc == STATUS_OK) {
        rc = o.check ? flags_check(arg ? arg : FLAGS_FILE, &e)
             : o.tsv ? flags_write(arg ? arg : FLAGS_FILE, &e)
                     : flags_show(arg, &e);
    }
    conf_free(c);
    if (rc == STATUS_NOTFOUND && !arg) {
        err_prefix(&e, "no FILE is given, and this is no clone of the repository");
    }
    return rc == STATUS_OK ? CMD_OK : cmd_fail(rc, &e);
}
