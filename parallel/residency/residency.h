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
#ifndef WEFT_PARALLEL_RESIDENCY_RESIDENCY_H
#define WEFT_PARALLEL_RESIDENCY_RESIDENCY_H

#include <weft/operation.h>

#include "core/arena.h"
#include "core/bucket.h"
#include "parallel/mesh/mesh.h"

typedef enum weft_section_kind {
    WEFT_SECTION_DENSE,
    WEFT_SECTION_DENSE_SUM,
    WEFT_SECTION_DENSE_SHARED,
    WEFT_SECTION_EMBEDDING,
    WEFT_SECTION_EXPERT,
    WEFT_NUM_SECTIONS
} weft_section_kind;

/* A bucket, or a run of expert buckets of one size that follow each other. An expert bucket is one
 * local expert of one layer: its part of the parameters that are declared by_expert. What is done
 * with a bucket is done with each of a run's in turn, so that no bit depends on where runs end. */
typedef struct weft_bucket {
    size_t offset, count;  /* elements in the section; count is padded */
    int num_experts;       /* expert buckets of the run; 0: a bucket of whole parameters */
    int first_layer;       /* the smallest declaring layer: ready when its backward is done */
    int unit;              /* the layer whose unit it is of; -1: none */
    size_t weights, grads; /* elements of the section's memory in front of what lies here */
    size_t ring;           /* of a unit: elements of a ring's slot in front of it */
    bool is_matrices;      /* of whole matrices that Muon steps, and of nothing else */
    bool has_squares;      /* AdamW steps some of it, so that it has second moments */
    weft_matrices matrices;
} weft_bucket;

/* Buckets of a stage's sections. */
typedef struct weft_cut_sections {
    weft_bucket *buckets[WEFT_NUM_SECTIONS];
    int num_buckets[WEFT_NUM_SECTIONS];
    int group_size[WEFT_NUM_SECTIONS]; /* ranks of the gradient group */
} weft_cut_sections;

/* How many buckets that is, each with collectives of its own, and the elements of one. */
static inline int weft_bucket_parts(const weft_bucket *bucket)
{
    return bucket->num_experts > 0 ? bucket->num_experts : 1;
}
static inline size_t weft_bucket_part(const weft_bucket *bucket)
{
    return bucket->count / (size_t)weft_bucket_parts(bucket);
}

/* How a stage's parameters are laid out. */
typedef struct weft_residency {
    size_t bucket_elements; /* parallel.ddp_bucket_size; 0: one bucket a section */
    weft_sharding sharding;
    bool overlap;         /* reductions run beside backwards */
    bool experts_on_host; /* experts lie in pinned host memory: a run is one bucket, and none is of
                             a unit */
    bool state_on_host;   /* the optimizer's state of all others, too; not they themselves */
    bool pairs;           /* a forward may run beside a backward (schedule/pair.h) */
    bool muon;            /* steps matrices, in buckets of their own but for experts' */
    int num_layers;       /* of the model */
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
    size_t experts;         /* by_expert: local experts; 0: not so */
    weft_matrices matrices; /* that Muon steps; of one expert */
} weft_residency_parameter;
/* Whether it goes to a bucket of matrices. Those of a section are cut first, then the others. */
static inline bool weft_residency_is_matrix(const weft_residency_parameter *p)
{
    return p->matrices.count > 0 && p->experts == 0;
}
/* Adds a parameter to what is counted; call it for all of a stage, layer by layer, before
 * weft_residency_unit. */
void weft_residency_count(weft_residency *residency, const weft_residency_parameter *parameter);
/* The unit of a parameter: its layer; -1: none. */
int weft_residency_unit(const weft_residency *residency, const weft_residency_parameter *parameter);

/* Elements that one rank holds. */
typedef struct weft_held_elements {
    size_t weights[WEFT_NUM_SECTIONS], grads[WEFT_NUM_SECTIONS];
    size_t owned[WEFT_NUM_SECTIONS];   /* that it updates */
    size_t squares[WEFT_NUM_SECTIONS]; /* those with a second moment */
    size_t workspace_bytes;            /* of Muon */
    size_t staged;                     /* the most of a bucket that it updates; whose state alone
                                          lies in host memory, as for what follows */
    size_t stepped;                    /* of all such buckets */
    int staging;                       /* gradients of them on the host at a time */
    size_t slot;                       /* of a ring: the largest unit */
    int weight_slots, gradient_slots;  /* of a pass's rings: layers at a time */
    int beside[2]; /* with pairs: further slots, of gradients and of weights, for a forward beside a
                      backward */
} weft_held_elements;
/* Fills `weights`, `grads` and `ring` of the buckets. */
void weft_residency_lay(const weft_residency *residency, weft_cut_sections *cut,
                        weft_held_elements *out);

/* Cuts a section's parameters into buckets, from the last declared to the first. bucket_elements 0:
 * one bucket of each kind. */
typedef struct weft_bucket_cut {
    size_t bucket_elements, share_align;
    weft_bucket *buckets; /* the caller's */
    int num_buckets;
    size_t used; /* elements in front of the next parameter */
} weft_bucket_cut;
/* group_size: ranks of the section's gradient group. buckets: room for one a parameter, and for one
 * an expert of those by_expert. */
weft_bucket_cut weft_bucket_cut_begin(size_t bucket_elements, int group_size, weft_bucket *buckets);
/* Adds one of a layer's parameters, which is of the section. Of those that lie together in expert
 * buckets it adds all with the last one, and nothing with the others: false. *out_start: the first
 * element of the bucket that a parameter goes to, or of what was added of experts. */
bool weft_bucket_cut_add(weft_bucket_cut *cut, const weft_residency *residency,
                         const weft_residency_parameter *layer, int count, int index,
                         size_t *out_start);
/* Whether two parameters of a layer lie together in expert buckets. */
bool weft_residency_together(const weft_residency *residency, const weft_residency_parameter *a,
                             const weft_residency_parameter *b);
/* Elements of all buckets so far, padding included. */
size_t weft_bucket_cut_end(const weft_bucket_cut *cut);
/* Offsets and shares are multiples of this many elements: 64 bytes of bf16, 128 of fp32. */
enum { WEFT_ALIGN_ELEMENTS = 32 };

/* The shapes of a stage's buckets. Pure. */

/* Lists a stage's buckets in the order in which all its ranks start their reductions. First come
 * those that overlap with the last backward, from the last layer down, dense before expert where
 * one layer completes both. Then come those of sections that are summed before they are reduced:
 * they wait for the end of the backward, since a sum between the first and the last stage would
 * hold up the buckets behind it. Every shape's chunk is 0, and those offloaded do not say when
 * they step. */
weft_status weft_buckets_order(const weft_cut_sections *sections, const weft_mesh *mesh,
                               const weft_residency *residency, weft_arena *arena,
                               weft_buckets *out) WEFT_CHECKED;

#endif
