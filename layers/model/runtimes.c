/* What a model's MoE layers share, what its attention layers share with cp above 1, and what
 * tensor-parallel products in chunks share. */
#include "layers/context/context.h"
#include "layers/pass/pass.h"
#include "layers/tensor/tensor.h"

/* Sets the pipeline of later forwards, and of the shape for descriptions. */
static weft_status use_pipeline(weft_model *model, const weft_moe_pipeline *pipeline)
{
    weft_shape *shape = &model->shape;
    const int n = pipeline->num_partitions, group = pipeline->peer_group;
    if (group > 0 && n * group != shape->ep)
        return WEFT_KEY_ERROR("parallel.moe_peer_group_size",
                              "%d groups of %d are not the %d ranks of expert parallelism", n,
                              group, shape->ep);
    const weft_moe_dims dims = weft_moe_dims_of(&model->options, shape);
    if (pipeline->by_experts && n > (int)dims.local_experts)
        return WEFT_KEY_ERROR("parallel.moe_num_partitions",
                              "%d runs of a rank's %zu experts: one would be empty", n,
                              dims.local_experts);
    WEFT_TRY(weft_moe_runtime_use(model->moe, pipeline));
    shape->moe_partitions = n;
    shape->moe_reuse = (int)pipeline->reuse;
    shape->moe_peer_group = group;
    shape->moe_by_experts = pipeline->by_experts;
    return WEFT_OK;
}

weft_status weft_model_create_moe(weft_model *model)
{
    weft_moe_options *o = &model->setup.moe;
    if (model->options.num_experts == 0)
        return WEFT_OK;
    o->pipeline.beside = model->setup.pairs;
    weft_shape *shape = &model->shape;
    weft_moe_dims d = weft_moe_dims_of(&model->options, shape);
    size_t bytes = d.tokens * (size_t)model->options.moe_router_topk * shape->hidden *
                   weft_dtype_bytes(shape->dtype) / (size_t)shape->ep;
    if (o->pipeline.num_partitions > 1)
        bytes /= (size_t)o->pipeline.num_partitions;
    weft_moe_options own = *o;
    if (shape->etp == 1)
        own.form = WEFT_EXCHANGE_BASELINE;
    WEFT_TRY(weft_moe_runtime_create(model->setup.device, &own, d.exchange, bytes, &model->moe));
    if (d.exchange)
        weft_shape_exchange(o, shape);
    return use_pipeline(model, &model->moe->current->pipeline);
}

weft_status weft_model_inline_tier(weft_model *model)
{
    weft_moe_experts experts;
    for (int i = 0; model->tier; i++) {
        experts.programs = weft_tier_programs(model->tier, i, &experts.num_positions);
        if (!experts.programs)
            break;
        WEFT_TRY(weft_moe_runtime_add_experts(model->moe, &experts));
    }
    return WEFT_OK;
}

weft_status weft_model_create_context(weft_model *model)
{
    if (model->shape.cp == 1)
        return WEFT_OK;
    const weft_context_plan plan = weft_context_plan_of(&model->shape);
    return weft_context_runtime_create(
        model->setup.device, model->setup.groups->by_axis[WEFT_AXIS_CP], &plan, &model->context);
}

weft_status weft_model_create_tensor(weft_model *model)
{
    const weft_shape *shape = &model->shape;
    if (shape->tp == 1 || (shape->attention_chunks <= 1 && shape->mlp_chunks <= 1))
        return WEFT_OK;
    const int chunks[] = {weft_chunks_of(shape, shape->attention_chunks).count,
                          weft_chunks_of(shape, shape->mlp_chunks).count};
    return weft_tensor_runtime_create(model->setup.device, chunks, &model->tensor);
}

bool weft_model_moe_exchanges(const weft_model *model)
{
    return model->moe && model->moe->exchange;
}

weft_moe_pipeline weft_model_moe_pipeline(const weft_model *model)
{
    return weft_model_moe_exchanges(model) ? model->moe->current->pipeline
                                           : (weft_moe_pipeline){.num_partitions = 1};
}

weft_status weft_model_set_moe_pipeline(weft_model *model, const weft_moe_pipeline *pipeline)
{
    if (!weft_model_moe_exchanges(model))
        return WEFT_OK;
    if (model->setup.num_deferred > 0 && !model->setup.moe.pipeline.reuse && pipeline->reuse)
        return WEFT_ERROR(WEFT_INTERNAL, "MoE layers that keep their tokens for a backward in two "
                                         "halves cannot begin to reuse memory");
    return use_pipeline(model, pipeline);
}

weft_status weft_model_set_moe_programs(weft_model *model, const weft_moe_pipeline *pipeline,
                                        const weft_program programs[2])
{
    WEFT_TRY(weft_model_set_moe_pipeline(model, pipeline));
    return weft_model_moe_exchanges(model) ? weft_moe_runtime_replace(model->moe, programs)
                                           : WEFT_OK;
}
