#include "layers/describe/describe.h"
#include "layers/model/model.h"
#include "layers/outline/outline.h"

size_t weft_shape_local_seq(const weft_shape *shape)
{
    return shape->seq / (shape->cp > 1 ? (size_t)shape->cp : 1);
}

size_t weft_shape_local_tokens(const weft_shape *shape)
{
    return weft_shape_local_seq(shape) * shape->batch;
}

size_t weft_shape_boundary_rows(const weft_shape *shape)
{
    return weft_shape_local_tokens(shape) / (shape->sequence_parallel ? (size_t)shape->tp : 1);
}

size_t weft_shape_boundary_bytes(const weft_shape *shape)
{
    return weft_shape_boundary_rows(shape) * shape->hidden * weft_dtype_bytes(shape->dtype);
}

weft_shape weft_model_shape(const weft_model_options *o, const weft_mesh *mesh,
                            int64_t micro_batch_size, weft_dtype dtype, bool training)
{
    return (weft_shape){.seq = (size_t)o->seq_length,
                        .batch = (size_t)micro_batch_size,
                        .hidden = (size_t)o->hidden_size,
                        .vocab = (size_t)o->vocab_size,
                        .tp = mesh->tp,
                        .cp = mesh->cp,
                        .cp_comm_type = mesh->cp_comm_type,
                        .cp_inner = mesh->cp_inner,
                        .ep = mesh->ep,
                        .etp = mesh->etp,
                        .pp = mesh->pp,
                        .sequence_parallel = mesh->sequence_parallel,
                        .binding = mesh->binding == WEFT_BINDING_TP ? 0 : 1,
                        .dtype = dtype,
                        .training = training};
}

weft_moe_pipeline weft_shape_pipeline(const weft_shape *shape)
{
    return (weft_moe_pipeline){shape->moe_partitions > 0 ? shape->moe_partitions : 1,
                               (weft_reuse)shape->moe_reuse, shape->moe_peer_group,
                               shape->moe_by_experts};
}
