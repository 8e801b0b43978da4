/* Standard output, where it cannot be written.
 *
 * One rule for every verb: it reports the failure once on standard error, and ends with WEFT_FILE's
 * exit code where it else succeeded. Training goes on, unless the reader of its output has gone:
 * then it stops as if asked to (launcher/process/stop.h). */
#ifndef WEFT_LAUNCHER_PROCESS_OUTPUT_H
#define WEFT_LAUNCHER_PROCESS_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

/* Call it before anything is opened: no file may get the number of a closed standard stream. */
void weft_output_open(bool trains);
/* Training calls it in place of fflush(stdout). */
void weft_output_flush(void);
/* Passes on a part of what other processes print, by one write, not through stdio. Returns the
 * bytes that are done with. */
size_t weft_output_pass_on(const char *text, size_t bytes);
/* Call it at the end: returns the exit code of a verb that ends with `exit_code`. */
int weft_output_close(int exit_code);

#endif
