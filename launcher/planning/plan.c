#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "core/log.h"
#include "launcher/planning/plan.h"
#include "launcher/planning/ramp.h"
#include "launcher/planning/software.h"
#include "launcher/planning/step_price.h"
#include "layers/pass/recompute.h"

/* --- device memory of other software ---------------------------------------------------------
 *
 * Of dense models what its layers keep (layers/describe/plain.h, with fused attention), whole
 * masters, workspaces of its libraries. PyTorch's allocator has a pass's bytes from its forward to
 * its backward, where Weft's passes have slots, which messages may fill ahead. */

/* Whether its rules describe what the config does. */
static bool is_described(const weft_config *config)
{
    const unsigned described = WEFT_RECOMPUTE_MODULE(CORE_ATTN) | WEFT_RECOMPUTE_ALWAYS;
    unsigned modules = 0;
    if (!(weft_software_value(config->software, WEFT_RULE_STATE_BYTES) > 0) ||
        config->model.num_experts > 0 || weft_dtype_bytes(weft_config_dtype(config)) != 2)
        return false;
    if (weft_recompute_modules(&config->train.recompute, &modules) != WEFT_OK) {
        weft_error_clear();
        return false;
    }
    return !(modules & ~described) && config->parallel.context_parallel_size <= 1 &&
           !config->model.multi_latent_attention && !config->train.offload.on &&
           !config->schedule.splits_backward &&
           config->tier.optimizer_state == WEFT_TIER_STATE_DEVICE &&
           weft_parallel_sharding(&config->parallel) <= WEFT_SHARD_OPTIM;
}

/* Leaves of the slots of stashes those that hold most at once in the order of compute. */
static weft_status leave_held(const weft_outline *outline, int rank, weft_arena *arena,
                              weft_program *program)
{
    const size_t num_chunks = (size_t)outline->layout.num_chunks;
    int *held, *most;
    weft_slot *slots;
    int num_slots = 0;
    uint64_t bytes = 0, most_bytes = 0;
    WEFT_TRY(WEFT_ARRAY(arena, num_chunks, &held));
    WEFT_TRY(WEFT_ARRAY(arena, num_chunks, &most));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)program->num_slots, &slots));
    memset(held, 0, num_chunks * sizeof *held);
    memset(most, 0, num_chunks * sizeof *most);
    for (uint32_t i = 0; i < program->num_tasks; i++) {
        const weft_task *task = &program->tasks[i];
        const bool begins = task->kind == WEFT_TASK_FORWARD;
        if (!begins && task->kind != WEFT_TASK_BACKWARD)
            continue;
        const uint64_t stash = weft_footprint_stash(outline, rank, task->chunk);
        held[task->chunk] += begins ? 1 : -1;
        bytes = begins ? bytes + stash : bytes - stash;
        if (bytes > most_bytes)
            memcpy(most, held, num_chunks * sizeof *most);
        most_bytes = bytes > most_bytes ? bytes : most_bytes;
    }
    for (int i = 0; i < program->num_slots; i++) {
        const weft_slot *slot = &program->slots[i];
        const int chunk = slot->chunk > 0 ? slot->chunk : 0;
        if (slot->holds != WEFT_SLOT_ACTIVATION || most[chunk]-- > 0)
            slots[num_slots++] = *slot;
    }
    program->slots = slots;
    program->num_slots = num_slots;
    return WEFT_OK;
}

/* A step whose outline and slots are the software's; without programs where its memory counts as
 * Weft's. In the arena but for the outline: weft_step_release. */
static weft_status other_memory_make(const weft_config *config, const weft_mesh *mesh,
                                     const weft_moe_options *moe, weft_arena *arena, weft_step *out)
{
    weft_config copy = *config;
    weft_status status = WEFT_OK;
    *out = (weft_step){0};
    if (!is_described(config))
        return WEFT_OK;
    copy.plain_kernels = WEFT_PLAIN_FUSED;
    WEFT_TRY(weft_step_make(WEFT_STEP_TRAINS, &copy, mesh, moe, arena, out));
    for (int rank = 0; status == WEFT_OK && rank < mesh->pp; rank++)
        status = leave_held(&out->outline, rank, arena, &out->programs[rank]);
    if (status != WEFT_OK)
        weft_step_release(out);
    return status;
}

