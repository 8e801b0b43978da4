
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/device/device.h"
#include "parallel/parameters/internal.h"
#include "parallel/parameters/parameters.h"

/* A page of its own at the beginning tells the memory from what another process has open. */
enum { HEADER_BYTES = 4096 };

static uint64_t new_mark(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)getpid() << 40 ^ (uint64_t)now.tv_sec << 30 ^ (uint64_t)now.tv_nsec;
}

static weft_status map(int fd, size_t bytes, weft_shared_memory *out)
{
    void *mapping = mmap(NULL, bytes + HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED)
        return WEFT_ERROR(WEFT_MEMORY, "%zu bytes of shared memory cannot be mapped: %s", bytes,
                          strerror(errno));
    *out = (weft_shared_memory){
        .memory = (char *)mapping + HEADER_BYTES, .bytes = bytes, .mapping = mapping, .fd = fd + 1};
    return WEFT_OK;
}

/* Errors: WEFT_MEMORY, with the system's words. */
static weft_status shared_memory_create(size_t bytes, weft_shared_memory *out,
                                        weft_shared_key *out_key)
{
    const int fd = memfd_create("weft experts", MFD_CLOEXEC);
    if (fd < 0)
        return WEFT_ERROR(WEFT_MEMORY, "no shared memory: memfd_create: %s", strerror(errno));
    if (ftruncate(fd, (off_t)(bytes + HEADER_BYTES)) != 0) {
        const int error = errno;
        close(fd);
        return WEFT_ERROR(WEFT_MEMORY, "%zu bytes of shared memory: %s", bytes, strerror(error));
    }
    const weft_status status = map(fd, bytes, out);
    if (status != WEFT_OK) {
        close(fd);
        return status;
    }
    *out_key = (weft_shared_key){
        .bytes = bytes, .mark = new_mark(), .pid = (int64_t)getpid(), .fd = (int32_t)fd};
    memcpy(out->mapping, &out_key->mark, sizeof out_key->mark);
    return WEFT_OK;
}

static bool is_wanted(const weft_shared_key *key, int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && (uint64_t)info.st_size == key->bytes + HEADER_BYTES;
}

/* Nobody maps it from here on. */
static void shared_memory_close(weft_shared_memory *m)
{
    if (m->fd > 0)
        close(m->fd - 1);
    m->fd = 0;
}

/* Others keep it. */
static void shared_memory_release(weft_shared_memory *m)
{
    shared_memory_close(m);
    if (m->mapping)
        munmap(m->mapping, m->bytes + HEADER_BYTES);
    *m = (weft_shared_memory){0};
}

/* While its maker has it open. Errors: WEFT_MEMORY (processes that do not see each other: other
 * users', or containers'). */
static weft_status shared_memory_map(const weft_shared_key *key, weft_shared_memory *out)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)key->pid, (int)key->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return WEFT_ERROR(WEFT_MEMORY, "shared memory of another process, %s: %s", path,
                          strerror(errno));
    const weft_status status =
        is_wanted(key, fd) ? map(fd, (size_t)key->bytes, out)
                           : WEFT_ERROR(WEFT_MEMORY, "%s is not the other process' memory", path);
    if (status == WEFT_OK && memcmp(out->mapping, &key->mark, sizeof key->mark) == 0) {
        shared_memory_close(out);
        return WEFT_OK;
    }
    if (status == WEFT_OK)
        shared_memory_release(out);
    else
        close(fd);
    return status != WEFT_OK ? status
                             : WEFT_ERROR(WEFT_MEMORY, "%s is not the other process' memory", path);
}

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
    shared_memory_release(m);
}

weft_status weft_parameters_make_share(weft_parameters *p, bool with_grads)
{
    weft_section *section = &p->sections[WEFT_SECTION_EXPERT];
    weft_experts_share *share = &p->share;
    share->with_grads = with_grads;
    const parts at = parts_of(p);
    WEFT_TRY(shared_memory_create(at.all, &share->own, &share->key));
    const weft_status status = adopt(p, &share->own, true);
    if (status != WEFT_OK) {
        shared_memory_release(&share->own);
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
        WEFT_TRY(shared_memory_map(&cards[r].key, &mapped));
        const weft_status status = mapped.bytes == share->own.bytes
                                       ? adopt(p, &mapped, false)
                                       : WEFT_ERROR(WEFT_INTERNAL,
                                                    "a rank's experts take %zu bytes, this one's "
                                                    "%zu",
                                                    mapped.bytes, share->own.bytes);
        if (status != WEFT_OK) {
            shared_memory_release(&mapped);
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
    shared_memory_close(&share->own);
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
