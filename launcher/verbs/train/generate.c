/* weft generate: continues a text with a checkpoint's model, on one rank whatever mesh trained it.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/kernels.h>

#include "core/json.h"
#include "core/log.h"
#include "core/rng.h"
#include "launcher/arguments/arguments.h"
#include "launcher/planning/config.h"
#include "launcher/planning/tier_choice.h"
#include "launcher/report/report.h"
#include "launcher/text/tokenizer.h"
#include "launcher/training/run_folder.h"
#include "launcher/training/setup.h"
#include "launcher/verbs/train/train.h"
#include "parallel/checkpoint/checkpoint.h"

typedef struct arguments {
    const char *checkpoint, *prompt;
    weft_string_list set;
    int64_t num_tokens, seed;
    double temperature;
    int64_t top_k;
    bool json;
} arguments;

typedef struct generator {
    weft_config config;
    weft_comm *self;
    weft_groups groups;
    weft_device *device;
    weft_lane *lane;
    weft_model *model;
    weft_tokenizer *tokenizer;
    weft_encoder *encoder;
} generator;

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, arguments *args, weft_arena *arena)
{
    weft_string_list given = {0};
    const weft_argument rows[] = {
        {"prompt", "TEXT", "what to continue", .text = &args->prompt, .required = true},
        {"num-tokens", "N", "tokens to add", .whole = &args->num_tokens, .min = 1, .max = 1e9},
        {"temperature", "T", "0 takes the likeliest token", .number = &args->temperature,
         .max = INFINITY},
        {"top-k", "K", "sample among the K likeliest; 0: all", .whole = &args->top_k,
         .max = INFINITY},
        {"seed", "S", "same seed, same text", .whole = &args->seed},
        {"set", "KEY=VALUE", "override a key of the run's config; may be repeated",
         .texts = &args->set},
        {"json", NULL, "text, tokens and settings as one JSON object", .flag = &args->json},
    };
    const weft_arguments verb = {
        .verb = "generate",
        .operands = "CHECKPOINT",
        .given = &given,
        .about = "CHECKPOINT: a run's folder, its checkpoints folder, or one step-N folder.\n",
        .rows = rows,
        .num_rows = sizeof rows / sizeof *rows};
    *args = (arguments){.num_tokens = 128, .seed = 1, .temperature = 0.8, .top_k = 40};
    int code = weft_arguments_parse(&verb, argc, argv, arena);
    if (code < 0)
        args->checkpoint = given.values[0];
    return code;
}

/* An imported model's lies beside its checkpoints. */
static weft_status open_imported(const char *folder, weft_arena *arena, weft_tokenizer **out)
{
    weft_tokenizer_source source = {0};
    WEFT_TRY(weft_arena_printf(arena, &source.name, "%s/../../source/tokenizer.json", folder));
    return access(source.name, R_OK) == 0
               ? weft_tokenizer_create(&source, out)
               : WEFT_ERROR(WEFT_FILE, "%s: holds no tokenizer: cannot read the prompt", folder);
}

static weft_status open_tokenizer(const char *folder, weft_arena *arena, weft_tokenizer **out)
{
    const char *text;
    weft_tokenizer_info info = {0};
    weft_prepared prepared = {0};
    weft_option_section sections[2];
    WEFT_TRY(weft_checkpoint_read_tokenizer(folder, arena, &text));
    if (!text)
        return open_imported(folder, arena, out);
    weft_prepared_sections(&info, &prepared, sections);
    WEFT_TRY(weft_options_parse(sections, 2, folder, text, NULL, 0, arena));
    return weft_tokenizer_open(&info, out);
}

/* The mesh, the device and the data of the training run do not bind this one: a checkpoint from a
 * GPU is read on the CPU where there is none, which knows no fp16. --set goes last but for that. */
