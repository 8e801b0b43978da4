/* The trainer's state, on one rank. */
#ifndef WEFT_LAUNCHER_TRAINING_STATE_H
#define WEFT_LAUNCHER_TRAINING_STATE_H

#include "comm/comm.h"
#include "core/trace.h"
#include "launcher/planning/context_choice.h"
#include "launcher/planning/moe_choice.h"
#include "launcher/training/batches.h"
#include "launcher/training/peak.h"
#include "launcher/training/step_clock.h"
#include "launcher/training/stragglers.h"
#include "parallel/checkpoint_writer.h"
#include "parallel/lr_schedule.h"
#include "parallel/optimizer.h"
#include "schedule/pipeline.h"
#include "schedule/run.h"

/* The parts of the dataset, as data.split weighs them. */
typedef enum weft_split_kind {
    WEFT_SPLIT_TRAIN,
    WEFT_SPLIT_VALIDATION,
    WEFT_SPLIT_TEST,
    WEFT_NUM_SPLITS
} weft_split_kind;

enum { WEFT_TOLD_NORMS = 4 };

typedef struct weft_trainer {
    weft_config config;
    weft_arena *arena; /* job lifetime; borrowed */
    weft_comm *world;  /* borrowed */
    int num_nodes;     /* its ranks are on */
    weft_device *device;
    weft_groups groups;
    weft_moe_selection moe;
    weft_context_selection context;
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
    bool *has_points;    /* by task of `program`: another task waits for a point of it */
    int *first_batch[2]; /* by chunk: the micro-batch whose forward, backward is the first */
    weft_event **points; /* by layer: recorded at its point; NULL: no task waits */
    weft_batches batches;
    weft_trace *trace;
    weft_checkpoint_writer *writer; /* of asynchronous saves; borrowed, NULL: none */
    int64_t step, consumed_tokens;  /* the last one done; by then */
    uint64_t num_params;
    double flops_per_sample;
    weft_peak peak;
    double told_peak;      /* in the results so far */
    int num_steps;         /* that ran here; the first is slow: it makes what the others need */
    int64_t num_evaluated; /* batches, likewise */
    weft_step_clock clock;
    weft_stragglers stragglers;
    weft_tier_counts tier_told;         /* in the results so far */
    bool told_late;                     /* warned that computing falls behind device.pace */
    int64_t bad_steps, skipped_batches; /* that on_bad_step let pass, of the whole run */
    double norms[WEFT_TOLD_NORMS]; /* of gradients, of the last good steps here, oldest first */
    int num_norms;
    weft_batch_looks looks;
    int data_shift; /* replicas take the data of those so many behind them */
    /* of the run in progress */
    bool running_eval;
    int64_t running_step;
    int running_batches; /* micro-batches of the global batch */
    weft_loss_scale running_scale;
} weft_trainer;

/* Fills executor.run and lanes with the trainer's tasks, those of the update (update_tasks.c). */
weft_status weft_trainer_bind_tasks(weft_trainer *trainer) WEFT_CHECKED;
weft_status weft_trainer_bind_update_tasks(weft_trainer *trainer) WEFT_CHECKED;
/* Micro-batches of the global batch. */
int weft_trainer_num_batches(const weft_trainer *trainer);
/* The number of a step for AdamW and the learning rate: skipped steps do not count. */
int64_t weft_trainer_update_number(const weft_trainer *trainer, int64_t step);
/* Runs the training or the evaluation program once. */
weft_status weft_trainer_run(weft_trainer *trainer, bool eval, int64_t step) WEFT_CHECKED;

#endif
