#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/grow.h"
#include "core/dataset/dataset.h"
#include "core/dataset/internal.h"

struct weft_dataset_writer {
    char *prefix;
    char *bin_path, *idx_path, *mask_path; /* final names */
    /* beside them, of any writer of this dataset */
    char *bin_temporary, *idx_temporary, *mask_temporary;
    FILE *bin, *mask; /* mask NULL: none */
    uint8_t bits;     /* of the last tokens, which make no whole byte of the mask */
    uint64_t num_tokens;
    int lock; /* of bin_temporary, by which both are this writer's; -1: they are not */
    int64_t vocab_size;
    int32_t *lengths; /* one sequence a document */
    uint64_t num_documents;
    size_t capacity;
};

/* malloc'd text. */
static weft_status format_path(char **out, const char *format, ...) WEFT_PRINTF(2, 3);
static weft_status format_path(char **out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int bytes = vasprintf(out, format, args);
    va_end(args);
    if (bytes < 0) {
        *out = NULL;
        return WEFT_ERROR(WEFT_MEMORY, "no memory for a path");
    }
    return WEFT_OK;
}

static bool is_at(int fd, const char *path)
{
    struct stat open_file, named;
    return fstat(fd, &open_file) == 0 && stat(path, &named) == 0 &&
           open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

/* Takes what a writer that was killed has left, and not what a living one writes. A file system
 * without locks cannot tell. */
static weft_status lock_temporary(weft_dataset_writer *w)
{
    while (w->lock < 0) {
        const int fd =
            open(w->bin_temporary, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, (mode_t)0666);
        if (fd < 0)
            return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", w->bin_path, strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            close(fd);
            return WEFT_ERROR(WEFT_CONFIG, "%s: another process writes this dataset", w->prefix);
        }
        if (is_at(fd, w->bin_temporary))
            w->lock = fd;
        else /* its writer has just put it in place */
            close(fd);
    }
    return WEFT_OK;
}

static weft_status writer_init(weft_dataset_writer *w, const char *prefix, int64_t vocab_size)
{
    w->vocab_size = vocab_size;
    WEFT_TRY(format_path(&w->prefix, "%s", prefix));
    WEFT_TRY(format_path(&w->bin_path, "%s.bin", prefix));
    WEFT_TRY(format_path(&w->idx_path, "%s.idx", prefix));
    WEFT_TRY(format_path(&w->mask_path, "%s.mask", prefix));
    WEFT_TRY(format_path(&w->mask_temporary, "%s.mask.weft-part", prefix));
    WEFT_TRY(format_path(&w->bin_temporary, "%s.bin.weft-part", prefix));
    WEFT_TRY(format_path(&w->idx_temporary, "%s.idx.weft-part", prefix));
    WEFT_TRY(lock_temporary(w));
    w->bin = fopen(w->bin_temporary, "wbe");
    if (!w->bin)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", w->bin_path, strerror(errno));
    return WEFT_OK;
}

weft_status weft_dataset_writer_create(const char *prefix, int64_t vocab_size,
                                       weft_dataset_writer **out)
{
    if (vocab_size < 1 || vocab_size > (int64_t)INT32_MAX + 1)
        return WEFT_ERROR(WEFT_CONFIG, "%s: a vocabulary of %" PRId64, prefix, vocab_size);
    weft_dataset_writer *w = calloc(1, sizeof(*w));
    if (!w)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory to write it", prefix);
    w->lock = -1;
    weft_status status = writer_init(w, prefix, vocab_size);
    if (status != WEFT_OK) {
        weft_dataset_writer_destroy(w);
        return status;
    }
    *out = w;
    return WEFT_OK;
}

static weft_status write_all(const char *path, FILE *file, const void *data, size_t size,
                             size_t count)
{
    if (fwrite(data, size, count, file) != count)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    return WEFT_OK;
}

static weft_status write_tokens(weft_dataset_writer *w, const int32_t *tokens, size_t count)
{
    if (w->vocab_size >= WEFT_INDEX_WIDE_VOCABULARY)
        return write_all(w->bin_path, w->bin, tokens, sizeof(*tokens), count);
    uint16_t narrow[4096];
    while (count > 0) {
        size_t part = count < 4096 ? count : 4096;
        for (size_t i = 0; i < part; i++)
            narrow[i] = (uint16_t)tokens[i];
        WEFT_TRY(write_all(w->bin_path, w->bin, narrow, sizeof(*narrow), part));
        tokens += part;
        count -= part;
    }
    return WEFT_OK;
}

weft_status weft_dataset_writer_mask(weft_dataset_writer *w)
{
    w->mask = fopen(w->mask_temporary, "wbe");
    return w->mask ? WEFT_OK
                   : WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", w->mask_path, strerror(errno));
}

static weft_status write_mask(weft_dataset_writer *w, const int32_t *bears, size_t count)
{
    for (size_t i = 0; w->mask && i < count; i++) {
        const int bit = (int)((w->num_tokens + i) % 8);
        w->bits |= (uint8_t)((!bears || bears[i]) << bit);
        if (bit == 7 && putc(w->bits, w->mask) == EOF)
            return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", w->mask_path, strerror(errno));
        w->bits = bit == 7 ? 0 : w->bits;
    }
    w->num_tokens += count;
    return WEFT_OK;
}

weft_status weft_dataset_writer_add(weft_dataset_writer *w, const int32_t *tokens, size_t count)
{
    return weft_dataset_writer_add_masked(w, tokens, NULL, count);
}

