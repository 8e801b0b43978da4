/* weft generate: continues a text with a checkpoint's model, on any mesh, whatever mesh trained it.
 *
 * A pass brings the tokens that attention has not cached the keys and values of: many of a prompt,
 * then one at a time. Where each tensor-parallel rank routes its own rows their number is a
 * multiple of such ranks; those behind the text's end are computed, seen by no other, and written
 * over. Every rank learns each token from the one that samples it. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <weft/kernels.h>

#include "core/json.h"
#include "core/log.h"
#include "core/rng.h"
#include "launcher/arguments/rows.h"
#include "launcher/planning/config.h"
#include "launcher/planning/tier_choice.h"
#include "launcher/report/report.h"
#include "launcher/text/tokenizer.h"
#include "launcher/training/run_folder.h"
#include "launcher/training/setup.h"
#include "launcher/training/start.h"
#include "launcher/verbs/train/train.h"
#include "parallel/checkpoint/checkpoint.h"

/* Of a prompt in a pass: enough that weights are read for many, with room for few activations. */
enum { MAX_PASS_TOKENS = 64 };

typedef struct arguments {
    const char *checkpoint, *prompt, *mesh;
    weft_string_list set;
    int64_t num_tokens, seed;
    double temperature;
    int64_t top_k;
    bool json, no_cache;
} arguments;

typedef struct generator {
    weft_config config;
    weft_config_source source;
    weft_start start;
    weft_comm *world;  /* borrowed */
    int sampler;       /* the world rank that samples */
    size_t capacity;   /* tokens of a text that the model sees at once */
    size_t each, rows; /* of them in a pass: a multiple, and at most */
    weft_groups groups;
    weft_device *device;
    weft_lane *lane;
    weft_model *model;
    weft_tokenizer *tokenizer;
    weft_encoder *encoder;
    /* Pinned: a pass' tokens and their places; logits, [tp * local]. Messages between stages. */
    int32_t *window, *index;
    float *logits;
    size_t local; /* logits of a token on this rank */
    weft_tensor from, to;
} generator;

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, arguments *args, weft_arena *arena)
{
    const weft_argument rows[] = {
        TEXT("prompt", "TEXT", &args->prompt, "what to continue", .required = true),
        WHOLE("num-tokens", "N", &args->num_tokens, 1, 1e9, "tokens to add"),
        REAL("temperature", "T", &args->temperature, 0, INFINITY, NULL,
             "0 takes the likeliest token"),
        WHOLE("top-k", "K", &args->top_k, 0, INFINITY, "sample among the K likeliest; 0: all"),
        WHOLE("seed", "S", &args->seed, 0, 1e15, "same seed, same text"),
        TEXT("mesh", "AXES", &args->mesh, "such as tp=2,pp=2; one rank without"),
        FLAG("no-cache", &args->no_cache, "compute the whole text for each token"),
        TEXTS("set", "KEY=VALUE", &args->set,
              "override a key of the run's config; may be repeated"),
        FLAG("json", &args->json, "text, tokens and settings as one JSON object"),
    };
    const weft_arguments verb = {
        .verb = "generate",
        .operands = "CHECKPOINT",
        .operand = &args->checkpoint,
        .about = "CHECKPOINT: a run's folder, its checkpoints folder, or one step-N folder.\n"
                 "A mesh of more than one rank starts mpirun, unless a launcher already has.\n",
        ROWS_OF(rows)};
    *args = (arguments){.num_tokens = 128, .seed = 1, .temperature = 0.8, .top_k = 40};
    return weft_arguments_parse(&verb, argc, argv, arena);
}

