/* weft plan moe-layer: every number of partitions and memory reuse of one MoE layer, priced as a
 * plan prices it, and what of them fits and is fastest. */

#include "core/cluster/cluster.h"
#include "core/text.h"
#include "launcher/arguments/rows.h"
#include "launcher/planning/moe_choice.h"
#include "launcher/planning/layer_price.h"
#include "launcher/planning/plan.h"
#include "launcher/report/report.h"
#include "launcher/verbs/plan/plan.h"
#include "layers/describe/describe.h"
#include "layers/describe/rehearse.h"
#include "schedule/moe/choose.h"

static const char verb_name[] = "plan moe-layer";
enum { MAX_CANDIDATES = 16 * WEFT_NUM_REUSES };

typedef struct arguments {
    int64_t tokens, hidden, ffn, experts, topk;
    int ep, precision;
    bool swiglu, json;
    weft_int_list partitions;
    const char *cluster;
} arguments;

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, arguments *a, weft_arena *arena)
{
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    static const int64_t partitions[] = {1, 2, 3, 4, 6, 8};
    const weft_argument rows[] = {
        WHOLE("tokens", "B", &a->tokens, 1, 1e9, "a rank's", .required = true),
        WHOLE("hidden", "M", &a->hidden, 1, 1e6, "the model's width", .required = true),
        WHOLE("ffn", "H", &a->ffn, 1, 1e6, "an expert's width", .required = true),
        WHOLE("experts", "E", &a->experts, 1, 1024, "of the layer", .required = true),
        WHOLE("topk", "K", &a->topk, 1, 16, "experts a token", .required = true),
        SMALL("ep", "R", &a->ep, 1, 1024, "ranks that share the experts out", .required = true),
        TEXT("cluster", "FILE", &a->cluster, "from weft calibrate, or of data sheets",
             .required = true),
        FLAG("swiglu", &a->swiglu, "experts with a gate"),
        NAMED("precision", "NAME", &a->precision, precisions, 3, "fp32, bf16 or fp16"),
        LIST("partitions", "N,...", &a->partitions, MAX_CANDIDATES / WEFT_NUM_REUSES, 1,
             WEFT_MOE_MAX_PARTITIONS, "", "the n to try"),
        FLAG("json", &a->json, "one JSON object"),
    };
    const weft_arguments verb = {
        .verb = verb_name,
        .about = "Says what one MoE layer takes, forward and backward, with its experts over "
                 "--ep ranks, for every\nnumber of partitions n and memory reuse S: time, memory "
                 "of the device and of the host, and which\nis the fastest that fits. Needs no "
                 "ranks. Exit code 3: none fits.\n",
        ROWS_OF(rows)};
    *a = (arguments){.partitions = {partitions, sizeof partitions / sizeof *partitions, true}};
    return weft_arguments_parse(&verb, argc, argv, arena);
}

typedef struct candidate {
    weft_moe_pipeline pipeline;
    uint64_t device_bytes, host_bytes; /* with what the layer's parameters take */
} candidate;

typedef struct planner {
    const arguments *arguments;
    weft_config config;
    weft_config_source source;
    weft_cluster *cluster, completed;
    weft_mesh mesh;
    weft_moe_nodes nodes;
    weft_moe_layer_price price;
    weft_moe_layer_shape shape;
    bool by_operations; /* else by the curves of copies, exchanges and products */
    uint64_t parameter_bytes, limit_bytes, host_limit_bytes;
    candidate candidates[MAX_CANDIDATES];
    weft_choice_row rows[MAX_CANDIDATES]; /* of them */
    int num_candidates, chosen;           /* -1: none */
} planner;

static weft_status check(const arguments *a)
{
    const long long below = a->experts / a->ep * a->ep;
    char lower[32] = "";
    if (below > 0)
        snprintf(lower, sizeof lower, "%lld or ", below);
    if (a->experts % a->ep != 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--experts %lld: %d ranks cannot hold as many each; %s%lld would do",
                          (long long)a->experts, a->ep, lower, below + a->ep);
    if (a->topk > a->experts)
        return WEFT_ERROR(WEFT_CONFIG, "--topk %lld: there are only %lld experts",
                          (long long)a->topk, (long long)a->experts);
    return WEFT_OK;
}

