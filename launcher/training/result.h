/* The results of steps and evaluations. */
#ifndef WEFT_LAUNCHER_TRAINING_RESULT_H
#define WEFT_LAUNCHER_TRAINING_RESULT_H

#include "launcher/training/state.h"

/* A step's result, the same on every rank. */
typedef struct weft_step_result {
    int64_t step;
    double loss, aux_loss, grad_norm, lr;
    double tokens;      /* of the global batch */
    double loss_tokens; /* whose labels bear a loss */
    bool masks;         /* some need not */
    double step_ms;     /* slowest rank */
    double tokens_per_s;
    double mfu;               /* model FLOPs / (time * peak * ranks), at most 1 */
    double peak_flops;        /* a rank */
    const char *peak_from;    /* where it is from, in the first step compared with it */
    double flops_per_token;   /* model FLOPs, forward and backward */
    double device_bytes_peak; /* largest of all ranks */
    double expert_load;       /* max over mean, averaged; 0: no MoE layer */
    double rank_load; /* rows at each layer's fullest rank over the mean, averaged; 0: as above */
    double dropped_tokens;
    double loss_scale;           /* of this step; 0: none */
    int64_t skipped_steps;       /* by overflow, in all */
    bool skipped;                /* this one: grad_norm is not finite, the weights stayed */
    weft_moe_options moe;        /* how MoE layers ran; num_partitions 0: no tokens travel */
    const char *moe_choice;      /* why, in the step that first ran so; else NULL; borrowed */
    const weft_metric_list *own; /* the layers' own metrics; borrowed */
    double own_values[WEFT_MAX_METRICS]; /* NaN: a mean of nothing */
    bool stop;                           /* a rank was asked to stop */
} weft_step_result;

/* An evaluation's result, the same on every rank. */
typedef struct weft_evaluation {
    double loss;   /* the mean of the batches' losses */
    double tokens; /* whose labels bear them */
} weft_evaluation;

/* Fills in sums and maxima over the world, in a fixed order of fields. Collective. */
weft_status weft_trainer_result(weft_trainer *trainer, double step_ms,
                                weft_step_result *out) WEFT_CHECKED;
/* Fills in the peak, and says once where computing falls behind device.pace. */
void weft_trainer_note(weft_trainer *trainer, weft_step_result *out);
void weft_trainer_note_moe(weft_trainer *trainer, weft_step_result *out);

#endif
