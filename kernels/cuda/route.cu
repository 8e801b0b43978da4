/* The router: a warp takes a token, a lane every 32nd of its experts. Sums over tokens go from
 * warps to blocks to one row of partial sums a block, which a second kernel adds up in order, so
 * that they are the same at every run. */
#include "kernels/cuda/cuda.cuh"

constexpr unsigned WARPS = 8;
constexpr unsigned THREADS = WARPS * WARP;
constexpr unsigned MAX_BLOCKS = 512; /* of the kernel that routes: bounds the partial sums */
constexpr size_t MAX_EXPERTS = 1024;
constexpr size_t MAX_TOPK = WARP; /* a lane keeps one choice */

/* A logit and its expert: the better one is larger or, where equal, of the lower index. A candidate
 * that is NaN is better than none. */
struct candidate {
    float value;
    int expert;
};

static __device__ inline candidate better(candidate a, candidate b)
{
    return b.value > a.value || (b.value == a.value && b.expert < a.expert) ? b : a;
}

/* The best of the warp's candidates, in every lane. */
static __device__ inline candidate best_of_warp(candidate best)
{
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(WHOLE_WARP, best.value, offset);
        const int expert = __shfl_xor_sync(WHOLE_WARP, best.expert, offset);
        best = better(best, {other, expert});
    }
    return best;
}

/* The best of the experts in [first, end), which are then NaN in `left`: taken. */
template <int PER_LANE>
static __device__ candidate take(float (&left)[PER_LANE], unsigned lane, int first, int end)
{
    candidate best = {-INFINITY, INT32_MAX};
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const int expert = i * int(WARP) + int(lane);
        if (expert >= first && expert < end)
            best = better(best, {left[i], expert});
    }
    best = best_of_warp(best);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        left[i] = i * int(WARP) + int(lane) == best.expert ? NAN : left[i];
    return best;
}

/* Lane k gets choice k. */
template <int PER_LANE>
static __device__ candidate choose(float (&left)[PER_LANE], unsigned topk, unsigned lane)
{
    candidate mine = {0.0f, 0};
    for (unsigned k = 0; k < topk; k++) {
        const candidate best = take(left, lane, 0, PER_LANE * int(WARP));
        if (lane == k)
            mine = best;
    }
    return mine;
}

/* Leaves the values of the best groups alone: the others' become -infinity. */
template <int PER_LANE>
static __device__ void keep_groups(const weft_route_args &a, float (&values)[PER_LANE],
                                   unsigned lane)
{
    const int each = int(a.num_experts / a.num_groups);
    const int num = a.topk > a.group_topk ? int(a.topk / a.group_topk) : 1;
    float left[PER_LANE], sums[1] = {NAN}; /* lane g: of group g */
#pragma unroll
    for (int i = 0; i < PER_LANE; i++)
        left[i] = values[i];
    for (int g = 0; g < int(a.num_groups); g++) {
        float sum = 0.0f;
        for (int k = 0; k < num && k < each; k++)
            sum += take(left, lane, g * each, (g + 1) * each).value;
        if (int(lane) == g)
            sums[0] = sum == sum ? sum : -INFINITY;
    }
    unsigned kept = 0;
    for (unsigned k = 0; k < a.group_topk; k++)
        kept |= 1u << take(sums, lane, 0, int(a.num_groups)).expert;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const unsigned expert = unsigned(i) * WARP + lane;
        if (expert < a.num_experts && !(kept >> (expert / unsigned(each)) & 1))
            values[i] = -INFINITY;
    }
}

/* A block's sums over its warps, to its row of `partials`. */
static __device__ void write_partials(const weft_route_args &a, const float *shared,
                                      const int *counts, float *z_sums, float z_sum,
                                      float *partials)
{
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned num_experts = unsigned(a.num_experts);
    if (lane == 0)
        z_sums[warp] = z_sum;
    __syncthreads();

    float *partial =
        partials + (blockIdx.y * size_t(gridDim.x) + blockIdx.x) * size_t(2 * num_experts + 1);
    for (unsigned e = threadIdx.x; e < num_experts; e += THREADS) {
        float score_sum = 0.0f;
        for (unsigned w = 0; w < WARPS; w++)
            score_sum += shared[w * num_experts + e];
        partial[e] = float(counts[e]);
        partial[num_experts + e] = score_sum;
    }
    if (threadIdx.x == 0) {
        float z = 0.0f;
        for (unsigned w = 0; w < WARPS; w++)
            z += z_sums[w];
        partial[2 * num_experts] = z;
    }
}

