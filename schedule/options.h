/* What a config says of schedules: which are run, and what they are chosen by. */
#ifndef WEFT_SCHEDULE_OPTIONS_H
#define WEFT_SCHEDULE_OPTIONS_H

#include "core/options/options.h"

/* How "auto" and 0 are filled in: by measuring while training, or by a model of the cluster. */
typedef enum weft_moe_choice_by {
    WEFT_MOE_CHOICE_PROFILE,
    WEFT_MOE_CHOICE_QUICK,
    WEFT_MOE_CHOICE_PHASES,
    WEFT_MOE_CHOICE_PRICE,
} weft_moe_choice_by;

typedef enum weft_moe_partition_by {
    WEFT_MOE_PARTITION_BY_TOKENS,
    WEFT_MOE_PARTITION_BY_PEERS,
    WEFT_MOE_PARTITION_BY_EXPERTS,
    WEFT_MOE_PARTITION_BY_AUTO, /* chosen where n is; else by tokens */
} weft_moe_partition_by;

typedef struct weft_schedule_options {  /* of section "parallel", as a user writes it */
    int pipeline_schedule;              /* weft_pipeline_kind */
    bool splits_backward;               /* no key: the schedule has backwards in two halves */
    const char *pipeline_schedule_file; /* an order of compute as CSV; "": by pipeline_schedule */
    int64_t microbatch_group_size_per_virtual_pipeline_stage; /* 0: p */
    bool overlap_moe_expert_parallel_comm; /* forwards and backwards as pairs (schedule/pair.h) */
    /* MoE layers whose tokens travel. Reuse and all-to-all are numbered as in schedule/moe/layer.h
     * and schedule/exchange/exchange.h, then "auto"; moe_partition_by is a weft_moe_partition_by.
     */
    int64_t moe_num_partitions; /* n; 0: chosen */
    int moe_memory_reuse, moe_partition_by, moe_all_to_all;
    int64_t moe_peer_group_size;
    int64_t moe_all_to_all_chunks; /* 0: chosen */
    int moe_choice;                /* weft_moe_choice_by */
    const char *cluster;           /* path of what `weft calibrate` wrote; "" none */
} weft_schedule_options;
extern const weft_key weft_schedule_rows[];
extern const size_t weft_num_schedule_rows;

#endif
