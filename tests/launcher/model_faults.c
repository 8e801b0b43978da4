/* What converters of models get wrong: each is right here, or refused by name, and leaves nothing
 * behind. A folder is taken from those of tests/oracle/models, altered, and imported. */
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "launcher/models/config_json.h"
#include "launcher/models/half.h"
#include "launcher/models/models.h"
#include "launcher/planning/config.h"
#include "launcher/planning/step.h"
#include "tests/expect.h"
#include "tests/launcher/altered.h"
#include "tests/launcher/child.h"

/* --- config.json --------------------------------------------------------------------------- */

typedef struct change {
    const char *model, *from, *to, *part; /* part NULL: taken */
} change;

#define OLMO3_YARN                                                                                 \
    "\"factor\": 4.0, \"original_max_position_embeddings\": 8, \"rope_type\": \"yarn\""
#define OLMO3_ROPE                                                                                 \
    "\"rope_parameters\": {\n    \"full_attention\": {\n      \"factor\": 4.0,\n      "            \
    "\"original_max_position_embeddings\": 8,\n      \"rope_theta\": 100.0,\n      "               \
    "\"rope_type\": \"yarn\"\n    },\n    \"sliding_attention\": {\n      \"rope_theta\": "        \
    "100.0,\n      \"rope_type\": \"default\"\n    }\n  }"

static const change changes[] = {
    {"llama", "\"LlamaForCausalLM\"", "\"LlamaForCausalLMX\"",
     "architecture is \"LlamaForCausalLMX\"; Weft has GPT2LMHeadModel, LlamaForCausalLM"},
    {"llama", "\"silu\"", "\"relu2\"", "hidden_act is \"relu2\""},
    {"llama", "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias is true"},
    {"llama", "\"rope_type\": \"default\"", "\"rope_type\": \"longest\", \"factor\": 8.0",
     "rope_parameters.rope_type is \"longest\""},
    {"llama", "\"rope_theta\": 10000.0", "\"rope_theta\": 10000.0, \"partial_rotary_factor\": 0.5",
     "partial_rotary_factor is 0.5"},
    {"llama", "\"rope_parameters\": {",
     "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}, \"rope_parameters\": {",
     "rope_parameters and rope_scaling differ"},
    {"llama", "\"rope_type\": \"default\"", "\"rope_type\": \"linear\"",
     "rope_parameters lacks factor"},
    {"llama3", "\"low_freq_factor\"", "\"low_freq_factors\"",
     "rope_parameters lacks low_freq_factor"},
    {"qwen3", "\"factor\": 4.0", "\"factor\": 4.0, \"attention_factor\": 1.0",
     "attention_factor is 1; Weft has what factor and mscale say, 1.13863"},
    {"qwen3", "\"factor\": 4.0", "\"factor\": 4.0, \"attention_factor\": 1.1386294361119891", NULL},
    {"qwen3", "\"factor\": 4.0", "\"factor\": 0.5",
     "altered/config.json: rope_parameters.factor: 0.5 is out of range"},
    {"qwen3_moe", "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2",
     "decoder_sparse_step is 2"},
    {"qwen3_moe", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [1]", "mlp_only_layers is [1]"},
    {"qwen3_moe", "\"num_local_experts\"", "\"num_experts\"",
     NULL}, /* as transformers 4 spells it */
    {"llama", "\"rope_parameters\": {", "\"rope_parameters\": {\"full_attention\": {}, ",
     "rope_parameters differs by layer (\"full_attention\")"},
    {"llama", "\"vocab_size\"",
     "\"quantization_config\": {\"quant_method\": \"fp8\"}, \"vocab_size\"",
     "quantised weights (\"fp8\")"},
    {"llama", "\"vocab_size\"", "\"vocab_size\": 53, \"vocab_size\"",
     "\"vocab_size\" stands there twice"},
    {"llama", ",\n  \"vocab_size\": 53", "", "lacks vocab_size"},
    {"llama", "\"vocab_size\": 53", "\"vocab_size\": \"many\"",
     "altered/config.json: vocab_size: expected an integer of 0 to "},
    {"llama", "\"num_attention_heads\": 4", "\"num_attention_heads\": 5",
     "altered/config.json: num_key_value_heads: 5 heads do not divide by 2 query groups"},
    {"llama", "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 7",
     "altered/config.json: rms_norm_eps: 7 is out of range"},
    {"llama", "\"rope_theta\": 10000.0", "\"rope_theta\": 0.5",
     "altered/config.json: rope_theta: 0.5 is out of range"},
    {"mixtral", "\"sliding_window\": null", "\"sliding_window\": 4096", "sliding_window is 4096"},
    {"mistral", "\"sliding_window\": 4", "\"sliding_window\": null", NULL},
    {"mistral", "\"sliding_window\": 4",
     "\"sliding_window\": 4, \"layer_types\": [\"full_attention\", \"chunked_attention\"]",
     "layer_types is \"chunked_attention\""},
    {"olmo3", "\"full_attention\"\n", "\"chunked_attention\"\n",
     "layer_types is \"chunked_attention\""},
    {"olmo3",
     "\"sliding_attention\": {\n      \"rope_theta\": 100.0,\n      \"rope_type\": \"default\"",
     "\"sliding_attention\": {\n      \"rope_theta\": 100.0,\n      \"rope_type\": \"linear\"",
     "rope_parameters.sliding_attention.rope_type is \"linear\""},
    {"olmo3",
     "\"sliding_attention\": {\n      \"rope_theta\": 100.0,\n      \"rope_type\": \"default\"",
     "\"sliding_attention\": {\n      \"rope_theta\": 100.0,\n      \"type\": \"yarn\"",
     "rope_parameters.sliding_attention.rope_type is \"yarn\""},
    {"olmo3", "\"sliding_attention\": {\n      \"rope_theta\": 100.0,",
     "\"sliding_attention\": {\n      \"rope_theta\": null,",
     "rope_theta is 100.0, which is of all layers in transformers 4, and in transformers 5"},
    {"olmo3", OLMO3_ROPE, "\"rope_theta\": 100.0, \"rope_scaling\": {" OLMO3_YARN "}",
     "rope_theta is 100.0, which is of all layers in transformers 4, and in transformers 5"},
    {"olmo3", OLMO3_ROPE, "\"rope_theta\": 5e5, \"rope_scaling\": {" OLMO3_YARN "}", NULL},
    {"olmo3", "\"rope_parameters\"",
     "\"rope_theta\": 100, \"rope_scaling\": {" OLMO3_YARN "}, \"rope_parameters\"", NULL},
    {"olmo3", "\"rope_parameters\"", "\"rope_theta\": 200.0, \"rope_parameters\"",
     "rope_theta is 200.0, and in rope_parameters 100.0"},
    {"olmo3", "\"rope_parameters\": {", "\"rope_parameters\": {\"rope_theta\": 100.0, ",
     "rope_parameters has full_attention and sliding_attention, and nothing else"},
    {"smollm3", "1,\n    0,\n    0\n", "1,\n    0\n", "no_rope_layers: 2 entries for 3 layers"},
    {"smollm3", "1,\n    0,\n    0\n", "1,\n    0,\n    2\n", "no_rope_layers is 2"},
    {"smollm3", "[\n    1,\n    0,\n    0\n  ]", "null", NULL}, /* then the interval says it */
    {"smollm3", "\"use_sliding_window\": false", "\"use_sliding_window\": true",
     "use_sliding_window is true"},
    {"gpt_oss", "\"rope_parameters\"", "\"rope_\"",
     "lacks rope_parameters, and rope_scaling as well"},
    {"gpt_oss", "\"swiglu_limit\": 0.5", "\"swiglu_limit\": 0.0",
     "swiglu_limit is 0.0, not a number above 0"},
    {"gpt_oss", "\"swiglu_alpha\": 1.702", "\"swiglu_alpha\": 1.5", "swiglu_alpha is 1.5"},
    {"gemma3", "\"query_pre_attn_scalar\": 16", "\"query_pre_attn_scalar\": 0",
     "query_pre_attn_scalar is 0, not a number above 0"},
    {"glm4_moe", "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 3",
     "first_k_dense_replace is 3 of 2 layers"},
    {"qwen2", "\"use_sliding_window\": false", "\"use_sliding_window\": true",
     "use_sliding_window is true"},
    {"qwen2", "\"full_attention\"", "\"sliding_attention\"",
     "layer_types is \"sliding_attention\""},
    {"deepseek_v3", "\"topk_group\": 2", "\"topk_group\": 1",
     "topk_group: 1 of 4 groups do not hold 4"},
    {"deepseek_v3", "\"topk_group\": 2", "\"topk_group\": 4",
     "num_experts_per_tok is not 2 topk_group"},
    {"deepseek_v3", "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 3",
     "first_k_dense_replace is 3 of 3 layers"},
    {"deepseek_v3", "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": \"1\"",
     "first_k_dense_replace is \"1\", not a whole number from 0 to 1e+12"},
    {"deepseek_v3", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1e300",
     "num_hidden_layers is 1e300, not a whole number"},
    {"deepseek_v3", "\"n_shared_experts\": 1", "\"n_shared_experts\": 0.5",
     "n_shared_experts is 0.5, not a whole number"},
    {"deepseek_v3", "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": -1e300",
     "num_nextn_predict_layers is -1e300, not a whole number"},
    {"deepseek_v3", "\"norm_topk_prob\"", "\"scoring_func\": \"softmax\", \"norm_topk_prob\"",
     "scoring_func is \"softmax\""},
    {"deepseek_v3", "\"mscale\": 1.0,", "", "mscale_all_dim"},
    {"deepseek_v3", "\"num_key_value_heads\": 4", "\"num_key_value_heads\": 2",
     "num_key_value_heads: 2, and with multi_latent_attention"},
    {"deepseek_v3", "\"n_routed_experts\"", "\"num_local_experts\"", NULL},
    {"gpt2", "\"gelu_new\"", "\"gelu\"", "activation_function is \"gelu\""},
    {"gpt2", "\"gelu_new\"", "\"gelu_pytorch_tanh\"", NULL},
    {"llama",
     "\"rope_parameters\": {\n    \"rope_theta\": 10000.0,\n    \"rope_type\": \"default\"\n  }",
     "\"rope_scaling\": null, \"rope_theta\": 10000.0", NULL}, /* as transformers 4 spells it */
    {"llama", "\"dtype\"", "\"torch_dtype\"", NULL},
    {"llama", "\"vocab_size\": 53\n}", "\"vocab_size\": 53\n} trailing", "text after the end"},
};

static void configs_are_read_or_refused(void)
{
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const change *c = &changes[i];
        model m;
        weft_card card;
        load(&m, c->model);
        say(&m, c->from, c->to);
        if (c->part)
            refused(&m, WEFT_CONFIG, c->part);
        else
            taken(&m, &card);
    }
}

