/* Models that transformers wrote (tests/oracle/make_models.py): imported, they compute what
 * transformers computes, loss, logits and every gradient; exported, the folder is the same byte for
 * byte. One family is a program's own (examples/phi3.c). */
#include <dirent.h>
#include <stdlib.h>

#include "launcher/models/config_json.h"
#include "launcher/models/models.h"
#include "launcher/models/work.h"
#include "parallel/checkpoint/checkpoint.h"
#include "tests/expect.h"
#include "tests/launcher/child.h"
#include "tests/launcher/weights.h"
#include "tests/layers/harness.h"

int phi3_main(int argc, char **argv);
#define main phi3_main
#include "examples/phi3.c"
#undef main

enum { BATCH = 2, SEQ = 12, BYTES = 1 << 18 };

static const char *const models[] = {"gpt2",          "llama",         "llama3",
                                     "llama_tied",    "llama_bf16",    "qwen2",
                                     "qwen3",         "qwen3_moe",     "qwen3_moe_unnormed",
                                     "mixtral",       "mixtral_fused", "mistral",
                                     "olmo2",         "olmo3",         "gemma2",
                                     "gemma3",        "gpt_oss",       "glm4_moe",
                                     "deepseek_v3",   "moonlight",     "minimax_m2",
                                     "gpt_oss_mxfp4", "smollm3"};
enum { NUM_MODELS = sizeof models / sizeof *models };

/* --- round trip ---------------------------------------------------------------------------- */

/* Every file of `a` is in `b` with the same bytes; how many. */
static int compare_folders(const char *a, const char *b)
{
    DIR *folder = opendir(a);
    int count = 0;
    EXPECT(folder != NULL, "%s", a);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char paths[2][600];
        weft_arena arena = {0};
        char *texts[2] = {"", ""};
        size_t bytes[2] = {0};
        if (entry->d_name[0] == '.')
            continue;
        count++;
        snprintf(paths[0], sizeof paths[0], "%s/%s", a, entry->d_name);
        snprintf(paths[1], sizeof paths[1], "%s/%s", b, entry->d_name);
        for (int i = 0; i < 2; i++)
            EXPECT_OK(weft_file_read_text(paths[i], &arena, &texts[i], &bytes[i]));
        EXPECT(bytes[0] == bytes[1] && memcmp(texts[0], texts[1], bytes[0]) == 0,
               "%s differs from %s", paths[1], paths[0]);
        weft_arena_release(&arena);
    }
    if (folder)
        closedir(folder);
    return count;
}

static void check_round_trip(const char *name, const char *source, const weft_application *own)
{
    char run[64], back[64];
    weft_arena arena = {0};
    weft_card card;
    snprintf(run, sizeof run, "%s.run", name);
    snprintf(back, sizeof back, "%s.back", name);
    EXPECT_OK(weft_import_model(&(weft_import){.folder = source, .out = run, .application = own},
                                &arena, &card));
    EXPECT_OK(weft_export_model(&(weft_export){.checkpoint = run, .out = back, .application = own},
                                &arena, &card));
    EXPECT(compare_folders(source, back) == compare_folders(back, source), "%s", name);
    weft_arena_release(&arena);
}

/* Experts of MXFP4 come back as what transformers makes of them; NAME.run is what that imports to.
 */
static void check_products(const char *name, const char *source)
{
    char run[64], back[64], again[64], other[64];
    weft_arena arena = {0};
    weft_card card;
    snprintf(run, sizeof run, "%s.blocks", name);
    snprintf(back, sizeof back, "%s.back", name);
    snprintf(again, sizeof again, "%s.run", name);
    snprintf(other, sizeof other, "%s.other", name);
    EXPECT_OK(weft_import_model(&(weft_import){.folder = source, .out = run}, &arena, &card));
    EXPECT(card.num_scaled == 4, "%s: %zu scaled", name, card.num_scaled);
    EXPECT_OK(weft_export_model(&(weft_export){.checkpoint = run, .out = back}, &arena, &card));
    EXPECT_OK(weft_import_model(&(weft_import){.folder = back, .out = again}, &arena, &card));
    EXPECT(card.num_scaled == 0 && card.num_tensors == 37, "%s: %zu tensors", name,
           card.num_tensors);
    EXPECT_OK(weft_export_model(&(weft_export){.checkpoint = again, .out = other}, &arena, &card));
    EXPECT(compare_folders(back, other) == compare_folders(other, back), "%s", name);
    weft_arena_release(&arena);
}

