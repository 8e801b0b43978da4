/* Small slips on a command line or in a config, each with the line that a user reads: refused with
 * it, or told with it beside what the command did; and what a start says of its mesh. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 4,\n"
    "  \"seq_length\": 12},\n"
    "\"train\": {\"global_batch_size\": 4, \"train_iters\": 2}, \"data\": {\"data_path\": "
    "\"corpus\"},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

typedef struct slip {
    const char *const *args;
    int exit_code;
    const char *wanted; /* in what it says */
    const char *unwanted;
} slip;

static const slip slips[] = {
    {WORDS("train", "c.json", "--out", "none", "--allow-change", "data"), 2,
     "weft train: --allow-change data: changes a run that is resumed; add --resume\n", NULL},
    {WORDS("train", "c.json", "--out", "a", "--set", "cluster=none.json"), 0,
     " warn model.num_experts is 0 and parallel.context_parallel_size 1 and "
     "parallel.tp_comm_overlap false: no effect of "
     "parallel.cluster\n",
     NULL},
    {WORDS("train", "c.json", "--out", "b", "--mesh", "vp=2"), 0,
     " warn parallel.pipeline_model_parallel_size is 1: no effect of "
     "parallel.num_virtual_stages_per_pipeline_rank\n",
     NULL},
    {WORDS("train", "c.json", "--out", "c", "--set", "eval_interval=2"), 0,
     " warn train.eval_iters 4 x global_batch_size 4: 16 samples, and the validation part holds 1: "
     "they count several times\n",
     NULL},
    {WORDS("train", "c.json", "--out", "d", "--set", "eval_interval=2", "--set", "eval_iters=1",
           "--set", "split=1,1"),
     0, "validation loss", "several times"},
    {WORDS("train", "c.json", "--out", "t", "--set", "trace_step=500"), 0,
     " warn train.train_iters is 2: no effect of log.trace_step 500, behind the last step: no "
     "timeline is kept\n",
     "timeline:"},
    {WORDS("train", "c.json", "--out", "u", "--set", "trace_step=2"), 0, "timeline: ", "no effect"},
    {WORDS("train", "c.json", "--out", "l", "--set", "loss_chunk_tokens=1"), 0,
     " warn train.loss_chunk_tokens 1: each so few tokens read the whole output layer, which is "
     "slow; 256 is usual\n",
     NULL},
    {WORDS("train", "c.json", "--out", "m", "--set", "loss_chunk_tokens=12"), 0, "2/2", "usual"},
    {WORDS("eval", "c", "--iters", "9"), 0, " 36 samples, and the validation part holds 1: ", NULL},
    {WORDS("eval", "c", "--iters", "20", "--split", "train"), 0,
     "80 samples, and the training part holds ", NULL},
    {WORDS("prepare", "text.txt", "--out", "corpus"), 0,
     "replaced corpus.bin, corpus.idx and corpus.json\n", "wrote"},
    {WORDS("prepare", "text.txt", "--out", "corpus", "--json"), 0, "\"replaced\": true", NULL},
    {WORDS("prepare", "text.txt", "--out", "other", "--json"), 0, "\"replaced\": false", NULL},
    {WORDS("prepare", "text.txt", "--out", "third"), 0, "wrote third.bin", "replaced"},
    {WORDS("train", "c.json", "--out", "none", "--set", "data_path=corpus.idx"), 2,
     "data.data_path: corpus.idx: a dataset is named without .idx; corpus would\n", NULL},
    {WORDS("eval", "c", "--data", "corpus.json"), 2,
     "data.data_path: corpus.json: a dataset is named without .json; corpus would\n", NULL},
    {WORDS("train", "c.json", "--out", "none", "--set", "device.num_threads=100000"), 2,
     "weft train: --set device.num_threads=100000: device.num_threads: 100000 threads a rank, and "
     "this machine runs ",
     NULL},
    {WORDS("train", "c.json", "--out", "none", "--mesh", "dp=2", "--set",
           "device.num_threads=100000"),
     2, "device.num_threads: 100000 threads a rank, and this machine runs ", NULL},
    {WORDS("train", "c.json", "--out", "none", "--set", "offload.num_threads=4096"), 2,
     "offload.num_threads: 4096 threads a rank, and this machine runs ", NULL},
    {WORDS("train", "c.json", "--out", "e", "--mesh", "pp=2,schedule=gpipe"), 0,
     "M parameters, 2 ranks: tp 1, pp 2, dp 1; gpipe; fp32; 4 micro-batches a step and replica\n",
     "capacity"},
    {WORDS("train", "c.json", "--out", "f", "--mesh", "dp=2,zero=3", "--set", "num_experts=2",
           "--set", "moe_expert_capacity_factor=1.25"),
     0,
     "2 ranks: tp 1, pp 1, dp 2, zero 3; fp32; 2 micro-batches a step and replica\ncapacity factor "
     "1.25: which choices are dropped, and so the loss, depends on the mesh\n",
     "vp"},
    {WORDS("train", "c.json", "--out", "g", "--mesh", "pp=2,vp=2", "--set", "num_layers=4"), 0,
     "2 ranks: tp 1, pp 2, dp 1, vp 2; 1f1b; fp32; 4 micro-batches a step and replica\n", "zero"},
    {WORDS("plan", "c.json", "--cluster", "h100.json"), 0, "\n      0  E 0-1 L  ", "0-3"},
    {WORDS("plan", "c.json", "--cluster", "h100.json", "--mesh", "pp=2,layout=E|t|t|L"), 0,
     "\n      0  E | 1  ", NULL},
    {WORDS("plan", "c.json", "--cluster", "h100.json", "--mesh", "pp=2"), 0, "\n      1  1 L  ",
     NULL},
    {WORDS("plan", "c.json", "--cluster", "h100.json", "--what-if"), 0,
     "\n  links between nodes x2  ", "between_x2"},
    {WORDS("plan", "c.json", "--cluster", "h100.json", "--html", "p.html", "--trace", "p.json"), 0,
     "\nwrote p.json\nwrote p.html\n", NULL},
    {WORDS("plan", "c.json", "--cluster", "h100.json", "--html", "p.html", "--json"), 0,
     "\"step_time_s\"", "wrote"},
    {WORDS("plan", "c.json", "--cluster", "h100.json", "--search", "--emit", "best.json"), 0,
     "\nwrote best.json\n", NULL},
    {WORDS("schedule", "c.json", "--svg", "s.svg"), 0, "\nwrote s.svg\n", NULL},
    {WORDS("schedule", "c.json", "--svg", "s.svg", "--program"), 0, "forward", "wrote"},
    {WORDS("expand", "c.json", "--cluster", "h100.json", "--context", "24", "--emit", "ladder",
           "--set", "position_embedding_type=rope"),
     0, "  batch  micro-batch  mesh\n", NULL},
    {WORDS("expand", "c.json", "--cluster", "h100.json", "--context", "24", "--emit", "ladder",
           "--set", "position_embedding_type=rope", "--force"),
     0, "\nwrote ladder\n", NULL},
    {WORDS("compare"), 2,
     "weft compare: takes RUN RUN, and none is given; see weft compare --help\n", NULL},
    {WORDS("compare", "c"), 2,
     "weft compare: takes RUN RUN, and one alone is given; see weft compare --help\n", NULL},
    {WORDS("launch", "slurm", "c.json", "--out", "job", "--cluster", "h100.json", "--nodes", "1",
           "--set", "global_batch_size=8"),
     0, " us a step, ", "e+0"},
    {WORDS("plan", "c.json", "--cluster", "c.json"), 2,
     "weft plan: c.json: a config of a model, where a cluster's file belongs, such as weft "
     "calibrate writes\n",
     NULL},
    {WORDS("plan", "h100.json", "--cluster", "c.json"), 2,
     "weft plan: h100.json: a cluster's file, where a config of a model belongs\n", NULL},
    {WORDS("plan", "c.json", "--cluster", "h100.json", "--search", "--nodes", "1,2", "--emit",
           "x.json"),
     2,
     "weft plan: --emit: writes the config of one plan, and --nodes asks for plans on 2 numbers of "
     "nodes: give it one\n",
     NULL},
    {WORDS("config", "--explain", "model.family"), 0, "docs/config.md#model, docs/models.md\n",
     "layers.md"},
    {WORDS("launch", "--help"), 0, "for nodes that fail (0)\n", NULL},
    {WORDS("train", "c.json", "--out", "linked", "--resume"), 6,
     "weft train: linked/.lock: a symbolic link, which is not followed: remove it\n", NULL},
    {WORDS("train", "c.json", "--out", "none", "--set", "train.lr=1", "--set", "hidden_size=18"), 2,
     "weft train: c.json:1:48, with --set hidden_size=18: model.num_attention_heads: hidden_size "
     "18 does not divide ",
     NULL},
    {WORDS("train", "c.json", "--out", "none", "--set", "micro_batch_size=3", "--set", "lr=1e-3"),
     2,
     "weft train: c.json:3:11, with --set micro_batch_size=3: train.global_batch_size: 4 does not "
     "divide ",
     NULL},
    {WORDS("train", "c.json", "--out", "none", "--mesh", "dp=2", "--set", "micro_batch_size=4"), 2,
     "weft train: c.json:3:11, with --set micro_batch_size=4: train.global_batch_size: 4 does not "
     "divide ",
     NULL},
    {WORDS("train", "warm.json", "--out", "none", "--set", "train_iters=1"), 2,
     "weft train: warm.json:1:12, with --set train_iters=1: train.lr_warmup_iters: a warm-up of 2 ",
     NULL},
    {WORDS("train", "c.json", "--out", "none", "--set", "hidden_size=1048576"), 3,
     "; the largest is decoder.layers.0.mlp.linear_fc1.weight: 4194304 x 1048576, 16 TiB, from "
     "model.hidden_size, model.ffn_hidden_size\n",
     NULL},
};

