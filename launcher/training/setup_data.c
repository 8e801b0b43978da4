/* Opens the trainer's datasets, checks them against the config and divides them. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/file.h"
#include "core/log.h"
#include "launcher/planning/data_sources.h"
#include "launcher/planning/run_changes.h"
#include "launcher/text/tokenizer.h"
#include "launcher/training/setup.h"
#include "parallel/checkpoint/checkpoint.h"

void weft_data_close(weft_data *data)
{
    for (size_t i = 0; i < data->num_parts; i++)
        weft_dataset_close(data->parts[i].dataset);
    for (size_t i = 0; i < data->num_validation; i++)
        weft_dataset_close(data->validation[i].dataset);
    *data = (weft_data){0};
}

weft_status weft_setup_tokenizer_text(const weft_config *config, weft_arena *arena,
                                      const char **out)
{
    weft_data_sources sources;
    *out = NULL;
    WEFT_TRY(weft_data_find_training(config, arena, &sources));
    if (sources.count == 0)
        return WEFT_OK;
    const char *path;
    WEFT_TRY(weft_arena_printf(arena, &path, "%s.json", sources.of[0].prefix));
    if (access(path, R_OK) != 0) /* Megatron's datasets have none */
        return WEFT_OK;
    return weft_prepared_pack(path, arena, out);
}

/* --- tokenizers ---------------------------------------------------------------------------- */

/* What the descriptions of all datasets say. All zero where none has one. */
typedef struct described {
    weft_tokenizer_info tokenizer;
    const char *identity; /* of the tokenizer; "": unknown */
    const char *prefix;   /* of the dataset that says it */
    bool append_eod;      /* each document of each dataset ends with the eod token */
} described;

/* Datasets whose tokens mean different texts do not mix. One without a description is believed. */
static weft_status add_described(const weft_config *config, const weft_data_source *source,
                                 const char *key, weft_arena *arena, described *out)
{
    weft_tokenizer_info tokenizer;
    weft_prepared prepared;
    const char *identity;
    WEFT_TRY(weft_prepared_find(source->prefix, arena, &tokenizer, &prepared));
    WEFT_TRY(weft_tokenizer_identity(&tokenizer, arena, &identity));
    out->append_eod = out->append_eod && prepared.append_eod;
    if (prepared.packed_length > 0 && prepared.packed_length != config->model.seq_length)
        return WEFT_KEY_ERROR("model.seq_length", "%" PRId64 "; %s is packed for %" PRId64,
                              config->model.seq_length, source->prefix, prepared.packed_length);
    if (!*identity)
        return WEFT_OK;
    if (*out->identity && strcmp(identity, out->identity) != 0)
        return WEFT_KEY_ERROR(key, "%s has another tokenizer than %s", source->prefix, out->prefix);
    if (*out->identity)
        return WEFT_OK;
    out->tokenizer = tokenizer;
    out->identity = identity;
    out->prefix = source->prefix;
    return WEFT_OK;
}

static weft_status read_descriptions(const weft_config *config, weft_arena *arena, described *out)
{
    weft_data_sources training, validation;
    WEFT_TRY(weft_data_find_training(config, arena, &training));
    WEFT_TRY(weft_data_find_validation(config, arena, &validation));
    *out = (described){.identity = "", .append_eod = training.count > 0};
    for (size_t i = 0; i < training.count; i++)
        WEFT_TRY(add_described(config, &training.of[i], training.key, arena, out));
    const bool append_eod = out->append_eod;
    for (size_t i = 0; i < validation.count; i++)
        WEFT_TRY(add_described(config, &validation.of[i], validation.key, arena, out));
    out->append_eod = append_eod; /* as a validation set may be Megatron's */
    return WEFT_OK;
}

/* The key of data that asks for the end of documents. */
static const char *asks_for_documents(const weft_data_options *data)
{
    return data->reset_position_ids     ? "data.reset_position_ids"
           : data->reset_attention_mask ? "data.reset_attention_mask"
                                        : "data.eod_mask_loss";
}

