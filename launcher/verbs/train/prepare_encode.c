#include "core/grow.h"
#include "launcher/verbs/train/prepare.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/clock.h"
#include "core/text.h"
#include "launcher/process/output.h"
#include "launcher/text/json_lines.h"

/* LARGE_BYTES: what a block may have on average, and keep for the next. */
enum { BLOCK_BYTES = 1 << 20, LARGE_BYTES = 4 * BLOCK_BYTES };

typedef struct document {
    const char *path;
    int64_t line;
    weft_document_kind kind;
    size_t at, bytes;  /* in the block's bytes */
    size_t num_tokens; /* in the block's tokens; 0: an empty document */
    size_t text_bytes;
    size_t num_halves; /* of surrogate pairs in it */
} document;

typedef struct block {
    char *bytes;
    size_t num_bytes, capacity_bytes, begun_at; /* where the document that is read begins */
    document *documents;
    size_t num_documents, capacity_documents;
    uint64_t num_read;         /* bytes of files, as they are stored, up to its end */
    weft_tokens tokens, bears; /* bears: of chats, 1 for each token that bears a loss, else 0 */
    bool is_done;
    weft_status status; /* of its encoding, behind the documents with tokens */
    weft_error error;
} block;

typedef struct worker {
    struct weft_prepare_ring *ring;
    weft_encoder *encoder;
    weft_arena scratch; /* of a document */
    pthread_t thread;
} worker;

/* Blocks i with num_written <= i < num_taken are encoded or done, those below num_filled wait for
 * a thread, and block num_filled is the reader's. Block i is blocks[i % num_blocks]. */
struct weft_prepare_ring {
    weft_prepare_source *source;
    const weft_tokenizer *tokenizer;
    pthread_mutex_t lock;
    pthread_cond_t filled, done, written; /* threads that encode, write, read wait for one each */
    block *blocks;
    uint64_t num_blocks, num_filled, num_taken, num_written;
    size_t num_bytes;      /* of documents in blocks that are filled and not written */
    bool has_ended, stops; /* all is read; nobody wants more */
    weft_status status;    /* of reading, behind all blocks */
    weft_error error;
    worker *workers;
    pthread_t reader;
    int num_workers; /* that run */
    bool has_reader;
};

/* --- reading ------------------------------------------------------------------------------- */

static block *open_block(weft_prepare_ring *ring)
{
    return &ring->blocks[ring->num_filled % ring->num_blocks];
}

weft_status weft_prepare_add(weft_prepare_ring *ring, const void *bytes, size_t count)
{
    block *b = open_block(ring);
    WEFT_TRY(WEFT_GROW(b->bytes, b->capacity_bytes, b->num_bytes + count, "bytes of documents"));
    memcpy(b->bytes + b->num_bytes, bytes, count);
    b->num_bytes += count;
    return WEFT_OK;
}

static weft_status add_document(block *b, const document *d)
{
    WEFT_TRY(WEFT_GROW(b->documents, b->capacity_documents, b->num_documents + 1, "documents"));
    b->documents[b->num_documents++] = *d;
    return WEFT_OK;
}

/* Documents that are longer than a block take the room of several. */
static bool is_full(const weft_prepare_ring *ring)
{
    const uint64_t used = ring->num_filled - ring->num_written;
    return used == ring->num_blocks ||
           (used > 0 && ring->num_bytes > ring->num_blocks * LARGE_BYTES);
}

/* Passes the block on, and waits for a free one. */
static void hand_over(weft_prepare_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    ring->num_bytes += open_block(ring)->num_bytes;
    ring->num_filled++;
    pthread_cond_signal(&ring->filled);
    while (is_full(ring) && !ring->stops)
        pthread_cond_wait(&ring->written, &ring->lock);
    pthread_mutex_unlock(&ring->lock);
}

/* A reader whose documents nobody wants ends by this; nobody tells it. */
static weft_status check_goes_on(weft_prepare_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    const bool stops = ring->stops;
    pthread_mutex_unlock(&ring->lock);
    return stops ? WEFT_ERROR(WEFT_INTERNAL, "reading was stopped") : WEFT_OK;
}

weft_status weft_prepare_end(weft_prepare_ring *ring, weft_document_kind kind, const char *path,
                             int64_t line, uint64_t num_read)
{
    block *b = open_block(ring);
    const document d = {path, line, kind, b->begun_at, b->num_bytes - b->begun_at, 0, 0, 0};
    if (d.bytes == 0)
        return WEFT_OK;
    WEFT_TRY(add_document(b, &d));
    while (b->num_bytes % sizeof(int32_t)) /* tokens that follow lie as they should */
        WEFT_TRY(weft_prepare_add(ring, "", 1));
    b->begun_at = b->num_bytes;
    b->num_read = num_read;
    if (b->num_bytes < BLOCK_BYTES)
        return WEFT_OK;
    hand_over(ring);
    return check_goes_on(ring);
}

