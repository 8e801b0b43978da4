/* The ring of the latest operations, which names a hang, and the totals. */
#include <pthread.h>
#include <string.h>

#include "comm/comm_ops.h"
#include "core/clock.h"

static struct {
    pthread_mutex_t lock;
    uint64_t num_begun; /* record i sits at i % WEFT_COMM_MAX_RECORDS */
    weft_comm_record ring[WEFT_COMM_MAX_RECORDS];
    uint64_t bytes[WEFT_NUM_PURPOSES], counts[WEFT_NUM_PURPOSES];
} records = {.lock = PTHREAD_MUTEX_INITIALIZER};

const char *weft_comm_kind_text(weft_comm_kind kind)
{
    static const char *const texts[] = {
#define KIND_TEXT(name, text) text,
        WEFT_COMM_KIND_LIST(KIND_TEXT)
#undef KIND_TEXT
    };
    return texts[kind];
}

uint64_t weft_comm_record_begin(const weft_comm_op *op)
{
    double now_us = weft_now_us();
    pthread_mutex_lock(&records.lock);
    uint64_t ticket = records.num_begun++;
    weft_comm_record *record = &records.ring[ticket % WEFT_COMM_MAX_RECORDS];
    *record = (weft_comm_record){
        .kind = weft_comm_kind_text(op->kind),
        .sequence = op->sequence,
        .bytes = op->bytes,
        .peer = op->peer,
        .start_us = now_us,
    };
    memcpy(record->group, op->comm->name, sizeof record->group);
    /* A message is counted where it is sent. */
    if (op->kind != WEFT_COMM_RECV) {
        records.bytes[op->comm->purpose] += op->bytes;
        records.counts[op->comm->purpose]++;
    }
    pthread_mutex_unlock(&records.lock);
    return ticket;
}

void weft_comm_record_end(uint64_t ticket)
{
    double now_us = weft_now_us();
    pthread_mutex_lock(&records.lock);
    if (records.num_begun - ticket <= WEFT_COMM_MAX_RECORDS)
        records.ring[ticket % WEFT_COMM_MAX_RECORDS].end_us = now_us;
    pthread_mutex_unlock(&records.lock);
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
