#include <string.h>

#include <weft/kernels.h>

#include "core/file.h"
#include "parallel/checkpoint/internal.h"

/* One load: of the state's pieces, or (optimizer NULL) of the weights alone. */
typedef struct load {
    const char *folder, *model;
    weft_parameters *parameters;
    weft_optimizer *optimizer;
    weft_lane *lane;
    weft_comm *world;
    weft_arena arena;
    weft_manifest manifest;
    weft_shard_list shards; /* on rank 0 all; then those that this rank verifies */
    weft_stored_list wanted;
    bool has_state; /* the optimizer's, beside weights */
    weft_tensor_file *file;
    float *staging;        /* pinned, WEFT_SHARD_MAX_ELEMENTS */
    float *device_staging; /* where weights are cast from; NULL unless needed */
} load;

static const size_t staging_bytes = WEFT_SHARD_MAX_ELEMENTS * sizeof(float);

static bool needs_cast(const load *l)
{
    return !l->optimizer && weft_parameters_dtype(l->parameters) != WEFT_F32;
}

static weft_status prepare(load *l)
{
    weft_device *device = weft_parameters_device(l->parameters);
    void *memory;
    WEFT_TRY(weft_device_alloc_for(device, WEFT_SPACE_PINNED, WEFT_MEMORY_STAGING, staging_bytes,
                                   "checkpoint staging", &memory));
    l->staging = memory;
    if (needs_cast(l)) {
        WEFT_TRY(weft_device_alloc_for(device, WEFT_SPACE_DEVICE, WEFT_MEMORY_STAGING,
                                       staging_bytes, "checkpoint staging", &memory));
        l->device_staging = memory;
    }
    WEFT_TRY(weft_arena_printf(&l->arena, &l->model, "%s/%s", l->folder,
                               weft_part_names[WEFT_PART_MODEL]));
    return weft_manifest_read(l->folder, &l->arena, &l->manifest);
}

/* What grows with the ranks that saved is read by one of those that load. */
static weft_status read_shards(load *l)
{
    if (weft_comm_rank(l->world) > 0)
        return WEFT_OK;
    WEFT_TRY(weft_parts_check(l->folder, &l->manifest, &l->arena));
    return weft_shards_read(l->folder, &l->manifest.datasets, &l->arena, &l->shards);
}

static weft_status wrong_shape(const load *l, const weft_stored *stored, const weft_stored *wanted)
{
    char texts[2][128];
    const weft_stored *shapes[2] = {stored, wanted};
    for (int i = 0; i < 2; i++) {
        size_t used = 0;
        for (int d = 0; d < shapes[i]->num_dims; d++)
            used += (size_t)snprintf(texts[i] + used, sizeof texts[i] - used, "%s%zu",
                                     d ? ", " : "", shapes[i]->dims[d]);
    }
    return WEFT_ERROR(WEFT_FILE, "%s: %s has shape [%s], the model wants [%s]", l->model,
                      stored->name, texts[0], texts[1]);
}

/* The file and the run differ by a second moment alone: one of them is Muon's. */
static bool is_of_other_optimizer(const char *name)
{
    return strncmp(name, "optimizer/exp_avg_sq/", 21) == 0;
}

static weft_status other_optimizer(const load *l, const char *is, const char *saved,
                                   const char *has, const char *name)
{
    return WEFT_KEY_ERROR(
        "train.optimizer",
        "%s does not go on from what %s saved: %s %s %s; give %s, or a checkpoint "
        "of weights alone (weft export, then weft import)",
        is, saved, l->model, has, name, saved);
}

/* Everything that the model has stands in the file with its shape, and nothing else does (weights
 * alone: nothing else under "model/"). */
static weft_status match(const load *l)
{
    const weft_stored_list *stored = &l->manifest.datasets;
    for (int i = 0; i < l->wanted.count; i++) {
        const weft_stored *wanted = &l->wanted.items[i];
        int found = weft_stored_find(stored, wanted->name);
        if (found < 0 && is_of_other_optimizer(wanted->name))
            return other_optimizer(l, "adam", "muon", "lacks", wanted->name);
        if (found < 0)
            return WEFT_ERROR(WEFT_FILE, "%s: lacks %s, which the model has", l->model,
                              wanted->name);
        const weft_stored *is = &stored->items[found];
        if (is->num_dims != wanted->num_dims ||
            memcmp(is->dims, wanted->dims, (size_t)is->num_dims * sizeof is->dims[0]) != 0)
            return wrong_shape(l, is, wanted);
    }
    for (int i = 0; i < stored->count; i++) {
        const char *name = stored->items[i].name;
        bool counts = l->optimizer || strncmp(name, "model/", 6) == 0;
        if (!counts || weft_stored_find(&l->wanted, name) >= 0)
            continue;
        if (is_of_other_optimizer(name))
            return other_optimizer(l, "muon", "adam", "has", name);
        return WEFT_ERROR(WEFT_FILE, "%s: has %s, which the model lacks", l->model, name);
    }
    return WEFT_OK;
}