static void *read_all(void *context)
{
    weft_prepare_ring *ring = context;
    weft_status status = ring->source->read(ring->source, ring);
    pthread_mutex_lock(&ring->lock);
    ring->status = status;
    if (status != WEFT_OK)
        weft_error_take(&ring->error);
    if (open_block(ring)->num_documents > 0 && !ring->stops) {
        ring->num_bytes += open_block(ring)->num_bytes;
        ring->num_filled++;
    }
    ring->has_ended = true;
    pthread_cond_broadcast(&ring->filled);
    pthread_cond_signal(&ring->done);
    pthread_mutex_unlock(&ring->lock);
    return NULL;
}

/* --- encoding ------------------------------------------------------------------------------ */

static weft_status add_tokens(const worker *w, const document *d, const char *bytes,
                              weft_tokens *out)
{
    const size_t count = d->bytes / sizeof(int32_t);
    const int64_t vocab_size = weft_tokenizer_get_info(w->ring->tokenizer)->vocab_size;
    WEFT_TRY(weft_tokens_reserve(out, count));
    memcpy(out->ids + out->count, bytes, d->bytes);
    for (size_t i = 0; i < count; i++)
        if (out->ids[out->count + i] >= vocab_size)
            return WEFT_ERROR(WEFT_FILE,
                              "%s: token %" PRId32 " is outside the tokenizer's %" PRId64,
                              weft_input_name(d->path), out->ids[out->count + i], vocab_size);
    out->count += count;
    return WEFT_OK;
}

static weft_status encode_text(worker *w, const char *bytes, size_t count, weft_tokens *out)
{
    return count == 0 ? WEFT_OK /* also where a tokenizer would put something around it */
                      : weft_encoder_encode(w->encoder, bytes, count, out);
}

static weft_status encode_line(worker *w, document *d, const char *line, block *b)
{
    const weft_prepare_source *source = w->ring->source;
    const char *key = source->options->jsonl;
    weft_json_characters text;
    if (d->bytes > LARGE_BYTES)
        weft_arena_release(&w->scratch);
    weft_arena_reset(&w->scratch);
    if (source->chat.form) {
        d->text_bytes = 0; /* what is written is more than what is read */
        return weft_chat_encode(&source->chat, w->encoder, line, d->bytes - 1, key, &w->scratch,
                                &b->tokens, &b->bears, &d->num_halves);
    }
    WEFT_TRY(weft_json_line_text(line, d->bytes - 1, key, &w->scratch, &text));
    d->text_bytes = text.num_bytes;
    d->num_halves = text.num_halves;
    return encode_text(w, text.bytes, text.num_bytes, &b->tokens);
}

static weft_status encode(worker *w, document *d, const char *bytes, block *b)
{
    if (d->kind == WEFT_DOCUMENT_TOKENS)
        return add_tokens(w, d, bytes, &b->tokens);
    d->text_bytes = d->bytes;
    if (d->kind == WEFT_DOCUMENT_TEXT)
        return encode_text(w, bytes, d->bytes, &b->tokens);
    const weft_status status = encode_line(w, d, bytes, b);
    return status == WEFT_FILE
               ? weft_error_context(status, "%s: line %" PRId64, weft_input_name(d->path), d->line)
               : status;
}

static bool ends_with_eod(const weft_prepare_ring *ring, const document *d)
{
    return ring->source->options->append_eod || d->kind == WEFT_DOCUMENT_TOKENS;
}

static weft_status encode_document(worker *w, document *d, const char *bytes, block *b)
{
    weft_tokens *out = &b->tokens;
    const size_t before = out->count;
    const int32_t eod = (int32_t)w->ring->source->eod;
    WEFT_TRY(encode(w, d, bytes, b));
    /* a tokenizer.json may put the token there itself */
    if (out->count > before && ends_with_eod(w->ring, d) && out->ids[out->count - 1] != eod)
        WEFT_TRY(weft_tokens_add(out, eod));
    while (w->ring->source->chat.form && b->bears.count < out->count)
        WEFT_TRY(weft_tokens_add(&b->bears, 0)); /* no answer */
    d->num_tokens = out->count - before;
    return WEFT_OK;
}

static void encode_block(worker *w, block *b)
{
    b->tokens.count = b->bears.count = 0;
    b->status = WEFT_OK;
    for (size_t i = 0; i < b->num_documents && b->status == WEFT_OK; i++)
        b->status = encode_document(w, &b->documents[i], b->bytes + b->documents[i].at, b);
    if (b->status != WEFT_OK)
        weft_error_take(&b->error);
}

