/* How long to wait before something is tried again.
 *
 *     wait = backoff_s(0.1, tries, 5.0, u);         0.1, 0.2, 0.4 ... 5 s, a quarter more or less
 *
 * u is a random number in (0, 1) of the caller's: who seeds it can repeat the waits, and of many
 * that failed together not all come back together. */
#ifndef BASE_BACKOFF_H
#define BASE_BACKOFF_H

/* first, doubled n times, at most `most`; times 0.75 to 1.25 as u goes from 0 to 1. */
double backoff_s(double first, int n, double most, double u);

#endif
