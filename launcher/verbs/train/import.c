/* weft import and weft export: models from Hugging Face's files and back. */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "launcher/arguments/rows.h"
#include "launcher/models/models.h"
#include "launcher/report/report.h"
#include "launcher/verbs/train/train.h"

/* One hash of names, dtypes, shapes and bytes: equal cards are equal models. */
static uint64_t hash_all(const weft_card *card)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < card->num_tensors; i++) {
        const weft_safetensor *t = &card->tensors[i];
        hash = XXH64(t->name, strlen(t->name) + 1, hash);
        hash = XXH64(t->dtype_text, strlen(t->dtype_text) + 1, hash);
        hash = XXH64(t->dims, (size_t)t->num_dims * sizeof t->dims[0], hash);
        hash = XXH64(&card->hashes[i], sizeof card->hashes[i], hash);
    }
    return hash;
}

static void report_hash(weft_report *r, const char *key, const char *title, uint64_t hash)
{
    char text[24];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    weft_report_text(r, key, title, text);
}

/* For people one line, of the first of them. */
static void report_list(weft_report *r, const char *key, const weft_string_list *list,
                        const char *what)
{
    char line[400] = "";
    size_t used = 0, i = 0;
    weft_report_texts(r, key, list->values, list->count);
    for (; i < list->count && used + strlen(list->values[i]) + 24 < sizeof line; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s", i ? ", " : "",
                                 list->values[i]);
    if (i < list->count)
        snprintf(line + used, sizeof line - used, " and %zu more", list->count - i);
    if (list->count > 0)
        weft_report_line(r, "%s: %s", what, line);
}

static void report_tensors(const weft_card *card, weft_report *r)
{
    if (r->form != WEFT_REPORT_JSON)
        return;
    weft_report_open(r, WEFT_REPORT_TABLE, "tensors");
    for (size_t i = 0; i < card->num_tensors; i++) {
        const weft_safetensor *t = &card->tensors[i];
        double dims[WEFT_SAFETENSORS_MAX_DIMS];
        for (int d = 0; d < t->num_dims; d++)
            dims[d] = (double)t->dims[d];
        weft_report_record(r);
        weft_report_text(r, "name", NULL, t->name);
        weft_report_text(r, "dtype", NULL, t->dtype_text);
        weft_report_numbers(r, "shape", dims, (size_t)t->num_dims);
        if (card->hashes)
            report_hash(r, "xxh64", NULL, card->hashes[i]);
    }
    weft_report_close(r);
}

/* As text the counts and what was left out, as JSON each tensor too. */
static void card_report(const weft_card *card, weft_report *r)
{
    weft_report_open(r, WEFT_REPORT_OBJECT, "model");
    weft_report_text(r, "family", NULL, card->family);
    weft_report_text(r, "from", NULL, card->from);
    weft_report_text(r, "to", NULL, card->to);
    weft_report_value(r, "num_tensors", (double)card->num_tensors);
    weft_report_value(r, "num_files", card->num_files);
    weft_report_value(r, "bytes", (double)card->bytes);
    weft_report_value(r, "num_parameters", (double)card->num_elements);
    weft_report_value(r, "num_weights", (double)card->num_parameters);
    weft_report_line(r, "%s model %s", card->family, card->from);
    weft_report_line(
        r, "%s in %s, %s", weft_count_text((long long)card->num_tensors, "tensor").text,
        weft_count_text(card->num_files, "file").text, weft_bytes_text((double)card->bytes).text);
    weft_report_line(r, "%s parameters in %s",
                     weft_unit_text(WEFT_UNIT_COUNT, (double)card->num_elements).text,
                     weft_count_text((long long)card->num_parameters, "weight").text);
    if (card->hashes) {
        char text[24];
        snprintf(text, sizeof text, "%016llx", (unsigned long long)hash_all(card));
        weft_report_text(r, "xxh64", NULL, text);
        weft_report_line(r, "xxh64 of all: %s", text);
    }
    weft_report_value(r, "num_scaled", (double)card->num_scaled);
    if (card->num_scaled > 0)
        weft_report_line(r, "%s of fp8 or MXFP4 with scales of blocks: exported as bf16",
                         weft_count_text((long long)card->num_scaled, "tensor").text);
    report_list(r, "copies", &card->copies, "the same as another tensor, so not kept");
    report_list(r, "ignored_tensors", &card->ignored_tensors, "tensors that Weft does not use");
    report_list(r, "ignored_keys", &card->ignored_keys,
                "keys of config.json that Weft does not use");
    report_tensors(card, r);
    if (card->to)
        weft_report_line(r, "written: %s", card->to);
    else
        weft_report_line(r, "nothing was written");
    weft_report_close(r);
}

