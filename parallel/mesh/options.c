#include "parallel/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SIZE = 1 << 20 };

#define ROW(field, kind, value, lowest, highest, text_unit, text)                                  \
    {                                                                                              \
        .key = #field, .type = WEFT_OPTION_##kind,                                                 \
        .offset = offsetof(weft_parallel_options, field), .initial = (value), .min = (lowest),     \
        .max = (highest), .unit = (text_unit), .help = (text)                                      \
    }
#define CHOICE(field, value, names, text)                                                          \
    {                                                                                              \
        .key = #field, .type = WEFT_OPTION_CHOICE,                                                 \
        .offset = offsetof(weft_parallel_options, field), .initial = (value), .choices = (names),  \
        .help = (text)                                                                             \
    }

const weft_option_row weft_parallel_rows[] = {
    ROW(tensor_model_parallel_size, INT, "1", 1, MAX_SIZE, "ranks",
        "tp: each layer's matrices split over this many ranks of one node"),
    ROW(pipeline_model_parallel_size, INT, "1", 1, MAX_SIZE, "ranks",
        "pp: layers split into this many stages"),
    ROW(context_parallel_size, INT, "1", 1, MAX_SIZE, "ranks",
        "cp: each sequence split over this many ranks"),
    CHOICE(context_parallel_load_balancer, "\"head_tail\"", "head_tail|documents",
           "how cp cuts: the sequence's head and tail together; by the work of packed documents"),
    ROW(expert_model_parallel_size, INT, "0", 0, MAX_SIZE, "ranks",
        "ep: experts split over this many ranks; 0: tp with expert_binding tp, else 1"),
    ROW(expert_tensor_parallel_size, INT, "0", 0, MAX_SIZE, "ranks",
        "etp: each expert split over this many ranks: 1, or tp with expert_binding dp; 0: 1"),
    ROW(data_parallel_size, INT, "0", 0, MAX_SIZE, "ranks",
        "dp: replicas of the model; 0: what tp, cp and pp leave of the ranks"),
    CHOICE(expert_binding, "\"dp\"", "tp|dp",
           "where ep lies: in the tensor-parallel group (PPMoE) or over the data-parallel ranks"),
    ROW(sequence_parallel, BOOL, "false", 0, 0, NULL,
        "split activations between the tensor-parallel regions along the sequence"),
    ROW(use_distributed_optimizer, BOOL, "true", 0, 0, NULL,
        "shard optimizer state over the data-parallel ranks (ZeRO-1)"),
    CHOICE(data_parallel_sharding_strategy, "\"auto\"",
           "auto|no_shard|optim|optim_grads|optim_grads_params",
           "ZeRO-0 to ZeRO-3; auto: optim with use_distributed_optimizer, else no_shard"),
    ROW(overlap_grad_reduce, BOOL, "true", 0, 0, NULL,
        "reduce gradients bucket by bucket while backward runs"),
    ROW(ddp_bucket_size, INT, "8388608", 1, 1e12, "elements", "gradients reduced at a time"),
    ROW(pipeline_model_parallel_layout, STRING, "\"\"", 0, 0, NULL,
        "each stage's layers: \"E|(tt|)*6tL\" (E first, t between, L last); auto: by work; empty: "
        "evenly"),
    ROW(num_virtual_stages_per_pipeline_rank, INT, "0", 0, 4096, "stages",
        "v: virtual stages a rank has; 0: as the layout says, else 1"),
    ROW(num_layers_per_virtual_pipeline_stage, INT, "0", 0, MAX_SIZE, "layers",
        "the same by the layers of one virtual stage; 0: not given"),
    ROW(decoder_first_pipeline_num_layers, INT, "0", 0, MAX_SIZE, "layers",
        "layers on the first rank; the others share the rest evenly; 0: not given"),
    ROW(decoder_last_pipeline_num_layers, INT, "0", 0, MAX_SIZE, "layers",
        "layers on the last rank; 0: not given"),
    ROW(order, STRING, "\"tp-cp-ep-dp-pp\"", 0, 0, NULL,
        "how ranks count through the axes, the fastest first"),
    CHOICE(
        cp_comm_type, "\"p2p\"", "p2p|all_gather|a2a|a2a+p2p|auto",
        "attention under cp: keys in a ring or at once, heads for sequence, both; auto: by price"),
    {.key = "hierarchical_context_parallel_sizes",
     .type = WEFT_OPTION_INT_LIST,
     .offset = offsetof(weft_parallel_options, hierarchical_context_parallel_sizes),
     .initial = "0",
     .min = 0,
     .max = MAX_SIZE,
     .unit = "ranks",
     .help = "of cp_comm_type a2a+p2p: [ranks that deal heads, groups of them in the ring]; 0: not "
             "given"},
    ROW(allow_tp_across_nodes, BOOL, "false", 0, 0, NULL,
        "let tensor-parallel groups span nodes (slow)"),
};
const size_t weft_num_parallel_rows = sizeof(weft_parallel_rows) / sizeof(weft_parallel_rows[0]);

/* The short names of --mesh and the rows they stand for. */
static const struct alias {
    const char *name, *key;
} aliases[] = {
    {"tp", "tensor_model_parallel_size"},
    {"pp", "pipeline_model_parallel_size"},
    {"cp", "context_parallel_size"},
    {"ep", "expert_model_parallel_size"},
    {"etp", "expert_tensor_parallel_size"},
    {"dp", "data_parallel_size"},
    {"binding", "expert_binding"},
    {"sp", "sequence_parallel"},
    {"zero", "data_parallel_sharding_strategy"},
    {"schedule", "pipeline_schedule"},
    {"order", "order"},
    {"layout", "pipeline_model_parallel_layout"},
    {"vp", "num_virtual_stages_per_pipeline_rank"},
};
enum { NUM_ALIASES = sizeof(aliases) / sizeof(aliases[0]) };

