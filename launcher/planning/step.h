/* A training step before there are ranks: the outline of the config's model on a mesh, and the
 * programs of every pipeline rank. Training runs these programs, plans price them. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_STEP_H
#define WEFT_LAUNCHER_PLANNING_STEP_H

#include "launcher/planning/config.h"
#include "layers/outline/footprint.h"
#include "layers/outline/outline.h"
#include "schedule/pipeline/pipeline.h"

/* What a model is held for: a step of training; the forwards of one, by weights alone; one sequence
 * at a time, by its weights. */
typedef enum weft_step_use {
    WEFT_STEP_TRAINS,
    WEFT_STEP_EVALUATES,
    WEFT_STEP_GENERATES
} weft_step_use;

typedef struct weft_step {
    weft_step_use use;
    weft_moe_options moe; /* how MoE layers run */
    weft_outline outline;
    weft_pipeline_shape shape;
    weft_program *programs; /* [shape.num_stages], checked but of a trial; NULL: not made */
} weft_step;

/* The model's setup as far as outlines ask; moe: how MoE layers run. Borrows from the config. */
weft_model_setup weft_step_setup(const weft_config *config, const weft_moe_options *moe);
/* Whether the host steps experts before all gradients are known: nothing that follows from these
 * changes a gradient. */
bool weft_step_at_once(const weft_config *config);
/* Whether a step ends when the host has stepped all experts; else these lanes run on beside the
 * next one. */
bool weft_step_drains(const weft_config *config);
enum { WEFT_STEP_RUNS_ON = 1 << WEFT_LANE_HOST | 1 << WEFT_LANE_TO_DEVICE | 1 << WEFT_LANE_FILE };
/* Whether a rank's gradients are of several micro-batches. */
bool weft_step_accumulates(const weft_config *config, const weft_mesh *mesh);
/* The programs of all pipeline ranks, checked, from the arena. */
weft_status weft_step_programs(const weft_pipeline_shape *shape, weft_arena *arena,
                               weft_program **out) WEFT_CHECKED;

/* All of a step; but for training its programs are forwards. model.vocab_size is known. What is not
 * the outline's lives in the arena. Errors: WEFT_CONFIG: those of the outline, the layout and the
 * schedule. */
weft_status weft_step_make(weft_step_use use, const weft_config *config, const weft_mesh *mesh,
                           const weft_moe_options *moe, weft_arena *arena,
                           weft_step *out) WEFT_CHECKED;
/* The same without programs, for those who get theirs from another rank, or add them, of the same
 * config. */
weft_status weft_step_start(weft_step_use use, const weft_config *config, const weft_mesh *mesh,
                            const weft_moe_options *moe, weft_arena *arena,
                            weft_step *out) WEFT_CHECKED;
weft_status weft_step_add_programs(const weft_config *config, weft_arena *arena,
                                   weft_step *step) WEFT_CHECKED;
/* The shape of a step of `samples` samples, fewer than the step's own (train.rampup_batch_size).
 * What is not the step's lives in the arena. */
weft_status weft_step_shape_of(const weft_config *config, const weft_step *step, int64_t samples,
                               weft_arena *arena, weft_pipeline_shape *out) WEFT_CHECKED;
/* Whether the steps of all sizes of the ramp find their slots among the step's. Errors: WEFT_CONFIG
 * with the key, of an order that wants others. */
weft_status weft_step_check_ramp(const weft_config *config, const weft_step *step) WEFT_CHECKED;
void weft_step_release(weft_step *step); /* a zeroed one is legal */

/* What a pipeline rank of the step takes, whose program this is. */
void weft_step_footprint(const weft_config *config, const weft_step *step, int rank,
                         const weft_program *program, weft_footprint *out);
/* The same at loads of its MoE layers. */
weft_status weft_step_footprint_at(const weft_config *config, const weft_mesh *mesh,
                                   const weft_step *step, int rank, const weft_program *program,
                                   const weft_moe_held_loads *loads,
                                   weft_footprint *out) WEFT_CHECKED;

#endif
