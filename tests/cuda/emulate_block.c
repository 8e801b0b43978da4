#include "tests/cuda/emulate_block.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cuda/emulate_fiber.h"
#include "tests/cuda/emulate_runtime.h"

enum { MAX_THREADS = 1024, BLOCKS_POISONED = 16 };

typedef enum state { READY, AT_BARRIER, AT_WARP, LEFT } state;

typedef struct copy {
    void *to;
    const void *from;
    unsigned size, bytes, group;
} copy;

typedef struct thread {
    fiber fiber;
    uint3 index;
    state state;
    weft_emulate_collective what; /* AT_WARP */
    unsigned mask, source;
    uint64_t value, result;
    copy *copies; /* cp.async's that wait */
    unsigned num_copies, copies_capacity, group;
} thread;

typedef struct launch {
    const char *kernel;
    dim3 blocks, threads;
    size_t shared_bytes;
    void (*call)(const void *);
    _Alignas(16) unsigned char arguments[];
} launch;

weft_emulate_position weft_emulate_here;

/* One kernel at a time: these are the running one's. */
static struct {
    const launch *launch;
    fiber scheduler;
    thread *thread; /* that runs, if any does */
    pthread_t served_by;
    unsigned num_threads, num_left;
    unsigned num_arrived;               /* at the barrier */
    unsigned at_warp[MAX_THREADS / 32]; /* lanes of each warp, in state AT_WARP */
    bool backward;
    void *published[MAX_THREADS / 32][32];
    bool started;
    unsigned char *statics; /* the shared variables of all kernels */
    size_t statics_bytes;
} now;
static thread threads[MAX_THREADS];
static alignas(1024) unsigned char dynamic_shared[WEFT_EMULATE_MAX_SHARED];

static unsigned number(const thread *t)
{
    return (unsigned)(t - threads);
}

static const char *describe(const thread *t, char *out, size_t capacity)
{
    static const char *const names[] = {"__syncwarp", "a shuffle", "a vote",
                                        "an instruction of the warp"};
    const uint3 i = t->index;
    int n = snprintf(out, capacity, "thread (%u,%u,%u) ", i.x, i.y, i.z);
    switch (t->state) {
    case AT_BARRIER:
        snprintf(out + n, capacity - (size_t)n, "waits at __syncthreads");
        break;
    case AT_WARP:
        snprintf(out + n, capacity - (size_t)n, "waits at %s with mask %08x", names[t->what],
                 t->mask);
        break;
    case LEFT:
        snprintf(out + n, capacity - (size_t)n, "has left the kernel");
        break;
    default:
        snprintf(out + n, capacity - (size_t)n, "runs");
    }
    return out;
}

static _Noreturn void die(const thread *t, const thread *other, const char *why)
{
    char first[160], second[160] = "";
    const uint3 b = weft_emulate_here.block_index;
    if (other)
        describe(other, second, sizeof second);
    weft_emulate_die("kernel %s, block (%u,%u,%u): %s%s%s%s%s", now.launch->kernel, b.x, b.y, b.z,
                     describe(t, first, sizeof first), other ? ", " : "", second, *why ? ": " : "",
                     why);
}

void weft_emulate_blame_kernel(const char *why)
{
    if (now.thread && pthread_equal(now.served_by, pthread_self()))
        die(now.thread, NULL, why);
}

/* Nobody can run: names a thread that waits and one that it waits for. */
static _Noreturn void die_of_deadlock(void)
{
    const thread *waits = NULL, *other = NULL;
    for (unsigned i = 0; i < now.num_threads && !waits; i++)
        if (threads[i].state == AT_BARRIER || threads[i].state == AT_WARP)
            waits = &threads[i];
    if (waits->state == AT_BARRIER) {
        for (unsigned i = 0; i < now.num_threads; i++)
            if (threads[i].state != AT_BARRIER) {
                other = &threads[i];
                break;
            }
    } else {
        for (unsigned lane = 0; lane < 32; lane++) {
            const unsigned i = number(waits) / 32 * 32 + lane;
            if (!(waits->mask >> lane & 1))
                continue;
            if (i >= now.num_threads)
                die(waits, NULL, "the mask has lanes that the block has not");
            if (threads[i].state != AT_WARP || threads[i].mask != waits->mask) {
                other = &threads[i];
                break;
            }
        }
    }
    die(waits, other, "nobody can go on");
}

