/* The router's selection and its backward against fp64 and finite differences. */
#include "probe.h"

#include <math.h>

/* scores[E] = softmax of logits; returns log sum exp. */
static double softmax(const double *logits, size_t num, double *scores)
{
    double max = -INFINITY, sum = 0.0;
    for (size_t e = 0; e < num; e++)
        max = fmax(max, logits[e]);
    for (size_t e = 0; e < num; e++)
        sum += scores[e] = exp(logits[e] - max);
    for (size_t e = 0; e < num; e++)
        scores[e] /= sum;
    return max + log(sum);
}

/* By repeated search: the largest not yet taken, the first of equals. */
static void select_naive(const double *logits, size_t num_experts, size_t k, size_t *chosen)
{
    for (size_t i = 0; i < k; i++) {
        size_t best = num_experts;
        for (size_t e = 0; e < num_experts; e++) {
            bool taken = false;
            for (size_t j = 0; j < i; j++)
                taken = taken || chosen[j] == e;
            if (!taken && (best == num_experts || logits[e] > logits[best]))
                best = e;
        }
        chosen[i] = best;
    }
}

static void probabilities(const double *logits, const double *scores, const size_t *chosen,
                          size_t k, bool pre_softmax, double *prob)
{
    double sum = 0.0;
    for (size_t i = 0; i < k; i++)
        sum += prob[i] =
            pre_softmax ? scores[chosen[i]] : exp(logits[chosen[i]] - logits[chosen[0]]);
    for (size_t i = 0; i < k && !pre_softmax; i++)
        prob[i] /= sum;
}

static void check_route(size_t num_tokens, size_t num_experts, size_t k, bool pre_softmax,
                        double spread)
{
    if (!probe_takes_case())
        return;
    probe_start(NULL);
    const size_t count = num_tokens * num_experts, num_choices = num_tokens * k;
    float *logits = probe_random(count, WEFT_F32, spread, 1);
    for (size_t i = 0; i < count; i += 5) /* ties, also at the edge of the selection */
        logits[i] = rintf(logits[i]);
    float *scores = probe_alloc(count * sizeof *scores);
    int32_t *top_index = probe_alloc(num_choices * sizeof *top_index);
    float *top_prob = probe_alloc(num_choices * sizeof *top_prob);
    float *counts = probe_constant(num_experts, 3.0f);
    float *score_sums = probe_constant(num_experts, 1.0f), *z_sum = probe_constant(1, 2.0f);
    double *x = probe_read(logits, count, WEFT_F32), *s = probe_doubles(count);
    double *expected_counts = probe_doubles(num_experts),
           *expected_sums = probe_doubles(num_experts);
    double *prob = probe_doubles(num_choices), z = 2.0;
    size_t chosen[16];
    PROBE_RUN(route, .num_tokens = num_tokens, .num_experts = num_experts, .topk = k,
              .pre_softmax = pre_softmax, .logits = logits, .scores = scores,
              .top_index = top_index, .top_prob = top_prob, .counts = counts,
              .score_sums = score_sums, .z_sum = z_sum);
    for (size_t e = 0; e < num_experts; e++) {
        expected_counts[e] = 3.0;
        expected_sums[e] = 1.0;
    }
    for (size_t t = 0; t < num_tokens; t++) {
        double lse = softmax(x + t * num_experts, num_experts, s + t * num_experts);
        z += lse * lse;
        select_naive(x + t * num_experts, num_experts, k, chosen);
        probabilities(x + t * num_experts, s + t * num_experts, chosen, k, pre_softmax,
                      prob + t * k);
        for (size_t i = 0; i < k; i++) {
            assert_int_equal(top_index[t * k + i], chosen[i]);
            expected_counts[chosen[i]] += 1.0;
        }
        for (size_t e = 0; e < num_experts; e++)
            expected_sums[e] += s[t * num_experts + e];
    }
    double got_z = (double)*z_sum;
    probe_close(probe_read(scores, count, WEFT_F32), s, count, probe_tolerance(WEFT_F32, 1e-6),
                "scores");
    probe_close(probe_read(top_prob, num_choices, WEFT_F32), prob, num_choices,
                probe_tolerance(WEFT_F32, 1e-6), "top_prob");
    probe_close(probe_read(counts, num_experts, WEFT_F32), expected_counts, num_experts, 0.0,
                "counts");
    probe_close(probe_read(score_sums, num_experts, WEFT_F32), expected_sums, num_experts,
                probe_tolerance(WEFT_F32, 1e-6), "score sums");
    probe_close(&got_z, &z, 1, 1e-5, "z");
}

