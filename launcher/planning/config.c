#include "launcher/planning/config.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/kernels.h>

#include "core/cluster/cluster.h"
#include "core/log.h"
#include "core/sized.h"
#include "core/text.h"
#include "launcher/planning/data_sources.h"
#include "launcher/planning/families.h"
#include "launcher/planning/mesh_choice.h"
#include "launcher/planning/ramp.h"
#include "launcher/planning/run_changes.h"
#include "layers/model/model.h"
#include "schedule/pipeline/order_text.h"

/* The override that sets `path` ("section.key"); NULL: none. */
/* Its index; num_set: none. */
static size_t find_override(const weft_config_source *source, const char *path)
{
    const char *key = strchr(path, '.') + 1;
    size_t i = source->num_set;
    while (i-- > 0) {
        size_t bytes = strcspn(source->set[i], "=");
        bool same = (strlen(path) == bytes && memcmp(path, source->set[i], bytes) == 0) ||
                    (strlen(key) == bytes && memcmp(key, source->set[i], bytes) == 0);
        if (same)
            return i;
    }
    return source->num_set;
}

/* The row of "parallel.KEY" that the mesh owns; NULL: none. */
static const weft_key *row_of(const char *path)
{
    return strncmp(path, "parallel.", 9) == 0
               ? weft_key_find(weft_parallel_rows, weft_num_parallel_rows, path + 9)
               : NULL;
}

/* --mesh replaces the mesh's sizes, whatever it names. */
static bool is_mesh_size(const char *path)
{
    const weft_key *row = row_of(path);
    return row && row->resume == WEFT_RESUME_SIZE;
}

/* The record of this thread, with the place that `key` was given at before it. `blame`: the --set
 * that made a key of the file wrong; NULL: none. */
static weft_status put_place(const weft_config_source *source, const char *text, const char *key,
                             const char *blame, weft_status status)
{
    const char *with = blame ? ", with --set " : "";
    blame = blame ? blame : "";
    int line, column;
    if (source->mesh && is_mesh_size(key))
        return weft_error_context(status, "--mesh %s", source->mesh);
    if (strcmp(key, "data.data_xxh64") == 0) /* of the data that another key names */
        key = "data.data_path";
    const size_t at = find_override(source, key);
    if (at < source->num_set && source->options && source->options[at])
        return weft_error_context(status, "%s", source->options[at]);
    if (at < source->num_set)
        return weft_error_context(status, "--set %s", source->set[at]);
    if (text && weft_options_locate(text, key, &line, &column))
        return weft_error_context(status, "%s:%d:%d%s%s", source->file, line, column, with, blame);
    if (source->mesh && strncmp(key, "parallel.", 9) == 0)
        return weft_error_context(status, "--mesh %s", source->mesh);
    return weft_error_context(status, "%s%s%s", source->file, with, blame);
}

/* dp 0: not known yet. */
static weft_status check_batch(const weft_config *c, int dp)
{
    int64_t micro = c->train.micro_batch_size, batch = c->train.global_batch_size;
    int64_t runs = dp > 0 ? micro * dp : micro;
    char replicas[32] = "", fits[WEFT_FITS_TEXT_BYTES];
    WEFT_TRY(weft_ramp_check(&c->train));
    if (weft_ramp_unit(&c->train) % runs == 0)
        return WEFT_OK;
    if (dp > 0)
        snprintf(replicas, sizeof replicas, " x dp %d", dp);
    for (int i = 0; batch % runs == 0; i++) {
        const int64_t size = weft_ramp_size(&c->train, i);
        if (size % runs != 0)
            return WEFT_KEY_ERROR("train.rampup_batch_size",
                                  "%lld samples a step do not divide by micro_batch_size %lld%s",
                                  (long long)size, (long long)micro, replicas);
    }
    weft_fits near = weft_fits_multiples_near(runs, batch);
    return WEFT_KEY_ERROR(
        "train.global_batch_size", "%lld does not divide by micro_batch_size %lld%s; %s would",
        (long long)batch, (long long)micro, replicas, weft_fits_text(&near, fits));
}

static weft_status check_blocks(const weft_config *c)
{
    const int64_t block = c->data.shuffle_block_tokens, each = c->model.seq_length;
    char text[WEFT_FITS_TEXT_BYTES];
    if (block % each == 0)
        return WEFT_OK;
    weft_fits near = weft_fits_multiples_near(each, block);
    return WEFT_KEY_ERROR("data.shuffle_block_tokens",
                          "%lld is no multiple of seq_length %lld; %s would", (long long)block,
                          (long long)each, weft_fits_text(&near, text));
}

/* node_exporter reads *.prom alone. */
static weft_status check_log(const weft_config *c)
{
    const char *file = c->log.prometheus_file;
    const size_t bytes = file ? strlen(file) : 0;
    if (!file)
        return WEFT_OK;
    if (bytes < 6 || strcmp(file + bytes - 5, ".prom") != 0 || file[bytes - 6] == '/')
        return WEFT_KEY_ERROR("log.prometheus_file",
                              "node_exporter reads files NAME.prom alone: end it so");
    for (const char *at = file; *at; at++)
        if ((unsigned char)*at < 32 || *at == 127)
            return WEFT_KEY_ERROR("log.prometheus_file", "a control character in a file's name");
    return WEFT_OK;
}

