/* The threads of experts in host memory and in a file, in one process without MPI, for
 * ThreadSanitizer: what the lanes and the host write and read is ordered by what tasks wait for,
 * not by luck. In every order, stepped at once, deferred and after the backward, with kept experts,
 * experts that have no rows, several micro-batches, the optimizer's state of all else on the host,
 * evaluations and a save amid steps. The linker puts the function below before the library's:
 * ThreadSanitizer does not see what oneDNN reads and writes. */
#include <stdio.h>
#include <stdlib.h>

#include <weft/kernels.h>

#include "launcher/training/trainer.h"
#include "tests/expect.h"

enum { NUM_STEPS = 4, MAX_SET = 6 };

#define UNCLIPPED "train.clip_grad=0"
#define SEVERAL "train.global_batch_size=3"
#define BF16 "train.precision=bf16"
#define FROM_FILE "offload.experts=file"
#define STATE "offload.optimizer_state=host"
#define KEPT "offload.kept=0.4"
#define FEW_ROWS "model.num_experts=24"
#define ORDER(name) "offload.order=" name

static const char *const cases[][MAX_SET] = {
    {"offload.slots=2"},
    {UNCLIPPED, KEPT, FEW_ROWS},
    {KEPT, FEW_ROWS, BF16},
    {UNCLIPPED, SEVERAL, KEPT, ORDER("demand")},
    {SEVERAL, ORDER("layer"), "offload.optimizer=after"},
    {SEVERAL, KEPT, FEW_ROWS, "train.recompute_granularity=full"},
    {STATE, KEPT},
    {STATE, UNCLIPPED, KEPT, BF16},
    {STATE, "offload.experts=none", "parallel.ddp_bucket_size=1000"},
    {STATE, FROM_FILE, BF16},
    {FROM_FILE, KEPT},
    {FROM_FILE, UNCLIPPED, FEW_ROWS, BF16},
    {FROM_FILE, SEVERAL, FEW_ROWS, "offload.io=threads"},
};

typedef struct touch {
    const volatile char *weight;
    volatile float *gradient;
} touch;

/* Of an expert's memory on the device, what its product does. */
static weft_status touch_memory(const void *args)
{
    const touch *t = args;
    if (t->gradient)
        *t->gradient = *t->gradient;
    else
        (void)*t->weight;
    return WEFT_OK;
}

weft_status __real_weft_grouped_gemm(weft_lane *lane, const weft_grouped_gemm_args *args);
weft_status __wrap_weft_grouped_gemm(weft_lane *lane, const weft_grouped_gemm_args *args);

weft_status __wrap_weft_grouped_gemm(weft_lane *lane, const weft_grouped_gemm_args *args)
{
    const touch memory = {args->w, args->kind == WEFT_GROUPED_WGRAD ? args->wgrad : NULL};
    WEFT_TRY(__real_weft_grouped_gemm(lane, args));
    WEFT_TRY(weft_lane_submit(lane, "touch", touch_memory, &memory, sizeof memory));
    return WEFT_OK;
}

static const char config_text[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"ffn_hidden_size\": 24, "
    "\"num_attention_heads\": 4, \"seq_length\": 8, \"vocab_size\": 37, "
    "\"init_method_std\": 0.1, \"num_experts\": 5, \"moe_router_topk\": 2}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 1, \"train_iters\": 4, "
    "\"lr\": 2e-3, \"eval_iters\": 1}, \"offload\": {\"experts\": \"host\"}, "
    "\"data\": {\"mock_data\": true, \"split\": \"8,2,0\"}, "
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}";

static void check(weft_comm *self, const char *const set[MAX_SET], const char *folder)
{
    weft_arena arena = {0};
    weft_config config;
    weft_trainer t;
    weft_step_result result = {0};
    weft_evaluation evaluation;
    weft_config_source source = {.file = set[0], .text = config_text, .mesh = "dp=1", .set = set};
    while (source.num_set < MAX_SET && set[source.num_set])
        source.num_set++;
    EXPECT_OK(weft_config_load(&source, &arena, &config));
    EXPECT_OK(weft_trainer_create(&t, &config, &source, self, &arena));
    EXPECT_OK(weft_trainer_start(&t, NULL));
    for (int i = 0; i < NUM_STEPS; i++) {
        EXPECT_OK(weft_trainer_step(&t, &result));
        if (i == 1)
            EXPECT_OK(weft_trainer_evaluate(&t, WEFT_SPLIT_VALIDATION, &evaluation));
        if (i == 2)
            EXPECT_OK(weft_trainer_save(&t, folder));
    }
    EXPECT(result.step == NUM_STEPS && result.loss > 0 && result.loss < 10, "%s: loss %g", set[0],
           result.loss);
    weft_trainer_release(&t);
    weft_arena_release(&arena);
}

int main(void)
{
    char folder[] = "/tmp/weft-tier-lanes-XXXXXX";
    weft_comm *self;
    EXPECT(mkdtemp(folder) != NULL, "%s", folder);
    EXPECT_OK(weft_comm_create_self(&self));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(self, cases[i], folder);
    weft_comm_destroy(self);
    expect_shell("rm -rf %s", folder);
    return expect_finish();
}
