/* A command as a user writes it in one text, into the words to start it with. No shell sees it.
 *
 *     struct cmdline c;
 *     cmdline_split(&c, "env A='x y' python3 -m server --port {port}", &e);
 *     cmdline_add(&c, "--dtype");
 *     cmdline_fill(&c, names, values, &e);         {port} and the like
 *     ... c.v, NULL at the end ...
 *     cmdline_fini(&c); */
#ifndef RUN_CMDLINE_H
#define RUN_CMDLINE_H

struct err;

struct cmdline {
    char **v; /* NULL at the end; NULL itself before the first word */
    int n;
};

/* Blanks part words; '...', "..." and \ keep them, as in a shell. Variables, * and ~ are ordinary
 * text. STATUS_INPUT for a quote without end. c need not be initialised. */
int cmdline_split(struct cmdline *c, const char *text, struct err *e);
void cmdline_add(struct cmdline *c, const char *word); /* copied; also into a zeroed c */
/* Puts values in the place of {name}; {{ and }} are braces. Both lists end with NULL. STATUS_INPUT
 * names what is in braces and in no list. */
int cmdline_fill(struct cmdline *c, const char *const *names, const char *const *values,
                 struct err *e);
int cmdline_uses(const struct cmdline *c, const char *name); /* 1: {name} stands in a word */
void cmdline_copy(struct cmdline *to, const struct cmdline *from);
void cmdline_fini(struct cmdline *c); /* zeroes it */

#endif
