/* Inside the reward hub: a task, the table of types, and how a grader says its reason. A new type
 * is a row of hub_types.c with a function that takes a task; what it needs beside is in `needs`. */
#ifndef REWARD_HUB_INT_H
#define REWARD_HUB_INT_H

#include "reward/hub.h"

enum {
    HUB_TEXT = 160,  /* bytes of a label or an answer that a reason shows */
    HUB_SLOW = 1,    /* takes more than a moment: never inside hub_submit */
    HUB_HTTP = 2,    /* a call of the service at rm_url; no function here */
    HUB_PYTHON = 4,  /* a function of ours in Python workers; see hub_python */
    HUB_NO_LABEL = 8 /* scores samples without a label too */
};

/* What a grader sees and gives. It returns 0 with `reward` or `raw` set and its reason told by
 * hub_say, or a status with the reason in e. Any thread. */
struct hub_task {
    int64_t id;
    const json_t *sample;
    const char *response;
    size_t n;
    const json_t *label, *metadata;
    char *label_text; /* str(label); NULL for null */
    double reward;
    json_t *raw;
    enum hub_class why;
    char reason[256];
};

struct hub_type {
    const char *name;
    int (*grade)(struct hub_task *t, struct err *e);
    int needs;
};

/* The type of that name, without its blanks and its boxed_ prefix; NULL with the reason in e. */
const struct hub_type *hub_type_find(const char *type, int *boxed, struct err *e);
/* Scores: fills the result but for its id and what reward_key decides; a dict is left in raw. */
void hub_type_grade(const struct hub_type *g, int boxed, struct hub_task *t,
                    struct hub_result *out);
void hub_say(struct hub_task *t, enum hub_class why, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* One line of valid UTF-8, cut at a character, into out. */
void hub_line(char *out, size_t size, const char *s, size_t n);
/* Fills a failure. */
void hub_failed(struct hub_result *r, enum hub_class why, const char *reason);

#endif
