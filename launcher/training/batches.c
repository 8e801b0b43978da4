#include "launcher/training/batches.h"

#include <math.h>
#include <string.h>

#include "launcher/training/state.h"

uint64_t weft_trainer_micro_batch(const weft_trainer *t, int m)
{
    const int dp = t->groups.mesh.dp;
    return (uint64_t)m * (uint64_t)dp +
           (uint64_t)((t->groups.coords.at[WEFT_AXIS_DP] + t->faults.data_shift) % dp);
}

uint64_t weft_batches_first_sample(const weft_config *config, uint64_t first_token,
                                   uint64_t micro_batch)
{
    return first_token / (uint64_t)config->model.seq_length +
           micro_batch * (uint64_t)config->train.micro_batch_size;
}

/* What the micro-batches bring, and where it is kept. */
typedef struct input {
    size_t bytes; /* 0: the config asks for none */
    const char *name;
    void **at;
} input;

enum { NUM_INPUTS = 7 };

static void list_inputs(weft_trainer *t, input out[NUM_INPUTS])
{
    const weft_data_options *data = &t->config.data;
    const size_t bytes =
        (size_t)t->input.batches.most * t->input.batches.tokens_each * sizeof(int32_t);
    const size_t index = t->input.batches.local_seq * sizeof(int32_t);
    const size_t cp = (size_t)t->groups.mesh.cp;
    const size_t cuts = t->input.batches.deals ? (size_t)t->input.batches.most : cp > 1;
    const input inputs[NUM_INPUTS] = {
        {bytes, "tokens", (void **)&t->input.batches.tokens},
        {bytes, "labels", (void **)&t->input.batches.labels},
        {data->reset_position_ids ? bytes : 0, "positions", (void **)&t->input.batches.positions},
        {data->reset_attention_mask ? bytes * cp : 0, "documents",
         (void **)&t->input.batches.first_seen},
        {weft_config_weighs_labels(&t->config) ? bytes : 0, "label weights",
         (void **)&t->input.batches.label_weights},
        {weft_config_tells_losses(&t->config) ? bytes : 0, "losses",
         (void **)&t->input.batches.losses},
        {cuts * index, "indices of tokens", (void **)&t->input.batches.index},
    };
    for (int i = 0; i < NUM_INPUTS; i++)
        out[i] = inputs[i];
}

/* What each micro-batch changes is allocated here, too. */
static weft_status create_cuts(weft_trainer *t)
{
    const int cp = t->groups.mesh.cp;
    const size_t seq = (size_t)t->config.model.seq_length;
    const size_t cuts = t->input.batches.deals ? (size_t)t->input.batches.most : 1;
    const size_t most = (size_t)cp * (t->input.batches.deals ? WEFT_DEAL_MAX_RUNS : 2);
    void *runs;
    if (cp == 1)
        return WEFT_OK;
    WEFT_TRY(WEFT_ARRAY(t->arena, cuts, &t->input.batches.cuts));
    WEFT_TRY(weft_arena_alloc_array(t->arena, cuts * most, sizeof(int32_t), &runs));
    if (t->input.batches.deals) {
        t->input.batches.cut_runs = runs;
        return weft_dealer_init(seq, (size_t)t->config.train.micro_batch_size, cp, t->arena,
                                &t->input.batches.dealer);
    }
    t->input.batches.cuts[0] = weft_sequence_head_tail(seq, cp, runs);
    weft_sequence_index(&t->input.batches.cuts[0], t->groups.coords.at[WEFT_AXIS_CP],
                        t->input.batches.index);
    return WEFT_OK;
}

weft_status weft_batches_create(weft_trainer *t)
{
    const weft_shape *shape = weft_model_get_shape(t->model);
    input inputs[NUM_INPUTS];
    t->input.batches.tokens_each = weft_shape_local_tokens(shape);
    t->input.batches.local_seq = weft_shape_local_seq(shape);
    t->input.batches.num = t->input.batches.most = t->runs.train.shape.num_micro_batches;
    t->input.batches.cp = shape->cp;
    t->input.batches.deals = shape->cp > 1 && t->config.parallel.context_parallel_load_balancer ==
                                                  WEFT_BALANCE_DOCUMENTS;
    list_inputs(t, inputs);
    for (int i = 0; i < NUM_INPUTS; i++)
        if (inputs[i].bytes > 0)
            WEFT_TRY(weft_device_alloc_for(t->device, WEFT_SPACE_PINNED, WEFT_MEMORY_PINNED,
                                           inputs[i].bytes, inputs[i].name, inputs[i].at));
    WEFT_TRY(WEFT_ARRAY(t->arena, 3 * shape->seq * shape->batch, &t->input.batches.rows));
    if (t->input.batches.label_weights)
        WEFT_TRY(weft_arena_alloc(t->arena, shape->seq * shape->batch, &t->input.batches.bears));
    if (t->input.batches.losses)
        WEFT_TRY(WEFT_ARRAY(t->arena, (size_t)t->input.batches.most * shape->batch,
                            &t->input.batches.parts));
    return create_cuts(t);
}

