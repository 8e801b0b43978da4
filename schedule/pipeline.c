#include "schedule/pipeline.h"

#include "schedule/operands.h"
#include "schedule/update.h"

/* Slots of one kind. */
typedef struct ring {
    int first, length; /* length 0: the stage has no use for it */
} ring;

static int slot_in(ring of, int micro_batch)
{
    return of.length > 0 ? of.first + micro_batch % of.length : -1;
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* How many micro-batches may be forwarded and not yet backwarded in training. */
static int max_in_flight(const weft_pipeline_shape *shape, int stage)
{
    const int m = shape->num_micro_batches;
    return shape->kind == WEFT_PIPELINE_1F1B ? smaller(shape->num_stages - stage, m) : m;
}

/* One stage's program while it is written. */
typedef struct writer {
    weft_program_builder *builder;
    const weft_pipeline_shape *shape;
    ring activation, output, gradient, input_gradient;
    int stage;
    bool first, last;
    uint32_t last_backward; /* index */
} writer;

static weft_status add_ring(writer *w, weft_slot_kind holds, int length, ring *out)
{
    const weft_slot slot = {.holds = holds, .chunk = -1, .bytes = w->shape->boundary_bytes};
    *out = (ring){.length = length};
    return weft_program_add_slots(w->builder, &slot, length, &out->first);
}

static weft_status add_slots(writer *w)
{
    const weft_pipeline_shape *shape = w->shape;
    const int bound = max_in_flight(shape, w->stage);
    weft_slot slot = {
        .holds = WEFT_SLOT_ACTIVATION, .chunk = 0, .bytes = w->first ? 0 : shape->boundary_bytes};
    w->activation.length = shape->forward_only ? smaller(2, bound) : bound;
    WEFT_TRY(weft_program_add_slots(w->builder, &slot, w->activation.length, &w->activation.first));
    slot.bytes = 0;
    WEFT_TRY(weft_program_add_slots(w->builder, &slot, bound - w->activation.length, NULL));
    WEFT_TRY(add_ring(w, WEFT_SLOT_OUTPUT, w->last ? 0 : 2, &w->output));
    const bool back = !shape->forward_only;
    WEFT_TRY(add_ring(w, WEFT_SLOT_GRADIENT, back && !w->last ? 2 : 0, &w->gradient));
    return add_ring(w, WEFT_SLOT_INPUT_GRADIENT, back && !w->first ? 2 : 0, &w->input_gradient);
}

static weft_task task_of(weft_task_kind kind, weft_flow flow, int micro_batch)
{
    weft_task task = weft_task_of(kind, flow);
    task.micro_batch = micro_batch;
    task.chunk = 0;
    return task;
}

/* A SEND or RECEIVE, whose one operand is the slot. */
static weft_status append_message(writer *w, weft_task_kind kind, weft_flow flow, int micro_batch,
                                  int peer, int slot)
{
    weft_task message = task_of(kind, flow, micro_batch);
    message.peer = peer;
    message.operands[0] = slot;
    return weft_program_append(w->builder, &message, NULL, 0, NULL);
}

static weft_status append_forward(writer *w, int m)
{
    const int activation = slot_in(w->activation, m), output = slot_in(w->output, m);
    weft_task forward = task_of(WEFT_TASK_FORWARD, WEFT_FLOW_NONE, m);
    const int32_t operands[] = {w->first ? -1 : activation, activation, output}; /* x, stash, y */
    for (int i = 0; i < 3; i++)
        forward.operands[i] = operands[i];
    if (!w->first)
        WEFT_TRY(append_message(w, WEFT_TASK_RECEIVE, WEFT_FLOW_ACTIVATION, m, w->stage - 1,
                                activation));
    WEFT_TRY(weft_program_append(w->builder, &forward, NULL, 0, NULL));
    if (!w->last)
        WEFT_TRY(append_message(w, WEFT_TASK_SEND, WEFT_FLOW_ACTIVATION, m, w->stage + 1, output));
    return WEFT_OK;
}

static weft_status append_backward(writer *w, int m)
{
    const int gradient = slot_in(w->gradient, m), input_gradient = slot_in(w->input_gradient, m);
    weft_task backward = task_of(WEFT_TASK_BACKWARD, WEFT_FLOW_NONE, m);
    const int32_t operands[] = {slot_in(w->activation, m), gradient, input_gradient};
    for (int i = 0; i < 3; i++) /* stash, dy, dx */
        backward.operands[i] = operands[i];
    if (!w->last)
        WEFT_TRY(
            append_message(w, WEFT_TASK_RECEIVE, WEFT_FLOW_GRADIENT, m, w->stage + 1, gradient));
    WEFT_TRY(weft_program_append(w->builder, &backward, NULL, 0, &w->last_backward));
    if (!w->first)
        WEFT_TRY(
            append_message(w, WEFT_TASK_SEND, WEFT_FLOW_GRADIENT, m, w->stage - 1, input_gradient));
    return WEFT_OK;
}

static weft_status append_update(writer *w)
{
    static const weft_buckets none;
    const weft_buckets *buckets = w->shape->buckets ? &w->shape->buckets[w->stage] : &none;
    return weft_program_append_update(w->builder, buckets, &w->last_backward);
}

static weft_status check_shape(const weft_pipeline_shape *shape, int stage)
{
    const int p = shape->num_stages, m = shape->num_micro_batches;
    if (p < 1 || m < 1 || stage < 0 || stage >= p)
        return WEFT_ERROR(WEFT_CONFIG,
                          "no pipeline program for stage %d of %d with %d micro-batches", stage, p,
                          m);
    return WEFT_OK;
}

weft_status weft_program_pipeline(const weft_pipeline_shape *shape, int stage, weft_arena *arena,
                                  weft_program *out)
{
    WEFT_TRY(check_shape(shape, stage));
    const int p = shape->num_stages, m = shape->num_micro_batches;
    writer w = {.shape = shape, .stage = stage, .first = stage == 0, .last = stage == p - 1};
    WEFT_TRY(weft_program_builder_create(arena, &w.builder));
    WEFT_TRY(add_slots(&w));

    /* One rule makes every schedule: forward while fewer micro-batches than the bound are in
     * flight, else backward. With a bound of p - i it is 1F1B, with m it is GPipe. */
    const int bound = shape->forward_only ? m : w.activation.length;
    int num_forward = 0, num_backward = 0;
    while (num_forward < m || (num_backward < m && !shape->forward_only)) {
        if (num_forward < m && num_forward - num_backward < bound)
            WEFT_TRY(append_forward(&w, num_forward++));
        else
            WEFT_TRY(append_backward(&w, num_backward++));
    }
    if (!shape->forward_only)
        WEFT_TRY(append_update(&w));
    WEFT_TRY(weft_program_finish(w.builder, w.activation.length, out));
    return WEFT_OK;
}
