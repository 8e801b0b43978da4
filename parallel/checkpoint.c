#include "parallel/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "parallel/checkpoint_internal.h"

/* One save. Each phase ends in an agreement, so that all ranks go on or stop together. */
typedef struct save {
    const weft_checkpoint_info *info;
    const weft_parameters *parameters;
    const weft_optimizer *optimizer;
    weft_comm *world;
    weft_arena arena;
    const char *dir, *name, *temporary, *target, *model;
    weft_stored_list datasets;
    weft_shard_list shards; /* that this rank wrote; then, on rank 0, all of them */
    weft_shard_list dealt;  /* that this rank verifies */
    weft_raw_file file;
    weft_lane *lane;
    float *staging; /* pinned, WEFT_SHARD_MAX_ELEMENTS */
} save;

static const size_t staging_bytes = WEFT_SHARD_MAX_ELEMENTS * sizeof(float);

static weft_status prepare(save *s)
{
    WEFT_TRY(weft_arena_printf(&s->arena, &s->name, "step-%" PRId64, s->info->step));
    WEFT_TRY(weft_arena_printf(&s->arena, &s->temporary, "%s/.%s.saving", s->dir, s->name));
    WEFT_TRY(weft_arena_printf(&s->arena, &s->target, "%s/%s", s->dir, s->name));
    WEFT_TRY(weft_arena_printf(&s->arena, &s->model, "%s/%s", s->temporary,
                               weft_part_names[WEFT_PART_MODEL]));
    weft_device *device = weft_parameters_device(s->parameters);
    void *staging;
    WEFT_TRY(weft_device_alloc_for(device, WEFT_SPACE_PINNED, WEFT_MEMORY_STAGING, staging_bytes,
                                   "checkpoint staging", &staging));
    s->staging = staging;
    WEFT_TRY(weft_lane_create(device, 0, "checkpoint", &s->lane));
    if (weft_comm_rank(s->world) != 0)
        return WEFT_OK;
    return weft_folder_make_new(s->temporary); /* without what an interrupted save left */
}

static weft_status check_shared(const save *s)
{
    if (!weft_folder_exists(s->temporary))
        return WEFT_ERROR(WEFT_FILE, "%s: not seen here: a checkpoint needs a shared file system",
                          s->temporary);
    return WEFT_OK;
}

/* A run of a piece that lies in the staging memory. */
typedef struct run {
    save *s;
    weft_state_piece piece;
    int64_t dataset;
    const float *data;
    size_t first;
} run;

/* Not an infinity nor a NaN. Compiled to a few vector instructions, beside a hash and a write. */
static bool is_finite(const float *data, size_t count)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &data[i], sizeof bits);
        bits &= 0x7f800000u;
        largest = bits > largest ? bits : largest;
    }
    return largest != 0x7f800000u;
}

static weft_status not_finite(const save *s, const weft_stored_shard *shard, int num_dims)
{
    char where[160];
    weft_shard_print(shard, num_dims, where, sizeof where);
    return WEFT_ERROR(WEFT_DIVERGED, "step %" PRId64 ": %s %s is not finite: not saved",
                      s->info->step, s->datasets.items[shard->dataset].name, where);
}

static weft_status write_slab(void *context, const weft_slab *slab)
{
    run *r = context;
    save *s = r->s;
    weft_stored_shard shard = {.dataset = r->dataset};
    const float *data = s->staging + (slab->local_offset - r->first);
    int num_dims = s->datasets.items[r->dataset].num_dims;

    memcpy(shard.start, slab->start, (size_t)num_dims * sizeof shard.start[0]);
    memcpy(shard.count, slab->count, (size_t)num_dims * sizeof shard.count[0]);
    size_t elements = weft_shard_elements(&shard, num_dims);
    if (!is_finite(data, elements))
        return not_finite(s, &shard, num_dims);
    shard.hash = XXH64(data, elements * sizeof *data, 0);
    WEFT_TRY(weft_raw_write(&s->file, &s->datasets.items[r->dataset], &shard, data));
    return weft_shard_append(&s->shards, &s->arena, &shard);
}

