/* The rows of the config's sections, and functions that read them. */
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/key_rows.h"
#include "launcher/planning/config.h"
#include "launcher/planning/families.h"
#include "layers/model/model.h"

#define NO_SAVE "checkpoint.no_save is true"
#define REWIND                                                                                     \
    "needs checkpoints to go back to: checkpoint.save_interval, and no checkpoint.no_save (is "    \
    "rewind and "
#define ABOVE_1 .refused = "is out of range: 0, or above 1 (is not 0 and is at most 1)"

#define T weft_reliability_options
#define LIMIT(field, value, ...) RANGE(FREE, field, value, 1, 1e6, "s", __VA_ARGS__)

static const weft_key reliability_rows[] = {
    FLAG(FREE, watchdog, "true",
         "end a job whose ranks make no more progress, and say which rank is missing"),
    LIMIT(setup_limit_s, "1800", "the least limit of starting, up to the first step"),
    LIMIT(load_limit_s, "1800", "the same of loading a checkpoint"),
    LIMIT(first_step_limit_s, "1800", "the same of a start's first step and first evaluation"),
    LIMIT(step_limit_s, "300", "the same of a step, or of a batch of an evaluation"),
    LIMIT(exchange_limit_s, "60", "the same of one exchange of ranks within a step"),
    LIMIT(save_limit_s, "1800", "the same of a save, and of the end"),
    REAL(FREE, limit_factor, "5", 1, 1e6,
         "a limit is also so many times the longest that the same took lately"),
    RANGE(FREE, max_restarts, "0", 0, 1e6, "starts",
          "after a fault, start the ranks again from the newest checkpoint, so often at most"),
    ROW(FREE, "restart_delay_s", restart_delay_s, DOUBLE, "1", 0, 600, "s",
        "wait so long before, and twice as long where a start came no further than before"),
    CHOICE(
        FREE, on_bad_step, "\"stop\"", "stop|skip|rewind",
        "a loss or gradient not finite, or a spike: stop, skip its batch, or go back and pass it",
        .refused = REWIND NO_SAVE "); " REWIND "checkpoint.save_interval is 0)"),
    INT(FREE, max_bad_steps, "10", 1, "steps", "with skip and rewind: as many as a run may have"),
    REAL(FREE, loss_spike_factor, "0", 0, 1e6,
         "a loss above so many times its running mean makes a bad step; 0: none does, else above 1",
         ABOVE_1),
    REAL(FREE, straggler_factor, "1.5", 0, 1e6,
         "name a rank, or a node's link, that takes so many times as long as others; 0: none, else "
         "above 1",
         ABOVE_1),
    INT(FREE, straggler_steps, "50", 1, "steps", "for so many steps without a break"),
    INT(FREE, replica_check_interval, "0", 0, "steps",
        "compare hashes of what ranks hold alike so often; 0: never"),
    CHOICE(FREE, on_replica_difference, "\"stop\"", "stop|majority",
           "stop, or take the bits of more than half of the replicas",
           .idle = "reliability.replica_check_interval is 0"),
    INT(FREE, state_check_interval, "0", 0, "steps",
        "compare hashes of a rank's weights and moments between steps so often; 0: never",
        .idle = "offload.optimizer_state is host"),
};
#undef T

double weft_reliability_default_factor(void)
{
    const size_t count = sizeof reliability_rows / sizeof *reliability_rows;
    return strtod(weft_key_find(reliability_rows, count, "straggler_factor")->initial, NULL);
}

#define RECOMPUTE(granularity) "train.recompute_granularity is " granularity
#define NOT_FP16 "train.precision is not fp16"
#define NOT_MUON "train.optimizer is adam"
#define GPU "device.kind is cuda"

