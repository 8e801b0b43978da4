/* moe_router_forced_load: the experts' load is what it says, whatever the router's weights are. */
#include <math.h>

#include "launcher/training/trainer.h"
#include "tests/expect.h"

typedef struct load_case {
    int experts, topk;
    double forced, expected; /* load of the fullest expert over the mean */
} load_case;

static void check(weft_comm *self, const load_case *c)
{
    weft_arena arena = {0};
    weft_config config;
    weft_trainer trainer;
    weft_step_result result = {0};
    char text[600];
    snprintf(text, sizeof text,
             "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 4, "
             "\"seq_length\": 64, \"vocab_size\": 53, \"init_method_std\": 0.5, "
             "\"num_experts\": %d, \"moe_router_topk\": %d, \"moe_router_forced_load\": %g}, "
             "\"train\": {\"global_batch_size\": 1}, \"data\": {\"mock_data\": true}, "
             "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}}",
             c->experts, c->topk, c->forced);
    weft_config_source source = {.file = "config", .text = text, .mesh = "dp=1"};
    EXPECT_OK(weft_config_load(&source, &arena, &config));
    EXPECT_OK(weft_trainer_create(&trainer, &config, &source, self, &arena));
    EXPECT_OK(weft_trainer_start(&trainer, NULL));
    EXPECT_OK(weft_trainer_step(&trainer, &result));
    EXPECT(fabs(result.expert_load - c->expected) < 1e-6 && isfinite(result.loss),
           "%d experts, top-%d, forced %g: load %.9g, not %.9g", c->experts, c->topk, c->forced,
           result.expert_load, c->expected);
    weft_trainer_release(&trainer);
    weft_arena_release(&arena);
}

int main(void)
{
    static const load_case cases[] = {
        {8, 2, 1, 1}, {8, 2, 2, 2}, {8, 2, 8, 4}, {16, 1, 1, 1}, {16, 1, 8, 8}, {2, 2, 1, 1},
    };
    weft_comm *self;
    EXPECT_OK(weft_comm_create_self(&self));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(self, &cases[i]);
    weft_comm_destroy(self);
    return expect_finish();
}
