#include "tests/launcher/problems.h"

#include <stdio.h>
#include <string.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

static uint64_t state = 20231123;

uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static void draw_cluster(problem *p)
{
    static const int nodes[] = {1, 1, 2, 3}, each[] = {1, 2, 4};
    static const double memory[] = {3e8, 5e8, 6e8, 8e8, 2e9}, links[] = {1e9, 1e10, 1e11},
                        hosts[] = {1e10, 1e11, 1e11, 1e12}, buses[] = {2e9, 2e10};
    snprintf(
        p->cluster, sizeof p->cluster,
        "{\"num_nodes\": %d, \"ranks_per_node\": %d, "
        "\"device\": {\"memory_bytes\": %.0f, \"reserved_bytes\": 2.6e8, "
        "\"memory_bandwidth\": 2e12, \"launch_us\": %d, \"multiprocessors\": 108, "
        "\"peak\": {\"fp32\": 2e13, \"bf16\": 3e14, \"fp16\": 3e14}}, "
        "\"inside\": {\"bandwidth\": %g, \"latency_us\": 2}, "
        "\"between\": {\"cards\": 1, \"bandwidth\": %g, \"latency_us\": 5}, "
        "\"host\": {\"memory_bytes\": 1e11, \"memory_bandwidth\": %g, \"link_bandwidth\": %g}}",
        PICK(nodes), PICK(each), PICK(memory), 1 + (int)draw(5), 10 * PICK(links), PICK(links),
        PICK(hosts), PICK(buses));
}

static void draw_config(problem *p)
{
    static const int layers[] = {1, 2, 3, 4, 6, 8}, hidden[] = {64, 128, 256}, heads[] = {2, 4},
                     batches[] = {4, 6, 8, 12}, lengths[] = {32, 64, 256};
    static const int freqs[] = {1, 1, 2};
    static const char *const precisions[] = {"bf16", "bf16", "fp32"};
    char experts[96] = "";
    if (draw(2))
        snprintf(experts, sizeof experts, ", \"num_experts\": %d, \"moe_layer_freq\": %d",
                 2 << draw(3), PICK(freqs));
    snprintf(p->config, sizeof p->config,
             "{\"model\": {\"num_layers\": %d, \"hidden_size\": %d, \"num_attention_heads\": %d, "
             "\"seq_length\": %d, \"vocab_size\": %d%s%s}, "
             "\"train\": {\"global_batch_size\": %d, \"train_iters\": 1, \"precision\": \"%s\"}, "
             "\"parallel\": {\"ddp_bucket_size\": %d}, "
             "\"data\": {\"mock_data\": true}, \"device\": {\"kind\": \"cuda\"}}",
             PICK(layers), PICK(hidden), PICK(heads), PICK(lengths), 256 << draw(8), experts,
             draw(2) ? ", \"swiglu\": true" : "", PICK(batches), PICK(precisions),
             1 << (10 + draw(10)));
}

/* Experts beyond device memory, which pairs do not have. */
static void draw_tier(problem *p)
{
    static const char *const tiers[] = {"offload.experts=host", "offload.experts=host",
                                        "offload.experts=auto", "offload.experts=file"},
                             *const kept[] = {"offload.kept=0", "offload.kept=0.5",
                                              "offload.kept=-1"},
                             *const orders[] = {"offload.order=demand", "offload.order=layer",
                                                "offload.slots=3"};
    if (!strstr(p->config, "num_experts") || draw(2) > 0)
        return;
    for (size_t i = 0; i < p->num_set; i++)
        if (strstr(p->set[i], "overlap_moe"))
            return;
    p->set[p->num_set++] = PICK(tiers);
    p->set[p->num_set++] = PICK(kept);
    if (draw(4) == 0)
        p->set[p->num_set++] = PICK(orders);
    if (draw(4) == 0)
        p->set[p->num_set++] = "offload.optimizer=after";
    else if (draw(4) == 0) /* the host steps beside the backward */
        p->set[p->num_set++] = "train.clip_grad=0";
}

static void draw_held(problem *p)
{
    static const char *const may[] = {
        "parallel.order=tp-cp-ep-dp-pp",
        "parallel.sequence_parallel=false",
        "parallel.decoder_first_pipeline_num_layers=0",
        "train.micro_batch_size=1",
        "parallel.use_distributed_optimizer=true",
        "parallel.use_distributed_optimizer=false",
        "parallel.data_parallel_sharding_strategy=optim_grads_params",
        "parallel.context_parallel_size=1",
        "parallel.tensor_model_parallel_size=1",
        "parallel.pipeline_schedule=1f1b",
        "train.recompute_granularity=full",
        "parallel.expert_binding=dp",
        "parallel.num_virtual_stages_per_pipeline_rank=1",
        "parallel.moe_num_partitions=1",
        "parallel.overlap_moe_expert_parallel_comm=true",
        "parallel.cp_comm_type=p2p",
        "offload.optimizer_state=host",
    };
    p->num_set = 0;
    bool zero = false;
    for (size_t i = 0; i < sizeof may / sizeof *may; i++) {
        const bool of_zero = strncmp(may[i], "parallel.", 9) == 0 && strstr(may[i], "optim");
        const bool rare = strstr(may[i], "full") || of_zero || strstr(may[i], "partitions");
        if (draw(rare ? 6 : 3) > 0 || (of_zero && zero))
            continue;
        zero |= of_zero;
        p->set[p->num_set++] = may[i];
    }
    draw_tier(p);
}

bool problem_load(const problem *p, loaded *out)
{
    memset(out, 0, sizeof *out);
    EXPECT(child_write("cluster.json", p->cluster), "cluster.json");
    out->source = (weft_config_source){.file = "drawn.json",
                                       .text = p->config,
                                       .set = p->set,
                                       .num_set = p->num_set,
                                       .no_data = true};
    weft_status status = weft_plan_load(&out->source, NULL, &out->arena, &out->config);
    if (status == WEFT_OK)
        status =
            weft_plan_cluster("cluster", "cluster.json", &out->config, &out->arena, &out->cluster);
    EXPECT(status == WEFT_OK, "%s: %s", p->config, weft_error_get()->text);
    return status == WEFT_OK;
}

void problem_draw(problem *out)
{
    draw_cluster(out);
    draw_config(out);
    draw_held(out);
}