/* In the run's config, and in the config.json that is made where the source's is gone. */
static void scaled_positions_stay_scaled(void)
{
    static const char *const models[][3] = {
        {"llama", "\"rotary_scaling_type\": \"linear\"", "\"rope_type\": \"linear\""},
        {"llama3", "\"rotary_high_freq_factor\": 2.0", "\"high_freq_factor\": 2.0"},
        {"qwen3", "\"rotary_scaling_type\": \"yarn\"", "\"truncate\": true"}};
    for (int i = 0; i < 3; i++) {
        model m;
        weft_card card;
        weft_arena arena = {0};
        load(&m, models[i][0]);
        if (i == 0)
            say(&m,
                "\"rope_parameters\": {\n    \"rope_theta\": 10000.0,\n    \"rope_type\": "
                "\"default\"",
                "\"rope_theta\": 1e4, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 8.0");
        write_folder(&m, "altered");
        EXPECT_OK(import_to("altered", "scaled", &card));
        has_text("scaled/config.json", models[i][1]);
        EXPECT(system("rm -r scaled/source") == 0, "source");
        EXPECT_OK(weft_export_model(&(weft_export){.checkpoint = "scaled", .out = "made"}, &arena,
                                    &card));
        has_text("made/config.json", models[i][2]);
        EXPECT_OK(import_to("made", "again", &card));
        has_text("again/config.json", models[i][1]);
        EXPECT(system("rm -r scaled made again") == 0, "folders");
        weft_arena_release(&arena);
        release(&m);
    }
}

/* As transformers reads a Mistral: the layers' own types, where it has them. */
static void layers_of_mistral_differ(void)
{
    static const char sliding[] = "[\"sliding_attention\", \"full_attention\"]";
    model m;
    weft_card card;
    weft_arena arena = {0};
    load(&m, "mistral");
    say(&m, "\"sliding_window\": 4",
        "\"sliding_window\": 4, \"layer_types\": [\"sliding_attention\", \"full_attention\"]");
    write_folder(&m, "altered");
    EXPECT_OK(import_to("altered", "layers", &card));
    has_text("layers/config.json", "\"window_attn_skip_freq\": [1, 0]");
    EXPECT(system("rm -r layers/source") == 0, "source");
    EXPECT_OK(
        weft_export_model(&(weft_export){.checkpoint = "layers", .out = "made"}, &arena, &card));
    has_text("made/config.json", sliding);
    EXPECT_OK(import_to("made", "again", &card));
    has_text("again/config.json", "\"window_attn_skip_freq\": [1, 0]");
    EXPECT(system("rm -r layers made again") == 0, "folders");
    weft_arena_release(&arena);
    release(&m);
}

