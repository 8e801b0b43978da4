#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/options/options.h"

/* Kinds of file systems, as statfs tells them (linux/magic.h). */
enum { TMPFS = 0x01021994, LUSTRE = 0x0bd00bd0 };
#define RAMFS 0x858458f6u

static weft_status too_large(const char *path)
{
    return WEFT_ERROR(WEFT_FILE, "%s: larger than %" PRIu64 " MiB: not a text for weft", path,
                      WEFT_TEXT_MAX_BYTES >> 20);
}

weft_status weft_file_open(const char *path, weft_file *out)
{
    struct stat info;
    weft_status status = WEFT_OK;
    /* Non-blocking, so that a FIFO is refused instead of waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    weft_file file = {strdup(path), fd, 0};
    if (!file.path)
        status = WEFT_ERROR(WEFT_MEMORY, "%s: no memory to open it", path);
    else if (fstat(fd, &info) != 0)
        status = WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = WEFT_ERROR(WEFT_FILE, "%s: not a regular file", path);
    if (status != WEFT_OK) {
        close(fd);
        free(file.path);
        return status;
    }
    file.bytes = (uint64_t)info.st_size;
    *out = file;
    return WEFT_OK;
}

weft_status weft_file_take_stamp(const weft_file *file, weft_file_stamp *out)
{
    struct stat info;
    if (fstat(file->fd, &info) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", file->path, strerror(errno));
    *out = (weft_file_stamp){
        .bytes = (uint64_t)info.st_size,
        .inode = (uint64_t)info.st_ino,
        .modified_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec,
        .changed_ns = (int64_t)info.st_ctim.tv_sec * 1000000000 + info.st_ctim.tv_nsec};
    return WEFT_OK;
}

weft_status weft_file_read(const weft_file *file, uint64_t offset, void *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(file->fd, (char *)out + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return WEFT_ERROR(WEFT_FILE, "%s: cannot read at byte %" PRIu64 ": %s", file->path,
                              offset + done, strerror(errno));
        if (got == 0)
            return WEFT_ERROR(WEFT_FILE, "%s: cut short: it ends before byte %" PRIu64, file->path,
                              offset + done);
        done += (size_t)got;
    }
    return WEFT_OK;
}

void weft_file_close(weft_file *file)
{
    if (file->path)
        close(file->fd);
    free(file->path);
    *file = (weft_file){0};
}

/* 0: nobody knows. */
static uint32_t file_system(const char *path)
{
    struct statfs info;
    return statfs(path, &info) == 0 ? (uint32_t)info.f_type : 0;
}

static bool is_memory(uint32_t kind)
{
    return kind == TMPFS || kind == RAMFS;
}

const char *weft_path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

weft_status weft_path_print(char *out, size_t capacity, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int bytes = vsnprintf(out, capacity, format, args);
    va_end(args);
    if (bytes < 0 || (size_t)bytes >= capacity)
        return WEFT_ERROR(WEFT_FILE, "%.200s...: the path is too long", out);
    return WEFT_OK;
}

bool weft_path_is_memory(const char *path)
{
    return is_memory(file_system(path));
}

bool weft_path_is_lustre(const char *path)
{
    return file_system(path) == LUSTRE;
}

/* Why a file of so many bytes cannot be made there; 0: it can, or nobody knows. *most: bytes that
 * it may have. */
static int find_lack(const struct statfs *info, uint64_t bytes, uint64_t *most)
{
    struct rlimit limit;
    const uint64_t blocks = geteuid() == 0 ? info->f_bfree : info->f_bavail;
    const uint64_t block_bytes = info->f_bsize > 0 ? (uint64_t)info->f_bsize : 1;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        bytes > limit.rlim_cur) {
        *most = limit.rlim_cur;
        return EFBIG;
    }
    *most = blocks * block_bytes;
    return info->f_blocks > 0 && bytes / block_bytes > blocks ? ENOSPC : 0;
}

static weft_status no_room(const char *path, const char *what, uint64_t bytes, int reason,
                           uint64_t most)
{
    return WEFT_ERROR(
        WEFT_FILE, "%s: no room for %s of %" PRIu64 " bytes: %s (%" PRIu64 " bytes are %s)", path,
        what, bytes, strerror(reason), most, reason == EFBIG ? "the most" : "free");
}

weft_status weft_file_reserve(int fd, const char *path, const char *what, uint64_t bytes)
{
    struct statfs info;
    uint64_t most = 0;
    const bool is_known = fstatfs(fd, &info) == 0;
    int reason = is_known ? find_lack(&info, bytes, &most) : 0;
    if (!is_known || !is_memory((uint32_t)info.f_type))
        reason = fallocate(fd, 0, 0, (off_t)bytes) == 0 ? 0 : errno;
    return reason == 0 || reason == EOPNOTSUPP || reason == ENOSYS
               ? WEFT_OK
               : no_room(path, what, bytes, reason, most);
}

weft_status weft_file_ask_room(const char *path, const char *what, uint64_t bytes)
{
    struct statfs info;
    uint64_t most;
    char at[4096];
    WEFT_TRY(weft_path_print(at, sizeof at, "%s", path));
    while (statfs(at, &info) != 0) {
        char *slash = strrchr(at, '/');
        if (errno != ENOENT || strcmp(at, ".") == 0 || slash == at)
            return WEFT_OK;
        if (slash)
            *slash = '\0';
        else
            strcpy(at, ".");
    }
    const int reason = find_lack(&info, bytes, &most);
    return reason == 0 ? WEFT_OK : no_room(path, what, bytes, reason, most);
}

