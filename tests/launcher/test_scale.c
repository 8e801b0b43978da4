/* What planning costs as steps grow, counted instead of timed: the basic blocks that schedule/ and
 * launcher/planning/ run, which are built here once more so that each tells of itself, and the
 * bytes that arenas ask of the heap. Twice the stages, or twice the micro-batches, cost at most 2.3
 * times as much. */
#include <stdio.h>
#include <stdlib.h>

#include "launcher/planning/plan.h"
#include "tests/core/check.h"

static uint64_t num_blocks, num_bytes;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    num_blocks++;
}

/* The linker's: arenas' calloc and malloc come here (scale.cmake). */
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes)
{
    num_bytes += count * bytes;
    return __real_calloc(count, bytes);
}

void *__wrap_malloc(size_t bytes)
{
    num_bytes += bytes;
    return __real_malloc(bytes);
}

typedef struct effort {
    double blocks, bytes;
} effort;

static const char json[] =
    "{\"model\": {\"num_layers\": 64, \"hidden_size\": 1024, \"num_attention_heads\": 16, "
    "\"seq_length\": 1024, \"vocab_size\": 32000, \"num_experts\": 8, \"moe_layer_freq\": 2}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": %d, \"train_iters\": 1, "
    "\"precision\": \"bf16\"}, \"data\": {\"mock_data\": true}, \"device\": {\"kind\": \"cuda\"}}";

/* Of a plan, but for reading the config and the cluster. */
static effort plan_of(int p, int v, int m)
{
    char text[1024], mesh[32], path[1024];
    weft_arena arena = {0};
    weft_config config;
    weft_cluster *cluster;
    weft_plan plan;
    snprintf(text, sizeof text, json, m);
    snprintf(mesh, sizeof mesh, "pp=%d,vp=%d", p, v);
    snprintf(path, sizeof path, "%s/examples/clusters/h100.json", getenv("WEFT_SOURCE_DIR"));
    const weft_config_source source = {
        .file = "c.json", .text = text, .mesh = mesh, .no_data = true};
    weft_status status = weft_plan_load(&source, NULL, &arena, &config);
    if (status == WEFT_OK)
        status = weft_plan_cluster("cluster", path, &config, &arena, &cluster);
    num_blocks = num_bytes = 0;
    if (status == WEFT_OK)
        status = weft_plan_make(&config, &source, cluster, NULL, &arena, &plan);
    const effort out = {(double)num_blocks, (double)num_bytes};
    if (status != WEFT_OK || plan.step.shape.num_chunks != v)
        fail_msg("p=%d v=%d m=%d: %s", p, v, m, weft_error_get()->text);
    weft_plan_release(&plan);
    weft_arena_release(&arena);
    print_message("p=%-3d v=%d m=%-4d %12.0f blocks %12.0f bytes\n", p, v, m, out.blocks,
                  out.bytes);
    return out;
}

static void check_growth(effort one, effort two, int p, int v, int m)
{
    if (!(two.blocks <= 2.3 * one.blocks && two.bytes <= 2.3 * one.bytes && one.blocks > 1e5))
        fail_msg("up to p=%d v=%d m=%d: %.3g times the blocks, %.3g times the bytes", p, v, m,
                 two.blocks / one.blocks, two.bytes / one.bytes);
}

CASE(twice_the_stages)
{
    for (int v = 1; v <= 2; v++) {
        effort before = plan_of(4, v, 64);
        for (int p = 8; p <= 32; p *= 2) {
            const effort now = plan_of(p, v, 64);
            check_growth(before, now, p, v, 64);
            before = now;
        }
    }
}

CASE(twice_the_micro_batches)
{
    for (int v = 1; v <= 2; v++) {
        effort before = plan_of(8, v, 32);
        for (int m = 64; m <= 512; m *= 2) {
            const effort now = plan_of(8, v, m);
            check_growth(before, now, 8, v, m);
            before = now;
        }
    }
}