static weft_status check_data(const weft_config *c, bool no_data, weft_arena *arena)
{
    weft_data_sources training, validation;
    double weights[3];
    if (!no_data && !c->data.mock_data && !weft_config_reads_file(c) &&
        !weft_config_has_own_data(c))
        return WEFT_KEY_ERROR("data.data_path", "missing; make a dataset with weft prepare, or set "
                                                "data.mock_data");
    if (c->data.mock_data && c->model.vocab_size == 0)
        return WEFT_KEY_ERROR("model.vocab_size", "mock data needs one");
    if (weft_config_has_own_data(c) && c->model.vocab_size == 0)
        return WEFT_KEY_ERROR("model.vocab_size", "the program's own data needs one");
    WEFT_TRY(weft_data_find_training(c, arena, &training));
    WEFT_TRY(weft_data_find_validation(c, arena, &validation));
    WEFT_TRY(check_blocks(c));
    WEFT_TRY(weft_config_split(c, weights));
    if (weft_config_evaluates(c) && !(weights[1] > 0) && validation.count == 0)
        return WEFT_KEY_ERROR("data.split",
                              "evaluation needs a validation share, not %s, or data.validation",
                              c->data.split);
    return WEFT_OK;
}

/* What keys' rows refuse. */
static weft_status check_rows(const weft_config *c, weft_arena *arena)
{
    weft_config copy = *c;
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    const size_t count = weft_config_sections(&copy, sections);
    for (size_t s = 0; s < count; s++)
        for (size_t i = 0; i < sections[s].num_rows; i++) {
            const weft_key *row = &sections[s].rows[i];
            const char *why, *value;
            char key[WEFT_ERROR_KEY_BYTES];
            snprintf(key, sizeof key, "%s.%s", sections[s].name, row->key);
            WEFT_TRY(weft_options_reason(sections, count, key, row->refused, arena, &why));
            if (!why)
                continue;
            WEFT_TRY(weft_option_text(&sections[s], row, arena, &value));
            const int quote = *value == '"' && value[1] != '"';
            return WEFT_KEY_ERROR(key, "%.*s %s", (int)strlen(value) - 2 * quote, value + quote,
                                  why);
        }
    return WEFT_OK;
}

static weft_status check_train(const weft_config *c, bool no_data, weft_arena *arena)
{
    const weft_train_options *t = &c->train;
    unsigned modules;
    WEFT_TRY(weft_recompute_modules(&t->recompute, &modules));
    WEFT_TRY(weft_offload_modules(&t->offload, &t->recompute, &modules));
    if (t->min_loss_scale > t->initial_loss_scale)
        return WEFT_KEY_ERROR("train.min_loss_scale", "%g is above initial_loss_scale %g",
                              t->min_loss_scale, t->initial_loss_scale);
    if (t->min_lr > t->lr)
        return WEFT_KEY_ERROR("train.min_lr", "%g is above lr %g", t->min_lr, t->lr);
    WEFT_TRY(check_batch(c, 0));
    WEFT_TRY(check_rows(c, arena));
    WEFT_TRY(check_log(c));
    return check_data(c, no_data, arena);
}

bool weft_config_evaluates(const weft_config *c)
{
    return c->train.eval_interval > 0 && c->train.eval_iters > 0;
}

bool weft_config_is_set(const weft_config_source *source, const char *key)
{
    return find_override(source, key) < source->num_set;
}

bool weft_config_mesh_names(const weft_config_source *source, const char *alias)
{
    const size_t bytes = strlen(alias);
    for (const char *at = source->mesh; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, alias, bytes) == 0 && at[bytes] == '=')
            return true;
    }
    return false;
}

/* A file's layout is of the file's stages: a mesh of others that replaces it takes it away, unless
 * it was given with the mesh, or by --set. */
static void forget_layout(const weft_config_source *source, const weft_parallel_options *file,
                          weft_parallel_options *p)
{
    static const char text[] = "parallel.pipeline_model_parallel_layout";
    static const char *const numbers[] = {"parallel.num_virtual_stages_per_pipeline_rank",
                                          "parallel.num_layers_per_virtual_pipeline_stage",
                                          "parallel.decoder_first_pipeline_num_layers",
                                          "parallel.decoder_last_pipeline_num_layers"};
    const bool is_written = file->pipeline_model_parallel_layout[0] &&
                            strcmp(file->pipeline_model_parallel_layout, "auto") != 0;
    if (is_written && p->pipeline_model_parallel_layout == file->pipeline_model_parallel_layout &&
        !weft_config_is_set(source, text))
        p->pipeline_model_parallel_layout = "";
    for (int i = weft_config_mesh_names(source, "vp"); i < 4; i++) {
        const size_t offset = row_of(numbers[i])->offset;
        int64_t *now = (int64_t *)((char *)p + offset);
        if (*now == *(const int64_t *)((const char *)file + offset) &&
            !weft_config_is_set(source, numbers[i]))
            *now = 0;
    }
}

/* Who says it: 2 the command, 1 the file, 0 nobody. */
static int given_by(const weft_config_source *source, const char *text, const char *key)
{
    int line, column;
    if (weft_config_is_set(source, key))
        return 2;
    return text && weft_options_locate(text, key, &line, &column);
}

/* Both keys say whether the optimizer's state is shared out. The command's word replaces the file's
 * other key; where one place says both, they agree. */
