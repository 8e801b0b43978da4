#include "kernels/cpu/cpu.h"

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

/* One thread does it: a few operations a choice, next to which waking others costs more. */
weft_status weft_cpu_dispatch_plan(const weft_dispatch_plan_args *args)
{
    const size_t num_choices = args->num_tokens * args->topk;
    const bool by_position = args->capacity > 0 && args->policy == WEFT_DROP_POSITION;
    for (size_t e = 0; e < args->num_experts; e++)
        args->counts[e] = 0;
    for (size_t i = 0; i < num_choices; i++) {
        int32_t e = args->top_index[i];
        if (e < 0 || (size_t)e >= args->num_experts)
            return WEFT_ERROR(WEFT_INTERNAL, "choice %zu of token %zu is expert %d of %zu",
                              i % args->topk, i / args->topk, (int)e, args->num_experts);
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

    /* The local experts' counts become the next row of each, then counts again. */
    const size_t first = args->first_expert, last = first + args->num_local;
    int64_t row = 0;
    for (size_t e = first; e < last; e++) {
        int64_t num = args->counts[e];
        args->counts[e] = row;
        row += num;
    }
    for (size_t i = 0; i < num_choices; i++) {
        const size_t e = (size_t)args->top_index[i];
        if (args->row_of[i] == DROPPED || e < first || e >= last) {
            args->row_of[i] = -1;
            continue;
        }
        args->row_of[i] = (int32_t)args->counts[e];
        args->token_of[args->counts[e]++] = (int32_t)(i / args->topk);
    }
    for (size_t e = last; e-- > first;)
        args->counts[e] -= e > first ? args->counts[e - 1] : 0;
    return WEFT_OK;
}