/* A layer is made again once the loss is done with its logits: the larger of both counts. */
static uint64_t never_together(const weft_step *step, int rank, const weft_footprint *footprint)
{
    const uint64_t again = weft_footprint_recomputed(&step->outline, rank);
    for (int i = 0; i < footprint->num_modules; i++)
        if (strcmp(footprint->modules[i].module, "loss") == 0)
            return footprint->modules[i].bytes < again ? footprint->modules[i].bytes : again;
    return 0;
}

static void other_memory_footprint(const weft_config *config, const weft_step *step, int rank,
                                   weft_footprint *out)
{
    const uint64_t workspaces =
        (uint64_t)weft_software_value(config->software, WEFT_RULE_WORKSPACES_MIB) << 20;
    weft_config copy = *config;
    copy.train.split_master = false;
    weft_step_footprint(&copy, step, rank, &step->programs[rank], out);
    const uint64_t apart = never_together(step, rank, out);
    out->bytes[WEFT_MEMORY_OTHER] += workspaces;
    out->bytes[WEFT_MEMORY_SCRATCH] -= apart;
    out->device_bytes += workspaces - apart;
}

static const weft_axis waiting_axes[] = {WEFT_AXIS_TP, WEFT_AXIS_CP, WEFT_AXIS_EP, WEFT_AXIS_ETP};
enum { NUM_WAITING_AXES = sizeof waiting_axes / sizeof *waiting_axes };

/* Kinds by rank, and by the color of groups over one axis. */
typedef struct spread {
    const weft_mesh *mesh;
    uint32_t *of_rank, *of_group;
    int *colors;
} spread;

/* Ranks get the kinds of all their groups' members; true: a rank got more. */
static bool spread_over(spread *s, weft_axis axis)
{
    bool grew = false;
    for (int r = 0; r < s->mesh->world; r++) {
        s->colors[r] = weft_mesh_color(s->mesh, axis, r);
        s->of_group[s->colors[r]] = 0;
    }
    for (int r = 0; r < s->mesh->world; r++)
        s->of_group[s->colors[r]] |= s->of_rank[r];
    for (int r = 0; r < s->mesh->world; r++) {
        grew |= s->of_group[s->colors[r]] != s->of_rank[r];
        s->of_rank[r] = s->of_group[s->colors[r]];
    }
    return grew;
}

static uint32_t kind_of(const weft_cluster *cluster, int rank)
{
    const int group = weft_cluster_group_of(cluster, rank / cluster->ranks_per_node);
    return group < 0 ? 0 : 1u << group;
}

static weft_status find(const weft_cluster *cluster, const weft_mesh *mesh, weft_arena *scratch,
                        weft_stage_kinds *out)
{
    spread s = {.mesh = mesh};
    WEFT_TRY(WEFT_ARRAY(scratch, (size_t)mesh->world, &s.of_rank));
    WEFT_TRY(WEFT_ARRAY(scratch, (size_t)mesh->world, &s.of_group));
    WEFT_TRY(WEFT_ARRAY(scratch, (size_t)mesh->world, &s.colors));
    const weft_coords first = weft_mesh_coords(mesh, 0);
    for (int r = 0; r < mesh->world; r++) {
        s.of_rank[r] = kind_of(cluster, r);
        out[weft_mesh_coords(mesh, r).at[WEFT_AXIS_PP]].all |= s.of_rank[r];
    }
    for (bool grew = true; grew;) {
        grew = false;
        for (int i = 0; i < NUM_WAITING_AXES; i++)
            grew |= first.size[waiting_axes[i]] > 1 && spread_over(&s, waiting_axes[i]);
    }
    for (int r = 0; r < mesh->world; r++)
        out[weft_mesh_coords(mesh, r).at[WEFT_AXIS_PP]].together[s.of_rank[r]] = true;
    return WEFT_OK;
}

weft_status weft_stage_kinds_find(const weft_cluster *cluster, const weft_mesh *mesh,
                                  weft_arena *arena, weft_stage_kinds **out)
{
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)mesh->pp, out));
    if (cluster->num_groups == 0) {
        for (int stage = 0; stage < mesh->pp; stage++)
            (*out)[stage].together[0] = true;
        return WEFT_OK;
    }
    weft_arena scratch = {0};
    const weft_status status = find(cluster, mesh, &scratch, *out);
    weft_arena_release(&scratch);
    return status;
}

