#include <errno.h>
#include <sys/syscall.h>

#include "core/dataset/dataset.h"
#include "tests/core/indexed_file.h"
#include "tests/core/temporary.h"

/* What the system's reads do: all that is asked, or every other one is interrupted and the rest
 * give at most three bytes, or none works. */
static enum { WHOLE, IN_BITS, FAILING } reads;

ssize_t pread(int file, void *to, size_t bytes, off_t at)
{
    static int calls;
    if (reads == FAILING || (reads == IN_BITS && calls++ % 2 == 0)) {
        errno = reads == FAILING ? EIO : EINTR;
        return -1;
    }
    return syscall(SYS_pread64, file, to, reads == IN_BITS && bytes > 3 ? 3 : bytes, at);
}

/* Three sequences of 5, 0 and 7 tokens, then one of 4 behind a gap, in two documents. */
static const int lengths[] = {5, 0, 7, 4};
static const int boundaries[] = {0, 2, 4};
enum { NUM_SEQUENCES = 4, NUM_TOKENS = 16, GAP = 3 };

static int32_t sample_token(int i)
{
    return (i * 37 + 11) % 120;
}

static indexed_bytes idx, bin;

static void write_pair(const char *prefix)
{
    char path[300];
    snprintf(path, sizeof(path), "%s.idx", prefix);
    temporary_write(path, idx.data, idx.bytes);
    snprintf(path, sizeof(path), "%s.bin", prefix);
    temporary_write(path, bin.data, bin.bytes);
}

static void make_sample(int dtype, int token_bytes)
{
    int offsets[NUM_SEQUENCES], token = 0;
    bin.bytes = 0;
    for (int s = 0; s < NUM_SEQUENCES; s++) {
        if (s == 3) {
            for (int i = 0; i < GAP; i++)
                put_number(&bin, 0x7f, token_bytes);
        }
        offsets[s] = (int)bin.bytes;
        for (int i = 0; i < lengths[s]; i++)
            put_number(&bin, (uint64_t)sample_token(token++), token_bytes);
    }
    put_index(&idx, dtype, NUM_SEQUENCES, lengths, offsets, 3, boundaries);
}

CASE(every_dtype_reads)
{
    static const int dtypes[][2] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
        const char *prefix = temporary_path("dtype");
        make_sample(dtypes[k][0], dtypes[k][1]);
        if (k % 2) { /* a multimodal file has a mode for each sequence at its end */
            for (int i = 0; i < NUM_SEQUENCES; i++)
                put_number(&idx, 1, 1);
        }
        write_pair(prefix);
        weft_dataset *dataset;
        reads = k % 3 ? IN_BITS : WHOLE;
        OK(weft_dataset_open(prefix, &dataset));
        assert_string_equal(weft_dataset_name(dataset), prefix);
        assert_int_equal(weft_dataset_num_tokens(dataset), NUM_TOKENS);
        assert_int_equal(weft_dataset_num_sequences(dataset), NUM_SEQUENCES);
        assert_int_equal(weft_dataset_num_documents(dataset), 2);
        assert_int_equal(weft_dataset_token_bytes(dataset), dtypes[k][1]);
        int32_t max = 0, wanted = 0;
        for (int first = 0; first <= NUM_TOKENS; first++) {
            for (int count = 0; first + count <= NUM_TOKENS; count++) {
                int32_t tokens[NUM_TOKENS + 1];
                memset(tokens, 0xff, sizeof(tokens));
                OK(weft_dataset_read(dataset, (uint64_t)first, (size_t)count, tokens));
                for (int i = 0; i < count; i++)
                    assert_int_equal(tokens[i], sample_token(first + i));
                assert_int_equal(tokens[count], -1);
            }
        }
        for (int i = 0; i < NUM_TOKENS; i++)
            wanted = sample_token(i) > wanted ? sample_token(i) : wanted;
        OK(find_max_token(dataset, &max));
        assert_int_equal(max, wanted);
        int32_t token;
        FAILS(weft_dataset_read(dataset, NUM_TOKENS, 1, &token), WEFT_INTERNAL, "of 16");
        FAILS(weft_dataset_read(dataset, 1, SIZE_MAX, &token), WEFT_INTERNAL, "of 16");
        weft_dataset_close(dataset);
        reads = WHOLE;
    }
}