weft_status weft_dataset_writer_add_masked(weft_dataset_writer *w, const int32_t *tokens,
                                           const int32_t *bears, size_t count)
{
    if (count > INT32_MAX)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: document %" PRIu64 " has %zu tokens; the format ends at "
                          "2^31 - 1",
                          w->prefix, w->num_documents, count);
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= w->vocab_size)
            return WEFT_ERROR(WEFT_CONFIG,
                              "%s: token %" PRId32 " of document %" PRIu64
                              " is outside the vocabulary of %" PRId64,
                              w->prefix, tokens[i], w->num_documents, w->vocab_size);
    }
    WEFT_TRY(WEFT_GROW(w->lengths, w->capacity, w->num_documents + 1, "documents"));
    WEFT_TRY(write_tokens(w, tokens, count));
    WEFT_TRY(write_mask(w, bears, count));
    w->lengths[w->num_documents++] = (int32_t)count;
    return WEFT_OK;
}

static weft_status write_index(const weft_dataset_writer *w, FILE *file)
{
    const char *path = w->idx_path;
    uint64_t header[2] = {w->num_documents, w->num_documents + 1};
    uint64_t version = WEFT_INDEX_VERSION;
    bool wide = w->vocab_size >= WEFT_INDEX_WIDE_VOCABULARY;
    uint8_t dtype = wide ? WEFT_INDEX_I32 : WEFT_INDEX_U16;
    int64_t token_bytes = wide ? 4 : 2, offset = 0;
    WEFT_TRY(write_all(path, file, WEFT_INDEX_MAGIC, 1, WEFT_INDEX_MAGIC_BYTES));
    WEFT_TRY(write_all(path, file, &version, sizeof(version), 1));
    WEFT_TRY(write_all(path, file, &dtype, 1, 1));
    WEFT_TRY(write_all(path, file, header, sizeof(header[0]), 2));
    if (w->num_documents > 0)
        WEFT_TRY(write_all(path, file, w->lengths, sizeof(*w->lengths), w->num_documents));
    for (uint64_t i = 0; i < w->num_documents; i++) {
        WEFT_TRY(write_all(path, file, &offset, sizeof(offset), 1));
        offset += (int64_t)w->lengths[i] * token_bytes;
    }
    for (uint64_t i = 0; i <= w->num_documents; i++)
        WEFT_TRY(write_all(path, file, &i, sizeof(i), 1));
    return WEFT_OK;
}

/* Closes `file` whatever happens. */
static weft_status close_synced(const char *path, FILE *file, weft_status status)
{
    if (status == WEFT_OK && (fflush(file) != 0 || fsync(fileno(file)) != 0))
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    if (fclose(file) != 0 && status == WEFT_OK)
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    return status;
}

static weft_status rename_to(const char *from, const char *to)
{
    if (rename(from, to) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot be put in place: %s", to, strerror(errno));
    return WEFT_OK;
}

/* Makes the renames last. */
static weft_status sync_folder(const char *path)
{
    char *copy;
    WEFT_TRY(format_path(&copy, "%s", path));
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool failed = fd < 0 || fsync(fd) != 0;
    int reason = errno;
    if (fd >= 0)
        close(fd);
    free(copy);
    if (failed)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot sync its folder: %s", path, strerror(reason));
    return WEFT_OK;
}

/* In place of the mask of a dataset that is replaced, which says nothing of these tokens. */
static weft_status put_mask(weft_dataset_writer *w)
{
    FILE *mask = w->mask;
    if (!mask)
        return unlink(w->mask_path) == 0 || errno == ENOENT
                   ? WEFT_OK
                   : WEFT_ERROR(WEFT_FILE, "%s: cannot be removed: %s", w->mask_path,
                                strerror(errno));
    w->mask = NULL;
    if (w->num_tokens % 8 > 0)
        putc(w->bits, mask); /* the stream keeps its error */
    const weft_status written =
        ferror(mask) ? WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", w->mask_path, strerror(errno))
                     : WEFT_OK;
    WEFT_TRY(close_synced(w->mask_path, mask, written));
    return rename_to(w->mask_temporary, w->mask_path);
}

weft_status weft_dataset_writer_finish(weft_dataset_writer *w)
{
    FILE *bin = w->bin;
    if (!bin)
        return WEFT_ERROR(WEFT_INTERNAL, "%s: finished twice", w->prefix);
    w->bin = NULL;
    WEFT_TRY(close_synced(w->bin_path, bin, WEFT_OK));
    FILE *idx = fopen(w->idx_temporary, "wbe");
    if (!idx)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", w->idx_path, strerror(errno));
    WEFT_TRY(close_synced(w->idx_path, idx, write_index(w, idx)));
    /* Tokens without an index are refused; an older index over new tokens might be believed. */
    if (unlink(w->idx_path) != 0 && errno != ENOENT)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot be replaced: %s", w->idx_path, strerror(errno));
    WEFT_TRY(put_mask(w));
    return rename_to(w->bin_temporary, w->bin_path);
}

weft_status weft_dataset_writer_commit(weft_dataset_writer *w)
{
    WEFT_TRY(rename_to(w->idx_temporary, w->idx_path));
    return sync_folder(w->idx_path);
}

void weft_dataset_writer_remove(const weft_dataset_writer *w)
{
    if (w->lock < 0)
        return;
    unlink(w->bin_temporary); /* after a finish there is nothing under these names */
    unlink(w->idx_temporary);
    unlink(w->mask_temporary);
}

void weft_dataset_writer_destroy(weft_dataset_writer *w)
{
    if (!w)
        return;
    if (w->bin)
        fclose(w->bin);
    if (w->mask)
        fclose(w->mask);
    weft_dataset_writer_remove(w);
    if (w->lock >= 0)
        close(w->lock);
    free(w->lengths);
    free(w->bin_temporary);
    free(w->idx_temporary);
    free(w->mask_temporary);
    free(w->mask_path);
    free(w->bin_path);
    free(w->idx_path);
    free(w->prefix);
    free(w);
}
