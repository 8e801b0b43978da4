#include "schedule/values.h"

#include <pthread.h>
#include <stddef.h>

#define READ(name, value, next)                                                                    \
    {                                                                                              \
        WEFT_OPERAND_##name, WEFT_VALUE_##value, false, next, false, false                         \
    }
#define WRITE(name, value, next)                                                                   \
    {                                                                                              \
        WEFT_OPERAND_##name, WEFT_VALUE_##value, true, next, false, false                          \
    }
#define READ_WHOLE(name, value)                                                                    \
    {                                                                                              \
        WEFT_OPERAND_##name, WEFT_VALUE_##value, false, 0, false, true                             \
    }
#define WRITE_WHOLE(name, value)                                                                   \
    {                                                                                              \
        WEFT_OPERAND_##name, WEFT_VALUE_##value, true, 0, false, true                              \
    }
#define KIND(kind, flow, lane) WEFT_TASK_##kind, WEFT_FLOW_##flow, WEFT_LANE_##lane

/* A forward's stash is its input and whatever else backward needs; it lies in x's slot. */
static const weft_operands rows[] = {
    {KIND(FORWARD, NONE, COMPUTE),
     3,
     {READ(X, ACTIVATION, 0),
      {WEFT_OPERAND_STASH, WEFT_VALUE_STASH, true, 0, true, false},
      WRITE(Y, ACTIVATION, 1)}},
    {KIND(BACKWARD, NONE, COMPUTE),
     4,
     {READ(STASH, STASH, 0), READ(DY, GRADIENT, 0), WRITE(DX, GRADIENT, -1),
      READ(RECOMPUTED, RECOMPUTED, 0)}},
    {KIND(BACKWARD, INPUT, COMPUTE),
     5,
     {READ(STASH, STASH, 0), READ(DY, GRADIENT, 0), WRITE(DX, GRADIENT, -1),
      READ(RECOMPUTED, RECOMPUTED, 0), WRITE(DEFERRED, DEFERRED, 0)}},
    {KIND(BACKWARD, WEIGHT, COMPUTE), 2, {READ(STASH, STASH, 0), READ(DEFERRED, DEFERRED, 0)}},
    {KIND(RECOMPUTE, STASH, COMPUTE), 2, {READ(STASH, STASH, 0), WRITE(RECOMPUTED, RECOMPUTED, 0)}},
    {KIND(SEND, ACTIVATION, SEND), 1, {READ(FROM, ACTIVATION, 1)}},
    {KIND(SEND, GRADIENT, SEND), 1, {READ(FROM, GRADIENT, -1)}},
    {KIND(RECEIVE, ACTIVATION, RECEIVE), 1, {WRITE(TO, ACTIVATION, 0)}},
    {KIND(RECEIVE, GRADIENT, RECEIVE), 1, {WRITE(TO, GRADIENT, 0)}},
    {KIND(SUM, TENSOR, REDUCE), 0, {{0}}},
    {KIND(SUM, TIED, REDUCE), 0, {{0}}},
    {KIND(REDUCE, NONE, REDUCE), 1, {READ(WEIGHT_GRADIENTS, WEIGHT_GRADIENTS, 0)}},
    {KIND(NORM, NONE, COMPUTE), 0, {{0}}},
    {KIND(STEP, NONE, COMPUTE), 0, {{0}}},
    {KIND(GATHER, WEIGHT, REDUCE), 1, {WRITE(WEIGHTS, WEIGHTS, 0)}},
    {KIND(LAYER, ACTIVATION, COMPUTE),
     6,
     {READ(X, LAYER, 0), WRITE(STASH, LAYER_STASH, 0), WRITE(Y, LAYER, 1),
      READ(WEIGHTS, WEIGHTS, 0), WRITE(OFFLOADED, OFFLOADED, 0),
      WRITE(WEIGHT_GRADIENTS, WEIGHT_GRADIENTS, 0)}},
    {KIND(LAYER, GRADIENT, COMPUTE),
     7,
     {READ(STASH, LAYER_STASH, 0), READ(DY, LAYER_GRADIENT, 0), WRITE(DX, LAYER_GRADIENT, -1),
      READ(WEIGHTS, WEIGHTS, 0), WRITE(WEIGHT_GRADIENTS, WEIGHT_GRADIENTS, 0),
      READ(OFFLOADED, OFFLOADED, 0), READ(X, LAYER, 0)}},
    {KIND(LAYER, INPUT, COMPUTE),
     5,
     {READ(STASH, LAYER_STASH, 0), READ(DY, LAYER_GRADIENT, 0), WRITE(DX, LAYER_GRADIENT, -1),
      READ(WEIGHTS, WEIGHTS, 0), WRITE(DEFERRED, DEFERRED, 0)}},
    {KIND(LAYER, WEIGHT, COMPUTE),
     3,
     {READ(STASH, LAYER_STASH, 0), READ(DEFERRED, DEFERRED, 0),
      WRITE(WEIGHT_GRADIENTS, WEIGHT_GRADIENTS, 0)}},
    {KIND(OFFLOAD, STASH, OFFLOAD),
     3,
     {READ(OFFLOADED, OFFLOADED, 0), READ(X, LAYER, 0), WRITE(TO, HOST_STASH, 0)}},
    {KIND(PREFETCH, STASH, PREFETCH),
     3,
     {READ(FROM, HOST_STASH, 0), WRITE(OFFLOADED, OFFLOADED, 0), WRITE(X, LAYER, 0)}},
    {KIND(RECOMPUTE, ACTIVATION, COMPUTE),
     4,
     {READ(X, LAYER, 0), WRITE(STASH, LAYER_STASH, 0), WRITE(Y, LAYER, 1),
      READ(WEIGHTS, WEIGHTS, 0)}},
    {KIND(COUNTS, NONE, COMPUTE), 0, {{0}}},
    {KIND(PERMUTE, NONE, COMPUTE), 1, {WRITE(TO, HOME, 0)}},
    {KIND(DISPATCH, ACTIVATION, EXPERT), 2, {READ(FROM, HOME, 0), WRITE(TO, T_DI, 0)}},
    {KIND(DISPATCH, GRADIENT, EXPERT), 2, {READ(FROM, SENT_GRADIENT, 0), WRITE(TO, DT_DO, 0)}},
    /* A partition's task has rows, a position's task weights. */
    {KIND(EXPERT, ACTIVATION, COMPUTE),
     4,
     {READ(X, T_DI, 0), WRITE(MIDDLE, T_M, 0), WRITE(Y, T_DO, 0),
      READ(WEIGHTS, EXPERT_WEIGHTS, 0)}},
    {KIND(EXPERT, GRADIENT, COMPUTE),
     7,
     {READ(X, T_DI, 0), READ(MIDDLE, T_M, 0), READ(DY, DT_DO, 0), WRITE(DMIDDLE, DT_M, 0),
      WRITE(DX, DT_DI, 0), READ(WEIGHTS, EXPERT_WEIGHTS, 0),
      WRITE(WEIGHT_GRADIENTS, EXPERT_GRADIENT, 0)}},
    {KIND(COMBINE, ACTIVATION, EXPERT), 2, {READ(FROM, T_DO, 0), WRITE(TO, RESULT, 0)}},
    {KIND(COMBINE, GRADIENT, EXPERT), 2, {READ(FROM, DT_DI, 0), WRITE(TO, HOME_GRADIENT, 0)}},
    {KIND(OFFLOAD, INPUT, OFFLOAD), 2, {READ(FROM, T_DI, 0), WRITE(TO, HOST_T_DI, 0)}},
    {KIND(OFFLOAD, MIDDLE, OFFLOAD), 2, {READ(FROM, T_M, 0), WRITE(TO, HOST_T_M, 0)}},
    {KIND(PREFETCH, INPUT, PREFETCH), 2, {READ(FROM, HOST_T_DI, 0), WRITE(TO, T_DI, 0)}},
    {KIND(PREFETCH, MIDDLE, PREFETCH), 2, {READ(FROM, HOST_T_M, 0), WRITE(TO, T_M, 0)}},
    {KIND(RECOMPUTE, NONE, COMPUTE), 2, {READ(X, T_DI, 0), WRITE(MIDDLE, T_M, 0)}},
    /* A form of the exchange has only those operands for which it needs a staging area. */
    {KIND(DISPATCH, NONE, EXPERT), 1, {WRITE(TO, ARRIVED, 0)}},
    {KIND(GATHER, NONE, GATHER), 2, {READ(FROM, ARRIVED, 0), WRITE(TO, GATHERED, 0)}},
    {KIND(PLACE, NONE, PLACE), 1, {READ(FROM, GATHERED, 0)}},
    /* A form of attention over context-parallel ranks has only those operands that it needs. */
    {KIND(DISPATCH, HEADS, EXPERT), 2, {READ(FROM, HOME, 0), WRITE_WHOLE(TO, HEADS)}},
    {KIND(DISPATCH, HEADS_GRADIENT, EXPERT), 2, {READ(FROM, HOME, 0), WRITE_WHOLE(TO, HEADS_DY)}},
    {KIND(PERMUTE, KEYS, COMPUTE), 2, {READ_WHOLE(FROM, HEADS), WRITE(TO, KEYS, 0)}},
    {KIND(GATHER, KEYS, GATHER), 2, {READ(FROM, HOME, 0), WRITE(TO, KEYS, 0)}},
    {KIND(SHIFT, KEYS, SEND), 2, {READ(FROM, KEYS, 0), WRITE(TO, KEYS, 1)}},
    {KIND(ATTEND, ACTIVATION, COMPUTE),
     3,
     {READ_WHOLE(FROM, HEADS), READ(KEYS, KEYS, 0), WRITE(Y, PARTIAL, 0)}},
    {KIND(PLACE, ACTIVATION, COMPUTE), 2, {READ(FROM, PARTIAL, 0), WRITE_WHOLE(TO, HEADS_RESULT)}},
    {KIND(COMBINE, HEADS, EXPERT), 2, {READ_WHOLE(FROM, HEADS_RESULT), WRITE(TO, RETURNED, 0)}},
    {KIND(ATTEND, GRADIENT, COMPUTE),
     5,
     {READ_WHOLE(FROM, HEADS), READ_WHOLE(DY, HEADS_DY), READ(KEYS, KEYS, 0), WRITE(Y, PARTIAL, 0),
      WRITE(TO, SHARE, 0)}},
    {KIND(ATTEND, OWN, COMPUTE),
     5,
     {READ_WHOLE(FROM, HEADS),
      READ_WHOLE(DY, HEADS_DY),
      READ_WHOLE(X, OWN_SHARE),
      WRITE(Y, PARTIAL, 0),
      {WEFT_OPERAND_TO, WEFT_VALUE_OWN_SHARE, true, 0, true, true}}},
    {KIND(SUM, KEYS, COMPUTE),
     3,
     {READ(X, SHARE, 0),
      READ(FROM, ARRIVED_GRADIENT, 0),
      {WEFT_OPERAND_TO, WEFT_VALUE_KEYS_GRADIENT, true, 0, true, false}}},
    {KIND(SHIFT, GRADIENT, REDUCE),
     2,
     {READ(FROM, KEYS_GRADIENT, 0), WRITE(TO, ARRIVED_GRADIENT, 1)}},
    {KIND(REDUCE, KEYS, REDUCE), 2, {READ(FROM, SHARE, 0), WRITE(TO, ARRIVED_GRADIENT, 0)}},
    {KIND(PLACE, GRADIENT, COMPUTE),
     4,
     {READ(Y, PARTIAL, 0), READ(FROM, ARRIVED_GRADIENT, 0), READ_WHOLE(KEYS, OWN_SHARE),
      WRITE_WHOLE(TO, HEADS_DX)}},
    {KIND(COMBINE, HEADS_GRADIENT, EXPERT),
     2,
     {READ_WHOLE(FROM, HEADS_DX), WRITE(TO, RETURNED, 0)}},
    {KIND(PLACE, HEADS, COMPUTE), 1, {READ(FROM, RETURNED, 0)}},
    /* Of a tensor-parallel product in chunks a form has only those operands that it needs. */
    {KIND(GATHER, TENSOR, REDUCE), 1, {WRITE(TO, GATHERED, 0)}},
    {KIND(PRODUCT, ACTIVATION, COMPUTE), 2, {READ(X, GATHERED, 0), WRITE(Y, PARTIAL_SUM, 0)}},
    {KIND(PRODUCT, GRADIENT, COMPUTE), 2, {READ(X, GATHERED, 0), WRITE(Y, PARTIAL_SUM, 0)}},
    {KIND(REDUCE, TENSOR, REDUCE), 1, {READ(FROM, PARTIAL_SUM, 0)}},
    {KIND(PRODUCT, WEIGHT, COMPUTE), 1, {READ(X, GATHERED, 0)}},
    /* Experts beyond device memory. A bucket's UPLOAD names no slot: the executor knows it. */
    {KIND(UPLOAD, WEIGHT, TO_DEVICE),
     2,
     {READ(FROM, HOST_WEIGHTS, 0), WRITE(WEIGHTS, EXPERT_WEIGHTS, 0)}},
    {KIND(DOWNLOAD, GRADIENT, TO_HOST),
     3,
     {READ(FROM, EXPERT_GRADIENT, 0), WRITE(TO, HOST_GRADIENT, 0),
      WRITE(STAGING, STAGED_GRADIENT, 0)}},
    {KIND(ACCUMULATE, GRADIENT, HOST),
     2,
     {READ(FROM, STAGED_GRADIENT, 0), WRITE(TO, HOST_GRADIENT, 0)}},
    /* Experts in a file. A write saves another expert's data and frees its place. A bucket's reads
     * and writes name no slot. */
    {KIND(WRITE, WEIGHT, FILE), 1, {WRITE(FROM, HOST_WEIGHTS, 0)}},
    {KIND(READ, WEIGHT, FILE), 1, {WRITE(TO, HOST_WEIGHTS, 0)}},
    {KIND(WRITE, GRADIENT, FILE), 1, {WRITE(FROM, HOST_GRADIENT, 0)}},
    {KIND(READ, GRADIENT, FILE), 1, {WRITE(TO, HOST_GRADIENT, 0)}},
};

