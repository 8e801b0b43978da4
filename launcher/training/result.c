#include "launcher/training/result.h"

#include "core/log.h"
#include "launcher/process/stop.h"

weft_status weft_trainer_result(weft_trainer *t, double step_ms, weft_step_result *out)
{
    const weft_metrics *m = weft_model_metrics(t->model);
    weft_device_stats stats;
    weft_device_get_stats(t->device, &stats);
    const weft_metric_list *list = weft_model_metric_list(t->model);
    const weft_metric *own = weft_model_own_metrics(t->model);
    double sums[5 + 2 * WEFT_MAX_METRICS] = {m->loss_sum, m->aux_loss, m->load_sum, m->load_count,
                                             m->dropped};
    bool counts = own && t->groups.coords.at[WEFT_AXIS_TP] == 0;
    for (int i = 0; i < list->count && counts; i++) {
        sums[5 + 2 * i] = own[i].sum;
        sums[6 + 2 * i] = own[i].count;
    }
    double most[4] = {step_ms, (double)stats.bytes_peak, weft_stop_asked(),
                      m->rows_count > 0 ? m->rows_sum / m->rows_count : 0};
    WEFT_TRY(weft_comm_all_reduce_host(t->world, sums, 5 + 2 * (size_t)list->count, WEFT_F64,
                                       WEFT_REDUCE_SUM));
    WEFT_TRY(weft_comm_all_reduce_host(t->world, most, 4, WEFT_F64, WEFT_REDUCE_MAX));
    const weft_train_options *train = &t->config.train;
    out->tokens = (double)(train->global_batch_size * t->config.model.seq_length);
    out->loss = sums[0] / out->tokens;
    out->aux_loss = sums[1] / weft_trainer_num_batches(t);
    out->expert_load = sums[3] > 0 ? sums[2] / sums[3] : 0;
    out->rank_load = most[3];
    out->dropped_tokens = sums[4];
    out->own = list;
    for (int i = 0; i < list->count; i++)
        out->own_values[i] = list->rows[i].kind == WEFT_METRIC_SUM
                                 ? sums[5 + 2 * i]
                                 : sums[5 + 2 * i] / sums[6 + 2 * i];
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
