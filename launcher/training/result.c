/* What a step took and found, over all ranks. */
#include "launcher/training/result.h"

#include <math.h>

#include "core/device/device.h"
#include "core/log.h"
#include "launcher/process/stop.h"

enum { MATCH = 15, NUM_SUMS, NUM_MOST = 6 };

/* Sums and counts each layer's maximum over EP: a layer waits for its fullest rank. */
static weft_status sum_loads(weft_trainer *t, double out[2])
{
    size_t count;
    double *loads = weft_model_loads(t->model, &count);
    if (count > 0 && weft_model_moe_exchanges(t->model))
        WEFT_TRY(weft_comm_all_reduce_host(t->groups.by_axis[WEFT_AXIS_EP], loads, count, WEFT_F64,
                                           WEFT_REDUCE_MAX));
    for (size_t i = 0; i < count; i++)
        out[0] += loads[i];
    out[1] = (double)count;
    return WEFT_OK;
}

/* The counts since the last step. host_us: the host's time for this step. */
static weft_tier_counts take_counts(weft_trainer *t, double host_us)
{
    const weft_tier_counts *now = weft_model_tier_counts(t->model), told = t->measured.told.tier;
    const double end_us = fmin(weft_step_clock_take(&t->measured.clock), host_us);
    if (!now)
        return (weft_tier_counts){0};
    t->measured.told.tier = *now;
    return (weft_tier_counts){.uploaded_bytes = now->uploaded_bytes - told.uploaded_bytes,
                              .downloaded_bytes = now->downloaded_bytes - told.downloaded_bytes,
                              .read_bytes = now->read_bytes - told.read_bytes,
                              .written_bytes = now->written_bytes - told.written_bytes,
                              .num_guests = now->num_guests - told.num_guests,
                              .waited_us = now->waited_us - told.waited_us,
                              .delayed_us = now->delayed_us - told.delayed_us + end_us};
}

/* Excludes the start's copies of experts from the first step. */
void weft_trainer_forget_counts(weft_trainer *t)
{
    (void)take_counts(t, 0);
}

