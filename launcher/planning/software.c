#include "launcher/planning/software.h"

#include <math.h>
#include <string.h>

const char *const weft_software_texts[WEFT_NUM_SOFTWARE] = {
#define ROW(name, text) [WEFT_SOFTWARE_##name] = text,
    WEFT_SOFTWARE_LIST(ROW)
#undef ROW
};

enum { OWN_LOSS_BYTES = 6, OWN_NORM_ROWS = 4 };

/* Softwares in the order of weft_software, from Megatron's on. */
#define ALL_OTHERS(value)                                                                          \
    {                                                                                              \
        0, value, value, value, value, value                                                       \
    }
#define OF(megatron, fsdp, fsdp_2023)                                                              \
    {                                                                                              \
        0, megatron, fsdp, fsdp_2023                                                               \
    }
#define OF_PLAIN(value)                                                                            \
    {                                                                                              \
        [WEFT_SOFTWARE_PLAIN] = (value), [WEFT_SOFTWARE_PLAIN_2021] = (value)                      \
    }

static const weft_software_rule rules[WEFT_NUM_SOFTWARE_RULES] = {
    [WEFT_RULE_FLASH_2] = {"attention by FlashAttention-2, times its time", OF(0, 1, 1.8),
                           "PyTorch 2.2 has it (pytorch.org/blog/pytorch2-2, 2024). In Triton "
                           "(github.com/mosaicml/llm-foundry, attn_impl, 2023) 1.3 to 2.5 times: "
                           "arXiv 2307.08691, 2023, section 4.1; 1.4 forward and 2.0 backward: "
                           "github.com/triton-lang/triton/pull/1917, 2023, the rows before"},
    [WEFT_RULE_FLASH_HOPPER] = {"FlashAttention-2's rate over cuDNN 9's on Hopper",
                                OF(0, 0.62, 0.62),
                                "335 and 322 TFLOP/s for 539 and 516: arXiv 2407.08608, 2024, "
                                "figures 5 and 6"},
    [WEFT_RULE_FLASH_B200] = {"FlashAttention-2's rate over cuDNN 9's on B200", OF(0, 0.29, 0.29),
                              "361 TFLOP/s: github.com/meta-pytorch/tritonbench/pull/171, 2025"},
    [WEFT_RULE_LOSS_BYTES] = {"logits whole and in fp32, bytes an element", OF(52, 28, 28),
                              "github.com/NVIDIA/Megatron-LM, core/tensor_parallel/"
                              "cross_entropy.py, 2024: cast 6, maximum 4, subtracted 8, exponents "
                              "8, sum 4, quotient 8, scaled 8, cast 6; torch.nn.functional."
                              "cross_entropy, github.com/pytorch/pytorch, 2023: casts, log-softmax "
                              "and its gradient"},
    [WEFT_RULE_ADAMW_BYTES] =
        {"AdamW, bytes an element", OF(42, 0, 88),
         "github.com/NVIDIA/Megatron-LM, core/optimizer/distrib_optimizer.py, "
         "2024: the fused kernel 28, gradients scaled 8, masters copied 6; "
         "github.com/mosaicml/composer, optim/decoupled_weight_decay.py, "
         "2023: nine operations"},
    [WEFT_RULE_COPIES] = {"gathered weights are copied once more", OF(0, 1, 1),
                          "github.com/pytorch/pytorch, torch/distributed/fsdp, 2023 and 2024"},
    [WEFT_RULE_NORM_ROWS] = {"rows that a norm behind a residual moves forward", OF(0, 0, 5),
                             "github.com/pytorch/pytorch, ATen/native/cuda/layer_norm_kernel.cu, "
                             "2023: residuals are added up apart"},
    [WEFT_RULE_NORM_ROWS_BACK] = {"rows that a norm moves backward", OF(0, 0, 8),
                                  "github.com/pytorch/pytorch, ATen/native/cuda/"
                                  "layer_norm_kernel.cu, 2023: gradient and input are read once "
                                  "more for the weight's gradient"},
    [WEFT_RULE_KEEPS] = {"norms and activations are kept", OF(0, 1, 1),
                         "github.com/pytorch/pytorch, docs/source/notes/autograd.rst, 2023: saved "
                         "tensors"},
    [WEFT_RULE_TP_BESIDE] = {"collectives over tp beside backward's products", OF(1, 0, 0),
                             "github.com/NVIDIA/Megatron-LM, core/tensor_parallel/layers.py, 2024"},
    [WEFT_RULE_ROWS_ONCE] = {"an expert's rows once to a rank, or once to a node", OF(1, 1, 0),
                             "github.com/deepseek-ai/DeepEP, 2025: 43 to 58 GB/s of a card of 50, "
                             "with the share that stays in the node"},
    [WEFT_RULE_LAUNCHES_EACH] = {"a launch for each expert's product", OF(1, 0, 0),
                                 "github.com/NVIDIA/TransformerEngine/pull/853, 2024"},
    [WEFT_RULE_ISSUE_US] = {"us that the host takes to issue a kernel", ALL_OTHERS(7),
                            "github.com/pytorch/pytorch/issues/41383, 2020: the smallest operation "
                            "with autograd"},
    [WEFT_RULE_OFF_RAILS] = {"times as long an all-to-all beyond a node", OF_PLAIN(2),
                             "NVIDIA, Doubling all2all Performance with NVIDIA Collective "
                             "Communication Library 2.12, 2022"},
};

