/* The end of a training step: gradients are reduced, the norm is taken, the optimizer steps. For
 * generators of a step's program and for its checker. Pure.
 *
 *   sum tensor, sum tied   a section whose gradients are partial sums, before its buckets
 *   reduce bucket=b        bucket b over its gradient group, once its layer's gradients are final:
 *                          it waits for that point inside the last backward
 *   reduce                 without a bucket: the passes' own reductions on this lane are over
 *   norm                   of all gradients; the host waits for it
 *   step bucket=b          AdamW
 *   gather bucket=b        what other ranks updated (ZeRO-1), beside the next bucket's step
 *
 * Sums, reductions and gathers stand on the reduce lane in the order of the buckets, on all ranks
 * of a gradient group alike.
 *
 * An offloaded bucket has its state in host memory, and the lane host does its work:
 *
 *   write, read bucket=b   of one in a file, behind its landing: what lies in the place that it
 *                          gets goes to the file where it was changed, and what the file has of
 *                          this one comes there: of one that steps behind the norm of all the
 *                          gradient, and ahead of its step, again, all (weight). A read waits for
 *                          the step before, whose update may still write
 *   reduce bucket=b        as above, but behind the bucket's landing, or its read, and the step
 *                          before: it may clear a gradient that the step before it still reads
 *   norm bucket=b          its sum of squares, for the norm of all
 *   step bucket=b          at once: a layer's experts, when their gradients are final. Else behind
 *                          the norm of all, the first layer's first, as the next forward needs
 *                          them. Where experts may be kept, behind the step before, of which an
 *                          upload may still read
 *   gather bucket=b        on the lane host, over a communicator of its own: a reduction of the
 *                          next step may pass it
 *   upload bucket=b        the new weights of an expert that is kept, to the device: behind the
 *                          layer's backward, which may read what lies there
 *
 * Where no gather follows, the executor decides which of a layer's experts a step and its upload
 * serve: all their gradients are final by then, and the next forward needs some first.
 *
 * A bucket with only its optimizer state in host memory (ZeRO-Offload, Ren et al. 2021) has weights
 * and gradient on the device; reduction, norm and gather are as above:
 *
 *   download bucket=b      its gradient, behind the norm and the step that empties its place
 *   step bucket=b          on the lane host, while the next one comes down
 *   upload bucket=b        the new weights; a gather follows
 *   upload                 without a bucket, on the lane compute: all weights are up, and the
 *                          step's end is behind them, though the lanes of both run on
 *
 * The lanes host, to_device and file run on beside the next step (schedule/run.h), unless the
 * optimizer is to be done when the step is (`after`): then nothing is at once and no lane runs on.
 * A task of the next step that waits for the step before does so for its bucket's last task here:
 * the upload, else the gather, else the step.
 *
 * Tasks of these lanes may be enqueued between the parts of a backward, once their waits are passed
 * (schedule/run.h). So an expert in a file is read and stepped when its gradient lands, not
 * behind all reads of the layers below. */
#ifndef WEFT_SCHEDULE_PIPELINE_UPDATE_H
#define WEFT_SCHEDULE_PIPELINE_UPDATE_H

#include "core/bucket.h"
#include "schedule/build.h"

/* Appends the update behind the backwards. last_backward: the index of each chunk's last backward;
 * last: the largest of these. */
weft_status weft_program_append_update(weft_program_builder *builder, const weft_buckets *buckets,
                                       const uint32_t *last_backward, int num_chunks,
                                       uint32_t last) WEFT_CHECKED;

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
