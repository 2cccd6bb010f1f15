/* The Python program of the "ifbench" reward, for a worker (worker_opts.source); see ifbench.c. */
#ifndef REWARD_IFBENCH_H
#define REWARD_IFBENCH_H

extern const char ifbench_script[];

#endif
