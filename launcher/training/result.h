/* The results of steps and evaluations. */
#ifndef WEFT_LAUNCHER_TRAINING_RESULT_H
#define WEFT_LAUNCHER_TRAINING_RESULT_H

#include "launcher/training/energy.h"
#include "launcher/training/state.h"

/* A step's result, the same on every rank. */
typedef struct weft_step_result {
    int64_t step;
    double loss, aux_loss, grad_norm, lr;
    double tokens;           /* of the global batch */
    int64_t consumed_tokens; /* of the data's order, with this batch */
    double loss_tokens;      /* whose labels bear a loss */
    bool masks;              /* some need not */
    double step_ms;          /* slowest rank */
    double tokens_per_s;
    double mfu;               /* model FLOPs / (time * peak * ranks), at most 1 */
    double peak_flops;        /* a rank */
    const char *peak_from;    /* where it is from, in the first step compared with it */
    double flops_per_token;   /* model FLOPs, forward and backward */
    double device_bytes_peak; /* largest of all ranks */
    double expert_load;       /* max over mean, averaged; 0: no MoE layer */
    double rank_load; /* rows at each layer's fullest rank over the mean, averaged; 0: as above */
    double dropped_tokens;
    double loss_scale;     /* of this step; 0: none */
    int64_t skipped_steps; /* by overflow, in all */
    bool skipped;          /* this one: grad_norm is not finite, the weights stayed */
    bool rewinds;          /* nothing else is filled in: see weft_trainer_rewind */
    bool skips_batch;  /* its numbers are wrong: the loss may not be finite, the weights stayed */
    int64_t bad_steps; /* so far, with those that were well at the second run */
    weft_moe_options moe;   /* how MoE layers ran; num_partitions 0: no tokens travel */
    const char *moe_choice; /* why, in the step that first ran so; else NULL; borrowed */
    bool tiers, reads;      /* experts are beyond device memory; in a file: */
    double uploaded_bytes, downloaded_bytes; /* of all ranks */
    double read_bytes, written_bytes;        /* of their files, likewise */
    bool places;                             /* experts are dealt out: */
    double experts_away;     /* of each layer and micro-batch, that computed on other ranks */
    double expert_wait_ms;   /* that compute waited for experts' copies, of the rank that waited
                                longest; NaN: not measured */
    double host_step_ms;     /* that the host took for norm and AdamW, likewise; NaN: nothing */
    double optimizer_hidden; /* share of that time, of all ranks, for which nothing waited; NaN: not
                                measured, or nothing */
    double written_per_day;  /* bytes to the files of a node at this step's rate; 0: no disk */
    const weft_metric_list *own;         /* the layers' own metrics; borrowed */
    double own_values[WEFT_MAX_METRICS]; /* NaN: a mean of nothing */
    /* The ranks that compute too long, and how long all did; NULL but on rank 0, and where nobody
     * looks. Borrowed. */
    const weft_stragglers *stragglers;
    const weft_links *links;  /* the same of links, in steps that looked at them */
    weft_joules joules;       /* since the step before */
    bool stop;                /* a rank was asked to stop */
    weft_writer_word writers; /* of the save that is under way */
} weft_step_result;

/* An evaluation's result, the same on every rank. */
typedef struct weft_evaluation {
    double loss;   /* the mean over all labels that bear one */
    double tokens; /* how many these are */
    bool stopped;  /* a stop was asked for; loss and tokens are of the batches until then */
} weft_evaluation;

/* What the start moved of experts is no step's. */
void weft_trainer_forget_counts(weft_trainer *trainer);
/* Fills in sums and maxima over the world, in a fixed order of fields. Collective. */
weft_status weft_trainer_result(weft_trainer *trainer, double step_ms,
                                weft_step_result *out) WEFT_CHECKED;
/* Compares how long ranks computed in this step, and links now and then, fills in the peak, and
 * says once where computing falls behind device.pace. Collective. */
weft_status weft_trainer_note(weft_trainer *trainer, weft_step_result *out) WEFT_CHECKED;
void weft_trainer_note_moe(weft_trainer *trainer, weft_step_result *out);

#endif
