/* Corpora as people have them: files, pipes and folders; plain, gzip or zstd, told by their first
 * bytes and not by their names. Bytes come as a stream, so memory holds a line and no file. One
 * thread at a time uses an input. */
#ifndef WEFT_LAUNCHER_TEXT_INPUT_H
#define WEFT_LAUNCHER_TEXT_INPUT_H

#include <stdbool.h>
#include <stdint.h>

#include <weft/status.h>

#include "core/arena.h"

/* Files in the order in which they are read. */
typedef struct weft_input_list {
    const char **paths; /* in the arena, all else too */
    size_t count, capacity;
    uint64_t bytes; /* of all files as they are stored; 0: a pipe is among them, nobody knows */
    bool has_pipe;
} weft_input_list;

/* Appends a file, or all files below a folder: a folder's names in the order of their bytes, what
 * is in a folder in its name's place, names that begin with a dot left out. WEFT_FILE: a path that
 * is not there, a folder without a file, a link to a folder inside a folder. */
weft_status weft_input_list_add(weft_input_list *list, const char *path,
                                weft_arena *arena) WEFT_CHECKED;

typedef struct weft_input weft_input;

/* raw: bytes as they are stored, whatever they are. path: borrowed, for errors. WEFT_FILE: a file
 * that cannot be read, or that is xz or bzip2. */
weft_status weft_input_open(const char *path, bool raw, weft_input **out) WEFT_CHECKED;
void weft_input_close(weft_input *input);
/* The next line with its newline, which the last may lack; *bytes 0: there is none. Borrowed until
 * the next call. WEFT_FILE: the file cannot be read, or its compressed data are cut short or
 * damaged. */
weft_status weft_input_line(weft_input *input, const char **out, size_t *bytes) WEFT_CHECKED;
/* The next bytes, at most `most`, fewer at the file's end alone; in the same way. */
weft_status weft_input_bytes(weft_input *input, size_t most, const char **out,
                             size_t *bytes) WEFT_CHECKED;
/* The same without going on. */
weft_status weft_input_peek(weft_input *input, size_t most, const char **out,
                            size_t *bytes) WEFT_CHECKED;
/* Bytes of the file, as they are stored, that are read so far. */
uint64_t weft_input_num_read(const weft_input *input);

/* What messages call a file: "standard input" and "a pipe" for paths that a shell made. */
const char *weft_input_name(const char *path);

#endif