#define T weft_train_options
static const weft_key train_rows[] = {
    RANGE(STEP, micro_batch_size, "1", 1, 1e5, "samples", "samples a rank takes at once",
          SEARCHED(MICRO_BATCH)),
    RANGE(STEP, global_batch_size, "8", 1, 1e7, "samples", "samples a step, over all ranks"),
    ROW(STEP, "rampup_batch_size", rampup_batch_size, INT_LIST, "[]", 1, 1e11, NULL,
        "[start, increment, samples]: the batch grows by steps, until so many samples are done",
        .refused = "does not go with parallel.pipeline_schedule_file, whose order is one of "
                   "global_batch_size alone (is not [] and "
                   "parallel.pipeline_schedule_file is given)"),
    FLAG(STEP, calculate_per_token_loss, "false",
         "with masked labels: the mean over a global batch's others, not over each micro-batch's",
         .idle = "data.eod_mask_loss, label_mask are false"),
    INT(FREE, train_iters, "100", 0, "steps", "optimizer steps"),
    REAL(FREE, lr, "3e-4", 0, 1e3, "peak learning rate"),
    REAL(FREE, min_lr, "0", 0, 1e3, "learning rate at the end of the decay"),
    CHOICE(FREE, lr_decay_style, "\"cosine\"", "constant|linear|cosine|WSD",
           "learning-rate schedule"),
    INT(FREE, lr_warmup_iters, "0", 0, "steps", "linear warm-up"),
    INT(FREE, lr_decay_iters, "0", 0, "steps",
        "steps until min_lr; 0: train_iters of the run's start"),
    INT(FREE, lr_wsd_decay_iters, "0", 0, "steps",
        "length of WSD's decay; 0: a fifth of lr_decay_iters"),
    CHOICE(STATE, optimizer, "\"adam\"", "adam|muon",
           "adam: AdamW; muon: Muon for linear layers' matrices, AdamW for the rest"),
    REAL(FREE, weight_decay, "0.1", 0, 10, "weight decay (matrices only)"),
    REAL(FREE, adam_beta1, "0.9", 0, 0.99999994, "AdamW's first moment"),
    REAL(FREE, adam_beta2, "0.95", 0, 0.99999994, "AdamW's second moment"),
    REAL(FREE, adam_eps, "1e-8", 1e-30, 1, "AdamW's epsilon"),
    REAL(FREE, muon_momentum, "0.95", 0, 0.99999994, "Muon's momentum", .idle = NOT_MUON),
    FLAG(FREE, muon_use_nesterov, "true", "Muon steps by Nesterov's momentum", .idle = NOT_MUON),
    RANGE(STEP, muon_num_ns_steps, "5", 1, 100, "steps",
          "of Newton and Schulz that make a matrix orthogonal", .idle = NOT_MUON),
    CHOICE(FREE, muon_scale_mode, "\"spectral\"", "spectral|unit_rms_norm|shape_scaling",
           "an [out, in] step's factor: root of max(out, in), of out / in, of max(1, out / in)",
           .idle = NOT_MUON),
    REAL(FREE, muon_extra_scale_factor, "1", 1e-9, 1e9,
         "Muon's second factor; with spectral 0.2 makes steps as large as AdamW's",
         .idle = NOT_MUON),
    REAL(ABOVE_0, clip_grad, "1.0", 0, 1e9, "limit of the global gradient norm; 0: none"),
    RANGE(RUN, seed, "1234", 0, 1e15, NULL, "seed of weights, sample order and dropout"),
    CHOICE(STEP, precision, "\"fp32\"", "fp32|bf16|fp16",
           "activations and weights; fp32 master weights beside those of 16 bits"),
    FLAG(STEP, split_master, "true",
         "bf16: a master is its weight and 16 low bits, the same bits in 2 bytes less",
         .idle = "train.precision is not bf16"),
    REAL(FREE, initial_loss_scale, "4294967296", 1e-9, 1e30,
         "fp16: what the loss is multiplied by at first", .idle = NOT_FP16),
    REAL(FREE, min_loss_scale, "1", 1e-9, 1e30, "fp16: the lowest loss scale", .idle = NOT_FP16),
    INT(FREE, loss_scale_window, "1000", 1, "steps",
        "fp16: good steps in a row until the loss scale is doubled", .idle = NOT_FP16),
    INT(FREE, hysteresis, "2", 1, "steps",
        "fp16: steps whose gradients overflow until the loss scale is halved", .idle = NOT_FP16),
    INT(FREE, eval_interval, "0", 0, "steps",
        "steps between evaluations, the last behind the last step; 0: none"),
    INT(FREE, eval_iters, "4", 0, "batches", "global batches an evaluation; 0: no evaluation"),
    RANGE(FREE, stop_timeout_s, "300", 0, 1e6, "s",
          "a run that was asked to stop and has not ended by then is killed; 0: it is waited for"),
    INT(STEP, loss_chunk_tokens, "0", 0, "tokens",
        "of a micro-batch whose logits a rank has at once; 0: 256, on a GPU 8192"),
    ROW(STEP, "parameter_rules", parameter_rules, STRINGS, "[]", 0, 0, NULL,
        "\"PATTERN WORDS\" by names of parameters: frozen, frozen=false, lr_mult=X, wd_mult=X; the "
        "last counts"),
    ROW(STEP, "recompute_granularity", recompute.granularity, CHOICE, "\"none\"", 0, 0, NULL,
        "what backward makes again instead of keeping it: whole layers, or modules of layers",
        .choices = "none|full|selective", SEARCHED(RECOMPUTE)),
    ROW(STEP, "recompute_method", recompute.method, CHOICE, "\"uniform\"", 0, 0, NULL,
        "full: all layers in groups, or the first ones of each virtual stage one by one",
        .choices = "uniform|block", .idle = RECOMPUTE("none") "; " RECOMPUTE("selective"),
        SEARCHED(RECOMPUTE)),
    ROW(STEP, "recompute_num_layers", recompute.num_layers, INT, "1", 1, 65533, "layers",
        "full: in a group, or how many of a virtual stage",
        .idle = RECOMPUTE("none") "; " RECOMPUTE("selective"), SEARCHED(RECOMPUTE)),
    ROW(STEP, "recompute_modules", recompute.modules, STRINGS, "[\"core_attn\"]", 0, 0, NULL,
        "selective: core_attn, mla_up_proj, mlp, moe, shared_experts; layernorm and moe_act "
        "always are",
        .idle = RECOMPUTE("none") "; " RECOMPUTE("full"), SEARCHED(RECOMPUTE)),
    ROW(STEP, "fine_grained_activation_offloading", offload.on, BOOL, "false", 0, 0, NULL,
        "keep activations in pinned host memory between forward and backward", SEARCHED(OFFLOAD)),
    ROW(STEP, "offload_modules", offload.modules, STRINGS, "[\"core_attn\"]", 0, 0, NULL,
        "what is in host memory: core_attn, mlp, moe; block: all that its layers keep",
        .idle = "train.fine_grained_activation_offloading is false", SEARCHED(OFFLOAD)),
};
#undef T
#define T weft_data_options
static const weft_key data_rows[] = {
    TEXT(FREE, data_path, NULL, "prefix of the dataset's .bin and .idx"),
    ROW(FREE, "blend", blend, STRINGS, "[]", 0, 0, NULL,
        "in its place several datasets, by weight: [0.7, \"wiki\", 0.3, \"books\"]",
        .idle = "data.mock_data is true"),
    TEXT(RUN, split, "\"969,30,1\"", "weights of train, valid and test"),
    ROW(FREE, "validation", validation, STRINGS, "[]", 0, 0, NULL,
        "datasets to evaluate on, each with its own loss, not on data.split's second part"),
    FLAG(RUN, mock_data, "false", "random tokens, for speed runs (needs model.vocab_size)"),
    RANGE(RUN, shuffle_block_tokens, "0", 0, 1e15, "tokens",
          "stay together in the order of samples, a multiple of seq_length; 0: seq_length"),
    FLAG(TASK, reset_position_ids, "false", "positions start anew in each document"),
    FLAG(TASK, reset_attention_mask, "false", "attention stays inside a document"),
    FLAG(TASK, eod_mask_loss, "false", "the token that ends a document bears no loss"),
    INT(RUN, eod_token, "-1", -1, NULL, "that ends a document; -1: as the dataset's .json says",
        .idle = "data.reset_position_ids, reset_attention_mask, eod_mask_loss are false"),
    FLAG(TASK, label_mask, "true",
         "tokens that a dataset's .mask marks bear a loss, others none; false: all do"),
    TEXT(RUN, data_xxh64, NULL,
         "hash of tokens and tokenizer: filled at the start, compared by --resume"),
};
#undef T
#define COPIES "needs checkpoint.async_save (is not 0 and "
#define T weft_checkpoint_options
static const weft_key checkpoint_rows[] = {
    TEXT(FREE, load, NULL, "checkpoint to start from, of any mesh; in a file, as seen from there",
         .refused = "names no checkpoint (is )"),
    INT(FREE, save_interval, "0", 0, "steps", "steps between checkpoints; 0: only at the end"),
    FLAG(FREE, no_save, "false", "write no checkpoint at all"),
    FLAG(FREE, async_save, "false", "training goes on while a process of its own writes a save",
         .idle = NO_SAVE),
    RANGE(FREE, staging_bytes, "0", 0, 1e15, "bytes",
          "host memory a rank for an asynchronous save, at most; 0: what it takes",
          .idle = "checkpoint.async_save is false"),
    CHOICE(FREE, async_when_busy, "\"wait\"", "wait|skip",
           "what an asynchronous save does while the one before is still under way",
           .idle = "checkpoint.async_save is false"),
    INT(FREE, peer_copies, "0", 0, "copies",
        "of each rank's state in other nodes' memory, so that a lost node resumes from it",
        .refused = COPIES "checkpoint.async_save is false); " COPIES NO_SAVE ")"),
    INT(FREE, peer_interval, "10", 1, "steps", "steps between such copies",
        .idle = "checkpoint.peer_copies is 0"),
    TEXT(FREE, peer_path, "\"/dev/shm\"", "folder in each node's own memory, for such copies",
         .idle = "checkpoint.peer_copies is 0"),
    INT(FREE, keep_latest_k, "-1", -1, "checkpoints",
        "that stay when a new one stands, that one among them; -1: all", .idle = NO_SAVE,
        .refused = "would keep no checkpoint: 1 keeps the newest, -1 all (is 0)"),
    INT(FREE, save_retain_interval, "0", 0, "steps",
        "checkpoints of its multiples stay beside the latest ones; 0: none",
        .idle = NO_SAVE "; checkpoint.keep_latest_k is -1"),
    INT(FREE, fallback, "1", 0, "checkpoints",
        "damaged ones that --resume passes over at most, to go on from the one before"),
};
#undef T
#define RATE(most) .refused = "is out of range: 0, or 1e+06 to " most " (is not 0 and is below 1e6)"
#define T weft_device_options
static const weft_key device_rows[] = {
    CHOICE(STEP, kind, "\"cpu\"", "cpu|cuda",
           "what computes: the cores of this machine, or its NVIDIA GPUs, one a rank in turn"),
    CHOICE(STEP, comm, "\"auto\"", "auto|mpi|nccl",
           "what moves data between GPUs; auto: NCCL where every rank has its own, else MPI"),
    FLAG(STEP, cuda_graphs, "true",
         "forward and backward as CUDA graphs: dense layers without dropout, tp and cp 1",
         .idle = "device.kind is cpu"),
    RANGE(FREE, memory_limit, "0", 0, 1e15, "bytes", "device memory a rank may use; 0: no limit"),
    INT(FREE, num_threads, "0", 0, "threads",
        "threads a rank computes with on the cpu; 0: its share of the cores"),
    FLAG(FREE, bind_numa, "false",
         "bind ranks to the NUMA nodes of their GPUs, or on the cpu to their parts of the "
         "machine's"),
    ROW(FREE, "peak_flops", peak_flops, DOUBLE, "0", 0, 1e18, "FLOP/s",
        "peak of a rank, 1e6 or more, for MFU; 0: measured", RATE("1e+18 FLOP/s")),
    ROW(STEP, "pace", pace, DOUBLE, "0", 0, 1e18, "FLOP/s",
        "cpu: of an emulated accelerator, 1e6 or more; 0: none", RATE("1e+18 FLOP/s"),
        .idle = GPU
        "; model.num_experts is 0 (model.num_experts is 0 and device.pace_work is experts)"),
    CHOICE(STEP, pace_work, "\"experts\"", "experts|all",
           "what has it; experts: those of MoE layers, computing nothing; all: kernels with FLOPs",
           .idle = GPU "; device.pace is 0"),
    ROW(STEP, "pace_link", pace_link, DOUBLE, "0", 0, 1e14, "bytes/s",
        "cpu: each way, between an emulated accelerator and host memory, 1e6 or more; 0: no pace",
        RATE("1e+14 bytes/s"), .idle = GPU),
    ROW(STEP, "pace_file", pace_file, DOUBLE, "0", 0, 1e14, "bytes/s",
        "cpu: of a rank's experts' file, reads and writes in turn, 1e6 or more; 0: no pace",
        RATE("1e+14 bytes/s"), .idle = NO_FILE "; " GPU),
};
#undef T
#define T weft_log_options
static const weft_key log_rows[] = {
    CHOICE(FREE, level, "\"info\"", "error|warn|info|debug|trace", "what is logged"),
    INT(FREE, log_interval, "10", 1, "steps", "steps between plain progress lines"),
    INT(FREE, moe_load_interval, "0", 0, "steps",
        "steps between lines of metrics.jsonl with each expert's tokens; 0: none",
        .idle = NO_EXPERTS),
    INT(FREE, trace_step, "3", 0, NULL, "step whose timeline is kept in trace.json; 0: none"),
    ROW(FREE, "trace_ranks", trace_ranks, INT_LIST, "[]", 0, 1e9, NULL,
        "ranks whose timeline is kept; []: all", .idle = "log.trace_step is 0"),
    FLAG(FREE, check_collectives, "false", "compare all ranks' calls before each collective"),
    TEXT(FREE, tensorboard_dir, NULL, "folder for TensorBoard's event files, one a start"),
    TEXT(FREE, prometheus_file, NULL,
         "NAME.prom in node_exporter's textfile folder: the last numbers, each log_interval"),
};
#undef T