int64_t weft_kind_num_ranks(const weft_cluster *cluster, const weft_mesh *mesh, int group)
{
    int64_t first = 0, end = mesh->world;
    if (group < 0)
        return mesh->world;
    for (int g = 0; g < group; g++)
        first += (int64_t)cluster->groups[g].num_nodes * cluster->ranks_per_node;
    end = first + (int64_t)cluster->groups[group].num_nodes * cluster->ranks_per_node;
    end = end < mesh->world ? end : mesh->world;
    return end > first ? end - first : 0;
}

#define ROW(name, text) text,
const char *const weft_time_texts[WEFT_NUM_TIMES] = {WEFT_TIME_LIST(ROW)};
const char *const weft_limit_texts[WEFT_NUM_LIMITS] = {WEFT_LIMIT_LIST(ROW)};
const char *const weft_kernels_texts[WEFT_NUM_KERNELS] = {WEFT_KERNELS_LIST(ROW)};
#undef ROW

weft_config_source weft_plan_source(const char *file, const weft_string_list *set, const char *mesh,
                                    const weft_application *application)
{
    return (weft_config_source){.file = file,
                                .set = set->values,
                                .num_set = set->count,
                                .mesh = mesh,
                                .no_data = true,
                                .application = application};
}

weft_status weft_plan_load(const weft_config_source *source, weft_vocabulary_function vocabulary,
                           weft_arena *arena, weft_config *out)
{
    WEFT_TRY(weft_config_load(source, arena, out));
    if (vocabulary && weft_config_reads_file(out))
        return weft_config_locate(source, vocabulary(out));
    if (out->model.vocab_size > 0)
        return WEFT_OK;
    return weft_config_locate(
        source,
        WEFT_KEY_ERROR("model.vocab_size", "missing, and no dataset is read that would say"));
}

weft_status weft_plan_read_cluster(const char *option, const char *path, weft_arena *arena,
                                   weft_cluster **out)
{
    weft_cluster *cluster;
    WEFT_TRY(WEFT_ARRAY(arena, 1, &cluster));
    weft_status read = weft_cluster_read(path, cluster);
    if (read == WEFT_FILE) /* as of a config that cannot be read */
        return WEFT_ERROR(WEFT_CONFIG, "--%s %s", option, weft_error_get()->text);
    WEFT_TRY(read);
    *out = cluster;
    return WEFT_OK;
}

/* By whatever paths: launched runs have their cluster's from the root. */
static bool is_same_file(const char *a, const char *b)
{
    struct stat info[2];
    return strcmp(a, b) == 0 ||
           (stat(a, &info[0]) == 0 && stat(b, &info[1]) == 0 && info[0].st_dev == info[1].st_dev &&
            info[0].st_ino == info[1].st_ino);
}

weft_status weft_plan_cluster(const char *option, const char *path, weft_config *config,
                              weft_arena *arena, weft_cluster **out)
{
    const weft_pace pace = weft_config_pace(config);
    weft_cluster *planned_on;
    WEFT_TRY(weft_plan_read_cluster(option, path, arena, out));
    WEFT_TRY(WEFT_ARRAY(arena, 1, &planned_on));
    *planned_on = **out;
    config->planned_on = planned_on;
    if (pace.flops > 0 && pace.work == WEFT_PACE_ALL)
        weft_cluster_set_pace(*out, pace.flops);
    if (pace.link > 0)
        weft_cluster_set_link_pace(*out, pace.link);
    const char *other = config->schedule.cluster;
    if (other && other[0] && !is_same_file(other, path))
        weft_log(WEFT_LOG_WARN, "--%s %s: no effect of parallel.cluster", option, path);
    config->schedule.cluster = path; /* how MoE layers run is chosen for it, too */
    return WEFT_OK;
}

