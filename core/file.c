#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/options.h"

static weft_status map_descriptor(const char *path, int fd, weft_file_map *out)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return WEFT_ERROR(WEFT_FILE, "%s: not a regular file", path);
    *out = (weft_file_map){0};
    if (info.st_size == 0) /* which mmap refuses */
        return WEFT_OK;
    void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot map it: %s", path, strerror(errno));
    *out = (weft_file_map){data, (size_t)info.st_size};
    return WEFT_OK;
}

weft_status weft_file_map_open(const char *path, weft_file_map *out)
{
    /* Non-blocking, so that a FIFO is refused instead of waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    weft_status status = map_descriptor(path, fd, out);
    close(fd);
    return status;
}

void weft_file_map_close(weft_file_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (weft_file_map){0};
}

/* Reads to the end, whatever kind of file it is: pipes have no size to ask for. */
static weft_status read_stream(const char *path, FILE *file, weft_arena *arena, char **out,
                               size_t *out_bytes)
{
    size_t bytes = 0, capacity = 1 << 16;
    char *text = malloc(capacity + 1);
    while (text) {
        bytes += fread(text + bytes, 1, capacity - bytes, file);
        if (bytes < capacity)
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

weft_status weft_read_file(const char *path, weft_arena *arena, char **out, size_t *out_bytes)
{
    FILE *file = fopen(path, "rbe");
    if (!file)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    weft_status status = read_stream(path, file, arena, out, out_bytes);
    fclose(file);
    return status;
}
