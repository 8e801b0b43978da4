#include "core/dataset/dataset.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/grow.h"
#include "core/dataset/internal.h"
#include "core/file.h"
#include "core/rng.h"

/* Sequences that lie back to back in the .bin. A file as Megatron writes it is one extent, so
 * that finding a token needs no table of sequences. */
typedef struct extent {
    uint64_t first_token, offset_bytes;
} extent;

struct weft_dataset {
    char *prefix;        /* for errors */
    weft_file bin, mask; /* mask: path NULL, all tokens bear a loss */
    weft_dataset_stamps stamps;
    int64_t vocab_size; /* that tokens are read in; 2^31 unless one is set */
    weft_index_dtype dtype;
    size_t token_bytes;
    uint64_t num_tokens, num_sequences, num_documents;
    extent *extents;
    size_t num_extents, capacity_extents;
    bool is_mock;
    weft_sample_function fill; /* of the program's own; NULL: not */
    const void *own_options;
    int64_t own_vocab_size;
    bool own_labels_are_tokens;
    int32_t mock_vocab_size;
    uint64_t mock_seed, mock_stream;
};

static uint64_t load_u64(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return value;
}

/* 0: not a dtype of tokens. */
static size_t bytes_of(weft_index_dtype dtype)
{
    switch (dtype) {
    case WEFT_INDEX_U8:
    case WEFT_INDEX_I8:
        return 1;
    case WEFT_INDEX_I16:
    case WEFT_INDEX_U16:
        return 2;
    case WEFT_INDEX_I32:
        return 4;
    case WEFT_INDEX_I64:
        return 8;
    case WEFT_INDEX_F64:
    case WEFT_INDEX_F32:
        break;
    }
    return 0;
}

/* Everything in the fixed part of the index; the file's length must follow from it exactly. */
static weft_status check_header(weft_dataset *d, const weft_file *idx)
{
    unsigned char data[WEFT_INDEX_HEADER_BYTES];
    if (idx->bytes < WEFT_INDEX_HEADER_BYTES)
        return WEFT_ERROR(WEFT_FILE, "%s.idx: %" PRIu64 " bytes are too few for an index",
                          d->prefix, idx->bytes);
    WEFT_TRY(weft_file_read(idx, 0, data, sizeof data));
    if (memcmp(data, WEFT_INDEX_MAGIC, WEFT_INDEX_MAGIC_BYTES) != 0)
        return WEFT_ERROR(
            WEFT_FILE, "%s.idx: not a Megatron index (it does not start with MMIDIDX)", d->prefix);
    uint64_t version = load_u64(data + 9);
    if (version != WEFT_INDEX_VERSION)
        return WEFT_ERROR(WEFT_FILE, "%s.idx: version %" PRIu64 "; this reader knows version 1",
                          d->prefix, version);
    d->dtype = (weft_index_dtype)data[17];
    if (d->dtype == WEFT_INDEX_F64 || d->dtype == WEFT_INDEX_F32)
        return WEFT_ERROR(WEFT_FILE, "%s.idx: holds floating-point numbers, not tokens", d->prefix);
    d->token_bytes = bytes_of(d->dtype);
    if (d->token_bytes == 0)
        return WEFT_ERROR(WEFT_FILE, "%s.idx: unknown dtype code %d", d->prefix, (int)data[17]);
    uint64_t sequences = load_u64(data + 18), boundaries = load_u64(data + 26);
    uint64_t room = idx->bytes - WEFT_INDEX_HEADER_BYTES;
    if (sequences > room / 12 || boundaries > room / 8)
        return WEFT_ERROR(WEFT_FILE,
                          "%s.idx: cut short: %" PRIu64 " sequences and %" PRIu64
                          " document boundaries do not fit in %" PRIu64 " bytes",
                          d->prefix, sequences, boundaries, idx->bytes);
    uint64_t expected = 12 * sequences + 8 * boundaries;
    if (room != expected && room != expected + sequences)
        return WEFT_ERROR(WEFT_FILE,
                          "%s.idx: %" PRIu64 " bytes, where %" PRIu64 " sequences and %" PRIu64
                          " document boundaries make %" PRIu64,
                          d->prefix, idx->bytes, sequences, boundaries,
                          expected + WEFT_INDEX_HEADER_BYTES);
    if (boundaries == 0)
        return WEFT_ERROR(WEFT_FILE, "%s.idx: no document boundaries", d->prefix);
    d->num_sequences = sequences;
    d->num_documents = boundaries - 1;
    return WEFT_OK;
}

