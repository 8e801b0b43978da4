#include "schedule/pipeline.h"

/* A ring of slots, or none where the stage has no such neighbour. */
static int ring_slot(int first, int length, int micro_batch)
{
    return first < 0 ? -1 : first + micro_batch % length;
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

weft_pipeline_slots weft_pipeline_slots_of(const weft_pipeline_shape *shape, int stage)
{
    const bool first = stage == 0, last = stage == shape->num_stages - 1;
    const int bound = max_in_flight(shape, stage);
    weft_pipeline_slots slots = {
        .activation = 0,
        .num_activation = shape->forward_only ? smaller(2, bound) : bound,
        .output = -1,
        .gradient = -1,
        .input_gradient = -1,
    };
    slots.num_slots = bound;
    int *const rings[] = {last ? NULL : &slots.output,
                          last || shape->forward_only ? NULL : &slots.gradient,
                          first || shape->forward_only ? NULL : &slots.input_gradient};
    for (int i = 0; i < 3; i++)
        if (rings[i]) {
            *rings[i] = slots.num_slots;
            slots.num_slots += 2;
        }
    return slots;
}

/* One stage's program while it is written. */
typedef struct writer {
    weft_program_builder *builder;
    weft_pipeline_slots slots;
    int stage;
    bool first, last;
    uint32_t last_backward; /* index */
} writer;

static weft_task task_of(const writer *w, weft_task_kind kind, int micro_batch)
{
    weft_task task = weft_task_of(kind, micro_batch);
    task.stage = w->stage;
    return task;
}

static weft_status append_receive(writer *w, weft_flow flow, int micro_batch, int peer, int slot)
{
    weft_task receive = task_of(w, WEFT_TASK_RECEIVE, micro_batch);
    receive.flow = flow;
    receive.peer = peer;
    receive.writes[0] = slot;
    WEFT_TRY(weft_program_append(w->builder, &receive, NULL, 0, NULL));
    return WEFT_OK;
}

static weft_status append_send(writer *w, weft_flow flow, int micro_batch, int peer, int slot)
{
    weft_task send = task_of(w, WEFT_TASK_SEND, micro_batch);
    send.flow = flow;
    send.peer = peer;
    send.reads[0] = slot;
    WEFT_TRY(weft_program_append(w->builder, &send, NULL, 0, NULL));
    return WEFT_OK;
}

static weft_status append_forward(writer *w, int m)
{
    const int activation = ring_slot(w->slots.activation, w->slots.num_activation, m);
    const int output = ring_slot(w->slots.output, 2, m);
    weft_task forward = task_of(w, WEFT_TASK_FORWARD, m);
    forward.reads[0] = w->first ? -1 : activation;
    forward.writes[0] = activation;
    forward.writes[1] = output;
    if (!w->first)
        WEFT_TRY(append_receive(w, WEFT_FLOW_ACTIVATION, m, w->stage - 1, activation));
    WEFT_TRY(weft_program_append(w->builder, &forward, NULL, 0, NULL));
    if (!w->last)
        WEFT_TRY(append_send(w, WEFT_FLOW_ACTIVATION, m, w->stage + 1, output));
    return WEFT_OK;
}

static weft_status append_backward(writer *w, int m)
{
    const int gradient = ring_slot(w->slots.gradient, 2, m);
    const int input_gradient = ring_slot(w->slots.input_gradient, 2, m);
    weft_task backward = task_of(w, WEFT_TASK_BACKWARD, m);
    backward.reads[0] = ring_slot(w->slots.activation, w->slots.num_activation, m);
    backward.reads[1] = gradient;
    backward.writes[0] = input_gradient;
    if (!w->last)
        WEFT_TRY(append_receive(w, WEFT_FLOW_GRADIENT, m, w->stage + 1, gradient));
    WEFT_TRY(weft_program_append(w->builder, &backward, NULL, 0, &w->last_backward));
    if (!w->first)
        WEFT_TRY(append_send(w, WEFT_FLOW_GRADIENT, m, w->stage - 1, input_gradient));
    return WEFT_OK;
}

/* Gradients are reduced when every micro-batch has added to them, then the optimizer steps: an
 * order that no slot shows. */
static weft_status append_update(writer *w)
{
    const weft_task reduce = task_of(w, WEFT_TASK_REDUCE, -1),
                    step = task_of(w, WEFT_TASK_STEP, -1);
    uint32_t reduced;
    WEFT_TRY(weft_program_append(w->builder, &reduce, &w->last_backward, 1, &reduced));
    WEFT_TRY(weft_program_append(w->builder, &step, &reduced, 1, NULL));
    return WEFT_OK;
}

weft_status weft_program_pipeline(const weft_pipeline_shape *shape, int stage, weft_arena *arena,
                                  weft_program *out)
{
    const int p = shape->num_stages, m = shape->num_micro_batches;
    if (p < 1 || m < 1 || stage < 0 || stage >= p)
        return WEFT_ERROR(WEFT_CONFIG,
                          "no pipeline program for stage %d of %d with %d micro-batches", stage, p,
                          m);
    writer w = {.slots = weft_pipeline_slots_of(shape, stage),
                .stage = stage,
                .first = stage == 0,
                .last = stage == p - 1};
    WEFT_TRY(weft_program_builder_create(arena, &w.builder));

    /* One rule makes every schedule: forward while fewer micro-batches than the bound are in
     * flight, else backward. With a bound of p - i it is 1F1B, with m it is GPipe. */
    const int bound = shape->forward_only ? m : w.slots.num_activation;
    int num_forward = 0, num_backward = 0;
    while (num_forward < m || (num_backward < m && !shape->forward_only)) {
        if (num_forward < m && num_forward - num_backward < bound)
            WEFT_TRY(append_forward(&w, num_forward++));
        else
            WEFT_TRY(append_backward(&w, num_backward++));
    }
    if (!shape->forward_only)
        WEFT_TRY(append_update(&w));
    WEFT_TRY(weft_program_finish(w.builder, w.slots.num_slots, w.slots.num_activation, out));
    return WEFT_OK;
}
