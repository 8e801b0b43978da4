/* The dispatch plan: a counting sort of the choices, stable, by many blocks.
 *
 * The choices are cut into chunks of one partition each, a block a chunk. Blocks count their
 * chunk's choices of each expert; sums over the chunks before tell each block where its choices of
 * an expert begin; blocks then hand out the rows in token order. Dropping by position falls out of
 * the sort: a choice's place among its expert's is known there. Dropping by probability sorts all
 * choices by expert first, finds in each expert's list the least choice to be kept by radix
 * selection, and then sorts those that are not less.
 *
 * All sums are of integers, so that the order in which blocks run does not show.
 */
#include "kernels/cuda/cuda.cuh"

constexpr unsigned WARPS = 8;
constexpr unsigned THREADS = WARPS * WARP; /* of a chunk */
constexpr unsigned MIN_CHUNK = 1024;       /* choices */
constexpr unsigned MANY_CHUNKS = 2048;     /* from here on chunks grow instead */
constexpr unsigned SEGMENTS = 32;          /* of the chunks, when their counts are summed */
constexpr unsigned BLOCK = 1024;           /* threads where one block does it all */
constexpr unsigned DIGIT_BITS = 11;        /* of radix selection: 6 digits make 64 bits */
constexpr unsigned NUM_DIGITS = 1 << DIGIT_BITS;
constexpr unsigned SELECT_THREADS = 512;
constexpr size_t MAX_EXPERTS = 1024;

/* One counting sort. */
struct sorting {
    const int32_t *top_index;
    const float *top_prob;
    size_t num_tokens;
    unsigned topk, num_experts, first_expert, num_local, num_partitions;
    unsigned chunks;            /* of a partition */
    unsigned chunk;             /* choices, a multiple of THREADS */
    int32_t limit;              /* choices that an expert keeps at most */
    const uint64_t *threshold;  /* optional, [E]: choices of a smaller rank() do not take part */
    int32_t *before;            /* [partitions * chunks + 1][E]: counts of a chunk, then sums of the
                                   chunks before it; last the totals */
    int32_t *base;              /* [partitions][local]: rows before theirs */
    int32_t *wrong;             /* [partitions * chunks]: first choice of no expert, or INT32_MAX */
    int32_t *row_of, *token_of; /* the plan, or */
    int32_t *grouped;           /* the choices sorted by expert */
};

/* What the plan leaves on the host. */
struct results {
    int64_t *counts, *partition_counts, *dropped;
    weft_wrong_choice *wrong;
};

/* Larger goes first: larger probability (NaN: least of all), then earlier. No two are equal. */
static __device__ inline uint64_t rank(const float *top_prob, unsigned choice)
{
    float prob = top_prob[choice];
    prob = prob == prob ? prob + 0.0f : -1.0f; /* -0 becomes 0 */
    const uint32_t bits = __float_as_uint(prob);
    const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
    return uint64_t(ordered) << 32 | (0xffffffffu - choice);
}

/* The choice's expert, or -1 where it takes no part. */
static __device__ inline int expert_of(const sorting &s, unsigned choice)
{
    const int32_t e = s.top_index[choice];
    if (unsigned(e) >= s.num_experts)
        return -1;
    return s.threshold && rank(s.top_prob, choice) < s.threshold[e] ? -1 : e;
}

struct range {
    unsigned begin, end;
};

/* The choices of a chunk. */
static __device__ inline range choices_of(const sorting &s, unsigned chunk)
{
    const size_t partition = chunk / s.chunks;
    const size_t first = partition * s.num_tokens / s.num_partitions * s.topk;
    const size_t end = (partition + 1) * s.num_tokens / s.num_partitions * s.topk;
    const size_t begin = min(first + size_t(chunk % s.chunks) * s.chunk, end);
    return {unsigned(begin), unsigned(min(begin + s.chunk, end))};
}

