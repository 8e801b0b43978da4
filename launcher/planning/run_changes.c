#include "launcher/planning/run_changes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "launcher/planning/moe_choice.h"
#include "parallel/optimizer/optimizer.h"
#include "schedule/context.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* --- what ran ------------------------------------------------------------------------------- */

/* 0: nobody says. */
static int64_t last_dp(const char *run)
{
    static const char key[] = "\"mesh\": \"";
    char path[4096], *line = NULL;
    size_t capacity = 0;
    long long dp, last = 0;
    const int length = snprintf(path, sizeof path, "%s/ledger.jsonl", run);
    FILE *file = length > 0 && length < (int)sizeof path ? fopen(path, "re") : NULL;
    while (file && getline(&line, &capacity, file) > 0) {
        const char *mesh = strstr(line, key); /* of a start, as weft_mesh_print says it */
        if (mesh && sscanf(mesh + strlen(key), "tp %*d, pp %*d, dp %7lld", &dp) == 1 && dp > 0)
            last = dp;
    }
    free(line);
    if (file)
        fclose(file);
    return last;
}

void weft_run_fill_dp(const char *run, weft_config *config)
{
    if (config->parallel.data_parallel_size == 0)
        config->parallel.data_parallel_size = last_dp(run);
}

weft_status weft_run_compare(const weft_config *run, const weft_config *config,
                             weft_difference_function visit, void *context)
{
    weft_config copies[2] = {*run, *config};
    weft_option_section sections[2][WEFT_MAX_CONFIG_SECTIONS];
    size_t count = weft_config_sections(&copies[0], sections[0]);
    weft_config_sections(&copies[1], sections[1]);
    for (int i = 0; i < 2; i++)
        copies[i].tier = weft_tier_as_asked(&copies[i].tier);
    /* Checkpoints of earlier versions do not know their dataset. */
    if (!run->data.data_xxh64)
        copies[1].data.data_xxh64 = NULL;
    return weft_options_compare(sections[0], sections[1], count, visit, context);
}

/* --- what stays ---------------------------------------------------------------------------- */

static weft_status count_other_parallel(void *context, const char *section, const weft_key *row,
                                        const char *before, const char *after)
{
    (void)before;
    (void)after;
    int *count = context;
    *count += strcmp(section, "parallel") == 0 && row->resume != WEFT_RESUME_CHOICE;
    return WEFT_OK;
}

static void keep_context(const weft_config *run, weft_config *config)
{
    const weft_parallel_options *from = &run->parallel;
    weft_parallel_options *to = &config->parallel;
    if (to->cp_comm_type != WEFT_NUM_CONTEXT_FORMS || to->context_parallel_size == 1 ||
        from->cp_comm_type == WEFT_NUM_CONTEXT_FORMS)
        return;
    config->context_is_kept = true;
    to->cp_comm_type = from->cp_comm_type;
    to->hierarchical_context_parallel_sizes = from->hierarchical_context_parallel_sizes;
}

static void keep_chunks(const weft_config *run, weft_config *config)
{
    const weft_parallel_options *from = &run->parallel;
    weft_parallel_options *to = &config->parallel;
    const weft_mesh mesh = {.tp = (int)to->tensor_model_parallel_size};
    if (!weft_mesh_leaves_chunks(to, &mesh) || weft_mesh_leaves_chunks(from, &mesh))
        return;
    config->chunks_are_kept = true;
    to->tp_comm_overlap_chunks = from->tp_comm_overlap_chunks;
}

/* What was chosen holds as long as what it was chosen by. */
static void keep_tier(const weft_config *run, weft_config *config)
{
    const weft_tier_options *from = &run->tier;
    weft_tier_options *to = &config->tier;
    if (weft_tier_is_left_open(from) || run->device.memory_limit != config->device.memory_limit ||
        from->host_memory_limit != to->host_memory_limit ||
        from->optimizer_state != to->optimizer_state)
        return;
    if (to->kept < 0 && (to->experts == WEFT_TIER_AUTO || to->experts == from->experts))
        to->kept = from->kept;
    if (to->experts == WEFT_TIER_AUTO && from->experts == WEFT_TIER_FILE)
        to->cached = from->cached;
    if (to->experts == WEFT_TIER_AUTO)
        to->experts = from->experts;
}

