/* How long a search over 16,384 devices takes, and one plan on 131,072, each in a process of its
 * own: a core's seconds, memory, candidates.
 *   build/bench_search [examples/clusters/h100.json] */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/searching/search.h"

#define REST                                                                                       \
    "\"precision\": \"bf16\", \"train_iters\": 1}, \"data\": {\"mock_data\": true}, "              \
    "\"device\": {\"kind\": \"cuda\"}}"

static const struct problem {
    const char *name, *config, *mesh; /* mesh: one plan, not a search */
    int devices;
} problems[] = {
    {"dense, 175B",
     "{\"model\": {\"num_layers\": 96, \"hidden_size\": 12288, \"num_attention_heads\": 96, "
     "\"seq_length\": 2048, \"vocab_size\": 51200}, \"train\": {\"global_batch_size\": 4096, " REST,
     NULL, 16384},
    {"MoE, 8x7B",
     "{\"model\": {\"num_layers\": 32, \"hidden_size\": 4096, \"ffn_hidden_size\": 14336, "
     "\"num_attention_heads\": 32, \"num_query_groups\": 8, \"seq_length\": 4096, "
     "\"vocab_size\": 32000, \"normalization\": \"RMSNorm\", \"swiglu\": true, "
     "\"disable_bias_linear\": true, \"position_embedding_type\": \"rope\", \"num_experts\": 8}, "
     "\"train\": {\"global_batch_size\": 8192, " REST,
     NULL, 16384},
    {"dense, 175B, planned",
     "{\"model\": {\"num_layers\": 96, \"hidden_size\": 12288, \"num_attention_heads\": 96, "
     "\"seq_length\": 2048, \"vocab_size\": 51200}, \"train\": {\"global_batch_size\": "
     "16384, " REST,
     "tp=8,pp=16,dp=1024,sp=1", 131072},
};

/* Of this process, which has one thread. */
static double core_seconds(const struct rusage *usage)
{
    return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) +
           1e-6 * (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
}

static weft_status search(const struct problem *p, const weft_config *config,
                          const weft_config_source *source, const weft_cluster *cluster,
                          weft_arena *arena)
{
    weft_search_result r;
    const weft_search_options options = {.top = 5, .all_devices = true};
    WEFT_TRY(weft_search_run(config, source, cluster, &options, arena, &r));
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%-22s %7d devices %8.2f s %6ld MiB   %zu considered, %zu illegal, %zu memory, %zu "
           "bound, %zu priced\n",
           p->name, p->devices, core_seconds(&usage), usage.ru_maxrss / 1024, r.counts.considered,
           r.counts.illegal, r.counts.memory, r.counts.bound, r.counts.priced);
    for (int i = 0; i < r.num_plans; i++)
        printf("    %.4g s  %s, micro-batch %d\n", r.plans[i].step_us / 1e6, r.plans[i].mesh,
               r.plans[i].candidate.micro_batch);
    return WEFT_OK;
}

static weft_status plan(const struct problem *p, const weft_config *config,
                        const weft_config_source *source, const weft_cluster *cluster,
                        weft_arena *arena)
{
    weft_plan made;
    WEFT_TRY(weft_plan_make(config, source, cluster, NULL, arena, &made));
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%-22s %7d devices %8.2f s %6ld MiB   %.4g s a step\n", p->name, p->devices,
           core_seconds(&usage), usage.ru_maxrss / 1024, made.step_us / 1e6);
    weft_plan_release(&made);
    return WEFT_OK;
}

static weft_status run(const struct problem *p, const char *path)
{
    weft_arena arena = {0};
    weft_config config;
    weft_cluster *cluster;
    const weft_config_source source = {
        .file = "config.json", .text = p->config, .mesh = p->mesh, .no_data = true};
    WEFT_TRY(weft_plan_load(&source, NULL, &arena, &config));
    WEFT_TRY(weft_plan_cluster("cluster", path, &config, &arena, &cluster));
    cluster->num_nodes = p->devices / cluster->ranks_per_node;
    WEFT_TRY((p->mesh ? plan : search)(p, &config, &source, cluster, &arena));
    weft_arena_release(&arena);
    return WEFT_OK;
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        int status;
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            if (run(&problems[i], argc > 1 ? argv[1] : "examples/clusters/h100.json") == WEFT_OK)
                return 0;
            fprintf(stderr, "%s: %s\n", problems[i].name, weft_error_get()->text);
            return 1;
        }
        failed |= child < 0 || waitpid(child, &status, 0) != child || status != 0;
    }
    return failed;
}
