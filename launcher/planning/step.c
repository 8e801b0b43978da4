#include "launcher/planning/step.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "core/file.h"
#include "core/stage.h"
#include "launcher/planning/ramp.h"
#include "schedule/operands.h"
#include "schedule/pipeline/order_auto.h"
#include "schedule/pipeline/order_text.h"

bool weft_step_at_once(const weft_config *config)
{
    const weft_reliability_options *o = &config->reliability;
    return config->tier.optimizer == WEFT_TIER_STEP_AUTO && config->train.clip_grad == 0 &&
           config->train.precision != WEFT_PRECISION_FP16 && o->on_bad_step == WEFT_BAD_STEP_STOP &&
           o->loss_spike_factor == 0;
}

static bool has_pairs(const weft_config *config)
{
    return config->schedule.overlap_moe_expert_parallel_comm && config->model.num_experts > 0;
}

/* In two halves backwards of pairs leave the weights' half to tasks of the step. Sharded gradients
 * that are not reduced beside backwards have memory for one layer. */
static bool leaves_weights(const weft_config *config)
{
    return has_pairs(config) && !config->schedule.splits_backward &&
           (weft_parallel_sharding(&config->parallel) < WEFT_SHARD_OPTIM_GRADS ||
            config->parallel.overlap_grad_reduce);
}

weft_model_setup weft_step_setup(const weft_config *config, const weft_moe_options *moe)
{
    return (weft_model_setup){
        .options = &config->model,
        .own_options = config->own,
        .rules = config->train.parameter_rules,
        .parallel = &config->parallel,
        .recompute = &config->train.recompute,
        .offload = &config->train.offload,
        .tier = &config->tier,
        .muon = config->train.optimizer == WEFT_OPTIMIZER_MUON,
        .split_master = config->train.split_master,
        .steps_at_once = weft_step_at_once(config),
        .dtype = weft_config_dtype(config),
        .micro_batch_size = config->train.micro_batch_size,
        .num_deferred = config->schedule.splits_backward,
        .training = true,
        .pairs = has_pairs(config),
        .leaves_weights = leaves_weights(config),
        .moe = *moe,
        .plain_kernels = config->plain_kernels,
        .cached_tokens = config->cached_tokens,
        .logit_rows = config->train.loss_chunk_tokens > 0
                          ? (size_t)config->train.loss_chunk_tokens
                          : weft_logit_rows(config->device.kind == WEFT_DEVICE_KIND_CUDA)};
}

bool weft_step_drains(const weft_config *config)
{
    return config->tier.optimizer == WEFT_TIER_STEP_AFTER;
}

bool weft_step_accumulates(const weft_config *config, const weft_mesh *mesh)
{
    const weft_train_options *train = &config->train;
    return train->global_batch_size / train->micro_batch_size / mesh->dp > 1;
}

static weft_status read_orders(const weft_config *config, weft_arena *arena,
                               weft_pipeline_shape *shape)
{
    const char *path = config->schedule.pipeline_schedule_file;
    const weft_order_shape order = weft_pipeline_order_shape(shape);
    char *text = NULL;
    size_t bytes;
    weft_order *orders;
    if (!config->order_text) { /* says why it cannot be read */
        const weft_status read = weft_read_file(path, arena, &text, &bytes);
        if (read == WEFT_FILE) /* as of a config that cannot be read */
            return WEFT_ERROR(WEFT_CONFIG, "%s", weft_error_get()->text);
        WEFT_TRY(read);
    }
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)shape->num_stages, &orders));
    shape->orders = orders;
    const weft_status status =
        weft_order_parse(text ? text : config->order_text, &order, arena, orders);
    return status == WEFT_OK ? status : weft_error_context(status, "%s", path);
}

/* The pipeline of v virtual stages a rank, without buckets; boundary_bytes: of what travels between
 * stages. Reads pipeline_schedule_file where there is one. Errors: WEFT_CONFIG with the key,
 * of a file that cannot be read too. */
