/* What is recomputed changes no bit: losses and gradient norms of a mesh are those of the same mesh
 * that keeps everything, with dropout, in bf16, with experts that drop tokens, in every form that
 * MoE layers run in, under every schedule.
 *
 * Runs under mpirun with 4 ranks. */
#include "tests/launcher/same_bits.h"

#define GPT2 SAME_GPT2(4)
#define LLAMA SAME_LLAMA(4)
#define MOE SAME_MOE(4, "1, 0, 1, 1")
#define FULL(method, num)                                                                          \
    ", \"recompute_granularity\": \"full\", \"recompute_method\": \"" method                       \
    "\", \"recompute_num_layers\": " #num
#define PAIRS ", \"overlap_moe_expert_parallel_comm\": true"

static const same_case cases[] = {
    {1, GPT2, "tp=1", NULL, "", FULL("uniform", 1)},
    {1, LLAMA, "tp=1", NULL, BF16, FULL("uniform", 3)},
    {1, MOE, "pp=1,vp=4", NULL, BF16, FULL("block", 1)},
    {2, GPT2, "pp=2", NULL, BF16, FULL("uniform", 2)},
    {2, GPT2, "pp=2,schedule=gpipe", NULL, "", FULL("uniform", 1)},
    {2, GPT2, "pp=2,vp=2", NULL, "", FULL("uniform", 1)},
    {2, LLAMA, "pp=2", NULL, "", FULL("block", 1)},
    {4, LLAMA, "tp=2,pp=2,sp=1", NULL, "", FULL("uniform", 1)},
    {4, GPT2, "pp=4,layout=E|t|||t|t|t|L", NULL, "", FULL("uniform", 2)},
    {2, MOE, "pp=2", NULL, "", FULL("uniform", 2)},
    {2, MOE, "tp=2,binding=tp,sp=1", NULL, "", FULL("uniform", 1)},
    {2, MOE, "dp=2,binding=dp,ep=2,zero=1", NULL, BF16, FULL("uniform", 4)},
    {4, MOE, "pp=2,dp=2,binding=dp,ep=2", PARTS(3, s1), "", FULL("uniform", 1)},
    {2, MOE, "dp=2,binding=dp,ep=2", PARTS(4, s2), "", FULL("uniform", 1)},
    {2, MOE, "dp=2,binding=dp,ep=2", PARTS(2, s3), "", FULL("block", 3)},
    {4, MOE, "pp=2,vp=2,dp=2,binding=dp,ep=2", PARTS(2, s4), "", FULL("uniform", 1)},
    {4, MOE, "dp=4,binding=dp,ep=4", ", \"moe_partition_by\": \"peers\"", "", FULL("uniform", 1)},
    {4, MOE, "tp=2,dp=2,binding=dp,ep=2,etp=2", PARTS(4, s4) FORM(o2, 3), "", FULL("block", 1)},
    {4, MOE, "tp=2,dp=2,binding=dp,ep=2,etp=2", PARTS(2, none) FORM(o1, 1), "", FULL("uniform", 1)},
    {1, GPT2, "tp=1", NULL, BF16, SELECTIVE("\"core_attn\", \"mlp\"")},
    {2, LLAMA, "tp=2,sp=1", NULL, "", SELECTIVE("\"mlp\", \"layernorm\"")},
    {2, GPT2, "pp=2,schedule=gpipe", NULL, "", SELECTIVE("\"mlp\"")},
    {2, LLAMA, "pp=2,vp=2", NULL, BF16, SELECTIVE("\"core_attn\"")},
    {1, MOE, "tp=1", NULL, "", SELECTIVE("\"shared_experts\", \"mlp\"")},
    {2, MOE, "pp=2", NULL, BF16, SELECTIVE("\"moe\", \"core_attn\"")},
    {4, MOE, "tp=2,dp=2,binding=tp,sp=1", NULL, "", SELECTIVE("\"moe\", \"shared_experts\"")},
    {4, MOE, "tp=2,dp=2,binding=dp,ep=4", PARTS(3, s4), "", SELECTIVE("\"moe\"")},
    {2, MOE, "dp=2,binding=dp,ep=2", PARTS(4, none), "", SELECTIVE("\"moe\", \"mlp\"")},
    {4, MOE, "tp=2,dp=2,binding=dp,ep=2,etp=2", PARTS(2, s2) FORM(o2, 2), "",
     SELECTIVE("\"moe\", \"moe_act\"")},
    /* pairs of a forward and a backward */
    {2, MOE, "dp=2,binding=dp,ep=2", PAIRS, "", FULL("uniform", 1)},
    {4, MOE, "pp=2,dp=2,vp=2,binding=dp,ep=2", PAIRS, BF16, FULL("uniform", 2)},
    {4, MOE, "pp=2,dp=2,binding=dp,ep=2", PAIRS, "", SELECTIVE("\"moe\", \"mlp\"")},
    {4, MOE, "dp=4,binding=dp,ep=2,zero=3", PAIRS, "", FULL("block", 3)},
    {4, MOE, "tp=2,dp=2,binding=dp,ep=4,sp=1,zero=2", PAIRS, BF16,
     SELECTIVE("\"core_attn\", \"shared_experts\"")},
    /* packed documents */
    {4, LLAMA, "cp=4", ", \"context_parallel_load_balancer\": \"documents\"", "",
     SELECTIVE("\"core_attn\"")},
    {4, GPT2, "cp=2,pp=2", NULL, BF16, FULL("uniform", 1)},
};

int main(void)
{
    return same_bits_main(cases, sizeof cases / sizeof *cases, 2, "");
}