static weft_status keep_choice(const weft_config *run, weft_config *config)
{
    const weft_schedule_options *from = &run->schedule;
    weft_schedule_options *to = &config->schedule;
    int others = 0;
    WEFT_TRY(weft_run_compare(run, config, count_other_parallel, &others));
    if (others > 0 || run->train.micro_batch_size != config->train.micro_batch_size)
        return WEFT_OK;
    keep_context(run, config);
    keep_chunks(run, config);
    keep_tier(run, config);
    config->asked = *to;
    config->moe_is_kept = to->moe_num_partitions == 0 || to->moe_memory_reuse == WEFT_NUM_REUSES ||
                          to->moe_all_to_all == WEFT_NUM_EXCHANGES;
    const bool same_cut = to->moe_partition_by == WEFT_MOE_PARTITION_BY_AUTO ||
                          to->moe_partition_by == from->moe_partition_by;
    if (to->moe_num_partitions == 0 && same_cut) {
        to->moe_num_partitions = from->moe_num_partitions;
        to->moe_partition_by = from->moe_partition_by;
        to->moe_peer_group_size = from->moe_peer_group_size;
    }
    if (to->moe_memory_reuse == WEFT_NUM_REUSES)
        to->moe_memory_reuse = from->moe_memory_reuse;
    if (to->moe_all_to_all == WEFT_NUM_EXCHANGES) {
        to->moe_all_to_all = from->moe_all_to_all;
        if (to->moe_all_to_all_chunks == 0)
            to->moe_all_to_all_chunks = from->moe_all_to_all_chunks;
    }
    return WEFT_OK;
}

weft_status weft_run_keep(const weft_config *run, weft_config *config)
{
    weft_train_options *t = &config->train;
    if (t->lr_decay_iters == 0)
        t->lr_decay_iters = run->train.lr_decay_iters;
    if (t->lr_wsd_decay_iters == 0)
        t->lr_wsd_decay_iters = run->train.lr_wsd_decay_iters;
    if (config->data.shuffle_block_tokens == 0)
        config->data.shuffle_block_tokens = run->data.shuffle_block_tokens;
    return keep_choice(run, config);
}

/* --- what is listed ------------------------------------------------------------------------ */

static weft_status list_change(void *context, const char *section, const weft_key *row,
                               const char *before, const char *after)
{
    FILE *out = context;
    fprintf(out, "%s%s.%s %s -> %s", ftell(out) > 0 ? ", " : "", section, row->key, before, after);
    return WEFT_OK;
}

static bool changes_step(const weft_key *row, const char *before, const char *after)
{
    return row->resume == WEFT_RESUME_ABOVE_0
               ? (strtod(before, NULL) > 0) != (strtod(after, NULL) > 0)
               : row->resume != WEFT_RESUME_FREE && row->resume != WEFT_RESUME_SIZE &&
                     row->resume != WEFT_RESUME_RUN;
}

static weft_status list_step_change(void *context, const char *section, const weft_key *row,
                                    const char *before, const char *after)
{
    return changes_step(row, before, after) ? list_change(context, section, row, before, after)
                                            : WEFT_OK;
}

/* tail: what else there is to say; NULL: nothing. */
static weft_status list(const weft_config *run, const weft_config *config,
                        weft_difference_function visit,
                        void (*tail)(FILE *, const weft_config *, const weft_config *),
                        weft_arena *arena, const char **out)
{
    weft_new_text text;
    const char *all;
    WEFT_TRY(weft_new_text_open(&text));
    const weft_status status = weft_run_compare(run, config, visit, text.file);
    if (tail)
        tail(text.file, run, config);
    WEFT_TRY(weft_new_text_close(&text, status, arena, &all));
    *out = *all ? all : NULL;
    return WEFT_OK;
}

