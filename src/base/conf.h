/* Options are data. A module exports a table of options over one struct of its own; a command joins
 * the tables it needs, and flags, MILES_* environment, config file, help, the resolved dump and the
 * flag reference all come from them. getenv and number parsing of flags live in conf*.c only.
 *
 *     struct opts { int64_t batch; double lr; char *save; int colocate; };
 *     #define O(field) offsetof(struct opts, field)
 *     static const struct conf_opt table[] = {
 *         {"batch", CONF_INT, "8", "[1,65536]", "prompts per step", O(batch), "data"},
 *         {"lr", CONF_FLOAT, "1e-6", "[0,inf)", "learning rate", O(lr), "optimizer"},
 *         {"save", CONF_STR, NULL, NULL, "checkpoint folder", O(save), "checkpoint"},
 *         {"colocate", CONF_SWITCH, NULL, NULL, "share the host", O(colocate), "placement"},
 *         {0}};
 *     struct opts o;
 *     struct conf *c = conf_new();
 *     conf_add(c, table, &o);
 *     rc = conf_parse(c, argc - 1, argv + 1, &e);       STATUS_END: --help was asked
 *     ... o.batch ...
 *     conf_free(c);                                     strings in o die here
 *
 * Sources, each overriding the one before: default, MILES_<NAME> environment, flags, and the file
 * named by the option `custom-config-path` (as in Miles, whose YAML is merged over the arguments; a
 * key that changes an explicit flag is logged). Within one source the last one wins. One thread. */
#ifndef BASE_CONF_H
#define BASE_CONF_H

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct err;

enum conf_type {
    CONF_END = 0, /* ends a table */
    CONF_SWITCH,  /* int 0/1: --x; absent is 0 */
    CONF_OFF,     /* int 0/1: --disable-x clears it; absent is 1. Set `dest` to the plain name */
    CONF_BOOL,    /* int 0/1, -1 when unset: --x and --no-x */
    CONF_INT,     /* int64_t, CONF_UNSET when unset */
    CONF_FLOAT,   /* double, NAN when unset */
    CONF_STR,     /* char *, NULL when unset */
    CONF_PATH,    /* char *, a path template: may hold {rollout_id}; other {names} are refused */
    CONF_CHOICE,  /* int: index into the choices "a|b|c", -1 when unset */
    CONF_MODE,    /* the same; --x alone is the first of them */
    CONF_STRS,    /* struct conf_strs: --x a b c, up to the next --flag */
    CONF_INTS,    /* struct conf_ints */
    CONF_JSON,    /* json_t *, NULL when unset */
    /* struct conf_strs: name "x-*" takes every flag --x-... that nobody else knows, for another
     * program to judge: the flag as written, then its values up to the next flag. In a config file
     * true is a flag alone, false and null are none. Not from the environment. */
    CONF_PASS
};

#define CONF_UNSET INT64_MIN

struct conf_strs {
    char **v;
    int64_t n;
};
struct conf_ints {
    int64_t *v;
    int64_t n;
};

struct conf_opt {
    const char *name; /* without dashes in front: "rollout-batch-size" */
    enum conf_type type;
    const char *def;   /* as a user would write it (lists: blank separated); NULL is unset */
    const char *range; /* numbers: "[0,1]", "(0,inf)"; choices: "a|b|c"; else NULL */
    const char *doc;   /* one sentence */
    size_t offset;     /* of the field in the struct given to conf_add */
    const char *group; /* heading in help */
    const char *dest;  /* name in dumps and config files; NULL: name with underscores */
};

/* What is said to a flag of Miles that is no option here. At its default each is accepted. */
enum conf_answer {
    CONF_LATER, /* planned: refused with its sentence */
    CONF_NEVER, /* does not apply here and would change what comes out: refused with its sentence */
    CONF_NOTED  /* does not apply here and cannot change what comes out: its value is checked, the
                   sentence is logged, conf_noted tells what was given */
};

/* Such a flag. A name that ends in '*' stands for a whole family. */
struct conf_known {
    const char *name;
    enum conf_type type; /* CONF_SWITCH takes no value */
    const char *def;     /* text of the default, NULL when unset */
    enum conf_answer answer;
    const char *why;   /* one sentence: why, or what to give instead */
    const char *range; /* of a noted one, as in conf_opt */
};

enum conf_source { CONF_FROM_DEFAULT, CONF_FROM_ENV, CONF_FROM_FLAG, CONF_FROM_FILE };

struct conf;

struct conf *conf_new(void);
void conf_free(struct conf *c); /* NULL is fine; frees every string, list and json in the structs */
/* Joins a table; opts ends with {0} and must outlive c. A name given twice is our own bug. */
void conf_add(struct conf *c, const struct conf_opt *opts, void *base);
/* Joins names that are known and no options; the list ends with a NULL name. A name that is an
 * option too is the option. */
void conf_add_known(struct conf *c, const struct conf_known *known);
/* Allows positional arguments (min to max of them); without this call any is an error. */
void conf_positional(struct conf *c, int min, int max);

/* Fills the structs: defaults, environment, argv (without the program's and command's name), file.
 * STATUS_END when --help, -h or --help-markdown is there (structs hold the defaults). STATUS_INPUT
 * names the flag, what was wrong and, for an unknown one, the nearest known name. */
int conf_parse(struct conf *c, int argc, char *const *argv, struct err *e);

/* Positional arguments; valid until conf_free. */
int conf_nargs(const struct conf *c);
const char *conf_arg(const struct conf *c, int i);

/* Where an option's value came from; name as in the table. An unknown name is our own bug. */
enum conf_source conf_source(const struct conf *c, const char *name);
int conf_is_set(const struct conf *c, const char *name); /* by anything but the default */

/* The text that a known flag was given with and accepted, values with blanks between, "true" and
 * "false" for switches; NULL: not given, or at its default. */
const char *conf_noted(const struct conf *c, const char *name);
/* {name: text} of all of those; the caller owns it. */
json_t *conf_dump_noted(const struct conf *c);

/* The values in force as an object (dest names, underscores); the caller owns it. Reads the
 * structs, so values derived after parsing are in it. */
json_t *conf_dump_json(const struct conf *c);
/* {dest: "default" | "env" | "flag" | "file"}; the caller owns it. */
json_t *conf_dump_sources(const struct conf *c);
void conf_help(const struct conf *c, FILE *out);
/* Tables of docs/flags.md; asked for by --help-markdown instead of --help. */
void conf_markdown(const struct conf *c, FILE *out);
int conf_wants_markdown(const struct conf *c);

/* An environment variable, for the few things that are no option; NULL when unset or empty. */
const char *conf_env(const char *name);
/* Strict: the whole text, decimal. 0, or STATUS_INPUT (no number, or out of the type's range). */
int conf_parse_int(const char *text, int64_t *out);
int conf_parse_float(const char *text, double *out);

/* Expands a CONF_PATH template: {rollout_id} becomes the text ("7", "eval_7"); {{ and }} are
 * braces. Free with mem_free. */
char *conf_expand(const char *template_, const char *rollout_id);

#endif
