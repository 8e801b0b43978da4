/* Opens the trainer's dataset, checks it against the config and divides it. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"
#include "launcher/planning/run_changes.h"
#include "launcher/text/known.h"
#include "launcher/text/tokenizer.h"
#include "launcher/training/setup.h"

weft_status weft_setup_tokenizer_text(const weft_config *config, weft_arena *arena,
                                      const char **out)
{
    *out = NULL;
    if (!weft_config_reads_file(config))
        return WEFT_OK;
    const char *path;
    WEFT_TRY(weft_arena_printf(arena, &path, "%s.json", config->data.data_path));
    if (access(path, R_OK) != 0) /* Megatron's datasets have none */
        return WEFT_OK;
    return weft_prepared_pack(path, arena, out);
}

/* All zero where the dataset has none. */
static weft_status read_tokenizer(const weft_config *config, weft_arena *arena,
                                  weft_tokenizer_info *out, weft_prepared *prepared)
{
    *out = (weft_tokenizer_info){0};
    *prepared = (weft_prepared){0};
    return weft_config_reads_file(config)
               ? weft_prepared_find(config->data.data_path, arena, out, prepared)
               : WEFT_OK;
}

/* The key of data that asks for the end of documents. */
static const char *asks_for_documents(const weft_data_options *data)
{
    return data->reset_position_ids     ? "data.reset_position_ids"
           : data->reset_attention_mask ? "data.reset_attention_mask"
                                        : "data.eod_mask_loss";
}

/* Fills data.eod_token where documents are asked for and the dataset says how they end. */
static weft_status find_eod(weft_config *config, const weft_tokenizer_info *tokenizer,
                            const weft_prepared *prepared)
{
    weft_data_options *data = &config->data;
    if (!weft_config_has_documents(config))
        return WEFT_OK;
    if (data->eod_token >= config->model.vocab_size)
        return WEFT_KEY_ERROR("data.eod_token", "%lld is outside a vocabulary of %lld",
                              (long long)data->eod_token, (long long)config->model.vocab_size);
    if (data->eod_token >= 0)
        return WEFT_OK;
    if (prepared->append_eod && tokenizer->eod < config->model.vocab_size) {
        data->eod_token = tokenizer->eod;
        return WEFT_OK;
    }
    if (!weft_config_reads_file(config))
        return WEFT_KEY_ERROR(asks_for_documents(data),
                              "needs data.eod_token, the token that ends a document");
    return WEFT_KEY_ERROR(asks_for_documents(data),
                          "needs the token that ends a document: %s.json %s; data.eod_token would "
                          "say",
                          data->data_path,
                          tokenizer->vocab_size == 0 ? "is not there"
                                                     : "says that its documents end with none");
}

weft_status weft_setup_vocabulary(weft_config *config)
{
    weft_arena arena = {0};
    weft_tokenizer_info tokenizer;
    weft_prepared prepared;
    weft_status status = read_tokenizer(config, &arena, &tokenizer, &prepared);
    int64_t size = tokenizer.vocab_size;
    weft_arena_release(&arena);
    WEFT_TRY(status);
    if (config->model.vocab_size == 0)
        config->model.vocab_size = size;
    if (config->model.vocab_size == 0)
        return WEFT_KEY_ERROR("model.vocab_size",
                              "missing, and %s.json, which would say, is not there",
                              config->data.data_path);
    if (config->model.vocab_size < size)
        return WEFT_KEY_ERROR("model.vocab_size",
                              "%lld is less than the dataset's vocabulary of %lld",
                              (long long)config->model.vocab_size, (long long)size);
    return find_eod(config, &tokenizer, &prepared);
}

/* What the next start reads again is told from so many tokens on, which take seconds. */
enum { MANY_TOKENS = 1000000000 };

static weft_status check_tokens(weft_config *config, const weft_config_source *source,
                                const weft_dataset *dataset, const weft_tokenizer_info *info,
                                weft_arena *arena)
{
    const char *tokenizer, *spare = NULL;
    weft_known known;
    bool kept = true;
    WEFT_TRY(weft_tokenizer_identity(info, arena, &tokenizer));
    if (source->run_path)
        WEFT_TRY(weft_arena_printf(arena, &spare, "%s/data", source->run_path));
    if (!weft_known_recall(dataset, spare, tokenizer, &known))
        WEFT_TRY(weft_known_look(dataset, spare, tokenizer, &known, &kept));
    if (!kept && weft_dataset_num_tokens(dataset) >= MANY_TOKENS)
        weft_log(WEFT_LOG_WARN,
                 "%s" WEFT_KNOWN_SUFFIX ": cannot be written: the next start reads all %.3g "
                 "tokens again",
                 config->data.data_path, (double)weft_dataset_num_tokens(dataset));
    WEFT_TRY(weft_arena_printf(arena, &config->data.data_xxh64, "%016" PRIx64, known.xxh64));
    WEFT_TRY(weft_known_check(config->data.data_path, info->vocab_size, &known));
    if (known.max_token >= config->model.vocab_size)
        return WEFT_KEY_ERROR("model.vocab_size", "%lld, but %s.bin holds token %d",
                              (long long)config->model.vocab_size, config->data.data_path,
                              (int)known.max_token);
    return WEFT_OK;
}

