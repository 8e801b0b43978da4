#include "kernels/cuda/cublas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"

enum { MAX_DEVICES = 64, ALIGNMENT = 256 };

typedef struct symbol {
    const char *name;
    size_t offset;
} symbol;

#define LT_SYMBOL(function) {#function, offsetof(weft_cublaslt, function)},
static const symbol lt_symbols[] = {WEFT_CUBLASLT_LIST(LT_SYMBOL){0}};
#undef LT_SYMBOL
#define SYMBOL(function) {#function, offsetof(weft_cublas, function)},
static const symbol cublas_symbols[] = {WEFT_CUBLAS_LIST(SYMBOL){0}};
#undef SYMBOL

static const char *const versions[] = {"13", "12"};

static struct {
    weft_cublaslt lt;
    weft_cublas cublas;
    const char *version;  /* of cuBLASLt */
    char lt_missing[400]; /* empty: it is there */
    bool has_cublas;
} library;

static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t cublas_lock = PTHREAD_MUTEX_INITIALIZER;
static cublasLtHandle_t lt_handles[MAX_DEVICES];
static cublasHandle_t cublas_handles[MAX_DEVICES];

/* Fills the table; the name of what is missing, or NULL. */
static const char *find_symbols(void *handle, const symbol *symbols, void *table)
{
    for (; symbols->name; symbols++) {
        void *address = dlsym(handle, symbols->name);
        if (!address)
            return symbols->name;
        memcpy((char *)table + symbols->offset, &address, sizeof address);
    }
    return NULL;
}

/* Where dlopen looks, else in the toolkit that this was built with. */
static void *open_file(const char *file)
{
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
#ifdef WEFT_CUDA_LIBRARY_FOLDER
    char path[400];
    if (!handle &&
        snprintf(path, sizeof path, WEFT_CUDA_LIBRARY_FOLDER "/%s", file) < (int)sizeof path)
        handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
#endif
    return handle;
}

/* dlopen's words for each file that was tried go to `why`. */
static void *open_library(const char *variable, const char *name, const char *const *tried,
                          size_t num_tried, size_t *out_index, char *why, size_t capacity)
{
    const char *path = getenv(variable);
    if (path && path[0]) {
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            snprintf(why, capacity, "%s: %s", variable, dlerror());
        return handle;
    }
    size_t used = 0;
    for (size_t i = 0; i < num_tried; i++) {
        char file[64];
        snprintf(file, sizeof file, "%s.so.%s", name, tried[i]);
        void *handle = open_file(file);
        if (handle) {
            *out_index = i;
            return handle;
        }
        if (used < capacity)
            used += (size_t)snprintf(why + used, capacity - used, "%s%s", i ? "; " : "", dlerror());
    }
    return NULL;
}

/* Both of one number: libcublas loads the libcublasLt that it was built with. */
static void load(void)
{
    const char *missing;
    size_t index = 0;
    char why[400];
    void *handle = open_library("WEFT_CUBLASLT_LIBRARY", "libcublasLt", versions,
                                sizeof versions / sizeof versions[0], &index, library.lt_missing,
                                sizeof library.lt_missing);
    if (!handle)
        return;
    if ((missing = find_symbols(handle, lt_symbols, &library.lt))) {
        snprintf(library.lt_missing, sizeof library.lt_missing, "libcublasLt has no %s", missing);
        return;
    }
    handle = open_library("WEFT_CUBLAS_LIBRARY", "libcublas", &versions[index], 1, &index, why,
                          sizeof why);
    if (!handle)
        weft_log(WEFT_LOG_WARN, "expert GEMMs run one by one, without cuBLAS: %s", why);
    else if ((missing = find_symbols(handle, cublas_symbols, &library.cublas)))
        weft_log(WEFT_LOG_WARN, "expert GEMMs run one by one: libcublas has no %s", missing);
    else
        library.has_cublas = true;
}

