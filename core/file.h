/* Files read by pread. A file that is cut short or a disk that fails during a run gives an error
 * that names the file; a mapping would give a signal. */
#ifndef WEFT_CORE_FILE_H
#define WEFT_CORE_FILE_H

#include <stdbool.h>
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

/* Refuses anything but a regular file, and never waits for a FIFO. Errors of all: WEFT_FILE with
 * the path and the reason, WEFT_MEMORY. */
weft_status weft_file_open(const char *path, weft_file *out) WEFT_CHECKED;

/* The last part of a path, of which it is a part. */
const char *weft_path_name(const char *path);
/* Prints a path. WEFT_FILE: `out` has no room for it. */
weft_status weft_path_print(char *out, size_t capacity, const char *format, ...)
    WEFT_PRINTF(3, 4) WEFT_CHECKED;
/* What tells one writing of a file from another: whoever writes or replaces it changes one of
 * these. Other mount points and nodes show the same. */
typedef struct weft_file_stamp {
    uint64_t bytes, inode;
    int64_t modified_ns, changed_ns; /* st_mtim, st_ctim */
} weft_file_stamp;
weft_status weft_file_take_stamp(const weft_file *file, weft_file_stamp *out) WEFT_CHECKED;
/* Reads exactly `bytes` from `offset` on. Any number of threads may read. Where the file ends too
 * soon the error says at which byte. */
weft_status weft_file_read(const weft_file *file, uint64_t offset, void *out,
                           size_t bytes) WEFT_CHECKED;
void weft_file_close(weft_file *file);
/* Opens a regular file as a stream, which the caller closes by fclose. */
weft_status weft_file_stream(const char *path, FILE **out) WEFT_CHECKED;

/* Before a file is written: WEFT_FILE where there is no room for `what` ("a checkpoint") of so many
 * bytes and the file system can say so. On a disk the room is the file's from then on. Memory is
 * asked alone, since to make its pages is most of the time of writing them: whoever writes does it.
 */
weft_status weft_file_reserve(int fd, const char *path, const char *what,
                              uint64_t bytes) WEFT_CHECKED;
/* The same question without a file, of a path that may not be there yet. */
weft_status weft_file_ask_room(const char *path, const char *what, uint64_t bytes) WEFT_CHECKED;

/* Removes what has this name, a link but not its target, and creates a file for writing. NULL:
 * errno says why. */
FILE *weft_file_create(const char *path);

/* Opens a regular file, which is made where it is missing, for adding at its end; a link is not
 * followed. NULL: errno says why. */
FILE *weft_file_append(const char *path);

/* Whether files there are in the machine's memory (tmpfs, ramfs): no disk. false: nobody knows. */
bool weft_path_is_memory(const char *path);
/* Whether files there lie on a Lustre, which spreads each over servers by its folder's stripes.
 * false: nobody knows. */
bool weft_path_is_lustre(const char *path);

/* A file that is PATH.partial until it is whole, and then takes the place of `path`, which is a
 * regular file, a link, whose target stays, or not there. */
typedef struct weft_new_file {
    const char *path; /* borrowed */
    char *partial;
    FILE *file;
} weft_new_file;

weft_status weft_new_file_open(const char *path, weft_new_file *out) WEFT_CHECKED;
/* Removes what was written: the file may not be wanted, or only whether it could be made. */
void weft_new_file_drop(weft_new_file *file);
/* Closes the file. `status`: of the writing so far. With WEFT_OK it syncs the file to disk and
 * renames it into place. After any error it removes the file and returns the first error. */
weft_status weft_new_file_close(weft_new_file *file, weft_status status) WEFT_CHECKED;

/* A text that is written into memory. It stays where it was opened. */
typedef struct weft_new_text {
    FILE *file;
    char *text;
    size_t bytes;
} weft_new_text;

weft_status weft_new_text_open(weft_new_text *out) WEFT_CHECKED;
/* Closes and frees. `status`: of the writing so far. With WEFT_OK *out is the text, in the arena;
 * returns the first error. */
weft_status weft_new_text_close(weft_new_text *text, weft_status status, weft_arena *arena,
                                const char **out) WEFT_CHECKED;

/* The largest text that Weft reads whole. */
#define WEFT_TEXT_MAX_BYTES (UINT64_C(256) << 20)
/* Reads a whole regular file into the arena, NUL-terminated. For a path that a user names, which
 * may be a pipe, there is weft_read_file (core/options/options.h). */
weft_status weft_file_read_text(const char *path, weft_arena *arena, char **out,
                                size_t *out_bytes) WEFT_CHECKED;

#endif