weft_sharding weft_parallel_sharding(const weft_parallel_options *options)
{
    const int strategy = options->data_parallel_sharding_strategy;
    return strategy > 0 ? (weft_sharding)(strategy - 1)
                        : (weft_sharding)options->use_distributed_optimizer;
}

static const weft_option_row *find_row(const weft_option_section *section, const char *key)
{
    for (size_t i = 0; section && i < section->num_rows; i++)
        if (!strcmp(section->rows[i].key, key))
            return &section->rows[i];
    return NULL;
}

static weft_status parse_size(const weft_option_row *row, const char *name, const char *value,
                              int64_t *out)
{
    char *end = NULL;
    long long number = *value >= '0' && *value <= '9' ? strtoll(value, &end, 10) : -1;
    if (!end || *end || number < (long long)row->min || number > (long long)row->max)
        return WEFT_ERROR(WEFT_CONFIG, "--mesh %s=%s: %s is a whole number from %d to %d", name,
                          value, row->key, (int)row->min, (int)row->max);
    *out = number;
    return WEFT_OK;
}

static weft_status parse_choice(const weft_option_row *row, const char *name, const char *value,
                                int *out)
{
    const char *choice = row->choices;
    for (int index = 0;; index++) {
        size_t length = strcspn(choice, "|");
        if (strlen(value) == length && !strncmp(choice, value, length)) {
            *out = index;
            return WEFT_OK;
        }
        if (!choice[length])
            break;
        choice += length + 1;
    }
    return WEFT_ERROR(WEFT_CONFIG, "--mesh %s=%s: %s is one of %s", name, value, row->key,
                      row->choices);
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

static weft_status apply(const weft_option_row *row, const char *name, const char *value,
                         void *target)
{
    void *field = (char *)target + row->offset;
    switch (row->type) {
    case WEFT_OPTION_INT:
        return parse_size(row, name, value, field);
    case WEFT_OPTION_CHOICE:
        return parse_choice(row, name, value, field);
    case WEFT_OPTION_BOOL:
        if (strcmp(value, "0") && strcmp(value, "1"))
            return WEFT_ERROR(WEFT_CONFIG, "--mesh %s=%s: %s is 0 or 1", name, value, row->key);
        *(bool *)field = *value == '1';
        return WEFT_OK;
    default: /* order, layout: checked with the rest of the mesh */
        *(const char **)field = value;
        return WEFT_OK;
    }
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

/* Applies one "name=value", which it may write into. */
static weft_status apply_item(char *item, bool *given, const weft_option_section *own,
                              const weft_option_section *more)
{
    const char *names[NUM_ALIASES];
    for (int i = 0; i < NUM_ALIASES; i++)
        names[i] = aliases[i].name;
    char *value = strchr(item, '=');
    if (!value || !value[1])
        return WEFT_ERROR(WEFT_CONFIG, "--mesh '%s': not name=value, such as tp=2,pp=2", item);
    *value++ = '\0';
    int i = 0;
    while (i < NUM_ALIASES && strcmp(item, names[i]))
        i++;
    if (i == NUM_ALIASES) {
        const char *nearest = weft_nearest_name(item, names, NUM_ALIASES);
        return WEFT_ERROR(WEFT_CONFIG,
                          "--mesh %s: unknown name%s%s%s (tp, pp, cp, ep, etp, dp, binding, sp, "
                          "zero, schedule, order, layout, vp)",
                          item, nearest ? "; did you mean " : "", nearest ? nearest : "",
                          nearest ? "?" : "");
    }
    if (given[i])
        return WEFT_ERROR(WEFT_CONFIG, "--mesh %s: given twice", item);
    given[i] = true;
    const weft_option_row *row = find_row(own, aliases[i].key);
    if (!row && !(row = find_row(more, aliases[i].key)))
        return WEFT_ERROR(WEFT_CONFIG, "--mesh %s: not asked for here", item);
    if (!strcmp(item, "zero"))
        return apply_zero(value, own->target);
    return apply(row, item, value, find_row(own, row->key) ? own->target : more->target);
}

weft_status weft_mesh_apply_alias(const char *text, weft_arena *arena,
                                  weft_parallel_options *options, const weft_option_section *more)
{
    weft_parallel_options made = *options;
    const weft_option_section own = {
        .rows = weft_parallel_rows, .num_rows = weft_num_parallel_rows, .target = &made};
    made.tensor_model_parallel_size = 1;
    made.pipeline_model_parallel_size = 1;
    made.context_parallel_size = 1;
    made.expert_model_parallel_size = 0;
    made.expert_tensor_parallel_size = 0;
    made.data_parallel_size = 0;

    bool given[NUM_ALIASES] = {false};
    char *copy = NULL;
    WEFT_TRY(weft_arena_alloc(arena, strlen(text) + 1, (void **)&copy));
    memcpy(copy, text, strlen(text) + 1);
    for (char *item = copy; item;) {
        char *comma = end_of_item(item);
        if (comma)
            *comma = '\0';
        WEFT_TRY(apply_item(item, given, &own, more));
        item = comma ? comma + 1 : NULL;
    }
    /* A file's sequence_parallel belongs to the file's tp: it must not make tp=1 impossible. */
    bool sequence_given = false;
    for (int i = 0; i < NUM_ALIASES; i++)
        sequence_given |= given[i] && !strcmp(aliases[i].name, "sp");
    if (!sequence_given && made.tensor_model_parallel_size == 1)
        made.sequence_parallel = false;
    *options = made;
    return WEFT_OK;
}
