/* weft launch: what starts a run on a cluster, written into the run's folder. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"
#include "core/options/options.h"
#include "core/text.h"
#include "launcher/arguments/rows.h"
#include "launcher/jobs/jobs.h"
#include "launcher/planning/config.h"
#include "launcher/planning/data_sources.h"
#include "launcher/planning/plan.h"
#include "launcher/planning/plan_print.h"
#include "launcher/process/output.h"
#include "launcher/report/report.h"
#include "launcher/verbs/plan/plan.h"

typedef struct launcher {
    const char *cluster, *mesh, *out, *program, *own_program, *hosts, *hostfile;
    weft_string_list set;
    int num_nodes;                          /* 0: as the mesh needs */
    bool run, force, json, dry_run, is_new; /* RUN was not there */
    weft_arena arena;
    weft_config_source source;
    weft_vocabulary_function vocabulary;
    weft_config config;
    weft_job job;
    const char *reads_cluster; /* the job's parallel.cluster; NULL: it reads none */
    bool is_planned;
    const weft_node_group *groups; /* of the cluster, where its nodes differ */
    int num_groups;
    bool opens_dp; /* the job may go on with fewer nodes: its words say no dp */
    double step_us, tokens_per_s;
    int exit_code; /* of what the job was handed to */
} launcher;

static weft_status find_kind(const char *text, weft_job_kind *out)
{
    const char *names[WEFT_NUM_JOBS];
    for (int i = 0; i < WEFT_NUM_JOBS; i++) {
        names[i] = weft_job_text(i);
        *out = (weft_job_kind)i;
        if (strcmp(names[i], text) == 0)
            return WEFT_OK;
    }
    const char *nearest = weft_nearest_name(text, names, WEFT_NUM_JOBS);
    return WEFT_ERROR(WEFT_CONFIG, "%.60s: no launcher; %s%s%s", text,
                      nearest ? "did you mean " : "mpirun, slurm and kubernetes are",
                      nearest ? nearest : "", nearest ? "?" : "");
}

/* Of a file that a job reads whenever it starts, its own path. option: "--setup ", or "". */
static weft_status find_file(const char *option, const char *file, weft_arena *arena,
                             const char **out)
{
    struct stat info;
    char *path = realpath(file, NULL);
    if (!path)
        return WEFT_ERROR(WEFT_CONFIG, "%s%s: %s", option, file, strerror(errno));
    weft_status status =
        stat(path, &info) == 0 && S_ISREG(info.st_mode)
            ? weft_arena_strdup(arena, path, out)
            : WEFT_ERROR(WEFT_CONFIG, "%s%s: not a file that a job could read again", option, file);
    free(path);
    return status;
}

/* Names of nodes are mpirun's alone. */
static weft_status check_names(const launcher *l)
{
    static const char *const instead[WEFT_NUM_JOBS] = {
        [WEFT_JOB_SLURM] = "Slurm finds the nodes itself, and --sbatch --nodelist=... names them",
        [WEFT_JOB_KUBERNETES] =
            "Kubernetes finds the nodes itself, and --pod nodeSelector=... asks for some"};
    const weft_job_kind kind = l->job.kind;
    if ((l->hosts || l->hostfile) && kind != WEFT_JOB_MPIRUN)
        return WEFT_ERROR(WEFT_CONFIG, "--%s: of mpirun jobs; this one is for %s: %s",
                          l->hosts ? "hosts" : "hostfile", weft_job_text(kind), instead[kind]);
    return WEFT_OK;
}