#define COUNT(rows) (sizeof(rows) / sizeof *(rows))
enum { MAX_PARALLEL_ROWS = 64 };

/* One section of two owners' tables, with offsets into the config. */
static size_t join(weft_key out[MAX_PARALLEL_ROWS])
{
    size_t count = 0;
    assert(weft_num_parallel_rows + weft_num_schedule_rows <= MAX_PARALLEL_ROWS);
    for (size_t i = 0; i < weft_num_parallel_rows; i++, count++) {
        out[count] = weft_parallel_rows[i];
        out[count].offset += offsetof(weft_config, parallel);
    }
    for (size_t i = 0; i < weft_num_schedule_rows; i++, count++) {
        out[count] = weft_schedule_rows[i];
        out[count].offset += offsetof(weft_config, schedule);
    }
    return count;
}

/* What an application's rows say; other columns are not theirs. */
static size_t adopt(const weft_application *own, weft_key out[WEFT_MAX_OWN_ROWS])
{
    _Static_assert(offsetof(weft_key, resume) == sizeof(weft_option_row), "they begin alike");
    memset(out, 0, own->num_rows * sizeof *out);
    for (size_t i = 0; i < own->num_rows; i++)
        memcpy(&out[i], &own->rows[i], sizeof own->rows[i]);
    return own->num_rows;
}

