/* The Python program that a worker runs: a short text that the interpreter is started with, and the
 * modules of python/miles_c, which come along in our binary and are sent over the pipe. See
 * python/miles_c/worker.py for the protocol. */
#ifndef REWARD_PYSIDE_H
#define REWARD_PYSIDE_H

#include <jansson.h>

/* For `python3 -u -c`. Its descriptors: 3 requests, 4 replies, 5 the life line (end of file there
 * means that the main program is gone). The first request must have "modules". */
extern const char pyside_boot[];

/* {"miles_c.worker": text, ...}; the caller's. */
json_t *pyside_modules(void);

#endif
