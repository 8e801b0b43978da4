#include "parallel/residency/residency.h"

/* The stage's buckets while they are listed. */
typedef struct list {
    const weft_cut_sections *sections;
    const weft_mesh *mesh;
    bool overlap;
    weft_sharding sharding;
    bool experts_on_host, state_on_host;
    weft_bucket_shape *shapes;
    int count, num_staged;
} list;

static weft_bucket_sum sum_of(const list *l, weft_section_kind kind)
{
    const bool by_tensor = kind == WEFT_SECTION_DENSE_SUM || kind == WEFT_SECTION_DENSE_SHARED;
    if (by_tensor && l->mesh->tp > 1)
        return WEFT_BUCKET_SUM_TENSOR;
    return kind == WEFT_SECTION_EMBEDDING && weft_mesh_parts_ends(l->mesh) ? WEFT_BUCKET_SUM_TIED
                                                                           : WEFT_BUCKET_SUM_NONE;
}

/* The layer that a bucket waits for. Buckets of a section start in their order; those of units
 * start in the backward. */
static int32_t layer_of(const list *l, weft_section_kind kind, int index)
{
    const weft_bucket *buckets = l->sections->buckets[kind];
    bool is_early = kind == WEFT_SECTION_DENSE || kind == WEFT_SECTION_EXPERT;
    int32_t layer = buckets[index].first_layer;
    if (buckets[index].unit >= 0 || (l->experts_on_host && kind == WEFT_SECTION_EXPERT))
        return layer;
    if (!l->overlap || !is_early)
        return -1;
    for (int b = 0; b < index; b++)
        if (buckets[b].unit < 0 && buckets[b].is_matrices == buckets[index].is_matrices &&
            buckets[b].first_layer < layer)
            layer = buckets[b].first_layer;
    return layer;
}

static weft_bucket_residency residency_of(const list *l, bool offloaded, bool is_of_unit,
                                          int owners)
{
    if (offloaded)
        return (weft_bucket_residency){WEFT_LIES_ON_HOST, WEFT_LIES_ON_HOST, WEFT_LIES_ON_HOST};
    weft_bucket_residency out = {0};
    if (is_of_unit)
        out.gradient = WEFT_LIES_SHARED_OUT;
    if (is_of_unit && l->sharding == WEFT_SHARD_OPTIM_GRADS_PARAMS)
        out.weights = WEFT_LIES_SHARED_OUT;
    out.state = l->state_on_host ? WEFT_LIES_ON_HOST
                : owners > 1     ? WEFT_LIES_SHARED_OUT
                                 : WEFT_LIES_ON_DEVICE;
    return out;
}

static void add(list *l, weft_section_kind kind, int index)
{
    const weft_bucket *bucket = &l->sections->buckets[kind][index];
    const bool offloaded = l->experts_on_host && kind == WEFT_SECTION_EXPERT,
               staged = l->state_on_host && !offloaded;
    const int ranks = l->sections->group_size[kind];
    const int owners = l->sharding != WEFT_NO_SHARD ? ranks : 1;
    l->shapes[l->count++] =
        (weft_bucket_shape){.section = (int32_t)kind,
                            .index = index,
                            .layer = layer_of(l, kind, index),
                            .sum = sum_of(l, kind),
                            .residency = residency_of(l, offloaded, bucket->unit >= 0, owners),
                            .ranks = ranks,
                            .owners = owners,
                            .staging = staged ? l->num_staged++ % WEFT_BUCKET_STAGING : 0,
                            .num_experts = bucket->num_experts,
                            .elements = bucket->count,
                            .matrices = bucket->matrices};
}

/* Buckets of a section that wait for each other: its matrices, or the others. */
typedef struct queue {
    weft_section_kind kind;
    int next, end;
} queue;

static void add_all(list *l)
{
    const weft_section_kind early[2] = {WEFT_SECTION_DENSE, WEFT_SECTION_EXPERT};
    const weft_section_kind late[3] = {WEFT_SECTION_DENSE_SUM, WEFT_SECTION_DENSE_SHARED,
                                       WEFT_SECTION_EMBEDDING};
    queue queues[4];
    for (int i = 0; i < 2; i++) {
        const int count = l->sections->num_buckets[early[i]];
        int end = 0;
        while (end < count && l->sections->buckets[early[i]][end].is_matrices)
            end++;
        queues[2 * i] = (queue){early[i], 0, end};
        queues[2 * i + 1] = (queue){early[i], end, count};
    }
    for (queue *first = queues; first;) {
        first = NULL;
        for (queue *q = queues; q < queues + 4; q++)
            if (q->next < q->end &&
                (!first || layer_of(l, first->kind, first->next) < layer_of(l, q->kind, q->next)))
                first = q;
        if (first)
            add(l, first->kind, first->next++);
    }
    for (int i = 0; i < 3; i++)
        for (int b = 0; b < l->sections->num_buckets[late[i]]; b++)
            add(l, late[i], b);
}

weft_status weft_buckets_order(const weft_cut_sections *sections, const weft_mesh *mesh,
                               const weft_residency *residency, weft_arena *arena,
                               weft_buckets *out)
{
    list l = {.sections = sections,
              .mesh = mesh,
              .overlap = residency->overlap,
              .sharding = residency->sharding,
              .experts_on_host = residency->experts_on_host,
              .state_on_host = residency->state_on_host};
    size_t count = 0;
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        count += (size_t)sections->num_buckets[kind];
    WEFT_TRY(WEFT_ARRAY(arena, count + 1, &l.shapes));
    add_all(&l);
    *out = (weft_buckets){l.shapes, l.count};
    return WEFT_OK;
}
