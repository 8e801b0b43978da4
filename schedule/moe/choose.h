/* Choosing (n, S) for an MoE layer: partitions and memory reuse strategy (MPMoE §IV, MPipeMoE
 * §III-E). Two ways: measured while training (profile-based), or from the cluster's costs
 * (model-based: a quick form, the five phases, and the exact form by pricing the program).
 *
 * Everything is pure and depends only on numbers that all ranks share (measured times are those of
 * the slowest rank), so all ranks choose alike. */
#ifndef WEFT_SCHEDULE_MOE_CHOOSE_H
#define WEFT_SCHEDULE_MOE_CHOOSE_H

#include "schedule/choose.h"
#include "schedule/moe/layer.h"

/* MPipeMoE eq. 10 (third term q3 v_mem / (eta W_mem)): time of forward plus backward in
 * microseconds by the slowest stream, with the Q of its Table II for H of any size (there H = 4 M)
 * and gated experts. Speeds are those at the whole layer's volumes. It does not choose n. */
double weft_moe_quick_us(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                         weft_reuse reuse);

/* MPMoE §IV-B, Fig. 8: time of one direction by paradigm and five phases P0..P4. A phase takes the
 * time of its slowest stream; P2 joins the n - 2 saturated phases; n = 1 has neither P1 nor P2.
 *
 * MPMoE divides a stream's time by its alpha for the whole phase. Here alpha holds while the other
 * streams run, and the rest of the stream runs alone. The time is a third or more shorter where
 * streams are uneven, and paradigm 1 agrees with the program's price with interference. */
typedef enum weft_paradigm { WEFT_PARADIGM_1 = 1, WEFT_PARADIGM_2, WEFT_PARADIGM_3 } weft_paradigm;
weft_paradigm weft_moe_paradigm(weft_reuse reuse, bool backward);
typedef struct weft_moe_phases {
    double p_us[5];
    double total_us;
} weft_moe_phases;
weft_moe_phases weft_moe_phases_of(const weft_moe_costs *costs, const weft_interference *alpha,
                                   const weft_moe_pipeline *pipeline, bool backward);

typedef enum weft_moe_model {
    WEFT_MOE_MODEL_QUICK,  /* the strategy by eq. 10, then n by the phases */
    WEFT_MOE_MODEL_PHASES, /* all (n, S) by the phases */
    WEFT_MOE_MODEL_PRICE,  /* all (n, S), and partitions by peers, by pricing the programs */
} weft_moe_model;

typedef struct weft_moe_choice {
    weft_moe_pipeline pipeline;
    double us; /* forward plus backward, predicted or measured */
    char reason[WEFT_CHOICE_REASON_BYTES];
} weft_moe_choice;

/* Prices a pipeline, forward plus backward, in microseconds; replaces the layer's own costs. */
typedef struct weft_moe_pricer {
    weft_status (*us)(void *context, const weft_moe_pipeline *pipeline, double *out_us);
    void *context;
} weft_moe_pricer;

/* The partitions by peers that are worth a try: a rank each, and a node's ranks each where EP has
 * several of them on several nodes. Returns how many. */
enum { WEFT_MOE_MAX_PEERS = 2 };
int weft_moe_list_peers(const weft_moe_layer_shape *shape,
                        weft_moe_pipeline out[WEFT_MOE_MAX_PEERS]);

/* A candidate without a price; its weight is n. */
weft_choice_row weft_moe_row(const weft_moe_pipeline *pipeline);

/* The fastest (n, S) among n in `partitions` and S in `allowed_reuses` (bit i: strategy i; 0: S1 to
 * S4 and none), cut by experts where the shape says so. by_peers: partitions by peers compete too,
 * if reuse none is allowed and the model is PRICE. Ties go to the smaller n (weft_choose).
 * pricer NULL: PRICE takes the layer's own costs (weft_moe_costs_of). WEFT_CONFIG for an empty or
 * impossible choice, and, naming it, for a cost that a strategy needs and the cluster does not
 * know. */
weft_status weft_choose_moe(const weft_cluster *cluster, const weft_moe_layer_shape *shape,
                            weft_moe_model model, const int *partitions, int num_partitions,
                            unsigned allowed_reuses, bool by_peers, const weft_moe_pricer *pricer,
                            weft_moe_choice *out) WEFT_CHECKED;

/* Profile-based: MPMoE Algorithm 1 for one strategy. Ranges of B whose best n is known, a cache,
 * and a search over n that stops at the turning point of the parabola. The caller runs what `next`
 * asks for and reports times until `next` says that the search is over. n = 1 stays a candidate.
 *
 *   while (weft_granularity_next(&g, B, &n, &trial), trial)
 *       weft_granularity_report(&g, B, n, measured_us);
 *
 * The search for a B between two ranges tries only n between theirs, so ranges stay disjoint and
 * rise with n whatever is measured. Where the best n does not rise with B (or a measurement was
 * wrong), the search settles on the best of these n. Ranges never shrink.
 *
 * The search serves one B at a time. A question about another B gets the n of that B's range, or of
 * the range below, without a trial. The search for a B that is no longer asked for ends. */
enum { WEFT_GRANULARITY_MAX_RANGES = 16, WEFT_GRANULARITY_MAX_CACHE = 256 };
typedef struct weft_granularity_range {
    int n;
    double floor, ceil; /* B between them has this best n */
} weft_granularity_range;
typedef struct weft_granularity {
    int candidates[WEFT_GRANULARITY_MAX_RANGES]; /* rising; the first and last bound the search */
    int num_candidates;
    weft_granularity_range ranges[WEFT_GRANULARITY_MAX_RANGES]; /* rising in n */
    int num_ranges;
    struct {
        double tokens, us; /* us: the best n's time */
        int n;
    } cache[WEFT_GRANULARITY_MAX_CACHE]; /* the latest, round robin */
    int num_cached, next_cached;
    /* the search in progress */
    double searching_tokens; /* 0: none */
    int at, last;            /* indices of the candidate to try next and of the last one allowed */
    int best_n, num_trials;
    int num_elsewhere; /* questions about another B since the last about this one */
    double best_us;
} weft_granularity;
void weft_granularity_init(weft_granularity *g, const int *candidates, int num_candidates);
/* Sets *out_n to the n for B tokens. *out_trial: the caller reports this run's time. */
void weft_granularity_next(weft_granularity *g, double tokens, int *out_n, bool *out_trial);
/* Ignores times of anything but the current trial. */
void weft_granularity_report(weft_granularity *g, double tokens, int n, double us);
/* The best n's time for B tokens: measured, else scaled by tokens from the nearest measured B, else
 * infinity. */
double weft_granularity_us(const weft_granularity *g, double tokens);

/* The same over strategies (MPMoE §IV-A's last paragraph): g[S] is searched for one strategy after
 * the other in `allowed_reuses` (bits as above), then the fastest is the answer. */
void weft_granularity_next_of(weft_granularity g[WEFT_NUM_REUSES], unsigned allowed_reuses,
                              double tokens, weft_moe_pipeline *out, bool *out_trial);

#endif
