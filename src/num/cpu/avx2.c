/* The kernels of kern_body.h on avx2 registers. */
#include "num/cpu/vec_avx2.h"

#include "num/cpu/kern_body.h"

const struct kern avx2_kern = KERN_TABLE;
