/* Going on as the run that it was: what differs between a run and the config that it is to go on
 * with. */
#ifndef WEFT_LAUNCHER_PLANNING_RUN_CHANGES_H
#define WEFT_LAUNCHER_PLANNING_RUN_CHANGES_H

#include "launcher/planning/config.h"

/* What the config leaves open stays as the run had it: the length of the learning rate's decay;
 * and on the same mesh, how MoE layers run. */
weft_status weft_run_keep(const weft_config *run, weft_config *config) WEFT_CHECKED;
/* "train.lr 0.001 -> 0.0003, ...", in the arena; NULL: nothing differs. */
weft_status weft_run_changes(const weft_config *run, const weft_config *config, weft_arena *arena,
                             const char **out) WEFT_CHECKED;
/* The same of what makes the step another one: the model, the mesh, the schedule, the batch, the
 * device's kind and pace. */
weft_status weft_run_step_changes(const weft_config *run, const weft_config *config,
                                  weft_arena *arena, const char **out) WEFT_CHECKED;
/* WEFT_CONFIG naming what makes another run of source->run and is not in source->allow_change: the
 * model (but for dropout, initial values and the weights of auxiliary losses), the seed, the
 * dataset and its split. Nothing where source->run is NULL. */
weft_status weft_run_check_changes(const weft_config *config,
                                   const weft_config_source *source) WEFT_CHECKED;
/* Each name in source->allow_change is a section or a key: WEFT_CONFIG naming the first that is
 * not.
 */
weft_status weft_run_check_allowed(const weft_config_source *source) WEFT_CHECKED;

#endif
