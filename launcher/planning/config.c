#include "launcher/planning/config.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/kernels.h>

#include "core/fits.h"
#include "launcher/planning/moe_choice.h"
#include "launcher/planning/run_changes.h"
#include "layers/runtime.h"

#define INT(owner, key, initial, min, unit, help)                                                  \
    {                                                                                              \
#key, WEFT_OPTION_INT, offsetof(owner, key), initial, min, 1e15, NULL, unit, help          \
    }
#define BATCH(owner, key, initial, max, help)                                                      \
    {                                                                                              \
#key, WEFT_OPTION_INT, offsetof(owner, key), initial, 1, max, NULL, "samples", help        \
    }
#define REAL(owner, key, initial, min, max, help)                                                  \
    {                                                                                              \
#key, WEFT_OPTION_DOUBLE, offsetof(owner, key), initial, min, max, NULL, NULL, help        \
    }
#define FLAG(owner, key, initial, help)                                                            \
    {                                                                                              \
#key, WEFT_OPTION_BOOL, offsetof(owner, key), initial, 0, 0, NULL, NULL, help              \
    }
#define TEXT(owner, key, initial, help)                                                            \
    {                                                                                              \
#key, WEFT_OPTION_STRING, offsetof(owner, key), initial, 0, 0, NULL, NULL, help            \
    }
#define CHOICE(owner, key, initial, choices, help)                                                 \
    {                                                                                              \
#key, WEFT_OPTION_CHOICE, offsetof(owner, key), initial, 0, 0, choices, NULL, help         \
    }