size_t weft_config_sections(weft_config *config, weft_option_section out[WEFT_MAX_CONFIG_SECTIONS])
{
    const weft_application *own = config->application;
    static weft_key parallel_rows[MAX_PARALLEL_ROWS], own_rows[WEFT_MAX_OWN_ROWS];
    const weft_option_section sections[9] = {
        {"model", weft_model_rows, weft_num_model_rows, &config->model, "the network"},
        {"parallel", parallel_rows, join(parallel_rows), config,
         "the mesh, and what runs on it when"},
        {"train", train_rows, COUNT(train_rows), &config->train, "batches, optimizer, schedule"},
        {"data", data_rows, COUNT(data_rows), &config->data, "where tokens come from"},
        {"checkpoint", checkpoint_rows, COUNT(checkpoint_rows), &config->checkpoint,
         "saving and loading"},
        {"device", device_rows, COUNT(device_rows), &config->device, "what computes"},
        {"offload", weft_tier_rows, weft_num_tier_rows, &config->tier,
         "experts beyond device memory"},
        {"reliability", reliability_rows, COUNT(reliability_rows), &config->reliability,
         "what a run does about faults"},
        {"log", log_rows, COUNT(log_rows), &config->log, "what is written while it runs"},
    };
    _Static_assert(COUNT(sections) < WEFT_MAX_CONFIG_SECTIONS, "and one of the application's");
    memcpy(out, sections, sizeof sections);
    if (!own || !own->section)
        return COUNT(sections);
    out[COUNT(sections)] = (weft_option_section){own->section, own_rows, adopt(own, own_rows),
                                                 config->own, own->section_help};
    return COUNT(sections) + 1;
}

