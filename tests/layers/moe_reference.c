#include "tests/layers/moe_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <weft/kernels.h>

enum { MAX_EXPERTS = 64, MAX_TOPK = 16 };

typedef struct choice {
    size_t token, expert;
    double prob;
    bool kept;
} choice;

static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/* y += weight * fc2 activation(fc1 x). */
static void mlp(const double *x, const double *fc1, const double *fc2, size_t hidden, size_t ffn,
                bool swiglu, double weight, double *y)
{
    for (size_t f = 0; f < ffn; f++) {
        double a = 0, b = 0;
        for (size_t h = 0; h < hidden; h++) {
            a += fc1[f * hidden + h] * x[h];
            b += swiglu ? fc1[(ffn + f) * hidden + h] * x[h] : 0;
        }
        double act = swiglu ? a / (1.0 + exp(-a)) * b : gelu(a);
        for (size_t h = 0; h < hidden; h++)
            y[h] += weight * fc2[h * ffn + f] * act;
    }
}

/* Choices and probabilities of one token; adds its scores and returns its log-sum-exp. */
static double route(const moe_reference *m, size_t token, choice *choices, double *score_sums)
{
    const weft_model_options *o = m->options;
    size_t experts = (size_t)o->num_experts, topk = (size_t)o->moe_router_topk;
    size_t hidden = (size_t)o->hidden_size;
    double logits[MAX_EXPERTS], most = -INFINITY, sum = 0, chosen_sum = 0;
    bool taken[MAX_EXPERTS] = {false};
    for (size_t e = 0; e < experts; e++) {
        logits[e] = 0;
        for (size_t h = 0; h < hidden; h++)
            logits[e] += m->router[e * hidden + h] * m->x[token * hidden + h];
        most = fmax(most, logits[e]);
    }
    for (size_t e = 0; e < experts; e++)
        sum += exp(logits[e] - most);
    for (size_t e = 0; e < experts; e++)
        score_sums[e] += exp(logits[e] - most) / sum;
    for (size_t k = 0; k < topk; k++) {
        size_t best = experts;
        for (size_t e = 0; e < experts; e++)
            if (!taken[e] && (best == experts || logits[e] > logits[best]))
                best = e;
        taken[best] = true;
        choices[k] = (choice){token, best, exp(logits[best] - most), true};
        chosen_sum += choices[k].prob;
    }
    for (size_t k = 0; k < topk; k++)
        choices[k].prob /= o->moe_router_pre_softmax ? sum : chosen_sum;
    return most + log(sum);
}

/* Whether b goes before a where an expert has to give up choices. */
static bool goes_before(const moe_reference *m, const choice *all, size_t b, size_t a)
{
    if (m->options->moe_token_drop_policy == WEFT_DROP_POSITION || all[b].prob == all[a].prob)
        return b < a;
    return all[b].prob > all[a].prob;
}

static void drop(moe_reference *m, choice *choices, size_t num)
{
    const weft_model_options *o = m->options;
    if (o->moe_expert_capacity_factor <= 0)
        return;
    double capacity = ceil((double)num / (double)o->num_experts * o->moe_expert_capacity_factor);
    for (size_t a = 0; a < num; a++) {
        double before = 0;
        for (size_t b = 0; b < num; b++)
            before += choices[b].expert == choices[a].expert && goes_before(m, choices, b, a);
        choices[a].kept = before < capacity;
        m->dropped += !choices[a].kept;
    }
}

double moe_reference_run(moe_reference *m)
{
    const weft_model_options *o = m->options;
    size_t hidden = (size_t)o->hidden_size, topk = (size_t)o->moe_router_topk;
    size_t experts = (size_t)o->num_experts, ffn = (size_t)o->moe_ffn_hidden_size;
    size_t gates = o->swiglu ? 2 : 1, num = m->tokens * topk;
    choice *choices = malloc((num + 1) * sizeof *choices);
    double score_sums[MAX_EXPERTS] = {0}, counts[MAX_EXPERTS] = {0}, z = 0, balance = 0, loss = 0;
    m->dropped = 0;
    memset(m->expert_tokens, 0, experts * sizeof *m->expert_tokens);
    memset(m->y, 0, m->tokens * hidden * sizeof *m->y);
    for (size_t t = 0; t < m->tokens; t++) {
        double lse = route(m, t, choices + t * topk, score_sums);
        z += lse * lse;
    }
    for (size_t i = 0; i < num; i++)
        counts[choices[i].expert] += 1;
    for (size_t first = 0; first < m->tokens; first += m->routed)
        drop(m, choices + first * topk, m->routed * topk);
    for (size_t i = 0; i < num; i++) {
        const choice *c = &choices[i];
        if (!c->kept)
            continue;
        m->expert_tokens[c->expert]++;
        mlp(m->x + c->token * hidden, m->fc1 + c->expert * gates * ffn * hidden,
            m->fc2 + c->expert * hidden * ffn, hidden, ffn, o->swiglu, c->prob,
            m->y + c->token * hidden);
    }
    for (size_t t = 0; t < m->tokens && m->shared_fc1; t++)
        mlp(m->x + t * hidden, m->shared_fc1, m->shared_fc2, hidden,
            (size_t)o->moe_shared_expert_intermediate_size, o->swiglu, 1, m->y + t * hidden);
    for (size_t e = 0; e < experts; e++)
        balance += counts[e] / (double)num * score_sums[e] / (double)m->tokens;
    m->aux_loss = o->moe_aux_loss_coeff * (double)experts * balance +
                  o->moe_z_loss_coeff * z / (double)m->tokens;
    for (size_t i = 0; i < m->tokens * hidden; i++)
        loss += m->dy[i] * m->y[i];
    free(choices);
    return loss + m->aux_loss;
}
