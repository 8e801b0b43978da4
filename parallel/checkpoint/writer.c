/* The writer's process: takes entries from the ring and does what they say. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "parallel/checkpoint/keeper.h"
#include "parallel/checkpoint/writer_internal.h"

enum { TEXTS = 2 };

typedef struct text {
    char *bytes; /* in the save's arena, NUL-terminated; NULL: none */
    size_t count, capacity;
} text;

typedef struct server {
    int socket, memory;
    weft_staging ring;
    weft_save save;
    weft_checkpoint_keep keep;
    bool leads;
    bool copies;         /* no save to disk */
    weft_keeper *keeper; /* NULL: there are no copies */
    size_t num_datasets; /* of save.datasets, room for */
    text texts[TEXTS];
    weft_raw_file file;
    weft_status status; /* of the save so far; its words are this thread's error record */
    double since_us;    /* when this phase began */
    bool ends;
} server;

static void answer(server *s, weft_writer_answer *a)
{
    ssize_t sent;
    do
        sent = send(s->socket, a, sizeof *a, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    s->ends = s->ends || sent != (ssize_t)sizeof *a;
}

static void answer_done(server *s, weft_writer_answer_kind kind)
{
    weft_writer_answer a = {.kind = kind, .status = s->status, .us = weft_now_us() - s->since_us};
    if (s->status != WEFT_OK)
        memcpy(a.of.text, weft_error_get()->text, sizeof a.of.text);
    answer(s, &a);
    s->since_us = weft_now_us();
}

static void answer_count(server *s, int count)
{
    weft_writer_answer a = {.kind = WEFT_WRITER_DONE, .status = s->status, .count = count};
    if (s->status != WEFT_OK)
        memcpy(a.of.text, weft_error_get()->text, sizeof a.of.text);
    answer(s, &a);
}

static void answer_hashes(server *s)
{
    weft_writer_answer a = {.kind = WEFT_WRITER_HASHES};
    for (size_t i = 0; i < s->save.shards.count; i++) {
        a.of.hashes[a.count++] = s->save.shards.items[i].hash;
        if (a.count == WEFT_WRITER_HASHES_AT_ONCE || i + 1 == s->save.shards.count) {
            answer(s, &a);
            a.count = 0;
        }
    }
}

/* --- the entries --------------------------------------------------------------------------- */

static void forget(server *s)
{
    if (s->file.fd >= 0)
        close(s->file.fd);
    weft_keeper_drop(s->keeper);
    weft_arena_release(&s->save.arena);
    s->save = (weft_save){.dir = NULL};
    s->file = (weft_raw_file){.fd = -1};
    memset(s->texts, 0, sizeof s->texts);
    s->num_datasets = 0;
    s->status = WEFT_OK;
    weft_error_clear();
}

static weft_status open_save(server *s, const weft_writer_open *open)
{
    forget(s);
    s->since_us = weft_now_us();
    s->save.info = open->info;
    s->keep = open->keep;
    s->leads = open->leads;
    s->copies = open->copies;
    if (s->copies)
        return weft_keeper_begin(s->keeper, &s->save.info, open->turn);
    WEFT_TRY(weft_arena_strdup(&s->save.arena, open->dir, &s->save.dir));
    WEFT_TRY(weft_save_name(&s->save));
    return weft_raw_open(s->save.model, &s->file);
}

static weft_status add_datasets(server *s, const weft_stored *items, size_t count)
{
    weft_stored_list *list = &s->save.datasets;
    if ((size_t)list->count + count > s->num_datasets) {
        void *larger;
        s->num_datasets = 2 * s->num_datasets + count;
        WEFT_TRY(weft_arena_alloc_array(&s->save.arena, s->num_datasets, sizeof *items, &larger));
        if (list->count > 0)
            memcpy(larger, list->items, (size_t)list->count * sizeof *items);
        list->items = larger;
    }
    memcpy(list->items + list->count, items, count * sizeof *items);
    list->count += (int)count;
    return WEFT_OK;
}

static weft_status write_slab(server *s, const weft_stored_shard *given)
{
    const float *data = (const float *)(const void *)(given + 1);
    const weft_stored *dataset = &s->save.datasets.items[given->dataset];
    weft_stored_shard shard = *given;
    WEFT_TRY(weft_shard_hash(s->save.info.step, dataset, &shard, data));
    WEFT_TRY(weft_raw_write(&s->file, dataset, &shard, data));
    return weft_shard_append(&s->save.shards, &s->save.arena, &shard);
}

/* The taker's until it gives the entry's room back. */
static weft_status copy_slab(server *s, const weft_staging_entry *entry)
{
    weft_stored_shard *shard = (void *)(uintptr_t)(entry + 1);
    const weft_stored *dataset = &s->save.datasets.items[shard->dataset];
    const float *data = (const float *)(const void *)(shard + 1);
    WEFT_TRY(weft_shard_hash(s->save.info.step, dataset, shard, data));
    return weft_keeper_put(s->keeper, entry);
}

static weft_status follow_copies(server *s, const weft_staging_entry *entry)
{
    switch ((weft_writer_entry)entry->kind) {
    case WEFT_WRITER_DATASETS:
        WEFT_TRY(
            add_datasets(s, (const void *)(entry + 1), (size_t)entry->bytes / sizeof(weft_stored)));
        return s->leads ? weft_keeper_put(s->keeper, entry) : WEFT_OK;
    case WEFT_WRITER_SLAB:
        return copy_slab(s, entry);
    case WEFT_WRITER_FLUSH:
        return weft_keeper_end(s->keeper);
    default:
        return weft_keeper_put(s->keeper, entry);
    }
}

static weft_status add_shards(server *s, const weft_stored_shard *items, size_t count)
{
    for (size_t i = 0; i < count; i++)
        WEFT_TRY(weft_shard_append(&s->save.shards, &s->save.arena, &items[i]));
    return WEFT_OK;
}

static weft_status add_text(server *s, text *t, const char *bytes, size_t count)
{
    if (t->count + count + 1 > t->capacity) {
        void *larger;
        t->capacity = 2 * t->capacity + count + 1;
        WEFT_TRY(weft_arena_alloc(&s->save.arena, t->capacity, &larger));
        if (t->count > 0)
            memcpy(larger, t->bytes, t->count);
        t->bytes = larger;
    }
    memcpy(t->bytes + t->count, bytes, count);
    t->count += count;
    t->bytes[t->count] = '\0';
    return WEFT_OK;
}

/* What cannot be removed costs room and no more: the next save removes it. */
static weft_status publish(server *s)
{
    int removed;
    WEFT_TRY(weft_save_publish(&s->save, s->texts[0].bytes, s->texts[1].bytes));
    if (weft_checkpoint_prune(s->save.dir, &s->keep, &removed) != WEFT_OK)
        weft_error_clear();
    return WEFT_OK;
}

static weft_status follow(server *s, const weft_staging_entry *entry)
{
    const void *bytes = entry + 1;
    const size_t count = (size_t)entry->bytes;
    switch ((weft_writer_entry)entry->kind) {
    case WEFT_WRITER_OPEN:
        return open_save(s, bytes);
    case WEFT_WRITER_DATASETS:
        return add_datasets(s, bytes, count / sizeof(weft_stored));
    case WEFT_WRITER_SLAB:
        return write_slab(s, bytes);
    case WEFT_WRITER_FLUSH:
        return weft_raw_close(&s->file, true);
    case WEFT_WRITER_SHARDS:
        return add_shards(s, bytes, count / sizeof(weft_stored_shard));
    case WEFT_WRITER_VERIFY:
        return weft_save_verify(s->save.model, &s->save.datasets, &s->save.shards);
    case WEFT_WRITER_CONFIG:
        return add_text(s, &s->texts[0], bytes, count);
    case WEFT_WRITER_TOKENIZER:
        return add_text(s, &s->texts[1], bytes, count);
    case WEFT_WRITER_PUBLISH:
        return publish(s);
    case WEFT_WRITER_LISTEN:
    case WEFT_WRITER_COPIES:
    case WEFT_WRITER_DROP:
        break;
    }
    return WEFT_OK;
}

/* Outside of saves. */
static void set_up(server *s, const weft_staging_entry *entry)
{
    uint16_t port = 0;
    uint32_t address;
    forget(s);
    if (entry->kind == WEFT_WRITER_LISTEN) {
        memcpy(&address, entry + 1, sizeof address);
        s->status = weft_keeper_create(address, &s->keeper, &port);
    } else {
        s->status = weft_keeper_start(s->keeper, (const void *)(entry + 1));
    }
    answer_count(s, port);
}

static void drop(server *s)
{
    if (s->leads && s->save.temporary)
        weft_folder_remove(s->save.temporary);
    forget(s);
    answer_done(s, WEFT_WRITER_DROPPED);
}

static void take(server *s, const weft_staging_entry *entry)
{
    const weft_writer_entry kind = (weft_writer_entry)entry->kind;
    if (kind == WEFT_WRITER_DROP) {
        drop(s);
        return;
    }
    if (kind == WEFT_WRITER_LISTEN || kind == WEFT_WRITER_COPIES) {
        set_up(s, entry);
        return;
    }
    if (s->status == WEFT_OK)
        s->status =
            s->copies && kind != WEFT_WRITER_OPEN ? follow_copies(s, entry) : follow(s, entry);
    const bool ends = kind == WEFT_WRITER_FLUSH || kind == WEFT_WRITER_VERIFY;
    if (kind == WEFT_WRITER_FLUSH && s->status == WEFT_OK && !s->copies)
        answer_hashes(s);
    if (ends) {
        s->save.shards.count = 0;
        answer_done(s, WEFT_WRITER_DONE);
    } else if (kind == WEFT_WRITER_PUBLISH) {
        answer_done(s, WEFT_WRITER_DONE);
    }
}

/* --- the process --------------------------------------------------------------------------- */

/* The rank's next message; false: it is gone. */
static bool wait_for(server *s, void *message, size_t bytes)
{
    ssize_t got;
    do
        got = recv(s->socket, message, bytes, 0);
    while (got < 0 && errno == EINTR);
    return got > 0;
}

static void serve(server *s)
{
    const weft_staging_entry *entry;
    char wake;
    while (!s->ends) {
        entry = weft_staging_next(&s->ring);
        if (!entry) {
            weft_staging_wait_for_entries(&s->ring);
            entry = weft_staging_next(&s->ring);
        }
        if (!entry) {
            s->ends = !wait_for(s, &wake, sizeof wake);
            continue;
        }
        take(s, entry);
        if (weft_staging_take(&s->ring, entry))
            answer(s, &(weft_writer_answer){.kind = WEFT_WRITER_AWAKE});
    }
}

void weft_writer_serve(int socket, int memory)
{
    server s = {.socket = socket, .memory = memory, .file = {.fd = -1}};
    size_t capacity;
    if (wait_for(&s, &capacity, sizeof capacity) &&
        weft_staging_join(memory, capacity, &s.ring) == WEFT_OK)
        serve(&s);
    forget(&s);
    weft_staging_release(&s.ring);
}