/* Files that options name, and options that contradict each other. */
static weft_status read_options(launcher *l)
{
    weft_job *job = &l->job;
    char *text;
    WEFT_TRY(check_names(l));
    if (l->hosts || l->hostfile)
        WEFT_TRY(weft_job_read_hosts(l->hosts, l->hostfile, &l->arena, &job->hosts));
    if (job->setup) {
        WEFT_TRY(find_file("--setup ", job->setup, &l->arena, &job->setup));
        WEFT_TRY(weft_file_read_text(job->setup, &l->arena, &text, NULL));
        job->setup_text = text;
    }
    if (job->hosts.count > job->num_spares && l->num_nodes == 0 && !l->cluster)
        l->num_nodes = job->hosts.count - job->num_spares;
    return WEFT_OK;
}

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, launcher *l)
{
    weft_string_list given = {0};
    weft_job *job = &l->job;
    const weft_argument rows[] = {
        TEXT("out", "RUN", &l->out, "the run's folder, which gets the job's files",
             .required = true),
        TEXT("cluster", "FILE", &l->cluster,
             "what it runs on: how many ranks a node has, whether the plan fits"),
        SMALL("nodes", "N", &l->num_nodes, 1, 1e6,
              "how many nodes; data parallelism takes what is left (what the mesh needs)"),
        TEXT("mesh", "AXES", &l->mesh, "such as tp=8,pp=4: replaces the config's mesh"),
        TEXTS("set", "KEY=VALUE", &l->set, "override a key of the config; may be repeated"),
        TEXT("program", "PROGRAM", &l->program, "what trains, on the nodes"),
        TEXT("hosts", "A,B,...", &l->hosts, "mpirun: the nodes' names, such as node[01-16,20]",
             .excludes = "hostfile"),
        TEXT("hostfile", "FILE", &l->hostfile,
             "mpirun: a file with them, as Open MPI, MPICH or DeepSpeed read it"),
        SMALL("spares", "N", &job->num_spares, 0, 1e6,
              "mpirun: so many more of --hosts, for nodes that fail"),
        TEXT("setup", "FILE", &job->setup,
             "shell lines that stand before the program, such as module load"),
        TEXTS("env", "NAME[=VALUE]", &job->environment,
              "a variable that all ranks get; may be repeated"),
        TEXT("interface", "NAME", &job->interface,
             "the network interface of MPI over TCP, NCCL's sockets and libfabric's"),
        FLAG("rank-output", &job->rank_output, "each rank's words in a file of its own, RUN/ranks"),
        TEXT("time", "TIME", &job->slurm.time,
             "slurm: the job's time; it stops before its end and goes on"),
        TEXT("account", "NAME", &job->slurm.account, "slurm: who pays"),
        TEXT("partition", "NAME", &job->slurm.partition, "slurm: where it queues"),
        TEXT("qos", "NAME", &job->slurm.qos, "slurm: its quality of service"),
        TEXTS("sbatch", "OPTION", &job->slurm.sbatch,
              "slurm: one more of sbatch's options; may be repeated"),
        TEXT("container-image", "IMAGE", &job->container.image,
             "slurm: the container's image, for srun's plugin pyxis"),
        TEXT("container-mounts", "LIST", &job->container.mounts,
             "slurm: what else pyxis mounts, A:B,C:D"),
        TEXT("apptainer", "IMAGE", &job->container.apptainer,
             "mpirun, slurm: the program runs in this image, by apptainer exec",
             .excludes = "container-image"),
        TEXT("image", "IMAGE", &job->kubernetes.image, "kubernetes: the containers' image"),
        TEXT("claim", "NAME", &job->kubernetes.claim,
             "kubernetes: the volume claim of RUN (the nodes' folder of this name)"),
        TEXT("namespace", "NAME", &job->kubernetes.name_space, "kubernetes: the job's"),
        TEXT("queue", "NAME", &job->kubernetes.queue, "kubernetes: of Kueue, or of Volcano"),
        TEXTS("resource", "NAME=AMOUNT", &job->kubernetes.resources,
              "kubernetes: of each worker, such as memory; may be repeated"),
        TEXTS("pod", "FIELD=VALUE", &job->kubernetes.pod,
              "kubernetes: a field of the pods' spec, text or JSON; may be repeated"),
        SMALL("user", "UID", &job->kubernetes.user, 0, INT_MAX,
              "kubernetes: whose number the containers run as (the image's, which is root then)"),
        FLAG("run", &l->run, "also start it", .excludes = "dry-run"),
        FLAG("dry-run", &l->dry_run, "print what would be written, and write and start nothing"),
        FLAG("force", &l->force, "replace another job's files"),
        FLAG("json", &l->json, "what was written as one JSON object"),
    };
    const weft_arguments verb = {
        .verb = "launch",
        .operands = "KIND CONFIG",
        .words = "mpirun slurm kubernetes",
        .given = &given,
        .about =
            "Writes what starts a run of CONFIG, or goes on with it, into the run's folder. KIND: "
            "mpirun (hostfile\nand job.sh), slurm (job.sbatch) or kubernetes (job.yaml, an "
            "MPIJob). Exit code 3: the plan on --cluster\ndoes not fit.\n",
        ROWS_OF(rows)};
    int code = weft_arguments_parse(&verb, argc, argv, &l->arena);
    if (code >= 0)
        return code;
    if (find_kind(given.values[0], &job->kind) != WEFT_OK)
        return weft_verb_fail("launch");
    if (read_options(l) != WEFT_OK)
        return weft_verb_fail("launch");
    l->source = weft_plan_source(given.values[1], &l->set, l->mesh, l->source.application);
    return -1;
}

