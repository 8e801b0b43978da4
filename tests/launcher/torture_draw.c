/* What a life of a tortured run is, drawn. */
#include <stdio.h>
#include <string.h>

#include "tests/launcher/torture.h"

torture_chance torture_chance_of(uint64_t seed, int line, int life)
{
    torture_chance chance = {seed * 0x9e3779b97f4a7c15u + (uint64_t)line * 0xbf58476d1ce4e5b9u +
                             (uint64_t)life * 0x94d049bb133111ebu + 1};
    for (int i = 0; i < 8; i++)
        torture_uniform(&chance);
    return chance;
}

double torture_uniform(torture_chance *chance)
{
    uint64_t z = chance->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

int torture_below(torture_chance *chance, int bound)
{
    return (int)(torture_uniform(chance) * bound);
}

#define LLAMA                                                                                      \
    "\"ffn_hidden_size\": 16, \"num_experts\": 4, \"moe_layer_freq\": 2, \"normalization\": "      \
    "\"RMSNorm\", \"swiglu\": true, \"position_embedding_type\": \"rope\", "                       \
    "\"disable_bias_linear\": true, \"moe_shared_expert_intermediate_size\": 16"

static const char *const models[TORTURE_VARIANTS] = {
    "\"ffn_hidden_size\": 32, \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1",
    "\"ffn_hidden_size\": 16, \"num_experts\": 8, \"moe_aux_loss_coeff\": 0.01, "
    "\"hidden_dropout\": 0.1",
    LLAMA,
    LLAMA,
};

/* of: 0: every model; 1: dense ones; 2: with experts. */
static const struct {
    const char *mesh;
    int world, replicas, of;
} meshes[] = {
    {"tp=1", 1, 1, 0},
    {"dp=2", 2, 2, 0},
    {"pp=2", 2, 1, 0},
    {"pp=2,vp=2", 2, 1, 0},
    {"cp=2", 2, 1, 0},
    {"tp=2,sp=1", 2, 1, 1},
    {"tp=2", 2, 1, 1},
    {"dp=4", 4, 4, 0},
    {"pp=4", 4, 1, 0},
    {"pp=2,dp=2", 4, 2, 0},
    {"tp=2,pp=2,sp=1", 4, 1, 1},
    {"tp=2,dp=2", 4, 2, 1},
    {"cp=2,dp=2", 4, 2, 0},
    {"cp=2,pp=2", 4, 1, 0},
    {"tp=4", 4, 1, 1},
    {"tp=2,binding=tp", 2, 1, 2},
    {"tp=2,binding=tp,sp=1", 2, 1, 2},
    {"dp=2,ep=2,binding=dp", 2, 2, 2},
    {"dp=4,ep=2,binding=dp", 4, 4, 2},
    {"dp=4,ep=4,binding=dp", 4, 4, 2},
    {"tp=2,dp=2,ep=2,etp=2,binding=dp", 4, 2, 2},
    {"tp=2,dp=2,binding=tp", 4, 2, 2},
    {"pp=2,dp=2,ep=2,binding=dp", 4, 2, 2},
    {"pp=2,tp=2,binding=tp", 4, 1, 2},
    {"cp=2,dp=2,ep=2,binding=dp", 4, 2, 2},
};
enum { NUM_MESHES = sizeof meshes / sizeof *meshes };

typedef struct writer {
    char *text;
    size_t used, capacity;
} writer;

static void add(writer *w, const char *text)
{
    int more = snprintf(w->text + w->used, w->capacity - w->used, "%s", text);
    w->used += (size_t)more < w->capacity - w->used ? (size_t)more : 0;
}

/* The config's part that every life of a line has. */
static void add_common(writer *w, int variant, int steps)
{
    char train[320];
    add(w, "{\"model\": {\"num_layers\": 4, \"hidden_size\": 16, \"num_attention_heads\": 4, "
           "\"vocab_size\": 48, \"init_method_std\": 0.1, ");
    add(w, models[variant]);
    snprintf(train, sizeof train,
             ", \"seq_length\": %d},\n\"train\": {\"micro_batch_size\": 1, "
             "\"global_batch_size\": %d, \"train_iters\": %d, \"lr\": 2e-3, \"lr_decay_style\": "
             "\"constant\", \"adam_eps\": 1e-5, \"seed\": %d, \"precision\": \"%s\", "
             "\"clip_grad\": %d",
             TORTURE_SEQ_LENGTH, TORTURE_BATCH, steps, 100 + variant,
             variant < TORTURE_ROUGH ? "fp32" : "bf16", variant != TORTURE_UNCLIPPED);
    add(w, train);
}

static const char end_of_config[] =
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}";

void torture_reference_config(int variant, int steps, char out[2048])
{
    writer w = {out, 0, 2048};
    add_common(&w, variant, steps);
    add(&w, "},\n\"checkpoint\": {\"save_interval\": 1},\n");
    add(&w, end_of_config);
    add(&w, "}\n");
}

/* Experts beyond device memory, and the optimizer of the rest. The sums of several micro-batches
 * may differ between a kept expert and one that is not, and from those on the device. */
