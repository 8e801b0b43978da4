/* The ring of the latest operations, which names a hang, and the totals. */
#include <pthread.h>
#include <string.h>

#include "comm/comm_ops.h"
#include "core/clock.h"

enum { MAX_HELD = 64 };

/* One that was in flight when its place in the ring was needed. */
typedef struct held_record {
    bool used;
    uint64_t ticket;
    weft_comm_record record;
} held_record;

static struct {
    pthread_mutex_t lock;
    uint64_t num_begun; /* record i sits at i % WEFT_COMM_MAX_RECORDS */
    weft_comm_record ring[WEFT_COMM_MAX_RECORDS];
    held_record held[MAX_HELD];
    double longest_us;
    int64_t step;
    bool has_failed;
    weft_comm_record first_failed;
    uint64_t bytes[WEFT_NUM_PURPOSES], counts[WEFT_NUM_PURPOSES];
} records = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool in_flight(const weft_comm_record *record)
{
    return record->kind && record->end_us == 0 && !record->failed;
}

static void hold(uint64_t ticket, const weft_comm_record *record)
{
    for (int i = 0; i < MAX_HELD; i++) {
        held_record *held = &records.held[i];
        if (held->used)
            continue;
        *held = (held_record){.used = true, .ticket = ticket, .record = *record};
        return;
    }
}

uint64_t weft_comm_record_begin(const weft_comm_op *op)
{
    double now_us = weft_now_us();
    const bool message = weft_comm_is_message(op->kind);
    pthread_mutex_lock(&records.lock);
    uint64_t ticket = records.num_begun++;
    weft_comm_record *record = &records.ring[ticket % WEFT_COMM_MAX_RECORDS];
    if (in_flight(record))
        hold(ticket - WEFT_COMM_MAX_RECORDS, record);
    *record = (weft_comm_record){
        .kind = weft_comm_kind_text(op->kind),
        .first_rank = weft_comm_world_rank(op->comm, 0),
        .size = op->comm->size,
        .sequence = op->sequence,
        .bytes = op->bytes,
        .dtype = op->dtype,
        .peer = op->peer,
        .from = op->kind == WEFT_COMM_SEND_RECV ? op->from : -1,
        .tag = message ? op->tag : -1,
        .start_us = now_us,
        .step = records.step,
        .doing = op->doing,
        .place = op->place,
    };
    memcpy(record->group, op->comm->name, sizeof record->group);
    if (!message && op->sequence >= atomic_load(&op->comm->num_begun))
        atomic_store(&op->comm->num_begun, op->sequence + 1);
    /* A message is counted where it is sent. */
    if (op->kind != WEFT_COMM_RECV) {
        records.bytes[op->comm->purpose] += op->bytes;
        records.counts[op->comm->purpose]++;
    }
    pthread_mutex_unlock(&records.lock);
    return ticket;
}

/* The record of a ticket, in the ring or held; NULL: it had to go. Under the lock. */
static weft_comm_record *find(uint64_t ticket, held_record **out_held)
{
    *out_held = NULL;
    if (records.num_begun - ticket <= WEFT_COMM_MAX_RECORDS)
        return &records.ring[ticket % WEFT_COMM_MAX_RECORDS];
    for (int i = 0; i < MAX_HELD; i++)
        if (records.held[i].used && records.held[i].ticket == ticket) {
            *out_held = &records.held[i];
            return &records.held[i].record;
        }
    return NULL;
}

static void end(uint64_t ticket, bool failed)
{
    double now_us = weft_now_us();
    held_record *held;
    pthread_mutex_lock(&records.lock);
    weft_comm_record *record = find(ticket, &held);
    if (record && failed) {
        record->failed = true;
        records.first_failed = records.has_failed ? records.first_failed : *record;
        records.has_failed = true;
    } else if (record) {
        record->end_us = now_us;
        double took_us = now_us - record->start_us;
        records.longest_us = took_us > records.longest_us ? took_us : records.longest_us;
    }
    if (held)
        held->used = false;
    pthread_mutex_unlock(&records.lock);
}

void weft_comm_record_end(uint64_t ticket)
{
    end(ticket, false);
}

void weft_comm_record_fail(uint64_t ticket)
{
    end(ticket, true);
}

