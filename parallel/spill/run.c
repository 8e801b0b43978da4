/* A batch: its transfers cut in pieces, the pieces under way, hashes in the pieces' order. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <xxhash.h>

#include "core/clock.h"
#include "parallel/spill/internal.h"

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
