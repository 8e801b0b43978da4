/* memory.json: a run's memory by purpose. */
#ifndef WEFT_LAUNCHER_TRAINING_MEMORY_H
#define WEFT_LAUNCHER_TRAINING_MEMORY_H

#include "launcher/training/trainer.h"

/* This rank's peak bytes of a purpose, without the unused rest of blocks that grew by an uneven
 * load. */
uint64_t weft_trainer_memory_use(const weft_trainer *trainer, weft_memory_purpose purpose);

/* Rank 0 writes DIR/memory.json: for each rank its stage, and by purpose the bytes `planned` (its
 * footprint) and `used` (the peak), with those of all device memory and, used, of pinned memory,
 * spare blocks included. With experts also `planned_at_load`, and the loads at the peaks of passes,
 * their pinned memory, recomputed activations, each offloading slot and scratch. Collective over
 * the world; all ranks return the same status. Errors: WEFT_FILE, WEFT_MEMORY. */
weft_status weft_memory_write(const weft_trainer *trainer, const char *dir) WEFT_CHECKED;

#endif
