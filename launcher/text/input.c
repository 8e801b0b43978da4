#include "launcher/text/input.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>
#include <zstd.h>

/* --- what is read -------------------------------------------------------------------------- */

static weft_status add_path(weft_input_list *list, const char *path, const struct stat *info,
                            weft_arena *arena)
{
    WEFT_TRY(WEFT_ARENA_GROW(arena, list->paths, list->capacity, list->count + 1));
    list->paths[list->count++] = path;
    list->has_pipe = list->has_pipe || !S_ISREG(info->st_mode);
    list->bytes = list->has_pipe ? 0 : list->bytes + (uint64_t)info->st_size;
    return WEFT_OK;
}

static int is_shown(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int compare_names(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static weft_status add_folder(weft_input_list *list, const char *path, weft_arena *arena);

static weft_status add_entry(weft_input_list *list, const char *folder, const char *name,
                             weft_arena *arena)
{
    const char *path;
    struct stat info, link;
    WEFT_TRY(weft_arena_printf(arena, &path, "%s%s%s", folder,
                               folder[strlen(folder) - 1] == '/' ? "" : "/", name));
    if (lstat(path, &link) != 0 || stat(path, &info) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    if (S_ISDIR(link.st_mode))
        return add_folder(list, path, arena);
    if (S_ISREG(info.st_mode))
        return add_path(list, path, &info, arena);
    return WEFT_ERROR(WEFT_FILE, "%s: %s; in a folder files and folders are read", path,
                      S_ISDIR(info.st_mode) ? "a link to a folder" : "not a file");
}

static weft_status add_folder(weft_input_list *list, const char *path, weft_arena *arena)
{
    struct dirent **entries;
    const int count = scandir(path, &entries, is_shown, compare_names);
    weft_status status = WEFT_OK;
    if (count < 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    for (int i = 0; i < count; i++) {
        if (status == WEFT_OK)
            status = add_entry(list, path, entries[i]->d_name, arena);
        free(entries[i]);
    }
    free(entries);
    return status;
}

weft_status weft_input_list_add(weft_input_list *list, const char *path, weft_arena *arena)
{
    struct stat info;
    const size_t before = list->count;
    if (stat(path, &info) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return add_path(list, path, &info, arena);
    WEFT_TRY(add_folder(list, path, arena));
    return list->count > before ? WEFT_OK
                                : WEFT_ERROR(WEFT_FILE, "%s: a folder without files", path);
}

const char *weft_input_name(const char *path)
{
    static const char *const inputs[] = {"/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (strcmp(path, inputs[i]) == 0)
            return "standard input";
    const bool is_open =
        strncmp(path, "/dev/fd/", 8) == 0 || strncmp(path, "/proc/self/fd/", 14) == 0;
    return is_open ? "a pipe" : path;
}

/* --- formats ------------------------------------------------------------------------------- */

typedef enum format { FORMAT_PLAIN, FORMAT_GZIP, FORMAT_ZSTD } format;

static const struct {
    const char *bytes;
    size_t count;
    format is;
    const char *name, *reader; /* NULL: read here */
} formats[] = {
    {"\x1f\x8b", 2, FORMAT_GZIP, "gzip", NULL},
    {"\x28\xb5\x2f\xfd", 4, FORMAT_ZSTD, "zstd", NULL},
    {"\xfd"
     "7zXZ",
     5, FORMAT_PLAIN, "xz", "xzcat"},
    {"BZh", 3, FORMAT_PLAIN, "bzip2", "bzcat"},
};

enum { PACKED_BYTES = 1 << 18, ROOM_BYTES = 1 << 18 };

struct weft_input {
    const char *path;
    int fd;
    format is;
    uint64_t num_read;
    unsigned char packed[PACKED_BYTES]; /* as they are stored, */
    size_t packed_at, packed_end;       /* of which these are not unpacked yet */
    bool is_inside;                     /* of a gzip member or a zstd frame */
    bool is_full;                       /* the last unpacking had no room for all that it knew */
    bool has_gzip, has_ended;
    z_stream gzip;
    ZSTD_DStream *zstd;
    char *text; /* unpacked, from `at` to `end` not given yet */
    size_t at, end, capacity;
};

static weft_status read_packed(weft_input *in)
{
    ssize_t bytes;
    do {
        bytes = read(in->fd, in->packed + in->packed_end, PACKED_BYTES - in->packed_end);
    } while (bytes < 0 && errno == EINTR);
    if (bytes < 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot read: %s", weft_input_name(in->path),
                          strerror(errno));
    in->packed_end += (size_t)bytes;
    in->num_read += (uint64_t)bytes;
    in->has_ended = bytes == 0;
    return WEFT_OK;
}

static weft_status refuse(const char *path, const char *name, const char *reader)
{
    const char *called = weft_input_name(path);
    return called == path
               ? WEFT_ERROR(WEFT_FILE,
                            "%s: is %s, not text: weft prepare <(%s %s) reads it; --any-bytes "
                            "takes its bytes as they are",
                            called, name, reader, path)
               : WEFT_ERROR(WEFT_FILE,
                            "%s: is %s, not text: %s makes it text; --any-bytes takes its bytes as "
                            "they are",
                            called, name, reader);
}

static weft_status find_format(weft_input *in)
{
    while (in->packed_end < 8 && !in->has_ended)
        WEFT_TRY(read_packed(in));
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (in->packed_end < formats[i].count ||
            memcmp(in->packed, formats[i].bytes, formats[i].count) != 0)
            continue;
        if (formats[i].reader)
            return refuse(in->path, formats[i].name, formats[i].reader);
        in->is = formats[i].is;
    }
    return WEFT_OK;
}

static weft_status start_format(weft_input *in)
{
    enum { WITH_HEADER = 16, LONGEST_WINDOW = 31 };
    if (in->is == FORMAT_GZIP) {
        in->has_gzip = inflateInit2(&in->gzip, MAX_WBITS + WITH_HEADER) == Z_OK;
        return in->has_gzip ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "no memory to read gzip");
    }
    if (in->is == FORMAT_ZSTD) {
        in->zstd = ZSTD_createDStream();
        if (!in->zstd ||
            ZSTD_isError(ZSTD_DCtx_setParameter(in->zstd, ZSTD_d_windowLogMax, LONGEST_WINDOW)))
            return WEFT_ERROR(WEFT_MEMORY, "no memory to read zstd");
    }
    return WEFT_OK;
}

static weft_status input_init(weft_input *in, const char *path, bool raw)
{
    in->path = path;
    in->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (in->fd < 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    return raw ? WEFT_OK : find_format(in);
}

weft_status weft_input_open(const char *path, bool raw, weft_input **out)
{
    weft_input *in = calloc(1, sizeof *in);
    if (!in)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory to read it", path);
    in->fd = -1;
    weft_status status = input_init(in, path, raw);
    if (status == WEFT_OK)
        status = start_format(in);
    if (status != WEFT_OK) {
        weft_input_close(in);
        return status;
    }
    *out = in;
    return WEFT_OK;
}

void weft_input_close(weft_input *in)
{
    if (!in)
        return;
    if (in->fd >= 0)
        close(in->fd);
    if (in->has_gzip)
        inflateEnd(&in->gzip);
    ZSTD_freeDStream(in->zstd);
    free(in->text);
    free(in);
}

uint64_t weft_input_num_read(const weft_input *in)
{
    return in->num_read;
}

/* --- unpacking ----------------------------------------------------------------------------- */

static weft_status make_room(weft_input *in)
{
    if (in->at > 0 && in->capacity - in->end < ROOM_BYTES) {
        memmove(in->text, in->text + in->at, in->end - in->at);
        in->end -= in->at;
        in->at = 0;
    }
    if (in->capacity - in->end < ROOM_BYTES) {
        const size_t capacity = 2 * in->capacity + 2 * ROOM_BYTES;
        char *larger = realloc(in->text, capacity);
        if (!larger)
            return WEFT_ERROR(WEFT_MEMORY, "%s: no memory for a line of %zu bytes",
                              weft_input_name(in->path), in->end - in->at);
        in->text = larger;
        in->capacity = capacity;
    }
    return WEFT_OK;
}

static weft_status damaged(const weft_input *in, const char *why)
{
    return WEFT_ERROR(WEFT_FILE, "%s: damaged %s data before byte %" PRIu64 ": %s",
                      weft_input_name(in->path), in->is == FORMAT_GZIP ? "gzip" : "zstd",
                      in->num_read - (in->packed_end - in->packed_at), why);
}

static weft_status unpack_gzip(weft_input *in, size_t room)
{
    z_stream *z = &in->gzip;
    z->next_in = in->packed + in->packed_at;
    z->avail_in = (uInt)(in->packed_end - in->packed_at);
    z->next_out = (unsigned char *)in->text + in->end;
    z->avail_out = (uInt)room;
    const int result = inflate(z, Z_NO_FLUSH);
    in->packed_at = in->packed_end - z->avail_in;
    in->end += room - z->avail_out;
    in->is_full = z->avail_out == 0;
    in->is_inside = result != Z_STREAM_END;
    if (result == Z_STREAM_END) /* another member may follow */
        return inflateReset(z) == Z_OK ? WEFT_OK : damaged(in, "it cannot go on");
    if (result == Z_MEM_ERROR)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to read gzip");
    return result == Z_OK || result == Z_BUF_ERROR ? WEFT_OK
                                                   : damaged(in, z->msg ? z->msg : "not gzip");
}

static weft_status unpack_zstd(weft_input *in, size_t room)
{
    ZSTD_inBuffer from = {in->packed + in->packed_at, in->packed_end - in->packed_at, 0};
    ZSTD_outBuffer to = {in->text + in->end, room, 0};
    const size_t result = ZSTD_decompressStream(in->zstd, &to, &from);
    in->packed_at += from.pos;
    in->end += to.pos;
    in->is_full = to.pos == room;
    if (ZSTD_isError(result))
        return damaged(in, ZSTD_getErrorName(result));
    in->is_inside = result != 0;
    return WEFT_OK;
}

/* Appends some bytes to the text; false in *more: there are none. */
static weft_status unpack(weft_input *in, bool *more)
{
    *more = true;
    WEFT_TRY(make_room(in));
    if (in->packed_at == in->packed_end && !in->is_full) {
        in->packed_at = in->packed_end = 0;
        if (!in->has_ended)
            WEFT_TRY(read_packed(in));
        *more = in->packed_end > 0;
        if (!*more && in->is_inside)
            return WEFT_ERROR(WEFT_FILE, "%s: cut short: its %s data end too soon",
                              weft_input_name(in->path), in->is == FORMAT_GZIP ? "gzip" : "zstd");
        if (!*more)
            return WEFT_OK;
    }
    const size_t room = in->capacity - in->end, left = in->packed_end - in->packed_at;
    if (in->is == FORMAT_GZIP)
        return unpack_gzip(in, room < UINT32_MAX ? room : UINT32_MAX);
    if (in->is == FORMAT_ZSTD)
        return unpack_zstd(in, room);
    const size_t part = left < room ? left : room;
    memcpy(in->text + in->end, in->packed + in->packed_at, part);
    in->end += part;
    in->packed_at += part;
    return WEFT_OK;
}

weft_status weft_input_line(weft_input *in, const char **out, size_t *bytes)
{
    size_t searched = 0;
    const char *newline = NULL;
    for (bool more = true; more && !newline;) {
        if (in->end > in->at + searched)
            newline = memchr(in->text + in->at + searched, '\n', in->end - in->at - searched);
        searched = in->end - in->at;
        if (!newline)
            WEFT_TRY(unpack(in, &more));
    }
    *out = in->text + in->at;
    *bytes = newline ? (size_t)(newline + 1 - *out) : in->end - in->at;
    in->at += *bytes;
    return WEFT_OK;
}

weft_status weft_input_peek(weft_input *in, size_t most, const char **out, size_t *bytes)
{
    for (bool more = true; more && in->end - in->at < most;)
        WEFT_TRY(unpack(in, &more));
    *out = in->text + in->at;
    *bytes = in->end - in->at < most ? in->end - in->at : most;
    return WEFT_OK;
}

weft_status weft_input_bytes(weft_input *in, size_t most, const char **out, size_t *bytes)
{
    WEFT_TRY(weft_input_peek(in, most, out, bytes));
    in->at += *bytes;
    return WEFT_OK;
}