/* --- what it runs on ----------------------------------------------------------------------- */

static weft_status use_nodes(const launcher *l, weft_cluster *cluster)
{
    const int had = cluster->num_nodes;
    if (l->num_nodes == 0)
        return WEFT_OK;
    if (cluster->num_groups > 0 && l->num_nodes > had)
        return WEFT_ERROR(WEFT_CONFIG, "--nodes %d: the cluster %s has %d, which differ",
                          l->num_nodes, cluster->name, had);
    if (l->num_nodes > had)
        weft_log(WEFT_LOG_WARN, "--nodes %d: the cluster %s has %s", l->num_nodes, l->cluster,
                 weft_count_text(had, "node").text);
    if (cluster->num_groups == 0)
        cluster->num_nodes = l->num_nodes;
    return WEFT_OK;
}

/* Refuses what cannot fit. */
static weft_status plan(launcher *l, const weft_cluster *cluster)
{
    char text[512];
    weft_plan p = {0};
    WEFT_TRY(weft_plan_make(&l->config, &l->source, cluster, NULL, &l->arena, &p));
    const weft_status advised = weft_plan_advise(&l->config, cluster, &l->arena, &p);
    const bool fits = p.fits;
    l->is_planned = true;
    l->step_us = p.step_us;
    l->tokens_per_s = p.tokens_per_s;
    if (!fits)
        weft_plan_short_text(&p, text, sizeof text);
    weft_plan_release(&p);
    WEFT_TRY(advised);
    return fits ? weft_config_tell_no_effect(&l->config) : WEFT_ERROR(WEFT_MEMORY, "%s", text);
}

/* As plans place them: ranks fill the nodes, or lie in one. */
static weft_status place(launcher *l, const weft_cluster *cluster, const weft_mesh *mesh)
{
    weft_job *job = &l->job;
    int most = cluster ? cluster->ranks_per_node : 0;
    if (cluster) {
        job->num_nodes = (mesh->world + most - 1) / most;
        job->whole_nodes = job->num_nodes > 1 || mesh->world == most;
    } else {
        job->num_nodes = l->num_nodes > 0 ? l->num_nodes : 1;
        most = mesh->world / job->num_nodes;
    }
    job->ranks_per_node = job->num_nodes > 1 ? most : mesh->world;
    if (job->ranks_per_node * job->num_nodes == mesh->world)
        return WEFT_OK;
    char axes[128];
    weft_mesh_print(mesh, axes, sizeof axes);
    return WEFT_ERROR(WEFT_CONFIG, "the mesh (%s) has %s, which %s not fill %s%s", axes,
                      weft_count_text(mesh->world, "rank").text, mesh->world == 1 ? "does" : "do",
                      weft_count_text(job->num_nodes, "node").text,
                      cluster ? " of the cluster"
                              : " equally; --cluster FILE says how many a node has, or --mesh "
                                "with dp=N how many there are");
}

