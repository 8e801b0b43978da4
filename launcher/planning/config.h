/* The whole config: one JSON file of nine sections and the application's own, and what the command
 * line puts over it.
 *
 * Sections belong to their owners (model, offload: layers/, parallel: parallel/ and schedule/);
 * train, data, checkpoint, device, reliability and log are the launcher's. weft_config_load refuses
 * all that it can know to be wrong before a rank starts: one line with file, line and column,
 * WEFT_CONFIG. */
#ifndef WEFT_LAUNCHER_PLANNING_CONFIG_H
#define WEFT_LAUNCHER_PLANNING_CONFIG_H

#include <stdint.h>
#include <stdio.h>

#include <weft/application.h>

#include "core/device/device.h"
#include "core/options/options.h"
#include "layers/pass/offload.h"
#include "layers/tier/tier.h"
#include "parallel/mesh/mesh.h"
#include "parallel/topology/topology.h"
#include "schedule/options.h"

/* What a run does about faults: section "reliability" of the config. docs/faults.md has the whole
 * picture. */
typedef enum weft_bad_step {
    WEFT_BAD_STEP_STOP,
    WEFT_BAD_STEP_SKIP,
    WEFT_BAD_STEP_REWIND
} weft_bad_step;

typedef enum weft_replica_difference {
    WEFT_REPLICA_STOP,
    WEFT_REPLICA_MAJORITY
} weft_replica_difference;

typedef struct weft_reliability_options { /* section "reliability" */
    bool watchdog;
    /* s; the least that a limit is. */
    int64_t setup_limit_s, load_limit_s, first_step_limit_s, step_limit_s, exchange_limit_s,
        save_limit_s;
    double limit_factor;  /* of the longest lately */
    int64_t max_restarts; /* of ranks that weft train started, after faults */
    double restart_delay_s;
    int on_bad_step; /* weft_bad_step */
    int64_t max_bad_steps;
    double loss_spike_factor;       /* of the running mean; 0: no loss is a spike */
    double straggler_factor;        /* of the others' median; 0: nobody looks */
    int64_t straggler_steps;        /* in a row */
    int64_t replica_check_interval; /* steps; 0: never */
    int on_replica_difference;      /* weft_replica_difference */
    int64_t state_check_interval;   /* steps; 0: never */
} weft_reliability_options;

typedef enum weft_precision {
    WEFT_PRECISION_FP32,
    WEFT_PRECISION_BF16,
    WEFT_PRECISION_FP16,
} weft_precision;

typedef enum weft_optimizer_kind { WEFT_OPTIMIZER_ADAM, WEFT_OPTIMIZER_MUON } weft_optimizer_kind;

typedef struct weft_train_options { /* section "train" */
    int64_t micro_batch_size, global_batch_size, train_iters;
    weft_int_list rampup_batch_size; /* launcher/planning/ramp.h */
    bool calculate_per_token_loss;   /* over the global batch's labels that bear a loss */
    double lr, min_lr;
    int lr_decay_style; /* weft_lr_decay_style */
    int64_t lr_warmup_iters;
    int64_t lr_decay_iters;     /* 0: train_iters */
    int64_t lr_wsd_decay_iters; /* 0: a fifth of lr_decay_iters */
    int optimizer;              /* weft_optimizer_kind */
    double weight_decay, adam_beta1, adam_beta2, adam_eps, clip_grad;
    double muon_momentum;
    bool muon_use_nesterov;
    int64_t muon_num_ns_steps;
    int muon_scale_mode; /* weft_muon_scale */
    double muon_extra_scale_factor;
    int64_t seed;
    int precision; /* weft_precision */
    bool split_master;
    double initial_loss_scale, min_loss_scale;
    int64_t loss_scale_window, hysteresis;
    int64_t eval_interval, eval_iters;
    int64_t stop_timeout_s;
    weft_string_list parameter_rules;
    int64_t loss_chunk_tokens; /* 0: weft_logit_rows */
    weft_recompute_options recompute;
    weft_offload_options offload;
} weft_train_options;

typedef struct weft_data_options { /* section "data" */
    const char *data_path;         /* prefix of .bin and .idx; NULL: none */
    weft_string_list blend;        /* in its place: a weight and a prefix in turn */
    const char *split;             /* "969,30,1" */
    weft_string_list validation;   /* prefixes of sets of their own */
    bool mock_data;
    int64_t shuffle_block_tokens; /* 0: seq_length */
    /* Packed documents, as Megatron means them: parallel/sequence.h. */
    bool reset_position_ids, reset_attention_mask, eod_mask_loss;
    int64_t eod_token;      /* that ends a document; -1: the dataset says, and it is filled in */
    bool label_mask;        /* labels bear a loss as the datasets' masks say */
    const char *data_xxh64; /* of tokens and tokenizer, filled where they are read; NULL: unknown */
    /* Not an option: a dataset has a mask. */
    bool has_label_mask;
} weft_data_options;

/* What a save does while another is under way. */
typedef enum weft_save_when_busy { WEFT_SAVE_WAIT, WEFT_SAVE_SKIP } weft_save_when_busy;

