/* weft eval: the loss of a checkpoint on a part of a dataset, on any mesh. Writes no file. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "launcher/arguments/rows.h"
#include "launcher/report/report.h"
#include "launcher/training/run_folder.h"
#include "launcher/training/setup.h"
#include "launcher/training/start.h"
#include "launcher/training/trainer.h"
#include "launcher/verbs/train/train.h"
#include "parallel/checkpoint/checkpoint.h"

/* What --split says: the dataset's parts, and the whole of it. */
static const char *const split_names[] = {"train", "validation", "test", "all"};
enum { ALL = WEFT_NUM_SPLITS, NUM_SPLIT_NAMES, MAX_OWN_SETS = 8 };

typedef struct arguments {
    const char *checkpoint, *data, *mesh;
    weft_string_list set;
    int split;
    int64_t iters;
    bool json;
} arguments;

typedef struct evaluator {
    arguments args;
    weft_arena arena;
    const char *folder; /* of the checkpoint */
    weft_config_source source;
    weft_config config;
} evaluator;

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, evaluator *e)
{
    arguments *args = &e->args;
    const weft_argument rows[] = {
        TEXT("data", "PREFIX", &args->data, "another dataset than the run's"),
        NAMED("split", "PART", &args->split, split_names, NUM_SPLIT_NAMES, "which part of it"),
        WHOLE("iters", "N", &args->iters, 1, 1e15,
              "global batches, not the run's train.eval_iters"),
        TEXT("mesh", "AXES", &args->mesh, "such as tp=2,pp=2: replaces the run's mesh"),
        TEXTS("set", "KEY=VALUE", &args->set,
              "override a key of the run's config; may be repeated"),
        FLAG("json", &args->json, "the result as one JSON object"),
    };
    const weft_arguments verb = {
        .verb = "eval",
        .operands = "CHECKPOINT",
        .operand = &args->checkpoint,
        .about = "The mean loss of a checkpoint's weights, and its perplexity. CHECKPOINT: a run's "
                 "folder, its\ncheckpoints folder, or one step-N folder. Batches come in the "
                 "dataset's order, from its part's start.\nA mesh of more than one rank starts "
                 "mpirun, unless a launcher already has.\n",
        ROWS_OF(rows)};
    args->split = WEFT_SPLIT_VALIDATION;
    return weft_arguments_parse(&verb, argc, argv, &e->arena);
}

/* The run's own config, and over it what the options say; --set goes last. */
static weft_status load_config(evaluator *e)
{
    const arguments *args = &e->args;
    WEFT_TRY(weft_checkpoint_resolve(args->checkpoint, &e->arena, &e->folder));
    WEFT_TRY(weft_arena_printf(&e->arena, &e->source.file, "%s/config.json", e->folder));
    WEFT_TRY(weft_checkpoint_read_config(e->folder, &e->arena, &e->source.text));
    if (!e->source.text)
        return WEFT_ERROR(WEFT_FILE, "%s: holds no config", e->folder);
    const char **set, **options;
    WEFT_TRY(WEFT_ARRAY(&e->arena, args->set.count + MAX_OWN_SETS, &set));
    WEFT_TRY(WEFT_ARRAY(&e->arena, args->set.count + MAX_OWN_SETS, &options));
    size_t count = 0;
    set[count++] = "train.eval_interval=0"; /* which would want a validation part */
    if (args->split == ALL)
        set[count++] = "data.split=1,0,0";
    if (args->iters > 0)
        WEFT_TRY(
            weft_arena_printf(&e->arena, &set[count++], "train.eval_iters=%" PRId64, args->iters));
    if (args->data) {
        WEFT_TRY(weft_arena_printf(&e->arena, &options[count], "--data %s", args->data));
        WEFT_TRY(weft_arena_printf(&e->arena, &set[count++], "data.data_path=%s", args->data));
        set[count++] = "data.blend=[]";
        set[count++] = "data.validation=[]";
        set[count++] = "data.mock_data=false";
        set[count++] = "data.shuffle_block_tokens=0"; /* of the run's data */
    }
    for (size_t i = 0; i < args->set.count; i++)
        set[count++] = args->set.values[i];
    e->source.set = set;
    e->source.num_set = count;
    e->source.options = options;
    e->source.mesh = args->mesh;
    e->source.forward_only = true;
    WEFT_TRY(weft_checkpoint_run(e->folder, &e->arena, &e->source.run_path));
    WEFT_TRY(weft_config_load(&e->source, &e->arena, &e->config));
    return e->config.train.eval_iters > 0
               ? WEFT_OK
               : WEFT_ERROR(WEFT_CONFIG, "--iters is missing: the run's train.eval_iters is 0");
}

static weft_split_kind part_of(const evaluator *e)
{
    return e->args.split == ALL ? WEFT_SPLIT_TRAIN : (weft_split_kind)e->args.split;
}

