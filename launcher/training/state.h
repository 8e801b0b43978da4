/* The trainer's state, on one rank. */
#ifndef WEFT_LAUNCHER_TRAINING_STATE_H
#define WEFT_LAUNCHER_TRAINING_STATE_H

#include "comm/comm.h"
#include "core/trace/trace.h"
#include "launcher/planning/mesh_choice.h"
#include "launcher/training/batches.h"
#include "launcher/training/peak.h"
#include "launcher/training/stragglers.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/optimizer/optimizer.h"
#include "schedule/pipeline/pipeline.h"
#include "schedule/run.h"

/* How long the end of a step waits for what the host steps there (schedule/pipeline/update.h): by
 * when the lanes' own threads ended, so on the CPU alone. The thread that enqueues has no part in
 * it: where it shares a core with the host's steps, these may be over before it has enqueued the
 * next. */

/* Zero is valid, and runs not. */
typedef struct weft_step_clock {
    bool runs;
    double waited_us; /* behind what computing had to do in a step, for the others; since taken */
} weft_step_clock;

/* The program that a rank runs for a step or a batch of an evaluation, and its shape. */
typedef struct weft_trainer_program {
    weft_pipeline_shape shape;
    weft_program program;
    const int *slots;    /* of the trainer's, by slot of the program; NULL: the same */
    bool *of_task;       /* by task of a step: another task waits for a point of it */
    int *first_batch[2]; /* by chunk: a step's micro-batches of the first forward and backward */
} weft_trainer_program;

/* The programs, and what their tasks use. */
typedef struct weft_trainer_programs {
    weft_trainer_program train, eval;
    weft_trainer_program *ramp; /* steps of fewer samples, by size (launcher/planning/ramp.h) */
    const weft_trainer_program *of_step; /* train, or one of the ramp: of the step that is next */
    struct {                             /* by slot of train and eval */
        void **memory; /* boundary activations and gradients; NULL: the pass has its own */
        int *pass;     /* each activation's pass of the model */
    } slots;
    weft_event **points; /* by layer: of its point; NULL: no task waits for it */
} weft_trainer_programs;

/* What results are judged by. */
typedef struct weft_trainer_measured {
    uint64_t num_params;
    double flops_per_sample;
    weft_peak peak;
    weft_step_clock clock;
    weft_stragglers stragglers;
    struct {                   /* in the results so far */
        double peak;           /* FLOP/s */
        weft_tier_counts tier; /* the counts by then */
        bool late;             /* warned that computing falls behind device.pace */
    } told;
} weft_trainer_measured;

typedef struct weft_trainer {
    weft_config config;
    weft_arena *arena; /* job lifetime; borrowed */
    weft_comm *world;  /* borrowed */
    int num_nodes;     /* nodes of its ranks */
    weft_device *device;
    weft_groups groups;
    weft_moe_selection moe;
    weft_mesh_choice mesh_choice;
    weft_model *model;
    bool evaluates;            /* an evaluation alone, no training */
    weft_optimizer *optimizer; /* NULL in an evaluation */
    weft_lr_schedule lr;
    weft_trainer_input input;
    weft_lane *lanes[WEFT_NUM_LANES];
    weft_executor executor;
    weft_trainer_programs runs;
    weft_trace *trace;
    weft_checkpoint_writer *writer; /* the writer of asynchronous saves; borrowed, NULL: none */
    int64_t step, consumed_tokens;  /* the last finished step; tokens consumed by then */
    int num_steps;                  /* steps of this start; the first is slow, since it allocates */
    int64_t num_evaluated;          /* evaluated batches of this start */
    weft_trainer_measured measured;
    struct {
        int64_t bad_steps, skipped_batches; /* passed by on_bad_step, in the whole run */
        double norms[4]; /* of gradients, in the last good steps here, oldest first; 0: none */
        int64_t
            hashed_step; /* the last step that updated, if it left hashes of its state; 0: not */
        weft_batch_looks looks;
        int data_shift; /* replica r has the data of replica r + data_shift */
    } faults;
    struct { /* the program that runs */
        bool eval;
        const weft_trainer_program *program;
        int64_t step;
        int batches; /* micro-batches of the global batch */
        weft_loss_scale scale;
    } running;
} weft_trainer;

/* Fills executor.run and lanes with the trainer's tasks. */
void weft_trainer_bind_tasks(weft_trainer *trainer);
/* A step's number for AdamW and the learning rate, which ignore skipped steps. */
int64_t weft_trainer_update_number(const weft_trainer *trainer, int64_t step);
/* Samples, and tokens, of the batch that runs or ran last, over all ranks. */
int64_t weft_trainer_samples(const weft_trainer *trainer);
int64_t weft_trainer_tokens(const weft_trainer *trainer);
/* Runs the training or the evaluation program once. */
weft_status weft_trainer_run(weft_trainer *trainer, bool eval, int64_t step) WEFT_CHECKED;

/* weft_program_run; where no lane runs on, its end waits for the host's. */
weft_status weft_step_clock_run(weft_step_clock *clock, const weft_program *program,
                                weft_executor *executor) WEFT_CHECKED;
/* Microseconds since the last call. */
double weft_step_clock_take(weft_step_clock *clock);

#endif