static weft_status settle_sharding(weft_config *c, const weft_config_source *source,
                                   const char *text)
{
    static const char *const keys[] = {"parallel.data_parallel_sharding_strategy",
                                       "parallel.use_distributed_optimizer"};
    weft_parallel_options *p = &c->parallel;
    const bool shards = weft_parallel_sharding(p) != WEFT_NO_SHARD;
    for (int i = 0; weft_config_mesh_names(source, "zero") && i < 2; i++)
        if (weft_config_is_set(source, keys[i]))
            return WEFT_KEY_ERROR(keys[i], "given by --set and by --mesh %s", source->mesh);
    if (shards == p->use_distributed_optimizer)
        return WEFT_OK;
    const int strategy = given_by(source, text, keys[0]),
              optimizer = given_by(source, text, keys[1]);
    if (strategy == optimizer)
        return WEFT_KEY_ERROR(
            keys[0],
            "%s the optimizer's state, use_distributed_optimizer is %s; leave one "
            "out",
            shards ? "shards" : "no_shard does not shard",
            p->use_distributed_optimizer ? "true" : "false");
    if (strategy > optimizer)
        p->use_distributed_optimizer = shards;
    else
        p->data_parallel_sharding_strategy = 0; /* auto */
    return WEFT_OK;
}

/* An order in a file is no kind's: the command's word replaces the config's other key. */
static weft_status settle_order(weft_config *c, const weft_config_source *source, const char *text,
                                weft_arena *arena)
{
    static const char *const keys[] = {"parallel.pipeline_schedule",
                                       "parallel.pipeline_schedule_file"};
    const int kind =
                  weft_config_mesh_names(source, "schedule") ? 2 : given_by(source, text, keys[0]),
              file = given_by(source, text, keys[1]);
    size_t bytes;
    char *order;
    if (!c->schedule.pipeline_schedule_file || !c->schedule.pipeline_schedule_file[0])
        return WEFT_OK;
    if (kind == file && c->schedule.pipeline_schedule != WEFT_PIPELINE_1F1B)
        return WEFT_KEY_ERROR(keys[0],
                              "%s, and pipeline_schedule_file says another order; leave "
                              "one out",
                              weft_pipeline_kind_text(c->schedule.pipeline_schedule));
    if (kind > file) {
        c->schedule.pipeline_schedule_file = "";
        return WEFT_OK;
    }
    c->schedule.pipeline_schedule = WEFT_PIPELINE_1F1B;
    if (weft_read_file(c->schedule.pipeline_schedule_file, arena, &order, &bytes) == WEFT_OK)
        c->order_text = order;
    else
        weft_error_clear(); /* whoever runs it says why */
    return WEFT_OK;
}

void weft_config_settle_stages(weft_config *c)
{
    weft_parallel_options *p = &c->parallel;
    const int kind = c->schedule.pipeline_schedule, pp = (int)p->pipeline_model_parallel_size;
    const char *file = c->schedule.pipeline_schedule_file,
               *layout = p->pipeline_model_parallel_layout;
    const bool is_open = p->num_virtual_stages_per_pipeline_rank == 0 &&
                         p->num_layers_per_virtual_pipeline_stage == 0 &&
                         (!layout || strchr(layout, '|') == NULL);
    p->stages_in_v = weft_pipeline_kind_is_v(kind);
    c->schedule.splits_backward = pp > 1 && weft_pipeline_kind_splits(kind);
    if (p->stages_in_v && is_open && pp > 1)
        p->num_virtual_stages_per_pipeline_rank = 2;
    if (file && file[0] && c->order_text) {
        p->stages_in_v = weft_order_text_is_v(c->order_text, pp);
        c->schedule.splits_backward = strchr(c->order_text, 'W') != NULL;
    }
}

/* A relative checkpoint.load of a file is seen from the file's folder, so that both can be moved;
 * that of --set, or of a config that is no file, from the working folder. */
static weft_status find_load(const weft_config_source *source, weft_arena *arena, const char **load)
{
    char folder[PATH_MAX];
    const char *slash = source->file ? strrchr(source->file, '/') : NULL, *rest = *load;
    struct stat info;
    if (!rest || !*rest || *rest == '/' || !getcwd(folder, sizeof folder))
        return WEFT_OK;
    const bool is_files = source->file && !weft_config_is_set(source, "checkpoint.load") &&
                          stat(source->file, &info) == 0 && S_ISREG(info.st_mode);
    const int bytes = is_files && slash ? (int)(slash - source->file) : 0;
    const char *middle = is_files ? source->file : "";
    if (is_files && *source->file == '/')
        folder[0] = '\0';
    const bool is_dot = strcmp(rest, ".") == 0;
    return weft_arena_printf(arena, load, "%s%s%.*s%s%s", folder, bytes > 0 && folder[0] ? "/" : "",
                             bytes, middle, is_dot ? "" : "/", is_dot ? "" : rest);
}

/* Forwards alone need no order: each stage has the micro-batches one after the other. */
static void drop_schedule(weft_schedule_options *s)
{
    s->pipeline_schedule = WEFT_PIPELINE_1F1B;
    s->pipeline_schedule_file = "";
    s->microbatch_group_size_per_virtual_pipeline_stage = 0;
    s->overlap_moe_expert_parallel_comm = false;
}

/* `name`: of section "model". */
static weft_status refuse_layer(const weft_config *c, const char *name, int layer,
                                weft_arena *arena)
{
    weft_model_options model = c->model;
    const weft_option_section section = {"model", weft_model_rows, weft_num_model_rows, &model, ""};
    char key[WEFT_ERROR_KEY_BYTES];
    const char *value;
    snprintf(key, sizeof key, "model.%s", name);
    WEFT_TRY(weft_option_text(&section, weft_key_find(weft_model_rows, weft_num_model_rows, name),
                              arena, &value));
    return WEFT_KEY_ERROR(key,
                          "%.40s describes another layer %d than model.family %s has; family null "
                          "would leave all layers to the keys",
                          value, layer, c->model.family);
}

