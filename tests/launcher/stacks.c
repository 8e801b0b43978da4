/* Models in C that are no models: each is one line that names the layer, exit code 2, before any
 * rank starts (mpirun is not on PATH) and in generate too. And what a model ties follows from its
 * layers: one whose last layer does not tie the embedding trains alike on any mesh. */
#include <stdlib.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"
#include "tests/layers/stub.h"

/* --- the program under test: WEFT_STACK says what it builds -------------------------------- */

/* Passes its input on. */
static weft_status plain_pass(weft_layer *layer, weft_pass *pass, const weft_tensor *from,
                              weft_tensor *to)
{
    (void)layer;
    return to && from->data
               ? weft_lane_copy(weft_pass_lane(pass), to->data, from->data, weft_tensor_bytes(from))
               : WEFT_OK;
}

static bool is_second(weft_pass *pass)
{
    return weft_pass_coords(pass)->tp.at == 1;
}

/* What only the second rank of tensor parallelism gets wrong: others wait for it. */
static weft_status failing_pass(weft_layer *layer, weft_pass *pass, const weft_tensor *from,
                                weft_tensor *to)
{
    if (is_second(pass))
        return weft_lane_submit(weft_pass_lane(pass), "nothing", NULL, NULL, 0);
    WEFT_TRY(plain_pass(layer, pass, from, to));
    return weft_pass_all_reduce(pass, WEFT_AXIS_TP, to->data, 1, WEFT_F32);
}

static weft_status summing_pass(weft_layer *layer, weft_pass *pass, const weft_tensor *from,
                                weft_tensor *to)
{
    WEFT_TRY(plain_pass(layer, pass, from, to));
    return is_second(pass) ? weft_pass_all_reduce(pass, WEFT_AXIS_TP, to->data, 1, WEFT_F32)
                           : WEFT_OK;
}

static weft_layer_ops plain = {.struct_bytes = sizeof plain,
                               .kind = "plain",
                               .describe = stub_describe,
                               .init = stub_init,
                               .forward = plain_pass,
                               .backward = plain_pass,
                               .destroy = stub_destroy,
                               .by_token = true};
static weft_layer_ops reader = {.struct_bytes = sizeof reader,
                                .kind = "reader",
                                .describe = stub_describe,
                                .init = stub_init,
                                .forward = plain_pass,
                                .backward = plain_pass,
                                .destroy = stub_destroy,
                                .reads_tokens = true,
                                .by_token = true};

/* Those that nobody can free stay reachable. */
static weft_layer *own_layers[64];

static weft_layer *own_layer(const weft_layer_ops *ops)
{
    static size_t count;
    weft_layer *layer = stub_create(ops, sizeof *layer);
    own_layers[count++ % 64] = layer;
    return layer;
}

/* Steps of a stack: E embedding, B block, O block around an own layer, P own layer, R own layer
 * that reads tokens, N own layer without ops, 2 the last layer again, S a block with the first S's
 * MLP, W a wider MLP, M a
 * block with experts, A attention, H head, U head that does not tie. */
static weft_status build(weft_model *model, const weft_model_options *options)
{
    weft_model_options untied = *options;
    untied.untie_embeddings_and_output_weights = true;
    weft_model_options wide = *options;
    wide.hidden_size *= 2;
    weft_layer *layer = NULL, *shared = NULL;
    for (const char *step = getenv("WEFT_STACK"); *step; step++) {
        const weft_layer_ops *ops = *step == 'N' ? NULL : *step == 'R' ? &reader : &plain;
        weft_layer *own = strchr("OPRN", *step) ? own_layer(ops) : NULL;
        if (*step == 'S' && !shared)
            shared = weft_mlp_create(options);
        layer = *step == '2'   ? layer
                : *step == 'S' ? weft_block_create(options, weft_attention_create(options), shared)
                : *step == 'M' ? weft_block_create(options, weft_attention_create(options),
                                                   weft_moe_create(options))
                : *step == 'W' ? weft_mlp_create(&wide)
                : *step == 'E' ? weft_embedding_create(options)
                : *step == 'B' ? weft_block_create(options, weft_attention_create(options),
                                                   weft_mlp_create(options))
                : *step == 'O' ? weft_block_create(options, weft_attention_create(options), own)
                : *step == 'A' ? weft_attention_create(options)
                : *step == 'H' ? weft_head_create(options)
                : *step == 'U' ? weft_head_create(&untied)
                               : own;
        WEFT_TRY(weft_model_add(model, layer));
    }
    return WEFT_OK;
}

