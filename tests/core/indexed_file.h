/* Writes Megatron's indexed format byte by byte, from its description alone: the tests' reference
 * for the reader and the writer. */
#ifndef WEFT_TESTS_CORE_INDEXED_FILE_H
#define WEFT_TESTS_CORE_INDEXED_FILE_H

#include <stdint.h>
#include <string.h>

#include "core/dataset/dataset.h"

enum { INDEXED_CAPACITY = 1 << 16 };

typedef struct indexed_bytes {
    unsigned char data[INDEXED_CAPACITY];
    size_t bytes;
} indexed_bytes;

static inline void put_number(indexed_bytes *b, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        b->data[b->bytes++] = (unsigned char)(value >> (8 * i));
}

/* Sequence lengths, byte offsets and document boundaries as they are given. */
static inline void put_index(indexed_bytes *b, int dtype, int sequences, const int *lengths,
                             const int *offsets, int num_boundaries, const int *boundaries)
{
    static const char magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
    b->bytes = 0;
    for (int i = 0; i < 9; i++)
        put_number(b, (unsigned char)magic[i], 1);
    put_number(b, 1, 8);
    put_number(b, (uint64_t)dtype, 1);
    put_number(b, (uint64_t)sequences, 8);
    put_number(b, (uint64_t)num_boundaries, 8);
    for (int i = 0; i < sequences; i++)
        put_number(b, (uint64_t)(int64_t)lengths[i], 4);
    for (int i = 0; i < sequences; i++)
        put_number(b, (uint64_t)(int64_t)offsets[i], 8);
    for (int i = 0; i < num_boundaries; i++)
        put_number(b, (uint64_t)(int64_t)boundaries[i], 8);
}

/* Reads all tokens. */
static inline weft_status find_max_token(const weft_dataset *dataset, int32_t *out)
{
    int32_t token;
    *out = 0;
    for (uint64_t i = 0; i < weft_dataset_num_tokens(dataset); i++) {
        WEFT_TRY(weft_dataset_read(dataset, i, 1, &token));
        *out = token > *out ? token : *out;
    }
    return WEFT_OK;
}

#endif