static weft_status add_extent(weft_dataset *d, uint64_t offset_bytes)
{
    WEFT_TRY(
        WEFT_GROW(d->extents, d->capacity_extents, d->num_extents + 1, "extents of a dataset"));
    d->extents[d->num_extents++] = (extent){d->num_tokens, offset_bytes};
    return WEFT_OK;
}

/* Checks sequence i, and makes it part of an extent. `end`: of the sequence before, in bytes of the
 * .bin. */
static weft_status take_sequence(weft_dataset *d, uint64_t i, int32_t length, uint64_t offset,
                                 uint64_t *end)
{
    if (length < 0)
        return WEFT_ERROR(WEFT_FILE, "%s.idx: sequence %" PRIu64 " has %" PRId32 " tokens",
                          d->prefix, i, length);
    uint64_t bytes = (uint64_t)length * d->token_bytes;
    if (offset > d->bin.bytes || bytes > d->bin.bytes - offset)
        return WEFT_ERROR(WEFT_FILE,
                          "%s.bin: %" PRIu64 " bytes; sequence %" PRIu64 " should lie at %" PRIu64
                          " with %" PRIu64 " bytes",
                          d->prefix, d->bin.bytes, i, offset, bytes);
    if (offset % d->token_bytes != 0)
        return WEFT_ERROR(WEFT_FILE,
                          "%s.idx: sequence %" PRIu64 " starts at byte %" PRIu64
                          ", inside a token of %zu bytes",
                          d->prefix, i, offset, d->token_bytes);
    if (offset < *end)
        return WEFT_ERROR(WEFT_FILE,
                          "%s.idx: sequence %" PRIu64 " starts at byte %" PRIu64
                          ", before the one ahead of it ends (%" PRIu64 ")",
                          d->prefix, i, offset, *end);
    if (length > 0 && (d->num_extents == 0 || offset != *end))
        WEFT_TRY(add_extent(d, offset));
    d->num_tokens += (uint64_t)length;
    *end = length > 0 ? offset + bytes : *end;
    return WEFT_OK;
}

/* Of the index, so many entries are in memory at once. */
enum { INDEX_BLOCK = 1024 };

static size_t block_of(uint64_t left)
{
    return left < INDEX_BLOCK ? (size_t)left : INDEX_BLOCK;
}

static weft_status check_sequences(weft_dataset *d, const weft_file *idx)
{
    const uint64_t lengths_at = WEFT_INDEX_HEADER_BYTES;
    const uint64_t offsets_at = lengths_at + 4 * d->num_sequences;
    int32_t lengths[INDEX_BLOCK];
    uint64_t offsets[INDEX_BLOCK], end = 0;
    for (uint64_t first = 0; first < d->num_sequences; first += INDEX_BLOCK) {
        size_t count = block_of(d->num_sequences - first);
        WEFT_TRY(weft_file_read(idx, lengths_at + 4 * first, lengths, 4 * count));
        WEFT_TRY(weft_file_read(idx, offsets_at + 8 * first, offsets, 8 * count));
        for (size_t i = 0; i < count; i++)
            WEFT_TRY(take_sequence(d, first + i, lengths[i], offsets[i], &end));
    }
    return WEFT_OK;
}

static weft_status check_documents(const weft_dataset *d, const weft_file *idx)
{
    const uint64_t boundaries_at = WEFT_INDEX_HEADER_BYTES + 12 * d->num_sequences;
    uint64_t boundaries[INDEX_BLOCK], before = 0;
    for (uint64_t i = 0; i <= d->num_documents; i++) {
        if (i % INDEX_BLOCK == 0)
            WEFT_TRY(weft_file_read(idx, boundaries_at + 8 * i, boundaries,
                                    8 * block_of(d->num_documents + 1 - i)));
        uint64_t boundary = boundaries[i % INDEX_BLOCK];
        if (boundary < before || boundary > d->num_sequences || (i == 0 && boundary != 0))
            return WEFT_ERROR(WEFT_FILE,
                              "%s.idx: document boundary %" PRIu64 " is %" PRIu64
                              ", outside [%" PRIu64 ", %" PRIu64 "]",
                              d->prefix, i, boundary, before, i ? d->num_sequences : 0);
        before = boundary;
    }
    if (before != d->num_sequences)
        return WEFT_ERROR(WEFT_FILE,
                          "%s.idx: the documents end at sequence %" PRIu64 " of %" PRIu64,
                          d->prefix, before, d->num_sequences);
    return WEFT_OK;
}

static weft_status open_part(const char *prefix, const char *suffix, weft_file *out)
{
    char path[4096];
    WEFT_TRY(weft_path_print(path, sizeof path, "%s%s", prefix, suffix));
    return weft_file_open(path, out);
}

