#include "core/grow.h"
#include "core/device/device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/arena.h"
#include "core/device/ops.h"

typedef struct note_device {
    weft_device base;
    weft_noted *notes;
    size_t count, capacity;
    uintptr_t next; /* address; of the next allocation */
    weft_note_scope scope;
    weft_device *other; /* makes calls again; NULL: nobody does */
    weft_arena args;    /* of those calls */
    struct {
        const char *kernel;
        const void *args;
    } call; /* that is noted now */
    bool keeps_ranges;
    weft_range *ranges;
    size_t num_ranges, ranges_capacity;
} note_device;

/* No machine maps these addresses. */
static const uintptr_t first_address = (uintptr_t)1 << 62;

static note_device *device_of(const weft_lane *lane)
{
    return (note_device *)lane->device;
}

static weft_status keep_on(note_device *d, const weft_lane *lane, const weft_noted *noted)
{
    WEFT_TRY(WEFT_GROW(d->notes, d->capacity, d->count + 1, "notes"));
    d->notes[d->count] = *noted;
    d->notes[d->count++].lane = lane;
    return WEFT_OK;
}

static weft_status keep(weft_lane *lane, const weft_noted *noted)
{
    return keep_on(device_of(lane), lane, noted);
}

static weft_status keep_ranges(weft_lane *lane, const weft_noted *noted, const weft_range *ranges,
                               size_t count)
{
    note_device *d = device_of(lane);
    weft_noted with = *noted;
    if (!d->keeps_ranges)
        return keep(lane, noted);
    WEFT_TRY(WEFT_GROW(d->ranges, d->ranges_capacity, d->num_ranges + count, "ranges"));
    if (!with.operation.module)
        with.operation.module = d->scope.module ? d->scope.module : "own";
    with.first_range = d->num_ranges;
    with.num_ranges = count;
    memcpy(d->ranges + d->num_ranges, ranges, count * sizeof *ranges);
    d->num_ranges += count;
    return keep(lane, &with);
}

/* --- memory --------------------------------------------------------------------------------- */

/* From this size on host memory is mapped without a reserve: nobody touches what layers offload.
 * All of it is zero: hosts read there what nobody writes. */
enum { MAPPED_BYTES = 1 << 22 };

