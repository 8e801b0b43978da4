/* Where a stage's weights and gradients lie under each weft_sharding (ZeRO, Rajbhandari et al.
 * 2020). Pure.
 *
 * A *unit* is what a layer shares out: its parameters whose gradients one group of several ranks
 * sums, and that no other layer or stage holds. Its buckets are its own. With optim_grads each rank
 * keeps its share of their gradients, and of every micro-batch a backward fills a slot of a ring
 * with the whole layer's; with optim_grads_params it keeps its share of their weights too, and
 * passes gather them into a slot of another ring. Of the model's last layer the unit is what its
 * forward alone uses (weft_parameter_spec.used_forward): its forward fills the slot. Everything
 * else stays whole on each rank, as with optim: what is tied or shared, what tensor-parallel ranks
 * sum first, the rest of the last layer, and groups of one rank. So do the model's first and last
 * layer on a stage where slots for them would take more than the shares save. */
#ifndef WEFT_PARALLEL_RESIDENCY_H
#define WEFT_PARALLEL_RESIDENCY_H

#include "parallel/mesh.h"

typedef enum weft_section_kind {
    WEFT_SECTION_DENSE,
    WEFT_SECTION_DENSE_SUM,
    WEFT_SECTION_EMBEDDING,
    WEFT_SECTION_EXPERT,
    WEFT_NUM_SECTIONS
} weft_section_kind;

typedef struct weft_bucket {
    size_t offset, count;  /* elements in the section; count is padded */
    int first_layer;       /* the smallest declaring layer: ready when its backward is done */
    int unit;              /* the layer whose unit it is of; -1: none */
    size_t weights, grads; /* elements of the section's memory in front of what lies here */
    size_t ring;           /* of a unit: elements of a ring's slot in front of it */
} weft_bucket;

/* Buckets of a stage's sections. */
typedef struct weft_cut_sections {
    weft_bucket *buckets[WEFT_NUM_SECTIONS];
    int num_buckets[WEFT_NUM_SECTIONS];
    int group_size[WEFT_NUM_SECTIONS]; /* ranks of the gradient group */
} weft_cut_sections;

/* How a stage's parameters are laid out. */
typedef struct weft_residency {
    size_t bucket_elements; /* parallel.ddp_bucket_size; 0: one bucket a section */
    weft_sharding sharding;
    bool overlap;   /* reductions run beside backwards */
    int num_layers; /* of the model */
    /* What weft_residency_count counts: of the stage's layers between the model's first and last
     * how many share out anything, the largest, and the one at hand. Of those two: elements. */
    int num_between, layer;
    size_t largest, elements, ends[2];
    double end_shares; /* of both ends a rank's elements */
} weft_residency;
weft_residency weft_residency_of(const weft_parallel_options *options, int num_layers);

/* A parameter of a stage. */
typedef struct weft_residency_parameter {
    weft_section_kind section;
    int group_size;
    bool shared;       /* another layer uses it */
    bool used_forward; /* of its spec */
    int layer;
    size_t elements;
} weft_residency_parameter;
/* Adds a parameter to what is counted; call it for all of a stage, layer by layer, before
 * weft_residency_unit. */
void weft_residency_count(weft_residency *residency, const weft_residency_parameter *parameter);
/* The unit of a parameter: its layer; -1: none. */
int weft_residency_unit(const weft_residency *residency, const weft_residency_parameter *parameter);

/* Elements that one rank holds. */
typedef struct weft_held_elements {
    size_t weights[WEFT_NUM_SECTIONS], grads[WEFT_NUM_SECTIONS];
    size_t owned[WEFT_NUM_SECTIONS];  /* that it updates */
    size_t slot;                      /* of a ring: the largest unit */
    int weight_slots, gradient_slots; /* of the rings: layers at a time */
} weft_held_elements;
/* Fills `weights`, `grads` and `ring` of the buckets. */
void weft_residency_lay(const weft_residency *residency, weft_cut_sections *cut,
                        weft_held_elements *out);

/* Cuts a section's parameters into buckets, from the last declared to the first. bucket_elements 0:
 * one bucket. */
typedef struct weft_bucket_cut {
    size_t bucket_elements, share_align;
    size_t start, used; /* of the bucket at hand; elements in front of the next parameter */
    int num_buckets, unit;
} weft_bucket_cut;
/* group_size: ranks of the section's gradient group. */
weft_bucket_cut weft_bucket_cut_begin(size_t bucket_elements, int group_size);
/* Adds a parameter of that unit; true where it begins a bucket, at cut->start. */
bool weft_bucket_cut_next(weft_bucket_cut *cut, size_t elements, int unit);
/* Elements of all buckets so far, padding included. */
size_t weft_bucket_cut_end(const weft_bucket_cut *cut);
/* Offsets and shares are multiples of this many elements: 64 bytes of bf16, 128 of fp32. */
enum { WEFT_ALIGN_ELEMENTS = 32 };

#endif