/* Fills data.eod_token where documents are asked for and the dataset says how they end. */
static weft_status find_eod(weft_config *config, const described *said)
{
    weft_data_options *data = &config->data;
    if (!weft_config_has_documents(config))
        return WEFT_OK;
    if (data->eod_token >= config->model.vocab_size)
        return WEFT_KEY_ERROR("data.eod_token", "%lld is outside a vocabulary of %lld",
                              (long long)data->eod_token, (long long)config->model.vocab_size);
    if (data->eod_token >= 0)
        return WEFT_OK;
    if (said->append_eod && said->tokenizer.eod < config->model.vocab_size) {
        data->eod_token = said->tokenizer.eod;
        return WEFT_OK;
    }
    if (!weft_config_reads_file(config))
        return WEFT_KEY_ERROR(asks_for_documents(data),
                              "needs data.eod_token, the token that ends a document");
    return WEFT_KEY_ERROR(
        asks_for_documents(data),
        "needs the token that ends a document: %s.json %s; data.eod_token would "
        "say",
        data->data_path ? data->data_path : "data.blend: a",
        said->tokenizer.vocab_size == 0 ? "is not there" : "says that its documents end with none");
}

/* Whether a dataset says which tokens bear a loss. */
static weft_status find_masks(weft_config *config, weft_arena *arena)
{
    weft_data_sources lists[2];
    const char *path;
    WEFT_TRY(weft_data_find_training(config, arena, &lists[0]));
    WEFT_TRY(weft_data_find_validation(config, arena, &lists[1]));
    config->data.has_label_mask = false;
    for (int l = 0; l < 2; l++)
        for (size_t i = 0; i < lists[l].count && config->data.label_mask; i++) {
            WEFT_TRY(weft_arena_printf(arena, &path, "%s.mask", lists[l].of[i].prefix));
            if (access(path, F_OK) == 0)
                config->data.has_label_mask = true;
        }
    return WEFT_OK;
}

static weft_status settle_vocabulary(weft_config *config, const described *said)
{
    const int64_t size = said->tokenizer.vocab_size;
    if (config->model.vocab_size == 0)
        config->model.vocab_size = size;
    if (config->model.vocab_size == 0)
        return WEFT_KEY_ERROR("model.vocab_size",
                              "missing, and %s.json, which would say, is not there",
                              config->data.data_path ? config->data.data_path : "a dataset's");
    if (config->model.vocab_size < size)
        return WEFT_KEY_ERROR("model.vocab_size",
                              "%lld is less than the dataset's vocabulary of %lld",
                              (long long)config->model.vocab_size, (long long)size);
    return find_eod(config, said);
}

weft_status weft_setup_vocabulary(weft_config *config)
{
    weft_arena arena = {0};
    described said;
    weft_status status = read_descriptions(config, &arena, &said);
    if (status == WEFT_OK)
        status = settle_vocabulary(config, &said);
    if (status == WEFT_OK)
        status = find_masks(config, &arena);
    weft_arena_release(&arena);
    return status;
}

/* --- what is in the files ------------------------------------------------------------------ */

/* What the next start reads again is told from so many tokens on, which take seconds. */
enum { MANY_TOKENS = 1000000000 };

/* Where nothing can be written beside a dataset, RUN keeps what is known of it. */
static weft_status find_spare(const weft_config_source *source, const weft_data *data, size_t part,
                              weft_arena *arena, const char **out)
{
    *out = NULL;
    if (!source->run_path)
        return WEFT_OK;
    return data->num_parts == 1 ? weft_arena_printf(arena, out, "%s/data", source->run_path)
                                : weft_arena_printf(arena, out, "%s/data.%s", source->run_path,
                                                    data->parts[part].name);
}

/* Adds what a dataset's mask says to its hash. */
static weft_status hash_mask(const weft_dataset *dataset, uint64_t *hash)
{
    uint8_t bears[4096];
    const uint64_t num_tokens = weft_dataset_num_tokens(dataset);
    for (uint64_t first = 0; weft_dataset_has_mask(dataset) && first < num_tokens;
         first += sizeof bears) {
        const uint64_t left = num_tokens - first;
        const size_t count = left < sizeof bears ? (size_t)left : sizeof bears;
        WEFT_TRY(weft_dataset_read_mask(dataset, first, count, bears));
        *hash = XXH64(bears, count, *hash);
    }
    return WEFT_OK;
}

