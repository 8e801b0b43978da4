/* The checker proves a set of programs, one a stage, right before anything runs:
 *  1. form: waits point backwards, slots in range, kinds have the lane, slots and peers they need;
 *  2. every (micro-batch, stage) is forwarded once and, unless forward_only, backwarded once,
 *     after its forward; then gradients are reduced once, then the optimizer steps once;
 *  3. every task reads the value that is meant for it, and no slot is overwritten while a task
 *     that reads it may not have run, nor read before it is written (ordering by lanes and waits
 *     alone, not by luck);
 *  4. sends match receives: same order of (flow, micro-batch) on each directed pair of stages;
 *  5. no cycle across ranks, with lanes as FIFOs and every send blocking until its receive starts
 *     (rendezvous), so the program is deadlock-free whatever the transport buffers;
 *  6. no more than max_in_flight micro-batches between forward and backward.
 * Pure. Errors: WEFT_INTERNAL with the stage, the task's index and its text. */
#ifndef WEFT_SCHEDULE_CHECK_H
#define WEFT_SCHEDULE_CHECK_H

#include "schedule/program.h"

weft_status weft_program_check(const weft_program *programs, int num_stages, int num_micro_batches,
                               bool forward_only) WEFT_CHECKED;

#endif