/* A family of Weft's makes what the keys describe; a program's own may have layers of its own. */
static weft_status check_family(const weft_config *c, weft_arena *arena)
{
    const weft_model_function build = weft_config_build(c);
    weft_other_layer other;
    if (!c->model.family || !build || weft_config_has_own_model(c))
        return WEFT_OK;
    WEFT_TRY(weft_model_find_other(&c->model, c->own, build, &other));
    if (other.index >= 0 && other.key)
        return refuse_layer(c, other.key, other.index, arena);
    return other.index < 0
               ? WEFT_OK
               : WEFT_KEY_ERROR("model.family",
                                "%s has another layer %d than the other keys of "
                                "section model describe; null leaves all layers to them",
                                c->model.family, other.index);
}

static weft_status resolve(weft_config *c, const weft_config_source *source, const char *text,
                           weft_arena *arena)
{
    const weft_parallel_options file = c->parallel;
    for (size_t i = 0; source->mesh && i < weft_num_parallel_rows; i++) {
        char key[WEFT_ERROR_KEY_BYTES];
        snprintf(key, sizeof key, "parallel.%s", weft_parallel_rows[i].key);
        if (is_mesh_size(key) && weft_config_is_set(source, key)) /* a mesh has all of them */
            return WEFT_KEY_ERROR(key, "given by --set and by --mesh %s", source->mesh);
    }
    if (source->mesh)
        WEFT_TRY(weft_mesh_apply_alias(source->mesh, arena, &c->parallel,
                                       &(weft_option_section){.rows = weft_schedule_rows,
                                                              .num_rows = weft_num_schedule_rows,
                                                              .target = &c->schedule}));
    if (source->mesh && file.expert_model_parallel_size > 1 &&
        !weft_config_mesh_names(source, "ep"))
        c->dropped_ep = file.expert_model_parallel_size;
    if (source->forward_only)
        drop_schedule(&c->schedule);
    WEFT_TRY(settle_sharding(c, source, text));
    WEFT_TRY(settle_order(c, source, text, arena));
    if (c->parallel.pipeline_model_parallel_size != file.pipeline_model_parallel_size)
        forget_layout(source, &file, &c->parallel);
    weft_config_settle_stages(c);
    c->tier_asked = c->tier;
    if (source->run)
        WEFT_TRY(weft_run_keep(source->run, c));
    weft_train_options *t = &c->train;
    if (t->lr_decay_iters == 0)
        t->lr_decay_iters = t->train_iters;
    if (t->lr_wsd_decay_iters == 0)
        t->lr_wsd_decay_iters = t->lr_decay_iters / 5;
    WEFT_TRY(weft_data_make_absolute(&c->data, arena));
    WEFT_TRY(find_load(source, arena, &c->checkpoint.load));
    WEFT_TRY(weft_model_options_resolve(&c->model));
    WEFT_TRY(check_family(c, arena));
    return check_train(c, source->no_data, arena);
}

static weft_status source_text(const weft_config_source *source, weft_arena *arena,
                               const char **out)
{
    char *read;
    size_t bytes;
    *out = source->text;
    if (!source->text && source->file) {
        WEFT_TRY(weft_read_file(source->file, arena, &read, &bytes));
        *out = read;
    }
    return WEFT_OK;
}

static weft_status find_family(const weft_config *c, const weft_family **out)
{
    const char *names[64];
    const weft_family *family;
    bool is_own;
    size_t count = 0;
    while (count < 64 && (family = weft_family_at(c->application, count)) != NULL)
        names[count++] = family->model_type;
    *out = weft_family_named(c->application, c->model.family, &is_own);
    if (*out)
        return WEFT_OK;
    const char *near = weft_nearest_name(c->model.family, names, count);
    if (near)
        return WEFT_KEY_ERROR("model.family", "no family %s is known; did you mean %s?",
                              c->model.family, near);
    char all[WEFT_FAMILIES_TEXT_BYTES];
    return WEFT_KEY_ERROR("model.family",
                          "no family %s is known here: a program's own is known to that program, "
                          "and these to all: %s",
                          c->model.family, weft_families_text(c->application, false, all));
}

typedef struct filling {
    const weft_config_source *source;
    const char *text;
    const weft_family *family;
} filling;

/* A key that the family has otherwise than its own default: nobody may have said the other. */
static weft_status refuse_other(void *context, const char *section, const weft_key *row,
                                const char *is, const char *always)
{
    const filling *f = context;
    char key[WEFT_ERROR_KEY_BYTES];
    snprintf(key, sizeof key, "%s.%s", section, row->key);
    return given_by(f->source, f->text, key) == 0
               ? WEFT_OK
               : WEFT_KEY_ERROR(key, "%s, and every model of model.family %s has %s", is,
                                f->family->model_type, always);
}

/* A family with a key for how many experts there are has no dense models. */
static weft_status check_experts(const weft_config *c, const weft_family *family)
{
    for (size_t i = 0; i < family->num_keys && c->model.num_experts == 0; i++)
        if (family->keys[i].weft && strcmp(family->keys[i].weft, "num_experts") == 0)
            return WEFT_KEY_ERROR("model.num_experts",
                                  "0, and every model of model.family %s has experts: set how many "
                                  "a layer has",
                                  family->model_type);
    return WEFT_OK;
}

/* What the model's family always has; the config's own word may not be another. `config`: the
 * config's, and afterwards with what nobody said. */
