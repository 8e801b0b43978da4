#include <math.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "core/text.h"
#include "launcher/searching/expand.h"

static const weft_expand_step *before(const weft_expand *e, int i)
{
    return &e->steps[i > 0 ? i - 1 : 0];
}

static bool runs_out(const weft_expand_step *step)
{
    return (double)step->config.train.global_batch_size != step->wanted_batch;
}

/* What a row cannot say. */
static void print_notes(const weft_expand *e, int i, FILE *out)
{
    const weft_expand_step *step = &e->steps[i];
    const weft_train_options *train = &step->config.train;
    if (step->fewer.reason)
        fprintf(out, "step %d: not %s on %s: %s\n", i, step->fewer.mesh,
                weft_count_text(step->fewer.num_nodes, "node").text, step->fewer.reason);
    if (step->refused.reason)
        fprintf(out, "step %d: refused %s on %s: %s\n", i, step->refused.mesh,
                weft_count_text(step->refused.num_nodes, "node").text, step->refused.reason);
    if (!step->fits)
        fprintf(out, "step %d: does not fit: a rank needs %s, and there are %s\n", i,
                weft_bytes_text((double)step->memory_bytes).text,
                weft_bytes_text((double)step->memory_limit_bytes).text);
    if (runs_out(step))
        fprintf(out,
                "step %d: micro-batches run out: %.6g samples would be %g tokens a step; the "
                "nearest legal batch is %lld (micro_batch_size %lld x dp %d)\n",
                i, step->wanted_batch, e->steps[0].tokens, (long long)train->global_batch_size,
                (long long)train->micro_batch_size, step->mesh.dp);
    if (step->lr_advised > 0)
        fprintf(out,
                "step %d: %.4g times the tokens a step: advice, not done: train.lr %g instead of "
                "%g, by the square root\n",
                i, step->tokens / e->steps[0].tokens, step->lr_advised, train->lr);
    if (step->write_s > 0)
        fprintf(out, "step %d: %.3g s to write the checkpoint before it\n", i, step->write_s);
    if (step->read_s > 0)
        fprintf(out, "step %d: %.3g s to read it\n", i, step->read_s);
}

void weft_expand_print(const weft_expand *e, const weft_expand_request *request, FILE *out)
{
    char axes[128], cost[32];
    fprintf(out, "%s%s%s, a step keeps its %s; checkpoint %s\n\n", request->cluster->name,
            request->to == request->cluster ? "" : " to ",
            request->to == request->cluster ? "" : request->to->name,
            request->keeps_samples ? "samples" : "tokens",
            weft_bytes_text((double)e->checkpoint_bytes).text);
    fprintf(out, "step  context  nodes   added  kind            memory       step   tokens/s  "
                 "cost/1e9  batch  mesh\n");
    for (int i = 0; i < e->num_steps; i++) {
        const weft_expand_step *step = &e->steps[i];
        weft_mesh_print(&step->mesh, axes, sizeof axes);
        snprintf(cost, sizeof cost, isfinite(step->costs.hour) ? "%.4g" : "-",
                 step->costs.billion_tokens);
        fprintf(out, "%4d %8lld %6d  %+6d  %-10s %11s %8.3g s %10.4g %9s %6lld  %s\n", i,
                (long long)step->config.model.seq_length, step->num_nodes, step->nodes_added,
                weft_expand_kind_text(step->kind), weft_bytes_text((double)step->memory_bytes).text,
                step->step_us / 1e6, step->tokens_per_s, cost,
                (long long)step->config.train.global_batch_size, axes);
    }
    fprintf(out, "\n");
    for (int i = 0; i < e->num_steps; i++)
        print_notes(e, i, out);
    if (e->positions)
        fprintf(out, "%s\n", e->positions);
    if (e->block_tokens > 0)
        fprintf(out,
                "data: in blocks of %lld tokens (data.shuffle_block_tokens) every length goes on "
                "at the next token%s\n",
                (long long)e->block_tokens,
                e->reorders ? "; the first longer one deals what is left of the epoch anew" : "");
    else if (e->reorders)
        fprintf(out,
                "data: the lengths do not divide the longest, so each deals what is left of the "
                "epoch anew\n");
}

/* --- JSON ---------------------------------------------------------------------------------- */

static void add_number(cJSON *json, const char *key, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    cJSON_AddRawToObject(json, key, isfinite(value) ? text : "null");
}

/* 0: nobody knows. */
static void add_known(cJSON *json, const char *key, double value)
{
    add_number(json, key, value > 0 ? value : NAN);
}