/* On what the job goes on where nodes are lost: as many as leave a whole part of dp. */
static weft_status find_restarts(launcher *l, const weft_mesh *mesh)
{
    weft_job *job = &l->job;
    weft_config fewer = l->config;
    const char *counts = "";
    job->restarts.max = l->config.reliability.max_restarts;
    job->restarts.delay_s = (int64_t)ceil(l->config.reliability.restart_delay_s);
    job->restarts.dp = mesh->dp;
    fewer.parallel.data_parallel_size = 0;
    for (int parts = 1; parts <= job->num_nodes && job->restarts.max > 0; parts++) {
        weft_mesh other;
        const int nodes = job->num_nodes / parts;
        if (job->num_nodes % parts != 0 || mesh->dp % parts != 0)
            continue;
        if (parts > 1 &&
            weft_config_mesh(&fewer, &l->source, nodes * job->ranks_per_node, &other) != WEFT_OK) {
            weft_error_clear();
            continue;
        }
        WEFT_TRY(
            weft_arena_printf(&l->arena, &counts, "%s%s%d", counts, *counts ? " " : "", nodes));
    }
    job->restarts.node_counts = counts;
    return WEFT_OK;
}

/* --mesh without its dp, which then is what ranks leave. */
static weft_status leave_dp_open(const char *mesh, weft_arena *arena, const char **out)
{
    *out = "";
    for (const char *axis = mesh; axis;) {
        const int length = (int)strcspn(axis, ",");
        if (strncmp(axis, "dp=", 3) != 0)
            WEFT_TRY(
                weft_arena_printf(arena, out, "%s%s%.*s", *out, **out ? "," : "", length, axis));
        axis = axis[length] ? axis + length + 1 : NULL;
    }
    if (!**out)
        *out = "tp=1";
    return WEFT_OK;
}

static weft_status find_ranks(launcher *l, weft_cluster **out_cluster)
{
    weft_mesh mesh;
    weft_cluster *cluster = NULL;
    int world = 0;
    if (l->cluster) {
        WEFT_TRY(weft_plan_load(&l->source, l->vocabulary, &l->arena, &l->config));
        l->reads_cluster = l->config.schedule.cluster;
        WEFT_TRY(weft_plan_cluster("cluster", l->cluster, &l->config, &l->arena, &cluster));
        WEFT_TRY(use_nodes(l, cluster));
        l->groups = cluster->groups;
        l->num_groups = cluster->num_groups;
        if ((int64_t)l->num_nodes * cluster->ranks_per_node > INT_MAX)
            return WEFT_ERROR(WEFT_CONFIG, "--nodes %d: too many ranks", l->num_nodes);
        world = l->num_nodes * cluster->ranks_per_node;
    } else {
        WEFT_TRY(weft_config_load(&l->source, &l->arena, &l->config));
        l->reads_cluster = l->config.schedule.cluster;
        if (l->config.parallel.data_parallel_size == 0)
            world = l->num_nodes * l->job.hosts.least_slots;
    }
    WEFT_TRY(weft_config_mesh(&l->config, &l->source, world, &mesh));
    WEFT_TRY(place(l, cluster, &mesh));
    WEFT_TRY(find_restarts(l, &mesh));
    l->opens_dp = l->job.kind == WEFT_JOB_MPIRUN && l->job.restarts.max > 0 &&
                  l->job.num_nodes > 1 && l->config.parallel.data_parallel_size > 0;
    l->config.parallel.data_parallel_size = mesh.dp;
    if (cluster)
        WEFT_TRY(plan(l, cluster));
    *out_cluster = cluster;
    return WEFT_OK;
}

/* --- what it starts ------------------------------------------------------------------------ */

static weft_status current_folder(weft_arena *arena, const char **out)
{
    char *path = getcwd(NULL, 0);
    if (!path)
        return WEFT_ERROR(WEFT_FILE, "the current folder is gone");
    weft_status status = weft_arena_strdup(arena, path, out);
    free(path);
    return status;
}

static weft_status find_config(launcher *l)
{
    char *text;
    WEFT_TRY(find_file("", l->source.file, &l->arena, &l->job.config));
    WEFT_TRY(weft_read_file(l->job.config, &l->arena, &text, NULL));
    l->job.kubernetes.config_text = text;
    return WEFT_OK;
}

/* This very program, but in a container, which has its own by the same name. */
static weft_status find_program(launcher *l)
{
    char path[4096];
    ssize_t length;
    if (l->program) {
        l->job.program = l->program;
        l->job.has_program = l->program != l->own_program;
        return *l->program ? WEFT_OK : WEFT_ERROR(WEFT_CONFIG, "--program: its name is missing");
    }
    length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return WEFT_ERROR(WEFT_FILE, "cannot find this program's own path; --program says it");
    path[length] = '\0';
    const char *slash = strrchr(path, '/');
    return weft_arena_strdup(&l->arena, weft_job_is_contained(&l->job) && slash ? slash + 1 : path,
                             &l->job.program);
}

