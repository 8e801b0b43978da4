#include "launcher/training/dry_run.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "launcher/planning/mesh_choice.h"
#include "launcher/planning/ramp.h"
#include "launcher/planning/step.h"
#include "launcher/planning/tier_choice.h"
#include "launcher/process/output.h"
#include "launcher/report/report.h"
#include "launcher/training/setup.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/spill/spill.h"
#include "parallel/topology/topology.h"

/* What is found out about the run. */
typedef struct findings {
    const weft_training *asked;
    const weft_run_start *start;
    const char *changes;
    weft_config config; /* with all that the data says */
    weft_mesh mesh;
    int num_here; /* of its ranks, in this process' place */
    weft_data data;
    uint64_t *taken;          /* [num_parts]: samples of each dataset in all steps */
    const char *from;         /* the checkpoint that is loaded; NULL: none */
    weft_footprint footprint; /* of the fullest rank */
    int fullest;              /* its stage */
} findings;

/* One in the run's folder is made with it. */
static weft_status check_events(const char *path, const char *run)
{
    size_t bytes = strlen(run);
    while (bytes > 1 && run[bytes - 1] == '/')
        bytes--;
    const bool is_inside = strncmp(path, run, bytes) == 0 && path[bytes] == '/';
    if (is_inside && access(run, F_OK) != 0 && !strchr(path + bytes + 1, '/'))
        return WEFT_OK;
    return weft_output_try_folder(path);
}

static weft_status check_load(findings *f, weft_arena *arena)
{
    weft_checkpoint_info info;
    const char *load = f->config.checkpoint.load;
    f->from = f->start->checkpoint;
    if (f->from || !load)
        return WEFT_OK;
    WEFT_TRY(weft_checkpoint_resolve(load, arena, &f->from));
    WEFT_TRY(weft_checkpoint_check_format(f->from));
    return weft_checkpoint_read_info(f->from, &info);
}

/* Each stage's; the fullest stays. */
static weft_status measure_stages(findings *f, const weft_step *step)
{
    weft_footprint footprint;
    for (int stage = 0; stage < f->mesh.pp; stage++) {
        weft_step_footprint(&f->config, step, stage, &step->programs[stage], &footprint);
        if (stage > 0 && footprint.device_bytes <= f->footprint.device_bytes)
            continue;
        f->footprint = footprint;
        f->fullest = stage;
    }
    return WEFT_OK;
}

/* What one of the ranks finds here; a launcher's own have their share already. */
static weft_tier_room find_room(const findings *f)
{
    weft_tier_room room = weft_setup_room(&f->config);
    if (f->config.tier.host_memory_limit == 0)
        room.host_bytes /= (uint64_t)f->num_here;
    if (room.sharers > 0) {
        room.file_bytes /= (uint64_t)f->num_here;
        room.sharers *= f->num_here;
    }
    return room;
}

/* As the trainer: how MoE layers run, where experts are, what that takes, and whether it fits. */
static weft_status check_memory(findings *f, weft_arena *arena)
{
    weft_config *c = &f->config;
    weft_moe_selection moe;
    weft_mesh_choice choice;
    weft_tier_selection tier;
    weft_step step = {0};
    WEFT_TRY(weft_mesh_choose(c, NULL, &f->mesh, &choice));
    WEFT_TRY(weft_moe_selection_start(c, &f->mesh, &choice.nodes, &moe));
    const weft_tier_room room = find_room(f);
    if (weft_tier_pins(c)) {
        WEFT_TRY(weft_tier_require(WEFT_STEP_TRAINS, c, &f->mesh, &moe.options, &room, &tier));
        c->tier = tier.options;
    }
    weft_status status = weft_step_make(WEFT_STEP_TRAINS, c, &f->mesh, &moe.options, arena, &step);
    if (status == WEFT_OK)
        status = weft_tier_check_room(c, &f->mesh, &step, &room);
    if (status == WEFT_OK)
        status = measure_stages(f, &step);
    if (status == WEFT_OK && c->model.num_experts > 0 && c->tier.experts == WEFT_TIER_FILE)
        status = weft_error_context(weft_spill_try(c->tier.path), "offload.path");
    weft_step_release(&step);
    return status;
}