static weft_status write_run(void *context, size_t first, size_t count)
{
    run *r = context;
    r->first = first;
    WEFT_TRY(weft_lane_copy(r->s->lane, r->s->staging, r->data + (first - r->piece.first),
                            count * sizeof(float)));
    WEFT_TRY(weft_lane_sync(r->s->lane));
    return weft_box_visit(&r->piece.placed->box, first, count, write_slab, r);
}

static weft_status write_pieces(save *s)
{
    WEFT_TRY(weft_optimizer_join(s->optimizer, s->lane));
    for (int i = 0; i < weft_optimizer_num_pieces(s->optimizer); i++) {
        run r = {.s = s, .piece = weft_optimizer_piece(s->optimizer, i)};
        for (int kind = 0; r.piece.writer && kind < WEFT_NUM_STATES; kind++) {
            char name[WEFT_STORED_NAME_BYTES];
            weft_stored_name((weft_state_kind)kind, r.piece.placed->parameter.name, name);
            r.dataset = weft_stored_find(&s->datasets, name);
            r.data = r.piece.data[kind];
            WEFT_TRY(
                weft_runs_visit(&r.piece.placed->box, r.piece.first, r.piece.count, write_run, &r));
        }
    }
    WEFT_TRY(weft_optimizer_leave(s->optimizer, s->lane));
    return weft_lane_sync(s->lane);
}

/* Rank 0 makes the file; the others learn where its datasets lie. */
static weft_status create_model(save *s)
{
    weft_status status = WEFT_OK;
    if (weft_comm_rank(s->world) == 0) {
        status = weft_raw_reserve(s->model, &s->datasets);
        if (status == WEFT_OK)
            status = weft_tensor_file_create(s->model, &s->datasets);
    }
    WEFT_TRY(weft_comm_agree(s->world, status));
    return weft_comm_broadcast_host(s->world, s->datasets.items,
                                    (size_t)s->datasets.count * sizeof *s->datasets.items, 0);
}

static weft_status write_model(save *s)
{
    WEFT_TRY(create_model(s));
    weft_status status = weft_raw_open(s->model, &s->file);
    if (status == WEFT_OK) {
        status = write_pieces(s);
        if (status == WEFT_OK)
            status = weft_raw_close(&s->file);
    }
    return weft_comm_agree(s->world, status);
}

static int compare_shards(const void *a, const void *b)
{
    const weft_stored_shard *x = a, *y = b;
    if (x->dataset != y->dataset)
        return x->dataset < y->dataset ? -1 : 1;
    for (int d = 0; d < WEFT_MAX_DIMS; d++) {
        if (x->start[d] != y->start[d])
            return x->start[d] < y->start[d] ? -1 : 1;
    }
    return 0;
}

/* Gives rank 0 the shards of all ranks, in one order, and every rank its part to verify. */
static weft_status gather_shards(save *s)
{
    size_t world = (size_t)weft_comm_size(s->world), used = 0;
    const bool leads = weft_comm_rank(s->world) == 0;
    int64_t most = (int64_t)s->shards.count;
    void *own, *all;

    WEFT_TRY(weft_comm_all_reduce_host(s->world, &most, 1, WEFT_I64, WEFT_REDUCE_MAX));
    size_t capacity = (size_t)most + 1; /* so that an entry that ends the list fits: dataset -1 */
    WEFT_TRY(weft_arena_alloc_array(&s->arena, capacity, sizeof(weft_stored_shard), &own));
    WEFT_TRY(weft_arena_alloc_array(&s->arena, leads ? capacity * world : 0,
                                    sizeof(weft_stored_shard), &all));
    weft_stored_shard *mine = own, *items = all;
    if (s->shards.count)
        memcpy(mine, s->shards.items, s->shards.count * sizeof *mine);
    mine[s->shards.count].dataset = -1;
    WEFT_TRY(weft_comm_gather_host(s->world, own, all, capacity * sizeof *mine));
    for (size_t rank = 0; leads && rank < world; rank++) {
        for (size_t i = rank * capacity; items[i].dataset >= 0; i++)
            items[used++] = items[i];
    }
    if (leads) {
        qsort(items, used, sizeof *items, compare_shards);
        s->shards = (weft_shard_list){items, used, capacity * world};
    }
    return weft_shards_deal(s->world, &s->shards, &s->arena, &s->dealt);
}

