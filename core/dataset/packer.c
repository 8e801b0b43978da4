#include <stdlib.h>
#include <string.h>

#include "core/grow.h"
#include "core/dataset/dataset.h"

/* Documents of so many tokens are packed at once. */
enum { WINDOW_TOKENS = 1 << 25 };

/* What of a document goes into one sequence. */
typedef struct piece {
    size_t first, count; /* tokens of the window */
    uint32_t next;       /* in its sequence; NONE: it is the last */
} piece;

typedef struct bin {
    uint32_t head, tail, room;
    uint32_t first; /* the earliest of its pieces, by which sequences are ordered */
    uint32_t next;  /* of the same room */
} bin;

#define NONE UINT32_MAX

struct weft_packer {
    weft_dataset_writer *writer;
    uint32_t length;
    int32_t pad;
    /* Of the window: ids and whether each bears a loss, and where documents begin. */
    int32_t *tokens, *bears;
    size_t *documents;
    size_t num_tokens, capacity_tokens, num_documents, capacity_documents;
    weft_arena arena;         /* of a window's packing */
    int32_t *row, *row_bears; /* [length] */
    weft_packing report;
};

weft_status weft_packer_create(weft_dataset_writer *writer, uint32_t length, int32_t pad,
                               weft_packer **out)
{
    weft_packer *p = calloc(1, sizeof *p);
    if (p) {
        *p = (weft_packer){.writer = writer, .length = length, .pad = pad};
        p->row = malloc(length * sizeof *p->row);
        p->row_bears = malloc(length * sizeof *p->row_bears);
    }
    if (!p || !p->row || !p->row_bears) {
        weft_packer_destroy(p);
        return WEFT_ERROR(WEFT_MEMORY, "no memory to pack documents");
    }
    *out = p;
    return WEFT_OK;
}

void weft_packer_destroy(weft_packer *p)
{
    if (!p)
        return;
    weft_arena_release(&p->arena);
    free(p->row);
    free(p->row_bears);
    free(p->tokens);
    free(p->bears);
    free(p->documents);
    free(p);
}

/* --- best fit ------------------------------------------------------------------------------ */

/* Sequences that have room left, by it. */
typedef struct shelf {
    uint32_t *heads; /* [length + 1] */
    uint64_t *some;  /* a bit each: whether there is one */
    size_t num_words;
} shelf;

/* The least room of at least `count` that a sequence has; NONE: none has. */
static uint32_t find_room(const shelf *s, uint32_t count)
{
    size_t word = count / 64;
    uint64_t bits = s->some[word] & (~UINT64_C(0) << count % 64);
    while (!bits && ++word < s->num_words)
        bits = s->some[word];
    return bits ? (uint32_t)(64 * word) + (uint32_t)__builtin_ctzll(bits) : NONE;
}

static void put(shelf *s, bin *bins, uint32_t index)
{
    const uint32_t room = bins[index].room;
    bins[index].next = s->heads[room];
    s->heads[room] = index;
    s->some[room / 64] |= UINT64_C(1) << room % 64;
}

static uint32_t take(shelf *s, const bin *bins, uint32_t room)
{
    const uint32_t index = s->heads[room];
    s->heads[room] = bins[index].next;
    if (s->heads[room] == NONE)
        s->some[room / 64] &= ~(UINT64_C(1) << room % 64);
    return index;
}

static weft_status allocate(weft_arena *arena, size_t count, size_t bytes, void *out)
{
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, count + 1, bytes, &memory));
    memcpy(out, &memory, sizeof memory);
    return WEFT_OK;
}

/* Pieces by falling size, those of a size in their order. */
static weft_status sort_pieces(weft_packer *p, const piece *pieces, uint32_t count, uint32_t **out)
{
    uint32_t *starts = NULL;
    WEFT_TRY(allocate(&p->arena, p->length + 1, sizeof *starts, &starts));
    WEFT_TRY(allocate(&p->arena, count, sizeof **out, out));
    for (uint32_t i = 0; i < count; i++)
        starts[p->length - pieces[i].count + 1]++;
    for (uint32_t size = 1; size <= p->length; size++)
        starts[size] += starts[size - 1];
    for (uint32_t i = 0; i < count; i++)
        (*out)[starts[p->length - pieces[i].count]++] = i;
    return WEFT_OK;
}

/* Best fit decreasing (Johnson 1973): the largest piece first, each into the sequence that it fills
 * most. */
