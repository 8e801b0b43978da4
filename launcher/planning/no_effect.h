/* Keys that a config sets and nothing reads. */
#ifndef WEFT_LAUNCHER_PLANNING_NO_EFFECT_H
#define WEFT_LAUNCHER_PLANNING_NO_EFFECT_H

#include "launcher/planning/config.h"

/* Warns of keys that are not at their defaults and have no effect: the experts' keys of a model
 * without experts, which are not refused, so that num_experts=0 makes any config dense; a pace
 * where no work has one; and the like. */
weft_status weft_config_tell_no_effect(const weft_config *config) WEFT_CHECKED;

#endif