/* Under a run that has opened it. */
CASE(a_file_that_gets_shorter_or_fails_is_named)
{
    const char *prefix = temporary_path("shrinks");
    weft_dataset *dataset;
    int32_t tokens[NUM_TOKENS];
    make_sample(8, 2);
    write_pair(prefix);
    OK(weft_dataset_open(prefix, &dataset));
    OK(weft_dataset_read(dataset, 0, NUM_TOKENS, tokens));
    assert_int_equal(truncate(temporary_path("shrinks.bin"), 9), 0);
    OK(weft_dataset_read(dataset, 0, 4, tokens));
    FAILS(weft_dataset_read(dataset, 2, 6, tokens), WEFT_FILE,
          "shrinks.bin: cut short: it ends before byte 9");
    FAILS(weft_dataset_read(dataset, 12, 4, tokens), WEFT_FILE,
          "shrinks.bin: cut short: it ends before byte 30");
    reads = FAILING;
    FAILS(weft_dataset_read(dataset, 1, 2, tokens), WEFT_FILE,
          "shrinks.bin: cannot read at byte 2: Input/output error");
    reads = WHOLE;
    weft_dataset_close(dataset);
}

CASE(tokens_out_of_range_are_refused)
{
    static const int one[] = {2}, zero[] = {0}, ends[] = {0, 1};
    static const struct {
        int dtype, bytes;
        uint64_t token;
    } cases[] = {{2, 1, 0xff}, {3, 2, 0x8000}, {4, 4, 0xffffffff}, {5, 8, UINT64_C(1) << 31}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const char *prefix = temporary_path("negative");
        weft_dataset *dataset;
        int32_t tokens[2];
        bin.bytes = 0;
        put_number(&bin, 5, cases[k].bytes);
        put_number(&bin, cases[k].token, cases[k].bytes);
        put_index(&idx, cases[k].dtype, 1, one, zero, 2, ends);
        write_pair(prefix);
        OK(weft_dataset_open(prefix, &dataset));
        OK(weft_dataset_read(dataset, 0, 1, tokens));
        FAILS(weft_dataset_read(dataset, 0, 2, tokens), WEFT_FILE,
              "negative.bin: token 1 is outside [0, 2^31)");
        FAILS(find_max_token(dataset, tokens), WEFT_FILE, "negative.bin: token 1");
        weft_dataset_close(dataset);
    }
}

static void same_bytes(const char *path, const indexed_bytes *wanted)
{
    size_t bytes;
    unsigned char *data = temporary_read(path, &bytes);
    assert_int_equal(bytes, wanted->bytes);
    assert_memory_equal(data, wanted->data, bytes);
    free(data);
}

/* Documents of 3, 0 and 9000 tokens, more than the writer's buffer. */
CASE(the_writer_writes_the_format)
{
    static const int counts[] = {3, 0, 9000}, ends[] = {0, 1, 2, 3};
    static const int64_t vocabularies[] = {65499, 65500};
    for (int wide = 0; wide < 2; wide++) {
        const char *prefix = temporary_path("written");
        weft_dataset_writer *writer;
        static int32_t tokens[9000];
        int width = wide ? 4 : 2, offsets[3] = {0, 3 * width, 3 * width};
        OK(weft_dataset_writer_create(prefix, vocabularies[wide], &writer));
        bin.bytes = 0;
        for (int d = 0; d < 3; d++) {
            for (int i = 0; i < counts[d]; i++) {
                tokens[i] = (i * 7919 + d) % 65499;
                put_number(&bin, (uint64_t)tokens[i], width);
            }
            OK(weft_dataset_writer_add(writer, tokens, (size_t)counts[d]));
        }
        int32_t outside = (int32_t)vocabularies[wide], negative = -1;
        FAILS(weft_dataset_writer_add(writer, &outside, 1), WEFT_CONFIG, "outside the vocabulary");
        FAILS(weft_dataset_writer_add(writer, &negative, 1), WEFT_CONFIG, "token -1 of document 3");
        OK(weft_dataset_writer_finish(writer));
        OK(weft_dataset_writer_commit(writer));
        FAILS(weft_dataset_writer_finish(writer), WEFT_INTERNAL, "finished twice");
        weft_dataset_writer_destroy(writer);
        put_index(&idx, wide ? 4 : 8, 3, counts, offsets, 4, ends);
        same_bytes(temporary_path("written.bin"), &bin);
        same_bytes(temporary_path("written.idx"), &idx);
        weft_dataset *dataset;
        int32_t back[2];
        OK(weft_dataset_open(prefix, &dataset));
        OK(weft_dataset_read(dataset, 9001, 2, back));
        assert_int_equal(back[0], (8998 * 7919 + 2) % 65499);
        assert_int_equal(back[1], (8999 * 7919 + 2) % 65499);
        weft_dataset_close(dataset);
    }
}

