/* Keys that a config sets and nothing reads. */
#ifndef WEFT_LAUNCHER_PLANNING_NO_EFFECT_H
#define WEFT_LAUNCHER_PLANNING_NO_EFFECT_H

#include "launcher/planning/config.h"

/* A warning for the keys that are not at their defaults and have no effect: the experts' of a model
 * without any, which is not refused, so that num_experts=0 makes any config its dense counterpart;
 * a pace where there is none. */
weft_status weft_config_tell_no_effect(const weft_config *config) WEFT_CHECKED;

#endif