/* Fills in sums and maxima over the world, in a fixed order of fields. Collective. */
weft_status weft_trainer_sums(weft_trainer *t, double step_ms, weft_step_result *out)
{
    const weft_metrics *m = weft_model_metrics(t->model);
    weft_device_stats stats;
    weft_device_get_stats(t->device, &stats);
    const weft_metric_list *list = weft_model_metric_list(t->model);
    const weft_metric *own = weft_model_own_metrics(t->model);
    double sums[NUM_SUMS + 2 * WEFT_MAX_METRICS] = {m->loss_sum, m->aux_loss, m->load_sum,
                                                    m->load_count, m->dropped};
    double *own_sums = &sums[NUM_SUMS];
    weft_doing_pass(WEFT_DOING_BEHIND);
    WEFT_TRY(sum_loads(t, &sums[5]));
    sums[7] = t->input.batches.loss_tokens;
    const double host_us = weft_optimizer_take_host_us(t->optimizer);
    const weft_tier_counts tier = take_counts(t, host_us);
    sums[8] = (double)tier.uploaded_bytes;
    sums[9] = (double)tier.downloaded_bytes;
    sums[10] = (double)tier.read_bytes;
    sums[11] = (double)tier.written_bytes;
    sums[12] = host_us;
    sums[13] = tier.delayed_us;
    sums[14] = (double)tier.num_guests;
    bool counts = own && t->groups.coords.at[WEFT_AXIS_TP] == 0;
    for (int i = 0; i < list->count && counts; i++) {
        own_sums[2 * i] = own[i].sum;
        own_sums[2 * i + 1] = own[i].count;
    }
    sums[MATCH] = weft_comm_match(t->world);
    const double word = t->writer ? (double)weft_checkpoint_writer_word(t->writer) : 0;
    double most[NUM_MOST] = {
        step_ms,      (double)stats.bytes_peak, weft_stop_asked(), tier.waited_us / 1e3, word,
        host_us / 1e3};
    weft_doing_pass(WEFT_DOING_BEHIND);
    WEFT_TRY(weft_comm_all_reduce_host(t->world, sums, NUM_SUMS + 2 * (size_t)list->count, WEFT_F64,
                                       WEFT_REDUCE_SUM));
    weft_doing_pass(WEFT_DOING_BEHIND);
    WEFT_TRY(weft_comm_all_reduce_host(t->world, most, NUM_MOST, WEFT_F64, WEFT_REDUCE_MAX));
    if (!weft_comm_matches(sums[MATCH]))
        return weft_error_context(weft_comm_mismatch(t->world), "step %lld",
                                  (long long)t->running.step);
    out->consumed_tokens = t->consumed_tokens;
    out->tokens = (double)weft_trainer_tokens(t);
    out->loss = sums[0] / out->tokens;
    out->aux_loss = sums[1] / t->running.batches;
    out->expert_load = sums[3] > 0 ? sums[2] / sums[3] : 0;
    out->rank_load = sums[6] > 0 ? sums[5] / sums[6] : 0;
    out->dropped_tokens = sums[4];
    out->loss_tokens = sums[7];
    out->masks = t->input.batches.label_weights != NULL;
    out->tier.on = t->config.tier.experts != WEFT_TIER_NONE && t->config.model.num_experts > 0;
    out->tier.uploaded_bytes = sums[8];
    out->tier.downloaded_bytes = sums[9];
    out->tier.reads = out->tier.on && t->config.tier.experts == WEFT_TIER_FILE;
    out->tier.read_bytes = sums[10];
    out->tier.written_bytes = sums[11];
    const bool steps_dense = t->config.tier.optimizer_state == WEFT_TIER_STATE_HOST;
    out->tier.wait_ms = t->measured.clock.runs && out->tier.on ? most[3] : NAN;
    out->tier.host_step_ms = out->tier.on || steps_dense ? most[5] : NAN;
    out->tier.optimizer_hidden =
        t->measured.clock.runs && out->tier.on && !steps_dense && sums[12] > 0
            ? fmax(0, 1 - sums[13] / sums[12])
            : NAN;
    out->tier.places = weft_model_get_shape(t->model)->experts_placed;
    out->tier.experts_away = sums[14];
    out->own.list = list;
    for (int i = 0; i < list->count; i++)
        out->own.values[i] = list->rows[i].kind == WEFT_METRIC_SUM
                                 ? own_sums[2 * i]
                                 : own_sums[2 * i] / own_sums[2 * i + 1];
    out->step_ms = most[0];
    const bool wears = out->tier.reads && !weft_path_is_memory(t->config.tier.path);
    out->tier.written_per_day = wears ? sums[11] / t->num_nodes / (most[0] / 1e3) * 86400 : 0;
    out->tokens_per_s = out->tokens / (out->step_ms / 1e3);
    out->device_bytes_peak = most[1];
    out->stop = most[2] != 0;
    out->writers = (weft_writer_word)most[4];
    return WEFT_OK;
}

static void note_peak(weft_trainer *t, weft_step_result *out)
{
    double flops = t->measured.flops_per_sample * (double)weft_trainer_samples(t);
    out->peak.share =
        weft_peak_share(&t->measured.peak, flops / (out->step_ms / 1e3 * t->groups.mesh.world));
    out->peak.flops = t->measured.peak.flops;
    out->peak.flops_per_token = flops / out->tokens;
    if (t->measured.told.peak != t->measured.peak.flops)
        out->peak.from = weft_peak_source_text(t->measured.peak.source);
    t->measured.told.peak = t->measured.peak.flops;
}

/* Warns once of an emulated accelerator that is slower than its pace. */
static void note_late(weft_trainer *t, double step_ms)
{
    const double told_share = 0.02;
    const struct {
        const char *what, *key;
        double ms, pace;
    } late[] = {
        {"computing", "device.pace", 1e3 * weft_device_take_late(t->device), t->config.device.pace},
        {"copying between device and host memory", "device.pace_link",
         1e3 * weft_device_take_link_late(t->device), t->config.device.pace_link},
        {"reading and writing the experts' file", "device.pace_file",
         1e3 * weft_device_take_file_late(t->device), t->config.device.pace_file}};
    const bool is_first = t->num_steps++ == 0;
    for (size_t i = 0; i < sizeof late / sizeof *late; i++) {
        if (is_first || t->measured.told.late || late[i].ms <= told_share * step_ms)
            continue;
        weft_log(WEFT_LOG_WARN,
                 "step %lld: %s took %.3g of %.3g ms longer than %s %g allows: the times are this "
                 "machine's; lower the pace",
                 (long long)t->step, late[i].what, late[i].ms, step_ms, late[i].key, late[i].pace);
        t->measured.told.late = true;
    }
}

