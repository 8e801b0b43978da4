/* memory.json: what a run's memory was for. */
#ifndef WEFT_LAUNCHER_TRAINING_MEMORY_H
#define WEFT_LAUNCHER_TRAINING_MEMORY_H

#include "launcher/training/trainer.h"

/* Rank 0 writes DIR/memory.json: for each rank its stage, and of each purpose the bytes that were
 * `planned` (its footprint) and `used`, the most that were held at once; beside them those of
 * device memory in all and, used, of pinned memory. Collective over the world; all ranks return the
 * same status. Errors: WEFT_FILE, WEFT_MEMORY.
 */
weft_status weft_memory_write(const weft_trainer *trainer, const char *dir) WEFT_CHECKED;

#endif
