#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "parallel/checkpoint/internal.h"

uint64_t weft_stored_elements(const weft_stored *stored)
{
    uint64_t elements = 1;
    for (int d = 0; d < stored->num_dims; d++)
        elements *= stored->dims[d];
    return elements;
}

static int compare_names(const void *a, const void *b)
{
    const weft_stored *x = a, *y = b;
    return strcmp(x->name, y->name);
}

int weft_stored_find(const weft_stored_list *list, const char *name)
{
    weft_stored key = {.num_dims = 0};
    if (strlen(name) >= sizeof key.name)
        return -1;
    strcpy(key.name, name);
    const weft_stored *found =
        bsearch(&key, list->items, (size_t)list->count, sizeof *list->items, compare_names);
    return found ? (int)(found - list->items) : -1;
}

void weft_stored_name(weft_state_kind kind, const char *parameter, char out[WEFT_STORED_NAME_BYTES])
{
    static const char *const prefixes[WEFT_NUM_STATES] = {"model", "optimizer/exp_avg",
                                                          "optimizer/exp_avg_sq"};
    snprintf(out, WEFT_STORED_NAME_BYTES, "%s/%.*s", prefixes[kind], WEFT_MAX_NAME_BYTES - 1,
             parameter);
}

/* Sorts and drops repetitions, which must agree on their shape. */
static weft_status unite(weft_stored *items, size_t count, weft_stored_list *out)
{
    size_t kept = 0;
    qsort(items, count, sizeof *items, compare_names);
    for (size_t i = 0; i < count; i++) {
        const weft_stored *previous = kept ? &items[kept - 1] : NULL;
        if (!items[i].name[0])
            continue;
        if (!previous || strcmp(previous->name, items[i].name) != 0)
            items[kept++] = items[i];
        else if (memcmp(previous->dims, items[i].dims, sizeof items[i].dims) != 0)
            return WEFT_ERROR(WEFT_INTERNAL, "%s has different shapes on two stages",
                              items[i].name);
    }
    *out = (weft_stored_list){items, (int)kept};
    return WEFT_OK;
}

weft_status weft_stored_collect(const weft_parameters *parameters, int num_kinds, weft_arena *arena,
                                weft_stored_list *out)
{
    weft_comm *stages = weft_parameters_groups(parameters)->by_axis[WEFT_AXIS_PP];
    int64_t most = (int64_t)weft_parameters_count(parameters) * num_kinds;
    void *own_memory, *all_memory;
    size_t used = 0;

    WEFT_TRY(weft_comm_all_reduce_host(stages, &most, 1, WEFT_I64, WEFT_REDUCE_MAX));
    size_t capacity = (size_t)most + 1, num_stages = (size_t)weft_comm_size(stages);
    WEFT_TRY(weft_arena_alloc_array(arena, capacity, sizeof(weft_stored), &own_memory));
    WEFT_TRY(
        weft_arena_alloc_array(arena, capacity * num_stages, sizeof(weft_stored), &all_memory));
    weft_stored *own = own_memory;
    for (int i = 0; i < weft_parameters_count(parameters); i++) {
        const weft_placed *placed = weft_parameters_at(parameters, i);
        for (int kind = 0; kind < num_kinds; kind++) {
            if (kind == WEFT_STATE_EXP_AVG_SQ && weft_parameters_by_muon(parameters, placed))
                continue;
            weft_stored *item = &own[used++];
            item->num_dims = placed->box.num_dims;
            memcpy(item->dims, placed->box.global_dims,
                   (size_t)item->num_dims * sizeof item->dims[0]);
            weft_stored_name((weft_state_kind)kind, placed->parameter.name, item->name);
        }
    }
    WEFT_TRY(
        weft_comm_all_gather_host(stages, own_memory, all_memory, capacity * sizeof(weft_stored)));
    return unite(all_memory, capacity * num_stages, out);
}

void weft_shard_print(const weft_stored_shard *shard, int num_dims, char *out, size_t capacity)
{
    size_t used = 0;
    for (int d = 0; d < num_dims && used < capacity; d++) {
        int length = snprintf(out + used, capacity - used, "%s%zu:%zu", d ? ", " : "[",
                              shard->start[d], shard->start[d] + shard->count[d]);
        used += length > 0 ? (size_t)length : 0;
    }
    if (used < capacity)
        snprintf(out + used, capacity - used, "]");
}

weft_status weft_shard_append(weft_shard_list *list, weft_arena *arena,
                              const weft_stored_shard *shard)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 256;
        void *grown;
        WEFT_TRY(weft_arena_alloc_array(arena, capacity, sizeof *shard, &grown));
        if (list->count)
            memcpy(grown, list->items, list->count * sizeof *shard);
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->count++] = *shard;
    return WEFT_OK;
}