static void *encode_all(void *context)
{
    worker *w = context;
    weft_prepare_ring *ring = w->ring;
    pthread_mutex_lock(&ring->lock);
    for (;;) {
        while (ring->num_taken == ring->num_filled && !ring->has_ended && !ring->stops)
            pthread_cond_wait(&ring->filled, &ring->lock);
        if (ring->num_taken == ring->num_filled || ring->stops)
            break;
        block *b = &ring->blocks[ring->num_taken++ % ring->num_blocks];
        pthread_mutex_unlock(&ring->lock);
        encode_block(w, b);
        pthread_mutex_lock(&ring->lock);
        b->is_done = true;
        pthread_cond_signal(&ring->done);
    }
    pthread_mutex_unlock(&ring->lock);
    return NULL;
}

/* --- writing ------------------------------------------------------------------------------- */

static weft_status write_document(const weft_prepare_ring *ring, const weft_prepare_target *to,
                                  const document *d, const int32_t *tokens, const int32_t *bears,
                                  weft_prepare_result *out)
{
    if (d->num_halves > 0 && out->num_odd_lines++ == 0) {
        out->odd_path = d->path;
        out->odd_line = d->line;
    }
    if (d->num_tokens == 0) {
        out->num_empty_documents++;
        return WEFT_OK;
    }
    WEFT_TRY(to->packer ? weft_packer_add(to->packer, tokens, bears, d->num_tokens)
                        : weft_dataset_writer_add_masked(to->writer, tokens, bears, d->num_tokens));
    for (size_t i = 0; bears && i < d->num_tokens; i++)
        out->num_answer_tokens += bears[i];
    XXH64_update(out->hash, tokens, d->num_tokens * sizeof *tokens);
    for (size_t i = 0; i < d->num_tokens; i++)
        out->known.max_token = tokens[i] > out->known.max_token ? tokens[i] : out->known.max_token;
    out->prepared.append_eod = out->prepared.append_eod && ends_with_eod(ring, d);
    out->prepared.documents++;
    out->prepared.tokens += (int64_t)d->num_tokens;
    out->num_bytes += d->text_bytes;
    return WEFT_OK;
}

static weft_status write_block(const weft_prepare_ring *ring, const weft_prepare_target *to,
                               const block *b, weft_prepare_result *out)
{
    const int32_t *tokens = b->tokens.ids, *bears = ring->source->chat.form ? b->bears.ids : NULL;
    if (b->status != WEFT_OK)
        return weft_error_put(&b->error);
    for (size_t i = 0; i < b->num_documents; i++) {
        WEFT_TRY(write_document(ring, to, &b->documents[i], tokens, bears, out));
        tokens += b->documents[i].num_tokens;
        bears = bears ? bears + b->documents[i].num_tokens : NULL;
    }
    return WEFT_OK;
}

/* A line that rewrites itself on a terminal; elsewhere one a minute. */
typedef struct progress {
    bool is_on, is_live;
    double begun_us, told_us;
} progress;

static void begin_progress(progress *p, const weft_prepare_options *o)
{
    p->is_on = !o->json;
    p->is_live = p->is_on && isatty(STDOUT_FILENO);
    p->begun_us = p->told_us = weft_now_us();
}

static void tell(progress *p, const weft_prepare_ring *ring, uint64_t num_read,
                 const weft_prepare_result *r)
{
    const double now = weft_now_us(), seconds = (now - p->begun_us) / 1e6;
    const uint64_t all = ring->source->files.bytes;
    if (!p->is_on || now - p->told_us < (p->is_live ? 0.2e6 : 60e6))
        return;
    p->told_us = now;
    printf("%sdocuments %" PRId64 "  tokens %" PRId64 "  %.1f MB/s", p->is_live ? "\r\033[K" : "",
           r->prepared.documents, r->prepared.tokens, (double)r->num_bytes / seconds / 1e6);
    if (num_read > 0 && all >= num_read)
        printf("  %s left",
               weft_seconds_text(seconds * (double)(all - num_read) / (double)num_read).text);
    if (!p->is_live)
        putchar('\n');
    weft_output_flush();
}

static void end_progress(const progress *p)
{
    if (p->is_live && p->told_us > p->begun_us)
        fputs("\r\033[K", stdout);
}

/* The next block in order; NULL: that was the last. */
static block *await_block(weft_prepare_ring *ring)
{
    block *b = &ring->blocks[ring->num_written % ring->num_blocks];
    pthread_mutex_lock(&ring->lock);
    while (!b->is_done && !(ring->has_ended && ring->num_written == ring->num_filled))
        pthread_cond_wait(&ring->done, &ring->lock);
    const bool is_done = b->is_done;
    pthread_mutex_unlock(&ring->lock);
    return is_done ? b : NULL;
}