/* The layer as that of a config's model, on EP ranks, a sequence of B tokens each. */
static weft_status load(planner *p, weft_arena *arena)
{
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    const arguments *a = p->arguments;
    const char *text, *mesh;
    WEFT_TRY(check(a));
    WEFT_TRY(weft_arena_printf(
        arena, &text,
        "{\"model\": {\"num_layers\": 1, \"hidden_size\": %lld, "
        "\"num_attention_heads\": 1, \"kv_channels\": 64, \"seq_length\": %lld, \"vocab_size\": 1, "
        "\"num_experts\": %lld, \"moe_router_topk\": %lld, "
        "\"moe_ffn_hidden_size\": %lld, \"swiglu\": %s}, \"train\": "
        "{\"micro_batch_size\": 1, \"global_batch_size\": %d, "
        "\"train_iters\": 1, \"precision\": \"%s\"}, "
        "\"data\": {\"mock_data\": true}}",
        (long long)a->hidden, (long long)a->tokens, (long long)a->experts, (long long)a->topk,
        (long long)a->ffn, a->swiglu ? "true" : "false", a->ep, precisions[a->precision]));
    WEFT_TRY(weft_arena_printf(arena, &mesh, "dp=%d,ep=%d,binding=dp", a->ep, a->ep));
    p->source =
        (weft_config_source){.file = "the layer", .text = text, .mesh = mesh, .no_data = true};
    WEFT_TRY(weft_config_load(&p->source, arena, &p->config));
    WEFT_TRY(weft_plan_cluster("cluster", a->cluster, &p->config, arena, &p->cluster));
    const int64_t devices = (int64_t)p->cluster->num_nodes * p->cluster->ranks_per_node;
    if (a->ep > devices)
        return WEFT_ERROR(WEFT_CONFIG, "--ep %d: the cluster %s has %lld devices", a->ep,
                          p->cluster->name, (long long)devices);
    if (weft_plan_is_of_gpus(&p->config, p->cluster))
        p->config.device.kind = WEFT_DEVICE_KIND_CUDA;
    return weft_config_mesh(&p->config, &p->source, 0, &p->mesh);
}

static double element_bytes(const planner *p)
{
    return (double)weft_dtype_bytes(weft_config_dtype(&p->config));
}

/* Prices by the layer's operations as plans do; where the cluster cannot tell what all of them
 * take, by the curves that the choice needs. Names a figure that both lack. */
static weft_status begin(planner *p)
{
    const weft_topology topology = {.world = p->mesh.world,
                                    .num_nodes = p->cluster->num_nodes,
                                    .ranks_per_node = p->cluster->ranks_per_node};
    const weft_moe_options form = {.pipeline = {.num_partitions = 1}};
    double us;
    WEFT_TRY(weft_moe_find_nodes(&p->config, &p->mesh, &topology, &p->nodes));
    WEFT_TRY(weft_moe_layer_price_begin(&p->config, &p->mesh, p->cluster, p->nodes.ranks_per_node,
                                        &form, &p->price));
    p->shape = weft_moe_layer_shape_of(&p->config.model, &p->price.shape, p->nodes.ep_inside,
                                       weft_config_pace(&p->config).flops);
    const weft_status status = weft_moe_layer_price_us(&p->price, &form.pipeline, &us);
    p->by_operations = status == WEFT_OK;
    if (status == WEFT_OK || status != WEFT_CONFIG)
        return status;
    bool has_curves = false;
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        has_curves = has_curves || weft_cluster_knows(p->cluster, (weft_cost_kind)i);
    if (!has_curves)
        return status;
    weft_error_clear();
    p->completed = *p->cluster;
    weft_cost_complete(&p->completed);
    return WEFT_OK;
}

/* Of what each rank holds: weights, fp32 gradients, the optimizer's moments and master. */
static uint64_t parameter_bytes(const planner *p, uint64_t num_params)
{
    const double master = element_bytes(p) > 2                                   ? 0
                          : p->config.train.split_master && element_bytes(p) < 4 ? 2
                                                                                 : 4;
    const double moments = p->config.train.optimizer == WEFT_OPTIMIZER_MUON ? 4 : 8;
    return num_params * (uint64_t)(element_bytes(p) + 4 + moments + master);
}