typedef struct weft_checkpoint_options { /* section "checkpoint" */
    const char *load;                    /* start from this checkpoint; NULL: afresh */
    int64_t save_interval;               /* 0: only at the end */
    bool no_save;
    bool async_save;
    int64_t staging_bytes;        /* of its memory at most; 0: what a save takes */
    int async_when_busy;          /* weft_save_when_busy */
    int64_t peer_copies;          /* of each rank's state in other nodes' memory; 0: none */
    int64_t peer_interval;        /* steps between them */
    const char *peer_path;        /* a folder in each node's memory */
    int64_t keep_latest_k;        /* checkpoints that stay; -1: all */
    int64_t save_retain_interval; /* and those of such steps; 0: none */
    int64_t fallback;             /* damaged checkpoints that a resumed run passes over at most */
} weft_checkpoint_options;

typedef enum weft_device_kind { WEFT_DEVICE_KIND_CPU, WEFT_DEVICE_KIND_CUDA } weft_device_kind;

typedef struct weft_device_options { /* section "device" */
    int kind;                        /* weft_device_kind */
    int comm;                        /* weft_comm_choice, between GPUs */
    bool cuda_graphs;                /* where layers are static */
    int64_t memory_limit;            /* bytes; 0: none */
    int64_t num_threads;             /* 0: this rank's share of the cores */
    bool bind_numa;                  /* to the NUMA node of its GPU, or its part of the machine's */
    double peak_flops;               /* a rank; 0: its pace where all work has one, else measured */
    double pace;                     /* FLOP/s of an emulated accelerator; 0: none */
    int pace_work;                   /* weft_pace_work */
    double pace_link;                /* bytes/s of its link to host memory, each way; 0: no pace */
    double pace_file;                /* bytes/s of a rank's experts' file; 0: no pace */
} weft_device_options;

typedef struct weft_log_options {                  /* section "log" */
    int level;                                     /* weft_log_level */
    int64_t log_interval;                          /* steps between plain progress lines */
    int64_t moe_load_interval;                     /* steps between choices of experts; 0: none */
    int64_t trace_step;                            /* step whose timeline is kept; 0: none */
    weft_int_list trace_ranks;                     /* whose timeline; empty: all */
    bool check_collectives;                        /* compare signatures before each collective */
    const char *tensorboard_dir, *prometheus_file; /* NULL: none */
} weft_log_options;

typedef struct weft_config {
    weft_model_options model;
    weft_parallel_options parallel; /* of section "parallel", as is: */
    weft_schedule_options schedule;
    weft_train_options train;
    weft_data_options data;
    weft_checkpoint_options checkpoint;
    weft_device_options device;
    weft_tier_options tier; /* section "offload" */
    weft_reliability_options reliability;
    weft_log_options log;
    const weft_application *application; /* the source's; borrowed */
    void *own; /* the application's section, application->options_bytes in the arena; NULL: none */
    /* Not options. moe_is_kept: the config leaves open how MoE layers run, and `schedule` has the
     * choice of the run that is resumed; asked: `schedule` as the config has it. */
    double
        moe_load; /* in plans: weft_moe_options.load.rows; 0: what moe_router_forced_load brings */
    double moe_expert_load; /* in plans: rows of the fullest expert over the mean; 0: nobody says */
    bool moe_load_asked;    /* by a line, of any mesh: at most the worst of each */
    const char *order_text; /* pipeline_schedule_file's; NULL: there is none, or it is unreadable */
    int plain_kernels;      /* in plans: weft_shape.plain_kernels */
    int software;           /* in plans: weft_software */
    int64_t dropped_ep;     /* of the file, which --mesh replaces by none; 0: nothing */
    size_t cached_tokens;   /* of weft generate: weft_shape.cached_tokens */
    bool moe_is_kept;
    weft_schedule_options asked;
    weft_tier_options tier_asked; /* `tier` as the config has it */
    bool context_is_kept;         /* likewise parallel.cp_comm_type, which the config leaves open */
    bool chunks_are_kept;         /* likewise parallel.tp_comm_overlap_chunks */
    const struct weft_cluster *planned_on; /* in plans: what schedule.cluster says, read already, by
                                              which choices are made; NULL: its file is read */
    const struct weft_cluster *planned_curves; /* likewise, with the curves that follow from it
                                                  (weft_cost_complete); NULL: nobody made them */
    struct weft_layer_prices *planned_prices;  /* likewise, of layers on it; NULL: none is kept */
    bool is_trial; /* likewise, one of many: what generators make of it is not checked */
} weft_config;

enum { WEFT_MAX_CONFIG_SECTIONS = 10, WEFT_MAX_OWN_ROWS = 256 };
/* The sections with their rows, targets inside `config`, whose application is set; how many. */
size_t weft_config_sections(weft_config *config, weft_option_section out[WEFT_MAX_CONFIG_SECTIONS]);
/* Where tokens come from: the file of data.data_path; the application's function; else mock data.
 */
