/* Descriptions of layers: what one rank does and holds for one micro-batch. They are made by
 * rehearsal (layers/describe/rehearse.h), by layers that describe themselves, and of published
 * runs' kernels (layers/describe/plain.h). Pure. */
#ifndef WEFT_LAYERS_DESCRIBE_DESCRIBE_H
#define WEFT_LAYERS_DESCRIBE_DESCRIBE_H

#include <weft/describe.h>
#include <weft/kernels.h>
#include <weft/model.h>

#include "parallel/parameters/parameters.h"
#include "layers/pass/parts.h"
#include "schedule/context.h"
#include "schedule/tensor.h"

/* Every stash and scratch piece is rounded up to this. */
enum { WEFT_PIECE_BYTES = 64 };
size_t weft_piece_bytes(weft_dtype dtype, size_t d0, size_t d1);
/* A row of hidden states. */
static inline size_t weft_row_bytes(const weft_shape *shape)
{
    return shape->hidden * weft_dtype_bytes(shape->dtype);
}
/* An option's value, or `otherwise` for 0. */
static inline size_t weft_or_else(int64_t value, int64_t otherwise)
{
    return (size_t)(value > 0 ? value : otherwise);
}

/* Local sizes that layers and describe share. */
typedef struct weft_dims {
    size_t rows, rows_full; /* S_local * B; S * B */
    size_t hidden, head_dim, value_dim;
    size_t rotary;        /* channels of a head that rotate; 0: none */
    size_t heads, groups; /* of this TP rank */
    size_t sharers; /* TP ranks that hold this one's group: above 1 where there are fewer groups
                       than ranks */
    size_t heads_all, groups_all;
    size_t qkv;        /* (heads + groups) * head_dim + groups * value_dim, local */
    size_t ffn, gates; /* MLP width of this TP rank; gates: 2 for SwiGLU, else 1 */
    size_t ffn_all;
    size_t vocab_rows; /* of this TP rank, padding included */
} weft_dims;
/* int(head_dim * percent), as in Megatron, but exact in decimals: 0.29 of 100 is 29. Legal where
 * even and above 0. */
size_t weft_rotary_channels(size_t head_dim, double percent);
weft_dims weft_dims_of(const weft_model_options *options, const weft_shape *shape);
weft_activation_kind weft_activation_of(const weft_model_options *options);
/* Whether MLPs have a gate. */
bool weft_is_gated(const weft_model_options *options);

/* How tokens of an MoE layer reach its experts on this mesh. */
typedef struct weft_moe_dims {
    bool full;     /* all S * B rows are routed on every TP rank; else each routes 1 / tp */
    bool exchange; /* all-to-all over EP (binding dp, ep > 1) */
    bool summed;   /* tensor-sharded experts whose answers are summed before they travel home:
                      every TP rank then has the whole result, not a partial sum */
    size_t tokens; /* routed on this rank */
    size_t experts, local_experts;
    size_t ffn, ffn_all; /* an expert's width on this rank; in all */
    size_t gates;
    size_t capacity; /* 0: dropless; always 0 without training */
} weft_moe_dims;
weft_moe_dims weft_moe_dims_of(const weft_model_options *options, const weft_shape *shape);

/* Rows at a rank's experts under balanced routing: with an exchange as many as the rank sends;
 * without one its experts' share of the choices. */
size_t weft_moe_balanced_rows(const weft_moe_dims *dims, size_t topk, size_t ep);
/* Rows of a partition for whose order host memory is reserved, 8 bytes each; some are spare for an
 * uneven load. ep: ranks that send. */
size_t weft_moe_order_room(size_t balanced, size_t ep, size_t parts);

/* The programs inside a layer, in order. */
typedef struct weft_programs_inside {
    int count; /* 0 also where the layer was not rehearsed */
    struct weft_program_inside {
        weft_inner inner;
        bool backward;         /* else it is a forward's, in a backward once more */
        weft_tensor_plan plan; /* of WEFT_INNER_TENSOR */
    } rows[WEFT_MAX_INSIDE];
} weft_programs_inside;