CASE(route_equals_fp64)
{
    for (int pre = 0; pre < 2; pre++) {
        check_route(1, 1, 1, pre, 1.0);
        check_route(5, 4, 1, pre, 2.0);
        check_route(70, 8, 2, pre, 2.0);
        check_route(33, 6, 6, pre, 5.0);
        check_route(2500, 8, 2, pre, 1.0);
        check_route(130, 129, 7, pre, 3.0);
        check_route(70, 1024, 16, pre, 20.0);
    }
}

/* Every logit equal: the first k experts, each with the same share. */
CASE(ties_go_to_the_lower_index)
{
    float *logits = probe_constant(12, 0.5f), *scores = probe_alloc(12 * 4);
    int32_t *top_index = probe_alloc(6 * 4);
    float *top_prob = probe_alloc(6 * 4), *counts = probe_constant(6, 0.0f);
    float *sums = probe_constant(6, 0.0f), *z = probe_constant(1, 0.0f);
    PROBE_RUN(route, .num_tokens = 2, .num_experts = 6, .topk = 3, .logits = logits,
              .scores = scores, .top_index = top_index, .top_prob = top_prob, .counts = counts,
              .score_sums = sums, .z_sum = z);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(top_index[i], i % 3);
        assert_true(fabsf(top_prob[i] - 1.0f / 3.0f) < 1e-6f);
    }
}

/* Logits that are not numbers still choose k different experts. */
CASE(selection_survives_nan)
{
    float *logits = probe_alloc(8 * 4), *scores = probe_alloc(8 * 4);
    int32_t *top_index = probe_alloc(3 * 4);
    float *top_prob = probe_alloc(3 * 4), *counts = probe_constant(8, 0.0f);
    float *sums = probe_constant(8, 0.0f), *z = probe_constant(1, 0.0f);
    logits[5] = 1.0f; /* all others are NaN */
    PROBE_RUN(route, .num_tokens = 1, .num_experts = 8, .topk = 3, .logits = logits,
              .scores = scores, .top_index = top_index, .top_prob = top_prob, .counts = counts,
              .score_sums = sums, .z_sum = z);
    assert_int_equal(top_index[0], 5);
    assert_int_equal(top_index[1], 0);
    assert_int_equal(top_index[2], 1);
}

typedef struct route_case {
    size_t num_tokens, num_experts, topk;
    bool pre_softmax;
    double *logits, *dtop_prob, *fraction, *scores;
    const int32_t *top_index;
    double aux, z; /* coefficients of the two losses */
} route_case;

/* sum dtop_prob top_prob + aux E sum_e f_e mean_t(scores) + z mean_t(logsumexp^2), with the
 * selection and the counts held. */
static double route_loss(const void *context)
{
    const route_case *r = context;
    const double tokens = (double)r->num_tokens, experts = (double)r->num_experts;
    double loss = 0.0, prob[16];
    size_t chosen[16];
    for (size_t t = 0; t < r->num_tokens; t++) {
        const double *logits = r->logits + t * r->num_experts;
        double lse = softmax(logits, r->num_experts, r->scores);
        for (size_t i = 0; i < r->topk; i++)
            chosen[i] = (size_t)r->top_index[t * r->topk + i];
        probabilities(logits, r->scores, chosen, r->topk, r->pre_softmax, prob);
        for (size_t i = 0; i < r->topk; i++)
            loss += r->dtop_prob[t * r->topk + i] * prob[i];
        for (size_t e = 0; e < r->num_experts; e++)
            loss += r->aux * experts * r->fraction[e] * r->scores[e] / tokens;
        loss += r->z / tokens * lse * lse;
    }
    return loss;
}

