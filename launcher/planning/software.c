#include "launcher/planning/software.h"

#include <math.h>
#include <string.h>

const char *const weft_software_texts[WEFT_NUM_SOFTWARE] = {
#define ROW(name, text) [WEFT_SOFTWARE_##name] = text,
    WEFT_SOFTWARE_LIST(ROW)
#undef ROW
};

enum { OWN_LOSS_BYTES = 6, OWN_NORM_ROWS = 4 };

#define ALL_OTHERS(value)                                                                          \
    {                                                                                              \
        0, value, value, value, value, value, value, value, value                                  \
    }
#define OF(megatron, a2a, deepep, automodel, fsdp, fsdp_2023)                                      \
    {                                                                                              \
        0, megatron, a2a, deepep, automodel, fsdp, fsdp_2023                                       \
    }
#define OF_PLAIN(value)                                                                            \
    {                                                                                              \
        [WEFT_SOFTWARE_PLAIN] = (value), [WEFT_SOFTWARE_PLAIN_2021] = (value)                      \
    }

#define EXPERT_BIASES                                                                              \
    "github.com/NVIDIA/Megatron-LM, megatron/core/transformer/moe/experts.py, 2025, and "          \
    "github.com/NVIDIA-NeMo/Automodel, nemo_automodel/components/moe/experts.py, 2026, "           \
    "_apply_bias"
#define BOUNDS "github.com/NVIDIA/Megatron-LM, megatron/core/fusions/fused_bias_geglu.py, 2025"