static weft_status print_card(const weft_card *card, bool json)
{
    weft_report r;
    weft_report_begin(&r, json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    card_report(card, &r);
    return weft_report_end(&r, WEFT_OK, stdout);
}

static weft_status check_out(const char *out, bool check)
{
    if (!out && !check)
        return WEFT_ERROR(WEFT_CONFIG, "--out is missing; --check alone writes nothing");
    return WEFT_OK;
}

int weft_verb_import(int argc, char **argv, const weft_verb_given *given)
{
    weft_import import = {.application = given->application};
    weft_arena arena = {0};
    weft_card card;
    bool check = false, json = false;
    const weft_argument rows[] = {
        TEXT("out", "RUN", &import.out,
             "folder that is made: a config, a checkpoint of step 0, the source's texts"),
        FLAG("check", &check, "read, check and hash all, and write nothing", .excludes = "out"),
        FLAG("json", &json, "the model's card as one JSON object"),
    };
    const weft_arguments verb = {
        .verb = "import",
        .operands = "FOLDER",
        .operand = &import.folder,
        .about = "Makes a checkpoint of a model in Hugging Face's files: config.json and "
                 "safetensors. weft train\nRUN/config.json starts from it on any mesh, and weft "
                 "export makes the files again.\n",
        ROWS_OF(rows)};
    int code = weft_arguments_parse(&verb, argc, argv, &arena);
    if (code < 0) {
        weft_status status = check_out(import.out, check);
        if (status == WEFT_OK)
            status = weft_import_model(&import, &arena, &card);
        if (status == WEFT_OK)
            status = print_card(&card, json);
        code = status == WEFT_OK ? 0 : weft_verb_fail("import");
    }
    weft_arena_release(&arena);
    return code;
}

int weft_verb_export(int argc, char **argv, const weft_verb_given *given)
{
    static const char *const dtypes[] = {"as-is", "bf16", "fp16", "fp32"};
    enum { AS_IS, NUM_DTYPES = sizeof dtypes / sizeof *dtypes };
    weft_export export = {.application = given->application};
    weft_arena arena = {0};
    weft_card card;
    bool check = false, json = false;
    int dtype = AS_IS;
    int64_t most = 0;
    const weft_argument rows[] = {
        TEXT("out", "FOLDER", &export.out, "folder that is made"),
        NAMED("dtype", "D", &dtype, dtypes, NUM_DTYPES,
              "of all tensors; as-is: the source's, else the run's precision"),
        TEXT("like", "FOLDER", &export.like,
             "take config.json and tokenizer from there, not from the run's source"),
        BYTES("max-shard-size", "BYTES", &most, 1, 1e15,
              "of a file (5GB, or the source's files where each tensor has its dtype)"),
        FLAG("check", &check, "make and hash all tensors, and write nothing", .excludes = "out"),
        FLAG("json", &json, "the model's card as one JSON object"),
    };
    const weft_arguments verb = {
        .verb = "export",
        .operands = "CHECKPOINT",
        .operand = &export.checkpoint,
        .about = "Writes a checkpoint's model as Hugging Face's files. CHECKPOINT: a run's folder, "
                 "its checkpoints\nfolder, or one step-N folder.\n",
        ROWS_OF(rows)};
    int code = weft_arguments_parse(&verb, argc, argv, &arena);
    if (code < 0) {
        export.dtype = dtype == AS_IS ? NULL : dtypes[dtype];
        export.max_shard_bytes = (uint64_t)most;
        weft_status status = check_out(export.out, check);
        if (status == WEFT_OK)
            status = weft_export_model(&export, &arena, &card);
        if (status == WEFT_OK)
            status = print_card(&card, json);
        code = status == WEFT_OK ? 0 : weft_verb_fail("export");
    }
    weft_arena_release(&arena);
    return code;
}
