#include <math.h>

#include "core/text.h"
#include "launcher/searching/expand.h"

static bool runs_out(const weft_expand_step *step)
{
    return (double)step->config.train.global_batch_size != step->wanted_batch;
}

/* What a row cannot say. */
static void report_notes(weft_report *r, const weft_expand *e, int i)
{
    const weft_expand_step *step = &e->steps[i];
    const weft_train_options *train = &step->config.train;
    if (step->fewer.reason)
        weft_report_line(r, "step %d: not %s on %s: %s", i, step->fewer.mesh,
                         weft_count_text(step->fewer.num_nodes, "node").text, step->fewer.reason);
    if (step->refused.reason)
        weft_report_line(r, "step %d: refused %s on %s: %s", i, step->refused.mesh,
                         weft_count_text(step->refused.num_nodes, "node").text,
                         step->refused.reason);
    if (!step->fits)
        weft_report_line(r, "step %d: does not fit: a rank needs %s, and there are %s", i,
                         weft_bytes_text((double)step->memory_bytes).text,
                         weft_bytes_text((double)step->memory_limit_bytes).text);
    if (runs_out(step))
        weft_report_line(
            r,
            "step %d: micro-batches run out: %.6g samples would be %g tokens a step; the "
            "nearest legal batch is %lld (micro_batch_size %lld x dp %d)",
            i, step->wanted_batch, e->steps[0].tokens, (long long)train->global_batch_size,
            (long long)train->micro_batch_size, step->mesh.dp);
    if (step->lr_advised > 0)
        weft_report_line(
            r,
            "step %d: %.4g times the tokens a step: advice, not done: train.lr %g instead of "
            "%g, by the square root",
            i, step->tokens / e->steps[0].tokens, step->lr_advised, train->lr);
    if (step->write_s > 0)
        weft_report_line(r, "step %d: %.3g s to write the checkpoint before it", i, step->write_s);
    if (step->read_s > 0)
        weft_report_line(r, "step %d: %.3g s to read it", i, step->read_s);
}

static void report_data(weft_report *r, const weft_expand *e)
{
    if (e->positions)
        weft_report_line(r, "%s", e->positions);
    if (e->block_tokens > 0)
        weft_report_line(
            r,
            "data: in blocks of %lld tokens (data.shuffle_block_tokens) every length goes on at "
            "the next token%s",
            (long long)e->block_tokens,
            e->reorders ? "; the first longer one deals what is left of the epoch anew" : "");
    else if (e->reorders)
        weft_report_line(r, "data: the lengths do not divide the longest, so each deals what is "
                            "left of the epoch anew");
}

/* 0: nobody knows. */
static void report_known(weft_report *r, const char *key, double value)
{
    weft_report_value(r, key, value > 0 ? value : (double)NAN);
}

static void report_state(weft_report *r, const char *key, const weft_expand_step *step)
{
    weft_report_open(r, WEFT_REPORT_OBJECT, key);
    weft_report_value(r, "memory_bytes", step->memory_bytes);
    weft_report_value(r, "memory_limit_bytes", step->memory_limit_bytes);
    weft_report_value(r, "step_time_s", step->step_us / 1e6);
    weft_report_value(r, "tokens_per_s", step->tokens_per_s);
    weft_report_open(r, WEFT_REPORT_OBJECT, "cost");
    if (*step->cluster->currency)
        weft_report_text(r, "currency", NULL, step->cluster->currency);
    weft_report_value(r, "hour", step->costs.hour);
    weft_report_value(r, "billion_tokens", step->costs.billion_tokens);
    weft_report_close(r);
    weft_report_close(r);
}

static void report_miss(weft_report *r, const char *key, const weft_expand_miss *miss)
{
    if (!miss->reason) {
        weft_report_text(r, key, NULL, NULL);
        return;
    }
    weft_report_open(r, WEFT_REPORT_OBJECT, key);
    weft_report_value(r, "num_nodes", miss->num_nodes);
    weft_report_text(r, "mesh", NULL, miss->mesh);
    weft_report_text(r, "reason", NULL, miss->reason);
    weft_report_value(r, "short_by_bytes", miss->short_by_bytes);
    weft_report_close(r);
}