static const weft_operands *by_kind[WEFT_NUM_TASK_KINDS][WEFT_NUM_FLOWS];

static void index_rows(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        by_kind[rows[i].kind][rows[i].flow] = &rows[i];
}

const weft_operands *weft_operands_of(int kind, int flow)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (kind < 0 || kind >= WEFT_NUM_TASK_KINDS || flow < 0 || flow >= WEFT_NUM_FLOWS)
        return NULL;
    pthread_once(&once, index_rows);
    return by_kind[kind][flow];
}

int weft_task_slot(const weft_task *task, weft_operand_name name)
{
    const weft_operands *operands = weft_operands_of(task->kind, task->flow);
    for (int i = 0; operands && i < operands->count; i++)
        if (operands->rows[i].name == name)
            return task->operands[i];
    return -1;
}

static const struct {
    const char *text;
    uint64_t slots;
} values[WEFT_NUM_VALUES] = {
#define ROW(name, text, slots) {text, slots},
    WEFT_VALUE_LIST(ROW)
#undef ROW
};

const char *weft_operand_text(int name)
{
    static const char *const texts[WEFT_NUM_OPERANDS] = {
#define ROW(name, text) text,
        WEFT_OPERAND_LIST(ROW)
#undef ROW
    };
    return name >= 0 && name < WEFT_NUM_OPERANDS ? texts[name] : "?";
}

const char *weft_value_text(int value)
{
    return value >= 0 && value < WEFT_NUM_VALUES ? values[value].text : "?";
}

uint64_t weft_value_slots(int value)
{
    return value >= 0 && value < WEFT_NUM_VALUES ? values[value].slots : 0;
}

weft_slot_kind weft_value_slot_kind(int value)
{
    int kind = 0;
    while (kind < WEFT_NUM_SLOT_KINDS - 1 && !(weft_value_slots(value) >> kind & 1))
        kind++;
    return (weft_slot_kind)kind;
}
