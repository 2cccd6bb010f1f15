/* LaTeX to plain text, as far as short answers need it: \frac{a}{b} -> a/b, \sqrt{x} -> sqrt(x),
 * symbols -> their character, unknown macros -> nothing, groups -> their content.
 *
 *     char *t = detex_text("\\frac{\\pi}{2}", &arena);     "pi/2"
 *
 * The result follows what pylatexenc (which Miles' math reward uses) makes of the same text, with
 * its losses: \frac{x+1}{2} becomes x+1/2, \sqrt[3]{2} becomes sqrt(2). */
#ifndef REWARD_DETEX_H
#define REWARD_DETEX_H

struct arena;

/* The text in the arena, or NULL when s is nested deeper than 100 groups. */
char *detex_text(const char *s, struct arena *a);

#endif
