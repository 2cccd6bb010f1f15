/* The kernels of kern_body.h on plain C lanes: every machine has them. */
#include "num/cpu/vec_scalar.h"

#include "num/cpu/kern_body.h"

const struct kern scalar_kern = KERN_TABLE;