CASE(an_unfinished_write_leaves_nothing)
{
    static const int32_t tokens[] = {1, 2, 3};
    weft_dataset_writer *writer;
    const char *folder = temporary_path("unfinished");
    assert_int_equal(mkdir(folder, 0700), 0);
    OK(weft_dataset_writer_create(temporary_path("unfinished/a"), 10, &writer));
    OK(weft_dataset_writer_add(writer, tokens, 3));
    assert_int_not_equal(access(temporary_path("unfinished/a.bin"), F_OK), 0);
    weft_dataset_writer_destroy(writer);
    weft_dataset_writer_destroy(NULL);
    assert_int_equal(rmdir(folder), 0);
    FAILS(weft_dataset_writer_create(temporary_path("unfinished/a"), 10, &writer), WEFT_FILE,
          "unfinished/a.bin");
    FAILS(weft_dataset_writer_create("x", 0, &writer), WEFT_CONFIG, "a vocabulary of 0");
}

CASE(splits_follow_the_weights)
{
    weft_dataset *dataset;
    weft_split split[3];
    OK(weft_dataset_open_mock(10 * 1000 + 1, 50, 1, &dataset));
    OK(weft_dataset_split(dataset, 10, 0, (double[]){969, 30, 1}, split));
    assert_int_equal(split[0].first_sample, 0);
    assert_int_equal(split[0].num_samples, 969);
    assert_int_equal(split[1].first_sample, 969);
    assert_int_equal(split[1].num_samples, 30);
    assert_int_equal(split[2].first_sample, 999);
    assert_int_equal(split[2].num_samples, 1);
    /* Whatever has a weight gets a sample; what has none gets none. */
    static const double weights[][3] = {{1, 0, 0},   {0, 0, 1},      {0, 1, 0},   {1e9, 1, 1},
                                        {1, 1, 1e9}, {1, 1e9, 1},    {1e9, 0, 1}, {1, 0, 1e9},
                                        {0, 1e9, 1}, {0.5, 0.3, 0.2}};
    for (size_t k = 0; k < sizeof weights / sizeof *weights; k++) {
        OK(weft_dataset_split(dataset, 10, 0, weights[k], split));
        uint64_t next = 0;
        for (int i = 0; i < 3; i++) {
            assert_int_equal(split[i].first_sample, next);
            assert_int_equal(split[i].num_samples > 0, weights[k][i] > 0);
            assert_int_equal(split[i].seq_length, 10);
            next += split[i].num_samples;
        }
        assert_int_equal(next, 1000);
    }
    OK(weft_dataset_split(dataset, 3333, 0, (double[]){98, 1, 1}, split));
    for (int i = 0; i < 3; i++)
        assert_int_equal(split[i].num_samples, 1);
    FAILS(weft_dataset_split(dataset, 3334, 0, (double[]){98, 1, 1}, split), WEFT_CONFIG,
          "10001 tokens make 2 samples of 3334 + 1 tokens; 3 splits want one each");
    FAILS(weft_dataset_split(dataset, 10001, 0, (double[]){1, 0, 0}, split), WEFT_CONFIG,
          "make 0 samples");
    FAILS(weft_dataset_split(dataset, 0, 0, (double[]){1, 0, 0}, split), WEFT_CONFIG,
          "samples of 0");
    FAILS(weft_dataset_split(dataset, 10, 0, (double[]){0, 0, 0}, split), WEFT_CONFIG, "sum to 0");
    FAILS(weft_dataset_split(dataset, 10, 0, (double[]){2, -1, 0}, split), WEFT_CONFIG,
          "weight -1");
    weft_dataset_close(dataset);
}