int weft_comm_records_in_flight(weft_comm_record *out, int capacity)
{
    int count = 0;
    pthread_mutex_lock(&records.lock);
    for (int i = 0; i < MAX_HELD && count < capacity; i++)
        if (records.held[i].used)
            out[count++] = records.held[i].record;
    for (int i = 1; i < count; i++) /* tickets are freed in any order */
        for (int j = i; j > 0 && out[j].start_us < out[j - 1].start_us; j--) {
            weft_comm_record later = out[j - 1];
            out[j - 1] = out[j];
            out[j] = later;
        }
    uint64_t most =
        records.num_begun < WEFT_COMM_MAX_RECORDS ? records.num_begun : WEFT_COMM_MAX_RECORDS;
    for (uint64_t i = records.num_begun - most; i < records.num_begun && count < capacity; i++)
        if (in_flight(&records.ring[i % WEFT_COMM_MAX_RECORDS]))
            out[count++] = records.ring[i % WEFT_COMM_MAX_RECORDS];
    pthread_mutex_unlock(&records.lock);
    return count;
}

bool weft_comm_record_failed(weft_comm_record *out)
{
    pthread_mutex_lock(&records.lock);
    const bool failed = records.has_failed;
    if (failed)
        *out = records.first_failed;
    pthread_mutex_unlock(&records.lock);
    return failed;
}

bool weft_comm_record_find(const weft_comm_record *like, weft_comm_record *out)
{
    bool found = false;
    pthread_mutex_lock(&records.lock);
    const uint64_t least =
        records.num_begun < WEFT_COMM_MAX_RECORDS ? 0 : records.num_begun - WEFT_COMM_MAX_RECORDS;
    for (uint64_t i = records.num_begun; i > least && !found; i--) {
        const weft_comm_record *r = &records.ring[(i - 1) % WEFT_COMM_MAX_RECORDS];
        found = r->tag < 0 && r->sequence == like->sequence && r->first_rank == like->first_rank &&
                r->size == like->size && strcmp(r->group, like->group) == 0;
        if (found)
            *out = *r;
    }
    pthread_mutex_unlock(&records.lock);
    return found;
}

int weft_comm_records_unsent(const weft_doing_place *place)
{
    int count[2] = {0, 0}; /* in the step before, in this */
    bool reaches = false;
    pthread_mutex_lock(&records.lock);
    const uint64_t least =
        records.num_begun < WEFT_COMM_MAX_RECORDS ? 0 : records.num_begun - WEFT_COMM_MAX_RECORDS;
    for (uint64_t i = least; i < records.num_begun; i++) {
        const weft_comm_record *r = &records.ring[i % WEFT_COMM_MAX_RECORDS];
        const int64_t back = place->step - r->place.step;
        reaches = reaches || back > 1;
        if (r->kind == weft_comm_kind_text(WEFT_COMM_SEND) && (back == 0 || back == 1) &&
            r->place.number <= place->number)
            count[1 - back]++;
    }
    pthread_mutex_unlock(&records.lock);
    return reaches && count[0] > count[1] ? count[0] - count[1] : 0;
}

double weft_comm_take_longest(void)
{
    pthread_mutex_lock(&records.lock);
    double longest_us = records.longest_us;
    records.longest_us = 0;
    pthread_mutex_unlock(&records.lock);
    return longest_us;
}

void weft_comm_set_step(int64_t step)
{
    weft_doing_enter_step(step);
    pthread_mutex_lock(&records.lock);
    records.step = step;
    pthread_mutex_unlock(&records.lock);
}

int64_t weft_comm_step(void)
{
    pthread_mutex_lock(&records.lock);
    int64_t step = records.step;
    pthread_mutex_unlock(&records.lock);
    return step;
}

int weft_comm_records(weft_comm_record *out, int capacity)
{
    pthread_mutex_lock(&records.lock);
    uint64_t count = records.num_begun;
    if (count > WEFT_COMM_MAX_RECORDS)
        count = WEFT_COMM_MAX_RECORDS;
    if (count > (uint64_t)(capacity > 0 ? capacity : 0))
        count = (uint64_t)(capacity > 0 ? capacity : 0);
    for (uint64_t i = 0; i < count; i++)
        out[i] = records.ring[(records.num_begun - count + i) % WEFT_COMM_MAX_RECORDS];
    pthread_mutex_unlock(&records.lock);
    return (int)count;
}

void weft_comm_totals(weft_comm_purpose purpose, uint64_t *out_bytes, uint64_t *out_count)
{
    pthread_mutex_lock(&records.lock);
    if (out_bytes)
        *out_bytes = records.bytes[purpose];
    if (out_count)
        *out_count = records.counts[purpose];
    pthread_mutex_unlock(&records.lock);
}
