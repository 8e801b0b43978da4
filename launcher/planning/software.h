/* Software that a plan is of, where it is not Weft: rules over the operations of Weft's rehearsal.
 * No run of Weft takes them. Each is a way in which that software does the same work; numbers in
 * them are of single operations.
 *
 * FSDP of PyTorch, eager or compiled in parts:
 * - attention is the flash kernel of scaled_dot_product_attention, FlashAttention-2: on Hopper it
 *   has 0.62 of the rate of cuDNN 9, forward and backward (335 and 322 TFLOP/s for 539 and 516:
 *   arXiv 2407.08608, 2024, figures 5 and 6), on B200 0.29 (361 TFLOP/s:
 *   github.com/meta-pytorch/tritonbench/pull/171, 2025); on Ampere it is what files have;
 * - logits are made whole and are turned into fp32 for the loss, forward and backward: 28 bytes an
 *   element (torch.nn.functional.cross_entropy: cast, log-softmax, its gradient, cast) for Weft's
 * 6;
 * - weights that are gathered are copied out of the gathered buffer (torch.distributed.fsdp: split
 *   with sizes, copy): each is read and written once more a gather;
 * - the host issues operations one by one (weft_pass_issue). */
#ifndef WEFT_LAUNCHER_PLANNING_SOFTWARE_H
#define WEFT_LAUNCHER_PLANNING_SOFTWARE_H

#include "schedule/cost/cost.h"

/* name, text */
#define WEFT_SOFTWARE_LIST(X) X(WEFT, "weft") X(FSDP, "fsdp")
typedef enum weft_software {
#define WEFT_SOFTWARE_ENUM(name, text) WEFT_SOFTWARE_##name,
    WEFT_SOFTWARE_LIST(WEFT_SOFTWARE_ENUM)
#undef WEFT_SOFTWARE_ENUM
        WEFT_NUM_SOFTWARE
} weft_software;
extern const char *const weft_software_texts[WEFT_NUM_SOFTWARE];

/* How many times as long as Weft's the site's software takes for an operation. */
double weft_software_factor(const weft_site *site, const weft_operation *operation);

#endif