static void check_route_backward(size_t num_tokens, size_t num_experts, size_t k, bool pre_softmax,
                                 float aux, float z)
{
    if (!probe_takes_case())
        return;
    probe_start(NULL);
    const size_t count = num_tokens * num_experts, num_choices = num_tokens * k;
    float *logits = probe_random(count, WEFT_F32, 2.0, 1);
    float *scores = probe_alloc(count * sizeof *scores),
          *dlogits = probe_alloc(count * sizeof *dlogits);
    int32_t *top_index = probe_alloc(num_choices * sizeof *top_index);
    float *top_prob = probe_alloc(num_choices * sizeof *top_prob);
    float *counts = probe_constant(num_experts, 0.0f), *sums = probe_constant(num_experts, 0.0f);
    float *z_sum = probe_constant(1, 0.0f);
    float *dtop_prob = probe_random(num_choices, WEFT_F32, 1.0, 2);
    float *fraction = probe_alloc(num_experts * sizeof *fraction);
    PROBE_RUN(route, .num_tokens = num_tokens, .num_experts = num_experts, .topk = k,
              .pre_softmax = pre_softmax, .logits = logits, .scores = scores,
              .top_index = top_index, .top_prob = top_prob, .counts = counts, .score_sums = sums,
              .z_sum = z_sum);
    for (size_t e = 0; e < num_experts; e++)
        fraction[e] = counts[e] / (float)num_choices;
    PROBE_RUN(route_backward, .num_tokens = num_tokens, .num_experts = num_experts, .topk = k,
              .pre_softmax = pre_softmax, .logits = logits, .scores = scores,
              .top_index = top_index, .top_prob = top_prob, .dtop_prob = dtop_prob,
              .fraction = aux != 0.0f ? fraction : NULL,
              .aux_scale = aux * (float)num_experts / (float)num_tokens,
              .z_scale = z / (float)num_tokens, .dlogits = dlogits);
    route_case r = {.num_tokens = num_tokens,
                    .num_experts = num_experts,
                    .topk = k,
                    .pre_softmax = pre_softmax,
                    .logits = probe_read(logits, count, WEFT_F32),
                    .dtop_prob = probe_read(dtop_prob, num_choices, WEFT_F32),
                    .fraction = probe_read(fraction, num_experts, WEFT_F32),
                    .scores = probe_doubles(num_experts),
                    .top_index = top_index,
                    .aux = (double)aux,
                    .z = (double)z};
    probe_gradient(route_loss, &r, r.logits, count, probe_read(dlogits, count, WEFT_F32), NULL,
                   1e-5, "dlogits of the router");
}

CASE(route_backward_equals_finite_differences)
{
    for (int form = 0; form < 8; form++) {
        const float aux = form & 2 ? 0.7f : 0.0f, z = form & 4 ? 0.3f : 0.0f;
        check_route_backward(3, 4, 1, form & 1, aux, z);
        check_route_backward(11, 5, 5, form & 1, aux, z);
        check_route_backward(37, 8, 2, form & 1, aux, z);
        check_route_backward(40, 512, 6, form & 1, aux, z);
    }
}

/* --- sigmoids, a bias, groups, a scale ---------------------------------------------------------
 */

typedef struct score_case {
    size_t num_tokens, num_experts, topk, num_groups, group_topk;
    bool sigmoid, pre_softmax, has_bias;
    float scale;
    double *logits, *bias, *dtop_prob, *fraction;
    const int32_t *top_index;
    double aux, z;
} score_case;

/* Returns log sum exp of the logits. */
static double scores_of(const score_case *c, const double *logits, double *scores)
{
    const double lse = softmax(logits, c->num_experts, scores);
    for (size_t e = 0; e < c->num_experts && c->sigmoid; e++)
        scores[e] = 1 / (1 + exp(-logits[e]));
    return lse;
}

static void choose(const score_case *c, const double *scores, size_t *chosen)
{
    double values[1024], sums[32] = {0};
    size_t top[1024];
    const size_t groups = c->num_groups ? c->num_groups : 1, each = c->num_experts / groups;
    for (size_t e = 0; e < c->num_experts; e++)
        values[e] = scores[e] + (c->has_bias ? c->bias[e] : 0);
    if (c->num_groups > 0) {
        const size_t num = c->topk / c->group_topk;
        for (size_t g = 0; g < groups; g++) {
            select_naive(values + g * each, each, num, top);
            for (size_t i = 0; i < num; i++)
                sums[g] += values[g * each + top[i]];
        }
        select_naive(sums, groups, c->group_topk, top);
        for (size_t e = 0; e < c->num_experts; e++) {
            bool is_kept = false;
            for (size_t i = 0; i < c->group_topk; i++)
                is_kept = is_kept || top[i] == e / each;
            values[e] = is_kept ? values[e] : -1e30;
        }
    }
    select_naive(values, c->num_experts, c->topk, chosen);
}

static void weigh(const score_case *c, const double *scores, const size_t *chosen, double *prob)
{
    double sum = 0;
    for (size_t i = 0; i < c->topk; i++)
        sum += scores[chosen[i]];
    const bool divides = !c->pre_softmax && !(c->sigmoid && c->topk == 1);
    for (size_t i = 0; i < c->topk; i++)
        prob[i] = scores[chosen[i]] / (divides ? sum : 1) * (c->scale > 0 ? (double)c->scale : 1);
}

