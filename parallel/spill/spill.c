#include "parallel/spill/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/clock.h"
#include "core/log.h"
#include "parallel/spill/internal.h"

enum { DEFAULT_DEPTH = 16, MAX_DEPTH = 1024, DEFAULT_CALLERS = 2 };
static const size_t default_piece = (size_t)1 << 20, max_piece = (size_t)1 << 30;

const char *weft_spill_io_text(weft_spill_io io)
{
    static const char *const texts[] = {"auto", "uring", "threads"};
    return texts[io];
}

/* --- sizes --------------------------------------------------------------------------------- */

static weft_status check_options(const weft_spill_options *o)
{
    bool good = o->folder && o->num_parts >= 1 && o->num_parts <= WEFT_SPILL_MAX_PARTS &&
                o->num_records >= 1 && o->queue_depth >= 0 && o->queue_depth <= MAX_DEPTH &&
                o->num_callers >= 0 && o->num_callers <= WEFT_SPILL_MAX_CALLERS &&
                o->piece_bytes % WEFT_SPILL_ALIGN == 0 && o->piece_bytes <= max_piece;
    for (int p = 0; good && p < o->num_parts; p++)
        good = o->parts[p].bytes > 0;
    return good ? WEFT_OK : WEFT_ERROR(WEFT_INTERNAL, "a spill file's options are out of range");
}

weft_status weft_spill_file_bytes(const weft_spill_options *options, uint64_t *out)
{
    uint64_t record = 0;
    WEFT_TRY(check_options(options));
    bool fits = true;
    for (int p = 0; p < options->num_parts && fits; p++) {
        fits = options->parts[p].bytes <= INT64_MAX / (2 * WEFT_SPILL_MAX_PARTS);
        record += fits ? weft_spill_padded_bytes(options->parts[p].bytes) : 0;
    }
    if (!fits || record > (uint64_t)INT64_MAX / options->num_records)
        return WEFT_ERROR(WEFT_CONFIG, "%s: no file holds %zu records of that size",
                          options->folder, options->num_records);
    *out = record * options->num_records;
    return WEFT_OK;
}

/* --- the file ------------------------------------------------------------------------------ */

static int failed(int fault)
{
    errno = fault;
    return -1;
}

/* A file system without files that never had a name gets one that loses it at once. */
static int open_named(const char *folder, int flags)
{
    char path[4096];
    int used = snprintf(path, sizeof path, "%s/.weft-spill-XXXXXX", folder);
    if (used < 0 || (size_t)used >= sizeof path)
        return failed(ENAMETOOLONG);
    int fault = weft_spill_next_fault();
    int fd = fault > 0 ? failed(fault) : mkostemp(path, flags);
    if (fd >= 0 && unlink(path) != 0) {
        int reason = errno;
        close(fd);
        return failed(reason);
    }
    return fd;
}

static int open_unnamed(const char *folder, int flags)
{
    int fault = weft_spill_next_fault();
    int fd = fault > 0 ? failed(fault)
                       : open(folder, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC | flags, 0600);
    /* As open(2) has it: the file system cannot, or the kernel does not know the flag. */
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR))
        fd = open_named(folder, O_CLOEXEC | flags);
    return fd;
}

static weft_status cannot_make(const char *folder, int error)
{
    return WEFT_ERROR(WEFT_FILE, "%s: cannot make the experts' file: %s", folder, strerror(error));
}

weft_status weft_spill_try(const char *folder)
{
    const int fd = open_unnamed(folder, 0);
    if (fd < 0)
        return cannot_make(folder, errno);
    close(fd);
    return WEFT_OK;
}

/* O_DIRECT may be refused when the file is opened, or by the first read or write. 0 or an errno. */
static int try_write(int fd)
{
    _Alignas(WEFT_SPILL_ALIGN) static const char zeros[WEFT_SPILL_ALIGN];
    int fault = weft_spill_next_fault();
    ssize_t moved = fault > 0 ? failed(fault) : pwrite(fd, zeros, sizeof zeros, 0);
    return moved < 0 ? errno : moved < (ssize_t)sizeof zeros ? ENOSPC : 0;
}

