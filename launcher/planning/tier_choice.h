/* Where a model's experts are while it trains or is used, where the config leaves it open: the
 * first degree that fits (offload.experts auto), and how many experts the device keeps
 * (offload.kept -1). Training and plans choose alike, before anything is allocated. Pure. */
#ifndef WEFT_LAUNCHER_PLANNING_TIER_CHOICE_H
#define WEFT_LAUNCHER_PLANNING_TIER_CHOICE_H

#include "launcher/planning/config.h"
#include "launcher/planning/step.h"

/* What a rank of any pipeline stage may take, in bytes; UINT64_MAX: nobody says. */
typedef struct weft_tier_room {
    uint64_t device_bytes, host_bytes, file_bytes;
    bool is_host;      /* the device's memory is the host's, and counts against it */
    int sharers;       /* file_bytes is what so many ranks share of the free disk; 0: a limit */
    bool file_is_host; /* the file is in memory, and counts against the host's */
    const struct weft_tier_room *by_stage; /* [mesh->pp], in place of all this; NULL: all alike */
} weft_tier_room;

typedef struct weft_tier_selection {
    weft_tier_options options; /* the config's, with nothing left open */
    bool chosen;               /* else the config says it all */
    bool fits;                 /* else these are the ones that take least of the device */
    char reason[768];          /* one line: the degree, the bytes of each tier on the rank that has
                                  most, why; empty where no expert can be elsewhere */
} weft_tier_selection;

bool weft_tier_is_open(const weft_config *config);
/* Whether host memory holds experts, or the optimizer's state: its limits bind. */
bool weft_tier_pins(const weft_config *config);
/* What the config says of every stage: device.memory_limit, offload.host_memory_limit,
 * offload.file_limit. */
weft_tier_room weft_tier_room_of(const weft_config *config);

/* Whether every stage of the step fits. Else WEFT_MEMORY with the key of the limit, which rank
 * takes what, and how much too much; the first of a smaller micro-batch, recomputation and what
 * section "offload" moves to host memory with which it would, or what is lacking with all of them.
 */
weft_status weft_tier_check_room(const weft_config *config, const weft_mesh *mesh,
                                 const weft_step *step, const weft_tier_room *room) WEFT_CHECKED;
/* The end of that error where a device's memory is short: "; offload.experts auto would fit, with 3
 * GB", or what would still be lacking; empty: nothing helps. Errors: those of weft_step_make. */
enum { WEFT_ADVICE_BYTES = 280 };
weft_status weft_tier_advise(const weft_config *config, const weft_mesh *mesh,
                             const weft_step *step, const weft_tier_room *room,
                             char out[WEFT_ADVICE_BYTES]) WEFT_CHECKED;
/* Makes the steps of the degrees until one fits: of a file, where offload.cached does not, with as
 * many experts in host memory as do. Then, where kept is open, finds the most experts that do.
 * Errors: those of weft_step_make. */
weft_status weft_tier_choose(weft_step_use use, const weft_config *config, const weft_mesh *mesh,
                             const weft_moe_options *moe, const weft_tier_room *room,
                             weft_tier_selection *out) WEFT_CHECKED;
/* The same; errors, too: where nothing fits, as weft_tier_check_room's of the last
 * degree. */
weft_status weft_tier_require(weft_step_use use, const weft_config *config, const weft_mesh *mesh,
                              const weft_moe_options *moe, const weft_tier_room *room,
                              weft_tier_selection *out) WEFT_CHECKED;

#endif