static __global__ void __launch_bounds__(THREADS) count_choices(sorting s)
{
    WEFT_DYNAMIC_SHARED(int32_t, counts); /* [E] */
    __shared__ int32_t wrong;
    for (unsigned e = threadIdx.x; e < s.num_experts; e += THREADS)
        counts[e] = 0;
    if (threadIdx.x == 0)
        wrong = INT32_MAX;
    __syncthreads();
    const range r = choices_of(s, blockIdx.x);
    for (unsigned i = r.begin + threadIdx.x; i < r.end; i += THREADS) {
        const int e = expert_of(s, i);
        if (e >= 0)
            atomicAdd(&counts[e], 1);
        else if (unsigned(s.top_index[i]) >= s.num_experts)
            atomicMin(&wrong, int32_t(i));
    }
    __syncthreads();
    int32_t *out = s.before + size_t(blockIdx.x) * s.num_experts;
    for (unsigned e = threadIdx.x; e < s.num_experts; e += THREADS)
        out[e] = counts[e];
    if (threadIdx.x == 0)
        s.wrong[blockIdx.x] = wrong;
}

/* Counts of chunks become sums of the chunks before. A block takes 32 experts, a warp a segment of
 * the chunks. */
static __global__ void __launch_bounds__(SEGMENTS *WARP) add_chunks(sorting s)
{
    __shared__ int32_t sums[SEGMENTS][WARP];
    const unsigned lane = threadIdx.x % WARP, segment = threadIdx.x / WARP;
    const unsigned e = blockIdx.x * WARP + lane, num_chunks = s.num_partitions * s.chunks;
    const unsigned length = (num_chunks + SEGMENTS - 1) / SEGMENTS;
    const unsigned begin = min(segment * length, num_chunks), end = min(begin + length, num_chunks);
    int32_t *column = s.before + e;
    int32_t sum = 0;
    if (e < s.num_experts) {
#pragma unroll 8
        for (unsigned c = begin; c < end; c++)
            sum += column[size_t(c) * s.num_experts];
    }
    sums[segment][lane] = sum;
    __syncthreads();
    if (e >= s.num_experts)
        return;
    int32_t before = 0;
    for (unsigned i = 0; i < segment; i++)
        before += sums[i][lane];
#pragma unroll 8
    for (unsigned c = begin; c < end; c++) {
        const int32_t count = column[size_t(c) * s.num_experts];
        column[size_t(c) * s.num_experts] = before;
        before += count;
    }
    if (segment == SEGMENTS - 1)
        column[size_t(num_chunks) * s.num_experts] = before;
}

/* The sum over the block's threads before this one. `shared` holds 32 numbers. */
static __device__ inline int32_t sum_before(int32_t x, int32_t *shared)
{
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int32_t sum = x;
    for (unsigned offset = 1; offset < WARP; offset *= 2) {
        const int32_t other = __shfl_up_sync(WHOLE_WARP, sum, offset);
        sum += lane >= offset ? other : 0;
    }
    __syncthreads();
    if (lane == WARP - 1)
        shared[warp] = sum;
    __syncthreads();
    for (unsigned w = 0; w < warp; w++)
        sum += shared[w];
    return sum - x;
}

/* Choices of expert e that partition p keeps. */
static __device__ inline int32_t kept(const sorting &s, unsigned p, unsigned e)
{
    const int32_t *begin = s.before + size_t(p) * s.chunks * s.num_experts;
    const int32_t *end = begin + size_t(s.chunks) * s.num_experts;
    return min(end[e], s.limit) - min(begin[e], s.limit);
}

