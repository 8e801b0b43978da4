#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/file.h"
#include "parallel/checkpoint/keeper.h"
#include "parallel/checkpoint/writer_internal.h"

/* --- slots --------------------------------------------------------------------------------- */

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

/* NULL: there is no room. */
static void *slot_room(const weft_slot *slot, uint64_t at, size_t bytes)
{
    const uint64_t room = slot->bytes - WEFT_SLOT_FRONT_BYTES;
    return at <= room && bytes <= room - at ? slot->memory + WEFT_SLOT_FRONT_BYTES + at : NULL;
}

/* The chain of hashes over one more entry. */
static uint64_t slot_hash(uint64_t before, const weft_staging_entry *entry)
{
    const size_t bytes =
        entry->kind == WEFT_WRITER_SLAB ? sizeof(weft_stored_shard) : (size_t)entry->bytes;
    return XXH64(entry + 1, bytes, XXH64(entry, sizeof *entry, before));
}

static uint64_t hash_of(const weft_slot_head *head)
{
    return XXH64(head, offsetof(weft_slot_head, own), 0);
}

/* Fills in what is missing in a head: magic and own hash. */
static void slot_seal(weft_slot_head *head)
{
    head->magic = magic;
    head->own = hash_of(head);
}

static void slot_write_head(weft_slot *slot, const weft_slot_head *head)
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
        hash = slot_hash(hash, entry);
        if (entry->kind != WEFT_WRITER_SLAB)
            continue;
        const weft_stored_shard *shard = (const void *)(entry + 1);
        if (XXH64(shard + 1, (size_t)entry->bytes - sizeof *shard, 0) != shard->hash)
            return false;
    }
    return at == head->bytes && hash == head->hash;
}

enum { BACKLOG = 64 };

typedef struct hello {
    unsigned char token[WEFT_COPY_TOKEN_BYTES];
    int32_t rank, turn;
} hello;

typedef struct held {
    int32_t rank;
    pthread_mutex_t taken; /* by the connection that fills a slot */
    weft_slot slots[WEFT_COPY_SLOTS];
} held;

typedef struct peer {
    weft_copy_end end;
    int fd; /* -1: not connected */
} peer;

struct weft_keeper {
    int listens;
    weft_copy_plan plan;
    peer *peers;
    held *held;
    weft_slot slots[WEFT_COPY_SLOTS]; /* of its own rank */
    int turn;
    weft_slot_head head; /* of the state under way */
};

typedef struct visit {
    weft_keeper *keeper;
    int fd;
} visit;

weft_status weft_copy_path(const char *folder, int rank, int slot, char *out, size_t capacity)
{
    return weft_path_print(out, capacity, "%s/rank-%d.%d", folder, rank, slot);
}

/* --- bytes --------------------------------------------------------------------------------- */