/* Labels that no vocabulary has. */
static weft_status fill(const weft_sample *sample)
{
    for (size_t i = 0; i < sample->seq_length; i++)
        sample->tokens[i] = 0, sample->labels[i] = -100;
    return WEFT_OK;
}

static int be_the_program(int argc, char **argv)
{
    const char *missing = getenv("WEFT_MISSING");
    switch (missing ? *missing : 0) {
    case 'k':
        plain.kind = NULL;
        break;
    case 'd':
        plain.describe = NULL;
        break;
    case 'i':
        plain.init = NULL;
        break;
    case 'f':
        plain.forward = NULL;
        break;
    case 'b':
        plain.backward = NULL;
        break;
    case 'n':
        plain.backward = stub_pass;
        break;
    case 'r':
        plain.forward = failing_pass;
        break;
    case 's':
        plain.backward = summing_pass;
        break;
    case 'x':
        plain.destroy = NULL;
        break;
    case 'l':
        return weft_application_main(argc, argv,
                                     &WEFT_ARGS(weft_application, .build = build, .sample = fill));
    }
    return weft_main(argc, argv, build);
}

/* --- the test ------------------------------------------------------------------------------ */

typedef struct mistake {
    const char *stack, *missing, *wanted;
} mistake;

static const mistake mistakes[] = {
    {"", "", "the model has no layers"},
    {"E", "", "layer 0 (embedding) of 1: it makes no loss"},
    {"R", "", "layer 0 (reader) of 1: it makes no loss"},
    {"EBP", "", "layer 2 (plain) of 3: it makes no loss, as a model's last layer does"},
    {"PBH", "", "layer 0 (plain) of 3: it reads no tokens, as a model's first layer does"},
    {"ERBH", "", "layer 1 (reader) of 4: it reads tokens, as a model's first layer alone does"},
    {"EBB", "", "layer 2 (block) of 3: it makes no loss, as a model's last layer does"},
    {"BBH", "", "layer 0 (block) of 3: it reads no tokens, as a model's first layer does"},
    {"EBHBH", "", "layer 2 (head) of 5: it makes the loss, as a model's last layer alone"},
    {"EBEH", "", "layer 2 (embedding) of 4: it reads tokens, as a model's first layer alone"},
    {"RBBH", "", "layer 3 (head): ties parameter embedding.word_embeddings.weight, which no layer"},
    {"EB2H", "", "layer 2: a layer (block) is added twice"},
    {"EP2H", "", "layer 2: a layer (plain) is added twice"},
    {"ESSH", "", "layer 2: a layer (mlp) is added twice"},
    {"EWBH", "", "layer 1 (mlp): the mlp is made with hidden_size 32, and the model's is 16"},
    {"EMBH", "", "model.num_experts is 0, and decoder.layers.0.mlp (moe) is an MoE layer"},
    {"ENBH", "", "layer 1 (of no kind): ops is NULL"},
    {"EPBH", "k", "layer 1 (of no kind): ops->kind is NULL"},
    {"EBPH", "x", "layer 2 (plain): ops->destroy is NULL"},
    {"EOBH", "k", "layer 1 (block): decoder.layers.0.mlp: ops->kind is NULL"},
    {"EBOH", "i", "layer 2 (block): decoder.layers.1.mlp: ops->init is NULL"},
    {"EOBH", "f", "layer 1 (block): decoder.layers.0.mlp: ops->forward is NULL"},
    {"EOBH", "b", "layer 1 (block): decoder.layers.0.mlp: ops->backward is NULL"},
    {"EOBH", "x", "layer 1 (block): decoder.layers.0.mlp: ops->destroy is NULL"},
};

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2,\n"
    "  \"seq_length\": 8},\n"
    "\"train\": {\"global_batch_size\": 4, \"train_iters\": 3, \"lr\": 1e-2},\n"
    "\"data\": {\"data_path\": \"corpus\"}, \"log\": {\"trace_step\": 0},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}}\n";

