/* Programs of every level, with what they are made and judged by: what damaged texts are read as.
 */
#ifndef WEFT_TESTS_SCHEDULE_SUBJECTS_H
#define WEFT_TESTS_SCHEDULE_SUBJECTS_H

#include "schedule/exchange/exchange.h"
#include "schedule/experts/experts.h"
#include "schedule/moe/layer.h"
#include "schedule/pass.h"
#include "tests/schedule/programs.h"

/* Where choices come from: a number below the bound. */
typedef struct draws {
    uint32_t (*next)(void *context, uint32_t bound);
    void *context;
} draws;

/* What programs of each level are made and judged by. */
typedef struct subject {
    weft_arena arena;
    program_set set; /* of a step */
    weft_chunk_shape chunk;
    weft_pass_layer layers[4];
    weft_moe_pipeline moe;
    weft_exchange_form form;
    weft_experts_shape experts;
    int kind, num_programs;
    bool backward, halves, host_waits[MAX_STAGES]; /* halves: a backward in two, or its second */
    weft_program programs[MAX_STAGES];
} subject;
enum { STEP, PASS, LAYER, EXCHANGE, EXPERTS, NUM_SUBJECTS };

void make_subject(const draws *d, subject *s);
void release_subject(subject *s);
weft_status check_subject(const subject *s) WEFT_CHECKED;
/* What is well-formed has a price, or never ends and says so. accepted: by check_subject. */
void price_subject(const subject *s, bool accepted);

#endif
