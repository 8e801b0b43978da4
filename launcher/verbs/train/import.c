/* weft import and weft export: models from Hugging Face's files and back. */
#include <stdio.h>

#include "launcher/arguments/arguments.h"
#include "launcher/models/models.h"
#include "launcher/report/report.h"
#include "launcher/verbs/train/train.h"

static weft_status print_card(const weft_card *card, bool json)
{
    weft_report r;
    weft_report_begin(&r, json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_card_report(card, &r);
    return weft_report_end(&r, WEFT_OK, stdout);
}

static weft_status check_out(const char *out, bool check)
{
    if (!out && !check)
        return WEFT_ERROR(WEFT_CONFIG, "--out is missing; --check alone writes nothing");
    if (out && check)
        return WEFT_ERROR(WEFT_CONFIG, "--check writes nothing: leave --out out");
    return WEFT_OK;
}

int weft_verb_import(int argc, char **argv, const weft_verb_given *given)
{
    weft_import import = {.application = given->application};
    weft_arena arena = {0};
    weft_string_list operands = {0};
    weft_card card;
    bool check = false, json = false;
    const weft_argument rows[] = {
        {"out", "RUN", "folder that is made: a config, a checkpoint of step 0, the source's texts",
         .text = &import.out},
        {"check", NULL, "read, check and hash all, and write nothing", .flag = &check},
        {"json", NULL, "the model's card as one JSON object", .flag = &json},
    };
    const weft_arguments verb = {
        .verb = "import",
        .operands = "FOLDER",
        .given = &operands,
        .about = "Makes a checkpoint of a model in Hugging Face's files: config.json and "
                 "safetensors. weft train\nRUN/config.json starts from it on any mesh, and weft "
                 "export makes the files again.\n",
        .rows = rows,
        .num_rows = sizeof rows / sizeof *rows};
    int code = weft_arguments_parse(&verb, argc, argv, &arena);
    if (code < 0) {
        import.folder = operands.values[0];
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
    weft_string_list operands = {0};
    weft_card card;
    bool check = false, json = false;
    int dtype = AS_IS;
    int64_t most = 5000000000;
    const weft_argument rows[] = {
        {"out", "FOLDER", "folder that is made", .text = &export.out},
        {"dtype", "D", "of all tensors; as-is: the source's, else the run's precision",
         .choice = &dtype, .names = dtypes, .num_names = NUM_DTYPES},
        {"like", "FOLDER", "take config.json and tokenizer from there, not from the run's source",
         .text = &export.like},
        {"max-shard-size", "BYTES", "of a file; an unchanged source's files stay as they were",
         .whole = &most, .min = 1, .max = 1e15, .is_bytes = true},
        {"check", NULL, "make and hash all tensors, and write nothing", .flag = &check},
        {"json", NULL, "the model's card as one JSON object", .flag = &json},
    };
    const weft_arguments verb = {
        .verb = "export",
        .operands = "CHECKPOINT",
        .given = &operands,
        .about = "Writes a checkpoint's model as Hugging Face's files. CHECKPOINT: a run's folder, "
                 "its checkpoints\nfolder, or one step-N folder.\n",
        .rows = rows,
        .num_rows = sizeof rows / sizeof *rows};
    int code = weft_arguments_parse(&verb, argc, argv, &arena);
    if (code < 0) {
        export.checkpoint = operands.values[0];
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
