/* Tasks out of the program's order: ahead of it, and behind.
 *
 * Between the parts of a long task the executor enqueues the next tasks of chosen lanes, as far as
 * their waits are enqueued and their points recorded. So work that the other parts put on these
 * lanes does not all stand ahead of those tasks. Each lane keeps the program's order. */
#ifndef WEFT_SCHEDULE_AHEAD_H
#define WEFT_SCHEDULE_AHEAD_H

#include "schedule/run.h"

/* Behind the part that has passed the point: the next such task of *lanes, from *at on. Takes lanes
 * out whose next task has to wait. */
bool weft_ahead_find(const weft_cursor *cursor, int point, uint32_t *lanes, uint32_t *at);

/* Passes over the task at hand, which is not begun; the result stands at it, to enqueue it before
 * any task that waits for it. */
weft_cursor weft_program_set_aside(weft_cursor *cursor);
/* Records the event of an earlier task again, behind what was put on its lane since: tasks enqueued
 * from now on wait for that, too. */
weft_status weft_program_end_again(const weft_cursor *cursor, uint32_t task) WEFT_CHECKED;

#endif
