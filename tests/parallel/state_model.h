/* A small model of every kind of parameter, for the tests of the optimizer and of checkpoints:
 * a tied vocabulary that nothing divides, sums over TP and over a part of it, replicated and split
 * weights, experts
 * split over EP and ETP. Its values and gradients are pure functions of global indices. */
#ifndef WEFT_TESTS_STATE_MODEL_H
#define WEFT_TESTS_STATE_MODEL_H

#include <stdlib.h>

#include "core/rng.h"
#include "parallel/optimizer/optimizer.h"
#include "tests/world.h"

enum {
    STATE_LAYERS = 4,
    STATE_HIDDEN = 6,
    STATE_VOCAB = 37,
    STATE_EXPERTS = 8,
    STATE_SEED = 99,
    STATE_BUCKET = 300
};

/* Of the buckets that models are made with. */
static size_t state_bucket_elements = STATE_BUCKET;

/* What their optimizers do with some parameters; of train.parameter_rules. */
static weft_string_list state_rules;
static bool state_muon; /* steps matrices */

/* One rank's model under one mesh. */
typedef struct state_model {
    weft_arena arena;
    weft_groups groups;
    weft_device *device;
    weft_parameters *parameters;
    weft_optimizer *optimizer;
    weft_lane *compute, *reduce;
} state_model;

static inline void state_declare(state_model *m, const char *prefix, int layer,
                                 weft_parameter_spec spec)
{
    weft_parameter *parameter = NULL;
    EXPECT_OK(weft_parameters_declare(m->parameters, prefix, &spec, layer, &parameter));
}

/* Two groups of four rows that TP ranks deal and two that they share, where there are more ranks
 * than groups. */
static inline void state_declare_groups(state_model *m, const char *prefix, int layer)
{
    const weft_parameter_spec spec = {.struct_bytes = sizeof spec,
                                      .name = "groups.weight",
                                      .num_dims = 2,
                                      .dims = {2 * 6, STATE_HIDDEN},
                                      .split = {WEFT_SPLIT_TP},
                                      .init_std = 0.5f,
                                      .is_matrix = true,
                                      .matrix_rows = {4, 0, 2}};
    const int tp = m->groups.mesh.tp, rank = m->groups.coords.at[WEFT_AXIS_TP];
    const int sharers = tp > 2 ? tp / 2 : 1;
    const size_t group = (size_t)(rank / sharers) * 6, dealt = 4 / (size_t)sharers;
    const weft_placed_rows rows[] = {{group + (size_t)(rank % sharers) * dealt, dealt, 1},
                                     {group + 4, 2, sharers}};
    weft_parameter *parameter = NULL;
    if (sharers == 1) {
        state_declare(m, prefix, layer, spec);
        return;
    }
    weft_parameter_spec part = spec;
    memset(part.matrix_rows, 0, sizeof part.matrix_rows);
    for (int i = 0; i < 2; i++)
        EXPECT_OK(weft_parameters_declare_rows(m->parameters, prefix, &part, &rows[i], layer,
                                               &parameter));
}

static inline void state_declare_block(state_model *m, int block, int layer)
{
    enum { H = STATE_HIDDEN, E = STATE_EXPERTS };
    char prefix[32];
    snprintf(prefix, sizeof prefix, "decoder.layers.%d.", block);
    state_declare(m, prefix, layer,
                  WEFT_ARGS(weft_parameter_spec, .name = "norm.weight", .num_dims = 1, .dims = {H},
                            .init = WEFT_INIT_ONE, .no_weight_decay = true, .sum_over_tp = true));
    state_declare(m, prefix, layer,
                  WEFT_ARGS(weft_parameter_spec, .name = "qkv.weight", .num_dims = 2,
                            .dims = {3 * 8, H}, .split = {WEFT_SPLIT_TP}, .init_std = 0.5f,
                            .is_matrix = true, .matrix_rows = {4, 1, 1}));
    state_declare(m, prefix, layer,
                  WEFT_ARGS(weft_parameter_spec, .name = "proj.weight", .num_dims = 2,
                            .dims = {H, 8}, .split = {WEFT_SPLIT_NONE, WEFT_SPLIT_TP},
                            .init_std = 0.5f, .is_matrix = true));
    state_declare_groups(m, prefix, layer);
    state_declare(m, prefix, layer,
                  WEFT_ARGS(weft_parameter_spec, .name = "proj.bias", .num_dims = 1, .dims = {H},
                            .init = WEFT_INIT_ZERO, .no_weight_decay = true));
    state_declare(m, prefix, layer,
                  WEFT_ARGS(weft_parameter_spec, .name = "router.weight", .num_dims = 2,
                            .dims = {E, H}, .init_std = 0.5f));
    state_declare(m, prefix, layer,
                  WEFT_ARGS(weft_parameter_spec, .name = "router.expert_bias", .num_dims = 1,
                            .dims = {E}, .init = WEFT_INIT_ZERO, .no_weight_decay = true,
                            .sign_rate = 0.03f));
    state_declare(m, prefix, layer,
                  WEFT_ARGS(weft_parameter_spec, .name = "experts.fc1", .num_dims = 3,
                            .dims = {E, 10, H}, .split = {WEFT_SPLIT_EP, WEFT_SPLIT_ETP},
                            .init_std = 0.5f, .is_expert = true, .by_expert = true,
                            .is_matrix = true));
    state_declare(
        m, prefix, layer,
        WEFT_ARGS(weft_parameter_spec, .name = "experts.fc2", .num_dims = 3, .dims = {E, H, 10},
                  .split = {WEFT_SPLIT_EP, WEFT_SPLIT_NONE, WEFT_SPLIT_ETP}, .init_std = 0.5f,
                  .is_expert = true, .by_expert = true, .is_matrix = true));
    /* of a layer that does not say by_expert */
    state_declare(m, prefix, layer,
                  WEFT_ARGS(weft_parameter_spec, .name = "experts.whole", .num_dims = 2,
                            .dims = {E, 7}, .split = {WEFT_SPLIT_EP}, .init_std = 0.5f,
                            .is_expert = true));
    state_declare(m, prefix, layer,
                  WEFT_ARGS(weft_parameter_spec, .name = "experts.bias", .num_dims = 2,
                            .dims = {E, H}, .split = {WEFT_SPLIT_EP}, .init = WEFT_INIT_ZERO,
                            .no_weight_decay = true, .is_expert = true, .by_expert = true));
}

