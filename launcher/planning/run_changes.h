/* What differs between a run and the config that resumes it. */
#ifndef WEFT_LAUNCHER_PLANNING_RUN_CHANGES_H
#define WEFT_LAUNCHER_PLANNING_RUN_CHANGES_H

#include "launcher/planning/config.h"

/* Where the config, of the run or laid beside it, leaves dp open: that of the run's last start, by
 * RUN/ledger.jsonl. Without a ledger dp stays open. */
void weft_run_fill_dp(const char *run, weft_config *config);
/* Fills what the config leaves open from the run: the length of the learning rate's decay; the
 * blocks in which data is shuffled; and how
 * MoE layers run, where the rest of section "parallel" and the micro-batch size are the run's. */
weft_status weft_run_keep(const weft_config *run, weft_config *config) WEFT_CHECKED;
/* Visits the keys that differ between two runs' configs, in their order. */
weft_status weft_run_compare(const weft_config *run, const weft_config *config,
                             weft_difference_function visit, void *context) WEFT_CHECKED;
/* "train.lr 0.001 -> 0.0003, ...", in the arena; NULL: nothing differs. */
weft_status weft_run_changes(const weft_config *run, const weft_config *config, weft_arena *arena,
                             const char **out) WEFT_CHECKED;
/* The same for the keys that a step's programs or footprint may follow from: all but those of a
 * short list, such as learning rates, of the data's place, of what is saved and logged, and sizes
 * of the mesh. */
weft_status weft_run_step_changes(const weft_config *run, const weft_config *config,
                                  weft_arena *arena, const char **out) WEFT_CHECKED;
/* WEFT_CONFIG names changes against source->run that make it another run and are not in
 * source->allow_change: of the model (but for dropout, initial values and the weights of auxiliary
 * losses), the seed, the dataset and its split. Checks nothing where source->run is NULL. */
weft_status weft_run_check_changes(const weft_config *config,
                                   const weft_config_source *source) WEFT_CHECKED;
/* WEFT_CONFIG: more steps than source->run had, from behind `step` on, and the learning rate of all
 * of them has decayed to 0, which source->allow_change does not allow (train.lr_decay_iters). */
weft_status weft_run_check_decay(const weft_config *config, const weft_config_source *source,
                                 int64_t step) WEFT_CHECKED;
/* WEFT_CONFIG names the first name in source->allow_change that is no section and no key. */
weft_status weft_run_check_allowed(const weft_config_source *source) WEFT_CHECKED;

#endif