#define T weft_train_options
static const weft_option_row train_rows[] = {
    BATCH(T, micro_batch_size, "1", 1e5, "samples a rank takes at once"),
    BATCH(T, global_batch_size, "8", 1e7, "samples a step, over all ranks"),
    INT(T, train_iters, "100", 0, "steps", "optimizer steps"),
    REAL(T, lr, "3e-4", 0, 1e3, "peak learning rate"),
    REAL(T, min_lr, "0", 0, 1e3, "learning rate at the end of the decay"),
    CHOICE(T, lr_decay_style, "\"cosine\"", "constant|linear|cosine|WSD", "learning-rate schedule"),
    INT(T, lr_warmup_iters, "0", 0, "steps", "linear warm-up"),
    INT(T, lr_decay_iters, "0", 0, "steps",
        "steps until min_lr; 0: train_iters of the run's start"),
    INT(T, lr_wsd_decay_iters, "0", 0, "steps",
        "length of WSD's decay; 0: a fifth of lr_decay_iters"),
    REAL(T, weight_decay, "0.1", 0, 10, "AdamW's weight decay (matrices only)"),
    REAL(T, adam_beta1, "0.9", 0, 0.99999994, "AdamW's first moment"),
    REAL(T, adam_beta2, "0.95", 0, 0.99999994, "AdamW's second moment"),
    REAL(T, adam_eps, "1e-8", 1e-30, 1, "AdamW's epsilon"),
    REAL(T, clip_grad, "1.0", 0, 1e9, "limit of the global gradient norm; 0: none"),
    INT(T, seed, "1234", 0, NULL, "seed of weights, sample order and dropout"),
    CHOICE(T, precision, "\"fp32\"", "fp32|bf16|fp16",
           "activations and weights; fp32 master weights beside those of 16 bits"),
    REAL(T, initial_loss_scale, "4294967296", 1e-9, 1e30,
         "fp16: what the loss is multiplied by at first"),
    REAL(T, min_loss_scale, "1", 1e-9, 1e30, "fp16: the lowest loss scale"),
    INT(T, loss_scale_window, "1000", 1, "steps",
        "fp16: good steps in a row until the loss scale is doubled"),
    INT(T, hysteresis, "2", 1, "steps",
        "fp16: steps whose gradients overflow until the loss scale is halved"),
    INT(T, eval_interval, "0", 0, "steps", "steps between evaluations; 0: none"),
    INT(T, eval_iters, "4", 1, "batches", "global batches an evaluation"),
    {"stop_timeout_s", WEFT_OPTION_INT, offsetof(T, stop_timeout_s), "300", 0, 1e6, NULL, "s",
     "a run that was asked to stop and has not ended by then is killed; 0: it is waited for"},
    {"frozen_parameters", WEFT_OPTION_STRINGS, offsetof(T, frozen_parameters), "[]", 0, 0, NULL,
     NULL, "names, with *, ? and [...], of parameters that training leaves as they are"},
};
#undef T
#define T weft_data_options
static const weft_option_row data_rows[] = {
    TEXT(T, data_path, NULL, "prefix of the dataset's .bin and .idx"),
    TEXT(T, split, "\"969,30,1\"", "weights of train, valid and test"),
    FLAG(T, mock_data, "false", "random tokens, for speed runs (needs model.vocab_size)"),
    TEXT(T, data_xxh64, NULL,
         "hash of tokens and tokenizer: filled at the start, compared by --resume"),
};
#undef T
#define T weft_checkpoint_options
static const weft_option_row checkpoint_rows[] = {
    TEXT(T, load, NULL, "checkpoint to start from, of any mesh"),
    INT(T, save_interval, "0", 0, "steps", "steps between checkpoints; 0: only at the end"),
    FLAG(T, no_save, "false", "write no checkpoint at all"),
};
#undef T
#define T weft_device_options
static const weft_option_row device_rows[] = {
    CHOICE(T, kind, "\"cpu\"", "cpu|cuda",
           "what computes: the cores of this machine, or its NVIDIA GPUs, one a rank in turn"),
    CHOICE(T, comm, "\"auto\"", "auto|mpi|nccl",
           "what moves data between GPUs; auto: NCCL where every rank has its own, else MPI"),
    FLAG(T, cuda_graphs, "true",
         "forward and backward as CUDA graphs: dense layers without dropout, tp and cp 1"),
    INT(T, memory_limit, "0", 0, "bytes", "device memory a rank may use; 0: no limit"),
    INT(T, num_threads, "0", 0, "threads",
        "threads a rank computes with on the cpu; 0: its share of the cores"),
    REAL(T, peak_flops, "0", 0, 1e20, "peak FLOP/s a rank, for MFU; 0: measured"),
    REAL(T, pace, "0", 0, 1e20,
         "FLOP/s of an emulated accelerator: experts compute nothing and take that long; 0: none"),
};
#undef T
#define T weft_log_options
static const weft_option_row log_rows[] = {
    CHOICE(T, level, "\"info\"", "error|warn|info|debug|trace", "what is logged"),
    INT(T, log_interval, "10", 1, "steps", "steps between plain progress lines"),
    INT(T, trace_step, "3", 0, NULL, "step whose timeline is kept in trace.json; 0: none"),
    FLAG(T, check_collectives, "false", "compare all ranks' calls before each collective"),
};
#undef T

#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

size_t weft_config_sections(weft_config *config, weft_option_section out[WEFT_MAX_CONFIG_SECTIONS])
{
    const weft_application *own = config->application;
    const weft_option_section sections[7] = {
        {"model", weft_model_rows, weft_num_model_rows, &config->model, "the network"},
        {"parallel", weft_parallel_rows, weft_num_parallel_rows, &config->parallel, "the mesh"},
        {"train", train_rows, COUNT(train_rows), &config->train, "batches, optimizer, schedule"},
        {"data", data_rows, COUNT(data_rows), &config->data, "where tokens come from"},
        {"checkpoint", checkpoint_rows, COUNT(checkpoint_rows), &config->checkpoint,
         "saving and loading"},
        {"device", device_rows, COUNT(device_rows), &config->device, "what computes"},
        {"log", log_rows, COUNT(log_rows), &config->log, "what is written while it runs"},
    };
    memcpy(out, sections, sizeof sections);
    if (!own || !own->section)
        return COUNT(sections);
    out[COUNT(sections)] = (weft_option_section){own->section, own->rows, own->num_rows,
                                                 config->own, own->section_help};
    return COUNT(sections) + 1;
}

bool weft_config_reads_file(const weft_config *config)
{
    return !config->data.mock_data && config->data.data_path;
}

bool weft_config_has_own_data(const weft_config *config)
{
    return config->application && config->application->sample && !config->data.mock_data &&
           !config->data.data_path;
}

