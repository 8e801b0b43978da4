#include "launcher/training/setup.h"

#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "comm/note/note.h"
#include "core/file.h"
#include "core/log.h"
#include "kernels/host.h"
#include "launcher/planning/ramp.h"
#include "launcher/planning/step.h"
#include "launcher/training/cards.h"
#include "launcher/training/data_copies.h"
#include "launcher/training/progress.h"
#include "layers/outline/footprint.h"
#include "parallel/mesh/mesh.h"
#include "parallel/topology/topology.h"
#include "schedule/pipeline/pipeline.h"

/* Of the disk; the file's folder may be missing, which is told when the file is made. */
static uint64_t disk_left(const char *folder, int num_ranks)
{
    struct statvfs info;
    return statvfs(folder, &info) == 0
               ? (uint64_t)info.f_bavail * info.f_frsize / (uint64_t)num_ranks
               : UINT64_MAX;
}

weft_tier_room weft_setup_room(const weft_config *config)
{
    weft_tier_room out = weft_tier_room_of(config);
    out.file_is_host = weft_path_is_memory(config->tier.path);
    int rank, size, local_rank, local_size;
    if (!weft_comm_launched(&rank, &size, &local_rank, &local_size) || local_size < 1)
        local_size = 1;
    if (config->tier.file_limit == 0) {
        out.file_bytes = disk_left(config->tier.path, local_size);
        out.sharers = out.file_bytes < UINT64_MAX ? local_size : 0;
    }
    if (config->tier.host_memory_limit > 0)
        return out;
    out.host_bytes = weft_machine_memory_left() / (uint64_t)local_size;
    out.is_host = config->device.kind == WEFT_DEVICE_KIND_CPU;
    return out;
}

/* The least there is on a node. Collective. */
static weft_status find_room(weft_trainer *t, weft_tier_room *out)
{
    *out = weft_setup_room(&t->config);
    double of_all[] = {-(double)out->host_bytes, out->file_is_host};
    WEFT_TRY(weft_comm_all_reduce_host(t->world, of_all, 2, WEFT_F64, WEFT_REDUCE_MAX));
    if (t->config.tier.host_memory_limit == 0)
        out->host_bytes = -of_all[0] < 0x1p63 ? (uint64_t)-of_all[0] : UINT64_MAX;
    out->file_is_host = of_all[1] > 0;
    return WEFT_OK;
}

/* Where the trainer's experts are: chosen where the config leaves it open, and whether they fit as
 * it trains, or evaluates. Logs the bytes of each tier. Rank 0 chooses for all; collective. Errors:
 * those of weft_tier_require. */
static weft_status setup_tier(weft_trainer *t, const weft_config_source *source,
                              const weft_mesh *mesh)
{
    t->config.tier = weft_tier_as_asked(&t->config.tier);
    weft_tier_selection found = {.options = t->config.tier};
    weft_tier_room room;
    weft_status status = WEFT_OK;
    if (!weft_tier_pins(&t->config))
        return WEFT_OK;
    WEFT_TRY(find_room(t, &room));
    if (weft_comm_rank(t->world) == 0)
        status = weft_tier_require(t->evaluates ? WEFT_STEP_EVALUATES : WEFT_STEP_TRAINS,
                                   &t->config, mesh, &t->moe.options, &room, &found);
    WEFT_TRY(weft_comm_agree(t->world, weft_config_locate(source, status)));
    WEFT_TRY(weft_comm_broadcast_host(t->world, &found, sizeof found, 0));
    found.options.path = t->config.tier.path; /* not the other rank's */
    t->config.tier = found.options;
    if (found.reason[0])
        weft_log(WEFT_LOG_INFO, "%s", found.reason);
    if (room.file_is_host && found.options.experts == WEFT_TIER_FILE &&
        weft_comm_rank(t->world) == 0)
        weft_log(WEFT_LOG_WARN,
                 "offload.path: %s is in memory (tmpfs), not on a disk: the experts' file takes "
                 "host memory",
                 t->config.tier.path);
    return WEFT_OK;
}

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

/* This rank's program of the shape, from the arena. Collective over the pipeline; its ranks return
 * the same status. */
