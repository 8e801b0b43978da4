/* The footprint is what a trainer takes: by purpose and in all the device's high-water marks after
 * two steps, on many meshes. Routing is balanced.
 *
 *   test_footprint [all]    all: each model, and each option, on every mesh, not on one in turn
 *
 * Runs with 4 ranks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/training/trainer.h"
#include "layers/describe/rehearse.h"
#include "layers/moe/internal.h"
#include "layers/outline/footprint.h"
#include "layers/pass/pass.h"
#include "tests/world.h"
#include "tests/layers/training.h"

#define SIZES                                                                                      \
    "\"hidden_size\": 16, \"ffn_hidden_size\": 40, \"num_attention_heads\": 4, "                   \
    "\"seq_length\": 8, \"vocab_size\": 29, "
#define GPT2 SIZES "\"num_layers\": 5"
#define LLAMA                                                                                      \
    SIZES "\"num_layers\": 4, \"normalization\": \"RMSNorm\", \"swiglu\": true, "                  \
          "\"position_embedding_type\": \"rope\", \"disable_bias_linear\": true, "                 \
          "\"untie_embeddings_and_output_weights\": true, \"hidden_dropout\": 0.1"
#define ROUTED ", \"num_experts\": 4, \"moe_router_topk\": 2"
#define EVERY_SECOND ", \"moe_layer_freq\": 2"
#define MOE ROUTED ", \"moe_router_forced_load\": 1"

#define WIDE                                                                                       \
    "\"hidden_size\": 32, \"ffn_hidden_size\": 32, \"moe_ffn_hidden_size\": 256, "                 \
    "\"num_attention_heads\": 4, \"seq_length\": 48, \"vocab_size\": 32, \"num_layers\": 4, "      \
    "\"init_method_std\": 0.2"

/* Dense layers take more than the mixture's under balanced routing, and less than under its own. */
#define THIRD_ROUTED                                                                               \
    "\"hidden_size\": 32, \"ffn_hidden_size\": 256, \"moe_ffn_hidden_size\": 60, "                 \
    "\"num_attention_heads\": 4, \"seq_length\": 48, \"vocab_size\": 32, \"num_layers\": 4, "      \
    "\"moe_layer_freq\": [0, 0, 1, 0], \"init_method_std\": 0.2" ROUTED

#define WIDER                                                                                      \
    "\"hidden_size\": 64, \"ffn_hidden_size\": 256, \"num_attention_heads\": 4, "                  \
    "\"seq_length\": 8, \"vocab_size\": 256, \"num_layers\": 12, "                                 \
    "\"untie_embeddings_and_output_weights\": true"

#define IN_CHUNKS(n) "\"tp_comm_overlap\": true, \"tp_comm_overlap_chunks\": " #n
#define PAIRS "\"overlap_moe_expert_parallel_comm\": true"
#define BY_EXPERTS "\"moe_num_partitions\": 2, \"moe_partition_by\": \"experts\""
/* Behind section "parallel". */
#define BEYOND "}, \"offload\": {\"experts\": \"host\""

#define THREE_PARTS                                                                                \
    "\"moe_num_partitions\": 3, \"moe_memory_reuse\": \"s1\", "                                    \
    "\"use_distributed_optimizer\": true"

static const char *const dense_meshes[] = {"tp=1,dp=4",
                                           "tp=4,dp=1",
                                           "tp=2,dp=2,sp=1",
                                           "tp=1,pp=4",
                                           "tp=2,pp=2",
                                           "tp=1,pp=2,dp=2",
                                           "tp=2,pp=2,sp=1,dp=1",
                                           "tp=4,sp=1",
                                           "dp=4,zero=2",
                                           "dp=4,zero=3",
                                           "tp=2,dp=2,sp=1,zero=3",
                                           "pp=2,dp=2,vp=2,zero=3",
                                           "cp=4",
                                           "tp=2,cp=2,sp=1",
                                           "pp=2,cp=2"};
