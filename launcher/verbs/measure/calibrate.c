/* weft calibrate: measures what operations cost here and writes the cluster's file. */
#include <string.h>

#include "core/log.h"
#include "core/text.h"
#include "launcher/arguments/rows.h"
#include "launcher/measuring/calibrate.h"
#include "launcher/measuring/import.h"
#include "launcher/measuring/measure.h"
#include "launcher/measuring/own.h"
#include "launcher/planning/plan.h"
#include "launcher/process/launch.h"
#include "launcher/process/output.h"
#include "launcher/training/setup.h"
#include "launcher/training/start.h"
#include "launcher/verbs/measure/measure.h"

enum { MOST_RANKS_A_CORE = 8 };

typedef struct arguments {
    weft_measure_options measure;
    const char *out;
    weft_string_list import; /* --import and the operands beside it */
    weft_string_list operands;
    int num_nodes;             /* of --import; 0: the files tell */
    char folder[4096];         /* of `out` */
    weft_config config;        /* of --for; without it only the options of the device */
    weft_config_source source; /* of --for; its file NULL: none */
    weft_string_list set;
    weft_mesh mesh;
    weft_outline outline;
    int64_t threads;
    int device; /* of the names; -1: the config's */
    bool json;
} arguments;

static void print_costs(const void *context, FILE *out)
{
    (void)context;
    fprintf(out, "\nCosts:\n");
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        fprintf(out, "  %-20s  %s\n", weft_cost_text((weft_cost_kind)i),
                weft_cost_help((weft_cost_kind)i));
}

static weft_status check_import(const arguments *args)
{
    if (args->import.count == 0 && args->operands.count > 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "%.60s: unexpected without --import; see weft calibrate --help",
                          args->operands.values[0]);
    return WEFT_OK;
}

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, arguments *args, weft_arena *arena)
{
    static const char *const devices[] = {"cpu", "cuda"};
    const char *costs[WEFT_NUM_COSTS];
    int64_t max_bytes = 0;
    weft_measure_options *m = &args->measure;
    const weft_argument rows[] = {
        TEXT("for", "CONFIG", &args->source.file,
             "also the products and other operations of this config's model, as they are"),
        TEXT("mesh", "AXES", &args->source.mesh,
             "such as tp=2: replaces the config's mesh; as many ranks as there are here",
             .needs = "for"),
        TEXTS("set", "KEY=VALUE", &args->set, "override a key of the config; may be repeated",
              .needs = "for"),
        TEXTS("import", "FILE", &args->import,
              "measures nothing: takes what FILE... (hwloc's XML, nvidia-smi topo -m, Slurm's "
              "topology.conf or topology.yaml, nccl-tests' output, a cluster) say",
              .excludes =
                  "for max-bytes seconds only no-interference device threads storage quick"),
        SMALL("nodes", "N", &args->num_nodes, 1, 1e6,
              "with --import: how many nodes (what the files tell)", .needs = "import"),
        TEXT("out", "CLUSTER", &args->out, "the file to write", .required = true),
        FLAG("json", &args->json, "the cluster's JSON on standard output instead of tables"),
        BYTES("max-bytes", "N", &max_bytes, 256, 68719476736.0,
              "largest volume of communication and copies (64MiB)"),
        REAL("seconds", "S", &m->seconds, 0.01, 3600, "s",
             "time for one curve; larger volumes are left out (4)"),
        SET("only", "COST,...", &m->kinds, costs, WEFT_NUM_COSTS,
            "only these curves, by their names in the file"),
        FLAG("no-interference", &m->no_interference, "leave it at 1"),
        SMALL("ranks-per-node", "N", &m->ranks_per_node, 1, 1e6,
              "take N consecutive ranks for a node (those that share memory)"),
        NAMED("device", "NAME", &args->device, devices, 2,
              "cpu or cuda: what computes, and whose memory is copied and sent"),
        WHOLE("threads", "N", &args->threads, 1, 4096,
              "threads a rank computes with (its share of the cores)"),
        TEXT("storage", "FOLDER", &m->storage,
             "where each rank writes and reads a file (CLUSTER's folder)"),
        TEXT("name", "NAME", &m->name, "the cluster's name (the host's)"),
        FLAG("quick", &m->quick, "few, small volumes: to see whether it works"),
    };
    const weft_arguments verb = {
        .verb = "calibrate",
        .operands = "[FILE...]",
        .given = &args->operands,
        .about = "Measures what communication, copies, kernels and storage cost on these ranks, "
                 "each over a range of\nvolumes, and how they slow each other down. Run it as "
                 "training runs: under mpirun or srun, with the\nsame ranks on each node. Alone it "
                 "measures one rank, or runs the ranks of\n--for's mesh under mpirun itself.\n",
        ROWS_OF(rows),
        .more = print_costs};
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        costs[i] = weft_cost_text((weft_cost_kind)i);
    m->kinds = (1u << WEFT_NUM_COSTS) - 1;
    int code = weft_arguments_parse(&verb, argc, argv, arena);
    m->max_bytes = (size_t)max_bytes;
    m->host_threads = (int)args->threads;
    if (code < 0 && check_import(args) != WEFT_OK)
        code = weft_verb_fail("calibrate");
    if (code < 0 && m->name && strlen(m->name) >= sizeof(((weft_cluster *)0)->name)) {
        WEFT_ERROR(WEFT_CONFIG, "--name: longer than %zu bytes",
                   sizeof(((weft_cluster *)0)->name) - 1);
        code = weft_verb_fail("calibrate");
    }
    return code;
}

