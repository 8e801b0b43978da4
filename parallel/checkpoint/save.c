/* What saves share, whether the ranks write or their writers do. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/internal.h"

weft_status weft_save_name(weft_save *s)
{
    WEFT_TRY(weft_arena_printf(&s->arena, &s->name, "step-%" PRId64, s->info.step));
    WEFT_TRY(weft_arena_printf(&s->arena, &s->temporary, "%s/.%s.saving", s->dir, s->name));
    WEFT_TRY(weft_arena_printf(&s->arena, &s->target, "%s/%s", s->dir, s->name));
    WEFT_TRY(weft_arena_printf(&s->arena, &s->model, "%s/%s", s->temporary,
                               weft_part_names[WEFT_PART_MODEL]));
    return WEFT_OK;
}

static weft_status prepare(weft_save *s)
{
    WEFT_TRY(weft_save_name(s));
    if (s->parameters)
        WEFT_TRY(
            weft_lane_create(weft_parameters_device(s->parameters), 0, "checkpoint", &s->lane));
    if (weft_comm_rank(s->world) != 0)
        return WEFT_OK;
    if (weft_checkpoint_check_format(s->target) != WEFT_OK) /* a run goes on without this save */
        return WEFT_ERROR(WEFT_FILE, "not replaced: %s", weft_error_get()->text);
    return weft_folder_make_new(s->temporary); /* without what an interrupted save left */
}

static weft_status check_shared(const weft_save *s)
{
    if (!weft_folder_exists(s->temporary))
        return WEFT_ERROR(WEFT_FILE, "%s: not seen here: a checkpoint needs a shared file system",
                          s->temporary);
    return WEFT_OK;
}

/* Rank 0 makes the file; the others learn where its datasets lie. */
static weft_status create_model(weft_save *s)
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

weft_status weft_save_open(weft_save *s, weft_status status)
{
    if (status == WEFT_OK)
        status = prepare(s);
    WEFT_TRY(weft_comm_agree(s->world, status));
    WEFT_TRY(weft_comm_agree(s->world, check_shared(s)));
    if (s->parameters)
        WEFT_TRY(weft_comm_agree(s->world, weft_stored_collect(s->parameters, WEFT_NUM_STATES,
                                                               &s->arena, &s->datasets)));
    return create_model(s);
}

weft_status weft_save_visit(weft_save *s, weft_save_run *run, weft_run_function visit)
{
    WEFT_TRY(weft_optimizer_join(s->optimizer, s->lane));
    for (int i = 0; i < weft_optimizer_num_pieces(s->optimizer); i++) {
        if (!weft_optimizer_piece(s->optimizer, i).writer)
            continue;
        WEFT_TRY(weft_optimizer_open(s->optimizer, i, false, s->lane, &run->piece));
        for (int kind = 0; kind < WEFT_NUM_STATES; kind++) {
            char name[WEFT_STORED_NAME_BYTES];
            if (!run->piece.data[kind])
                continue;
            weft_stored_name((weft_state_kind)kind, run->piece.placed->parameter.name, name);
            run->dataset = weft_stored_find(&s->datasets, name);
            run->data = run->piece.data[kind];
            WEFT_TRY(weft_runs_visit(&run->piece.placed->box, run->piece.first, run->piece.count,
                                     visit, run));
        }
        WEFT_TRY(weft_optimizer_close(s->optimizer, i, false, s->lane));
    }
    WEFT_TRY(weft_optimizer_leave(s->optimizer, s->lane));
    return weft_lane_sync(s->lane);
}

weft_stored_shard weft_save_shard(const weft_save_run *run, const weft_slab *slab)
{
    weft_stored_shard shard = {.dataset = run->dataset};
    const size_t bytes = (size_t)run->piece.placed->box.num_dims * sizeof shard.start[0];
    memcpy(shard.start, slab->start, bytes);
    memcpy(shard.count, slab->count, bytes);
    return shard;
}

enum { BLOCK = 4096 };

/* Exponents that are all ones: an infinity or a NaN. The sum carries into the sign's place there.
 * Of a fixed length, which compilers turn into vector instructions. */
static uint32_t find_ones(const float data[BLOCK])
{
    uint32_t found = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        uint32_t bits;
        memcpy(&bits, &data[i], sizeof bits);
        found |= (bits & 0x7f800000u) + 0x00800000u;
    }
    return found >> 31;
}

bool weft_are_finite(const float *data, size_t count)
{
    uint32_t found = 0;
    size_t at = 0;
    for (; at + BLOCK <= count; at += BLOCK)
        found |= find_ones(data + at);
    for (; at < count; at++)
        found |= !isfinite(data[at]);
    return found == 0;
}

weft_status weft_shard_refuse(int64_t step, const weft_stored *dataset,
                              const weft_stored_shard *shard)
{
    char where[160];
    weft_shard_print(shard, dataset->num_dims, where, sizeof where);
    return WEFT_ERROR(WEFT_DIVERGED, "step %" PRId64 ": %s %s is not finite: not saved", step,
                      dataset->name, where);
}

weft_status weft_shard_hash(int64_t step, const weft_stored *dataset, weft_stored_shard *shard,
                            const float *data)
{
    const size_t count = weft_shard_elements(shard, dataset->num_dims);
    shard->hash = XXH64(data, count * sizeof *data, 0);
    return weft_are_finite(data, count) ? WEFT_OK : weft_shard_refuse(step, dataset, shard);
}

