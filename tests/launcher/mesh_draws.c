/* Mesh invariance of what is drawn from a fixed seed. Each draw gives the single-rank losses and
 * gradient norms (1e-5 and 1e-4 relative).
 *   pipelines: interleaved and not, with micro-batches below, at and not divisible by the ranks, in
 *     groups of any size, uneven layouts, empty stages, stages without MoE layers, tied weights,
 *     dropout, both bindings, layers recomputed or offloaded, each ZeRO, also where groups are of
 * one rank. long contexts: sequences cut over cp, beside each other axis, with experts along and
 * across, with packed documents, and what options[] has. Together they have all of features[].
 *
 * Runs under mpirun with 4 ranks. WEFT_PROPERTY_DRAWS=300: so many of each. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/launcher/meshes.h"
#include "tests/world.h"

#ifdef WEFT_SANITIZED
enum { NUM_PIPELINES = 12, NUM_CONTEXTS = 24, HAVE_ALL = 0 };
#else
enum { NUM_PIPELINES = 30, NUM_CONTEXTS = 60, HAVE_ALL = 1 };
#endif
enum { NUM_STEPS = 3, MAX_LAYERS = 6 };

#define FULL(method, num)                                                                          \
    ", \"recompute_granularity\": \"full\", \"recompute_method\": \"" method                       \
    "\", \"recompute_num_layers\": " #num

#define MODULES(names)                                                                             \
    ", \"recompute_granularity\": \"selective\", \"recompute_modules\": [" names "]"

#define OFFLOAD(modules)                                                                           \
    ", \"fine_grained_activation_offloading\": true, \"offload_modules\": [" modules "]"

typedef struct draw {
    char model[1024], mesh[256], parallel[512];
    const char *train;
    bool documents, by_token; /* packed; the loss is the global batch's mean */
    int world, batch;
} draw;

/* What must have been drawn, as it stands in a draw's keys. */
static struct {
    const char *key;
    int count;
} features[] = {
    {"cp=2", 0},
    {"cp=4", 0},
    {"\"all_gather\"", 0},
    {"\"a2a\"", 0},
    {"\"a2a+p2p\"", 0},
    {"p2p by default", 0},
    {"order=tp-ep-dp-cp-pp", 0},
    {"sp=1", 0},
    {"zero=0", 0},
    {"zero=1", 0},
    {"zero=2", 0},
    {"zero=3", 0},
    {"zero=2 alone", 0},
    {"zero=3 alone", 0},
    {"schedule=gpipe", 0},
    {"schedule=1f1b", 0},
    {"schedule=zb_h1", 0},
    {"schedule=zbv", 0},
    {"schedule=v_half", 0},
    {"schedule=v_min", 0},
    {"schedule=dualpipev", 0},
    {"schedule=auto", 0},
    {"interleaved", 0},
    {"\"core_attn\"", 0},
    {"\"mlp\"", 0},
    {"\"moe\"", 0},
    {"\"shared_experts\"", 0},
    {"\"layernorm\"", 0},
    {"\"moe_act\"", 0},
    {"\"uniform\"", 0},
    {"\"block\"", 0},
    {"offloaded block", 0},
    {"offloaded modules", 0},
    {"offloaded beside recomputation", 0},
    {"documents by head and tail", 0},
    {"documents dealt", 0},
    {"documents by token", 0},
};
enum { NUM_FEATURES = sizeof features / sizeof *features };

static uint64_t random_state = 20261122;

static int next_random(int bound)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((random_state >> 33) % (uint64_t)bound);
}

static void add(char *text, size_t capacity, const char *more)
{
    const size_t used = strlen(text);
    EXPECT(used + strlen(more) < capacity, "%s%s does not fit", text, more);
    snprintf(text + used, capacity - used, "%s", more);
}

/* Every layer on a stage of its own drawing: some get several, some none. */
static void draw_layout(int num_stages, int num_layers, char out[64])
{
    int on_stage[16] = {0};
    for (int l = 0; l < num_layers; l++)
        on_stage[next_random(num_stages)]++;
    strcpy(out, "E");
    for (int s = 0; s < num_stages; s++) {
        add(out, 64, s ? "|" : "");
        for (int l = 0; l < on_stage[s]; l++)
            add(out, 64, "t");
    }
    add(out, 64, "L");
}

