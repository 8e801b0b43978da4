/* weft inspect: says what a checkpoint or a dataset holds, and checks it. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/dataset.h"
#include "launcher/verbs.h"
#include "parallel/checkpoint.h"

static void help(void)
{
    printf(
        "usage: weft inspect CHECKPOINT|DATASET [--json]\n"
        "\n"
        "CHECKPOINT: a run's folder, its checkpoints folder, or one step-N folder: lists its\n"
        "tensors and verifies every hash. DATASET: a prefix of .bin and .idx: counts and checks\n"
        "its tokens.\n");
}

static weft_status inspect_dataset(const char *prefix, bool json)
{
    weft_dataset *dataset;
    int32_t most;
    WEFT_TRY(weft_dataset_open(prefix, &dataset));
    weft_status status = weft_dataset_max_token(dataset, &most);
    if (status == WEFT_OK && json)
        printf("{\"dataset\": \"%s\", \"tokens\": %" PRIu64 ", \"sequences\": %" PRIu64
               ", \"documents\": %" PRIu64 ", \"token_bytes\": %zu, \"max_token\": %d}\n",
               prefix, weft_dataset_num_tokens(dataset), weft_dataset_num_sequences(dataset),
               weft_dataset_num_documents(dataset), weft_dataset_token_bytes(dataset), most);
    else if (status == WEFT_OK)
        printf("dataset %s\n  tokens     %" PRIu64 "\n  sequences  %" PRIu64
               "\n  documents  %" PRIu64 "\n  token size %zu bytes\n  max token  %d\n",
               prefix, weft_dataset_num_tokens(dataset), weft_dataset_num_sequences(dataset),
               weft_dataset_num_documents(dataset), weft_dataset_token_bytes(dataset), most);
    weft_dataset_close(dataset);
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
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    bool json = false;
    int option;
    optind = 1;
    opterr = 0;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'j') {
            json = true;
        } else if (option == 'h') {
            help();
            return 0;
        } else {
            WEFT_ERROR(WEFT_CONFIG, "%s: unknown option; see weft inspect --help",
                       argv[optind - 1]);
            return weft_verb_fail("inspect");
        }
    }
    if (argc - optind != 1) {
        WEFT_ERROR(WEFT_CONFIG, "needs one CHECKPOINT or DATASET; see weft inspect --help");
        return weft_verb_fail("inspect");
    }
    return inspect(argv[optind], json) == WEFT_OK ? 0 : weft_verb_fail("inspect");
}