/* One block: the first row of each expert in each partition, and what the host is told. */
static __global__ void __launch_bounds__(BLOCK) number_rows(sorting s, results out)
{
    __shared__ int32_t shared[WARP];
    __shared__ int32_t wrong;
    __shared__ unsigned long long dropped;
    const unsigned num = s.num_partitions * s.num_local, length = (num + BLOCK - 1) / BLOCK;
    const unsigned begin = min(threadIdx.x * length, num), end = min(begin + length, num);
    int32_t sum = 0;
    for (unsigned i = begin; i < end; i++)
        sum += kept(s, i / s.num_local, s.first_expert + i % s.num_local);
    int32_t row = sum_before(sum, shared);
    for (unsigned i = begin; i < end; i++) {
        s.base[i] = row;
        row += kept(s, i / s.num_local, s.first_expert + i % s.num_local);
    }
    if (!out.counts)
        return;

    if (threadIdx.x == 0) {
        wrong = INT32_MAX;
        dropped = 0;
    }
    __syncthreads();
    const unsigned num_chunks = s.num_partitions * s.chunks;
    const int32_t *totals = s.before + size_t(num_chunks) * s.num_experts;
    for (unsigned e = threadIdx.x; e < s.num_experts; e += BLOCK) {
        const int32_t count = min(totals[e], s.limit);
        out.counts[e] = count;
        if (out.partition_counts)
            for (unsigned p = 0; p < s.num_partitions; p++)
                out.partition_counts[size_t(p) * s.num_experts + e] = kept(s, p, e);
        atomicAdd(&dropped, static_cast<unsigned long long>(count));
    }
    for (unsigned c = threadIdx.x; c < num_chunks; c += BLOCK)
        if (s.wrong[c] < INT32_MAX)
            atomicMin(&wrong, s.wrong[c]);
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    const bool is_faulty = wrong < INT32_MAX;
    out.wrong->choice = is_faulty ? wrong : -1;
    out.wrong->expert = is_faulty ? s.top_index[wrong] : -1;
    if (out.dropped)
        *out.dropped = int64_t(s.num_tokens * s.topk) - int64_t(dropped);
}

/* Gives a chunk's choices their rows. Each warp takes a run of the chunk and keeps count of its own
 * next place in each expert's list. */
static __global__ void __launch_bounds__(THREADS) place_choices(sorting s)
{
    WEFT_DYNAMIC_SHARED(int32_t, shared); /* places [WARPS][E], rows of place 0 [E] */
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned num_experts = s.num_experts;
    int32_t *places = shared + warp * num_experts, *rows = shared + WARPS * num_experts;
    for (unsigned e = lane; e < num_experts; e += WARP)
        places[e] = 0;
    __syncwarp();
    const range r = choices_of(s, blockIdx.x);
    const unsigned length = s.chunk / WARPS;
    const unsigned begin = min(r.begin + warp * length, r.end), end = min(begin + length, r.end);
    for (unsigned i = begin + lane; i < end; i += WARP) {
        const int e = expert_of(s, i);
        if (e >= 0)
            atomicAdd(&places[e], 1);
    }
    __syncthreads();
    const unsigned partition = blockIdx.x / s.chunks;
    const int32_t *before = s.before + size_t(blockIdx.x) * num_experts;
    const int32_t *before_partition = s.before + size_t(partition) * s.chunks * num_experts;
    for (unsigned e = threadIdx.x; e < num_experts; e += THREADS) {
        int32_t place = before[e];
        for (unsigned w = 0; w < WARPS; w++) {
            const int32_t count = shared[w * num_experts + e];
            shared[w * num_experts + e] = place;
            place += count;
        }
        const unsigned local = e - s.first_expert;
        rows[e] = local < s.num_local
                      ? s.base[partition * s.num_local + local] - min(before_partition[e], s.limit)
                      : INT32_MIN;
    }
    __syncthreads();
    for (unsigned first = begin; first < end; first += WARP) {
        const unsigned i = first + lane;
        const int e = i < end ? expert_of(s, i) : -1;
        const unsigned key = e >= 0 ? unsigned(e) : num_experts;
        const unsigned equal = equal_lanes(key, num_experts + 1);
        const unsigned earlier = equal & ((1u << lane) - 1);
        const int32_t place = e >= 0 ? places[e] + __popc(earlier) : s.limit;
        __syncwarp();
        if (e >= 0 && earlier == 0)
            places[e] += __popc(equal);
        __syncwarp();
        if (i >= end)
            continue;
        const bool has_row = place < s.limit && rows[e] != INT32_MIN;
        const int32_t row = has_row ? rows[e] + place : -1;
        if (s.row_of)
            s.row_of[i] = row;
        if (has_row && s.token_of)
            s.token_of[row] = int32_t(i / s.topk);
        if (has_row && s.grouped)
            s.grouped[row] = int32_t(i);
    }
}