/* Documents are about as long as the vocabulary is large: token 3 ends them. */
static void draw_model(int num_layers, bool moe, draw *d)
{
    snprintf(d->model, sizeof d->model,
             "{\"num_layers\": %d, \"hidden_size\": 16, \"num_attention_heads\": 2, "
             "\"num_query_groups\": 2, \"ffn_hidden_size\": 24, \"seq_length\": 8, "
             "\"vocab_size\": %d, \"init_method_std\": 0.1",
             num_layers, d->documents ? 5 : 37);
    if (next_random(2))
        add(d->model, sizeof d->model, ", \"untie_embeddings_and_output_weights\": true");
    if (next_random(2))
        add(d->model, sizeof d->model, ", \"hidden_dropout\": 0.1, \"attention_dropout\": 0.1");
    if (next_random(2))
        add(d->model, sizeof d->model,
            ", \"normalization\": \"RMSNorm\", \"position_embedding_type\": \"rope\"");
    if (moe) {
        add(d->model, sizeof d->model,
            ", \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.02, \"moe_z_loss_coeff\": 0.005, "
            "\"moe_router_topk\": ");
        add(d->model, sizeof d->model,
            next_random(2) ? "2" : "1, \"moe_router_pre_softmax\": true");
        if (next_random(2))
            add(d->model, sizeof d->model, ", \"moe_shared_expert_intermediate_size\": 12");
        add(d->model, sizeof d->model, ", \"moe_layer_freq\": [");
        for (int l = 0, some = 0, is_moe; l < num_layers; l++, some |= is_moe) {
            is_moe = next_random(2) || (l == num_layers - 1 && !some);
            add(d->model, sizeof d->model, l ? ", " : "");
            add(d->model, sizeof d->model, is_moe ? "1" : "0");
        }
        add(d->model, sizeof d->model, "]");
    }
    add(d->model, sizeof d->model, "}");
}

static void draw_zero(draw *d)
{
    char zero[16];
    snprintf(zero, sizeof zero, ",zero=%d", next_random(4));
    add(d->mesh, sizeof d->mesh, zero);
}

/* Of a V v is 2. */
static const char *draw_schedule(int v)
{
    static const char *const kinds[] = {"1f1b", "1f1b",   "gpipe", "zb_h1", "zb_h1",
                                        "auto", "v_half", "v_min", "zbv",   "dualpipev"};
    return kinds[v == 2 ? 2 + next_random(8) : next_random(6)];
}

static void draw_mesh(int p, int v, int num_layers, bool moe, draw *d)
{
    const int beside = p == 4 ? 0 : next_random(p == 1 ? 4 : 3); /* nothing, tp, dp, both */
    const int tp = beside == 1 || beside == 3 ? 2 : 1, dp = beside >= 2 ? 2 : 1;
    char layout[64];
    draw_layout(p * v, num_layers, layout);
    snprintf(d->mesh, sizeof d->mesh, "pp=%d,layout=%s,schedule=%s", p, layout, draw_schedule(v));
    if (tp > 1)
        add(d->mesh, sizeof d->mesh, next_random(2) ? ",tp=2,sp=1" : ",tp=2");
    if (dp > 1)
        add(d->mesh, sizeof d->mesh, ",dp=2");
    draw_zero(d);
    if (moe && tp > 1 && next_random(2))
        add(d->mesh, sizeof d->mesh, ",binding=tp");
    else if (moe && dp > 1)
        add(d->mesh, sizeof d->mesh, next_random(3) ? ",binding=dp,ep=2" : ",binding=dp,ep=1");
    d->world = p * tp * dp;
    /* Micro-batches: below p, p, a multiple, none. */
    const int counts[] = {1 + next_random(p), p, p * (2 + next_random(2)),
                          1 + next_random(2 * p + 3)};
    d->batch = dp * counts[next_random(4)];
    d->parallel[0] = '\0';
    if (v > 1 && next_random(3) == 0)
        snprintf(d->parallel, sizeof d->parallel,
                 ", \"microbatch_group_size_per_virtual_pipeline_stage\": %d", p + next_random(4));
}

/* What a long context may be drawn with beside its mesh: one of each row's values, keys of section
 * "parallel" ("": as it is by default), where the draw has what the row is about: anything, tokens
 * that travel to experts, documents, so many ranks along cp and tp (the models have two query
 * groups). */
