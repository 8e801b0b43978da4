/* weft calibrate: measures what operations cost here and writes the cluster's file. */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/options.h"
#include "launcher/arguments.h"
#include "launcher/calibrate.h"
#include "launcher/measure.h"
#include "launcher/setup.h"
#include "launcher/verbs.h"

typedef struct arguments {
    weft_measure_options measure;
    const char *out, *svg;
    weft_config config; /* of its options those of the device */
    bool json;
} arguments;

static void help(void)
{
    printf("usage: weft calibrate --out CLUSTER [options]\n"
           "\n"
           "Measures what communication, copies and matrix products cost on these ranks, each\n"
           "over a range of volumes, and how they slow each other down. Run it as training runs:\n"
           "under mpirun or srun, with the same ranks on each node; alone it measures one rank.\n"
           "\n"
           "  --out CLUSTER         the file to write\n"
           "  --svg FILE            draw the curves and the interference\n"
           "  --json                the cluster's JSON on stdout instead of tables\n"
           "  --max-bytes N         largest volume of communication and copies (64M)\n"
           "  --seconds S           time for one curve; larger volumes are left out (4)\n"
           "  --only COST[,COST]    only these curves, by their names in the file\n"
           "  --no-interference     leave it at 1\n"
           "  --ranks-per-node N    take N consecutive ranks for a node\n"
           "  --device cpu|cuda     what computes, and whose memory is copied and sent (cpu)\n"
           "  --threads N           threads a rank computes with (its share of the cores)\n"
           "  --name NAME           the cluster's name (the host's)\n"
           "  --quick               few, small volumes: to see whether it works\n"
           "\n"
           "Costs:\n");
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        printf("  %-20s  %s\n", weft_cost_text((weft_cost_kind)i),
               weft_cost_help((weft_cost_kind)i));
}

static weft_status parse_kinds(char *text, unsigned *out)
{
    const char *names[WEFT_NUM_COSTS];
    for (int i = 0; i < WEFT_NUM_COSTS; i++)
        names[i] = weft_cost_text((weft_cost_kind)i);
    for (char *save = NULL, *name = strtok_r(text, ",", &save); name;
         name = strtok_r(NULL, ",", &save)) {
        int i = 0;
        while (i < WEFT_NUM_COSTS && strcmp(names[i], name) != 0)
            i++;
        if (i == WEFT_NUM_COSTS) {
            const char *near = weft_nearest_name(name, names, WEFT_NUM_COSTS);
            return WEFT_ERROR(WEFT_CONFIG, "--only %.40s: no such cost%s%s%s", name,
                              near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
        }
        *out |= 1u << i;
    }
    return *out ? WEFT_OK : WEFT_ERROR(WEFT_CONFIG, "--only: no cost is named");
}

static weft_status parse_seconds(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end || !(*out >= 0.01 && *out <= 3600))
        return WEFT_ERROR(WEFT_CONFIG, "--seconds %.40s: not a number of 0.01 to 3600", text);
    return WEFT_OK;
}

static weft_status parse_option(int option, char *value, arguments *args)
{
    double number;
    switch (option) {
    case 'o':
        args->out = value;
        return WEFT_OK;
    case 'v':
        args->svg = value;
        return WEFT_OK;
    case 'j':
        args->json = true;
        return WEFT_OK;
    case 'b':
        WEFT_TRY(weft_parse_count("max-bytes", value, true, 256, 68719476736.0, &number));
        args->measure.max_bytes = (size_t)number;
        return WEFT_OK;
    case 's':
        return parse_seconds(value, &args->measure.seconds);
    case 'k':
        return parse_kinds(value, &args->measure.kinds);
    case 'i':
        args->measure.no_interference = true;
        return WEFT_OK;
    case 'r':
        WEFT_TRY(weft_parse_count("ranks-per-node", value, false, 1, 1e6, &number));
        args->measure.ranks_per_node = (int)number;
        return WEFT_OK;
    case 't':
        WEFT_TRY(weft_parse_count("threads", value, false, 1, 4096, &number));
        args->config.device.num_threads = (int)number;
        return WEFT_OK;
    case 'd':
        if (strcmp(value, "cpu") != 0 && strcmp(value, "cuda") != 0)
            return WEFT_ERROR(WEFT_CONFIG, "--device %.40s: neither cpu nor cuda", value);
        args->config.device.kind =
            strcmp(value, "cuda") == 0 ? WEFT_DEVICE_KIND_CUDA : WEFT_DEVICE_KIND_CPU;
        return WEFT_OK;
    case 'n':
        if (strlen(value) >= sizeof(((weft_cluster *)0)->name))
            return WEFT_ERROR(WEFT_CONFIG, "--name: longer than %zu bytes",
                              sizeof(((weft_cluster *)0)->name) - 1);
        args->measure.name = value;
        return WEFT_OK;
    case 'q':
        args->measure.quick = true;
        return WEFT_OK;
    default:
        return WEFT_ERROR(WEFT_INTERNAL, "option %d", option);
    }
}