/* --- what it computes ---------------------------------------------------------------------- */

typedef struct reference {
    weft_arena arena;
    weft_safetensors files;
} reference;

static float *read_reference(reference *r, const char *name, size_t *count)
{
    const weft_safetensor *t = weft_safetensors_find(&r->files, name);
    EXPECT(t != NULL, "no %s", name);
    *count = t ? weft_safetensor_elements(t) : 0;
    float *out = calloc(*count + 1, sizeof *out);
    if (t)
        EXPECT_OK(weft_safetensor_read(&r->files, t, 0, *count, NULL, out));
    return out;
}

static double relative(const float *is, const float *wanted, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += pow((double)is[i] - (double)wanted[i], 2);
        norm += pow((double)wanted[i], 2);
    }
    return sqrt(difference / norm);
}

static void fill_weights(harness *h, const char *run)
{
    weft_arena arena = {0};
    const char *folder = "";
    weft_parameters *parameters = weft_model_parameters(h->model);
    EXPECT_OK(weft_checkpoint_resolve(run, &arena, &folder));
    EXPECT_OK(weft_checkpoint_load_weights(folder, parameters, h->lane));
    EXPECT_OK(weft_lane_sync(h->lane));
    weft_arena_release(&arena);
}

/* The harness has rows of [S, B]; files have [B, S]. */
static void take_tokens(reference *r, int32_t *tokens, int32_t *labels)
{
    size_t count;
    float *from = read_reference(r, "tokens", &count);
    EXPECT(count == BATCH * (SEQ + 1), "%zu tokens", count);
    for (int b = 0; b < BATCH; b++)
        for (int s = 0; s < SEQ; s++) {
            tokens[s * BATCH + b] = (int32_t)from[b * (SEQ + 1) + s];
            labels[s * BATCH + b] = (int32_t)from[b * (SEQ + 1) + s + 1];
        }
    free(from);
}

static void check_logits(const char *name, harness *h, reference *r)
{
    size_t count, vocab = (size_t)h->options.vocab_size;
    float *wanted = read_reference(r, "logits", &count), *is = calloc(count + 1, sizeof *is);
    weft_tensor logits;
    EXPECT_OK(weft_model_logits(h->model, 0, &logits));
    for (size_t i = 0; i < count; i++) {
        const size_t row = i / vocab, b = row / SEQ, s = row % SEQ;
        is[i] = ((const float *)logits.data)[(s * BATCH + b) * logits.dims[1] + i % vocab];
    }
    const double worst = relative(is, wanted, count);
    EXPECT(worst <= 1e-5, "%s: logits are off by %.3g", name, worst);
    free(wanted);
    free(is);
}

/* --- token by token ------------------------------------------------------------------------- */

/* The same logits where each pass brings the next `rows` tokens, or with `varies` from 1 to so
 * many, and attention has the others' keys and values. The last pass may bring more than there are:
 * nobody reads what those make. */