bool weft_config_saves_at(const weft_config *config, int64_t step, bool stops)
{
    const weft_checkpoint_options *c = &config->checkpoint;
    const bool ends = stops || step >= config->train.train_iters;
    return !c->no_save && (ends || (c->save_interval > 0 && step % c->save_interval == 0));
}

bool weft_config_reads_file(const weft_config *config)
{
    return !config->data.mock_data && (config->data.data_path || config->data.blend.count > 0);
}

bool weft_config_has_own_data(const weft_config *config)
{
    return config->application && config->application->sample && !config->data.mock_data &&
           !weft_config_reads_file(config);
}

bool weft_config_tells_losses(const weft_config *config)
{
    return !config->data.mock_data && config->data.blend.count > 2;
}

bool weft_config_has_documents(const weft_config *config)
{
    const weft_data_options *data = &config->data;
    return data->reset_position_ids || data->reset_attention_mask || data->eod_mask_loss;
}

bool weft_config_weighs_labels(const weft_config *config)
{
    return config->data.eod_mask_loss || config->data.has_label_mask;
}

static const weft_family *family_of(const weft_config *config, bool *out_own)
{
    const char *name = config->model.family;
    return name ? weft_family_named(config->application, name, out_own) : NULL;
}

weft_model_function weft_config_build(const weft_config *config)
{
    bool is_own = false;
    if (config->application && config->application->build)
        return config->application->build;
    const weft_family *family = family_of(config, &is_own);
    return family ? family->build : NULL;
}