weft_status weft_plan_set_kernels(weft_kernels_kind kernels, const weft_config_source *source,
                                  weft_config *config)
{
    config->plain_kernels = kernels == WEFT_KERNELS_PLAIN        ? WEFT_PLAIN_2022
                            : kernels == WEFT_KERNELS_PLAIN_2021 ? WEFT_PLAIN_2021
                                                                 : WEFT_PLAIN_NONE;
    const unsigned described = WEFT_RECOMPUTE_MODULE(CORE_ATTN) | WEFT_RECOMPUTE_ALWAYS;
    unsigned modules = 0;
    const weft_status status = weft_recompute_modules(&config->train.recompute, &modules);
    const struct {
        bool refused;
        const char *key, *why;
    } rows[] = {
        {config->parallel.context_parallel_size > 1, "parallel.context_parallel_size",
         "plain kernels see whole sequences; 1 would do"},
        {config->model.multi_latent_attention, "model.multi_latent_attention",
         "plain kernels have no latents"},
        {config->train.offload.on, "train.fine_grained_activation_offloading",
         "plain kernels offload nothing"},
        {config->tier.experts != WEFT_TIER_NONE, "offload.experts",
         "plain kernels keep experts on the device; none would do"},
        {config->tier.optimizer_state != WEFT_TIER_STATE_DEVICE, "offload.optimizer_state",
         "plain kernels step on the device"},
        {(modules & ~described) != 0, "train.recompute_modules",
         "of plain kernels core_attn alone is made again"},
    };
    for (size_t i = 0; config->plain_kernels && i < sizeof rows / sizeof *rows; i++)
        if (rows[i].refused)
            return weft_config_locate(source, WEFT_KEY_ERROR(rows[i].key, "%s", rows[i].why));
    return status;
}

static weft_status check_devices(const weft_cluster *cluster, const weft_mesh *mesh)
{
    int64_t devices = (int64_t)cluster->num_nodes * cluster->ranks_per_node;
    if (mesh->world <= devices)
        return WEFT_OK;
    char axes[128];
    weft_mesh_print(mesh, axes, sizeof axes);
    return WEFT_ERROR(WEFT_CONFIG, "the mesh (%s) has %d ranks, the cluster %s has %lld devices",
                      axes, mesh->world, cluster->name, (long long)devices);
}

/* --- memory -------------------------------------------------------------------------------- */

/* What a rank's device has; on nodes without devices of their own, its share of the node. 0:
 * nobody says. */
static uint64_t device_limit(const weft_config *config, const weft_cluster *cluster, int group)
{
    const weft_hardware *h = weft_cluster_hardware(cluster, group);
    if (weft_hardware_knows(h, WEFT_FIGURE_MEMORY))
        return (uint64_t)(h->figures[WEFT_FIGURE_MEMORY] - h->figures[WEFT_FIGURE_RESERVED]);
    if (config->device.kind == WEFT_DEVICE_KIND_CPU &&
        weft_hardware_knows(h, WEFT_FIGURE_HOST_MEMORY))
        return (uint64_t)(h->figures[WEFT_FIGURE_HOST_MEMORY] / cluster->ranks_per_node);
    return 0;
}

uint64_t weft_plan_memory_limit(const weft_config *config, const weft_cluster *cluster, int group)
{
    const uint64_t allowed = (uint64_t)config->device.memory_limit,
                   has = device_limit(config, cluster, group);
    return allowed > 0 && (has == 0 || allowed < has) ? allowed : has;
}

/* A rank's share of a node's own memory. */
static uint64_t host_limit(const weft_config *config, const weft_cluster *cluster, int group)
{
    const weft_hardware *h = weft_cluster_hardware(cluster, group);
    (void)config;
    return weft_hardware_knows(h, WEFT_FIGURE_HOST_MEMORY)
               ? (uint64_t)(h->figures[WEFT_FIGURE_HOST_MEMORY] / cluster->ranks_per_node)
               : 0;
}

/* The lower of it and what the config allows to those who pin memory. */
static uint64_t pinned_limit(const weft_config *config, const weft_cluster *cluster, int group)
{
    const uint64_t has = host_limit(config, cluster, group);
    const uint64_t allowed = weft_tier_pins(config) ? (uint64_t)config->tier.host_memory_limit : 0;
    return allowed > 0 && (has == 0 || allowed < has) ? allowed : has;
}

typedef uint64_t (*limit_function)(const weft_config *config, const weft_cluster *cluster,
                                   int group);