enum { ANY, TRAVELS, DOCUMENTS, CP_2, CP_4, CP_2_TP_2 };
static const struct {
    int about;
    const char *values[6];
} options[] = {
    {ANY, {"", "\"overlap_grad_reduce\": false"}},
    {DOCUMENTS, {"", "\"context_parallel_load_balancer\": \"documents\""}},
    {CP_2, {"", "\"cp_comm_type\": \"all_gather\"", "\"cp_comm_type\": \"a2a\""}},
    {CP_4,
     {"", "\"cp_comm_type\": \"all_gather\"",
      "\"cp_comm_type\": \"a2a+p2p\", \"hierarchical_context_parallel_sizes\": [2, 2]"}},
    {CP_2_TP_2, {"", "\"cp_comm_type\": \"all_gather\""}},
    {TRAVELS,
     {"", "\"moe_num_partitions\": 2", "\"moe_num_partitions\": 3, \"moe_memory_reuse\": \"s1\"",
      "\"moe_num_partitions\": 2, \"moe_memory_reuse\": \"s4\"",
      "\"moe_partition_by\": \"peers\""}},
};

static void draw_options(bool travels, int cp, int tp, draw *d)
{
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        int count = 0;
        while (count < 6 && options[i].values[count])
            count++;
        const char *value = options[i].values[next_random(count)];
        const bool has[] = {true,         travels, d->documents,
                            cp * tp == 2, cp == 4, cp * tp == 4 && cp == 2};
        if (!*value || !has[options[i].about])
            continue;
        add(d->parallel, sizeof d->parallel, ", ");
        add(d->parallel, sizeof d->parallel, value);
    }
}

static void draw_context(int num_layers, bool moe, draw *d)
{
    static const char *const besides[] = {"", ",tp=2", ",tp=2,sp=1", ",dp=2", ",dp=2"};
    const bool four = next_random(3) == 0, pipeline = !four && next_random(4) == 0;
    const int beside = four || pipeline ? 0 : next_random(5);
    const int tp = beside == 1 || beside == 2 ? 2 : 1, dp = beside >= 3 ? 2 : 1;
    const bool by_tp = moe && tp == 2 && next_random(2);
    const int cp = four ? 4 : 2, all = tp * cp * dp;
    int ep = 1;
    snprintf(d->mesh, sizeof d->mesh, "cp=%d%s", cp, besides[beside]);
    draw_zero(d);
    d->parallel[0] = '\0';
    if (pipeline) {
        char layout[64];
        draw_layout(2 * (1 + next_random(2)), num_layers, layout);
        add(d->mesh, sizeof d->mesh,
            next_random(2) ? ",pp=2,schedule=1f1b,layout=" : ",pp=2,schedule=gpipe,layout=");
        add(d->mesh, sizeof d->mesh, layout);
    }
    if (by_tp) {
        add(d->mesh, sizeof d->mesh, ",binding=tp");
    } else if (moe) {
        const bool sharded = tp == 2 && next_random(2);
        while (ep * 2 * (sharded ? tp : 1) <= all && ep < 4 && next_random(4))
            ep *= 2;
        char experts[40];
        snprintf(experts, sizeof experts, ",binding=dp,ep=%d%s", ep, sharded ? ",etp=2" : "");
        add(d->mesh, sizeof d->mesh, experts);
        if (dp == 2 && next_random(2)) /* across cp */
            add(d->mesh, sizeof d->mesh, ",order=tp-ep-dp-cp-pp");
    }
    d->world = all * (pipeline ? 2 : 1);
    d->batch = dp * (1 + next_random(3));
    draw_options(ep > 1, cp, tp, d);
}

static bool has_feature(const draw *d, const char *key)
{
    const bool is_cut = strstr(d->mesh, "cp=") != NULL;
    const char *stage = strstr(d->mesh, "layout=");
    const char *again = d->train ? strstr(d->train, "recompute_granularity") : NULL;
    int num_bars = 0, p = 1;
    if (strncmp(key, "documents", 9) == 0)
        return d->documents &&
               (strstr(key, "token")   ? d->by_token
                : strstr(key, "dealt") ? strstr(d->parallel, "\"documents\"") != NULL
                                       : strstr(d->parallel, "\"documents\"") == NULL);
    if (strncmp(key, "offloaded ", 10) == 0)
        return d->train && strstr(d->train, "offload_modules") &&
               !again == !strstr(key, "beside") &&
               (again || !strstr(d->train, "\"block\"") == !strstr(key, "block"));
    if (strcmp(key, "p2p by default") == 0)
        return is_cut && !strstr(d->parallel, "cp_comm_type");
    if (strstr(key, " alone")) /* each gradient group is of one rank */
        return strncmp(key, strstr(d->mesh, "zero="), 6) == 0 && !is_cut &&
               !strstr(d->mesh, "dp=2") && d->world > 1;
    if (strcmp(key, "interleaved") != 0)
        return strstr(d->mesh, key) || strstr(d->parallel, key) || (again && strstr(again, key));
    for (const char *at = stage; at && *at && *at != ','; at++)
        num_bars += *at == '|';
    if (strstr(d->mesh, "pp="))
        p = atoi(strstr(d->mesh, "pp=") + 3);
    return p > 1 && num_bars + 1 > p;
}