static void tell_decay(FILE *out, const weft_config *run, const weft_config *config)
{
    const weft_train_options *now = &config->train;
    bool longer =
        now->train_iters > run->train.train_iters && now->lr_decay_style != (int)WEFT_LR_CONSTANT;
    if (longer && now->lr_decay_iters == run->train.lr_decay_iters &&
        now->lr_decay_iters < now->train_iters)
        fprintf(out, "; train.lr_decay_iters stays %lld: lr is %g from there on",
                (long long)now->lr_decay_iters, now->min_lr);
}

static int64_t block_of(const weft_config *config)
{
    const int64_t block = config->data.shuffle_block_tokens;
    return block > 0 ? block : config->model.seq_length;
}

static void tell_more(FILE *out, const weft_config *run, const weft_config *config)
{
    tell_decay(out, run, config);
    if (block_of(run) != block_of(config) && !weft_config_has_own_data(config))
        fprintf(out, "; samples get another order: some tokens of this epoch come again");
}

weft_status weft_run_changes(const weft_config *run, const weft_config *config, weft_arena *arena,
                             const char **out)
{
    return list(run, config, list_change, tell_more, arena, out);
}

weft_status weft_run_step_changes(const weft_config *run, const weft_config *config,
                                  weft_arena *arena, const char **out)
{
    return list(run, config, list_step_change, NULL, arena, out);
}

/* --- what is refused ----------------------------------------------------------------------- */

typedef struct refusal {
    const weft_model_options *model;
    bool is_other_model; /* with other parameters: cannot be allowed */
    bool is_other_state; /* of another optimizer: nor can that */
    const char *allowed; /* a,b */
    char key[96];        /* of the first change */
    char changes[300];   /* from behind that key on */
    char names[3][96]; /* what to allow, of model, train and data: a key, or the section for more */
} refusal;

static bool is_in_list(const char *list, const char *name)
{
    size_t bytes = strlen(name);
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == bytes && memcmp(at, name, bytes) == 0)
            return true;
    return false;
}

static bool changes_shapes(const weft_model_options *model, const weft_key *row, const char *before,
                           const char *after)
{
    if (row->resume != WEFT_RESUME_SHAPES)
        return false;
    if (strcmp(row->key, "max_position_embeddings") == 0)
        return model->position_embedding_type == WEFT_POSITION_LEARNED;
    if (strcmp(row->key, "vocab_size") == 0) /* 0: the tokenizer's, maybe the same */
        return strcmp(before, "0") != 0 && strcmp(after, "0") != 0;
    return strncmp(row->key, "moe_", 4) != 0 || model->num_experts > 0;
}

static void add_text(refusal *r, const char *text)
{
    size_t used = strlen(r->changes), room = sizeof r->changes - used;
    if ((size_t)snprintf(r->changes + used, room, "%s", text) >= room)
        strcpy(r->changes + sizeof r->changes - sizeof "...", "...");
}

static void add_change(refusal *r, const char *name, const char *before, const char *after)
{
    const char *const parts[] = {", ", name, " ", before, " -> ", after};
    for (size_t i = r->key[0] ? 0 : 2; i < COUNT(parts); i++)
        add_text(r, parts[i]);
    if (!r->key[0])
        snprintf(r->key, sizeof r->key, "%s", name);
}