/* The dataset's parts follow from the config; whether there is anything in the one that is wanted.
 */
static weft_status check_part(const evaluator *e)
{
    double weights[WEFT_NUM_SPLITS];
    WEFT_TRY(weft_config_split(&e->config, weights));
    if (e->args.split == WEFT_SPLIT_VALIDATION && e->config.data.validation.count > 0)
        return WEFT_OK;
    if (weights[part_of(e)] > 0)
        return WEFT_OK;
    WEFT_TRY(weft_setup_find_data(&e->config, &e->source));
    return WEFT_ERROR(WEFT_CONFIG, "--split %s: data.split %s leaves nothing for it",
                      split_names[e->args.split], e->config.data.split);
}

static weft_status print(const evaluator *e, int64_t step, const weft_evaluation *result)
{
    const double perplexity = exp(result->loss);
    const char *split = split_names[e->args.split];
    weft_report r;
    weft_report_begin(&r, e->args.json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_report_line(&r, "step %" PRId64 "  %s loss %.4f  perplexity %.4g  (%.0f tokens)", step,
                     split, result->loss, perplexity, result->tokens);
    weft_report_text(&r, "checkpoint", NULL, e->folder);
    weft_report_value(&r, "step", step);
    weft_report_text(&r, "split", NULL, split);
    weft_report_value(&r, "loss", result->loss);
    weft_report_value(&r, "perplexity", perplexity);
    weft_report_value(&r, "tokens", result->tokens);
    weft_report_open(&r, WEFT_REPORT_TABLE, result->num_sets > 0 ? "sets" : NULL);
    for (size_t i = 0; i < result->num_sets; i++) {
        weft_report_record(&r);
        weft_report_text(&r, "name", "set", result->sets[i].name);
        weft_report_row(&r, "loss", "loss", WEFT_UNIT_NONE, result->sets[i].loss);
        weft_report_row(&r, "tokens", "tokens", WEFT_UNIT_COUNT, result->sets[i].tokens);
    }
    weft_report_close(&r);
    return weft_report_end(&r, WEFT_OK, stdout);
}

/* Rank 0: of the run's own data path, whose files somebody may have written anew. */
static void tell_other_data(const evaluator *e, const weft_config *now)
{
    const char *of_run = e->config.data.data_xxh64;
    if (!e->args.data && of_run && now->data.data_xxh64 &&
        strcmp(of_run, now->data.data_xxh64) != 0)
        weft_log(WEFT_LOG_WARN, "%s: no longer the data of the run: data_xxh64 is %s, and was %s",
                 now->data.data_path ? now->data.data_path : "data.blend", now->data.data_xxh64,
                 of_run);
}

/* Set-up ends in agreement, so that rank 0 can speak for all; after it the rank that finds an error
 * may be the only one that knows. */
static int run(evaluator *e, weft_comm *world)
{
    weft_trainer trainer;
    weft_evaluation result;
    bool speaks = weft_comm_rank(world) == 0;
    weft_log_set_level((weft_log_level)e->config.log.level);
    weft_comm_set_check(e->config.log.check_collectives);
    weft_status status =
        weft_trainer_create_evaluating(&trainer, &e->config, &e->source, world, &e->arena);
    if (status == WEFT_OK)
        status = weft_trainer_start(&trainer, e->folder);
    if (status == WEFT_OK) {
        if (speaks) {
            tell_other_data(e, &trainer.config);
            weft_trainer_tell_repeats(&trainer, part_of(e));
        }
        status = weft_trainer_evaluate(&trainer, part_of(e), &result);
        if (status == WEFT_OK && speaks)
            status = print(e, trainer.step, &result);
        if (status != WEFT_OK) {
            weft_log_error_record();
            weft_comm_abort(world, status);
        }
    } else if (speaks) {
        status = weft_run_name_beside(e->args.checkpoint, e->folder, status);
        weft_verb_fail("eval");
    }
    weft_trainer_release(&trainer);
    return weft_status_exit_code(status);
}

int weft_verb_eval(int argc, char **argv, const weft_verb_given *given)
{
    evaluator e = {.source.application = given->application};
    int code = parse(argc, argv, &e);
    if (code >= 0) {
        weft_arena_release(&e.arena);
        return code;
    }
    weft_start start = weft_start_find();
    weft_status status = load_config(&e);
    if (start.rank == 0)
        status = weft_run_name_beside(e.args.checkpoint, e.folder, status);
    if (status == WEFT_OK)
        status = check_part(&e);
    if (status == WEFT_OK)
        status = weft_start_ranks(&start, &e.config, &e.source, NULL, argc, argv);
    if (status != WEFT_OK)
        code = weft_verb_fail_apart("eval");
    else
        code = start.world ? run(&e, start.world) : start.exit_code;
    weft_comm_destroy(start.world);
    weft_arena_release(&e.arena);
    return code;
}