static uint64_t smallest_limit(limit_function limit_of, const weft_config *config,
                               const weft_cluster *cluster, uint32_t kinds)
{
    uint64_t least = kinds ? 0 : limit_of(config, cluster, -1);
    for (int g = 0; kinds >> g; g++) {
        const uint64_t limit = kinds >> g & 1 ? limit_of(config, cluster, g) : 0;
        if (limit > 0 && (least == 0 || limit < least))
            least = limit;
    }
    return least;
}

/* Where a device's memory is the host's, all of it counts. */
static void find_host_memory(const weft_config *config, const weft_cluster *cluster, int s,
                             weft_plan *plan)
{
    weft_plan_stage *stage = &plan->stages[s];
    const uint64_t pinned = stage->footprint.bytes[WEFT_MEMORY_PINNED];
    const uint64_t limit = smallest_limit(pinned_limit, config, cluster, plan->kinds[s].all);
    const bool is_host = limit > 0 && limit == stage->memory_limit_bytes;
    const uint64_t bytes = pinned + (is_host ? stage->footprint.device_bytes : 0);
    plan->fits &= limit == 0 || bytes <= limit;
    if (s > 0 && bytes <= plan->host_memory_bytes)
        return;
    plan->host_memory_bytes = bytes;
    plan->host_limit_bytes = limit;
    plan->most_host = s;
}

static void find_file(int s, weft_plan *plan)
{
    const uint64_t bytes = plan->stages[s].footprint.file_bytes;
    plan->fits &= plan->file_limit_bytes == 0 || bytes <= plan->file_limit_bytes;
    if (bytes <= plan->file_bytes)
        return;
    plan->file_bytes = bytes;
    plan->most_file = s;
}

const weft_step *weft_plan_memory_step(const weft_plan *plan)
{
    return plan->theirs.programs ? &plan->theirs : &plan->step;
}

static void find_memory(const weft_config *config, const weft_cluster *cluster, weft_plan *plan)
{
    double most = -INFINITY;
    plan->fits = true;
    plan->file_limit_bytes = (uint64_t)config->tier.file_limit;
    for (int s = 0; s < plan->num_stages; s++) {
        weft_plan_stage *stage = &plan->stages[s];
        if (plan->theirs.programs)
            other_memory_footprint(config, &plan->theirs, s, &stage->footprint);
        else
            weft_step_footprint(config, &plan->step, s, &plan->step.programs[s], &stage->footprint);
        const uint64_t bytes = stage->footprint.device_bytes;
        const uint64_t limit =
            smallest_limit(weft_plan_memory_limit, config, cluster, plan->kinds[s].all);
        stage->memory_limit_bytes = limit;
        plan->fits &= limit == 0 || bytes <= limit;
        find_host_memory(config, cluster, s, plan);
        find_file(s, plan);
        const double lack = limit > 0 ? (double)bytes - (double)limit : -INFINITY;
        if (lack > most || (lack == most && bytes > plan->memory_bytes)) {
            most = lack;
            plan->memory_bytes = bytes;
            plan->memory_limit_bytes = limit;
            plan->fullest = s;
        }
    }
}

/* --- what the step's time says ------------------------------------------------------------- */

static weft_limit_kind what_binds(const weft_plan *plan)
{
    double us[WEFT_NUM_LIMITS] = {0}, memory_us = 0;
    for (int s = 0; s < plan->num_stages; s++) {
        memory_us += plan->stages[s].memory_us / plan->num_stages;
        us[WEFT_LIMIT_INSIDE] += plan->stages[s].exposed_us[WEFT_LINK_INSIDE] / plan->num_stages;
        us[WEFT_LIMIT_BETWEEN] += plan->stages[s].exposed_us[WEFT_LINK_BETWEEN] / plan->num_stages;
        us[WEFT_LIMIT_HOST] += plan->stages[s].exposed_us[WEFT_LINK_HOST] / plan->num_stages;
    }
    us[WEFT_LIMIT_COMPUTE] = plan->us[WEFT_TIME_COMPUTE] - memory_us;
    us[WEFT_LIMIT_MEMORY_BANDWIDTH] = memory_us + plan->us[WEFT_TIME_OPTIMIZER];
    us[WEFT_LIMIT_BUBBLE] = plan->us[WEFT_TIME_BUBBLE];
    int most = 0;
    for (int i = 1; i < WEFT_NUM_LIMITS; i++)
        most = us[i] > us[most] ? i : most;
    return (weft_limit_kind)most;
}