/* Partial sums of a block: [E] counts, [E] sums of scores, the sum of logsumexp^2. */
template <int PER_LANE>
static __global__ void __launch_bounds__(THREADS)
    route_tokens(weft_route_args a, unsigned tokens_per_block, float *partials)
{
    WEFT_DYNAMIC_SHARED(float, shared); /* score sums [WARPS][E], counts [E] */
    __shared__ float z_sums[WARPS];
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned num_experts = unsigned(a.num_experts), topk = unsigned(a.topk);
    float *score_sums = shared + warp * num_experts;
    int *counts = reinterpret_cast<int *>(shared + WARPS * num_experts);
    for (unsigned e = lane; e < num_experts; e += WARP)
        score_sums[e] = 0.0f;
    for (unsigned e = threadIdx.x; e < num_experts; e += THREADS)
        counts[e] = 0;
    __syncthreads();

    const size_t first = size_t(blockIdx.x) * tokens_per_block;
    const size_t end = min(first + tokens_per_block, a.num_tokens / gridDim.y);
    float z_sum = 0.0f;
    for (size_t at = first + warp; at < end; at += WARPS) {
        const size_t t = at * gridDim.y + blockIdx.y; /* a sequence's tokens lie apart */
        const float *logits = a.logits + t * num_experts;
        float value[PER_LANE], left[PER_LANE]; /* NaN in `left`: chosen before, or no expert */
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const unsigned e = unsigned(i) * WARP + lane;
            value[i] = e < num_experts ? logits[e] : -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const bool is_expert = unsigned(i) * WARP + lane < num_experts;
            left[i] = value[i] == value[i] ? value[i] : -INFINITY; /* as the smallest */
            left[i] = is_expert ? left[i] : NAN;
        }

        const candidate mine = choose(left, topk, lane);
        const float max = __shfl_sync(WHOLE_WARP, mine.value, 0);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const bool is_expert = unsigned(i) * WARP + lane < num_experts;
            value[i] = is_expert ? expf(value[i] - max) : 0.0f;
            sum += value[i];
        }
        sum = warp_sum(sum);
        const float inverse = 1.0f / sum;
        float *scores = a.scores + t * num_experts;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const unsigned e = unsigned(i) * WARP + lane;
            if (e < num_experts) {
                scores[e] = value[i] * inverse;
                score_sums[e] += value[i] * inverse;
            }
        }
        const float lse = max + logf(sum);
        z_sum += lse * lse;

        float prob = lane < topk ? expf(mine.value - max) : 0.0f;
        prob = a.pre_softmax ? prob * inverse : prob / warp_sum(prob);
        prob = a.scale > 0.0f ? prob * a.scale : prob;
        if (lane < topk) {
            a.top_index[t * topk + lane] = mine.expert;
            a.top_prob[t * topk + lane] = prob;
            atomicAdd(&counts[mine.expert], 1);
        }
    }
    write_partials(a, shared, counts, z_sums, z_sum, partials);
}

