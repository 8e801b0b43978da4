#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda/emulate_fiber.h"
#include "tests/cuda/emulate_runtime.h"

/* Addresses of a device's memory, and how much of them it may use. Between blocks stay bytes that
 * nobody may touch. */
enum { ALIGNMENT = 512, REDZONE = 512, GROWTH = 2 << 20 };
static const size_t ADDRESSES = (size_t)64 << 30, USABLE = (size_t)8 << 30;

typedef struct block {
    struct block *next; /* of the device, by address; adjacent */
    size_t offset, bytes, used_bytes;
    bool used, leaving; /* is being freed */
} block;

typedef struct pinned {
    struct pinned *next;
    unsigned char *memory;
    size_t bytes;
    bool registered; /* somebody else's memory */
} pinned;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;   /* the lists */
static pthread_mutex_t device = PTHREAD_MUTEX_INITIALIZER; /* being on the device */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct memory {
    unsigned char *base;
    size_t grown; /* bytes from the base that are mapped: filled, then used or free */
    size_t used;
    block *blocks;
} memories[WEFT_EMULATE_MAX_DEVICES];
static pinned *pinned_blocks;
static struct sigaction previous_action;

void weft_emulate_die(const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "CUDA emulation: %s\n", text);
    fflush(stderr);
    abort();
}

/* The block in which an address lies. Not locked: also for the handler of a signal. */
static block *find_block(const unsigned char *address, int *out_device)
{
    for (int d = 0; d < WEFT_EMULATE_MAX_DEVICES; d++) {
        const struct memory *m = &memories[d];
        if (!m->base || address < m->base || address >= m->base + ADDRESSES)
            continue;
        const size_t offset = (size_t)(address - m->base);
        *out_device = d;
        for (block *b = m->blocks; b; b = b->next)
            if (offset >= b->offset && offset < b->offset + b->bytes)
                return b;
    }
    return NULL;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)context;
    int d = -1;
    char text[64];
    snprintf(text, sizeof text, "it touched %p, where there is nothing", info->si_addr);
    weft_emulate_blame_kernel(text);
    const block *b = find_block(info->si_addr, &d);
    if (d >= 0)
        weft_emulate_die("the host touched device memory at %p (allocated %zu bytes)",
                         info->si_addr, b && b->used ? b->used_bytes : 0);
    sigaction(signal, &previous_action, NULL); /* comes again */
}

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

static void start(void)
{
    const struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    for (int d = 0; d < weft_emulate_num_devices(); d++) {
        unsigned char *memory = mmap(NULL, ADDRESSES + GROWTH, PROT_NONE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED)
            weft_emulate_die("cannot reserve addresses for device %d", d);
        /* Large pages, where there are any: protection changes often, and costs by the page. */
        memories[d].base = (unsigned char *)round_up((uintptr_t)memory, GROWTH);
        madvise(memories[d].base, ADDRESSES, MADV_HUGEPAGE);
    }
    sigaction(SIGSEGV, &action, &previous_action);
}

static void protect(int how)
{
    pthread_mutex_lock(&lock);
    for (int d = 0; d < weft_emulate_num_devices(); d++)
        if (memories[d].grown && mprotect(memories[d].base, memories[d].grown, how))
            weft_emulate_die("cannot change the protection of device memory");
    pthread_mutex_unlock(&lock);
}

void weft_emulate_on_device(void (*run)(void *), void *argument)
{
    pthread_once(&once, start);
    pthread_mutex_lock(&device);
    protect(PROT_READ | PROT_WRITE);
    run(argument);
    protect(PROT_NONE);
    pthread_mutex_unlock(&device);
}

/* A free block of at least these bytes, at the end if there is none between. Locked. */
static block *find_free(struct memory *m, size_t bytes)
{
    block *last = NULL;
    for (block *b = m->blocks; b; last = b, b = b->next)
        if (!b->used && b->bytes >= bytes)
            return b;
    block *b = NULL;
    const size_t growth = round_up(bytes, GROWTH);
    if (m->grown + growth > ADDRESSES || !(b = calloc(1, sizeof *b)))
        return NULL;
    *b = (block){.offset = m->grown, .bytes = growth};
    if (mprotect(m->base + m->grown, growth, PROT_READ | PROT_WRITE)) {
        free(b);
        return NULL;
    }
    memset(m->base + m->grown, 0xff, growth);
    mprotect(m->base + m->grown, growth, PROT_NONE);
    forbid_access(m->base + m->grown, growth);
    m->grown += growth;
    if (last)
        last->next = b;
    else
        m->blocks = b;
    return b;
}

cudaError_t weft_emulate_alloc(int device_index, size_t bytes, void **out)
{
    const size_t block_bytes = round_up(bytes, ALIGNMENT) + REDZONE;
    pthread_once(&once, start);
    pthread_mutex_lock(&lock);
    struct memory *m = &memories[device_index];
    block *b = bytes <= USABLE - m->used ? find_free(m, block_bytes) : NULL;
    block *rest = b && b->bytes > block_bytes ? calloc(1, sizeof *rest) : NULL;
    if (rest) {
        *rest = (block){
            .next = b->next, .offset = b->offset + block_bytes, .bytes = b->bytes - block_bytes};
        b->next = rest;
        b->bytes = block_bytes;
    }
    if (b) {
        b->used = true;
        b->used_bytes = bytes;
        m->used += bytes;
        allow_access(m->base + b->offset, bytes);
        *out = m->base + b->offset;
    }
    pthread_mutex_unlock(&lock);
    return b ? cudaSuccess : cudaErrorMemoryAllocation;
}