static void wait_in(state what)
{
    thread *self = now.thread;
    self->state = what;
    fiber_switch(&self->fiber, &now.scheduler);
}

/* What a fiber does: its thread of one block after another. */
static void run_thread(void)
{
    for (;;) {
        now.launch->call(now.launch->arguments);
        thread *self = now.thread;
        if (self->num_copies)
            self->num_copies = 0;
        now.num_left++;
        wait_in(LEFT);
    }
}

static void resume(thread *t)
{
    now.thread = t;
    weft_emulate_here.thread_index = t->index;
    fiber_switch(&now.scheduler, &t->fiber);
}

/* Runs the warp until all its threads wait for others. True if any ran. */
static bool run_warp(unsigned warp)
{
    const unsigned first = warp * 32;
    const unsigned end = first + 32 < now.num_threads ? first + 32 : now.num_threads;
    bool ran = false, again = true;
    while (again) {
        again = false;
        for (unsigned i = first; i < end; i++) {
            thread *t = &threads[now.backward ? end - 1 - (i - first) : i];
            if (t->state == READY) {
                resume(t);
                ran = again = true;
            }
        }
    }
    return ran;
}

static void run_block(void)
{
    const unsigned num_warps = (now.num_threads + 31) / 32;
    for (unsigned i = 0; i < now.num_threads; i++) {
        threads[i].state = READY;
        threads[i].group = 0;
    }
    now.num_arrived = now.num_left = 0;
    while (now.num_left < now.num_threads) {
        bool ran = false;
        for (unsigned w = 0; w < num_warps; w++)
            ran |= run_warp(now.backward ? num_warps - 1 - w : w);
        if (!ran)
            die_of_deadlock();
    }
}

/* The section of the program in which __shared__ variables lie. */
static void find_statics(void)
{
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status))
        weft_emulate_die("cannot read /proc/self/exe");
    const size_t bytes = (size_t)status.st_size;
    const unsigned char *image = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (image == MAP_FAILED)
        weft_emulate_die("cannot map /proc/self/exe");
    const ElfW(Ehdr) *header = (const void *)image;
    const ElfW(Shdr) *sections = (const void *)(image + header->e_shoff);
    const char *names = (const char *)image + sections[header->e_shstrndx].sh_offset;
    for (unsigned i = 0; header->e_shoff && i < header->e_shnum; i++)
        if (!strcmp(names + sections[i].sh_name, ".noinit") ||
            !strcmp(names + sections[i].sh_name, "weft_shared")) {
            now.statics = (unsigned char *)(_r_debug.r_map->l_addr + sections[i].sh_addr);
            now.statics_bytes = sections[i].sh_size;
        }
    munmap((void *)(uintptr_t)image, bytes);
}

/* The order may change from kernel to kernel: a test runs each both ways. */
static void take_order(void)
{
    const char *order = getenv("WEFT_EMULATE_ORDER");
    if (order && *order && strcmp(order, "forward") && strcmp(order, "backward"))
        weft_emulate_die("WEFT_EMULATE_ORDER is \"%s\", not forward or backward", order);
    now.backward = order && !strcmp(order, "backward");
}

/* Whole words. Not memset, and unchecked: a sanitizer keeps bytes around variables that nobody may
 * touch. */
__attribute__((no_sanitize_address)) static void fill(unsigned char *memory, size_t bytes)
{
    volatile uint64_t *to = (void *)(((uintptr_t)memory + 7) / 8 * 8);
    volatile uint64_t *end = (void *)(((uintptr_t)memory + bytes) / 8 * 8);
    while (to < end)
        *to++ = UINT64_MAX;
}