/* The same with sigmoids, a bias or groups: scores are compared, not logits. */
template <int PER_LANE>
static __global__ void __launch_bounds__(THREADS)
    route_tokens_by_scores(weft_route_args a, unsigned tokens_per_block, float *partials)
{
    WEFT_DYNAMIC_SHARED(float, shared); /* as in route_tokens */
    __shared__ float z_sums[WARPS];
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned num_experts = unsigned(a.num_experts), topk = unsigned(a.topk);
    float *score_sums = shared + warp * num_experts;
    int *counts = reinterpret_cast<int *>(shared + WARPS * num_experts);
    for (unsigned e = lane; e < num_experts; e += WARP)
        score_sums[e] = 0.0f;
    for (unsigned e = threadIdx.x; e < num_experts; e += THREADS)
        counts[e] = 0;
    __syncthreads();

    const size_t first = size_t(blockIdx.x) * tokens_per_block;
    const size_t end = min(first + tokens_per_block, a.num_tokens / gridDim.y);
    float z_sum = 0.0f;
    for (size_t at = first + warp; at < end; at += WARPS) {
        const size_t t = at * gridDim.y + blockIdx.y; /* a sequence's tokens lie apart */
        const float *logits = a.logits + t * num_experts;
        float *scores = a.scores + t * num_experts;
        float logit[PER_LANE], score[PER_LANE], value[PER_LANE];
        float max = -INFINITY, sum = 0.0f, total = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const unsigned e = unsigned(i) * WARP + lane;
            logit[i] = e < num_experts ? logits[e] : -INFINITY;
            max = fmaxf(max, logit[i]);
        }
        max = warp_max(max);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const bool is_expert = unsigned(i) * WARP + lane < num_experts;
            score[i] = is_expert ? expf(logit[i] - max) : 0.0f;
            sum += score[i];
        }
        sum = warp_sum(sum);
        const float inverse = 1.0f / sum;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const unsigned e = unsigned(i) * WARP + lane;
            score[i] = a.sigmoid ? 1.0f / (1.0f + expf(-logit[i])) : score[i] * inverse;
            score[i] = e < num_experts ? score[i] : 0.0f;
            total += score[i];
            value[i] = score[i] + (a.bias && e < num_experts ? a.bias[e] : 0.0f);
            value[i] = value[i] == value[i] ? value[i] : -INFINITY;
            value[i] = e < num_experts ? value[i] : NAN;
        }
        const float share = a.sigmoid ? 1.0f / (warp_sum(total) + 1e-20f) : 1.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const unsigned e = unsigned(i) * WARP + lane;
            if (e < num_experts) {
                scores[e] = score[i];
                score_sums[e] += score[i] * share;
            }
        }
        const float lse = max + logf(sum);
        z_sum += lse * lse;
        if (a.num_groups > 0)
            keep_groups(a, value, lane);
        const candidate mine = choose(value, topk, lane);
        __syncwarp(); /* other lanes wrote the chosen scores */
        float prob = lane < topk ? scores[mine.expert] : 0.0f;
        if (!a.pre_softmax && !(a.sigmoid && topk == 1))
            prob /= warp_sum(prob) + 1e-20f;
        prob = a.scale > 0.0f ? prob * a.scale : prob;
        if (lane < topk) {
            a.top_index[t * topk + lane] = mine.expert;
            a.top_prob[t * topk + lane] = prob;
            atomicAdd(&counts[mine.expert], 1);
        }
    }
    write_partials(a, shared, counts, z_sums, z_sum, partials);
}

/* A block takes 32 columns of a sequence's partial sums, a warp every 32nd row. */
static __global__ void __launch_bounds__(WARP *WARP)
    add_partials(weft_route_args a, const float *partials, unsigned num_partials)
{
    __shared__ float shared[WARP][WARP];
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned num_experts = unsigned(a.num_experts), num_columns = 2 * num_experts + 1;
    const unsigned column = blockIdx.x * WARP + lane;
    float sum = 0.0f;
    if (column < num_columns)
        for (unsigned row = warp; row < num_partials; row += WARP)
            sum += partials[(blockIdx.y * size_t(num_partials) + row) * num_columns + column];
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= num_columns)
        return;
    for (unsigned w = 1; w < WARP; w++)
        sum += shared[w][lane];
    if (column < num_experts)
        a.counts[blockIdx.y * num_experts + column] += sum;
    else if (column < 2 * num_experts)
        a.score_sums[blockIdx.y * num_experts + column - num_experts] += sum;
    else
        a.z_sum[blockIdx.y] += sum;
}

/* Those of the token's sequence. */
static __device__ inline const float *fraction_of(const weft_route_backward_args &a, size_t t)
{
    return a.num_sequences > 1 ? a.fraction + t % a.num_sequences * a.num_experts : a.fraction;
}