static weft_status compare_ranks(weft_trainer *t, weft_step_result *out)
{
    weft_stragglers *s = &t->measured.stragglers;
    char line[512];
    const double ms = 1e3 * weft_lane_take_busy(t->lanes[WEFT_LANE_COMPUTE]);
    WEFT_TRY(weft_stragglers_gather(s, ms, t->world));
    if (!s->ranks)
        return WEFT_OK;
    if (weft_stragglers_judge(s, out->step, line, sizeof line) >= 0)
        weft_log(WEFT_LOG_WARN, "%s", line);
    out->slow.ranks = s;
    return WEFT_OK;
}

static weft_status compare_links(weft_links *l, weft_step_result *out)
{
    char line[512];
    bool looked;
    WEFT_TRY(weft_links_look(l, out->step, out->step_ms, &looked));
    if (!looked || !l->nodes)
        return WEFT_OK;
    if (weft_links_judge(l, out->step, line, sizeof line) >= 0)
        weft_log(WEFT_LOG_WARN, "%s", line);
    out->slow.links = l;
    return WEFT_OK;
}

/* Compares ranks' compute times and, at times, links; fills in the peak; warns once if compute
 * falls behind device.pace. Collective. */
static weft_status compare(weft_trainer *t, weft_step_result *out)
{
    note_peak(t, out);
    note_late(t, out->step_ms);
    weft_doing_pass(WEFT_DOING_BEHIND);
    WEFT_TRY(compare_ranks(t, out));
    weft_doing_pass(WEFT_DOING_BEHIND);
    return compare_links(&t->measured.stragglers.links, out);
}

void weft_trainer_note_choice(weft_trainer *t, weft_step_result *out)
{
    if (!t->moe.travels)
        return;
    out->moe.pipeline = weft_model_moe_pipeline(t->model);
    out->moe.form = t->moe.options.form;
    if (!t->moe.told && t->moe.reason[0])
        out->moe.choice = t->moe.reason;
    weft_moe_selection_tell(&t->moe);
}

/* Each expert's tokens in the global batch, in the steps that tell them. Collective. */
static weft_status add_choices(weft_trainer *t, weft_step_result *out)
{
    const int64_t interval = t->config.log.moe_load_interval;
    size_t count;
    double *choices = weft_model_expert_choices(t->model, &count);
    if (!choices || out->step % interval != 0)
        return WEFT_OK;
    weft_doing_pass(WEFT_DOING_BEHIND);
    WEFT_TRY(weft_comm_all_reduce_host(t->world, choices, count, WEFT_F64, WEFT_REDUCE_SUM));
    out->choices_of = t->model;
    return WEFT_OK;
}

/* What a step took of each dataset, and its mean loss there. Collective. */
static weft_status add_parts(weft_trainer *t, weft_step_result *out)
{
    const size_t count = t->input.data.num_parts;
    if (count < 2)
        return WEFT_OK;
    double *losses = t->input.part_losses, *weights = losses + count;
    weft_split_count(&t->input.data.splits[WEFT_SPLIT_TRAIN],
                     (uint64_t)(t->consumed_tokens / t->config.model.seq_length),
                     t->input.part_samples);
    weft_batches_sum_losses(t, losses, weights);
    weft_doing_pass(WEFT_DOING_BEHIND);
    WEFT_TRY(weft_comm_all_reduce_host(t->world, losses, 2 * count, WEFT_F64, WEFT_REDUCE_SUM));
    for (size_t i = 0; i < count; i++)
        losses[i] = weights[i] > 0 ? losses[i] / weights[i] : NAN;
    out->blend = &t->input.data;
    out->part_samples = t->input.part_samples;
    out->part_losses = losses;
    return WEFT_OK;
}

weft_status weft_trainer_result(weft_trainer *t, double step_ms, weft_step_result *out)
{
    WEFT_TRY(weft_trainer_sums(t, step_ms, out));
    WEFT_TRY(add_parts(t, out));
    WEFT_TRY(add_choices(t, out));
    return compare(t, out);
}
