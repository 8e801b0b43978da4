/* Context parallelism, packed documents, recomputation, offloading, sharding, split masters and
 * experts in host memory on a CUDA device, with graphs where passes allow: steps have the losses
 * and gradient norms that they have on the CPU. What is recomputed, offloaded, shared out or split
 * has the bits of what is not, and so have experts in host memory in whatever order they go up, on
 * one mesh; so has an optimizer's state there, however it is shared out. In fp16, which the CPU has
 * not, a step whose gradients overflow steps nothing.
 *
 * Runs under mpirun with 4 ranks, which share one device; a case of n uses the first n. */
#include <math.h>
#include <string.h>

#include <weft/device.h>

#include "tests/launcher/meshes.h"
#include "tests/world.h"

enum { NUM_STEPS = 2, MAX_STEPS = 7, MAX_SET = 6, MAX_VARIANTS = 5 };

#define CPU "device.kind=cpu"
#define CUDA "device.kind=cuda"
#define SIZES                                                                                      \
    "{\"num_layers\": 2, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "                           \
    "\"num_attention_heads\": 4, \"seq_length\": 16, \"vocab_size\": 7, \"init_method_std\": 0.1"
#define GPT2 SIZES ", \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1}"
#define LLAMA                                                                                      \
    SIZES ", \"normalization\": \"RMSNorm\", \"swiglu\": true, \"num_query_groups\": 2, "          \
          "\"position_embedding_type\": \"rope\", \"disable_bias_linear\": true}"
#define MOE                                                                                        \
    SIZES ", \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.02, \"moe_z_loss_coeff\": 0.005, "      \
          "\"moe_shared_expert_intermediate_size\": 16}"
#define TODAY                                                                                      \
    SIZES ", \"normalization\": \"RMSNorm\", \"swiglu\": true, \"num_query_groups\": 2, "          \
          "\"kv_channels\": 8, \"qk_layernorm\": true, \"qk_layernorm_across_heads\": true, "      \
          "\"position_embedding_type\": \"rope\", \"rotary_interleaved\": true, "                  \
          "\"rotary_scaling_type\": \"yarn\", \"rotary_scaling_factor\": 4, "                      \
          "\"original_max_position_embeddings\": 64, \"num_experts\": 8, \"moe_router_topk\": 4, " \
          "\"moe_router_score_function\": \"sigmoid\", \"moe_router_num_groups\": 4, "             \
          "\"moe_router_group_topk\": 2, \"moe_router_enable_expert_bias\": true, "                \
          "\"moe_shared_expert_intermediate_size\": 16, \"moe_shared_expert_gate\": true}"
#define NEWEST                                                                                     \
    SIZES ", \"normalization\": \"RMSNorm\", \"norm_placement\": \"sandwich\", "                   \
          "\"apply_layernorm_1p\": true, \"scale_embeddings\": true, "                             \
          "\"final_logit_softcapping\": 3.0, \"attn_logit_softcapping\": 2.0, "                    \
          "\"softmax_type\": \"learnable\", \"window_size\": 5, \"window_attn_skip_freq\": 2, "    \
          "\"position_embedding_type\": \"rope\", \"qk_layernorm\": true, "                        \
          "\"num_experts\": 4, \"add_expert_bias\": true, \"quick_geglu\": true, "                 \
          "\"activation_func_clamp_value\": 0.5, \"glu_linear_offset\": 1.0}"
#define DOCUMENTS                                                                                  \
    "data.reset_position_ids=true", "data.reset_attention_mask=true", "data.eod_mask_loss=true",   \
        "data.eod_token=3"
#define BY_DOCUMENTS "parallel.context_parallel_load_balancer=documents"
#define TYPE(form) "parallel.cp_comm_type=" form
#define SHARDING(name) "parallel.data_parallel_sharding_strategy=" name
#define FULL "train.recompute_granularity=full"
#define SELECTIVE(modules)                                                                         \
    "train.recompute_granularity=selective", "train.recompute_modules=[" modules "]"
#define OFFLOAD(modules)                                                                           \
    "train.fine_grained_activation_offloading=true", "train.offload_modules=[" modules "]"
#define IN_BF16 "train.precision=bf16"
#define FP16(scale) "train.precision=fp16", "train.initial_loss_scale=" scale
#define HOST "offload.experts=host"
#define KEPT(share) "offload.kept=" share
#define ORDER(name) "offload.order=" name
#define AFTER "offload.optimizer=after"
#define STATE "offload.optimizer_state=host"
#define RUNS(n) "parallel.moe_num_partitions=" n, "parallel.moe_partition_by=experts"

/* As by --set, over the case's own. */
typedef struct variant {
    const char *set[MAX_SET];
} variant;

