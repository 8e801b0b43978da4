/* The parameters of this rank's pipeline stage, and the buffers they live in.
 *
 * Layers declare parameters; then one call lays them out. Weights (activation dtype) and gradients
 * (fp32) live in a few contiguous *sections*, so that reductions and the optimizer work on ranges:
 *
 *   DENSE      gradient group dp x cp
 *   DENSE_SUM  as DENSE, and the local gradient is a partial sum over TP (spec.sum_over_tp)
 *   DENSE_SHARED  as DENSE, and a few neighbours of the TP group hold the same and make partial
 * sums of its gradient (weft_placed_rows.sharers): key/value heads of fewer groups than ranks
 * EMBEDDING the word embedding when it is tied and pp > 1: summed over the embedding group too
 * EXPERT gradient group edp
 *
 * A section is cut into *buckets* of about ddp_bucket_size elements, whole parameters each, in the
 * reverse order of declaration (backward makes the last layer's gradients first). A bucket's
 * length is padded to a multiple of its gradient group's size, so that reduce-scatter gives every
 * rank an equal *share* of each bucket (ZeRO-1, Rajbhandari et al. 2020, as Megatron's distributed
 * optimizer lays it out). Parameters and shares start at multiples of 32 elements.
 *
 * What a layer declares by_expert lies expert by expert, a bucket each:
 *   [expert 0: fc1 | fc2 | padding][expert 1: fc1 | fc2 | padding]...
 * and runs of these stand in the section's list, of about ddp_bucket_size elements too.
 *
 * One thread uses a set. */
#ifndef WEFT_PARALLEL_PARAMETERS_PARAMETERS_H
#define WEFT_PARALLEL_PARAMETERS_PARAMETERS_H

#include <stdatomic.h>

#include <weft/device.h>
#include <weft/kernels.h>
#include <weft/list.h>
#include <weft/operation.h>
#include <weft/parameter.h>

#include "comm/comm.h"
#include "parallel/mesh/mesh.h"
#include "parallel/parameters/look.h"
#include "parallel/parameters/shard.h"
#include "parallel/records/records.h"
#include "parallel/residency/residency.h"

/* The rows (of dimension 0) that this TP rank holds, where they are no even part: several
 * parameters of one name are parts of one tensor then, each with rows of its own. */
typedef struct weft_placed_rows {
    size_t first, count; /* count 0: what spec.split says */
    int sharers; /* neighbours in the TP group, beginning at a multiple of their number, that
                    hold the same rows and make partial sums of their gradients; 1: none */
} weft_placed_rows;

/* One parameter's place. */
typedef struct weft_placed {
    weft_parameter parameter;
    weft_parameter_spec spec;
    weft_shard shard;
    weft_placed_rows rows;
    weft_box box;
    int layer; /* index of the declaring layer */
    weft_section_kind section;
    int bucket;     /* within the section; by_expert: of the first local expert */
    size_t offset;  /* elements from the section's start; by_expert: of the first local expert */
    size_t count;   /* local elements */
    size_t experts; /* by_expert: local experts, each parameter.expert_stride behind the one before;
                       0: contiguous */
    weft_matrices matrices; /* of a part */
} weft_placed;

/* In how many parts a parameter lies, each contiguous, and the elements of one. */
static inline size_t weft_placed_parts(const weft_placed *placed)
{
    return placed->experts > 0 ? placed->experts : 1;
}
static inline size_t weft_placed_part(const weft_placed *placed)
{
    return placed->count / weft_placed_parts(placed);
}

/* A matrix of a parameter that spec.is_matrix (Q, an expert's gate, ...), in one of its parts, and
 * this rank's block of it: all rows of some columns, or all columns of some rows. Its rows lie in
 * runs. */
typedef struct weft_placed_matrix {
    size_t first;      /* element of the part at which the block's first run begins */
    size_t rows, cols; /* of the block */
    size_t run_rows;   /* of a run */
    size_t run_stride; /* elements from run to run */
    weft_axis axis;    /* over which it is split; WEFT_AXIS_NONE: the block is the matrix */
    bool by_cols;
    size_t ranks, place; /* of that axis, and this one among them */
    size_t sharers;      /* neighbours among them that hold the same block */
} weft_placed_matrix;

