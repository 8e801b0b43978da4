#include <weft/device.h>

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "core/device/ops.h"
#include "core/sized.h"

static pthread_mutex_t lanes_lock = PTHREAD_MUTEX_INITIALIZER; /* of every device's lanes */

void weft_device_destroy(weft_device *device)
{
    if (!device)
        return;
    free(device->blocks.items);
    device->ops->destroy(device);
}

const char *weft_device_name(const weft_device *device)
{
    return device->ops->name;
}

int weft_device_num_threads(const weft_device *device)
{
    return device->num_threads;
}

weft_status weft_lane_create(weft_device *device, int priority, const char *name, weft_lane **out)
{
    WEFT_TRY(WEFT_GIVEN(device));
    WEFT_TRY(WEFT_GIVEN(out));
    if (priority < 0)
        return WEFT_ERROR(WEFT_INTERNAL, "lane %s: priority %d is below 0", name, priority);
    WEFT_TRY(device->ops->lane_create(device, priority, name, out));
    pthread_mutex_lock(&lanes_lock);
    (*out)->next = device->lanes;
    device->lanes = *out;
    pthread_mutex_unlock(&lanes_lock);
    return WEFT_OK;
}

void weft_lane_destroy(weft_lane *lane)
{
    if (!lane)
        return;
    pthread_mutex_lock(&lanes_lock);
    weft_lane **at = &lane->device->lanes;
    while (*at != lane)
        at = &(*at)->next;
    *at = lane->next;
    pthread_mutex_unlock(&lanes_lock);
    lane->device->ops->lane_destroy(lane);
}

void weft_device_wait(weft_device *device)
{
    weft_error error;
    if (weft_lane_current_device()) /* a lane cannot wait for itself */
        return;
    weft_error_take(&error); /* a lane's error is told to those who submit to it */
    pthread_mutex_lock(&lanes_lock);
    for (weft_lane *lane = device->lanes; lane; lane = lane->next)
        device->ops->sync(lane);
    pthread_mutex_unlock(&lanes_lock);
    weft_error_put(&error);
}

weft_device *weft_lane_device(const weft_lane *lane)
{
    return lane->device;
}

const char *weft_lane_name(const weft_lane *lane)
{
    return lane->name;
}

weft_status weft_event_create(weft_device *device, weft_event **out)
{
    WEFT_TRY(WEFT_GIVEN(device));
    WEFT_TRY(WEFT_GIVEN(out));
    WEFT_TRY(device->ops->event_create(device, out));
    return WEFT_OK;
}

void weft_event_destroy(weft_event *event)
{
    if (event)
        event->device->ops->event_destroy(event);
}

weft_status weft_lane_record(weft_lane *lane, weft_event *event)
{
    WEFT_TRY(WEFT_GIVEN(lane));
    WEFT_TRY(WEFT_GIVEN(event));
    assert(lane->device == event->device);
    WEFT_TRY(lane->device->ops->record(lane, event));
    return WEFT_OK;
}

weft_status weft_lane_wait(weft_lane *lane, const weft_event *event)
{
    WEFT_TRY(WEFT_GIVEN(lane));
    WEFT_TRY(WEFT_GIVEN(event));
    assert(lane->device == event->device);
    WEFT_TRY(lane->device->ops->wait(lane, event));
    return WEFT_OK;
}

weft_status weft_event_wait_host(const weft_event *event)
{
    WEFT_TRY(WEFT_GIVEN(event));
    WEFT_TRY(event->device->ops->wait_host(event));
    return WEFT_OK;
}

weft_status weft_lane_sync(weft_lane *lane)
{
    WEFT_TRY(WEFT_GIVEN(lane));
    WEFT_TRY(lane->device->ops->sync(lane));
    return WEFT_OK;
}

bool weft_device_has_graphs(const weft_device *device)
{
    return device->ops->graph_begin != NULL;
}

weft_status weft_graph_begin(weft_lane *lane)
{
    if (!weft_device_has_graphs(lane->device))
        return WEFT_ERROR(WEFT_INTERNAL, "lane %s: a %s device keeps no graphs", lane->name,
                          lane->device->ops->name);
    WEFT_TRY(lane->device->ops->graph_begin(lane));
    return WEFT_OK;
}

weft_status weft_graph_end(weft_lane *lane, weft_graph **out)
{
    WEFT_TRY(lane->device->ops->graph_end(lane, out));
    return WEFT_OK;
}

weft_status weft_graph_replay(weft_graph *graph, weft_lane *lane)
{
    assert(lane->device == graph->device);
    WEFT_TRY(lane->device->ops->graph_replay(graph, lane));
    return WEFT_OK;
}

void weft_graph_destroy(weft_graph *graph)
{
    if (graph)
        graph->device->ops->graph_destroy(graph);
}

weft_status weft_lane_copy(weft_lane *lane, void *to, const void *from, size_t bytes)
{
    WEFT_TRY(WEFT_GIVEN(lane));
    if (bytes == 0)
        return WEFT_OK;
    uintptr_t a = (uintptr_t)to, b = (uintptr_t)from;
    if (!to || !from || (a < b ? b - a : a - b) < bytes)
        return WEFT_ERROR(WEFT_INTERNAL, "lane %s: copy of %zu bytes from %p to %p: %s", lane->name,
                          bytes, from, to, to && from ? "the areas overlap" : "no memory");
    WEFT_TRY(lane->device->ops->copy(lane, to, from, bytes));
    return WEFT_OK;
}

weft_status weft_lane_zero(weft_lane *lane, void *to, size_t bytes)
{
    WEFT_TRY(WEFT_GIVEN(lane));
    if (bytes == 0)
        return WEFT_OK;
    if (!to)
        return WEFT_ERROR(WEFT_INTERNAL, "lane %s: zero of %zu bytes: no memory", lane->name,
                          bytes);
    WEFT_TRY(lane->device->ops->zero(lane, to, bytes));
    return WEFT_OK;
}

weft_status weft_lane_submit(weft_lane *lane, const char *label, weft_lane_function function,
                             const void *args, size_t num_bytes)
{
    WEFT_TRY(WEFT_GIVEN(lane));
    WEFT_TRY(WEFT_GIVEN(label));
    const char *wrong = !function                              ? "no function"
                        : num_bytes > WEFT_LANE_MAX_ARGS_BYTES ? "at most 384 fit"
                        : num_bytes > 0 && !args               ? "args is NULL"
                                                               : NULL;
    if (wrong)
        return WEFT_ERROR(WEFT_INTERNAL, "lane %s: %s with %zu bytes of arguments: %s", lane->name,
                          label, num_bytes, wrong);
    WEFT_TRY(lane->device->ops->submit(lane, label, function, args, num_bytes));
    return WEFT_OK;
}