/* The words behind --resume: what this line sets, and what else the plan was made with. */
static weft_status find_settings(launcher *l, const weft_cluster *cluster)
{
    const char *word;
    size_t n = 0;
    const char **words;
    WEFT_TRY(WEFT_ARRAY(&l->arena, 2 * l->set.count + 8, &words));
    if (l->mesh) {
        words[n++] = "--mesh";
        if (l->opens_dp)
            WEFT_TRY(leave_dp_open(l->mesh, &l->arena, &words[n++]));
        else
            words[n++] = l->mesh;
    }
    for (size_t i = 0; i < l->set.count; i++) {
        words[n++] = "--set";
        words[n++] = l->set.values[i];
    }
    if (!l->mesh && l->opens_dp) {
        words[n++] = "--set";
        words[n++] = "parallel.data_parallel_size=0";
    }
    if (cluster && weft_plan_is_of_gpus(&l->config, cluster) &&
        l->config.device.kind != WEFT_DEVICE_KIND_CUDA) {
        words[n++] = "--set";
        words[n++] = "device.kind=cuda";
    }
    /* By what how layers run was chosen. */
    if (cluster &&
        (l->config.model.num_experts > 0 || l->config.parallel.context_parallel_size > 1)) {
        char *path = realpath(l->cluster, NULL);
        weft_status status = path ? weft_arena_printf(&l->arena, &word, "parallel.cluster=%s", path)
                                  : WEFT_ERROR(WEFT_FILE, "%s: is gone", l->cluster);
        free(path);
        WEFT_TRY(status);
        words[n++] = "--set";
        words[n++] = word;
        l->reads_cluster = strchr(word, '=') + 1;
    }
    l->job.settings = (weft_string_list){.values = words, .count = n};
    return WEFT_OK;
}

static void find_devices(launcher *l, const weft_cluster *cluster)
{
    const weft_config *config = &l->config;
    const bool on_gpus = cluster ? weft_plan_is_of_gpus(config, cluster)
                                 : config->device.kind == WEFT_DEVICE_KIND_CUDA;
    l->job.gpus_per_node = on_gpus ? l->job.ranks_per_node : 0;
    l->job.num_threads = (int)config->device.num_threads;
    /* Slurm's most is 65535. */
    const int64_t s = config->train.stop_timeout_s;
    l->job.stop_s = s <= 0 ? 300 : s > 65535 ? 65535 : (int)s;
}

static weft_status path_of(const char *file, const char *folder, weft_arena *arena,
                           const char **out)
{
    return weft_arena_printf(arena, out, "%s%s%s", *file == '/' ? "" : folder,
                             *file == '/' ? "" : "/", file);
}

/* The folder of a file that the config names, unless it lies in the run's. */
static weft_status add_mount(launcher *l, const char *file, const char **mounts)
{
    const char *path;
    const size_t run = strlen(l->job.run);
    if (!file || !*file)
        return WEFT_OK;
    WEFT_TRY(path_of(file, l->job.folder, &l->arena, &path));
    const char *slash = strrchr(path, '/');
    if (slash == path || (strncmp(path, l->job.run, run) == 0 && path[run] == '/'))
        return WEFT_OK;
    WEFT_TRY(weft_arena_printf(&l->arena, &path, "%.*s", (int)(slash - path), path));
    for (size_t i = 0; i < l->job.mounts.count; i++)
        if (strcmp(mounts[i], path) == 0)
            return WEFT_OK;
    mounts[l->job.mounts.count++] = path;
    return WEFT_OK;
}

