/* Tensors: a typed, row-major, contiguous view of memory that someone else owns. */
#ifndef WEFT_TENSOR_H
#define WEFT_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name, bytes per element, text used in files and messages */
#define WEFT_DTYPE_LIST(X)                                                                         \
    X(F32, 4, "fp32")                                                                              \
    X(BF16, 2, "bf16")                                                                             \
    X(F16, 2, "fp16")                                                                              \
    X(F64, 8, "fp64")                                                                              \
    X(I32, 4, "int32")                                                                             \
    X(I64, 8, "int64")                                                                             \
    X(U8, 1, "uint8")

typedef enum weft_dtype {
#define WEFT_DTYPE_ENUM(name, bytes, text) WEFT_##name,
    WEFT_DTYPE_LIST(WEFT_DTYPE_ENUM)
#undef WEFT_DTYPE_ENUM
} weft_dtype;

enum { WEFT_MAX_DIMS = 4 };

/* Passed by value: fixed. */
typedef struct weft_tensor {
    void *data; /* device memory, borrowed */
    weft_dtype dtype;
    int num_dims;
    size_t dims[WEFT_MAX_DIMS]; /* slowest first; dims beyond num_dims are ignored */
} weft_tensor;

/* Bytes an element; the name used in files and messages ("fp32"), static. */
size_t weft_dtype_bytes(weft_dtype dtype);
const char *weft_dtype_text(weft_dtype dtype);

/* Makes a view; unused dims are 0. Example: weft_tensor_2d(p, WEFT_F32, rows, cols). */
weft_tensor weft_tensor_2d(void *data, weft_dtype dtype, size_t d0, size_t d1);

size_t weft_tensor_count(const weft_tensor *tensor); /* elements; 1 for num_dims 0 */
size_t weft_tensor_bytes(const weft_tensor *tensor); /* count times the element's bytes */

#ifdef __cplusplus
}
#endif
#endif