enum { LENGTH = 4, SAMPLES = 101 };

/* A dataset in which token i is i, so that a sample tells where it came from. */
static weft_dataset *counting_dataset(void)
{
    weft_dataset_writer *writer;
    weft_dataset *dataset;
    int32_t tokens[LENGTH * SAMPLES + 1];
    for (int i = 0; i <= LENGTH * SAMPLES; i++)
        tokens[i] = i;
    OK(weft_dataset_writer_create(temporary_path("counting"), 1000, &writer));
    OK(weft_dataset_writer_add(writer, tokens, 150)); /* documents do not end samples */
    OK(weft_dataset_writer_add(writer, tokens + 150, LENGTH * SAMPLES + 1 - 150));
    OK(weft_dataset_writer_finish(writer));
    OK(weft_dataset_writer_commit(writer));
    weft_dataset_writer_destroy(writer);
    OK(weft_dataset_open(temporary_path("counting"), &dataset));
    return dataset;
}

/* Where the run's sample `number` stands in the file. */
static int read_sample(const weft_split *split, uint64_t seed, bool shuffle, uint64_t number)
{
    int32_t tokens[LENGTH], labels[LENGTH];
    OK(weft_split_read(split, seed, shuffle, number, tokens, labels));
    assert_int_equal(tokens[0] % LENGTH, 0);
    for (int i = 0; i < LENGTH; i++) {
        assert_int_equal(tokens[i], tokens[0] + i);
        assert_int_equal(labels[i], tokens[0] + i + 1);
    }
    return tokens[0] / LENGTH;
}

/* Samples of any length that divides a block give the tokens the same order. */
CASE(blocks_fix_the_order_of_tokens)
{
    enum { BLOCK = 60, TOKENS = 1801 };
    static int32_t order[2][3 * TOKENS], labels[BLOCK];
    weft_dataset *dataset;
    OK(weft_dataset_open_mock(TOKENS, 1000000, 1, &dataset));
    for (int longer = 0; longer < 2; longer++) {
        const int length = longer ? 30 : 12;
        weft_split split[3];
        OK(weft_dataset_split(dataset, length, BLOCK, (double[]){8, 1, 1}, split));
        assert_int_equal(split[0].num_samples * (uint64_t)length, 24 * BLOCK);
        assert_int_equal(split[1].first_sample * (uint64_t)length, 24 * BLOCK);
        for (int i = 0; i < 2 * 24 * BLOCK / length; i++)
            OK(weft_split_read(&split[0], 7, true, (uint64_t)i, order[longer] + i * length,
                               labels));
    }
    assert_memory_equal(order[0], order[1], 2 * 24 * BLOCK * sizeof(int32_t));
    assert_memory_not_equal(order[0], order[0] + 24 * BLOCK, 24 * BLOCK * sizeof(int32_t));
    weft_split split[3];
    FAILS(weft_dataset_split(dataset, 7, BLOCK, (double[]){8, 1, 1}, split), WEFT_CONFIG,
          "blocks of 60 tokens hold no whole number of 7");
    FAILS(weft_dataset_split(dataset, 6, 900, (double[]){8, 1, 1}, split), WEFT_CONFIG,
          "make 2 blocks of 900 + 1 tokens; 3 splits want one each");
    weft_dataset_close(dataset);
}