static void poison_shared(const launch *l)
{
    const size_t used = (l->shared_bytes + 7) / 8 * 8;
    allow_access(dynamic_shared, sizeof dynamic_shared);
    fill(dynamic_shared, used);
    forbid_access(dynamic_shared + l->shared_bytes, sizeof dynamic_shared - l->shared_bytes);
    fill(now.statics, now.statics_bytes);
}

static void run_launch(void *argument)
{
    launch *l = argument;
    const uint64_t num_blocks = (uint64_t)l->blocks.x * l->blocks.y * l->blocks.z;
    if (!now.started)
        find_statics();
    now.started = true;
    take_order();
    now.launch = l;
    now.served_by = pthread_self();
    now.num_threads = l->threads.x * l->threads.y * l->threads.z;
    weft_emulate_here.grid = l->blocks;
    weft_emulate_here.block = l->threads;
    for (unsigned i = 0; i < now.num_threads; i++) {
        threads[i].index.x = i % l->threads.x;
        threads[i].index.y = i / l->threads.x % l->threads.y;
        threads[i].index.z = i / l->threads.x / l->threads.y;
        if (!fiber_started(&threads[i].fiber))
            fiber_start(&threads[i].fiber, run_thread);
    }
    fiber_adopt(&now.scheduler);
    for (uint64_t n = 0; n < num_blocks; n++) {
        const uint64_t b = now.backward ? num_blocks - 1 - n : n;
        weft_emulate_here.block_index.x = (unsigned)(b % l->blocks.x);
        weft_emulate_here.block_index.y = (unsigned)(b / l->blocks.x % l->blocks.y);
        weft_emulate_here.block_index.z = (unsigned)(b / l->blocks.x / l->blocks.y);
        if (n < BLOCKS_POISONED)
            poison_shared(l);
        run_block();
    }
    now.thread = NULL;
}

