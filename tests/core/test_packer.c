/* Documents packed in sequences: every token once, no document cut that fits, as few sequences as
 * best fit decreasing by its definition needs, and a mask. */

#include "core/dataset/dataset.h"
#include "tests/core/temporary.h"

enum { LENGTH = 50, DOCUMENTS = 400, EOD = 0, MAX_TOKENS = 1 << 16 };

static uint32_t drawn = 1;

static uint32_t draw(uint32_t below)
{
    drawn = drawn * 1664525 + 1013904223;
    return (drawn >> 8) % below;
}

/* Each piece into the fullest sequence that has room for it, the largest piece first. */
static int count_sequences(const int *lengths)
{
    int pieces[4 * DOCUMENTS], rooms[4 * DOCUMENTS], count = 0, used = 0;
    for (int d = 0; d < DOCUMENTS; d++)
        for (int left = lengths[d]; left > 0; left -= LENGTH)
            pieces[count++] = left < LENGTH ? left : LENGTH;
    for (int size = LENGTH; size > 0; size--)
        for (int i = 0; i < count; i++) {
            int best = -1;
            for (int b = 0; pieces[i] == size && b < used; b++)
                if (rooms[b] >= size && (best < 0 || rooms[b] < rooms[best]))
                    best = b;
            if (pieces[i] == size && best < 0)
                rooms[best = used++] = LENGTH;
            if (best >= 0)
                rooms[best] -= size;
        }
    return used;
}

/* Document d is d + 1 until its end; lengths of up to three sequences, most of them short. */
static void write_packed(const char *path, int *lengths, weft_packing *out)
{
    weft_dataset_writer *writer;
    weft_packer *packer;
    int32_t tokens[3 * LENGTH], bears[3 * LENGTH];
    OK(weft_dataset_writer_create(path, DOCUMENTS + 1, &writer));
    OK(weft_dataset_writer_mask(writer));
    OK(weft_packer_create(writer, LENGTH, EOD, &packer));
    for (int d = 0; d < DOCUMENTS; d++) {
        lengths[d] = 1 + (int)draw(d % 5 == 0 ? 3 * LENGTH : LENGTH / 2);
        for (int i = 0; i < lengths[d]; i++) {
            tokens[i] = i + 1 < lengths[d] ? d + 1 : EOD;
            bears[i] = d % 3 > 0;
        }
        OK(weft_packer_add(packer, tokens, d % 3 > 1 ? NULL : bears, (size_t)lengths[d]));
    }
    OK(weft_packer_finish(packer, out));
    OK(weft_dataset_writer_finish(writer));
    OK(weft_dataset_writer_commit(writer));
    weft_packer_destroy(packer);
    weft_dataset_writer_destroy(writer);
}

/* Counts what of each document stands in a sequence; returns its pads. */
static int read_sequence(const int32_t *tokens, const uint8_t *mask, int *seen, int *parts)
{
    int pads = 0;
    for (int i = 0; i < LENGTH; i++) {
        const bool begins = i == 0 || tokens[i - 1] == EOD;
        if (tokens[i] == EOD) { /* one token of a document's end, or a pad */
            pads += begins;
            assert_true(!begins || !mask[i]);
            continue;
        }
        const int d = tokens[i] - 1;
        seen[d]++;
        parts[d] += begins;
        assert_true(begins || tokens[i - 1] == tokens[i]);
        assert_int_equal(mask[i], !begins && d % 3 > 0);
    }
    return pads;
}

CASE(documents_are_packed_by_best_fit)
{
    static int32_t tokens[MAX_TOKENS];
    static uint8_t mask[MAX_TOKENS];
    int lengths[DOCUMENTS], seen[DOCUMENTS] = {0}, parts[DOCUMENTS] = {0};
    int pads = 0, cut = 0, total = 0, single = 0;
    weft_packing packing;
    weft_dataset *dataset;
    write_packed(temporary_path("packed"), lengths, &packing);
    OK(weft_dataset_open(temporary_path("packed"), &dataset));
    const size_t count = weft_dataset_num_tokens(dataset);
    assert_int_equal(packing.num_sequences, count_sequences(lengths));
    assert_int_equal(count, packing.num_sequences * LENGTH + 1);
    OK(weft_dataset_read(dataset, 0, count, tokens));
    OK(weft_dataset_read_mask(dataset, 0, count, mask));
    for (size_t s = 0; s + 1 < count; s += LENGTH)
        pads += read_sequence(tokens + s, mask + s, seen, parts);
    for (int d = 0; d < DOCUMENTS; d++) {
        assert_int_equal(seen[d], lengths[d] - 1);
        assert_true(lengths[d] > LENGTH || parts[d] <= 1);
        cut += lengths[d] > LENGTH;
        total += lengths[d];
        single += lengths[d] % LENGTH == 1; /* an end alone, in a sequence of its own or so */
    }
    assert_int_equal(packing.num_cut, cut);
    assert_int_equal(packing.num_pads, count - 1 - (size_t)total);
    assert_in_range(pads, packing.num_pads, packing.num_pads + (size_t)single);
    weft_dataset_close(dataset);
}

AROUND(.set_up = temporary_create, .tear_down = temporary_remove)
