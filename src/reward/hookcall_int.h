/* Inside reward/hookcall: functions of shared objects. */
#ifndef REWARD_HOOKCALL_INT_H
#define REWARD_HOOKCALL_INT_H

#include <jansson.h>

struct miles_why;
struct plugin;
struct plugin_hook;

/* Calls the hook's function with the arguments that a Python function would get, and gives what the
 * Python side would; NULL with the reason in why. */
json_t *hookcall_so(struct plugin *p, const struct plugin_hook *h, const json_t *argv,
                    struct miles_why *why);

#endif
