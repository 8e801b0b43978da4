#include "layers/pass/offload_rings.h"

weft_status weft_offload_create(weft_device *device, const weft_offload_sizes *sizes,
                                const weft_tensor *row, weft_offload_rings *ring)
{
    ring->device = device;
    ring->input_bytes = sizes->input_bytes;
    for (; ring->num_slots < sizes->num_slots; ring->num_slots++) {
        weft_stack *stack = &ring->slots[ring->num_slots].stack;
        *stack = (weft_stack){
            .device = device, .holds = WEFT_MEMORY_ACTIVATIONS, .purpose = "offloaded activations"};
        WEFT_TRY(weft_event_create(device, &ring->slots[ring->num_slots].used));
        WEFT_TRY(weft_stack_reserve(stack, sizes->slot_bytes[ring->num_slots]));
    }
    for (; ring->num_inputs < sizes->num_inputs; ring->num_inputs++) {
        void *data;
        WEFT_TRY(weft_event_create(device, &ring->inputs[ring->num_inputs].used));
        WEFT_TRY(weft_device_alloc_for(device, WEFT_SPACE_DEVICE, WEFT_MEMORY_ACTIVATIONS,
                                       ring->input_bytes, "offloaded activations", &data));
        ring->inputs[ring->num_inputs].rows = *row;
        ring->inputs[ring->num_inputs].rows.data = data;
    }
    if (ring->num_slots == 0)
        return WEFT_OK;
    /* priorities of device.h: communication before copies */
    WEFT_TRY(weft_lane_create(device, 1, "offload", &ring->out));
    return weft_lane_create(device, 1, "prefetch", &ring->back);
}

void weft_offload_release(weft_offload_rings *ring)
{
    weft_lane_destroy(ring->out);
    weft_lane_destroy(ring->back);
    for (int i = 0; i < WEFT_OFFLOAD_SLOTS; i++) {
        weft_stack_release(&ring->slots[i].stack);
        weft_event_destroy(ring->slots[i].used);
    }
    for (int i = 0; i < WEFT_OFFLOAD_INPUTS; i++) {
        if (ring->inputs[i].rows.data)
            weft_device_free(ring->device, WEFT_SPACE_DEVICE, ring->inputs[i].rows.data,
                             ring->input_bytes);
        weft_event_destroy(ring->inputs[i].used);
    }
}

const weft_tensor *weft_offload_input(const weft_offload_rings *ring, int k)
{
    return &ring->inputs[k].rows;
}

/* The index of an operand's slot in its ring; -1: no ring has it. */
static int number_of(const weft_program *program, const weft_task *task, weft_operand_name name,
                     weft_slot_kind holds)
{
    const int slot = weft_task_slot(task, name);
    int first = slot;
    if (slot < 0 || program->slots[slot].holds != holds)
        return -1;
    while (first > 0 && program->slots[first - 1].holds == holds)
        first--;
    return slot - first;
}

static int part_of(const weft_program *program, const weft_task *task)
{
    return number_of(program, task, WEFT_OPERAND_OFFLOADED, WEFT_SLOT_OFFLOADED);
}

static int input_of(const weft_program *program, const weft_task *task, weft_operand_name name)
{
    return number_of(program, task, name, WEFT_SLOT_OFFLOADED_LAYER);
}

weft_status weft_offload_begin(weft_offload_rings *ring, const weft_program *program,
                               const weft_task *task, const weft_pass *pass, weft_lane *lane,
                               weft_stack **out_stack)
{
    const int part = part_of(program, task), next = input_of(program, task, WEFT_OPERAND_Y);
    *out_stack = NULL;
    if (next >= 0) {
        WEFT_TRY(weft_lane_wait(lane, ring->inputs[next].used));
        ring->inputs[next].holds = (weft_occupant){pass, task->layer + 1};
    }
    if (part < 0)
        return WEFT_OK;
    WEFT_TRY(weft_lane_wait(lane, ring->slots[part].used));
    weft_stack_rewind(&ring->slots[part].stack, 0);
    ring->slots[part].holds = (weft_occupant){pass, task->layer};
    *out_stack = &ring->slots[part].stack;
    return WEFT_OK;
}