/* Matrices of a part; the size of one, and the bytes that stepping it takes. Pure. */
size_t weft_placed_num_matrices(const weft_placed *placed);
weft_placed_matrix weft_placed_matrix_at(const weft_placed *placed, const weft_coords *coords,
                                         size_t index);
static inline size_t weft_placed_matrix_blocks(const weft_placed_matrix *m)
{
    return m->ranks / m->sharers;
}
/* Elements of what Newton-Schulz steps work in: the matrix, twice, which the second time is also
 * what all ranks' blocks take, and two of its smaller side's square. */
typedef struct weft_matrix_room {
    size_t matrix, blocks, square, bytes;
} weft_matrix_room;
weft_matrix_room weft_placed_matrix_room(const weft_placed_matrix *m);
/* Whether Muon steps the parameter: weft_residency.muon. */
bool weft_parameters_by_muon(const weft_parameters *parameters, const weft_placed *placed);

typedef struct weft_section {
    size_t count;  /* elements, padding included */
    void *weights; /* activation dtype; of units, what parallel/residency/residency.h says: shares
                      or all */
    float *grads;
    weft_bucket *buckets;
    int num_buckets;
    weft_comm *group; /* gradient group; borrowed; NULL where gradients are not summed */
    int group_size;   /* of the mesh's */
    int group_rank;
} weft_section;