static weft_status require(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (library.lt_missing[0])
        return WEFT_ERROR(WEFT_DEVICE, "no cuBLASLt: %s", library.lt_missing);
    return WEFT_OK;
}

/* "a->b.cublasX(...)" is reported as cublasX. */
weft_status weft_cublas_status(const char *file, int line, const char *function, const char *call,
                               cublasStatus_t status)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return WEFT_OK;
    const size_t end = strcspn(call, "(");
    size_t start = end;
    while (start > 0 && !strchr(">.", call[start - 1]))
        start--;
    return weft_error_set(
        file, line, function, status == CUBLAS_STATUS_ALLOC_FAILED ? WEFT_MEMORY : WEFT_DEVICE,
        "%.*s: %s", (int)(end - start), call + start, library.lt.cublasLtGetStatusName(status));
}

static weft_status find_device(weft_lane *lane, int *out)
{
    weft_cuda_stream(lane); /* a handle belongs to the device that is current */
    *out = weft_cuda_index(weft_lane_device(lane));
    if (*out < 0 || *out >= MAX_DEVICES)
        return WEFT_ERROR(WEFT_INTERNAL,
                          "device %d is beyond the %d that cuBLAS handles are kept for", *out,
                          MAX_DEVICES);
    return WEFT_OK;
}

weft_status weft_cublaslt_get(weft_lane *lane, const weft_cublaslt **out_functions,
                              cublasLtHandle_t *out_handle)
{
    int device;
    WEFT_TRY(require());
    WEFT_TRY(find_device(lane, &device));
    pthread_mutex_lock(&handles_lock);
    weft_status status = WEFT_OK;
    if (!lt_handles[device])
        status = WEFT_CUBLAS(library.lt.cublasLtCreate(&lt_handles[device]));
    *out_handle = lt_handles[device];
    pthread_mutex_unlock(&handles_lock);
    *out_functions = &library.lt;
    return status;
}

weft_status weft_cublas_get(weft_lane *lane, const weft_cublas **out_functions,
                            cublasHandle_t *out_handle)
{
    int device;
    WEFT_TRY(require());
    *out_functions = NULL;
    if (!library.has_cublas)
        return WEFT_OK;
    WEFT_TRY(find_device(lane, &device));
    pthread_mutex_lock(&handles_lock);
    weft_status status = WEFT_OK;
    if (!cublas_handles[device])
        status = WEFT_CUBLAS(library.cublas.cublasCreate_v2(&cublas_handles[device]));
    *out_handle = cublas_handles[device];
    pthread_mutex_unlock(&handles_lock);
    *out_functions = &library.cublas;
    return status;
}

void weft_cublas_lock(void)
{
    pthread_mutex_lock(&cublas_lock);
}

void weft_cublas_unlock(void)
{
    pthread_mutex_unlock(&cublas_lock);
}

cudaDataType_t weft_cublas_type(weft_dtype dtype)
{
    return dtype == WEFT_F32 ? CUDA_R_32F : dtype == WEFT_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

weft_status weft_cublas_workspace_get(weft_lane *lane, size_t bytes, weft_cublas_workspace *out)
{
    void *memory;
    WEFT_TRY(weft_cuda_workspace(lane, WEFT_CUDA_WORKSPACE_BYTES, &memory));
    const size_t skip = (ALIGNMENT - (uintptr_t)memory % ALIGNMENT) % ALIGNMENT;
    const size_t own_bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (own_bytes > WEFT_CUDA_WORKSPACE_BYTES / 2)
        return WEFT_ERROR(WEFT_INTERNAL, "a GEMM needs %zu bytes of a workspace of %d", own_bytes,
                          (int)WEFT_CUDA_WORKSPACE_BYTES);
    out->own = (char *)memory + skip;
    out->rest = (char *)out->own + own_bytes;
    out->rest_bytes = WEFT_CUDA_WORKSPACE_BYTES - skip - own_bytes;
    return WEFT_OK;
}