/* What the config and the line name on the nodes' file systems; Kubernetes brings the config. */
static weft_status find_mounts(launcher *l)
{
    const bool has_config = l->job.kind == WEFT_JOB_KUBERNETES;
    const char *const files[] = {l->reads_cluster, l->config.checkpoint.load,
                                 has_config ? NULL : l->job.config, has_config ? NULL : "."};
    const size_t num_files = sizeof files / sizeof *files;
    weft_data_sources data[2];
    const char **mounts;
    WEFT_TRY(weft_data_find_training(&l->config, &l->arena, &data[0]));
    WEFT_TRY(weft_data_find_validation(&l->config, &l->arena, &data[1]));
    WEFT_TRY(WEFT_ARRAY(&l->arena, data[0].count + data[1].count + num_files, &mounts));
    l->job.mounts = (weft_string_list){.values = mounts};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < data[k].count; i++)
            WEFT_TRY(add_mount(l, data[k].of[i].prefix, mounts));
    for (size_t i = 0; i < num_files; i++)
        WEFT_TRY(add_mount(l, files[i], mounts));
    return WEFT_OK;
}

/* --- what it says -------------------------------------------------------------------------- */

static void report(const launcher *l, const char *const *command, weft_report *r)
{
    const weft_job *job = &l->job;
    const char *files[8];
    size_t num_files = 0, num_words = 0;
    for (; weft_job_file_name(job->kind, (int)num_files); num_files++)
        files[num_files] = weft_job_file_name(job->kind, (int)num_files);
    while (command[num_words])
        num_words++;
    weft_report_text(r, "kind", NULL, weft_job_text(job->kind));
    weft_report_text(r, "run", NULL, job->run);
    weft_report_texts(r, "files", files, num_files);
    weft_report_value(r, "num_nodes", job->num_nodes);
    weft_report_value(r, "ranks_per_node", job->ranks_per_node);
    weft_report_value(r, "gpus_per_node", job->gpus_per_node);
    weft_report_texts(r, "command", command, num_words);
    if (l->is_planned) {
        weft_report_value(r, "step_time_s", l->step_us / 1e6);
        weft_report_value(r, "tokens_per_s", l->tokens_per_s);
    }
}

/* Which of the job's nodes differ: the launcher does not know. */
static void print_unlike(const launcher *l, const char *mark, FILE *out)
{
    const weft_job_hosts *hosts = &l->job.hosts;
    const char *const advice[WEFT_NUM_JOBS] = {
        [WEFT_JOB_MPIRUN] = "--hosts has to name them so",
        [WEFT_JOB_SLURM] =
            "Slurm orders nodes by name; --sbatch --constraint=... asks for one kind",
        [WEFT_JOB_KUBERNETES] = "nodes come in any; --pod nodeSelector=... asks for one kind"};
    int left = l->job.num_nodes;
    if (l->num_groups > 0 && l->groups[0].num_nodes < left) {
        fprintf(out, "%snodes differ: ", mark);
        for (int i = 0; i < l->num_groups && left > 0; left -= l->groups[i++].num_nodes)
            fprintf(out, "%s%s of %s%s", i ? ", " : "",
                    weft_count_text(l->groups[i].num_nodes < left ? l->groups[i].num_nodes : left,
                                    "node")
                        .text,
                    l->groups[i].hardware.device_name,
                    l->groups[i].own_figures && !l->groups[i].own_name ? " with other figures"
                                                                       : "");
        fprintf(out, "; the plan is of this order: %s\n", advice[l->job.kind]);
    }
    if (hosts->most_slots > hosts->least_slots)
        fprintf(out, "%shostfile: nodes have %d to %d slots; the job uses %d of each\n", mark,
                hosts->least_slots, hosts->most_slots, l->job.ranks_per_node);
}

