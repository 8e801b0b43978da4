/* What pairs of a forward and a backward take (schedule/pair.h). Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_PAIRS_PRICE_H
#define WEFT_LAUNCHER_PLANNING_PAIRS_PRICE_H

#include "launcher/planning/pass_price.h"

/* Of a stage: *out [forward's chunk][backward's chunk], from the arena; layers: by layer of the
 * outline; chunks: their sums. */
weft_status weft_pairs_price(const weft_site *site, const weft_outline *outline, int stage,
                             const weft_pass_price *layers, const weft_pass_price *chunks,
                             weft_arena *arena, weft_pass_time **out) WEFT_CHECKED;

#endif
