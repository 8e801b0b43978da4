/* Standard output, where it cannot be written.
 *
 * One rule for every verb: what could not be written is said once on standard error, and a verb
 * that else succeeded ends with WEFT_FILE's exit code. Training goes on, and stops as if asked to
 * (launcher/process/stop.h) where the reader has gone. */
#ifndef WEFT_LAUNCHER_PROCESS_OUTPUT_H
#define WEFT_LAUNCHER_PROCESS_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

/* Before anything is opened: no file may get the number of a standard stream that is closed. */
void weft_output_open(bool trains);
/* While training, in place of fflush(stdout). */
void weft_output_flush(void);
/* Of other processes: a part of what they print. One write, not through stdio;
 * returns how much of it is done with. */
size_t weft_output_pass_on(const char *text, size_t bytes);
/* At the end: the exit code of a verb that ends with `exit_code`. */
int weft_output_close(int exit_code);

#endif
