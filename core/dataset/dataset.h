/* Token datasets in Megatron's indexed format (.bin + .idx), and the sample order.
 *
 * A sample is seq_length + 1 consecutive tokens of the concatenated documents; samples i and i + 1
 * share one token. weft_rng_permute orders each epoch's samples as a pure function of (seed,
 * epoch), so a rank finds its samples from their numbers alone and nothing is stored. Samples of
 * one block stay together and in order: blocks of the same size give the tokens the same order
 * whatever the samples' length. PREFIX.mask, where there is one, says which tokens bear a loss as
 * labels: a bit a token, the lowest of a byte first. Tokens are read from the file when a sample
 * is. Several datasets are blended by weight: in one order of blocks that is a pure function of the
 * weights. */
#ifndef WEFT_CORE_DATASET_DATASET_H
#define WEFT_CORE_DATASET_DATASET_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <weft/sample.h>
#include <weft/status.h>

#include "core/file.h"

/* One .bin/.idx pair. */
typedef struct weft_dataset weft_dataset;

/* Of a .bin without its .idx, whose prefix it names twice. */
#define WEFT_HALF_A_DATASET                                                                        \
    "%s.bin has no %s.idx: half a dataset, whose writer (weft prepare) goes on or was killed; "    \
    "write it again"

/* Opens prefix.bin and prefix.idx and checks the whole index against the sizes of both files.
 * Errors: WEFT_FILE, with the file and what is wrong with it. */
weft_status weft_dataset_open(const char *prefix, weft_dataset **out) WEFT_CHECKED;
/* Random tokens below vocab_size from Philox, for speed runs. */
weft_status weft_dataset_open_mock(uint64_t num_tokens, int32_t vocab_size, uint64_t seed,
                                   weft_dataset **out) WEFT_CHECKED;
/* Samples of the program's own function (<weft/sample.h>). Each split is without end and in order.
 * Tokens outside vocab_size are refused. own_options: borrowed. */
weft_status weft_dataset_open_own(weft_sample_function function, const void *own_options,
                                  int64_t vocab_size, weft_dataset **out) WEFT_CHECKED;
/* Whether labels of the program's own function are also refused outside the vocabulary. Other
 * datasets' labels are their tokens. */
void weft_dataset_set_labels(weft_dataset *dataset, bool are_tokens);
void weft_dataset_close(weft_dataset *dataset);

/* The prefix it was opened by, for messages. Borrowed. */
const char *weft_dataset_name(const weft_dataset *dataset);
/* The files .bin and .idx, as they were when they were opened. Borrowed. */
typedef struct weft_dataset_stamps {
    weft_file_stamp of[2];
} weft_dataset_stamps;
const weft_dataset_stamps *weft_dataset_get_stamps(const weft_dataset *dataset);
uint64_t weft_dataset_num_tokens(const weft_dataset *dataset);
uint64_t weft_dataset_num_sequences(const weft_dataset *dataset);
uint64_t weft_dataset_num_documents(const weft_dataset *dataset);
size_t weft_dataset_token_bytes(const weft_dataset *dataset);
/* Reads tokens [first, first + count) of the concatenated sequences, without allocating. WEFT_FILE:
 * token ids outside [0, 2^31), or a file that has become shorter or cannot be read. */
weft_status weft_dataset_read(const weft_dataset *dataset, uint64_t first, size_t count,
                              int32_t *out) WEFT_CHECKED;
/* Whether there is a PREFIX.mask. */
bool weft_dataset_has_mask(const weft_dataset *dataset);
/* Of tokens first, first + 1, ... whether each bears a loss as a label: 1 or 0; 1 without a mask.
 * WEFT_FILE. */
weft_status weft_dataset_read_mask(const weft_dataset *dataset, uint64_t first, size_t count,
                                   uint8_t *out) WEFT_CHECKED;
/* The place of each document's first token, and behind the last one num_tokens: [num_documents +
 * 1], in the arena, read from the index. Not of weft_dataset_open_own. */
weft_status weft_dataset_read_documents(const weft_dataset *dataset, weft_arena *arena,
                                        uint64_t **out) WEFT_CHECKED;
/* Tokens outside [0, vocab_size) are refused from now on where they are read: WEFT_FILE naming
 * file, place and token. */
void weft_dataset_set_vocabulary(weft_dataset *dataset, int64_t vocab_size);

/* The order in which several datasets give blocks of samples, by weights that are whole numbers
 * without a common divisor: a period of as many blocks as their sum, of which each dataset has its
 * weight, again and again. Block b of the order is number b mod period of its period, so its
 * dataset, and which of that dataset's blocks it is, follow from b alone. At every place each
 * dataset has given less than a block more or less than its share (weft_blend_order). */
typedef struct weft_blend {
    size_t count; /* datasets */
    const int64_t *weights;
    uint64_t period;
    const uint16_t *which;  /* [period]: the dataset */
    const uint32_t *before; /* [period]: its blocks before this one in the period */
} weft_blend;

enum { WEFT_BLEND_MAX_DATASETS = 1024, WEFT_BLEND_MAX_PERIOD = 1 << 20 };
/* Block b goes to the dataset whose next block is due first, of those that are not ahead: with a
 * share w, block j of a dataset (from 0) takes one of the places floor(j / w) to ceil((j + 1) / w)
 * - 1 (Baruah et al. 1996, "Proportionate progress"; places of the earliest deadline suffice, since
 * the shares' sum is 1). weights: above 0, divided here by what divides them all; their sum is then
 * at most WEFT_BLEND_MAX_PERIOD, else WEFT_CONFIG. Memory of the arena. */
