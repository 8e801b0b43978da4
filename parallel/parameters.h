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
#include "parallel/shard.h"

typedef enum weft_section_kind {
    WEFT_SECTION_DENSE,
    WEFT_SECTION_DENSE_SUM,
    WEFT_SECTION_EMBEDDING,
    WEFT_SECTION_EXPERT,
    WEFT_NUM_SECTIONS
} weft_section_kind;

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

typedef struct weft_bucket {
    size_t offset, count; /* elements in the section; count is padded */
    int first_layer;      /* the smallest declaring layer: ready when its backward is done */
} weft_bucket;

typedef struct weft_section {
    size_t count;  /* elements, padding included */
    void *weights; /* activation dtype */
    float *grads;
    weft_bucket *buckets;
    int num_buckets;
    weft_comm *group; /* gradient group; borrowed; NULL where gradients are not summed */
    int group_size;   /* of the mesh's */
} weft_section;

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

/* Cuts a section's parameters into buckets, from the last declared to the first. bucket_elements 0:
 * one bucket. Pure. */
typedef struct weft_bucket_cut {
    size_t bucket_elements, share_align;
    size_t start, used; /* of the bucket at hand; elements in front of the next parameter */
    int num_buckets;
} weft_bucket_cut;
/* group_size: ranks of the section's gradient group. */
weft_bucket_cut weft_bucket_cut_begin(size_t bucket_elements, int group_size);
/* Adds a parameter; true where it begins a bucket, at cut->start. */
bool weft_bucket_cut_next(weft_bucket_cut *cut, size_t elements);
/* Elements of all buckets so far, padding included. */
size_t weft_bucket_cut_end(const weft_bucket_cut *cut);

/* Lays out, allocates device memory and clears it once (padding has to be zero). bucket_elements:
 * see above; 0: one bucket a section. with_grads false: weights alone (generate). */
weft_status weft_parameters_allocate(weft_parameters *parameters, size_t bucket_elements,
                                     bool with_grads) WEFT_CHECKED;
/* Initial values by spec.init from Philox over global indices: every mesh starts bit-identical. */
weft_status weft_parameters_initialize(weft_parameters *parameters, weft_lane *lane,
                                       uint64_t seed) WEFT_CHECKED;
/* The same for one parameter, into `out`: local shape, of `dtype`. */
weft_status weft_parameters_fill(const weft_placed *placed, weft_lane *lane, uint64_t seed,
                                 weft_dtype dtype, void *out) WEFT_CHECKED;

int weft_parameters_count(const weft_parameters *parameters);
weft_placed *weft_parameters_at(const weft_parameters *parameters, int index);
weft_section *weft_parameters_section(const weft_parameters *parameters, weft_section_kind kind);
const weft_groups *weft_parameters_groups(const weft_parameters *parameters);
weft_device *weft_parameters_device(const weft_parameters *parameters);
weft_dtype weft_parameters_dtype(const weft_parameters *parameters);

#endif