/* Keeps the shards under "model/" when weights alone are read. */
static void choose_shards(load *l)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->shards.count; i++) {
        const char *name = l->manifest.datasets.items[l->shards.items[i].dataset].name;
        if (l->optimizer || strncmp(name, "model/", 6) == 0)
            l->shards.items[kept++] = l->shards.items[i];
    }
    l->shards.count = kept;
}

static weft_status verify(load *l)
{
    WEFT_TRY(weft_tensor_file_open(l->model, &l->manifest.datasets, &l->file));
    return weft_shards_verify(l->file, l->model, &l->manifest.datasets, &l->shards);
}

/* Checkpoints of weights alone have no dataset of moments. */
static bool has_state(const weft_stored_list *stored)
{
    for (int i = 0; i < stored->count; i++)
        if (strncmp(stored->items[i].name, "model/", 6) != 0)
            return true;
    return false;
}

/* Where a range of a parameter's local elements goes. */
typedef struct target {
    load *l;
    const weft_placed *placed;
    int64_t dataset;
    size_t range_first; /* the range's and the current run's first local element */
    size_t run_first;
    void *data; /* of the range's first element */
} target;

static weft_status read_slab(void *context, const weft_slab *slab)
{
    const target *t = context;
    weft_stored_shard shard = {.dataset = t->dataset};
    memcpy(shard.start, slab->start, sizeof shard.start);
    memcpy(shard.count, slab->count, sizeof shard.count);
    return weft_tensor_file_read(t->l->file, &shard,
                                 t->l->staging + (slab->local_offset - t->run_first));
}

static weft_status read_run(void *context, size_t first, size_t count)
{
    target *t = context;
    load *l = t->l;
    t->run_first = first;
    memset(l->staging, 0, count * sizeof(float)); /* padding is zero */
    WEFT_TRY(weft_box_visit(&t->placed->box, first, count, read_slab, t));

    size_t element_bytes =
        needs_cast(l) ? weft_dtype_bytes(weft_parameters_dtype(l->parameters)) : sizeof(float);
    void *to = (char *)t->data + (first - t->range_first) * element_bytes;
    void *through = l->device_staging ? l->device_staging : to;
    WEFT_TRY(weft_lane_copy(l->lane, through, l->staging, count * sizeof(float)));
    if (l->device_staging)
        WEFT_TRY(weft_optimizer_round(l->lane, count, through, weft_parameters_dtype(l->parameters),
                                      to));
    return weft_lane_sync(l->lane);
}

/* Zeroes in the place of a range that the checkpoint does not have. */
static weft_status clear_range(load *l, size_t count, float *data)
{
    memset(l->staging, 0, staging_bytes);
    for (size_t done = 0; done < count; done += WEFT_SHARD_MAX_ELEMENTS) {
        const size_t left = count - done;
        const size_t now = left < WEFT_SHARD_MAX_ELEMENTS ? left : WEFT_SHARD_MAX_ELEMENTS;
        WEFT_TRY(weft_lane_copy(l->lane, data + done, l->staging, now * sizeof *data));
    }
    return weft_lane_sync(l->lane);
}

static weft_status read_range(load *l, const weft_placed *placed, weft_state_kind kind,
                              size_t first, size_t count, void *data)
{
    char name[WEFT_STORED_NAME_BYTES];
    weft_stored_name(kind, placed->parameter.name, name);
    target t = {.l = l,
                .placed = placed,
                .dataset = weft_stored_find(&l->manifest.datasets, name),
                .range_first = first,
                .data = data};
    return weft_runs_visit(&placed->box, first, count, read_run, &t);
}

/* Of experts in a file each part is a bucket. */
static weft_status read_weights(load *l, const weft_placed *placed, size_t part, size_t first,
                                size_t count)
{
    const int bucket = placed->bucket + (int)part;
    WEFT_TRY(weft_parameters_take(l->parameters, placed->section, bucket, WEFT_RECORD_W,
                                  WEFT_RECORD_W, l->lane));
    WEFT_TRY(read_range(l, placed, WEFT_STATE_MASTER, first, count,
                        weft_parameters_weight_at(l->parameters, placed, first)));
    return weft_parameters_give(l->parameters, placed->section, bucket, l->lane);
}

