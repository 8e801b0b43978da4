/* What is offloaded changes no bit: losses and gradient norms of a mesh are those of the same mesh
 * that keeps everything on the device, with dropout, in bf16, with experts that drop tokens, in
 * every form that MoE layers and attention run in, under every schedule and every sharding.
 *
 * Runs under mpirun with 4 ranks. */
#include "tests/launcher/same_bits.h"

#define GPT2 SAME_GPT2(6)
#define LLAMA SAME_LLAMA(6)
#define MOE SAME_MOE(6, "1, 0, 1, 1, 0, 1")
#define OFFLOAD(modules)                                                                           \
    ", \"fine_grained_activation_offloading\": true, \"offload_modules\": [" modules "]"
#define BLOCK OFFLOAD("\"block\"")
#define ALL OFFLOAD("\"core_attn\", \"mlp\", \"moe\"")
#define CONTEXT(form) ", \"cp_comm_type\": \"" form "\""

static const same_case cases[] = {
    {1, GPT2, "tp=1", NULL, "", BLOCK},
    {1, GPT2, "tp=1", NULL, BF16, OFFLOAD("\"core_attn\"")},
    {1, LLAMA, "tp=1", NULL, "", OFFLOAD("\"mlp\"")},
    {1, LLAMA, "pp=1,vp=3", NULL, BF16, BLOCK},
    {1, MOE, "tp=1", NULL, "", OFFLOAD("\"moe\"")},
    {1, MOE, "tp=1", NULL, BF16, BLOCK},
    {2, GPT2, "pp=2", NULL, BF16, BLOCK},
    {2, GPT2, "pp=2,schedule=gpipe", NULL, "", BLOCK},
    {2, GPT2, "pp=2,vp=2", NULL, "", BLOCK},
    {2, LLAMA, "pp=2", NULL, "", ALL},
    {2, LLAMA, "pp=2,vp=2", NULL, BF16, OFFLOAD("\"core_attn\"")},
    {2, GPT2, "pp=2,schedule=gpipe", NULL, BF16, OFFLOAD("\"mlp\"")},
    {4, GPT2, "pp=4,layout=E|tttt||ttL", NULL, "", BLOCK},
    {4, LLAMA, "tp=2,pp=2,sp=1", NULL, "", BLOCK},
    {4, LLAMA, "tp=2,pp=2,vp=3,sp=1", NULL, "", ALL},
    {2, GPT2, "dp=2,zero=1", NULL, BF16, BLOCK},
    {4, GPT2, "dp=4,zero=2", NULL, "", BLOCK},
    {4, LLAMA, "dp=4,zero=3", NULL, BF16, BLOCK},
    {4, GPT2, "pp=2,dp=2,vp=2,zero=3", NULL, "", BLOCK},
    {4, GPT2, "pp=2,dp=2,zero=3,schedule=gpipe", NULL, "", ALL},
    {2, GPT2, "cp=2", NULL, "", BLOCK},
    {2, LLAMA, "cp=2", NULL, BF16, OFFLOAD("\"core_attn\"")},
    {4, GPT2, "cp=4", CONTEXT("a2a"), "", OFFLOAD("\"core_attn\"")},
    {4, GPT2, "cp=2,pp=2", CONTEXT("all_gather"), "", BLOCK},
    {4, GPT2, "cp=4", CONTEXT("a2a+p2p") ", \"hierarchical_context_parallel_sizes\": [2, 2]", BF16,
     BLOCK},
    {2, MOE, "pp=2", NULL, "", ALL},
    {2, MOE, "tp=2,binding=tp,sp=1", NULL, BF16, OFFLOAD("\"moe\"")},
    {2, MOE, "dp=2,binding=dp,ep=2,zero=1", NULL, "", BLOCK},
    {4, MOE, "dp=4,binding=dp,ep=2,zero=3", PARTS(2, s1), "", BLOCK},
    {4, MOE, "pp=2,dp=2,binding=dp,ep=2", PARTS(3, none), "", OFFLOAD("\"moe\", \"mlp\"")},
    {4, MOE, "pp=2,vp=3,dp=2,binding=dp,ep=2", PARTS(2, s4), "", OFFLOAD("\"moe\"")},
    {4, MOE, "dp=4,binding=dp,ep=4", ", \"moe_partition_by\": \"peers\"", "", BLOCK},
    {4, MOE, "tp=2,dp=2,binding=dp,ep=2,etp=2", PARTS(2, s2) FORM(o2, 2), "", ALL},
    {4, MOE, "tp=2,cp=2,binding=tp,sp=1", NULL, BF16, BLOCK},
    {2, GPT2, "pp=2", NULL, "", BLOCK SELECTIVE("\"core_attn\", \"mlp\"")},
    {2, LLAMA, "pp=2,vp=2", NULL, BF16, OFFLOAD("\"mlp\"") SELECTIVE("\"core_attn\"")},
    {2, MOE, "dp=2,binding=dp,ep=2", PARTS(2, none), "", BLOCK SELECTIVE("\"moe\"")},
    {1, MOE, "tp=1", NULL, "", OFFLOAD("\"moe\"") SELECTIVE("\"shared_experts\"")},
    {4, GPT2, "cp=4", CONTEXT("p2p") ", \"context_parallel_load_balancer\": \"documents\"", BF16,
     OFFLOAD("\"core_attn\"")},
    {4, LLAMA, "cp=2,pp=2", CONTEXT("a2a"), "", BLOCK},
};

int main(void)
{
    return same_bits_main(cases, sizeof cases / sizeof *cases, 2, "");
}