/* Records that the lane has used the slots of the task's part and input. */
static weft_status note_use(weft_offload_rings *ring, const weft_program *program,
                            const weft_task *task, weft_lane *lane)
{
    const int part = part_of(program, task), input = input_of(program, task, WEFT_OPERAND_X);
    if (part >= 0)
        WEFT_TRY(weft_lane_record(lane, ring->slots[part].used));
    return input < 0 ? WEFT_OK : weft_lane_record(lane, ring->inputs[input].used);
}

weft_status weft_offload_end(weft_offload_rings *ring, const weft_program *program,
                             const weft_task *task, weft_lane *lane)
{
    return note_use(ring, program, task, lane);
}

static weft_status copy(weft_lane *lane, bool out, char *device, char *host, size_t bytes)
{
    return bytes == 0 ? WEFT_OK
                      : weft_lane_copy(lane, out ? host : device, out ? device : host, bytes);
}

/* Copies between a layer's slots and its host copy. */
static weft_status copy_part(const weft_offload_rings *ring, int part, const weft_offloaded *c,
                             bool out, weft_lane *lane, char *host)
{
    const weft_stack *stack = &ring->slots[part].stack;
    for (int b = 0; b < stack->num_blocks; host += c->used[b++])
        WEFT_TRY(copy(lane, out, stack->blocks[b].base, host, c->used[b]));
    return WEFT_OK;
}

static weft_status copy_input(const weft_offload_rings *ring, int input, bool out, weft_lane *lane,
                              char *host)
{
    const weft_tensor *rows = &ring->inputs[input].rows;
    return copy(lane, out, rows->data, host, weft_tensor_bytes(rows));
}

weft_status weft_offload_out(weft_offload_rings *ring, const weft_program *program,
                             const weft_task *task, bool keeps, weft_stack *host, weft_offloaded *c,
                             weft_lane *lane)
{
    const int part = part_of(program, task), input = input_of(program, task, WEFT_OPERAND_X);
    const size_t before = input < 0 ? 0 : ring->input_bytes;
    const weft_stack *stack = &ring->slots[part].stack;
    size_t bytes = before;
    void *memory;
    if (!keeps)
        return note_use(ring, program, task, lane);
    for (int b = 0; b < WEFT_STACK_MAX_BLOCKS; b++) {
        c->used[b] = b < stack->num_blocks ? stack->blocks[b].used : 0;
        bytes += c->used[b];
    }
    WEFT_TRY(weft_stack_alloc(host, bytes, &memory));
    c->host = memory;
    if (input >= 0)
        WEFT_TRY(copy_input(ring, input, true, lane, c->host));
    WEFT_TRY(copy_part(ring, part, c, true, lane, c->host + before));
    return note_use(ring, program, task, lane);
}

static bool is_there(const weft_occupant *holds, const weft_pass *pass, int layer)
{
    return holds->pass == pass && holds->layer == layer;
}

weft_status weft_offload_back(weft_offload_rings *ring, const weft_program *program,
                              const weft_task *task, const weft_pass *pass, const weft_offloaded *c,
                              weft_lane *lane)
{
    const int part = part_of(program, task), input = input_of(program, task, WEFT_OPERAND_X);
    const weft_occupant mine = {pass, task->layer};
    if (input >= 0) {
        WEFT_TRY(weft_lane_wait(lane, ring->inputs[input].used));
        if (!is_there(&ring->inputs[input].holds, pass, task->layer))
            WEFT_TRY(copy_input(ring, input, false, lane, c->host));
        ring->inputs[input].holds = mine;
    }
    WEFT_TRY(weft_lane_wait(lane, ring->slots[part].used));
    if (!is_there(&ring->slots[part].holds, pass, task->layer))
        WEFT_TRY(
            copy_part(ring, part, c, false, lane, c->host + (input < 0 ? 0 : ring->input_bytes)));
    ring->slots[part].holds = mine;
    return WEFT_OK;
}