static weft_status refuse_change(void *context, const char *section, const weft_key *row,
                                 const char *before, const char *after)
{
    refusal *r = context;
    char name[96];
    snprintf(name, sizeof name, "%s.%s", section, row->key);
    const bool other_model = changes_shapes(r->model, row, before, after);
    const bool other_state = row->resume == WEFT_RESUME_STATE;
    r->is_other_model = r->is_other_model || other_model;
    r->is_other_state = r->is_other_state || other_state;
    if (row->resume < WEFT_RESUME_RUN ||
        (!other_model && !other_state &&
         (is_in_list(r->allowed, section) || is_in_list(r->allowed, name))))
        return WEFT_OK;
    add_change(r, name, before, after);
    if (strcmp(row->key, "data_xxh64") == 0)
        add_text(r, " (other tokens, weights or another tokenizer)");
    bool is_data = strcmp(section, "data") == 0;
    char *asked = r->names[is_data ? 2 : strcmp(section, "train") == 0];
    snprintf(asked, sizeof r->names[0], "%s", asked[0] || is_data ? section : name);
    return WEFT_OK;
}

weft_status weft_run_check_changes(const weft_config *config, const weft_config_source *source)
{
    refusal r = {.allowed = source->allow_change, .model = &config->model};
    char names[300] = "";
    if (!source->run)
        return WEFT_OK;
    WEFT_TRY(weft_run_compare(source->run, config, refuse_change, &r));
    if (!r.key[0])
        return WEFT_OK;
    if (r.is_other_model)
        return WEFT_KEY_ERROR(
            r.key, "%s: that is another model: start a new run, with another --out", r.changes);
    if (r.is_other_state)
        return WEFT_KEY_ERROR(
            r.key,
            "%s: an optimizer's state does not go over to another: start a new run with "
            "checkpoint.load of weights alone, which weft export and then weft import make",
            r.changes);
    for (int i = 0; i < 3; i++)
        if (r.names[i][0])
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
                     names[0] ? "," : "", r.names[i]);
    return WEFT_KEY_ERROR(r.key, "%s: that would be another run; --allow-change %s asks for it",
                          r.changes, names);
}

weft_status weft_run_check_decay(const weft_config *config, const weft_config_source *source,
                                 int64_t step)
{
    const weft_train_options *t = &config->train;
    const char *allowed = source->allow_change;
    const bool is_zero = t->lr_decay_style != (int)WEFT_LR_CONSTANT && t->lr > 0 &&
                         t->min_lr == 0 && step >= t->lr_decay_iters && step >= t->lr_warmup_iters;
    if (!source->run || t->train_iters <= source->run->train.train_iters ||
        step >= t->train_iters || !is_zero || is_in_list(allowed, "train") ||
        is_in_list(allowed, "train.lr_decay_iters"))
        return WEFT_OK;
    return WEFT_KEY_ERROR("train.lr_decay_iters",
                          "%lld, so the learning rate of steps %lld to %lld is 0: give a larger "
                          "one, a min_lr, or --allow-change train.lr_decay_iters",
                          (long long)t->lr_decay_iters, (long long)step + 1,
                          (long long)t->train_iters);
}

static bool is_name(const weft_config_source *source, const char *name)
{
    weft_config config = {.application = source->application};
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    const size_t count = weft_config_sections(&config, sections), bytes = strcspn(name, ".");
    for (size_t i = 0; i < count; i++)
        if (strlen(sections[i].name) == bytes && strncmp(name, sections[i].name, bytes) == 0)
            return !name[bytes] ||
                   weft_key_find(sections[i].rows, sections[i].num_rows, name + bytes + 1);
    return false;
}

weft_status weft_run_check_allowed(const weft_config_source *source)
{
    weft_arena arena = {0};
    weft_status status = WEFT_OK;
    for (const char *at = source->allow_change; status == WEFT_OK && at && *at;) {
        size_t bytes = strcspn(at, ",");
        const char *name;
        status = weft_arena_printf(&arena, &name, "%.*s", (int)bytes, at);
        if (status == WEFT_OK && !is_name(source, name))
            status = WEFT_ERROR(WEFT_CONFIG,
                                "--allow-change %s: not a key of the config such as train.seed, "
                                "nor a section such as data",
                                name);
        at += bytes + (at[bytes] == ',');
    }
    weft_arena_release(&arena);
    return status;
}