static bool has_part(const char *prefix, const char *suffix)
{
    char path[4096];
    return snprintf(path, sizeof path, "%s%s", prefix, suffix) < (int)sizeof path &&
           access(path, F_OK) == 0;
}

static weft_status open_mask(weft_dataset *d)
{
    if (!has_part(d->prefix, ".mask"))
        return WEFT_OK;
    WEFT_TRY(open_part(d->prefix, ".mask", &d->mask));
    return d->mask.bytes == (d->num_tokens + 7) / 8
               ? WEFT_OK
               : WEFT_ERROR(WEFT_FILE,
                            "%s.mask: %" PRIu64 " bytes; a bit of each of %" PRIu64
                            " tokens are %" PRIu64,
                            d->prefix, d->mask.bytes, d->num_tokens, (d->num_tokens + 7) / 8);
}

static weft_status check_index(weft_dataset *d, const weft_file *idx)
{
    WEFT_TRY(open_part(d->prefix, ".bin", &d->bin));
    WEFT_TRY(weft_file_take_stamp(&d->bin, &d->stamps.of[0]));
    WEFT_TRY(weft_file_take_stamp(idx, &d->stamps.of[1]));
    WEFT_TRY(check_header(d, idx));
    WEFT_TRY(check_sequences(d, idx));
    WEFT_TRY(check_documents(d, idx));
    return open_mask(d);
}

/* The sums of all sequences before each document's first. */
static weft_status sum_documents(const weft_dataset *d, const weft_file *idx, uint64_t *out)
{
    const uint64_t boundaries_at = WEFT_INDEX_HEADER_BYTES + 12 * d->num_sequences;
    int32_t lengths[INDEX_BLOCK];
    uint64_t sequence = 0, token = 0;
    WEFT_TRY(weft_file_read(idx, boundaries_at, out, 8 * (size_t)(d->num_documents + 1)));
    for (uint64_t i = 0; i <= d->num_documents; i++) {
        for (; sequence < out[i] && sequence < d->num_sequences; sequence++) {
            const uint64_t in_block = sequence % INDEX_BLOCK;
            if (in_block == 0)
                WEFT_TRY(weft_file_read(idx, WEFT_INDEX_HEADER_BYTES + 4 * sequence, lengths,
                                        4 * block_of(d->num_sequences - sequence)));
            token += (uint64_t)lengths[in_block];
        }
        out[i] = token;
    }
    return token == d->num_tokens
               ? WEFT_OK
               : WEFT_ERROR(WEFT_FILE, "%s.idx: was overwritten while it was read", d->prefix);
}

weft_status weft_dataset_read_documents(const weft_dataset *d, weft_arena *arena, uint64_t **out)
{
    weft_file idx;
    void *memory;
    WEFT_TRY(weft_arena_alloc_array(arena, d->num_documents + 1, sizeof **out, &memory));
    WEFT_TRY(open_part(d->prefix, ".idx", &idx));
    weft_status status = sum_documents(d, &idx, memory);
    weft_file_close(&idx);
    if (status == WEFT_OK)
        *out = memory;
    return status;
}

/* Only the extents of the index are needed after it. */
static weft_status open_files(weft_dataset *d)
{
    size_t bytes = strlen(d->prefix);
    weft_file idx;
    weft_status status = open_part(d->prefix, ".idx", &idx);
    if (status != WEFT_OK) {
        const char *end = d->prefix + (bytes > 4 ? bytes - 4 : 0);
        if (strcmp(end, ".bin") == 0 || strcmp(end, ".idx") == 0)
            return WEFT_ERROR(WEFT_FILE, "%s: give a dataset without its %s", d->prefix, end);
        return has_part(d->prefix, ".bin")
                   ? WEFT_ERROR(WEFT_FILE, WEFT_HALF_A_DATASET, d->prefix, d->prefix)
                   : status;
    }
    status = check_index(d, &idx);
    weft_file_close(&idx);
    return status;
}

weft_status weft_dataset_open(const char *prefix, weft_dataset **out)
{
    weft_dataset *d = calloc(1, sizeof(*d));
    if (d)
        d->prefix = strdup(prefix);
    if (!d || !d->prefix) {
        free(d);
        return WEFT_ERROR(WEFT_MEMORY, "%s: no memory to open it", prefix);
    }
    d->vocab_size = (int64_t)INT32_MAX + 1;
    weft_status status = open_files(d);
    if (status != WEFT_OK) {
        weft_dataset_close(d);
        return status;
    }
    *out = d;
    return WEFT_OK;
}