void weft_batches_release(weft_trainer *t)
{
    input inputs[NUM_INPUTS];
    list_inputs(t, inputs);
    for (int i = 0; i < NUM_INPUTS; i++)
        if (*inputs[i].at)
            weft_device_free(t->device, WEFT_SPACE_PINNED, *inputs[i].at, inputs[i].bytes);
}

/* Which labels of a sample bear a loss; returns how many in `count`. */
static weft_status read_bears(const weft_trainer *t, const weft_split *split, weft_batches_use use,
                              uint64_t number, const int32_t *tokens, uint8_t *bears, size_t *count)
{
    const weft_data_options *data = &t->config.data;
    const size_t seq = (size_t)t->config.model.seq_length;
    if (data->has_label_mask)
        WEFT_TRY(weft_split_read_mask(split, (uint64_t)t->config.train.seed,
                                      use == WEFT_BATCHES_TRAIN, number, bears));
    else
        memset(bears, 1, seq);
    for (size_t s = 0; s < seq; s++) {
        bears[s] = bears[s] && !(data->eod_mask_loss && tokens[s] == (int32_t)data->eod_token);
        *count += bears[s];
    }
    return WEFT_OK;
}

/* The samples of micro-batch m into t->batches.rows; returns how many labels bear a loss in
 * `count`. */
static weft_status read_samples(weft_trainer *t, int m, const weft_split *split,
                                weft_batches_use use, uint64_t first_sample, size_t *count)
{
    const size_t seq = (size_t)t->config.model.seq_length;
    const size_t batch = (size_t)t->config.train.micro_batch_size;
    const int32_t eod = (int32_t)t->config.data.eod_token;
    *count = 0;
    for (size_t b = 0; b < batch; b++) {
        int32_t *tokens = t->input.batches.rows + 2 * b * seq;
        WEFT_TRY(weft_split_read(split, (uint64_t)t->config.train.seed, use == WEFT_BATCHES_TRAIN,
                                 first_sample + b, tokens, tokens + seq));
        if (t->input.batches.parts)
            t->input.batches.parts[(size_t)m * batch + b] =
                (uint16_t)weft_split_part(split, first_sample + b);
        if (weft_config_has_documents(&t->config))
            weft_documents_find(tokens, seq, eod, batch,
                                t->input.batches.rows + 2 * batch * seq + b);
        if (t->input.batches.bears)
            WEFT_TRY(read_bears(t, split, use, first_sample + b, tokens,
                                t->input.batches.bears + b * seq, count));
        else
            *count += seq;
    }
    return WEFT_OK;
}

/* Where micro-batch m's sequences are cut; NULL: all tokens are here. */
static const int32_t *cut(weft_trainer *t, int m, const int32_t *first)
{
    if (!t->input.batches.deals)
        return t->input.batches.index;
    int32_t *index = t->input.batches.index + (size_t)m * t->input.batches.local_seq;
    int32_t *runs = t->input.batches.cut_runs +
                    (size_t)m * (size_t)t->input.batches.dealer.cp * WEFT_DEAL_MAX_RUNS;
    t->input.batches.cuts[m] = weft_dealer_deal(&t->input.batches.dealer, first, runs);
    weft_sequence_index(&t->input.batches.cuts[m], t->groups.coords.at[WEFT_AXIS_CP], index);
    return index;
}

/* What of t->batches.rows is this rank's. A label that bears a loss weighs `weight`. */
static void place(weft_trainer *t, int m, float weight)
{
    const size_t seq = (size_t)t->config.model.seq_length;
    const size_t batch = (size_t)t->config.train.micro_batch_size;
    const int32_t *first = t->input.batches.rows + 2 * batch * seq, *index = cut(t, m, first);
    if (t->input.batches.first_seen)
        memcpy(t->input.batches.first_seen + (size_t)m * seq * batch, first,
               seq * batch * sizeof *first);
    for (size_t s = 0; s < t->input.batches.local_seq; s++) {
        const size_t from = index ? (size_t)index[s] : s;
        for (size_t b = 0; b < batch; b++) {
            const size_t at = (size_t)m * t->input.batches.tokens_each + s * batch + b;
            const int32_t token = t->input.batches.rows[2 * b * seq + from],
                          start = first[from * batch + b];
            t->input.batches.tokens[at] = token;
            t->input.batches.labels[at] = t->input.batches.rows[(2 * b + 1) * seq + from];
            if (t->input.batches.positions)
                t->input.batches.positions[at] = (int32_t)from - start;
            if (t->input.batches.label_weights)
                t->input.batches.label_weights[at] =
                    t->input.batches.bears[b * seq + from] ? weight : 0;
        }
    }
}

