#include "parallel/spill/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/log.h"
#include "parallel/spill/internal.h"

enum { DEFAULT_DEPTH = 16, MAX_DEPTH = 1024, DEFAULT_CALLERS = 2 };
static const size_t default_piece = (size_t)1 << 20, max_piece = (size_t)1 << 30;

const char *weft_spill_io_text(weft_spill_io io)
{
    static const char *const texts[] = {"auto", "uring", "threads"};
    return texts[io];
}

/* --- sizes --------------------------------------------------------------------------------- */

static weft_status check_options(const weft_spill_options *o)
{
    bool good = o->folder && o->num_parts >= 1 && o->num_parts <= WEFT_SPILL_MAX_PARTS &&
                o->num_records >= 1 && o->queue_depth >= 0 && o->queue_depth <= MAX_DEPTH &&
                o->num_callers >= 0 && o->num_callers <= WEFT_SPILL_MAX_CALLERS &&
                o->piece_bytes % WEFT_SPILL_ALIGN == 0 && o->piece_bytes <= max_piece;
    for (int p = 0; good && p < o->num_parts; p++)
        good = o->parts[p].bytes > 0;
    return good ? WEFT_OK : WEFT_ERROR(WEFT_INTERNAL, "a spill file's options are out of range");
}

weft_status weft_spill_file_bytes(const weft_spill_options *options, uint64_t *out)
{
    uint64_t record = 0;
    WEFT_TRY(check_options(options));
    bool fits = true;
    for (int p = 0; p < options->num_parts && fits; p++) {
        fits = options->parts[p].bytes <= INT64_MAX / (2 * WEFT_SPILL_MAX_PARTS);
        record += fits ? weft_spill_padded_bytes(options->parts[p].bytes) : 0;
    }
    if (!fits || record > (uint64_t)INT64_MAX / options->num_records)
        return WEFT_ERROR(WEFT_CONFIG, "%s: no file holds %zu records of that size",
                          options->folder, options->num_records);
    *out = record * options->num_records;
    return WEFT_OK;
}

/* --- the file ------------------------------------------------------------------------------ */

static int failed(int fault)
{
    errno = fault;
    return -1;
}

/* A file system without files that never had a name gets one that loses it at once. */
static int open_named(const char *folder, int flags)
{
    char path[4096];
    int used = snprintf(path, sizeof path, "%s/.weft-spill-XXXXXX", folder);
    if (used < 0 || (size_t)used >= sizeof path)
        return failed(ENAMETOOLONG);
    int fault = weft_spill_next_fault();
    int fd = fault > 0 ? failed(fault) : mkostemp(path, flags);
    if (fd >= 0 && unlink(path) != 0) {
        int reason = errno;
        close(fd);
        return failed(reason);
    }
    return fd;
}

static int open_unnamed(const char *folder, int flags)
{
    int fault = weft_spill_next_fault();
    int fd = fault > 0 ? failed(fault)
                       : open(folder, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC | flags, 0600);
    /* As open(2) has it: the file system cannot, or the kernel does not know the flag. */
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR))
        fd = open_named(folder, O_CLOEXEC | flags);
    return fd;
}

/* O_DIRECT may be refused when the file is opened, or by the first read or write. 0 or an errno. */
static int try_write(int fd)
{
    _Alignas(WEFT_SPILL_ALIGN) static const char zeros[WEFT_SPILL_ALIGN];
    int fault = weft_spill_next_fault();
    ssize_t moved = fault > 0 ? failed(fault) : pwrite(fd, zeros, sizeof zeros, 0);
    return moved < 0 ? errno : moved < (ssize_t)sizeof zeros ? ENOSPC : 0;
}

static uint64_t free_bytes(int fd)
{
    struct statvfs info;
    return fstatvfs(fd, &info) == 0 ? (uint64_t)info.f_bavail * info.f_frsize : UINT64_MAX;
}

/* What does not fit is not tried, so that nobody else's disk fills up meanwhile. */
static weft_status allocate(weft_spill *s)
{
    uint64_t bytes, room = free_bytes(s->fd);
    WEFT_TRY(weft_spill_file_bytes(&s->options, &bytes));
    int error = bytes <= room ? EINTR : ENOSPC;
    while (error == EINTR) {
        int fault = weft_spill_next_fault();
        error = fault > 0 ? fault : posix_fallocate(s->fd, 0, (off_t)bytes);
    }
    if (!error)
        return WEFT_OK;
    int cut = ftruncate(s->fd, 0); /* so that the bytes free are those before */
    room = cut == 0 ? free_bytes(s->fd) : room;
    return WEFT_ERROR(WEFT_FILE,
                      "%s: no room for the experts' file: %" PRIu64 " bytes wanted, %" PRIu64
                      " free: %s",
                      s->options.folder, bytes, room, strerror(error));
}

/* Room first: a full disk is told as such. *refused: O_DIRECT is. */
static weft_status make_file(weft_spill *s, int flags, bool *refused)
{
    const char *folder = s->options.folder;
    s->fd = open_unnamed(folder, flags);
    int error = s->fd < 0 ? errno : 0;
    if (!error) {
        WEFT_TRY(allocate(s));
        error = try_write(s->fd);
    }
    *refused = error == EINVAL && flags;
    if (error && !*refused)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the experts' file: %s", folder,
                          strerror(error));
    if (error && s->fd >= 0) {
        close(s->fd);
        s->fd = -1;
    }
    return WEFT_OK;
}