/* What is not written is a comment behind it. */
static void print_text(const launcher *l, const char *const *command, FILE *out)
{
    const weft_job *job = &l->job;
    const char *mark = l->dry_run ? "# " : "";
    if (l->is_planned)
        fprintf(out, "%splan: %s a step, %s tokens/s\n", mark,
                weft_seconds_text(l->step_us / 1e6).text,
                weft_unit_text(WEFT_UNIT_COUNT, l->tokens_per_s).text);
    fprintf(out, "%sjob: %s of %s", mark, weft_count_text(job->num_nodes, "node").text,
            weft_count_text(job->ranks_per_node, "rank").text);
    for (int i = 0; weft_job_file_name(job->kind, i); i++)
        fprintf(out, "%s %s/%s", i ? "," : ":", job->run, weft_job_file_name(job->kind, i));
    fprintf(out, "%s\n%sstart:", l->dry_run ? " (not written)" : "", mark);
    for (int i = 0; command[i]; i++) {
        fputc(' ', out);
        weft_shell_word(command[i], out);
    }
    fputc('\n', out);
    print_unlike(l, mark, out);
    if (job->kind == WEFT_JOB_MPIRUN && job->num_nodes > 1 && !job->hosts.names)
        fprintf(out, "%shostfile: put the names of your nodes there, or give --hosts\n", mark);
    if (weft_path_is_lustre(job->run))
        fprintf(out,
                "%slustre: lfs setstripe -c 8 -S 4M RUN, before the first save, spreads "
                "checkpoints over 8 targets\n",
                mark);
    if (job->kind == WEFT_JOB_SLURM)
        fprintf(out,
                "%sstop: scancel --batch --signal=INT JOB, which lets it save; scancel alone "
                "leaves it 30 s (Slurm's KillWait)\n",
                mark);
}

static weft_status print(launcher *l)
{
    const char *command[WEFT_JOB_MAX_WORDS];
    weft_report r;
    if (l->dry_run && !l->json)
        WEFT_TRY(weft_job_show(&l->job, stdout));
    WEFT_TRY(weft_job_command(&l->job, &l->arena, command));
    weft_report_begin(&r, l->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    FILE *out = weft_report_stream(&r, WEFT_REPORT_TEXT);
    if (out)
        print_text(l, command, out);
    report(l, command, &r);
    return weft_report_end(&r, WEFT_OK, stdout);
}

/* What was refused needs another line, and that no --force. */
static weft_status start(launcher *l, unsigned written)
{
    const weft_status status = weft_job_start(&l->job, &l->arena, &l->exit_code);
    if (status == WEFT_OK && l->exit_code == 0)
        return WEFT_OK;
    weft_job_remove(&l->job, written);
    if (l->is_new)
        rmdir(l->job.run);
    if (status == WEFT_OK)
        fprintf(stderr, "weft launch: %s refused the job (exit code %d)%s\n",
                l->job.kind == WEFT_JOB_SLURM ? "sbatch" : "kubectl", l->exit_code,
                written ? ": what was written is removed again" : "");
    return status;
}

static weft_status launch(launcher *l)
{
    unsigned written = 0;
    weft_cluster *cluster = NULL;
    l->source.no_data = false; /* the job reads what a plan does not */
    WEFT_TRY(find_ranks(l, &cluster));
    WEFT_TRY(current_folder(&l->arena, &l->job.folder));
    WEFT_TRY(find_config(l));
    WEFT_TRY(find_program(l));
    WEFT_TRY(find_settings(l, cluster));
    find_devices(l, cluster);
    l->job.run = l->out; /* what is refused without it needs no folder */
    WEFT_TRY(weft_job_check(&l->job));
    if (l->run)
        WEFT_TRY(weft_job_check_start(&l->job));
    if (l->dry_run) {
        WEFT_TRY(weft_output_try_folder(l->out));
        WEFT_TRY(path_of(l->out, l->job.folder, &l->arena, &l->job.run));
    } else {
        l->is_new = access(l->out, F_OK) != 0;
        WEFT_TRY(weft_job_make_folder(l->out, &l->arena, &l->job.run));
    }
    if (weft_job_is_contained(&l->job))
        WEFT_TRY(find_mounts(l));
    WEFT_TRY(weft_job_check(&l->job));
    if (!l->dry_run)
        WEFT_TRY(weft_job_write(&l->job, l->force, &l->arena, &written));
    WEFT_TRY(print(l));
    return l->run ? start(l, written) : WEFT_OK;
}

int weft_verb_launch(int argc, char **argv, const weft_verb_given *given)
{
    launcher l = {.program = given->program,
                  .own_program = given->program,
                  .job.kubernetes.user = -1,
                  .source.application = given->application,
                  .vocabulary = given->vocabulary};
    int code = parse(argc, argv, &l);
    if (code < 0)
        code = launch(&l) == WEFT_OK ? l.exit_code : weft_verb_fail("launch");
    weft_arena_release(&l.arena);
    return code;
}