/* The text's model in a model of several kinds of input. */
/* A list says it, or every how many layers. */
static void layers_without_positions_are_read(void)
{
    static const char all[] = "[\n    1,\n    0,\n    0\n  ]";
    model m;
    weft_card card;
    load(&m, "smollm3");
    write_folder(&m, "altered");
    EXPECT_OK(import_to("altered", "layers", &card));
    has_text("layers/config.json", "\"no_rope_freq\": [0, 1, 1]");
    say(&m, all, "null");
    say(&m, "\"no_rope_layer_interval\": 4", "\"no_rope_layer_interval\": 3");
    write_folder(&m, "altered");
    EXPECT(system("rm -r layers") == 0, "layers");
    EXPECT_OK(import_to("altered", "layers", &card));
    has_text("layers/config.json", "\"no_rope_freq\": 3");
    EXPECT(system("rm -r layers/source") == 0, "source");
    EXPECT_OK(export_to("layers", "made", NULL, 1 << 20, &card));
    has_text("made/config.json", "\"no_rope_layers\": [1, 1, 0]");
    EXPECT(system("rm -r layers made") == 0, "layers");
    release(&m);
}

/* Also of what stands in an object of rotary positions. */
static void unread_keys_are_listed(void)
{
    model m;
    weft_card card;
    weft_arena arena = {0};
    bool found[2] = {false, false};
    load(&m, "llama3");
    say(&m, "\"low_freq_factor\"", "\"foo\": 1, \"low_freq_factor\"");
    say(&m, "\"vocab_size\"", "\"bar\": 1, \"vocab_size\"");
    write_folder(&m, "altered");
    const weft_import asked = {.folder = "altered"};
    EXPECT_OK(weft_import_model(&asked, &arena, &card));
    for (size_t i = 0; i < card.ignored_keys.count; i++) {
        const char *key = card.ignored_keys.values[i];
        found[0] |= strcmp(key, "rope_parameters.foo") == 0;
        found[1] |= strcmp(key, "bar") == 0;
        EXPECT(strncmp(key, "rope_", 5) != 0 || found[0], "%s is read", key);
    }
    EXPECT(found[0] && found[1], "%zu keys are ignored", card.ignored_keys.count);
    weft_arena_release(&arena);
    release(&m);
}

static void text_config_is_descended_into(void)
{
    model m;
    weft_card card;
    const char *text;
    load(&m, "llama");
    EXPECT_OK(weft_arena_printf(&m.arena, &text,
                                "{\"architectures\": [\"LlamaForCausalLM\"], \"text_config\": %s, "
                                "\"vocab_size\": 1}",
                                m.config));
    m.config = text;
    taken(&m, &card);
}

/* --- tensors ------------------------------------------------------------------------------- */

static void heads_are_tied_by_config(void)
{
    model m;
    weft_card card;
    load(&m, "llama");
    drop(&m, "lm_head.weight");
    refused(&m, WEFT_FILE, "lacks lm_head.weight, which fills output_layer.weight");

    load(&m, "llama_tied"); /* the same head once more */
    add(&m, "lm_head.weight", "model.embed_tokens.weight");
    taken(&m, &card);
    EXPECT(card.copies.count == 1 && strcmp(card.copies.values[0], "lm_head.weight") == 0, "%zu",
           card.copies.count);

    load(&m, "llama_tied"); /* and once more in what is exported, whatever it has become */
    add(&m, "lm_head.weight", "model.embed_tokens.weight");
    write_folder(&m, "altered");
    release(&m);
    EXPECT_OK(import_to("altered", "copied", &card));
    EXPECT_OK(export_to("copied", "copied.out", NULL, 1 << 20, &card));
    EXPECT(system("cmp altered/model.safetensors copied.out/model.safetensors") == 0, "a head");

    load(&m, "llama_tied"); /* another */
    m.data[add(&m, "lm_head.weight", "model.embed_tokens.weight")][5] ^= 1;
    refused(&m, WEFT_FILE, "lm_head.weight differs from model.embed_tokens.weight");
}

static void every_expert_is_there(void)
{
    model m;
    load(&m, "mixtral");
    drop(&m, "model.layers.1.block_sparse_moe.experts.3.w2.weight");
    refused(&m, WEFT_FILE, "lacks model.layers.1.block_sparse_moe.experts.3.w2.weight");
    load(&m, "mixtral");
    add(&m, "model.layers.1.block_sparse_moe.experts.4.w2.weight",
        "model.layers.1.block_sparse_moe.experts.3.w2.weight");
    refused(&m, WEFT_FILE, "experts.4.w2.weight: no parameter of this Mixtral model takes it");
    load(&m, "mixtral"); /* a number is written in one way */
    add(&m, "model.layers.1.block_sparse_moe.experts.03.w2.weight",
        "model.layers.1.block_sparse_moe.experts.3.w2.weight");
    refused(&m, WEFT_FILE, "experts.03.w2.weight: no parameter");
    load(&m, "mixtral_fused"); /* both forms at once */
    const size_t one = add(&m, "model.layers.0.block_sparse_moe.experts.0.w1.weight",
                           "model.layers.0.mlp.experts.gate_up_proj");
    m.tensors[one].num_dims = 2;
    m.tensors[one].dims[0] = 36;
    m.tensors[one].dims[1] = 24;
    m.tensors[one].bytes = 4 * 36 * 24;
    refused(&m, WEFT_FILE, "fill the same part of decoder.layers.0.mlp.experts.linear_fc1.weight");
}

static void names_and_shapes_are_the_tables(void)
{
    model m;
    weft_card card;
    load(&m, "llama");
    drop(&m, "model.layers.1.self_attn.k_proj.weight");
    refused(&m, WEFT_FILE, "lacks model.layers.1.self_attn.k_proj.weight, which fills");
    load(&m, "llama");
    add(&m, "model.layers.2.self_attn.k_proj.weight", "model.layers.1.self_attn.k_proj.weight");
    refused(&m, WEFT_FILE, "model.layers.2.self_attn.k_proj.weight: no parameter of this Llama");
    load(&m, "llama");
    add(&m, "model.layers.1.self_attn.q_proj.bias", "model.norm.weight");
    refused(&m, WEFT_FILE, "model.layers.1.self_attn.q_proj.bias: no parameter");
    load(&m, "llama");
    const size_t down = find(&m, "model.layers.0.mlp.down_proj.weight");
    m.tensors[down].dims[0] = 36;
    m.tensors[down].dims[1] = 24;
    refused(&m, WEFT_FILE, "down_proj.weight has shape [36, 24], the model wants [24, 36]");
    load(&m, "llama"); /* rows that another program padded the vocabulary with */
    say(&m, "\"vocab_size\": 53", "\"vocab_size\": 52");
    refused(&m, WEFT_FILE, "has shape [53, 24], the model wants [52, 24]");
    load(&m, "llama");
    const size_t norm = find(&m, "model.norm.weight");
    m.tensors[norm].dtype_text = "F8_E4M3";
    m.tensors[norm].bytes = 24;
    refused(&m, WEFT_FILE, "model.norm.weight has dtype F8_E4M3; Weft reads F32, BF16, F16 and");
    load(&m, "llama");
    memset(m.data[find(&m, "model.norm.weight")], 0xff, 4);
    write_folder(&m, "altered");
    EXPECT_ERROR(import_to("altered", NULL, &card), WEFT_DIVERGED,
                 "altered: model.norm.weight: element 0 is ");
    refused(&m, WEFT_DIVERGED, "altered: model.norm.weight: element 0 is ");
    load(&m, "llama"); /* buffers that old files have */
    add(&m, "model.layers.0.self_attn.rotary_emb.inv_freq", "model.norm.weight");
    taken(&m, &card);
    EXPECT(card.ignored_tensors.count == 1 && card.num_tensors == 21, "%zu, %zu",
           card.ignored_tensors.count, card.num_tensors);
}