static void with_stack(child *c, const char *const *args, const char *stack, const char *missing,
                       bool with_mpirun)
{
    char stack_text[32], missing_text[32];
    snprintf(stack_text, sizeof stack_text, "WEFT_STACK=%s", stack);
    snprintf(missing_text, sizeof missing_text, "WEFT_MISSING=%s", missing);
    const char *const *environment =
        WORDS(stack_text, missing_text, with_mpirun ? NULL : "PATH=/nonexistent");
    child_run(c, args, environment);
}

static void check_refused(const char *const *args, const mistake *m, const char *verb)
{
    child c;
    with_stack(&c, args, m->stack, m->missing, false);
    EXPECT(c.exit_code == 2 && child_is_line(c.err) && strstr(c.err, m->wanted),
           "%s of \"%s\" without \"%s\": exit %d, \"%s\", for \"%s\"", verb, m->stack, m->missing,
           c.exit_code, c.err ? c.err : "", m->wanted);
    EXPECT(access("run", F_OK) != 0, "%s: made the run folder", m->stack);
}

/* The last step's loss and gradient norm, which know all earlier gradients. */
static void train(const char *stack, const char *run, const char *mesh, double out[2])
{
    const char *args[] = {"train", "c.json", "--out", run, "--mesh", mesh, NULL};
    child c;
    with_stack(&c, args, stack, "", true);
    EXPECT(c.exit_code == 0, "%s on %s: exit %d: %s", stack, mesh, c.exit_code, c.err);
    char *text = child_read_in(run, "metrics.jsonl"),
         *line = text ? strstr(text, "{\"step\": 3") : NULL;
    char *norm = line ? strstr(line, "\"grad_norm\": ") : NULL;
    EXPECT(norm && sscanf(line, "{\"step\": 3, \"loss\": %lf", &out[0]) == 1 &&
               sscanf(norm, "\"grad_norm\": %lf", &out[1]) == 1,
           "%s: no step 3", run);
}

static void check_untied(void)
{
    static const char *const meshes[] = {"tp=1", "pp=2", "tp=2"};
    double wanted[2] = {0}, got[2] = {0}, tied[2] = {0};
    for (int m = 0; m < 3; m++) {
        char run[16];
        snprintf(run, sizeof run, "untied-%d", m);
        train("EBBU", run, meshes[m], m ? got : wanted);
        for (int i = 0; m && i < 2; i++)
            EXPECT(fabs(got[i] - wanted[i]) <= 1e-5 * fabs(wanted[i]), "on %s: %.9g, on one %.9g",
                   meshes[m], got[i], wanted[i]);
    }
    train("EBBH", "tied", "pp=2", tied);
    EXPECT(fabs(tied[0] - wanted[0]) > 1e-4, "tied and untied models train alike: %g", tied[0]);
}

/* The verb starts two ranks of its own and needs no data; what they find is its exit code. */
static void check_layers(void)
{
    static const char *const args[] = {"check-layer", "c.json", "--set", "data_path=null", NULL};
    static const char *const plain_only[] = {"check-layer", "c.json", "--layer", "plain", NULL};
    static const char *const json[] = {"check-layer", "c.json", "--json", "--layer", "plain", NULL};
    child c;
    with_stack(&c, args, "EPBH", "", true);
    EXPECT(c.exit_code == 0 && strstr(c.out, "(plain)") && strstr(c.out, "(block)") &&
               strstr(c.out, "tp=2,sp=1: output and gradients are one rank's") &&
               strstr(c.out, " checks, 0 wrong\n") && !*c.err,
           "good layers: exit %d: %s%s", c.exit_code, c.out, c.err);
    with_stack(&c, json, "EPBH", "n", true);
    EXPECT(c.exit_code == 2 && strstr(c.out, "{\"check\": \"written\", \"verdict\": \"WRONG\"") &&
               strstr(c.out, "\"wrong\": 1\n}\n") && child_is_line(c.err) &&
               strcmp(c.err, "weft check-layer: 1 check is wrong\n") == 0,
           "a backward that does nothing: exit %d: %s%s", c.exit_code, c.out, c.err);
    with_stack(&c, plain_only, "EPBH", "r", true);
    EXPECT(c.exit_code == weft_status_exit_code(WEFT_CONFIG) && child_is_line(c.err) &&
               strstr(c.err, "rank 1 error decoder.layers.0 forward: a wrong call in this "
                             "program's layer (plain): ") &&
               strstr(c.err, "no function"),
           "one rank fails: exit %d: %s%s", c.exit_code, c.out, c.err);
    /* The report is one whole object also where rank 1 fails and rank 0 waits for it, and where
     * nothing was checked. */
    for (int i = 0; i < 2; i++) {
        with_stack(&c, json, "EPBH", i ? "k" : "r", true);
        cJSON *report = cJSON_ParseWithOpts(c.out, NULL, true);
        const char *error = cJSON_GetStringValue(cJSON_GetObjectItem(report, "error"));
        EXPECT(c.exit_code == 2 && child_is_line(c.err) && error &&
                   strstr(error, i ? "layer 1 (of no kind): ops->kind is NULL"
                                   : "rank 1: decoder.layers.0 forward: a wrong call"),
               "JSON of a failure: exit %d: %s%s", c.exit_code, c.out, c.err);
        cJSON_Delete(report);
    }
    with_stack(&c, plain_only, "EPBH", "s", true);
    EXPECT(c.exit_code == weft_status_exit_code(WEFT_COMM) && child_is_line(c.err) &&
               strstr(c.err, "rank 1 differs: all_reduce"),
           "one rank sums: exit %d: %s%s", c.exit_code, c.out, c.err);
}