static void draw_offload(torture_chance *chance, torture_life *life, const char *folder,
                         char out[512])
{
    static const char *const degrees[] = {"host", "file"};
    static const char *const orders[] = {"expert", "demand", "layer"};
    static const double kepts[] = {0, 0.25, 1};
    const char *degree = degrees[torture_below(chance, 2)];
    const char *order = orders[torture_below(chance, 3)];
    double kept = kepts[torture_below(chance, 3)];
    bool is_after = torture_below(chance, 3) == 0;
    bool beyond = torture_below(chance, 2), hosted = torture_below(chance, 4) == 0;
    bool moves = torture_below(chance, 2) && *degree == 'h' && *order != 'l';
    const char *placement = moves ? "balanced" : "home";
    char experts[256] = "", same[64] = "";
    if (life->variant > 0 && beyond) {
        snprintf(experts, sizeof experts,
                 ", \"experts\": \"%s\", \"order\": \"%s\", \"kept\": %g, \"optimizer\": \"%s\", "
                 "\"placement\": \"%s\"",
                 degree, order, kept, is_after ? "after" : "auto", placement);
        snprintf(same, sizeof same, ", kept %g, %s", kept, placement);
    }
    snprintf(out, 512, ",\n\"offload\": {\"path\": \"%s\", \"optimizer_state\": \"%s\"%s}", folder,
             hosted ? "host" : "device", experts);
    strncat(life->same, same, sizeof life->same - strlen(life->same) - 1);
}

static void draw_saves(torture_chance *chance, torture_life *life, int fallback, char out[384])
{
    static const int keeps[] = {-1, 1, 2, 3, 3};
    static const int intervals[] = {1, 2, 3, 5, 8};
    life->save_interval = intervals[torture_below(chance, 5)];
    life->keep_latest_k = keeps[torture_below(chance, 5)];
    life->save_retain_interval = torture_below(chance, 3) == 0 ? 10 : 0;
    life->async = torture_below(chance, 2);
    life->skips = torture_below(chance, 3) == 0;
    life->fallback = fallback + torture_below(chance, 2);
    bool is_small = torture_below(chance, 2);
    snprintf(out, 384,
             ",\n\"checkpoint\": {\"save_interval\": %d, \"keep_latest_k\": %d, "
             "\"save_retain_interval\": %d, \"fallback\": %d, \"async_save\": %s, "
             "\"async_when_busy\": \"%s\", \"staging_bytes\": %d}",
             life->save_interval, life->keep_latest_k, life->save_retain_interval, life->fallback,
             life->async ? "true" : "false", life->skips ? "skip" : "wait", is_small ? 150000 : 0);
}

static void draw_mesh(torture_chance *chance, torture_life *life)
{
    int i;
    do {
        i = torture_below(chance, NUM_MESHES);
    } while (meshes[i].of != 0 && meshes[i].of != (life->variant == 0 ? 1 : 2));
    life->world = meshes[i].world;
    int zero = torture_below(chance, 4);
    if (meshes[i].replicas > 1)
        snprintf(life->mesh, sizeof life->mesh, "%s,zero=%d", meshes[i].mesh, zero);
    else
        snprintf(life->mesh, sizeof life->mesh, "%s", meshes[i].mesh);
}

static void draw_blows(torture_chance *chance, torture_life *life)
{
    /* Of a hundred. */
    static const int ends[TORTURE_ENDS] = {28, 10, 8, 30, 10, 6, 8};
    static const int moments[TORTURE_MOMENTS] = {20, 30, 35, 15};
    life->num_blows = life->max_restarts ? 1 + torture_below(chance, TORTURE_MAX_BLOWS) : 1;
    for (int i = 0; i < TORTURE_MAX_BLOWS; i++) {
        torture_blow *b = &life->blows[i];
        int end = torture_below(chance, 100), moment = torture_below(chance, 100);
        while (end >= ends[b->end])
            end -= ends[b->end++];
        while (moment >= moments[b->moment])
            moment -= moments[b->moment++];
        b->share = torture_uniform(chance);
        b->after = torture_below(chance, 3) == 0 ? 0 : 100 * torture_uniform(chance);
        b->rank = torture_below(chance, 12);
    }
}

void torture_draw(torture_chance *chance, int variant, int steps, const torture_life *before,
                  int fallback, const char *folder, torture_life *out)
{
    char saves[384], offload[512], more[320];
    memset(out, 0, sizeof *out);
    out->variant = variant;
    out->steps = steps;
    bool stays = torture_below(chance, 2);
    draw_mesh(chance, out);
    if (before && stays) {
        out->world = before->world;
        snprintf(out->mesh, sizeof out->mesh, "%s", before->mesh);
    }
    snprintf(out->same, sizeof out->same, "%s", out->mesh);
    draw_saves(chance, out, fallback, saves);
    draw_offload(chance, out, folder, offload);
    out->max_restarts = torture_below(chance, 3) == 0 ? 5 : 0;
    bool recomputes = torture_below(chance, 4) == 0;
    bool checks = torture_below(chance, 4) == 0;
    draw_blows(chance, out);
    snprintf(more, sizeof more,
             ",\n\"reliability\": {\"max_restarts\": %d, \"restart_delay_s\": 0.05, "
             "\"replica_check_interval\": %d},\n",
             out->max_restarts, checks ? 4 : 0);
    writer w = {out->config, 0, sizeof out->config};
    add_common(&w, variant, steps);
    add(&w, recomputes ? ", \"recompute_granularity\": \"full\"}" : "}");
    add(&w, saves);
    add(&w, offload);
    add(&w, more);
    add(&w, end_of_config);
    add(&w, "}\n");
}

const char *torture_end_name(torture_end end)
{
    static const char *const names[] = {"whole job", "launcher", "mpirun", "rank",
                                        "two ranks", "writer",   "stop"};
    return names[end];
}

const char *torture_moment_name(torture_moment moment)
{
    static const char *const names[] = {"start", "steps", "save", "published"};
    return names[moment];
}
