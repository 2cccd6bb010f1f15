/* A two-dimensional tensor on a device. Only the device that made it may look at `data`: code above
 * num/ moves values with device_upload and device_download. */
#ifndef NUM_TENSOR_H
#define NUM_TENSOR_H

#include <stdint.h>

#include "num/dtype.h"

struct device;

struct tensor {
    struct device *dev;
    enum dtype dtype;
    int64_t rows, cols;
    int64_t ld; /* elements from one row to the next; a multiple of 32, the tail of a row is zero */
    void *data; /* (rows, ld) */
    size_t size; /* bytes held; 0 for a view of another tensor and in a region's memory */
    int fresh;   /* 1: counts as zero, whatever the memory holds; see device_forget */
};

/* Rows [from, from + n) of t, sharing its memory. */
static inline struct tensor tensor_rows(const struct tensor *t, int64_t from, int64_t n)
{
    struct tensor v = *t;
    v.rows = n;
    v.data = (char *)t->data + (size_t)(from * t->ld) * dtype_size(t->dtype);
    v.size = 0;
    return v;
}

#endif