static weft_status programs_share(const weft_groups *groups, const weft_pipeline_shape *shape,
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

/* What the config fixes of the MoE layers' programs; false: something is chosen later. */
static bool fixed_moe(const weft_config *config, const weft_mesh *mesh, weft_moe_options *out)
{
    *out = (weft_moe_options){.pipeline = {.num_partitions = 1},
                              .load.rows = weft_model_forced_load(&config->model, mesh->ep)};
    return weft_moe_fixed_pipeline(&config->schedule, mesh->ep, &out->pipeline) ||
           config->model.num_experts == 0;
}

/* A rank's model and optimizer on the device `note`, which has no memory. */
typedef struct noted {
    weft_device *device;
    weft_comm *world;
    weft_groups groups;
    weft_model *model;
    weft_optimizer *optimizer;
} noted;

static weft_status note_rank(const weft_config *c, const weft_mesh *mesh,
                             const weft_moe_options *moe, int rank, noted *out)
{
    weft_model_setup setup = weft_step_setup(c, moe);
    const weft_coords coords = weft_mesh_coords(mesh, rank);
    WEFT_TRY(weft_device_create_note(&out->device));
    WEFT_TRY(weft_comm_create_note("world", WEFT_AXIS_NONE, rank, mesh->world, &out->world));
    WEFT_TRY(weft_groups_create_note(out->world, mesh, &coords, &out->groups));
    setup.groups = &out->groups;
    setup.device = out->device;
    setup.bucket_elements = (size_t)c->parallel.ddp_bucket_size;
    setup.accumulates = weft_step_accumulates(c, mesh);
    setup.host_threads = 1;
    setup.num_passes = 1;
    WEFT_TRY(weft_model_create(&setup, weft_config_build(c), &out->model));
    return weft_optimizer_create(
        weft_model_parameters(out->model),
        &(weft_optimizer_options){.muon.dtype = weft_config_dtype(c),
                                  .sharding = weft_parallel_sharding(&c->parallel),
                                  .split_master = c->train.split_master,
                                  .host_threads = 1},
        &out->optimizer);
}

static void release_noted(noted *n)
{
    weft_optimizer_destroy(n->optimizer);
    weft_model_destroy(n->model);
    weft_groups_release(&n->groups);
    weft_comm_destroy(n->world);
    weft_device_destroy(n->device);
}

/* What a start refuses of checkpoint.staging_bytes: a piece of some rank's state is larger. The
 * first rank of a stage has the largest. Experts in a file or dealt out need the files and memory
 * of the start itself. */
static weft_status check_staging(const weft_config *c, const weft_mesh *mesh,
                                 const weft_moe_options *moe)
{
    const weft_checkpoint_options *o = &c->checkpoint;
    const weft_tier_options *tier = &c->tier;
    weft_status status = WEFT_OK;
    if (!o->async_save || o->no_save || o->staging_bytes == 0 || tier->experts == WEFT_TIER_FILE ||
        weft_tier_is_placed(tier))
        return WEFT_OK;
    for (int stage = 0; stage < mesh->pp && status == WEFT_OK; stage++) {
        noted n = {0};
        size_t bytes;
        status = note_rank(c, mesh, moe, weft_mesh_rank(mesh, 0, 0, 0, stage), &n);
        if (status == WEFT_OK)
            status = weft_checkpoint_find_staging(n.optimizer, (size_t)o->staging_bytes, &bytes);
        release_noted(&n);
    }
    return status;
}

weft_status weft_setup_check_model(const weft_config *config, const weft_config_source *source,
                                   const weft_mesh *mesh)
{
    weft_config copy = *config;
    weft_step step = {0};
    weft_moe_options moe;
    weft_arena arena = {0};
    weft_tier_selection tier;
    const weft_tier_room room = weft_tier_room_of(config);
    const bool is_open = weft_mesh_leaves_form(config, mesh);
    bool is_fixed = fixed_moe(config, mesh, &moe);
    WEFT_TRY(weft_config_locate(source, weft_setup_vocabulary(&copy)));
    weft_status status = WEFT_OK;
    if (!is_open && is_fixed && weft_tier_is_open(config))
        status = weft_tier_require(WEFT_STEP_TRAINS, &copy, mesh, &moe, &room, &tier);
    if (weft_tier_is_left_open(&config->tier)) /* the ranks choose */
        copy.tier.experts = WEFT_TIER_NONE;
    if (status == WEFT_OK)
        status = weft_step_make(WEFT_STEP_TRAINS, &copy, mesh, &moe, &arena, &step);
    if (status == WEFT_OK)
        status = weft_step_check_ramp(&copy, &step);
    if (status == WEFT_OK)
        status = weft_progress_check_metrics(&step.outline.metrics);
    if (status == WEFT_OK && !is_open && !weft_tier_is_open(config) &&
        (is_fixed || !weft_moe_dims_of(&copy.model, &step.outline.shape).exchange))
        status = weft_tier_check_room(&copy, mesh, &step, &room);
    if (status == WEFT_OK && !weft_tier_is_open(config))
        status = check_staging(&copy, mesh, &moe);
    weft_step_release(&step);
    weft_arena_release(&arena);
    return weft_config_locate(source, status);
}

static weft_status check_threads(const char *key, int64_t threads)
{
    weft_machine machine;
    if (threads == 0)
        return WEFT_OK;
    WEFT_TRY(weft_machine_discover(NULL, &machine));
    return threads <= machine.num_processing_units
               ? WEFT_OK
               : WEFT_KEY_ERROR(key,
                                "%lld threads a rank, and this machine runs %d at once; 0 takes a "
                                "rank's share",
                                (long long)threads, machine.num_processing_units);
}

weft_status weft_setup_check_device(const weft_config *config, const weft_config_source *source)
{
    weft_device *device = NULL;
    weft_status threads = check_threads("device.num_threads", config->device.num_threads);
    if (threads == WEFT_OK)
        threads = check_threads("offload.num_threads", config->tier.num_threads);
    WEFT_TRY(weft_config_locate(source, threads));
    if (config->device.kind != WEFT_DEVICE_KIND_CUDA || weft_device_num_cuda(NULL) > 0)
        return WEFT_OK;
    weft_status status = weft_device_create_cuda(0, 0, &device); /* says what is missing */
    weft_device_destroy(device);
    return weft_config_locate(source, weft_error_key(status, "device.kind"));
}

/* Before MPI, which may start the driver as well: what the device wants of the environment is read
 * then. */
void weft_setup_driver(const weft_config *config)
{
    if (config->device.kind == WEFT_DEVICE_KIND_CUDA)
        (void)weft_device_num_cuda(NULL);
}

static weft_status bind_near(const weft_device *gpu)
{
    char bus[WEFT_GPU_BUS_BYTES];
    int sharers;
    return weft_device_gpu_bus(gpu, bus)
               ? weft_machine_bind(bus, 0, 1, &sharers)
               : WEFT_ERROR(WEFT_DEVICE,
                            "the driver does not say where the GPU is (device.bind_numa)");
}

weft_status weft_setup_device(const weft_config *config, weft_device **out)
{
    int rank, size, local_rank, local_size;
    size_t budget = (size_t)config->device.memory_limit;
    if (!weft_comm_launched(&rank, &size, &local_rank, &local_size) || local_size < 1) {
        local_rank = 0;
        local_size = 1;
    }
    int sharers = local_size;
    if (config->device.kind == WEFT_DEVICE_KIND_CUDA) {
        int count = weft_device_num_cuda(NULL);
        WEFT_TRY(weft_device_create_cuda(count > 0 ? local_rank % count : 0, budget, out));
        return config->device.bind_numa ? bind_near(*out) : WEFT_OK;
    }
    if (config->device.bind_numa)
        WEFT_TRY(weft_machine_bind(NULL, local_rank, local_size, &sharers));
    int threads = (int)config->device.num_threads;
    if (threads == 0)
        threads = weft_machine_allowed_cores() / sharers;
    weft_host_prepare();
    WEFT_TRY(weft_device_create_cpu(threads < 1 ? 1 : threads, budget, out));
    weft_device_set_pace(*out, weft_config_pace(config));
    return WEFT_OK;
}

/* --- the trainer --------------------------------------------------------------------------- */

static int num_sizes(const weft_trainer *t)
{
    return t->evaluates ? 0 : weft_ramp_num_sizes(&t->config.train);
}

/* Evaluation's programs are of the same shape, without buckets. */
static weft_status make_shapes(weft_trainer *t, const weft_step *step)
{
    weft_trainer_programs *programs = &t->runs;
    programs->train.shape = programs->eval.shape = step->shape;
    programs->eval.shape.forward_only = true;
    programs->of_step = &programs->train;
    WEFT_TRY(WEFT_ARRAY(t->arena, (size_t)num_sizes(t) + 1, &programs->ramp));
    for (int i = 0; i < num_sizes(t); i++)
        WEFT_TRY(weft_step_shape_of(&t->config, step, weft_ramp_size(&t->config.train, i), t->arena,
                                    &programs->ramp[i].shape));
    return WEFT_OK;
}

static weft_status fit_slots(weft_trainer *t, weft_trainer_program *part)
{
    int *slots;
    WEFT_TRY(WEFT_ARRAY(t->arena, (size_t)part->program.num_slots + 1, &slots));
    part->slots = slots;
    return weft_ramp_fit_slots(&part->program, &t->runs.train.program, &part->shape,
                               t->groups.coords.at[WEFT_AXIS_PP], slots)
               ? WEFT_OK
               : WEFT_ERROR(WEFT_INTERNAL, "slots of a step of %d micro-batches",
                            part->shape.num_micro_batches);
}

static weft_status make_programs(weft_trainer *t)
{
    weft_trainer_programs *programs = &t->runs;
    weft_step step;
    weft_status status = weft_step_start(WEFT_STEP_TRAINS, &t->config, &t->groups.mesh,
                                         &t->moe.options, t->arena, &step);
    if (status == WEFT_OK) {
        status = make_shapes(t, &step);
        weft_step_release(&step);
    }
    WEFT_TRY(weft_comm_agree(t->world, status));
    WEFT_TRY(
        programs_share(&t->groups, &programs->train.shape, t->arena, &programs->train.program));
    WEFT_TRY(programs_share(&t->groups, &programs->eval.shape, t->arena, &programs->eval.program));
    status = WEFT_OK; /* of this rank; the others go on */
    for (int i = 0; i < num_sizes(t); i++) {
        WEFT_TRY(programs_share(&t->groups, &programs->ramp[i].shape, t->arena,
                                &programs->ramp[i].program));
        if (status == WEFT_OK)
            status = fit_slots(t, &programs->ramp[i]);
    }
    return status;
}

/* The program whose slots and passes there are. */
static const weft_program *main_program(const weft_trainer *t)
{
    return t->evaluates ? &t->runs.eval.program : &t->runs.train.program;
}

/* Which micro-batch goes through a chunk first, forward and backward: it overwrites gradients. */
static weft_status find_first_batches(weft_arena *arena, weft_trainer_program *step)
{
    const size_t chunks = (size_t)(step->shape.num_chunks > 0 ? step->shape.num_chunks : 1);
    for (int backward = 0; backward < 2; backward++) {
        const uint16_t kind = backward ? WEFT_TASK_BACKWARD : WEFT_TASK_FORWARD;
        WEFT_TRY(WEFT_ARRAY(arena, chunks, &step->first_batch[backward]));
        for (uint32_t i = step->program.num_tasks; i-- > 0;)
            if (step->program.tasks[i].kind == kind)
                step->first_batch[backward][step->program.tasks[i].chunk] =
                    step->program.tasks[i].micro_batch;
    }
    return WEFT_OK;
}

/* Memory for what travels between stages. Evaluation uses slots of training's. */
static weft_status allocate_slots(weft_trainer *t)
{
    const weft_program *program = main_program(t);
    size_t count = (size_t)program->num_slots;
    WEFT_TRY(WEFT_ARRAY(t->arena, count, &t->runs.slots.memory));
    WEFT_TRY(WEFT_ARRAY(t->arena, count, &t->runs.slots.pass));
    int num_passes = 0, num_deferred = 0;
    for (int i = 0; i < program->num_slots; i++) {
        const weft_slot *slot = &program->slots[i];
        if (slot->holds == WEFT_SLOT_ACTIVATION)
            t->runs.slots.pass[i] = num_passes++;
        if (slot->holds == WEFT_SLOT_DEFERRED)
            t->runs.slots.pass[i] = num_deferred++;
        if (slot->bytes > 0)
            WEFT_TRY(weft_device_alloc_for(t->device, WEFT_SPACE_DEVICE, WEFT_MEMORY_MESSAGES,
                                           slot->bytes, "pipeline slots",
                                           &t->runs.slots.memory[i]));
    }
    return WEFT_OK;
}

/* The chunk that each slot of a kind is of, in their order. */
static weft_status list_chunks(weft_trainer *t, weft_slot_kind holds, int *out_num,
                               const int **out_chunks)
{
    const weft_program *program = main_program(t);
    int *chunks;
    WEFT_TRY(WEFT_ARRAY(t->arena, (size_t)program->num_slots + 1, &chunks));
    *out_num = 0;
    for (int i = 0; i < program->num_slots; i++)
        if (program->slots[i].holds == holds)
            chunks[(*out_num)++] = program->slots[i].chunk;
    *out_chunks = chunks;
    return WEFT_OK;
}

/* Threads of what the host steps. */
static int host_threads(const weft_trainer *t)
{
    const int64_t asked = t->config.tier.num_threads;
    return asked > 0 ? (int)asked : weft_device_num_threads(t->device);
}

static weft_status create_model(weft_trainer *t)
{
    weft_model_setup setup = weft_step_setup(&t->config, &t->moe.options);
    if (t->evaluates)
        setup.rules = (weft_string_list){0};
    setup.groups = &t->groups;
    setup.device = t->device;
    setup.bucket_elements = (size_t)t->config.parallel.ddp_bucket_size;
    setup.evaluates = t->evaluates;
    WEFT_TRY(list_chunks(t, WEFT_SLOT_ACTIVATION, &setup.num_passes, &setup.pass_chunks));
    WEFT_TRY(list_chunks(t, WEFT_SLOT_DEFERRED, &setup.num_deferred, &setup.deferred_chunks));
    setup.seed = (uint64_t)t->config.train.seed;
    setup.graphs = t->config.device.cuda_graphs && !t->evaluates;
    setup.host_threads = host_threads(t);
    setup.accumulates = weft_step_accumulates(&t->config, &t->groups.mesh);
    setup.documents =
        weft_config_has_documents(&t->config) || weft_config_weighs_labels(&t->config);
    setup.losses = weft_config_tells_losses(&t->config);
    WEFT_TRY(weft_model_create(&setup, weft_config_build(&t->config), &t->model));
    if (t->config.model.num_experts > 0 && t->config.tier.experts != WEFT_TIER_NONE &&
        t->config.tier.placement == WEFT_TIER_BALANCED &&
        !weft_model_get_shape(t->model)->experts_placed)
        weft_log(WEFT_LOG_INFO, "offload.placement: home does as well: %s",
                 t->config.tier.experts == WEFT_TIER_HOST ? "each rank has all experts"
                                                          : "experts are not in host memory");
    WEFT_TRY(weft_progress_check_metrics(weft_model_metric_list(t->model)));
    weft_dataset_set_labels(t->input.data.parts[0].dataset, weft_model_labels_are_tokens(t->model));
    double flops;
    WEFT_TRY(weft_model_totals(t->model, &t->measured.num_params, &flops));
    t->measured.flops_per_sample = flops / (double)t->config.train.micro_batch_size;
    return WEFT_OK;
}

static bool uses_lane(const weft_program *program, int lane)
{
    for (uint32_t i = 0; i < program->num_tasks; i++)
        if (program->tasks[i].lane == lane)
            return true;
    return false;
}

/* An event for each layer whose gradients a task waits for. */
static weft_status create_points(weft_trainer *t, weft_trainer_program *step)
{
    const weft_program *program = &step->program;
    WEFT_TRY(WEFT_ARRAY(t->arena, program->num_tasks + 1, &step->of_task));
    for (uint32_t i = 0; i < program->num_waits; i++) {
        const weft_wait *wait = &program->waits[i];
        if (wait->point == -1)
            continue;
        step->of_task[wait->task] = true;
        if (wait->point >= 0 && !t->runs.points[wait->point])
            WEFT_TRY(weft_event_create(t->device, &t->runs.points[wait->point]));
    }
    return WEFT_OK;
}

static weft_status create_lanes(weft_trainer *t)
{
    static const int priorities[WEFT_NUM_LANES] = {
        [WEFT_LANE_SEND] = WEFT_PURPOSE_PIPELINE,
        [WEFT_LANE_RECEIVE] = WEFT_PURPOSE_PIPELINE,
        [WEFT_LANE_REDUCE] = WEFT_PURPOSE_DATA,
    };
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (i != WEFT_LANE_FILE && /* the model's */
            (uses_lane(&t->runs.train.program, i) || uses_lane(&t->runs.eval.program, i)))
            WEFT_TRY(
                weft_lane_create(t->device, priorities[i], weft_lane_kind_text(i), &t->lanes[i]));
    weft_model_use_reduce_lane(t->model, t->lanes[WEFT_LANE_REDUCE]);
    weft_trainer_bind_tasks(t);
    weft_doing_lead(t->groups.coords.at[WEFT_AXIS_PP]);
    t->executor.within = (weft_slice_context){.rank = weft_comm_rank(t->world),
                                              .micro_batch = -1,
                                              .stage = t->groups.coords.at[WEFT_AXIS_PP],
                                              .num_stages = t->groups.mesh.pp,
                                              .is_v = t->groups.mesh.stages_in_v};
    uint32_t most = t->runs.train.program.num_tasks > t->runs.eval.program.num_tasks
                        ? t->runs.train.program.num_tasks
                        : t->runs.eval.program.num_tasks;
    WEFT_TRY(weft_executor_prepare(&t->executor, t->device, most));
    WEFT_TRY(weft_trace_create(&t->trace));
    int num_tracks;
    const char *const *tracks = weft_model_track_names(&num_tracks);
    weft_trace_name_lanes(t->trace, tracks, num_tracks);
    return WEFT_OK;
}

/* What rank 0 finds by the table of all ranks' nodes, and tells the others. */
typedef struct placed {
    weft_mesh mesh;
    weft_mesh_choice choice;
    int num_nodes;
} placed;

static weft_status create_mesh(weft_trainer *t, const weft_config_source *source, weft_mesh *mesh)
{
    weft_topology topology;
    placed found = {0};
    weft_arena arena = {0};
    weft_status status = weft_topology_discover(t->world, &arena, &topology);
    if (status == WEFT_OK)
        found.num_nodes = topology.num_nodes;
    if (status == WEFT_OK && topology.node_of) {
        status = weft_config_mesh_on(&t->config, source, &topology, &found.mesh);
        if (status == WEFT_OK)
            status = weft_config_locate(
                source, weft_mesh_choose(&t->config, &topology, &found.mesh, &found.choice));
    }
    weft_arena_release(&arena);
    WEFT_TRY(weft_comm_agree(t->world, status));
    WEFT_TRY(weft_comm_broadcast_host(t->world, &found, sizeof found, 0));
    *mesh = found.mesh;
    t->mesh_choice = found.choice;
    t->num_nodes = found.num_nodes;
    if (weft_mesh_leaves_chunks(&t->config.parallel, mesh))
        weft_log(WEFT_LOG_INFO,
                 "chunks of tensor-parallel products: %d of attention's, %d of MLPs'",
                 mesh->attention_chunks, mesh->mlp_chunks);
    if (t->mesh_choice.reason[0])
        weft_log(WEFT_LOG_INFO, "attention over %d context-parallel ranks: %s", mesh->cp,
                 t->mesh_choice.reason);
    status = weft_moe_selection_start(&t->config, mesh, &found.choice.nodes, &t->moe);
    return weft_comm_agree(t->world, weft_config_locate(source, status));
}

/* Of data that --allow-change lets take the place of the run's, such as the same with more behind:
 * parts of a dataset follow from its size. */
static void tell_other_data(const weft_trainer *t, const weft_config_source *source)
{
    const char *had = source->run ? source->run->data.data_xxh64 : NULL;
    const char *has = t->config.data.data_xxh64;
    if (had && has && strcmp(had, has) != 0 && t->input.data.num_validation == 0 &&
        t->input.data.splits[WEFT_SPLIT_VALIDATION].num_samples > 0)
        weft_log(WEFT_LOG_WARN,
                 "%s: other data than the run had: the validation part begins elsewhere, may hold "
                 "what the run was trained on, and its losses are not those of before",
                 weft_dataset_name(t->input.data.parts[0].dataset));
}

/* One rank reads the whole file, and one of each node with a copy of its own: they all agree on
 * what these find. */
static weft_status create_data(weft_trainer *t, const weft_config_source *source,
                               const weft_data_copies *copies)
{
    bool whole = weft_comm_rank(t->world) == 0;
    WEFT_TRY(weft_setup_data(&t->config, source, whole, t->arena, &t->input.data));
    WEFT_TRY(weft_data_copies_read(copies, source, &t->input.data));
    WEFT_TRY(WEFT_ARRAY(t->arena, t->input.data.num_validation + 1, &t->input.evaluated));
    if (t->input.data.num_parts > 1) {
        WEFT_TRY(WEFT_ARRAY(t->arena, t->input.data.num_parts, &t->input.part_samples));
        WEFT_TRY(WEFT_ARRAY(t->arena, 2 * t->input.data.num_parts, &t->input.part_losses));
    }
    if (whole)
        tell_other_data(t, source);
    if (whole && t->input.data.num_validation > 0 &&
        t->input.data.splits[WEFT_SPLIT_VALIDATION].num_samples > 0)
        weft_log(WEFT_LOG_WARN,
                 "data.split %s: nothing trains or evaluates on its second part, as "
                 "data.validation is given; \"1\" trains on all",
                 t->config.data.split);
    return WEFT_OK;
}

/* Beside its program, what each step needs. */
static weft_status complete_steps(weft_trainer *t)
{
    WEFT_TRY(WEFT_ARRAY(t->arena, (size_t)weft_model_num_layers(t->model), &t->runs.points));
    for (int i = -1; i < num_sizes(t); i++) {
        weft_trainer_program *step = i < 0 ? &t->runs.train : &t->runs.ramp[i];
        WEFT_TRY(find_first_batches(t->arena, step));
        WEFT_TRY(create_points(t, step));
    }
    return WEFT_OK;
}

static weft_status create_local(weft_trainer *t)
{
    WEFT_TRY(make_programs(t));
    WEFT_TRY(create_model(t));
    WEFT_TRY(allocate_slots(t));
    WEFT_TRY(weft_batches_create(t));
    WEFT_TRY(complete_steps(t));
    return create_lanes(t);
}

static weft_loss_scale_options loss_scale_of(const weft_train_options *train)
{
    if (train->precision != WEFT_PRECISION_FP16)
        return (weft_loss_scale_options){0};
    return (weft_loss_scale_options){.initial = train->initial_loss_scale,
                                     .min = train->min_loss_scale,
                                     .window = train->loss_scale_window,
                                     .hysteresis = train->hysteresis};
}

/* Before anything stands on the lanes. */
static weft_status reserve(weft_trainer *t)
{
    weft_comm *pp = t->groups.by_axis[WEFT_AXIS_PP];
    size_t boundary_bytes = weft_model_boundary_bytes(t->model);
    for (int i = WEFT_LANE_SEND; i <= WEFT_LANE_RECEIVE; i++)
        if (t->lanes[i])
            WEFT_TRY(weft_comm_reserve(pp, t->lanes[i], boundary_bytes));
    WEFT_TRY(weft_model_reserve(t->model, t->lanes[WEFT_LANE_COMPUTE]));
    return t->evaluates ? WEFT_OK
                        : weft_optimizer_reserve(t->optimizer, t->lanes[WEFT_LANE_REDUCE],
                                                 t->lanes[WEFT_LANE_COMPUTE]);
}

static weft_status create_optimizer(weft_trainer *t)
{
    const weft_train_options *train = &t->config.train;
    const bool offloads =
        t->config.tier.experts != WEFT_TIER_NONE && t->config.model.num_experts > 0;
    const bool at_once = offloads && weft_step_at_once(&t->config);
    t->lr = (weft_lr_schedule){.style = (weft_lr_decay_style)train->lr_decay_style,
                               .lr = train->lr,
                               .min_lr = train->min_lr,
                               .warmup_iters = train->lr_warmup_iters,
                               .decay_iters = train->lr_decay_iters,
                               .wsd_decay_iters = train->lr_wsd_decay_iters};
    WEFT_TRY(weft_optimizer_create(
        weft_model_parameters(t->model),
        &(weft_optimizer_options){.muon = {.momentum = train->muon_momentum,
                                           .use_nesterov = train->muon_use_nesterov,
                                           .num_ns_steps = (int)train->muon_num_ns_steps,
                                           .scale_mode = (weft_muon_scale)train->muon_scale_mode,
                                           .extra_scale_factor = train->muon_extra_scale_factor,
                                           .dtype = weft_config_dtype(&t->config)},
                                  .adam_beta1 = train->adam_beta1,
                                  .adam_beta2 = train->adam_beta2,
                                  .adam_eps = train->adam_eps,
                                  .weight_decay = train->weight_decay,
                                  .clip_grad = train->clip_grad,
                                  .sharding = weft_parallel_sharding(&t->config.parallel),
                                  .overlap = t->config.parallel.overlap_grad_reduce,
                                  .split_master = train->split_master,
                                  .host_threads = host_threads(t),
                                  .steps_at_once = at_once,
                                  .skips_faults = !at_once,
                                  .loss_spike_factor = t->config.reliability.loss_spike_factor,
                                  .checks_state = t->config.reliability.state_check_interval > 0,
                                  .loss_scale = loss_scale_of(train)},
        &t->optimizer));
    if (t->config.log.moe_load_interval > 0 && t->config.model.num_experts > 0)
        WEFT_TRY(weft_model_count_choices(t->model));
    WEFT_TRY(reserve(t));
    WEFT_TRY(weft_peak_find(&t->measured.peak, &t->config, t->world, t->lanes[WEFT_LANE_COMPUTE]));
    const bool is_cpu = t->config.device.kind == WEFT_DEVICE_KIND_CPU;
    const weft_reliability_options *r = &t->config.reliability;
    WEFT_TRY(weft_stragglers_create(&t->measured.stragglers, is_cpu ? r->straggler_factor : 0,
                                    r->straggler_steps, t->groups.coords.at[WEFT_AXIS_PP],
                                    t->world));
    return weft_links_create(&t->measured.stragglers.links, r->straggler_factor, r->straggler_steps,
                             t->num_nodes, t->world);
}

weft_status weft_setup_comm(const weft_config *config, const weft_config_source *source,
                            weft_comm *world, weft_device *device)
{
    const weft_device_options *o = &config->device;
    if (o->kind != WEFT_DEVICE_KIND_CUDA && o->comm != WEFT_COMM_BY_NCCL)
        return WEFT_OK;
    weft_status status = weft_comm_use_nccl(world, device, (weft_comm_choice)o->comm, NULL);
    if (status == WEFT_CONFIG)
        weft_error_key(status, "device.comm");
    return weft_config_locate(source, status);
}

static weft_groups_use uses_of(const weft_trainer *t)
{
    const weft_model_options *model = &t->config.model;
    bool has_own = weft_config_has_own_model(&t->config);
    const weft_sharding sharding = weft_parallel_sharding(&t->config.parallel);
    const bool by_muon = !t->evaluates && t->config.train.optimizer == WEFT_OPTIMIZER_MUON;
    const bool gathers =
        sharding == WEFT_SHARD_OPTIM_GRADS_PARAMS || (by_muon && sharding != WEFT_NO_SHARD);
    return (weft_groups_use){
        .reduces = !t->evaluates,
        .gathers = gathers,
        .gathers_on_host = model->num_experts > 0 && t->config.tier.experts != WEFT_TIER_NONE,
        .experts = model->num_experts > 0,
        .travels = t->moe.travels,
        .ties = has_own || !model->untie_embeddings_and_output_weights || model->mtp_num_layers > 0,
        .balances = model->num_experts > 0 && model->moe_aux_loss_coeff > 0 &&
                    model->moe_router_load_balancing_type == WEFT_BALANCE_GLOBAL_BATCH,
        .sums = has_own};
}

static weft_status create(weft_trainer *t, bool evaluates, const weft_config *config,
                          const weft_config_source *source, weft_comm *world, weft_arena *arena)
{
    memset(t, 0, sizeof *t);
    t->evaluates = evaluates;
    t->config = *config;
    t->arena = arena;
    t->world = world;
    weft_mesh mesh = {0};
    weft_data_copies copies;
    WEFT_TRY(weft_data_copies_find(world, &t->config, source, arena, &copies));
    weft_status status = create_data(t, source, &copies);
    if (status == WEFT_OK)
        status = weft_setup_check_device(&t->config, source);
    if (status == WEFT_OK)
        status = weft_setup_device(&t->config, &t->device);
    WEFT_TRY(weft_comm_agree(world, status));
    WEFT_TRY(weft_data_copies_compare(&copies, world, &t->input.data));
    if (t->config.device.kind == WEFT_DEVICE_KIND_CUDA)
        WEFT_TRY(weft_cards_tell(world));
    WEFT_TRY(weft_setup_comm(&t->config, source, world, t->device));
    WEFT_TRY(create_mesh(t, source, &mesh));
    WEFT_TRY(setup_tier(t, source, &mesh));
    if (!evaluates && weft_comm_size(world) == 1) /* more ranks were asked before they started */
        WEFT_TRY(weft_setup_check_model(&t->config, source, &mesh));
    weft_groups_use use = uses_of(t);
    WEFT_TRY(weft_groups_create(world, &mesh, &use, &t->groups));
    WEFT_TRY(weft_comm_agree(world, weft_config_locate(source, create_local(t))));
    WEFT_TRY(weft_comm_agree(world, weft_config_locate(source, weft_model_join_tier(t->model))));
    return evaluates ? reserve(t) : create_optimizer(t);
}

weft_status weft_trainer_create(weft_trainer *t, const weft_config *config,
                                const weft_config_source *source, weft_comm *world,
                                weft_arena *arena)
{
    return create(t, false, config, source, world, arena);
}

weft_status weft_trainer_create_evaluating(weft_trainer *t, const weft_config *config,
                                           const weft_config_source *source, weft_comm *world,
                                           weft_arena *arena)
{
    return create(t, true, config, source, world, arena);
}

/* loads NULL: what was planned. */
static weft_status footprint(const weft_trainer *t, const weft_moe_held_loads *loads,
                             weft_footprint *out)
{
    weft_arena arena = {0};
    weft_step step;
    const weft_mesh *mesh = &t->groups.mesh;
    const int rank = t->groups.coords.at[WEFT_AXIS_PP];
    weft_status status =
        weft_step_start(WEFT_STEP_TRAINS, &t->config, mesh, &t->moe.options, &arena, &step);
    if (status == WEFT_OK) {
        if (loads)
            status = weft_step_footprint_at(&t->config, mesh, &step, rank, &t->runs.train.program,
                                            loads, out);
        else
            weft_step_footprint(&t->config, &step, rank, &t->runs.train.program, out);
        weft_step_release(&step);
    }
    weft_arena_release(&arena);
    return status;
}

weft_status weft_trainer_footprint(const weft_trainer *t, weft_footprint *out)
{
    return footprint(t, NULL, out);
}

weft_status weft_trainer_footprint_at_load(const weft_trainer *t, weft_footprint *out)
{
    weft_moe_held_loads loads;
    weft_model_held_loads(t->model, &loads);
    return footprint(t, &loads, out);
}

void weft_trainer_release(weft_trainer *t)
{
    weft_peak_release(&t->measured.peak);
    weft_links_release(&t->measured.stragglers.links);
    weft_stragglers_release(&t->measured.stragglers);
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        weft_lane_destroy(t->lanes[i]);
    weft_executor_release(&t->executor);
    for (int i = 0; t->runs.points && i < weft_model_num_layers(t->model); i++)
        weft_event_destroy(t->runs.points[i]);
    weft_trace_destroy(t->trace);
    weft_optimizer_destroy(t->optimizer);
    for (int i = 0; t->runs.slots.memory && i < main_program(t)->num_slots; i++)
        if (t->runs.slots.memory[i])
            weft_device_free(t->device, WEFT_SPACE_DEVICE, t->runs.slots.memory[i],
                             main_program(t)->slots[i].bytes);
    weft_batches_release(t);
    weft_model_destroy(t->model);
    weft_data_close(&t->input.data);
    weft_groups_release(&t->groups);
    weft_device_destroy(t->device);
    memset(t, 0, sizeof *t);
}