static double score_loss(const void *context)
{
    const score_case *c = context;
    double loss = 0, scores[1024], prob[16];
    size_t chosen[16];
    for (size_t t = 0; t < c->num_tokens; t++) {
        const double lse = scores_of(c, c->logits + t * c->num_experts, scores);
        double sum = 0;
        for (size_t i = 0; i < c->topk; i++)
            chosen[i] = (size_t)c->top_index[t * c->topk + i];
        weigh(c, scores, chosen, prob);
        for (size_t i = 0; i < c->topk; i++)
            loss += c->dtop_prob[t * c->topk + i] * prob[i];
        for (size_t e = 0; e < c->num_experts; e++)
            sum += scores[e];
        for (size_t e = 0; e < c->num_experts; e++)
            loss += c->aux * c->fraction[e] * scores[e] / sum;
        loss += c->z * lse * lse;
    }
    return loss;
}

static void check_scores(score_case c)
{
    if (!probe_takes_case())
        return;
    probe_start(NULL);
    const size_t count = c.num_tokens * c.num_experts, num_choices = c.num_tokens * c.topk;
    float *logits = probe_random(count, WEFT_F32, 2.0, 1), *scores = probe_alloc(count * 4);
    float *bias = c.has_bias ? probe_random(c.num_experts, WEFT_F32, 0.5, 2) : NULL;
    float *dtop_prob = probe_random(num_choices, WEFT_F32, 1.0, 3);
    float *top_prob = probe_alloc(num_choices * 4), *dlogits = probe_alloc(count * 4);
    float *counts = probe_constant(c.num_experts, 0.0f), *z_sum = probe_constant(1, 0.0f);
    float *sums = probe_constant(c.num_experts, 0.0f);
    int32_t *top_index = probe_alloc(num_choices * 4);
    double *wanted = probe_doubles(num_choices), *wanted_sums = probe_doubles(c.num_experts);
    double one[1024];
    size_t chosen[16];
    c.logits = probe_read(logits, count, WEFT_F32);
    c.bias = bias ? probe_read(bias, c.num_experts, WEFT_F32) : NULL;
    c.dtop_prob = probe_read(dtop_prob, num_choices, WEFT_F32);
    c.top_index = top_index;
    PROBE_RUN(route, .num_tokens = c.num_tokens, .num_experts = c.num_experts, .topk = c.topk,
              .pre_softmax = c.pre_softmax, .logits = logits, .scores = scores,
              .top_index = top_index, .top_prob = top_prob, .counts = counts, .score_sums = sums,
              .z_sum = z_sum, .sigmoid = c.sigmoid, .bias = bias, .num_groups = c.num_groups,
              .group_topk = c.group_topk, .scale = c.scale);
    for (size_t t = 0; t < c.num_tokens; t++) {
        double sum = 0;
        scores_of(&c, c.logits + t * c.num_experts, one);
        choose(&c, one, chosen);
        weigh(&c, one, chosen, wanted + t * c.topk);
        for (size_t i = 0; i < c.topk; i++)
            assert_int_equal(top_index[t * c.topk + i], chosen[i]);
        for (size_t e = 0; e < c.num_experts; e++)
            sum += one[e];
        for (size_t e = 0; e < c.num_experts; e++)
            wanted_sums[e] += one[e] / sum;
    }
    probe_close(probe_read(top_prob, num_choices, WEFT_F32), wanted, num_choices,
                probe_tolerance(WEFT_F32, 1e-6), "top_prob");
    probe_close(probe_read(sums, c.num_experts, WEFT_F32), wanted_sums, c.num_experts,
                probe_tolerance(WEFT_F32, 1e-6), "score sums");
    PROBE_RUN(route_backward, .num_tokens = c.num_tokens, .num_experts = c.num_experts,
              .topk = c.topk, .pre_softmax = c.pre_softmax, .logits = logits, .scores = scores,
              .top_index = top_index, .top_prob = top_prob, .dtop_prob = dtop_prob,
              .fraction = counts, .aux_scale = (float)c.aux, .z_scale = (float)c.z,
              .dlogits = dlogits, .sigmoid = c.sigmoid, .biased = bias || c.num_groups > 0,
              .scale = c.scale);
    c.fraction = probe_read(counts, c.num_experts, WEFT_F32);
    probe_gradient(score_loss, &c, c.logits, count, probe_read(dlogits, count, WEFT_F32), NULL,
                   1e-5, "dlogits by scores");
}

