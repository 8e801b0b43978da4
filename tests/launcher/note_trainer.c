#include "tests/launcher/note_trainer.h"

#include <stdlib.h>
#include <string.h>

#include "comm/note/note.h"
#include "core/device/ops.h"
#include "layers/pass/pass.h"
#include "layers/tier/internal.h"
#include "parallel/topology/topology.h"
#include "tests/expect.h"

static const char config_text[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 37, \"num_experts\": 8, "
    "\"moe_router_topk\": 2}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 8, \"train_iters\": 100000, "
    "\"lr\": 2e-3, \"eval_iters\": 0}, "
    "\"data\": {\"mock_data\": true, \"split\": \"1\"}, "
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}";

/* --- what the linker puts before the library's ---------------------------------------------- */

static note_trainer *made; /* the trainer that is made or runs */
static int stage;

weft_status __wrap_weft_device_create_cpu(int num_threads, size_t budget, weft_device **out);
weft_status __wrap_weft_topology_discover(weft_comm *world, weft_arena *arena, weft_topology *out);
weft_status __wrap_weft_groups_create(weft_comm *world, const weft_mesh *mesh,
                                      const weft_groups_use *use, weft_groups *out);
weft_status __wrap_weft_comm_send_host(weft_comm *comm, int to, int tag, const void *data,
                                       size_t bytes);
weft_status __real_weft_step_programs(const weft_pipeline_shape *shape, weft_arena *arena,
                                      weft_program **out);
weft_status __wrap_weft_step_programs(const weft_pipeline_shape *shape, weft_arena *arena,
                                      weft_program **out);
void __real_weft_tier_positions(const weft_tier_run *tier, int layer, const int64_t *offsets,
                                int32_t *out);
void __wrap_weft_tier_positions(const weft_tier_run *tier, int layer, const int64_t *offsets,
                                int32_t *out);

weft_status __wrap_weft_device_create_cpu(int num_threads, size_t budget, weft_device **out)
{
    (void)num_threads, (void)budget;
    WEFT_TRY(weft_device_create_note(out));
    weft_notes_keep_ranges(*out);
    return WEFT_OK;
}

weft_status __wrap_weft_topology_discover(weft_comm *world, weft_arena *arena, weft_topology *out)
{
    *out = (weft_topology){.world = weft_comm_size(world), .num_nodes = 1};
    return WEFT_ARRAY(arena, (size_t)out->world, &out->node_of);
}

/* While it is made a rank takes itself for the first of its pipeline, which has all programs. */
weft_status __wrap_weft_groups_create(weft_comm *world, const weft_mesh *mesh,
                                      const weft_groups_use *use, weft_groups *out)
{
    const weft_coords coords = weft_mesh_coords(mesh, weft_comm_rank(world));
    weft_coords first = coords;
    (void)use;
    first.at[WEFT_AXIS_PP] = 0;
    WEFT_TRY(weft_groups_create_note(world, mesh, &first, out));
    out->coords = coords;
    return WEFT_OK;
}

weft_status __wrap_weft_step_programs(const weft_pipeline_shape *shape, weft_arena *arena,
                                      weft_program **out)
{
    WEFT_TRY(__real_weft_step_programs(shape, arena, out));
    (*out)[0] = (*out)[stage];
    return WEFT_OK;
}

weft_status __wrap_weft_comm_send_host(weft_comm *comm, int to, int tag, const void *data,
                                       size_t bytes)
{
    (void)comm, (void)to, (void)tag, (void)data, (void)bytes;
    return WEFT_OK;
}

/* Any expert may have rows and, but for those that are kept, stand anywhere. */
void __wrap_weft_tier_positions(const weft_tier_run *tier, int layer, const int64_t *offsets,
                                int32_t *out)
{
    const weft_tier_layer *l = weft_tier_layer_of(tier, layer);
    int64_t *rows = l->now, *to = (int64_t *)offsets;
    for (int e = 0; e < l->num_experts; e++)
        rows[e] = offsets[e + 1] - offsets[e];
    for (int e = 0; e < l->num_experts; e++) {
        const size_t with = (size_t)e + note_trainer_draw(made, (size_t)(l->num_experts - e));
        const int64_t drawn = rows[with];
        rows[with] = rows[e];
        to[e + 1] = to[e] + drawn;
    }
    __real_weft_tier_positions(tier, layer, offsets, out);
    for (int q = l->num_kept; made->anywhere && q < l->num_experts; q++) {
        const size_t with = (size_t)q + note_trainer_draw(made, (size_t)(l->num_experts - q));
        const int32_t drawn = out[with];
        out[with] = out[q];
        out[q] = drawn;
    }
}