/* What the candidate takes by the layer's own description. */
static weft_status find_memory(planner *p, candidate *c)
{
    weft_shape shape = p->price.shape;
    weft_description d = {.coarse = false};
    shape.moe_partitions = c->pipeline.num_partitions;
    shape.moe_reuse = (int)c->pipeline.reuse;
    WEFT_TRY(weft_rehearse_alone(&p->config.model, &shape, weft_moe_create, &d));
    p->parameter_bytes = parameter_bytes(p, d.cost.local_params);
    c->device_bytes = p->parameter_bytes + d.cost.activation_bytes + d.cost.scratch_bytes;
    c->host_bytes = d.cost.host_bytes;
    weft_description_release(&d);
    return WEFT_OK;
}

static weft_status find_time(planner *p, const candidate *c, double *out_us)
{
    weft_moe_choice one;
    if (p->by_operations)
        return weft_moe_layer_price_us(&p->price, &c->pipeline, out_us);
    WEFT_TRY(weft_choose_moe(&p->completed, &p->shape, WEFT_MOE_MODEL_PRICE,
                             &c->pipeline.num_partitions, 1, 1u << c->pipeline.reuse, false, NULL,
                             &one));
    *out_us = one.us;
    return WEFT_OK;
}

static void judge(const planner *p, const candidate *c, weft_choice_row *row)
{
    const int n = c->pipeline.num_partitions;
    const size_t capacity = sizeof row->why_not;
    if (p->arguments->ep == 1 && (n > 1 || c->pipeline.reuse != WEFT_REUSE_NONE))
        snprintf(row->why_not, capacity, "one rank has all experts: no rows travel");
    else if (n > p->arguments->tokens)
        snprintf(row->why_not, capacity, "%lld tokens cannot be cut into %d partitions",
                 (long long)p->arguments->tokens, n);
    else if (p->limit_bytes > 0 && c->device_bytes > p->limit_bytes)
        snprintf(row->why_not, capacity, "%s more than the %s of a device",
                 weft_bytes_text((double)(c->device_bytes - p->limit_bytes)).text,
                 weft_bytes_text((double)p->limit_bytes).text);
    else if (p->host_limit_bytes > 0 && c->host_bytes > p->host_limit_bytes)
        snprintf(row->why_not, capacity, "%s more than a rank's %s of host memory",
                 weft_bytes_text((double)(c->host_bytes - p->host_limit_bytes)).text,
                 weft_bytes_text((double)p->host_limit_bytes).text);
}

static weft_status add(planner *p, weft_moe_pipeline pipeline)
{
    candidate *c = &p->candidates[p->num_candidates];
    weft_choice_row *row = &p->rows[p->num_candidates++];
    *c = (candidate){.pipeline = pipeline};
    *row = weft_moe_row(&pipeline);
    WEFT_TRY(find_memory(p, c));
    judge(p, c, row);
    const bool is_shape = p->arguments->ep > 1 || pipeline.num_partitions == 1;
    return is_shape && pipeline.num_partitions <= p->arguments->tokens ? find_time(p, c, &row->us)
                                                                       : WEFT_OK;
}

static weft_status make(planner *p)
{
    const weft_hardware *h = weft_cluster_hardware(p->cluster, p->cluster->num_groups > 0 ? 0 : -1);
    p->limit_bytes =
        weft_plan_memory_limit(&p->config, p->cluster, p->cluster->num_groups > 0 ? 0 : -1);
    if (weft_hardware_knows(h, WEFT_FIGURE_HOST_MEMORY))
        p->host_limit_bytes =
            (uint64_t)(h->figures[WEFT_FIGURE_HOST_MEMORY] / p->cluster->ranks_per_node);
    WEFT_TRY(begin(p));
    for (size_t i = 0; i < p->arguments->partitions.count; i++) {
        const int n = (int)p->arguments->partitions.values[i];
        for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
            WEFT_TRY(add(p, (weft_moe_pipeline){.num_partitions = n, .reuse = (weft_reuse)reuse}));
    }
    p->chosen = weft_choose_priced(p->rows, p->num_candidates);
    return WEFT_OK;
}

/* --- printing ------------------------------------------------------------------------------ */

