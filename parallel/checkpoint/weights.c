/* Checkpoints of weights alone, written and read by one process that has no model. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/device.h>
#include <xxhash.h>

#include "core/file.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/internal.h"

/* Pieces are small enough that a processor's own cache has one from its filling to its hash, and so
 * many that on a busy machine the threads rarely wait for each other. */
enum { NUM_PIECES = 8, PIECE_ELEMENTS = 256 << 10 };

static weft_box box_of(const weft_stored *stored)
{
    weft_box box = {.num_dims = stored->num_dims};
    memcpy(box.global_dims, stored->dims, sizeof box.global_dims);
    memcpy(box.local, stored->dims, sizeof box.local);
    memcpy(box.valid, stored->dims, sizeof box.valid);
    return box;
}

static int compare_stored(const void *a, const void *b)
{
    return strcmp(((const weft_stored *)a)->name, ((const weft_stored *)b)->name);
}

/* --- writing ------------------------------------------------------------------------------- */

struct weft_weights_writer {
    weft_comm *self;
    weft_save save;
    weft_raw_file file;
    XXH64_state_t *state; /* of the shard that is written */
    /* By turns: one is filled while those before it are written. */
    float *pieces[NUM_PIECES];
    weft_event *written[NUM_PIECES];
    weft_device *host;
    weft_lane *lane;
    size_t num_filled; /* pieces */
    bool published;
};

/* The weight that is being written. */
typedef struct filling {
    weft_weights_writer *writer;
    int64_t dataset;
    weft_box box;
    weft_weights_function fill;
    void *context;
} filling;

static weft_status list_datasets(weft_save *s, const weft_weight *weights, size_t count)
{
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(&s->arena, count + 1, sizeof(weft_stored), &memory));
    s->datasets = (weft_stored_list){memory, (int)count};
    for (size_t i = 0; i < count; i++) {
        weft_stored *stored = &s->datasets.items[i];
        stored->num_dims = weights[i].num_dims;
        memcpy(stored->dims, weights[i].dims, sizeof stored->dims);
        weft_stored_name(WEFT_STATE_MASTER, weights[i].name, stored->name);
    }
    qsort(s->datasets.items, count, sizeof(weft_stored), compare_stored);
    return WEFT_OK;
}

static weft_status open_lane(weft_weights_writer *w, const char *dir)
{
    bool has_room = (w->state = XXH64_createState());
    for (int i = 0; i < NUM_PIECES; i++)
        has_room = has_room && (w->pieces[i] = malloc(PIECE_ELEMENTS * sizeof(float)));
    if (!has_room)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory for a checkpoint's pieces", dir);
    WEFT_TRY(weft_device_create_cpu(1, 0, &w->host));
    WEFT_TRY(weft_lane_create(w->host, 0, "write", &w->lane));
    for (int i = 0; i < NUM_PIECES; i++)
        WEFT_TRY(weft_event_create(w->host, &w->written[i]));
    return WEFT_OK;
}

static weft_status open_writer(weft_weights_writer *w, const char *dir, const weft_weight *weights,
                               size_t count)
{
    weft_save *s = &w->save;
    WEFT_TRY(open_lane(w, dir));
    WEFT_TRY(weft_comm_create_self(&w->self));
    s->world = w->self;
    WEFT_TRY(weft_arena_strdup(&s->arena, dir, &s->dir));
    WEFT_TRY(list_datasets(s, weights, count));
    WEFT_TRY(weft_save_open(s, WEFT_OK));
    return weft_raw_open(s->model, &w->file);
}

weft_status weft_weights_create(const char *dir, const weft_weight *weights, size_t count,
                                weft_weights_writer **out)
{
    weft_weights_writer *w = calloc(1, sizeof *w);
    if (!w)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory for a checkpoint", dir);
    w->file.fd = -1;
    weft_status status = open_writer(w, dir, weights, count);
    if (status == WEFT_OK)
        *out = w;
    else
        weft_weights_abandon(w);
    return status;
}

/* Where a shard's elements lie in the file, which are one run: what is written is whole weights. */
static uint64_t place_of(const weft_stored *dataset, const weft_stored_shard *shard)
{
    uint64_t at = 0, stride = 1;
    for (int d = dataset->num_dims - 1; d >= 0; d--) {
        at += shard->start[d] * stride;
        stride *= dataset->dims[d];
    }
    return dataset->offset + at * sizeof(float);
}