/* A file of a dataset that is there, where the dataset's own name belongs. */
static weft_status check_suffix(const char *path, weft_arena *arena)
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
            return WEFT_KEY_ERROR("data.data_path", "%s: a dataset is named without %s; %.*s would",
                                  path, suffixes[i], (int)own, path);
    }
    return WEFT_OK;
}

/* What a relative path is of; NULL of others. */
static weft_status find_cwd(const char *path, weft_arena *arena, const char **out)
{
    char cwd[PATH_MAX];
    *out = NULL;
    return path[0] != '/' && getcwd(cwd, sizeof cwd) ? weft_arena_strdup(arena, cwd, out) : WEFT_OK;
}

/* Before its description is asked for anything: a wrong path should be called one. */
static weft_status find_dataset(const weft_config *c)
{
    weft_arena arena = {0};
    const char *index;
    if (!weft_config_reads_file(c))
        return WEFT_OK;
    weft_status status = weft_arena_printf(&arena, &index, "%s.idx", c->data.data_path);
    const bool is_there = status != WEFT_OK || access(index, F_OK) == 0;
    if (!is_there)
        status = check_suffix(c->data.data_path, &arena);
    const char *cwd = NULL;
    if (status == WEFT_OK && !is_there)
        status = find_cwd(c->data.data_path, &arena, &cwd);
    if (status == WEFT_OK && !is_there)
        status = WEFT_KEY_ERROR("data.data_path", "%s: %s%s%s; weft prepare makes datasets", index,
                                strerror(ENOENT), cwd ? " in " : "", cwd ? cwd : "");
    weft_arena_release(&arena);
    return status;
}

/* So that the run goes on wherever it is resumed. */
static weft_status make_absolute(weft_config *config, weft_arena *arena)
{
    const char *cwd = NULL, *path = config->data.data_path;
    WEFT_TRY(find_cwd(path, arena, &cwd));
    return cwd ? weft_arena_printf(arena, &config->data.data_path, "%s/%s", cwd, path) : WEFT_OK;
}

static weft_status open_dataset(const weft_config *c, weft_dataset **out)
{
    if (weft_config_has_own_data(c))
        return weft_dataset_open_own(c->application->sample, c->own, c->model.vocab_size, out);
    if (c->data.mock_data)
        return weft_dataset_open_mock(
            (uint64_t)c->train.global_batch_size * 64 * (uint64_t)c->model.seq_length + 1,
            (int32_t)c->model.vocab_size, (uint64_t)c->train.seed, out);
    return weft_dataset_open(c->data.data_path, out);
}

static weft_status open_checked(weft_config *config, const weft_config_source *source, bool whole,
                                weft_arena *arena, weft_dataset **out)
{
    weft_tokenizer_info tokenizer;
    weft_prepared prepared;
    config->data.data_xxh64 = NULL;
    WEFT_TRY(find_dataset(config));
    WEFT_TRY(weft_setup_vocabulary(config));
    WEFT_TRY(open_dataset(config, out));
    if (whole) {
        WEFT_TRY(read_tokenizer(config, arena, &tokenizer, &prepared));
        if (weft_config_reads_file(config))
            WEFT_TRY(check_tokens(config, source, *out, &tokenizer, arena));
        WEFT_TRY(weft_run_check_changes(config, source));
        if (weft_config_reads_file(config))
            WEFT_TRY(make_absolute(config, arena));
    }
    weft_dataset_set_vocabulary(*out, config->model.vocab_size);
    return WEFT_OK;
}

weft_status weft_setup_data(weft_config *config, const weft_config_source *source, bool whole,
                            weft_arena *arena, weft_dataset **out, weft_split splits[3])
{
    double weights[3];
    weft_status status = open_checked(config, source, whole, arena, out);
    if (status == WEFT_OK)
        status = weft_config_split(config, weights);
    WEFT_TRY(weft_config_locate(source, status));
    status = weft_dataset_split(*out, config->model.seq_length, config->data.shuffle_block_tokens,
                                weights, splits);
    const bool in_blocks = config->data.shuffle_block_tokens > config->model.seq_length;
    if (status == WEFT_CONFIG)
        weft_error_key(status, in_blocks ? "data.shuffle_block_tokens" : "data.data_path");
    return weft_config_locate(source, status);
}

weft_status weft_setup_check_data(const weft_config *config, const weft_config_source *source)
{
    weft_config copy = *config;
    weft_arena arena = {0};
    weft_dataset *dataset = NULL;
    weft_split splits[3];
    weft_status status = weft_setup_data(&copy, source, true, &arena, &dataset, splits);
    weft_dataset_close(dataset);
    weft_arena_release(&arena);
    return status;
}
