#include "parallel/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>

#include "core/key_rows.h"

enum { MAX_SIZE = 1 << 20, MAX_CHUNKS = 16 };

#define NO_CONTEXT "parallel.context_parallel_size is 1"
#define NO_TENSOR "parallel.tensor_model_parallel_size is 1"
/* And what is recomputed or offloaded follows from no virtual stages. */
#define ONE_STAGE                                                                                  \
    "parallel.pipeline_model_parallel_size is 1 (parallel.pipeline_model_parallel_size is 1 and "  \
    "parallel.num_virtual_stages_per_pipeline_rank is not 1 and train.recompute_granularity is "   \
    "not full and train.fine_grained_activation_offloading is false)"
#define T weft_parallel_options
const weft_key weft_parallel_rows[] = {
    RANGE(SIZE, tensor_model_parallel_size, "1", 1, MAX_SIZE, "ranks",
          "tp: each layer's matrices split over this many ranks of one node", .alias = "tp",
          SEARCHED(TP)),
    RANGE(SIZE, pipeline_model_parallel_size, "1", 1, MAX_SIZE, "ranks",
          "pp: layers split into this many stages", .alias = "pp", SEARCHED(PP)),
    RANGE(SIZE, context_parallel_size, "1", 1, MAX_SIZE, "ranks",
          "cp: each sequence split over this many ranks", .alias = "cp", SEARCHED(CP)),
    CHOICE(STEP, context_parallel_load_balancer, "\"head_tail\"", "head_tail|documents",
           "how cp cuts: the sequence's head and tail together; by the work of packed documents",
           .idle = NO_CONTEXT,
           .refused = "needs data.reset_attention_mask, without which head_tail is even "
                      "(is documents and "
                      "data.reset_attention_mask is false)"),
    RANGE(SIZE, expert_model_parallel_size, "0", 0, MAX_SIZE, "ranks",
          "ep: experts split over this many ranks; 0: tp with expert_binding tp, else 1",
          .alias = "ep", SEARCHED(EP)),
    RANGE(SIZE, expert_tensor_parallel_size, "0", 0, MAX_SIZE, "ranks",
          "etp: each expert split over this many ranks: 1, or tp with expert_binding dp; 0: 1",
          .alias = "etp", SEARCHED(ETP)),
    RANGE(SIZE, data_parallel_size, "0", 0, MAX_SIZE, "ranks",
          "dp: replicas of the model; 0: what tp, cp and pp leave of the ranks", .alias = "dp",
          SEARCHED(DP)),
    CHOICE(STEP, expert_binding, "\"dp\"", "tp|dp",
           "where ep lies: in the tensor-parallel group (PPMoE) or over the data-parallel ranks",
           .idle = NO_EXPERTS, .alias = "binding", SEARCHED(BINDING)),
    FLAG(STEP, sequence_parallel, "false",
         "split activations between the tensor-parallel regions along the sequence", .alias = "sp",
         SEARCHED(SEQUENCE)),
    FLAG(STEP, use_distributed_optimizer, "true",
         "shard optimizer state over the data-parallel ranks (ZeRO-1)", SEARCHED(ZERO)),
    CHOICE(STEP, data_parallel_sharding_strategy, "\"auto\"",
           "auto|no_shard|optim|optim_grads|optim_grads_params",
           "ZeRO-0 to ZeRO-3; auto: optim with use_distributed_optimizer, else no_shard",
           .alias = "zero", SEARCHED(ZERO)),
    FLAG(STEP, overlap_grad_reduce, "true",
         "reduce gradients bucket by bucket while backward runs"),
    RANGE(STEP, ddp_bucket_size, "8388608", 1, 1e12, "elements", "gradients reduced at a time"),
    TEXT(STEP, pipeline_model_parallel_layout, "\"\"",
         "each stage's layers: \"E|(tt|)*6tL\" (E first, t between, L last); auto: by work; empty: "
         "evenly",
         .alias = "layout", SEARCHED(LAYOUT)),
    RANGE(STEP, num_virtual_stages_per_pipeline_rank, "0", 0, 4096, "stages",
          "v: virtual stages a rank has; 0: as the layout says, else 1", .idle = ONE_STAGE,
          .alias = "vp", SEARCHED(CHUNKS)),
    RANGE(STEP, num_layers_per_virtual_pipeline_stage, "0", 0, MAX_SIZE, "layers",
          "the same by the layers of one virtual stage; 0: not given", .idle = ONE_STAGE,
          SEARCHED(CHUNKS)),
    RANGE(STEP, decoder_first_pipeline_num_layers, "0", 0, MAX_SIZE, "layers",
          "layers on the first rank; the others share the rest evenly; 0: not given",
          SEARCHED(LAYOUT)),
    RANGE(STEP, decoder_last_pipeline_num_layers, "0", 0, MAX_SIZE, "layers",
          "layers on the last rank; 0: not given", SEARCHED(LAYOUT)),
    TEXT(STEP, order, "\"tp-cp-ep-dp-pp\"", "how ranks count through the axes, the fastest first",
         .alias = "order", SEARCHED(ORDER)),
    CHOICE(
        CHOICE, cp_comm_type, "\"p2p\"", "p2p|all_gather|a2a|a2a+p2p|auto",
        "attention under cp: keys in a ring or at once, heads for sequence, both; auto: by price",
        .idle = NO_CONTEXT, SEARCHED(CONTEXT)),
    ROW(CHOICE, "hierarchical_context_parallel_sizes", hierarchical_context_parallel_sizes,
        INT_LIST, "0", 0, MAX_SIZE, "ranks",
        "of cp_comm_type a2a+p2p: [ranks that deal heads, groups of them in the ring]; 0: not "
        "given",
        .idle = NO_CONTEXT "; parallel.cp_comm_type is not a2a+p2p", SEARCHED(CONTEXT)),
    FLAG(STEP, allow_tp_across_nodes, "false", "let tensor-parallel groups span nodes (slow)"),
    FLAG(STEP, tp_comm_overlap, "false",
         "cut products in chunks, beside which rows travel between tensor-parallel ranks",
         .idle = NO_TENSOR, SEARCHED(OVERLAP)),
    ROW(CHOICE, "tp_comm_overlap_chunks", tp_comm_overlap_chunks, INT_LIST, "0", 0, MAX_CHUNKS,
        "chunks",
        "of each such product, or [attention's, MLPs']; 0: by price, or 4 without parallel.cluster",
        .idle = NO_TENSOR "; parallel.tp_comm_overlap is false", SEARCHED(OVERLAP)),
};
const size_t weft_num_parallel_rows = sizeof(weft_parallel_rows) / sizeof(weft_parallel_rows[0]);