/* Joins what follows, while it is free. */
static void join(block *b)
{
    while (b->next && !b->next->used) {
        block *next = b->next;
        b->bytes += next->bytes;
        b->next = next->next;
        free(next);
    }
}

typedef struct fill {
    unsigned char *memory;
    size_t used_bytes, bytes;
} fill;

static void run_fill(void *argument)
{
    const fill *f = argument;
    memset(f->memory, 0xff, f->used_bytes);
    forbid_access(f->memory, f->bytes);
}

cudaError_t weft_emulate_free(void *memory)
{
    int d = -1;
    pthread_mutex_lock(&lock);
    block *b = find_block(memory, &d);
    struct memory *m = d < 0 ? NULL : &memories[d];
    if (!b || !b->used || b->leaving || memory != m->base + b->offset) {
        pthread_mutex_unlock(&lock);
        return cudaErrorInvalidValue;
    }
    b->leaving = true;
    pthread_mutex_unlock(&lock);
    fill request = {m->base + b->offset, b->used_bytes, b->bytes};
    weft_emulate_on_device(run_fill, &request);
    pthread_mutex_lock(&lock);
    b->used = b->leaving = false;
    m->used -= b->used_bytes;
    for (b = m->blocks; b; b = b->next)
        if (!b->used)
            join(b);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

weft_emulate_kind weft_emulate_find(const void *memory, int *out_device)
{
    int d = -1;
    pthread_once(&once, start);
    pthread_mutex_lock(&lock);
    find_block(memory, &d);
    weft_emulate_kind kind = d >= 0 ? WEFT_EMULATE_DEVICE : WEFT_EMULATE_PAGEABLE;
    for (const pinned *p = pinned_blocks; p && d < 0; p = p->next)
        if ((uintptr_t)memory - (uintptr_t)p->memory < p->bytes) {
            kind = WEFT_EMULATE_PINNED;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (out_device)
        *out_device = d >= 0 ? d : 0;
    return kind;
}

static cudaError_t add_pinned(void *memory, size_t bytes, bool registered)
{
    pinned *p = malloc(sizeof *p);
    if (!p)
        return cudaErrorMemoryAllocation;
    pthread_once(&once, start);
    pthread_mutex_lock(&lock);
    *p =
        (pinned){.next = pinned_blocks, .memory = memory, .bytes = bytes, .registered = registered};
    pinned_blocks = p;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static cudaError_t remove_pinned(void *memory, bool registered)
{
    pinned *found = NULL;
    pthread_mutex_lock(&lock);
    for (pinned **p = &pinned_blocks; *p; p = &(*p)->next)
        if ((*p)->memory == memory && (*p)->registered == registered) {
            found = *p;
            *p = found->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    free(found);
    return found ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    weft_emulate_enter();
    (void)flags;
    if (!weft_emulate_num_devices())
        return weft_emulate_error(cudaErrorNoDevice);
    *out = NULL;
    if (weft_emulate_spoils_capture())
        return weft_emulate_error(cudaErrorStreamCaptureUnsupported);
    if (!bytes)
        return cudaSuccess;
    if (getenv("WEFT_EMULATE_PINNING_WAITS")) /* as older drivers do */
        weft_emulate_drain(weft_emulate_device());
    void *memory = aligned_alloc(4096, round_up(bytes, 4096));
    cudaError_t error = memory ? add_pinned(memory, bytes, false) : cudaErrorMemoryAllocation;
    if (error) {
        free(memory);
        return weft_emulate_error(error);
    }
    memset(memory, 0xff, bytes);
    forbid_access((unsigned char *)memory + bytes, round_up(bytes, 4096) - bytes);
    *out = memory;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    if (!memory)
        return cudaSuccess;
    const cudaError_t error = cudaDeviceSynchronize();
    if (error)
        return error;
    if (remove_pinned(memory, false))
        return weft_emulate_error(cudaErrorInvalidValue);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    (void)flags;
    return weft_emulate_error(memory && bytes ? add_pinned(memory, bytes, true)
                                              : cudaErrorInvalidValue);
}

cudaError_t cudaHostUnregister(void *memory)
{
    return weft_emulate_error(remove_pinned(memory, true) ? cudaErrorHostMemoryNotRegistered
                                                          : cudaSuccess);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *memory, unsigned flags)
{
    (void)flags;
    if (weft_emulate_find(memory, NULL) != WEFT_EMULATE_PINNED)
        return weft_emulate_error(cudaErrorInvalidValue);
    *out = memory;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *memory)
{
    weft_emulate_enter();
    static const enum cudaMemoryType types[] = {[WEFT_EMULATE_PAGEABLE] =
                                                    cudaMemoryTypeUnregistered,
                                                [WEFT_EMULATE_PINNED] = cudaMemoryTypeHost,
                                                [WEFT_EMULATE_DEVICE] = cudaMemoryTypeDevice};
    int d = 0;
    if (!weft_emulate_num_devices())
        return weft_emulate_error(cudaErrorNoDevice);
    const weft_emulate_kind kind = weft_emulate_find(memory, &d);
    void *address = (void *)(uintptr_t)memory;
    *out = (struct cudaPointerAttributes){
        .type = types[kind],
        .device = kind == WEFT_EMULATE_PAGEABLE ? -1 : d,
        .devicePointer = kind == WEFT_EMULATE_PAGEABLE ? NULL : address,
        .hostPointer = kind == WEFT_EMULATE_DEVICE ? NULL : address};
    return cudaSuccess;
}