/* In floating point: at 16M tokens attention's alone pass 2^64. */
static double layer_flops(const weft_description *d)
{
    double sum = 0;
    if (d->coarse)
        return (double)d->cost.forward_flops + (double)d->cost.backward_flops;
    for (int i = 0; i < d->num_operations; i++) {
        const weft_operation *o = &d->operations[i];
        if (o->kind == WEFT_OPERATION_GEMM && o->phase != WEFT_PHASE_RECOMPUTE)
            sum += 2.0 * (double)o->m * (double)o->n * (double)o->k * (double)o->count;
    }
    return sum;
}

/* Model FLOPs of a step: what one rank alone would describe. */
static weft_status model_flops(const weft_config *config, double *out)
{
    weft_parallel_options alone = config->parallel;
    const weft_moe_options none = {.pipeline = {.num_partitions = 1}};
    weft_model_setup setup = weft_step_setup(config, &none);
    weft_mesh mesh;
    weft_outline outline;
    alone.tensor_model_parallel_size = alone.pipeline_model_parallel_size = 1;
    alone.context_parallel_size = alone.data_parallel_size = 1;
    alone.expert_model_parallel_size = alone.expert_tensor_parallel_size = 1;
    alone.sequence_parallel = false;
    setup.parallel = NULL;
    setup.plain_kernels = WEFT_PLAIN_NONE; /* whose masks' products are no model FLOPs */
    WEFT_TRY(weft_mesh_build(&alone, 1, config->model.num_experts, &mesh));
    WEFT_TRY(weft_model_outline(&setup, &mesh, weft_config_build(config), &outline));
    *out = 0;
    for (int i = 0; i < outline.num_layers; i++)
        *out += layer_flops(&outline.layers[i].description);
    *out *= (double)(config->train.global_batch_size / config->train.micro_batch_size);
    weft_outline_release(&outline);
    return WEFT_OK;
}

/* The peaks of all devices together: the cluster's, and what the config says of devices of which
 * the cluster tells none. 0: nobody does. */
static double peak_flops(const weft_config *config, const weft_cluster *cluster,
                         const weft_mesh *mesh)
{
    const weft_dtype dtype = weft_config_dtype(config);
    const weft_figure figure = dtype == WEFT_F32    ? WEFT_FIGURE_PEAK_FP32
                               : dtype == WEFT_BF16 ? WEFT_FIGURE_PEAK_BF16
                                                    : WEFT_FIGURE_PEAK_FP16;
    const weft_cost_kind gemm = dtype == WEFT_F32 ? WEFT_COST_GEMM_FP32 : WEFT_COST_GEMM_BF16;
    double sum = 0;
    for (int g = cluster->num_groups > 0 ? 0 : -1; g < cluster->num_groups; g++) {
        const weft_hardware *h = weft_cluster_hardware(cluster, g);
        const double ranks = (double)weft_kind_num_ranks(cluster, mesh, g);
        const double known =
            weft_hardware_knows(h, figure) ? h->figures[figure] : cluster->costs[gemm].peak;
        const double peak = known > 0 ? known : config->device.peak_flops;
        if (ranks > 0 && !(peak > 0))
            return 0;
        sum += ranks * peak;
    }
    return sum;
}

/* The best rate of products that the cluster's file has measured; 0: none. */
static double products_flops(const weft_config *config, const weft_cluster *cluster)
{
    const weft_cost_kind gemm =
        weft_config_dtype(config) == WEFT_F32 ? WEFT_COST_GEMM_FP32 : WEFT_COST_GEMM_BF16;
    double best = 0;
    for (int i = 0; i < cluster->num_products; i++) {
        const weft_product *p = &cluster->products[i];
        if (p->kind == gemm)
            best = fmax(best, 2e6 * p->m * p->n * p->k / p->us);
    }
    return best;
}