/* threshold[e] = the rank() of the last choice that expert e keeps when it keeps `capacity`, or 0.
 * A block takes an expert; it finds the rank's digits from the top, by counts of what agrees with
 * those found. */
static __global__ void __launch_bounds__(SELECT_THREADS)
    select_threshold(sorting s, int32_t capacity, uint64_t *threshold)
{
    constexpr unsigned PER_THREAD = NUM_DIGITS / SELECT_THREADS;
    __shared__ int32_t counts[NUM_DIGITS], shared[WARP];
    __shared__ int32_t digit_found, wanted_of_digit, count_of_digit;
    const unsigned e = blockIdx.x;
    const int32_t num = s.before[size_t(s.num_partitions) * s.chunks * s.num_experts + e];
    uint64_t found = 0, mask = 0;
    int32_t wanted = capacity;
    if (num > capacity) { /* the whole block */
        const int32_t *list = s.grouped + s.base[e];
        for (int shift = 64 - int(DIGIT_BITS);; shift = max(shift - int(DIGIT_BITS), 0)) {
            for (unsigned d = threadIdx.x; d < NUM_DIGITS; d += SELECT_THREADS)
                counts[d] = 0;
            __syncthreads();
            for (int32_t i = int32_t(threadIdx.x); i < num; i += int32_t(SELECT_THREADS)) {
                const uint64_t x = rank(s.top_prob, unsigned(list[i]));
                if ((x & mask) == found)
                    atomicAdd(&counts[x >> shift & (NUM_DIGITS - 1)], 1);
            }
            __syncthreads();
            /* Thread 0 has the largest digits. */
            int32_t sum = 0;
            for (unsigned d = 0; d < PER_THREAD; d++)
                sum += counts[NUM_DIGITS - 1 - threadIdx.x * PER_THREAD - d];
            int32_t larger = sum_before(sum, shared);
            for (unsigned d = 0; d < PER_THREAD; d++) {
                const unsigned digit = NUM_DIGITS - 1 - threadIdx.x * PER_THREAD - d;
                if (larger < wanted && wanted <= larger + counts[digit]) {
                    digit_found = int32_t(digit);
                    wanted_of_digit = wanted - larger;
                    count_of_digit = counts[digit];
                }
                larger += counts[digit];
            }
            __syncthreads();
            found |= uint64_t(digit_found) << shift;
            mask = ~uint64_t(0) << shift;
            wanted = wanted_of_digit;
            if (wanted == count_of_digit) /* all that agree are kept, at the last digit it is one */
                break;
        }
    }
    if (threadIdx.x == 0)
        threshold[e] = found;
}

static weft_status sort(weft_lane *lane, const sorting &s, const results &out)
{
    cudaStream_t stream = weft_cuda_stream(lane);
    const unsigned num_chunks = s.num_partitions * s.chunks;
    const size_t bytes = s.num_experts * sizeof(int32_t);
    WEFT_TRY(WEFT_LAUNCH(count_choices, num_chunks, THREADS, bytes, stream, s));
    WEFT_TRY(
        WEFT_LAUNCH(add_chunks, num_blocks(s.num_experts, WARP), SEGMENTS * WARP, 0, stream, s));
    WEFT_TRY(WEFT_LAUNCH(number_rows, 1, BLOCK, 0, stream, s, out));
    return WEFT_LAUNCH(place_choices, num_chunks, THREADS, (WARPS + 1) * bytes, stream, s);
}