static weft_status count_samples(findings *f, weft_arena *arena)
{
    const weft_train_options *train = &f->config.train;
    const uint64_t all = (uint64_t)weft_ramp_samples(train, train->train_iters);
    WEFT_TRY(WEFT_ARRAY(arena, f->data.num_parts, &f->taken));
    f->taken[0] = all;
    if (f->data.num_parts > 1)
        weft_split_count(&f->data.splits[WEFT_SPLIT_TRAIN], all, f->taken);
    return WEFT_OK;
}

static weft_status check(findings *f, int world, weft_arena *arena)
{
    const weft_config_source *source = &f->asked->source;
    WEFT_TRY(weft_config_mesh(&f->config, source, world, &f->mesh));
    f->num_here = world == 0 ? f->mesh.world : 1;
    WEFT_TRY(weft_run_check_free(&f->asked->run));
    WEFT_TRY(weft_output_try_folder(f->asked->run.path));
    if (f->config.log.tensorboard_dir)
        WEFT_TRY(check_events(f->config.log.tensorboard_dir, f->asked->run.path));
    if (f->config.log.prometheus_file)
        WEFT_TRY(weft_output_try(f->config.log.prometheus_file));
    WEFT_TRY(weft_setup_check_device(&f->config, source));
    WEFT_TRY(weft_setup_data(&f->config, source, true, arena, &f->data));
    WEFT_TRY(count_samples(f, arena));
    WEFT_TRY(weft_setup_check_model(&f->config, source, &f->mesh));
    WEFT_TRY(check_load(f, arena));
    WEFT_TRY(weft_config_locate(source, check_memory(f, arena)));
    return weft_run_check_room(&f->asked->run, &f->config, false, arena);
}

/* A dataset. weight: its share in a blend; 0: no blend. times: what the samples are taken in. */
static void report_set(weft_report *r, const char *title, const weft_data_set *set,
                       weft_split_kind kind, double weight, double taken, const char *times)
{
    const double samples = (double)set->splits[kind].num_samples;
    const char *name = weft_dataset_name(set->dataset);
    char text[600], share[48] = "";
    if (weight > 0)
        snprintf(share, sizeof share, ", %.4g of the blend", weight);
    snprintf(text, sizeof text, "%s%s: %s to %s on, each taken %.3g times %s", name, share,
             weft_count_text((long long)samples, "sample").text,
             kind == WEFT_SPLIT_TRAIN ? "train" : "validate", taken / samples, times);
    weft_report_text(r, NULL, title, text);
    if (r->form != WEFT_REPORT_JSON)
        return;
    weft_report_record(r);
    weft_report_text(r, "name", NULL, name);
    if (kind == WEFT_SPLIT_TRAIN)
        weft_report_value(r, "weight", weight > 0 ? weight : 1);
    weft_report_value(r, "samples", samples);
    weft_report_value(r, "repeats", taken / samples);
}

static void open_sets(weft_report *r, const char *key)
{
    if (r->form == WEFT_REPORT_JSON) /* people have a line a dataset */
        weft_report_open(r, WEFT_REPORT_TABLE, key);
}

static void close_sets(weft_report *r)
{
    if (r->form == WEFT_REPORT_JSON)
        weft_report_close(r);
}

static void report_data(const findings *f, weft_report *r)
{
    const weft_train_options *train = &f->config.train;
    const weft_data *data = &f->data;
    const double evaluated = weft_config_evaluates(&f->config)
                                 ? (double)train->eval_iters * (double)train->global_batch_size
                                 : 0;
    char times[48];
    snprintf(times, sizeof times, "in %" PRId64 " steps", train->train_iters);
    weft_report_value(r, "training_samples", (double)data->splits[WEFT_SPLIT_TRAIN].num_samples);
    open_sets(r, "datasets");
    for (size_t i = 0; i < data->num_parts; i++)
        report_set(r, i > 0 ? "" : "data", &data->parts[i], WEFT_SPLIT_TRAIN,
                   data->num_parts > 1 ? (double)data->blend.weights[i] / (double)data->blend.period
                                       : 0,
                   (double)f->taken[i], times);
    close_sets(r);
    open_sets(r, "validation");
    for (size_t i = 0; i < data->num_validation; i++)
        report_set(r, i > 0 ? "" : "validation", &data->validation[i], WEFT_SPLIT_VALIDATION, 0,
                   evaluated, "an evaluation");
    close_sets(r);
}

