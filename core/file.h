/* Whole files, mapped where they lie. */
#ifndef WEFT_CORE_FILE_H
#define WEFT_CORE_FILE_H

#include <stddef.h>

#include <weft/status.h>

/* A read-only mapping. Zero is a valid, empty one. */
typedef struct weft_file_map {
    const unsigned char *data;
    size_t bytes;
} weft_file_map;

/* Maps a regular file. Errors: WEFT_FILE with the path and the reason. */
weft_status weft_file_map_open(const char *path, weft_file_map *out) WEFT_CHECKED;
void weft_file_map_close(weft_file_map *map);

#endif