static uint64_t free_bytes(int fd)
{
    struct statvfs info;
    return fstatvfs(fd, &info) == 0 ? (uint64_t)info.f_bavail * info.f_frsize : UINT64_MAX;
}

/* What does not fit is not tried, so that nobody else's disk fills up meanwhile. */
static weft_status allocate(weft_spill *s)
{
    uint64_t bytes, room = free_bytes(s->fd);
    WEFT_TRY(weft_spill_file_bytes(&s->options, &bytes));
    int error = bytes <= room ? EINTR : ENOSPC;
    while (error == EINTR) {
        int fault = weft_spill_next_fault();
        error = fault > 0 ? fault : posix_fallocate(s->fd, 0, (off_t)bytes);
    }
    if (!error)
        return WEFT_OK;
    int cut = ftruncate(s->fd, 0); /* so that the bytes free are those before */
    room = cut == 0 ? free_bytes(s->fd) : room;
    return WEFT_ERROR(WEFT_FILE,
                      "%s: no room for the experts' file: %" PRIu64 " bytes wanted, %" PRIu64
                      " free: %s",
                      s->options.folder, bytes, room, strerror(error));
}

/* Room first: a full disk is told as such. *refused: O_DIRECT is. */
static weft_status make_file(weft_spill *s, int flags, bool *refused)
{
    const char *folder = s->options.folder;
    s->fd = open_unnamed(folder, flags);
    int error = s->fd < 0 ? errno : 0;
    if (!error) {
        WEFT_TRY(allocate(s));
        error = try_write(s->fd);
    }
    *refused = error == EINVAL && flags;
    if (error && !*refused)
        return cannot_make(folder, error);
    if (error && s->fd >= 0) {
        close(s->fd);
        s->fd = -1;
    }
    return WEFT_OK;
}

static weft_status open_file(weft_spill *s)
{
    bool refused;
    s->is_direct = !s->options.buffered;
    WEFT_TRY(make_file(s, s->is_direct ? O_DIRECT : 0, &refused));
    if (!refused)
        return WEFT_OK;
    weft_log(WEFT_LOG_WARN,
             "%s: no O_DIRECT there (%s): the experts' file takes memory as page cache",
             s->options.folder, strerror(EINVAL));
    s->is_direct = false;
    return make_file(s, 0, &refused);
}

/* --- create -------------------------------------------------------------------------------- */

static weft_status open_backend(weft_spill *s, const weft_spill_ops *ops,
                                char why[WEFT_SPILL_WHY_BYTES])
{
    WEFT_TRY(ops->open(s->fd, s->options.num_callers, s->options.queue_depth, &s->arena, why,
                       &s->backend));
    s->ops = ops;
    return WEFT_OK;
}

static weft_status choose_backend(weft_spill *s)
{
    char why[WEFT_SPILL_WHY_BYTES];
    const char *folder = s->options.folder;
    if (s->options.io != WEFT_SPILL_THREADS) {
        weft_status status = open_backend(s, &weft_spill_uring, why);
        if (status == WEFT_OK || status == WEFT_MEMORY)
            return status;
        if (s->options.io == WEFT_SPILL_URING)
            return WEFT_ERROR(WEFT_CONFIG, "%s: the experts' file cannot use %s", folder, why);
        weft_error_clear();
        weft_log(WEFT_LOG_WARN, "%s: the experts' file is read and written by threads: no %s",
                 folder, why);
    }
    weft_status status = open_backend(s, &weft_spill_threads, why);
    if (status == WEFT_OK || status == WEFT_MEMORY)
        return status;
    return WEFT_ERROR(WEFT_DEVICE, "%s: the experts' file: %s", folder, why);
}