static weft_status step_shape(const weft_config *config, const weft_mesh *mesh, int num_chunks,
                              uint64_t boundary_bytes, weft_arena *arena, weft_pipeline_shape *out)
{
    const weft_train_options *train = &config->train;
    const weft_schedule_options *schedule = &config->schedule;
    const int64_t m = train->global_batch_size / train->micro_batch_size / mesh->dp;
    const int64_t most = weft_pipeline_max_micro_batches(mesh->pp, num_chunks);
    if (m > most)
        return WEFT_KEY_ERROR("train.global_batch_size",
                              "%" PRId64 " is %" PRId64 " micro-batches a rank; with %d virtual "
                              "stages a step has at most %" PRId64,
                              train->global_batch_size, m, mesh->pp * num_chunks, most);
    *out = (weft_pipeline_shape){
        .kind = mesh->pp == 1 && weft_pipeline_kind_splits(schedule->pipeline_schedule)
                    ? WEFT_PIPELINE_1F1B /* of one stage: the same */
                    : (weft_pipeline_kind)schedule->pipeline_schedule,
        .num_stages = mesh->pp,
        .num_micro_batches = (int)m,
        .num_chunks = num_chunks,
        .group_size = (int)schedule->microbatch_group_size_per_virtual_pipeline_stage,
        .boundary_bytes = boundary_bytes,
        .is_v = mesh->stages_in_v,
        .pairs = has_pairs(config)};
    if (out->group_size > 0 && out->group_size < mesh->pp)
        return WEFT_KEY_ERROR("parallel.microbatch_group_size_per_virtual_pipeline_stage",
                              "%d micro-batches; a group has at least as many as there are ranks "
                              "in the pipeline, %d",
                              out->group_size, mesh->pp);
    if (!schedule->pipeline_schedule_file || !schedule->pipeline_schedule_file[0])
        return WEFT_OK;
    weft_status status = read_orders(config, arena, out);
    bool is_mistake = status == WEFT_CONFIG || status == WEFT_FILE;
    return is_mistake ? weft_error_key(WEFT_CONFIG, "parallel.pipeline_schedule_file") : status;
}

weft_status weft_step_programs(const weft_pipeline_shape *shape, weft_arena *arena,
                               weft_program **out)
{
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)shape->num_stages, out));
    WEFT_TRY(weft_program_pipeline(shape, arena, *out));
    return weft_program_pipeline_check(*out, shape);
}

/* An order from a file is anybody's: its programs are checked always. */
static weft_status make_programs(const weft_config *config, const weft_pipeline_shape *shape,
                                 weft_arena *arena, weft_program **out)
{
    const char *file = config->schedule.pipeline_schedule_file;
    if (!config->is_trial || (file && file[0]))
        return weft_step_programs(shape, arena, out);
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)shape->num_stages, out));
    return weft_program_pipeline(shape, arena, *out);
}

static weft_status find_recomputes(const weft_outline *outline, weft_arena *arena, const bool **out)
{
    const int num = weft_layout_num_stages(&outline->layout), p = outline->layout.num_ranks;
    bool *recomputes;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)num, &recomputes));
    for (int s = 0; s < num; s++)
        recomputes[s] = weft_outline_recomputes_early(
            outline, weft_rank_of_stage(outline->layout.is_v, p, s), s / p);
    *out = recomputes;
    return WEFT_OK;
}

/* Inside a stage's forward the host waits where it does inside a layer's. */
static weft_status find_host_waits(const weft_outline *outline, weft_arena *arena, const bool **out)
{
    const weft_layout *layout = &outline->layout;
    bool *waits;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)weft_layout_num_stages(layout), &waits));
    for (int s = 0; s < weft_layout_num_stages(layout); s++)
        for (int l = layout->first[s]; l < layout->first[s + 1]; l++)
            waits[s] |= outline->layers[l].host_waits;
    *out = waits;
    return WEFT_OK;
}

/* The bytes that a rank's passes may have: what a limit leaves beside all that they do not decide;
 * 0: any. */
static uint64_t bytes_for_passes(const weft_config *config, const weft_step *step, int rank)
{
    static const weft_program none;
    const uint64_t limit = (uint64_t)config->device.memory_limit;
    weft_footprint footprint;
    if (limit == 0)
        return 0;
    weft_step_footprint(config, step, rank, &none, &footprint);
    return limit > footprint.device_bytes ? limit - footprint.device_bytes : 1;
}

