#include "parallel/checkpoint/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "parallel/checkpoint/writer_internal.h"

static const uint64_t magic = 0x31746f6c73746677; /* "wftslot1" */

weft_status weft_slot_create(const char *path, size_t capacity)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot make the file: %s", path, strerror(errno));
    int failed = posix_fallocate(fd, 0, (off_t)(WEFT_SLOT_FRONT_BYTES + capacity));
    close(fd);
    if (failed)
        return WEFT_ERROR(WEFT_MEMORY, "%s: no room for %zu bytes (checkpoint.peer_path): %s", path,
                          WEFT_SLOT_FRONT_BYTES + capacity, strerror(failed));
    return WEFT_OK;
}

static weft_status map(int fd, const char *path, bool writes, weft_slot *out)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < WEFT_SLOT_FRONT_BYTES)
        return WEFT_ERROR(WEFT_FILE, "%s: not a copy of a rank's state", path);
    void *memory = mmap(NULL, (size_t)info.st_size, writes ? PROT_READ | PROT_WRITE : PROT_READ,
                        MAP_SHARED | (writes ? MAP_POPULATE : 0), fd, 0);
    if (memory == MAP_FAILED)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot map it: %s", path, strerror(errno));
    *out = (weft_slot){memory, (size_t)info.st_size};
    return WEFT_OK;
}

weft_status weft_slot_open(const char *path, bool writes, weft_slot *out)
{
    int fd = open(path, (writes ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot open it: %s", path, strerror(errno));
    weft_status status = map(fd, path, writes, out);
    close(fd);
    return status;
}

void weft_slot_release(weft_slot *slot)
{
    if (slot->memory)
        munmap(slot->memory, slot->bytes);
    *slot = (weft_slot){.memory = NULL};
}

/* --- writing ------------------------------------------------------------------------------- */

void weft_slot_clear(weft_slot *slot)
{
    memset(slot->memory, 0, sizeof(weft_slot_head));
}

void *weft_slot_room(const weft_slot *slot, uint64_t at, size_t bytes)
{
    const uint64_t room = slot->bytes - WEFT_SLOT_FRONT_BYTES;
    return at <= room && bytes <= room - at ? slot->memory + WEFT_SLOT_FRONT_BYTES + at : NULL;
}

uint64_t weft_slot_hash(uint64_t before, const weft_staging_entry *entry)
{
    const size_t bytes =
        entry->kind == WEFT_WRITER_SLAB ? sizeof(weft_stored_shard) : (size_t)entry->bytes;
    return XXH64(entry + 1, bytes, XXH64(entry, sizeof *entry, before));
}

static uint64_t hash_of(const weft_slot_head *head)
{
    return XXH64(head, offsetof(weft_slot_head, own), 0);
}

void weft_slot_seal(weft_slot_head *head)
{
    head->magic = magic;
    head->own = hash_of(head);
}

void weft_slot_write_head(weft_slot *slot, const weft_slot_head *head)
{
    memcpy(slot->memory, head, sizeof *head);
}

/* --- reading ------------------------------------------------------------------------------- */

bool weft_slot_read_head(const weft_slot *slot, weft_slot_head *out)
{
    memcpy(out, slot->memory, sizeof *out);
    return out->magic == magic && out->own == hash_of(out) && out->world > 0 &&
           out->world <= INT32_MAX && out->rank >= 0 && out->rank < out->world &&
           out->bytes <= slot->bytes - WEFT_SLOT_FRONT_BYTES;
}

const weft_staging_entry *weft_slot_next(const weft_slot *slot, const weft_slot_head *head,
                                         uint64_t *at)
{
    const weft_staging_entry *entry;
    if (*at >= head->bytes || head->bytes - *at < sizeof *entry)
        return NULL;
    entry = (const void *)(slot->memory + WEFT_SLOT_FRONT_BYTES + *at);
    if (entry->bytes > head->bytes - *at - sizeof *entry ||
        (entry->kind == WEFT_WRITER_SLAB && entry->bytes < sizeof(weft_stored_shard)))
        return NULL;
    *at += weft_staging_entry_bytes((size_t)entry->bytes);
    return entry;
}

bool weft_slot_is_whole(const weft_slot *slot, const weft_slot_head *head)
{
    uint64_t at = 0, hash = 0;
    for (const weft_staging_entry *entry; (entry = weft_slot_next(slot, head, &at));) {
        hash = weft_slot_hash(hash, entry);
        if (entry->kind != WEFT_WRITER_SLAB)
            continue;
        const weft_stored_shard *shard = (const void *)(entry + 1);
        if (XXH64(shard + 1, (size_t)entry->bytes - sizeof *shard, 0) != shard->hash)
            return false;
    }
    return at == head->bytes && hash == head->hash;
}