/* --- a trainer ------------------------------------------------------------------------------ */

static weft_task_function run_forward, run_backward;

static void begin_pass(const weft_trainer *t)
{
    if (!weft_model_goes_on(t->model) && made->num_passes < NOTE_MAX_PASSES)
        weft_notes(t->device, &made->passes[made->num_passes++]);
}

static weft_status run_noted(void *context, const weft_task *task, weft_lane *lane)
{
    begin_pass(context);
    return run_backward(context, task, lane);
}

/* In some steps experts have many rows, in some few or none. */
static weft_status run_drawn(void *context, const weft_task *task, weft_lane *lane)
{
    static const double loads[] = {0.01, 0.1, 0.3, 1};
    weft_trainer *t = context;
    if (task->micro_batch == 0 && task->chunk == 0) {
        made->least = note_trainer_draw(made, 2) ? 3 : 0;
        made->most = made->least + note_trainer_draw(made, 4 - made->least);
        made->anywhere = note_trainer_draw(made, 2);
    }
    t->model->shape.moe_load =
        loads[made->least + note_trainer_draw(made, 1 + made->most - made->least)];
    begin_pass(t);
    return run_forward(context, task, lane);
}

size_t note_trainer_draw(note_trainer *n, size_t below)
{
    n->random = n->random * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(n->random >> 33) % below;
}

void note_trainer_open(note_trainer *n, const note_trainer_case *c)
{
    weft_config config;
    weft_config_source source = {
        .file = c->mesh, .text = config_text, .mesh = c->mesh, .set = c->set};
    *n = (note_trainer){.random = 7};
    made = n;
    stage = c->stage;
    while (source.num_set < NOTE_MAX_SET && c->set[source.num_set])
        source.num_set++;
    EXPECT_OK(weft_comm_create_note("world", WEFT_AXIS_NONE, c->rank, c->world, &n->world));
    EXPECT_OK(weft_config_load(&source, &n->arena, &config));
    EXPECT_OK(weft_trainer_create(&n->trainer, &config, &source, n->world, &n->arena));
    weft_groups *groups = &n->trainer.groups;
    weft_comm_destroy(groups->by_axis[WEFT_AXIS_PP]);
    EXPECT_OK(weft_comm_create_note("pp", WEFT_AXIS_PP, c->stage, groups->mesh.pp,
                                    &groups->by_axis[WEFT_AXIS_PP]));
    EXPECT_OK(weft_trainer_start(&n->trainer, NULL));
    weft_task_function *run = n->trainer.executor.run;
    run_forward = run[WEFT_TASK_FORWARD];
    run_backward = run[WEFT_TASK_BACKWARD];
    run[WEFT_TASK_FORWARD] = run_drawn;
    run[WEFT_TASK_BACKWARD] = run_noted;
}

void note_trainer_close(note_trainer *n)
{
    weft_trainer_release(&n->trainer);
    weft_comm_destroy(n->world);
    weft_arena_release(&n->arena);
    free(n->notes);
    free(n->steps);
}

/* --- its notes ------------------------------------------------------------------------------ */

enum { MAX_LANES = 64, MAX_STEPS = 4 };
static weft_event ends[MAX_STEPS * MAX_LANES];

bool note_trainer_ends(const weft_event *event)
{
    return event >= ends && event < ends + MAX_STEPS * MAX_LANES;
}

/* Whether the lane is the host's, whose work a step's end does not wait for. */
static bool runs_on(const weft_trainer *t, const weft_lane *lane)
{
    const weft_tier_run *tier = t->model->tier;
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if ((t->executor.runs_on >> i & 1 && t->executor.lanes[i] == lane) ||
            (tier && tier->lanes[i] == lane))
            return true;
    return false;
}