static void report_step(weft_report *r, const weft_expand *e, int i)
{
    const weft_expand_step *step = &e->steps[i];
    const weft_train_options *train = &step->config.train;
    char axes[128];
    weft_mesh_print(&step->mesh, axes, sizeof axes);
    weft_report_record(r);
    weft_report_row(r, "step", "step", WEFT_UNIT_COUNT, i);
    weft_report_row(r, "context", "context", WEFT_UNIT_COUNT, step->config.model.seq_length);
    weft_report_text(r, "cluster", NULL, step->cluster->name);
    weft_report_row(r, "num_nodes", "nodes", WEFT_UNIT_COUNT, step->num_nodes);
    weft_report_row(r, "nodes_added", "added", WEFT_UNIT_COUNT, step->nodes_added);
    weft_report_value(r, "num_devices", step->mesh.world);
    weft_report_value(r, "cp", step->mesh.cp);
    weft_report_value(r, "ep", step->mesh.ep);
    weft_report_value(r, "dp", step->mesh.dp);
    weft_report_text(r, "kind", "kind", weft_expand_kind_text(step->kind));
    weft_report_row(r, NULL, "memory", WEFT_UNIT_BYTES, step->memory_bytes);
    weft_report_row(r, NULL, "takes", WEFT_UNIT_SECONDS, step->step_us / 1e6);
    weft_report_row(r, NULL, "tokens/s", WEFT_UNIT_COUNT, step->tokens_per_s);
    weft_report_row(r, NULL, "cost/1e9", WEFT_UNIT_NONE, step->costs.billion_tokens);
    weft_report_row(r, "global_batch_size", "batch", WEFT_UNIT_COUNT, train->global_batch_size);
    weft_report_text(r, "mesh", "mesh", axes);
    weft_report_bool(r, "fits", step->fits);
    weft_report_value(r, "micro_batch_size", train->micro_batch_size);
    weft_report_value(r, "tokens", step->tokens);
    weft_report_bool(r, "micro_batches_run_out", runs_out(step));
    report_known(r, "lr_advised", step->lr_advised);
    weft_report_value(r, "model_flops_utilization", step->model_flops_utilization);
    weft_report_text(r, "limits", NULL, weft_limit_text(step->limits));
    report_state(r, "before", &e->steps[i > 0 ? i - 1 : 0]);
    report_state(r, "after", step);
    weft_report_open(r, WEFT_REPORT_OBJECT, "checkpoint");
    report_known(r, "write_s", step->write_s);
    report_known(r, "read_s", step->read_s);
    weft_report_close(r);
    report_miss(r, "why_not_fewer", &step->fewer);
    report_miss(r, "refused", &step->refused);
}

static void report_head(weft_report *r, const weft_expand *e, const weft_expand_request *request)
{
    const bool moves = request->to != request->cluster;
    const char *keeps = request->keeps_samples ? "samples" : "tokens";
    weft_report_line(r, "%s%s%s, a step keeps its %s; checkpoint %s\n", request->cluster->name,
                     moves ? " to " : "", moves ? request->to->name : "", keeps,
                     weft_bytes_text((double)e->checkpoint_bytes).text);
    weft_report_text(r, "cluster", NULL, request->cluster->name);
    weft_report_text(r, "to", NULL, request->to->name);
    weft_report_text(r, "batch", NULL, keeps);
    weft_report_text(r, "conditions", NULL, "MoNTA, section Cluster Expansion");
    weft_report_value(r, "checkpoint_bytes", e->checkpoint_bytes);
    if (e->positions)
        weft_report_text(r, "positions", NULL, e->positions);
    report_known(r, "shuffle_block_tokens", (double)e->block_tokens);
    weft_report_bool(r, "reorders_data", e->reorders);
}

void weft_expand_report(weft_report *r, const weft_expand *e, const weft_expand_request *request)
{
    report_head(r, e, request);
    weft_report_open(r, WEFT_REPORT_TABLE, "steps");
    for (int i = 0; i < e->num_steps; i++)
        report_step(r, e, i);
    weft_report_close(r);
    if (e->stop_text)
        weft_report_text(r, "stopped", NULL, e->stop_text);
    report_miss(r, "nearest", &e->nearest);
    report_miss(r, "beyond", &e->beyond);
    weft_report_line(r, "%s", "");
    for (int i = 0; i < e->num_steps; i++)
        report_notes(r, e, i);
    report_data(r, e);
}
