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

#endif