/* The model of --for, before ranks meet: each knows how many there are; 0: as many as the mesh has.
 * Where how MoE layers run is open, they run whole. */
static weft_status outline_model(arguments *args, int num_ranks, weft_arena *arena)
{
    weft_config *config = &args->config;
    args->source = weft_plan_source(args->source.file, &args->set, args->source.mesh,
                                    args->source.application);
    WEFT_TRY(weft_plan_load(&args->source, weft_setup_vocabulary, arena, config));
    WEFT_TRY(weft_config_mesh(config, &args->source, num_ranks, &args->mesh));
    const weft_schedule_options *schedule = &config->schedule;
    const int parts = (int)schedule->moe_num_partitions;
    const bool reuses = schedule->moe_memory_reuse != WEFT_NUM_REUSES;
    const weft_moe_options moe = {
        .pipeline = {.num_partitions = parts > 0 ? parts : 1,
                     .reuse = reuses ? (weft_reuse)schedule->moe_memory_reuse : WEFT_REUSE_NONE}};
    const weft_model_setup setup = weft_step_setup(config, &moe);
    config->device.pace = 0; /* what is measured is this machine */
    config->device.pace_link = config->device.pace_file = 0;
    config->device.memory_limit = 0;
    return weft_config_locate(
        &args->source,
        weft_model_outline(&setup, &args->mesh, weft_config_build(config), &args->outline));
}

static weft_status load(arguments *args, int num_ranks, weft_arena *arena)
{
    if (args->source.file)
        WEFT_TRY(outline_model(args, num_ranks, arena));
    if (args->device >= 0)
        args->config.device.kind = args->device ? WEFT_DEVICE_KIND_CUDA : WEFT_DEVICE_KIND_CPU;
    if (args->threads > 0)
        args->config.device.num_threads = args->threads;
    return WEFT_OK;
}

/* The operations of --for. */
static weft_status measure_model(arguments *args, weft_comm *world, weft_device *device,
                                 weft_cluster *cluster)
{
    const weft_train_options *train = &args->config.train;
    if (!args->source.file)
        return WEFT_OK;
    const weft_own_model model = {
        .options = &args->config.model,
        .own_options = args->config.own,
        .build = weft_config_build(&args->config),
        .shape = &args->outline.shape,
        .num_micro_batches =
            (int)(train->global_batch_size / train->micro_batch_size / args->mesh.dp)};
    return weft_measure_own(world, device, &model, args->measure.quick, cluster);
}

static weft_status folder_of(const char *path, char out[4096])
{
    if (strlen(path) >= 4096 - sizeof ".partial")
        return WEFT_ERROR(WEFT_FILE, "%.100s...: the path is too long", path);
    snprintf(out, 4096, "%s", path);
    char *slash = strrchr(out, '/');
    if (!slash)
        snprintf(out, 4096, ".");
    else
        slash[slash == out] = '\0';
    return WEFT_OK;
}

/* Ranks that wait for each other's turns on a core measure the scheduler. */
static weft_status check_cores(const arguments *args)
{
    const int cores = weft_machine_allowed_cores();
    if (args->mesh.world <= MOST_RANKS_A_CORE * cores)
        return WEFT_OK;
    return WEFT_ERROR(WEFT_CONFIG,
                      "--for %s: %d ranks on the %s here, more than %d a core, would measure how "
                      "they wait for each other; --mesh makes them fewer",
                      args->source.file, args->mesh.world, weft_count_text(cores, "core").text,
                      MOST_RANKS_A_CORE);
}

/* Of all costs asked for, ranks like these may have none. */
static weft_status check_measured(const arguments *args, const weft_cluster *cluster)
{
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        if (weft_cluster_knows(cluster, (weft_cost_kind)i))
            return WEFT_OK;
    if (args->source.file)
        return WEFT_OK;
    return WEFT_ERROR(WEFT_CONFIG, "--only: none of these costs can be measured with %s of %s",
                      weft_count_text(cluster->num_nodes, "node").text,
                      weft_count_text(cluster->ranks_per_node, "rank").text);
}