static void *pinned(size_t bytes)
{
    if (bytes < MAPPED_BYTES)
        return calloc(1, bytes + 1);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

static void *note_alloc(weft_device *base, weft_space space, size_t bytes)
{
    note_device *d = (note_device *)base;
    if (bytes > (size_t)1 << 60)
        return NULL;
    if (space == WEFT_SPACE_PINNED && !d->other)
        return pinned(bytes);
    void *memory = (void *)d->next; /* NOLINT */
    if (space == WEFT_SPACE_PINNED)
        return weft_device_alloc(d->other, space, bytes, "a rehearsal", &memory) == WEFT_OK ? memory
                                                                                            : NULL;
    d->next += (bytes + 127) / 64 * 64;
    return memory;
}

static void note_free(weft_device *base, weft_space space, void *memory, size_t bytes)
{
    weft_device *other = ((note_device *)base)->other;
    if (space == WEFT_SPACE_DEVICE)
        return;
    if (other)
        weft_device_free(other, space, memory, bytes);
    else if (bytes < MAPPED_BYTES)
        free(memory);
    else
        munmap(memory, bytes);
}

static bool note_pin(weft_device *base, void *memory, size_t bytes)
{
    (void)base, (void)memory, (void)bytes;
    return true;
}

static void note_unpin(weft_device *base, void *memory)
{
    (void)base, (void)memory;
}

/* --- lanes and events ----------------------------------------------------------------------- */

static weft_status note_lane_create(weft_device *base, int priority, const char *name,
                                    weft_lane **out)
{
    (void)priority;
    weft_lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory: lane %s", name);
    lane->device = base;
    lane->name = name;
    *out = lane;
    return WEFT_OK;
}

static void note_lane_destroy(weft_lane *lane)
{
    free(lane);
}

static weft_status note_event_create(weft_device *base, weft_event **out)
{
    weft_event *event = calloc(1, sizeof *event);
    if (!event)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory: event");
    event->device = base;
    *out = event;
    return WEFT_OK;
}

static void note_event_destroy(weft_event *event)
{
    free(event);
}

static weft_status note_record(weft_lane *lane, weft_event *event)
{
    return keep(lane, &(weft_noted){.kind = WEFT_NOTED_RECORD, .event = event});
}

static weft_status note_wait(weft_lane *lane, const weft_event *event)
{
    return keep(lane, &(weft_noted){.kind = WEFT_NOTED_WAIT, .event = event});
}

static weft_status note_wait_host(const weft_event *event)
{
    note_device *d = (note_device *)event->device;
    return d->keeps_ranges
               ? keep_on(d, NULL, &(weft_noted){.kind = WEFT_NOTED_HOST_WAIT, .event = event})
               : WEFT_OK;
}

static weft_status note_sync(weft_lane *lane)
{
    return device_of(lane)->keeps_ranges ? keep(lane, &(weft_noted){.kind = WEFT_NOTED_SYNC})
                                         : WEFT_OK;
}

static weft_status note_copy(weft_lane *lane, void *to, const void *from, size_t bytes)
{
    const weft_range ranges[] = {{.name = "from", .base = from, .bytes = bytes},
                                 {.name = "to", .base = to, .bytes = bytes, .writes = true}};
    return keep_ranges(
        lane,
        &(weft_noted){
            .kind = WEFT_NOTED_COPY, .operation = {.bytes = bytes}, .to = to, .from = from},
        ranges, 2);
}

static weft_status note_zero(weft_lane *lane, void *to, size_t bytes)
{
    const weft_range range = {.name = "to", .base = to, .bytes = bytes, .writes = true};
    return keep_ranges(lane, &(weft_noted){.kind = WEFT_NOTED_ZERO, .operation = {.bytes = bytes}},
                       &range, 1);
}

static weft_status note_submit(weft_lane *lane, const char *label, weft_lane_function function,
                               const void *args, size_t num_bytes)
{
    (void)function, (void)args, (void)num_bytes;
    return keep(lane, &(weft_noted){.kind = WEFT_NOTED_HOST, .label = label});
}

static void note_destroy(weft_device *base)
{
    note_device *d = (note_device *)base;
    weft_arena_release(&d->args);
    free(d->notes);
    free(d->ranges);
    free(d);
}

static const weft_device_ops note_ops = {
    .name = "note",
    .alloc = note_alloc,
    .free = note_free,
    .pin = note_pin,
    .unpin = note_unpin,
    .lane_create = note_lane_create,
    .lane_destroy = note_lane_destroy,
    .event_create = note_event_create,
    .event_destroy = note_event_destroy,
    .record = note_record,
    .wait = note_wait,
    .wait_host = note_wait_host,
    .sync = note_sync,
    .copy = note_copy,
    .zero = note_zero,
    .submit = note_submit,
    .destroy = note_destroy,
};

weft_status weft_device_create_note(weft_device **out)
{
    note_device *d = calloc(1, sizeof *d);
    if (!d)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory: note device");
    d->base.ops = &note_ops;
    d->base.num_threads = 1;
    d->next = first_address;
    *out = &d->base;
    return WEFT_OK;
}

bool weft_device_is_note(const weft_device *device)
{
    return device->ops == &note_ops;
}

/* --- notes ---------------------------------------------------------------------------------- */

weft_note_scope weft_note_scope_of(const weft_device *device)
{
    return weft_device_is_note(device) ? ((const note_device *)device)->scope
                                       : (weft_note_scope){0};
}

weft_note_scope weft_note_enter(weft_device *device, weft_note_scope scope)
{
    const weft_note_scope before = weft_note_scope_of(device);
    if (weft_device_is_note(device))
        ((note_device *)device)->scope = scope;
    return before;
}

const char *weft_note_module(const weft_lane *lane, const char *module)
{
    weft_note_scope scope = weft_note_scope_of(lane->device);
    const char *before = scope.module;
    scope.module = module;
    weft_note_enter(lane->device, scope);
    return before;
}

weft_note_scope weft_note_task(const weft_lane *lane, weft_inner inner, int task, int flow)
{
    weft_note_scope scope = weft_note_scope_of(lane->device);
    if (inner != WEFT_INNER_NONE) {
        scope.inner = inner;
        scope.task = task;
        scope.flow = flow;
    }
    return weft_note_enter(lane->device, scope);
}

void weft_note_leave(const weft_lane *lane, weft_note_scope scope)
{
    weft_note_enter(lane->device, scope);
}

weft_note_again weft_note_redoes(const weft_lane *lane, weft_note_again again)
{
    weft_note_scope scope = weft_note_scope_of(lane->device);
    const weft_note_again before = scope.again;
    scope.again = again;
    weft_note_enter(lane->device, scope);
    return before;
}

weft_status weft_note_operation(weft_lane *lane, const weft_operation *operation)
{
    const weft_note_scope *scope = &device_of(lane)->scope;
    weft_noted noted = {.kind = WEFT_NOTED_OPERATION,
                        .operation = *operation,
                        .kernel = device_of(lane)->call.kernel,
                        .args = device_of(lane)->call.args};
    weft_operation *o = &noted.operation;
    if (o->count == 0)
        return WEFT_OK;
    if (!o->module)
        o->module = scope->module ? scope->module : "own";
    if (!scope->backward)
        o->phase = WEFT_PHASE_FORWARD;
    else if (o->phase == WEFT_PHASE_FORWARD || scope->again != WEFT_NOTE_NEW)
        o->phase = WEFT_PHASE_RECOMPUTE;
    o->repeated = scope->backward && scope->again == WEFT_NOTE_REPEATED;
    o->inner = scope->inner;
    o->task = scope->task;
    o->flow = scope->flow;
    return keep(lane, &noted);
}

weft_status weft_note_call(weft_lane *lane, const char *kernel, const void *args, size_t args_bytes,
                           const weft_operation *operations, int count)
{
    note_device *d = device_of(lane);
    void *copy;
    if (d->other) {
        WEFT_TRY(weft_arena_alloc(&d->args, args_bytes, &copy));
        d->call.args = memcpy(copy, args, args_bytes);
        d->call.kernel = kernel;
    }
    for (int i = 0; i < count; i++)
        WEFT_TRY(weft_note_operation(lane, &operations[i]));
    d->call.kernel = d->call.args = NULL;
    return WEFT_OK;
}

weft_status weft_note_piece(weft_lane *lane, void *memory, size_t bytes)
{
    return keep(
        lane, &(weft_noted){.kind = WEFT_NOTED_PIECE, .operation = {.bytes = bytes}, .to = memory});
}

void weft_note_keep_calls(weft_device *device, weft_device *other)
{
    ((note_device *)device)->other = other;
}

bool weft_note_keeps_calls(const weft_device *device)
{
    return weft_device_is_note(device) && ((const note_device *)device)->other;
}

bool weft_note_has(const void *memory)
{
    return (uintptr_t)memory >= first_address;
}

weft_noted *weft_notes(const weft_device *device, size_t *out_count)
{
    const note_device *d = (const note_device *)device;
    *out_count = d->count;
    return d->notes;
}

void weft_notes_clear(weft_device *device)
{
    note_device *d = (note_device *)device;
    d->count = d->num_ranges = 0;
}

/* --- ranges --------------------------------------------------------------------------------- */

void weft_notes_keep_ranges(weft_device *device)
{
    ((note_device *)device)->keeps_ranges = true;
}

bool weft_lane_keeps_ranges(const weft_lane *lane)
{
    return weft_device_is_note(lane->device) && device_of(lane)->keeps_ranges;
}

weft_status weft_note_ranges(weft_lane *lane, const char *label, const weft_range *ranges,
                             size_t count)
{
    return weft_lane_keeps_ranges(lane)
               ? keep_ranges(lane, &(weft_noted){.kind = WEFT_NOTED_TOUCH, .label = label}, ranges,
                             count)
               : WEFT_OK;
}

const weft_range *weft_noted_ranges(const weft_device *device)
{
    return ((const note_device *)device)->ranges;
}
