/* Where experts are while they train: section "offload" of the config. Pure.
 *
 * One layer's local expert is a bucket (parallel/residency/residency.h). In degree `none` its
 * weights, gradients and optimizer state are on the device. In degree `host` they are in pinned
 * host memory: the device has a few weight slots and two gradient slots, a program brings each
 * expert up when it computes (schedule/experts/experts.h), and the host steps it (ES-MoE, Kim et
 * al. 2024, §4, whose step at every micro-batch would lose accumulation and clipping: here an
 * expert steps once a step). In degree `file` they are in a file, and host memory has places for
 * some (parallel/records/records.h).
 *
 * With optimizer_state `host` the host steps all else, too: masters and moments are in pinned host
 * memory, gradients go down to them and weights come up, bucket by bucket
 * (schedule/pipeline/update.h). */
#ifndef WEFT_LAYERS_TIER_TIER_H
#define WEFT_LAYERS_TIER_TIER_H

#include <weft/model.h>

#include "core/options/options.h"
#include "parallel/parameters/parameters.h"
#include "schedule/experts/experts.h"
#include "schedule/options.h"

/* AUTO: the first that fits, chosen before a model exists (planning/tier_choice.h). */
typedef enum weft_tier { WEFT_TIER_NONE, WEFT_TIER_HOST, WEFT_TIER_FILE, WEFT_TIER_AUTO } weft_tier;
const char *weft_tier_text(int tier); /* static */

/* When the host steps experts. AUTO: beside backward; with clipping or a loss scale, beside the
 * next forward. AFTER: behind the whole backward, within the step. */
typedef enum weft_tier_optimizer { WEFT_TIER_STEP_AUTO, WEFT_TIER_STEP_AFTER } weft_tier_optimizer;

/* Where the optimizer state of weights on the device lies (ZeRO-Offload, Ren et al. 2021). */
typedef enum weft_tier_state { WEFT_TIER_STATE_DEVICE, WEFT_TIER_STATE_HOST } weft_tier_state;

/* Where experts compute. BALANCED: in each micro-batch on any rank of the EP group on their home's
 * node, so that these ranks compute equally long (layers/tier/placing.h). */
typedef enum weft_tier_placement { WEFT_TIER_HOME, WEFT_TIER_BALANCED } weft_tier_placement;

/* The order of a layer's updates: as gradients land in the last backward, after experts without a
 * gradient there; or as the next forward needs them. */
typedef enum weft_tier_turn_kind {
    WEFT_TIER_TURN_LANDED,
    WEFT_TIER_TURN_WANTED,
    WEFT_NUM_TIER_TURNS
} weft_tier_turn_kind;

typedef struct weft_tier_options { /* section "offload" */
    int experts;                   /* weft_tier */
    int64_t slots;                 /* weight slots on the device */
    double kept;   /* share of a layer's local experts that stay on the device; -1: as many as fit,
                      chosen like AUTO */
    int order;     /* weft_expert_order */
    int optimizer; /* weft_tier_optimizer */
    int64_t num_threads;       /* threads of the host's steps; 0: the CPU kernels' number */
    int64_t host_memory_limit; /* bytes; 0: the rank's share of free memory */
    int io;                    /* weft_spill_io; this to file_limit: experts in a file */
    int eviction;              /* weft_spill_eviction */
    const char *path;          /* a folder */
    double cached;             /* share of a rank's experts that host memory has places for */
    int64_t file_limit;        /* bytes of a rank's file; 0: no limit */
    int optimizer_state;       /* weft_tier_state, of everything but experts elsewhere */
    int placement;             /* weft_tier_placement */
    int64_t replicas;          /* the most ranks that compute one expert at a time */
    int chosen_experts;        /* weft_tier: a run's choice for AUTO and -1 above; AUTO: none yet */
    double chosen_kept, chosen_cached; /* the choices for kept and cached */
} weft_tier_options;

/* A rank's uploads and downloads since its start. */
typedef struct weft_tier_counts {
    uint64_t uploaded_bytes, downloaded_bytes, num_uploads,
        num_held;                       /* held: the weights were there */
    uint64_t read_bytes, written_bytes; /* from and to the file */
    double waited_us;    /* compute's waits for uploads and downloads; on the CPU alone */
    double delayed_us;   /* the part of these waits for the host's steps */
    uint64_t num_guests; /* other ranks' experts whose gradients came down here */
} weft_tier_counts;

extern const weft_key weft_tier_rows[];
extern const size_t weft_num_tier_rows;

/* Whether experts can lie where the options say, if layers run as `schedule` says. Pure.
 * WEFT_CONFIG with the key. */
weft_status weft_tier_check(const weft_tier_options *options, const weft_model_options *model,
                            const weft_schedule_options *schedule) WEFT_CHECKED;

/* Whether MoE layers' partitions are runs of experts: as configured, or because n is open and
 * experts beyond device memory allow nothing else. */
bool weft_tier_cuts_experts(const weft_tier_options *options,
                            const weft_schedule_options *schedule);

/* Whether the options still have auto or -1; no step can be made from such options. */
bool weft_tier_is_left_open(const weft_tier_options *options);
/* The options that a run used: open ones replaced by the choice, without the choice's own
 * fields. */
weft_tier_options weft_tier_as_ran(const weft_tier_options *options);
/* The options as configured, without a run's choice; below: with the choice from `ran`. */
weft_tier_options weft_tier_as_asked(const weft_tier_options *options);
weft_tier_options weft_tier_with_choice(const weft_tier_options *options,
                                        const weft_tier_options *ran);
/* With none for auto and 0 for -1, for outlines. */
weft_tier_options weft_tier_closed(const weft_tier_options *options);
/* The file of the experts. state_bytes: of an element's optimizer state. */
weft_experts_file weft_tier_file(const weft_tier_options *options, size_t state_bytes);
/* Bytes of one element's optimizer state. */
size_t weft_tier_state_bytes(weft_dtype dtype, bool split_master);

/* Whether experts compute on other ranks than their home. */
bool weft_tier_is_placed(const weft_tier_options *options);
/* For `num_experts` local experts, placed over num_ranks: how many stay on the device; below: how
 * many may compute here; slots for those that do not stay. */
int weft_tier_num_kept(const weft_tier_options *options, int num_experts);
int weft_tier_num_seats(const weft_tier_options *options, int num_experts, int num_ranks);
int weft_tier_num_slots(const weft_tier_options *options, int num_experts, int num_ranks);
/* The number of gradient slots on the device. */
enum { WEFT_TIER_GRADIENTS = 2 };
/* The shape of the programs of a layer with so many experts. accumulates: an expert has several
 * gradients in a step. */
weft_experts_shape weft_tier_shape(const weft_tier_options *options, int num_experts, int num_ranks,
                                   bool accumulates);

#endif
