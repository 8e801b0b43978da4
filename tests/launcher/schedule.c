/* weft schedule: programs are printed as they parse, the order of compute goes round through its
 * CSV, prices say what theory says, pictures are written, mistakes are one line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cjson/cJSON.h>

#include "schedule/text.h"
#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"
#include "tests/launcher/svg.h"

static const char config[] =
    "{\"model\": {\"num_layers\": 8, \"hidden_size\": 256, \"num_attention_heads\": 4, "
    "\"seq_length\": 256, \"vocab_size\": 64, \"num_experts\": 4, \"moe_router_topk\": 1}, "
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 8, \"train_iters\": 1}, "
    "\"data\": {\"mock_data\": true}}";

/* What it printed, or NULL; the caller's. */
static char *output_of(const char *const *args)
{
    child c;
    child_run(&c, args, NULL);
    EXPECT(c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
    return c.exit_code == 0 ? c.out : NULL;
}

/* Each program, below the line of its name, is what its parse prints. */
static void check_programs(const char *text, const char *label, int num_programs)
{
    int count = 0;
    const char *next;
    weft_arena arena = {0};
    for (const char *at = text; *at; at = next, count++) {
        const char *body = strstr(at, "\nprogram ");
        if (!body)
            break;
        body++;
        next = body;
        do {
            next = strchr(next, '\n');
            next = next ? next + 1 : body + strlen(body);
        } while (*next && strncmp(next, "rank ", 5) != 0 && strncmp(next, "backward\n", 9) != 0 &&
                 strncmp(next, "attention ", 10) != 0 && strncmp(next, "experts ", 8) != 0);
        char *piece = strndup(body, (size_t)(next - body)), *printed = NULL;
        size_t bytes;
        weft_program program;
        FILE *out = open_memstream(&printed, &bytes);
        EXPECT_OK(weft_program_parse(piece, &arena, &program));
        EXPECT_OK(weft_program_print(&program, out));
        fclose(out);
        EXPECT(strcmp(piece, printed) == 0, "%s: program %d is not what it parses to", label,
               count);
        free(piece);
        free(printed);
    }
    EXPECT(count == num_programs, "%s: %d programs, not %d", label, count, num_programs);
    weft_arena_release(&arena);
}

/* The order as CSV, read back as a file, makes the same programs. */
static void check_round_trips(void)
{
    static const struct {
        const char *mesh, *set;
        int ranks;
    } rows[] = {
        {"pp=1", "parallel.pipeline_schedule=1f1b", 1},
        {"pp=4", "parallel.pipeline_schedule=1f1b", 4},
        {"pp=4", "parallel.pipeline_schedule=gpipe", 4},
        {"pp=2,vp=2", "train.global_batch_size=6", 2},
        {"pp=2,vp=4,dp=2,ep=2", "parallel.pipeline_schedule=1f1b", 2},
        {"pp=4", "parallel.pipeline_model_parallel_layout=Ettt||ttttt|L", 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const base[] = {"schedule", "c.json",    "--mesh", rows[i].mesh,
                                    "--set",    rows[i].set, NULL};
        const char *args[12];
        memcpy(args, base, sizeof base);
        args[6] = "--program", args[7] = NULL;
        char *program = output_of(args);
        args[6] = "--csv";
        char *csv = output_of(args);
        if (program && csv) {
            check_programs(program, rows[i].mesh, rows[i].ranks);
            EXPECT(child_write("order.csv", csv), "cannot write order.csv");
            if (strstr(rows[i].set, "pipeline_schedule=")) /* the file says it */
                args[5] = "train.train_iters=1";
            args[6] = "--program", args[7] = "--set";
            args[8] = "parallel.pipeline_schedule_file=order.csv", args[9] = NULL;
            char *again = output_of(args);
            EXPECT(again && strcmp(again, program) == 0, "%s, %s: not the same by its CSV",
                   rows[i].mesh, rows[i].set);
        }
    }
}

static cJSON *summary_of(const char *const *args)
{
    char *text = output_of(args);
    cJSON *json = child_parse(text);
    EXPECT(json, "no JSON");
    return json;
}

static double share_of(const cJSON *json, int row)
{
    const cJSON *programs = cJSON_GetObjectItem(json, "programs");
    return number_of(cJSON_GetArrayItem(programs, row), "bubble_share");
}

/* (p - 1) / (m + p - 1), interleaved (p - 1) / (v m + p - 1), but for the head: a vocabulary of 64
 * makes the last stage a little longer. */
static void check_bubbles(void)
{
    static const struct {
        const char *mesh;
        double share;
    } rows[] = {{"pp=4", 3.0 / 11}, {"pp=4,vp=2", 3.0 / 19}, {"pp=1", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cJSON *json = summary_of(WORDS("schedule", "c.json", "--mesh", rows[i].mesh, "--json",
                                       "--set", "model.num_experts=0"));
        EXPECT_NEAR(share_of(json, 0), rows[i].share, 0.01);
    }
    cJSON *json = summary_of(
        WORDS("schedule", "c.json", "--mesh", "pp=4", "--cluster", "cluster.json", "--json"));
    EXPECT(share_of(json, 0) > 0.1 && share_of(json, 0) < 0.5, "priced by a cluster: %g",
           share_of(json, 0));
}

static void expect_file(const char *path, const char *part)
{
    char *text = child_read(path);
    EXPECT(text && strstr(text, part), "%s has no %s", path, part);
}

static void expect_drawing(const char *path, const char *part)
{
    char *text = child_read(path);
    EXPECT(text && svg_is_well_formed(text) && strstr(text, part), "%s has no %s", path, part);
    EXPECT(text && !svg_unexplained(text), "no legend for %.60s",
           text ? svg_unexplained(text) : "");
}

/* All levels are printed and drawn, by FLOPs and by a cluster. */
static void check_levels(void)
{
    static const struct {
        const char *level, *slice;
        int num_programs;
    } rows[] = {{"step", "F0", 2}, {"pass", "l1", 8}, {"layer", "Eg1", 2}, {"experts", "Uw1", 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int by_cluster = 0; by_cluster < 2; by_cluster++) {
            const char *const *args = WORDS(
                "schedule", "c.json", "--mesh", "pp=2,vp=2,dp=2,ep=2", "--set",
                "parallel.moe_num_partitions=2", "--level", rows[i].level, "--svg", "s.svg",
                "--trace", "s.json", "--program", by_cluster ? "--cluster" : NULL, "cluster.json");
            char *text = output_of(args);
            if (text)
                check_programs(text, rows[i].level, rows[i].num_programs);
            expect_drawing("s.svg", rows[i].slice);
            expect_file("s.json", rows[i].slice);
            remove("s.svg");
            remove("s.json");
        }
}

/* Experts in host memory go up as the config says: of four, two are kept. */
static void check_offloaded(void)
{
    const char *const *args = WORDS("schedule", "c.json", "--set", "offload.experts=host", "--set",
                                    "offload.kept=0.5", "--set", "offload.order=demand", "--level",
                                    "experts", "--program", "--cluster", "cluster.json");
    char *text = output_of(args);
    int num = 0;
    for (const char *at = text; at && (at = strstr(at, "upload ")); at++)
        num++;
    EXPECT(num == 2 * 2, "%d uploads", num);
}

/* Attention over context-parallel ranks is a program inside a layer, beside the experts'. A block
 * takes a fourth of the time without a cluster, when nothing else takes any. */
static void check_attention(void)
{
    static const struct {
        const char *set, *slice;
        int num_programs;
    } rows[] = {{"parallel.cp_comm_type=p2p", "hk0", 4},
                {"parallel.cp_comm_type=a2a", "Dh0", 4},
                {"model.num_experts=0", "hg1", 2}};
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        const char *const *args =
            WORDS("schedule", "c.json", "--mesh", "cp=4", "--set", rows[i / 2].set, "--level",
                  "layer", "--svg", "a.svg", "--trace", "a.json", "--program",
                  i % 2 ? "--cluster" : NULL, "cluster.json");
        char *text = output_of(args);
        if (text)
            check_programs(text, rows[i / 2].set, rows[i / 2].num_programs);
        expect_drawing("a.svg", "</svg>");
        expect_file("a.json", rows[i / 2].slice);
        remove("a.svg");
        remove("a.json");
    }
    cJSON *json = summary_of(WORDS("schedule", "c.json", "--mesh", "cp=4", "--level", "layer",
                                   "--body", "attention", "--json"));
    const cJSON *programs = cJSON_GetObjectItem(json, "programs");
    const cJSON *forward = cJSON_GetArrayItem(programs, 0);
    EXPECT(cJSON_GetArraySize(programs) == 2, "%d programs", cJSON_GetArraySize(programs));
    EXPECT(strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(forward, "name")), "forward") == 0,
           "not forward");
    EXPECT_NEAR(share_of(json, 0), 0, 1e-12);
    json = summary_of(WORDS("schedule", "c.json", "--mesh", "cp=4", "--set",
                            "parallel.cp_comm_type=auto", "--cluster", "cluster.json", "--json"));
    const char *reason = cJSON_GetStringValue(cJSON_GetObjectItem(json, "cp_comm_type_reason"));
    EXPECT(reason && strstr(reason, "p2p"), "the form is not told: %s", reason ? reason : "null");
}

/* Tensor-parallel products in chunks are programs inside a layer, with the price of a plan. */
static void check_tensor(void)
{
    for (int by_cluster = 0; by_cluster < 2; by_cluster++) {
        const char *const *args =
            WORDS("schedule", "c.json", "--mesh", "tp=2", "--set", "model.num_experts=0", "--set",
                  "parallel.tp_comm_overlap=true", "--set", "parallel.tp_comm_overlap_chunks=4",
                  "--set", "parallel.sequence_parallel=true", "--level", "layer", "--body",
                  "tensor", "--program", by_cluster ? "--cluster" : NULL, "cluster.json");
        char *text = output_of(args);
        EXPECT(text && strstr(text, "linear_fc1 forward") && strstr(text, "product compute"),
               "no product in chunks:\n%s", text);
    }
    CHILD_REFUSED(2, "tp_comm_overlap", "schedule", "c.json", "--level", "layer", "--body",
                  "tensor");
}

/* Forwards and backwards that stand as pairs, and what pairs do not go with. */
static void check_pairs(void)
{
#define PAIRS "parallel.overlap_moe_expert_parallel_comm"
    static const struct {
        const char *mesh, *set, *says;
    } rows[] = {
        {"dp=2", "train.seed=2", "expert_model_parallel_size 1: no tokens travel"},
        {"tp=2,ep=2,binding=tp", "train.seed=2", "expert_binding tp: no tokens travel"},
        {"dp=2,ep=2", "parallel.pipeline_schedule=gpipe", "this pipeline_schedule"},
        {"pp=2,dp=2,ep=2,schedule=v_min", "train.seed=2", "this pipeline_schedule"},
        {"dp=2,ep=2", "parallel.moe_num_partitions=0", "moe_num_partitions 0"},
        {"dp=2,ep=2", "parallel.moe_memory_reuse=auto", "moe_memory_reuse auto"},
        {"dp=2,ep=2", "offload.experts=host", "offload.experts"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHILD_REFUSED(2, rows[i].says, "schedule", "c.json", "--mesh", rows[i].mesh, "--set",
                      PAIRS "=true", "--set", rows[i].set);
    char *text = output_of(WORDS("schedule", "c.json", "--mesh", "pp=2,dp=2,ep=2", "--program",
                                 "--set", PAIRS "=true"));
    if (text) {
        check_programs(text, "pairs", 2);
        EXPECT(strstr(text, "forward compute host pair mb=3"), "no pair of micro-batch 3:\n%s",
               text);
    }
    text = output_of(WORDS("schedule", "c.json", "--program", "--set", PAIRS "=true", "--set",
                           "model.num_experts=0"));
    EXPECT(text && !strstr(text, " pair "), "pairs without experts:\n%s", text);
}

static void check_refusals(void)
{
    CHILD_REFUSED(2, "stage", "schedule", "c.json", "--level", "stage");
    CHILD_REFUSED(2, "no order of compute", "schedule", "c.json", "--level", "pass", "--csv");
    CHILD_REFUSED(2, "one of", "schedule", "c.json", "--program", "--csv");
    CHILD_REFUSED(3, "device.memory_limit: out of memory: stage ", "schedule", "c.json", "--mesh",
                  "pp=2", "--set", "pipeline_schedule=auto", "--set", "memory_limit=1000");
    CHILD_REFUSED(2, "no MoE layer", "schedule", "c.json", "--level", "layer", "--set",
                  "model.num_experts=0");
    CHILD_REFUSED(2, "level experts: the model has no MoE layer", "schedule", "c.json", "--level",
                  "experts", "--set", "model.num_experts=0");
    CHILD_REFUSED(2, "no attention goes over context-parallel ranks (cp 1)", "schedule", "c.json",
                  "--level", "layer", "--body", "attention");
    CHILD_REFUSED(2, "--body experts: a step has none, a layer has", "schedule", "c.json", "--body",
                  "experts");
    CHILD_REFUSED(2, "num_layers?", "schedule", "c.json", "--set", "model.num_layer=2");
    CHILD_REFUSED(6, "none/s.svg", "schedule", "c.json", "--svg", "none/s.svg");
    EXPECT(child_write("bad.csv", "0F0,0B0\n1B0,1F0\n"), "cannot write bad.csv");
    CHILD_REFUSED(2, "bad.csv: line 2", "schedule", "c.json", "--mesh", "pp=2", "--set",
                  "train.global_batch_size=1", "--set", "parallel.pipeline_schedule_file=bad.csv");
    EXPECT(child_write("bad.csv", "\x01\x9b\xff\x1b[2J\n\n1F0\n"), "cannot write bad.csv");
    CHILD_REFUSED(2, "bad.csv: line 1, column 1, \"????[2J\": expected", "schedule", "c.json",
                  "--mesh", "pp=2", "--set", "parallel.pipeline_schedule_file=bad.csv");
    CHILD_REFUSED(2, "of plan and schedule: --cluster", "schedule", "c.json", "--level", "layer",
                  "--mesh", "dp=2,ep=2,binding=dp", "--set", "parallel.moe_num_partitions=0");
    CHILD_REFUSED(2, "--trace new.svg: the same file as --svg", "schedule", "c.json", "--svg",
                  "new.svg", "--trace", "new.svg");
    CHILD_REFUSED(2, "--svg c.json: the same file as CONFIG", "schedule", "c.json", "--svg",
                  "c.json");
}

/* A program's memory per micro-batch is its tasks' and little more. No other child takes as much.
 */
static void check_memory(void)
{
#ifndef WEFT_SANITIZED
    struct rusage usage;
    char *text = output_of(WORDS("schedule", "v.json", "--mesh", "pp=1,vp=1", "--json", "--set",
                                 "train.global_batch_size=1048576"));
    EXPECT(getrusage(RUSAGE_CHILDREN, &usage) == 0, "getrusage");
    EXPECT(text && usage.ru_maxrss < 200000, "%ld kB of a million micro-batches", usage.ru_maxrss);
#endif
}

/* Keys of the command's line beside those of the file. */
static void check_keys(void)
{
    char *text;
    EXPECT(child_write("v.json",
                       "{\"model\": {\"num_layers\": 8, \"hidden_size\": 64, "
                       "\"num_attention_heads\": 4, \"seq_length\": 16, \"vocab_size\": 64}, "
                       "\"parallel\": {\"pipeline_model_parallel_size\": 2, "
                       "\"num_virtual_stages_per_pipeline_rank\": 2, "
                       "\"pipeline_schedule\": \"zb_h1\"}, "
                       "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 8, "
                       "\"train_iters\": 1}, \"data\": {\"mock_data\": true}}"),
           "cannot write v.json");
    text = output_of(WORDS("schedule", "v.json", "--mesh", "pp=4,vp=2"));
    EXPECT(text && strstr(text, " 8 virtual stages"), "--mesh vp=2: %s", text);
    text = output_of(WORDS("schedule", "v.json", "--mesh", "pp=4"));
    EXPECT(text && strstr(text, " 4 virtual stages"), "the file's vp: %s", text);
    text = output_of(WORDS("schedule", "v.json", "--set", "pipeline_schedule=1f1b", "--csv"));
    EXPECT(text && child_write("order.csv", text), "no order");
    char *again = output_of(
        WORDS("schedule", "v.json", "--set", "pipeline_schedule_file=order.csv", "--csv"));
    EXPECT(text && again && strcmp(text, again) == 0, "the command's file: %s", again);
    CHILD_REFUSED(2,
                  "parallel.pipeline_schedule: zb_h1, and pipeline_schedule_file says another "
                  "order; leave one out",
                  "schedule", "v.json", "--set", "pipeline_schedule=zb_h1", "--set",
                  "pipeline_schedule_file=order.csv");
    CHILD_REFUSED(2, "num_virtual_stages_per_pipeline_rank: 4; a schedule with stages in a V has 2",
                  "schedule", "v.json", "--mesh", "pp=2,vp=4,schedule=zbv");
    CHILD_REFUSED(2,
                  "--mesh pp=4,schedule=zbv: parallel.pipeline_model_parallel_size: 4 ranks have",
                  "schedule", "v.json", "--mesh", "pp=4,schedule=zbv", "--set", "num_layers=4");
    CHILD_GOOD("schedule", "v.json", "--mesh", "pp=4,schedule=zbv", "--set", "num_layers=4",
               "--set", "pipeline_model_parallel_layout=auto");
    CHILD_GOOD("schedule", "v.json", "--svg", "s.svg");
    expect_drawing("s.svg", "Bi: the input");
    expect_drawing("s.svg", "Bw: the weights");
}

/* The program that links no MPI says the same. */
static void check_alone(const char *alone)
{
    static const char *const args[] = {"schedule", "c.json", "--mesh", "pp=2,vp=2", NULL};
    char *whole = output_of(args);
    child_program = alone;
    char *pure = output_of(args);
    child_program = NULL;
    EXPECT(whole && pure && strcmp(whole, pure) == 0, "weft-plan says something else");
}

int main(void)
{
    char alone[1024];
    snprintf(alone, sizeof alone, "%s/weft-plan", getenv("WEFT_BINARY_DIR"));
    child_begin();
    child_cluster("h100", "cluster.json");
    EXPECT(child_write("c.json", config), "cannot write configs");
    check_round_trips();
    check_pairs();
    check_bubbles();
    check_levels();
    check_offloaded();
    check_attention();
    check_tensor();
    check_refusals();
    check_keys();
    check_memory();
    check_alone(alone);
    return child_finish();
}