weft_status weft_dataset_open_mock(uint64_t num_tokens, int32_t vocab_size, uint64_t seed,
                                   weft_dataset **out)
{
    if (vocab_size < 1)
        return WEFT_ERROR(WEFT_CONFIG, "mock data: a vocabulary of %" PRId32, vocab_size);
    weft_dataset *d = calloc(1, sizeof(*d));
    if (d)
        d->prefix = strdup("mock data");
    if (!d || !d->prefix) {
        free(d);
        return WEFT_ERROR(WEFT_MEMORY, "mock data: no memory");
    }
    d->is_mock = true;
    d->token_bytes = sizeof(int32_t);
    d->num_tokens = num_tokens;
    d->num_sequences = 1;
    d->num_documents = 1;
    d->mock_vocab_size = vocab_size;
    d->mock_seed = seed;
    d->mock_stream = weft_rng_stream_of("mock data");
    *out = d;
    return WEFT_OK;
}

weft_status weft_dataset_open_own(weft_sample_function function, const void *own_options,
                                  int64_t vocab_size, weft_dataset **out)
{
    weft_dataset *d = calloc(1, sizeof(*d));
    if (d)
        d->prefix = strdup("the program's own data");
    if (!d || !d->prefix) {
        free(d);
        return WEFT_ERROR(WEFT_MEMORY, "the program's own data: no memory");
    }
    d->fill = function;
    d->own_options = own_options;
    d->own_vocab_size = vocab_size;
    *out = d;
    return WEFT_OK;
}

bool weft_dataset_is_own(const weft_dataset *dataset)
{
    return dataset->fill;
}

void weft_dataset_set_labels(weft_dataset *dataset, bool are_tokens)
{
    dataset->own_labels_are_tokens = are_tokens;
}

static const char *const uses[] = {"training", "validation", "test"};

static weft_status check_ids(const weft_dataset *d, const weft_sample *sample, const char *what,
                             const int32_t *ids)
{
    for (size_t i = 0; i < sample->seq_length; i++)
        if (ids[i] < 0 || ids[i] >= sample->vocab_size)
            return WEFT_ERROR(WEFT_CONFIG,
                              "%s: %s %d at %zu of %s sample %" PRIu64
                              " is outside a vocabulary of %" PRId64,
                              d->prefix, what, (int)ids[i], i, uses[sample->use], sample->index,
                              sample->vocab_size);
    return WEFT_OK;
}

weft_status weft_dataset_fill(const weft_dataset *d, const weft_sample *sample)
{
    weft_sample whole = *sample;
    whole.vocab_size = d->own_vocab_size;
    whole.own_options = d->own_options;
    weft_status status = d->fill(&whole);
    if (status != WEFT_OK)
        return weft_error_context(status, "%s: %s sample %" PRIu64, d->prefix, uses[sample->use],
                                  sample->index);
    WEFT_TRY(check_ids(d, &whole, "token", whole.tokens));
    return d->own_labels_are_tokens ? check_ids(d, &whole, "label", whole.labels) : WEFT_OK;
}

void weft_dataset_close(weft_dataset *dataset)
{
    if (!dataset)
        return;
    weft_file_close(&dataset->bin);
    weft_file_close(&dataset->mask);
    free(dataset->extents);
    free(dataset->prefix);
    free(dataset);
}

bool weft_dataset_has_mask(const weft_dataset *dataset)
{
    return dataset->mask.path;
}

weft_status weft_dataset_read_mask(const weft_dataset *d, uint64_t first, size_t count,
                                   uint8_t *out)
{
    uint8_t bits[512];
    memset(out, 1, count);
    for (size_t done = 0; d->mask.path && done < count;) {
        const uint64_t at = first + done, byte = at / 8;
        const size_t room = 8 * sizeof bits - (size_t)(at % 8), left = count - done;
        const size_t part = left < room ? left : room;
        WEFT_TRY(weft_file_read(&d->mask, byte, bits, (size_t)((at + part + 7) / 8 - byte)));
        for (size_t i = 0; i < part; i++)
            out[done + i] = bits[(at + i) / 8 - byte] >> (at + i) % 8 & 1;
        done += part;
    }
    return WEFT_OK;
}

void weft_dataset_set_vocabulary(weft_dataset *dataset, int64_t vocab_size)
{
    dataset->vocab_size = vocab_size;
}

const weft_dataset_stamps *weft_dataset_get_stamps(const weft_dataset *dataset)
{
    return &dataset->stamps;
}

const char *weft_dataset_name(const weft_dataset *dataset)
{
    return dataset->prefix;
}

uint64_t weft_dataset_num_tokens(const weft_dataset *dataset)
{
    return dataset->num_tokens;
}

