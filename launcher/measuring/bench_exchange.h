/* What weft bench all-to-all measures and reports. Private to launcher/. */
#ifndef WEFT_LAUNCHER_MEASURING_BENCH_EXCHANGE_H
#define WEFT_LAUNCHER_MEASURING_BENCH_EXCHANGE_H

#include "launcher/measuring/bench.h"
#include "layers/moe/moe.h"

enum {
    WEFT_BENCH_MAX_SIZES = 8,
    WEFT_BENCH_MAX_CHUNKS = 8, /* counts to try */
    WEFT_BENCH_MAX_TRAIN = 64,
    /* the bare all-to-all; three forms of one chunk; the others with every count and the chosen */
    WEFT_BENCH_MAX_VARIANTS = 1 + 3 + 3 * (WEFT_BENCH_MAX_CHUNKS + 1),
};

/* A way to move the tokens, of one size. */
typedef struct weft_exchange_variant {
    bool is_bare; /* the all-to-all between nodes of 1 / t of every block, and nothing else */
    weft_exchange_form form;
    int num_chunks;
    bool tried;           /* false: run only because the model chose it */
    double predicted_us;  /* 0: bare */
    double *us;           /* a round each; owned */
    weft_spread time;     /* us */
    weft_spread speed[3]; /* baseline's, o1_paper's, bare's time over this one's, round by round */
} weft_exchange_variant;
enum { WEFT_BENCH_BASELINE, WEFT_BENCH_O1_PAPER, WEFT_BENCH_BARE };

typedef struct weft_exchange_result {
    double bytes;       /* I */
    double model_bytes; /* I of the even exchange that loads the busiest rank alike */
    int train;          /* operations a measurement */
    weft_exchange_choice choice;
    weft_exchange_variant variants[WEFT_BENCH_MAX_VARIANTS];
    int num_variants;
    int chosen, best; /* indices; best: the fastest form; bare is no form */
} weft_exchange_result;

/* Groups, lane and memory. Buffers hold the largest size. */
typedef struct weft_exchange_rig {
    weft_comm *world, *between, *inside; /* world: borrowed */
    weft_device *device;                 /* borrowed */
    weft_lane *lane;
    bool uneven;
    char *send, *recv, *staging;
    size_t send_capacity, recv_capacity, staging_capacity, staging_used;
    char *host_staging;
    size_t host_used;
    size_t *send_bytes, *recv_bytes; /* [between], of the size at hand */
    size_t *bare_send_bytes, *bare_recv_bytes;
} weft_exchange_rig;

/* ranks_inside: consecutive ranks that are taken for a node; 0: those that share memory. Collective
 * over world. Errors: WEFT_CONFIG (groups of different sizes, or only one rank in a group or one
 * group), WEFT_MEMORY, WEFT_COMM. */
weft_status weft_exchange_rig_init(weft_exchange_rig *rig, weft_comm *world, weft_device *device,
                                   int ranks_inside, double max_bytes, bool uneven) WEFT_CHECKED;
void weft_exchange_rig_release(weft_exchange_rig *rig);

/* Sets the sizes for I bytes and fills `send`. *out_bytes: I of an even exchange that loads the
 * busiest rank alike. */
weft_status weft_exchange_rig_load(weft_exchange_rig *rig, double bytes,
                                   double *out_bytes) WEFT_CHECKED;
/* One untimed operation, which empties a shaper's burst, then `train` timed ones close behind, a
 * barrier before each. *out_us: the mean of their times, each from the barrier until the slowest
 * rank is done. 1 <= train <= WEFT_BENCH_MAX_TRAIN. The same on all ranks. Collective over the
 * world. */
weft_status weft_exchange_rig_time(weft_exchange_rig *rig, const weft_exchange_variant *variant,
                                   int train, double *out_us) WEFT_CHECKED;
/* Runs the variant once and compares received with sent bytes. WEFT_INTERNAL on all ranks where one
 * byte differs. Collective over the world. */
weft_status weft_exchange_rig_check(weft_exchange_rig *rig,
                                    const weft_exchange_variant *variant) WEFT_CHECKED;

/* "o2 x4", "bare I/t". */
void weft_exchange_variant_text(const weft_exchange_variant *variant, char out[32]);

typedef struct weft_exchange_report {
    const weft_exchange_rig *rig;
    const weft_cluster *cluster;
    const weft_exchange_result *results;
    int num_results, rounds;
} weft_exchange_report;

#endif