static void check_cached(const char *name, const char *run, const weft_config *config,
                         weft_comm *self, reference *r, const int32_t *tokens, size_t most,
                         bool varies)
{
    harness h;
    size_t count;
    weft_model_options options = config->model;
    int32_t at[SEQ], shown[SEQ * BATCH];
    const size_t vocab = (size_t)options.vocab_size;
    float *wanted = read_reference(r, "logits", &count), *is = calloc(count + 1, sizeof *is);
    options.seq_length = (int64_t)most;
    harness_generates = true;
    harness_cached = SEQ + most;
    EXPECT_OK(harness_create(&h, self, &options, NULL, BATCH, WEFT_F32, weft_config_build(config)));
    harness_cached = 0;
    fill_weights(&h, run);
    for (size_t first = 0, rows = most, pass = 0; first < SEQ; first += rows) {
        weft_tensor logits;
        if (varies)
            rows = most - pass++ % most;
        weft_model_bring(h.model, rows);
        for (size_t i = 0; i < rows; i++) {
            at[i] = (int32_t)(first + i < SEQ ? first + i : SEQ - 1);
            memcpy(&shown[i * BATCH], &tokens[at[i] * BATCH], BATCH * sizeof *shown);
        }
        weft_micro_batch batch = {
            .tokens = shown, .index = at, .first_token = first, .loss_scale = 1};
        EXPECT_OK(weft_model_forward(h.model, 0, &batch, h.lane, NULL, NULL));
        EXPECT_OK(weft_model_enqueue(h.model));
        EXPECT_OK(weft_lane_sync(h.lane));
        EXPECT_OK(weft_model_logits(h.model, 0, &logits));
        for (size_t i = 0; i < rows * BATCH && first + i / BATCH < SEQ; i++)
            memcpy(is + (i % BATCH * SEQ + first + i / BATCH) * vocab,
                   (const float *)logits.data + i * logits.dims[1], vocab * sizeof *is);
    }
    const double worst = relative(is, wanted, count);
    EXPECT(worst <= 1e-5, "%s: logits by %zu tokens a pass%s are off by %.3g", name, most,
           varies ? " and fewer" : "", worst);
    harness_release(&h);
    free(wanted);
    free(is);
}

typedef struct gradient {
    weft_parameters *parameters;
    const weft_names_model *model;
} gradient;

static weft_status read_gradient(void *context, size_t index, size_t first, size_t count,
                                 float *out)
{
    const gradient *g = context;
    for (int i = 0; i < weft_parameters_count(g->parameters); i++) {
        const weft_parameter *p = &weft_parameters_at(g->parameters, i)->parameter;
        for (size_t k = 0; strcmp(p->name, g->model->listed[index].name) == 0 && k < count; k++)
            out[k] = p->grad[weft_parameter_place(p, first + k)];
    }
    return WEFT_OK;
}

/* By the names of the files' tensors, through the table. transformers has experts fused. */
static double check_gradients(const char *name, harness *h, const weft_config *config,
                              const weft_family *family, reference *r)
{
    weft_arena arena = {0};
    weft_names_model model;
    weft_names names;
    double worst = 0;
    size_t count = 0, used = 0;
    EXPECT_OK(weft_names_model_of(family, config, &arena, &model));
    weft_safetensor *tensors = calloc(r->files.num_tensors + 1, sizeof *tensors);
    for (size_t i = 0; i < r->files.num_tensors; i++)
        if (strncmp(r->files.tensors[i].name, "grad/", 5) == 0) {
            tensors[used] = r->files.tensors[i];
            tensors[used++].name += 5;
        }
    EXPECT_OK(weft_names_match(&model, tensors, used, name, &arena, &names));
    gradient g = {weft_model_parameters(h->model), &model};
    for (size_t i = 0; i < names.num_uses; i++) {
        const weft_name_use *use = &names.uses[i];
        weft_gather gather = {.side = WEFT_MAP_FILE, .read = read_gradient, .context = &g};
        char wanted[200];
        snprintf(wanted, sizeof wanted, "grad/%s", tensors[use->tensor].name);
        float *from = read_reference(r, wanted, &count), *is = calloc(count + 1, sizeof *is);
        EXPECT_OK(weft_gather_map(&gather, &use->map, use->parameter,
                                  weft_listed_elements(&model.listed[use->parameter]), 0, count,
                                  is));
        const double off = relative(is, from, count);
        EXPECT(off <= 1e-5, "%s: gradient of %s is off by %.3g", name, wanted + 5, off);
        worst = off > worst ? off : worst;
        weft_gather_release(&gather);
        free(from);
        free(is);
    }
    free(tensors);
    weft_arena_release(&arena);
    return worst;
}

static void check_loss(const char *name, const harness *h, reference *r)
{
    size_t count;
    float *losses = read_reference(r, "loss", &count);
    double wanted = 0;
    for (size_t i = 0; i < count; i++)
        wanted += (double)losses[i];
    const double is = weft_model_metrics(h->model)->loss_sum;
    EXPECT(fabs(is - wanted) <= 1e-5 * wanted, "%s: loss %.9g against %.9g", name, is, wanted);
    free(losses);
}

