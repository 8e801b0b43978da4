#include "core/probe.h"

#include <cjson/cJSON.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

void weft_probe_say(weft_probe *out, weft_probe_state state, const char *version,
                    const char *format, ...)
{
    va_list arguments;
    out->state = state;
    snprintf(out->version, sizeof out->version, "%s", version);
    va_start(arguments, format);
    vsnprintf(out->note, sizeof out->note, format, arguments);
    va_end(arguments);
}

void weft_probe_say_error(weft_probe *out, const char *version)
{
    weft_probe_say(out, WEFT_PROBE_BROKEN, version, "%.250s", weft_error_get()->text);
    weft_error_clear();
}

void weft_probe_cjson(weft_probe *out)
{
    char compiled[32];
    snprintf(compiled, sizeof compiled, "%d.%d.%d", CJSON_VERSION_MAJOR, CJSON_VERSION_MINOR,
             CJSON_VERSION_PATCH);
    cJSON *json = cJSON_ParseWithOpts("{\"a\": [1.5, \"b\"]}", NULL, 1);
    cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "a");
    const cJSON *number = cJSON_GetArrayItem(list, 0);
    bool right = cJSON_IsNumber(number) && number->valuedouble == 1.5;
    cJSON_Delete(json);
    if (!right)
        weft_probe_say(out, WEFT_PROBE_BROKEN, cJSON_Version(), "parsed 1.5 as something else");
    else
        weft_probe_say(out, WEFT_PROBE_WORKS, cJSON_Version(), "parses; compiled with %s",
                       compiled);
}

void weft_probe_huge_pages(weft_probe *out)
{
    const char *path = "/sys/kernel/mm/transparent_hugepage/enabled";
    char text[128] = "";
    FILE *file = fopen(path, "r");
    if (!file || !fgets(text, sizeof text, file)) {
        weft_probe_say(out, WEFT_PROBE_ABSENT, "", "%s: %s", path, strerror(errno));
    } else {
        char *mode = strchr(text, '[');
        size_t length = mode ? strcspn(++mode, "]") : 0;
        if (length == 5 && !strncmp(mode, "never", 5))
            weft_probe_say(out, WEFT_PROBE_ABSENT, "",
                           "transparent huge pages are off: large models run slower");
        else
            weft_probe_say(out, WEFT_PROBE_WORKS, "", "transparent, mode %.*s", (int)length,
                           mode ? mode : "");
    }
    if (file)
        fclose(file);
}

void weft_probe_shared_memory(weft_probe *out)
{
    enum { LEAST_MIB = 64 };
    struct statvfs shm;
    if (statvfs("/dev/shm", &shm)) {
        weft_probe_say(out, WEFT_PROBE_ABSENT, "", "/dev/shm: %s", strerror(errno));
        return;
    }
    unsigned long long mib = (unsigned long long)shm.f_bavail * shm.f_frsize >> 20;
    if (mib < LEAST_MIB)
        weft_probe_say(out, WEFT_PROBE_BROKEN, "",
                       "/dev/shm has %llu MiB free: ranks of a node may crash; docker run "
                       "--shm-size=1g makes it larger",
                       mib);
    else
        weft_probe_say(out, WEFT_PROBE_WORKS, "", "/dev/shm has %llu MiB free", mib);
}

/* The few calls of the CUDA driver that the probe needs, found by name, so that one binary runs
 * with and without a driver. Types as in the driver's ABI. */
typedef struct driver {
    int (*init)(unsigned flags);
    int (*version)(int *out);
    int (*count)(int *out);
    int (*device)(int *out, int index);
    int (*name)(char *out, int capacity, int device);
    int (*total)(size_t *out_bytes, int device);
    int (*retain)(void **out_context, int device);
    int (*release)(int device);
    int (*set_context)(void *context);
    int (*alloc)(unsigned long long *out, size_t bytes);
    int (*free)(unsigned long long address);
    int (*to_device)(unsigned long long to, const void *from, size_t bytes);
    int (*to_host)(void *to, unsigned long long from, size_t bytes);
    int (*error_name)(int error, const char **out);
} driver;

static const struct {
    const char *symbol;
    size_t offset;
} slots[] = {
    {"cuInit", offsetof(driver, init)},
    {"cuDriverGetVersion", offsetof(driver, version)},
    {"cuDeviceGetCount", offsetof(driver, count)},
    {"cuDeviceGet", offsetof(driver, device)},
    {"cuDeviceGetName", offsetof(driver, name)},
    {"cuDeviceTotalMem_v2", offsetof(driver, total)},
    {"cuDevicePrimaryCtxRetain", offsetof(driver, retain)},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(driver, release)},
    {"cuCtxSetCurrent", offsetof(driver, set_context)},
    {"cuMemAlloc_v2", offsetof(driver, alloc)},
    {"cuMemFree_v2", offsetof(driver, free)},
    {"cuMemcpyHtoD_v2", offsetof(driver, to_device)},
    {"cuMemcpyDtoH_v2", offsetof(driver, to_host)},
    {"cuGetErrorName", offsetof(driver, error_name)},
};

