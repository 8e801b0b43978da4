/* The files that a command line names: no output may be another file of the line. */
#ifndef WEFT_LAUNCHER_PROCESS_OUTPUT_FILES_H
#define WEFT_LAUNCHER_PROCESS_OUTPUT_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include <weft/status.h>

typedef struct weft_line_file {
    const char *option; /* "--html", "CONFIG" */
    const char *path;   /* NULL: not given */
    bool is_output;
} weft_line_file;

/* Both paths lead to one file, which may not be there yet; devices and pipes are none. */
bool weft_same_file(const char *a, const char *b);
/* WEFT_CONFIG: an output is the same file as an input, or as another output. */
weft_status weft_output_check(const weft_line_file *files, size_t count) WEFT_CHECKED;
/* Before what takes minutes: whether the file can be written. It is as it was. NULL is legal.
 * Errors: WEFT_FILE. */
weft_status weft_output_try(const char *path) WEFT_CHECKED;

#endif
