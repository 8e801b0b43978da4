/* Software that a plan is of, where it is not Weft: rules over the operations of Weft's rehearsal.
 * No run of Weft takes them. Each is a way in which that software does the same work; software.c
 * has them in rows, each with its source, which is code or a measurement of single operations,
 * never what a training run took.
 *
 * - megatron is Megatron-LM's core of 2024 with Transformer Engine: attention is cuDNN's, as files
 *   have it; gradients are summed and reduced in fp32, as Weft's. megatron-a2a and megatron-deepep
 *   are those of 2025 and 2026, by how experts' rows travel; the loss is one kernel there.
 * - automodel is NeMo AutoModel of 2025 and 2026: FSDP of PyTorch with Transformer Engine and
 * DeepEP.
 * - fsdp is PyTorch 2 with compiled blocks; fsdp-2023 is PyTorch 1.13 and llm-foundry's MPT, eager.
 * - FlashAttention-2 on Ampere is what files have.
 * - DeepEP sends a token once to each node that has experts of its choice, and inside a node once
 *   to each rank; NVLink carries the rest beside it. */
#ifndef WEFT_LAUNCHER_PLANNING_SOFTWARE_H
#define WEFT_LAUNCHER_PLANNING_SOFTWARE_H

#include "schedule/cost/cost.h"

/* Those that a site has, and of plain kernels (launcher/planning/plan.h). name, text */
#define WEFT_SOFTWARE_LIST(X)                                                                      \
    X(WEFT, "weft")                                                                                \
    X(MEGATRON, "megatron")                                                                        \
    X(MEGATRON_A2A, "megatron-a2a")                                                                \
    X(MEGATRON_DEEPEP, "megatron-deepep")                                                          \
    X(AUTOMODEL, "automodel")                                                                      \
    X(FSDP, "fsdp")                                                                                \
    X(FSDP_2023, "fsdp-2023")                                                                      \
    X(PLAIN, "plain")                                                                              \
    X(PLAIN_2021, "plain-2021")
typedef enum weft_software {
#define WEFT_SOFTWARE_ENUM(name, text) WEFT_SOFTWARE_##name,
    WEFT_SOFTWARE_LIST(WEFT_SOFTWARE_ENUM)
#undef WEFT_SOFTWARE_ENUM
        WEFT_NUM_SOFTWARE
} weft_software;
extern const char *const weft_software_texts[WEFT_NUM_SOFTWARE];

typedef enum weft_software_rule_kind {
    WEFT_RULE_FLASH_2,
    WEFT_RULE_FLASH_HOPPER,
    WEFT_RULE_FLASH_B200,
    WEFT_RULE_LOSS_BYTES,
    WEFT_RULE_ADAMW_BYTES,     /* that AdamW moves an element */
    WEFT_RULE_GATHER_COPIES,   /* bytes that copies of an element of gathered weights move, */
    WEFT_RULE_SHARE_COPIES,    /* of a rank's share before it is gathered, */
    WEFT_RULE_GRADIENT_COPIES, /* and of gradients before they are reduced */
    WEFT_RULE_SHARDED_BYTES,   /* of an element that passes reduce, where weights are shared out */
    WEFT_RULE_NORM_ROWS,
    WEFT_RULE_NORM_ROWS_BACK,
    WEFT_RULE_KEEPS,
    WEFT_RULE_SECOND_AGAIN,
    WEFT_RULE_ATTENTION_AGAIN,
    WEFT_RULE_ROTARY_BYTES,
    WEFT_RULE_TP_BESIDE,
    WEFT_RULE_ROWS_ONCE,
    WEFT_RULE_EXPERT_US,
    WEFT_RULE_BIAS_INSIDE,
    WEFT_RULE_BIAS_BYTES,
    WEFT_RULE_BIAS_BYTES_BACK,
    WEFT_RULE_CLAMP_BYTES,
    WEFT_RULE_CLAMP_BYTES_BACK,
    WEFT_RULE_PRODUCT_US,
    WEFT_RULE_ISSUE_US,
    WEFT_RULE_STATE_BYTES, /* of AdamW's state, an element, where memory is the software's: then
                              layers of dense models keep what its layers keep */
    WEFT_RULE_WORKSPACES_MIB,
    WEFT_RULE_OFF_RAILS,
    WEFT_NUM_SOFTWARE_RULES
} weft_software_rule_kind;

typedef struct weft_software_rule {
    const char *what;
    double values[WEFT_NUM_SOFTWARE]; /* by weft_software; 0: as Weft's. Of yes and no 1 is yes */
    const char *where;                /* who published it, and when */
} weft_software_rule;
const weft_software_rule *weft_software_rule_at(weft_software_rule_kind kind);
double weft_software_value(int software, weft_software_rule_kind kind);

/* Of every software's GPUs, Weft's too. */
typedef enum weft_gpu_fact_kind {
    WEFT_GPU_HOST_WAIT_US,
    WEFT_GPU_COLLECTIVE_BLOCKS,
    WEFT_NUM_GPU_FACTS
} weft_gpu_fact_kind;

typedef struct weft_gpu_fact {
    const char *what;
    double value;
    const char *where; /* who published it, and when */
} weft_gpu_fact;
const weft_gpu_fact *weft_gpu_fact_at(weft_gpu_fact_kind kind);

/* How many times as long as Weft's the site's software takes for an operation; selects: of
 * selective recomputation. */
double weft_software_factor(const weft_site *site, const weft_operation *operation, bool selects);
/* Whether selective recomputation is the software's own choice, whatever modules are named; and
 * the share of a forward's operation that it makes again, by the layer's products. */
typedef struct weft_software_products {
    double keys;  /* of the product of queries, keys and values the share of keys */
    double gates; /* products of the MLP's first one: 1, or 2 */
} weft_software_products;
bool weft_software_chooses(int software);
double weft_software_again(const weft_site *site, const weft_software_products *products,
                           const weft_operation *operation);
/* Whether a collective of the layer runs beside the product before it. */
bool weft_software_is_beside(const weft_site *site, const weft_operation *operation);
/* Launches of an operation. */
double weft_software_launches(const weft_site *site, const weft_operation *operation);
/* What of an exchange's rows travels, where a token's choices are spread evenly: all; or one for
 * each rank of the node, or for each other node, that has experts of the token's. */
double weft_software_exchanged(int software, const weft_group *ep, double experts, double chosen);

#endif
