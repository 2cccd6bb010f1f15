/* Owns the growth of waits. */
#include "base/backoff.h"

double backoff_s(double first, int n, double most, double u)
{
    double wait = first;

    for (; n > 0 && wait < most; n--) {
        wait *= 2.0;
    }
    return (wait < most ? wait : most) * (0.75 + 0.5 * u);
}