static void check_computation(const char *name, const char *source, const weft_application *own)
{
    char run[64], path[600];
    reference r = {.files.folder = NULL};
    weft_comm *self;
    weft_config config;
    weft_config_json json;
    int32_t tokens[SEQ * BATCH] = {0}, labels[SEQ * BATCH] = {0};
    snprintf(run, sizeof run, "%s.run", name);
    snprintf(path, sizeof path, "%s.golden", source);
    EXPECT_OK(weft_safetensors_open(path, &r.arena, &r.files));
    snprintf(path, sizeof path, "%s/config.json", source);
    EXPECT_OK(weft_config_json_read(path, own, &r.arena, &json));
    EXPECT_OK(weft_config_json_load(&json, &r.arena, &config));
    config.model.seq_length = SEQ;
    config.model.hidden_dropout = config.model.attention_dropout = 0;
    take_tokens(&r, tokens, labels);
    EXPECT_OK(weft_comm_create_self(&self));
    for (int trains = 0; trains < 2; trains++) {
        harness h;
        harness_generates = !trains;
        EXPECT_OK(harness_create(&h, self, &config.model, NULL, BATCH, WEFT_F32,
                                 weft_config_build(&config)));
        fill_weights(&h, run);
        EXPECT_OK(harness_pass(&h, tokens, trains ? labels : NULL, trains, true));
        if (trains) {
            check_loss(name, &h, &r);
            printf("%s: worst gradient %.2g relative\n", name,
                   check_gradients(name, &h, &config, json.family, &r));
        } else {
            check_logits(name, &h, &r);
        }
        harness_release(&h);
    }
    check_cached(name, run, &config, self, &r, tokens, 1, false);
    check_cached(name, run, &config, self, &r, tokens, 5, false);
    check_cached(name, run, &config, self, &r, tokens, 5, true);
    weft_comm_destroy(self);
    weft_safetensors_release(&r.files);
    weft_arena_release(&r.arena);
}

/* --- trained and exported ------------------------------------------------------------------ */

/* Training starts from the import on any mesh with the same loss, and what it has made is exported
 * under the source's names: no padded row of the vocabulary, no expert or stage left out. */
static double train_steps(const char *config, const char *run, const char *mesh, const char *steps)
{
    char iterations[40];
    child c;
    double loss = NAN;
    snprintf(iterations, sizeof iterations, "train.train_iters=%s", steps);
    CHILD_RUN(&c, "train", config, "--out", run, "--mesh", mesh, "--json", "--set",
              "data.mock_data=true", "--set", iterations, "--set", "train.micro_batch_size=2",
              "--set", "train.global_batch_size=8", "--set", "model.hidden_dropout=0", "--set",
              "model.attention_dropout=0", "--set", "device.peak_flops=1e9");
    EXPECT(c.exit_code == 0, "%s: exit %d: %s", run, c.exit_code, c.err);
    const char *at = c.out ? strstr(c.out, "\"loss\": ") : NULL;
    if (at)
        loss = atof(at + strlen("\"loss\": "));
    return loss;
}

static double train(const char *config, const char *run, const char *mesh)
{
    return train_steps(config, run, mesh, "2");
}

static void check_training_of(const char *config, const char *one, const char *many,
                              const char *mesh)
{
    const double loss = train(config, one, "tp=1"), again = train(config, many, mesh);
    EXPECT(fabs(loss - again) <= 1e-5 * loss, "%s: loss %.9g, on %s %.9g", config, loss, mesh,
           again);
}

static void check_training(const char *name, const char *source, const char *mesh)
{
    char config[64], one[64], many[64], back[64];
    weft_arena arena = {0};
    weft_card before, after;
    snprintf(config, sizeof config, "%s.run/config.json", name);
    snprintf(one, sizeof one, "%s.one", name);
    snprintf(many, sizeof many, "%s.many", name);
    snprintf(back, sizeof back, "%s.trained", name);
    check_training_of(config, one, many, mesh);
    EXPECT_OK(weft_export_model(&(weft_export){.checkpoint = many, .out = back}, &arena, &after));
    EXPECT_OK(weft_import_model(&(weft_import){.folder = source}, &arena, &before));
    EXPECT(before.num_tensors == after.num_tensors && before.bytes == after.bytes,
           "%s: %zu tensors, %zu", name, before.num_tensors, after.num_tensors);
    for (size_t i = 0; i < before.num_tensors && i < after.num_tensors; i++) {
        EXPECT(strcmp(before.tensors[i].name, after.tensors[i].name) == 0 &&
                   before.tensors[i].num_dims == after.tensors[i].num_dims &&
                   before.tensors[i].dims[0] == after.tensors[i].dims[0],
               "%s", after.tensors[i].name);
        EXPECT(before.hashes[i] != after.hashes[i], "%s: not trained", after.tensors[i].name);
    }
    EXPECT_OK(weft_import_model(&(weft_import){.folder = back}, &arena, &before));
    weft_arena_release(&arena);
}