static void report_run(const findings *f, weft_report *r)
{
    const weft_train_options *train = &f->config.train;
    char mesh[128], text[256], batch[96];
    weft_mesh_print(&f->mesh, mesh, sizeof mesh);
    snprintf(text, sizeof text, "%s: %s; %s", weft_count_text(f->mesh.world, "rank").text, mesh,
             weft_dtype_text(weft_config_dtype(&f->config)));
    weft_report_text(r, "mesh", "mesh", text);
    const int64_t left = train->train_iters - f->start->step;
    snprintf(text, sizeof text, "%" PRId64 " to go, each of %s of %" PRId64 " tokens", left,
             weft_ramp_text(train, batch), f->config.model.seq_length);
    weft_report_text(r, NULL, "steps", text);
    weft_report_value(r, "steps", (double)left);
    report_data(f, r);
    snprintf(text, sizeof text, "%s%s", f->from ? "from " : "step 0", f->from ? f->from : "");
    weft_report_text(r, NULL, "start", text);
    weft_report_text(r, "from", NULL, f->from);
    if (f->changes)
        weft_report_text(r, "changes", "changes", f->changes);
}

static void report_memory(const findings *f, weft_report *r)
{
    char text[600], parts[400];
    const double bytes = (double)f->footprint.device_bytes,
                 pinned = (double)f->footprint.bytes[WEFT_MEMORY_PINNED],
                 left = (double)weft_machine_memory_left();
    snprintf(text, sizeof text, "%s on a rank of stage %d: %s", weft_bytes_text(bytes).text,
             f->fullest, weft_footprint_text(&f->footprint, parts, sizeof parts));
    weft_report_text(r, NULL, "memory", text);
    weft_report_value(r, "device_bytes", bytes);
    weft_report_value(r, "pinned_bytes", pinned);
    if (pinned > 0) {
        snprintf(text, sizeof text, "%s more of the host on that rank, pinned",
                 weft_bytes_text(pinned).text);
        weft_report_text(r, NULL, "", text);
    }
    weft_report_value(r, "memory_limit", (double)f->config.device.memory_limit);
    if (f->config.device.kind != WEFT_DEVICE_KIND_CPU)
        return;
    snprintf(text, sizeof text, "%s for all ranks, where this machine has %s left",
             weft_bytes_text((bytes + pinned) * f->mesh.world).text, weft_bytes_text(left).text);
    weft_report_text(r, NULL, "", text);
    weft_report_value(r, "machine_bytes_left", left);
}

static void report_files(const findings *f, weft_report *r)
{
    const weft_checkpoint_options *o = &f->config.checkpoint;
    const char *run = f->asked->run.path;
    char text[600], every[64] = "";
    snprintf(text, sizeof text, "%s/config.json, metrics.jsonl, ledger.jsonl, memory.json%s", run,
             f->config.log.trace_step > 0 ? ", trace.json, trace.svg" : "");
    weft_report_text(r, NULL, "files", text);
    weft_report_text(r, "run", NULL, run);
    if (o->save_interval > 0)
        snprintf(every, sizeof every, "every %" PRId64 " steps and ", o->save_interval);
    snprintf(text, sizeof text, "%s/checkpoints/step-N %sat the end", run, every);
    weft_report_text(r, NULL, "saves", o->no_save ? "none" : text);
}

static void report(const findings *f, weft_report *r)
{
    weft_report_line(r, "dry run: the start is checked, and nothing is written");
    weft_report_open(r, WEFT_REPORT_FACTS, NULL);
    report_run(f, r);
    report_memory(f, r);
    report_files(f, r);
    weft_report_close(r);
}

weft_status weft_dry_run(const weft_training *asked, const weft_config *config,
                         const weft_run_start *start, const char *changes, int world,
                         weft_arena *arena)
{
    findings f = {.asked = asked, .start = start, .changes = changes, .config = *config};
    weft_report r;
    weft_status status = check(&f, world, arena);
    if (status == WEFT_OK)
        status = weft_config_tell_no_effect(&f.config);
    weft_report_begin(&r, asked->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    if (status == WEFT_OK)
        report(&f, &r);
    weft_data_close(&f.data);
    return weft_report_end(&r, status, stdout);
}
