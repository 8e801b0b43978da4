#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/dataset/dataset.h"
#include "core/dataset/internal.h"
#include "core/rng.h"

weft_status weft_dataset_split(const weft_dataset *dataset, int64_t seq_length,
                               int64_t block_tokens, const double weights[3], weft_split out[3])
{
    const int64_t block = block_tokens > 0 ? block_tokens : seq_length;
    double total = 0;
    uint64_t num_wanted = 0;
    for (int k = 0; k < 3; k++) {
        if (!(weights[k] >= 0) || isinf(weights[k]))
            return WEFT_ERROR(WEFT_CONFIG, "split weight %g is not a number of at least 0",
                              weights[k]);
        total += weights[k];
        num_wanted += weights[k] > 0;
    }
    if (seq_length < 1 || !(total > 0))
        return WEFT_ERROR(WEFT_CONFIG,
                          "cannot split into samples of %" PRId64
                          " tokens by weights that sum to %g",
                          seq_length, total);
    if (block % seq_length != 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "blocks of %" PRId64 " tokens hold no whole number of %" PRId64, block,
                          seq_length);
    const uint64_t each = (uint64_t)(block / seq_length);
    for (int k = 0; k < 3 && weft_dataset_is_own(dataset); k++)
        out[k] =
            (weft_split){0, weights[k] > 0 ? UINT64_MAX : 0, seq_length, 1, (weft_sample_use)k};
    if (weft_dataset_is_own(dataset))
        return WEFT_OK;
    uint64_t tokens = weft_dataset_num_tokens(dataset);
    uint64_t blocks = tokens > 0 ? (tokens - 1) / (uint64_t)block : 0;
    if (blocks < num_wanted)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%s: %" PRIu64 " tokens make %" PRIu64 " %s of %" PRId64
                          " + 1 tokens; %" PRIu64 " splits want one each",
                          weft_dataset_name(dataset), tokens, blocks,
                          each > 1      ? blocks == 1 ? "block" : "blocks"
                          : blocks == 1 ? "sample"
                                        : "samples",
                          block, num_wanted);
    /* Rounded boundaries, then pushed apart where a wanted split came out empty. */
    uint64_t bounds[4] = {0};
    double sum = 0;
    for (int k = 0; k < 3; k++) {
        sum += weights[k];
        bounds[k + 1] = (uint64_t)llround((double)blocks * (sum / total));
        uint64_t least = bounds[k] + (weights[k] > 0);
        if (bounds[k + 1] < least)
            bounds[k + 1] = least;
    }
    bounds[3] = blocks;
    for (int k = 2; k > 0; k--) {
        uint64_t most = bounds[k + 1] - (weights[k] > 0);
        if (bounds[k] > most)
            bounds[k] = most;
    }
    for (int k = 0; k < 3; k++)
        out[k] = (weft_split){bounds[k] * each, (bounds[k + 1] - bounds[k]) * each, seq_length,
                              each, (weft_sample_use)k};
    return WEFT_OK;
}

uint64_t weft_split_find(const weft_split *split, uint64_t seed, bool shuffle, uint64_t number)
{
    uint64_t epoch = number / split->num_samples, position = number % split->num_samples;
    if (shuffle) {
        uint64_t stream = weft_rng_stream_mix(weft_rng_stream_of("sample order"), epoch);
        const uint64_t each = split->block_samples;
        position =
            weft_rng_permute(seed, stream, split->num_samples / each, position / each) * each +
            position % each;
    }
    return (split->first_sample + position) * (uint64_t)split->seq_length;
}

weft_status weft_split_read(const weft_dataset *dataset, const weft_split *split, uint64_t seed,
                            bool shuffle, uint64_t number, int32_t *tokens, int32_t *labels)
{
    if (split->num_samples == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s: this split has no samples", weft_dataset_name(dataset));
    if (weft_dataset_is_own(dataset))
        return weft_dataset_fill(dataset, &(weft_sample){.use = split->use,
                                                         .index = number,
                                                         .seed = seed,
                                                         .seq_length = (size_t)split->seq_length,
                                                         .tokens = tokens,
                                                         .labels = labels});
    size_t length = (size_t)split->seq_length;
    uint64_t first = weft_split_find(split, seed, shuffle, number);
    WEFT_TRY(weft_dataset_read(dataset, first, length, tokens));
    memcpy(labels, tokens + 1, (length - 1) * sizeof(*labels));
    WEFT_TRY(weft_dataset_read(dataset, first + length, 1, labels + length - 1));
    return WEFT_OK;
}
