/* weft inspect: says what a checkpoint or a dataset holds, and checks it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/dataset.h"
#include "core/json.h"
#include "launcher/arguments.h"
#include "launcher/verbs.h"
#include "parallel/checkpoint.h"

static weft_status print_dataset(const char *prefix, const weft_dataset *dataset, bool json,
                                 weft_arena *arena)
{
    int32_t most;
    const char *quoted;
    WEFT_TRY(weft_dataset_max_token(dataset, &most));
    WEFT_TRY(weft_json_quote_utf8(prefix, arena, &quoted));
    if (json)
        printf("{\"dataset\": %s, \"tokens\": %" PRIu64 ", \"sequences\": %" PRIu64
               ", \"documents\": %" PRIu64 ", \"token_bytes\": %zu, \"max_token\": %d}\n",
               quoted, weft_dataset_num_tokens(dataset), weft_dataset_num_sequences(dataset),
               weft_dataset_num_documents(dataset), weft_dataset_token_bytes(dataset), most);
    else
        printf("dataset %s\n  tokens     %" PRIu64 "\n  sequences  %" PRIu64
               "\n  documents  %" PRIu64 "\n  token size %zu bytes\n  max token  %d\n",
               prefix, weft_dataset_num_tokens(dataset), weft_dataset_num_sequences(dataset),
               weft_dataset_num_documents(dataset), weft_dataset_token_bytes(dataset), most);
    return WEFT_OK;
}

static weft_status inspect_dataset(const char *prefix, bool json)
{
    weft_dataset *dataset;
    weft_arena arena = {0};
    WEFT_TRY(weft_dataset_open(prefix, &dataset));
    weft_status status = print_dataset(prefix, dataset, json, &arena);
    weft_dataset_close(dataset);
    weft_arena_release(&arena);
    return status;
}

static weft_status inspect(const char *path, bool json)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return inspect_dataset(path, json);
    weft_arena arena = {0};
    const char *folder;
    weft_status status = weft_checkpoint_resolve(path, &arena, &folder);
    if (status == WEFT_OK)
        status = weft_checkpoint_inspect(folder, json, stdout);
    weft_arena_release(&arena);
    return status;
}

int weft_verb_inspect(int argc, char **argv)
{
    bool json = false;
    weft_string_list given;
    weft_arena arena = {0};
    const weft_argument rows[] = {
        {"json", NULL, "one JSON object on standard output", .flag = &json},
    };
    const weft_arguments verb = {
        .verb = "inspect",
        .operands = "CHECKPOINT|DATASET",
        .given = &given,
        .about = "CHECKPOINT: a run's folder, its checkpoints folder, or one step-N folder: lists "
                 "its tensors\nand verifies every hash. DATASET: a prefix of .bin and .idx: counts "
                 "and checks its tokens.\n",
        .rows = rows,
        .num_rows = sizeof rows / sizeof *rows};
    int code = weft_arguments_parse(&verb, argc, argv, &arena);
    if (code < 0)
        code = inspect(given.values[0], json) == WEFT_OK ? 0 : weft_verb_fail("inspect");
    weft_arena_release(&arena);
    return code;
}