static weft_status fill_family(weft_config *config, const weft_config_source *source,
                               const char *text, weft_arena *arena)
{
    filling f = {source, text, NULL};
    weft_config filled = *config;
    weft_option_section sections[2][WEFT_MAX_CONFIG_SECTIONS];
    const char **set;
    if (!config->model.family)
        return WEFT_OK;
    WEFT_TRY(find_family(config, &f.family));
    const size_t num_fixed = f.family->num_fixed, num_set = source->num_set;
    WEFT_TRY(WEFT_ARRAY(arena, num_set + num_fixed + 1, &set));
    if (num_set > 0)
        memcpy(set, source->set, num_set * sizeof *set);
    for (size_t i = 0; i < num_fixed; i++)
        WEFT_TRY(weft_arena_printf(arena, &set[num_set + i], "model.%s=%s", f.family->fixed[i].weft,
                                   f.family->fixed[i].value));
    const size_t count = weft_config_sections(config, sections[0]);
    weft_config_sections(&filled, sections[1]);
    WEFT_TRY(weft_options_parse(sections[1], count, source->file, text, set, num_set + num_fixed,
                                arena));
    WEFT_TRY(weft_options_compare(sections[0], sections[1], count, refuse_other, &f));
    *config = filled;
    return check_experts(config, f.family);
}

static weft_status load(const weft_config_source *source, weft_arena *arena, weft_config *out)
{
    weft_config config = {.application = source->application};
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    const char *text;
    weft_status read = source_text(source, arena, &text);
    if (read != WEFT_OK) /* a config that cannot be read is a usage error */
        return WEFT_ERROR(WEFT_CONFIG, "%s", weft_error_get()->text);
    int line, column;
    if (text && weft_options_locate(text, "ranks_per_node", &line, &column))
        return WEFT_ERROR(WEFT_CONFIG, "%s: a cluster's file, where a config of a model belongs",
                          source->file);
    if (config.application && config.application->section)
        WEFT_TRY(weft_arena_alloc(arena, config.application->options_bytes, &config.own));
    size_t num_sections = weft_config_sections(&config, sections);
    WEFT_TRY(weft_options_parse(sections, num_sections, source->file, text, source->set,
                                source->num_set, arena));
    WEFT_TRY(fill_family(&config, source, text, arena));
    WEFT_TRY(resolve(&config, source, text, arena));
    *out = config;
    return WEFT_OK;
}

/* The --set without which the config would be good: the mistake is there, whichever key shows it.
 * NULL: none. */
static const char *find_blame(const weft_config_source *source, const char *text,
                              weft_config_function check, const void *context, weft_arena *arena)
{
    const char **others;
    if (source->num_set == 0 || WEFT_ARRAY(arena, source->num_set, &others) != WEFT_OK)
        return NULL;
    for (size_t i = 0; i < source->num_set; i++) {
        weft_config_source without = *source;
        weft_config config;
        size_t count = 0;
        for (size_t k = 0; k < source->num_set; k++)
            if (k != i)
                others[count++] = source->set[k];
        without.text = text;
        without.set = others;
        without.num_set = count;
        weft_status status = load(&without, arena, &config);
        if (status == WEFT_OK && check)
            status = check(&config, context);
        if (status == WEFT_OK)
            return source->set[i];
    }
    return NULL;
}

/* `reads`: the config was read and `check` (NULL: that alone) found the error. */
static weft_status locate(const weft_config_source *source, weft_status status, bool reads,
                          weft_config_function check, const void *context)
{
    weft_arena arena = {0};
    weft_error error;
    char key[WEFT_ERROR_KEY_BYTES];
    const char *text = NULL, *blame = NULL;
    memcpy(key, weft_error_get()->key, sizeof key);
    if (status != WEFT_CONFIG || !strchr(key, '.'))
        return status;
    weft_error_take(&error);
    if (source_text(source, &arena, &text) != WEFT_OK)
        text = NULL;
    if (reads && !weft_config_is_set(source, key))
        blame = find_blame(source, text, check, context, &arena);
    error.key[0] = '\0'; /* once is enough */
    weft_error_put(&error);
    put_place(source, text, key, blame, status);
    weft_arena_release(&arena);
    return status;
}

weft_status weft_config_locate(const weft_config_source *source, weft_status status)
{
    return locate(source, status, false, NULL, NULL);
}

weft_status weft_config_check(const weft_config *config, const weft_config_source *source,
                              weft_config_function check, const void *context)
{
    return locate(source, check(config, context), true, check, context);
}

weft_status weft_config_load(const weft_config_source *source, weft_arena *arena, weft_config *out)
{
    return locate(source, load(source, arena, out), true, NULL, NULL);
}

/* What the device cannot do, whichever one it will be. */
static weft_status check_device(const weft_config *c)
{
    if (c->train.precision == WEFT_PRECISION_FP16 && c->device.kind == WEFT_DEVICE_KIND_CPU)
        return WEFT_KEY_ERROR("train.precision",
                              "fp16 needs device.kind \"cuda\"; the CPU has fp32 and bf16");
    if (c->device.kind == WEFT_DEVICE_KIND_CPU && c->device.comm == WEFT_COMM_BY_NCCL)
        return WEFT_KEY_ERROR("device.comm",
                              "nccl moves data between GPUs, and device.kind is cpu; auto or mpi "
                              "would");
    if (c->device.kind == WEFT_DEVICE_KIND_CUDA && c->model.kv_channels > WEFT_CUDA_MAX_HEAD_DIM)
        return WEFT_KEY_ERROR("model.kv_channels",
                              "a head dimension of %lld; GPUs compute attention up to %d",
                              (long long)c->model.kv_channels, WEFT_CUDA_MAX_HEAD_DIM);
    if (c->device.kind == WEFT_DEVICE_KIND_CUDA && c->model.multi_latent_attention &&
        c->model.v_head_dim > WEFT_CUDA_MAX_HEAD_DIM)
        return WEFT_KEY_ERROR("model.v_head_dim", "%lld; GPUs compute attention up to %d",
                              (long long)c->model.v_head_dim, WEFT_CUDA_MAX_HEAD_DIM);
    return WEFT_OK;
}