static weft_status show(const arguments *args, const weft_cluster *cluster)
{
    WEFT_TRY(weft_cluster_write(cluster, args->out));
    weft_calibrate_warn(cluster, stderr);
    if (args->json)
        return weft_cluster_print(cluster, stdout);
    WEFT_TRY(weft_calibrate_print(cluster, args->import.count > 0, stdout));
    printf("\ncluster: %s\n", args->out);
    fflush(stdout);
    return WEFT_OK;
}

/* The cluster of --import. */
static weft_status import(const arguments *args, weft_arena *arena)
{
    weft_import *import;
    WEFT_TRY(weft_arena_alloc(arena, sizeof(weft_import), &import));
    weft_import_start(import);
    for (size_t i = 0; i < args->import.count + args->operands.count; i++) {
        const char *file = i < args->import.count ? args->import.values[i]
                                                  : args->operands.values[i - args->import.count];
        char *text;
        size_t bytes;
        weft_status status = weft_read_file(file, arena, &text, &bytes);
        if (status == WEFT_FILE) /* as of a config that cannot be read */
            return WEFT_ERROR(WEFT_CONFIG, "--import %s", weft_error_get()->text);
        WEFT_TRY(status);
        if (strlen(text) != bytes)
            return WEFT_ERROR(WEFT_CONFIG, "--import %s: no text: byte %zu is 0", file,
                              strlen(text));
        WEFT_TRY(weft_import_take(import, file, text, arena));
    }
    WEFT_TRY(weft_import_finish(import, args->num_nodes, args->measure.ranks_per_node,
                                args->measure.name));
    WEFT_TRY(weft_output_try(args->out));
    for (int i = 0; i < import->num_notes; i++)
        fprintf(stderr, "weft calibrate: %s\n", import->notes[i]);
    return show(args, &import->cluster);
}

/* Agreed on by all ranks up to measuring, and again behind it. */
static weft_status calibrate(arguments *args, weft_comm *world)
{
    bool speaks = weft_comm_rank(world) == 0;
    weft_device *device = NULL;
    weft_cluster cluster;
    weft_status status = speaks ? weft_output_try(args->out) : WEFT_OK;
    if (status == WEFT_OK)
        status = folder_of(args->out, args->folder);
    if (!args->measure.storage)
        args->measure.storage = args->folder;
    if (status == WEFT_OK)
        status = weft_setup_device(&args->config, &device);
    status = weft_comm_agree(world, status);
    const bool is_agreed = status != WEFT_OK && status != WEFT_COMM; /* rank 0 says it */
    if (status == WEFT_OK)
        status = weft_comm_use_nccl(world, device, WEFT_COMM_BY_ANY, NULL);
    if (status == WEFT_OK)
        status = weft_measure_cluster(world, device, &args->measure, &cluster);
    if (status == WEFT_OK)
        status = check_measured(args, &cluster);
    if (status == WEFT_OK)
        status = measure_model(args, world, device, &cluster);
    weft_device_destroy(device);
    if (!is_agreed && (status == WEFT_COMM || status == WEFT_DEVICE || status == WEFT_INTERNAL)) {
        weft_log_error_record(); /* this rank may be the only one that knows */
        weft_comm_abort(world, status);
    }
    WEFT_TRY(status);
    return weft_comm_agree(world, speaks ? show(args, &cluster) : WEFT_OK);
}

int weft_verb_calibrate(int argc, char **argv, const weft_verb_given *given)
{
    arguments args = {
        .measure.report_progress = true, .device = -1, .source.application = given->application};
    weft_arena arena = {0};
    weft_start start = weft_start_find();
    int code = parse(argc, argv, &args, &arena);
    if (code < 0 && args.import.count > 0) {
        if (start.rank == 0)
            code = import(&args, &arena) == WEFT_OK ? 0 : weft_verb_fail("calibrate");
        weft_arena_release(&arena);
        return code < 0 ? 0 : code;
    }
    weft_status status = code < 0 ? load(&args, start.launched ? start.size : 0, &arena) : WEFT_OK;
    if (code < 0 && status == WEFT_OK && !start.launched && args.mesh.world > 1) {
        code = 0;
        status = check_cores(&args);
        if (status == WEFT_OK)
            status = weft_output_try(args.out);
        if (status == WEFT_OK)
            status = weft_launch_mpirun(args.mesh.world, argc + 1, argv - 1, NULL, &code);
        if (status != WEFT_OK)
            code = weft_verb_fail("calibrate");
    }
    if (code < 0 && status == WEFT_OK) {
        weft_setup_driver(&args.config);
        status = weft_start_world(&start);
    }
    if (code < 0 && status == WEFT_OK)
        status = calibrate(&args, start.world);
    weft_outline_release(&args.outline);
    weft_arena_release(&arena);
    if (code >= 0)
        return code;
    code = weft_start_end(&start, status, "calibrate");
    weft_comm_destroy(start.world);
    return code;
}