CASE(scores_equal_fp64_and_finite_differences)
{
    for (int form = 0; form < 16; form++) {
        score_case c = {.sigmoid = form & 1,
                        .pre_softmax = form & 2,
                        .has_bias = form & 4,
                        .scale = form & 2 ? 2.5f : 0,
                        .aux = form & 8 ? 0.01 : 0,
                        .z = form & 8 ? 0.03 : 0};
        c.num_tokens = 5, c.num_experts = 4, c.topk = 1;
        check_scores(c);
        c.num_tokens = 70, c.num_experts = 9, c.topk = 3;
        check_scores(c);
        c.num_tokens = 37, c.num_experts = 24, c.topk = 4, c.num_groups = 4, c.group_topk = 2;
        check_scores(c);
        c.num_tokens = 20, c.num_experts = 256, c.topk = 8, c.num_groups = 8, c.group_topk = 4;
        check_scores(c);
    }
}

typedef struct routed {
    float *scores, *top_prob, *counts, *sums, *z, *dlogits;
    int32_t *index;
} routed;

enum { SEQUENCES = 3, CHOICES = 2 };

static routed route_all(size_t tokens, size_t experts, size_t sequences, bool sigmoid,
                        const float *logits, const float *dtop_prob)
{
    routed r = {.scores = probe_alloc(tokens * experts * 4),
                .top_prob = probe_alloc(tokens * CHOICES * 4),
                .counts = probe_constant(sequences * experts, 0.0f),
                .sums = probe_constant(sequences * experts, 0.0f),
                .z = probe_constant(sequences, 0.0f),
                .dlogits = probe_alloc(tokens * experts * 4),
                .index = probe_alloc(tokens * CHOICES * 4)};
    PROBE_RUN(route, .num_tokens = tokens, .num_experts = experts, .topk = CHOICES,
              .logits = logits, .scores = r.scores, .top_index = r.index, .top_prob = r.top_prob,
              .counts = r.counts, .score_sums = r.sums, .z_sum = r.z, .sigmoid = sigmoid,
              .num_sequences = sequences);
    PROBE_RUN(route_backward, .num_tokens = tokens, .num_experts = experts, .topk = CHOICES,
              .logits = logits, .scores = r.scores, .top_index = r.index, .top_prob = r.top_prob,
              .dtop_prob = dtop_prob, .fraction = r.counts, .aux_scale = 0.01f, .z_scale = 0.02f,
              .dlogits = r.dlogits, .sigmoid = sigmoid, .num_sequences = sequences);
    return r;
}

/* Each sequence's sums and gradients are those of its tokens alone. */
static void check_sequences(size_t length, size_t experts, bool sigmoid)
{
    probe_start(NULL);
    const size_t tokens = SEQUENCES * length;
    float *logits = probe_random(tokens * experts, WEFT_F32, 2.0, 1),
          *dtop_prob = probe_random(tokens * CHOICES, WEFT_F32, 1.0, 2);
    const routed all = route_all(tokens, experts, SEQUENCES, sigmoid, logits, dtop_prob);
    for (size_t s = 0; s < SEQUENCES; s++) {
        float *own = probe_alloc(length * experts * 4),
              *own_dtop = probe_alloc(length * CHOICES * 4);
        for (size_t i = 0; i < length; i++) {
            const size_t t = i * SEQUENCES + s;
            memcpy(own + i * experts, logits + t * experts, experts * 4);
            memcpy(own_dtop + i * CHOICES, dtop_prob + t * CHOICES, CHOICES * 4);
        }
        const routed one = route_all(length, experts, 1, sigmoid, own, own_dtop);
        probe_close(probe_read(all.sums + s * experts, experts, WEFT_F32),
                    probe_read(one.sums, experts, WEFT_F32), experts, 1e-5, "a sequence's scores");
        probe_close(probe_read(all.counts + s * experts, experts, WEFT_F32),
                    probe_read(one.counts, experts, WEFT_F32), experts, 0, "a sequence's counts");
        probe_close(probe_read(all.z + s, 1, WEFT_F32), probe_read(one.z, 1, WEFT_F32), 1, 1e-5,
                    "a sequence's z");
        for (size_t i = 0; i < length; i++)
            probe_close(probe_read(all.dlogits + (i * SEQUENCES + s) * experts, experts, WEFT_F32),
                        probe_read(one.dlogits + i * experts, experts, WEFT_F32), experts, 1e-5,
                        "a sequence's dlogits");
    }
}

CASE(sequences_are_apart)
{
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        check_sequences(1, 4, sigmoid);
        check_sequences(70, 9, sigmoid);
        check_sequences(200, 40, sigmoid);
    }
}