weft_status weft_setup_hash_data(const weft_config_source *source, const char *spare,
                                 const char *tokenizer, weft_data_set *set, weft_known *out)
{
    const weft_dataset *dataset = set->dataset;
    bool kept = true;
    if (!weft_known_recall(dataset, spare, tokenizer, out))
        WEFT_TRY(source->keeps_nothing ? weft_known_read(dataset, tokenizer, out)
                                       : weft_known_look(dataset, spare, tokenizer, out, &kept));
    if (!kept && weft_dataset_num_tokens(dataset) >= MANY_TOKENS)
        weft_log(WEFT_LOG_WARN,
                 "%s" WEFT_KNOWN_SUFFIX ": cannot be written: the next start reads all %.3g "
                 "tokens again",
                 weft_dataset_name(dataset), (double)weft_dataset_num_tokens(dataset));
    WEFT_TRY(hash_mask(dataset, &out->xxh64));
    set->xxh64 = out->xxh64;
    set->is_hashed = true;
    return WEFT_OK;
}

static weft_status check_tokens(const weft_config *config, const weft_config_source *source,
                                const weft_data *data, size_t part, const described *said,
                                weft_arena *arena)
{
    weft_known known = {0};
    const char *spare, *prefix = weft_dataset_name(data->parts[part].dataset);
    WEFT_TRY(find_spare(source, data, part, arena, &spare));
    WEFT_TRY(weft_setup_hash_data(source, spare, said->identity, &data->parts[part], &known));
    WEFT_TRY(weft_known_check(prefix, said->tokenizer.vocab_size, &known));
    if (known.max_token >= config->model.vocab_size)
        return WEFT_KEY_ERROR("model.vocab_size", "%lld, but %s.bin holds token %d",
                              (long long)config->model.vocab_size, prefix, (int)known.max_token);
    return WEFT_OK;
}

/* Of one dataset its own hash; of a blend that of all with their weights. */
static weft_status check_all_tokens(weft_config *config, const weft_config_source *source,
                                    const weft_data *data, const described *said, weft_arena *arena)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < data->num_parts; i++) {
        WEFT_TRY(check_tokens(config, source, data, i, said, arena));
        const uint64_t part[] = {hash, data->parts[i].xxh64, (uint64_t)data->blend.weights[i]};
        hash = XXH64(part, sizeof part, 0);
    }
    return weft_arena_printf(arena, &config->data.data_xxh64, "%016" PRIx64,
                             data->num_parts == 1 ? data->parts[0].xxh64 : hash);
}

/* A file of a dataset that is there, where the dataset's own name belongs. */
static weft_status check_suffix(const char *key, const char *path, weft_arena *arena)
{
    static const char *const suffixes[] = {".bin", ".idx", ".json"};
    const size_t bytes = strlen(path);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        const size_t own = bytes - strlen(suffixes[i]);
        const char *index;
        if (own > bytes || strcmp(path + own, suffixes[i]) != 0)
            continue;
        WEFT_TRY(weft_arena_printf(arena, &index, "%.*s.idx", (int)own, path));
        if (access(index, F_OK) == 0)
            return WEFT_KEY_ERROR(key, "%s: a dataset is named without %s; %.*s would", path,
                                  suffixes[i], (int)own, path);
    }
    return WEFT_OK;
}

/* Before its description is asked for anything: a wrong path should be called one. */
static weft_status find_datasets(const weft_data_sources *sources, weft_arena *arena)
{
    for (size_t i = 0; i < sources->count; i++) {
        const char *index, *tokens, *prefix = sources->of[i].prefix;
        WEFT_TRY(weft_arena_printf(arena, &index, "%s.idx", prefix));
        if (access(index, F_OK) == 0)
            continue;
        WEFT_TRY(check_suffix(sources->key, prefix, arena));
        WEFT_TRY(weft_arena_printf(arena, &tokens, "%s.bin", prefix));
        if (access(tokens, F_OK) == 0)
            return WEFT_KEY_ERROR(sources->key, WEFT_HALF_A_DATASET, prefix, prefix);
        return WEFT_KEY_ERROR(sources->key, "%s: %s; weft prepare makes datasets", index,
                              strerror(ENOENT));
    }
    return WEFT_OK;
}