static void compare(const draw *d, const weft_step_result *one, const weft_step_result *all)
{
    double worst[2] = {0};
    for (int s = 0; s < NUM_STEPS; s++) {
        const double loss = fabs(all[s].loss - one[s].loss) / one[s].loss,
                     norm = fabs(all[s].grad_norm - one[s].grad_norm) / one[s].grad_norm;
        EXPECT(loss <= 1e-5, "%s on %s%s%s, batch %d: step %d loss %.9g, not %.9g", d->model,
               d->mesh, d->parallel, d->train ? d->train : "", d->batch, s + 1, all[s].loss,
               one[s].loss);
        EXPECT(norm <= 1e-4, "%s on %s%s%s, batch %d: step %d gradient norm %.9g, not %.9g",
               d->model, d->mesh, d->parallel, d->train ? d->train : "", d->batch, s + 1,
               all[s].grad_norm, one[s].grad_norm);
        worst[0] = fmax(worst[0], loss);
        worst[1] = fmax(worst[1], norm);
    }
    printf("%d ranks %-64s%s%s batch %2d loss %.1e norm %.1e\n", d->world, d->mesh, d->parallel,
           d->documents ? " documents" : "", d->batch, worst[0], worst[1]);
    fflush(stdout);
}

static void check(weft_comm *world, const draw *d)
{
    weft_step_result one[NUM_STEPS], all[NUM_STEPS];
    mesh_training what = {.name = "draw",
                          .model = d->model,
                          .mesh = "tp=1,pp=1,dp=1",
                          .batch = d->batch,
                          .steps = NUM_STEPS};
    if (d->documents)
        mesh_set_documents(&what, 3);
    if (d->by_token)
        mesh_set(&what, (const char *const[]){"train.calculate_per_token_loss=true"}, 1);
    for (int i = 0; i < NUM_FEATURES; i++)
        features[i].count += has_feature(d, features[i].key);
    for (int i = 0; i < 2; i++) {
        weft_comm *part = world_part(world, i ? d->world : 1);
        if (part)
            mesh_run(part, &what, i ? all : one);
        weft_comm_destroy(part);
        what.mesh = d->mesh;
        what.parallel = d->parallel;
        what.train = d->train;
    }
    if (weft_comm_rank(world) == 0)
        compare(d, one, all);
}

int main(void)
{
    static const int ranks[] = {1, 2, 4};
    static const char *const trains[] = {NULL,
                                         FULL("uniform", 1),
                                         FULL("uniform", 3),
                                         FULL("block", 1),
                                         MODULES("\"core_attn\", \"mlp\", \"moe\""),
                                         OFFLOAD("\"block\""),
                                         OFFLOAD("\"core_attn\", \"mlp\", \"moe\""),
                                         OFFLOAD("\"block\"") MODULES("\"core_attn\", \"mlp\""),
                                         MODULES("\"shared_experts\", \"layernorm\""),
                                         MODULES("\"core_attn\", \"moe_act\""),
                                         MODULES("\"moe\", \"shared_experts\"")};
    enum { NUM_TRAINS = sizeof trains / sizeof *trains };
    const char *more = getenv("WEFT_PROPERTY_DRAWS");
    weft_comm *world = world_begin(4);
    for (int i = 0; i < (more ? atoi(more) : NUM_PIPELINES); i++) {
        draw d = {.documents = false};
        /* Each p with each v in turn, and now and then no virtual stages at all. */
        const int p = ranks[i % 3], v = i % 10 == 9 ? 1 : 2 + i / 3 % 3;
        const int num_layers = 1 + next_random(MAX_LAYERS);
        const bool moe = next_random(2);
        draw_model(num_layers, moe, &d);
        draw_mesh(p, v, num_layers, moe, &d);
        d.train = trains[i % NUM_TRAINS];
        check(world, &d);
    }
    for (int i = 0; i < (more ? atoi(more) : NUM_CONTEXTS); i++) {
        draw d = {.documents = next_random(2)};
        const int num_layers = 1 + next_random(3);
        const bool moe = next_random(2);
        d.by_token = d.documents && next_random(2);
        draw_model(num_layers, moe, &d);
        draw_context(num_layers, moe, &d);
        d.train = trains[i % NUM_TRAINS];
        check(world, &d);
    }
    for (int i = 0; i < NUM_FEATURES; i++)
        EXPECT(features[i].count > 0 || !HAVE_ALL, "%s is not drawn", features[i].key);
    return world_finish(world);
}