/* Layers for multi-token prediction stand behind the last one: as many as config.json says. */
static void next_layers_are_left_out(void)
{
    static const char norm[] = "model.layers.3.enorm.weight";
    model m;
    weft_card card;
    load(&m, "deepseek_v3");
    add(&m, norm, "model.norm.weight");
    refused(&m, WEFT_FILE, "model.layers.3.enorm.weight: no parameter of this DeepSeek-V3 model");
    load(&m, "deepseek_v3");
    say(&m, "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1");
    add(&m, norm, "model.norm.weight");
    write_folder(&m, "altered");
    EXPECT_OK(import_to("altered", "run", &card));
    EXPECT(card.ignored_tensors.count == 1 && strcmp(card.ignored_tensors.values[0], norm) == 0,
           "%zu", card.ignored_tensors.count);
    EXPECT_OK(weft_export_model(&(weft_export){.checkpoint = "run"}, &m.arena, &card));
    EXPECT(card.num_tensors == m.count - 1, "%zu", card.num_tensors);
    EXPECT(system("grep mtp_num_layers run/config.json") != 0, "run/config.json has layers that "
                                                               "the checkpoint has not");
    EXPECT(system("rm -r run") == 0, "run");
    release(&m);
    load(&m, "glm4_moe");
    say(&m, "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1");
    add(&m, "model.layers.2.enorm.weight", "model.norm.weight");
    taken(&m, &card);
    EXPECT(card.ignored_tensors.count == 1, "%zu", card.ignored_tensors.count);
}

static void add_matrix(model *m, const char *name, size_t rows, size_t cols)
{
    const size_t at = add(m, name, "model.norm.weight");
    weft_safetensor *t = &m->tensors[at];
    const size_t elements = rows * cols;
    t->num_dims = 2;
    t->dims[0] = rows;
    t->dims[1] = cols;
    t->bytes = elements * sizeof(float);
    float *values = calloc(elements, sizeof *values);
    for (size_t i = 0; i < elements; i++)
        values[i] = 0.01f * (float)i - 3;
    free(m->data[at]);
    m->data[at] = (char *)values;
}

/* "model.layers.LAYER.REST". */
static const char *of_layer(model *m, int layer, const char *rest)
{
    const char *name = "";
    EXPECT_OK(weft_arena_printf(&m->arena, &name, "model.layers.%d.%s", layer, rest));
    return name;
}

/* The model's last block again as layer `next` behind it, and what such a layer has beside. */
static void add_next_layer(model *m, int next)
{
    const char *last = of_layer(m, next - 1, "");
    const size_t count = m->count;
    for (size_t i = 0; i < count; i++)
        if (strncmp(m->tensors[i].name, last, strlen(last)) == 0)
            add(m, of_layer(m, next, m->tensors[i].name + strlen(last)), m->tensors[i].name);
    add(m, of_layer(m, next, "enorm.weight"), "model.norm.weight");
    add(m, of_layer(m, next, "hnorm.weight"), "model.norm.weight");
    add(m, of_layer(m, next, "shared_head.norm.weight"), "model.norm.weight");
    add(m, of_layer(m, next, "embed_tokens.weight"), "model.embed_tokens.weight");
    add(m, of_layer(m, next, "shared_head.head.weight"), "lm_head.weight");
    add_matrix(m, of_layer(m, next, "eh_proj.weight"), 24, 48);
}

static void load_next(model *m, const char *name, int next)
{
    load(m, name);
    say(m, "\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1");
    add_next_layer(m, next);
}

static void same_tensors(model *m, const char *folder)
{
    weft_safetensors files;
    EXPECT_OK(weft_safetensors_open(folder, &m->arena, &files));
    EXPECT(files.num_tensors == m->count, "%zu tensors, not %zu", files.num_tensors, m->count);
    for (size_t i = 0; i < files.num_tensors; i++) {
        const weft_safetensor *t = &files.tensors[i];
        const size_t of = find(m, t->name);
        char *data = calloc(1, t->bytes + 1);
        EXPECT_OK(weft_file_read(&files.files[t->file], t->offset, data, t->bytes));
        EXPECT(t->bytes == m->tensors[of].bytes && memcmp(data, m->data[of], t->bytes) == 0, "%s",
               t->name);
        free(data);
    }
    weft_safetensors_release(&files);
}

/* Where they are there they are the model's, and come out again: all of them, or without the
 * source's names all but the copies. */
static void next_layers_are_taken(const char *name, int next)
{
    model m;
    weft_card card;
    load_next(&m, name, next);
    write_folder(&m, "altered");
    EXPECT_OK(import_to("altered", "run", &card));
    EXPECT(card.ignored_tensors.count == 0 && card.copies.count == 2, "%s: %zu, %zu", name,
           card.ignored_tensors.count, card.copies.count);
    EXPECT_OK(export_to("run", "out", NULL, 0, &card));
    same_tensors(&m, "out");
    EXPECT(system("rm -r run/source out") == 0, "source");
    EXPECT_OK(export_to("run", "out", NULL, 0, &card));
    has_text("out/config.json", "\"num_nextn_predict_layers\": 1");
    drop(&m, of_layer(&m, next, "embed_tokens.weight"));
    drop(&m, of_layer(&m, next, "shared_head.head.weight"));
    same_tensors(&m, "out");
    EXPECT(system("rm -r run out") == 0, "run");
    drop(&m, of_layer(&m, next, "hnorm.weight"));
    char lacks[128];
    snprintf(lacks, sizeof lacks,
             "lacks model.layers.%d.hnorm.weight, which fills mtp.layers.0.hnorm.weight", next);
    refused(&m, WEFT_FILE, lacks);
    load_next(&m, name, next);
    const char *copy = of_layer(&m, next, "embed_tokens.weight");
    m.data[find(&m, copy)][0] ^= 1;
    refused(&m, WEFT_FILE, "embed_tokens.weight differs from");
}