weft_model_function weft_config_build(const weft_config *config)
{
    return config->application ? config->application->build : NULL;
}

/* The override that sets `path` ("section.key"); NULL: none. */
static const char *find_override(const weft_config_source *source, const char *path)
{
    const char *key = strchr(path, '.') + 1;
    for (size_t i = source->num_set; i-- > 0;) {
        size_t bytes = strcspn(source->set[i], "=");
        bool same = (strlen(path) == bytes && memcmp(path, source->set[i], bytes) == 0) ||
                    (strlen(key) == bytes && memcmp(key, source->set[i], bytes) == 0);
        if (same)
            return source->set[i];
    }
    return NULL;
}

/* --mesh replaces the sizes of section "parallel", whatever it names. */
static bool is_mesh_size(const char *path)
{
    static const char section[] = "parallel.", end[] = "_parallel_size";
    size_t bytes = strlen(path);
    return strncmp(path, section, sizeof section - 1) == 0 && bytes > sizeof end - 1 &&
           strcmp(path + bytes - (sizeof end - 1), end) == 0;
}

static bool is_section(const weft_config_source *source, const char *path)
{
    weft_config unused = {.application = source->application};
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    const char *dot = strchr(path, '.');
    size_t count = weft_config_sections(&unused, sections);
    for (size_t i = 0; dot && i < count; i++)
        if (strlen(sections[i].name) == (size_t)(dot - path) &&
            strncmp(sections[i].name, path, (size_t)(dot - path)) == 0)
            return true;
    return false;
}

/* The record of this thread, with the place that its key was given at before it. */
static weft_status put_place(const weft_config_source *source, const char *text, weft_status status)
{
    char path[96] = "";
    const char *message = weft_error_get()->text, *override;
    size_t n = 0;
    while (n + 1 < sizeof path &&
           (isalnum((unsigned char)message[n]) || message[n] == '_' || message[n] == '.'))
        n++;
    memcpy(path, message, n);
    path[n] = '\0';
    int line, column;
    if (!is_section(source, path))
        return status;
    if (source->mesh && is_mesh_size(path))
        return weft_error_context(status, "--mesh %s", source->mesh);
    if (strcmp(path, "data.data_xxh64") == 0) /* of the data that another key names */
        strcpy(path, "data.data_path");
    if ((override = find_override(source, path)) != NULL)
        return weft_error_context(status, "--set %s", override);
    if (text && weft_options_locate(text, path, &line, &column))
        return weft_error_context(status, "%s:%d:%d", source->file, line, column);
    if (source->mesh && strncmp(path, "parallel.", 9) == 0)
        return weft_error_context(status, "--mesh %s", source->mesh);
    return weft_error_context(status, "%s", source->file);
}

weft_status weft_config_split(const weft_config *config, double out[3])
{
    const char *text = config->data.split;
    int used = 0;
    bool good = text && sscanf(text, "%lf,%lf,%lf%n", &out[0], &out[1], &out[2], &used) == 3 &&
                text[used] == '\0';
    for (int i = 0; i < 3; i++)
        good = good && out[i] >= 0 && out[i] < 1e15;
    if (!good)
        return WEFT_ERROR(WEFT_CONFIG,
                          "data.split: \"%s\" is not three weights of 0 and more, such as 969,30,1",
                          text ? text : "");
    if (out[0] < 1e-9)
        return WEFT_ERROR(WEFT_CONFIG,
                          "data.split: \"%s\" leaves no share to train on; the first of "
                          "training, validation and test must be above 0",
                          text);
    return WEFT_OK;
}

/* dp 0: not known yet. */
static weft_status check_batch(const weft_config *c, int dp)
{
    int64_t micro = c->train.micro_batch_size, batch = c->train.global_batch_size;
    int64_t runs = dp > 0 ? micro * dp : micro;
    char replicas[32] = "", fits[WEFT_FITS_TEXT_BYTES];
    if (batch % runs == 0)
        return WEFT_OK;
    if (dp > 0)
        snprintf(replicas, sizeof replicas, " x dp %d", dp);
    weft_fits near = weft_fits_multiples_near(runs, batch);
    return WEFT_ERROR(
        WEFT_CONFIG,
        "train.global_batch_size: %lld does not divide by micro_batch_size %lld%s; %s "
        "would",
        (long long)batch, (long long)micro, replicas, weft_fits_text(&near, fits));
}