static size_t piece_at(size_t at, size_t elements)
{
    return elements - at < PIECE_ELEMENTS ? elements - at : PIECE_ELEMENTS;
}

/* A piece on its way to the file. */
typedef struct writing {
    weft_raw_file *file;
    uint64_t place;
    const float *data;
    size_t bytes;
} writing;

static weft_status write_bytes(const void *args)
{
    const writing *w = args;
    return weft_raw_write_run(w->file, w->place, w->data, w->bytes);
}

static weft_status sync_file(const void *args)
{
    weft_raw_file *const *file = args;
    return weft_raw_close(*file, false);
}

/* `first`: of the weight. */
static weft_status write_piece(const filling *f, const weft_stored_shard *shard, size_t first,
                               size_t count, uint64_t place)
{
    weft_weights_writer *w = f->writer;
    const size_t turn = w->num_filled++ % NUM_PIECES;
    const writing out = {
        .file = &w->file, .place = place, .data = w->pieces[turn], .bytes = count * sizeof(float)};
    WEFT_TRY(weft_event_wait_host(w->written[turn]));
    WEFT_TRY(f->fill(f->context, first, count, w->pieces[turn]));
    if (!weft_are_finite(w->pieces[turn], count))
        return weft_shard_refuse(w->save.info.step, &w->save.datasets.items[f->dataset], shard);
    XXH64_update(w->state, w->pieces[turn], out.bytes);
    WEFT_TRY(weft_lane_submit(w->lane, "write", write_bytes, &out, sizeof out));
    return weft_lane_record(w->lane, w->written[turn]);
}

static weft_status write_slab(void *context, const weft_slab *slab)
{
    const filling *f = context;
    weft_weights_writer *w = f->writer;
    weft_save *s = &w->save;
    const weft_stored *dataset = &s->datasets.items[f->dataset];
    weft_stored_shard shard = {.dataset = f->dataset};
    memcpy(shard.start, slab->start, sizeof shard.start);
    memcpy(shard.count, slab->count, sizeof shard.count);
    const size_t elements = weft_shard_elements(&shard, dataset->num_dims);
    const uint64_t place = place_of(dataset, &shard);
    XXH64_reset(w->state, 0);
    for (size_t at = 0; at < elements; at += PIECE_ELEMENTS)
        WEFT_TRY(write_piece(f, &shard, slab->local_offset + at, piece_at(at, elements),
                             place + at * sizeof(float)));
    shard.hash = XXH64_digest(w->state);
    return weft_shard_append(&s->shards, &s->arena, &shard);
}

static weft_status write_run(void *context, size_t first, size_t count)
{
    filling *f = context;
    return weft_box_visit(&f->box, first, count, write_slab, f);
}

weft_status weft_weights_write(weft_weights_writer *w, const char *name, weft_weights_function fill,
                               void *context)
{
    char stored[WEFT_STORED_NAME_BYTES];
    weft_stored_name(WEFT_STATE_MASTER, name, stored);
    const int dataset = weft_stored_find(&w->save.datasets, stored);
    if (dataset < 0)
        return WEFT_ERROR(WEFT_INTERNAL, "weft_weights_write: %s is none of the weights", name);
    const weft_stored *of = &w->save.datasets.items[dataset];
    filling f = {
        .writer = w, .dataset = dataset, .box = box_of(of), .fill = fill, .context = context};
    return weft_runs_visit(&f.box, 0, (size_t)weft_stored_elements(of), write_run, &f);
}

/* While the disk writes, HDF5 opens the file: no element was written over its own parts. Elements
 * are not read back: they would come from memory, as they were written, and say nothing of the
 * disk. */
static weft_status finish_file(weft_weights_writer *w)
{
    weft_raw_file *file = &w->file;
    const weft_save *s = &w->save;
    weft_tensor_file *tensors;
    WEFT_TRY(weft_lane_sync(w->lane));
    WEFT_TRY(weft_lane_submit(w->lane, "sync", sync_file, &file, sizeof(weft_raw_file *)));
    WEFT_TRY(weft_tensor_file_open(s->model, &s->datasets, &tensors));
    WEFT_TRY(weft_tensor_file_close(tensors));
    return weft_lane_sync(w->lane);
}

