/* The trainer: one rank's part of a training job.
 *
 * Set-up phases end in agreement over the world, so that every rank returns the same status. A
 * step runs this stage's pipeline program; an error inside a step is printed by the rank that found
 * it, which then takes the job down. */
#ifndef WEFT_LAUNCHER_TRAINING_TRAINER_H
#define WEFT_LAUNCHER_TRAINING_TRAINER_H

#include "comm/comm.h"
#include "core/dataset.h"
#include "core/trace.h"
#include "launcher/planning/config.h"
#include "launcher/planning/moe_choice.h"
#include "launcher/training/peak.h"
#include "layers/footprint.h"
#include "layers/runtime.h"
#include "parallel/lr_schedule.h"
#include "parallel/optimizer.h"
#include "schedule/pipeline.h"
#include "schedule/run.h"

/* What a step gave, the same on every rank. */
typedef struct weft_step_result {
    int64_t step;
    double loss, aux_loss, grad_norm, lr;
    double tokens;  /* of the global batch */
    double step_ms; /* slowest rank */
    double tokens_per_s;
    double mfu;               /* model FLOPs / (time * peak * ranks), at most 1 */
    double peak_flops;        /* a rank */
    const char *peak_from;    /* where it is from, in a step that first was compared with it */
    double flops_per_token;   /* model FLOPs, forward and backward */
    double device_bytes_peak; /* largest of all ranks */
    double expert_load;       /* max over mean, averaged; 0: no MoE layer */
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

/* The parts of the dataset, as data.split weighs them. */
typedef enum weft_split_kind {
    WEFT_SPLIT_TRAIN,
    WEFT_SPLIT_VALIDATION,
    WEFT_SPLIT_TEST,
    WEFT_NUM_SPLITS
} weft_split_kind;

/* What an evaluation gave, the same on every rank. */
typedef struct weft_evaluation {
    double loss; /* mean over `tokens` */
    double tokens;
} weft_evaluation;

typedef struct weft_trainer {
    weft_config config;
    weft_arena *arena; /* job lifetime; borrowed */
    weft_comm *world;  /* borrowed */
    weft_device *device;
    weft_groups groups;
    weft_moe_selection moe;
    weft_model *model;
    bool evaluates;            /* and nothing else */
    weft_optimizer *optimizer; /* NULL where it evaluates */
    weft_lr_schedule lr;
    weft_dataset *dataset;
    weft_split splits[WEFT_NUM_SPLITS];
    weft_lane *lanes[WEFT_NUM_LANES];
    weft_executor executor;
    weft_pipeline_shape shape, eval_shape;
    weft_program program, eval_program;
    /* By slot of both programs: boundary activations and gradients (NULL: the pass's own), and the
     * model's pass of each activation. */
    void **slot_memory;
    int *slot_pass;
    bool *has_points;         /* by task of `program`: another waits for a point of it */
    int *first_batch[2];      /* by chunk: the micro-batch whose forward, backward is the first */
    weft_event **points;      /* by layer: what is recorded there; NULL: nothing waits */
    int32_t *tokens, *labels; /* pinned: [micro-batches of this rank][S * B] */
    size_t batch_tokens;
    int num_batches; /* capacity of tokens and labels, in micro-batches */
    weft_trace *trace;
    int64_t step; /* last one done */
    int64_t consumed_samples;
    uint64_t num_params;
    double flops_per_sample;
    weft_peak peak;
    double told_peak; /* in the results so far */
    int num_steps;    /* that ran here; the first is slow: it makes what the others need */
    bool told_late;   /* that computing falls behind device.pace */
    /* of the run in progress */
    bool running_eval;
    int64_t running_step;
    int running_batches; /* micro-batches of the global batch */
    weft_loss_scale running_scale;
} weft_trainer;

/* Device, mesh, data, model, optimizer, programs. config.model.vocab_size 0 is filled from the
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
/* What this rank's memory is planned to be, with balanced routing. */
weft_status weft_trainer_footprint(const weft_trainer *trainer, weft_footprint *out) WEFT_CHECKED;

/* Fresh weights, or those of a checkpoint folder. Collective. */
weft_status weft_trainer_start(weft_trainer *trainer, const char *checkpoint) WEFT_CHECKED;
/* One optimizer step. Collective. */
weft_status weft_trainer_step(weft_trainer *trainer, weft_step_result *out) WEFT_CHECKED;
/* Mean loss over the first eval_iters global batches of a split, in the order of the dataset, again
 * from its start where it ends. WEFT_DIVERGED where it is not finite. Collective. */
weft_status weft_trainer_evaluate(weft_trainer *trainer, weft_split_kind split,
                                  weft_evaluation *out) WEFT_CHECKED;
/* Saves under `dir`/step-N. Collective. */
weft_status weft_trainer_save(weft_trainer *trainer, const char *dir) WEFT_CHECKED;
/* Writes the kept timeline of the ranks that log.trace_ranks names as trace.json and trace.svg in
 * `dir`. Collective. */
weft_status weft_trainer_write_trace(weft_trainer *trainer, const char *dir) WEFT_CHECKED;

#endif