static const weft_software_rule rules[WEFT_NUM_SOFTWARE_RULES] = {
    [WEFT_RULE_FLASH_2] = {"attention by FlashAttention-2, times its time", OF(0, 0, 0, 0, 1, 1.8),
                           "github.com/pytorch/pytorch/releases/tag/v2.2.0, 2024: "
                           "scaled_dot_product_attention has it. In Triton "
                           "(github.com/mosaicml/llm-foundry, attn_impl, 2023) 1.3 to 2.5 times: "
                           "arXiv 2307.08691, 2023, section 4.1; 1.4 forward and 2.0 backward: "
                           "github.com/triton-lang/triton/pull/1917, 2023, the rows before"},
    [WEFT_RULE_FLASH_HOPPER] = {"FlashAttention-2's rate over cuDNN 9's on Hopper",
                                OF(0, 0, 0, 0, 0.62, 0.62),
                                "335 and 322 TFLOP/s for 539 and 516: arXiv 2407.08608, 2024, "
                                "figures 5 and 6"},
    [WEFT_RULE_FLASH_B200] = {"PyTorch's attention on B200, over the file's rate",
                              OF(0, 0, 0, 0, 0.77, 0.29),
                              "cuDNN (github.com/pytorch/torchtitan/pull/1196, 2025), of which "
                              "FlashAttention-4 is up to "
                              "1.3 times as fast (FlashAttention-4, arXiv, 2026, abstract); "
                              "FlashAttention-2 361 TFLOP/s: "
                              "github.com/meta-pytorch/tritonbench/pull/171, 2025"},
    [WEFT_RULE_LOSS_BYTES] =
        {"logits whole and in fp32, bytes an element", OF(52, 10, 10, 18, 48, 48),
         "github.com/NVIDIA/Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py, 2024: "
         "cast "
         "6, maximum 4, subtracted 8, exponents 8, sum 4, quotient 8, scaled 8, cast 6; "
         "github.com/NVIDIA/TransformerEngine, transformer_engine/pytorch/triton/cross_entropy.py, "
         "2025: "
         "read twice and written, scaled in place; "
         "github.com/pytorch/pytorch, aten/src/ATen/native/cuda/SoftMax.cu, 2023: rows too long "
         "for "
         "shared memory are read three times forward, 16, and gradients twice backward, 16; the "
         "loss's gradient is cleared 4; casts 12; in 16 bits without casts 18"},
    [WEFT_RULE_ADAMW_BYTES] =
        {"AdamW, bytes an element", OF(42, 42, 42, 36, 88, 88),
         "github.com/NVIDIA/Megatron-LM, megatron/core/optimizer/distrib_optimizer.py, 2024: the "
         "fused kernel 28, gradients scaled 8, masters copied 6; github.com/pytorch/pytorch, "
         "torch/optim/adamw.py, 2024, by foreach, as github.com/pytorch/torchtitan, "
         "torchtitan/optimizer.py, 2024 has it: eight operations 80, gradients clipped 8; "
         "github.com/mosaicml/composer, composer/optim/decoupled_weight_decay.py, 2023: nine "
         "operations"},
    [WEFT_RULE_GATHER_COPIES] = {"copies of gathered weights, bytes an element",
                                 OF(0, 0, 0, 4, 4, 0),
                                 "github.com/pytorch/pytorch, "
                                 "torch/distributed/_composable/fsdp/_fsdp_collectives.py, 2024: "
                                 "foreach_all_gather_copy_out; "
                                 "torch/distributed/fsdp/flat_param.py, 2023, gathers in place"},
    [WEFT_RULE_SHARE_COPIES] =
        {"copies of a rank's share of weights before it is gathered, bytes an element",
         OF(0, 0, 0, 4, 10, 6),
         "github.com/pytorch/pytorch, torch/distributed/fsdp/flat_param.py, 2023: "
         "_use_low_precision_shard, fp32 to 16 bits 6; torch/distributed/_composable/fsdp/"
         "_fsdp_param.py, 2024: all_gather_inputs 6, and one behind the other 4"},
    [WEFT_RULE_GRADIENT_COPIES] =
        {"copies of gradients before they are reduced, bytes an element", OF(0, 0, 0, 6, 6, 4),
         "github.com/pytorch/pytorch, torch/distributed/_composable/fsdp/_fsdp_collectives.py, "
         "2024: "
         "chunk_cat of 16 bits to fp32; torch/distributed/fsdp/flat_param.py, 2023: parameters are "
         "views of one, whose gradient is theirs one behind the other"},
    [WEFT_RULE_SHARDED_BYTES] =
        {"gradients reduced by passes, where weights are shared out, bytes an element",
         OF(0, 2, 2, 0, 0, 0),
         "github.com/NVIDIA/Megatron-LM, docs/user-guide/features/megatron_fsdp.md, 2026: "
         "grad-reduce-in-bf16"},
    [WEFT_RULE_NORM_ROWS] = {"rows that a norm behind a residual moves forward",
                             OF(0, 0, 0, 0, 0, 5),
                             "github.com/pytorch/pytorch, ATen/native/cuda/layer_norm_kernel.cu, "
                             "2023: residuals are added up apart"},
    [WEFT_RULE_NORM_ROWS_BACK] = {"rows that a norm moves backward", OF(0, 0, 0, 0, 0, 8),
                                  "github.com/pytorch/pytorch, ATen/native/cuda/"
                                  "layer_norm_kernel.cu, 2023: gradient and input are read once "
                                  "more for the weight's gradient"},
    [WEFT_RULE_KEEPS] =
        {"norms and activations are kept", OF(0, 0, 0, 1, 1, 1),
         "github.com/pytorch/pytorch, docs/source/notes/autograd.rst, 2023, section "
         "Saved tensors"},
    [WEFT_RULE_SECOND_AGAIN] =
        {"selective recomputation: all but attention and every second product",
         OF(0, 0, 0, 0, 1, 0),
         "github.com/pytorch/torchtitan, torchtitan/parallelisms/parallelize_llama.py, 2024: "
         "selective_ac_option op"},
    [WEFT_RULE_ATTENTION_AGAIN] =
        {"selective recomputation: attention too, on B200", OF(0, 0, 0, 0, 1, 0),
         "github.com/pytorch/torchtitan, torchtitan/models/llama3/infra/parallelize.py, 2025-08 "
         "(6fc499f6): _save_list has flash and efficient attention, not cuDNN's"},
    [WEFT_RULE_ROTARY_BYTES] =
        {"queries and keys turned, bytes an element", OF(0, 0, 0, 0, 20, 0),
         "github.com/pytorch/torchtitan, torchtitan/models/llama/model.py, 2024: to fp32 6, "
         "complex "
         "product 8, back 6; complex numbers are not compiled (github.com/pytorch/pytorch, "
         "torch/_inductor/lowering.py, 2024)"},
    [WEFT_RULE_TP_BESIDE] = {"collectives over tp beside backward's products", OF(1, 1, 1, 0, 0, 0),
                             "github.com/NVIDIA/Megatron-LM, megatron/core/tensor_parallel/"
                             "layers.py, 2024"},
    [WEFT_RULE_ROWS_ONCE] = {"an expert's rows once to a rank, or once to a node",
                             OF(0, 0, 1, 1, 0, 0),
                             "github.com/deepseek-ai/DeepEP, 2025: 43 to 58 GB/s of a card of 50, "
                             "with the share that stays in the node"},
    [WEFT_RULE_EXPERT_US] =
        {"us that the host takes to issue an expert's product", OF(120, 120, 120, 7, 0, 0),
         "github.com/NVIDIA/TransformerEngine/pull/853, 2024: Grouped GEMM via multi-stream "
         "cuBLAS, "
         "a launch each; github.com/marin-community/marin/issues/4311, 2026: one layer with 16 "
         "experts on its rank, 96 products and some 40 kernels, takes 12.41 and 11.75 ms where "
         "products differ by 4 times; 1 ms for those of 8 experts: "
         "github.com/NVIDIA/TransformerEngine/issues/1499, 2025"},
    [WEFT_RULE_BIAS_INSIDE] = {"experts' first biases in the product's own kernel",
                               OF(1, 1, 1, 0, 0, 0),
                               "github.com/NVIDIA/Megatron-LM, megatron/core/transformer/moe/"
                               "experts.py, 2025: skip_bias_add of linear_fc1"},
    [WEFT_RULE_BIAS_BYTES] = {"experts' second biases, bytes an element forward",
                              OF(12, 12, 28, 28, 0, 0),
                              EXPERT_BIASES ": times a weight 2, added 6, one behind the other 4; "
                                            "with weights in fp32, as DeepEP's are, 4, 10, 8, and "
                                            "back 6"},
    [WEFT_RULE_BIAS_BYTES_BACK] = {"experts' second biases, bytes an element backward",
                                   OF(16, 16, 40, 40, 0, 0),
                                   EXPERT_BIASES ": the rows' gradient 4, the bias's 6, the "
                                                 "weight's 6; with weights in fp32 16, 12, 12"},
    [WEFT_RULE_CLAMP_BYTES] = {"gates and ups bounded apart, bytes an element forward",
                               OF(8, 8, 8, 0, 0, 0), BOUNDS ": bounded 4, one beside the other 4"},
    [WEFT_RULE_CLAMP_BYTES_BACK] = {"gates and ups bounded apart, bytes an element backward",
                                    OF(10, 10, 10, 0, 0, 0),
                                    BOUNDS ": bounded 6, one beside the other 4"},
    [WEFT_RULE_PRODUCT_US] =
        {"us that the host takes to issue a linear layer", OF(37, 37, 37, 37, 13, 13),
         "github.com/NVIDIA/TransformerEngine/issues/2053, 2025: torch 13.48 on a DGX H100; "
         "Transformer Engine 90.53 for torch's 33.17 on a GH200"},
    [WEFT_RULE_ISSUE_US] = {"us that the host takes to issue a kernel", ALL_OTHERS(7),
                            "github.com/pytorch/pytorch/issues/41383, 2020: the smallest operation "
                            "with autograd"},
    [WEFT_RULE_STATE_BYTES] =
        {"masters and moments, bytes an element", OF(12, 0, 0, 0, 0, 0),
         "github.com/NVIDIA/Megatron-LM, megatron/training/theoretical_memory_usage.py, 2024: 18 "
         "with weights and gradients; layers keep the inputs of products and norms: arXiv "
         "2205.05198, 2022, section 4, and github.com/NVIDIA/TransformerEngine, "
         "transformer_engine/pytorch/module/layernorm_linear.py, 2024"},
    [WEFT_RULE_WORKSPACES_MIB] =
        {"MiB of cuBLAS' workspaces", OF(96, 0, 0, 0, 0, 0),
         "github.com/pytorch/pytorch, aten/src/ATen/cuda/CublasHandlePool.cpp, 2024: 32 for each "
         "of the threads of forward and backward; github.com/NVIDIA/TransformerEngine, "
         "transformer_engine/pytorch/module/base.py, 2024, get_cublas_workspace_size_bytes: 32"},
    [WEFT_RULE_OFF_RAILS] = {"times as long an all-to-all beyond a node", OF_PLAIN(2),
                             "NVIDIA, Doubling all2all Performance with NVIDIA Collective "
                             "Communication Library 2.12, 2022"},
};

