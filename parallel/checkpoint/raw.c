#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "parallel/checkpoint/internal.h"

enum { BEGIN_BYTES = 8 << 20 };

static weft_status cannot_write(const char *path, int reason)
{
    return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(reason));
}

uint64_t weft_checkpoint_file_bytes(uint64_t elements, size_t num_datasets)
{
    return elements * sizeof(float) + ((uint64_t)num_datasets << 11) + (1 << 16);
}

weft_status weft_raw_reserve(const char *path, const weft_stored_list *list)
{
    uint64_t elements = 0;
    for (int i = 0; i < list->count; i++)
        elements += weft_stored_elements(&list->items[i]);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return cannot_write(path, errno);
    const weft_status status = weft_file_reserve(
        fd, path, "a checkpoint", weft_checkpoint_file_bytes(elements, (size_t)list->count));
    close(fd);
    return status;
}

weft_status weft_raw_open(const char *path, weft_raw_file *out)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return cannot_write(path, errno);
    *out = (weft_raw_file){.path = path, .fd = fd};
    return WEFT_OK;
}

static weft_status write_all(const weft_raw_file *file, const char *data, size_t bytes, off_t at)
{
    while (bytes) {
        ssize_t written = pwrite(file->fd, data, bytes, at);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return cannot_write(file->path, written < 0 ? errno : ENOSPC);
        data += written;
        bytes -= (size_t)written;
        at += written;
    }
    return WEFT_OK;
}

/* Else nothing would reach the disk before all is written. A hint: the flush at the end says what
 * went wrong. */
static void begin(weft_raw_file *file, size_t bytes)
{
    file->waiting_bytes += bytes;
    if (file->waiting_bytes < BEGIN_BYTES)
        return;
    file->waiting_bytes = 0;
    (void)sync_file_range(file->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

weft_status weft_raw_write(weft_raw_file *file, const weft_stored *dataset,
                           const weft_stored_shard *shard, const float *data)
{
    /* The inner dimensions that the shard has whole lie in one run with the next one out. */
    int run_dim = dataset->num_dims - 1;
    size_t run = shard->count[run_dim], elements = weft_shard_elements(shard, dataset->num_dims);
    while (run_dim > 0 && shard->count[run_dim] == dataset->dims[run_dim])
        run *= shard->count[--run_dim];

    for (size_t done = 0; done < elements; done += run) {
        size_t index = done, at = 0, stride = 1;
        for (int d = dataset->num_dims - 1; d >= 0; d--) {
            at += (shard->start[d] + index % shard->count[d]) * stride;
            index /= shard->count[d];
            stride *= dataset->dims[d];
        }
        WEFT_TRY(write_all(file, (const char *)(data + done), run * sizeof *data,
                           (off_t)(dataset->offset + at * sizeof *data)));
    }
    begin(file, elements * sizeof *data);
    return WEFT_OK;
}

weft_status weft_raw_write_run(weft_raw_file *file, uint64_t place, const float *data, size_t bytes)
{
    WEFT_TRY(write_all(file, (const char *)data, bytes, (off_t)place));
    begin(file, bytes);
    return WEFT_OK;
}

weft_status weft_raw_close(weft_raw_file *file, bool forgets)
{
    int failed = fsync(file->fd), reason = errno;
    if (!failed && forgets)
        posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
    if (close(file->fd) != 0 && !failed) {
        failed = -1;
        reason = errno;
    }
    file->fd = -1;
    return failed ? cannot_write(file->path, reason) : WEFT_OK;
}