static weft_status summarize(const weft_config *config, const weft_cluster *cluster,
                             weft_plan *plan)
{
    const double seconds = plan->step_us / 1e6, peak = peak_flops(config, cluster, &plan->mesh);
    double flops = 0;
    WEFT_TRY(model_flops(config, &flops));
    plan->tokens_per_s =
        (double)(config->train.global_batch_size * config->model.seq_length) / seconds;
    const double share = peak > 0 ? flops / (seconds * peak) : 0,
                 reached = products_flops(config, cluster);
    plan->model_flops_utilization = share <= 1 ? share : share < 1 + 1e-6 ? 1 : (double)NAN;
    plan->products_flops = peak > 0 && reached > peak / plan->mesh.world ? reached : 0;
    plan->limits = what_binds(plan);
    return WEFT_OK;
}

double weft_plan_load_on(const weft_config *config, const weft_mesh *mesh)
{
    const double worst = weft_moe_worst_load(config, mesh);
    return config->moe_load_asked && config->moe_load > worst ? worst : config->moe_load;
}

static uint64_t room(uint64_t limit)
{
    return limit > 0 ? limit : UINT64_MAX;
}

/* As training has them: with what the cluster's nodes have in the place of what the machine leaves.
 */
static weft_status find_room(const weft_config *config, const weft_cluster *cluster,
                             const weft_plan *plan, weft_arena *arena, weft_tier_room *out)
{
    weft_tier_room *rooms;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)plan->mesh.pp, &rooms));
    for (int s = 0; s < plan->mesh.pp; s++) {
        const uint32_t kinds = plan->kinds[s].all;
        const uint64_t device = smallest_limit(weft_plan_memory_limit, config, cluster, kinds),
                       host = smallest_limit(host_limit, config, cluster, kinds);
        rooms[s] = (weft_tier_room){.device_bytes = room(device),
                                    .host_bytes =
                                        room(smallest_limit(pinned_limit, config, cluster, kinds)),
                                    .file_bytes = room((uint64_t)config->tier.file_limit),
                                    .is_host = host > 0 && host == device};
    }
    *out = (weft_tier_room){.by_stage = rooms};
    return WEFT_OK;
}

static weft_status choose_tier(const weft_config *config, const weft_cluster *cluster,
                               const weft_moe_options *moe, weft_arena *arena, weft_plan *plan)
{
    weft_tier_room there;
    WEFT_TRY(find_room(config, cluster, plan, arena, &there));
    return weft_tier_choose(WEFT_STEP_TRAINS, config, &plan->mesh, moe, &there, &plan->tier);
}

static weft_status make_step(weft_config *config, const weft_cluster *cluster, weft_arena *arena,
                             weft_plan *plan)
{
    weft_moe_selection moe;
    WEFT_TRY(check_devices(cluster, &plan->mesh));
    const weft_topology topology = {.world = plan->mesh.world,
                                    .num_nodes = cluster->num_nodes,
                                    .ranks_per_node = cluster->ranks_per_node};
    WEFT_TRY(weft_topology_check(&topology, &plan->mesh, config->parallel.allow_tp_across_nodes));
    WEFT_TRY(weft_mesh_choose(config, &topology, &plan->mesh, &plan->mesh_choice));
    WEFT_TRY(weft_moe_selection_start(config, &plan->mesh, &plan->mesh_choice.nodes, &moe));
    if (config->moe_load > 0)
        moe.options.load.rows = weft_plan_load_on(config, &plan->mesh);
    WEFT_TRY(weft_stage_kinds_find(cluster, &plan->mesh, arena, &plan->kinds));
    plan->tier.options = config->tier;
    if (weft_tier_is_left_open(&config->tier))
        WEFT_TRY(choose_tier(config, cluster, &moe.options, arena, plan));
    config->tier = plan->tier.options;
    WEFT_TRY(
        weft_step_make(WEFT_STEP_TRAINS, config, &plan->mesh, &moe.options, arena, &plan->step));
    WEFT_TRY(other_memory_make(config, &plan->mesh, &moe.options, arena, &plan->theirs));
    if (weft_ramp_num_sizes(&config->train) > 0)
        snprintf(plan->ramp, sizeof plan->ramp,
                 "of %" PRId64 " samples, as from %" PRId64
                 " samples on; the first step has %" PRId64,
                 config->train.global_batch_size, config->train.rampup_batch_size.values[2],
                 weft_ramp_size(&config->train, 0));
    WEFT_TRY(weft_step_check_ramp(config, &plan->step));
    plan->num_stages = plan->mesh.pp;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)plan->num_stages, &plan->stages));
    find_memory(config, cluster, plan);
    return WEFT_OK;
}