static bool send_all(int fd, const void *bytes, size_t count)
{
    for (const char *at = bytes; count > 0;) {
        const ssize_t sent = send(fd, at, count, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        at += sent;
        count -= (size_t)sent;
    }
    return true;
}

static bool receive_all(int fd, void *bytes, size_t count)
{
    for (char *at = bytes; count > 0;) {
        const ssize_t got = recv(fd, at, count, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got == 0)
            errno = ECONNRESET;
        if (got <= 0)
            return false;
        at += got;
        count -= (size_t)got;
    }
    return true;
}

static void bound_time(int fd)
{
    const struct timeval most = {.tv_sec = WEFT_COPY_TIMEOUT_S};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
}

/* --- what others send ---------------------------------------------------------------------- */

/* Entries until the length of 0; the number of their bytes. */
static bool receive_entries(int fd, const weft_slot *slot, uint64_t *used)
{
    uint64_t bytes;
    for (*used = 0; receive_all(fd, &bytes, sizeof bytes); *used += bytes) {
        if (bytes == 0)
            return true;
        void *room = bytes <= SIZE_MAX ? slot_room(slot, *used, (size_t)bytes) : NULL;
        if (!room || !receive_all(fd, room, (size_t)bytes))
            return false;
    }
    return false;
}

static bool receive_state(int fd, const held *h, weft_slot *slot)
{
    uint64_t used;
    weft_slot_head head, written;
    weft_slot_clear(slot);
    if (!receive_entries(fd, slot, &used) || !receive_all(fd, &head, sizeof head) ||
        head.bytes != used || head.rank != h->rank)
        return false;
    slot_write_head(slot, &head);
    return weft_slot_read_head(slot, &written);
}

static void *take_visit(void *context)
{
    visit v = *(visit *)context;
    const weft_copy_plan *plan = &v.keeper->plan;
    const char good = 1;
    hello said;
    free(context);
    bound_time(v.fd);
    if (receive_all(v.fd, &said, sizeof said) &&
        memcmp(said.token, plan->token, sizeof said.token) == 0 && said.turn >= 0 &&
        said.turn < WEFT_COPY_SLOTS) {
        for (int i = 0; i < plan->num_held; i++) {
            held *h = &v.keeper->held[i];
            if (h->rank != said.rank)
                continue;
            pthread_mutex_lock(&h->taken);
            if (receive_state(v.fd, h, &h->slots[said.turn]))
                send_all(v.fd, &good, sizeof good);
            pthread_mutex_unlock(&h->taken);
        }
    }
    close(v.fd);
    return NULL;
}

/* One that finds no thread is refused, and its sender says so. */
static void begin_visit(weft_keeper *k, int fd)
{
    pthread_t thread;
    visit *v = malloc(sizeof *v);
    if (v) {
        *v = (visit){k, fd};
        if (pthread_create(&thread, NULL, take_visit, v) == 0) {
            pthread_detach(thread);
            return;
        }
    }
    free(v);
    close(fd);
}

static void *listen_on(void *context)
{
    weft_keeper *k = context;
    for (;;) {
        const int fd = accept(k->listens, NULL, NULL);
        if (fd >= 0)
            begin_visit(k, fd);
        else if (errno != EINTR && errno != ECONNABORTED)
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* out of files, for now */
    }
    return NULL;
}

/* --- starting ------------------------------------------------------------------------------ */

weft_status weft_keeper_create(uint32_t address, weft_keeper **out, uint16_t *out_port)
{
    struct sockaddr_in own = {.sin_family = AF_INET,
                              .sin_addr.s_addr = address ? address : htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof own;
    weft_keeper *k = calloc(1, sizeof *k);
    if (!k)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to copy ranks' states");
    k->listens = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (k->listens < 0 || bind(k->listens, (struct sockaddr *)&own, sizeof own) != 0 ||
        listen(k->listens, BACKLOG) != 0 ||
        getsockname(k->listens, (struct sockaddr *)&own, &bytes) != 0) {
        weft_status status =
            WEFT_ERROR(WEFT_COMM, "no socket to copy ranks' states: %s", strerror(errno));
        if (k->listens >= 0)
            close(k->listens);
        free(k);
        return status;
    }
    *out = k;
    *out_port = own.sin_port;
    return WEFT_OK;
}

static weft_status open_slots(const char *folder, int rank, weft_slot *slots)
{
    char path[WEFT_COPY_FOLDER_BYTES + 64];
    for (int i = 0; i < WEFT_COPY_SLOTS; i++) {
        WEFT_TRY(weft_copy_path(folder, rank, i, path, sizeof path));
        WEFT_TRY(weft_slot_open(path, true, &slots[i]));
    }
    return WEFT_OK;
}

weft_status weft_keeper_start(weft_keeper *k, const weft_copy_plan *plan)
{
    const weft_copy_end *ends = (const void *)(plan + 1);
    pthread_t thread;
    k->plan = *plan;
    k->peers = calloc((size_t)plan->num_peers + 1, sizeof *k->peers);
    k->held = calloc((size_t)plan->num_held + 1, sizeof *k->held);
    if (!k->peers || !k->held)
        return WEFT_ERROR(WEFT_MEMORY, "no memory to copy ranks' states");
    for (int i = 0; i < plan->num_peers; i++)
        k->peers[i] = (peer){ends[i], -1};
    WEFT_TRY(open_slots(k->plan.folder, plan->rank, k->slots));
    for (int i = 0; i < plan->num_held; i++) {
        k->held[i].rank = ends[plan->num_peers + i].rank;
        pthread_mutex_init(&k->held[i].taken, NULL);
        WEFT_TRY(open_slots(k->plan.folder, k->held[i].rank, k->held[i].slots));
    }
    if (pthread_create(&thread, NULL, listen_on, k) != 0)
        return WEFT_ERROR(WEFT_MEMORY, "no thread to copy ranks' states");
    pthread_detach(thread);
    return WEFT_OK;
}

/* --- what it sends ------------------------------------------------------------------------- */

static weft_status lost(const weft_keeper *k, const peer *p)
{
    return WEFT_ERROR(WEFT_FILE, "the copy of rank %d's state on rank %d's node: %s", k->plan.rank,
                      p->end.rank, errno == EAGAIN ? "no answer" : strerror(errno));
}

static weft_status connect_to(const weft_keeper *k, peer *p)
{
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = p->end.port,
                                   .sin_addr.s_addr =
                                       p->end.address ? p->end.address : htonl(INADDR_LOOPBACK)};
    hello said = {.rank = k->plan.rank, .turn = k->turn};
    memcpy(said.token, k->plan.token, sizeof said.token);
    p->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (p->fd >= 0)
        bound_time(p->fd);
    if (p->fd < 0 || connect(p->fd, (const struct sockaddr *)&to, sizeof to) != 0 ||
        !send_all(p->fd, &said, sizeof said))
        return lost(k, p);
    return WEFT_OK;
}

weft_status weft_keeper_begin(weft_keeper *k, const weft_checkpoint_info *info, int turn)
{
    k->turn = turn;
    memset(&k->head, 0, sizeof k->head);
    k->head.rank = k->plan.rank;
    k->head.world = k->plan.world;
    k->head.info = *info;
    weft_slot_clear(&k->slots[turn]);
    for (int i = 0; i < k->plan.num_peers; i++)
        WEFT_TRY(connect_to(k, &k->peers[i]));
    return WEFT_OK;
}

weft_status weft_keeper_put(weft_keeper *k, const weft_staging_entry *entry)
{
    const uint64_t bytes = weft_staging_entry_bytes((size_t)entry->bytes);
    void *room = slot_room(&k->slots[k->turn], k->head.bytes, (size_t)bytes);
    if (!room)
        return WEFT_ERROR(WEFT_MEMORY, "the copy of rank %d's state outgrew its room",
                          k->plan.rank);
    memcpy(room, entry, (size_t)bytes);
    k->head.hash = slot_hash(k->head.hash, entry);
    k->head.bytes += bytes;
    for (int i = 0; i < k->plan.num_peers; i++) {
        const peer *p = &k->peers[i];
        if (!send_all(p->fd, &bytes, sizeof bytes) || !send_all(p->fd, room, (size_t)bytes))
            return lost(k, p);
    }
    return WEFT_OK;
}

weft_status weft_keeper_end(weft_keeper *k)
{
    const uint64_t none = 0;
    char good;
    slot_seal(&k->head);
    for (int i = 0; i < k->plan.num_peers; i++) {
        const peer *p = &k->peers[i];
        if (!send_all(p->fd, &none, sizeof none) || !send_all(p->fd, &k->head, sizeof k->head))
            return lost(k, p);
    }
    for (int i = 0; i < k->plan.num_peers; i++)
        if (!receive_all(k->peers[i].fd, &good, sizeof good))
            return lost(k, &k->peers[i]);
    slot_write_head(&k->slots[k->turn], &k->head);
    weft_keeper_drop(k);
    return WEFT_OK;
}

void weft_keeper_drop(weft_keeper *k)
{
    for (int i = 0; k && i < k->plan.num_peers; i++) {
        if (k->peers[i].fd >= 0)
            close(k->peers[i].fd);
        k->peers[i].fd = -1;
    }
}