static void add_work(const weft_description *description, double us[3])
{
    for (int i = 0; i < description->num_operations; i++) {
        const weft_operation *o = &description->operations[i];
        const double work = (double)o->flops;
        us[o->deferred ? 2 : o->phase == WEFT_PHASE_FORWARD && !o->repeated ? 0 : 1] += work;
    }
    if (description->coarse) {
        us[0] += (double)description->cost.forward_flops;
        us[1] += (double)description->cost.backward_flops;
    }
}

/* Without a limit of memory: what zb_h1 takes, or 1F1B where that is more. */
static weft_status limit_by_kinds(const weft_order_shape *shape, const weft_order_costs *costs,
                                  weft_arena *scratch, uint64_t *limits)
{
    static const weft_pipeline_kind kinds[] = {WEFT_PIPELINE_1F1B, WEFT_PIPELINE_ZB_H1};
    const size_t p = (size_t)shape->num_ranks;
    void *orders, *bytes;
    double makespan;
    WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(weft_order), &orders));
    WEFT_TRY(weft_arena_alloc_array(scratch, p, sizeof(uint64_t), &bytes));
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(weft_order_make(kinds[i], shape, scratch, orders));
        WEFT_TRY(weft_order_simulate(shape, orders, costs, &makespan, bytes));
        for (size_t rank = 0; rank < p; rank++)
            if (((uint64_t *)bytes)[rank] > limits[rank])
                limits[rank] = ((uint64_t *)bytes)[rank];
    }
    return WEFT_OK;
}

/* Takes from the ranks' limits what their programs need more than there is; false: nothing. */
static weft_status limit_programs(const weft_config *config, const weft_step *step,
                                  const weft_pipeline_shape *shape, weft_arena *scratch,
                                  uint64_t *limits, bool *out_lacks)
{
    const uint64_t limit = (uint64_t)config->device.memory_limit;
    void *programs;
    *out_lacks = false;
    WEFT_TRY(weft_arena_alloc_array(scratch, (size_t)shape->num_stages, sizeof(weft_program),
                                    &programs));
    WEFT_TRY(weft_program_pipeline(shape, scratch, programs));
    for (int rank = 0; rank < shape->num_stages; rank++) {
        weft_footprint footprint;
        weft_step_footprint(config, step, rank, (weft_program *)programs + rank, &footprint);
        if (footprint.device_bytes <= limit)
            continue;
        const uint64_t lacks = footprint.device_bytes - limit;
        limits[rank] = lacks < limits[rank] ? limits[rank] - lacks : 1;
        *out_lacks = true;
    }
    return WEFT_OK;
}

/* The bytes of slots for messages follow from the order alone: where the ranks' programs have no
 * room for them, another order is made that leaves some. */
