/* The parameters of this rank's pipeline stage, and the buffers they live in.
 *
 * Layers declare parameters; then one call lays them out. Weights (activation dtype) and gradients
 * (fp32) live in a few contiguous *sections*, so that reductions and the optimizer work on ranges:
 *
 *   DENSE      gradient group dp x cp
 *   DENSE_SUM  as DENSE, and the local gradient is a partial sum over TP (spec.sum_over_tp)
 *   EMBEDDING  the word embedding when it is tied and pp > 1: summed over the embedding group too
 *   EXPERT     gradient group edp
 *
 * A section is cut into *buckets* of about ddp_bucket_size elements, whole parameters each, in the
 * reverse order of declaration (backward makes the last layer's gradients first). A bucket's
 * length is padded to a multiple of its gradient group's size, so that reduce-scatter gives every
 * rank an equal *share* of each bucket (ZeRO-1, Rajbhandari et al. 2020, as Megatron's distributed
 * optimizer lays it out). Parameters and shares start at multiples of 32 elements.
 *
 * One thread uses a set. */
#ifndef WEFT_PARALLEL_PARAMETERS_H
#define WEFT_PARALLEL_PARAMETERS_H

#include <weft/device.h>
#include <weft/list.h>
#include <weft/parameter.h>

#include "parallel/groups.h"
#include "parallel/residency.h"
#include "parallel/shard.h"

typedef struct weft_parameters weft_parameters;

/* One parameter's place. */
typedef struct weft_placed {
    weft_parameter parameter;
    weft_parameter_spec spec;
    weft_shard shard;
    weft_box box;
    int layer; /* index of the declaring layer */
    weft_section_kind section;
    int bucket;    /* within the section */
    size_t offset; /* elements from the section's start */
    size_t count;  /* local elements */
} weft_placed;

typedef struct weft_section {
    size_t count;  /* elements, padding included */
    void *weights; /* activation dtype; of units, what parallel/residency.h says: shares or all */
    float *grads;
    weft_bucket *buckets;
    int num_buckets;
    weft_comm *group; /* gradient group; borrowed; NULL where gradients are not summed */
    int group_size;   /* of the mesh's */
    int group_rank;
} weft_section;

/* Memory for whole layers, one a slot. */
enum { WEFT_RING_SLOTS = 2 };
typedef struct weft_ring {
    int num_slots;
    size_t bytes; /* of a slot */
    void *slots[WEFT_RING_SLOTS];
} weft_ring;

/* `groups` and `device` are borrowed. dtype: of the weights. */
weft_status weft_parameters_create(const weft_groups *groups, weft_device *device, weft_dtype dtype,
                                   weft_parameters **out) WEFT_CHECKED;
void weft_parameters_destroy(weft_parameters *parameters);

/* Declares `spec` under the global name prefix + spec->name; the prefix of a global name is "": the
 * last stage's copy of a tied embedding has the first's name. *out is valid for the set's life; its
 * weight and grad point at memory after weft_parameters_allocate. Errors: WEFT_CONFIG for a
 * duplicate or unfit name (letters, digits, '.', '_', '-'), a dimension that does not divide by its
 * axis (dimension 0 may where spec.may_pad or spec.is_embedding is set: rows are padded), a split
 * over an axis of the other grid, a tied embedding on a middle stage. */
weft_status weft_parameters_declare(weft_parameters *parameters, const char *prefix,
                                    const weft_parameter_spec *spec, int layer,
                                    weft_parameter **out) WEFT_CHECKED;
/* The parameter of that global name on this rank, or NULL. */
weft_parameter *weft_parameters_find(const weft_parameters *parameters, const char *name);

/* Freezes parameters whose name one of the patterns matches (fnmatch): the optimizer leaves them as
 * they are. Adds to matches[i], [patterns->count], how many pattern i matches; NULL: unwanted. Call
 * it before weft_optimizer_create. */
void weft_parameters_freeze(weft_parameters *parameters, const weft_string_list *patterns,
                            int *matches);

/* Lays out, allocates device memory and clears it once (padding has to be zero). with_grads false:
 * weights alone (generate). What units share out has no address but in a pass. */
weft_status weft_parameters_allocate(weft_parameters *parameters, const weft_residency *residency,
                                     bool with_grads) WEFT_CHECKED;
/* Initial values by spec.init from Philox over global indices: every mesh starts bit-identical. */
weft_status weft_parameters_initialize(weft_parameters *parameters, weft_lane *lane,
                                       uint64_t seed) WEFT_CHECKED;
/* The same for one parameter, into `out`: local shape, of `dtype`. */
weft_status weft_parameters_fill(const weft_placed *placed, weft_lane *lane, uint64_t seed,
                                 weft_dtype dtype, void *out) WEFT_CHECKED;

/* --- units (parallel/residency.h) ----------------------------------------------------------- */

/* Where an element of a section lies that this rank holds. */
void *weft_parameters_weight(const weft_parameters *parameters, weft_section_kind kind, int bucket,
                             size_t element);
float *weft_parameters_grad(const weft_parameters *parameters, weft_section_kind kind, int bucket,
                            size_t element);
/* The local elements of a parameter whose weights this rank keeps, from *first on. */
void weft_parameters_kept(const weft_parameters *parameters, const weft_placed *placed,
                          size_t *first, size_t *count);
/* Whether a bucket's weights, and its gradients, are shared out. */
bool weft_parameters_shares(const weft_parameters *parameters, const weft_bucket *bucket,
                            bool weights);
const weft_ring *weft_parameters_ring(const weft_parameters *parameters, bool weights);

/* Gathers a unit's weights into a slot of their ring and points its parameters there. Collective
 * over the gradient groups, on communicators of their own (parallel/groups.h). */
weft_status weft_parameters_gather(weft_parameters *parameters, int unit, int slot,
                                   weft_lane *lane) WEFT_CHECKED;
/* Pins what the largest gather of a unit needs on the lane (weft_comm_reserve). */
weft_status weft_parameters_reserve(const weft_parameters *parameters,
                                    weft_lane *gather) WEFT_CHECKED;
/* Clears a slot of the gradients' ring for a unit, enqueued on `lane`, and points its parameters
 * there. */
weft_status weft_parameters_use_gradients(weft_parameters *parameters, int unit, int slot,
                                          weft_lane *lane) WEFT_CHECKED;
/* Sums a slot's gradients over their groups and adds this rank's share to what it keeps; overwrite:
 * instead of it. Collective over the gradient groups. */
weft_status weft_parameters_reduce(weft_parameters *parameters, int unit, int slot, bool overwrite,
                                   weft_lane *lane) WEFT_CHECKED;
/* Where a parameter's gradient lies in a slot of the gradients' ring. */
float *weft_parameters_in_ring(const weft_parameters *parameters, const weft_placed *placed,
                               int slot);

/* Clears all gradients that this rank keeps. */
weft_status weft_parameters_clear_gradients(weft_parameters *parameters,
                                            weft_lane *lane) WEFT_CHECKED;

int weft_parameters_count(const weft_parameters *parameters);
weft_placed *weft_parameters_at(const weft_parameters *parameters, int index);
weft_section *weft_parameters_section(const weft_parameters *parameters, weft_section_kind kind);
const weft_groups *weft_parameters_groups(const weft_parameters *parameters);
weft_device *weft_parameters_device(const weft_parameters *parameters);
weft_dtype weft_parameters_dtype(const weft_parameters *parameters);

#endif
