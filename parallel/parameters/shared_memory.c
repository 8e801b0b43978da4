#include "parallel/parameters/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

weft_status weft_shared_memory_create(size_t bytes, weft_shared_memory *out,
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

weft_status weft_shared_memory_map(const weft_shared_key *key, weft_shared_memory *out)
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
        weft_shared_memory_close(out);
        return WEFT_OK;
    }
    if (status == WEFT_OK)
        weft_shared_memory_release(out);
    else
        close(fd);
    return status != WEFT_OK ? status
                             : WEFT_ERROR(WEFT_MEMORY, "%s is not the other process' memory", path);
}

void weft_shared_memory_close(weft_shared_memory *m)
{
    if (m->fd > 0)
        close(m->fd - 1);
    m->fd = 0;
}

void weft_shared_memory_release(weft_shared_memory *m)
{
    weft_shared_memory_close(m);
    if (m->mapping)
        munmap(m->mapping, m->bytes + HEADER_BYTES);
    *m = (weft_shared_memory){0};
}
