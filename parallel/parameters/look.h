/* A look at gradients before ranks sum them: afterwards every rank of the group has the sum, and a
 * number that is not finite no longer says where it is from.
 *
 * One pass over a bucket marks which of its parameters hold such a number (weft_find_not_finite),
 * on the lane that sums it, right before. Buckets that nobody sums are not looked at: their own
 * sums of squares say as much. Marks add up over a step's looks, with ZeRO-2 and 3 over its
 * micro-batches' too, until weft_look_take. */
#ifndef WEFT_PARALLEL_PARAMETERS_LOOK_H
#define WEFT_PARALLEL_PARAMETERS_LOOK_H

#include <weft/device.h>

#include "core/arena.h"
#include "parallel/residency/residency.h"

typedef struct weft_parameters weft_parameters;

/* One parameter, or one local expert of it. */
typedef struct weft_look_part {
    int parameter; /* of weft_parameters_at */
    int expert;    /* local; -1: the whole */
    int section, bucket;
    uint64_t end; /* elements from its bucket's start */
} weft_look_part;

typedef struct weft_look {
    int num_parts, host_threads;
    bool on_host[WEFT_NUM_SECTIONS];
    weft_look_part *parts;              /* by section and bucket, as they lie there */
    int *first_part[WEFT_NUM_SECTIONS]; /* by bucket, and behind the last */
    uint64_t *ends, *device_ends;       /* [num_parts] */
    int32_t *found;                     /* [num_parts], on the device */
    int32_t *host_found;                /* of buckets in host memory */
} weft_look;

/* What rank-local marks say: parameters in the model's order that are not frozen. */
typedef struct weft_look_result {
    int count;              /* of parts */
    int first, last;        /* of weft_parameters_at; count 0: not set */
    int first_expert;       /* of all the model's experts; -1: the whole */
    bool is_beside_experts; /* one of them is no expert's */
} weft_look_result;

/* Lists the parts of parameters that are laid out, in the arena. device_ends and found are the
 * caller's to set: [num_parts] of device memory each; weft_look_start fills them. */
weft_status weft_look_make(const weft_parameters *parameters, int host_threads, weft_arena *arena,
                           weft_look *out) WEFT_CHECKED;
weft_status weft_look_start(const weft_look *look, weft_lane *lane) WEFT_CHECKED;
/* Enqueues a look at a bucket, whose `count` elements begin at x. */
weft_status weft_look_at(const weft_look *look, weft_section_kind kind, int bucket, const float *x,
                         size_t count, weft_lane *lane) WEFT_CHECKED;
/* Reads `found` as the host has it, [num_parts], with the host's own marks, which it clears. */
void weft_look_take(const weft_look *look, const weft_parameters *parameters, const int32_t *found,
                    weft_look_result *out);

#endif
