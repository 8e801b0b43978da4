/* Standard output, where it cannot be written.
 *
 * One rule for every verb: it reports the failure once on standard error, and ends with WEFT_FILE's
 * exit code where it else succeeded. Training goes on, unless the reader of its output has gone:
 * then it stops as if asked to (launcher/process/stop.h). */
#ifndef WEFT_LAUNCHER_PROCESS_OUTPUT_H
#define WEFT_LAUNCHER_PROCESS_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

#include <weft/status.h>

/* The files that a command line names: no output may be another file of the line. */
typedef struct weft_line_file {
    const char *option; /* "--html", "CONFIG" */
    const char *path;   /* NULL: not given */
    bool is_output;
} weft_line_file;

/* Call it before anything is opened: no file may get the number of a closed standard stream. */
void weft_output_open(bool trains);
/* Training calls it in place of fflush(stdout). */
void weft_output_flush(void);
/* Passes on a part of what other processes print, by one write, not through stdio. Returns the
 * bytes that are done with. */
size_t weft_output_pass_on(const char *text, size_t bytes);
/* Call it at the end: returns the exit code of a verb that ends with `exit_code`. */
int weft_output_close(int exit_code);
/* WEFT_CONFIG: an output is the same file as an input, or as another output. */
weft_status weft_output_check(const weft_line_file *files, size_t count) WEFT_CHECKED;
/* Before what takes minutes: whether the file can be written. It is as it was. NULL is legal.
 * Errors: WEFT_FILE. */
weft_status weft_output_try(const char *path) WEFT_CHECKED;
/* The same of a folder, which is there or can be made. Makes nothing. */
weft_status weft_output_try_folder(const char *path) WEFT_CHECKED;
/* "wrote PATH": what a verb says of a file that it was told to write, once that is there. Nothing
 * where standard output is for programs, or no file was given (NULL). */
void weft_output_tell_written(const char *path, bool is_for_programs);

#endif