static weft_status check_train(const weft_config *c)
{
    const weft_train_options *t = &c->train;
    double weights[3];
    if (t->precision == WEFT_PRECISION_FP16 && c->device.kind == WEFT_DEVICE_KIND_CPU)
        return WEFT_ERROR(WEFT_CONFIG,
                          "train.precision: fp16 needs device.kind \"cuda\"; the CPU has fp32 and "
                          "bf16");
    if (t->min_loss_scale > t->initial_loss_scale)
        return WEFT_ERROR(WEFT_CONFIG, "train.min_loss_scale: %g is above initial_loss_scale %g",
                          t->min_loss_scale, t->initial_loss_scale);
    if (t->min_lr > t->lr)
        return WEFT_ERROR(WEFT_CONFIG, "train.min_lr: %g is above lr %g", t->min_lr, t->lr);
    WEFT_TRY(check_batch(c, 0));
    if (!c->data.mock_data && !c->data.data_path && !weft_config_has_own_data(c))
        return WEFT_ERROR(WEFT_CONFIG,
                          "data.data_path: missing; make a dataset with weft prepare, or set "
                          "data.mock_data");
    if (c->data.mock_data && c->model.vocab_size == 0)
        return WEFT_ERROR(WEFT_CONFIG, "model.vocab_size: mock data needs one");
    if (weft_config_has_own_data(c) && c->model.vocab_size == 0)
        return WEFT_ERROR(WEFT_CONFIG, "model.vocab_size: the program's own data needs one");
    WEFT_TRY(weft_config_split(c, weights));
    if (t->eval_interval > 0 && !(weights[1] > 0))
        return WEFT_ERROR(WEFT_CONFIG, "data.split: evaluation needs a validation share, not %s",
                          c->data.split);
    return WEFT_OK;
}

static weft_status resolve(weft_config *c, const weft_config_source *source, weft_arena *arena)
{
    if (source->mesh)
        WEFT_TRY(weft_mesh_apply_alias(source->mesh, arena, &c->parallel));
    if (source->run)
        WEFT_TRY(weft_run_keep(source->run, c));
    weft_train_options *t = &c->train;
    if (t->lr_decay_iters == 0)
        t->lr_decay_iters = t->train_iters;
    if (t->lr_wsd_decay_iters == 0)
        t->lr_wsd_decay_iters = t->lr_decay_iters / 5;
    WEFT_TRY(weft_model_options_resolve(&c->model));
    return check_train(c);
}

static weft_status source_text(const weft_config_source *source, weft_arena *arena,
                               const char **out)
{
    char *read;
    size_t bytes;
    *out = source->text;
    if (!source->text && source->file) {
        WEFT_TRY(weft_read_file(source->file, arena, &read, &bytes));
        *out = read;
    }
    return WEFT_OK;
}

weft_status weft_config_locate(const weft_config_source *source, weft_status status)
{
    weft_arena arena = {0};
    weft_error error;
    const char *text = NULL;
    if (status != WEFT_CONFIG)
        return status;
    weft_error_take(&error);
    if (source_text(source, &arena, &text) != WEFT_OK)
        text = NULL;
    weft_error_put(&error);
    put_place(source, text, status);
    weft_arena_release(&arena);
    return status;
}

weft_status weft_config_load(const weft_config_source *source, weft_arena *arena, weft_config *out)
{
    weft_config config = {.application = source->application};
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    const char *text;
    weft_status read = source_text(source, arena, &text);
    if (read != WEFT_OK) /* a config that cannot be read is a usage error */
        return WEFT_ERROR(WEFT_CONFIG, "%s", weft_error_get()->text);
    if (config.application && config.application->section)
        WEFT_TRY(weft_arena_alloc(arena, config.application->options_bytes, &config.own));
    size_t num_sections = weft_config_sections(&config, sections);
    WEFT_TRY(weft_options_parse(sections, num_sections, source->file, text, source->set,
                                source->num_set, arena));
    WEFT_TRY(weft_config_locate(source, resolve(&config, source, arena)));
    *out = config;
    return WEFT_OK;
}