bool weft_config_reads_file(const weft_config *config);
/* Whether a checkpoint is to be made behind a step, where the run ends as asked if `stops`. */
bool weft_config_saves_at(const weft_config *config, int64_t step, bool stops);
bool weft_config_has_own_data(const weft_config *config);
/* Whether the run evaluates at all. */
bool weft_config_evaluates(const weft_config *config);
/* Whether micro-batches tell each label's loss: those of several datasets. */
bool weft_config_tells_losses(const weft_config *config);
/* Whether it matters where documents end. */
bool weft_config_has_documents(const weft_config *config);
/* Whether micro-batches weigh labels: some bear no loss. */
bool weft_config_weighs_labels(const weft_config *config);
/* The model function of the config's application, or of its family; NULL: the model that the config
 * describes. */
weft_model_function weft_config_build(const weft_config *config);
/* Whether that function is a program's own, whose layers may be others than the config describes.
 */
bool weft_config_has_own_model(const weft_config *config);

typedef struct weft_config_source {
    const char *file;       /* path, for errors; the file to read when text is NULL */
    const char *text;       /* optional: the JSON itself (a checkpoint's config) */
    const char *const *set; /* --set key=value */
    size_t num_set;
    const char *const *options; /* as many: the option that stands for a key=value, such as
                                   "--data corpus", or NULL; all NULL where this is */
    const char *mesh;           /* --mesh, or NULL */
    bool no_data; /* nothing reads tokens: the config need not say where they come from */
    const weft_application *application; /* NULL: none */
    const weft_config *run;   /* of the run that is resumed, for weft_run_keep; NULL: none */
    const char *allow_change; /* --allow-change, or NULL */
    const char *run_path;     /* RUN, for what cannot be kept beside its data; NULL: none */
    bool keeps_nothing;       /* what reading the data tells is not written down */
    bool forward_only;        /* no backward runs: the config's schedule of training is left out */
} weft_config_source;

/* Parses, resolves defaults and checks everything that needs no data and no ranks. Strings live in
 * the arena. */
weft_status weft_config_load(const weft_config_source *source, weft_arena *arena,
                             weft_config *out) WEFT_CHECKED;
/* WEFT_CONFIG where something is wrong with the config. */
typedef weft_status (*weft_config_function)(const weft_config *config, const void *context);
/* What the check finds, as weft_config_locate; where one --set alone makes a key of the file wrong,
 * that stands there, too. */
weft_status weft_config_check(const weft_config *config, const weft_config_source *source,
                              weft_config_function check, const void *context) WEFT_CHECKED;
/* Fills model.vocab_size from the dataset. */
typedef weft_status (*weft_vocabulary_function)(weft_config *config);
/* Copies the application as far as this library knows its fields, and checks it. Errors:
 * WEFT_CONFIG: a wrong size, a section of Weft's own, a row that points outside the options. */
weft_status weft_application_take(const weft_application *given,
                                  weft_application *out) WEFT_CHECKED;
/* Whether --set has the key ("section.key"), with its section or without. */
bool weft_config_is_set(const weft_config_source *source, const char *key);
/* Whether --mesh has the axis, such as "zero", which stands for two keys. */
bool weft_config_mesh_names(const weft_config_source *source, const char *alias);
/* data.split as weights of train, valid and test; train's is above 0. */
weft_status weft_config_split(const weft_config *config, double out[3]) WEFT_CHECKED;
/* Where the error record is WEFT_CONFIG and has a key (train.lr): puts the place that gave the key
 * before its text (FILE:line:column, --set or --mesh), and takes the key out. Returns `status`. */
weft_status weft_config_locate(const weft_config_source *source, weft_status status) WEFT_CHECKED;
/* What of the parallel options follows from the schedule: a V has two chunks a rank unless a key
 * says otherwise. */
void weft_config_settle_stages(weft_config *config);
/* Builds the mesh of `world` ranks (0: as many as the config asks for) and checks all that depends
 * on config and mesh alone. Errors point into the file. */
weft_status weft_config_mesh(const weft_config *config, const weft_config_source *source, int world,
                             weft_mesh *out) WEFT_CHECKED;
/* The same of a topology's ranks, whose nodes are known. */
weft_status weft_config_mesh_on(const weft_config *config, const weft_config_source *source,
                                const weft_topology *topology, weft_mesh *out) WEFT_CHECKED;
/* The resolved config as JSON text, in the arena. */
weft_status weft_config_text(const weft_config *config, weft_arena *arena,
                             const char **out) WEFT_CHECKED;
weft_dtype weft_config_dtype(const weft_config *config);
/* The pace of the emulated accelerator; none on a GPU. */
weft_pace weft_config_pace(const weft_config *config);
/* As of weft_group's direct: no GPU's own library carries what ranks send. */
bool weft_config_sends_directly(const weft_config *config);

/* Warns of keys that are not at their defaults and have no effect: the experts' keys of a model
 * without experts, which are not refused, so that num_experts=0 makes any config dense; a pace
 * where no work has one; and the like. */
weft_status weft_config_tell_no_effect(const weft_config *config) WEFT_CHECKED;

/* Of straggler_factor. */
double weft_reliability_default_factor(void);

#endif