/* Layer 0 is the embedding, then the stage's blocks, then the head. */
static inline void state_declare_model(state_model *m)
{
    int stage = m->groups.coords.at[WEFT_AXIS_PP], stages = m->groups.mesh.pp, layer = 0;
    const weft_parameter_spec embedding = {.struct_bytes = sizeof embedding,
                                           .name = "embedding.word_embeddings.weight",
                                           .num_dims = 2,
                                           .dims = {STATE_VOCAB, STATE_HIDDEN},
                                           .split = {WEFT_SPLIT_TP},
                                           .init_std = 0.5f,
                                           .is_embedding = true};
    if (stage == 0) {
        state_declare(m, "", layer, embedding);
        state_declare(m, "", layer++,
                      WEFT_ARGS(weft_parameter_spec, .name = "embedding.position_embeddings.weight",
                                .num_dims = 2, .dims = {9, STATE_HIDDEN}, .init_std = 0.5f,
                                .sum_over_tp = true));
    }
    for (int block = stage * STATE_LAYERS / stages; block < (stage + 1) * STATE_LAYERS / stages;
         block++)
        state_declare_block(m, block, layer++);
    if (stage == stages - 1 && stages > 1)
        state_declare(m, "", layer, embedding);
}

/* `mesh`: as the command line's --mesh. Collective over world. False, with a failed check, where
 * it could not be made; release it all the same. */
static inline bool state_model_create(state_model *m, weft_comm *world, const char *mesh,
                                      weft_dtype dtype, const weft_optimizer_options *options)
{
    weft_parallel_options parallel = {.tensor_model_parallel_size = 1,
                                      .pipeline_model_parallel_size = 1,
                                      .context_parallel_size = 1,
                                      .expert_binding = WEFT_BINDING_DP,
                                      .order = "tp-cp-ep-dp-pp"};
    weft_mesh built;
    int before = expect_failures;
    memset(m, 0, sizeof *m);
    EXPECT_OK(weft_mesh_apply_alias(mesh, &m->arena, &parallel, NULL));
    EXPECT_OK(weft_mesh_build(&parallel, weft_comm_size(world), STATE_EXPERTS, &built));
    EXPECT_OK(weft_device_create_cpu(1, 0, &m->device));
    if (expect_failures != before)
        return false;
    EXPECT_OK(weft_groups_create(world, &built, NULL, &m->groups));
    EXPECT_OK(weft_lane_create(m->device, 0, "compute", &m->compute));
    EXPECT_OK(weft_lane_create(m->device, 1, "reduce", &m->reduce));
    EXPECT_OK(weft_parameters_create(&m->groups, m->device, dtype, &m->parameters));
    if (expect_failures != before)
        return false;
    state_declare_model(m);
    EXPECT_OK(weft_parameters_apply_rules(m->parameters, &state_rules, NULL));
    EXPECT_OK(weft_parameters_allocate(
        m->parameters,
        &(weft_residency){.bucket_elements = state_bucket_elements, .muon = state_muon}, true));
    if (options)
        EXPECT_OK(weft_optimizer_create(m->parameters, options, &m->optimizer));
    return expect_failures == before;
}

static inline void state_model_release(state_model *m)
{
    weft_lane_destroy(m->compute);
    weft_lane_destroy(m->reduce);
    weft_optimizer_destroy(m->optimizer);
    weft_parameters_destroy(m->parameters);
    weft_groups_release(&m->groups);
    weft_device_destroy(m->device);
    weft_arena_release(&m->arena);
}

/* The global row-major index of a local element; false in padding. */
static inline bool state_global_index(const weft_box *box, size_t local, uint64_t *out)
{
    size_t at[WEFT_MAX_DIMS];
    uint64_t global = 0;
    for (int d = box->num_dims - 1; d >= 0; d--) {
        at[d] = local % box->local[d];
        local /= box->local[d];
        if (box->start[d] + at[d] >= box->global_dims[d])
            return false;
    }
    for (int d = 0; d < box->num_dims; d++)
        global = global * box->global_dims[d] + box->start[d] + at[d];
    *out = global;
    return true;
}

/* A bf16 weight of a master: nearest, ties away from zero. */
static inline float state_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x8000) & 0xffff0000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A weight as this rank holds it, after a sync. */
static inline float state_weight(const weft_placed *placed, size_t local)
{
    const weft_tensor *weight = &placed->parameter.weight;
    local = weft_parameter_place(&placed->parameter, local);
    if (weight->dtype == WEFT_F32)
        return ((const float *)weight->data)[local];
    uint32_t bits = (uint32_t)((const uint16_t *)weight->data)[local] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