static const weft_gpu_fact facts[WEFT_NUM_GPU_FACTS] = {
    [WEFT_GPU_HOST_WAIT_US] =
        {"us that a GPU idles where the host waits for it", 6.7,
         "developer.nvidia.com/blog/cuda-graphs, 2019: kernels of 2.9 us with "
         "a wait after each take 9.6 us"},
    [WEFT_GPU_COLLECTIVE_BLOCKS] =
        {"multiprocessors that a collective takes", 24,
         "github.com/NVIDIA/nccl-tests/issues/100, 2022, 8 A100, and github.com/NVIDIA/nccl/issues/"
         "1705, 2025, 8 H100: channels 00 to 23, a block each"},
};

const weft_gpu_fact *weft_gpu_fact_at(weft_gpu_fact_kind kind)
{
    return &facts[kind];
}

const weft_software_rule *weft_software_rule_at(weft_software_rule_kind kind)
{
    return &rules[kind];
}

double weft_software_value(int software, weft_software_rule_kind kind)
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
            return weft_software_value(site->software, flashes[i].rule);
    return 1;
}

static bool is_b200(const weft_site *site)
{
    return strncmp(site->cluster->hardware.device_name, "B200", 4) == 0;
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
    const double forward = weft_software_value(software, WEFT_RULE_NORM_ROWS),
                 backward = weft_software_value(software, WEFT_RULE_NORM_ROWS_BACK);
    if (forward > 0 && o->phase == WEFT_PHASE_FORWARD && is_of(o, "pre_mlp_layernorm"))
        return forward / OWN_NORM_ROWS;
    return backward > 0 && o->phase == WEFT_PHASE_INPUT_GRADIENT ? backward / OWN_NORM_ROWS : 1;
}

