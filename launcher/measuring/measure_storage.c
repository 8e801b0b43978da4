/* Storage as checkpoints use it: a rank writes its own part and waits until it is stored; it reads
 * past the caches. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/measuring/measure_internal.h"

weft_status weft_measure_storage_open(weft_measure_rig *rig)
{
    char path[4096];
    const char *folder = rig->options.storage;
    size_t bytes = rig->options.max_bytes;
    if (!folder)
        return WEFT_OK;
    if (snprintf(path, sizeof path, "%s/.weft-calibrate-XXXXXX", folder) >= (int)sizeof path)
        return WEFT_ERROR(WEFT_FILE, "%.100s...: the path is too long", folder);
    rig->storage = mkstemp(path);
    if (rig->storage < 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", folder, strerror(errno));
    unlink(path); /* it ends with this process, however that ends */
    rig->stored = malloc(bytes);
    if (!rig->stored)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: calibration");
    uint64_t x = 88172645463325252; /* xorshift: nothing that a file system could compress */
    for (size_t i = 0; i < bytes; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        rig->stored[i] = (char)x;
    }
    return WEFT_OK;
}

void weft_measure_storage_close(weft_measure_rig *rig)
{
    if (rig->storage >= 0)
        close(rig->storage);
    free(rig->stored);
}

typedef struct storage_args {
    int file;
    char *memory;
    size_t bytes;
} storage_args;

static weft_status failed(const char *what)
{
    return WEFT_ERROR(WEFT_DEVICE, "storage: cannot %s: %s", what, strerror(errno));
}

static weft_status run_write(const void *args)
{
    const storage_args *a = args;
    for (size_t at = 0; at < a->bytes;) {
        ssize_t done = pwrite(a->file, a->memory + at, a->bytes - at, (off_t)at);
        if (done <= 0)
            return failed("write");
        at += (size_t)done;
    }
    return fsync(a->file) == 0 ? WEFT_OK : failed("write");
}

static weft_status run_read(const void *args)
{
    const storage_args *a = args;
    off_t size = lseek(a->file, 0, SEEK_END);
    if (size < 0 || (size_t)size < a->bytes) /* before what is timed: the first of its volume */
        WEFT_TRY(run_write(args));
    posix_fadvise(a->file, 0, 0, POSIX_FADV_DONTNEED);
    for (size_t at = 0; at < a->bytes;) {
        ssize_t done = pread(a->file, a->memory + at, a->bytes - at, (off_t)at);
        if (done <= 0)
            return failed("read");
        at += (size_t)done;
    }
    return WEFT_OK;
}

weft_status weft_measure_storage(weft_measure_rig *rig, bool reads, weft_lane *lane, size_t bytes)
{
    storage_args args = {rig->storage, rig->stored, bytes};
    return weft_lane_submit(lane, "storage", reads ? run_read : run_write, &args, sizeof args);
}
