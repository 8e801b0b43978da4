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
        out[k] = (weft_split){.dataset = dataset,
                              .num_samples = weights[k] > 0 ? UINT64_MAX : 0,
                              .seq_length = seq_length,
                              .block_samples = 1,
                              .use = (weft_sample_use)k};
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
        out[k] = (weft_split){.dataset = dataset,
                              .first_sample = bounds[k] * each,
                              .num_samples = (bounds[k + 1] - bounds[k]) * each,
                              .seq_length = seq_length,
                              .block_samples = each,
                              .use = (weft_sample_use)k};
    return WEFT_OK;
}

weft_split weft_split_blend(const weft_blend *blend, const weft_split *parts)
{
    weft_split out = parts[0];
    const uint64_t each = out.block_samples;
    out.dataset = NULL;
    out.first_sample = 0;
    out.blend = blend;
    out.parts = parts;
    out.num_samples = UINT64_MAX;
    for (size_t i = 0; i < blend->count; i++) {
        const uint64_t periods = parts[i].num_samples / each / (uint64_t)blend->weights[i];
        const uint64_t samples = periods * blend->period * each;
        /* of less than a period: at least the blocks that the dataset has */
        const uint64_t least = samples > 0 ? samples : parts[i].num_samples;
        out.num_samples = least < out.num_samples ? least : out.num_samples;
    }
    return out;
}

size_t weft_split_part(const weft_split *split, uint64_t number)
{
    return split->blend ? split->blend->which[number / split->block_samples % split->blend->period]
                        : 0;
}

/* Blocks of each dataset among the first `num` of a period. */
static void count_blocks(const weft_blend *blend, uint64_t num, uint64_t *counts)
{
    for (uint64_t i = 0; i < num; i++)
        counts[blend->which[i]]++;
}

void weft_split_count(const weft_split *split, uint64_t num_samples, uint64_t *counts)
{
    const weft_blend *blend = split->blend;
    const uint64_t each = split->block_samples, blocks = num_samples / each;
    memset(counts, 0, blend->count * sizeof *counts);
    count_blocks(blend, blocks % blend->period, counts);
    for (size_t i = 0; i < blend->count; i++)
        counts[i] = (counts[i] + blocks / blend->period * (uint64_t)blend->weights[i]) * each;
    counts[weft_split_part(split, num_samples)] += num_samples % each;
}

/* The split that a sample comes from, and its number there. */
static const weft_split *find_part(const weft_split *split, uint64_t *number)
{
    const weft_blend *blend = split->blend;
    if (!blend)
        return split;
    const uint64_t each = split->block_samples, block = *number / each;
    const size_t part = weft_split_part(split, *number);
    const uint64_t own = block / blend->period * (uint64_t)blend->weights[part] +
                         blend->before[block % blend->period];
    *number = own * each + *number % each;
    return &split->parts[part];
}

static uint64_t find_token(const weft_split *split, uint64_t seed, bool shuffle, uint64_t number)
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

weft_split_place weft_split_find(const weft_split *split, uint64_t seed, bool shuffle,
                                 uint64_t number)
{
    const size_t part = weft_split_part(split, number);
    const weft_split *own = find_part(split, &number);
    return (weft_split_place){part, find_token(own, seed, shuffle, number)};
}

weft_status weft_split_read(const weft_split *split, uint64_t seed, bool shuffle, uint64_t number,
                            int32_t *tokens, int32_t *labels)
{
    split = find_part(split, &number);
    if (split->num_samples == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s: this split has no samples",
                          weft_dataset_name(split->dataset));
    if (weft_dataset_is_own(split->dataset))
        return weft_dataset_fill(split->dataset,
                                 &(weft_sample){.use = split->use,
                                                .index = number,
                                                .seed = seed,
                                                .seq_length = (size_t)split->seq_length,
                                                .tokens = tokens,
                                                .labels = labels});
    size_t length = (size_t)split->seq_length;
    uint64_t first = find_token(split, seed, shuffle, number);
    WEFT_TRY(weft_dataset_read(split->dataset, first, length, tokens));
    memcpy(labels, tokens + 1, (length - 1) * sizeof(*labels));
    WEFT_TRY(weft_dataset_read(split->dataset, first + length, 1, labels + length - 1));
    return WEFT_OK;
}

weft_status weft_split_read_mask(const weft_split *split, uint64_t seed, bool shuffle,
                                 uint64_t number, uint8_t *bears)
{
    split = find_part(split, &number);
    const size_t length = (size_t)split->seq_length;
    if (!weft_dataset_is_own(split->dataset))
        return weft_dataset_read_mask(split->dataset, find_token(split, seed, shuffle, number) + 1,
                                      length, bears);
    memset(bears, 1, length);
    return WEFT_OK;
}