/* Weft's adds experts' biases in a kernel, which reads and writes each element, and reads gradients
 * once more for theirs. */
static double bias_factor(int software, const weft_operation *o)
{
    const bool back = o->phase == WEFT_PHASE_WEIGHT_GRADIENT;
    const double bytes =
        weft_software_value(software, back ? WEFT_RULE_BIAS_BYTES_BACK : WEFT_RULE_BIAS_BYTES);
    return bytes > 0 ? bytes / (back ? 1 : 2) / (double)weft_dtype_bytes(o->dtype) : 1;
}

/* Gate, up and result are 3 numbers of which 2 are bounded; backward has 5. */
static double clamp_factor(int software, const weft_operation *o)
{
    const bool back = o->phase == WEFT_PHASE_INPUT_GRADIENT;
    const double bytes =
        weft_software_value(software, back ? WEFT_RULE_CLAMP_BYTES_BACK : WEFT_RULE_CLAMP_BYTES);
    return 1 + 2 * bytes / (back ? 5 : 3) / (double)weft_dtype_bytes(o->dtype);
}

double weft_software_factor(const weft_site *site, const weft_operation *o, bool selects)
{
    const int software = site->software;
    const double flash = weft_software_value(software, WEFT_RULE_FLASH_2),
                 rotary = weft_software_value(software, WEFT_RULE_ROTARY_BYTES),
                 loss = weft_software_value(software, WEFT_RULE_LOSS_BYTES);
    const bool keeps = weft_software_value(software, WEFT_RULE_KEEPS) > 0 &&
                       !(selects && weft_software_chooses(software));
    if (software == WEFT_SOFTWARE_WEFT)
        return 1;
    if (selects && o->repeated && weft_software_chooses(software))
        return 0;
    if (o->fused)
        return flash > 0 ? flash / flash_share(site) : 1;
    if (o->kind != WEFT_OPERATION_MEMORY)
        return 1;
    if (is_of(o, "loss") && loss > 0)
        return loss / OWN_LOSS_BYTES;
    if (is_of(o, "experts.linear_fc1") && weft_software_value(software, WEFT_RULE_BIAS_INSIDE) > 0)
        return 0;
    if (is_of(o, "experts.linear_fc2"))
        return bias_factor(software, o);
    if (is_of(o, "rotary") && rotary > 0)
        return rotary / (2 * (double)weft_dtype_bytes(o->dtype));
    if (keeps && (is_norm(o) || is_of(o, "activation")) && o->phase == WEFT_PHASE_RECOMPUTE &&
        !o->repeated)
        return 0;
    if (is_of(o, "activation") && site->clamps)
        return clamp_factor(software, o);
    return is_norm(o) ? norm_factor(software, o) : 1;
}