static void check_labels(void)
{
    const char *const *args = WORDS("train", "c.json", "--out", "labels", "--set",
                                    "vocab_size=1000", "--set", "data_path=null");
    child c;
    with_stack(&c, args, "EBBH", "l", true);
    EXPECT(c.exit_code == 2 && child_is_line(c.err) &&
               strstr(c.err, "label -100 at 0 of training sample 0 is outside a vocabulary of"),
           "labels outside: exit %d: %s", c.exit_code, c.err);
}

/* The single-rank reference of the untied model: the option says what its layers do. */
static void check_option(void)
{
    const char *const *args = WORDS("train", "c.json", "--out", "option", "--set",
                                    "untie_embeddings_and_output_weights=true");
    child c;
    with_stack(&c, args, "EBBH", "", true);
    EXPECT(c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
    char *option = child_read("option/metrics.jsonl"), *own = child_read("untied-0/metrics.jsonl");
    const char *a = option ? strstr(option, "{\"step\": 3") : NULL;
    const char *b = own ? strstr(own, "{\"step\": 3") : NULL;
    EXPECT(a && b && strncmp(a, b, strcspn(b, "l") + 30) == 0, "by option %s, by layers %s", a, b);
}

int main(int argc, char **argv)
{
    const char *const *refused = WORDS("train", "c.json", "--out", "run", "--mesh", "pp=2");
    static const char *const generate[] = {"generate", "tied", "--prompt", "a", NULL};
    static const char *const eval[] = {"eval", "tied", "--mesh", "pp=2", NULL};
    static const char *const check_layer[] = {"check-layer", "c.json", NULL};
    const char *const *stages =
        WORDS("train", "c.json", "--out", "run", "--mesh", "pp=3", "--set", "num_layers=3");
    child c;
    if (argc > 1)
        return be_the_program(argc, argv);
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    char text[4001];
    for (size_t i = 0; i < sizeof text - 1; i++)
        text[i] = "a few words of text\n"[i % 20];
    text[sizeof text - 1] = '\0';
    EXPECT(child_write("text.txt", text), "text.txt");
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    EXPECT(length > 0, "no path to this program");
    self[length > 0 ? length : 0] = '\0';
    child_program = self;
    with_stack(&c, WORDS("prepare", "text.txt", "--out", "corpus"), "E", "", true);
    EXPECT(c.exit_code == 0, "prepare: exit %d: %s", c.exit_code, c.err);
    check_untied();
    check_option();
    check_labels();
    check_layers();
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        check_refused(refused, &mistakes[i], "train");
        check_refused(generate, &mistakes[i], "generate");
        check_refused(eval, &mistakes[i], "eval");
        check_refused(check_layer, &mistakes[i], "check-layer");
    }
    check_refused(stages,
                  &(mistake){"EBBH", "",
                             "--mesh pp=3: parallel.pipeline_model_parallel_"
                             "size: 3 stages for 2 layers"},
                  "train");
    return child_finish();
}
