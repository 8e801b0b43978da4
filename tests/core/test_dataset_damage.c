/* Damaged and foreign dataset files: refused by name, or read right. */
#include "core/dataset/dataset.h"
#include "tests/core/indexed_file.h"
#include "tests/core/temporary.h"

enum { NUM_SEQUENCES = 5, NUM_TOKENS = 40, DTYPE = 17, SEQUENCES = 18, DOCUMENTS = 26 };
enum { LENGTHS = 34, OFFSETS = LENGTHS + 4 * NUM_SEQUENCES, ENDS = OFFSETS + 8 * NUM_SEQUENCES };

static indexed_bytes good_idx, good_bin;

static void make_good(void)
{
    static const int lengths[] = {9, 1, 10, 12, 8}, offsets[] = {0, 18, 20, 40, 64};
    static const int ends[] = {0, 2, 3, 5};
    good_bin.bytes = 0;
    for (int i = 0; i < NUM_TOKENS; i++)
        put_number(&good_bin, (uint64_t)(i * i), 2);
    put_index(&good_idx, 8, NUM_SEQUENCES, lengths, offsets, 4, ends);
}

/* Writes the index and the tokens (NULL: as they are), opens them and, where that works, reads
 * everything. */
static weft_status open_and_read(const unsigned char *idx, size_t idx_bytes,
                                 const unsigned char *bin, size_t bin_bytes, int32_t *tokens,
                                 uint64_t *num_tokens)
{
    temporary_write(temporary_path("d.idx"), idx, idx_bytes);
    if (bin)
        temporary_write(temporary_path("d.bin"), bin, bin_bytes);
    weft_dataset *dataset;
    weft_status status = weft_dataset_open(temporary_path("d"), &dataset);
    if (status != WEFT_OK)
        return status;
    *num_tokens = weft_dataset_num_tokens(dataset);
    assert_in_range(*num_tokens, 0, NUM_TOKENS * 2);
    status = weft_dataset_read(dataset, 0, *num_tokens, tokens);
    weft_dataset_close(dataset);
    return status;
}

/* A number written over the index, and what is then said about it. */
typedef struct damage {
    size_t at;
    uint64_t value;
    int bytes;
    const char *text;
} damage;

static const damage damages[] = {
    {0, 'm', 1, "d.idx: not a Megatron index"},
    {8, 1, 1, "d.idx: not a Megatron index"},
    {9, 2, 8, "d.idx: version 2; this reader knows version 1"},
    {DTYPE, 0, 1, "d.idx: unknown dtype code 0"},
    {DTYPE, 9, 1, "d.idx: unknown dtype code 9"},
    {DTYPE, 6, 1, "d.idx: holds floating-point numbers"},
    {DTYPE, 7, 1, "d.idx: holds floating-point numbers"},
    {DTYPE, 4, 1, "d.idx: sequence 1 starts at byte 18, inside a token of 4 bytes"},
    {DTYPE, 5, 1, "d.idx: sequence 1 starts at byte 18, inside a token of 8 bytes"},
    {SEQUENCES, 6, 8, "d.idx: 126 bytes, where 6 sequences and 4 document boundaries make 138"},
    {SEQUENCES, 4, 8, "d.idx: 126 bytes, where 4 sequences and 4 document boundaries make 114"},
    {SEQUENCES, UINT64_MAX, 8, "d.idx: cut short"},
    {SEQUENCES, UINT64_C(1) << 61, 8, "d.idx: cut short"},
    {DOCUMENTS, 3, 8, "d.idx: 126 bytes, where 5 sequences and 3 document boundaries make 118"},
    {DOCUMENTS, 0, 8, "d.idx: 126 bytes"},
    {DOCUMENTS, UINT64_C(1) << 63, 8, "d.idx: cut short"},
    {LENGTHS, 0xffffffff, 4, "d.idx: sequence 0 has -1 tokens"},
    {LENGTHS, 10, 4, "d.idx: sequence 1 starts at byte 18, before the one ahead of it ends (20)"},
    {LENGTHS + 16, 9, 4, "d.bin: 80 bytes; sequence 4 should lie at 64 with 18 bytes"},
    {LENGTHS + 16, 0x7fffffff, 4, "d.bin: 80 bytes; sequence 4 should lie at 64 with"},
    {OFFSETS + 8, 19, 8, "d.idx: sequence 1 starts at byte 19, inside a token of 2 bytes"},
    {OFFSETS + 16, 16, 8, "d.idx: sequence 2 starts at byte 16, before the one ahead of it ends"},
    {OFFSETS + 32, UINT64_MAX - 1, 8, "d.bin: 80 bytes; sequence 4 should lie at"},
    {ENDS, 1, 8, "d.idx: document boundary 0 is 1, outside [0, 0]"},
    {ENDS + 8, 4, 8, "d.idx: document boundary 2 is 3, outside [4, 5]"},
    {ENDS + 16, UINT64_MAX, 8, "d.idx: document boundary 2 is"},
    {ENDS + 24, 4, 8, "d.idx: the documents end at sequence 4 of 5"},
    {ENDS + 24, 6, 8, "d.idx: document boundary 3 is 6, outside [3, 5]"},
};