/* One step's gradients, which its first moments are a tenth of, are one rank's on any mesh. */
static void check_meshes(const char *name, const char *source)
{
    static const char *const meshes[] = {"tp=2", "pp=2", "cp=2", "dp=2", "tp=2,dp=2,ep=4,etp=1"};
    char path[600], config[64], one[64], many[64], folders[2][128];
    weft_arena arena = {0};
    weft_card card;
    weft_config_json json;
    snprintf(path, sizeof path, "%s/config.json", source);
    EXPECT_OK(weft_config_json_read(path, NULL, &arena, &json));
    const bool has_experts =
        strstr(json.text, "expert") && strcmp(name, "gpt_oss_mxfp4") != 0; /* it has three */
    snprintf(path, sizeof path, "%s.run", name);
    EXPECT_OK(weft_import_model(&(weft_import){.folder = source, .out = path}, &arena, &card));
    snprintf(config, sizeof config, "%s.run/config.json", name);
    snprintf(one, sizeof one, "%s.one", name);
    snprintf(folders[1], sizeof folders[1], "%s/checkpoints/step-1", one);
    const double loss = train_steps(config, one, "tp=1", "1");
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes - !has_experts; i++) {
        snprintf(many, sizeof many, "%s.%zu", name, i);
        snprintf(folders[0], sizeof folders[0], "%s/checkpoints/step-1", many);
        const double again = train_steps(config, many, meshes[i], "1");
        EXPECT(fabs(loss - again) <= 1e-5 * loss, "%s, %s: loss %.9g, not %.9g", name, meshes[i],
               again, loss);
        const weights_difference d = weights_compare(folders[0], folders[1], "optimizer/exp_avg/");
        const weights_difference m =
            weights_compare(folders[0], folders[1], "model/decoder.layers.1.mlp.router.");
        EXPECT(m.worst <= 1e-4, "%s, %s: %s is off by %.3g", name, meshes[i], m.where, m.worst);
        EXPECT(d.count > 0 && d.worst <= 1e-5, "%s, %s: %s is off by %.3g (of %d)", name, meshes[i],
               d.where, d.worst, d.count);
    }
    weft_arena_release(&arena);
}

/* From a folder to a folder by the example's own command; weft refuses the architecture by name. */
static void check_own_program(const char *source)
{
    char program[512];
    weft_arena arena = {0};
    weft_card before, after;
    CHILD_REFUSED(2, "the architecture is \"Phi3ForCausalLM\"; Weft has GPT2LMHeadModel", "import",
                  source, "--out", "refused");
    snprintf(program, sizeof program, "%s/example_phi3", getenv("WEFT_BINARY_DIR"));
    child_program = program;
    CHILD_GOOD("import", source, "--out", "phi3.own");
    check_training_of("phi3.own/config.json", "phi3.own.one", "phi3.own.many", "tp=2,pp=2");
    CHILD_GOOD("export", "phi3.own.many", "--out", "phi3.own.trained");
    child_program = NULL;
    EXPECT_OK(weft_import_model(&(weft_import){.folder = source, .application = &application},
                                &arena, &before));
    EXPECT_OK(weft_import_model(
        &(weft_import){.folder = "phi3.own.trained", .application = &application}, &arena, &after));
    EXPECT(before.num_tensors == 15 && before.num_tensors == after.num_tensors &&
               before.bytes == after.bytes && before.hashes[0] != after.hashes[0],
           "%zu tensors, %zu", before.num_tensors, after.num_tensors);
    weft_arena_release(&arena);
}

