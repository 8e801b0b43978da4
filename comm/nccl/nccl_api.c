#include "comm/nccl/nccl_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/nccl/nccl.h"
#include "core/clock.h"

static weft_nccl_api api;
static weft_error load_error;

const weft_nccl_api *weft_nccl(void)
{
    return &api;
}

weft_status weft_nccl_status(const char *file, int line, const char *function, const char *call,
                             ncclResult_t result)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return WEFT_OK;
    /* "weft_nccl()->Send(...)" is ncclSend; without an arrow it is a text. */
    const char *arrow = strstr(call, "->"), *name = arrow ? arrow + 2 : call;
    const char *more = api.GetLastError(NULL);
    return weft_error_set(file, line, function, WEFT_COMM, "%s%.*s: %s%s%s",
                          arrow ? "nccl" : "NCCL, ", (int)strcspn(name, "("), name,
                          api.GetErrorString(result), more && *more ? ": " : "", more ? more : "");
}

/* What NCCL reads when its first communicator is made; a user's own settings stand. */
static void set_environment(void)
{
    /* Kernels of different communicators start in the order in which this process issued them. */
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    /* Sums that switches form differ from run to run. */
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    /* Connects with the communicator, not with the first operation, which would wait for the
     * others on the host. */
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

static weft_status find(void *library, const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(library, name);
    if (!symbol)
        return WEFT_ERROR(WEFT_CONFIG, "libnccl.so.2 has no %s", name);
    memcpy(function, &symbol, bytes);
    return WEFT_OK;
}

static weft_status load(void)
{
    /* The table's types are the header's. */
#define CHECK_TYPE(result, name, arguments) (void)sizeof(api.name = nccl##name);
    WEFT_NCCL_API_LIST(CHECK_TYPE)
#undef CHECK_TYPE
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return WEFT_ERROR(WEFT_CONFIG, "%s", dlerror());
#define FIND(result, name, arguments)                                                              \
    WEFT_TRY(find(library, "nccl" #name, (void *)&api.name, sizeof api.name));
    WEFT_NCCL_API_LIST(FIND)
#undef FIND
    int code;
    if (api.GetVersion(&code) != ncclSuccess)
        return WEFT_ERROR(WEFT_CONFIG, "libnccl.so.2 does not tell its version");
    const char *why = weft_nccl_version(code, api.version);
    if (why)
        return WEFT_ERROR(WEFT_CONFIG, "NCCL %s: %s", api.version, why);
    set_environment();
    return WEFT_OK;
}

static void load_once(void)
{
    if (load() != WEFT_OK)
        weft_error_take(&load_error);
}

weft_status weft_nccl_load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_once);
    return load_error.status == WEFT_OK ? WEFT_OK : weft_error_put(&load_error);
}

pthread_mutex_t weft_nccl_order = PTHREAD_MUTEX_INITIALIZER;

weft_status weft_nccl_settle(ncclComm_t handle)
{
    ncclResult_t state = ncclSuccess;
    double deadline_us = weft_now_us() + 1e6 * WEFT_NCCL_SETUP_SECONDS;
    for (int i = 0;; i++) {
        WEFT_TRY(WEFT_NCCL(weft_nccl()->CommGetAsyncError(handle, &state)));
        if (state != ncclInProgress)
            return weft_nccl_status(__FILE__, __LINE__, __func__, "an earlier call", state);
        if (weft_now_us() > deadline_us)
            return WEFT_ERROR(WEFT_COMM, "NCCL has made no progress for %d s",
                              (int)WEFT_NCCL_SETUP_SECONDS);
        if (i > 1000)
            nanosleep(&(struct timespec){.tv_nsec = WEFT_NCCL_POLL_NS}, NULL);
    }
}

weft_status weft_nccl_begin_group(void)
{
    return WEFT_NCCL(weft_nccl()->GroupStart());
}

weft_status weft_nccl_end_group(ncclComm_t handle, weft_status status)
{
    weft_error error;
    if (status != WEFT_OK)
        weft_error_take(&error);
    weft_status ended = WEFT_NCCL(weft_nccl()->GroupEnd());
    if (status != WEFT_OK)
        return weft_error_put(&error);
    WEFT_TRY(ended);
    return weft_nccl_settle(handle);
}
