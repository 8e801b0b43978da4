/* weft check-layer: the layers of this program's model, one by one. */
#include <stdio.h>

#include "launcher/arguments/rows.h"
#include "launcher/planning/config.h"
#include "launcher/process/launch.h"
#include "launcher/training/progress.h"
#include "launcher/training/start.h"
#include "launcher/verbs/train/train.h"
#include "layers/check/check.h"

typedef struct arguments {
    weft_config_source source;
    const char *layer;
    bool json;
} arguments;

static int parse(int argc, char **argv, arguments *args, weft_arena *arena)
{
    weft_string_list sets = {0};
    const weft_argument rows[] = {
        TEXT("layer", "NAME", &args->layer,
             "only these: a name such as decoder.layers.0.mlp, or a kind such as mlp"),
        TEXTS("set", "KEY=VALUE", &sets, "override a key of the config; may be repeated"),
        FLAG("json", &args->json, "one JSON object on standard output"),
    };
    const weft_arguments verb = {
        .verb = "check-layer",
        .operands = "CONFIG",
        .operand = &args->source.file,
        .about =
            "Checks each kind of layer of the model alone, on the CPU in fp32: gradients "
            "against finite\ndifferences, describe against use, what is written, overwritten "
            "and added, two passes in flight,\nand two tensor-parallel ranks against one "
            "(mpirun starts them). Sizes of a few dozen will do, such as\n--set hidden_size=16 "
            "--set seq_length=8. Exit code 2 where a layer is wrong.\n",
        ROWS_OF(rows)};
    int code = weft_arguments_parse(&verb, argc, argv, arena);
    args->source.set = sets.values;
    args->source.num_set = sets.count;
    return code;
}

static weft_status run(const weft_check_setup *setup, const weft_config *config, weft_comm *world)
{
    const weft_model_options *o = &config->model;
    int wrong;
    if (weft_comm_rank(world) == 0 && !setup->json)
        printf("hidden_size %lld, seq_length %lld, micro_batch_size %lld, vocab_size %lld\n",
               (long long)o->hidden_size, (long long)o->seq_length,
               (long long)setup->micro_batch_size, (long long)o->vocab_size);
    fflush(stdout);
    WEFT_TRY(weft_check_run(world, setup, weft_config_build(config), &wrong));
    return wrong ? WEFT_ERROR(WEFT_CONFIG, "%d %s wrong", wrong,
                              wrong == 1 ? "check is" : "checks are")
                 : WEFT_OK;
}

int weft_verb_check_layer(int argc, char **argv, const weft_verb_given *given)
{
    enum { RANKS = 2 };
    arguments args = {.source = {.application = given->application, .no_data = true}};
    weft_arena arena = {0};
    weft_config config;
    int code = parse(argc, argv, &args, &arena);
    if (code >= 0) {
        weft_arena_release(&arena);
        return code;
    }
    bool began = false;
    weft_start start = weft_start_find();
    weft_status status = weft_config_load(&args.source, &arena, &config);
    weft_check_setup setup = {.layer = args.layer, .json = args.json, .out = stdout};
    if (status == WEFT_OK) {
        if (config.model.vocab_size == 0)
            config.model.vocab_size = WEFT_CHECK_VOCAB;
        setup.options = &config.model;
        setup.own_options = config.own;
        setup.micro_batch_size = config.train.micro_batch_size;
        setup.binding = (weft_expert_binding)config.parallel.expert_binding;
        if (config.train.precision == WEFT_PRECISION_BF16)
            setup.dtype = WEFT_BF16;
        weft_metric_list metrics;
        status = weft_check_model(&setup, weft_config_build(&config), &metrics);
        if (status == WEFT_OK)
            status = weft_progress_check_metrics(&metrics);
        status = weft_config_locate(&args.source, status);
    }
    if (status == WEFT_OK && !start.launched) {
        status = weft_launch_mpirun(RANKS, argc + 1, argv - 1, NULL, &start.exit_code);
    } else if (status == WEFT_OK) {
        status = weft_start_world(&start);
        began = status == WEFT_OK;
        if (began)
            status = run(&setup, &config, start.world);
    }
    if (status != WEFT_OK && args.json && !began && start.rank == 0)
        weft_check_could_not_begin(stdout);
    code = weft_start_end(&start, status, "check-layer");
    weft_comm_destroy(start.world);
    weft_arena_release(&arena);
    return code;
}
