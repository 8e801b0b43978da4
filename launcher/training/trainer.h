/* The trainer: one rank's part of a training job.
 *
 * Set-up phases end in agreement over the world, so that every rank returns the same status. A
 * step runs this stage's pipeline program; a rank that finds an error inside a step prints it and
 * takes the job down. */
#ifndef WEFT_LAUNCHER_TRAINING_TRAINER_H
#define WEFT_LAUNCHER_TRAINING_TRAINER_H

#include "launcher/training/energy.h"
#include "launcher/training/state.h"
#include "layers/outline/footprint.h"

/* A step's result, the same on every rank. */
typedef struct weft_step_result {
    int64_t step;
    double loss, aux_loss, lr;
    double grad_norm;             /* not finite: no update, by an overflow or a bad step */
    double tokens;                /* tokens of the global batch */
    int64_t consumed_tokens;      /* of the data's order, with this batch */
    double loss_tokens;           /* tokens whose labels bear a loss */
    bool masks;                   /* some labels may bear none */
    const weft_data *blend;       /* what was read, if several datasets; else NULL */
    const uint64_t *part_samples; /* of each of them in the run so far, with this batch */
    const double *part_losses;    /* this batch's mean of each; NaN: no label of it bears one */
    double step_ms;               /* slowest rank */
    double tokens_per_s;
    double device_bytes_peak; /* largest of all ranks */
    double expert_load; /* rows of the fullest expert over the mean, averaged; 0: no MoE layer */
    double rank_load;   /* the same of rows at each layer's fullest rank */
    double dropped_tokens;
    const weft_model *choices_of; /* whose choices of experts are this step's, of the global batch;
                                     NULL: in no line; borrowed */
    struct {
        double share;           /* model FLOPs / (time * peak * ranks), at most 1 */
        double flops;           /* a rank */
        double flops_per_token; /* model FLOPs, forward and backward */
        const char *from;       /* its source, in the first step compared with it; else NULL */
    } peak;
    struct {
        double value;          /* of this step; 0: none */
        int64_t skipped_steps; /* by overflow, in the whole run */
        bool skipped;          /* this step */
    } scale;
    struct {
        bool rewinds;     /* then no other field is set (weft_trainer_rewind) */
        bool skips_batch; /* a bad step: the loss may not be finite */
        int64_t steps;    /* so far, including those whose second run was well */
    } bad;
    struct {                        /* how MoE layers ran */
        weft_moe_pipeline pipeline; /* num_partitions 0: no tokens travel */
        weft_exchange_form form;
        const char *choice; /* the reason, in the first step that ran so; else NULL; borrowed */
    } moe;
    struct {
        bool on, reads;                          /* experts are beyond device memory; in a file */
        double uploaded_bytes, downloaded_bytes; /* of all ranks */
        double read_bytes, written_bytes;        /* of experts' files, over all ranks */
        bool places;                             /* experts are placed in each micro-batch */
        double experts_away;                     /* experts that computed away from home, in all */
        double wait_ms;          /* compute's longest wait for experts' copies; NaN: not measured */
        double host_step_ms;     /* the host's norm and AdamW, on the slowest rank; NaN: none */
        double optimizer_hidden; /* share of host_step_ms, over all ranks, that delayed nothing;
                                    NaN: not measured, or none */
        double written_per_day;  /* bytes a day to a node's files at this step's rate; 0: no disk */
    } tier;
    struct {                             /* the layers' own metrics */
        const weft_metric_list *list;    /* borrowed */
        double values[WEFT_MAX_METRICS]; /* NaN: a mean of no values */
    } own;
    struct { /* NULL except on rank 0 of a run that watches them; borrowed */
        const weft_stragglers *ranks; /* slow ranks, and all ranks' compute times */
        const weft_links *links;      /* slow links, in steps that measured them */
    } slow;
    weft_joules joules;       /* since the previous step */
    bool stop;                /* a rank was asked to stop */
    weft_writer_word writers; /* the state of the save that is under way */
} weft_step_result;

/* An evaluation's result, the same on every rank. */
typedef struct weft_evaluation {
    double loss;   /* the mean over all labels that bear one */
    double tokens; /* the number of these labels */
    bool stopped;  /* stopped on request; loss and tokens cover the batches until then */
    const weft_evaluated_set
        *sets; /* of data.validation, of which all is the mean; the trainer's */
    size_t num_sets;
} weft_evaluation;