static weft_status init(weft_spill *s)
{
    weft_spill_options *o = &s->options;
    uint64_t bytes;
    void *memory;
    WEFT_TRY(weft_spill_file_bytes(o, &bytes));
    s->record_bytes = bytes / o->num_records;
    for (int p = 0; p + 1 < o->num_parts; p++)
        s->part_offset[p + 1] = s->part_offset[p] + weft_spill_padded_bytes(o->parts[p].bytes);
    o->piece_bytes = o->piece_bytes ? o->piece_bytes : default_piece;
    o->queue_depth = o->queue_depth ? o->queue_depth : DEFAULT_DEPTH;
    o->num_callers = o->num_callers ? o->num_callers : DEFAULT_CALLERS;

    WEFT_TRY(open_file(s)); /* first: a wrong folder or a full disk is the likely fault */
    WEFT_TRY(weft_arena_alloc_array(&s->arena, o->num_records,
                                    (size_t)o->num_parts * sizeof *s->record_parts,
                                    &s->record_parts));
    for (int i = 0; i < o->num_callers; i++) {
        WEFT_TRY(weft_arena_alloc_array(&s->arena, 2 * (size_t)o->queue_depth,
                                        sizeof(weft_spill_piece), &memory));
        s->callers[i].pieces = memory;
        s->callers[i].hash = weft_alloc_should_fail() ? NULL : XXH64_createState();
        if (!s->callers[i].hash)
            return WEFT_ERROR(WEFT_MEMORY, "out of host memory: the experts' file's hashes");
    }
    return choose_backend(s);
}

weft_status weft_spill_create(const weft_spill_options *options, weft_spill **out)
{
    WEFT_TRY(check_options(options));
    weft_spill *s = weft_alloc_should_fail() ? NULL : calloc(1, sizeof *s);
    if (!s)
        return WEFT_ERROR(WEFT_MEMORY, "out of host memory: the experts' file");
    s->options = *options;
    s->fd = -1;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->is_free, NULL);
    weft_status status = init(s);
    if (status != WEFT_OK) {
        weft_spill_destroy(s);
        return status;
    }
    *out = s;
    return WEFT_OK;
}

