/* A dataset: two bytes that say how long its index is, the index, the tokens. What opens is read,
 * whole and as samples. */
#include "core/dataset/dataset.h"
#include "launcher/text/known.h"
#include "tests/fuzz/fuzz.h"

static void note(weft_status status)
{
    if (status != WEFT_OK)
        fuzz_refused(status);
}

static void read_samples(const weft_dataset *dataset, int64_t seq_length)
{
    weft_split splits[3];
    int32_t *tokens = malloc(2 * (size_t)seq_length * sizeof *tokens);
    FUZZ_CHECK(tokens, "no memory");
    weft_status status = weft_dataset_split(dataset, seq_length, 0, (double[]){5, 2, 1}, splits);
    note(status);
    for (int i = 0; status == WEFT_OK && i < 3; i++)
        for (uint64_t k = 0; k < 2 * splits[i].num_samples && k < 64; k++)
            note(weft_split_read(&splits[i], 7, true, k, tokens, tokens + seq_length));
    free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    weft_dataset *dataset;
    weft_known known;
    if (size < 2)
        return 0;
    const size_t said = data[0] + 256u * data[1], idx = said < size - 2 ? said : size - 2;
    fuzz_write(fuzz_path("d.idx"), data + 2, idx);
    fuzz_write(fuzz_path("d.bin"), data + 2 + idx, size - 2 - idx);
    const weft_status status = weft_dataset_open(fuzz_path("d"), &dataset);
    if (status != WEFT_OK) {
        fuzz_refused(status);
        return 0;
    }
    const uint64_t num_tokens = weft_dataset_num_tokens(dataset);
    FUZZ_CHECK(num_tokens <= size, "%llu tokens of %zu bytes", (unsigned long long)num_tokens,
               size);
    int32_t *tokens = malloc((num_tokens + 1) * sizeof *tokens);
    FUZZ_CHECK(tokens, "no memory");
    note(weft_dataset_read(dataset, 0, num_tokens, tokens));
    free(tokens);
    note(weft_known_read(dataset, "", &known));
    weft_dataset_set_vocabulary(dataset, 100);
    read_samples(dataset, 1);
    read_samples(dataset, 4);
    weft_dataset_close(dataset);
    return 0;
}