static void check(const slip *s)
{
    child c;
    child_run(&c, s->args, NULL);
    child_drop_folder(c.err);
    EXPECT(c.exit_code == s->exit_code, "%s %s: exit %d: %s", s->args[0], s->args[1], c.exit_code,
           c.err);
    EXPECT(c.err && c.out && (strstr(c.err, s->wanted) || strstr(c.out, s->wanted)),
           "for\n  %s\ngot\n  %s\n  %s", s->wanted, c.err, c.out);
    EXPECT(!s->unwanted || (!strstr(c.err, s->unwanted) && !strstr(c.out, s->unwanted)),
           "\"%s\" in\n  %s\n  %s", s->unwanted, c.err, c.out);
    EXPECT(s->exit_code == 0 || child_is_line(c.err), "not one line: %s", c.err);
    EXPECT(access("none", F_OK) != 0, "%s: made the run's folder", s->wanted);
}

static bool make_files(void)
{
    char path[4096];
    bool good = child_write("c.json", config) &&
                child_write("warm.json",
                            "{\"train\": {\"lr_warmup_iters\": 2, \"train_iters\": 9}, \"data\": "
                            "{\"data_path\": \"corpus\"}}");
    const char *source = getenv("WEFT_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/examples/clusters/h100.json", source ? source : ".");
    good = good && symlink(path, "h100.json") == 0 && mkdir("linked", 0777) == 0 &&
           symlink("nothing", "linked/.lock") == 0;
    child_make_corpus("corpus", 880);
    return good;
}

int main(void)
{
    child_begin();
    EXPECT(make_files(), "no files");
    for (size_t i = 0; i < sizeof slips / sizeof *slips; i++)
        check(&slips[i]);
    return child_finish();
}