static weft_status find_all(const weft_config *config, weft_arena *arena,
                            weft_data_sources *training, weft_data_sources *validation)
{
    WEFT_TRY(weft_data_find_training(config, arena, training));
    WEFT_TRY(weft_data_find_validation(config, arena, validation));
    WEFT_TRY(find_datasets(training, arena));
    return find_datasets(validation, arena);
}

/* --- the model's tokenizer ------------------------------------------------------------------ */

/* The tokenizer.json that the weights were imported with; NULL: nobody knows one. */
static weft_status find_models_tokenizer(const weft_config *config,
                                         const weft_config_source *source, weft_arena *arena,
                                         const char **out)
{
    static const char in_run[] = "source/tokenizer.json";
    const char *path = NULL, *load = config->checkpoint.load, *from;
    *out = NULL;
    if (source->run_path)
        WEFT_TRY(weft_arena_printf(arena, &path, "%s/%s", source->run_path, in_run));
    if ((!path || access(path, R_OK) != 0) && load && access(load, F_OK) == 0) {
        WEFT_TRY(weft_checkpoint_resolve(load, arena, &from));
        WEFT_TRY(weft_checkpoint_run(from, arena, &from));
        WEFT_TRY(weft_arena_printf(arena, &path, "%s/%s", from, in_run));
    }
    if (path && access(path, R_OK) == 0)
        *out = path;
    return WEFT_OK;
}

/* Weights know the tokens of one tokenizer: of others they would learn nonsense. Of gpt2's own
 * files, which are no tokenizer.json, the vocabulary's size is all that can be compared. */
static weft_status check_models_tokenizer(const weft_config *config,
                                          const weft_config_source *source, const char *key,
                                          const described *said, weft_arena *arena)
{
    const char *path, *hash;
    char *text;
    size_t bytes;
    if (!*said->identity || said->tokenizer.kind == WEFT_TOKENIZER_GPT2)
        return WEFT_OK;
    WEFT_TRY(find_models_tokenizer(config, source, arena, &path));
    if (!path)
        return WEFT_OK;
    WEFT_TRY(weft_file_read_text(path, arena, &text, &bytes));
    WEFT_TRY(weft_arena_printf(arena, &hash, "%016" PRIx64, (uint64_t)XXH64(text, bytes, 0)));
    if (said->tokenizer.vocab_file_xxh64 && strcmp(hash, said->tokenizer.vocab_file_xxh64) == 0)
        return WEFT_OK;
    return WEFT_KEY_ERROR(key,
                          "%s was prepared with another tokenizer than the model's: weft prepare "
                          "--tokenizer %s would take that",
                          said->prefix, path);
}

/* --- opening ------------------------------------------------------------------------------- */

static weft_status open_sets(const weft_data_sources *sources, weft_arena *arena,
                             weft_data_set **sets, size_t *count)
{
    if (sources->count == 0)
        return WEFT_OK;
    WEFT_TRY(WEFT_ARRAY(arena, sources->count, sets));
    for (size_t i = 0; i < sources->count; i++) {
        (*sets)[i].name = sources->of[i].name;
        WEFT_TRY(weft_dataset_open(sources->of[i].prefix, &(*sets)[i].dataset));
        *count = i + 1;
    }
    return WEFT_OK;
}

/* Data without files: the program's own, or mock data. */
static weft_status open_made(const weft_config *c, weft_arena *arena, weft_data *out)
{
    WEFT_TRY(WEFT_ARRAY(arena, 1, &out->parts));
    weft_dataset **dataset = &out->parts[0].dataset;
    WEFT_TRY(
        weft_config_has_own_data(c)
            ? weft_dataset_open_own(c->application->sample, c->own, c->model.vocab_size, dataset)
            : weft_dataset_open_mock(
                  (uint64_t)c->train.global_batch_size * 64 * (uint64_t)c->model.seq_length + 1,
                  (int32_t)c->model.vocab_size, (uint64_t)c->train.seed, dataset));
    out->num_parts = 1;
    return WEFT_OK;
}

static weft_status make_order(const weft_data_sources *sources, weft_arena *arena, weft_blend *out)
{
    const size_t count = sources->count > 0 ? sources->count : 1;
    int64_t *weights;
    WEFT_TRY(WEFT_ARRAY(arena, count, &weights));
    weights[0] = 1;
    for (size_t i = 0; i < sources->count; i++)
        weights[i] = sources->of[i].weight;
    weft_status status = weft_blend_order(weights, count, arena, out);
    return status == WEFT_CONFIG ? weft_error_key(status, sources->key) : status;
}

