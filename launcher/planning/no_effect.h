/* Keys that a config sets and nothing reads. */
#ifndef WEFT_LAUNCHER_PLANNING_NO_EFFECT_H
#define WEFT_LAUNCHER_PLANNING_NO_EFFECT_H

#include "launcher/planning/config.h"

/* One warning for the moe_ keys of a model without experts that are not at their defaults: not
 * refused, so that num_experts=0 makes any config its dense counterpart. */
weft_status weft_config_tell_no_effect(const weft_config *config) WEFT_CHECKED;

#endif