static weft_status check_cover(const char *path, const weft_stored_list *datasets,
                               const weft_shard_list *shards, uint64_t *held)
{
    for (size_t i = 0; i < shards->count; i++) {
        int64_t dataset = shards->items[i].dataset;
        held[dataset] += weft_shard_elements(&shards->items[i], datasets->items[dataset].num_dims);
    }
    for (int i = 0; i < datasets->count; i++) {
        uint64_t elements = weft_stored_elements(&datasets->items[i]);
        if (held[i] != elements)
            return WEFT_ERROR(WEFT_FILE,
                              "%s: %s: the shards hold %" PRIu64 " of %" PRIu64 " elements", path,
                              datasets->items[i].name, held[i], elements);
    }
    return WEFT_OK;
}

weft_status weft_shards_check_cover(const char *path, const weft_stored_list *datasets,
                                    const weft_shard_list *shards)
{
    uint64_t *held = calloc((size_t)datasets->count + 1, sizeof *held);
    if (!held)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to check %s", path);
    weft_status status = check_cover(path, datasets, shards, held);
    free(held);
    return status;
}

weft_status weft_runs_visit(const weft_box *box, size_t first, size_t count,
                            weft_run_function visit, void *context)
{
    size_t unit = 1;
    for (int d = box->num_dims - 1; d >= 0; d--) {
        if (box->local[d] > WEFT_SHARD_MAX_ELEMENTS / unit)
            break;
        unit *= box->local[d];
    }
    size_t run = WEFT_SHARD_MAX_ELEMENTS / unit * unit, end = first + count;
    while (first < end) {
        size_t next = (first / run + 1) * run;
        if (next > end)
            next = end;
        WEFT_TRY(visit(context, first, next - first));
        first = next;
    }
    return WEFT_OK;
}

/* Shards of the other ranks end where one of dataset -1 stands. */
static weft_status lay_out(const weft_shard_list *all, size_t world, size_t each, void **out)
{
    weft_stored_shard *parts = malloc(world * each * sizeof *parts + 1);
    if (!parts)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to deal %zu shards", all->count);
    for (size_t i = 0; i < world * each; i++)
        parts[i].dataset = -1;
    for (size_t i = 0; i < all->count; i++)
        parts[i % world * each + i / world] = all->items[i];
    *out = parts;
    return WEFT_OK;
}

weft_status weft_shards_deal(weft_comm *world, const weft_shard_list *all, weft_arena *arena,
                             weft_shard_list *out)
{
    const size_t size = (size_t)weft_comm_size(world);
    int64_t each = (int64_t)((all->count + size - 1) / size);
    void *parts = NULL, *own;
    WEFT_TRY(weft_comm_broadcast_host(world, &each, sizeof each, 0));
    weft_status status =
        weft_arena_alloc_array(arena, (size_t)each, sizeof(weft_stored_shard), &own);
    if (status == WEFT_OK && weft_comm_rank(world) == 0)
        status = lay_out(all, size, (size_t)each, &parts);
    status = weft_comm_agree(world, status);
    if (status == WEFT_OK)
        status =
            weft_comm_scatter_host(world, parts, own, (size_t)each * sizeof(weft_stored_shard));
    free(parts);
    WEFT_TRY(status);
    *out = (weft_shard_list){.items = own, .capacity = (size_t)each};
    while (out->count < (size_t)each && out->items[out->count].dataset >= 0)
        out->count++;
    return WEFT_OK;
}

weft_status weft_shard_check(const char *path, const weft_stored *dataset,
                             const weft_stored_shard *shard, uint64_t hash)
{
    char where[160];
    if (hash == shard->hash)
        return WEFT_OK;
    weft_shard_print(shard, dataset->num_dims, where, sizeof where);
    return WEFT_ERROR(WEFT_FILE, "%s: %s %s: damaged: the hash differs", path, dataset->name,
                      where);
}

weft_status weft_shards_verify(weft_tensor_file *file, const char *path,
                               const weft_stored_list *datasets, const weft_shard_list *shards)
{
    size_t most = 1;
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < shards->count; i++) {
        const weft_stored_shard *shard = &shards->items[i];
        const size_t elements =
            weft_shard_elements(shard, datasets->items[shard->dataset].num_dims);
        most = elements > most ? elements : most;
    }
    float *data = malloc(most * sizeof *data);
    if (!data)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to verify %s", path);
    for (size_t i = 0; status == WEFT_OK && i < shards->count; i++) {
        const weft_stored_shard *shard = &shards->items[i];
        const weft_stored *dataset = &datasets->items[shard->dataset];
        size_t bytes = weft_shard_elements(shard, dataset->num_dims) * sizeof *data;
        status = weft_tensor_file_read(file, shard, data);
        if (status == WEFT_OK)
            status = weft_shard_check(path, dataset, shard, XXH64(data, bytes, 0));
    }
    free(data);
    return status;
}
