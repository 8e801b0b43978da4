/* Spill files of tests: aligned memory with bytes that tell what they are. */
#ifndef WEFT_TESTS_PARALLEL_SPILL_SAMPLE_H
#define WEFT_TESTS_PARALLEL_SPILL_SAMPLE_H

#include <stdlib.h>

#include "core/log.h"
#include "parallel/spill/internal.h"
#include "tests/core/temporary.h"

enum { NUM_LABELS = 8 };
static const char *const spill_labels[NUM_LABELS] = {
    "rank 1, layer 3, expert 0", "rank 1, layer 3, expert 1", "rank 1, layer 3, expert 2",
    "rank 1, layer 3, expert 3", "rank 1, layer 3, expert 4", "rank 1, layer 3, expert 5",
    "rank 1, layer 3, expert 6", "rank 1, layer 3, expert 7"};

static inline void *spill_memory(size_t bytes)
{
    void *memory = aligned_alloc(WEFT_SPILL_ALIGN, weft_spill_padded_bytes(bytes));
    assert_non_null(memory);
    return memory;
}

/* Other bytes for each number; those of a thread are its own. */
static inline void spill_fill(void *memory, size_t bytes, uint64_t number)
{
    uint64_t x = number * 0x9e3779b97f4a7c15u + 1;
    unsigned char *at = memory;
    for (size_t i = 0; i < bytes; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        at[i] = (unsigned char)x;
    }
}

/* Two parts of odd sizes, in pieces of 8 KiB, two of a batch under way. */
static inline weft_spill_options spill_options(weft_spill_io io)
{
    return (weft_spill_options){
        .folder = temporary_folder,
        .num_records = NUM_LABELS,
        .num_parts = 2,
        .parts = {{"weights", 20001}, {"state", 40000}},
        .labels = spill_labels,
        .io = io,
        .piece_bytes = 8192,
        .queue_depth = 2,
    };
}

/* Whether io_uring works on this machine. Where it does not, its runs are left out, and say so. */
static inline bool spill_io_works(weft_spill_io io)
{
    weft_spill *spill = NULL;
    weft_spill_options options = spill_options(io);
    weft_status status = weft_spill_create(&options, &spill);
    weft_spill_destroy(spill);
    if (status == WEFT_OK)
        return true;
    assert_int_equal(io, WEFT_SPILL_URING);
    assert_int_equal(status, WEFT_CONFIG);
    print_message("left out: %s\n", weft_error_get()->text);
    weft_error_clear();
    return false;
}

#endif
