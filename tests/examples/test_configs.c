/* Every config under examples/: accepted as it stands, with as many parameters as the model whose
 * shape it has, a mesh of the size its comment names, priced where it is of many ranks, and trained
 * for two steps at a small size. */
#include <dirent.h>
#include <math.h>

#include "launcher/planning/config.h"
#include "layers/describe/rehearse.h"
#include "layers/describe/describe.h"
#include "layers/model/model.h"
#include "tests/examples/run.h"

/* Parameters: of models with these shapes the elements of all tensors in their files at Hugging
 * Face's, without layers for multi-token prediction and scales of blocks, and `billions` what their
 * authors call them (the model's card or report), which differ by their rounding; else counted by
 * hand:
 *   llama-small: 257*192 + 6*(192*(192+2*64) + 192*192 + 3*192*512 + 2*192) + 192 + 257*192
 *   mixtral-small: 257*192 + 4*(192*(192+2*64) + 192*192 + 8*192 + 8*3*192*384 + 2*192) + 192
 *                  + 257*192
 *   moe-small: 50304*512 + 256*512 + 4*(1536*513 + 512*513 + 8*512 + 8*2*512*2048 + 4*512) + 2*512
 *   demo: 257*128 + 4*(4*128*128 + 8*128 + 8*3*128*256 + 2*128) + 128 */
static const struct {
    const char *name;
    uint64_t vocab, params;
    double billions;
    int world;
    const char *small; /* what training at a small size sets beside the rest */
} wanted[] = {
    {"deepseek_v3.json", 129280, 671026419200, 671, 1024,
     "--set num_attention_heads=4 --set num_experts=16 --set moe_ffn_hidden_size=32 --set "
     "moe_shared_expert_intermediate_size=32 --set moe_layer_freq=[0,1] --set q_lora_rank=48 --set "
     "kv_lora_rank=32 "
     "--set qk_head_dim=32 --set qk_pos_emb_head_dim=16 --set v_head_dim=24 "},
    {"demo.json", 257, 3446016, 0, 4, ""},
    {"gemma3-27b.json", 262208, 27009346304, 27, 64, ""},
    {"glm4.5-355b-a32b.json", 151552, 352797829024, 355, 512,
     "--set num_experts=16 --set moe_ffn_hidden_size=32 --set "
     "moe_shared_expert_intermediate_size=32 --set moe_layer_freq=[0,1] "},
    {"glm4.5-air-106b-a12b.json", 151552, 106852251264, 106, 128,
     "--set num_experts=16 --set moe_ffn_hidden_size=32 --set "
     "moe_shared_expert_intermediate_size=32 --set moe_layer_freq=[0,1] "},
    {"gpt-oss-120b.json", 201088, 116829156672, 116.8, 128, "--set num_experts=16 "},
    {"gpt-oss-20b.json", 201088, 20914757184, 20.9, 32, ""},
    {"gpt2-124m.json", 50257, 124439808, 0.124, 1, ""},
    {"kimi-k2.json", 163840, 1026408232448, 1040, 1024,
     "--set num_attention_heads=4 --set num_experts=16 --set moe_ffn_hidden_size=32 --set "
     "moe_shared_expert_intermediate_size=32 --set moe_layer_freq=[0,1] --set q_lora_rank=48 --set "
     "kv_lora_rank=32 "
     "--set qk_head_dim=32 --set qk_pos_emb_head_dim=16 --set v_head_dim=24 "},
    {"llama-1b.json", 128256, 1235814400, 1.23, 4, ""},
    {"llama-small.json", 257, 2460480, 0, 1, ""},
    {"minimax-m2.json", 200064, 228689764864, 230, 256, "--set num_experts=16 "},
    {"mixtral-8x7b.json", 32000, 46702792704, 46.7, 128, ""},
    {"mixtral-small.json", 257, 7577664, 0, 4, ""},
    {"moe-small.json", 50304, 97223680, 0, 1, ""},
    {"moonlight-16b-a3b.json", 163840, 15960110208, 15.96, 32,
     "--set num_attention_heads=4 --set num_experts=16 --set moe_ffn_hidden_size=32 --set "
     "moe_shared_expert_intermediate_size=32 --set moe_layer_freq=[0,1] --set kv_lora_rank=32 "
     "--set qk_head_dim=32 --set qk_pos_emb_head_dim=16 --set v_head_dim=24 "},
    {"olmo2-32b.json", 100352, 32234279936, 32.2, 128, "--set num_attention_heads=8 "},
    {"olmo3-7b.json", 100278, 7298011136, 7.3, 16, ""},
    {"qwen3-235b-a22b.json", 151936, 235093634560, 235, 512,
     "--set num_experts=16 --set moe_ffn_hidden_size=32 "},
    {"qwen3-30b-a3b.json", 151936, 30532122624, 30.5, 32,
     "--set num_experts=16 --set moe_ffn_hidden_size=32 "},
    {"qwen3-8b.json", 151936, 8190735360, 8.2, 16, ""},
};
enum { NUM_WANTED = sizeof wanted / sizeof *wanted };