const weft_software_rule *weft_software_rule_at(weft_software_rule_kind kind)
{
    return &rules[kind];
}

static double value_of(int software, weft_software_rule_kind kind)
{
    return rules[kind].values[software];
}

/* FlashAttention-2 beside the kernels that a device's file is of. */
static const struct flash {
    const char *device;
    weft_software_rule_kind rule;
} flashes[] = {{"H100", WEFT_RULE_FLASH_HOPPER},
               {"H200", WEFT_RULE_FLASH_HOPPER},
               {"B200", WEFT_RULE_FLASH_B200}};

static double flash_share(const weft_site *site)
{
    const char *name = site->cluster->hardware.device_name;
    for (size_t i = 0; i < sizeof flashes / sizeof *flashes; i++)
        if (strncmp(name, flashes[i].device, strlen(flashes[i].device)) == 0)
            return value_of(site->software, flashes[i].rule);
    return 1;
}

static bool is_of(const weft_operation *operation, const char *module)
{
    return strcmp(operation->module, module) == 0;
}

static bool is_norm(const weft_operation *o)
{
    return is_of(o, "input_layernorm") || is_of(o, "pre_mlp_layernorm");
}

/* Rows that norms and sums of residuals move over those of Weft's kernels. */
static double norm_factor(int software, const weft_operation *o)
{
    const double forward = value_of(software, WEFT_RULE_NORM_ROWS),
                 backward = value_of(software, WEFT_RULE_NORM_ROWS_BACK);
    if (value_of(software, WEFT_RULE_KEEPS) > 0 && o->phase == WEFT_PHASE_RECOMPUTE && !o->repeated)
        return 0;
    if (forward > 0 && o->phase == WEFT_PHASE_FORWARD && is_of(o, "pre_mlp_layernorm"))
        return forward / OWN_NORM_ROWS;
    return backward > 0 && o->phase == WEFT_PHASE_INPUT_GRADIENT ? backward / OWN_NORM_ROWS : 1;
}

double weft_software_factor(const weft_site *site, const weft_operation *o)
{
    const int software = site->software;
    if (software == WEFT_SOFTWARE_WEFT)
        return 1;
    const double flash = value_of(software, WEFT_RULE_FLASH_2);
    if (o->fused)
        return flash > 0 ? flash / flash_share(site) : 1;
    if (o->kind != WEFT_OPERATION_MEMORY)
        return 1;
    if (is_of(o, "loss"))
        return value_of(software, WEFT_RULE_LOSS_BYTES) / OWN_LOSS_BYTES;
    if (is_norm(o))
        return norm_factor(software, o);
    return value_of(software, WEFT_RULE_KEEPS) > 0 && is_of(o, "activation") &&
                   o->phase == WEFT_PHASE_RECOMPUTE
               ? 0
               : 1;
}

bool weft_software_is_beside(const weft_site *site, const weft_operation *o)
{
    return value_of(site->software, WEFT_RULE_TP_BESIDE) > 0 &&
           o->kind == WEFT_OPERATION_COLLECTIVE && o->axis == WEFT_AXIS_TP &&
           o->phase != WEFT_PHASE_FORWARD;
}

double weft_software_launches(const weft_site *site, const weft_operation *o)
{
    const double count = (double)(o->count ? o->count : 1);
    return value_of(site->software, WEFT_RULE_LAUNCHES_EACH) > 0 && o->groups > 0
               ? count * (double)o->groups
               : count;
}

double weft_software_exchanged(int software, const weft_group *ep, double experts, double chosen)
{
    const double nodes = ceil((double)ep->size / fmax(1, ep->near));
    const double places = nodes > 1 ? nodes : ep->size;
    const double hit = 1 - pow(1 - 1 / places, chosen);
    if (!(value_of(software, WEFT_RULE_ROWS_ONCE) > 0) || ep->size < 2 || !(experts > 0) ||
        !(chosen > 0))
        return 1;
    return fmin(1, places * hit / chosen);
}

bool weft_software_copies(int software)
{
    return value_of(software, WEFT_RULE_COPIES) > 0;
}

double weft_software_adamw_bytes(int software)
{
    return value_of(software, WEFT_RULE_ADAMW_BYTES);
}
