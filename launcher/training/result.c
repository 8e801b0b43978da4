#include "launcher/training/result.h"

#include "core/log.h"
#include "launcher/process/stop.h"

enum { NUM_SUMS = 8 };

/* Each layer waits for its fullest rank: sums the maxima over EP, and counts them. */
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

weft_status weft_trainer_result(weft_trainer *t, double step_ms, weft_step_result *out)
{
    const weft_metrics *m = weft_model_metrics(t->model);
    weft_device_stats stats;
    weft_device_get_stats(t->device, &stats);
    const weft_metric_list *list = weft_model_metric_list(t->model);
    const weft_metric *own = weft_model_own_metrics(t->model);
    double sums[NUM_SUMS + 2 * WEFT_MAX_METRICS] = {m->loss_sum, m->aux_loss, m->load_sum,
                                                    m->load_count, m->dropped};
    double *own_sums = &sums[NUM_SUMS];
    WEFT_TRY(sum_loads(t, &sums[5]));
    sums[7] = t->batches.loss_tokens;
    bool counts = own && t->groups.coords.at[WEFT_AXIS_TP] == 0;
    for (int i = 0; i < list->count && counts; i++) {
        own_sums[2 * i] = own[i].sum;
        own_sums[2 * i + 1] = own[i].count;
    }
    double most[3] = {step_ms, (double)stats.bytes_peak, weft_stop_asked()};
    WEFT_TRY(weft_comm_all_reduce_host(t->world, sums, NUM_SUMS + 2 * (size_t)list->count, WEFT_F64,
                                       WEFT_REDUCE_SUM));
    WEFT_TRY(weft_comm_all_reduce_host(t->world, most, 3, WEFT_F64, WEFT_REDUCE_MAX));
    const weft_train_options *train = &t->config.train;
    out->tokens = (double)(train->global_batch_size * t->config.model.seq_length);
    out->loss = sums[0] / out->tokens;
    out->aux_loss = sums[1] / weft_trainer_num_batches(t);
    out->expert_load = sums[3] > 0 ? sums[2] / sums[3] : 0;
    out->rank_load = sums[6] > 0 ? sums[5] / sums[6] : 0;
    out->dropped_tokens = sums[4];
    out->loss_tokens = sums[7];
    out->masks = t->batches.label_weights != NULL;
    out->own = list;
    for (int i = 0; i < list->count; i++)
        out->own_values[i] = list->rows[i].kind == WEFT_METRIC_SUM
                                 ? own_sums[2 * i]
                                 : own_sums[2 * i] / own_sums[2 * i + 1];
    out->step_ms = most[0];
    out->tokens_per_s = out->tokens / (out->step_ms / 1e3);
    out->device_bytes_peak = most[1];
    out->stop = most[2] != 0;
    return WEFT_OK;
}

static void note_peak(weft_trainer *t, weft_step_result *out)
{
    double flops = t->flops_per_sample * (double)t->config.train.global_batch_size;
    out->mfu = weft_peak_share(&t->peak, flops / (out->step_ms / 1e3 * t->groups.mesh.world));
    out->peak_flops = t->peak.flops;
    out->flops_per_token = flops / out->tokens;
    if (t->told_peak != t->peak.flops)
        out->peak_from = weft_peak_source_text(t->peak.source);
    t->told_peak = t->peak.flops;
}

/* An emulated accelerator that computes more slowly than its pace is none. Said once. */
static void note_late(weft_trainer *t, double step_ms)
{
    const double told_share = 0.02;
    double late_ms = 1e3 * weft_device_take_late(t->device);
    if (t->num_steps++ == 0 || t->told_late || late_ms <= told_share * step_ms)
        return;
    weft_log(WEFT_LOG_WARN,
             "step %lld: computing took %.3g of %.3g ms longer than device.pace %g allows: the "
             "times are this machine's; lower the pace",
             (long long)t->step, late_ms, step_ms, t->config.device.pace);
    t->told_late = true;
}

void weft_trainer_note(weft_trainer *t, weft_step_result *out)
{
    note_peak(t, out);
    note_late(t, out->step_ms);
}

void weft_trainer_note_moe(weft_trainer *t, weft_step_result *out)
{
    if (!t->moe.travels)
        return;
    out->moe = t->moe.options;
    out->moe.pipeline = weft_model_moe_pipeline(t->model);
    if (!t->moe.told && t->moe.reason[0])
        out->moe_choice = t->moe.reason;
    weft_moe_selection_tell(&t->moe);
}
