#include "parallel/checkpoint/checkpoint.h"

#include <unistd.h>

#include "parallel/checkpoint/internal.h"

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
