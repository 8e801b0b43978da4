/* Software that a plan is of, where it is not Weft: rules over the operations of Weft's rehearsal.
 * No run of Weft takes them. Each is a way in which that software does the same work; numbers in
 * them are of its source, or of single operations.
 *
 * rule                                   | megatron | fsdp | fsdp-2023 | source
 * attention by FlashAttention-2          |          | x    |           |
 * scaled_dot_product_attention attention by FlashAttention in Triton  |          |      | x |
 * llm-foundry, attn_impl logits in fp32, bytes an element       | 52       | 28   | 28        |
 * below gathered weights are copied            |          | x    | x         |
 * torch.distributed.fsdp sums of residuals, norms' weights apart|          |      | x         |
 * layer_norm_kernel.cu norms and activations are kept         |          | x    | x         |
 * autograd AdamW, bytes an element                | 42       | 28   | 88        | below tp's
 * collectives beside backward       | x        |      |           | tensor_parallel/layers.py
 * experts' rows once to a rank or node   | x        | x    |           | DeepEP
 * a launch for each expert's product     | x        |      |           | TransformerEngine PR 853
 * the host issues one by one             | x        | x    | x         | weft_pass_issue
 *
 * - megatron is Megatron-LM's core of 2024 to 2026 with Transformer Engine: attention is cuDNN's,
 * as files have it; gradients are summed and reduced in fp32, as Weft's.
 * - fsdp is PyTorch 2 with compiled blocks; fsdp-2023 is PyTorch 1.13 and llm-foundry's MPT, eager.
 * - FlashAttention-2 on Hopper has 0.62 of the rate of cuDNN 9 (335 and 322 TFLOP/s for 539 and
 * 516: arXiv 2407.08608, 2024, figures 5 and 6), on B200 0.29 (361 TFLOP/s:
 *   github.com/meta-pytorch/tritonbench/pull/171, 2025); on Ampere it is what files have.
 * - FlashAttention in Triton takes 1.8 times FlashAttention-2's time: 1.3 to 2.5 times
 *   (arXiv 2307.08691, 2023, section 4.1), of which 1.8 is the middle; in its own table on an A100,
 *   122 TFLOP/s forward and 81 backward of 16,384 tokens (github.com/triton-lang/triton/pull/1917,
 *   2023, the rows before) for 172 and 158, it is 1.4 and 2.0.
 * - Logits: torch.nn.functional.cross_entropy casts, takes log-softmax and its gradient, and casts:
 *   28 bytes. Megatron-LM's core/tensor_parallel/cross_entropy.py casts (6), takes the maximum (4)
 *   and subtracts it (8), exponentiates (8), sums (4), divides (8), scales (8) and casts (6).
 * - AdamW: Megatron-LM's optimizer/distrib_optimizer.py scales the gradients for the norm (8) and
 *   copies masters to weights (6) beside its fused kernel (28). Composer's
 *   optim/decoupled_weight_decay.py has nine operations a parameter: 88 bytes.
 * - Norms of fsdp-2023: backward reads gradient and input twice, once for the weight's gradient,
 *   and residuals are added up apart: 8 rows for the 4 of Weft's; forward 5 for 4.
 * - DeepEP (github.com/deepseek-ai/DeepEP, 2025) sends a token once to each node that has experts
 *   of its choice, and inside a node once to each rank; between nodes it reaches 43 to 58 GB/s of
 *   a card of 50 GB/s, with the share that stays in the node; NVLink carries the rest beside it. */
#ifndef WEFT_LAUNCHER_PLANNING_SOFTWARE_H
#define WEFT_LAUNCHER_PLANNING_SOFTWARE_H

#include "schedule/cost/cost.h"

/* Those that a site has, and of plain kernels (launcher/planning/plan.h). name, text */
#define WEFT_SOFTWARE_LIST(X)                                                                      \
    X(WEFT, "weft")                                                                                \
    X(MEGATRON, "megatron")                                                                        \
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

/* How many times as long as Weft's the site's software takes for an operation. */
double weft_software_factor(const weft_site *site, const weft_operation *operation);
/* Whether a collective of the layer runs beside the product before it. */
bool weft_software_is_beside(const weft_site *site, const weft_operation *operation);
/* Launches of an operation. */
double weft_software_launches(const weft_site *site, const weft_operation *operation);
/* What of an exchange's rows travels, where a token's choices are spread evenly: all; or one for
 * each rank of the node, or for each other node, that has experts of the token's. */
double weft_software_exchanged(int software, const weft_group *ep, double experts, double chosen);
/* Whether gathered weights are copied once more. */
bool weft_software_copies(int software);
/* Bytes that AdamW moves an element; 0: as Weft's. */
double weft_software_adamw_bytes(int software);

#endif
