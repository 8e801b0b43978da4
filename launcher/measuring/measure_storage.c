/* Storage as checkpoints use it: a rank writes its own part and waits until it is stored; it reads
 * past the caches. And as a tier of memory uses it: past the page cache both ways, through a file
 * of its own (parallel/spill/spill.h), so that pieces are under way beside each other, and hashed,
 * as in training. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"
#include "launcher/measuring/measure_internal.h"
#include "parallel/spill/spill.h"

/* A file without a name: it ends with this process, however that ends. */
static weft_status open_file(const char *folder, int flags, int *out)
{
    char path[4096];
    WEFT_TRY(weft_path_print(path, sizeof path, "%s/.weft-calibrate-XXXXXX", folder));
    const int file = mkostemp(path, O_CLOEXEC);
    if (file < 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", folder, strerror(errno));
    *out = flags ? open(path, O_RDWR | O_CLOEXEC | flags) : file;
    unlink(path);
    if (flags)
        close(file);
    return WEFT_OK;
}

/* Some file systems open the file and refuse its blocks. */
static weft_status find_direct(weft_measure_rig *rig)
{
    int file;
    WEFT_TRY(open_file(rig->options.storage, O_DIRECT, &file));
    rig->takes_direct = file >= 0 && pwrite(file, rig->stored, WEFT_MEASURE_BLOCK, 0) >= 0;
    if (file >= 0)
        close(file);
    return WEFT_OK;
}

weft_status weft_measure_storage_open(weft_measure_rig *rig)
{
    const char *folder = rig->options.storage;
    void *memory;
    size_t bytes = rig->options.max_bytes;
    if (!folder)
        return WEFT_OK;
    if (bytes < WEFT_MEASURE_BLOCK)
        bytes = WEFT_MEASURE_BLOCK;
    WEFT_TRY(open_file(folder, 0, &rig->storage));
    if (posix_memalign(&memory, WEFT_MEASURE_BLOCK, bytes))
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: calibration");
    rig->stored = memory;
    uint64_t x = 88172645463325252; /* xorshift: nothing that a file system could compress */
    for (size_t i = 0; i < bytes; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        rig->stored[i] = (char)x;
    }
    return find_direct(rig);
}

weft_status weft_measure_storage_agree(weft_measure_rig *rig)
{
    int64_t can = rig->takes_direct;
    WEFT_TRY(weft_comm_all_reduce_host(rig->world, &can, 1, WEFT_I64, WEFT_REDUCE_MIN));
    rig->takes_direct = can;
    if (!can && rig->options.storage && rig->options.report_progress)
        weft_log(WEFT_LOG_INFO,
                 "%s: the file system does not go past the page cache (O_DIRECT): direct_write and "
                 "direct_read stay unknown",
                 rig->options.storage);
    return WEFT_OK;
}

void weft_measure_storage_close(weft_measure_rig *rig)
{
    if (rig->storage >= 0)
        close(rig->storage);
    weft_spill_destroy(rig->spill);
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

typedef struct direct_args {
    weft_measure_rig *rig;
    size_t bytes;
    bool is_write;
} direct_args;

int weft_measure_direct_volumes(const weft_measure_rig *rig, double out[WEFT_CURVE_MAX_POINTS])
{
    const size_t most = rig->options.max_bytes, times = rig->options.quick ? 16 : 4;
    const size_t small = most / 16 / WEFT_MEASURE_BLOCK * WEFT_MEASURE_BLOCK;
    size_t bytes =
        small < WEFT_MEASURE_STORAGE_SMALLEST ? small : (size_t)WEFT_MEASURE_STORAGE_SMALLEST;
    int count = 0;
    if (bytes < WEFT_MEASURE_BLOCK)
        bytes = WEFT_MEASURE_BLOCK;
    do {
        out[count++] = (double)bytes;
        bytes *= times;
    } while (bytes <= most && count < WEFT_SPILL_MAX_PARTS);
    return count;
}

static weft_status make_spill(weft_measure_rig *rig, const double *volumes, int num)
{
    weft_spill_options options = {
        .folder = rig->options.storage, .num_records = 1, .num_parts = num};
    for (int part = 0; part < num; part++)
        options.parts[part] = (weft_spill_part){"calibration", (size_t)volumes[part]};
    return weft_spill_create(&options, &rig->spill);
}

static weft_status run_direct(const void *args)
{
    const direct_args *a = args;
    weft_measure_rig *rig = a->rig;
    double volumes[WEFT_CURVE_MAX_POINTS];
    const int num = weft_measure_direct_volumes(rig, volumes);
    weft_spill_transfer whole = {.is_write = true, .memory = rig->stored};
    if (!rig->spill)
        WEFT_TRY(make_spill(rig, volumes, num));
    /* Nothing comes from a cache of the processor. */
    rig->spill_at =
        rig->spill_at + 2 * a->bytes > rig->options.max_bytes ? 0 : rig->spill_at + a->bytes;
    whole.memory = rig->stored + rig->spill_at;
    while (whole.part < num - 1 && volumes[whole.part] < (double)a->bytes)
        whole.part++;
    if (!(rig->spilled & 1u << whole.part)) /* before what is timed: the first of its volume */
        WEFT_TRY(weft_spill_run(rig->spill, &whole, 1));
    rig->spilled |= 1u << whole.part;
    whole.is_write = a->is_write;
    return weft_spill_run(rig->spill, &whole, 1);
}

weft_status weft_measure_storage(weft_measure_rig *rig, weft_cost_kind kind, weft_lane *lane,
                                 size_t bytes)
{
    const storage_args args = {.file = rig->storage, .memory = rig->stored, .bytes = bytes};
    const direct_args direct = {
        .rig = rig, .bytes = bytes, .is_write = kind == WEFT_COST_DIRECT_WRITE};
    if (kind == WEFT_COST_DIRECT_WRITE || kind == WEFT_COST_DIRECT_READ)
        return weft_lane_submit(lane, "storage", run_direct, &direct, sizeof direct);
    return weft_lane_submit(lane, "storage", kind == WEFT_COST_STORAGE_READ ? run_read : run_write,
                            &args, sizeof args);
}