/* The softmax's Jacobian is diag(s) - s s^T; logsumexp's gradient is s. */
template <int PER_LANE>
static __global__ void __launch_bounds__(THREADS) route_backward_token(weft_route_backward_args a)
{
    const unsigned lane = threadIdx.x % WARP;
    const size_t t = size_t(blockIdx.x) * WARPS + threadIdx.x / WARP;
    if (t >= a.num_tokens) /* the whole warp */
        return;
    const unsigned num_experts = unsigned(a.num_experts), topk = unsigned(a.topk);
    const float *scores = a.scores + t * num_experts;
    const float *fraction = fraction_of(a, t);
    float *dlogits = a.dlogits + t * num_experts;
    float score[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const unsigned e = unsigned(i) * WARP + lane;
        score[i] = e < num_experts ? scores[e] : 0.0f;
    }
    unsigned chosen = 0; /* lane k: choice k */
    float prob = 0.0f, dprob = 0.0f;
    if (lane < topk) {
        chosen = unsigned(a.top_index[t * topk + lane]);
        prob = a.top_prob[t * topk + lane];
        dprob = a.dtop_prob[t * topk + lane];
    }
    /* dscores . scores: what the chosen experts and the auxiliary loss put on the scores */
    const float from_chosen = warp_sum(prob * dprob);
    float uniform = a.pre_softmax ? -from_chosen : 0.0f;
    if (a.aux_scale != 0.0f) {
        float along = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const unsigned e = unsigned(i) * WARP + lane;
            along += e < num_experts ? score[i] * fraction[e] : 0.0f;
        }
        uniform -= a.aux_scale * warp_sum(along);
    }
    const float chosen_score = lane < topk ? scores[chosen] : 1.0f;
    if (a.z_scale != 0.0f) { /* the largest score is at least 1 / E: a safe logarithm */
        candidate top = {lane == 0 ? chosen_score : -INFINITY, lane == 0 ? int(chosen) : INT32_MAX};
#pragma unroll
        for (int i = 0; i < PER_LANE; i++)
            if (a.biased && unsigned(i) * WARP + lane < num_experts)
                top = better(top, {score[i], int(unsigned(i) * WARP + lane)});
        if (a.biased)
            top = best_of_warp(top);
        const float lse =
            lane == 0 ? a.logits[t * num_experts + unsigned(top.expert)] - logf(top.value) : 0.0f;
        uniform += 2.0f * a.z_scale * __shfl_sync(WHOLE_WARP, lse, 0);
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const unsigned e = unsigned(i) * WARP + lane;
        if (e < num_experts) {
            const float on_score = a.aux_scale != 0.0f ? a.aux_scale * fraction[e] : 0.0f;
            dlogits[e] = score[i] * (on_score + uniform);
        }
    }
    __syncwarp(); /* the chosen experts' gradients are written anew, by other lanes */
    if (lane < topk) {
        const float on_score = a.aux_scale != 0.0f ? a.aux_scale * fraction[chosen] : 0.0f;
        const float shared = a.scale > 0.0f ? from_chosen / a.scale : from_chosen;
        dlogits[chosen] =
            chosen_score * (on_score + uniform) + prob * (dprob - (a.pre_softmax ? 0.0f : shared));
    }
}

/* Through q = s / sum of s, of which the auxiliary loss is, and p = scale s / sum of the chosen s;
 * then through the sigmoid, and logsumexp. */
template <int PER_LANE>
static __global__ void __launch_bounds__(THREADS)
    route_backward_sigmoids(weft_route_backward_args a)
{
    const unsigned lane = threadIdx.x % WARP;
    const size_t t = size_t(blockIdx.x) * WARPS + threadIdx.x / WARP;
    if (t >= a.num_tokens) /* the whole warp */
        return;
    const unsigned num_experts = unsigned(a.num_experts), topk = unsigned(a.topk);
    const float *scores = a.scores + t * num_experts, *logits = a.logits + t * num_experts;
    const float scale = a.scale > 0.0f ? a.scale : 1.0f;
    const float *fraction = fraction_of(a, t);
    float *dlogits = a.dlogits + t * num_experts;
    float score[PER_LANE], on_score[PER_LANE], total = 0.0f, along = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const unsigned e = unsigned(i) * WARP + lane;
        score[i] = e < num_experts ? scores[e] : 0.0f;
        on_score[i] = a.aux_scale != 0.0f && e < num_experts ? a.aux_scale * fraction[e] : 0.0f;
        total += score[i];
        along += on_score[i] * score[i];
    }
    total = warp_sum(total) + 1e-20f;
    along = warp_sum(along) / total;
    unsigned chosen = 0; /* lane k: choice k */
    float prob = 0.0f, dprob = 0.0f, chosen_score = 0.0f;
    if (lane < topk) {
        chosen = unsigned(a.top_index[t * topk + lane]);
        prob = a.top_prob[t * topk + lane];
        dprob = a.dtop_prob[t * topk + lane];
        chosen_score = scores[chosen];
    }
    const float from_chosen = warp_sum(prob * dprob), sum = warp_sum(chosen_score) + 1e-20f;
    float max = -INFINITY, exps = 0.0f, each = 0.0f;
    if (a.z_scale != 0.0f) {
        for (unsigned e = lane; e < num_experts; e += WARP)
            max = fmaxf(max, logits[e]);
        max = warp_max(max);
        for (unsigned e = lane; e < num_experts; e += WARP)
            exps += expf(logits[e] - max);
        exps = warp_sum(exps);
        each = 2.0f * a.z_scale * (max + logf(exps)) / exps;
    }
    const auto of_z = [&](unsigned e) {
        return a.z_scale != 0.0f ? each * expf(logits[e] - max) : 0.0f;
    };
    const auto of_aux = [&](float on) { return a.aux_scale != 0.0f ? (on - along) / total : 0.0f; };
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const unsigned e = unsigned(i) * WARP + lane;
        if (e < num_experts)
            dlogits[e] = of_aux(on_score[i]) * score[i] * (1.0f - score[i]) + of_z(e);
    }
    __syncwarp(); /* the chosen experts' gradients are written anew, by other lanes */
    if (lane < topk) {
        const bool divided = !a.pre_softmax && topk > 1;
        const float on = a.aux_scale != 0.0f ? a.aux_scale * fraction[chosen] : 0.0f;
        const float dscore =
            of_aux(on) + (divided ? (scale * dprob - from_chosen) / sum : scale * dprob);
        dlogits[chosen] = dscore * chosen_score * (1.0f - chosen_score) + of_z(chosen);
    }
}

