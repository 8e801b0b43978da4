/* What a run's folder says of its steps, its timeline and its memory. Reads, and checks all that is
 * read: damage is WEFT_FILE, with the file's path and what is wrong. Everything lives in the
 * arena. */
#ifndef WEFT_LAUNCHER_PLANNING_RUN_FILES_H
#define WEFT_LAUNCHER_PLANNING_RUN_FILES_H

#include <stdint.h>

#include "core/trace/trace.h"
#include "layers/outline/footprint.h"
#include "parallel/mesh/mesh.h"

/* Of metrics.jsonl, in order; at least one. */
typedef struct weft_run_steps {
    int64_t *numbers; /* rising */
    double *ms;
    double *loads;        /* rows at the fullest rank's experts over the mean; 0: none */
    double *expert_loads; /* rows of the fullest expert over the mean; 0: none */
    int count;
} weft_run_steps;
weft_status weft_run_read_steps(const char *run, weft_arena *arena,
                                weft_run_steps *out) WEFT_CHECKED;

/* Of trace.json, of all traced ranks of `world`; none where the run kept no timeline. */
typedef struct weft_run_timeline {
    weft_slice *slices;
    size_t count;
} weft_run_timeline;
weft_status weft_run_read_timeline(const char *run, int world, weft_arena *arena,
                                   weft_run_timeline *out) WEFT_CHECKED;

/* What one rank took, of memory.json. */
typedef struct weft_run_rank {
    int stage;
    double used[WEFT_NUM_MEMORY_PURPOSES]; /* bytes */
    weft_moe_held_loads loads;             /* at which its memory took most */
    bool has_loads;
} weft_run_rank;
/* *out: [mesh->world], by rank; NULL: the run wrote no memory.json. WEFT_CONFIG: it is of another
 * number of ranks. */
weft_status weft_run_read_memory(const char *run, const weft_mesh *mesh, weft_arena *arena,
                                 const weft_run_rank **out) WEFT_CHECKED;

#endif
