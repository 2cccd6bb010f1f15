/* The Python program that answers questions of algebra; see mathask.c. */
#ifndef REWARD_MATHASK_H
#define REWARD_MATHASK_H

extern const char mathask_script[];

#endif