/* The stack that the options describe, counted by what its layers declare. */
static uint64_t count_params(const weft_model_options *options, const weft_shape *shape)
{
    weft_description *layers;
    int count;
    uint64_t sum = 0;
    EXPECT_OK(weft_rehearse_model(options, NULL, shape, NULL, &layers, &count));
    for (int i = 0; i < count; i++)
        sum += layers[i].cost.num_params;
    weft_descriptions_release(layers, count);
    return sum;
}

static void check_file(const char *path, int w)
{
    weft_arena arena = {0};
    weft_config config;
    weft_mesh mesh, one = {.tp = 1, .cp = 1, .ep = 1, .etp = 1};
    weft_config_source source = {.file = path};
    static const char *const set[] = {"data.data_path=corpus"};
    source.set = set;
    source.num_set = 1;
    EXPECT_OK(weft_config_load(&source, &arena, &config));
    int world = weft_mesh_world(&config.parallel);
    EXPECT(world == wanted[w].world, "%s: %d ranks, not %d", path, world, wanted[w].world);
    EXPECT_OK(weft_config_mesh(&config, &source, world, &mesh));
    if (config.model.vocab_size == 0) /* the byte tokenizer's */
        config.model.vocab_size = 257;
    weft_shape shape = weft_model_shape(&config.model, &one, 1, WEFT_F32, true);
    uint64_t params = count_params(&config.model, &shape);
    EXPECT(shape.vocab == wanted[w].vocab && params == wanted[w].params,
           "%s: %llu parameters, not %llu", path, (unsigned long long)params,
           (unsigned long long)wanted[w].params);
    const double off = wanted[w].billions > 0 ? (double)params / wanted[w].billions / 1e9 - 1 : 0;
    EXPECT(fabs(off) <= 0.015, "%s: %.3g of what its authors call it", path, 1 + off);
    weft_arena_release(&arena);
}

static void price(const char *bin, const char *root, const char *path)
{
    const int code = run("%s/weft plan %s --cluster %s/examples/clusters/h100.json "
                         "--set data.mock_data=true",
                         bin, path, root);
    EXPECT(code == 0 && strstr(run_output, "step ") && strstr(run_output, "memory "),
           "%s: exit code %d: %s", path, code, run_output);
}

static void train_small(const char *bin, const char *path, const char *small)
{
    int code = run(
        "%s/weft train %s --out run --mesh tp=1 --set train_iters=2 --set num_layers=2 "
        "--set hidden_size=192 --set ffn_hidden_size=96 --set seq_length=32 "
        "--set vocab_size=131 --set global_batch_size=8 --set mock_data=true "
        "--set lr_warmup_iters=0 --set lr_wsd_decay_iters=0 --set eval_interval=2 --set "
        "eval_iters=1 "
        "--set device.num_threads=1 --set peak_flops=1e10 %s&& %s/weft inspect run && rm -r run",
        bin, path, small, bin);
    EXPECT(code == 0 && strstr(run_output, "step 2/2  loss 4.") &&
               strstr(run_output, "validation loss"),
           "%s: exit code %d: %s", path, code, run_output);
}

int main(void)
{
    const char *bin = getenv("WEFT_BINARY_DIR"), *root = getenv("WEFT_SOURCE_DIR");
    char folder[32], path[1024];
    int found = 0;
    run_enter(folder);
    snprintf(path, sizeof path, "%s/examples", root);
    DIR *examples = opendir(path);
    EXPECT(examples != NULL, "%s", path);
    for (struct dirent *entry; examples && (entry = readdir(examples));) {
        size_t length = strlen(entry->d_name);
        if (length < 5 || strcmp(entry->d_name + length - 5, ".json") != 0)
            continue;
        int w = 0;
        while (w < NUM_WANTED && strcmp(wanted[w].name, entry->d_name) != 0)
            w++;
        EXPECT(w < NUM_WANTED, "%s is not known here", entry->d_name);
        if (w == NUM_WANTED)
            continue;
        found++;
        snprintf(path, sizeof path, "%s/examples/%.200s", root, entry->d_name);
        check_file(path, w);
        if (wanted[w].world > 4)
            price(bin, root, path);
        train_small(bin, path, wanted[w].small);
    }
    EXPECT(found == NUM_WANTED, "%d configs, not %d", found, NUM_WANTED);
    if (examples)
        closedir(examples);
    run_leave(folder);
    return expect_finish();
}
