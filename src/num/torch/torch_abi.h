/* The part of libtorch's stable C ABI that this device calls, declared by hand so that neither
 * torch's headers nor a C++ compiler are needed. Taken from the torch wheel, versions 2.10 to 2.15:
 *     include/torch/csrc/inductor/aoti_torch/c/shim.h        aoti_torch_*
 *     include/torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h   aoti_torch_aten_*
 *     include/torch/csrc/stable/c/shim.h                     torch_*
 * The functions return 0, or 1 after an exception inside torch. A handle that is returned is owned
 * by the caller (aoti_torch_delete_tensor_object) unless said otherwise. */
#ifndef NUM_TORCH_ABI_H
#define NUM_TORCH_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct aten; /* an AtenTensorHandle points to it */

/* The dispatcher takes an operator's arguments on a stack of 64-bit values and leaves the results
 * there: an integer, a double's bits, a handle or list (ownership goes to the callee), an optional
 * as a pointer to such a value made by torch_new_stable_ivalue or operator new (0: none). Arguments
 * of type Scalar have no such form, so operators that take one are out of reach. */

#define TORCH_ABI_OLDEST (((uint64_t)2 << 56) | ((uint64_t)10 << 48))

/* X(result, name, parameters): needed, in every version from the oldest. */
#define TORCH_ABI_FUNCTIONS(X)                                                                     \
    X(uint64_t, aoti_torch_abi_version, (void))                                                    \
    X(int32_t, aoti_torch_device_type_cpu, (void))                                                 \
    X(int32_t, aoti_torch_device_type_cuda, (void))                                                \
    X(int32_t, aoti_torch_dtype_bfloat16, (void))                                                  \
    X(int32_t, aoti_torch_dtype_float32, (void))                                                   \
    X(int32_t, aoti_torch_dtype_float64, (void))                                                   \
    X(int32_t, aoti_torch_dtype_uint8, (void))                                                     \
    X(int32_t, aoti_torch_dtype_int32, (void))                                                     \
    X(int32_t, aoti_torch_dtype_int64, (void))                                                     \
    X(void, aoti_torch_grad_mode_set_enabled, (bool enabled))                                      \
    X(int32_t, aoti_torch_delete_tensor_object, (struct aten * tensor))                            \
    X(int32_t, aoti_torch_new_tensor_handle, (struct aten * tensor, struct aten * *out))           \
    X(int32_t, aoti_torch_get_data_ptr, (struct aten * tensor, void **borrowed))                   \
    X(int32_t, aoti_torch_item_float64, (struct aten * tensor, double *out))                       \
    X(int32_t, aoti_torch_scalar_to_tensor_float32, (float value, struct aten **out))              \
    X(int32_t, aoti_torch_empty_strided,                                                           \
      (int64_t ndim, const int64_t *sizes, const int64_t *strides, int32_t dtype,                  \
       int32_t device_type, int32_t device_index, struct aten **out))                              \
    X(int32_t, aoti_torch_create_tensor_from_blob,                                                 \
      (void *data, int64_t ndim, const int64_t *sizes, const int64_t *strides,                     \
       int64_t storage_offset, int32_t dtype, int32_t device_type, int32_t device_index,           \
       struct aten **out))                                                                         \
    X(int32_t, aoti_torch__reinterpret_tensor,                                                     \
      (struct aten * self, int64_t ndim, const int64_t *sizes, const int64_t *strides,             \
       int64_t storage_offset, struct aten **out))                                                 \
    X(int32_t, aoti_torch_copy_, (struct aten * self, struct aten * src, int32_t non_blocking))    \
    X(int32_t, aoti_torch_zero_, (struct aten * self))                                             \
    X(int32_t, aoti_torch_aten_subtract_Tensor,                                                    \
      (struct aten * self, struct aten * other, double alpha, struct aten **out))                  \
    X(int32_t, torch_call_dispatcher,                                                              \
      (const char *op, const char *overload, uint64_t *stack, uint64_t build_version))             \
    X(int32_t, torch_new_list_reserve_size, (size_t size, void **out))                             \
    X(int32_t, torch_list_push_back, (void *list, uint64_t element))                               \
    X(int32_t, torch_new_string_handle, (const char *data, size_t length, void **out))

/* May be missing: NULL then. Both came with 2.13. */
#define TORCH_ABI_OPTIONAL(X)                                                                      \
    X(int32_t, torch_new_stable_ivalue, (uint64_t * *out))                                         \
    X(const char *, torch_exception_get_what_without_backtrace, (void))

#define TORCH_ABI_FIELD(result, name, parameters) result(*name) parameters;
struct torch_abi {
    TORCH_ABI_FUNCTIONS(TORCH_ABI_FIELD)
    TORCH_ABI_OPTIONAL(TORCH_ABI_FIELD)
    void *(*new_bytes)(size_t n); /* C++'s operator new, where torch_new_stable_ivalue is missing */
};
#undef TORCH_ABI_FIELD

#endif