bool weft_software_chooses(int software)
{
    return weft_software_value(software, WEFT_RULE_SECOND_AGAIN) > 0;
}

/* A layer's products are those of queries, keys, values, their end, of gate and up, and down. */
double weft_software_again(const weft_site *site, const weft_software_products *products,
                           const weft_operation *o)
{
    if (o->kind == WEFT_OPERATION_MEMORY)
        return is_of(o, "rotary");
    if (o->kind != WEFT_OPERATION_GEMM)
        return 0;
    if (o->fused)
        return is_b200(site) && weft_software_value(site->software, WEFT_RULE_ATTENTION_AGAIN) > 0;
    if (is_of(o, "linear_qkv"))
        return products->keys;
    if (is_of(o, "linear_fc1"))
        return products->gates > 1 ? 0.5 : 0;
    return is_of(o, "linear_proj") || (is_of(o, "linear_fc2") && !(products->gates > 1));
}

bool weft_software_is_beside(const weft_site *site, const weft_operation *o)
{
    return weft_software_value(site->software, WEFT_RULE_TP_BESIDE) > 0 &&
           o->kind == WEFT_OPERATION_COLLECTIVE && o->axis == WEFT_AXIS_TP &&
           o->phase != WEFT_PHASE_FORWARD;
}

double weft_software_launches(const weft_site *site, const weft_operation *o)
{
    const double issue = weft_software_value(site->software, WEFT_RULE_ISSUE_US),
                 product = weft_software_value(site->software, WEFT_RULE_PRODUCT_US);
    const double count = o->fused ? 1 : (double)(o->count ? o->count : 1);
    const double expert = weft_software_value(site->software, WEFT_RULE_EXPERT_US);
    if (o->kind != WEFT_OPERATION_GEMM || o->fused)
        return count;
    if (o->groups > 0)
        return expert > 0 ? count * (double)o->groups * expert / issue : count;
    return product > 0 ? count * product / issue : count;
}

double weft_software_exchanged(int software, const weft_group *ep, double experts, double chosen)
{
    const double nodes = ceil((double)ep->size / fmax(1, ep->near));
    const double places = nodes > 1 ? nodes : ep->size;
    const double hit = 1 - pow(1 - 1 / places, chosen);
    if (!(weft_software_value(software, WEFT_RULE_ROWS_ONCE) > 0) || ep->size < 2 ||
        !(experts > 0) || !(chosen > 0))
        return 1;
    return fmin(1, places * hit / chosen);
}
