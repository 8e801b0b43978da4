#include "launcher/planning/ramp.h"

#include <stdio.h>

#include "core/divisor.h"
#include "core/stage.h"
#include "core/text.h"

#define KEY "train.rampup_batch_size"

static bool is_on(const weft_train_options *t)
{
    return t->rampup_batch_size.count == 3;
}

static int64_t start_of(const weft_train_options *t)
{
    return t->rampup_batch_size.values[0];
}

static int64_t increment_of(const weft_train_options *t)
{
    return t->rampup_batch_size.values[1];
}

weft_status weft_ramp_check(const weft_train_options *t)
{
    const size_t count = t->rampup_batch_size.count;
    if (count == 0)
        return WEFT_OK;
    if (count != 3)
        return WEFT_KEY_ERROR(
            KEY, "%s; a ramp has three: the first batch, what it grows by, and samples",
            weft_count_text((long long)count, "number").text);
    const int64_t start = start_of(t), increment = increment_of(t);
    if (start >= t->global_batch_size)
        return WEFT_KEY_ERROR(KEY, "begins with %lld samples, not below global_batch_size %lld",
                              (long long)start, (long long)t->global_batch_size);
    if ((t->global_batch_size - start) % increment != 0)
        return WEFT_KEY_ERROR(KEY,
                              "from %lld samples, %lld more at a time, misses global_batch_size "
                              "%lld",
                              (long long)start, (long long)increment,
                              (long long)t->global_batch_size);
    return WEFT_OK;
}

int64_t weft_ramp_unit(const weft_train_options *t)
{
    return is_on(t) ? weft_common_divisor(start_of(t), increment_of(t)) : t->global_batch_size;
}

int weft_ramp_num_sizes(const weft_train_options *t)
{
    return is_on(t) ? (int)((t->global_batch_size - start_of(t)) / increment_of(t)) : 0;
}

int64_t weft_ramp_size(const weft_train_options *t, int index)
{
    return start_of(t) + index * increment_of(t);
}

/* The samples from which on a step is larger than size `index`. */
static int64_t end_of(const weft_train_options *t, int64_t index)
{
    const int64_t samples = t->rampup_batch_size.values[2], sizes = weft_ramp_num_sizes(t);
    return (samples * (index + 1) + sizes - 1) / sizes;
}

int64_t weft_ramp_batch(const weft_train_options *t, int64_t consumed)
{
    if (!is_on(t) || consumed >= t->rampup_batch_size.values[2])
        return t->global_batch_size;
    return weft_ramp_size(
        t, (int)(consumed * weft_ramp_num_sizes(t) / t->rampup_batch_size.values[2]));
}

int64_t weft_ramp_samples(const weft_train_options *t, int64_t steps)
{
    int64_t consumed = 0;
    for (int i = 0; i < weft_ramp_num_sizes(t); i++) {
        const int64_t size = weft_ramp_size(t, i), left = end_of(t, i) - consumed;
        const int64_t of_size = left > 0 ? (left + size - 1) / size : 0;
        if (steps <= of_size)
            return consumed + steps * size;
        consumed += of_size * size;
        steps -= of_size;
    }
    return consumed + steps * t->global_batch_size;
}

double weft_ramp_lr(const weft_train_options *t, const weft_lr_schedule *lr, int64_t update)
{
    const double batch = (double)t->global_batch_size;
    return weft_lr_between(lr, (double)weft_ramp_samples(t, update - 1) / batch,
                           (double)weft_ramp_samples(t, update) / batch);
}

const char *weft_ramp_text(const weft_train_options *t, char out[96])
{
    char first[32] = "";
    if (is_on(t))
        snprintf(first, sizeof first, "%lld to ", (long long)start_of(t));
    snprintf(out, 96, "%s%s", first, weft_count_text(t->global_batch_size, "sample").text);
    return out;
}

/* What lies in a slot that a chunk's values have for themselves; those of others may lie there if
 * they take no more. */
static uint64_t room_of(const weft_slot *slot, const weft_pipeline_shape *shape, int rank)
{
    const uint64_t *bytes =
        slot->holds == WEFT_SLOT_DEFERRED ? shape->deferred_bytes : shape->stash_bytes;
    return slot->chunk < 0 || !bytes
               ? 0
               : bytes[weft_stage_of(shape->is_v, shape->num_stages, rank, slot->chunk)];
}

/* Whether a takes less than b. */
static bool is_smaller(const weft_slot *a, const weft_slot *b, const weft_pipeline_shape *shape,
                       int rank)
{
    const uint64_t of_a = room_of(a, shape, rank), of_b = room_of(b, shape, rank);
    return of_a != of_b ? of_a < of_b : a->bytes < b->bytes;
}

static bool is_taken(const int *out, int count, int slot)
{
    for (int i = 0; i < count; i++)
        if (out[i] == slot)
            return true;
    return false;
}

/* The smallest one left that slot `i` of `part` fits in; -1: none. */
static int find_slot(const weft_program *part, int i, const weft_program *whole,
                     const weft_pipeline_shape *shape, int rank, const int *out)
{
    const weft_slot *slot = &part->slots[i];
    int best = -1;
    for (int k = 0; k < whole->num_slots; k++) {
        const weft_slot *at = &whole->slots[k];
        if (at->holds == slot->holds && (at->chunk < 0) == (slot->chunk < 0) &&
            at->bytes >= slot->bytes && room_of(at, shape, rank) >= room_of(slot, shape, rank) &&
            !is_taken(out, part->num_slots, k) &&
            (best < 0 || is_smaller(at, &whole->slots[best], shape, rank)))
            best = k;
    }
    return best;
}

/* The one that is not placed and takes most. */
static int next_slot(const weft_program *part, const weft_pipeline_shape *shape, int rank,
                     const int *out)
{
    int best = -1;
    for (int i = 0; i < part->num_slots; i++)
        if (out[i] < 0 &&
            (best < 0 || is_smaller(&part->slots[best], &part->slots[i], shape, rank)))
            best = i;
    return best;
}

bool weft_ramp_fit_slots(const weft_program *part, const weft_program *whole,
                         const weft_pipeline_shape *shape, int rank, int *out)
{
    for (int i = 0; i < part->num_slots; i++)
        out[i] = -1;
    for (int i; (i = next_slot(part, shape, rank, out)) >= 0;) {
        out[i] = find_slot(part, i, whole, shape, rank, out);
        if (out[i] < 0)
            return false;
    }
    return true;
}
