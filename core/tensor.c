#include <weft/tensor.h>

#include <assert.h>

static const struct {
    size_t bytes;
    const char *text;
} dtypes[] = {
#define DTYPE_ROW(name, size, words) [WEFT_##name] = {size, words},
    WEFT_DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

size_t weft_dtype_bytes(weft_dtype dtype)
{
    assert((size_t)dtype < sizeof dtypes / sizeof dtypes[0]);
    return dtypes[dtype].bytes;
}

const char *weft_dtype_text(weft_dtype dtype)
{
    assert((size_t)dtype < sizeof dtypes / sizeof dtypes[0]);
    return dtypes[dtype].text;
}

weft_tensor weft_tensor_2d(void *data, weft_dtype dtype, size_t d0, size_t d1)
{
    return (weft_tensor){.data = data, .dtype = dtype, .num_dims = 2, .dims = {d0, d1}};
}

size_t weft_tensor_count(const weft_tensor *tensor)
{
    size_t count = 1;
    for (int i = 0; i < tensor->num_dims; i++)
        count *= tensor->dims[i];
    return count;
}

size_t weft_tensor_bytes(const weft_tensor *tensor)
{
    return weft_tensor_count(tensor) * weft_dtype_bytes(tensor->dtype);
}
