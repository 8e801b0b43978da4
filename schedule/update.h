/* The end of a training step: gradients are reduced, the norm is taken, the optimizer steps. For
 * generators of a step's program and for its checker. Pure.
 *
 *   sum tensor, sum tied   a section whose gradients are partial sums, before its buckets
 *   reduce bucket=b        bucket b over its gradient group, once its layer's gradients are final:
 *                          it waits for that point inside the last backward
 *   reduce                 without a bucket: what passes reduce, on the same lane, is over
 *   norm                   of all gradients; the host waits for it
 *   step bucket=b          AdamW
 *   gather bucket=b        what other ranks updated (ZeRO-1), beside the next bucket's step
 *
 * Sums, reductions and gathers stand on the reduce lane in the order of the buckets, on all ranks
 * of a gradient group alike. */
#ifndef WEFT_SCHEDULE_UPDATE_H
#define WEFT_SCHEDULE_UPDATE_H

#include "core/bucket.h"
#include "schedule/build.h"

/* Appends the update behind the backwards. last_backward: the index of each chunk's last backward;
 * last: of the last of all. */
weft_status weft_program_append_update(weft_program_builder *builder, const weft_buckets *buckets,
                                       const uint32_t *last_backward, uint32_t last) WEFT_CHECKED;

/* A list of the tasks that a program must have (schedule/check.h). */
typedef struct weft_task_list {
    weft_task *tasks;
    weft_wait *waits;
    uint32_t num_tasks, num_waits;
} weft_task_list;

/* Lists the update behind a list with all backwards. last_backward: by chunk, the index in the list
 * of its last backward in the program, by whose end all are over, since one lane runs them;
 * UINT32_MAX: the program has none. Adds at most weft_update_max_tasks tasks and
 * weft_update_max_waits waits. */
void weft_update_expect(const weft_buckets *buckets, const uint32_t *last_backward, int num_chunks,
                        weft_task_list *list);
uint32_t weft_update_max_waits(const weft_buckets *buckets, int num_chunks);
uint32_t weft_update_max_tasks(const weft_buckets *buckets);
/* Bits of the kinds that stand in the order of the buckets. */
uint32_t weft_update_ordered(void);

#endif
