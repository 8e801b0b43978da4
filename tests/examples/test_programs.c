/* The programs under examples/ and the README's own: each trains on every mesh to the losses of a
 * single rank, and has the other verbs too. */
#include "tests/examples/run.h"

enum { STEPS = 8 };

/* A file for all: the dense programs take no notice of the experts. */
static const char config[] =
    "{\"model\": {\"num_layers\": 4, \"hidden_size\": 32, \"num_attention_heads\": 4,\n"
    "  \"seq_length\": 16, \"num_experts\": 4, \"moe_aux_loss_coeff\": 0.01},\n"
    "\"train\": {\"micro_batch_size\": 2, \"global_batch_size\": 8, \"train_iters\": 8,\n"
    "  \"lr\": 5e-3},\n"
    "\"data\": {\"data_path\": \"text\"}, \"log\": {\"trace_step\": 0},\n"
    "\"device\": {\"num_threads\": 1, \"peak_flops\": 1e10}}\n";

static void read_losses(const char *run_dir, double loss[STEPS], double norm[STEPS])
{
    char path[128], line[1024];
    int count = 0, step;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir);
    FILE *file = fopen(path, "r");
    while (file && count < STEPS && fgets(line, sizeof line, file)) {
        const char *at = strstr(line, "\"grad_norm\": ");
        if (sscanf(line, "{\"step\": %d, \"loss\": %lf", &step, &loss[count]) == 2 &&
            step == count + 1 && at && sscanf(at, "\"grad_norm\": %lf", &norm[count]) == 1)
            count++;
    }
    EXPECT(count == STEPS, "%s: %d steps of %d", path, count, STEPS);
    if (file)
        fclose(file);
}

static void check_meshes(const char *bin, const char *program, const char *const *meshes)
{
    double wanted[STEPS] = {0}, got[STEPS] = {0}, wanted_norm[STEPS], got_norm[STEPS];
    for (int m = 0; meshes[m]; m++) {
        char name[64];
        snprintf(name, sizeof name, "%s-%d", program, m);
        int code = run("%s/%s train c.json --out %s --mesh %s", bin, program, name, meshes[m]);
        EXPECT(code == 0, "%s %s: exit code %d: %s", program, meshes[m], code, run_output);
        if (code != 0)
            continue;
        read_losses(name, m ? got : wanted, m ? got_norm : wanted_norm);
        for (int i = 0; m && i < STEPS; i++) {
            EXPECT(fabs(got[i] - wanted[i]) <= 1e-5 * wanted[i],
                   "%s %s: loss of step %d is %.9g, on one rank %.9g", program, meshes[m], i + 1,
                   got[i], wanted[i]);
            EXPECT(fabs(got_norm[i] - wanted_norm[i]) <= 1e-4 * wanted_norm[i],
                   "%s %s: gradient norm of step %d is %.9g, on one rank %.9g", program, meshes[m],
                   i + 1, got_norm[i], wanted_norm[i]);
        }
        code = run("%s/%s inspect %s", bin, program, name);
        EXPECT(code == 0 && strstr(run_output, "decoder.layers.3.mlp."),
               "%s inspect: exit code %d: %s", program, code, run_output);
    }
    EXPECT(wanted[STEPS - 1] < wanted[0] - 0.4, "%s: loss %g does not fall from %g", program,
           wanted[STEPS - 1], wanted[0]);
}

/* After check_meshes: the verbs beside train and inspect. */
static void check_verbs(const char *bin, const char *program)
{
    int code = run("%s/%s prepare c.json --any-bytes --out other", bin, program);
    EXPECT(code == 0, "%s prepare: exit code %d: %s", program, code, run_output);
    code = run("%s/%s inspect other", bin, program);
    EXPECT(code == 0 && strstr(run_output, "tokens"), "%s inspect: exit code %d: %s", program, code,
           run_output);
    code = run("%s/%s generate %s-1 --prompt Weft --num-tokens 8", bin, program, program);
    EXPECT(code == 0 && strncmp(run_output, "Weft", 4) == 0, "%s generate: exit code %d: %s",
           program, code, run_output);
    code = run("%s/%s doctor cJSON", bin, program);
    EXPECT(code == 0, "%s doctor: exit code %d: %s", program, code, run_output);
}

/* A layer that says less than it keeps trains, and the run says so. */
static void check_small(const char *bin)
{
    static const char says[] = "a layer's describe says too little; check-layer names it";
    int code = run("%s/small_layer train c.json --out small --set train.train_iters=2", bin);
    EXPECT(code == 0 && strstr(run_output, says), "exit code %d: %s", code, run_output);
    code = run("%s/example_own_layer train c.json --out right --set train.train_iters=2", bin);
    EXPECT(code == 0 && !strstr(run_output, "describe"), "exit code %d: %s", code, run_output);
}

/* What train refuses, the check of layers does too. */
static void check_named(const char *bin)
{
    static const char *const verbs[] = {"train c.json --out named", "check-layer c.json"};
    for (int i = 0; i < 2; i++) {
        int code = run("%s/named_layer %s", bin, verbs[i]);
        EXPECT(code == 2 && strstr(run_output, "metric loss: Weft writes that key itself"),
               "%s: exit code %d: %s", verbs[i], code, run_output);
    }
}

int main(void)
{
    static const char *const dense[] = {"tp=1", "tp=2", "pp=2", NULL};
    static const char *const experts[] = {"tp=1", "tp=2,binding=tp", "dp=2,ep=2", "pp=2", NULL};
    static const char *const sample[] = {"tp=1", "tp=2", NULL};
    static const char *const own[] = {"tp=1", "tp=2", "tp=2,sp=1", "pp=2", NULL};
    const char *bin = getenv("WEFT_BINARY_DIR");
    char folder[32];
    run_enter(folder);
    FILE *file = fopen("c.json", "w");
    EXPECT(bin && file && fputs(config, file) > 0 && fclose(file) == 0, "no folder to work in");
    int code = run("%s/weft prepare %s/README.md --out text", bin, getenv("WEFT_SOURCE_DIR"));
    EXPECT(code == 0, "prepare: exit code %d: %s", code, run_output);
    check_meshes(bin, "example_dense_gpt", dense);
    check_meshes(bin, "example_moe_gpt", experts);
    check_meshes(bin, "example_own_layer", own);
    check_meshes(bin, "readme_sample", sample);
    check_small(bin);
    check_named(bin);
    check_verbs(bin, "example_own_layer");
    check_verbs(bin, "example_moe_gpt");
    code = run("%s/example_moe_gpt train c.json --out no --set num_experts=0", bin);
    EXPECT(code == 2 && strstr(run_output, "model.num_experts: this model needs experts"),
           "moe_gpt without experts: exit code %d: %s", code, run_output);
    run_leave(folder);
    return expect_finish();
}