FILE *weft_file_create(const char *path)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (fd >= 0 && !file)
        close(fd);
    return file;
}

FILE *weft_file_append(const char *path)
{
    struct stat info;
    const int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int fd = open(path, flags, 0666);
    if (fd >= 0 && (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))) {
        close(fd);
        errno = EINVAL;
        return NULL;
    }
    FILE *file = fd < 0 ? NULL : fdopen(fd, "a");
    if (fd >= 0 && !file)
        close(fd);
    return file;
}

weft_status weft_new_file_open(const char *path, weft_new_file *out)
{
    char *partial;
    struct stat info;
    /* A device or a FIFO would be gone when the new file takes its name. */
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path,
                          S_ISDIR(info.st_mode) ? strerror(EISDIR) : "not a regular file");
    if (asprintf(&partial, "%s.partial", path) < 0)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory to write it", path);
    FILE *file = weft_file_create(partial);
    if (!file) {
        int reason = errno;
        free(partial);
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(reason));
    }
    *out = (weft_new_file){path, partial, file};
    return WEFT_OK;
}

void weft_new_file_drop(weft_new_file *file)
{
    fclose(file->file);
    unlink(file->partial);
    free(file->partial);
    *file = (weft_new_file){0};
}

weft_status weft_new_file_close(weft_new_file *file, weft_status status)
{
    bool written = !ferror(file->file) && fflush(file->file) == 0 && fsync(fileno(file->file)) == 0;
    int reason = errno;
    bool closed = fclose(file->file) == 0;
    if (written && !closed)
        reason = errno;
    bool good = status == WEFT_OK && written && closed;
    if (good && rename(file->partial, file->path) != 0) {
        reason = errno;
        good = false;
    }
    if (!good)
        unlink(file->partial);
    if (!good && status == WEFT_OK)
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", file->path, strerror(reason));
    free(file->partial);
    *file = (weft_new_file){0};
    return status;
}

weft_status weft_new_text_open(weft_new_text *out)
{
    *out = (weft_new_text){.file = NULL};
    out->file = open_memstream(&out->text, &out->bytes);
    return out->file ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "no memory for a text");
}

weft_status weft_new_text_close(weft_new_text *text, weft_status status, weft_arena *arena,
                                const char **out)
{
    if (fclose(text->file) != 0 && status == WEFT_OK)
        status = WEFT_ERROR(WEFT_MEMORY, "no memory for a text");
    if (status == WEFT_OK)
        status = weft_arena_strdup(arena, text->text, out);
    free(text->text);
    return status;
}

static weft_status read_whole(const weft_file *file, weft_arena *arena, char **out,
                              size_t *out_bytes)
{
    void *text;
    if (file->bytes > WEFT_TEXT_MAX_BYTES)
        return too_large(file->path);
    size_t bytes = (size_t)file->bytes;
    WEFT_TRY(weft_arena_alloc(arena, bytes + 1, &text));
    WEFT_TRY(weft_file_read(file, 0, text, bytes));
    ((char *)text)[bytes] = '\0';
    *out = text;
    if (out_bytes)
        *out_bytes = bytes;
    return WEFT_OK;
}

weft_status weft_file_read_text(const char *path, weft_arena *arena, char **out, size_t *out_bytes)
{
    weft_file file;
    WEFT_TRY(weft_file_open(path, &file));
    weft_status status = read_whole(&file, arena, out, out_bytes);
    weft_file_close(&file);
    return status;
}

/* Reads to the end, whatever kind of file it is: pipes have no size to ask for. */
static weft_status read_stream(const char *path, FILE *file, weft_arena *arena, char **out,
                               size_t *out_bytes)
{
    size_t bytes = 0, capacity = 1 << 16;
    char *text = malloc(capacity + 1);
    while (text) {
        bytes += fread(text + bytes, 1, capacity - bytes, file);
        if (bytes < capacity || bytes > WEFT_TEXT_MAX_BYTES)
            break;
        capacity *= 2;
        char *larger = realloc(text, capacity + 1);
        if (!larger)
            free(text);
        text = larger;
    }
    if (!text)
        return WEFT_ERROR(WEFT_MEMORY, "%s: too large to read into memory", path);
    weft_status status = WEFT_OK;
    void *copy = NULL;
    if (ferror(file))
        status = WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    else if (bytes > WEFT_TEXT_MAX_BYTES)
        status = too_large(path);
    else
        status = weft_arena_alloc(arena, bytes + 1, &copy);
    if (status == WEFT_OK) {
        memcpy(copy, text, bytes);
        ((char *)copy)[bytes] = '\0';
        *out = copy;
        if (out_bytes)
            *out_bytes = bytes;
    }
    free(text);
    return status;
}

weft_status weft_file_stream(const char *path, FILE **out)
{
    weft_file file;
    WEFT_TRY(weft_file_open(path, &file));
    *out = fdopen(file.fd, "r");
    if (!*out) {
        weft_status status = WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
        weft_file_close(&file);
        return status;
    }
    free(file.path);
    return WEFT_OK;
}

weft_status weft_read_file(const char *path, weft_arena *arena, char **out, size_t *out_bytes)
{
    bool is_open = strcmp(path, "/dev/stdin") == 0 || strncmp(path, "/dev/fd/", 8) == 0;
    if (!is_open)
        return weft_file_read_text(path, arena, out, out_bytes);
    FILE *file = fopen(path, "rbe");
    if (!file)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    weft_status status = read_stream(path, file, arena, out, out_bytes);
    fclose(file);
    return status;
}
