/* The command on a GPU: train in fp16, resume, and write on the GPU what the CPU writes where no
 * GPU is. */
#include <stdlib.h>
#include <string.h>

#include <weft/device.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 4,\n"
    "\"seq_length\": 16}, \"train\": {\"global_batch_size\": 4, \"train_iters\": 6, \"lr\": 1e-2,\n"
    "\"lr_decay_style\": \"constant\", \"precision\": \"fp16\", \"initial_loss_scale\": 1e9, "
    "\"hysteresis\": 1},\n"
    "\"data\": {\"data_path\": \"corpus\"}, \"checkpoint\": {\"save_interval\": 4},\n"
    "\"device\": {\"kind\": \"cuda\", \"peak_flops\": 1e9}}\n";

static const char *const no_gpu[] = {"CUDA_VISIBLE_DEVICES=", "WEFT_EMULATE_GPUS=0", NULL};

static char *run(const char *const *args, const char *const *environment)
{
    child c;
    child_run(&c, args, environment);
    EXPECT(c.exit_code == 0, "weft %s: exit %d: %s", args[0], c.exit_code, c.err);
    return c.out;
}

/* Number of lines; each has the loss scale, and the first is skipped. */
static void check_metrics(int steps)
{
    int count = 0;
    char *text = child_read("run/metrics.jsonl");
    for (char *line = text ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n"), count++) {
        EXPECT(strstr(line, "\"loss_scale\": "), "no loss scale: %s", line);
        EXPECT(count > 0 || (strstr(line, "\"grad_norm\": null") &&
                             strstr(line, "\"loss_scale\": 1000000000, \"skipped_steps\": 1")),
               "not skipped: %s", line);
    }
    EXPECT(count == steps, "%d lines of metrics", count);
}

/* Steps have the joules that the stand-in for NVML counts: none, as its counter stands still. */
static void check_energy(const char *library)
{
    static char nvml[4096] = "WEFT_NVML=";
    strncat(nvml, library, sizeof nvml - strlen(nvml) - 1);
    EXPECT(child_write("mj", "7500\n"), "mj");
    run(WORDS("train", "c.json", "--out", "energy", "--set", "train_iters=2"),
        WORDS(nvml, "FAKE_NVML=mj"));
    char *text = child_read("energy/metrics.jsonl");
    EXPECT(text && strstr(text, "\"gpu_energy_j\": 0"), "no energy: %s", text);
}

int main(int argc, char **argv)
{
    const char *why = NULL;
    if (weft_device_num_cuda(&why) == 0) {
        printf("skipped: no CUDA device: %s\n", why);
        return 77;
    }
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    child_make_corpus("corpus", 8191);
    run(WORDS("train", "c.json", "--out", "run", "--set", "train_iters=4"), NULL);
    run(WORDS("train", "c.json", "--out", "run", "--resume"), NULL);
    check_metrics(6);
    const char *const *generate = WORDS("generate", "run", "--prompt", "the quick", "--num-tokens",
                                        "4", "--temperature", "0");
    char *on_gpu = run(generate, NULL), *on_cpu = run(generate, no_gpu);
    EXPECT(on_gpu && on_cpu && strcmp(on_gpu, on_cpu) == 0, "GPU: %s\nCPU: %s", on_gpu, on_cpu);
    if (argc > 1)
        check_energy(argv[1]);
    child c;
    child_run(&c, WORDS("train", "c.json", "--out", "other"), no_gpu);
    EXPECT(c.exit_code == 4 && child_is_line(c.err) && strstr(c.err, "device.kind"),
           "without a GPU: exit %d: %s", c.exit_code, c.err);
    return child_finish();
}
