/* memory.json: what a run's memory was for. */
#ifndef WEFT_LAUNCHER_TRAINING_MEMORY_H
#define WEFT_LAUNCHER_TRAINING_MEMORY_H

#include "launcher/training/trainer.h"

/* The most bytes of a purpose that this rank held at once, without what is spare in blocks that an
 * uneven load of experts made grow. */
uint64_t weft_trainer_memory_use(const weft_trainer *trainer, weft_memory_purpose purpose);

/* Rank 0 writes DIR/memory.json: for each rank its stage, and of each purpose the bytes that were
 * `planned` (its footprint) and `used`, the most that were held at once; beside them those of
 * device memory in all and, used, of pinned memory, spare blocks included. With experts also
 * `planned_at_load`, and the loads at which passes, what they pin, recomputed activations, each
 * slot of what is offloaded and scratch took most. Collective over the world; all ranks return the
 * same status. Errors: WEFT_FILE, WEFT_MEMORY.
 */
weft_status weft_memory_write(const weft_trainer *trainer, const char *dir) WEFT_CHECKED;

#endif