/* An imported model's lies beside its checkpoints. */
static weft_status open_imported(const char *folder, weft_arena *arena, weft_tokenizer **out)
{
    weft_tokenizer_source source = {0};
    const char *run;
    WEFT_TRY(weft_checkpoint_run(folder, arena, &run));
    WEFT_TRY(weft_arena_printf(arena, &source.name, "%s/source/tokenizer.json", run));
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
 * GPU is read on the CPU where there is none, which knows no fp16. --set goes last but for that.
 * Each data-parallel rank has the same text; the batch divides by up to 16 of them. */
static weft_status load_config(generator *g, const char *folder, const arguments *args,
                               weft_arena *arena, const weft_application *application)
{
    static const char *const anywhere[] = {
        "parallel.sequence_parallel=false", "device.memory_limit=0", "device.num_threads=0",
        "train.micro_batch_size=1", "train.global_batch_size=720720"};
    static const char *const on_cpu[] = {"device.kind=cpu", "train.precision=fp32"};
    enum { NUM_ANYWHERE = sizeof anywhere / sizeof *anywhere, NUM_ON_CPU = 2 };
    weft_config_source *source = &g->source;
    *source = (weft_config_source){.file = folder,
                                   .mesh = args->mesh ? args->mesh : "tp=1,pp=1,dp=1,ep=1,etp=1",
                                   .no_data = true,
                                   .forward_only = true,
                                   .application = application};
    const char **set;
    WEFT_TRY(WEFT_ARRAY(arena, args->set.count + NUM_ANYWHERE + NUM_ON_CPU, &set));
    for (size_t i = 0; i < NUM_ANYWHERE; i++)
        set[source->num_set++] = anywhere[i];
    for (size_t i = 0; i < args->set.count; i++)
        set[source->num_set++] = args->set.values[i];
    source->set = set;
    WEFT_TRY(weft_checkpoint_read_config(folder, arena, &source->text));
    WEFT_TRY(weft_config_load(source, arena, &g->config));
    if (g->config.device.kind == WEFT_DEVICE_KIND_CPU || weft_device_num_cuda(NULL) > 0)
        return WEFT_OK;
    set[source->num_set++] = on_cpu[0];
    if (weft_config_dtype(&g->config) == WEFT_F16)
        set[source->num_set++] = on_cpu[1];
    return weft_config_load(source, arena, &g->config);
}

/* Experts beyond device memory are one rank's. */
static weft_status check_mesh(const generator *g, const weft_mesh *mesh)
{
    if (mesh->cp > 1)
        return WEFT_KEY_ERROR("parallel.context_parallel_size",
                              "%d, but weft generate does not cut a text over ranks; 1 would, with "
                              "other axes",
                              mesh->cp);
    if (mesh->world > 1 && weft_tier_pins(&g->config))
        return WEFT_KEY_ERROR("offload.experts",
                              "weft generate has experts beyond device memory on one rank alone; "
                              "none would, or a mesh of one rank");
    return WEFT_OK;
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

/* Up to a whole multiple. */
static size_t rounded(const generator *g, size_t tokens)
{
    return (tokens + g->each - 1) / g->each * g->each;
}

/* The tokens of a pass, and what attention caches. A text that outgrows the cache is read again. */
static void choose_rows(generator *g, const arguments *args, const weft_mesh *mesh, size_t prompt)
{
    const bool routes_shares =
        g->config.model.num_experts > 0 && mesh->binding == WEFT_BINDING_DP && mesh->etp == 1;
    g->capacity = g->each = g->rows = (size_t)g->config.model.seq_length;
    if (args->no_cache)
        return;
    g->each = routes_shares ? (size_t)mesh->tp : 1;
    const size_t longest = prompt + (size_t)args->num_tokens > g->capacity ? g->capacity : prompt;
    g->rows = rounded(g, longest < MAX_PASS_TOKENS ? longest : MAX_PASS_TOKENS);
    g->config.cached_tokens = rounded(g, g->capacity);
    g->config.model.seq_length = (int64_t)g->rows;
}

static weft_status create_model(generator *g)
{
    WEFT_TRY(weft_lane_create(g->device, 0, "compute", &g->lane));
    return weft_model_create(
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
                            .seed = 1,
                            .cached_tokens = g->config.cached_tokens},
        weft_config_build(&g->config), &g->model);
}

static weft_status open_model(generator *g, const char *folder, const arguments *args,
                              size_t prompt)
{
    weft_mesh mesh;
    WEFT_TRY(weft_config_mesh(&g->config, &g->source, weft_comm_size(g->world), &mesh));
    g->config.train.global_batch_size = mesh.dp;
    choose_rows(g, args, &mesh, prompt);
    weft_status status = choose_tier(g, &mesh);
    if (status == WEFT_OK)
        status = weft_setup_device(&g->config, &g->device);
    WEFT_TRY(weft_comm_agree(g->world, status));
    WEFT_TRY(weft_setup_comm(&g->config, &g->source, g->world, g->device));
    WEFT_TRY(weft_groups_create(g->world, &mesh, NULL, &g->groups));
    WEFT_TRY(weft_comm_agree(g->world, create_model(g)));
    WEFT_TRY(weft_model_reserve(g->model, g->lane));
    status = weft_checkpoint_load_weights(folder, weft_model_parameters(g->model), g->lane);
    if (status == WEFT_OK)
        status = weft_lane_sync(g->lane);
    if (status == WEFT_OK)
        status = weft_model_reset_tier(g->model);
    return weft_comm_agree(g->world, status);
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

/* --- passes ---------------------------------------------------------------------------------- */

static bool is_last_stage(const generator *g)
{
    return g->groups.coords.at[WEFT_AXIS_PP] == g->groups.mesh.pp - 1;
}

/* One rank of the last stage samples: all of them have all logits. */
static weft_status find_sampler(generator *g)
{
    bool is_first = is_last_stage(g);
    int64_t rank = -1;
    for (int axis = 0; axis < WEFT_NUM_AXES; axis++)
        if (axis != WEFT_AXIS_PP && g->groups.coords.at[axis] > 0)
            is_first = false;
    if (is_first)
        rank = weft_comm_rank(g->world);
    WEFT_TRY(weft_comm_all_reduce_host(g->world, &rank, 1, WEFT_I64, WEFT_REDUCE_MAX));
    g->sampler = (int)rank;
    return WEFT_OK;
}

/* The logits of one of the pass' rows, where the host can read them. */
static weft_status read_logits(generator *g, size_t row)
{
    weft_tensor logits;
    WEFT_TRY(weft_model_logits(g->model, 0, &logits));
    const weft_coords *at = &g->groups.coords;
    float *to = g->logits + (size_t)at->at[WEFT_AXIS_TP] * g->local;
    const char *from =
        (const char *)logits.data + row * logits.dims[1] * weft_dtype_bytes(logits.dtype);
    if (logits.dtype == WEFT_F32)
        WEFT_TRY(weft_lane_copy(g->lane, to, from, g->local * sizeof *to));
    else
        WEFT_TRY(weft_cast(g->lane,
                           &WEFT_ARGS(weft_cast_args, .count = g->local, .from_dtype = logits.dtype,
                                      .to_dtype = WEFT_F32, .from = from, .to = to)));
    WEFT_TRY(weft_lane_sync(g->lane));
    return g->groups.mesh.tp == 1 ? WEFT_OK
                                  : weft_comm_all_gather_host(g->groups.by_axis[WEFT_AXIS_TP], to,
                                                              g->logits, g->local * sizeof *to);
}

/* This stage's forward of `rows` tokens: from the stage before, to the one behind. */
static weft_status run_stage(generator *g, const weft_micro_batch *batch, size_t rows)
{
    weft_tensor from = g->from, to = g->to;
    weft_comm *pp = g->groups.by_axis[WEFT_AXIS_PP];
    const int stage = g->groups.coords.at[WEFT_AXIS_PP];
    const bool receives = stage > 0, sends = !is_last_stage(g);
    const size_t bytes = weft_model_boundary_bytes(g->model);
    from.dims[0] = to.dims[0] = rows;
    if (receives)
        WEFT_TRY(weft_recv(pp, g->lane, stage - 1, 0, from.data, bytes));
    WEFT_TRY(weft_model_forward(g->model, 0, batch, g->lane, receives ? &from : NULL,
                                sends ? &to : NULL));
    WEFT_TRY(weft_model_enqueue(g->model));
    if (sends)
        WEFT_TRY(weft_send(pp, g->lane, stage + 1, 0, to.data, bytes));
    return weft_lane_sync(g->lane);
}

/* Tokens first, ... first + rows - 1 of a text, of which the model sees those from `begin` on.
 * Attention is causal, so what a pass brings behind the last one does not matter. */
static weft_status run_pass(generator *g, const weft_tokens *tokens, size_t begin, size_t first,
                            size_t rows)
{
    for (size_t i = 0; i < rows; i++) {
        const size_t at = begin + first + i;
        g->window[i] = at < tokens->count ? tokens->ids[at] : 0;
        g->index[i] = (int32_t)(first + i < g->capacity ? first + i : g->capacity - 1);
    }
    const bool caches = g->config.cached_tokens > 0;
    const weft_micro_batch batch = {.tokens = g->window,
                                    .index = caches ? g->index : NULL,
                                    .first_token = first,
                                    .loss_scale = 1};
    if (caches)
        weft_model_bring(g->model, rows);
    weft_model_begin_tier(g->model, false);
    return run_stage(g, &batch, rows);
}

/* --- the text -------------------------------------------------------------------------------- */

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

static weft_status next_token(generator *g, const arguments *args, size_t row, int64_t position,
                              int32_t *out)
{
    if (is_last_stage(g)) {
        WEFT_TRY(read_logits(g, row));
        *out = sample(args, g->logits, (size_t)g->config.model.vocab_size, position);
    }
    return weft_comm_broadcast_host(g->world, out, sizeof *out, g->sampler);
}

/* Adds tokens one by one. Without a cache the model sees the last `capacity` of them. A full cache
 * begins again with the text's last half: what is in it stands at the places it had. */
static weft_status extend(generator *g, const arguments *args, weft_tokens *tokens)
{
    const size_t end = tokens->count + (size_t)args->num_tokens;
    const int32_t eod = (int32_t)weft_tokenizer_get_info(g->tokenizer)->eod;
    const bool prints = !args->json && weft_comm_rank(g->world) == 0;
    const bool caches = g->config.cached_tokens > 0;
    size_t begin = 0, done = 0; /* tokens left out, and in the cache */
    if (prints)
        print_from(g, tokens, 0);
    while (tokens->count < end) {
        int32_t next = 0;
        if (tokens->count - begin > g->capacity) {
            begin = tokens->count - (caches ? (g->capacity + 1) / 2 : g->capacity);
            done = 0;
        }
        const size_t shown = tokens->count - begin;
        size_t first = done;
        for (; first + g->rows < shown; first += g->rows)
            WEFT_TRY(run_pass(g, tokens, begin, first, g->rows));
        WEFT_TRY(run_pass(g, tokens, begin, first, rounded(g, shown - first)));
        WEFT_TRY(next_token(g, args, shown - 1 - first, (int64_t)tokens->count, &next));
        done = caches ? shown : 0;
        if (next == eod)
            break;
        WEFT_TRY(weft_tokens_add(tokens, next));
        if (prints)
            print_from(g, tokens, tokens->count - 1);
    }
    if (prints)
        putchar('\n');
    return WEFT_OK;
}

static weft_status take_pinned(generator *g, size_t bytes, const char *name, void **out)
{
    return weft_device_alloc_for(g->device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED, bytes, name,
                                 out);
}

static void release_buffers(generator *g)
{
    const struct {
        weft_space space;
        void *data;
        size_t bytes;
    } all[] = {
        {WEFT_SPACE_PINNED, g->window, g->rows * sizeof *g->window},
        {WEFT_SPACE_PINNED, g->index, g->rows * sizeof *g->index},
        {WEFT_SPACE_PINNED, g->logits, g->local * (size_t)g->groups.mesh.tp * sizeof *g->logits},
        {WEFT_SPACE_DEVICE, g->from.data, weft_tensor_bytes(&g->from)},
        {WEFT_SPACE_DEVICE, g->to.data, weft_tensor_bytes(&g->to)},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].data)
            weft_device_free(g->device, all[i].space, all[i].data, all[i].bytes);
}

static weft_status create_buffers(generator *g)
{
    const weft_shape *shape = weft_model_get_shape(g->model);
    const size_t tp = (size_t)g->groups.mesh.tp;
    void *memory;
    g->local = (shape->vocab + tp - 1) / tp;
    WEFT_TRY(take_pinned(g, g->rows * sizeof *g->window, "tokens", &memory));
    g->window = memory;
    WEFT_TRY(take_pinned(g, g->rows * sizeof *g->index, "places of tokens", &memory));
    g->index = memory;
    WEFT_TRY(take_pinned(g, g->local * tp * sizeof *g->logits, "logits", &memory));
    g->logits = memory;
    if (g->groups.mesh.pp == 1)
        return WEFT_OK;
    for (int i = 0; i < 2; i++) {
        weft_tensor t = weft_tensor_2d(NULL, shape->dtype, g->rows, shape->hidden);
        WEFT_TRY(weft_device_alloc_for(g->device, WEFT_SPACE_DEVICE, WEFT_MEMORY_MESSAGES,
                                       weft_tensor_bytes(&t), "hidden states between stages",
                                       &t.data));
        *(i == 0 ? &g->from : &g->to) = t;
    }
    return WEFT_OK;
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

static weft_status encode_prompt(generator *g, const arguments *args, const char *folder,
                                 weft_arena *arena, weft_tokens *tokens)
{
    WEFT_TRY(open_tokenizer(folder, arena, &g->tokenizer));
    WEFT_TRY(weft_encoder_create(g->tokenizer, &g->encoder));
    WEFT_TRY(weft_encoder_prompt(g->encoder, args->prompt, strlen(args->prompt), tokens));
    return tokens->count > 0 ? WEFT_OK
                             : WEFT_ERROR(WEFT_CONFIG, "--prompt: the text has no tokens");
}

/* What every rank finds alike ends in agreement; behind it a rank that finds an error may be the
 * only one that knows. */
static weft_status generate(generator *g, const arguments *args, const char *folder,
                            weft_arena *arena)
{
    weft_tokens tokens = {0};
    weft_status status = weft_comm_agree(g->world, encode_prompt(g, args, folder, arena, &tokens));
    if (status == WEFT_OK)
        status = open_model(g, folder, args, tokens.count);
    if (status == WEFT_OK)
        status = weft_comm_agree(g->world, create_buffers(g));
    if (status == WEFT_OK)
        status = find_sampler(g);
    if (status == WEFT_OK) {
        status = extend(g, args, &tokens);
        if (status != WEFT_OK && weft_comm_size(g->world) > 1) {
            weft_log_error_record();
            weft_comm_abort(g->world, status);
        }
    }
    if (status == WEFT_OK && args->json && weft_comm_rank(g->world) == 0)
        status = print_json(g, args, folder, &tokens, arena);
    weft_tokens_release(&tokens);
    return status;
}

/* Makes the world, or runs the ranks by mpirun: then there is no world. */
static weft_status start_ranks(generator *g, const arguments *args, const char *folder,
                               weft_arena *arena, const weft_application *application, int argc,
                               char **argv)
{
    weft_mesh mesh;
    WEFT_TRY(load_config(g, folder, args, arena, application));
    WEFT_TRY(
        weft_config_mesh(&g->config, &g->source, g->start.launched ? g->start.size : 0, &mesh));
    WEFT_TRY(weft_config_locate(&g->source, check_mesh(g, &mesh)));
    WEFT_TRY(weft_start_ranks(&g->start, &g->config, &g->source, NULL, argc, argv));
    g->world = g->start.world;
    return WEFT_OK;
}

static void release(generator *g)
{
    release_buffers(g);
    weft_model_destroy(g->model);
    weft_lane_destroy(g->lane);
    weft_groups_release(&g->groups);
    weft_device_destroy(g->device);
    weft_encoder_destroy(g->encoder);
    weft_tokenizer_destroy(g->tokenizer);
    weft_comm_destroy(g->start.world);
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
    g.start = weft_start_find();
    weft_status status = weft_checkpoint_resolve(args.checkpoint, &arena, &folder);
    if (status == WEFT_OK)
        status = start_ranks(&g, &args, folder, &arena, given->application, argc, argv);
    if (status == WEFT_OK && g.world)
        status = generate(&g, &args, folder, &arena);
    if (g.start.rank == 0)
        status = weft_run_name_beside(args.checkpoint, folder, status);
    code = weft_start_end(&g.start, status, "generate");
    release(&g);
    weft_arena_release(&arena);
    return code;
}