static weft_status check(const driver *cuda, int error, const char *call)
{
    const char *name = "unknown error";
    if (!error)
        return WEFT_OK;
    if (cuda->error_name(error, &name))
        name = "unknown error";
    return WEFT_ERROR(WEFT_DEVICE, "%s: %s (%d)", call, name, error);
}

/* Sends a pattern to the device and back. */
static weft_status round_trip(const driver *cuda, int device)
{
    unsigned char sent[4096], received[4096] = {0};
    unsigned long long address = 0;
    for (size_t i = 0; i < sizeof sent; i++)
        sent[i] = (unsigned char)(i * 37 + 11);
    WEFT_TRY(check(cuda, cuda->alloc(&address, sizeof sent), "cuMemAlloc"));
    weft_status status = check(cuda, cuda->to_device(address, sent, sizeof sent), "cuMemcpyHtoD");
    if (status == WEFT_OK)
        status = check(cuda, cuda->to_host(received, address, sizeof sent), "cuMemcpyDtoH");
    if (status == WEFT_OK && memcmp(sent, received, sizeof sent))
        status = WEFT_ERROR(WEFT_DEVICE, "device %d returned other bytes than it was sent", device);
    cuda->free(address);
    return status;
}

static weft_status try_device(const driver *cuda, int index, char *out_name, int capacity,
                              size_t *out_bytes)
{
    int device = 0;
    void *context = NULL;
    WEFT_TRY(check(cuda, cuda->device(&device, index), "cuDeviceGet"));
    WEFT_TRY(check(cuda, cuda->name(out_name, capacity, device), "cuDeviceGetName"));
    WEFT_TRY(check(cuda, cuda->total(out_bytes, device), "cuDeviceTotalMem"));
    WEFT_TRY(check(cuda, cuda->retain(&context, device), "cuDevicePrimaryCtxRetain"));
    weft_status status = check(cuda, cuda->set_context(context), "cuCtxSetCurrent");
    if (status == WEFT_OK)
        status = round_trip(cuda, index);
    cuda->set_context(NULL); /* or the runtime would find a context that is gone */
    cuda->release(device);
    return status;
}

/* "13.0" of the runtime library, "" where there is none. */
static void find_runtime(char *out, size_t capacity)
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so"};
    int (*get)(int *) = NULL;
    int version = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !get; i++) {
        void *library = dlopen(names[i], RTLD_NOW);
        void *symbol = library ? dlsym(library, "cudaRuntimeGetVersion") : NULL;
        memcpy(&get, &symbol, sizeof get);
    }
    out[0] = '\0';
    if (get && !get(&version))
        snprintf(out, capacity, "%d.%d", version / 1000, version % 1000 / 10);
}

static void probe_devices(const driver *cuda, const char *runtime, weft_probe *out)
{
    char text[64] = "", first[64] = "";
    int version = 0, count = 0;
    size_t bytes = 0;
    if (check(cuda, cuda->version(&version), "cuDriverGetVersion") != WEFT_OK) {
        weft_probe_say_error(out, "");
        return;
    }
    snprintf(text, sizeof text, "driver %d.%d", version / 1000, version % 1000 / 10);
    if (check(cuda, cuda->init(0), "cuInit") != WEFT_OK ||
        check(cuda, cuda->count(&count), "cuDeviceGetCount") != WEFT_OK) {
        weft_probe_say_error(out, text);
        return;
    }
    if (!count) {
        weft_probe_say(out, WEFT_PROBE_ABSENT, text, "no device");
        return;
    }
    for (int i = count - 1; i >= 0; i--)
        if (try_device(cuda, i, first, sizeof first, &bytes) != WEFT_OK) {
            weft_probe_say_error(out, text);
            return;
        }
    weft_probe_say(out, WEFT_PROBE_WORKS, text, "%d x %s, %zu GiB; runtime %s; copies to and from",
                   count, first, bytes >> 30, *runtime ? runtime : "absent");
}

void weft_probe_cuda(weft_probe *out)
{
    char runtime[32];
    driver cuda;
    find_runtime(runtime, sizeof runtime);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        weft_probe_say(out, WEFT_PROBE_ABSENT, "", "no driver: %s%s%s", dlerror(),
                       *runtime ? "; runtime " : "", runtime);
        return;
    }
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        void *symbol = dlsym(library, slots[i].symbol);
        if (!symbol) {
            weft_probe_say(out, WEFT_PROBE_BROKEN, "", "libcuda.so.1 lacks %s", slots[i].symbol);
            return;
        }
        memcpy((char *)&cuda + slots[i].offset, &symbol, sizeof symbol);
    }
    probe_devices(&cuda, runtime, out);
}