/* --- a config.json of a model that was not imported --------------------------------------- */

static void without_bounds(weft_model_options *o)
{
    o->activation_func_clamp_value = 0;
    o->moe_router_num_groups = o->moe_router_group_topk = 0;
    o->window_size = 0;
    o->rotary_scaling_type = WEFT_ROTARY_UNSCALED;
}

/* What transformers has in place of a key that is missing is its published model's. */
static void check_new_config(void)
{
    static const struct {
        const char *model;
        const char *parts[5];
    } cases[] = {
        {"gpt_oss",
         {"\"swiglu_limit\": 1e30", "\"rope_scaling\": null", "\"sliding_window\": 128",
          "\"rope_parameters\": {\n    \"rope_theta\": 100.0,\n    \"rope_type\": \"default\"\n  }",
          "\"pad_token_id\": null"}},
        {"glm4_moe", {"\"n_group\": 1", "\"topk_group\": 1", "\"eos_token_id\": 7"}},
        {"olmo3",
         {"\"full_attention\": {\n      \"rope_theta\": 100.0,\n      \"rope_type\": \"default\"\n "
          "   }",
          "\"sliding_attention\": {\n      \"rope_theta\": 100.0,\n      \"rope_type\": "
          "\"default\"\n    }"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_arena arena = {0};
        weft_config config;
        weft_config_json json;
        const weft_family *family;
        const char *text = "";
        char path[600];
        snprintf(path, sizeof path, "%s/tests/oracle/models/%s/config.json",
                 getenv("WEFT_SOURCE_DIR"), cases[i].model);
        EXPECT_OK(weft_config_json_read(path, NULL, &arena, &json));
        EXPECT_OK(weft_config_json_load(&json, &arena, &config));
        without_bounds(&config.model);
        EXPECT_OK(weft_family_find(&config, "step-1", &arena, &family));
        EXPECT(family == json.family, "%s", family->name);
        EXPECT_OK(weft_config_json_make(family, &config, 7, "float32", &arena, &text));
        for (int p = 0; p < 5 && cases[i].parts[p]; p++)
            EXPECT(strstr(text, cases[i].parts[p]), "%s: no %s in %s", cases[i].model,
                   cases[i].parts[p], text);
        weft_arena_release(&arena);
    }
}

/* With an argument: every family on every kind of mesh. */
int main(int argc, char **argv)
{
    char source[512];
    (void)argv;
    child_begin();
    for (int i = 0; argc > 1 && i < NUM_MODELS; i++) {
        snprintf(source, sizeof source, "%s/tests/oracle/models/%s", getenv("WEFT_SOURCE_DIR"),
                 models[i]);
        check_meshes(models[i], source);
    }
    if (argc > 1)
        return child_finish();
    for (int i = 0; i < NUM_MODELS; i++) {
        snprintf(source, sizeof source, "%s/tests/oracle/models/%s", getenv("WEFT_SOURCE_DIR"),
                 models[i]);
        if (strcmp(models[i], "gpt_oss_mxfp4") == 0)
            check_products(models[i], source);
        else
            check_round_trip(models[i], source, NULL);
        check_computation(models[i], source, NULL);
        if (strcmp(models[i], "gpt2") == 0 || strcmp(models[i], "llama_tied") == 0 ||
            strcmp(models[i], "gemma3") == 0 || strcmp(models[i], "olmo3") == 0 ||
            strcmp(models[i], "deepseek_v3") == 0)
            check_training(models[i], source, "tp=2,pp=2");
        if (strcmp(models[i], "mixtral") == 0 || strcmp(models[i], "qwen3_moe") == 0 ||
            strcmp(models[i], "gpt_oss") == 0 || strcmp(models[i], "glm4_moe") == 0 ||
            strcmp(models[i], "moonlight") == 0)
            check_training(models[i], source, "tp=2,dp=2,ep=4,etp=1");
    }
    snprintf(source, sizeof source, "%s/tests/oracle/models/phi3", getenv("WEFT_SOURCE_DIR"));
    check_round_trip("phi3", source, &application);
    check_computation("phi3", source, &application);
    check_own_program(source);
    check_new_config();
    return child_finish();
}