int weft_shard_compare(const void *a, const void *b)
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

weft_status weft_save_gather(weft_save *s)
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
        qsort(items, used, sizeof *items, weft_shard_compare);
        s->shards = (weft_shard_list){items, used, capacity * world};
    }
    return weft_shards_deal(s->world, &s->shards, &s->arena, &s->dealt);
}

/* That the file opens proves nothing: what was written is read back, a part on each rank. */
weft_status weft_save_verify(const char *model, const weft_stored_list *datasets,
                             const weft_shard_list *dealt)
{
    weft_tensor_file *file;
    WEFT_TRY(weft_tensor_file_open(model, datasets, &file));
    weft_status status = weft_shards_verify(file, model, datasets, dealt);
    weft_status closed = weft_tensor_file_close(file);
    return status == WEFT_OK ? closed : status;
}

static weft_status write_text(const weft_save *s, weft_part part, const char *text)
{
    FILE *file;
    WEFT_TRY(weft_folder_create_file(s->temporary, weft_part_names[part], &file));
    fputs(text, file);
    return weft_folder_finish_file(s->temporary, weft_part_names[part], file);
}

weft_status weft_save_publish(const weft_save *s, const char *config_text,
                              const char *tokenizer_text)
{
    weft_manifest manifest = {.info = s->info, .datasets = s->datasets};
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

void weft_save_release(weft_save *s, bool failed)
{
    if (failed && s->temporary && weft_comm_rank(s->world) == 0)
        weft_folder_remove(s->temporary);
    weft_lane_destroy(s->lane);
    weft_arena_release(&s->arena);
    *s = (weft_save){.dir = NULL};
}

/* A save by the ranks themselves. Each phase ends in an agreement, so that all ranks go on or stop
 * together. */
typedef struct writing {
    weft_save_run run;
    weft_save *save;
    weft_raw_file file;
    float *staging; /* pinned, WEFT_SHARD_MAX_ELEMENTS */
    size_t first;   /* of the run that lies there */
} writing;

static const size_t staging_bytes = WEFT_SHARD_MAX_ELEMENTS * sizeof(float);

static weft_status write_slab(void *context, const weft_slab *slab)
{
    writing *w = context;
    weft_save *s = w->save;
    const weft_stored *dataset = &s->datasets.items[w->run.dataset];
    const float *data = w->staging + (slab->local_offset - w->first);
    weft_stored_shard shard = weft_save_shard(&w->run, slab);
    WEFT_TRY(weft_shard_hash(s->info.step, dataset, &shard, data));
    WEFT_TRY(weft_raw_write(&w->file, dataset, &shard, data));
    return weft_shard_append(&s->shards, &s->arena, &shard);
}

static weft_status write_run(void *context, size_t first, size_t count)
{
    writing *w = context;
    const weft_state_piece *piece = &w->run.piece;
    w->first = first;
    WEFT_TRY(weft_lane_copy(w->save->lane, w->staging, w->run.data + (first - piece->first),
                            count * sizeof(float)));
    WEFT_TRY(weft_lane_sync(w->save->lane));
    return weft_box_visit(&piece->placed->box, first, count, write_slab, w);
}

static weft_status write_model(writing *w)
{
    WEFT_TRY(weft_raw_open(w->save->model, &w->file));
    WEFT_TRY(weft_save_visit(w->save, &w->run, write_run));
    return weft_raw_close(&w->file, false);
}

static weft_status save_phases(writing *w, const char *config_text, const char *tokenizer_text)
{
    weft_save *s = w->save;
    const bool leads = weft_comm_rank(s->world) == 0;
    void *staging;
    weft_status status =
        weft_device_alloc_for(weft_parameters_device(s->parameters), WEFT_SPACE_PINNED,
                              WEFT_MEMORY_STAGING, staging_bytes, "checkpoint staging", &staging);
    if (status == WEFT_OK)
        w->staging = staging;
    WEFT_TRY(weft_save_open(s, status));
    WEFT_TRY(weft_comm_agree(s->world, write_model(w)));
    WEFT_TRY(weft_comm_agree(s->world, weft_save_gather(s)));
    if (leads)
        status = weft_shards_check_cover(s->model, &s->datasets, &s->shards);
    if (status == WEFT_OK)
        status = weft_save_verify(s->model, &s->datasets, &s->dealt);
    WEFT_TRY(weft_comm_agree(s->world, status));
    if (leads)
        status = weft_save_publish(s, config_text, tokenizer_text);
    return weft_comm_agree(s->world, status);
}

weft_status weft_checkpoint_save(const char *dir, const weft_checkpoint_info *info,
                                 const weft_parameters *parameters, const weft_optimizer *optimizer,
                                 const char *config_text, const char *tokenizer_text)
{
    weft_save s = {.info = *info,
                   .parameters = parameters,
                   .optimizer = optimizer,
                   .world = weft_parameters_groups(parameters)->world,
                   .dir = dir};
    writing w = {.save = &s, .file = {.fd = -1}};
    weft_status status = save_phases(&w, config_text, tokenizer_text);
    if (w.file.fd >= 0)
        close(w.file.fd); /* a write failed */
    weft_save_release(&s, status != WEFT_OK);
    if (w.staging)
        weft_device_free(weft_parameters_device(parameters), WEFT_SPACE_PINNED, w.staging,
                         staging_bytes);
    return status;
}