static weft_status make_fitting(const weft_config *config, const weft_step *step,
                                const weft_order_costs *costs, uint64_t *limits, weft_arena *arena,
                                weft_pipeline_shape *shape)
{
    const weft_order_shape order = weft_pipeline_order_shape(shape);
    void *orders;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)shape->num_stages, sizeof(weft_order), &orders));
    shape->orders = orders;
    for (bool lacks = true; lacks;) {
        weft_arena scratch = {0};
        lacks = false;
        weft_status status = weft_order_make_auto(&order, costs, arena, orders);
        if (status == WEFT_OK && config->device.memory_limit > 0)
            status = limit_programs(config, step, shape, &scratch, limits, &lacks);
        weft_arena_release(&scratch);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

/* The order of `auto`: by the stages' FLOPs, so that every rank and every plan makes the same. */
static weft_status make_auto(const weft_config *config, const weft_step *step, weft_arena *arena,
                             weft_pipeline_shape *shape)
{
    const weft_outline *outline = &step->outline;
    const weft_layout *layout = &outline->layout;
    const weft_order_shape order = weft_pipeline_order_shape(shape);
    const size_t stages = (size_t)weft_layout_num_stages(layout), p = (size_t)layout->num_ranks;
    void *times, *bytes;
    WEFT_TRY(weft_arena_alloc_array(arena, 3 * stages, sizeof(double), &times));
    WEFT_TRY(weft_arena_alloc_array(arena, p, sizeof(uint64_t), &bytes));
    double *const us = times;
    uint64_t *const limits = bytes;
    for (int s = 0; s < (int)stages; s++) {
        double work[3] = {0};
        for (int l = layout->first[s]; l < layout->first[s + 1]; l++)
            add_work(&outline->layers[l].description, work);
        for (int i = 0; i < 3; i++)
            us[i * (int)stages + s] = work[i];
    }
    for (int rank = 0; rank < (int)p; rank++)
        limits[rank] = bytes_for_passes(config, step, rank);
    const weft_order_costs costs = {.forward_us = us,
                                    .input_us = us + stages,
                                    .weight_us = us + 2 * stages,
                                    .stash_bytes = shape->stash_bytes,
                                    .deferred_bytes = shape->deferred_bytes,
                                    .boundary_bytes = shape->boundary_bytes,
                                    .limit_bytes = limits};
    if (config->device.memory_limit == 0) {
        weft_arena scratch = {0};
        const weft_status limited = limit_by_kinds(&order, &costs, &scratch, limits);
        weft_arena_release(&scratch);
        WEFT_TRY(limited);
    }
    const weft_status status = make_fitting(config, step, &costs, limits, arena, shape);
    if (status != WEFT_MEMORY || config->device.memory_limit == 0)
        return status;
    /* No order fits: whoever asks whether a step fits says of 1F1B's what would. */
    weft_error_clear();
    return weft_order_make(WEFT_PIPELINE_1F1B, &order, arena, (weft_order *)shape->orders);
}

/* What the slots of each virtual stage's micro-batches take. */
static weft_status find_bytes(const weft_outline *outline, weft_arena *arena,
                              weft_pipeline_shape *shape)
{
    const int num = weft_layout_num_stages(&outline->layout), p = outline->layout.num_ranks;
    uint64_t *stash, *deferred;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)num, &stash));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)num, &deferred));
    for (int s = 0; s < num; s++) {
        const int rank = weft_rank_of_stage(outline->layout.is_v, p, s);
        stash[s] = weft_footprint_stash(outline, rank, s / p);
        deferred[s] = weft_footprint_deferred(outline, rank, s / p);
    }
    shape->stash_bytes = stash;
    shape->deferred_bytes = deferred;
    return WEFT_OK;
}

/* Orders and slots follow from the run's own outline, at whatever load of experts a plan looks. */
static weft_status find_order(const weft_config *config, const weft_outline *of_run,
                              weft_arena *arena, weft_step *step)
{
    const weft_step own = {.use = step->use, .outline = *of_run, .shape = step->shape};
    WEFT_TRY(find_bytes(of_run, arena, &step->shape));
    return step->shape.kind == WEFT_PIPELINE_AUTO && !step->shape.orders
               ? make_auto(config, &own, arena, &step->shape)
               : WEFT_OK;
}

static weft_status make_shape(const weft_config *config, const weft_mesh *mesh, weft_arena *arena,
                              weft_step *step)
{
    weft_buckets *buckets;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)mesh->pp, &buckets));
    for (int rank = 0; rank < mesh->pp; rank++)
        WEFT_TRY(weft_outline_buckets(&step->outline, mesh, rank, arena, &buckets[rank]));
    WEFT_TRY(step_shape(config, mesh, step->outline.layout.num_chunks,
                        weft_shape_boundary_bytes(&step->outline.shape), arena, &step->shape));
    step->shape.buckets = buckets;
    WEFT_TRY(find_recomputes(&step->outline, arena, &step->shape.recomputes));
    return find_host_waits(&step->outline, arena, &step->shape.host_waits);
}

static weft_schedule_options generating_schedule(void)
{
    return (weft_schedule_options){.pipeline_schedule = WEFT_PIPELINE_1F1B};
}

