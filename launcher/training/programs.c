#include "launcher/training/programs.h"

#include <string.h>

#include "launcher/planning/step.h"

enum { PROGRAM_TAG = 1021, NUM_ARRAYS = 3 };

/* A program's arrays, one after the other. */
typedef struct array {
    const void **data;
    size_t bytes;
} array;

static void arrays_of(weft_program *program, array out[NUM_ARRAYS])
{
    out[0] = (array){(const void **)&program->tasks, program->num_tasks * sizeof(weft_task)};
    out[1] = (array){(const void **)&program->waits, program->num_waits * sizeof(weft_wait)};
    out[2] =
        (array){(const void **)&program->slots, (size_t)program->num_slots * sizeof(weft_slot)};
}

static weft_status send_program(weft_comm *world, int rank, const weft_program *program)
{
    weft_program copy = *program;
    array arrays[NUM_ARRAYS];
    arrays_of(&copy, arrays);
    WEFT_TRY(weft_comm_send_host(world, rank, PROGRAM_TAG, &copy, sizeof copy));
    for (int i = 0; i < NUM_ARRAYS; i++)
        WEFT_TRY(weft_comm_send_host(world, rank, PROGRAM_TAG, *arrays[i].data, arrays[i].bytes));
    return WEFT_OK;
}

/* Replaces another process's pointers by memory of the arena. */
static weft_status receive_program(weft_comm *world, int rank, weft_arena *arena, weft_program *out)
{
    array arrays[NUM_ARRAYS];
    WEFT_TRY(weft_comm_recv_host(world, rank, PROGRAM_TAG, out, sizeof *out));
    arrays_of(out, arrays);
    for (int i = 0; i < NUM_ARRAYS; i++) {
        void *memory;
        WEFT_TRY(weft_arena_alloc(arena, arrays[i].bytes, &memory));
        *arrays[i].data = memory;
        WEFT_TRY(weft_comm_recv_host(world, rank, PROGRAM_TAG, memory, arrays[i].bytes));
    }
    return WEFT_OK;
}

static weft_status copy_program(const weft_program *program, weft_arena *arena, weft_program *out)
{
    array arrays[NUM_ARRAYS];
    *out = *program;
    arrays_of(out, arrays);
    for (int i = 0; i < NUM_ARRAYS; i++) {
        void *memory;
        WEFT_TRY(weft_arena_alloc(arena, arrays[i].bytes, &memory));
        if (arrays[i].bytes > 0)
            memcpy(memory, *arrays[i].data, arrays[i].bytes);
        *arrays[i].data = memory;
    }
    return WEFT_OK;
}

static weft_status share(const weft_groups *groups, const weft_program *programs, weft_arena *arena,
                         weft_program *out)
{
    weft_comm *pipeline = groups->by_axis[WEFT_AXIS_PP];
    const int first = weft_comm_world_rank(pipeline, 0);
    if (weft_comm_rank(pipeline) > 0)
        return receive_program(groups->world, first, arena, out);
    for (int i = 1; i < weft_comm_size(pipeline); i++)
        WEFT_TRY(send_program(groups->world, weft_comm_world_rank(pipeline, i), &programs[i]));
    return copy_program(&programs[0], arena, out);
}

weft_status weft_programs_share(const weft_groups *groups, const weft_pipeline_shape *shape,
                                weft_arena *arena, weft_program *out)
{
    weft_comm *pipeline = groups->by_axis[WEFT_AXIS_PP];
    weft_arena scratch = {0};
    weft_program *programs = NULL;
    weft_status status = WEFT_OK;
    if (weft_comm_rank(pipeline) == 0)
        status = weft_step_programs(shape, &scratch, &programs);
    status = weft_comm_agree(pipeline, status);
    if (status == WEFT_OK)
        status = share(groups, programs, arena, out);
    weft_arena_release(&scratch);
    return status;
}