/* Makes device, mesh, data, model, optimizer and programs. Fills config.model.vocab_size 0 from the
 * dataset's tokenizer. Collective over world. */
weft_status weft_trainer_create(weft_trainer *trainer, const weft_config *config,
                                const weft_config_source *source, weft_comm *world,
                                weft_arena *arena) WEFT_CHECKED;
/* The same without what training alone needs: no gradients, no optimizer, no measuring. It starts
 * from a checkpoint and evaluates. Collective over world. */
weft_status weft_trainer_create_evaluating(weft_trainer *trainer, const weft_config *config,
                                           const weft_config_source *source, weft_comm *world,
                                           weft_arena *arena) WEFT_CHECKED;
void weft_trainer_release(weft_trainer *trainer);
/* This rank's planned memory, with balanced routing. */
weft_status weft_trainer_footprint(const weft_trainer *trainer, weft_footprint *out) WEFT_CHECKED;
/* The same at the loads that its MoE layers had when they took most. */
weft_status weft_trainer_footprint_at_load(const weft_trainer *trainer,
                                           weft_footprint *out) WEFT_CHECKED;

/* Fresh weights, or those of a checkpoint folder. Collective. */
weft_status weft_trainer_start(weft_trainer *trainer, const char *checkpoint) WEFT_CHECKED;
/* Loads a checkpoint of this run, but keeps the place in the data and the count of bad steps.
 * Collective. */
weft_status weft_trainer_rewind(weft_trainer *trainer, const char *checkpoint) WEFT_CHECKED;
/* One optimizer step, or none where out->rewinds. Collective. */
weft_status weft_trainer_step(weft_trainer *trainer, weft_step_result *out) WEFT_CHECKED;
/* Mean loss over the labels of the first eval_iters global batches of a split, in the order of the
 * dataset; where the split ends it starts again. With data.validation the validation split is the
 * sets that it names, each so. A stop that is asked for ends it behind the batch
 * that runs. WEFT_DIVERGED where the loss is not finite, WEFT_CONFIG where no label bears one.
 * Collective. */
weft_status weft_trainer_evaluate(weft_trainer *trainer, weft_split_kind split,
                                  weft_evaluation *out) WEFT_CHECKED;
/* Warns where that wants more samples than the split holds. Not collective. */
void weft_trainer_tell_repeats(const weft_trainer *trainer, weft_split_kind split);
/* Saves under `dir`/step-N. Collective. */
weft_status weft_trainer_save(weft_trainer *trainer, const char *dir) WEFT_CHECKED;
/* Hands the state over to trainer->writer, which saves it so (weft_checkpoint_begin); dir NULL:
 * into nodes' memory (weft_copies_begin). Collective. */
weft_status weft_trainer_begin_save(weft_trainer *trainer, const char *dir,
                                    const weft_checkpoint_keep *keep) WEFT_CHECKED;
/* Whether a timeline of these ranks (an empty list: of all ranks) has that rank. */
bool weft_timeline_has(const weft_int_list *ranks, int rank);
/* Brings the kept timeline of the ranks that log.trace_ranks names to rank 0. Collective. */
weft_status weft_trainer_collect_trace(weft_trainer *trainer) WEFT_CHECKED;
/* Rank 0, behind that: as trace.json and trace.svg in `dir`, of the run's start with this number;
 * 0: nobody knows. WEFT_FILE: it may try again. */
weft_status weft_trainer_write_trace(const weft_trainer *trainer, int64_t start,
                                     const char *dir) WEFT_CHECKED;

/* This rank's peak bytes of a purpose, without the unused rest of blocks that grew by an uneven
 * load. */
uint64_t weft_trainer_memory_use(const weft_trainer *trainer, weft_memory_purpose purpose);

/* Rank 0 writes DIR/memory.json: for each rank its stage, and by purpose the bytes `planned` (its
 * footprint) and `used` (the peak), with those of all device memory and, used, of pinned memory,
 * spare blocks included. With experts also `planned_at_load`, and the loads at the peaks of passes,
 * their pinned memory, recomputed activations, each offloading slot and scratch. Collective over
 * the world; all ranks return the same status. Errors: WEFT_FILE, WEFT_MEMORY. */
weft_status weft_memory_write(const weft_trainer *trainer, const char *dir) WEFT_CHECKED;

#endif