/* As `weft generate` sets its model up. */
static weft_config generating(const weft_config *config, const weft_mesh *mesh)
{
    weft_config out = *config;
    out.train.micro_batch_size = 1;
    out.train.global_batch_size = mesh->dp;
    out.schedule = generating_schedule();
    return out;
}

static weft_status start(weft_step_use use, const weft_config *config, const weft_mesh *mesh,
                         const weft_moe_options *moe, weft_arena *arena, weft_step *out)
{
    weft_model_setup setup = weft_step_setup(config, moe);
    if (use != WEFT_STEP_TRAINS)
        setup.rules = (weft_string_list){0};
    if (use == WEFT_STEP_GENERATES) {
        setup.parallel = NULL;
        setup.recompute = NULL;
        setup.offload = NULL;
        setup.training = false;
    }
    setup.accumulates = weft_step_accumulates(config, mesh);
    memset(out, 0, sizeof *out);
    assert(!weft_tier_is_left_open(&config->tier) || config->model.num_experts == 0);
    out->use = use;
    out->moe = *moe;
    WEFT_TRY(weft_model_outline(&setup, mesh, weft_config_build(config), &out->outline));
    weft_status status = make_shape(config, mesh, arena, out);
    setup.moe.load = (weft_moe_load){.rows = weft_model_forced_load(&config->model, mesh->ep)};
    const bool is_own = setup.moe.load.rows == moe->load.rows && moe->load.sent == 0;
    weft_outline of_run = {0};
    if (status == WEFT_OK && !is_own)
        status = weft_model_outline(&setup, mesh, weft_config_build(config), &of_run);
    if (status == WEFT_OK)
        status = find_order(config, is_own ? &out->outline : &of_run, arena, out);
    weft_outline_release(&of_run);
    if (status != WEFT_OK)
        weft_step_release(out);
    return status;
}

weft_status weft_step_start(weft_step_use use, const weft_config *config, const weft_mesh *mesh,
                            const weft_moe_options *moe, weft_arena *arena, weft_step *out)
{
    const weft_config copy = use == WEFT_STEP_GENERATES ? generating(config, mesh) : *config;
    WEFT_TRY(start(use, &copy, mesh, moe, arena, out));
    out->shape.forward_only = use != WEFT_STEP_TRAINS;
    return WEFT_OK;
}

weft_status weft_step_add_programs(const weft_config *config, weft_arena *arena, weft_step *step)
{
    weft_config copy = *config;
    if (step->use == WEFT_STEP_GENERATES)
        copy.schedule = generating_schedule();
    return make_programs(&copy, &step->shape, arena, &step->programs);
}

weft_status weft_step_make(weft_step_use use, const weft_config *config, const weft_mesh *mesh,
                           const weft_moe_options *moe, weft_arena *arena, weft_step *out)
{
    WEFT_TRY(weft_step_start(use, config, mesh, moe, arena, out));
    weft_status status = weft_step_add_programs(config, arena, out);
    if (status != WEFT_OK)
        weft_step_release(out);
    return status;
}

weft_status weft_step_shape_of(const weft_config *config, const weft_step *step, int64_t samples,
                               weft_arena *arena, weft_pipeline_shape *out)
{
    weft_step of_size = *step;
    of_size.shape.num_micro_batches =
        (int)(samples * step->shape.num_micro_batches / config->train.global_batch_size);
    if (step->shape.kind == WEFT_PIPELINE_AUTO) {
        of_size.shape.orders = NULL;
        WEFT_TRY(make_auto(config, &of_size, arena, &of_size.shape));
    }
    *out = of_size.shape;
    return WEFT_OK;
}

static weft_status check_size(const weft_config *config, const weft_step *step, int64_t samples,
                              weft_arena *arena)
{
    weft_pipeline_shape shape;
    weft_program *programs;
    WEFT_TRY(weft_step_shape_of(config, step, samples, arena, &shape));
    WEFT_TRY(weft_step_programs(&shape, arena, &programs));
    for (int rank = 0; rank < shape.num_stages; rank++) {
        void *slots;
        WEFT_TRY(weft_arena_alloc_array(arena, (size_t)programs[rank].num_slots + 1, sizeof(int),
                                        &slots));
        if (!weft_ramp_fit_slots(&programs[rank], &step->programs[rank], &shape, rank, slots))
            return WEFT_KEY_ERROR("train.rampup_batch_size",
                                  "with %lld samples a step the order %s wants other memory than "
                                  "with %lld; another parallel.pipeline_schedule does not",
                                  (long long)samples, weft_pipeline_kind_text(shape.kind),
                                  (long long)config->train.global_batch_size);
    }
    return WEFT_OK;
}

