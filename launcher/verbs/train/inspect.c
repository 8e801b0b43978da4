/* weft inspect: says what a checkpoint or a dataset holds, and checks it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/dataset/dataset.h"
#include "launcher/arguments/arguments.h"
#include "launcher/report/report.h"
#include "launcher/text/known.h"
#include "launcher/text/tokenizer.h"
#include "launcher/training/ledger.h"
#include "launcher/verbs/train/inspect_flight.h"
#include "launcher/verbs/train/inspect_sample.h"
#include "launcher/verbs/train/train.h"
#include "parallel/checkpoint/checkpoint.h"

static weft_status print_dataset(const char *prefix, const weft_dataset *dataset,
                                 const weft_known *known, bool json)
{
    const double tokens = (double)weft_dataset_num_tokens(dataset);
    char hash[32];
    weft_report r;
    snprintf(hash, sizeof hash, "%016" PRIx64, known->xxh64);
    weft_report_begin(&r, json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_report_line(&r, "dataset %s", prefix);
    weft_report_open(&r, WEFT_REPORT_FACTS, NULL);
    weft_report_text(&r, "dataset", NULL, prefix);
    weft_report_row(&r, "tokens", "tokens", WEFT_UNIT_INDEX, tokens);
    weft_report_row(&r, "sequences", "sequences", WEFT_UNIT_INDEX,
                    weft_dataset_num_sequences(dataset));
    weft_report_row(&r, "documents", "documents", WEFT_UNIT_INDEX,
                    weft_dataset_num_documents(dataset));
    weft_report_row(&r, "token_bytes", "token size", WEFT_UNIT_BYTES,
                    weft_dataset_token_bytes(dataset));
    weft_report_row(&r, "max_token", "max token", WEFT_UNIT_INDEX, known->max_token);
    weft_report_text(&r, "data_xxh64", "data_xxh64", hash);
    weft_report_close(&r);
    return weft_report_end(&r, WEFT_OK, stdout);
}

/* Reads every token, and compares with what is kept of these files, which starts believe. */
static weft_status check_dataset(const char *prefix, const weft_dataset *dataset, weft_arena *arena,
                                 weft_known *out)
{
    weft_tokenizer_info info;
    weft_prepared prepared;
    weft_known kept;
    const char *tokenizer;
    bool is_kept = false;
    WEFT_TRY(weft_prepared_find(prefix, arena, &info, &prepared));
    WEFT_TRY(weft_tokenizer_identity(&info, arena, &tokenizer));
    const bool has_kept = weft_known_recall(dataset, NULL, tokenizer, &kept);
    WEFT_TRY(has_kept ? weft_known_read(dataset, tokenizer, out)
                      : weft_known_look(dataset, NULL, tokenizer, out, &is_kept));
    if (has_kept && (kept.xxh64 != out->xxh64 || kept.max_token != out->max_token))
        return WEFT_ERROR(WEFT_FILE,
                          "%s.bin: damaged: its tokens are not those that %s" WEFT_KNOWN_SUFFIX
                          " is of, and nobody has written it since; if they are right, remove "
                          "that file",
                          prefix, prefix);
    return weft_known_check(prefix, info.vocab_size, out);
}

static weft_status inspect_dataset(const char *prefix, bool json)
{
    weft_dataset *dataset;
    weft_known known;
    weft_arena arena = {0};
    WEFT_TRY(weft_dataset_open(prefix, &dataset));
    weft_status status = check_dataset(prefix, dataset, &arena, &known);
    if (status == WEFT_OK)
        status = print_dataset(prefix, dataset, &known, json);
    weft_dataset_close(dataset);
    weft_arena_release(&arena);
    return status;
}

/* The checkpoint's lines, or its members. */
static weft_status report_checkpoint(weft_report *r, const char *folder)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to print a checkpoint");
    weft_status status = weft_checkpoint_inspect(folder, r->form == WEFT_REPORT_JSON, out);
    if (fclose(out) != 0 && status == WEFT_OK)
        status = WEFT_ERROR(WEFT_MEMORY, "no memory to print a checkpoint");
    if (status == WEFT_OK && r->form == WEFT_REPORT_JSON) {
        cJSON *json = cJSON_Parse(text);
        weft_report_members(r, json);
        cJSON_Delete(json);
    } else if (status == WEFT_OK) {
        fprintf(r->out, "\n%s", text);
    }
    free(text);
    return status;
}

