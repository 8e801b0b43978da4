/* The parts of weft_measure_cluster. Private to launcher/. */
#ifndef WEFT_LAUNCHER_MEASURING_MEASURE_INTERNAL_H
#define WEFT_LAUNCHER_MEASURING_MEASURE_INTERNAL_H

#include "core/arena.h"
#include "launcher/measuring/measure.h"

enum {
    /* The most that one lane runs in one span of interference: a CUDA stream holds about a thousand
     * entries, and an operation with its time stamp is several. */
    WEFT_MEASURE_MAX_OPERATIONS = 100,
    WEFT_MEASURE_MAX_GEMM_ROWS = 4096,
    WEFT_MEASURE_SMALLEST = 256, /* bytes; also of the answer to a message */
    WEFT_MEASURE_STORAGE_SMALLEST = 64 << 10,
    WEFT_MEASURE_BLOCK = 4096, /* bytes; what goes past the page cache is whole blocks */
};

/* The groups, lanes and memory that operations run on. */
typedef struct weft_measure_rig {
    weft_measure_options options; /* all resolved */
    weft_comm *world;
    weft_comm *inside, *between; /* ranks of this node; same place on every node; NULL: one alone */
    int num_nodes, ranks_per_node;
    weft_device *device;
    weft_lane *lanes[WEFT_NUM_WORK_CLASSES];
    weft_lane *gate_lane; /* holds the others back at an event, so that they start together */
    weft_event *gate_passed;
    char *send, *receive; /* max_bytes each */
    char *host;           /* pinned: host_bytes, at least max_bytes */
    size_t host_bytes;
    size_t walked_bytes; /* where in them the next piece begins */
    void *gemm_a, *gemm_b, *gemm_c;
    size_t gemm_width;        /* K = N */
    size_t gemm_rows;         /* at most */
    int storage;              /* a file of this rank's; -1: none */
    bool takes_direct;        /* files there go past the page cache */
    struct weft_spill *spill; /* such a file, a part a volume; NULL: none yet */
    unsigned spilled;         /* its parts that were written */
    size_t spill_at;          /* where in `stored` the next volume begins */
    char *stored;             /* max_bytes of random contents, or a block; NULL: no storage */
    size_t *send_bytes, *receive_bytes; /* of an all-to-all, one a rank */
    double *ends_us[WEFT_NUM_WORK_CLASSES];
    weft_arena arena; /* of these lists */
} weft_measure_rig;

/* Whether these ranks can measure this cost; the same on all ranks. */
bool weft_measure_can(const weft_measure_rig *rig, weft_cost_kind kind);
/* The volumes of a curve, rising; returns their number. */
int weft_measure_volumes(const weft_measure_rig *rig, weft_cost_kind kind,
                         double out[WEFT_CURVE_MAX_POINTS]);
/* Enqueues one operation. */
weft_status weft_measure_submit(weft_measure_rig *rig, weft_cost_kind kind, weft_lane *lane,
                                double volume) WEFT_CHECKED;
/* Opens the files that measure storage, where options.storage names a folder. Errors: WEFT_FILE,
 * WEFT_MEMORY. */
weft_status weft_measure_storage_open(weft_measure_rig *rig) WEFT_CHECKED;
/* Gives up on going past the page cache on all ranks where one cannot. Collective over the world.
 */
weft_status weft_measure_storage_agree(weft_measure_rig *rig) WEFT_CHECKED;
void weft_measure_storage_close(weft_measure_rig *rig);
/* Volumes of what goes past the page cache: whole blocks, at most WEFT_SPILL_MAX_PARTS. */
int weft_measure_direct_volumes(const weft_measure_rig *rig, double out[WEFT_CURVE_MAX_POINTS]);
/* Enqueues one of storage's four costs: a write until it is stored, a read past the caches, or
 * either by O_DIRECT. */
weft_status weft_measure_storage(weft_measure_rig *rig, weft_cost_kind kind, weft_lane *lane,
                                 size_t bytes) WEFT_CHECKED;
/* Enqueues writing the time into *at. */
weft_status weft_measure_stamp(weft_lane *lane, double *at) WEFT_CHECKED;
/* Microseconds of one of `num` operations back to back: of the slowest rank, of collectives the
 * mean over the ranks. `num_before` untimed ones come before them and as many behind: ranks that
 * share a link run their operations at different times, and a rank that is ahead must not have the
 * link alone at the beginning or the end. Collective over the world. */
weft_status weft_measure_train(weft_measure_rig *rig, weft_cost_kind kind, double volume,
                               int num_before, int num, double *out_us) WEFT_CHECKED;
/* alpha between the classes that can be measured, 1 elsewhere. Collective over the world. */
weft_status weft_measure_interference(weft_measure_rig *rig, weft_interference *out) WEFT_CHECKED;

/* To five digits: more than is known, few enough to read. */
double weft_measure_rounded(double us);

#endif