static void free_block(weft_prepare_ring *ring, block *b)
{
    const size_t bytes = b->num_bytes;
    b->num_documents = 0;
    b->num_bytes = b->begun_at = 0;
    if (b->capacity_bytes > LARGE_BYTES) {
        free(b->bytes);
        b->bytes = NULL;
        b->capacity_bytes = 0;
    }
    if (b->tokens.capacity > LARGE_BYTES)
        weft_tokens_release(&b->tokens);
    if (b->bears.capacity > LARGE_BYTES)
        weft_tokens_release(&b->bears);
    pthread_mutex_lock(&ring->lock);
    ring->num_bytes -= bytes;
    b->is_done = false;
    ring->num_written++;
    pthread_cond_signal(&ring->written);
    pthread_mutex_unlock(&ring->lock);
}

static weft_status write_all(weft_prepare_ring *ring, const weft_prepare_target *to,
                             weft_prepare_result *out)
{
    progress p;
    weft_status status = WEFT_OK;
    begin_progress(&p, ring->source->options);
    for (block *b; status == WEFT_OK && (b = await_block(ring));) {
        status = write_block(ring, to, b, out);
        tell(&p, ring, b->num_read, out);
        free_block(ring, b);
    }
    end_progress(&p);
    return status != WEFT_OK || ring->status == WEFT_OK ? status : weft_error_put(&ring->error);
}

/* --- threads ------------------------------------------------------------------------------- */

static weft_status start_thread(pthread_t *out, void *(*run)(void *), void *context)
{
    return pthread_create(out, NULL, run, context) == 0
               ? WEFT_OK
               : WEFT_ERROR(WEFT_MEMORY, "a thread cannot be started: --threads asks for fewer");
}

static weft_status start(weft_prepare_ring *ring)
{
    const int num_threads = ring->source->options->num_threads;
    for (int i = 0; i < num_threads; i++) {
        worker *w = &ring->workers[i];
        w->ring = ring;
        WEFT_TRY(weft_encoder_create(ring->tokenizer, &w->encoder));
        WEFT_TRY(start_thread(&w->thread, encode_all, w));
        ring->num_workers++;
    }
    WEFT_TRY(start_thread(&ring->reader, read_all, ring));
    ring->has_reader = true;
    return WEFT_OK;
}

static void stop(weft_prepare_ring *ring)
{
    pthread_mutex_lock(&ring->lock);
    ring->stops = true;
    pthread_cond_broadcast(&ring->filled);
    pthread_cond_broadcast(&ring->written);
    pthread_mutex_unlock(&ring->lock);
    if (ring->has_reader)
        pthread_join(ring->reader, NULL);
    for (int i = 0; i < ring->num_workers; i++)
        pthread_join(ring->workers[i].thread, NULL);
}

static void release(weft_prepare_ring *ring)
{
    for (int i = 0; ring->workers && i < ring->source->options->num_threads; i++) {
        weft_encoder_destroy(ring->workers[i].encoder);
        weft_arena_release(&ring->workers[i].scratch);
    }
    for (uint64_t i = 0; ring->blocks && i < ring->num_blocks; i++) {
        free(ring->blocks[i].bytes);
        free(ring->blocks[i].documents);
        weft_tokens_release(&ring->blocks[i].tokens);
        weft_tokens_release(&ring->blocks[i].bears);
    }
    pthread_cond_destroy(&ring->written);
    pthread_cond_destroy(&ring->done);
    pthread_cond_destroy(&ring->filled);
    pthread_mutex_destroy(&ring->lock);
    free(ring->workers);
    free(ring->blocks);
}

weft_status weft_prepare_encode(weft_prepare_source *source, const weft_tokenizer *tokenizer,
                                const weft_prepare_target *to, weft_prepare_result *out)
{
    const size_t num_threads = (size_t)source->options->num_threads;
    weft_prepare_ring ring = {.source = source,
                              .tokenizer = tokenizer,
                              .lock = PTHREAD_MUTEX_INITIALIZER,
                              .filled = PTHREAD_COND_INITIALIZER,
                              .done = PTHREAD_COND_INITIALIZER,
                              .written = PTHREAD_COND_INITIALIZER,
                              .num_blocks = 2 * num_threads + 2};
    ring.blocks = calloc(ring.num_blocks, sizeof *ring.blocks);
    ring.workers = calloc(num_threads, sizeof *ring.workers);
    weft_status status = ring.blocks && ring.workers
                             ? start(&ring)
                             : WEFT_ERROR(WEFT_MEMORY, "no memory for %zu threads", num_threads);
    if (status == WEFT_OK)
        status = write_all(&ring, to, out);
    if (ring.blocks && ring.workers)
        stop(&ring);
    release(&ring);
    return status;
}