/* Keys that latents leave no room for. */
static void latents_refuse_what_they_replace(void)
{
    static const char *const cases[][2] = {
        {"\"kv_channels\": 8", "model.kv_channels: 8, and with multi_latent_attention a head has "
                               "qk_head_dim + qk_pos_emb_head_dim 192: leave it out"},
        {"\"num_query_groups\": 2",
         "model.num_query_groups: 2, and with multi_latent_attention each "
         "head has keys of its own: leave it out"},
        {"\"qk_layernorm\": true", "model.qk_layernorm: multi_latent_attention norms its latents"},
        {"\"add_qkv_bias\": true", "model.add_qkv_bias: multi_latent_attention has no QKV"},
        {"\"qk_pos_emb_head_dim\": 5", "model.qk_pos_emb_head_dim: rotary positions need an even"},
        {"\"rotary_percent\": 0.01", "model.rotary_percent: 0.01 of a head dimension of 64 is 0"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_arena arena = {0};
        weft_config config;
        weft_config_source source = {.no_data = true, .file = "c.json"};
        EXPECT_OK(weft_arena_printf(&arena, &source.text,
                                    "{\"model\": {\"multi_latent_attention\": true, "
                                    "\"position_embedding_type\": \"rope\", %s}}",
                                    cases[i][0]));
        EXPECT_ERROR(weft_config_load(&source, &arena, &config), WEFT_CONFIG, cases[i][1]);
        weft_arena_release(&arena);
    }
}

/* What config.json says comes back where the source's is gone. */
static void models_come_back(void)
{
    static const char *const names[][4] = {
        {"deepseek_v3", "\"first_k_dense_replace\": 1", "\"n_shared_experts\": 1",
         "\"mscale_all_dim\": 0.7"},
        {"moonlight", "\"q_lora_rank\": null", "\"n_shared_experts\": 2",
         "\"rope_interleave\": false"},
        {"glm4_moe", "\"first_k_dense_replace\": 1", "\"n_shared_experts\": 1",
         "\"partial_rotary_factor\": 0.5"},
        {"gemma3", "\"query_pre_attn_scalar\": 16", "\"sliding_window\": 4",
         "\"rope_local_base_freq\": 100.0"},
        {"gpt_oss", "\"swiglu_limit\": 0.5", "\"sliding_window\": 4", "\"full_attention\""},
        {"smollm3", "\"no_rope_layers\": [1, 0, 0]", "\"tie_word_embeddings\": true",
         "\"rope_theta\": 100.0"},
        {"olmo3", "\"sliding_window\": 3", "\"sliding_attention\"", "\"full_attention\""}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        model m;
        weft_arena arena = {0};
        weft_card before, after;
        load(&m, names[i][0]);
        write_folder(&m, "altered");
        EXPECT_OK(import_to("altered", "run", &before));
        EXPECT_OK(weft_import_model(&(weft_import){.folder = "altered"}, &arena, &before));
        EXPECT(system("rm -r run/source") == 0, "source");
        EXPECT_OK(
            weft_export_model(&(weft_export){.checkpoint = "run", .out = "made"}, &arena, &after));
        for (int part = 1; part < 4; part++)
            has_text("made/config.json", names[i][part]);
        EXPECT_OK(weft_import_model(&(weft_import){.folder = "made"}, &arena, &after));
        EXPECT(before.num_tensors == after.num_tensors, "%zu tensors", after.num_tensors);
        for (size_t t = 0; t < after.num_tensors && t < before.num_tensors; t++)
            EXPECT(before.hashes[t] == after.hashes[t], "%s", after.tensors[t].name);
        EXPECT(system("rm -r run made") == 0, "folders");
        weft_arena_release(&arena);
        release(&m);
    }
}

/* Old files of GPT-2 have no "transformer.", and masks. */
static void old_names_are_read(void)
{
    model m;
    weft_card card, again;
    load(&m, "gpt2");
    for (size_t i = 0; i < m.count; i++)
        m.tensors[i].name += strlen("transformer.");
    add(&m, "h.0.attn.bias", "ln_f.weight");
    write_folder(&m, "altered");
    EXPECT_OK(import_to("altered", "run", &card));
    EXPECT(card.ignored_tensors.count == 1, "%zu", card.ignored_tensors.count);
    EXPECT_OK(weft_export_model(&(weft_export){.checkpoint = "run"}, &m.arena, &again));
    EXPECT(again.num_tensors == card.num_tensors, "%zu", again.num_tensors);
    for (size_t i = 0; i < again.num_tensors; i++)
        EXPECT(strcmp(again.tensors[i].name, card.tensors[i].name) == 0, "%s",
               again.tensors[i].name);
    EXPECT(system("rm -r run") == 0, "run");
    add(&m, "transformer.ln_f.weight", "ln_f.weight");
    refused(&m, WEFT_FILE, "fill the same part of decoder.final_layernorm.weight");
}

/* --- files --------------------------------------------------------------------------------- */

static void copy_model(const char *name, const char *to)
{
    char command[800];
    snprintf(command, sizeof command,
             "rm -rf %s; cp -r %s/tests/oracle/models/%s %s; chmod -R u+w %s", to,
             getenv("WEFT_SOURCE_DIR"), name, to, to);
    EXPECT(system(command) == 0, "%s", command);
}

static void edit(const char *path, const char *from, const char *to)
{
    char *text = child_read(path), *at = text ? strstr(text, from) : NULL, *out;
    EXPECT(at != NULL, "%s has no %s", path, from);
    out = calloc(1, strlen(text) + strlen(to) + 1);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    EXPECT(child_write(path, out), "%s", path);
    free(out);
}

static void index_refused(const char *from, const char *to, const char *part)
{
    weft_card card;
    copy_model("llama_bf16", "shards");
    edit("shards/model.safetensors.index.json", from, to);
    EXPECT_ERROR(import_to("shards", "run", &card), WEFT_FILE, part);
}

#define OF "-of-00005.safetensors"
static void indices_agree_with_files(void)
{
    weft_card card;
    index_refused("\"weight_map\": {", "\"weight_map\": {\n    \"ghost\": \"model-00001" OF "\",",
                  "ghost: model-00001" OF " does not hold it");
    index_refused("\"weight_map\": {", "\"weight_map\": {\n    \"ghost\": \"model-00006" OF "\",",
                  "model-00006" OF ": No such file");
    index_refused("\"weight_map\": {", "\"weight_map\": {\n    \"ghost\": \"../config.json\",",
                  "\"../config.json\" is no file of this folder");
    index_refused("\"model.norm.weight\": \"model-0000", "\"model.norm.other\": \"model-0000",
                  "model.norm.other: model-0000");
    index_refused("\"lm_head.weight\": \"model-00005", "\"lm_head.weight\": \"model-00001",
                  "lm_head.weight: model-00001" OF " does not hold it");
    index_refused("\"model.norm.weight\": \"model-00004", "\"model.norm.weight\": \"model-00001",
                  "model.norm.weight is in model-00004" OF ", not in model-00001" OF);
    index_refused("\"weight_map\": {", "\"weight_map\": {\n    \"model.norm.weight\": \"a\",",
                  "model.norm.weight stands there twice");
    index_refused("\"total_size\": 22608", "\"total_size\": 22606", "total_size is 22606");
    index_refused("\"total_size\": 22608", "\"total_size\": -1e300",
                  "total_size is -1e300, not a number of bytes");
    index_refused("\"weight_map\"", "\"weights\"", "has no weight_map");
    copy_model("llama_bf16", "shards"); /* one file fewer than it says */
    EXPECT(unlink("shards/model-00003" OF) == 0, "unlink");
    EXPECT_ERROR(import_to("shards", "run", &card), WEFT_FILE, "model-00003" OF);
    copy_model("llama_bf16", "shards"); /* cut */
    EXPECT(truncate("shards/model-00002" OF, 3000) == 0, "truncate");
    EXPECT_ERROR(import_to("shards", "run", &card), WEFT_FILE, "do not lie in the file's");
    copy_model("llama_bf16", "shards");
    EXPECT(child_write("shards/model.safetensors", "x"), "write");
    EXPECT_ERROR(import_to("shards", "run", &card), WEFT_FILE, "has both");
}

/* --- the way back -------------------------------------------------------------------------- */

/* A tensor as large as a file stands alone in one; none is lost where one file ends. */
static void files_are_split_by_size(void)
{
    weft_card whole, parts, again;
    copy_model("llama", "source");
    EXPECT_OK(import_to("source", "split", &whole));
    for (uint64_t most = 1; most <= 1 << 16; most *= 4) {
        EXPECT_OK(export_to("split", "out", "fp32", most, &parts));
        EXPECT(parts.num_tensors == whole.num_tensors && parts.bytes == whole.bytes &&
                   (most > 1 || parts.num_files == (int)parts.num_tensors),
               "%zu tensors in %d files", parts.num_tensors, parts.num_files);
        EXPECT_OK(import_to("out", NULL, &again));
        EXPECT(again.num_tensors == parts.num_tensors && again.num_files == parts.num_files, "%d",
               again.num_files);
        for (size_t i = 0; i < again.num_tensors; i++)
            EXPECT(again.hashes[i] == parts.hashes[i], "%s", again.tensors[i].name);
        EXPECT(system("rm -r out") == 0, "out");
    }
}

/* Many are rounded as each alone is, among them infinities and NaNs. */
static void many_are_rounded_alike(void)
{
    enum { COUNT = 3 * 4096 + 5, ALL_FINITE = 4096 };
    float *values = malloc(COUNT * sizeof *values);
    uint16_t *out = malloc(COUNT * sizeof *out), one;
    EXPECT(values && out, "no memory");
    for (uint32_t i = 0; values && out && i < COUNT; i++) {
        uint32_t bits = i * 2654435761u;
        if (i < ALL_FINITE && (bits & 0x7f800000u) == 0x7f800000u)
            bits ^= 0x00800000u;
        memcpy(&values[i], &bits, sizeof bits);
    }
    weft_half_round(values, COUNT, WEFT_BF16, out);
    for (size_t i = 0; i < COUNT; i++) {
        weft_half_round(values + i, 1, WEFT_BF16, &one);
        EXPECT(out[i] == one, "%zu: %04x, not %04x", i, out[i], one);
    }
    free(values);
    free(out);
}

static void numbers_fit_their_dtype(void)
{
    const float values[] = {1.0f, 65504.0f, 1e-7f, 3e38f, -0.0f, 0x1.006p0f, 0x1.01p0f, NAN};
    const uint16_t bf16[] = {0x3f80, 0x4780, 0x33d7, 0x7f62, 0x8000, 0x3f80, 0x3f80, 0x7fc0},
                   fp16[] = {0x3c00, 0x7bff, 0x0002, 0x7c00, 0x8000, 0x3c02, 0x3c04, 0x7e00};
    uint16_t out[8];
    float back[1], wide[1];
    weft_half_round(values, 8, WEFT_BF16, out);
    EXPECT(memcmp(out, bf16, sizeof out) == 0, "bf16");
    weft_half_round(values, 8, WEFT_F16, out);
    EXPECT(memcmp(out, fp16, sizeof out) == 0, "fp16: %x %x %x", out[2], out[5], out[6]);
    for (unsigned bits = 0; bits < 1 << 16; bits++) {
        const uint16_t half = (uint16_t)bits;
        const bool is_nan = (bits & 0x7fff) > 0x7c00;
        weft_half_widen(&half, WEFT_F16, 1, wide);
        weft_half_round(wide, 1, WEFT_F16, out);
        EXPECT(is_nan ? isnan(wide[0]) : out[0] == half, "fp16 %04x: %04x", bits, out[0]);
        weft_half_widen(&half, WEFT_BF16, 1, back);
        weft_half_round(back, 1, WEFT_BF16, out);
        EXPECT(isnan(back[0]) || out[0] == half, "bf16 %04x: %04x", bits, out[0]);
    }
    model m;
    weft_card card;
    load(&m, "llama");
    const float large = 70000;
    memcpy(m.data[find(&m, "model.norm.weight")], &large, sizeof large);
    write_folder(&m, "altered");
    release(&m);
    EXPECT_OK(import_to("altered", "large", &card));
    EXPECT_ERROR(export_to("large", "out", "fp16", 1 << 20, &card), WEFT_CONFIG,
                 "model.norm.weight: holds 70000, beyond fp16's range");
    EXPECT(access("out", F_OK) != 0 && access(".out.weft-part", F_OK) != 0, "half an export");
    EXPECT_OK(export_to("large", "out", "bf16", 1 << 20, &card));
}

/* What no family's config.json would say of the model is named, and not left out. */
static void a_model_of_no_family_is_refused(void)
{
    weft_arena arena = {0};
    weft_config config;
    weft_config_json json;
    const weft_family *family;
    char path[600];
    snprintf(path, sizeof path, "%s/tests/oracle/models/mixtral/config.json",
             getenv("WEFT_SOURCE_DIR"));
    EXPECT_OK(weft_config_json_read(path, NULL, &arena, &json));
    EXPECT_OK(weft_config_json_load(&json, &arena, &config));
    config.model.moe_expert_capacity_factor = 2; /* not of the function */
    EXPECT_OK(weft_family_find(&config, "step-1", &arena, &family));
    EXPECT(strcmp(family->name, "Mixtral") == 0, "%s", family->name);
    config.model.moe_router_topk_scaling_factor = 2.5;
    EXPECT_ERROR(weft_family_find(&config, "step-1", &arena, &family), WEFT_CONFIG,
                 "step-1: its files would not be model.family mixtral's: "
                 "model.moe_router_topk_scaling_factor is 2.5, and they would have 1");
    config.model.family = NULL;
    EXPECT_ERROR(weft_family_find(&config, "step-1", &arena, &family), WEFT_CONFIG,
                 "step-1: its model is of no family that has files at Hugging Face's: "
                 "model.moe_router_topk_scaling_factor is 2.5, and the nearest, Mixtral, has 1");
    weft_config latents = config; /* as DeepSeek-V3's alone, whatever else differs */
    latents.model.multi_latent_attention = true;
    latents.model.num_query_groups = latents.model.num_attention_heads;
    latents.model.moe_router_topk_scaling_factor = 1;
    EXPECT_ERROR(weft_family_find(&latents, "step-1", &arena, &family), WEFT_CONFIG,
                 "step-1: its model is of no family that has files at Hugging Face's, and the "
                 "nearest cannot have it: DeepSeek-V3: no expert is shared");
    latents.model.moe_shared_expert_intermediate_size = latents.model.moe_ffn_hidden_size;
    EXPECT_ERROR(weft_family_find(&latents, "step-1", &arena, &family), WEFT_CONFIG,
                 " and the nearest, DeepSeek-V3, has ");
    latents.model.num_experts = 0;
    EXPECT_ERROR(weft_family_find(&latents, "step-1", &arena, &family), WEFT_CONFIG,
                 "the nearest cannot have it: DeepSeek-V3: first_k_dense_replace is 2 of 2 layers");
    config.model.num_experts = 0; /* then that has no effect */
    EXPECT_OK(weft_family_find(&config, "step-1", &arena, &family));
    EXPECT(strcmp(family->name, "Llama") == 0, "%s", family->name);
    weft_arena_release(&arena);
}

/* --- model.family ---------------------------------------------------------------------------- */

static size_t list_parameters(const weft_config *config, weft_model_function build,
                              weft_arena *arena, weft_listed_parameter **out)
{
    const weft_moe_options moe = {.pipeline = {.num_partitions = 1}};
    const weft_model_setup setup = weft_step_setup(config, &moe);
    size_t count = 0;
    *out = NULL;
    EXPECT_OK(weft_model_list_parameters(&setup, build, arena, out, &count));
    return count;
}

/* Its own function makes the layers and parameters that the keys alone describe. */
static void check_family(const char *path, weft_config *config, weft_arena *arena)
{
    weft_other_layer other = {0};
    weft_listed_parameter *own, *described;
    const weft_model_function build = weft_config_build(config);
    EXPECT(config->model.family && build && build != weft_model_build_gpt, "%s", path);
    if (!build)
        return;
    EXPECT_OK(weft_model_find_other(&config->model, NULL, build, &other));
    EXPECT(other.index == -1, "%s: another layer %d", path, other.index);
    const size_t count = list_parameters(config, build, arena, &own);
    EXPECT(count == list_parameters(config, weft_model_build_gpt, arena, &described) && count > 5,
           "%s: %zu parameters", path, count);
    for (size_t i = 0; i < count; i++)
        EXPECT(memcmp(&own[i], &described[i], sizeof *own) == 0, "%s: %s is not %s", path,
               own[i].name, described[i].name);
}

/* Also where a config says by other means what config.json says. */
static void examples_are_of_their_families(void)
{
    static const char *const examples[][2] = {{"llama-1b", "Llama"},
                                              {"gpt2-124m", "GPT-2"},
                                              {"mixtral-8x7b", "Mixtral"},
                                              {"olmo3-7b", "OLMo-3"},
                                              {"gemma3-27b", "Gemma 3"},
                                              {"gpt-oss-20b", "GPT-OSS"},
                                              {"deepseek_v3", "DeepSeek-V3"},
                                              {"qwen3-8b", "Qwen3"},
                                              {"qwen3-30b-a3b", "Qwen3-MoE"},
                                              {"qwen3-235b-a22b", "Qwen3-MoE"},
                                              {"glm4.5-355b-a32b", "GLM-4.5"},
                                              {"glm4.5-air-106b-a12b", "GLM-4.5"},
                                              {"minimax-m2", "MiniMax-M2"},
                                              {"gpt-oss-120b", "GPT-OSS"},
                                              {"olmo2-32b", "OLMo-2"},
                                              {"kimi-k2", "DeepSeek-V3"},
                                              {"moonlight-16b-a3b", "DeepSeek-V3"}};
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        weft_arena arena = {0};
        weft_config config;
        weft_config_source source = {.no_data = true};
        const weft_family *family;
        EXPECT_OK(weft_arena_printf(&arena, &source.file, "%s/examples/%s.json",
                                    getenv("WEFT_SOURCE_DIR"), examples[i][0]));
        EXPECT_OK(weft_config_load(&source, &arena, &config));
        EXPECT_OK(weft_family_find(&config, "step-1", &arena, &family));
        EXPECT(strcmp(family->name, examples[i][1]) == 0, "%s: %s", examples[i][0], family->name);
        check_family(source.file, &config, &arena);
        config.model.softmax_scale = 0; /* as of a config that does not say it */
        EXPECT_OK(weft_family_find(&config, "step-1", &arena, &family));
        weft_arena_release(&arena);
    }
}