static void report_candidate(const planner *p, int i, weft_report *r)
{
    const candidate *c = &p->candidates[i];
    const weft_choice_row *row = &p->rows[i];
    weft_report_record(r);
    weft_report_cell(r, "", "%s", i == p->chosen ? "->" : "");
    weft_report_row(r, "n", "n", WEFT_UNIT_COUNT, c->pipeline.num_partitions);
    weft_report_text(r, "reuse", "reuse", weft_reuse_text((int)c->pipeline.reuse));
    weft_report_row(r, "time_s", "time", WEFT_UNIT_SECONDS, row->us / 1e6);
    weft_report_row(r, "memory_bytes", "device", WEFT_UNIT_BYTES, c->device_bytes);
    weft_report_row(r, "host_memory_bytes", "host", WEFT_UNIT_BYTES, c->host_bytes);
    weft_report_bool(r, "feasible", !row->why_not[0]);
    if (row->why_not[0])
        weft_report_text(r, "reason", "why not", row->why_not);
}

static void report_choice(const planner *p, weft_report *r)
{
    const weft_moe_pipeline *best = p->chosen >= 0 ? &p->candidates[p->chosen].pipeline : NULL;
    if (!best) {
        weft_report_text(r, "choice", NULL, NULL);
        return;
    }
    weft_report_line(r, "\nchoice: n %d, reuse %s", best->num_partitions,
                     weft_reuse_text((int)best->reuse));
    weft_report_open(r, WEFT_REPORT_OBJECT, "choice");
    weft_report_value(r, "n", best->num_partitions);
    weft_report_text(r, "reuse", NULL, weft_reuse_text((int)best->reuse));
    weft_report_close(r);
}

static weft_status print(const planner *p)
{
    const arguments *a = p->arguments;
    weft_report r;
    weft_report_begin(&r, a->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_report_line(&r,
                     "an MoE layer of %lld tokens a rank, M %lld, H %lld, %lld experts "
                     "top-%lld, ep %d, on %s",
                     (long long)a->tokens, (long long)a->hidden, (long long)a->ffn,
                     (long long)a->experts, (long long)a->topk, a->ep, p->cluster->name);
    weft_report_line(&r, "parameters %s; forward and backward priced by %s\n",
                     weft_bytes_text((double)p->parameter_bytes).text,
                     p->by_operations ? "the layer's operations"
                                      : "the curves of copies, exchanges and products");
    weft_report_text(&r, "priced_by", NULL, p->by_operations ? "operations" : "curves");
    weft_report_value(&r, "parameter_bytes", p->parameter_bytes);
    weft_report_value(&r, "memory_limit_bytes", p->limit_bytes);
    weft_report_open(&r, WEFT_REPORT_TABLE, "candidates");
    for (int i = 0; i < p->num_candidates; i++)
        report_candidate(p, i, &r);
    weft_report_close(&r);
    report_choice(p, &r);
    return weft_report_end(&r, WEFT_OK, stdout);
}

static weft_status run(planner *p, weft_arena *arena)
{
    WEFT_TRY(load(p, arena));
    WEFT_TRY(make(p));
    WEFT_TRY(print(p));
    if (p->chosen >= 0)
        return WEFT_OK;
    const candidate *least = &p->candidates[0];
    for (int i = 1; i < p->num_candidates; i++)
        least = p->candidates[i].device_bytes < least->device_bytes ? &p->candidates[i] : least;
    return WEFT_ERROR(WEFT_MEMORY, "no candidate fits; the smallest, n %d, reuse %s: %s",
                      least->pipeline.num_partitions, weft_reuse_text((int)least->pipeline.reuse),
                      p->rows[least - p->candidates].why_not);
}

int weft_plan_moe_layer(int argc, char **argv, const weft_verb_given *given)
{
    (void)given;
    arguments a;
    weft_arena arena = {0};
    planner *p;
    int code = parse(argc, argv, &a, &arena);
    if (code < 0) {
        weft_status status = WEFT_ARRAY(&arena, 1, &p);
        if (status == WEFT_OK) {
            p->arguments = &a;
            status = weft_lack_name_file(run(p, &arena), a.cluster);
        }
        code = status == WEFT_OK ? 0 : weft_verb_fail(verb_name);
    }
    weft_arena_release(&arena);
    return code;
}