CASE(every_field_is_checked)
{
    int32_t tokens[2 * NUM_TOKENS];
    uint64_t count;
    make_good();
    assert_int_equal(good_idx.bytes, 126);
    OK(open_and_read(good_idx.data, good_idx.bytes, good_bin.data, good_bin.bytes, tokens, &count));
    assert_int_equal(count, NUM_TOKENS);
    for (size_t k = 0; k < sizeof damages / sizeof *damages; k++) {
        indexed_bytes idx = good_idx;
        idx.bytes = damages[k].at;
        put_number(&idx, damages[k].value, damages[k].bytes);
        FAILS(
            open_and_read(idx.data, good_idx.bytes, good_bin.data, good_bin.bytes, tokens, &count),
            WEFT_FILE, damages[k].text);
    }
}

/* The files are a few hundred bytes, so every length is tried, not only some. */
CASE(cut_files_are_refused_or_read_right)
{
    int32_t tokens[2 * NUM_TOKENS];
    uint64_t count;
    make_good();
    for (size_t bytes = 0; bytes < good_idx.bytes; bytes++)
        FAILS(open_and_read(good_idx.data, bytes, good_bin.data, good_bin.bytes, tokens, &count),
              WEFT_FILE, "d.idx: ");
    for (size_t bytes = 0; bytes < good_bin.bytes; bytes++)
        FAILS(open_and_read(good_idx.data, good_idx.bytes, good_bin.data, bytes, tokens, &count),
              WEFT_FILE, "d.bin: ");
    /* Longer: an index has an exact length; tokens that no sequence claims are not read. */
    good_idx.bytes++;
    FAILS(
        open_and_read(good_idx.data, good_idx.bytes, good_bin.data, good_bin.bytes, tokens, &count),
        WEFT_FILE, "d.idx: 127 bytes");
    good_idx.bytes--;
    put_number(&good_bin, 77, 2);
    OK(open_and_read(good_idx.data, good_idx.bytes, good_bin.data, good_bin.bytes, tokens, &count));
    assert_int_equal(count, NUM_TOKENS);
    for (int i = 0; i < NUM_TOKENS; i++)
        assert_int_equal(tokens[i], i * i);
}

CASE(foreign_files_are_refused_by_name)
{
    weft_dataset *dataset;
    static const char text[] = "First Citizen:\nBefore we proceed any further, hear me speak.\n";
    make_good();
    temporary_write(temporary_path("play.idx"), text, sizeof(text));
    temporary_write(temporary_path("play.bin"), text, sizeof(text));
    FAILS(weft_dataset_open(temporary_path("play"), &dataset), WEFT_FILE,
          "play.idx: not a Megatron index (it does not start with MMIDIDX)");
    temporary_write(temporary_path("none.idx"), "", 0);
    temporary_write(temporary_path("none.bin"), "", 0);
    FAILS(weft_dataset_open(temporary_path("none"), &dataset), WEFT_FILE,
          "none.idx: 0 bytes are too few for an index");
    FAILS(weft_dataset_open(temporary_path("absent"), &dataset), WEFT_FILE,
          "absent.idx: No such file");
    temporary_write(temporary_path("half.idx"), good_idx.data, good_idx.bytes);
    FAILS(weft_dataset_open(temporary_path("half"), &dataset), WEFT_FILE, "half.bin: No such file");
    FAILS(weft_dataset_open(temporary_path("half.idx"), &dataset), WEFT_FILE,
          "half.idx: give a dataset without its .idx");
    assert_int_equal(mkdir(temporary_path("folder.idx"), 0700), 0);
    FAILS(weft_dataset_open(temporary_path("folder"), &dataset), WEFT_FILE,
          "folder.idx: not a regular file");
    assert_int_equal(mkfifo(temporary_path("pipe.idx"), 0600), 0);
    FAILS(weft_dataset_open(temporary_path("pipe"), &dataset), WEFT_FILE,
          "pipe.idx: not a regular file");
    char *name = malloc(6000);
    memset(name, 'x', 5999);
    name[5999] = '\0';
    FAILS(weft_dataset_open(name, &dataset), WEFT_FILE, "too long");
    free(name);
}

/* A dataset of nothing is a file in order, and every split of it says that it is too small. */
CASE(an_empty_dataset_opens)
{
    weft_dataset *dataset;
    weft_dataset_writer *writer;
    weft_split split[3];
    int32_t max;
    OK(weft_dataset_writer_create(temporary_path("empty"), 10, &writer));
    OK(weft_dataset_writer_finish(writer));
    OK(weft_dataset_writer_commit(writer));
    weft_dataset_writer_destroy(writer);
    OK(weft_dataset_open(temporary_path("empty"), &dataset));
    assert_int_equal(weft_dataset_num_tokens(dataset), 0);
    assert_int_equal(weft_dataset_num_documents(dataset), 0);
    OK(find_max_token(dataset, &max));
    FAILS(weft_dataset_split(dataset, 4, 0, (double[]){1, 0, 0}, split), WEFT_CONFIG,
          "empty: 0 tokens make 0 samples");
    weft_dataset_close(dataset);
    weft_dataset_close(NULL);
}

AROUND(.set_up = temporary_create, .tear_down = temporary_remove)