/* *out_help: asked for. */
static weft_status parse_arguments(int argc, char **argv, arguments *args, bool *out_help)
{
    static const struct option options[] = {{"out", required_argument, NULL, 'o'},
                                            {"svg", required_argument, NULL, 'v'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"max-bytes", required_argument, NULL, 'b'},
                                            {"seconds", required_argument, NULL, 's'},
                                            {"only", required_argument, NULL, 'k'},
                                            {"no-interference", no_argument, NULL, 'i'},
                                            {"ranks-per-node", required_argument, NULL, 'r'},
                                            {"device", required_argument, NULL, 'd'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"name", required_argument, NULL, 'n'},
                                            {"quick", no_argument, NULL, 'q'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int option;
    optind = 1;
    opterr = 0;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h') {
            *out_help = true;
            return WEFT_OK;
        }
        if (option == '?')
            return WEFT_ERROR(WEFT_CONFIG,
                              "%s: unknown option or missing value; see weft calibrate --help",
                              argv[optind - 1]);
        WEFT_TRY(parse_option(option, optarg, args));
    }
    if (optind < argc)
        return WEFT_ERROR(WEFT_CONFIG, "%s: unexpected; see weft calibrate --help", argv[optind]);
    if (!args->out)
        return WEFT_ERROR(WEFT_CONFIG, "--out CLUSTER is missing; see weft calibrate --help");
    return WEFT_OK;
}

/* Written beside and renamed, as the cluster itself. */
static weft_status write_svg(const weft_cluster *cluster, const char *path)
{
    char temporary[4096];
    if (snprintf(temporary, sizeof temporary, "%s.partial", path) >= (int)sizeof temporary)
        return WEFT_ERROR(WEFT_FILE, "%.100s...: the path is too long", path);
    FILE *file = fopen(temporary, "w");
    if (!file)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", temporary, strerror(errno));
    weft_status status = weft_calibrate_draw(cluster, file);
    if ((fclose(file) != 0 || (status == WEFT_OK && rename(temporary, path) != 0)) &&
        status == WEFT_OK)
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    if (status != WEFT_OK)
        unlink(temporary);
    return status;
}

/* Rank 0, before minutes are spent on measuring: the folders of what will be written. */
static weft_status check_writable(const char *path)
{
    char folder[4096];
    if (!path)
        return WEFT_OK;
    if (strlen(path) >= sizeof folder - sizeof ".partial")
        return WEFT_ERROR(WEFT_FILE, "%.100s...: the path is too long", path);
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash)
        snprintf(folder, sizeof folder, ".");
    else
        slash[slash == folder] = '\0';
    if (access(folder, W_OK) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    return WEFT_OK;
}

static weft_status show(const arguments *args, const weft_cluster *cluster)
{
    WEFT_TRY(weft_cluster_write(cluster, args->out));
    if (args->svg)
        WEFT_TRY(write_svg(cluster, args->svg));
    if (args->json)
        return weft_cluster_print(cluster, stdout);
    weft_calibrate_print(cluster, stdout);
    printf("\ncluster: %s\n", args->out);
    if (args->svg)
        printf("drawing: %s\n", args->svg);
    fflush(stdout);
    return WEFT_OK;
}

/* Agreed on by all ranks up to measuring, and again behind it. */
static weft_status calibrate(const arguments *args, weft_comm *world)
{
    bool speaks = weft_comm_rank(world) == 0;
    weft_device *device = NULL;
    weft_cluster cluster;
    weft_status status = speaks ? check_writable(args->out) : WEFT_OK;
    if (status == WEFT_OK && speaks)
        status = check_writable(args->svg);
    if (status == WEFT_OK)
        status = weft_setup_device(&args->config, &device);
    status = weft_comm_agree(world, status);
    if (status == WEFT_OK)
        status = weft_comm_use_nccl(world, device, WEFT_COMM_BY_ANY, NULL);
    if (status == WEFT_OK)
        status = weft_measure_cluster(world, device, &args->measure, &cluster);
    weft_device_destroy(device);
    if (status == WEFT_COMM || status == WEFT_DEVICE || status == WEFT_INTERNAL) {
        weft_log_error_record(); /* this rank may be the only one that knows */
        weft_comm_abort(world, status);
    }
    WEFT_TRY(status);
    return weft_comm_agree(world, speaks ? show(args, &cluster) : WEFT_OK);
}

int weft_verb_calibrate(int argc, char **argv)
{
    arguments args = {.measure.report_progress = true};
    weft_comm *world = NULL;
    bool wants_help = false;
    int rank = 0;
    bool launched = weft_comm_launched(&rank, NULL, NULL, NULL);
    weft_log_set_rank(rank);
    weft_status status = parse_arguments(argc, argv, &args, &wants_help);
    if (wants_help) {
        if (rank == 0)
            help();
        return 0;
    }
    weft_setup_driver(&args.config);
    if (status == WEFT_OK)
        status = launched ? weft_comm_create_world(&world) : weft_comm_create_self(&world);
    if (status == WEFT_OK)
        status = calibrate(&args, world);
    int code = status == WEFT_OK ? 0
               : rank == 0       ? weft_verb_fail("calibrate")
                                 : weft_status_exit_code(status);
    weft_comm_destroy(world);
    return code;
}
