/* What the files of conf share: the tables that were joined and where their values are. */
#ifndef BASE_CONF_INT_H
#define BASE_CONF_INT_H

#include "base/conf.h"
#include "base/map.h"

enum { CONF_MAX_NAME = 128, CONF_MAX_LIST = 4096, CONF_MAX_TEXT = 1 << 20 };

struct conf_entry {
    const struct conf_opt *o;
    void *field;
    enum conf_source source;
    char *dest;  /* with underscores */
    char *name_; /* the flag's name with underscores */
};

struct conf {
    struct conf_entry *ents;
    int n, cap;
    struct map by_key; /* name and dest, with underscores -> index * 2 + (1 when it is the plain
                          name of a CONF_OFF) */
    const struct conf_known **known;
    int nknown;
    struct conf_note *noted; /* known flags that were accepted, in order */
    int nnoted;
    int min_args, max_args;
    const char **args;
    int nargs;
    int markdown; /* --help-markdown was asked */
};

static inline int conf_has_choices(enum conf_type t)
{
    return t == CONF_CHOICE || t == CONF_MODE;
}

struct conf_note {
    const struct conf_known *k;
    char *name; /* as given: k may be a family */
    char *text;
};

/* ---- one value: conf_value.c ---- */

void conf_value_init(const struct conf_opt *o, void *field);
void conf_value_clear(const struct conf_opt *o, void *field);
/* The only way into a field: n values; lists take all, the others exactly one. `from` says in
 * messages where they come from. */
int conf_value_set(const struct conf_entry *en, const char *const *tok, int n, const char *from,
                   struct err *e);
/* Text of the environment, or a default: lists are blank-separated. */
int conf_value_text(const struct conf_entry *en, const char *text, const char *from, struct err *e);
/* A blank-separated text into words inside `copy`; their number. */
int conf_value_words(char *copy, const char **tok, int max);
int conf_value_bool(const char *text); /* 0, 1, or -1: neither */
int conf_value_is_switch(enum conf_type t);
json_t *conf_value_json(const struct conf_entry *en);

/* ---- names that are no options: conf_name.c ---- */

/* 1: a name of a table, which may end in *, is this key, with dashes or underscores. */
int conf_name_same(const char *known, const char *key, size_t len);
const struct conf_known *conf_name_known(const struct conf *c, const char *key, size_t len);
/* The nearest name when it is at most so many edits away, else NULL. */
const char *conf_name_near(const struct conf *c, const char *key, size_t len, int most);
int conf_name_unknown(const struct conf *c, const char *key, size_t len, const char *from,
                      struct err *e);
int conf_name_refuse(const struct conf_known *k, const char *from, struct err *e);
/* What is said to a known flag, given as `name` with n words; switches have the word true or
 * false. */
int conf_name_answer(struct conf *c, const struct conf_known *k, const char *name, size_t len,
                     const char *const *tok, int n, const char *from, struct err *e);

#endif
