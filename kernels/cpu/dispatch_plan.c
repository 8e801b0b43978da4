#include "kernels/cpu/cpu.h"

#include <assert.h>

enum { DROPPED = -2 }; /* in row_of until the rows are numbered */

/* Whether choice `a` is to be kept before choice `b`: larger probability, then earlier. */
static bool goes_before(const float *prob, int32_t a, int32_t b)
{
    float p = prob[a] == prob[a] ? prob[a] : -1.0f, q = prob[b] == prob[b] ? prob[b] : -1.0f;
    return p > q || (p == q && a < b);
}

/* Restores the heap below `at`; its root is the choice to give up first. */
static void sift_down(const float *prob, int32_t *heap, size_t num, size_t at)
{
    for (size_t child; (child = 2 * at + 1) < num; at = child) {
        if (child + 1 < num && goes_before(prob, heap[child], heap[child + 1]))
            child++;
        if (!goes_before(prob, heap[at], heap[child]))
            return;
        int32_t swapped = heap[at];
        heap[at] = heap[child];
        heap[child] = swapped;
    }
}

/* Marks all but the `capacity` best of an expert's choices. The heap holds the best so far. */
static void drop_least(const weft_dispatch_plan_args *a, int32_t *choices, size_t num)
{
    const size_t capacity = a->capacity;
    for (size_t i = capacity / 2; i-- > 0;)
        sift_down(a->top_prob, choices, capacity, i);
    for (size_t i = capacity; i < num; i++) {
        if (goes_before(a->top_prob, choices[i], choices[0])) {
            a->row_of[choices[0]] = DROPPED;
            choices[0] = choices[i];
            sift_down(a->top_prob, choices, capacity, 0);
        } else {
            a->row_of[choices[i]] = DROPPED;
        }
    }
}

/* Groups the choices by expert in scratch, so that each full expert sees its own. counts goes from
 * numbers to places and back. */
static void drop_by_probability(const weft_dispatch_plan_args *a)
{
    const size_t num_choices = a->num_tokens * a->topk;
    int64_t place = 0;
    for (size_t e = 0; e < a->num_experts; e++) {
        int64_t num = a->counts[e];
        a->counts[e] = place;
        place += num;
    }
    for (size_t i = 0; i < num_choices; i++)
        a->scratch[a->counts[a->top_index[i]]++] = (int32_t)i;
    int64_t begin = 0;
    for (size_t e = 0; e < a->num_experts; e++) {
        int64_t end = a->counts[e];
        a->counts[e] = end - begin;
        if ((uint64_t)a->counts[e] > a->capacity) {
            drop_least(a, a->scratch + begin, (size_t)a->counts[e]);
            *a->dropped += a->counts[e] - (int64_t)a->capacity;
            a->counts[e] = (int64_t)a->capacity;
        }
        begin = end;
    }
}

/* Where partition p's tokens end. */
static size_t first_token_after(const weft_dispatch_plan_args *a, size_t num_partitions, size_t p)
{
    return (p + 1) * a->num_tokens / num_partitions;
}

/* Gives the kept choices of the local experts their rows. `next` holds [n, E] counts, which become
 * the next row of each and then counts again. */
static void number_rows(const weft_dispatch_plan_args *a)
{
    const size_t first = a->first_expert, last = first + a->num_local, experts = a->num_experts;
    const size_t partitions = a->num_partitions > 1 ? a->num_partitions : 1;
    int64_t *next = partitions > 1 ? a->partition_counts : a->counts;
    if (partitions > 1) {
        for (size_t i = 0; i < partitions * experts; i++)
            next[i] = 0;
        for (size_t t = 0, p = 0; t < a->num_tokens; t++) {
            while (t >= first_token_after(a, partitions, p))
                p++;
            for (size_t i = t * a->topk; i < (t + 1) * a->topk; i++)
                if (a->row_of[i] != DROPPED)
                    next[p * experts + (size_t)a->top_index[i]]++;
        }
    }
    int64_t row = 0;
    for (size_t p = 0; p < partitions; p++)
        for (size_t e = first; e < last; e++) {
            const int64_t num = next[p * experts + e];
            next[p * experts + e] = row;
            row += num;
        }
    const int64_t num_rows = row;
    for (size_t t = 0, p = 0; t < a->num_tokens; t++) {
        while (t >= first_token_after(a, partitions, p))
            p++;
        for (size_t i = t * a->topk; i < (t + 1) * a->topk; i++) {
            const size_t e = (size_t)a->top_index[i];
            if (a->row_of[i] == DROPPED || e < first || e >= last) {
                a->row_of[i] = -1;
                continue;
            }
            a->row_of[i] = (int32_t)next[p * experts + e];
            a->token_of[next[p * experts + e]++] = (int32_t)t;
        }
    }
    /* Every entry stands at the end of its rows now: where the next one began. */
    int64_t begin = 0;
    for (size_t p = 0; p < partitions; p++)
        for (size_t e = first; e < last; e++) {
            const int64_t end = next[p * experts + e];
            next[p * experts + e] = end - begin;
            begin = end;
        }
    assert(begin == num_rows);
    (void)num_rows;
}

/* One thread does it: a few operations a choice, next to which waking others costs more. */
weft_status weft_cpu_dispatch_plan(const weft_dispatch_plan_args *args)
{
    const size_t num_choices = args->num_tokens * args->topk;
    const bool by_position = args->capacity > 0 && args->policy == WEFT_DROP_POSITION;
    args->wrong->choice = args->wrong->expert = -1;
    if (args->dropped)
        *args->dropped = 0;
    for (size_t e = 0; e < args->num_experts; e++)
        args->counts[e] = 0;
    for (size_t i = 0; i < num_choices; i++) {
        int32_t e = args->top_index[i];
        if (e < 0 || (size_t)e >= args->num_experts) {
            args->wrong->choice = (int64_t)i;
            args->wrong->expert = e;
            return weft_dispatch_plan_check(args);
        }
        args->row_of[i] = 0;
        if (by_position && (uint64_t)args->counts[e] == args->capacity) {
            args->row_of[i] = DROPPED;
            *args->dropped += 1;
        } else {
            args->counts[e]++;
        }
    }
    if (args->capacity > 0 && !by_position)
        drop_by_probability(args);

    number_rows(args);
    return WEFT_OK;
}
