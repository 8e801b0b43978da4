/* Graphs of a CUDA lane's work. */
#include <stdlib.h>

#include "core/device/cuda/internal.h"

typedef struct cuda_graph {
    weft_graph base;
    cudaGraphExec_t exec;
} cuda_graph;

weft_status weft_cuda_graph_refuses(const cuda_lane *lane, const char *what)
{
    if (!lane->capturing)
        return WEFT_OK;
    return WEFT_ERROR(WEFT_INTERNAL, "lane %s: %s while a graph takes its work", lane->base.name,
                      what);
}

/* Other threads go on as they do: a lane's worker may allocate pinned memory meanwhile. */
weft_status weft_cuda_graph_begin(weft_lane *base)
{
    cuda_lane *lane = (cuda_lane *)base;
    WEFT_TRY(weft_timeline_status(lane->line));
    WEFT_TRY(weft_cuda_graph_refuses(lane, "another graph"));
    weft_cuda_enter((cuda_device *)base->device);
    WEFT_TRY(WEFT_CUDA(cudaStreamBeginCapture(lane->stream, cudaStreamCaptureModeThreadLocal)));
    lane->capturing = true;
    return WEFT_OK;
}

/* Brought to the device now, so that the first replay is as quick as others. */
static weft_status instantiate(cuda_lane *lane, cudaGraph_t graph, weft_graph **out)
{
    cuda_graph *made = calloc(1, sizeof *made);
    if (!made)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: graph");
    made->base.device = lane->base.device;
    weft_status status = WEFT_CUDA(cudaGraphInstantiate(&made->exec, graph, 0));
    if (status == WEFT_OK)
        status = WEFT_CUDA(cudaGraphUpload(made->exec, lane->stream));
    if (status != WEFT_OK) {
        weft_cuda_graph_destroy(&made->base);
        return status;
    }
    *out = &made->base;
    return WEFT_OK;
}

weft_status weft_cuda_graph_end(weft_lane *base, weft_graph **out)
{
    cuda_lane *lane = (cuda_lane *)base;
    cudaGraph_t graph = NULL;
    weft_cuda_enter((cuda_device *)base->device);
    weft_status status = WEFT_CUDA(cudaStreamEndCapture(lane->stream, &graph));
    lane->capturing = false;
    if (status == WEFT_OK && out)
        status = instantiate(lane, graph, out);
    if (graph)
        (void)cudaGraphDestroy(graph);
    return status == WEFT_OK ? WEFT_OK : weft_error_context(status, "lane %s: graph", base->name);
}

weft_status weft_cuda_graph_replay(weft_graph *base, weft_lane *base_lane)
{
    cuda_lane *lane = (cuda_lane *)base_lane;
    WEFT_TRY(weft_timeline_status(lane->line));
    WEFT_TRY(weft_cuda_graph_refuses(lane, "another graph"));
    weft_cuda_enter((cuda_device *)base->device);
    weft_status status = WEFT_CUDA(cudaGraphLaunch(((cuda_graph *)base)->exec, lane->stream));
    return status == WEFT_OK ? WEFT_OK
                             : weft_error_context(status, "lane %s: graph", base_lane->name);
}

void weft_cuda_graph_destroy(weft_graph *base)
{
    cuda_graph *graph = (cuda_graph *)base;
    weft_cuda_enter((cuda_device *)base->device);
    if (graph->exec)
        (void)cudaGraphExecDestroy(graph->exec);
    free(graph);
}