#define PAIRS "parallel.overlap_moe_expert_parallel_comm"

/* What pairs of a forward and a backward do not go with: nothing to overlap, another order, other
 * lanes in a layer's program, memory that all passes share. */
static weft_status check_pairs(const weft_config *c, const weft_mesh *mesh)
{
    const weft_schedule_options *s = &c->schedule;
    if (!s->overlap_moe_expert_parallel_comm || c->model.num_experts == 0)
        return WEFT_OK;
    const bool is_lean =
        s->pipeline_schedule == WEFT_PIPELINE_V_HALF || s->pipeline_schedule == WEFT_PIPELINE_V_MIN;
    const bool has_none =
        s->pipeline_schedule == WEFT_PIPELINE_GPIPE || s->pipeline_schedule == WEFT_PIPELINE_AUTO;
    const struct {
        bool refused;
        const char *key, *why;
    } rows[] = {
        {mesh->ep == 1, "expert_model_parallel_size 1", "no tokens travel"},
        {mesh->binding == WEFT_BINDING_TP, "expert_binding tp", "no tokens travel"},
        {is_lean, "this pipeline_schedule",
         "ranks of pairs stand twice as far apart, so that it had no less in flight than zbv"},
        {has_none, "this pipeline_schedule",
         "1f1b, interleaved, zb_h1, zbv, dualpipev and files have pairs"},
        {s->moe_num_partitions == 0, "moe_num_partitions 0", "they are chosen for layers alone"},
        {s->moe_memory_reuse == WEFT_NUM_REUSES, "moe_memory_reuse auto",
         "it is chosen for layers alone"},
        {c->train.offload.on, "train.fine_grained_activation_offloading",
         "passes share what they bring back"},
        {c->tier.experts != WEFT_TIER_NONE, "offload.experts", "passes share slots of experts"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].refused)
            return WEFT_KEY_ERROR(PAIRS, "true does not go with %s: %s", rows[i].key, rows[i].why);
    return WEFT_OK;
}

/* Muon gathers whole gradients on the device. */
static weft_status check_muon(const weft_config *c)
{
    const bool tiered = c->model.num_experts > 0 && c->tier.experts != WEFT_TIER_NONE;
    if (c->train.optimizer != WEFT_OPTIMIZER_MUON)
        return WEFT_OK;
    if (weft_parallel_sharding(&c->parallel) >= WEFT_SHARD_OPTIM_GRADS)
        return WEFT_KEY_ERROR("parallel.data_parallel_sharding_strategy",
                              "gradients that are sharded do not go with train.optimizer muon; "
                              "optim would");
    if (tiered || c->tier.optimizer_state != WEFT_TIER_STATE_DEVICE)
        return WEFT_KEY_ERROR(tiered ? "offload.experts" : "offload.optimizer_state",
                              "%s does not go with train.optimizer muon, which steps matrices on "
                              "the device; %s would",
                              tiered ? weft_tier_text(c->tier.experts) : "host",
                              tiered ? "none" : "device");
    return WEFT_OK;
}

/* What has to fit the mesh besides its own rules. */
typedef struct fitting {
    const weft_config *config;
    const weft_topology *topology; /* NULL: not known yet */
} fitting;

/* What a plan would refuse of another tp than the config's own, whose ranks it names itself. */
static weft_status check_trial(const weft_config *c, const weft_mesh *mesh)
{
    const bool is_own = mesh->tp == c->parallel.tensor_model_parallel_size;
    if (!c->planned_on || is_own || c->parallel.allow_tp_across_nodes)
        return WEFT_OK;
    const int node = c->planned_on->ranks_per_node;
    const weft_topology topology = {
        .world = mesh->world, .num_nodes = (mesh->world + node - 1) / node, .ranks_per_node = node};
    return weft_topology_check(&topology, mesh, false);
}

static weft_status check_fitting(const void *context, const weft_mesh *mesh)
{
    const fitting *f = context;
    const weft_config *c = f->config;
    weft_layout layout; /* of the options' own stack; an application's is seen by its outline */
    const bool is_own = weft_config_has_own_model(c);
    if (!is_own)
        WEFT_TRY(
            weft_layout_build(&c->parallel, mesh->pp, (int)c->model.num_layers + 2, NULL, &layout));
    if (!is_own)
        WEFT_TRY(weft_order_check_shape(&(weft_order_shape){.num_ranks = mesh->pp,
                                                            .num_chunks = layout.num_chunks,
                                                            .num_micro_batches = 1,
                                                            .is_v = layout.is_v}));
    WEFT_TRY(
        weft_model_check_mesh(&c->model, mesh, c->model.num_layers, c->train.micro_batch_size));
    WEFT_TRY(weft_model_check_moe(&c->model, &c->schedule, mesh));
    WEFT_TRY(weft_tier_check(&c->tier, &c->model, &c->schedule));
    WEFT_TRY(check_pairs(c, mesh));
    WEFT_TRY(check_muon(c));
    if (!f->topology)
        return check_trial(c, mesh);
    return weft_topology_check(f->topology, mesh, c->parallel.allow_tp_across_nodes);
}

