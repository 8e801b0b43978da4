/* The results of steps and evaluations. */
#ifndef WEFT_LAUNCHER_TRAINING_RESULT_H
#define WEFT_LAUNCHER_TRAINING_RESULT_H

#include "launcher/training/energy.h"
#include "launcher/training/state.h"

/* A step's result, the same on every rank. */
typedef struct weft_step_result {
    int64_t step;
    double loss, aux_loss, grad_norm, lr;
    double tokens;           /* tokens of the global batch */
    int64_t consumed_tokens; /* of the data's order, with this batch */
    double loss_tokens;      /* tokens whose labels bear a loss */
    bool masks;              /* some labels may bear none */
    double step_ms;          /* slowest rank */
    double tokens_per_s;
    double mfu;               /* model FLOPs / (time * peak * ranks), at most 1 */
    double peak_flops;        /* a rank */
    const char *peak_from;    /* its source, in the first step compared with it; else NULL */
    double flops_per_token;   /* model FLOPs, forward and backward */
    double device_bytes_peak; /* largest of all ranks */
    double expert_load; /* rows of the fullest expert over the mean, averaged; 0: no MoE layer */
    double rank_load;   /* the same of rows at each layer's fullest rank */
    double dropped_tokens;
    double loss_scale;      /* of this step; 0: none */
    int64_t skipped_steps;  /* by overflow, in the whole run */
    bool skipped;           /* this step: grad_norm is not finite, no update */
    bool rewinds;           /* then no other field is set (weft_trainer_rewind) */
    bool skips_batch;       /* a bad step: the loss may not be finite, no update */
    int64_t bad_steps;      /* so far, including those whose second run was well */
    weft_moe_options moe;   /* how MoE layers ran; num_partitions 0: no tokens travel */
    const char *moe_choice; /* the reason, in the first step that ran so; else NULL; borrowed */
    bool tiers, reads;      /* experts are beyond device memory; in a file */
    double uploaded_bytes, downloaded_bytes; /* of all ranks */
    double read_bytes, written_bytes;        /* of experts' files, over all ranks */
    bool places;                             /* experts are placed in each micro-batch */
    double experts_away;                     /* experts that computed away from home, in all */
    double expert_wait_ms;   /* compute's longest wait for experts' copies; NaN: not measured */
    double host_step_ms;     /* the host's norm and AdamW, on the slowest rank; NaN: none */
    double optimizer_hidden; /* share of host_step_ms, over all ranks, that delayed nothing; NaN:
                                not measured, or none */
    double written_per_day;  /* bytes a day to a node's files at this step's rate; 0: no disk */
    const weft_metric_list *own;         /* the layers' own metrics; borrowed */
    double own_values[WEFT_MAX_METRICS]; /* NaN: a mean of no values */
    /* Slow ranks, and all ranks' compute times; NULL except on rank 0 of a run that watches them.
     * Borrowed. */
    const weft_stragglers *stragglers;
    const weft_links *links;  /* slow links, in steps that measured them */
    weft_joules joules;       /* since the previous step */
    bool stop;                /* a rank was asked to stop */
    weft_writer_word writers; /* the state of the save that is under way */
} weft_step_result;

/* An evaluation's result, the same on every rank. */
typedef struct weft_evaluation {
    double loss;   /* the mean over all labels that bear one */
    double tokens; /* the number of these labels */
    bool stopped;  /* stopped on request; loss and tokens cover the batches until then */
} weft_evaluation;

/* Excludes the start's copies of experts from the first step. */
void weft_trainer_forget_counts(weft_trainer *trainer);
/* Fills in sums and maxima over the world, in a fixed order of fields. Collective. */
weft_status weft_trainer_result(weft_trainer *trainer, double step_ms,
                                weft_step_result *out) WEFT_CHECKED;
/* Compares ranks' compute times and, at times, links; fills in the peak; warns once if compute
 * falls behind device.pace. Collective. */
weft_status weft_trainer_note(weft_trainer *trainer, weft_step_result *out) WEFT_CHECKED;
void weft_trainer_note_moe(weft_trainer *trainer, weft_step_result *out);

#endif
