/* Programs as text: `program in_flight=3`, then the slots, a line for each stretch of equal rows
 * (`slots 0-2 activation chunk=0 bytes=4096`), then a task a line:
 * `7 forward compute mb=3 chunk=0 x=0 stash=0 y=4 waits=5,6@2`. What a task does not have is left
 * out; `6@2` is point 2 of task 6, `6@landed` the landing inside it, `step_before` in a task's
 * place the step before. Printing and parsing are exact inverses, so golden files are programs. */
#ifndef WEFT_SCHEDULE_TEXT_H
#define WEFT_SCHEDULE_TEXT_H

#include <stdio.h>

#include <weft/status.h>

#include "core/arena.h"
#include "schedule/program.h"

enum { WEFT_TASK_TEXT_BYTES = 592 };

/* The task's line without its index; cut short if it does not fit (WEFT_TASK_TEXT_BYTES always
 * fits). Returns `text`. */
char *weft_task_format(const weft_program *program, uint32_t index, char *text, size_t bytes);

weft_status weft_program_print(const weft_program *program, FILE *out) WEFT_CHECKED;
/* WEFT_CONFIG with the line number for anything that print would not write. */
weft_status weft_program_parse(const char *text, weft_arena *arena, weft_program *out) WEFT_CHECKED;

#endif