static weft_status read_all(load *l)
{
    for (int i = 0; l->optimizer && i < weft_optimizer_num_pieces(l->optimizer); i++) {
        weft_state_piece piece;
        WEFT_TRY(weft_optimizer_open(l->optimizer, i, true, l->lane, &piece));
        for (int kind = 0; kind < WEFT_NUM_STATES && piece.data[kind]; kind++)
            WEFT_TRY(kind == WEFT_STATE_MASTER || l->has_state
                         ? read_range(l, piece.placed, (weft_state_kind)kind, piece.first,
                                      piece.count, piece.data[kind])
                         : clear_range(l, piece.count, piece.data[kind]));
        WEFT_TRY(weft_optimizer_close(l->optimizer, i, true, l->lane));
    }
    for (int i = 0; !l->optimizer && i < weft_parameters_count(l->parameters); i++) {
        const weft_placed *placed = weft_parameters_at(l->parameters, i);
        for (size_t part = 0; part < weft_placed_parts(placed); part++) {
            size_t first, count;
            weft_parameters_kept(l->parameters, placed, part, &first, &count);
            if (count > 0)
                WEFT_TRY(read_weights(l, placed, part, first, count));
        }
    }
    return WEFT_OK;
}

static weft_status reload(load *l)
{
    if (!l->optimizer)
        return WEFT_OK;
    WEFT_TRY(weft_optimizer_reload(l->optimizer, l->lane));
    return weft_lane_sync(l->lane);
}

static weft_status load_phases(load *l)
{
    WEFT_TRY(weft_comm_agree(l->world, prepare(l)));
    l->has_state = has_state(&l->manifest.datasets);
    const int num_kinds = l->optimizer && l->has_state ? WEFT_NUM_STATES : 1;
    WEFT_TRY(weft_comm_agree(l->world, read_shards(l)));
    WEFT_TRY(weft_comm_agree(l->world,
                             weft_stored_collect(l->parameters, num_kinds, &l->arena, &l->wanted)));
    WEFT_TRY(weft_comm_agree(l->world, match(l)));
    choose_shards(l);
    WEFT_TRY(weft_shards_deal(l->world, &l->shards, &l->arena, &l->shards));
    WEFT_TRY(weft_comm_agree(l->world, verify(l)));
    WEFT_TRY(weft_comm_agree(l->world, read_all(l)));
    return weft_comm_agree(l->world, reload(l));
}

static weft_status load_folder(const char *folder, weft_parameters *parameters,
                               weft_optimizer *optimizer, weft_lane *lane)
{
    load l = {.folder = folder,
              .parameters = parameters,
              .optimizer = optimizer,
              .lane = lane,
              .world = weft_parameters_groups(parameters)->world};
    weft_device *device = weft_parameters_device(parameters);
    weft_error error;
    weft_status status = load_phases(&l);

    weft_error_take(&error);
    weft_status closed = weft_tensor_file_close(l.file);
    if (status != WEFT_OK)
        weft_error_put(&error);
    if (l.staging)
        weft_device_free(device, WEFT_SPACE_PINNED, l.staging, staging_bytes);
    if (l.device_staging)
        weft_device_free(device, WEFT_SPACE_DEVICE, l.device_staging, staging_bytes);
    weft_arena_release(&l.arena);
    return status == WEFT_OK ? closed : status;
}

weft_status weft_checkpoint_load(const char *folder, weft_parameters *parameters,
                                 weft_optimizer *optimizer, weft_lane *lane)
{
    return load_folder(folder, parameters, optimizer, lane);
}

weft_status weft_checkpoint_load_weights(const char *folder, weft_parameters *parameters,
                                         weft_lane *lane)
{
    return load_folder(folder, parameters, NULL, lane);
}

weft_status weft_checkpoint_read_info(const char *folder, weft_checkpoint_info *out)
{
    weft_arena arena = {0};
    weft_manifest manifest;
    weft_status status = weft_manifest_read(folder, &arena, &manifest);
    if (status == WEFT_OK)
        status = weft_parts_check(folder, &manifest, &arena);
    weft_arena_release(&arena);
    if (status == WEFT_OK)
        *out = manifest.info;
    return status;
}

static weft_status read_text(const char *folder, weft_part part, weft_arena *arena,
                             const char **out)
{
    weft_manifest manifest;
    const char *path;
    char *text;
    size_t bytes;
    WEFT_TRY(weft_manifest_read(folder, arena, &manifest));
    *out = NULL;
    if (!manifest.parts[part].present)
        return WEFT_OK;
    WEFT_TRY(weft_part_check(folder, &manifest, part, arena));
    WEFT_TRY(weft_arena_printf(arena, &path, "%s/%s", folder, weft_part_names[part]));
    WEFT_TRY(weft_file_read_text(path, arena, &text, &bytes));
    *out = text;
    return WEFT_OK;
}

weft_status weft_checkpoint_read_config(const char *folder, weft_arena *arena,
                                        const char **out_text)
{
    return read_text(folder, WEFT_PART_CONFIG, arena, out_text);
}

weft_status weft_checkpoint_read_tokenizer(const char *folder, weft_arena *arena,
                                           const char **out_text)
{
    return read_text(folder, WEFT_PART_TOKENIZER, arena, out_text);
}
