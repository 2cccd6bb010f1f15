/* The Python program that a reward worker runs; see pyside.c for its protocol. */
#ifndef REWARD_PYSIDE_H
#define REWARD_PYSIDE_H

extern const char pyside_script[];

#endif