int weft_config_world(const weft_config *config)
{
    return weft_mesh_world(&config->parallel);
}

/* The rules of the mesh name their keys without the section. */
static weft_status name_section(weft_status status)
{
    const char *text = weft_error_get()->text;
    size_t bytes = strcspn(text, " :");
    for (size_t i = 0; status == WEFT_CONFIG && i < weft_num_parallel_rows; i++) {
        const char *key = weft_parallel_rows[i].key;
        if (strlen(key) == bytes && strncmp(key, text, bytes) == 0)
            return WEFT_ERROR(WEFT_CONFIG, "parallel.%s", text);
    }
    return status;
}

/* What the device cannot do, whichever one it will be. */
static weft_status check_device(const weft_config *c)
{
    if (c->device.kind == WEFT_DEVICE_KIND_CPU && c->device.comm == WEFT_COMM_BY_NCCL)
        return WEFT_ERROR(WEFT_CONFIG,
                          "device.comm: nccl moves data between GPUs, and device.kind is cpu; auto "
                          "or mpi would");
    if (c->device.kind == WEFT_DEVICE_KIND_CUDA && c->model.kv_channels > WEFT_CUDA_MAX_HEAD_DIM)
        return WEFT_ERROR(
            WEFT_CONFIG,
            "model.kv_channels: a head dimension of %lld; GPUs compute attention up to "
            "%d",
            (long long)c->model.kv_channels, WEFT_CUDA_MAX_HEAD_DIM);
    return WEFT_OK;
}

/* What has to fit the mesh besides its own rules. */
typedef struct fitting {
    const weft_config *config;
    const weft_topology *topology; /* NULL: not known yet */
} fitting;

static weft_status check_fitting(const void *context, const weft_mesh *mesh)
{
    const fitting *f = context;
    const weft_config *c = f->config;
    WEFT_TRY(
        weft_model_check_mesh(&c->model, mesh, c->model.num_layers, c->train.micro_batch_size));
    WEFT_TRY(weft_model_check_moe(&c->model, &c->parallel, mesh));
    if (!f->topology)
        return WEFT_OK;
    return weft_topology_check(f->topology, mesh, c->parallel.allow_tp_across_nodes);
}

static weft_status check_world(const weft_config *c, int world, const weft_topology *topology,
                               weft_mesh *out)
{
    fitting f = {c, topology};
    weft_mesh_request request = {.options = &c->parallel,
                                 .world = world,
                                 .num_experts = c->model.num_experts,
                                 .check = check_fitting,
                                 .context = &f};
    WEFT_TRY(name_section(weft_mesh_build_for(&request, out)));
    WEFT_TRY(check_batch(c, out->dp));
    WEFT_TRY(check_device(c));
    /* Whether it can be chosen, before any rank starts; what is chosen depends on the nodes. */
    weft_moe_selection moe;
    return weft_moe_selection_start(c, out, topology, &moe);
}

weft_status weft_config_mesh(const weft_config *config, const weft_config_source *source, int world,
                             weft_mesh *out)
{
    return weft_config_locate(source, check_world(config, world, NULL, out));
}

weft_status weft_config_mesh_on(const weft_config *config, const weft_config_source *source,
                                const weft_topology *topology, weft_mesh *out)
{
    return weft_config_locate(source, check_world(config, topology->world, topology, out));
}

weft_status weft_config_text(const weft_config *config, weft_arena *arena, const char **out)
{
    weft_config copy = *config;
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    size_t num_sections = weft_config_sections(&copy, sections);
    char *text = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the config's text");
    weft_status status = weft_options_write(sections, num_sections, stream);
    fclose(stream);
    if (status == WEFT_OK)
        status = weft_arena_strdup(arena, text, out);
    free(text);
    return status;
}

weft_dtype weft_config_dtype(const weft_config *config)
{
    static const weft_dtype dtypes[] = {[WEFT_PRECISION_FP32] = WEFT_F32,
                                        [WEFT_PRECISION_BF16] = WEFT_BF16,
                                        [WEFT_PRECISION_FP16] = WEFT_F16};
    return dtypes[config->train.precision];
}