/* Ranks of this mesh, none twice. */
static weft_status check_trace_ranks(const weft_config *c, int world)
{
    const weft_int_list *ranks = &c->log.trace_ranks;
    for (size_t i = 0; i < ranks->count; i++) {
        if (ranks->values[i] >= world)
            return WEFT_KEY_ERROR("log.trace_ranks", "no rank %lld among %s",
                                  (long long)ranks->values[i], weft_count_text(world, "rank").text);
        for (size_t k = 0; k < i; k++)
            if (ranks->values[k] == ranks->values[i])
                return WEFT_KEY_ERROR("log.trace_ranks", "rank %lld stands there twice",
                                      (long long)ranks->values[i]);
    }
    return WEFT_OK;
}

/* The ranks of a mesh. */
typedef struct ranks {
    int world;
    const weft_topology *topology; /* NULL: not known yet */
    weft_mesh *out;
} ranks;

static weft_status check_world(const weft_config *c, const void *context_of_ranks)
{
    const ranks *r = context_of_ranks;
    const weft_topology *topology = r->topology;
    weft_mesh *out = r->out;
    fitting f = {c, topology};
    weft_mesh_request request = {.options = &c->parallel,
                                 .world = r->world,
                                 .num_experts = c->model.num_experts,
                                 .check = check_fitting,
                                 .context = &f};
    WEFT_TRY(weft_mesh_build_for(&request, out));
    WEFT_TRY(check_batch(c, out->dp));
    WEFT_TRY(check_device(c));
    WEFT_TRY(check_trace_ranks(c, out->world));
    /* Whether it can be chosen, before any rank starts; what is chosen depends on the nodes. */
    weft_moe_selection moe;
    weft_mesh_choice choice;
    WEFT_TRY(weft_mesh_choose(c, topology, out, &choice));
    return weft_moe_selection_start(c, out, &choice.nodes, &moe);
}

weft_status weft_config_mesh(const weft_config *config, const weft_config_source *source, int world,
                             weft_mesh *out)
{
    const ranks r = {world, NULL, out};
    return weft_config_check(config, source, check_world, &r);
}

weft_status weft_config_mesh_on(const weft_config *config, const weft_config_source *source,
                                const weft_topology *topology, weft_mesh *out)
{
    const ranks r = {topology->world, topology, out};
    return weft_config_check(config, source, check_world, &r);
}

typedef struct telling {
    const weft_config *config;
    const weft_option_section *sections;
    size_t num_sections;
    weft_arena arena;
    char why[160], keys[320]; /* that are not told yet, and why they have none */
} telling;

static void tell(telling *t)
{
    if (t->keys[0])
        weft_log(WEFT_LOG_WARN, "%s: no effect of %s", t->why, t->keys);
    t->keys[0] = '\0';
}

/* Keys with the same reason that follow each other stand in one line. */
static weft_status add_key(void *context, const char *section, const weft_key *row,
                           const char *before, const char *after)
{
    telling *t = context;
    const char *why;
    (void)before, (void)after;
    WEFT_TRY(weft_options_reason(t->sections, t->num_sections, "", row->idle, &t->arena, &why));
    if (!why || (t->config->planned_on && strcmp(row->key, "cluster") == 0)) /* plans read it */
        return WEFT_OK;
    if (strcmp(why, t->why) != 0)
        tell(t);
    snprintf(t->why, sizeof t->why, "%s", why);
    const size_t used = strlen(t->keys);
    snprintf(t->keys + used, sizeof t->keys - used, "%s%s.%s", used ? ", " : "", section, row->key);
    return WEFT_OK;
}

/* Modules of MoE layers that the model does not have; modules of which none is recomputed. */
static void tell_modules(const weft_config *c)
{
    const weft_string_list *modules = &c->train.recompute.modules;
    const weft_string_list *offloaded = &c->train.offload.modules;
    static const char no_experts[] = "model.num_experts is 0";
    const bool selects = c->train.recompute.granularity == WEFT_RECOMPUTE_SELECTIVE;
    unsigned bits = 0;
    if (selects && weft_recompute_modules(&c->train.recompute, &bits) == WEFT_OK &&
        (bits & ~WEFT_RECOMPUTE_ALWAYS) == 0)
        weft_log(WEFT_LOG_WARN, "train.recompute_modules names nothing that is kept: no effect of "
                                "train.recompute_granularity");
    for (size_t i = 0; i < modules->count && selects; i++) {
        const bool experts = strcmp(modules->values[i], "moe") == 0;
        const bool shared = strcmp(modules->values[i], "shared_experts") == 0;
        if ((experts || shared) && c->model.num_experts == 0)
            weft_log(WEFT_LOG_WARN, "%s: no effect of %s in train.recompute_modules", no_experts,
                     modules->values[i]);
        else if (shared && c->model.moe_shared_expert_intermediate_size == 0)
            weft_log(WEFT_LOG_WARN, "model.moe_shared_expert_intermediate_size is 0: no effect of "
                                    "shared_experts in train.recompute_modules");
    }
    for (size_t i = 0; i < offloaded->count && c->train.offload.on; i++)
        if (strcmp(offloaded->values[i], "moe") == 0 && c->model.num_experts == 0)
            weft_log(WEFT_LOG_WARN, "%s: no effect of moe in train.offload_modules", no_experts);
}

/* A run may be resumed with more steps, so it is no error. */
static void tell_trace(const weft_config *c, const weft_config *initial)
{
    if (c->log.trace_step > c->train.train_iters && c->log.trace_step != initial->log.trace_step)
        weft_log(WEFT_LOG_WARN,
                 "train.train_iters is %lld: no effect of log.trace_step %lld, behind the last "
                 "step: no timeline is kept",
                 (long long)c->train.train_iters, (long long)c->log.trace_step);
}

/* A chunk reads the whole output layer, and adds to all of its gradient: with fewer rows than these
 * that takes longer than the products. */
