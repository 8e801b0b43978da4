/* Pairs of a forward and a backward give the bits of the same schedule without pairs, whole or in
 * two halves, and the memory that is planned (tests/launcher/meshes.h).
 *
 * Runs under mpirun with 4 ranks. */
#include "tests/launcher/same_bits.h"

#define UNTIED                                                                                     \
    MESH_SIZES(4)                                                                                  \
    SAME_DROPOUT ", \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.02, \"moe_router_topk\": 2, "    \
                 "\"moe_layer_freq\": [0, 1, 1, 1], \"moe_shared_expert_intermediate_size\": 16, " \
                 "\"untie_embeddings_and_output_weights\": true}"
#define TIED SAME_MOE(4, "1, 0, 1, 1")
#define SHARDED "tp=2,dp=2,binding=dp,ep=2,etp=2"
#define CHUNKS ", \"tp_comm_overlap\": true, \"tp_comm_overlap_chunks\": 2"
#define PAIRS ", \"overlap_moe_expert_parallel_comm\": true"

static const same_case cases[] = {
    {2, TIED, "dp=2,binding=dp,ep=2", NULL, "", ""},
    {4, TIED, "pp=2,dp=2,vp=2,binding=dp,ep=2", NULL, BF16, ""},
    {4, UNTIED, "pp=2,dp=2,binding=dp,ep=2,schedule=dualpipev", NULL, "", ""},
    {4, TIED, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1", NULL, "", ""},
    {4, UNTIED, "pp=2,dp=2,vp=2,binding=dp,ep=2,schedule=zb_h1,zero=1", NULL, BF16, ""},
    {4, UNTIED, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1,zero=3", NULL, "", ""},
    {4, UNTIED, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1", NULL, SELECTIVE("\"moe\""), ""},
    {4, UNTIED, "pp=2,dp=2,binding=dp,ep=2,schedule=zbv", NULL, "", ""},
    {4, UNTIED, "pp=2,dp=2,binding=dp,ep=2,schedule=zbv,zero=2", NULL, BF16, ""},
    /* sharded gradients are reduced behind what layers leave, if they are beside backwards */
    {4, UNTIED, "dp=4,binding=dp,ep=2,zero=3", NULL, "", ""},
    {2, TIED, "dp=2,binding=dp,ep=2,zero=3", NULL, BF16, ""},
    {2, UNTIED, "dp=2,binding=dp,ep=2,zero=2", ", \"overlap_grad_reduce\": false", "", ""},
    /* partitions, and memory that they reuse */
    {2, UNTIED, "dp=2,binding=dp,ep=2", PARTS(3, none), "", ""},
    {4, UNTIED, "dp=4,binding=dp,ep=4", PARTS(4, s1), "", ""},
    {2, TIED, "dp=2,binding=dp,ep=2", PARTS(2, s2), BF16, ""},
    {4, UNTIED, "pp=2,dp=2,binding=dp,ep=2,schedule=zb_h1", PARTS(3, s3), "", ""},
    {4, UNTIED, "dp=4,binding=dp,ep=2,zero=3", PARTS(2, s4), "", ""},
    {4, UNTIED, "dp=4,binding=dp,ep=4", ", \"moe_partition_by\": \"peers\"", "", ""},
    /* products in chunks */
    {4, UNTIED, "tp=2,dp=2,binding=dp,ep=2", CHUNKS, "", ""},
    {4, UNTIED, "tp=2,pp=2,sp=1,binding=dp,ep=2,schedule=zb_h1", CHUNKS, "", ""},
    {2, UNTIED, "dp=2,binding=dp,ep=2", PARTS(2, s1) ", \"moe_partition_by\": \"experts\"", "", ""},
    /* tensor-sharded experts, by each form of their exchange */
    {4, UNTIED, SHARDED, FORM(baseline, 1), "", ""},
    {4, UNTIED, SHARDED ",sp=1", FORM(o1_paper, 1), BF16, ""},
    {4, UNTIED, SHARDED, FORM(o2, 3) PARTS(2, none), "", ""},
    {4, TIED, SHARDED ",sp=1", FORM(o3, 2), "", ""},
    {4, UNTIED, SHARDED ",sp=1", FORM(o3, 4) PARTS(2, s1), SELECTIVE("\"moe\""), ""},
    {4, UNTIED, SHARDED, FORM(direct, 2), "", ""},
};

int main(void)
{
    return same_bits_main(cases, sizeof cases / sizeof *cases, 1, PAIRS);
}