static weft_status load_config(generator *g, const char *folder, const arguments *args,
                               weft_arena *arena, const weft_application *application)
{
    static const char *const anywhere[] = {"parallel.sequence_parallel=false",
                                           "device.memory_limit=0", "device.num_threads=0"};
    static const char *const on_cpu[] = {"device.kind=cpu", "train.precision=fp32"};
    enum { NUM_ANYWHERE = 3, NUM_ON_CPU = 2 };
    weft_config_source source = {.file = folder,
                                 .mesh = "tp=1,pp=1,dp=1,ep=1,etp=1",
                                 .no_data = true,
                                 .application = application};
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, args->set.count + NUM_ANYWHERE + NUM_ON_CPU,
                                    sizeof(char *), &memory));
    const char **set = memory;
    for (size_t i = 0; i < NUM_ANYWHERE; i++)
        set[source.num_set++] = anywhere[i];
    for (size_t i = 0; i < args->set.count; i++)
        set[source.num_set++] = args->set.values[i];
    source.set = set;
    WEFT_TRY(weft_checkpoint_read_config(folder, arena, &source.text));
    WEFT_TRY(weft_config_load(&source, arena, &g->config));
    if (g->config.device.kind == WEFT_DEVICE_KIND_CPU || weft_device_num_cuda(NULL) > 0)
        return WEFT_OK;
    set[source.num_set++] = on_cpu[0];
    if (weft_config_dtype(&g->config) == WEFT_F16)
        set[source.num_set++] = on_cpu[1];
    return weft_config_load(&source, arena, &g->config);
}

/* Where experts are, and whether they fit. */
static weft_status choose_tier(generator *g, const weft_mesh *mesh)
{
    const weft_tier_room room = weft_setup_room(&g->config);
    const weft_moe_options moe = {.pipeline = {.num_partitions = 1}};
    weft_tier_selection found;
    if (!weft_tier_pins(&g->config))
        return WEFT_OK;
    WEFT_TRY(weft_tier_require(WEFT_STEP_GENERATES, &g->config, mesh, &moe, &room, &found));
    g->config.tier = found.options;
    if (found.reason[0])
        weft_log(WEFT_LOG_INFO, "%s", found.reason);
    return WEFT_OK;
}

static weft_status open_model(generator *g, const char *folder, const arguments *args,
                              weft_arena *arena, const weft_application *application)
{
    weft_mesh mesh;
    WEFT_TRY(load_config(g, folder, args, arena, application));
    WEFT_TRY(weft_mesh_build(&g->config.parallel, 1, g->config.model.num_experts, &mesh));
    WEFT_TRY(choose_tier(g, &mesh));
    WEFT_TRY(weft_comm_create_self(&g->self));
    WEFT_TRY(weft_groups_create(g->self, &mesh, NULL, &g->groups));
    WEFT_TRY(weft_setup_device(&g->config, &g->device));
    WEFT_TRY(weft_lane_create(g->device, 0, "compute", &g->lane));
    WEFT_TRY(weft_model_create(
        &(weft_model_setup){.options = &g->config.model,
                            .own_options = g->config.own,
                            .tier = &g->config.tier,
                            .groups = &g->groups,
                            .device = g->device,
                            .dtype = weft_config_dtype(&g->config),
                            .micro_batch_size = 1,
                            .bucket_elements = (size_t)g->config.parallel.ddp_bucket_size,
                            .training = false,
                            .num_passes = 1,
                            .seed = 1},
        weft_config_build(&g->config), &g->model));
    WEFT_TRY(weft_checkpoint_load_weights(folder, weft_model_parameters(g->model), g->lane));
    WEFT_TRY(weft_lane_sync(g->lane));
    return weft_model_reset_tier(g->model);
}