/* The lanes of the notes that end with a step. */
static int list_lanes(const weft_trainer *t, const weft_noted *notes, size_t count,
                      const weft_lane *out[MAX_LANES])
{
    int num = 0;
    for (size_t i = 0; i < count; i++) {
        int k = 0;
        while (k < num && out[k] != notes[i].lane)
            k++;
        if (k == num && notes[i].lane && num < MAX_LANES && !runs_on(t, notes[i].lane))
            out[num++] = notes[i].lane;
    }
    return num;
}

enum { MAX_RING_EVENTS = 64 };

/* The number of a slot's event, of those that an expert's weights or gradient pass through; -1. */
static int ring_event(const weft_trainer *t, const weft_event *event)
{
    const weft_tier_run *tier = t->model->tier;
    int number = 0;
    for (int i = 0; tier && i < tier->num_slots; i++, number += 2)
        if (tier->slots[i].used == event || tier->slots[i].filled == event)
            return number + (tier->slots[i].filled == event);
    for (int i = 0; tier && i < WEFT_TIER_GRADIENTS; i++, number++)
        if (tier->gradients[i].free == event)
            return number;
    for (int i = 0; tier && i < WEFT_EXPERTS_STAGING; i++, number++)
        if (tier->staging[i].free == event)
            return number;
    return -1;
}

/* Marks the waits for slots by which a pass waits for itself: what orders it, is its program. What
 * is recomputed is a program of its own. */
static void find_inside(const note_trainer *n, const weft_noted *all, size_t count, bool *inside)
{
    const bool repeats = n->trainer.config.train.recompute.granularity != WEFT_RECOMPUTE_NONE;
    size_t latest[MAX_RING_EVENTS] = {0};
    int pass = 0;
    for (size_t i = 0; i < count; i++) {
        const int ring = all[i].event ? ring_event(&n->trainer, all[i].event) : -1;
        while (pass < n->num_passes && n->passes[pass] <= i)
            pass++;
        if (ring >= 0 && all[i].kind == WEFT_NOTED_RECORD)
            latest[ring] = i + 1;
        inside[i] = ring >= 0 && all[i].kind == WEFT_NOTED_WAIT && pass > 0 &&
                    latest[ring] > n->passes[pass - 1] && !repeats;
    }
}

static void put(note_trainer *n, weft_noted_kind kind, const weft_lane *lane,
                const weft_event *event)
{
    n->notes[n->count++] = (weft_noted){.kind = kind, .lane = lane, .event = event};
}

/* Lists the notes, as note_trainer.h says. */
static void list_notes(note_trainer *n, const size_t *begins, int steps)
{
    size_t count;
    const weft_noted *all = weft_notes(n->trainer.device, &count);
    const weft_lane *lanes[MAX_LANES];
    const int num = list_lanes(&n->trainer, all, count, lanes);
    n->notes = malloc((count + (size_t)(steps * num * (num + 1))) * sizeof *n->notes);
    n->steps = calloc((size_t)steps + 1, sizeof *n->steps);
    bool *inside = malloc(count * sizeof *inside);
    find_inside(n, all, count, inside);
    for (int s = 0; s < steps; s++) {
        const weft_event *end = ends + s * MAX_LANES;
        n->steps[s] = n->count;
        for (size_t i = begins[s]; i < begins[s + 1]; i++)
            if (all[i].kind < WEFT_NOTED_HOST_WAIT && !inside[i])
                n->notes[n->count++] = all[i];
        for (int k = 0; k < num; k++)
            put(n, WEFT_NOTED_RECORD, lanes[k], &end[k]);
        for (int k = 0; k < num * num; k++)
            put(n, WEFT_NOTED_WAIT, lanes[k / num], &end[k % num]);
    }
    free(inside);
    n->steps[steps] = n->count;
    n->ranges = weft_noted_ranges(n->trainer.device);
}

weft_status note_trainer_run(note_trainer *n, int steps)
{
    weft_step_result result;
    size_t begins[MAX_STEPS + 1] = {0};
    free(n->notes);
    free(n->steps);
    n->notes = NULL;
    n->steps = NULL;
    n->count = 0;
    n->num_passes = 0;
    weft_notes_clear(n->trainer.device);
    for (int s = 0; s < steps; s++) {
        WEFT_TRY(weft_trainer_step(&n->trainer, &result));
        weft_notes(n->trainer.device, &begins[s + 1]);
    }
    list_notes(n, begins, steps);
    return WEFT_OK;
}
