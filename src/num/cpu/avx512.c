/* The kernels of kern_body.h on avx512 registers. */
#include "num/cpu/vec_avx512.h"

#include "num/cpu/kern_body.h"

const struct kern avx512_kern = KERN_TABLE;
