/* Where experts are while they train: section "offload" of the config. Pure.
 *
 * One layer's local expert is a bucket (parallel/residency.h). In degree `none` its weights,
 * gradients and optimizer state are on the device. In degree `host` they are in pinned host memory:
 * the device has a few weight slots and two gradient slots, a program brings each expert up when it
 * computes (schedule/experts.h), and the host steps it (ES-MoE, Kim et al. 2024, §4, whose step at
 * every micro-batch would lose accumulation and clipping: here an expert steps once a step). In
 * degree `file` they are in a file, and host memory has places for some (parallel/records.h).
 *
 * With optimizer_state `host` the host steps all else, too: masters and moments are in pinned host
 * memory, gradients go down to them and weights come up, bucket by bucket (schedule/update.h). */
#ifndef WEFT_LAYERS_TIER_H
#define WEFT_LAYERS_TIER_H

#include <weft/model.h>

#include "core/options.h"
#include "parallel/parameters.h"
#include "schedule/experts.h"
#include "schedule/options.h"

/* AUTO: the first that fits; it is found before there is a model (planning/tier_choice.h). */
typedef enum weft_tier { WEFT_TIER_NONE, WEFT_TIER_HOST, WEFT_TIER_FILE, WEFT_TIER_AUTO } weft_tier;
const char *weft_tier_text(int tier); /* static */

/* When the host steps experts. AUTO: beside backward, or where gradients are clipped or carry a
 * loss scale, beside the next forward. AFTER: behind the whole backward, and the step ends with it.
 */
typedef enum weft_tier_optimizer { WEFT_TIER_STEP_AUTO, WEFT_TIER_STEP_AFTER } weft_tier_optimizer;

/* Where the optimizer's state is of what has its weights on the device (ZeRO-Offload, Ren et al.
 * 2021). */
typedef enum weft_tier_state { WEFT_TIER_STATE_DEVICE, WEFT_TIER_STATE_HOST } weft_tier_state;

/* Where experts compute. BALANCED: each micro-batch on any rank of their home's node that shares
 * the same experts' group, so that these take equally long (layers/placing.h). */
typedef enum weft_tier_placement { WEFT_TIER_HOME, WEFT_TIER_BALANCED } weft_tier_placement;

/* The order of a layer's updates: as gradients land in the last backward, experts without one there
 * first; or as the next forward wants them. */
typedef enum weft_tier_turn_kind {
    WEFT_TIER_TURN_LANDED,
    WEFT_TIER_TURN_WANTED,
    WEFT_NUM_TIER_TURNS
} weft_tier_turn_kind;

typedef struct weft_tier_options { /* section "offload" */
    int experts;                   /* weft_tier */
    int64_t slots;                 /* weight slots on the device */
    double kept;                   /* share of a layer's local experts that stay on the device;
                                      -1: as many as its memory has room for, found likewise */
    int order;                     /* weft_expert_order */
    int optimizer;                 /* weft_tier_optimizer */
    int64_t num_threads;           /* of the host's steps; 0: as many as kernels of the CPU have */
    int64_t host_memory_limit;     /* bytes; 0: what the machine leaves */
    int io;                        /* weft_spill_io; of a file, as what follows: */
    int eviction;                  /* weft_spill_eviction */
    const char *path;              /* a folder */
    double cached;                 /* share of a rank's experts that host memory has places for */
    int64_t file_limit;            /* bytes of a rank's file; 0: no limit */
    int optimizer_state;           /* weft_tier_state: of all that is not an expert there */
    int placement;                 /* weft_tier_placement */
    int64_t replicas;              /* ranks that compute one expert at a time, at most */
    int chosen_experts; /* weft_tier: what a run took where the above is left open; AUTO: none did
                         */
    double chosen_kept, chosen_cached; /* likewise */
} weft_tier_options;

/* Of a rank, since its start: what went up and down, and how often. */
typedef struct weft_tier_counts {
    uint64_t uploaded_bytes, downloaded_bytes, num_uploads, num_held; /* held: it was there */
    uint64_t read_bytes, written_bytes;                               /* of the file */
    double
        waited_us; /* that compute waited for what comes up, or goes down; the CPU's alone, and */
    double delayed_us;   /* of that, because the host had not stepped them */
    uint64_t num_guests; /* of other ranks, whose gradients came down here */
} weft_tier_counts;

extern const weft_option_row weft_tier_rows[];
extern const size_t weft_num_tier_rows;

/* Whether experts can be where the options say, with layers that run as `schedule` says. Pure.
 * WEFT_CONFIG with the key. */
weft_status weft_tier_check(const weft_tier_options *options, const weft_model_options *model,
                            const weft_schedule_options *schedule) WEFT_CHECKED;

/* Whether partitions of MoE layers are runs of experts: as asked for, or where n is open because
 * nothing else goes with experts beyond device memory. */
bool weft_tier_cuts_experts(const weft_tier_options *options,
                            const weft_schedule_options *schedule);

/* Whether auto or -1 stands there still: no step is made of such options. */
bool weft_tier_is_left_open(const weft_tier_options *options);
/* What a run of these took: of what is left open, what was chosen. Has no choice any more. */
weft_tier_options weft_tier_as_ran(const weft_tier_options *options);
/* As they were asked for, without what a run chose; with what it chose, which `ran` has. */
weft_tier_options weft_tier_as_asked(const weft_tier_options *options);
weft_tier_options weft_tier_with_choice(const weft_tier_options *options,
                                        const weft_tier_options *ran);
/* With none in the place of auto, and 0 of -1: an outline's. */
weft_tier_options weft_tier_closed(const weft_tier_options *options);
/* The file of the experts. state_bytes: of the optimizer's state of an element. */
weft_experts_file weft_tier_file(const weft_tier_options *options, size_t state_bytes);
/* Bytes of the optimizer's state of an element. */
size_t weft_tier_state_bytes(weft_dtype dtype, bool split_master);

/* Whether experts compute on other ranks than their home. */
bool weft_tier_is_placed(const weft_tier_options *options);
/* Of `num_experts` local ones, where experts are dealt out over num_ranks: how many stay on the
 * device; those that may come here; slots for the ones that do not stay. */
int weft_tier_num_kept(const weft_tier_options *options, int num_experts);
int weft_tier_num_seats(const weft_tier_options *options, int num_experts, int num_ranks);
int weft_tier_num_slots(const weft_tier_options *options, int num_experts, int num_ranks);
/* Gradients on the device at a time. */
enum { WEFT_TIER_GRADIENTS = 2 };
/* The programs of a layer with so many. accumulates: several gradients of an expert come down. */
weft_experts_shape weft_tier_shape(const weft_tier_options *options, int num_experts, int num_ranks,
                                   bool accumulates);

#endif