/* Of a run: where its time went, which a damaged checkpoint does not hide from people. */
static weft_status print_run(const char *run, const weft_ledger_account *account, bool saved,
                             bool json, weft_arena *arena)
{
    const char *folder;
    weft_report r;
    weft_report_begin(&r, json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_ledger_report(&r, account);
    weft_status status = saved ? weft_checkpoint_resolve(run, arena, &folder) : WEFT_OK;
    if (status == WEFT_OK && saved)
        status = report_checkpoint(&r, folder);
    const weft_status printed = weft_report_end(&r, json ? status : WEFT_OK, stdout);
    return status == WEFT_OK ? printed : status;
}

/* Its checkpoint need not be there yet. */
static weft_status inspect_run(const char *run, const char *ledger, bool json, weft_arena *arena)
{
    weft_ledger_account account = {0};
    const char *latest;
    WEFT_TRY(weft_arena_printf(arena, &latest, "%s/checkpoints/latest", run));
    const bool saved = access(latest, F_OK) == 0;
    WEFT_TRY(weft_ledger_read(ledger, &account));
    weft_status status = print_run(run, &account, saved, json, arena);
    if (!saved && account.saved > 0)
        status = WEFT_ERROR(
            WEFT_FILE, "%s/checkpoints: has no checkpoint, but the run has saved step %" PRId64,
            run, account.saved);
    weft_ledger_account_release(&account);
    return status;
}

static weft_status inspect_folder(const char *path, bool json, weft_arena *arena)
{
    const char *ledger, *folder;
    WEFT_TRY(weft_arena_printf(arena, &ledger, "%s/ledger.jsonl", path));
    if (access(ledger, F_OK) == 0)
        return inspect_run(path, ledger, json, arena);
    WEFT_TRY(weft_checkpoint_resolve(path, arena, &folder));
    return weft_checkpoint_inspect(folder, json, stdout);
}

/* A dataset's prefix may be a file's name too. */
static weft_status inspect_file(const char *path, bool json)
{
    weft_arena arena = {0};
    const char *index;
    weft_status status = weft_arena_printf(&arena, &index, "%s.idx", path);
    if (status == WEFT_OK && access(index, F_OK) != 0)
        status = WEFT_ERROR(WEFT_FILE,
                            "%s: a file: a checkpoint is a folder, and a dataset the name of .bin "
                            "and .idx without that",
                            path);
    weft_arena_release(&arena);
    return status == WEFT_OK ? inspect_dataset(path, json) : status;
}

static weft_status inspect(const char *path, bool json)
{
    struct stat info;
    const bool is_there = stat(path, &info) == 0;
    if (!is_there || !S_ISDIR(info.st_mode))
        return is_there ? inspect_file(path, json) : inspect_dataset(path, json);
    if (access(path, X_OK) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: %s", path, strerror(errno));
    weft_arena arena = {0};
    weft_status status = inspect_folder(path, json, &arena);
    weft_arena_release(&arena);
    return status;
}

static weft_status run(const weft_inspect_sample *asked, bool flight)
{
    if (asked->step > 0)
        return weft_inspect_sample_print(asked, stdout);
    return flight ? weft_inspect_flight(asked->run, asked->json, stdout)
                  : inspect(asked->run, asked->json);
}

int weft_verb_inspect(int argc, char **argv, const weft_verb_given *given)
{
    weft_inspect_sample asked = {.application = given->application};
    bool flight = false;
    weft_string_list given;
    weft_arena arena = {0};
    const weft_argument rows[] = {
        {"flight", NULL, "of a run's folder: the ranks' flight records beside each other",
         .flag = &flight},
        {"sample", "N", "of a run's folder: the text that step N read", .whole = &asked.step,
         .min = 1, .max = 1e15},
        {"full", NULL, "with --sample: whole texts, which else are shortened", .flag = &asked.full},
        {"json", NULL, "one JSON object on standard output", .flag = &asked.json},
    };
    const weft_arguments verb = {
        .verb = "inspect",
        .operands = "CHECKPOINT|DATASET",
        .given = &given,
        .about =
            "CHECKPOINT: a run's folder, its checkpoints folder, or one step-N folder: lists "
            "its tensors\nand verifies every hash; of a run's folder also where its time went.\n"
            "DATASET: a prefix of .bin and .idx: reads, counts and checks its tokens.\n",
        .rows = rows,
        .num_rows = sizeof rows / sizeof *rows};
    int code = weft_arguments_parse(&verb, argc, argv, &arena);
    if (code < 0) {
        asked.run = given.values[0];
        code = run(&asked, flight) == WEFT_OK ? 0 : weft_verb_fail("inspect");
    }
    weft_arena_release(&arena);
    return code;
}
