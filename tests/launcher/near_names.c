/* What is offered for a key that no section has, and for an option that no verb has. */
#include <string.h>

#include "launcher/planning/config.h"
#include "tests/expect.h"
#include "tests/launcher/child.h"

static const struct {
    const char *section, *key, *wanted; /* section NULL: none was given; wanted NULL: nothing */
} keys[] = {
    /* other words */
    {NULL, "learning_rate", "train.lr"},
    {"train", "frozen_parameters", "train.parameter_rules"},
    {"model", "learning_rate", "train.lr"},
    {NULL, "learning-rate", "train.lr"},
    {NULL, "n_embd", "model.hidden_size"},
    {NULL, "d_model", "model.hidden_size"},
    {NULL, "max_steps", "train.train_iters"},
    {NULL, "max_iters", "train.train_iters"},
    {NULL, "steps", "train.train_iters"},
    {NULL, "block_size", "model.seq_length"},
    {NULL, "context_length", "model.seq_length"},
    {NULL, "layers", "model.num_layers"},
    {"train", "layers", "model.num_layers"},
    {NULL, "intermediate_size", "model.ffn_hidden_size"},
    {NULL, "num_key_value_heads", "model.num_query_groups"},
    {NULL, "rope_theta", "model.rotary_base"},
    {NULL, "warmup_steps", "train.lr_warmup_iters"},
    {NULL, "max_grad_norm", "train.clip_grad"},
    {NULL, "bf16", "train.precision"},
    {NULL, "gradient_checkpointing", "train.recompute_granularity"},
    {NULL, "save_every", "checkpoint.save_interval"},
    {NULL, "tie_word_embeddings", "model.untie_embeddings_and_output_weights"},
    {NULL, "tp", "parallel.tensor_model_parallel_size"},
    {NULL, "zero_stage", "parallel.data_parallel_sharding_strategy"},
    /* the same words, or their beginnings */
    {NULL, "batch_size",
     "train.micro_batch_size, train.global_batch_size or train.rampup_batch_size"},
    {"model", "batch",
     "train.micro_batch_size, train.global_batch_size or train.rampup_batch_size"},
    {NULL, "n_head", "model.num_attention_heads"},
    {NULL, "num_heads", "model.num_attention_heads"},
    {"train", "num_head", "model.num_attention_heads"},
    {NULL, "n_layer", "model.num_layers"},
    {NULL, "seq_len", "model.seq_length"},
    {NULL, "dropout", "model.hidden_dropout or model.attention_dropout"},
    {NULL, "vocab", "model.vocab_size"},
    {NULL, "warmup", "train.lr_warmup_iters"},
    {NULL, "keep_last", "checkpoint.keep_latest_k"},
    {"checkpoint", "interval", "checkpoint.save_interval or checkpoint.peer_interval"},
    {"train", "interval", "train.eval_interval"},
    {NULL, "grad_clip", "train.clip_grad"},
    {NULL, "beta1", "train.adam_beta1"},
    {NULL, "tensor_parallel",
     "parallel.tensor_model_parallel_size or parallel.expert_tensor_parallel_size"},
    {NULL, "threads", "device.num_threads or offload.num_threads"},
    {"device", "threads", "device.num_threads"},
    /* letters */
    {NULL, "num_laeyrs", "model.num_layers"},
    {"train", "trian_iters", "train.train_iters"},
    {NULL, "lrr", "train.lr"},
    {"train", "lrr", "train.lr"}, /* though it shortens words of others */
    {NULL, "weight_decay_rate", "train.weight_decay"},
    {NULL, "capacity", "model.moe_expert_capacity_factor"}, /* one word of four */
    {NULL, "forced", "model.moe_router_forced_load"},
    {NULL, "force", NULL}, /* of none of them */
    {NULL, "frobnicate", NULL},
    {NULL, "x", NULL},
    {NULL, "", NULL},
};

static void check_keys(void)
{
    weft_config config = {0};
    weft_option_section sections[WEFT_MAX_CONFIG_SECTIONS];
    const size_t num = weft_config_sections(&config, sections);
    weft_arena arena = {0};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *near = "", *wanted = keys[i].wanted ? keys[i].wanted : "";
        weft_string_list list;
        weft_status status =
            weft_options_near(sections, num, keys[i].section, keys[i].key, &arena, &list);
        if (status == WEFT_OK)
            status = weft_options_near_text(&list, "", "", &arena, &near);
        EXPECT(status == WEFT_OK && strcmp(near, wanted) == 0, "%s: \"%s\", not \"%s\"",
               keys[i].key, near, wanted);
    }
    weft_arena_release(&arena);
}

static const struct {
    const char *args[6], *wanted;
} lines[] = {
    {{"train", "--lr", "1"}, "weft train: --lr: unknown option; did you mean --set train.lr=1?\n"},
    {{"train", "--lr=1"}, "weft train: --lr: unknown option; did you mean --set train.lr=1?\n"},
    {{"train", "--micro-batch-size", "2"},
     "weft train: --micro-batch-size: unknown option; did you mean --set "
     "train.micro_batch_size=2?\n"},
    {{"train", "--train.lr", "--resume"},
     "weft train: --train.lr: unknown option; did you mean --set train.lr=VALUE?\n"},
    {{"train", "--batch-size", "2"},
     "weft train: --batch-size: unknown option; did you mean --set train.micro_batch_size=2, "
     "--set train.global_batch_size=2 or --set train.rampup_batch_size=2?\n"},
    {{"train", "--reusme"}, "weft train: --reusme: unknown option; did you mean --resume?\n"},
    {{"train", "--frobnicate", "1"}, "weft train: --frobnicate: unknown option; see weft train "},
    {{"train", "--force"}, "weft train: --force: unknown option; see weft train --help\n"},
    {{"calibrate", "--force"}, "weft calibrate: --force: unknown option; see weft calibrate "},
    {{"prepare", "--eod"}, "weft prepare: --eod: unknown option; did you mean --eod-token?\n"},
    {{"prepare", "--lr"}, "weft prepare: --lr: unknown option; see weft prepare --help\n"},
    {{"train", "keys.json", "--out", "run"},
     "weft train: keys.json:1:2: learning_rate: unknown section; did you mean key train.lr?\n"},
};

static void check_lines(void)
{
    char folder[32];
    EXPECT(child_folder_enter(folder) && child_write("keys.json", "{\"learning_rate\": 1}"),
           "no folder");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        child_refused(lines[i].args, 2, lines[i].wanted);
    child_folder_leave(folder);
}

int main(void)
{
    check_keys();
    check_lines();
    return expect_finish();
}