static cudaError_t check(const void *function, dim3 blocks, dim3 block, size_t shared_bytes)
{
    const uint64_t num_threads = (uint64_t)block.x * block.y * block.z;
    if (!blocks.x || !blocks.y || !blocks.z || blocks.x > INT32_MAX || blocks.y > 65535 ||
        blocks.z > 65535 || !num_threads || block.x > MAX_THREADS || block.y > MAX_THREADS ||
        block.z > 64 || num_threads > MAX_THREADS)
        return cudaErrorInvalidConfiguration;
    return shared_bytes > weft_emulate_shared_limit(function) ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t weft_emulate_launch(const char *kernel, const void *function, dim3 blocks, dim3 block,
                                size_t shared_bytes, cudaStream_t stream,
                                void (*call)(const void *), const void *arguments, size_t bytes,
                                const void *const *pointers, int num_pointers)
{
    cudaError_t error = check(function, blocks, block, shared_bytes);
    for (int i = 0; i < num_pointers; i++)
        if (pointers[i] && weft_emulate_find(pointers[i], NULL) == WEFT_EMULATE_PAGEABLE)
            weft_emulate_die("kernel %s is given %p, which is host memory that is not pinned",
                             kernel, pointers[i]);
    launch *l = error ? NULL : malloc(sizeof *l + bytes);
    if (!l)
        return weft_emulate_error(error ? error : cudaErrorMemoryAllocation);
    *l = (launch){.kernel = kernel,
                  .blocks = blocks,
                  .threads = block,
                  .shared_bytes = shared_bytes,
                  .call = call};
    memcpy(l->arguments, arguments, bytes);
    weft_emulate_load((uint64_t)(uintptr_t)function, false);
    error = weft_emulate_enqueue(stream, run_launch, l, sizeof *l + bytes, true);
    free(l);
    return weft_emulate_error(error);
}

void *weft_emulate_shared(void)
{
    return dynamic_shared;
}

void weft_emulate_barrier(void)
{
    if (++now.num_arrived < now.num_threads) {
        wait_in(AT_BARRIER);
        return;
    }
    for (unsigned i = 0; i < now.num_threads; i++)
        if (threads[i].state == AT_BARRIER)
            threads[i].state = READY;
    now.num_arrived = 0;
}

/* The last lane of the mask has come: gives each its result. */
static void complete(thread *lanes, thread *self)
{
    const unsigned mask = self->mask, warp = number(lanes) / 32;
    uint64_t votes = 0;
    for (unsigned m = mask; m; m &= m - 1) {
        const thread *t = &lanes[__builtin_ctz(m)];
        if (t->what != self->what)
            die(t, self, "lanes of one mask do different things");
        votes |= (uint64_t)(t->value != 0) << __builtin_ctz(m);
    }
    if (self->what == WEFT_EMULATE_PUBLISH)
        memset(now.published[warp], 0, sizeof now.published[warp]);
    for (unsigned m = mask; m; m &= m - 1) {
        const unsigned lane = (unsigned)__builtin_ctz(m);
        thread *t = &lanes[lane];
        t->result = 0;
        if (self->what == WEFT_EMULATE_SHUFFLE)
            t->result =
                t->source < 32 && mask >> t->source & 1 ? lanes[t->source].value : UINT64_MAX;
        else if (self->what == WEFT_EMULATE_BALLOT)
            t->result = votes;
        else if (self->what == WEFT_EMULATE_PUBLISH)
            memcpy(&now.published[warp][lane], &t->value, sizeof(void *));
        t->state = READY;
    }
    now.at_warp[warp] &= ~mask;
}

uint64_t weft_emulate_warp(weft_emulate_collective what, unsigned mask, uint64_t value,
                           unsigned source)
{
    const unsigned warp = number(now.thread) / 32, lane = number(now.thread) % 32;
    thread *self = now.thread, *lanes = &threads[warp * 32];
    self->what = what;
    self->mask = mask;
    self->value = value;
    self->source = source;
    self->state = AT_WARP;
    if (!(mask >> lane & 1))
        die(self, NULL, "the mask lacks this lane");
    now.at_warp[warp] |= 1u << lane;
    bool all = (now.at_warp[warp] & mask) == mask;
    for (unsigned m = mask; m && all; m &= m - 1)
        all = lanes[__builtin_ctz(m)].mask == mask;
    if (all)
        complete(lanes, self);
    else
        fiber_switch(&self->fiber, &now.scheduler);
    return self->result;
}

void *const *weft_emulate_published(void)
{
    return now.published[number(now.thread) / 32];
}

void weft_emulate_copy_async(void *to, const void *from, unsigned size, unsigned bytes)
{
    thread *self = now.thread;
    if ((size != 4 && size != 8 && size != 16) || bytes > size || (uintptr_t)to % size ||
        (bytes && (uintptr_t)from % size))
        die(self, NULL, "an asynchronous copy of a wrong size or alignment");
    if (self->num_copies == self->copies_capacity) {
        self->copies_capacity = self->copies_capacity ? 2 * self->copies_capacity : 16;
        self->copies = realloc(self->copies, self->copies_capacity * sizeof *self->copies);
        if (!self->copies)
            weft_emulate_die("out of memory");
    }
    self->copies[self->num_copies++] = (copy){to, from, size, bytes, self->group};
}

void weft_emulate_copy_commit(void)
{
    now.thread->group++;
}

void weft_emulate_copy_wait(unsigned pending)
{
    thread *self = now.thread;
    unsigned kept = 0;
    for (unsigned i = 0; i < self->num_copies; i++) {
        const copy c = self->copies[i];
        if (c.group + pending >= self->group) {
            self->copies[kept++] = c;
            continue;
        }
        memcpy(c.to, c.from, c.bytes);
        memset((unsigned char *)c.to + c.bytes, 0, c.size - c.bytes);
    }
    self->num_copies = kept;
}
