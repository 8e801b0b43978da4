/* What published training runs reached of a GPU's peak: said beside a plan that promises more, and
 * in no price. */
#ifndef WEFT_LAUNCHER_PLANNING_PUBLISHED_H
#define WEFT_LAUNCHER_PLANNING_PUBLISHED_H

#include "launcher/planning/plan.h"

typedef struct weft_published_best {
    const char *device; /* how the names of such devices begin */
    bool experts;       /* of models with experts; else of dense ones */
    double share;       /* of the peak of 16 bits, attention counted whole */
    const char *where;
} weft_published_best;

/* The best that is known of the plan's device, kind of model and precision; NULL: none is. Static.
 */
const weft_published_best *weft_published_best_of(const weft_plan *plan,
                                                  const weft_cluster *cluster);
/* Whether the plan promises more. */
bool weft_published_is_below(const weft_plan *plan, const weft_cluster *cluster);

#endif