static void families_make_what_keys_describe(void)
{
    static const char *const models[] = {
        "gpt2",        "llama3",     "mistral", "smollm3",   "qwen2",   "qwen3",
        "qwen3_moe",   "mixtral",    "olmo2",   "olmo3",     "gemma2",  "gemma3",
        "deepseek_v3", "minimax_m2", "gpt_oss", "moonlight", "glm4_moe"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        weft_arena arena = {0};
        weft_config config;
        weft_config_json json;
        char path[600];
        snprintf(path, sizeof path, "%s/tests/oracle/models/%s/config.json",
                 getenv("WEFT_SOURCE_DIR"), models[i]);
        EXPECT_OK(weft_config_json_read(path, NULL, &arena, &json));
        EXPECT_OK(weft_config_json_load(&json, &arena, &config));
        check_family(path, &config, &arena);
        weft_arena_release(&arena);
    }
}

static weft_status load_model(const char *keys, weft_arena *arena, weft_config *out)
{
    weft_config_source source = {.file = "c.json", .no_data = true};
    WEFT_TRY(weft_arena_printf(arena, &source.text, "{\"model\": {%s}}", keys));
    return weft_config_load(&source, arena, out);
}

static void families_fill_and_bind_a_config(void)
{
    static const struct {
        const char *keys, *part;
    } wrong[] = {
        {"\"family\": \"qwen4\"",
         "c.json:1:12: model.family: no family qwen4 is known; did you mean qwen2?"},
        {"\"family\": \"phi\"", "no family phi is known here: a program's own is known to that "
                                "program, and these to all: gpt2, llama, "},
        {"\"family\": \"qwen3\", \"swiglu\": false",
         "c.json:1:31: model.swiglu: false, and every model of model.family qwen3 has true"},
        {"\"family\": \"olmo2\", \"norm_placement\": \"before\"",
         "model.norm_placement: \"before\", and every model of model.family olmo2 has \"after\""},
        {"\"family\": \"qwen3\", \"num_experts\": 8",
         "c.json:1:31: model.num_experts: 8 describes another layer 1 than model.family qwen3 has; "
         "family null would leave all layers to the keys"},
        {"\"family\": \"deepseek_v3\"",
         "c.json: model.num_experts: 0, and every model of model.family deepseek_v3 has experts: "
         "set how many a layer has"},
        {"\"family\": \"mixtral\", \"num_experts\": 0",
         "c.json:1:33: model.num_experts: 0, and every model of model.family mixtral has experts"},
        {"\"family\": \"mixtral\", \"num_experts\": 8, \"moe_layer_freq\": 2",
         "c.json:1:51: model.moe_layer_freq: 2 describes another layer 2 than"},
        {"\"family\": \"qwen3\", \"mtp_num_layers\": 1",
         "model.mtp_num_layers: 1 describes another layer 13 than"},
        {"\"family\": \"llama\", \"no_rope_freq\": 4",
         "model.no_rope_freq: 4 describes another layer 4 than"},
        {"\"family\": \"qwen3\", \"window_size\": 8, \"window_attn_skip_freq\": 2",
         "model.window_attn_skip_freq: 2 describes another layer 2 than"},
        {"\"family\": \"qwen3\", \"window_size\": 8, \"rotary_base_local\": 100",
         "model.rotary_base_local: 100 describes another layer 1 than"},
    };
    weft_arena arena = {0};
    weft_config config;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT_ERROR(load_model(wrong[i].keys, &arena, &config), WEFT_CONFIG, wrong[i].part);
    EXPECT_OK(load_model("\"family\": \"qwen3\", \"qk_layernorm\": true", &arena, &config));
    EXPECT(config.model.swiglu && config.model.qk_layernorm && config.model.disable_bias_linear &&
               config.model.position_embedding_type == WEFT_POSITION_ROPE &&
               config.model.normalization == WEFT_RMSNORM,
           "what Qwen3 always has is not filled in");
    weft_arena_release(&arena);
}