weft_status weft_step_check_ramp(const weft_config *config, const weft_step *step)
{
    weft_status status = WEFT_OK;
    for (int i = 0; i < weft_ramp_num_sizes(&config->train) && status == WEFT_OK; i++) {
        weft_arena arena = {0};
        status = check_size(config, step, weft_ramp_size(&config->train, i), &arena);
        weft_arena_release(&arena);
    }
    return status;
}

void weft_step_release(weft_step *step)
{
    weft_outline_release(&step->outline);
    memset(step, 0, sizeof *step);
}

void weft_step_footprint(const weft_config *config, const weft_step *step, int rank,
                         const weft_program *program, weft_footprint *out)
{
    weft_footprint_of(
        &step->outline,
        &(weft_footprint_shape){
            .rank = rank,
            .program = program,
            .num_micro_batches = step->shape.num_micro_batches,
            .num_inputs = 2 + config->data.reset_position_ids + weft_config_weighs_labels(config) +
                          weft_config_tells_losses(config),
            .num_whole_inputs = config->data.reset_attention_mask,
            .deals = config->parallel.context_parallel_load_balancer == WEFT_BALANCE_DOCUMENTS,
            .split_master = config->train.split_master,
            .checks_state = config->reliability.state_check_interval > 0,
            .evaluates = step->use != WEFT_STEP_TRAINS},
        out);
}

/* A pipeline rank of a step, for its footprint at loads. */
typedef struct loading {
    const weft_config *config;
    const weft_mesh *mesh;
    const weft_step *step;
    int rank;
    const weft_program *program;
    const int *scratch_layer; /* by use */
} loading;

/* What the passes of a rank share: recomputed stashes, slots of what second halves of backwards
 * need and of what is offloaded; scratch. */
typedef struct shared_bytes {
    uint64_t recomputed, deferred, slots[WEFT_OFFLOAD_SLOTS], scratch[WEFT_NUM_SCRATCH_USES];
} shared_bytes;

/* The program's slots as if made for those of the chunks they serve that take most at the outline's
 * load, under which chunks with experts may take more than others that took most when balanced. */
static weft_status slots_at_load(const loading *l, const weft_outline *outline, weft_arena *arena,
                                 weft_program *out)
{
    static const struct {
        weft_operand_name name;
        uint64_t (*bytes)(const weft_outline *, int rank, int chunk);
    } kinds[] = {{WEFT_OPERAND_STASH, weft_footprint_stash},
                 {WEFT_OPERAND_DEFERRED, weft_footprint_deferred}};
    weft_slot *slots;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)l->program->num_slots + 1, &slots));
    memcpy(slots, l->program->slots, (size_t)l->program->num_slots * sizeof *slots);
    for (uint32_t i = 0; i < l->program->num_tasks; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            const weft_task *task = &l->program->tasks[i];
            const int at = weft_task_slot(task, kinds[k].name);
            if (at >= 0 && slots[at].chunk >= 0 && slots[at].chunk != task->chunk &&
                kinds[k].bytes(outline, l->rank, task->chunk) >
                    kinds[k].bytes(outline, l->rank, slots[at].chunk))
                slots[at].chunk = task->chunk;
        }
    *out = *l->program;
    out->slots = slots;
    return WEFT_OK;
}

