/* Parameters: a layer declares global name, shape and shard. Initial values, gradient groups, ZeRO
 * sharding and checkpoints follow from that alone. */
#ifndef WEFT_PARAMETER_H
#define WEFT_PARAMETER_H

#include "sized.h"
#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The group over which a dimension is split, in equal parts in rank order. */
typedef enum weft_split_axis {
    WEFT_SPLIT_NONE,
    WEFT_SPLIT_TP,  /* over the tensor-parallel group */
    WEFT_SPLIT_EP,  /* over the expert-parallel group: the leading axis of experts */
    WEFT_SPLIT_ETP, /* over the expert-tensor-parallel group */
} weft_split_axis;

/* Initial values: constant, or normal with mean 0 and init_std, a pure function of (seed, name,
 * global index). */
typedef enum weft_init_kind { WEFT_INIT_NORMAL, WEFT_INIT_ZERO, WEFT_INIT_ONE } weft_init_kind;

enum { WEFT_MAX_NAME_BYTES = 96 };

enum { WEFT_MAX_MATRIX_ROWS = 3 };

/* What a layer declares: WEFT_ARGS(weft_parameter_spec, .name = ...). Weft copies it and `name`. */
typedef struct weft_parameter_spec {
    size_t struct_bytes;
    const char *name; /* within the layer: "mlp.linear_fc1.weight"; the model puts
                         "decoder.layers.N." before it */
    int num_dims;
    size_t dims[WEFT_MAX_DIMS]; /* global */
    weft_split_axis split[WEFT_MAX_DIMS];
    weft_init_kind init;
    float init_std;
    bool no_weight_decay; /* biases and norms */
    bool is_expert;       /* gradient group edp instead of dp x cp */
    bool sum_over_tp;     /* its local gradient is a partial sum over the TP group */
    bool may_pad;      /* dimension 0 (a vocabulary) need not divide by its axis: Weft pads rows */
    bool is_embedding; /* word embedding, which a last layer may tie: where first and last stage
                          both declare it under one name, each holds a copy and Weft sums their
                          gradients. Its dimension 0 may pad */
    bool used_forward; /* a last layer's: forward makes its gradient, and backward uses neither
                          weight nor gradient. So data-parallel ranks may share it out */
    bool by_expert;    /* of an expert: dimension 0 counts experts and is split over EP. Each local
                          expert lies with those of the layer's other parameters that say so:
                          weft_parameter.expert_stride */
    float
        sign_rate;  /* above 0: no gradient of the loss. What backward puts there moves each element
                       by -sign_rate times its sign, a step; no decay, and no part of the norm */
    bool is_matrix; /* a linear layer's weight [..., out, in]: with train.optimizer muon each matrix
                       of its last two dimensions is orthogonalised. Not of embeddings */
    size_t matrix_rows[WEFT_MAX_MATRIX_ROWS]; /* is_matrix: `out` consists of periods of so many
                       rows of several matrices in turn, as q, k and v of each query group; all 0:
                       it is one matrix */
} weft_parameter_spec;

/* A parameter as this rank holds it. `weight` (activation dtype) and `grad` (fp32) are views of
 * buffers of the model; layers borrow them for the model's lifetime. May grow at its end. */
typedef struct weft_parameter {
    char name[WEFT_MAX_NAME_BYTES];  /* global */
    const weft_parameter_spec *spec; /* its name is this one */
    weft_tensor weight;              /* local shape */
    float *grad;                     /* local shape */
    size_t valid_rows;               /* of dimension 0, where padding follows */
    bool shared;    /* a later layer of this stage uses it too, and writes its gradient first */
    bool tied_copy; /* the last stage's copy of the word embedding: norms and checkpoints leave it
                       out */
    bool frozen;    /* train.parameter_rules say so: its gradient is not used */
    size_t expert_stride; /* spec->by_expert: elements from one local expert to the next, in weight
                             and in grad, each of them dense; 0: the parameter is contiguous */
    float lr_mult,
        wd_mult; /* of the learning rate and of the weight decay: train.parameter_rules */
} weft_parameter;

/* Elements of a local expert. */
static inline size_t weft_parameter_expert_elements(const weft_parameter *parameter)
{
    size_t elements = 1;
    for (int d = 1; d < parameter->weight.num_dims; d++)
        elements *= parameter->weight.dims[d];
    return elements;
}

/* Where a local element lies in weight and in grad, in elements. */
static inline size_t weft_parameter_place(const weft_parameter *parameter, size_t element)
{
    size_t own;
    if (parameter->expert_stride == 0)
        return element;
    own = weft_parameter_expert_elements(parameter);
    return element / own * parameter->expert_stride + element % own;
}

/* Elements from the first to the end of the last. */
static inline size_t weft_parameter_span(const weft_parameter *parameter)
{
    const size_t count = weft_tensor_count(&parameter->weight);
    return count > 0 ? weft_parameter_place(parameter, count - 1) + 1 : 0;
}

/* A local expert's weight and gradient, whether or not the parameter is contiguous; NULL where the
 * parameter has none now. */
static inline void *weft_parameter_weight_of(const weft_parameter *parameter, size_t expert)
{
    const size_t at =
        weft_parameter_place(parameter, expert * weft_parameter_expert_elements(parameter));
    char *weights = (char *)parameter->weight.data;
    return weights ? weights + at * weft_dtype_bytes(parameter->weight.dtype) : NULL;
}

static inline float *weft_parameter_grad_of(const weft_parameter *parameter, size_t expert)
{
    const size_t at =
        weft_parameter_place(parameter, expert * weft_parameter_expert_elements(parameter));
    return parameter->grad ? parameter->grad + at : NULL;
}

#ifdef __cplusplus
}
#endif
#endif