/* Of `all` labels `count` bear a loss: with this weight of each, the mean over all is one over
 * them. */
static float weight_of(size_t all, double count)
{
    return count > 0 ? (float)((double)all / count) : 0;
}

/* Weighs all labels of the global batch alike. Collective over the world. */
static weft_status weigh_by_token(weft_trainer *t)
{
    const size_t local = (size_t)t->input.batches.num * t->input.batches.tokens_each;
    const size_t all = local * (size_t)(t->groups.mesh.dp * t->input.batches.cp);
    double count = t->input.batches.loss_tokens;
    WEFT_TRY(weft_comm_all_reduce_host(t->world, &count, 1, WEFT_F64, WEFT_REDUCE_SUM));
    const float weight = weight_of(all, count);
    for (size_t i = 0; i < local; i++)
        t->input.batches.label_weights[i] *= weight;
    return WEFT_OK;
}

/* A file that cannot be read, or holds what it did not, is no one rank's: one of them says it. */
static weft_status agree_on_data(const weft_trainer *t, weft_status status)
{
    const bool reads_files = weft_config_reads_file(&t->config) || t->input.data.num_validation > 0;
    return reads_files ? weft_comm_agree(t->world, status) : status;
}

/* Stages in the middle need to know of documents and cuts alone. */
static bool reads(const weft_trainer *t)
{
    const int stage = t->groups.coords.at[WEFT_AXIS_PP];
    return stage == 0 || stage == weft_mesh_last_stage(&t->groups.mesh) ||
           t->input.batches.positions || t->input.batches.first_seen;
}

weft_status weft_batches_read(weft_trainer *t, const weft_split *split, weft_batches_use use,
                              uint64_t first_token)
{
    const size_t tokens =
        (size_t)t->config.train.micro_batch_size * (size_t)t->config.model.seq_length;
    const bool by_token =
        t->input.batches.label_weights &&
        (use == WEFT_BATCHES_EVALUATE || t->config.train.calculate_per_token_loss);
    const int *at = t->groups.coords.at; /* of the ranks that read a sample one counts it */
    const bool counts = at[WEFT_AXIS_TP] == 0 && at[WEFT_AXIS_CP] == 0 && at[WEFT_AXIS_PP] == 0;
    weft_status status = WEFT_OK;
    t->input.batches.num = use == WEFT_BATCHES_TRAIN ? t->runs.of_step->shape.num_micro_batches
                                                     : t->input.batches.most;
    t->input.batches.loss_tokens = 0;
    for (size_t i = 0;
         t->input.batches.losses && i < (size_t)t->input.batches.num * t->input.batches.tokens_each;
         i++)
        t->input.batches.losses[i] = NAN; /* a program's last layer tells none */
    for (int m = 0; m < t->input.batches.num && reads(t); m++) {
        size_t count;
        status = read_samples(
            t, m, split, use,
            weft_batches_first_sample(&t->config, first_token, weft_trainer_micro_batch(t, m)),
            &count);
        if (status != WEFT_OK)
            break;
        place(t, m, by_token ? 1 : weight_of(tokens, (double)count));
        t->input.batches.loss_tokens += counts ? (double)count : 0;
    }
    WEFT_TRY(agree_on_data(t, status));
    return by_token ? weigh_by_token(t) : WEFT_OK;
}

void weft_batches_sum_losses(const weft_trainer *t, double *losses, double *weights)
{
    const weft_batches *all = &t->input.batches;
    const int *at = t->groups.coords.at;
    const size_t batch = (size_t)t->config.train.micro_batch_size;
    memset(losses, 0, t->input.data.num_parts * sizeof *losses);
    memset(weights, 0, t->input.data.num_parts * sizeof *weights);
    if (at[WEFT_AXIS_TP] != 0 || at[WEFT_AXIS_PP] != t->groups.mesh.pp - 1)
        return;
    for (int m = 0; m < all->num; m++)
        for (size_t i = 0; i < all->tokens_each; i++) {
            const size_t token = (size_t)m * all->tokens_each + i;
            const size_t part = all->parts[(size_t)m * batch + i % batch];
            losses[part] += all->losses[token];
            weights[part] += all->label_weights ? all->label_weights[token] : 1;
        }
}

void weft_batches_take(const weft_batches *all, int m, weft_micro_batch *out)
{
    const size_t at = (size_t)m * all->tokens_each;
    out->tokens = all->tokens + at;
    out->labels = all->labels + at;
    out->positions = all->positions ? all->positions + at : NULL;
    out->first_seen = all->first_seen ? all->first_seen + at * (size_t)all->cp : NULL;
    out->label_weights = all->label_weights ? all->label_weights + at : NULL;
    out->losses = all->losses ? all->losses + at : NULL;
    if (!all->cuts)
        return;
    const size_t cut = all->deals ? (size_t)m : 0;
    out->cut = &all->cuts[cut];
    out->index = all->index + cut * all->local_seq;
}