/* Nodes without multiprocessors compute on CPUs, unless a data sheet says what else they do. */
static weft_status check_precision(const weft_config *config, const weft_cluster *cluster,
                                   const weft_hardware *hardware)
{
    if (config->train.precision != WEFT_PRECISION_FP16 ||
        weft_hardware_knows(hardware, WEFT_FIGURE_MULTIPROCESSORS) ||
        weft_hardware_knows(hardware, WEFT_FIGURE_PEAK_FP16))
        return WEFT_OK;
    return WEFT_KEY_ERROR("train.precision",
                          "fp16 needs GPUs, and cluster \"%s\" has CPUs (no "
                          "device.multiprocessors), which compute in fp32 and bf16",
                          cluster->name);
}

/* Whatever the config was last run on; a pace is that of an emulated device. */
bool weft_plan_is_of_gpus(const weft_config *config, const weft_cluster *cluster)
{
    return config->device.pace == 0 && config->device.pace_link == 0 &&
           config->device.pace_file == 0 &&
           weft_hardware_knows(weft_cluster_hardware(cluster, cluster->num_groups > 0 ? 0 : -1),
                               WEFT_FIGURE_MULTIPROCESSORS);
}

/* A plan is for the cluster's devices, whatever the config was last run on. */
static weft_config on_devices(const weft_config *config, const weft_cluster *cluster)
{
    weft_config copy = *config;
    if (weft_plan_is_of_gpus(config, cluster))
        copy.device.kind = WEFT_DEVICE_KIND_CUDA;
    return copy;
}

weft_status weft_plan_start(const weft_config *config, const weft_config_source *source,
                            const weft_cluster *cluster, weft_arena *arena, weft_plan *out)
{
    weft_config copy = on_devices(config, cluster);
    memset(out, 0, sizeof *out);
    const weft_hardware *hardware =
        weft_cluster_hardware(cluster, cluster->num_groups > 0 ? 0 : -1);
    WEFT_TRY(weft_config_locate(source, check_precision(config, cluster, hardware)));
    WEFT_TRY(weft_config_mesh(&copy, source, 0, &out->mesh));
    out->dropped_ep = config->dropped_ep;
    if (config->parallel.data_parallel_size == 0)
        out->num_idle = cluster->num_nodes * cluster->ranks_per_node - out->mesh.world;
    weft_status status = make_step(&copy, cluster, arena, out);
    if (status != WEFT_OK)
        weft_plan_release(out);
    return weft_config_locate(source, status);
}

weft_status weft_plan_make(const weft_config *config, const weft_config_source *source,
                           const weft_cluster *cluster, weft_trace *trace, weft_arena *arena,
                           weft_plan *out)
{
    weft_config copy = on_devices(config, cluster);
    WEFT_TRY(weft_plan_start(config, source, cluster, arena, out));
    copy.tier = out->tier.options;
    weft_status status = weft_step_price(&copy, cluster, trace, arena, out);
    if (status == WEFT_OK)
        status = summarize(&copy, cluster, out);
    if (status != WEFT_OK)
        weft_plan_release(out);
    return weft_config_locate(source, status);
}

bool weft_plan_lacks_memory(const weft_plan *plan)
{
    return plan->memory_limit_bytes > 0 && plan->memory_bytes > plan->memory_limit_bytes;
}

weft_status weft_plan_advise(const weft_config *config, const weft_cluster *cluster,
                             weft_arena *arena, weft_plan *plan)
{
    weft_config copy = on_devices(config, cluster);
    weft_tier_room there;
    plan->advice[0] = '\0';
    if (!weft_plan_lacks_memory(plan) || plan->theirs.programs || config->plain_kernels)
        return WEFT_OK;
    copy.tier = plan->tier.options;
    WEFT_TRY(find_room(&copy, cluster, plan, arena, &there));
    return weft_tier_advise(&copy, &plan->mesh, &plan->step, &there, plan->advice);
}

void weft_plan_release(weft_plan *plan)
{
    weft_step_release(&plan->step);
    weft_step_release(&plan->theirs);
}