/* Samples from softmax(logits / temperature) over the top_k likeliest. */
static int32_t sample(const arguments *args, const float *logits, size_t vocab, int64_t position)
{
    size_t best = 0, kept = 0;
    float limit = -INFINITY;
    for (size_t v = 1; v < vocab; v++)
        if (logits[v] > logits[best])
            best = v;
    if (args->temperature <= 0)
        return (int32_t)best;
    /* The k-th largest logit, by lowering the bar one distinct value at a time. */
    if (args->top_k > 0 && (size_t)args->top_k < vocab) {
        float bar = INFINITY;
        while (kept < (size_t)args->top_k) {
            float next = -INFINITY;
            for (size_t v = 0; v < vocab; v++) {
                float x = logits[v];
                if (x < bar && x > next)
                    next = x;
            }
            for (size_t v = 0; v < vocab; v++)
                kept += logits[v] == next;
            bar = limit = next;
        }
    }
    double total = 0, top = logits[best];
    for (size_t v = 0; v < vocab; v++)
        if (logits[v] >= limit)
            total += exp((logits[v] - top) / args->temperature);
    double left = total * weft_rng_uniform((uint64_t)args->seed, weft_rng_stream_of("generate"),
                                           (uint64_t)position);
    for (size_t v = 0; v < vocab; v++) {
        if (logits[v] < limit)
            continue;
        left -= exp((logits[v] - top) / args->temperature);
        if (left <= 0)
            return (int32_t)v;
    }
    return (int32_t)best;
}

/* The logits of one token, where the host can read them. */
static weft_status read_logits(generator *g, size_t row, float *to)
{
    weft_tensor logits;
    size_t vocab = (size_t)g->config.model.vocab_size;
    WEFT_TRY(weft_model_logits(g->model, 0, &logits));
    const char *from =
        (const char *)logits.data + row * logits.dims[1] * weft_dtype_bytes(logits.dtype);
    if (logits.dtype == WEFT_F32)
        WEFT_TRY(weft_lane_copy(g->lane, to, from, vocab * sizeof *to));
    else
        WEFT_TRY(weft_cast(g->lane,
                           &WEFT_ARGS(weft_cast_args, .count = vocab, .from_dtype = logits.dtype,
                                      .to_dtype = WEFT_F32, .from = from, .to = to)));
    return weft_lane_sync(g->lane);
}

/* At once, also into a pipe: what is there stays where the rest is not waited for. */
static void print_from(const generator *g, const weft_tokens *tokens, size_t first)
{
    for (size_t i = first; i < tokens->count; i++) {
        size_t bytes;
        const char *piece = weft_tokenizer_piece(g->tokenizer, tokens->ids[i], &bytes);
        fwrite(piece, 1, bytes, stdout);
    }
    fflush(stdout);
}

/* Adds tokens one by one; the model sees the last seq_length of them, in `window`. Attention is
 * causal, so what stands behind the last token does not matter. */
static weft_status extend_in(generator *g, const arguments *args, int32_t *window, float *logits,
                             weft_tokens *tokens)
{
    size_t seq = (size_t)g->config.model.seq_length, prompt = tokens->count;
    int32_t eod = (int32_t)weft_tokenizer_get_info(g->tokenizer)->eod;
    if (!args->json)
        print_from(g, tokens, 0);
    while (tokens->count < prompt + (size_t)args->num_tokens) {
        size_t shown = tokens->count < seq ? tokens->count : seq;
        memset(window, 0, seq * sizeof *window);
        memcpy(window, tokens->ids + tokens->count - shown, shown * sizeof *window);
        weft_micro_batch micro_batch = {.tokens = window, .loss_scale = 1};
        weft_model_begin_tier(g->model, false);
        WEFT_TRY(weft_model_forward(g->model, 0, &micro_batch, g->lane, NULL, NULL));
        WEFT_TRY(read_logits(g, shown - 1, logits));
        int32_t next =
            sample(args, logits, (size_t)g->config.model.vocab_size, (int64_t)tokens->count);
        if (next == eod)
            break;
        WEFT_TRY(weft_tokens_add(tokens, next));
        if (!args->json)
            print_from(g, tokens, tokens->count - 1);
    }
    if (!args->json)
        putchar('\n');
    return WEFT_OK;
}

