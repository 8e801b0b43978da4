/* weft train. */

#include "core/clock.h"
#include "core/options/options.h"
#include "launcher/arguments/rows.h"
#include "launcher/training/train.h"
#include "launcher/verbs/train/train.h"

static void print_keys(const void *application, FILE *out)
{
    weft_config config = {.application = application};
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    fprintf(out, "\nKeys of the config, with their defaults:\n\n");
    weft_options_help(sections, weft_config_sections(&config, sections), false, out);
}

/* Returns -1 to go on, else the exit code. */
static int parse_arguments(int argc, char **argv, weft_training *args, weft_arena *arena)
{
    weft_string_list sets = {0};
    const weft_argument rows[] = {
        TEXT("out", "RUN", &args->run.path,
             "folder for config.json, metrics.jsonl, checkpoints/, trace.json", .required = true),
        TEXTS("set", "KEY=VALUE", &sets, "override a key of the config; may be repeated"),
        TEXT("mesh", "AXES", &args->source.mesh,
             "such as tp=2,pp=2,ep=4,binding=dp: replaces the file's mesh"),
        FLAG("resume", &args->run.resume,
             "go on from RUN's latest checkpoint, if any; CONFIG may be left out"),
        TEXT("resume-from", "STEP", &args->run.from,
             "the same from another one, such as step-400 or 400"),
        TEXT(
            "allow-change", "KEYS", &args->source.allow_change,
            "go on with another model, seed or dataset: keys or sections, such as train.seed,data"),
        FLAG("dry-run", &args->dry_run,
             "check all that a start checks, say what the run would be, write nothing"),
        FLAG("json", &args->json, "metrics as JSON lines on standard output"),
    };
    const weft_arguments verb = {
        .verb = "train",
        .operands = "[CONFIG]",
        .operand = &args->source.file,
        .about = "A mesh of more than one rank starts mpirun, unless a launcher already has.\n"
                 "SIGINT, SIGTERM, SIGHUP and SIGUSR1 make a run save a checkpoint and end after "
                 "its step.\n",
        ROWS_OF(rows),
        .more = print_keys,
        .context = args->source.application};
    int code = weft_arguments_parse(&verb, argc, argv, arena);
    args->source.set = sets.values;
    args->source.num_set = sets.count;
    args->run.resume = args->run.resume || args->run.from;
    args->source.run_path = args->run.path;
    args->source.keeps_nothing = args->dry_run;
    return code;
}

int weft_verb_train(int argc, char **argv, const weft_verb_given *given)
{
    weft_training args = {.source.application = given->application, .began_us = weft_now_us()};
    weft_arena arena = {0};
    int code = parse_arguments(argc, argv, &args, &arena);
    if (code < 0)
        code = weft_train(&args, argc, argv, &arena);
    weft_arena_release(&arena);
    return code;
}