/* Memory for whole layers, one a slot. */
enum { WEFT_RING_SLOTS = 4 };
typedef struct weft_ring {
    int num_slots;
    int beside;   /* the last of them: with pairs a forward's */
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
/* The same of a part of a tensor, split over TP: all that are declared under its name give rows.
 * The number of sharers is one, if not 1, in the whole set. */
weft_status weft_parameters_declare_rows(weft_parameters *parameters, const char *prefix,
                                         const weft_parameter_spec *spec,
                                         const weft_placed_rows *rows, int layer,
                                         weft_parameter **out) WEFT_CHECKED;
/* The parameter of that global name on this rank (of parts the first), or NULL. */
weft_parameter *weft_parameters_find(const weft_parameters *parameters, const char *name);

/* A rule of train.parameter_rules, "PATTERN WORD...": what the optimizer does with the parameters
 * whose name the pattern matches (fnmatch). Words: frozen (it leaves them as they are),
 * frozen=false, lr_mult=X (of the learning rate), wd_mult=X (of the weight decay; without a rule 0
 * where a spec says no_weight_decay, else 1). Where several rules say something, the last counts.
 */
typedef struct weft_rule {
    const char *pattern; /* in the text */
    size_t pattern_bytes;
    bool says_frozen, frozen, says_lr, says_decay;
    float lr_mult, wd_mult;
} weft_rule;

/* WEFT_CONFIG, of the key: a word that is none. */
weft_status weft_rule_read(const char *text, weft_rule *out) WEFT_CHECKED;
/* Adds to matches[i], [rules->count], how many parameters rule i matches; NULL: unwanted. Before
 * weft_optimizer_create. */
weft_status weft_parameters_apply_rules(weft_parameters *parameters, const weft_string_list *rules,
                                        int *matches) WEFT_CHECKED;

/* Experts that are on the host lie in a file, and some of them in places
 * (parallel/records/records.h). */
typedef struct weft_experts_file {
    const char *folder; /* borrowed */
    weft_spill_io io;
    weft_spill_eviction eviction;
    double cached;       /* share of the experts that have places */
    uint64_t file_limit; /* bytes a rank; 0: no limit */
    size_t state_bytes;  /* of the optimizer's state of an element */
} weft_experts_file;
/* What records of experts with so many elements take, of which a rank updates `owned`. Pure. */
weft_records_sizes weft_experts_file_sizes(const weft_experts_file *file, weft_dtype dtype,
                                           size_t elements, size_t owned, int num_experts,
                                           bool with_grads);
/* Before weft_parameters_allocate, which then makes the file. Its errors are those of
 * weft_records_create, and WEFT_CONFIG for a limit that is too low. */
void weft_parameters_use_file(weft_parameters *parameters, const weft_experts_file *file);

/* Lays out, allocates device memory and clears it once (padding has to be zero). with_grads false:
 * weights alone (generate). What units share out has no address but in a pass. Collective over the
 * TP group where rows are shared. */
weft_status weft_parameters_allocate(weft_parameters *parameters, const weft_residency *residency,
                                     bool with_grads) WEFT_CHECKED;
/* Initial values by spec.init from Philox over global indices: every mesh starts bit-identical. */
weft_status weft_parameters_initialize(weft_parameters *parameters, weft_lane *lane,
                                       uint64_t seed) WEFT_CHECKED;
/* The same for one parameter, into `out`: as it lies in its section, of `dtype`. */
weft_status weft_parameters_fill(const weft_placed *placed, weft_lane *lane, uint64_t seed,
                                 weft_dtype dtype, void *out) WEFT_CHECKED;
/* The same of one of its parts alone. */
weft_status weft_parameters_fill_part(const weft_placed *placed, size_t part, weft_lane *lane,
                                      uint64_t seed, weft_dtype dtype, void *out) WEFT_CHECKED;
/* Normal values of the parameter's global indices: of `values` seed, stream, mean, std, dtype and
 * x, which lies as `out` above. */
weft_status weft_parameters_draw(const weft_placed *placed, weft_lane *lane,
                                 const weft_random_normal_args *values) WEFT_CHECKED;

/* --- units (parallel/residency/residency.h) ------------------------------------------------- */

/* Where an element of a section lies that this rank holds. Of a bucket in a file: while it is
 * taken, else NULL. */
void *weft_parameters_weight(const weft_parameters *parameters, weft_section_kind kind, int bucket,
                             size_t element);
float *weft_parameters_grad(const weft_parameters *parameters, weft_section_kind kind, int bucket,
                            size_t element);
/* The same of a local element of a parameter. */
void *weft_parameters_weight_at(const weft_parameters *parameters, const weft_placed *placed,
                                size_t element);
/* The local elements of a parameter's part whose weights this rank keeps, from *first on. */
void weft_parameters_kept(const weft_parameters *parameters, const weft_placed *placed, size_t part,
                          size_t *first, size_t *count);
/* Whether a bucket's weights, and its gradients, are shared out. */
bool weft_parameters_shares(const weft_parameters *parameters, const weft_bucket *bucket,
                            bool weights);
const weft_ring *weft_parameters_ring(const weft_parameters *parameters, bool weights);
/* Whether passes have the parameter's weights, or its gradient, in a slot of a ring. */
bool weft_parameters_uses_ring(const weft_parameters *parameters, const weft_parameter *parameter,
                               bool weights);

/* Gathers a unit's weights into a slot of their ring and points its parameters there. Collective
 * over the gradient groups, on communicators of their own (parallel/mesh/mesh.h). */
weft_status weft_parameters_gather(weft_parameters *parameters, int unit, int slot,
                                   weft_lane *lane) WEFT_CHECKED;
/* Pins what the largest gather of a unit needs on the lane (weft_comm_reserve). */
weft_status weft_parameters_reserve(const weft_parameters *parameters,
                                    weft_lane *gather) WEFT_CHECKED;
/* Clears a slot of the gradients' ring for a unit, enqueued on `lane`, and points its parameters
 * there. */
weft_status weft_parameters_use_gradients(weft_parameters *parameters, int unit, int slot,
                                          weft_lane *lane) WEFT_CHECKED;
/* Points a unit's parameters to what a slot of a ring holds of it. */
void weft_parameters_point(weft_parameters *parameters, int unit, int slot, bool weights);
/* Sums a slot's gradients over their groups and adds this rank's share to what it keeps; overwrite:
 * instead of it. Collective over the gradient groups. */
weft_status weft_parameters_reduce(weft_parameters *parameters, int unit, int slot, bool overwrite,
                                   weft_lane *lane) WEFT_CHECKED;
/* From now on weft_parameters_reduce looks at what it sums (parallel/parameters/look.h). Borrowed.
 */
void weft_parameters_use_look(weft_parameters *parameters, const weft_look *look);
/* Where a parameter's gradient begins in a slot of the gradients' ring. */
float *weft_parameters_in_ring(const weft_parameters *parameters, const weft_placed *placed,
                               int slot);

/* Clears all gradients that this rank keeps. */
weft_status weft_parameters_clear_gradients(weft_parameters *parameters,
                                            weft_lane *lane) WEFT_CHECKED;

/* Work on a bucket begins on a lane, and is enqueued: weft_records_take, weft_records_give with
 * sets of its parts. Nothing to do for buckets in memory. */
weft_status weft_parameters_take(const weft_parameters *parameters, weft_section_kind kind,
                                 int bucket, unsigned reads, unsigned changes,
                                 weft_lane *lane) WEFT_CHECKED;
weft_status weft_parameters_give(const weft_parameters *parameters, weft_section_kind kind,
                                 int bucket, weft_lane *lane) WEFT_CHECKED;
/* The records of a section; NULL: it is in memory. Borrowed. */
weft_records *weft_parameters_records(const weft_parameters *parameters, weft_section_kind kind);
/* Elements between the start of an expert's bucket and the expert's part of a parameter. */
size_t weft_parameters_in_expert(const weft_parameters *parameters,
                                 const weft_parameter *parameter);

const weft_residency *weft_parameters_residency(const weft_parameters *parameters);
/* Whether a section lies in pinned host memory. */
bool weft_parameters_on_host(const weft_parameters *parameters, weft_section_kind kind);
/* Elements of the global tensor that a parameter's parts on all TP ranks are. Pure. */
uint64_t weft_placed_global(const weft_placed *placed, int tp);
/* The ranks that share rows with this one; NULL: none do. Borrowed. */
weft_comm *weft_parameters_sharers(const weft_parameters *parameters);
int weft_parameters_count(const weft_parameters *parameters);
weft_placed *weft_parameters_at(const weft_parameters *parameters, int index);
weft_section *weft_parameters_section(const weft_parameters *parameters, weft_section_kind kind);
const weft_groups *weft_parameters_groups(const weft_parameters *parameters);
weft_device *weft_parameters_device(const weft_parameters *parameters);
weft_dtype weft_parameters_dtype(const weft_parameters *parameters);

/* Experts in host memory that the ranks of a node share: any rank of an expert parallel group reads
 * the weights, and writes the gradients, of the experts at home on other ranks of its node
 * (offload.placement, ES-MoE section 4.2). Each rank's section EXPERT lies in memory that the
 * others map; all have the same layout.
 *
 * Who works on whose experts keeps order by *marks* in that memory, which only grow: an expert's
 * `stepped` is how many changes of its weights are over, set by its home; `landed` how many
 * gradients have been added up, each set by the rank that brought it. */

typedef struct weft_expert_marks {
    atomic_uint_least64_t landed, stepped;
} weft_expert_marks;

/* Before weft_parameters_allocate: it makes the memory. */
void weft_parameters_share_experts(weft_parameters *parameters);
/* Maps the memory of the group's ranks that are on this node. Collective over `group`, the ranks
 * between which experts are dealt out, in their order. Errors: WEFT_MEMORY. */
weft_status weft_parameters_join_experts(weft_parameters *parameters,
                                         weft_comm *group) WEFT_CHECKED;

/* What follows is of ranks in the group, after they joined. The lowest of its node: equal ones
 * share. */
int weft_parameters_expert_node(const weft_parameters *parameters, int rank);
/* Of a bucket of section EXPERT that is at home on a rank of this node. */
void *weft_parameters_weight_of(const weft_parameters *parameters, int rank, int bucket);
float *weft_parameters_grad_of(const weft_parameters *parameters, int rank, int bucket);
weft_expert_marks *weft_parameters_marks_of(const weft_parameters *parameters, int rank,
                                            int bucket);

#endif