static weft_status open_checked(weft_config *config, const weft_config_source *source, bool whole,
                                weft_arena *arena, weft_data *out)
{
    weft_data_sources training, validation;
    described said;
    config->data.data_xxh64 = NULL;
    WEFT_TRY(find_all(config, arena, &training, &validation));
    WEFT_TRY(read_descriptions(config, arena, &said));
    out->tokenizer = said.identity;
    if (whole)
        WEFT_TRY(check_models_tokenizer(config, source, training.key, &said, arena));
    WEFT_TRY(weft_setup_vocabulary(config));
    WEFT_TRY(make_order(&training, arena, &out->blend));
    WEFT_TRY(training.count > 0 ? open_sets(&training, arena, &out->parts, &out->num_parts)
                                : open_made(config, arena, out));
    WEFT_TRY(open_sets(&validation, arena, &out->validation, &out->num_validation));
    if (whole) {
        if (training.count > 0)
            WEFT_TRY(check_all_tokens(config, source, out, &said, arena));
        WEFT_TRY(weft_run_check_changes(config, source));
    }
    for (size_t i = 0; i < out->num_parts; i++)
        weft_dataset_set_vocabulary(out->parts[i].dataset, config->model.vocab_size);
    for (size_t i = 0; i < out->num_validation; i++)
        weft_dataset_set_vocabulary(out->validation[i].dataset, config->model.vocab_size);
    return WEFT_OK;
}

/* --- parts --------------------------------------------------------------------------------- */

static weft_status split_set(weft_data_set *set, int64_t seq, int64_t block,
                             const double weights[WEFT_NUM_SPLITS], const char *key)
{
    weft_status status = weft_dataset_split(set->dataset, seq, block, weights, set->splits);
    return status == WEFT_CONFIG ? weft_error_key(status, key) : status;
}

static weft_status split_all(const weft_config *config, weft_arena *arena, weft_data *data)
{
    static const double whole[] = {0, 1, 0};
    const int64_t seq = config->model.seq_length, block = config->data.shuffle_block_tokens;
    const char *key = block > seq                    ? "data.shuffle_block_tokens"
                      : config->data.blend.count > 0 ? "data.blend"
                                                     : "data.data_path";
    double weights[WEFT_NUM_SPLITS];
    WEFT_TRY(weft_config_split(config, weights));
    for (size_t i = 0; i < data->num_parts; i++)
        WEFT_TRY(split_set(&data->parts[i], seq, block, weights, key));
    for (size_t i = 0; i < data->num_validation; i++)
        WEFT_TRY(split_set(&data->validation[i], seq, 0, whole, "data.validation"));
    for (int k = 0; k < WEFT_NUM_SPLITS; k++) {
        data->splits[k] = data->parts[0].splits[k];
        if (data->num_parts == 1)
            continue;
        weft_split *parts;
        WEFT_TRY(WEFT_ARRAY(arena, data->num_parts, &parts));
        for (size_t i = 0; i < data->num_parts; i++)
            parts[i] = data->parts[i].splits[k];
        data->splits[k] = weft_split_blend(&data->blend, parts);
    }
    return WEFT_OK;
}

weft_status weft_setup_data(weft_config *config, const weft_config_source *source, bool whole,
                            weft_arena *arena, weft_data *out)
{
    weft_status status = open_checked(config, source, whole, arena, out);
    if (status == WEFT_OK)
        status = split_all(config, arena, out);
    return weft_config_locate(source, status);
}

weft_status weft_setup_find_data(const weft_config *config, const weft_config_source *source)
{
    weft_arena arena = {0};
    const weft_status status =
        find_all(config, &arena, &(weft_data_sources){0}, &(weft_data_sources){0});
    weft_arena_release(&arena);
    return weft_config_locate(source, status);
}

weft_status weft_setup_check_data(const weft_config *config, const weft_config_source *source)
{
    weft_config copy = *config;
    weft_arena arena = {0};
    weft_data data = {0};
    weft_status status = weft_setup_data(&copy, source, true, &arena, &data);
    weft_data_close(&data);
    weft_arena_release(&arena);
    return status;
}