static void measure(const loading *l, const weft_step *loaded, const weft_program *program,
                    weft_footprint *out, shared_bytes *out_shared)
{
    weft_step_footprint(l->config, loaded, l->rank, program, out);
    out_shared->recomputed = weft_footprint_recomputed(&loaded->outline, l->rank);
    out_shared->deferred = weft_footprint_all_deferred(&loaded->outline, l->rank, program);
    for (int i = 0; i < WEFT_NUM_SCRATCH_USES; i++)
        out_shared->scratch[i] = weft_footprint_scratch_of(
            &loaded->outline, l->rank, (weft_scratch_use)i, l->scratch_layer[i]);
    const weft_offload_sizes sizes = weft_outline_offload_sizes(&loaded->outline, l->rank);
    memcpy(out_shared->slots, sizes.slot_bytes, sizeof out_shared->slots);
}

static weft_status footprint_at(const loading *l, const weft_moe_load *load, weft_footprint *out,
                                shared_bytes *out_shared)
{
    weft_arena arena = {0};
    weft_program program;
    weft_moe_options moe = l->step->moe;
    moe.load = *load;
    weft_model_setup setup = weft_step_setup(l->config, &moe);
    setup.accumulates = weft_step_accumulates(l->config, l->mesh);
    setup.logit_rows = l->step->outline.shape.logit_rows;
    weft_step loaded = {.use = l->step->use, .shape = l->step->shape};
    WEFT_TRY(weft_model_outline(&setup, l->mesh, weft_config_build(l->config), &loaded.outline));
    const weft_status status = slots_at_load(l, &loaded.outline, &arena, &program);
    if (status == WEFT_OK)
        measure(l, &loaded, &program, out, out_shared);
    weft_outline_release(&loaded.outline);
    weft_arena_release(&arena);
    return status;
}

/* But for pairs forwards and backwards share their scratch. */
static weft_status scratch_at(const loading *l, const weft_moe_held_loads *loads, uint64_t *out)
{
    const bool pairs = l->step->outline.pairs;
    uint64_t most[2] = {0};
    for (int i = 0; i < WEFT_NUM_SCRATCH_USES; i++) {
        weft_footprint other;
        shared_bytes at;
        if (i > WEFT_SCRATCH_BACKWARD && !l->step->outline.leaves_weights)
            break;
        WEFT_TRY(footprint_at(l, &loads->scratch[i], &other, &at));
        uint64_t *stack = &most[pairs && i != WEFT_SCRATCH_FORWARD];
        *stack = at.scratch[i] > *stack ? at.scratch[i] : *stack;
    }
    *out = most[0] + most[1];
    return WEFT_OK;
}

weft_status weft_step_footprint_at(const weft_config *config, const weft_mesh *mesh,
                                   const weft_step *step, int rank, const weft_program *program,
                                   const weft_moe_held_loads *loads, weft_footprint *out)
{
    const loading l = {config, mesh, step, rank, program, loads->scratch_layer};
    weft_footprint other;
    shared_bytes kept, at;
    WEFT_TRY(footprint_at(&l, &loads->passes, out, &kept));
    uint64_t planned = kept.recomputed + kept.deferred, shared;
    WEFT_TRY(footprint_at(&l, &loads->pinned, &other, &at));
    out->bytes[WEFT_MEMORY_PINNED] = other.bytes[WEFT_MEMORY_PINNED];
    WEFT_TRY(footprint_at(&l, &loads->recomputed, &other, &at));
    shared = at.recomputed;
    if (kept.deferred > 0)
        WEFT_TRY(footprint_at(&l, &loads->deferred, &other, &at));
    shared += kept.deferred > 0 ? at.deferred : 0;
    for (int k = 0; k < WEFT_OFFLOAD_SLOTS; k++) {
        planned += kept.slots[k];
        if (kept.slots[k] == 0)
            continue;
        WEFT_TRY(footprint_at(&l, &loads->offloaded[k], &other, &at));
        shared += at.slots[k];
    }
    out->device_bytes -= out->bytes[WEFT_MEMORY_SCRATCH] + planned;
    WEFT_TRY(scratch_at(&l, loads, &out->bytes[WEFT_MEMORY_SCRATCH]));
    out->bytes[WEFT_MEMORY_ACTIVATIONS] += shared - planned;
    out->device_bytes += out->bytes[WEFT_MEMORY_SCRATCH] + shared;
    return WEFT_OK;
}