enum { MAX_ALIASES = 16 };

weft_sharding weft_parallel_sharding(const weft_parallel_options *options)
{
    const int strategy = options->data_parallel_sharding_strategy;
    return strategy > 0 ? (weft_sharding)(strategy - 1)
                        : (weft_sharding)options->use_distributed_optimizer;
}

/* ZeRO's stage stands for both keys. */
static weft_status apply_zero(const char *value, weft_parallel_options *options)
{
    if (value[0] < '0' || value[0] > '3' || value[1])
        return WEFT_ERROR(WEFT_CONFIG,
                          "--mesh zero=%s: 0 to 3 (no_shard, optim, optim_grads, "
                          "optim_grads_params)",
                          value);
    options->data_parallel_sharding_strategy = 1 + (value[0] - '0');
    options->use_distributed_optimizer = value[0] > '0';
    return WEFT_OK;
}

/* The comma behind an item; NULL: it is the last. A layout's own commas stand before no name. */
static char *end_of_item(char *item)
{
    const bool is_layout = strncmp(item, "layout=", strlen("layout=")) == 0;
    char *comma = strchr(item, ',');
    while (is_layout && comma && comma[1 + strcspn(comma + 1, ",=")] != '=')
        comma = strchr(comma + 1, ',');
    return comma;
}

