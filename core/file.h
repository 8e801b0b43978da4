/* Files read where they lie: with pread, so that a file that is cut short or a disk that fails
 * under a run is an error with a name, where a mapping would be a signal without one. */
#ifndef WEFT_CORE_FILE_H
#define WEFT_CORE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <weft/status.h>

#include "core/arena.h"

/* An open regular file. Zero is valid: closed. */
typedef struct weft_file {
    char *path; /* for errors; NULL: closed */
    int fd;
    uint64_t bytes; /* its size when it was opened */
} weft_file;

/* Anything but a regular file is refused, and never waited for. Errors of all: WEFT_FILE with the
 * path and the reason. */
weft_status weft_file_open(const char *path, weft_file *out) WEFT_CHECKED;
/* Reads exactly `bytes` from `offset` on; any number of threads may. A file that ends before is an
 * error that says where. */
weft_status weft_file_read(const weft_file *file, uint64_t offset, void *out,
                           size_t bytes) WEFT_CHECKED;
void weft_file_close(weft_file *file);
/* Opens it to be read line by line; closed by fclose. */
weft_status weft_file_stream(const char *path, FILE **out) WEFT_CHECKED;

/* Creates a file for writing in the place of what has its name: a link goes, what it leads to
 * stays. NULL: errno says why. */
FILE *weft_file_create(const char *path);

/* A file that takes the place of `path` when it is whole: until then it is PATH.partial. */
typedef struct weft_new_file {
    const char *path; /* borrowed */
    char *partial;
    FILE *file;
} weft_new_file;

weft_status weft_new_file_open(const char *path, weft_new_file *out) WEFT_CHECKED;
/* Closes it. status: of what was written; WEFT_OK: it goes to the disk and takes its place, where
 * that works. Else it is removed, and the first error returned. */
weft_status weft_new_file_close(weft_new_file *file, weft_status status) WEFT_CHECKED;

/* No text that is read whole is larger. */
#define WEFT_TEXT_MAX_BYTES (UINT64_C(256) << 20)
/* A whole regular file into the arena, NUL-terminated. weft_read_file (core/options.h) is for what
 * a user names, which may be a pipe that this process has open. */
weft_status weft_file_read_text(const char *path, weft_arena *arena, char **out,
                                size_t *out_bytes) WEFT_CHECKED;

#endif