static weft_status fit(weft_packer *p, piece *pieces, uint32_t count, bin *bins, uint32_t *num_bins)
{
    shelf s = {.num_words = p->length / 64 + 1};
    uint32_t *order = NULL;
    WEFT_TRY(sort_pieces(p, pieces, count, &order));
    WEFT_TRY(allocate(&p->arena, p->length + 1, sizeof *s.heads, &s.heads));
    WEFT_TRY(allocate(&p->arena, s.num_words, sizeof *s.some, &s.some));
    memset(s.heads, 0xff, (p->length + 1) * sizeof *s.heads);
    *num_bins = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t index = order[i], size = (uint32_t)pieces[index].count,
                       room = find_room(&s, size),
                       at = room == NONE ? (*num_bins)++ : take(&s, bins, room);
        bin *b = &bins[at];
        if (room == NONE)
            *b = (bin){.head = index, .tail = index, .room = p->length, .first = index};
        else
            pieces[b->tail].next = index;
        pieces[index].next = NONE;
        b->tail = index;
        b->first = index < b->first ? index : b->first;
        b->room -= size;
        if (b->room > 0)
            put(&s, bins, at);
    }
    return WEFT_OK;
}

/* --- writing ------------------------------------------------------------------------------- */

static weft_status write_bin(weft_packer *p, const piece *pieces, const bin *b)
{
    size_t used = 0;
    for (uint32_t i = b->head; i != NONE; i = pieces[i].next) {
        const piece *from = &pieces[i];
        memcpy(p->row + used, p->tokens + from->first, from->count * sizeof *p->row);
        memcpy(p->row_bears + used, p->bears + from->first, from->count * sizeof *p->row);
        p->row_bears[used] = 0; /* what stands before it is another document's, or elsewhere */
        used += from->count;
    }
    p->report.num_pads += p->length - used;
    p->report.num_sequences++;
    for (; used < p->length; used++) {
        p->row[used] = p->pad;
        p->row_bears[used] = 0;
    }
    return weft_dataset_writer_add_masked(p->writer, p->row, p->row_bears, p->length);
}

static void cut(weft_packer *p, size_t document, piece *pieces, uint32_t *count)
{
    const size_t end = document + 1 < p->num_documents ? p->documents[document + 1] : p->num_tokens;
    p->report.num_cut += end - p->documents[document] > p->length;
    for (size_t at = p->documents[document]; at < end; at += p->length)
        pieces[(*count)++] = (piece){at, end - at < p->length ? end - at : p->length, NONE};
}

static weft_status pack(weft_packer *p)
{
    const size_t most = p->num_documents + p->num_tokens / p->length;
    uint32_t count = 0, num_bins = 0, *of_piece = NULL;
    piece *pieces = NULL;
    bin *bins = NULL;
    weft_arena_reset(&p->arena);
    WEFT_TRY(allocate(&p->arena, most, sizeof *pieces, &pieces));
    for (size_t i = 0; i < p->num_documents; i++)
        cut(p, i, pieces, &count);
    WEFT_TRY(allocate(&p->arena, count, sizeof *bins, &bins));
    WEFT_TRY(fit(p, pieces, count, bins, &num_bins));
    WEFT_TRY(allocate(&p->arena, count, sizeof *of_piece, &of_piece));
    for (uint32_t i = 0; i < num_bins; i++)
        of_piece[bins[i].first] = i + 1;
    for (uint32_t i = 0; i < count; i++)
        if (of_piece[i] > 0)
            WEFT_TRY(write_bin(p, pieces, &bins[of_piece[i] - 1]));
    p->num_tokens = p->num_documents = 0;
    return WEFT_OK;
}

static weft_status reserve(weft_packer *p, size_t count)
{
    size_t capacity = p->capacity_tokens; /* the same for both */
    const size_t wanted = p->num_tokens + count;
    WEFT_TRY(WEFT_GROW(p->documents, p->capacity_documents, p->num_documents + 1, "documents"));
    WEFT_TRY(WEFT_GROW(p->tokens, capacity, wanted, "tokens to pack"));
    return WEFT_GROW(p->bears, p->capacity_tokens, wanted, "tokens to pack");
}

weft_status weft_packer_add(weft_packer *p, const int32_t *tokens, const int32_t *bears,
                            size_t count)
{
    if (p->num_tokens > 0 && p->num_tokens + count > WINDOW_TOKENS)
        WEFT_TRY(pack(p));
    WEFT_TRY(reserve(p, count));
    p->documents[p->num_documents++] = p->num_tokens;
    for (size_t i = 0; i < count; i++) {
        p->tokens[p->num_tokens] = tokens[i];
        p->bears[p->num_tokens++] = !bears || bears[i];
    }
    return WEFT_OK;
}

/* The last sequence's last token wants a label, as all samples share a token with the next one. */
weft_status weft_packer_finish(weft_packer *p, weft_packing *out)
{
    WEFT_TRY(pack(p));
    *out = p->report;
    return weft_dataset_writer_add_masked(p->writer, &p->pad, &(int32_t){0}, 1);
}