static void tell_chunks(const weft_config *c)
{
    const bool gpu = c->device.kind == WEFT_DEVICE_KIND_CUDA;
    const int64_t least = gpu ? 1024 : 32, chunk = c->train.loss_chunk_tokens;
    const int64_t tokens =
        c->train.micro_batch_size * c->model.seq_length / c->parallel.context_parallel_size;
    if (chunk > 0 && chunk < least && chunk < tokens)
        weft_log(WEFT_LOG_WARN,
                 "train.loss_chunk_tokens %lld: each so few tokens read the whole output layer, "
                 "which is slow; %s is usual",
                 (long long)chunk, gpu ? "8192" : "256");
}

/* A rank brings up no more of a layer's experts than it has; no expert is split over more ranks
 * than have experts. */
static void tell_tier(const weft_config *c, const weft_config *initial)
{
    const weft_parallel_options *p = &c->parallel;
    const weft_tier_options *o = &c->tier;
    const int64_t by_default =
        p->expert_binding == WEFT_BINDING_TP ? p->tensor_model_parallel_size : 1;
    const int holders = (int)(p->expert_model_parallel_size > 0 ? p->expert_model_parallel_size
                                                                : by_default),
              own = (int)c->model.num_experts / holders;
    weft_tier_options all = *o;
    all.slots = INT_MAX;
    const int slots = weft_tier_num_slots(&all, own, holders);
    if (own == 0 || o->experts == WEFT_TIER_NONE)
        return;
    if (o->slots > slots && o->slots != initial->tier.slots && o->order != WEFT_EXPERT_ORDER_LAYER)
        weft_log(WEFT_LOG_WARN,
                 "a rank brings up %s of a layer: no effect of offload.slots above that",
                 weft_count_text(slots, "expert").text);
    if (weft_tier_is_placed(o) && holders > 1 && o->replicas > holders)
        weft_log(WEFT_LOG_WARN, "%d ranks have experts: no effect of offload.replicas above that",
                 holders);
}

weft_status weft_config_tell_no_effect(const weft_config *config)
{
    weft_config given = *config, initial = {0};
    weft_option_section before[WEFT_MAX_CONFIG_SECTIONS], after[WEFT_MAX_CONFIG_SECTIONS];
    telling t = {.config = config, .sections = after};
    given.application = NULL;
    t.num_sections = weft_config_sections(&initial, before);
    weft_config_sections(&given, after);
    weft_status status =
        weft_options_parse(before, t.num_sections, "defaults", NULL, NULL, 0, &t.arena);
    if (given.model.moe_ffn_hidden_size == given.model.ffn_hidden_size) /* filled in */
        given.model.moe_ffn_hidden_size = initial.model.moe_ffn_hidden_size;
    if (status == WEFT_OK)
        status = weft_options_compare(before, after, t.num_sections, add_key, &t);
    tell(&t);
    weft_arena_release(&t.arena);
    tell_modules(config);
    tell_trace(config, &initial);
    tell_chunks(config);
    tell_tier(config, &initial);
    if (weft_recompute_names_always(&config->train.recompute))
        weft_log(WEFT_LOG_INFO, "recompute: no norm's and no activation's output is ever kept, so "
                                "layernorm and moe_act change nothing");
    return status;
}

static weft_status check_row(const weft_application *app, const weft_option_row *row)
{
    if (!row->key || !row->key[0] || strpbrk(row->key, ".= \""))
        return WEFT_ERROR(WEFT_CONFIG, "application: a row of section %s has no plain key",
                          app->section);
    size_t bytes = weft_option_bytes(row->type);
    if (bytes > app->options_bytes || row->offset > app->options_bytes - bytes)
        return WEFT_ERROR(WEFT_CONFIG,
                          "application: %s.%s lies outside the %zu bytes of its options",
                          app->section, row->key, app->options_bytes);
    if (row->type == WEFT_OPTION_CHOICE && !row->choices)
        return WEFT_ERROR(WEFT_CONFIG, "application: %s.%s has no choices", app->section, row->key);
    for (const weft_option_row *other = app->rows; other < row; other++)
        if (strcmp(other->key, row->key) == 0)
            return WEFT_ERROR(WEFT_CONFIG, "application: two rows are named %s.%s", app->section,
                              row->key);
    return WEFT_OK;
}

static weft_status check_section(const weft_application *app)
{
    weft_config config = {0};
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    size_t count = weft_config_sections(&config, sections);
    for (size_t i = 0; i < count; i++)
        if (strcmp(sections[i].name, app->section) == 0)
            return WEFT_ERROR(WEFT_CONFIG, "application: section %s is Weft's own; name another",
                              app->section);
    if (!app->section[0] || strpbrk(app->section, ".= \""))
        return WEFT_ERROR(WEFT_CONFIG, "application: \"%s\" names no section", app->section);
    if (app->num_rows > 0 && !app->rows)
        return WEFT_ERROR(WEFT_CONFIG, "application: section %s has no rows", app->section);
    if (app->num_rows > WEFT_MAX_OWN_ROWS)
        return WEFT_ERROR(WEFT_CONFIG, "application: section %s has %zu rows; at most %d",
                          app->section, app->num_rows, WEFT_MAX_OWN_ROWS);
    for (size_t i = 0; i < app->num_rows; i++)
        WEFT_TRY(check_row(app, &app->rows[i]));
    return WEFT_OK;
}

weft_status weft_application_take(const weft_application *given, weft_application *out)
{
    weft_application app;
    WEFT_TRY(weft_sized_copy("weft_application", given, &app, sizeof app));
    if (app.section)
        WEFT_TRY(check_section(&app));
    *out = app;
    return WEFT_OK;
}