void weft_layer_list_inside(const weft_layer *layer, const weft_model *model,
                            weft_programs_inside out[WEFT_NUM_WAYS]);

/* A layer's list: what its `describe` says, entry by entry. */
typedef struct weft_description {
    weft_layer_cost cost; /* the sums */
    weft_operation *operations;
    weft_kept *kept; /* in order of declaration */
    weft_held *held;
    int num_operations, num_kept, num_held;
    bool coarse;       /* the layer, or a child, filled in sums alone: the list is incomplete */
    bool lacks_memory; /* while the list is made: memory ran out */
    const char *lacks; /* likewise: the kind of a child that does not describe itself */
    weft_programs_inside inside[WEFT_NUM_WAYS]; /* by weft_way */
    bool declares_metrics;
    bool keeps_input; /* in place of its output; what is made again is scratch, inside backward */
    /* Of a shape whose backward comes in two halves, which `operations` tell apart: whether the
     * second one does anything, and the bytes that it finds kept by the first; scratch where parts
     * leave the second half for later (schedule/pair.h), what is in use of it behind the first
     * turn, and that of what the last turn leaves. */
    bool splits;
    uint64_t deferred_bytes, leaving_scratch_bytes, begun_scratch_bytes, left_scratch_bytes;
    weft_dtype dtype;
    int *users; /* of the arrays */
} weft_description;
/* Another description of the same list, to be released too: by the same thread. */
void weft_description_share(const weft_description *description, weft_description *out);
void weft_description_release(weft_description *description); /* a zeroed one is legal */
/* Whether the layer has experts; below: whether rows travel to them. */
bool weft_description_has_experts(const weft_description *description);
bool weft_description_travels(const weft_description *description);
/* A layer's work in FLOPs: those executed, and 200 for each byte moved by operations that memory
 * bounds, as a GPU computes in that time in bf16 (139 on a V100, 295 on an H100). A coarse layer:
 * the FLOPs of its sums. */
enum { WEFT_FLOPS_A_BYTE = 200 };
double weft_description_work(const weft_description *description);
/* Begins and, below, ends a list of all that is described into out->cost. WEFT_MEMORY; WEFT_CONFIG:
 * a child does not describe itself. */
void weft_description_begin(weft_description *out, const weft_shape *shape);
weft_status weft_description_end(weft_description *out) WEFT_CHECKED;

/* Whether a task of this kind enqueues the operation, in an MoE layer's program; below: one that
 * computes experts. */
bool weft_operation_is_of(const weft_operation *operation, weft_task_kind kind);
bool weft_operation_is_experts(const weft_operation *operation);

/* How attention sees the whole sequence, for a shape with cp above 1. */
weft_context_plan weft_context_plan_of(const weft_shape *shape);
/* weft_shape.logit_rows for a CPU, or a GPU. */
size_t weft_logit_rows(bool gpu);
/* Rows of logits that the head holds at a time. */
size_t weft_head_chunk_rows(const weft_shape *shape);
/* Adds an operation to an alike one of the list, if there is one; returns its index there. */
int weft_cost_alike(weft_layer_cost *out, const weft_operation *operation);
/* Adds a part of an operation, which the list has once: its FLOPs are the parts'; returns the same.
 */
int weft_cost_piece(weft_layer_cost *out, const weft_operation *operation);
/* Add a stashed tensor, and a parameter. */
void weft_cost_kept(weft_layer_cost *out, const weft_kept *kept);
void weft_cost_held(weft_layer_cost *out, const weft_shape *shape, const weft_held *held);
/* Adds what a layer says of itself. One that says nothing makes weft_description_end fail:
 * WEFT_CONFIG. */
void weft_cost_own(weft_layer_cost *out, const weft_shape *shape, const weft_layer *layer);
/* A declared parameter's entry. */
weft_held weft_held_of(const weft_placed *placed, int tp);
/* Adds a child's sums, of which the scratch changes. */
void weft_cost_inside(weft_layer_cost *out, weft_layer_cost *child);
/* Adds sums; of scratch, which layers use in sequence, the larger counts. */
void weft_cost_add(weft_layer_cost *sum, const weft_layer_cost *other);

#endif