/* transformers goes by model_type, Weft by the architecture. */
static void two_families_are_refused(void)
{
    weft_card card;
    copy_model("llama_bf16", "two");
    edit("two/config.json", "\"model_type\": \"llama\"", "\"model_type\": \"qwen3\"");
    EXPECT_ERROR(import_to("two", "run", &card), WEFT_CONFIG,
                 "two/config.json: the architecture is LlamaForCausalLM, but model_type is "
                 "Qwen3ForCausalLM's");
}

/* A bias that only chooses is a buffer in transformers. */
static void an_index_counts_parameters(void)
{
    static const char *const names[] = {"model.safetensors"};
    const weft_safetensor tensors[] = {
        {.name = "model.norm.weight", .num_dims = 1, .dims = {8}, .bytes = 32},
        {.name = "model.layers.0.mlp.gate.e_score_correction_bias",
         .num_dims = 1,
         .dims = {4},
         .bytes = 16}};
    FILE *out = fopen("index.json", "w");
    EXPECT_OK(weft_safetensors_write_index(tensors, 2, names, out));
    fclose(out);
    char *text = child_read("index.json");
    EXPECT(text && strstr(text, "\"total_parameters\": 8,") && strstr(text, "\"total_size\": 48"),
           "%s", text);
}

/* Found while tensors are written: nothing of them stays. */
static void a_damaged_checkpoint_is_refused(void)
{
    static const char path[] = "hurt/checkpoints/step-0/model.h5";
    weft_card card;
    copy_model("llama", "source");
    EXPECT_OK(import_to("source", "hurt", &card));
    FILE *file = fopen(path, "r+b");
    EXPECT(file && fseek(file, -20000, SEEK_END) == 0, "%s", path);
    const int byte = fgetc(file);
    fseek(file, -1, SEEK_CUR);
    fputc(byte ^ 1, file);
    fclose(file);
    EXPECT_ERROR(export_to("hurt", "hurt.out", NULL, 1 << 20, &card), WEFT_FILE,
                 "damaged: the hash differs");
    EXPECT(access("hurt.out", F_OK) != 0 && access(".hurt.out.weft-part", F_OK) != 0,
           "half an export");
}