weft_status weft_weights_publish(weft_weights_writer *w, const char *config_text)
{
    weft_save *s = &w->save;
    WEFT_TRY(weft_shards_check_cover(s->model, &s->datasets, &s->shards));
    WEFT_TRY(finish_file(w));
    WEFT_TRY(weft_save_gather(s));
    WEFT_TRY(weft_save_publish(s, config_text, NULL));
    w->published = true;
    return WEFT_OK;
}

/* Once the lane has ended, which writes the file. */
static void close_lane(weft_weights_writer *w)
{
    if (w->host)
        weft_device_wait(w->host);
    for (int i = 0; i < NUM_PIECES; i++)
        weft_event_destroy(w->written[i]);
    weft_lane_destroy(w->lane);
    weft_device_destroy(w->host);
    for (int i = 0; i < NUM_PIECES; i++)
        free(w->pieces[i]);
    if (w->state)
        XXH64_freeState(w->state);
}

void weft_weights_abandon(weft_weights_writer *w)
{
    if (!w)
        return;
    close_lane(w);
    if (w->file.fd >= 0)
        close(w->file.fd);
    if (w->self)
        weft_save_release(&w->save, !w->published);
    weft_comm_destroy(w->self);
    free(w);
}

/* --- reading ------------------------------------------------------------------------------- */

/* A weight on its way to the reader's caller. Where it is read from its beginning on, in order, and
 * its shards lie in it one behind the other, each is hashed as it goes by. */
typedef struct following {
    weft_shard_list shards; /* its own, by their places */
    bool verified;
    size_t next;          /* the element that is read next; 0: none was */
    size_t shard, end;    /* which of the shards has it, and where that ends */
    XXH64_state_t *state; /* of that shard's elements before `next`; NULL: none is followed */
} following;

struct weft_weights_reader {
    weft_arena arena;
    weft_manifest manifest;
    weft_file file;
    const char *model; /* the file's path */
    weft_tensor_file *tensors;
    weft_shard_list shards;
    weft_weight *weights;
    const weft_stored **stored; /* of the weights */
    following *followed;        /* by weight */
    size_t count;
};

static const char prefix[] = "model/";

static bool is_weight(const weft_stored *stored)
{
    return strncmp(stored->name, prefix, sizeof prefix - 1) == 0;
}

/* Those of a dataset; the shards are sorted. */
static weft_shard_list shards_of(const weft_weights_reader *r, int64_t dataset, size_t *at)
{
    while (*at < r->shards.count && r->shards.items[*at].dataset < dataset)
        ++*at;
    weft_shard_list own = {.items = r->shards.items + *at};
    while (*at < r->shards.count && r->shards.items[*at].dataset == dataset)
        own.count++, ++*at;
    return own;
}

static weft_status list_weights(weft_weights_reader *r)
{
    const weft_stored_list *all = &r->manifest.datasets;
    size_t at = 0;
    WEFT_TRY(WEFT_ARRAY(&r->arena, (size_t)all->count + 1, &r->weights));
    WEFT_TRY(WEFT_ARRAY(&r->arena, (size_t)all->count + 1, &r->stored));
    WEFT_TRY(WEFT_ARRAY(&r->arena, (size_t)all->count + 1, &r->followed));
    for (int i = 0; i < all->count; i++) {
        const weft_stored *stored = &all->items[i];
        weft_weight *weight = &r->weights[r->count];
        if (!is_weight(stored))
            continue;
        snprintf(weight->name, sizeof weight->name, "%.*s", WEFT_MAX_NAME_BYTES - 1,
                 stored->name + sizeof prefix - 1);
        weight->num_dims = stored->num_dims;
        memcpy(weight->dims, stored->dims, sizeof weight->dims);
        r->followed[r->count] = (following){.shards = shards_of(r, i, &at)};
        r->stored[r->count++] = stored;
    }
    return WEFT_OK;
}

static weft_status open_reader(weft_weights_reader *r, const char *folder)
{
    const weft_stored_list *all = &r->manifest.datasets;
    WEFT_TRY(
        weft_arena_printf(&r->arena, &r->model, "%s/%s", folder, weft_part_names[WEFT_PART_MODEL]));
    WEFT_TRY(weft_manifest_read(folder, &r->arena, &r->manifest));
    WEFT_TRY(weft_parts_check(folder, &r->manifest, &r->arena));
    WEFT_TRY(weft_shards_read(folder, all, &r->arena, &r->shards));
    qsort(r->shards.items, r->shards.count, sizeof *r->shards.items, weft_shard_compare);
    WEFT_TRY(weft_tensor_file_open(r->model, all, &r->tensors));
    WEFT_TRY(list_weights(r));
    return weft_file_open(r->model, &r->file);
}