static weft_status check_limits(size_t num_experts, size_t topk)
{
    if (num_experts > MAX_EXPERTS)
        return WEFT_ERROR(WEFT_CONFIG, "%zu experts: the router handles at most %zu", num_experts,
                          MAX_EXPERTS);
    if (topk > MAX_TOPK)
        return WEFT_ERROR(WEFT_CONFIG, "%zu experts a token: the router handles at most %zu", topk,
                          MAX_TOPK);
    return WEFT_OK;
}

template <int PER_LANE>
static weft_status launch_route(weft_lane *lane, const weft_route_args *args)
{
    const size_t columns = 2 * args->num_experts + 1;
    const unsigned sequences = args->num_sequences > 0 ? unsigned(args->num_sequences) : 1;
    const unsigned most = num_blocks(args->num_tokens / sequences, WARPS);
    const unsigned rounds = num_blocks(most, MAX_BLOCKS); /* of tokens, in a block */
    const unsigned blocks = num_blocks(most, rounds);
    void *partials = NULL;
    WEFT_TRY(weft_cuda_workspace(lane, sequences * blocks * columns * sizeof(float), &partials));
    cudaStream_t stream = weft_cuda_stream(lane);
    const dim3 grid(blocks, sequences);
    const size_t shared = (WARPS + 1) * args->num_experts * sizeof(float);
    if (args->sigmoid || args->bias || args->num_groups > 0)
        WEFT_TRY(WEFT_LAUNCH(route_tokens_by_scores<PER_LANE>, grid, THREADS, shared, stream, *args,
                             rounds * WARPS, static_cast<float *>(partials)));
    else
        WEFT_TRY(WEFT_LAUNCH(route_tokens<PER_LANE>, grid, THREADS, shared, stream, *args,
                             rounds * WARPS, static_cast<float *>(partials)));
    return WEFT_LAUNCH(add_partials, dim3(num_blocks(columns, WARP), sequences), WARP * WARP, 0,
                       stream, *args, static_cast<const float *>(partials), blocks);
}

template <int PER_LANE>
static weft_status launch_route_backward(weft_lane *lane, const weft_route_backward_args *args)
{
    const unsigned blocks = num_blocks(args->num_tokens, WARPS);
    cudaStream_t stream = weft_cuda_stream(lane);
    return args->sigmoid
               ? WEFT_LAUNCH(route_backward_sigmoids<PER_LANE>, blocks, THREADS, 0, stream, *args)
               : WEFT_LAUNCH(route_backward_token<PER_LANE>, blocks, THREADS, 0, stream, *args);
}

/* Calls `launch` with the smallest number of experts a lane that suffices. */
#define WITH_EXPERTS(num_experts, launch, lane, args)                                              \
    ((num_experts) <= 1 * WARP    ? launch<1>((lane), (args))                                      \
     : (num_experts) <= 2 * WARP  ? launch<2>((lane), (args))                                      \
     : (num_experts) <= 4 * WARP  ? launch<4>((lane), (args))                                      \
     : (num_experts) <= 8 * WARP  ? launch<8>((lane), (args))                                      \
     : (num_experts) <= 16 * WARP ? launch<16>((lane), (args))                                     \
                                  : launch<32>((lane), (args)))

weft_status weft_cuda_route(weft_lane *lane, const weft_route_args *args)
{
    WEFT_TRY(check_limits(args->num_experts, args->topk));
    if (args->num_tokens == 0)
        return WEFT_OK;
    return WITH_EXPERTS(args->num_experts, launch_route, lane, args);
}

weft_status weft_cuda_route_backward(weft_lane *lane, const weft_route_backward_args *args)
{
    WEFT_TRY(check_limits(args->num_experts, args->topk));
    if (args->num_tokens == 0)
        return WEFT_OK;
    weft_route_backward_args local = *args;
    if (args->aux_scale != 0.0f)
        WEFT_TRY(bring_near(lane, 0,
                            (args->num_sequences > 0 ? args->num_sequences : 1) * args->num_experts,
                            &local.fraction));
    return WITH_EXPERTS(args->num_experts, launch_route_backward, lane, &local);
}
