/* Whether all ranks read the same data, where each node may have its own copy of a dataset.
 *
 * Ranks whose files are rank 0's by what identifies their writing, as on a shared file system, read
 * nothing. Of others the first rank of a node that has such a copy hashes it, as rank 0 hashes its
 * own, while rank 0 does. */
#ifndef WEFT_LAUNCHER_TRAINING_DATA_COPIES_H
#define WEFT_LAUNCHER_TRAINING_DATA_COPIES_H

#include "comm/comm.h"
#include "launcher/planning/config.h"
#include "launcher/training/data.h"

/* Zero is valid: nothing to compare, as where all ranks have the same files. Arrays of the arena.
 */
typedef struct weft_data_copies {
    size_t count;        /* datasets: those that are trained on, then those of data.validation */
    size_t num_training; /* of them; of mock data and the program's own 0 */
    bool *reads;         /* [count]: this rank hashes its copy; rank 0 where another rank does */
} weft_data_copies;

/* Which ranks hash which of their datasets, before these are opened. WEFT_CONFIG: ranks whose
 * configs name other numbers of them. Collective; all return the same status. */
weft_status weft_data_copies_find(weft_comm *world, const weft_config *config,
                                  const weft_config_source *source, weft_arena *arena,
                                  weft_data_copies *out) WEFT_CHECKED;
/* Hashes what this rank is to hash. Rank-local. */
weft_status weft_data_copies_read(const weft_data_copies *copies, const weft_config_source *source,
                                  weft_data *data) WEFT_CHECKED;
/* WEFT_FILE where a rank's tokens, mask or number of documents are not rank 0's. Collective; all
 * return the same status. */
weft_status weft_data_copies_compare(const weft_data_copies *copies, weft_comm *world,
                                     const weft_data *data) WEFT_CHECKED;

#endif