static const char *const moe_meshes[] = {"tp=4,binding=tp",
                                         "tp=2,dp=2,binding=tp,sp=1",
                                         "tp=2,pp=2,binding=tp",
                                         "dp=4,binding=dp,ep=4",
                                         "dp=4,binding=dp,ep=2",
                                         "dp=2,pp=2,binding=dp,ep=2",
                                         "tp=2,dp=2,binding=dp,ep=2,etp=2,sp=1",
                                         "dp=4,binding=dp,ep=2,zero=2",
                                         "dp=4,binding=dp,ep=2,zero=3",
                                         "dp=4,binding=dp,ep=4,zero=3",
                                         "cp=2,dp=2,binding=dp,ep=2",
                                         "cp=2,tp=2,binding=tp"};

#define AGAIN(method, num)                                                                         \
    "\"recompute_granularity\": \"full\", \"recompute_method\": \"" method                         \
    "\", \"recompute_num_layers\": " #num
#define MODULES(names)                                                                             \
    "\"recompute_granularity\": \"selective\", \"recompute_modules\": [" names "]"
static const char *const recomputes[] = {
    AGAIN("uniform", 1), AGAIN("uniform", 2), AGAIN("block", 1),
    MODULES("\"core_attn\", \"shared_experts\""), MODULES("\"mlp\", \"moe\"")};
#define OUT(names) "\"fine_grained_activation_offloading\": true, \"offload_modules\": [" names "]"
static const char *const offloads[] = {
    OUT("\"block\""), OUT("\"core_attn\", \"mlp\""), OUT("\"moe\""),
    OUT("\"block\"") ", \"recompute_granularity\": \"selective\", "
                     "\"recompute_modules\": [\"core_attn\"]"};
static const char *const offload_meshes[] = {"pp=4", "pp=2,dp=2,vp=2,zero=3,binding=dp,ep=2",
                                             "tp=2,cp=2,sp=1,binding=tp", "dp=4,binding=dp,ep=2"};
static const char *const again_meshes[] = {"dp=4,binding=dp,ep=2", "tp=2,pp=2,sp=1,binding=tp",
                                           "pp=2,vp=2,dp=2,binding=dp,ep=2"};

/* Virtual stages of a rank share slots, also where their layers differ: the first has the
 * embedding, the last the head, others are a mixture's or longer. */
#define SHARDED "tp=2,dp=2,binding=dp,ep=2,etp=2"
#define FORM(name, num) "\"moe_all_to_all\": \"" name "\", \"moe_all_to_all_chunks\": " #num
#define SCHEDULE(name) "\"pipeline_schedule\": \"" name "\""
#define LAYOUT(pp, text)                                                                           \
    ", \"pipeline_model_parallel_size\": " #pp ", \"pipeline_model_parallel_layout\": \"" text "\""
