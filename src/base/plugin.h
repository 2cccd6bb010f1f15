/* What an option --...-path may name, and how it is found: one table of all hooks, one resolver.
 *
 *     const struct plugin_hook *h = plugin_hook("custom-rm-path");
 *     struct plugin_ref r;
 *     plugin_resolve(h, "./reward.so:forty_two", &r, &e);      kind, file, symbol
 *     struct plugin *p;
 *     plugin_open(h, &r, "{}", &p, &e);                        of PLUGIN_SO
 *     plugin_table(p)->reward(plugin_self(p), ...);
 *     plugin_close(p);
 *     plugin_ref_fini(&r);
 *
 * Errors name the flag, the file, the symbol and the cause. One thread. */
#ifndef BASE_PLUGIN_H
#define BASE_PLUGIN_H

#include <stddef.h>

struct err;
struct miles_plugin;
struct plugin;

enum plugin_kind {
    PLUGIN_BUILTIN = 1, /* a name that stands for something of ours */
    PLUGIN_PYTHON = 2,  /* pkg.module.name or FILE.py:name */
    PLUGIN_SO = 4,      /* FILE.so:symbol, a struct miles_plugin */
    PLUGIN_URL = 8      /* http://..., a service that answers the call */
};

/* A name of ours, and how Miles' dotted paths to it end. */
struct plugin_name {
    const char *name, *ends;
};

struct plugin_hook {
    const char *flag;                /* without dashes in front */
    int kinds;                       /* of enum plugin_kind */
    const char *call;                /* the Python call */
    const char *slot;                /* the function of struct miles_plugin */
    size_t offset;                   /* of that function; 0: none */
    const struct plugin_name *names; /* built in; ends with a NULL name; NULL: none */
};

struct plugin_ref {
    enum plugin_kind kind;
    char *path;          /* as it was written */
    char *file, *symbol; /* of PLUGIN_SO */
    const char *builtin; /* of PLUGIN_BUILTIN: the table's own name */
};

/* The hook of that flag, or NULL; all of them: i from 0 until NULL. */
const struct plugin_hook *plugin_hook(const char *flag);
const struct plugin_hook *plugin_hook_at(int i);

/* What text names; nothing is opened, but a file must be there. */
int plugin_resolve(const struct plugin_hook *h, const char *text, struct plugin_ref *out,
                   struct err *e);
void plugin_ref_fini(struct plugin_ref *r); /* a zeroed one is fine */

/* Loads a shared object, checks its ABI and that it has the hook's function, and opens it; args is
 * the JSON of the options. */
int plugin_open(const struct plugin_hook *h, const struct plugin_ref *r, const char *args,
                struct plugin **out, struct err *e);
const struct miles_plugin *plugin_table(const struct plugin *p);
void *plugin_self(const struct plugin *p);
void plugin_close(struct plugin *p); /* NULL is fine */
/* The error of a call that failed for `why`. */
int plugin_failed(const struct plugin *p, const char *why, struct err *e);

#endif