bool weft_config_has_own_model(const weft_config *config)
{
    bool is_own = false;
    if (config->application && config->application->build)
        return true;
    const weft_family *family = family_of(config, &is_own);
    return is_own && family->build;
}

weft_status weft_config_split(const weft_config *config, double out[3])
{
    const char *text = config->data.split;
    const char *at = text;
    bool good = text != NULL;
    out[0] = out[1] = out[2] = 0; /* what is not given has no share */
    for (int i = 0; good && i < 3; i++) {
        int used = 0;
        good = sscanf(at, "%lf%n", &out[i], &used) == 1 && out[i] >= 0 && out[i] < 1e15;
        at += used;
        if (*at != ',')
            break;
        at++;
    }
    good = good && *at == '\0' && at[-1] != ',';
    if (!good)
        return WEFT_KEY_ERROR("data.split",
                              "\"%s\" is not one to three weights of 0 and more, such as 969,30,1",
                              text ? text : "");
    if (out[0] < 1e-9)
        return WEFT_KEY_ERROR("data.split",
                              "\"%s\" leaves no share to train on; the first of training, "
                              "validation and test must be above 0",
                              text);
    return WEFT_OK;
}

weft_status weft_config_text(const weft_config *config, weft_arena *arena, const char **out)
{
    weft_config copy = *config;
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    size_t num_sections = weft_config_sections(&copy, sections);
    weft_new_text text;
    WEFT_TRY(weft_new_text_open(&text));
    const weft_status status = weft_options_write(sections, num_sections, text.file);
    return weft_new_text_close(&text, status, arena, out);
}

bool weft_config_sends_directly(const weft_config *config)
{
    return config->device.kind == WEFT_DEVICE_KIND_CPU || config->device.comm == WEFT_COMM_BY_MPI;
}

weft_pace weft_config_pace(const weft_config *config)
{
    bool is_cpu = config->device.kind == WEFT_DEVICE_KIND_CPU;
    return (weft_pace){.flops = is_cpu ? config->device.pace : 0,
                       .work = (weft_pace_work)config->device.pace_work,
                       .link = is_cpu ? config->device.pace_link : 0,
                       .file = is_cpu ? config->device.pace_file : 0};
}

weft_dtype weft_config_dtype(const weft_config *config)
{
    static const weft_dtype dtypes[] = {[WEFT_PRECISION_FP32] = WEFT_F32,
                                        [WEFT_PRECISION_BF16] = WEFT_BF16,
                                        [WEFT_PRECISION_FP16] = WEFT_F16};
    return dtypes[config->train.precision];
}