uint64_t weft_dataset_num_sequences(const weft_dataset *dataset)
{
    return dataset->num_sequences;
}

uint64_t weft_dataset_num_documents(const weft_dataset *dataset)
{
    return dataset->num_documents;
}

size_t weft_dataset_token_bytes(const weft_dataset *dataset)
{
    return dataset->token_bytes;
}

static void read_mock(const weft_dataset *d, uint64_t first, size_t count, int32_t *out)
{
    for (size_t i = 0; i < count;) {
        uint64_t index = first + i;
        uint32_t words[4];
        weft_rng_block(d->mock_seed, d->mock_stream, index / 4, words);
        for (uint64_t word = index % 4; word < 4 && i < count; word++)
            out[i++] = (int32_t)(((uint64_t)words[word] * (uint64_t)d->mock_vocab_size) >> 32);
    }
}

/* Widens tokens of one type. Returns how many were read before one outside [0, limit), *bad. */
#define WIDEN(type)                                                                                \
    do {                                                                                           \
        const type *tokens = at;                                                                   \
        for (size_t i = 0; i < count; i++) {                                                       \
            int64_t token = (int64_t)tokens[i];                                                    \
            if (token < 0 || token >= limit) {                                                     \
                *bad = token;                                                                      \
                return i;                                                                          \
            }                                                                                      \
            out[i] = (int32_t)token;                                                               \
        }                                                                                          \
        return count;                                                                              \
    } while (0)

static size_t widen(weft_index_dtype dtype, const void *at, size_t count, int64_t limit,
                    int32_t *out, int64_t *bad)
{
    switch (dtype) {
    case WEFT_INDEX_U8:
        WIDEN(uint8_t);
    case WEFT_INDEX_I8:
        WIDEN(int8_t);
    case WEFT_INDEX_U16:
        WIDEN(uint16_t);
    case WEFT_INDEX_I16:
        WIDEN(int16_t);
    case WEFT_INDEX_I32:
        WIDEN(int32_t);
    case WEFT_INDEX_I64:
        WIDEN(int64_t);
    case WEFT_INDEX_F64:
    case WEFT_INDEX_F32:
        break;
    }
    return 0;
}

/* The last extent that starts at or before token `first`. */
static size_t find_extent(const weft_dataset *d, uint64_t first)
{
    size_t low = 0, high = d->num_extents;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (d->extents[middle].first_token <= first)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Tokens from `first` on that lie back to back from `offset_bytes` on. */
static weft_status read_run(const weft_dataset *d, uint64_t first, uint64_t offset_bytes,
                            size_t count, int32_t *out)
{
    int64_t block[2048]; /* aligned for every type of token */
    for (size_t done = 0, part; done < count; done += part) {
        part = sizeof block / d->token_bytes;
        if (part > count - done)
            part = count - done;
        WEFT_TRY(weft_file_read(&d->bin, offset_bytes + done * d->token_bytes, block,
                                part * d->token_bytes));
        int64_t bad = 0;
        size_t read = widen(d->dtype, block, part, d->vocab_size, out + done, &bad);
        if (read < part && d->vocab_size > INT32_MAX)
            return WEFT_ERROR(WEFT_FILE, "%s.bin: token %" PRIu64 " is outside [0, 2^31)",
                              d->prefix, first + done + read);
        if (read < part)
            return WEFT_ERROR(WEFT_FILE,
                              "%s.bin: token %" PRIu64 " is %" PRId64
                              ", outside a vocabulary of %" PRId64,
                              d->prefix, first + done + read, bad, d->vocab_size);
    }
    return WEFT_OK;
}

weft_status weft_dataset_read(const weft_dataset *d, uint64_t first, size_t count, int32_t *out)
{
    if (first > d->num_tokens || count > d->num_tokens - first)
        return WEFT_ERROR(WEFT_INTERNAL, "%s: tokens %" PRIu64 " to %" PRIu64 " of %" PRIu64,
                          d->prefix, first, first + count, d->num_tokens);
    if (d->is_mock) {
        read_mock(d, first, count, out);
        return WEFT_OK;
    }
    for (size_t e = count > 0 ? find_extent(d, first) : 0; count > 0; e++) {
        uint64_t end = e + 1 < d->num_extents ? d->extents[e + 1].first_token : d->num_tokens;
        size_t part = end - first < count ? (size_t)(end - first) : count;
        uint64_t skipped = first - d->extents[e].first_token;
        WEFT_TRY(
            read_run(d, first, d->extents[e].offset_bytes + skipped * d->token_bytes, part, out));
        first += part;
        out += part;
        count -= part;
    }
    return WEFT_OK;
}