weft_status weft_blend_order(const int64_t *weights, size_t count, weft_arena *arena,
                             weft_blend *out) WEFT_CHECKED;

/* A contiguous share of a dataset's samples: train, valid or test; or a blend of such shares. */
typedef struct weft_split weft_split;
struct weft_split {
    const weft_dataset *dataset;        /* borrowed, as all */
    uint64_t first_sample, num_samples; /* of floor((tokens - 1) / seq_length); a blend's: until a
                                           dataset begins again */
    int64_t seq_length;
    uint64_t block_samples; /* shuffled as one */
    weft_sample_use use;
    const weft_blend *blend; /* NULL: one dataset */
    const weft_split *parts; /* [blend->count] */
};

/* Divides the samples by weights such as {969, 30, 1}, in whole blocks of block_tokens, a multiple
 * of seq_length (0: seq_length). A split with weight > 0 gets at least one block, else WEFT_CONFIG.
 */
weft_status weft_dataset_split(const weft_dataset *dataset, int64_t seq_length,
                               int64_t block_tokens, const double weights[3],
                               weft_split out[3]) WEFT_CHECKED;
/* The same shares of several datasets, blended; num_samples 0 where they have none. */
weft_split weft_split_blend(const weft_blend *blend, const weft_split *parts);
/* The dataset that sample number `number` of a blend comes from; 0 without a blend. */
size_t weft_split_part(const weft_split *split, uint64_t number);
/* counts[i]: how many of the first `num_samples` of a blend come from dataset i. Goes through one
 * period. */
void weft_split_count(const weft_split *split, uint64_t num_samples, uint64_t *counts);
/* The place of a sample's first token. */
typedef struct weft_split_place {
    size_t part; /* of a blend; else 0 */
    uint64_t first_token;
} weft_split_place;
/* The place of the run's sample number `number` (0-based over all epochs) of a split with samples,
 * shuffled by (seed, epoch) when `shuffle`, else in order. Not of weft_dataset_open_own, whose
 * samples have no place. */
weft_split_place weft_split_find(const weft_split *split, uint64_t seed, bool shuffle,
                                 uint64_t number);
/* Reads the run's sample number `number` (0-based over all epochs) of a split, shuffled by
 * (seed, epoch) when `shuffle`, else in order: seq_length tokens and their next tokens. */
weft_status weft_split_read(const weft_split *split, uint64_t seed, bool shuffle, uint64_t number,
                            int32_t *tokens, int32_t *labels) WEFT_CHECKED;

/* Which labels of that sample bear a loss: [seq_length] of 1 and 0. All do without a mask, and of
 * the program's own samples. */
weft_status weft_split_read_mask(const weft_split *split, uint64_t seed, bool shuffle,
                                 uint64_t number, uint8_t *bears) WEFT_CHECKED;

/* Writing: add appends a document; finish writes the index and gives all files but it their
 * names, commit the index, without which a dataset is refused: what else belongs to the dataset is
 * written between the two. dtype is u16 when vocab_size < 65,500, else i32. Until then the files
 * are PREFIX.bin.weft-part and PREFIX.idx.weft-part, locked (flock): a dataset has one writer, else
 * WEFT_CONFIG, and what a killed one has left the next one takes. */
typedef struct weft_dataset_writer weft_dataset_writer;
weft_status weft_dataset_writer_create(const char *prefix, int64_t vocab_size,
                                       weft_dataset_writer **out) WEFT_CHECKED;
/* Before the first document: the dataset has a mask. */
weft_status weft_dataset_writer_mask(weft_dataset_writer *writer) WEFT_CHECKED;
weft_status weft_dataset_writer_add(weft_dataset_writer *writer, const int32_t *tokens,
                                    size_t count) WEFT_CHECKED; /* one document */
/* bears: whether each bears a loss, where the dataset has a mask; NULL: all do. */
weft_status weft_dataset_writer_add_masked(weft_dataset_writer *writer, const int32_t *tokens,
                                           const int32_t *bears, size_t count) WEFT_CHECKED;
weft_status weft_dataset_writer_finish(weft_dataset_writer *writer) WEFT_CHECKED;
weft_status weft_dataset_writer_commit(weft_dataset_writer *writer) WEFT_CHECKED;
/* Removes unfinished files at once: for handlers of signals, behind which nothing is written. */
void weft_dataset_writer_remove(const weft_dataset_writer *writer);
void weft_dataset_writer_destroy(weft_dataset_writer *writer); /* unfinished: removes both files */

/* Documents as sequences of one length, each of which is a sample of that seq_length: no document
 * is cut that fits in one, and sequences are filled by best fit decreasing over windows of 2^25
 * tokens (Ding et al. 2024, "Fewer truncations improve language modeling"). What is longer is cut
 * into whole sequences and a rest. What stays free is filled with `pad`. The writer has a mask:
 * pads bear no loss, nor does a piece's first token, which follows another document's. The order is
 * that of each sequence's earliest document. */
typedef struct weft_packer weft_packer;
typedef struct weft_packing {
    uint64_t num_sequences, num_pads, num_cut; /* the last: documents */
} weft_packing;
weft_status weft_packer_create(weft_dataset_writer *writer, uint32_t length, int32_t pad,
                               weft_packer **out) WEFT_CHECKED;
weft_status weft_packer_add(weft_packer *packer, const int32_t *tokens, const int32_t *bears,
                            size_t count) WEFT_CHECKED; /* one document; bears NULL: all do */
/* Before the writer's finish. */
weft_status weft_packer_finish(weft_packer *packer, weft_packing *out) WEFT_CHECKED;
void weft_packer_destroy(weft_packer *packer);

#endif