#define DENSE_FIRST ", \"moe_layer_freq\": [0, 1, 1, 1, 1]"
static const struct {
    const char *model, *mesh, *parallel, *train;
} shared[] = {
    {GPT2, "pp=4", SCHEDULE("interleaved") LAYOUT(4, "E|t|t||t|t|t|L"), NULL},
    {GPT2, "pp=2,dp=2", SCHEDULE("zb_h1") LAYOUT(2, "Et|ttt|t|L"), NULL},
    {LLAMA, "pp=4", SCHEDULE("zbv") LAYOUT(4, "E|t|t||t|t||L"), NULL},
    {LLAMA MOE ", \"mtp_num_layers\": 1", "pp=2,dp=2,binding=dp,ep=2", SCHEDULE("1f1b"), NULL},
    {LLAMA MOE ", \"mtp_num_layers\": 1", "pp=2,tp=2,binding=tp", SCHEDULE("1f1b"),
     AGAIN("uniform", 1)},
    {GPT2, "pp=2,vp=2,tp=2", SCHEDULE("v_half"), OUT("\"block\"")},
    {GPT2 MOE DENSE_FIRST, "pp=2,vp=2,dp=2,binding=dp,ep=2", SCHEDULE("dualpipev"), NULL},
    {GPT2 MOE DENSE_FIRST, "pp=2,vp=2,dp=2,binding=dp,ep=2", PAIRS, NULL},
    {LLAMA MOE, "dp=4,binding=dp,ep=2,zero=3", PAIRS, NULL},
    {GPT2 MOE DENSE_FIRST, "pp=2,vp=2,dp=2,binding=dp,ep=2", SCHEDULE("zb_h1"), AGAIN("block", 1)},
    {GPT2 MOE DENSE_FIRST, "pp=2,vp=2,dp=2,binding=dp,ep=2", SCHEDULE("auto"), OUT("\"moe\"")},
    {LLAMA MOE, "pp=4,vp=1", SCHEDULE("zb_h1"), MODULES("\"mlp\"")},
    {GPT2, "tp=2,dp=2", IN_CHUNKS(2), NULL},
    {LLAMA, "tp=2,pp=2,sp=1", IN_CHUNKS(4), MODULES("\"mlp\"")},
    {GPT2, "tp=2,pp=2,sp=1,schedule=zb_h1", IN_CHUNKS(2), NULL},
    {GPT2 MOE DENSE_FIRST, "tp=2,dp=2,sp=1,binding=dp,ep=4", IN_CHUNKS(2), OUT("\"block\"")},
    {GPT2 MOE DENSE_FIRST, "tp=2,dp=2,sp=1,binding=dp,ep=4", IN_CHUNKS(2) ", " PAIRS, NULL},
    {GPT2 MOE, SHARDED, FORM("o1_paper", 1), NULL},
    {LLAMA MOE, SHARDED ",sp=1", FORM("o1", 1) ", \"moe_num_partitions\": 2", NULL},
    {GPT2 MOE, SHARDED ",sp=1", FORM("o2", 3), MODULES("\"moe\"")},
    {LLAMA MOE, SHARDED, FORM("o3", 2), OUT("\"moe\"")},
    {GPT2 MOE, SHARDED ",sp=1", FORM("o3", 4) ", " PAIRS, NULL},
    {GPT2 MOE, SHARDED, FORM("direct", 2), NULL},
    {GPT2 MOE, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1", PAIRS, NULL},
};

/* What was reserved is filled to the brim, and nothing came on top. */
static void check_stack(const training_case *c, const char *name, const weft_stack *stack)
{
    size_t reserved = 0;
    for (int b = 0; b < stack->num_blocks; b++)
        reserved += stack->blocks[b].size;
    EXPECT(stack->num_blocks <= 1 && stack->peak_bytes == reserved,
           "%s on %s: %s: %zu bytes in %d blocks, %zu used", c->name, c->mesh, name, reserved,
           stack->num_blocks, stack->peak_bytes);
}

static void check_stacks(const training_case *c, const weft_model *model)
{
    for (int i = 0; i < model->setup.num_passes; i++)
        check_stack(c, "stash", &model->memory.passes[i].stash);
    for (int i = 0; i < WEFT_PAIR_STRANDS; i++)
        check_stack(c, "recomputed", &model->memory.recomputed[i].stack);
    for (int i = 0; i < model->memory.offload.num_slots; i++)
        check_stack(c, "a ring's slot", &model->memory.offload.slots[i].stack);
}

static int size_of(const char *mesh, const char *axis)
{
    const char *at = strstr(mesh, axis);
    return at ? atoi(at + strlen(axis)) : 1;
}

/* Micro-batches of a step: the first and another, or as many as a pipeline has in flight. More take
 * no other memory. */
static int batch_of(const char *mesh)
{
    const int pp = size_of(mesh, "pp="),
              dp = 4 / (size_of(mesh, "tp=") * size_of(mesh, "cp=") * pp);
    return 2 * dp * pp;
}

static void check(training_case *c, weft_comm *world)
{
    training t;
    weft_step_result result;
    weft_footprint planned;
    weft_device_stats stats;
    uint64_t modules = 0;
    c->global_batch = batch_of(c->mesh);
    training_start(&t, c, world);
    for (int i = 0; i < 2; i++)
        training_step(&t, &result);
    EXPECT_OK(weft_trainer_footprint(&t.trainer, &planned));
    weft_device_get_stats(t.trainer.device, &stats);
    for (int p = 0; p < WEFT_MEMORY_STAGING; p++) {
        size_t used = weft_device_memory_use(t.trainer.device, (weft_memory_purpose)p).bytes_peak;
        EXPECT(planned.bytes[p] == used, "%s on %s: %s: planned %llu, used %zu", c->name, c->mesh,
               weft_memory_text((weft_memory_purpose)p), (unsigned long long)planned.bytes[p],
               used);
    }
    EXPECT(planned.device_bytes == stats.bytes_peak, "%s on %s: planned %llu, at most %zu in use",
           c->name, c->mesh, (unsigned long long)planned.device_bytes, stats.bytes_peak);
    check_stacks(c, t.trainer.model);
    EXPECT(planned.bytes[WEFT_MEMORY_PINNED] == stats.pinned_bytes_peak,
           "%s on %s: planned %llu of pinned memory, at most %zu in use", c->name, c->mesh,
           (unsigned long long)planned.bytes[WEFT_MEMORY_PINNED], stats.pinned_bytes_peak);
    for (int i = 0; i < planned.num_modules; i++)
        modules += planned.modules[i].bytes;
    EXPECT(modules == planned.bytes[WEFT_MEMORY_ACTIVATIONS], "modules do not sum");
    training_release(&t);
}

/* A step of one micro-batch a rank: its load is the mean of its layers', and a layer's that of its
 * group's fullest rank. */
static void check_rank_load(const training *t, double rank_load, const char *mesh)
{
    enum { MOST = 8 };
    const weft_trainer *trainer = &t->trainer;
    weft_model *model = trainer->model;
    const bool travels = weft_model_moe_exchanges(model);
    const weft_axis axis = travels ? WEFT_AXIS_EP : WEFT_AXIS_TP;
    double own[MOST] = {0}, all[4 * MOST], sum = 0;
    int num_layers = 0, num = 0;
    for (int i = 0; i < model->tree.num_members && num_layers < MOST; i++) {
        const weft_layer *layer = model->tree.members[i].layer;
        if (strcmp(layer->ops->kind, "moe") != 0)
            continue;
        const weft_moe_state *state = weft_pass_state(&model->memory.passes[0], layer);
        weft_moe_dims d = weft_moe_dims_of(&model->options, &model->shape);
        own[num_layers++] = (double)state->cut.num_rows /
                            (double)weft_moe_balanced_rows(&d, 2, (size_t)model->shape.ep);
    }
    EXPECT_OK(weft_comm_all_gather_host(trainer->world, own, all, sizeof own));
    for (int rank = 0; rank < 4; rank++) {
        const weft_coords at = weft_mesh_coords(&trainer->groups.mesh, rank);
        for (int l = 0; l < num_layers; l++, num++) {
            double most = 0;
            for (int i = 0; i < at.size[axis]; i++) {
                int member = weft_mesh_member(&trainer->groups.mesh, axis, &at, i);
                most = fmax(most, all[member * MOST + l]);
            }
            sum += most;
        }
    }
    EXPECT(num > 0 && fabs(rank_load - sum / num) < 1e-12 * sum, "%s: load %.9g, not %.9g", mesh,
           rank_load, sum / num);
}

/* Sets the load of the MoE layer inside a layer of the list, if there is one; returns whether it is
 * uneven. */
static int load_of(const weft_model *model, weft_pass *pass, int listed, double *out)
{
    for (int m = 0; m < model->tree.num_members; m++) {
        const weft_layer *layer = model->tree.members[m].layer;
        const int parent = model->tree.members[m].parent;
        if (strcmp(layer->ops->kind, "moe") != 0 ||
            model->tree.members[parent].layer != model->tree.layers[listed])
            continue;
        const weft_moe_state *state = weft_pass_state(pass, layer);
        const weft_moe_dims d = weft_moe_dims_of(&model->options, &model->shape);
        const size_t balanced = d.tokens * 2 / (d.exchange ? 1 : (size_t)model->shape.ep);
        *out = (double)state->cut.num_rows / (double)balanced;
        return state->cut.num_rows != balanced;
    }
    return 0;
}

/* What the passes stashed last is what their layers say at the load that came. */
static void check_routed(const char *mesh, int global_batch, weft_comm *world)
{
    training t;
    weft_step_result result;
    size_t uneven = 0;
    training_start(&t,
                   &(training_case){.name = "routed",
                                    .model = GPT2 ROUTED,
                                    .mesh = mesh,
                                    .global_batch = global_batch,
                                    .parallel = "\"moe_num_partitions\": 1"},
                   world);
    training_step(&t, &result);
    check_rank_load(&t, result.rank_load, mesh);
    weft_model *model = t.trainer.model;
    for (int i = 0; i < model->setup.num_passes; i++) {
        weft_pass *pass = &model->memory.passes[i];
        size_t listed = 0;
        for (int l = pass->first; l < pass->end; l++) {
            weft_shape shape = model->shape;
            weft_description *layers;
            int count;
            uneven += load_of(model, pass, l, &shape.moe_load);
            EXPECT_OK(weft_rehearse_model(&model->options, NULL, &shape, NULL, &layers, &count));
            listed += layers[l].cost.activation_bytes;
            weft_descriptions_release(layers, count);
        }
        EXPECT(listed == pass->stash.used_bytes, "%s: %zu bytes listed, %zu stashed", mesh, listed,
               pass->stash.used_bytes);
    }
    EXPECT(uneven > 0, "%s: routing is balanced", mesh);
    training_release(&t);
}

/* With real routing: the bytes that were taken are those planned at the loads that came, within 1
 * %. Here experts are most of a layer, so that a wrong load shows. */
static void check_unbalanced(const char *model, const char *mesh, const char *parallel,
                             const char *train, bool bf16, weft_comm *world)
{
    training t;
    weft_step_result result;
    weft_footprint balanced, planned;
    double grown = 0;
    training_start(&t,
                   &(training_case){.name = "real routing",
                                    .model = model,
                                    .mesh = mesh,
                                    .global_batch = 8,
                                    .bf16 = bf16,
                                    .parallel = parallel,
                                    .train = train},
                   world);
    for (int i = 0; i < 2; i++)
        training_step(&t, &result);
    EXPECT_OK(weft_trainer_footprint(&t.trainer, &balanced));
    EXPECT_OK(weft_trainer_footprint_at_load(&t.trainer, &planned));
    for (int p = 0; p < WEFT_NUM_MEMORY_PURPOSES; p++) {
        double used = (double)weft_trainer_memory_use(&t.trainer, (weft_memory_purpose)p);
        if (p == WEFT_MEMORY_STAGING)
            continue;
        EXPECT((double)planned.bytes[p] >= 0.99 * used && (double)planned.bytes[p] <= 1.01 * used,
               "%s, %s%s: %s: planned %llu (%llu balanced), used %.0f", mesh, parallel,
               train ? train : "", weft_memory_text((weft_memory_purpose)p),
               (unsigned long long)planned.bytes[p], (unsigned long long)balanced.bytes[p], used);
        grown = fmax(grown, used / (double)(balanced.bytes[p] + 1));
    }
    EXPECT_OK(weft_comm_all_reduce_host(world, &grown, 1, WEFT_F64, WEFT_REDUCE_MAX));
    EXPECT(grown > 1.02, "%s, %s: no rank took more than was planned for balanced routing", mesh,
           parallel);
    training_release(&t);
}

/* Bytes a parameter in bf16, d its own gradient group: 18, or 16 with the split master; 6 + 12 / d,
 * or 6 + 10 / d; 2 + 16 / d, or 2 + 14 / d, and the gradients of two layers; 18 / d, or 16 / d, and
 * the gradients and weights of two layers. Padding, norms of the head and what is not divided by d
 * come to less than 1 %. */
static void check_bytes(bool split, int zero, weft_comm *world)
{
    training t;
    weft_step_result result;
    char mesh[32];
    const double d = 4;
    double elements = 0, unit = 0, largest = 0;
    int layer = -1;
    snprintf(mesh, sizeof mesh, "dp=4,zero=%d", zero);
    training_start(
        &t,
        &(training_case){.name = "bytes a parameter",
                         .model = WIDER,
                         .mesh = mesh,
                         .global_batch = 4,
                         .bf16 = true,
                         .train = split ? "\"split_master\": true" : "\"split_master\": false"},
        world);
    training_step(&t, &result);
    const weft_parameters *parameters = weft_model_parameters(t.trainer.model);
    for (int i = 0; i < weft_parameters_count(parameters); i++) {
        const weft_placed *p = weft_parameters_at(parameters, i);
        unit = (p->layer == layer ? unit : 0) + (double)p->count;
        layer = p->layer;
        largest = fmax(largest, unit);
        elements += (double)p->count;
    }
    const double states = split ? 10 : 12;
    const double wanted[] = {(6 + states) * elements, (6 + states / d) * elements,
                             (2 + (4 + states) / d) * elements + 2 * 4 * largest,
                             (6 + states) / d * elements + 2 * (4 + 2) * largest};
    double used = 0;
    for (int p = 0; p < WEFT_MEMORY_STAGING; p++)
        if (p == WEFT_MEMORY_WEIGHTS || p == WEFT_MEMORY_GRADIENTS || p == WEFT_MEMORY_OPTIMIZER)
            used += (double)weft_trainer_memory_use(&t.trainer, (weft_memory_purpose)p);
    EXPECT(fabs(used / wanted[zero] - 1) < 0.01,
           "zero %d, split %d: %.4g bytes a parameter, not %.4g", zero, split, used / elements,
           wanted[zero] / elements);
    if (weft_comm_rank(world) == 0)
        printf("zero=%d%s: %.3f bytes a parameter, %.3f without rings\n", zero,
               split ? ", split master" : "", used / elements,
               (used - (zero == 2   ? 8 * largest
                        : zero == 3 ? 12 * largest
                                    : 0)) /
                   elements);
    training_release(&t);
}

/* Whether option i runs on mesh k: each does on one of so many in turn. */
static bool all;
static bool runs(size_t i, size_t k, size_t meshes)
{
    return all || (i + k) % meshes == 0;
}

int main(int argc, char **argv)
{
    static const char *const parallel[] = {NULL, "\"use_distributed_optimizer\": true",
                                           "\"pipeline_schedule\": \"gpipe\""};
    static const char *const moe_parallel[] = {
        "\"moe_num_partitions\": 1", "\"moe_num_partitions\": 2, \"moe_memory_reuse\": \"s4\"",
        THREE_PARTS};
    weft_comm *world = world_begin(0);
    all = argc > 1 && strcmp(argv[1], "all") == 0;
    for (size_t i = 0; i < 2 * sizeof dense_meshes / sizeof *dense_meshes; i++)
        if (runs(i, i / 2, 2))
            check(&(training_case){.name = i % 2 ? "a Llama" : "a GPT-2",
                                   .model = i % 2 ? LLAMA : GPT2,
                                   .mesh = dense_meshes[i / 2],
                                   .bf16 = i % 4 > 1,
                                   .parallel = parallel[i % 3]},
                  world);
    for (size_t i = 0; i < 2 * sizeof moe_meshes / sizeof *moe_meshes; i++)
        if (runs(i, i / 2, 2))
            check(&(training_case){.name = "a mixture",
                                   .model = i % 2 ? LLAMA MOE : GPT2 MOE,
                                   .mesh = moe_meshes[i / 2],
                                   .bf16 = i % 4 > 1,
                                   .parallel = strstr(moe_meshes[i / 2], "binding=dp")
                                                   ? moe_parallel[i % 3]
                                                   : parallel[i % 3]},
                  world);
    static const char *const muon_meshes[] = {"tp=2,dp=2,sp=1,binding=dp,ep=2,etp=2",
                                              "dp=4,binding=dp,ep=2,zero=0", "tp=4,sp=1,binding=tp",
                                              "pp=2,dp=2"};
    for (int i = 0; i < 4; i++)
        check(&(training_case){.name = "Muon",
                               .model = i % 2 ? LLAMA MOE : GPT2 MOE,
                               .mesh = muon_meshes[i],
                               .bf16 = i < 2,
                               .train = "\"optimizer\": \"muon\""},
              world);
    static const char *const by_experts[] = {
        BY_EXPERTS, BY_EXPERTS ", \"moe_memory_reuse\": \"s4\"", BY_EXPERTS BEYOND};
    for (size_t i = 0; i < 6; i++)
        if (runs(i, 0, 2))
            check(&(training_case){.name = "experts in runs",
                                   .model = i % 2 ? LLAMA MOE : GPT2 MOE,
                                   .mesh = i < 3 ? "dp=4,binding=dp,ep=2"
                                                 : "tp=2,dp=2,binding=dp,ep=2,etp=2,sp=1",
                                   .bf16 = i < 3,
                                   .parallel = by_experts[i % 3]},
                  world);
    for (size_t i = 0; i < sizeof recomputes / sizeof *recomputes; i++)
        for (size_t k = 0; k < sizeof again_meshes / sizeof *again_meshes; k++)
            if (runs(i, k, 3))
                check(&(training_case){.name = recomputes[i],
                                       .model = k % 2 ? LLAMA MOE : GPT2 MOE,
                                       .mesh = again_meshes[k],
                                       .bf16 = i % 2,
                                       .train = recomputes[i]},
                      world);
    for (size_t i = 0; i < sizeof offloads / sizeof *offloads; i++)
        for (size_t k = 0; k < sizeof offload_meshes / sizeof *offload_meshes; k++)
            if (runs(i, k, 4))
                check(&(training_case){.name = offloads[i],
                                       .model = k % 2 ? LLAMA MOE : GPT2 MOE,
                                       .mesh = offload_meshes[k],
                                       .bf16 = i % 2,
                                       .train = offloads[i]},
                      world);
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        check(&(training_case){.name = shared[i].parallel,
                               .model = shared[i].model,
                               .mesh = shared[i].mesh,
                               .bf16 = i % 2,
                               .parallel = shared[i].parallel,
                               .train = shared[i].train},
              world);
    for (int dealt = 0; dealt < 2; dealt++)
        for (int pp = 1; pp <= 2; pp++)
            check(&(training_case){.name = "documents",
                                   .model = LLAMA,
                                   .mesh = pp == 2 ? "pp=2,cp=2" : "cp=4,zero=3",
                                   .bf16 = dealt,
                                   .parallel = dealt ? "\"context_parallel_load_balancer\": "
                                                       "\"documents\""
                                                     : NULL,
                                   .documents = true},
                  world);
    for (int zero = 0; zero < 4; zero++)
        for (int split = 0; split < 2; split++)
            check_bytes(split, zero, world);
    enum {
        ALL,
        SECONDS /* every second layer is a mixture */,
        THIRD /* the third */,
        HEAD /* the head's, too */,
        NIGHTLY
    };
    static const char *const routed[] = {
        WIDE ROUTED, WIDE ROUTED EVERY_SECOND, THIRD_ROUTED,
        WIDE ROUTED ", \"mtp_num_layers\": 1, \"position_embedding_type\": \"rope\"", WIDE ROUTED};
    static const struct {
        const char *mesh, *parallel, *train;
        int kind;
    } unbalanced[] = {
        {"tp=4,binding=tp", "\"moe_num_partitions\": 1", NULL, ALL},
        {"tp=2,dp=2,binding=tp,sp=1", "\"moe_num_partitions\": 1", NULL, NIGHTLY},
        {"tp=2,pp=2,binding=tp", "\"moe_num_partitions\": 1", NULL, ALL},
        {"dp=4,binding=dp,ep=4", "\"moe_num_partitions\": 1", NULL, ALL},
        {"dp=4,binding=dp,ep=2", "\"moe_num_partitions\": 2", NULL, ALL},
        {"dp=4,binding=dp,ep=4", "\"moe_num_partitions\": 4, \"moe_memory_reuse\": \"s1\"", NULL,
         ALL},
        {"dp=4,binding=dp,ep=4", "\"moe_num_partitions\": 3, \"moe_memory_reuse\": \"s2\"", NULL,
         NIGHTLY},
        {"dp=4,binding=dp,ep=2", "\"moe_num_partitions\": 2, \"moe_memory_reuse\": \"s3\"", NULL,
         ALL},
        {"dp=4,binding=dp,ep=4", "\"moe_num_partitions\": 4, \"moe_memory_reuse\": \"s4\"", NULL,
         ALL},
        {"dp=2,pp=2,binding=dp,ep=2", "\"moe_num_partitions\": 1", NULL, NIGHTLY},
        {"dp=2,pp=2,binding=dp,ep=2", "\"moe_num_partitions\": 2, \"pipeline_schedule\": \"gpipe\"",
         NULL, 0},
        {"tp=2,dp=2,binding=dp,ep=2,etp=2", "\"moe_num_partitions\": 1", NULL, NIGHTLY},
        {"tp=2,dp=2,binding=dp,ep=2,etp=2,sp=1", "\"moe_num_partitions\": 2", NULL, ALL},
        {"dp=4,binding=dp,ep=4", "\"moe_num_partitions\": 1", AGAIN("uniform", 2), ALL},
        {"dp=4,binding=dp,ep=4", "\"moe_num_partitions\": 1", AGAIN("uniform", 4), NIGHTLY},
        {"tp=2,pp=2,binding=tp", "\"moe_num_partitions\": 1", AGAIN("uniform", 2), ALL},
        {"dp=4,binding=dp,ep=2", "\"moe_num_partitions\": 2", AGAIN("block", 2), NIGHTLY},
        {"dp=4,binding=dp,ep=4", "\"moe_num_partitions\": 1", MODULES("\"moe\""), ALL},
        {"cp=2,dp=2,binding=dp,ep=4", "\"moe_num_partitions\": 1", AGAIN("uniform", 2), ALL},
        {"cp=4,binding=dp,ep=4", "\"moe_num_partitions\": 1", OUT("\"block\""), SECONDS},
        {"dp=4,binding=dp,ep=4", "\"moe_num_partitions\": 1", OUT("\"moe\""), SECONDS},
        {"dp=4,binding=dp,ep=4", "\"moe_num_partitions\": 1", OUT("\"moe\""), NIGHTLY},
        {"dp=4,binding=dp,ep=2", "\"moe_num_partitions\": 2", OUT("\"block\""), ALL},
        {"dp=2,pp=2,binding=dp,ep=2", "\"moe_num_partitions\": 1", OUT("\"moe\""), NIGHTLY},
        {"dp=4,binding=dp,ep=4", PAIRS, NULL, ALL},
        {"dp=2,pp=2,binding=dp,ep=2", PAIRS, NULL, ALL},
        {"dp=2,pp=2,binding=dp,ep=2,schedule=zb_h1", PAIRS, NULL, ALL},
        {"dp=4,binding=dp,ep=4", PAIRS ", \"moe_num_partitions\": 3", NULL, ALL},
        {"dp=4,binding=dp,ep=2", PAIRS ", \"moe_num_partitions\": 2, \"moe_memory_reuse\": \"s4\"",
         NULL, 0},
        {"dp=4,binding=dp,ep=2,zero=3", PAIRS, AGAIN("uniform", 2), ALL},
        {"dp=4,binding=dp,ep=4", PAIRS, MODULES("\"moe\""), ALL},
        {"dp=4,binding=dp,ep=2", BY_EXPERTS, NULL, NIGHTLY},
        {"dp=4,binding=dp,ep=2", BY_EXPERTS ", \"moe_memory_reuse\": \"s1\"", NULL, ALL},
        {"dp=4,binding=dp,ep=2", BY_EXPERTS BEYOND, NULL, ALL},
        {"dp=4,binding=dp,ep=2", BY_EXPERTS BEYOND, MODULES("\"moe\""), ALL},
        /* Slots made for dense chunks serve the mixture's, too. */
        {"pp=2,dp=2,binding=dp,ep=2", SCHEDULE("interleaved") LAYOUT(2, "Et|t|t|tL"), NULL, THIRD},
        {"pp=2,dp=2,binding=dp,ep=2", PAIRS ", " SCHEDULE("interleaved") LAYOUT(2, "Et|t|t|tL"),
         NULL, THIRD},
        {"dp=4,binding=dp,ep=2", BY_EXPERTS BEYOND, NULL, HEAD},
        {"dp=4,binding=dp,ep=2", PAIRS, NULL, HEAD},
        {"tp=4,binding=tp", "\"moe_num_partitions\": 1", NULL, HEAD},
        {SHARDED, FORM("o1_paper", 1) ", \"moe_num_partitions\": 1", NULL, ALL},
    };
    for (size_t i = 0; i < sizeof unbalanced / sizeof *unbalanced; i++)
        if (all || unbalanced[i].kind != NIGHTLY)
            check_unbalanced(routed[unbalanced[i].kind], unbalanced[i].mesh, unbalanced[i].parallel,
                             unbalanced[i].train, i % 2, world);
    check_routed("tp=4,binding=tp", 1, world);
    check_routed("dp=4,binding=dp,ep=4", 4, world);
    check_routed("dp=4,binding=dp,ep=2", 4, world);
    return world_finish(world);
}