CASE(each_epoch_takes_every_sample_once)
{
    weft_dataset *dataset = counting_dataset();
    weft_split split[3];
    OK(weft_dataset_split(dataset, LENGTH, 0, (double[]){80, 21, 0}, split));
    enum { EPOCHS = 4, SEEDS = 3 };
    static int order[SEEDS][EPOCHS][SAMPLES];
    for (int part = 0; part < 2; part++) {
        int n = (int)split[part].num_samples;
        for (int seed = 0; seed < SEEDS; seed++) {
            for (int epoch = 0; epoch < EPOCHS; epoch++) {
                bool seen[SAMPLES] = {false};
                for (int i = 0; i < n; i++) {
                    int at =
                        read_sample(&split[part], (uint64_t)seed, true, (uint64_t)(epoch * n + i));
                    assert_in_range(at, split[part].first_sample,
                                    split[part].first_sample + split[part].num_samples - 1);
                    assert_false(seen[at]);
                    seen[at] = true;
                    order[seed][epoch][i] = at;
                }
            }
        }
        /* Another order in every epoch and for every seed: few places agree by chance. */
        for (int a = 0; a < SEEDS * EPOCHS; a++) {
            for (int b = 0; b < a; b++) {
                int same = 0;
                for (int i = 0; i < n; i++)
                    same += order[a / EPOCHS][a % EPOCHS][i] == order[b / EPOCHS][b % EPOCHS][i];
                assert_true(same < n / 2);
            }
        }
        /* Reading starts anywhere: the number alone decides. */
        for (int number = n * EPOCHS - 1; number >= 0; number -= 13)
            assert_int_equal(read_sample(&split[part], 2, true, (uint64_t)number),
                             order[2][number / n][number % n]);
        for (int i = 0; i < 2 * n; i++)
            assert_int_equal(read_sample(&split[part], 0, false, (uint64_t)i),
                             (int)split[part].first_sample + i % n);
    }
    int32_t tokens[LENGTH], labels[LENGTH];
    FAILS(weft_split_read(&split[2], 0, true, 0, tokens, labels), WEFT_CONFIG, "no samples");
    weft_dataset_close(dataset);
}

CASE(tokens_outside_a_vocabulary_are_named)
{
    weft_dataset *dataset;
    int32_t tokens[NUM_TOKENS];
    make_sample(8, 2);
    write_pair(temporary_path("vocabulary"));
    OK(weft_dataset_open(temporary_path("vocabulary"), &dataset));
    weft_dataset_set_vocabulary(dataset, 120);
    OK(weft_dataset_read(dataset, 0, NUM_TOKENS, tokens));
    weft_dataset_set_vocabulary(dataset, sample_token(2));
    OK(weft_dataset_read(dataset, 0, 2, tokens));
    FAILS(weft_dataset_read(dataset, 1, 4, tokens), WEFT_FILE,
          "vocabulary.bin: token 2 is 85, outside a vocabulary of 85");
    weft_dataset_close(dataset);
}

CASE(mock_tokens_are_the_same_however_they_are_read)
{
    enum { N = 4000, VOCABULARY = 100 };
    weft_dataset *dataset, *other;
    static int32_t all[N], again[N], others[N];
    int counts[VOCABULARY] = {0}, same = 0;
    OK(weft_dataset_open_mock(N, VOCABULARY, 7, &dataset));
    OK(weft_dataset_open_mock(N, VOCABULARY, 8, &other));
    OK(weft_dataset_read(dataset, 0, N, all));
    OK(weft_dataset_read(other, 0, N, others));
    for (size_t at = 0, step = 1; at < N; at += step, step = step % 11 + 1) {
        size_t count = at + step <= N ? step : N - at;
        OK(weft_dataset_read(dataset, at, count, again + at));
    }
    assert_memory_equal(all, again, sizeof(all));
    for (int i = 0; i < N; i++) {
        assert_in_range(all[i], 0, VOCABULARY - 1);
        counts[all[i]]++;
        same += all[i] == others[i];
    }
    for (int v = 0; v < VOCABULARY; v++)
        assert_in_range(counts[v], 10, 80); /* 40 expected */
    assert_true(same < N / 20);
    int32_t max;
    OK(find_max_token(dataset, &max));
    assert_int_equal(max, VOCABULARY - 1);
    FAILS(weft_dataset_open_mock(N, 0, 7, &dataset), WEFT_CONFIG, "a vocabulary of 0");
    weft_dataset_close(dataset);
    weft_dataset_close(other);
}

/* --- blends --------------------------------------------------------------------------------- */

static int64_t divide(int64_t a, int64_t b)
{
    return b == 0 ? a : divide(b, a % b);
}

/* At every place of two periods each dataset has less than a block more or less than its share, by
 * whole numbers; and what is counted and numbered agrees with a walk from the start. */
