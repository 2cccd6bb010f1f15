/* The block formats of ggml that we read, and their values.
 *
 *     const struct gguf_quant *q = gguf_quant_find(14);      Q6_K
 *     q->f32(bytes, dst, blocks);                            blocks * q->values values
 *
 * Values are computed in f32 in the order of the `gguf` package's dequantize, each step rounded. */
#ifndef MODEL_GGUF_QUANT_H
#define MODEL_GGUF_QUANT_H

#include <stdint.h>

#define GGUF_QUANT_NAMES "F32, F16, BF16, Q4_0, Q4_1, Q4_K, Q5_0, Q6_K and Q8_0"
#define GGUF_QUANT_MAX   256 /* values of the largest block */

struct gguf_quant {
    uint32_t type;     /* ggml's number */
    int values, bytes; /* of a block */
    void (*f32)(const uint8_t *p, float *dst, int64_t blocks);
    /* f32 rounded to nearest even, or NULL: gguf_quant_bf16 rounds what f32 gives */
    void (*bf16)(const uint8_t *p, uint16_t *dst, int64_t blocks);
};

/* NULL: not a type that we read. */
const struct gguf_quant *gguf_quant_find(uint32_t type);
void gguf_quant_bf16(const struct gguf_quant *q, const uint8_t *p, uint16_t *dst, int64_t blocks);

#endif