static weft_status extend(generator *g, const arguments *args, weft_tokens *tokens)
{
    size_t window_bytes = (size_t)g->config.model.seq_length * sizeof(int32_t);
    size_t logits_bytes = (size_t)g->config.model.vocab_size * sizeof(float);
    void *window = NULL, *logits = NULL;
    weft_status status = weft_device_alloc_for(g->device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED,
                                               window_bytes, "tokens", &window);
    if (status == WEFT_OK)
        status = weft_device_alloc_for(g->device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED,
                                       logits_bytes, "logits", &logits);
    if (status == WEFT_OK)
        status = extend_in(g, args, window, logits, tokens);
    weft_device_free(g->device, WEFT_SPACE_PINNED, window, window ? window_bytes : 0);
    weft_device_free(g->device, WEFT_SPACE_PINNED, logits, logits ? logits_bytes : 0);
    return status;
}

static weft_status print_json(const generator *g, const arguments *args, const char *folder,
                              const weft_tokens *tokens, weft_arena *arena)
{
    char *text;
    size_t bytes;
    const char *quoted; /* the text may have any bytes */
    weft_report r;
    WEFT_TRY(weft_tokenizer_decode(g->tokenizer, tokens->ids, tokens->count, arena, &text, &bytes));
    WEFT_TRY(weft_json_quote_bytes(text, bytes, arena, &quoted));
    weft_report_begin(&r, WEFT_REPORT_JSON);
    weft_report_text(&r, "checkpoint", NULL, folder);
    weft_report_raw(&r, "text", quoted);
    weft_json_open_flat(&r.json, "tokens", '[');
    for (size_t i = 0; i < tokens->count; i++)
        weft_json_number(&r.json, NULL, tokens->ids[i]);
    weft_json_close(&r.json);
    weft_report_value(&r, "temperature", args->temperature);
    weft_report_value(&r, "top_k", args->top_k);
    weft_report_value(&r, "seed", args->seed);
    return weft_report_end(&r, WEFT_OK, stdout);
}

static weft_status generate(generator *g, const arguments *args, const char *folder,
                            weft_arena *arena, const weft_application *application)
{
    weft_tokens tokens = {0};
    WEFT_TRY(open_tokenizer(folder, arena, &g->tokenizer));
    WEFT_TRY(weft_encoder_create(g->tokenizer, &g->encoder));
    WEFT_TRY(open_model(g, folder, args, arena, application));
    weft_status status =
        weft_encoder_prompt(g->encoder, args->prompt, strlen(args->prompt), &tokens);
    if (status == WEFT_OK && tokens.count == 0)
        status = WEFT_ERROR(WEFT_CONFIG, "--prompt: the text has no tokens");
    if (status == WEFT_OK)
        status = extend(g, args, &tokens);
    if (status == WEFT_OK && args->json)
        status = print_json(g, args, folder, &tokens, arena);
    weft_tokens_release(&tokens);
    return status;
}

int weft_verb_generate(int argc, char **argv, const weft_verb_given *given)
{
    arguments args;
    generator g = {0};
    weft_arena arena = {0};
    int code = parse(argc, argv, &args, &arena);
    if (code >= 0) {
        weft_arena_release(&arena);
        return code;
    }
    const char *folder = NULL;
    weft_status status = weft_checkpoint_resolve(args.checkpoint, &arena, &folder);
    if (status == WEFT_OK)
        status = generate(&g, &args, folder, &arena, given->application);
    status = weft_run_name_beside(args.checkpoint, folder, status);
    code = status == WEFT_OK ? 0 : weft_verb_fail("generate");
    weft_model_destroy(g.model);
    weft_lane_destroy(g.lane);
    weft_groups_release(&g.groups);
    weft_device_destroy(g.device);
    weft_comm_destroy(g.self);
    weft_encoder_destroy(g.encoder);
    weft_tokenizer_destroy(g.tokenizer);
    weft_arena_release(&arena);
    return code;
}