/* Cuts partitions into chunks and lays the workspace out from `*memory` on, or only measures it
 * where that is NULL. */
static size_t lay_out(sorting *s, char *memory)
{
    const size_t tokens = (s->num_tokens + s->num_partitions - 1) / s->num_partitions;
    const size_t choices = tokens * s->topk;
    s->chunk = MIN_CHUNK;
    while (choices / s->chunk * s->num_partitions > MANY_CHUNKS)
        s->chunk *= 2;
    s->chunks = choices ? num_blocks(choices, s->chunk) : 1;
    const size_t num_chunks = size_t(s->num_partitions) * s->chunks;
    const size_t num_before = (num_chunks + 1) * s->num_experts;
    const size_t num_base = size_t(s->num_partitions) * s->num_local;
    if (memory) {
        s->before = reinterpret_cast<int32_t *>(memory);
        s->base = s->before + num_before;
        s->wrong = s->base + num_base;
    }
    return (num_before + num_base + num_chunks) * sizeof(int32_t);
}

weft_status weft_cuda_dispatch_plan(weft_lane *lane, const weft_dispatch_plan_args *args)
{
    if (args->num_experts > MAX_EXPERTS)
        return WEFT_ERROR(WEFT_CONFIG, "%zu experts: a dispatch plan handles at most %zu",
                          args->num_experts, MAX_EXPERTS);
    if (args->num_tokens > size_t(INT32_MAX) / args->topk)
        return WEFT_ERROR(WEFT_CONFIG, "%zu tokens with %zu experts each: more choices than %d",
                          args->num_tokens, args->topk, INT32_MAX);
    const bool by_probability = args->capacity > 0 && args->policy == WEFT_DROP_PROBS;
    const bool by_position = args->capacity > 0 && !by_probability;
    const int32_t capacity = int32_t(min(args->capacity, size_t(INT32_MAX)));
    sorting plan = {};
    plan.top_index = args->top_index;
    plan.top_prob = args->top_prob;
    plan.num_tokens = args->num_tokens;
    plan.topk = unsigned(args->topk);
    plan.num_experts = unsigned(args->num_experts);
    plan.first_expert = unsigned(args->first_expert);
    plan.num_local = unsigned(args->num_local);
    plan.num_partitions = args->num_partitions > 1 ? unsigned(args->num_partitions) : 1;
    plan.limit = by_position ? capacity : INT32_MAX;
    plan.row_of = args->row_of;
    plan.token_of = args->token_of;

    /* One after the other, the two sorts use the same workspace. */
    sorting grouping = plan;
    grouping.first_expert = 0;
    grouping.num_local = plan.num_experts;
    grouping.num_partitions = 1;
    grouping.row_of = grouping.token_of = NULL;
    grouping.grouped = args->scratch;
    const size_t threshold_bytes = plan.num_experts * sizeof(uint64_t);
    const size_t bytes = max(lay_out(&plan, NULL), lay_out(&grouping, NULL));
    void *workspace = NULL;
    WEFT_TRY(weft_cuda_workspace(lane, threshold_bytes + bytes, &workspace));
    char *memory = static_cast<char *>(workspace);
    uint64_t *threshold = reinterpret_cast<uint64_t *>(memory);
    lay_out(&plan, memory + threshold_bytes);
    lay_out(&grouping, memory + threshold_bytes);
    if (by_probability) {
        WEFT_TRY(sort(lane, grouping, results{}));
        WEFT_TRY(WEFT_LAUNCH(select_threshold, grouping.num_experts, SELECT_THREADS, 0,
                             weft_cuda_stream(lane), grouping, capacity, threshold));
        plan.threshold = threshold;
    }
    return sort(lane, plan, {args->counts, args->partition_counts, args->dropped, args->wrong});
}
