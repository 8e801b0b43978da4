/* A checkpoint made of the states that nodes hold in memory. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "parallel/checkpoint/copies_internal.h"
#include "parallel/checkpoint/writer_internal.h"

/* A state that lies on this node, in this rank's part of its files. */
typedef struct state {
    weft_slot slot;
    weft_slot_head head;
} state;

/* What it tells rank 0. world 0: no more. */
typedef struct offer {
    int64_t step, rank, world;
} offer;

typedef struct restoring {
    weft_comm *world;
    const weft_copies_place *place;
    int64_t newer_than;
    int rank, size;
    uint64_t name;
    weft_copies_local local;
    char above[WEFT_COPY_FOLDER_BYTES], folder[WEFT_COPY_FOLDER_BYTES];
    weft_arena arena;
    state *states;
    size_t num_states, num_offers; /* room for, on the rank that has most */
    /* What rank 0 chooses. */
    weft_copies_found found;
    int64_t num_holders;
    int32_t *holders; /* by rank of the old world: who has its state */
    weft_save save;
    const char *config_text, *tokenizer_text;
} restoring;

/* --- what is there ------------------------------------------------------------------------- */

static uint64_t read_name(const char *dir)
{
    char path[4096];
    uint64_t name = 0;
    FILE *file = snprintf(path, sizeof path, "%s/%s", dir, WEFT_COPIES_NAME) < (int)sizeof path
                     ? fopen(path, "r")
                     : NULL;
    if (!file)
        return 0;
    if (fscanf(file, "%16" SCNx64, &name) != 1)
        name = 0;
    fclose(file);
    return name;
}

bool weft_copies_are_named(const char *dir)
{
    return read_name(dir) != 0;
}

/* Maps a file that holds a state which is newer and whole. */
static void look_at(restoring *r, const char *file)
{
    char path[WEFT_COPY_FOLDER_BYTES + 256];
    state *s = &r->states[r->num_states];
    snprintf(path, sizeof path, "%s/%.200s", r->folder, file);
    if (weft_slot_open(path, false, &s->slot) != WEFT_OK) {
        weft_error_clear();
        return;
    }
    if (weft_slot_read_head(&s->slot, &s->head) && s->head.info.step > r->newer_than) {
        if (weft_slot_is_whole(&s->slot, &s->head)) {
            r->num_states++;
            return;
        }
        weft_log(WEFT_LOG_WARN,
                 "%s: the copy of rank %" PRId64 "'s state of step %" PRId64
                 " is damaged: the hash differs",
                 path, s->head.rank, s->head.info.step);
    }
    weft_slot_release(&s->slot);
}

