#include "schedule/options.h"

#include "core/key_rows.h"
#include "schedule/pipeline/order.h"

#define OR_KIND(name, text, is_v, splits) "|" text

#define NOT_SHARDED "parallel.expert_tensor_parallel_size is at most 1"
/* Partitions are of tokens' exchanges. */
#define NOTHING_TRAVELS                                                                            \
    NO_EXPERTS                                                                                     \
    "; parallel.expert_binding is tp; parallel.expert_model_parallel_size is at most 1"
#define T weft_schedule_options
const weft_key weft_schedule_rows[] = {
    CHOICE(STEP, pipeline_schedule, "\"1f1b\"", (WEFT_PIPELINE_LIST(OR_KIND)) + 1,
           "order of the micro-batches in a stage",
           .idle = "parallel.pipeline_model_parallel_size is 1 "
                   "(parallel.pipeline_model_parallel_size is 1 and parallel.pipeline_schedule is "
                   "not gpipe)",
           .alias = "schedule", SEARCHED(SCHEDULE)),
    TEXT(STEP, pipeline_schedule_file, "\"\"",
         "order of compute as CSV, a row a rank, cells such as 0F0 and 2B3; empty: by "
         "pipeline_schedule",
         SEARCHED(SCHEDULE)),
    RANGE(STEP, microbatch_group_size_per_virtual_pipeline_stage, "0", 0, 1 << 20, "micro-batches",
          "that go through a virtual stage before the next one; at least pp; 0: pp",
          .idle = "parallel.num_virtual_stages_per_pipeline_rank is 1 "
                  "(parallel.num_virtual_stages_per_pipeline_rank is below 2)"),
    FLAG(STEP, overlap_moe_expert_parallel_comm, "false",
         "run a micro-batch's forward beside another's backward, so that all-to-alls hide behind "
         "computation",
         .idle = NO_EXPERTS),
    RANGE(CHOICE, moe_num_partitions, "1", 0, 64, NULL,
          "n: partitions in which MoE layers pipeline dispatch, experts and combine; 0: chosen",
          .idle = NOTHING_TRAVELS, SEARCHED(PARTITIONS)),
    CHOICE(
        CHOICE, moe_memory_reuse, "\"none\"", "none|s1|s2|s3|s4|auto",
        "how MoE layers share partitions' buffers and restore them (MPMoE); auto: the fastest of "
        "s1 to s4",
        .idle = NOTHING_TRAVELS, SEARCHED(REUSE)),
    CHOICE(CHOICE, moe_partition_by, "\"auto\"", "tokens|peers|experts|auto",
           "what cuts partitions; peers: a group of ranks; experts: a run of a rank's; auto: the "
           "faster",
           .idle = NOTHING_TRAVELS, SEARCHED(PARTITIONS)),
    RANGE(CHOICE, moe_peer_group_size, "1", 1, 1 << 20, "ranks",
          "ranks that are one partition when cut by peers", .idle = NOTHING_TRAVELS,
          SEARCHED(PARTITIONS)),
    CHOICE(CHOICE, moe_all_to_all, "\"auto\"", "baseline|o1_paper|o1|o2|o3|direct|auto",
           "form of the all-to-all of tensor-sharded experts (MoNTA)",
           .idle = NO_EXPERTS "; " NOT_SHARDED, SEARCHED(EXCHANGE)),
    RANGE(CHOICE, moe_all_to_all_chunks, "0", 0, 256, "chunks", "pieces it is cut in; 0: chosen",
          .idle = NO_EXPERTS "; " NOT_SHARDED, SEARCHED(EXCHANGE)),
    CHOICE(
        STEP, moe_choice, "\"price\"", "profile|quick|phases|price",
        "how n and the reuse are chosen: measured in the first steps, or from the cluster's costs",
        .idle = NOTHING_TRAVELS, SEARCHED(PARTITIONS)),
    TEXT(FREE, cluster, "\"\"", "file of the cluster's costs, as weft calibrate writes it",
         .idle =
             NO_EXPERTS " and parallel.context_parallel_size 1 and parallel.tp_comm_overlap false"),
};
const size_t weft_num_schedule_rows = sizeof weft_schedule_rows / sizeof *weft_schedule_rows;
