/* A step's samples, read into this rank's micro-batches: its runs of their tokens, and what the
 * config says of documents. */
#ifndef WEFT_LAUNCHER_TRAINING_BATCHES_H
#define WEFT_LAUNCHER_TRAINING_BATCHES_H

#include "core/dataset/dataset.h"
#include "launcher/planning/config.h"
#include "launcher/training/data.h"
#include "layers/model/model.h"
#include "parallel/sequence.h"

/* In a step that is run again (judge.h): checks gradients behind each micro-batch. */
typedef struct weft_batch_looks {
    bool on;
    int bad, last, count; /* the first bad micro-batch, or -1; the last that ran; how many ran */
} weft_batch_looks;

typedef struct weft_batches {
    int num, most; /* this rank's micro-batches: of the batch that was read; and for how many
                      there is room */
    int cp;        /* ranks that share a sequence */
    size_t tokens_each, local_seq;
    /* Pinned: the arrays of weft_micro_batch, [num] times. The last three are NULL if the config
     * does not use them. */
    int32_t *tokens, *labels, *positions, *first_seen;
    float *label_weights;
    /* cp > 1: one cut for each micro-batch if cut by documents, else one for all. index, pinned: [S
     * / cp], this rank's tokens of a sequence. */
    weft_sequence_cut *cuts;
    int32_t *index;
    bool deals;
    weft_dealer dealer;
    int32_t *cut_runs; /* [num][cp * WEFT_DEAL_MAX_RUNS]: the memory of cuts by documents */
    int32_t *rows;     /* a micro-batch's input: [S] tokens and [S] labels of each sample, and their
                          documents' first tokens, [S, B] */
    uint8_t *bears;    /* [S] of each sample: whether its labels bear a loss; NULL: all do */
    float *losses;     /* pinned, [num] times: of each label; NULL: one dataset */
    uint16_t *parts;   /* [num][B]: the dataset of each sample, where there are losses */
    double loss_tokens; /* the batch's labels that bear a loss; 0: another rank counts them */
} weft_batches;

/* A set of data.validation. */
typedef struct weft_evaluated_set {
    const char *name; /* borrowed */
    double loss, tokens;
} weft_evaluated_set;

/* What a step is fed with, and its losses by part of the data. */
typedef struct weft_trainer_input {
    weft_data data;
    weft_batches batches;
    weft_evaluated_set *evaluated; /* [data.num_validation], by the last evaluation */
    uint64_t *part_samples; /* [data.num_parts]: of the run's samples so far; NULL: no blend */
    double *part_losses;    /* [2][data.num_parts]: the last step's; weights of its labels */
} weft_trainer_input;

/* A batch's purpose. Training shuffles, and weighs labels by train.calculate_per_token_loss; an
 * evaluation reads in the dataset's order, with equal weights for all labels that bear a loss. */
typedef enum weft_batches_use { WEFT_BATCHES_TRAIN, WEFT_BATCHES_EVALUATE } weft_batches_use;

/* The number, in the order of its split, of the first sample of micro-batch `micro_batch` of the
 * global batch that begins with the sample that holds token `first_token` of that order. */
uint64_t weft_batches_first_sample(const weft_config *config, uint64_t first_token,
                                   uint64_t micro_batch);

struct weft_trainer;
/* The number of rank-local micro-batch m in the global batch. */
uint64_t weft_trainer_micro_batch(const struct weft_trainer *trainer, int m);
/* Allocates and frees the micro-batches. */
weft_status weft_batches_create(struct weft_trainer *trainer) WEFT_CHECKED;
void weft_batches_release(struct weft_trainer *trainer);
/* Reads the micro-batches of the global batch that begins with the sample that holds token
 * `first_token` of the split's order; every rank finds its samples by that number. Token t = s * B
 * + b. Collective over the world if masked labels are weighed over the whole batch. */
weft_status weft_batches_read(struct weft_trainer *trainer, const weft_split *split,
                              weft_batches_use use, uint64_t first_token) WEFT_CHECKED;
/* By dataset of a blend: the sum of the losses of this rank's labels in the batch that ran last,
 * each times its weight, and the sum of their weights. Where another rank counts them: zeros. */
void weft_batches_sum_losses(const struct weft_trainer *trainer, double *losses, double *weights);
/* Fills in the arrays of micro-batch m. */
void weft_batches_take(const weft_batches *batches, int m, weft_micro_batch *out);

#endif