static void a_config_that_is_not_the_models_is_refused(void)
{
    weft_card card;
    copy_model("llama", "source");
    EXPECT_OK(import_to("source", "other", &card));
    edit("other/source/config.json", "\"rope_theta\": 10000.0", "\"rope_theta\": 20000.0");
    EXPECT_ERROR(export_to("other", "out2", NULL, 1 << 20, &card), WEFT_CONFIG,
                 "the checkpoint has model.rotary_base 10000, and other/source/config.json says "
                 "20000");
    EXPECT_ERROR(import_to("source", "other", &card), WEFT_CONFIG, "other: is there already");
    EXPECT_ERROR(import_to("source", "other/config.json/run", &card), WEFT_FILE,
                 "other/config.json/run: cannot make the folder: Not a directory");
}

int main(void)
{
    child_begin();
    configs_are_read_or_refused();
    scaled_positions_stay_scaled();
    layers_of_mistral_differ();
    layers_without_positions_are_read();
    unread_keys_are_listed();
    text_config_is_descended_into();
    heads_are_tied_by_config();
    every_expert_is_there();
    names_and_shapes_are_the_tables();
    old_names_are_read();
    next_layers_are_left_out();
    next_layers_are_taken("deepseek_v3", 3);
    next_layers_are_taken("glm4_moe", 2);
    latents_refuse_what_they_replace();
    models_come_back();
    indices_agree_with_files();
    files_are_split_by_size();
    numbers_fit_their_dtype();
    many_are_rounded_alike();
    a_model_of_no_family_is_refused();
    two_families_are_refused();
    an_index_counts_parameters();
    examples_are_of_their_families();
    families_make_what_keys_describe();
    families_fill_and_bind_a_config();
    a_damaged_checkpoint_is_refused();
    a_config_that_is_not_the_models_is_refused();
    return child_finish();
}