weft_status weft_weights_open(const char *folder, weft_weights_reader **out)
{
    weft_weights_reader *r = calloc(1, sizeof *r);
    if (!r)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory to read it", folder);
    weft_status status = open_reader(r, folder);
    if (status == WEFT_OK)
        *out = r;
    else
        weft_weights_close(r);
    return status;
}

const weft_weight *weft_weights_list(const weft_weights_reader *r, size_t *out_count)
{
    *out_count = r->count;
    return r->weights;
}

static void stop_following(following *f)
{
    if (f->state)
        XXH64_freeState(f->state);
    f->state = NULL;
}

/* All at once, whatever was read of it. */
static weft_status verify_weight(weft_weights_reader *r, size_t index)
{
    following *f = &r->followed[index];
    stop_following(f);
    WEFT_TRY(weft_shards_verify(r->tensors, r->model, &r->manifest.datasets, &f->shards));
    f->verified = true;
    return WEFT_OK;
}

/* The element behind the shard's last one, where its elements are one run that begins at `first`;
 * else 0. */
static size_t end_of_run(const weft_stored *stored, const weft_stored_shard *shard, size_t first)
{
    size_t at = 0, stride = 1, elements = weft_shard_elements(shard, stored->num_dims);
    bool whole = true; /* the dimensions inside */
    for (int d = stored->num_dims - 1; d >= 0; d--) {
        if (!whole && shard->count[d] != 1)
            return 0;
        whole = whole && shard->count[d] == stored->dims[d];
        at += shard->start[d] * stride;
        stride *= stored->dims[d];
    }
    return at == first ? first + elements : 0;
}

static bool are_runs(const weft_stored *stored, const weft_shard_list *shards)
{
    size_t end = 0;
    for (size_t i = 0; i < shards->count; i++) {
        end = end_of_run(stored, &shards->items[i], end);
        if (end == 0)
            return false;
    }
    return true;
}

static void begin_following(const weft_stored *stored, following *f)
{
    f->state = are_runs(stored, &f->shards) ? XXH64_createState() : NULL;
    if (!f->state)
        return;
    XXH64_reset(f->state, 0);
    f->end = end_of_run(stored, &f->shards.items[0], 0);
}

/* Elements that follow those before. */
static weft_status follow(const weft_weights_reader *r, size_t index, const float *data,
                          size_t count)
{
    following *f = &r->followed[index];
    for (size_t n; count > 0; data += n, count -= n) {
        const size_t left = f->end - f->next;
        n = count < left ? count : left;
        XXH64_update(f->state, data, n * sizeof *data);
        f->next += n;
        if (f->next < f->end)
            continue;
        WEFT_TRY(weft_shard_check(r->model, r->stored[index], &f->shards.items[f->shard],
                                  XXH64_digest(f->state)));
        if (++f->shard == f->shards.count) {
            f->verified = true;
            stop_following(f);
            return WEFT_OK;
        }
        XXH64_reset(f->state, 0);
        f->end = end_of_run(r->stored[index], &f->shards.items[f->shard], f->next);
    }
    return WEFT_OK;
}

weft_status weft_weights_read(weft_weights_reader *r, size_t index, size_t first, size_t count,
                              float *out)
{
    following *f = &r->followed[index];
    if (!f->verified && !f->state && first == 0 && f->next == 0)
        begin_following(r->stored[index], f);
    if (!f->verified && (!f->state || first != f->next))
        WEFT_TRY(verify_weight(r, index));
    WEFT_TRY(weft_file_read(&r->file, r->stored[index]->offset + first * sizeof *out, out,
                            count * sizeof *out));
    return f->verified ? WEFT_OK : follow(r, index, out, count);
}

weft_status weft_weights_finish(weft_weights_reader *r)
{
    for (size_t i = 0; i < r->count; i++)
        if (r->followed[i].next > 0 && !r->followed[i].verified)
            WEFT_TRY(verify_weight(r, i));
    return WEFT_OK;
}

void weft_weights_close(weft_weights_reader *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->count; i++)
        stop_following(&r->followed[i]);
    weft_file_close(&r->file);
    if (weft_tensor_file_close(r->tensors) != WEFT_OK)
        weft_error_clear();
    weft_arena_release(&r->arena);
    free(r);
}
