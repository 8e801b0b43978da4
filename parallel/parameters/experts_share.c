#include "parallel/parameters/parameters.h"

#include <stdlib.h>
#include <string.h>

#include "core/device/device.h"
#include "parallel/parameters/internal.h"

enum { PAGE_BYTES = 4096 };

/* Where a rank's parts lie in its memory: marks, weights, gradients, each from a page on. */
typedef struct parts {
    size_t marks_bytes, weight_bytes, grad_bytes, weights, grads, all;
} parts;

static size_t in_pages(size_t bytes)
{
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static parts parts_of(const weft_parameters *p)
{
    const weft_section *section = &p->sections[WEFT_SECTION_EXPERT];
    parts at = {.marks_bytes = (size_t)section->num_buckets * sizeof(weft_expert_marks),
                .weight_bytes = p->held.weights[WEFT_SECTION_EXPERT] * weft_dtype_bytes(p->dtype),
                .grad_bytes =
                    p->share.with_grads ? p->held.grads[WEFT_SECTION_EXPERT] * sizeof(float) : 0};
    at.weights = in_pages(at.marks_bytes);
    at.grads = at.weights + in_pages(at.weight_bytes);
    at.all = at.grads + in_pages(at.grad_bytes);
    return at;
}

void weft_parameters_share_experts(weft_parameters *p)
{
    p->share.wanted = true;
}

static weft_status adopt(const weft_parameters *p, const weft_shared_memory *m, bool counts)
{
    const parts at = parts_of(p);
    char *memory = m->memory;
    WEFT_TRY(weft_device_adopt(p->device, WEFT_MEMORY_PINNED, memory + at.weights, at.weight_bytes,
                               counts, "experts' weights"));
    if (at.grad_bytes == 0)
        return WEFT_OK;
    const weft_status status = weft_device_adopt(p->device, WEFT_MEMORY_PINNED, memory + at.grads,
                                                 at.grad_bytes, counts, "experts' gradients");
    if (status != WEFT_OK)
        weft_device_disown(p->device, memory + at.weights, at.weight_bytes);
    return status;
}

/* NULL memory is legal. */
static void release(const weft_parameters *p, weft_shared_memory *m)
{
    const parts at = parts_of(p);
    if (m->memory) {
        weft_device_disown(p->device, (char *)m->memory + at.weights, at.weight_bytes);
        if (at.grad_bytes > 0)
            weft_device_disown(p->device, (char *)m->memory + at.grads, at.grad_bytes);
    }
    weft_shared_memory_release(m);
}

weft_status weft_parameters_make_share(weft_parameters *p, bool with_grads)
{
    weft_section *section = &p->sections[WEFT_SECTION_EXPERT];
    weft_experts_share *share = &p->share;
    share->with_grads = with_grads;
    const parts at = parts_of(p);
    WEFT_TRY(weft_shared_memory_create(at.all, &share->own, &share->key));
    const weft_status status = adopt(p, &share->own, true);
    if (status != WEFT_OK) {
        weft_shared_memory_release(&share->own);
        return status;
    }
    void *grads = (char *)share->own.memory + at.grads;
    section->weights = (char *)share->own.memory + at.weights;
    section->grads = with_grads ? grads : NULL;
    return WEFT_OK;
}

void weft_parameters_free_share(weft_parameters *p)
{
    weft_experts_share *share = &p->share;
    for (int r = 0; share->members && r < share->size; r++)
        if (r != share->rank)
            release(p, &share->members[r]);
    release(p, &share->own);
}

/* What a rank tells the others. */
typedef struct card {
    weft_shared_key key;
    int64_t node; /* the world's rank of its node's first in the group */
} card;

static weft_status find_node(weft_comm *group, int64_t *out)
{
    weft_comm *node;
    *out = weft_comm_world_rank(group, weft_comm_rank(group));
    if (weft_comm_size(group) == 1)
        return WEFT_OK;
    WEFT_TRY(weft_comm_split_node(group, &node));
    *out = weft_comm_world_rank(node, 0);
    weft_comm_destroy(node);
    return WEFT_OK;
}

static weft_status map_others(weft_parameters *p, const card *cards)
{
    weft_experts_share *share = &p->share;
    for (int r = 0; r < share->size; r++) {
        if (share->nodes[r] != share->nodes[share->rank] || r == share->rank ||
            !share->own.memory) /* a stage without experts */
            continue;
        weft_shared_memory mapped;
        WEFT_TRY(weft_shared_memory_map(&cards[r].key, &mapped));
        const weft_status status = mapped.bytes == share->own.bytes
                                       ? adopt(p, &mapped, false)
                                       : WEFT_ERROR(WEFT_INTERNAL,
                                                    "a rank's experts take %zu bytes, this one's "
                                                    "%zu",
                                                    mapped.bytes, share->own.bytes);
        if (status != WEFT_OK) {
            weft_shared_memory_release(&mapped);
            return status;
        }
        share->members[r] = mapped;
    }
    return WEFT_OK;
}

static weft_status take_arrays(weft_parameters *p, card **out_cards)
{
    weft_experts_share *share = &p->share;
    const size_t size = (size_t)share->size;
    void *members, *nodes, *cards;
    WEFT_TRY(weft_arena_alloc_array(&p->arena, size, sizeof *share->members, &members));
    WEFT_TRY(weft_arena_alloc_array(&p->arena, size, sizeof *share->nodes, &nodes));
    WEFT_TRY(weft_arena_alloc_array(&p->arena, size, sizeof **out_cards, &cards));
    memset(members, 0, size * sizeof *share->members);
    share->members = members;
    share->nodes = nodes;
    *out_cards = cards;
    return WEFT_OK;
}

weft_status weft_parameters_join_experts(weft_parameters *p, weft_comm *group)
{
    weft_experts_share *share = &p->share;
    card *cards = NULL, own = {.key = share->key};
    share->size = weft_comm_size(group);
    share->rank = weft_comm_rank(group);
    WEFT_TRY(weft_comm_agree(group, take_arrays(p, &cards)));
    WEFT_TRY(find_node(group, &own.node));
    WEFT_TRY(weft_comm_all_gather_host(group, &own, cards, sizeof own));
    for (int r = 0; r < share->size; r++) {
        share->nodes[r] = 0;
        while (cards[share->nodes[r]].node != cards[r].node)
            share->nodes[r]++;
    }
    share->members[share->rank] = share->own;
    const weft_status status = weft_comm_agree(group, map_others(p, cards));
    weft_shared_memory_close(&share->own);
    share->members[share->rank].fd = 0;
    return status;
}

int weft_parameters_expert_node(const weft_parameters *p, int rank)
{
    return p->share.nodes[rank];
}

static char *memory_of(const weft_parameters *p, int rank)
{
    return p->share.members[rank].memory;
}

void *weft_parameters_weight_of(const weft_parameters *p, int rank, int bucket)
{
    const weft_section *section = &p->sections[WEFT_SECTION_EXPERT];
    return memory_of(p, rank) + parts_of(p).weights +
           section->buckets[bucket].weights * weft_dtype_bytes(p->dtype);
}

float *weft_parameters_grad_of(const weft_parameters *p, int rank, int bucket)
{
    const weft_section *section = &p->sections[WEFT_SECTION_EXPERT];
    void *grads = memory_of(p, rank) + parts_of(p).grads;
    return (float *)grads + section->buckets[bucket].grads;
}

weft_expert_marks *weft_parameters_marks_of(const weft_parameters *p, int rank, int bucket)
{
    void *marks = memory_of(p, rank);
    return (weft_expert_marks *)marks + bucket;
}