/* That the file opens proves nothing: what was written is read back, a part on each rank. */
static weft_status verify_model(save *s)
{
    weft_tensor_file *file;
    if (weft_comm_rank(s->world) == 0)
        WEFT_TRY(weft_shards_check_cover(s->model, &s->datasets, &s->shards));
    WEFT_TRY(weft_tensor_file_open(s->model, &s->datasets, &file));
    weft_status status = weft_shards_verify(file, s->model, &s->datasets, &s->dealt);
    weft_status closed = weft_tensor_file_close(file);
    return status == WEFT_OK ? closed : status;
}

static weft_status write_text(const save *s, weft_part part, const char *text)
{
    FILE *file;
    WEFT_TRY(weft_folder_create_file(s->temporary, weft_part_names[part], &file));
    fputs(text, file);
    return weft_folder_finish_file(s->temporary, weft_part_names[part], file);
}

/* Rank 0: the texts, the manifest last, then the new names. */
static weft_status publish(save *s, const char *config_text, const char *tokenizer_text)
{
    weft_manifest manifest = {.info = *s->info, .datasets = s->datasets};
    WEFT_TRY(weft_shards_write(s->temporary, &s->datasets, &s->shards));
    WEFT_TRY(write_text(s, WEFT_PART_CONFIG, config_text));
    if (tokenizer_text)
        WEFT_TRY(write_text(s, WEFT_PART_TOKENIZER, tokenizer_text));
    for (int part = 0; part < WEFT_NUM_PARTS; part++)
        manifest.parts[part].present = part != WEFT_PART_TOKENIZER || tokenizer_text;
    WEFT_TRY(weft_manifest_measure(s->temporary, &manifest));
    WEFT_TRY(weft_manifest_write(s->temporary, &manifest));
    WEFT_TRY(weft_folder_sync(s->temporary));
    WEFT_TRY(weft_folder_publish(s->temporary, s->target));
    WEFT_TRY(weft_folder_sync(s->dir));
    return weft_folder_point(s->dir, "latest", s->name);
}

static weft_status save_phases(save *s, const char *config_text, const char *tokenizer_text)
{
    WEFT_TRY(weft_comm_agree(s->world, prepare(s)));
    WEFT_TRY(weft_comm_agree(s->world, check_shared(s)));
    WEFT_TRY(weft_comm_agree(
        s->world, weft_stored_collect(s->parameters, WEFT_NUM_STATES, &s->arena, &s->datasets)));
    WEFT_TRY(write_model(s));
    WEFT_TRY(weft_comm_agree(s->world, gather_shards(s)));
    WEFT_TRY(weft_comm_agree(s->world, verify_model(s)));
    weft_status status = WEFT_OK;
    if (weft_comm_rank(s->world) == 0)
        status = publish(s, config_text, tokenizer_text);
    return weft_comm_agree(s->world, status);
}

weft_status weft_checkpoint_save(const char *dir, const weft_checkpoint_info *info,
                                 const weft_parameters *parameters, const weft_optimizer *optimizer,
                                 const char *config_text, const char *tokenizer_text)
{
    save s = {.info = info,
              .parameters = parameters,
              .optimizer = optimizer,
              .world = weft_parameters_groups(parameters)->world,
              .dir = dir,
              .file = {.fd = -1}};
    weft_status status = save_phases(&s, config_text, tokenizer_text);
    if (s.file.fd >= 0)
        close(s.file.fd); /* a write failed */
    if (status != WEFT_OK && s.temporary && weft_comm_rank(s.world) == 0)
        weft_folder_remove(s.temporary);
    weft_lane_destroy(s.lane);
    if (s.staging)
        weft_device_free(weft_parameters_device(parameters), WEFT_SPACE_PINNED, s.staging,
                         staging_bytes);
    weft_arena_release(&s.arena);
    return status;
}