static void add_state(cJSON *json, const weft_expand_step *step)
{
    add_number(json, "memory_bytes", (double)step->memory_bytes);
    add_number(json, "memory_limit_bytes", (double)step->memory_limit_bytes);
    add_number(json, "step_time_s", step->step_us / 1e6);
    add_number(json, "tokens_per_s", step->tokens_per_s);
    cJSON *cost = cJSON_AddObjectToObject(json, "cost");
    if (*step->cluster->currency)
        cJSON_AddStringToObject(cost, "currency", step->cluster->currency);
    add_number(cost, "hour", step->costs.hour);
    add_number(cost, "billion_tokens", step->costs.billion_tokens);
}

static void add_miss(cJSON *json, const char *key, const weft_expand_miss *miss)
{
    if (!miss->reason) {
        cJSON_AddNullToObject(json, key);
        return;
    }
    cJSON *object = cJSON_AddObjectToObject(json, key);
    add_number(object, "num_nodes", miss->num_nodes);
    cJSON_AddStringToObject(object, "mesh", miss->mesh);
    cJSON_AddStringToObject(object, "reason", miss->reason);
    add_number(object, "short_by_bytes", (double)miss->short_by_bytes);
}

static void add_step(cJSON *list, const weft_expand *e, int i)
{
    const weft_expand_step *step = &e->steps[i];
    char axes[128];
    cJSON *json = cJSON_CreateObject();
    cJSON_AddItemToArray(list, json);
    weft_mesh_print(&step->mesh, axes, sizeof axes);
    add_number(json, "step", i);
    add_number(json, "context", (double)step->config.model.seq_length);
    cJSON_AddStringToObject(json, "cluster", step->cluster->name);
    add_number(json, "num_nodes", step->num_nodes);
    add_number(json, "nodes_added", step->nodes_added);
    add_number(json, "num_devices", step->mesh.world);
    cJSON_AddStringToObject(json, "mesh", axes);
    add_number(json, "cp", step->mesh.cp);
    add_number(json, "ep", step->mesh.ep);
    add_number(json, "dp", step->mesh.dp);
    cJSON_AddStringToObject(json, "kind", weft_expand_kind_text(step->kind));
    cJSON_AddBoolToObject(json, "fits", step->fits);
    add_number(json, "micro_batch_size", (double)step->config.train.micro_batch_size);
    add_number(json, "global_batch_size", (double)step->config.train.global_batch_size);
    add_number(json, "tokens", step->tokens);
    cJSON_AddBoolToObject(json, "micro_batches_run_out", runs_out(step));
    add_known(json, "lr_advised", step->lr_advised);
    add_number(json, "model_flops_utilization", step->model_flops_utilization);
    cJSON_AddStringToObject(json, "limits", weft_limit_text(step->limits));
    add_state(cJSON_AddObjectToObject(json, "before"), before(e, i));
    add_state(cJSON_AddObjectToObject(json, "after"), step);
    cJSON *checkpoint = cJSON_AddObjectToObject(json, "checkpoint");
    add_known(checkpoint, "write_s", step->write_s);
    add_known(checkpoint, "read_s", step->read_s);
    add_miss(json, "why_not_fewer", &step->fewer);
    add_miss(json, "refused", &step->refused);
}

weft_status weft_expand_print_json(const weft_expand *e, const weft_expand_request *request,
                                   FILE *out)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "cluster", request->cluster->name);
    cJSON_AddStringToObject(json, "to", request->to->name);
    cJSON_AddStringToObject(json, "batch", request->keeps_samples ? "samples" : "tokens");
    cJSON_AddStringToObject(json, "conditions", "MoNTA, section Cluster Expansion");
    add_number(json, "checkpoint_bytes", (double)e->checkpoint_bytes);
    if (e->positions)
        cJSON_AddStringToObject(json, "positions", e->positions);
    add_known(json, "shuffle_block_tokens", (double)e->block_tokens);
    cJSON_AddBoolToObject(json, "reorders_data", e->reorders);
    cJSON *steps = cJSON_AddArrayToObject(json, "steps");
    for (int i = 0; i < e->num_steps; i++)
        add_step(steps, e, i);
    if (e->stop_text)
        cJSON_AddStringToObject(json, "stopped", e->stop_text);
    add_miss(json, "nearest", &e->nearest);
    add_miss(json, "beyond", &e->beyond);
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    if (!text)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for the ladder");
    fprintf(out, "%s\n", text);
    free(text);
    return WEFT_OK;
}