static weft_status open_file(weft_spill *s)
{
    bool refused;
    s->is_direct = !s->options.buffered;
    WEFT_TRY(make_file(s, s->is_direct ? O_DIRECT : 0, &refused));
    if (!refused)
        return WEFT_OK;
    weft_log(WEFT_LOG_WARN,
             "%s: no O_DIRECT there (%s): the experts' file takes memory as page cache",
             s->options.folder, strerror(EINVAL));
    s->is_direct = false;
    return make_file(s, 0, &refused);
}

/* --- create -------------------------------------------------------------------------------- */

static weft_status open_backend(weft_spill *s, const weft_spill_ops *ops,
                                char why[WEFT_SPILL_WHY_BYTES])
{
    WEFT_TRY(ops->open(s->fd, s->options.num_callers, s->options.queue_depth, &s->arena, why,
                       &s->backend));
    s->ops = ops;
    return WEFT_OK;
}

static weft_status choose_backend(weft_spill *s)
{
    char why[WEFT_SPILL_WHY_BYTES];
    const char *folder = s->options.folder;
    if (s->options.io != WEFT_SPILL_THREADS) {
        weft_status status = open_backend(s, &weft_spill_uring, why);
        if (status == WEFT_OK || status == WEFT_MEMORY)
            return status;
        if (s->options.io == WEFT_SPILL_URING)
            return WEFT_ERROR(WEFT_CONFIG, "%s: the experts' file cannot use %s", folder, why);
        weft_error_clear();
        weft_log(WEFT_LOG_WARN, "%s: the experts' file is read and written by threads: no %s",
                 folder, why);
    }
    weft_status status = open_backend(s, &weft_spill_threads, why);
    if (status == WEFT_OK || status == WEFT_MEMORY)
        return status;
    return WEFT_ERROR(WEFT_DEVICE, "%s: the experts' file: %s", folder, why);
}

static weft_status init(weft_spill *s)
{
    weft_spill_options *o = &s->options;
    uint64_t bytes;
    void *memory;
    WEFT_TRY(weft_spill_file_bytes(o, &bytes));
    s->record_bytes = bytes / o->num_records;
    for (int p = 0; p + 1 < o->num_parts; p++)
        s->part_offset[p + 1] = s->part_offset[p] + weft_spill_padded_bytes(o->parts[p].bytes);
    o->piece_bytes = o->piece_bytes ? o->piece_bytes : default_piece;
    o->queue_depth = o->queue_depth ? o->queue_depth : DEFAULT_DEPTH;
    o->num_callers = o->num_callers ? o->num_callers : DEFAULT_CALLERS;

    WEFT_TRY(open_file(s)); /* first: a wrong folder or a full disk is the likely fault */
    WEFT_TRY(weft_arena_alloc_array(&s->arena, o->num_records,
                                    (size_t)o->num_parts * sizeof *s->record_parts, &memory));
    s->record_parts = memory;
    for (int i = 0; i < o->num_callers; i++) {
        WEFT_TRY(weft_arena_alloc_array(&s->arena, 2 * (size_t)o->queue_depth,
                                        sizeof(weft_spill_piece), &memory));
        s->callers[i].pieces = memory;
        s->callers[i].hash = weft_alloc_should_fail() ? NULL : XXH64_createState();
        if (!s->callers[i].hash)
            return WEFT_ERROR(WEFT_MEMORY, "out of host memory: the experts' file's hashes");
    }
    return choose_backend(s);
}

weft_status weft_spill_create(const weft_spill_options *options, weft_spill **out)
{
    WEFT_TRY(check_options(options));
    weft_spill *s = weft_alloc_should_fail() ? NULL : calloc(1, sizeof *s);
    if (!s)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: the experts' file");
    s->options = *options;
    s->fd = -1;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->is_free, NULL);
    weft_status status = init(s);
    if (status != WEFT_OK) {
        weft_spill_destroy(s);
        return status;
    }
    *out = s;
    return WEFT_OK;
}

void weft_spill_destroy(weft_spill *s)
{
    if (!s)
        return;
    if (s->ops)
        s->ops->close(s->backend);
    if (s->fd >= 0)
        close(s->fd);
    for (int i = 0; i < WEFT_SPILL_MAX_CALLERS; i++)
        XXH64_freeState(s->callers[i].hash);
    weft_arena_release(&s->arena);
    pthread_cond_destroy(&s->is_free);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

/* --- what it is and did -------------------------------------------------------------------- */

void weft_spill_get_stats(weft_spill *s, weft_spill_stats *out)
{
    pthread_mutex_lock(&s->mutex);
    *out = s->stats;
    pthread_mutex_unlock(&s->mutex);
}

weft_spill_io weft_spill_io_used(const weft_spill *s)
{
    return s->ops == &weft_spill_uring ? WEFT_SPILL_URING : WEFT_SPILL_THREADS;
}

bool weft_spill_is_direct(const weft_spill *s)
{
    return s->is_direct;
}