typedef struct mesh_case {
    int world, batch;
    const char *model, *mesh;
    double bound; /* of losses and norms against the CPU's, relative */
    const char *set[MAX_SET];
    variant near[MAX_VARIANTS];  /* within the bound of the CPU's, too; up to an empty one */
    variant equal[MAX_VARIANTS]; /* the bits of the case itself */
    int steps, skipped;          /* 0: NUM_STEPS, none; the CPU is asked where none is skipped */
    const char *on_cpu;          /* set there beside; NULL: nothing */
} mesh_case;

static const mesh_case cases[] = {
    {4,
     2,
     TODAY,
     "tp=2,dp=2,binding=dp,ep=2,sp=1",
     1e-5,
     {NULL},
     .equal = {{{FULL}}, {{SELECTIVE("\"core_attn\", \"moe\"")}}}},
    {2, 2, NEWEST, "tp=2,sp=1", 1e-5, {NULL}, .equal = {{{SELECTIVE("\"core_attn\"")}}}},
    {2, 2, NEWEST, "cp=2", 1e-2, {IN_BF16}, .equal = {{{FULL}}}},
    {2, 2, TODAY, "cp=2", 1e-2, {IN_BF16}, .equal = {{{SELECTIVE("\"core_attn\"")}}}},
    {2,
     4,
     GPT2,
     "cp=2",
     1e-5,
     {NULL},
     .near = {{{TYPE("all_gather")}}, {{TYPE("a2a")}}},
     .equal = {{{FULL}},
               {{SELECTIVE("\"core_attn\", \"mlp\"")}},
               {{OFFLOAD("\"core_attn\", \"mlp\"")}}}},
    {4,
     2,
     LLAMA,
     "cp=4",
     1e-5,
     {DOCUMENTS, "train.calculate_per_token_loss=true"},
     .near = {{{BY_DOCUMENTS}},
              {{BY_DOCUMENTS, TYPE("all_gather")}},
              {{TYPE("a2a+p2p"), "parallel.hierarchical_context_parallel_sizes=[2, 2]"}}}},
    {4,
     2,
     GPT2,
     "tp=2,cp=2,sp=1",
     1e-5,
     {TYPE("a2a")},
     .near = {{{TYPE("p2p")}}},
     .equal = {{{SELECTIVE("\"mlp\"")}}}},
    {4,
     2,
     MOE,
     "cp=2,dp=2,binding=dp,ep=2",
     1e-2,
     {IN_BF16},
     .equal = {{{SHARDING("optim"), "train.split_master=false"}},
               {{SHARDING("optim_grads"), OFFLOAD("\"block\", \"moe\"")}},
               {{SHARDING("optim_grads_params"), SELECTIVE("\"moe\", \"core_attn\"")}}}},
    {2,
     8,
     GPT2,
     "dp=2",
     1e-5,
     {SHARDING("optim_grads")},
     .near = {{{STATE}}},
     .equal = {{{SHARDING("optim_grads_params")}},
               {{SHARDING("optim_grads_params"), FULL}},
               {{"parallel.overlap_grad_reduce=false"}}}},
    {2,
     4,
     LLAMA,
     "pp=2",
     1e-2,
     {DOCUMENTS, IN_BF16},
     .equal = {{{"device.cuda_graphs=false"}},
               {{FULL}},
               {{SELECTIVE("\"core_attn\", \"mlp\"")}},
               {{"train.split_master=false", OFFLOAD("\"block\"")}}}},
    {2,
     4,
     GPT2,
     "dp=2",
     1e-2,
     {STATE, IN_BF16, SHARDING("optim")},
     .near = {{{"offload.optimizer_state=device"}}},
     .equal = {{{"train.split_master=false"}}, {{SHARDING("no_shard")}}},
     .steps = 4},
    {1,
     1,
     MOE,
     "tp=1",
     1e-5,
     {HOST},
     .near = {{{"offload.experts=none"}}, {{STATE}}, {{STATE, "offload.experts=none"}}},
     .equal = {{{KEPT("0.5"), ORDER("demand")}},
               {{KEPT("0.25"), "offload.slots=3", AFTER}},
               {{ORDER("layer"), FULL}},
               {{KEPT("1"), SELECTIVE("\"moe\"")}}},
     .steps = 4},
    {2,
     8,
     MOE,
     "dp=2,binding=dp,ep=2",
     1e-2,
     {HOST, IN_BF16, "train.clip_grad=0"},
     .near = {{{"offload.experts=none"}}},
     .equal = {{{KEPT("0.5")}}, {{ORDER("layer"), AFTER}}, {{RUNS("2"), KEPT("0.25")}}},
     .steps = 3},
    {4,
     4,
     MOE,
     "tp=2,dp=2,binding=dp,ep=2,etp=2",
     1e-5,
     {HOST},
     .near = {{{"offload.experts=none"}}, {{"offload.experts=none", RUNS("2")}}},
     .equal = {{{KEPT("0.5")}}, {{ORDER("layer"), RUNS("2")}}}},
    {4,
     4,
     MOE,
     "pp=2,dp=2,binding=dp,ep=1",
     1e-5,
     {HOST, "train.clip_grad=0", SHARDING("optim")},
     .near = {{{"offload.experts=none"}}},
     .equal = {{{SHARDING("no_shard")}}, {{KEPT("0.25"), ORDER("demand")}}},
     .steps = 3},
    {2,
     2,
     MOE,
     "dp=2,binding=dp,ep=1",
     1e-2,
     {HOST, FP16("1024")},
     .near = {{{"offload.experts=none"}}, {{STATE}}, {{STATE, "offload.experts=none"}}},
     .equal = {{{KEPT("0.5")}}, {{AFTER}}},
     .steps = 4,
     .on_cpu = "train.precision=fp32"},
    {2,
     2,
     MOE,
     "dp=2,binding=dp,ep=1",
     1e-2,
     {HOST, FP16("8388608"), "train.hysteresis=1"},
     .near = {{{"offload.experts=none"}}, {{STATE}}, {{STATE, "offload.experts=none"}}},
     .equal = {{{KEPT("0.5")}}, {{AFTER}}},
     .steps = 7,
     .skipped = 4},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static bool is_empty(const variant *v)
{
    return v->set[0] == NULL;
}

static int steps_of(const mesh_case *c)
{
    return c->steps ? c->steps : NUM_STEPS;
}

static void train(weft_comm *part, const mesh_case *c, const char *device, const variant *v,
                  weft_step_result *out)
{
    mesh_training what = {.name = v && v->set[0] ? v->set[0] : device,
                          .model = c->model,
                          .mesh = c->mesh,
                          .batch = c->batch,
                          .steps = steps_of(c),
                          .set = {device}};
    mesh_set(&what, c->set, MAX_SET);
    if (c->on_cpu && strcmp(device, CPU) == 0)
        mesh_set(&what, &c->on_cpu, 1);
    if (v)
        mesh_set(&what, v->set, MAX_SET);
    mesh_run(part, &what, out);
}

/* Of norms, where losses have a bound. Where shares are others, ranks' sums in fp64 are joined in
 * another order. */
static double norm_bound(const variant *v, double bound)
{
    for (int i = 0; v && i < MAX_SET && v->set[i]; i++)
        if (bound == 0 && strncmp(v->set[i], SHARDING(""), strlen(SHARDING(""))) == 0)
            return 1e-12;
    return 10 * bound;
}

static void compare(const mesh_case *c, const variant *v, double bound,
                    const weft_step_result *reference, const weft_step_result *got)
{
    for (int s = 0; s < steps_of(c); s++) {
        EXPECT(got[s].scale.skipped == (s < c->skipped), "%s: step %d: skipped: %d", c->mesh, s + 1,
               got[s].scale.skipped);
        EXPECT(fabs(got[s].loss - reference[s].loss) <= bound * reference[s].loss &&
                   (got[s].scale.skipped || fabs(got[s].grad_norm - reference[s].grad_norm) <=
                                                norm_bound(v, bound) * reference[s].grad_norm) &&
                   got[s].loss_tokens == reference[s].loss_tokens,
               "%s with %s: step %d: loss %.17g, not %.17g; gradient norm %.17g, not %.17g",
               c->mesh, v && v->set[0] ? v->set[0] : "nothing more", s + 1, got[s].loss,
               reference[s].loss, got[s].grad_norm, reference[s].grad_norm);
    }
}

/* What is skipped is compared with other runs on the device. */
static void check(weft_comm *part, const mesh_case *c)
{
    weft_step_result reference[MAX_STEPS], cuda[MAX_STEPS], other[MAX_STEPS];
    train(part, c, CUDA, NULL, cuda);
    memcpy(reference, cuda, sizeof reference);
    if (c->skipped == 0)
        train(part, c, CPU, NULL, reference);
    compare(c, NULL, c->bound, reference, cuda);
    for (int i = 0; i < MAX_VARIANTS && !is_empty(&c->near[i]); i++) {
        train(part, c, CUDA, &c->near[i], other);
        compare(c, &c->near[i], c->bound, reference, other);
    }
    for (int i = 0; i < MAX_VARIANTS && !is_empty(&c->equal[i]); i++) {
        train(part, c, CUDA, &c->equal[i], other);
        compare(c, &c->equal[i], 0, cuda, other);
    }
}

int main(void)
{
    const char *why = NULL;
    weft_comm *world = world_begin(4);
    if (weft_device_num_cuda(&why) == 0) {
        if (weft_comm_rank(world) == 0)
            printf("skipped: no CUDA device: %s\n", why);
        weft_comm_destroy(world);
        return 77;
    }
    for (int i = 0; i < NUM_CASES; i++) {
        weft_comm *part = world_part(world, cases[i].world);
        if (part)
            check(part, &cases[i]);
        weft_comm_destroy(part);
    }
    return world_finish(world);
}
