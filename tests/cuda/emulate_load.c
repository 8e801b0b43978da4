/* What the driver does between calls. Loading kernels: at the first launch, unless
 * CUDA_MODULE_LOADING was EAGER when the program first came to CUDA. The thread that loads waits
 * until all streams of the device are idle, and keeps every other thread out of the driver
 * meanwhile. */
#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emulate_runtime.h"

static pthread_rwlock_t door = PTHREAD_RWLOCK_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *loaded; /* a tree of keys */
static bool is_eager;
static atomic_int broken;

static void read_mode(void)
{
    const char *mode = getenv("CUDA_MODULE_LOADING");
    is_eager = mode && !strcmp(mode, "EAGER");
}

void weft_emulate_enter(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_mode);
    pthread_rwlock_rdlock(&door);
    pthread_rwlock_unlock(&door);
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* True the first time. */
static bool is_new(uint64_t key)
{
    uint64_t *kept = malloc(sizeof *kept);
    if (!kept)
        return false;
    *kept = key;
    pthread_mutex_lock(&lock);
    uint64_t *const *found = tsearch(kept, &loaded, compare);
    const bool first = found && *found == kept;
    pthread_mutex_unlock(&lock);
    if (!first)
        free(kept);
    return first;
}

void weft_emulate_load(uint64_t key, bool by_library)
{
    weft_emulate_enter();
    if ((is_eager && !by_library) || !is_new(key))
        return;
    pthread_rwlock_wrlock(&door);
    weft_emulate_drain(weft_emulate_device());
    pthread_rwlock_unlock(&door);
}

void weft_emulate_break(cudaError_t error)
{
    atomic_store(&broken, (int)error);
}

cudaError_t weft_emulate_broken(void)
{
    return (cudaError_t)atomic_load(&broken);
}