static int compare_entries(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_state(const struct dirent *entry)
{
    return strncmp(entry->d_name, "rank-", 5) == 0;
}

/* Every size-th file of the node, from this rank's place on. */
static weft_status look(restoring *r)
{
    struct dirent **files = NULL;
    void *memory;
    const int count = scandir(r->folder, &files, is_state, compare_entries);
    weft_status status = weft_arena_alloc_array(&r->arena, count > 0 ? (size_t)count : 1,
                                                sizeof *r->states, &memory);
    if (status == WEFT_OK)
        r->states = memory;
    for (int i = 0; i < count; i++) {
        if (status == WEFT_OK && i % r->local.size == r->local.rank)
            look_at(r, files[i]->d_name);
        free(files[i]);
    }
    free(files);
    return status;
}

/* --- what is whole ------------------------------------------------------------------------- */

/* Rank 0: who has the states of `step`; the first rank whose state nobody has, or -1. */
static int64_t find_holders(restoring *r, const offer *all, int64_t step)
{
    for (int64_t i = 0; i < r->num_holders; i++)
        r->holders[i] = -1;
    for (size_t i = 0; i < (size_t)r->size * r->num_offers; i++)
        if (all[i].world == r->num_holders && all[i].step == step)
            r->holders[all[i].rank] = (int32_t)(i / r->num_offers);
    for (int64_t i = 0; i < r->num_holders; i++)
        if (r->holders[i] < 0)
            return i;
    return -1;
}

/* Rank 0: the newest step whose states are all there. */
static weft_status choose(restoring *r, const offer *all)
{
    const size_t count = (size_t)r->size * r->num_offers;
    int64_t below = INT64_MAX;
    for (size_t i = 0; i < count; i++)
        r->num_holders = all[i].world > r->num_holders ? all[i].world : r->num_holders;
    WEFT_TRY(WEFT_ARRAY(&r->arena, (size_t)r->num_holders, &r->holders));
    for (;;) {
        int64_t step = -1;
        for (size_t i = 0; i < count; i++)
            if (all[i].world > 0 && all[i].step < below && all[i].step > step)
                step = all[i].step;
        if (step < 0)
            return WEFT_OK;
        const int64_t missing = find_holders(r, all, step);
        if (missing < 0) {
            r->found.step = step;
            r->found.num_ranks = (int)r->num_holders;
            return WEFT_OK;
        }
        if (r->found.newest < 0) {
            r->found.newest = step;
            r->found.missing = (int)missing;
        }
        below = step;
    }
}

static weft_status gather(restoring *r, offer **out)
{
    int64_t most = (int64_t)r->num_states;
    void *own, *all;
    WEFT_TRY(weft_comm_all_reduce_host(r->world, &most, 1, WEFT_I64, WEFT_REDUCE_MAX));
    r->num_offers = (size_t)most;
    weft_status status = weft_arena_alloc_array(&r->arena, r->num_offers + 1, sizeof(offer), &own);
    if (status == WEFT_OK)
        status = weft_arena_alloc_array(&r->arena, (size_t)r->size * r->num_offers + 1,
                                        sizeof(offer), &all);
    WEFT_TRY(weft_comm_agree(r->world, status));
    offer *offers = own;
    for (size_t i = 0; i < r->num_states; i++) {
        const weft_slot_head *head = &r->states[i].head;
        offers[i] = (offer){head->info.step, head->rank, head->world};
    }
    if (most > 0)
        WEFT_TRY(weft_comm_gather_host(r->world, own, all, r->num_offers * sizeof(offer)));
    *out = all;
    return WEFT_OK;
}

/* All ranks learn the step, and who brings which state. */
static weft_status agree_on_step(restoring *r)
{
    offer *all = NULL;
    void *memory;
    r->found = (weft_copies_found){.step = -1, .newest = -1};
    WEFT_TRY(gather(r, &all));
    WEFT_TRY(weft_comm_agree(r->world, r->rank == 0 ? choose(r, all) : WEFT_OK));
    WEFT_TRY(weft_comm_broadcast_host(r->world, &r->found, sizeof r->found, 0));
    if (r->found.step < 0)
        return WEFT_OK;
    WEFT_TRY(weft_comm_broadcast_host(r->world, &r->num_holders, sizeof r->num_holders, 0));
    weft_status status = WEFT_OK;
    if (r->rank > 0) {
        status =
            weft_arena_alloc_array(&r->arena, (size_t)r->num_holders, sizeof *r->holders, &memory);
        r->holders = status == WEFT_OK ? memory : NULL;
    }
    WEFT_TRY(weft_comm_agree(r->world, status));
    return weft_comm_broadcast_host(r->world, r->holders,
                                    (size_t)r->num_holders * sizeof *r->holders, 0);
}

/* --- the checkpoint ------------------------------------------------------------------------ */

static bool is_mine(const restoring *r, const state *s)
{
    return s->head.info.step == r->found.step && r->holders[s->head.rank] == r->rank;
}

/* What rank 0's state has beside its slabs. */
typedef struct texts {
    weft_checkpoint_info info;
    uint64_t bytes[WEFT_WRITER_TOKENIZER + 1]; /* by kind of entry */
} texts;

static void measure(const state *s, texts *out)
{
    uint64_t at = 0;
    out->info = s->head.info;
    for (const weft_staging_entry *e; (e = weft_slot_next(&s->slot, &s->head, &at));)
        if (e->kind <= WEFT_WRITER_TOKENIZER)
            out->bytes[e->kind] += e->bytes;
}

/* The entries of a kind, one behind the other. */
static void join(const state *s, weft_writer_entry kind, char *out)
{
    uint64_t at = 0;
    for (const weft_staging_entry *e; (e = weft_slot_next(&s->slot, &s->head, &at));)
        if (e->kind == kind) {
            memcpy(out, e + 1, (size_t)e->bytes);
            out += e->bytes;
        }
}

/* Whoever brings rank 0's state gives all others what it has of a kind. NULL: nothing. */
static weft_status share(restoring *r, const state *from, const texts *t, weft_writer_entry kind,
                         void **out)
{
    const size_t bytes = (size_t)t->bytes[kind];
    WEFT_TRY(weft_comm_agree(r->world, weft_arena_alloc(&r->arena, bytes + 1, out)));
    if (from)
        join(from, kind, *out);
    if (bytes == 0)
        *out = NULL;
    return bytes > 0 ? weft_comm_broadcast_host(r->world, *out, bytes, r->holders[0]) : WEFT_OK;
}

static weft_status share_texts(restoring *r)
{
    texts t = {.bytes = {0}};
    const state *from = NULL;
    void *datasets, *config, *tokenizer;
    for (size_t i = 0; i < r->num_states; i++)
        if (r->states[i].head.rank == 0 && is_mine(r, &r->states[i]))
            from = &r->states[i];
    if (from)
        measure(from, &t);
    WEFT_TRY(weft_comm_broadcast_host(r->world, &t, sizeof t, r->holders[0]));
    WEFT_TRY(share(r, from, &t, WEFT_WRITER_DATASETS, &datasets));
    WEFT_TRY(share(r, from, &t, WEFT_WRITER_CONFIG, &config));
    WEFT_TRY(share(r, from, &t, WEFT_WRITER_TOKENIZER, &tokenizer));
    if (!datasets || !config)
        return WEFT_ERROR(WEFT_INTERNAL, "the state of rank 0 has no datasets or no config");
    r->save = (weft_save){
        .info = t.info,
        .world = r->world,
        .dir = r->place->dir,
        .datasets = {datasets, (int)(t.bytes[WEFT_WRITER_DATASETS] / sizeof(weft_stored))}};
    r->config_text = config;
    r->tokenizer_text = tokenizer;
    return WEFT_OK;
}

static weft_status check_slab(const restoring *r, const weft_staging_entry *entry)
{
    const weft_stored_list *datasets = &r->save.datasets;
    const weft_stored_shard *shard = (const void *)(entry + 1);
    bool good = shard->dataset >= 0 && shard->dataset < datasets->count;
    if (good) {
        const weft_stored *dataset = &datasets->items[shard->dataset];
        for (int d = 0; d < dataset->num_dims; d++)
            good = good && shard->start[d] <= dataset->dims[d] &&
                   shard->count[d] <= dataset->dims[d] - shard->start[d];
        good = good && weft_shard_elements(shard, dataset->num_dims) * sizeof(float) ==
                           entry->bytes - sizeof *shard;
    }
    return good ? WEFT_OK : WEFT_ERROR(WEFT_INTERNAL, "a copy has a slab of no dataset");
}

static weft_status write_state(restoring *r, weft_raw_file *file, const state *s)
{
    weft_save *save = &r->save;
    uint64_t at = 0;
    for (const weft_staging_entry *e; (e = weft_slot_next(&s->slot, &s->head, &at));) {
        const weft_stored_shard *shard = (const void *)(e + 1);
        if (e->kind != WEFT_WRITER_SLAB)
            continue;
        WEFT_TRY(check_slab(r, e));
        WEFT_TRY(weft_raw_write(file, &save->datasets.items[shard->dataset], shard,
                                (const void *)(shard + 1)));
        WEFT_TRY(weft_shard_append(&save->shards, &save->arena, shard));
        r->found.bytes += e->bytes - sizeof *shard;
    }
    return WEFT_OK;
}

static weft_status write_states(restoring *r)
{
    weft_raw_file file = {.fd = -1};
    weft_status status = weft_raw_open(r->save.model, &file);
    for (size_t i = 0; status == WEFT_OK && i < r->num_states; i++)
        if (is_mine(r, &r->states[i]))
            status = write_state(r, &file, &r->states[i]);
    if (status == WEFT_OK)
        return weft_raw_close(&file, true);
    if (file.fd >= 0)
        close(file.fd);
    return status;
}

static weft_status save_phases(restoring *r)
{
    weft_save *s = &r->save;
    weft_status status = WEFT_OK;
    const bool leads = r->rank == 0;
    WEFT_TRY(weft_save_open(s, WEFT_OK));
    WEFT_TRY(weft_comm_agree(r->world, write_states(r)));
    WEFT_TRY(weft_comm_agree(r->world, weft_save_gather(s)));
    if (leads)
        status = weft_shards_check_cover(s->model, &s->datasets, &s->shards);
    if (status == WEFT_OK)
        status = weft_save_verify(s->model, &s->datasets, &s->dealt);
    WEFT_TRY(weft_comm_agree(r->world, status));
    if (leads)
        status = weft_save_publish(s, r->config_text, r->tokenizer_text);
    WEFT_TRY(weft_comm_agree(r->world, status));
    int64_t bytes = (int64_t)r->found.bytes;
    WEFT_TRY(weft_comm_all_reduce_host(r->world, &bytes, 1, WEFT_I64, WEFT_REDUCE_SUM));
    r->found.bytes = (uint64_t)bytes;
    return WEFT_OK;
}

static weft_status make_checkpoint(restoring *r)
{
    WEFT_TRY(weft_comm_agree(r->world, share_texts(r)));
    weft_status status = save_phases(r);
    weft_save_release(&r->save, status != WEFT_OK);
    return status;
}

/* --- all of it ----------------------------------------------------------------------------- */

/* What the start before took. Its ranks are gone. */
static void give_back(const restoring *r)
{
    char path[4096];
    weft_folder_remove(r->folder);
    rmdir(r->above);
    if (r->rank == 0 &&
        snprintf(path, sizeof path, "%s/%s", r->place->dir, WEFT_COPIES_NAME) < (int)sizeof path)
        unlink(path);
}

static weft_status restore(restoring *r)
{
    int64_t told[2] = {r->newer_than, 0};
    if (r->rank == 0) {
        r->name = read_name(r->place->dir);
        memcpy(&told[1], &r->name, sizeof r->name);
    }
    WEFT_TRY(weft_comm_broadcast_host(r->world, told, sizeof told, 0));
    r->newer_than = told[0];
    memcpy(&r->name, &told[1], sizeof r->name);
    if (r->name == 0)
        return WEFT_OK;
    WEFT_TRY(weft_copies_find_local(r->world, r->place, &r->local));
    weft_status status =
        weft_copies_folder(r->place, r->name, r->above, r->folder, sizeof r->folder);
    if (status == WEFT_OK)
        status = look(r);
    WEFT_TRY(weft_comm_agree(r->world, status));
    WEFT_TRY(agree_on_step(r));
    if (r->found.step >= 0)
        WEFT_TRY(make_checkpoint(r));
    WEFT_TRY(weft_comm_barrier(r->world));
    give_back(r);
    return WEFT_OK;
}

weft_status weft_copies_restore(weft_comm *world, const weft_copies_place *place,
                                int64_t newer_than, weft_copies_found *out)
{
    restoring r = {.world = world,
                   .place = place,
                   .newer_than = newer_than,
                   .rank = weft_comm_rank(world),
                   .size = weft_comm_size(world),
                   .found = {.step = -1, .newest = -1}};
    weft_status status = restore(&r);
    for (size_t i = 0; i < r.num_states; i++)
        weft_slot_release(&r.states[i].slot);
    weft_arena_release(&r.arena);
    if (status == WEFT_OK)
        *out = r.found;
    return status;
}
