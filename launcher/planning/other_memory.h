/* Device memory of other software (launcher/planning/software.h): of dense models what its layers
 * keep (layers/describe/plain.h, with fused attention), whole masters, workspaces of its libraries.
 * PyTorch's allocator has a pass's bytes from its forward to its backward, where Weft's passes have
 * slots, which messages may fill ahead. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_OTHER_MEMORY_H
#define WEFT_LAUNCHER_PLANNING_OTHER_MEMORY_H

#include "launcher/planning/step.h"

/* A step whose outline and slots are the software's; without programs where its memory counts as
 * Weft's. In the arena but for the outline: weft_step_release. */
weft_status weft_other_memory_make(const weft_config *config, const weft_mesh *mesh,
                                   const weft_moe_options *moe, weft_arena *arena,
                                   weft_step *out) WEFT_CHECKED;
void weft_other_memory_footprint(const weft_config *config, const weft_step *step, int rank,
                                 weft_footprint *out);

#endif