void weft_spill_destroy(weft_spill *s)
{
    if (!s)
        return;
    if (s->ops)
        s->ops->close(s->backend);
    if (s->fd >= 0)
        close(s->fd);
    for (int i = 0; i < WEFT_SPILL_MAX_CALLERS; i++)
        XXH64_freeState(s->callers[i].hash);
    weft_arena_release(&s->arena);
    pthread_cond_destroy(&s->is_free);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

/* --- what it is and did -------------------------------------------------------------------- */

void weft_spill_get_stats(weft_spill *s, weft_spill_stats *out)
{
    pthread_mutex_lock(&s->mutex);
    *out = s->stats;
    pthread_mutex_unlock(&s->mutex);
}

weft_spill_io weft_spill_io_used(const weft_spill *s)
{
    return s->ops == &weft_spill_uring ? WEFT_SPILL_URING : WEFT_SPILL_THREADS;
}

bool weft_spill_is_direct(const weft_spill *s)
{
    return s->is_direct;
}

/* A batch: its transfers cut in pieces, the pieces under way, hashes in the pieces' order. */

/* Requests that the system wants repeated (EAGAIN), a millisecond apart, before that is an error.
 */
enum { MAX_TRIES = 2000, SECTOR = 512 };

typedef struct batch {
    weft_spill *spill;
    weft_spill_caller *caller;
    const weft_spill_transfer *transfers;
    int queue, num_transfers;
    int transfer; /* the next piece's */
    size_t part_offset;
    uint64_t first, hashed, next; /* pieces in the ring: oldest, next to hash, next to come */
    int under_way;
    double began_us[2], ended_us[2]; /* reads, writes */
    weft_spill_stats stats;
    weft_status status; /* the first error; its record is the thread's */
} batch;

static weft_spill_piece *piece_at(const batch *b, uint64_t n)
{
    return &b->caller->pieces[n % (2 * (uint64_t)b->spill->options.queue_depth)];
}

static weft_spill_record_part *record_part(const weft_spill *s, const weft_spill_transfer *t)
{
    return &s->record_parts[t->record * (size_t)s->options.num_parts + (size_t)t->part];
}

static uint64_t part_start(const weft_spill *s, const weft_spill_transfer *t)
{
    return t->record * s->record_bytes + s->part_offset[t->part];
}

/* "layer 3, expert 17: weights" */
enum { NAME_BYTES = 160 };
static const char *name_of(const weft_spill *s, const weft_spill_transfer *t, char out[NAME_BYTES])
{
    if (s->options.labels)
        snprintf(out, NAME_BYTES, "%s: %s", s->options.labels[t->record],
                 s->options.parts[t->part].name);
    else
        snprintf(out, NAME_BYTES, "record %zu: %s", t->record, s->options.parts[t->part].name);
    return out;
}

/* --- faults -------------------------------------------------------------------------------- */

static weft_status cannot(const batch *b, const weft_spill_piece *piece, int error)
{
    char name[NAME_BYTES];
    return WEFT_ERROR(WEFT_FILE, "%s: cannot %s at byte %" PRIu64 " of the experts' file in %s: %s",
                      name_of(b->spill, &b->transfers[piece->transfer], name),
                      piece->is_write ? "write" : "read", piece->offset + piece->done,
                      b->spill->options.folder, strerror(error));
}

static weft_status cut_short(const batch *b, const weft_spill_piece *piece)
{
    char name[NAME_BYTES];
    return WEFT_ERROR(WEFT_FILE,
                      "%s: cannot read at byte %" PRIu64 " of the experts' file in %s: it was cut "
                      "short and ends before byte %" PRIu64,
                      name_of(b->spill, &b->transfers[piece->transfer], name), piece->offset,
                      b->spill->options.folder, piece->offset + piece->bytes);
}

static weft_status damaged(const batch *b, const weft_spill_transfer *t, uint64_t hash)
{
    char name[NAME_BYTES];
    return WEFT_ERROR(WEFT_FILE,
                      "%s: damaged: %zu bytes at byte %" PRIu64 " of the experts' file in %s have "
                      "xxh64 %016" PRIx64 ", were written with %016" PRIx64,
                      name_of(b->spill, t, name), b->spill->options.parts[t->part].bytes,
                      part_start(b->spill, t), b->spill->options.folder, hash,
                      record_part(b->spill, t)->hash);
}

/* --- pieces -------------------------------------------------------------------------------- */

/* As much as the fault for tests leaves of the request. */
static size_t shorter(const weft_spill *s, size_t asked)
{
    if (!s->is_direct)
        return asked > 1 ? (asked / 2) | 1 : asked;
    return asked > WEFT_SPILL_ALIGN ? asked / 2 / WEFT_SPILL_ALIGN * WEFT_SPILL_ALIGN : asked;
}

/* Asks for what the piece still lacks. */
static void submit(batch *b, weft_spill_piece *piece)
{
    int fault = weft_spill_next_fault();
    piece->asked = piece->bytes - piece->done;
    if (fault == WEFT_SPILL_FAULT_SHORT)
        piece->asked = shorter(b->spill, piece->asked);
    piece->flips = fault == WEFT_SPILL_FAULT_FLIP && !piece->is_write;
    piece->fault = fault > 0 ? fault : 0;
    if (b->began_us[piece->is_write] == 0)
        b->began_us[piece->is_write] = weft_now_us();
    if (piece->is_write)
        b->stats.num_writes++;
    else
        b->stats.num_reads++;
    b->spill->ops->submit(b->spill->backend, b->queue, piece);
    b->under_way++;
}

/* Takes pieces up to the depth while the ring has room. */
static void take_pieces(batch *b)
{
    const weft_spill_options *o = &b->spill->options;
    while (b->status == WEFT_OK && b->transfer < b->num_transfers &&
           b->under_way < o->queue_depth && b->next - b->first < 2 * (uint64_t)o->queue_depth) {
        const weft_spill_transfer *t = &b->transfers[b->transfer];
        size_t bytes = weft_spill_padded_bytes(o->parts[t->part].bytes) - b->part_offset;
        bytes = bytes < o->piece_bytes ? bytes : o->piece_bytes;
        weft_spill_piece *piece = piece_at(b, b->next++);
        *piece = (weft_spill_piece){
            .memory = (char *)t->memory + b->part_offset,
            .offset = part_start(b->spill, t) + b->part_offset,
            .bytes = bytes,
            .transfer = b->transfer,
            .part_offset = b->part_offset,
            .is_write = t->is_write,
        };
        submit(b, piece);
        b->part_offset += bytes;
        if (b->part_offset >= o->parts[t->part].bytes) {
            b->part_offset = 0;
            b->transfer++;
        }
    }
}

static bool is_tried_again(weft_spill_piece *piece)
{
    if (piece->result == -EINTR)
        return true;
    if (piece->result != -EAGAIN || ++piece->num_tries > MAX_TRIES)
        return false;
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return true;
}

/* A request is over: goes on with the piece, or is done with it. */
static void over(batch *b, weft_spill_piece *piece)
{
    b->under_way--;
    b->ended_us[piece->is_write] = weft_now_us();
    int64_t moved = piece->result;
    if (moved > 0) {
        if (piece->flips)
            piece->memory[piece->done] ^= 1;
        piece->done += (size_t)moved;
        *(piece->is_write ? &b->stats.bytes_written : &b->stats.bytes_read) += (uint64_t)moved;
    }
    /* Part of a sector is the end of a file. */
    bool ended = moved == 0 || (moved > 0 && piece->done < piece->bytes && b->spill->is_direct &&
                                moved % SECTOR != 0);
    if (b->status == WEFT_OK && ended)
        b->status = piece->is_write ? cannot(b, piece, ENOSPC) : cut_short(b, piece);
    else if (b->status == WEFT_OK && moved < 0 && !is_tried_again(piece))
        b->status = cannot(b, piece, (int)-moved);
    if (b->status == WEFT_OK && piece->done < piece->bytes)
        submit(b, piece);
    else
        piece->is_done = true;
}

/* What is written is there to be hashed while it is under way; what is read when it has come. */
static bool can_hash(const batch *b)
{
    return b->hashed < b->next &&
           (piece_at(b, b->hashed)->is_write || piece_at(b, b->hashed)->is_done);
}

/* Hashes the next piece; with a transfer's last one, keeps the hash or compares. */
static void hash_piece(batch *b)
{
    const weft_spill_piece *piece = piece_at(b, b->hashed++);
    const weft_spill_transfer *t = &b->transfers[piece->transfer];
    if (b->status != WEFT_OK)
        return;
    size_t left = b->spill->options.parts[t->part].bytes - piece->part_offset;
    if (piece->part_offset == 0)
        XXH64_reset(b->caller->hash, 0);
    XXH64_update(b->caller->hash, piece->memory, left < piece->bytes ? left : piece->bytes);
    if (left > piece->bytes)
        return;
    uint64_t hash = XXH64_digest(b->caller->hash);
    if (t->is_write)
        record_part(b->spill, t)->hash = hash;
    else if (hash != record_part(b->spill, t)->hash)
        b->status = damaged(b, t, hash);
}

/* Frees the places of pieces that are over and hashed, oldest first. */
static void retire(batch *b)
{
    for (; b->first < b->hashed && piece_at(b, b->first)->is_done; b->first++) {
        const weft_spill_piece *piece = piece_at(b, b->first);
        const weft_spill_transfer *t = &b->transfers[piece->transfer];
        size_t end = piece->part_offset + piece->bytes;
        if (b->status == WEFT_OK && t->is_write && end >= b->spill->options.parts[t->part].bytes)
            record_part(b->spill, t)->is_written = true;
    }
}

/* After an error it waits for what is under way and takes no more. */
static void run(batch *b)
{
    const weft_spill *s = b->spill;
    for (;;) {
        weft_spill_piece *piece;
        take_pieces(b);
        int broken = s->ops->start(s->backend, b->queue);
        if (!broken && can_hash(b)) {
            hash_piece(b);
            retire(b);
            continue;
        }
        if (!broken && b->under_way == 0)
            return;
        if (!broken)
            broken = s->ops->wait(s->backend, b->queue, &piece);
        if (broken) {
            b->status =
                WEFT_ERROR(WEFT_DEVICE, "the experts' file in %s: %s failed: %s", s->options.folder,
                           weft_spill_io_text(weft_spill_io_used(s)), strerror(broken));
            return;
        }
        over(b, piece);
        retire(b);
    }
}

/* --- a batch ------------------------------------------------------------------------------- */

static weft_status check(const weft_spill *s, const weft_spill_transfer *transfers,
                         int num_transfers)
{
    char name[NAME_BYTES];
    for (int i = 0; i < num_transfers; i++) {
        const weft_spill_transfer *t = &transfers[i];
        if (t->record >= s->options.num_records || t->part < 0 || t->part >= s->options.num_parts)
            return WEFT_ERROR(WEFT_INTERNAL, "the experts' file in %s has no record %zu, part %d",
                              s->options.folder, t->record, t->part);
        if (!t->memory || (uintptr_t)t->memory % WEFT_SPILL_ALIGN)
            return WEFT_ERROR(WEFT_INTERNAL, "%s: memory is not at a multiple of %d bytes",
                              name_of(s, t, name), WEFT_SPILL_ALIGN);
        if (!t->is_write && !record_part(s, t)->is_written)
            return WEFT_ERROR(WEFT_INTERNAL, "%s: read from the experts' file, never written",
                              name_of(s, t, name));
    }
    return WEFT_OK;
}

static int take_caller(weft_spill *s)
{
    int free = -1;
    pthread_mutex_lock(&s->mutex);
    while (free < 0) {
        for (int i = 0; i < s->options.num_callers && free < 0; i++)
            free = s->callers[i].is_busy ? -1 : i;
        if (free < 0)
            pthread_cond_wait(&s->is_free, &s->mutex);
    }
    s->callers[free].is_busy = true;
    pthread_mutex_unlock(&s->mutex);
    return free;
}

static void give_back(const batch *b)
{
    weft_spill *s = b->spill;
    pthread_mutex_lock(&s->mutex);
    s->stats.bytes_read += b->stats.bytes_read;
    s->stats.bytes_written += b->stats.bytes_written;
    s->stats.num_reads += b->stats.num_reads;
    s->stats.num_writes += b->stats.num_writes;
    s->stats.read_us += b->ended_us[0] - b->began_us[0];
    s->stats.write_us += b->ended_us[1] - b->began_us[1];
    b->caller->is_busy = false;
    pthread_cond_signal(&s->is_free);
    pthread_mutex_unlock(&s->mutex);
}

weft_status weft_spill_run(weft_spill *s, const weft_spill_transfer *transfers, int num_transfers)
{
    WEFT_TRY(check(s, transfers, num_transfers));
    for (int i = 0; i < num_transfers; i++)
        if (transfers[i].is_write)
            record_part(s, &transfers[i])->is_written = false;
    batch b = {.spill = s, .queue = take_caller(s)};
    b.caller = &s->callers[b.queue];
    b.transfers = transfers;
    b.num_transfers = num_transfers;
    run(&b);
    give_back(&b);
    return b.status;
}

int weft_spill_descriptor(const weft_spill *s)
{
    return s->fd;
}