static void check_blend(const int64_t *weights, size_t count)
{
    weft_arena arena = {0};
    weft_blend blend;
    weft_split parts[40] = {{0}}, split;
    uint64_t seen[40] = {0}, counts[40];
    int64_t sum = 0, divisor = 0;
    OK(weft_blend_order(weights, count, &arena, &blend));
    for (size_t i = 0; i < count; i++) {
        sum += weights[i];
        divisor = divide(weights[i], divisor);
        parts[i] = (weft_split){.num_samples = 1 << 20, .seq_length = 1, .block_samples = 1};
    }
    split = weft_split_blend(&blend, parts);
    assert_int_equal(blend.period, sum / divisor);
    for (int64_t b = 0; b < 2 * (int64_t)blend.period; b++) {
        const weft_split_place place = weft_split_find(&split, 0, false, (uint64_t)b);
        assert_true(place.part < count);
        assert_int_equal(place.first_token, seen[place.part]); /* in order, none left out */
        seen[place.part]++;
        for (size_t i = 0; i < count; i++) {
            const int64_t ahead = (int64_t)seen[i] * sum - (b + 1) * weights[i];
            assert_true(ahead < sum && ahead > -sum);
        }
        if (b % 7 == 0) {
            weft_split_count(&split, (uint64_t)b + 1, counts);
            assert_memory_equal(counts, seen, count * sizeof *counts);
        }
    }
    weft_arena_release(&arena);
}

CASE(a_blend_is_never_a_block_off)
{
    static const int64_t plain[] = {7, 3}, one[] = {5}, same[] = {2, 2, 2}, odd[] = {969, 30, 1},
                         last[] = {1, 1, 1, 1, 1, 1, 1, 93};
    check_blend(plain, 2);
    check_blend(one, 1);
    check_blend(same, 3);
    check_blend(odd, 3);
    check_blend(last, 8);
    uint32_t seed = 9;
    for (int k = 0; k < 300; k++) {
        int64_t weights[40];
        const size_t count = 2 + (size_t)k % 39;
        for (size_t i = 0; i < count; i++) {
            seed = seed * 1664525 + 1013904223;
            weights[i] = 1 + (seed >> 16) % (k % 3 ? 60 : 7);
        }
        check_blend(weights, count);
    }
}

CASE(a_blend_reads_its_datasets)
{
    weft_dataset *datasets[2];
    weft_split all[2][3], parts[2], split;
    weft_arena arena = {0};
    weft_blend blend;
    enum { EACH = 5, BLOCK_TOKENS = 15 };
    OK(weft_dataset_open_mock(400, 50, 1, &datasets[0]));
    OK(weft_dataset_open_mock(90, 50, 2, &datasets[1]));
    OK(weft_blend_order((int64_t[]){200, 100}, 2, &arena, &blend));
    for (int i = 0; i < 2; i++) {
        OK(weft_dataset_split(datasets[i], EACH, BLOCK_TOKENS, (double[]){1, 0, 0}, all[i]));
        parts[i] = all[i][0];
    }
    split = weft_split_blend(&blend, parts);
    assert_int_equal(split.num_samples, 5 * 3 * 3); /* 5 blocks of the second, at 1 in 3 */
    for (uint64_t n = 0, own[2] = {0}; n < 400; n++) {
        int32_t got[2][EACH], wanted[2][EACH];
        const size_t part = weft_split_part(&split, n);
        OK(weft_split_read(&split, 3, true, n, got[0], got[1]));
        OK(weft_split_read(&parts[part], 3, true, own[part], wanted[0], wanted[1]));
        assert_memory_equal(got, wanted, sizeof got);
        own[part]++;
        assert_int_equal(part, weft_split_part(&split, n - n % 3)); /* blocks stay together */
    }
    weft_split none[2] = {all[0][1], all[1][1]};
    split = weft_split_blend(&blend, none);
    assert_int_equal(split.num_samples, 0);
    int32_t tokens[EACH], labels[EACH];
    FAILS(weft_split_read(&split, 0, true, 0, tokens, labels), WEFT_CONFIG, "has no samples");
    FAILS(weft_blend_order((int64_t[]){1, 0}, 2, &arena, &blend), WEFT_CONFIG, "0 is not above 0");
    FAILS(weft_blend_order((int64_t[]){1, 1 << 20}, 2, &arena, &blend), WEFT_CONFIG,
          "repeats after 1048577 blocks, of at most 1048576: fewer digits");
    for (int i = 0; i < 2; i++)
        weft_dataset_close(datasets[i]);
    weft_arena_release(&arena);
}

AROUND(.set_up = temporary_create, .tear_down = temporary_remove)