/* What the items before named. */
typedef struct given {
    const weft_key *rows[MAX_ALIASES];
    int count;
} given;

static bool is_given(const given *g, const char *alias)
{
    for (int i = 0; i < g->count; i++)
        if (strcmp(g->rows[i]->alias, alias) == 0)
            return true;
    return false;
}

static weft_status refuse_name(const char *item, bool knows_schedule, const char *const *names,
                               size_t count)
{
    if (!knows_schedule && strcmp(item, "schedule") == 0)
        return WEFT_ERROR(WEFT_CONFIG, "--mesh %s: not asked for here", item);
    const char *nearest = weft_nearest_name(item, names, count);
    return WEFT_ERROR(WEFT_CONFIG,
                      "--mesh %s: unknown name%s%s%s (tp, pp, cp, ep, etp, dp, binding, sp, "
                      "zero, schedule, order, layout, vp)",
                      item, nearest ? "; did you mean " : "", nearest ? nearest : "",
                      nearest ? "?" : "");
}

/* Applies one "name=value", which it may write into. more: NULL, or other rows. */
static weft_status apply_item(char *item, given *g, const weft_option_section *own,
                              const weft_option_section *more, weft_arena *arena)
{
    const weft_option_section *const sections[] = {own, more};
    const char *names[MAX_ALIASES], *words;
    const weft_key *row = NULL;
    void *target = NULL;
    size_t count = 0;
    char *value = strchr(item, '=');
    if (!value || !value[1])
        return WEFT_ERROR(WEFT_CONFIG, "--mesh '%s': not name=value, such as tp=2,pp=2", item);
    *value++ = '\0';
    for (int s = 0; s < 2 && sections[s]; s++)
        for (size_t i = 0; i < sections[s]->num_rows; i++) {
            const weft_key *at = &sections[s]->rows[i];
            if (!at->alias)
                continue;
            names[count++] = at->alias;
            if (strcmp(at->alias, item) == 0) {
                row = at;
                target = sections[s]->target;
            }
        }
    if (!row)
        return refuse_name(item, more != NULL, names, count);
    if (is_given(g, item))
        return WEFT_ERROR(WEFT_CONFIG, "--mesh %s: given twice", item);
    g->rows[g->count++] = row;
    if (strcmp(item, "zero") == 0)
        return apply_zero(value, target);
    WEFT_TRY(weft_arena_printf(arena, &words, "--mesh %s=%s", item, value));
    return weft_option_read(row, words, value, (char *)target + row->offset, arena);
}

weft_status weft_mesh_apply_alias(const char *text, weft_arena *arena,
                                  weft_parallel_options *options, const weft_option_section *more)
{
    weft_parallel_options made = *options;
    const weft_option_section own = {
        .rows = weft_parallel_rows, .num_rows = weft_num_parallel_rows, .target = &made};
    given g = {.count = 0};
    for (size_t i = 0; i < weft_num_parallel_rows; i++)
        if (weft_parallel_rows[i].resume == WEFT_RESUME_SIZE)
            *(int64_t *)((char *)&made + weft_parallel_rows[i].offset) =
                strtoll(weft_parallel_rows[i].initial, NULL, 10);
    char *copy = NULL;
    WEFT_TRY(weft_arena_alloc(arena, strlen(text) + 1, (void **)&copy));
    memcpy(copy, text, strlen(text) + 1);
    for (char *item = copy; item;) {
        char *comma = end_of_item(item);
        if (comma)
            *comma = '\0';
        WEFT_TRY(apply_item(item, &g, &own, more, arena));
        item = comma ? comma + 1 : NULL;
    }
    /* A file's sequence_parallel belongs to the file's tp: it must not make tp=1 impossible. */
    if (!is_given(&g, "sp") && made.tensor_model_parallel_size == 1)
        made.sequence_parallel = false;
    *options = made;
    return WEFT_OK;
}
