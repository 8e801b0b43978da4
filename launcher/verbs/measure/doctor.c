/* weft doctor: one screen that says what this machine has and whether it works. */

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/device.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <zlib.h>
#include <zstd.h>

#include "comm/comm.h"
#include "comm/probe.h"
#include "core/log.h"
#include "core/options/options.h"
#include "core/probe.h"
#include "kernels/kernels.h"
#include "kernels/probe.h"
#include "launcher/arguments/rows.h"
#include "launcher/measuring/nodes.h"
#include "launcher/planning/config.h"
#include "launcher/process/launch.h"
#include "launcher/report/report.h"
#include "launcher/training/setup.h"
#include "launcher/training/start.h"
#include "launcher/verbs/measure/measure.h"
#include "parallel/probe.h"
#include "parallel/topology/topology.h"

typedef struct doctor_nodes_options {
    const char *folder; /* whose disk is measured */
    double seconds, factor;
    bool is_shared; /* the folder has to be one of all nodes */
    bool on_gpu, json;
} doctor_nodes_options;

/* The line of a rank that still waits when the time is over; two, so that one is whole. */
static char late[2][320];
static atomic_int which;
static int own_rank;
static char own_node[WEFT_NODES_NAME_BYTES];
static double limit_s;

static void find_own_node(void)
{
    if (gethostname(own_node, sizeof own_node - 1))
        snprintf(own_node, sizeof own_node, "?");
}

static void tell_late(int signal)
{
    const char *line = late[atomic_load(&which)];
    (void)signal;
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        _exit(1);
    _exit(weft_status_exit_code(WEFT_COMM));
}

static void note(const char *what)
{
    const int next = 1 - atomic_load(&which);
    snprintf(late[next], sizeof late[next],
             "weft doctor: --seconds %g are over: rank %d (%s) waits for %s\n", limit_s, own_rank,
             own_node, what);
    atomic_store(&which, next);
}

/* A link that is cut, or a rank that stands still, never answers. */
static void limit_time(const doctor_nodes_options *options, int rank)
{
    own_rank = rank;
    limit_s = options->seconds;
    find_own_node();
    note("the other ranks");
    signal(SIGALRM, tell_late);
    alarm((unsigned)ceil(options->seconds));
}

static weft_status compare(const doctor_nodes_options *o, const weft_config *config,
                           weft_comm *world, bool *out_even)
{
    const weft_nodes_options options = {.seconds = o->seconds,
                                        .factor = o->factor,
                                        .folder = o->folder,
                                        .is_shared = o->is_shared,
                                        .entering = note};
    weft_device *device = NULL;
    weft_nodes nodes = {0};
    weft_status status = weft_setup_device(config, &device);
    if (status != WEFT_OK)
        status = weft_error_context(status, "node %s", own_node);
    status = weft_comm_agree(world, status);
    const bool is_agreed = status != WEFT_OK && status != WEFT_COMM; /* rank 0 says it */
    if (status == WEFT_OK)
        status = weft_nodes_measure(world, device, &options, &nodes);
    alarm(0);
    if (status == WEFT_OK && weft_comm_rank(world) == 0) {
        weft_report report;
        weft_report_begin(&report, o->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
        weft_nodes_report(&report, &nodes, &options);
        status = weft_report_end(&report, WEFT_OK, stdout);
    }
    *out_even = nodes.num_odd == 0;
    weft_nodes_release(&nodes);
    weft_device_destroy(device);
    if (!is_agreed && (status == WEFT_COMM || status == WEFT_DEVICE || status == WEFT_INTERNAL)) {
        weft_log_error_record(); /* this rank may be the only one that knows */
        weft_comm_abort(world, status);
    }
    return status;
}

/* weft doctor --nodes: compares the ranks of this job and prints, on rank 0. Returns the exit code,
 * of WEFT_DEVICE where something stands out. Collective over the launcher's ranks. */
static int doctor_nodes(const doctor_nodes_options *options)
{
    const weft_config config = {.device.kind =
                                    options->on_gpu ? WEFT_DEVICE_KIND_CUDA : WEFT_DEVICE_KIND_CPU};
    bool even = true;
    weft_start start = weft_start_find();
    weft_setup_driver(&config);
    weft_status status = weft_start_world(&start);
    if (status == WEFT_OK) {
        limit_time(options, start.rank);
        status = compare(options, &config, start.world, &even);
    }
    start.exit_code = even ? 0 : weft_status_exit_code(WEFT_DEVICE);
    const int code = weft_start_end(&start, status, "doctor");
    weft_comm_destroy(start.world);
    return code;
}

enum { NUMBER = 20 };

static weft_status add_one(const void *args)
{
    int *number = *(int *const *)args;
    *number += 1;
    return WEFT_OK;
}

/* number: pinned; beside: on the device. */
static weft_status use(weft_lane *lane, int *number, int *beside)
{
    *number = NUMBER;
    WEFT_TRY(weft_lane_zero(lane, beside, sizeof *beside));
    WEFT_TRY(weft_lane_copy(lane, beside, number, sizeof *number));
    WEFT_TRY(weft_lane_submit(lane, "add one", add_one, &number, sizeof number));
    WEFT_TRY(weft_lane_copy(lane, number + 1, beside, sizeof *beside));
    WEFT_TRY(weft_lane_sync(lane));
    if (number[0] != NUMBER + 1 || number[1] != NUMBER)
        return WEFT_ERROR(WEFT_DEVICE, "a lane made %d and %d of %d", number[0], number[1], NUMBER);
    return WEFT_OK;
}

static weft_status try_lane(weft_device *device)
{
    enum { BYTES = 2 * sizeof(int) };
    weft_lane *lane = NULL;
    void *number = NULL, *beside = NULL;
    weft_status status = weft_lane_create(device, 0, "doctor", &lane);
    if (status == WEFT_OK)
        status = weft_device_alloc(device, WEFT_SPACE_PINNED, BYTES, "doctor", &number);
    if (status == WEFT_OK)
        status = weft_device_alloc(device, WEFT_SPACE_DEVICE, BYTES, "doctor", &beside);
    if (status == WEFT_OK)
        status = use(lane, number, beside);
    weft_lane_destroy(lane);
    weft_device_free(device, WEFT_SPACE_PINNED, number, BYTES);
    weft_device_free(device, WEFT_SPACE_DEVICE, beside, BYTES);
    return status;
}

/* Weft's own use of GPUs, or why there is none: built without CUDA, no driver, no GPU. */
static void doctor_gpu(weft_probe *out)
{
    const char *why = "";
    int count = weft_device_num_cuda(&why);
    if (count == 0) {
        weft_probe_say(out, WEFT_PROBE_ABSENT, "", "%s", why);
        return;
    }
    for (int i = 0; i < count; i++) {
        weft_device *device = NULL;
        weft_status status = weft_device_create_cuda(i, 0, &device);
        if (status == WEFT_OK)
            status = try_lane(device);
        weft_device_destroy(device);
        if (status != WEFT_OK) {
            weft_probe_say_error(out, "");
            return;
        }
    }
    weft_probe_say(out, WEFT_PROBE_WORKS, "", "device.kind: cuda finds %d", count);
}

enum { SECONDS_A_PROBE = 30 };

#ifdef WEFT_HAS_CUDA
#define BUILT "built Weft " WEFT_VERSION " with CUDA"
#else
#define BUILT "built Weft " WEFT_VERSION " without CUDA"
#endif

static void probe_compiler(weft_probe *out)
{
#if defined(__clang__)
    weft_probe_say(out, WEFT_PROBE_WORKS, "clang " __clang_version__, BUILT);
#elif defined(__GNUC__)
    weft_probe_say(out, WEFT_PROBE_WORKS, "gcc " __VERSION__, BUILT);
#else
    weft_probe_say(out, WEFT_PROBE_WORKS, "", BUILT);
#endif
}

static void probe_cpu(weft_probe *out)
{
    weft_machine machine;
    if (weft_machine_discover(NULL, &machine) != WEFT_OK)
        weft_probe_say_error(out, "");
    else
        weft_probe_say(out, WEFT_PROBE_WORKS, weft_kernels_cpu_isa(), "kernels for %s",
                       *machine.cpu_model ? machine.cpu_model : "an unnamed model");
}

/* What the split of GPT-2's tokenizer needs: letters of all scripts, and lookahead. */
static void probe_pcre2(weft_probe *out)
{
    static const char text[] = "na\xc3\xafve  cat";
    char version[64] = "";
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_config(PCRE2_CONFIG_VERSION, version);
    version[strcspn(version, " ")] = '\0';
    pcre2_code *code = pcre2_compile((PCRE2_SPTR) "\\p{L}+(?=\\s)", PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
    pcre2_match_data *match = code ? pcre2_match_data_create_from_pattern(code, NULL) : NULL;
    bool right =
        match && pcre2_match(code, (PCRE2_SPTR)text, sizeof text - 1, 0, 0, match, NULL) == 1 &&
        pcre2_get_ovector_pointer(match)[0] == 0 && pcre2_get_ovector_pointer(match)[1] == 6;
    pcre2_match_data_free(match);
    pcre2_code_free(code);
    if (right)
        weft_probe_say(out, WEFT_PROBE_WORKS, version, "matches letters of all scripts");
    else
        weft_probe_say(out, WEFT_PROBE_BROKEN, version, "no Unicode support");
}

/* What weft prepare unpacks: a text there and back. */
static const char packed_text[] = "weft weft weft weft weft weft weft weft weft weft";

static void say_unpacked(weft_probe *out, const char *version, const char *text)
{
    if (memcmp(text, packed_text, sizeof packed_text) == 0)
        weft_probe_say(out, WEFT_PROBE_WORKS, version, "unpacks what it packed");
    else
        weft_probe_say(out, WEFT_PROBE_BROKEN, version, "does not unpack what it packed");
}

static void probe_zlib(weft_probe *out)
{
    unsigned char packed[256];
    char text[sizeof packed_text] = "";
    uLongf packed_bytes = sizeof packed, bytes = sizeof text;
    if (compress(packed, &packed_bytes, (const unsigned char *)packed_text, sizeof packed_text) ==
        Z_OK)
        (void)uncompress((unsigned char *)text, &bytes, packed, packed_bytes);
    say_unpacked(out, zlibVersion(), text);
}

static void probe_zstd(weft_probe *out)
{
    char packed[256], text[sizeof packed_text] = "";
    const size_t bytes = ZSTD_compress(packed, sizeof packed, packed_text, sizeof packed_text, 1);
    if (!ZSTD_isError(bytes))
        (void)ZSTD_decompress(text, sizeof text, packed, bytes);
    say_unpacked(out, ZSTD_versionString(), text);
}

static int pair_main(void)
{
    weft_comm *world = NULL;
    double sum = 1;
    weft_status status = weft_comm_create_world(&world);
    if (status == WEFT_OK)
        status = weft_comm_all_reduce_host(world, &sum, 1, WEFT_F64, WEFT_REDUCE_SUM);
    if (status == WEFT_OK && weft_comm_rank(world) == 0)
        printf("weft pair %d %g\n", weft_comm_size(world), sum);
    if (status != WEFT_OK)
        return weft_verb_fail("doctor");
    weft_comm_destroy(world);
    return 0;
}

/* Starts this program on two ranks, as train starts its own, to add up a number. */
static void probe_mpirun(weft_probe *out)
{
    char line[256] = "";
    bool right = false;
    int ends[2];
    if (pipe(ends)) {
        weft_probe_say(out, WEFT_PROBE_BROKEN, "", "pipe: %s", strerror(errno));
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        char verb[] = "doctor", pair[] = "--pair";
        char *arguments[] = {verb, verb, pair};
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        int code = 0;
        _exit(weft_launch_mpirun(2, 3, arguments, NULL, &code) == WEFT_OK ? code : 127);
    }
    close(ends[1]);
    FILE *lines = fdopen(ends[0], "r");
    while (lines && fgets(line, sizeof line, lines))
        right = right || !strcmp(line, "weft pair 2 2\n");
    if (lines)
        fclose(lines);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) < 0)
        weft_probe_say(out, WEFT_PROBE_BROKEN, "", "%s", strerror(errno));
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        weft_probe_say(out, WEFT_PROBE_ABSENT, "", "no mpirun on PATH; one rank works without");
    else if (status || !right)
        weft_probe_say(out, WEFT_PROBE_BROKEN, "",
                       "two ranks did not add up a number; --verbose shows what mpirun says");
    else
        weft_probe_say(out, WEFT_PROBE_WORKS, "", "two ranks added up a number");
}

static doctor_nodes_options nodes_options = {.seconds = 60};

static void probe_file_io(weft_probe *out)
{
    weft_probe_file_io(nodes_options.folder ? nodes_options.folder : ".", out);
}

static const struct check {
    const char *name;
    bool required;
    void (*probe)(weft_probe *out);
} checks[] = {
    {"compiler", true, probe_compiler},
    {"CPU", true, probe_cpu},
    {"hwloc", true, weft_probe_hwloc},
    {"oneDNN", true, weft_probe_onednn},
    {"MPI", true, weft_probe_mpi},
    {"mpirun", false, probe_mpirun},
    {"HDF5", true, weft_probe_hdf5},
    {"PCRE2", true, probe_pcre2},
    {"cJSON", true, weft_probe_cjson},
    {"xxHash", true, weft_probe_xxhash},
    {"zlib", true, probe_zlib},
    {"zstd", true, probe_zstd},
    {"huge pages", false, weft_probe_huge_pages},
    {"shared memory", false, weft_probe_shared_memory},
    {"file I/O", false, probe_file_io},
    {"CUDA", false, weft_probe_cuda},
    {"NCCL", false, weft_probe_nccl},
    {"GPU", false, doctor_gpu},
};
enum { NUM_CHECKS = sizeof checks / sizeof checks[0] };

/* Under mpirun or srun every process would take part in the launcher's job; a probe is alone. */
static void leave_launcher(void)
{
    extern char **environ;
    static const char *const prefixes[] = {"OMPI_", "PMIX_", "PMI_", "SLURM_"};
    if (!weft_comm_launched(NULL, NULL, NULL, NULL))
        return;
    for (char **entry = environ; *entry;) {
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        bool drop = false;
        for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
            drop = drop || !strncmp(name, prefixes[i], strlen(prefixes[i]));
        if (!drop || unsetenv(name))
            entry++;
    }
}

static void child_main(const struct check *check, int out, bool verbose)
{
    weft_probe found = {0};
    setpgid(0, 0); /* so that what it starts ends with it */
    alarm(SECONDS_A_PROBE);
    if (!freopen("/dev/null", "r", stdin) || !freopen("/dev/null", "w", stdout) ||
        (!verbose && !freopen("/dev/null", "w", stderr)))
        _exit(1);
    leave_launcher();
    check->probe(&found);
    _exit(write(out, &found, sizeof found) != (ssize_t)sizeof found);
}

/* Runs one probe in a process of its own and says how that process ended if it did not answer. */
static void run_check(const struct check *check, bool verbose, weft_probe *out)
{
    int ends[2], status = 0;
    if (pipe2(ends, O_CLOEXEC)) { /* what a probe starts must not keep it open */
        weft_probe_say(out, WEFT_PROBE_BROKEN, "", "pipe: %s", strerror(errno));
        return;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        child_main(check, ends[1], verbose);
    }
    close(ends[1]);
    ssize_t got = child > 0 ? read(ends[0], out, sizeof *out) : -1; /* small: written at once */
    close(ends[0]);
    if (child < 0 || waitpid(child, &status, 0) < 0) {
        weft_probe_say(out, WEFT_PROBE_BROKEN, "", "%s", strerror(errno));
        return;
    }
    kill(-child, SIGKILL);
    if (got == (ssize_t)sizeof *out)
        return;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        weft_probe_say(out, WEFT_PROBE_BROKEN, "", "no answer in %d s", SECONDS_A_PROBE);
    else if (WIFSIGNALED(status))
        weft_probe_say(out, WEFT_PROBE_BROKEN, "", "crashed: %s", strsignal(WTERMSIG(status)));
    else
        weft_probe_say(out, WEFT_PROBE_BROKEN, "",
                       "ended the process with exit code %d; --verbose shows what it says",
                       WEXITSTATUS(status));
}

static const char *state_text(weft_probe_state state)
{
    return state == WEFT_PROBE_WORKS ? "works" : state == WEFT_PROBE_ABSENT ? "absent" : "broken";
}

typedef struct request {
    bool json, verbose, pair, nodes, local;
    bool names; /* the checks that are asked for, which then have to work */
    bool asked[NUM_CHECKS];
} request;

/* Who asks that it works: Weft, --path or the command line's name; NULL: nobody. */
static const char *who_requires(const request *wanted, const struct check *check)
{
    return check->required                                         ? "Weft needs it"
           : check->probe == probe_file_io && nodes_options.folder ? "--path asks for it"
           : wanted->names                                         ? "it was asked for"
                                                                   : NULL;
}

/* Of a job's several tasks each line names its node: they come out in any order. */
static void report_check(weft_report *r, const struct check *check, const weft_probe *found,
                         const char *required, bool names_node)
{
    const bool lacks = required && found->state != WEFT_PROBE_WORKS;
    weft_report_record(r);
    if (names_node)
        weft_report_cell(r, "node", "%s", own_node);
    weft_report_text(r, "name", "check", check->name);
    weft_report_bool(r, "required", required != NULL);
    weft_report_text(r, "state", "state", state_text(found->state));
    weft_report_cell(r, "version", "%s", *found->version ? found->version : "-");
    weft_report_text(r, "version", NULL, found->version);
    weft_report_cell(r, "note", "%s%s%s%s", found->note, lacks ? " (" : "", lacks ? required : "",
                     lacks ? ")" : "");
    weft_report_text(r, "note", NULL, found->note);
}

static weft_status find_checks(const weft_string_list *given, bool asked[NUM_CHECKS])
{
    const char *names[NUM_CHECKS];
    for (int i = 0; i < NUM_CHECKS; i++) {
        names[i] = checks[i].name;
        asked[i] = given->count == 0;
    }
    for (size_t i = 0; i < given->count; i++) {
        int check = 0;
        while (check < NUM_CHECKS && strcasecmp(given->values[i], names[check]))
            check++;
        if (check == NUM_CHECKS) {
            const char *near = weft_nearest_name(given->values[i], names, NUM_CHECKS);
            return WEFT_ERROR(WEFT_CONFIG, "%.60s: no such check%s%s%s", given->values[i],
                              near ? "; did you mean " : "; weft doctor lists them",
                              near ? near : "", near ? "?" : "");
        }
        asked[check] = true;
    }
    return WEFT_OK;
}

/* What is of --nodes, and what is not. */
static weft_status check_nodes(const request *given, bool names, int device)
{
    doctor_nodes_options *o = &nodes_options;
    if (given->nodes && names)
        return WEFT_ERROR(WEFT_CONFIG, "--nodes measures: a check's name is of checks");
    o->is_shared = o->folder && !given->local;
    if (given->nodes && !o->folder)
        o->folder = ".";
    if (o->factor == 0)
        o->factor = weft_reliability_default_factor();
    o->on_gpu = device == 1;
    o->json = given->json;
    return WEFT_OK;
}

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, request *out)
{
    static const char *const devices[] = {"cpu", "cuda"};
    int device = -1;
    weft_string_list given;
    weft_arena arena = {0};
    const weft_argument rows[] = {
        FLAG("json", &out->json, "the same as one JSON object"),
        FLAG("verbose", &out->verbose, "let the libraries print what they have to say",
             .excludes = "nodes"),
        TEXT("path", "FOLDER", &nodes_options.folder,
             "where file I/O has to work, such as RUN (.); with --nodes: one folder of all nodes"),
        FLAG("nodes", &out->nodes,
             "compare all ranks and nodes instead, under mpirun or srun as training is started"),
        FLAG("local", &out->local,
             "with --nodes: FOLDER is of each node's own disk, as of offloaded experts",
             .needs = "nodes"),
        REAL("factor", "N", &nodes_options.factor, 1.01, 1e6, NULL,
             "with --nodes: so many times worse than the others' median is odd (1.5)",
             .needs = "nodes"),
        REAL("seconds", "S", &nodes_options.seconds, 2, 3600, "s",
             "with --nodes: the most in all; what does not answer by then ends it",
             .needs = "nodes"),
        NAMED("device", "NAME", &device, devices, 2, "with --nodes: cpu or cuda, what computes",
              .needs = "nodes"),
        FLAG("pair", &out->pair, "what doctor starts under mpirun: two ranks add up a number"),
    };
    const weft_arguments verb = {
        .verb = "doctor",
        .operands = "[NAME...]",
        .given = &given,
        .about = "Says what this machine has for Weft, tries each thing, and exits with 0 when all "
                 "that is required\nworks, else with 4. NAME: only these, as the first column has "
                 "them, and all of them are required.\nUnder mpirun or srun the first rank of each "
                 "node does so for its node. With --nodes it measures what\nall ranks compute and "
                 "copy, the links between nodes and their disks, and exits with 4 when one is "
                 "odd.\n",
        ROWS_OF(rows)};
    int code = weft_arguments_parse(&verb, argc, argv, &arena);
    if (code < 0 && (find_checks(&given, out->asked) != WEFT_OK ||
                     check_nodes(out, given.count > 0, device) != WEFT_OK))
        code = weft_verb_fail_apart("doctor");
    out->names = given.count > 0;
    weft_arena_release(&arena);
    return code;
}

/* A mistake in the command, and no fault of the machine. */
static weft_status check_path(bool names_node)
{
    struct stat status;
    const char *folder = nodes_options.folder;
    if (!folder)
        return WEFT_OK;
    if (stat(folder, &status) == 0) {
        if (S_ISDIR(status.st_mode))
            return WEFT_OK;
        errno = ENOTDIR;
    }
    return WEFT_ERROR(WEFT_CONFIG, "--path %.200s%s%s: %s", folder, names_node ? " on " : "",
                      names_node ? own_node : "",
                      errno == ENOENT ? "there is no such folder" : strerror(errno));
}

/* Returns the exit code. */
static int doctor_checks(const request *wanted, bool names_node)
{
    bool healthy = true, needs_it = false;
    weft_report report;
    weft_report_begin(&report, wanted->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_report_text(&report, "weft", NULL, WEFT_VERSION);
    weft_report_text(&report, "node", NULL, own_node);
    weft_report_open(&report, WEFT_REPORT_TABLE, "checks");
    for (int i = 0; i < NUM_CHECKS; i++) {
        if (!wanted->asked[i])
            continue;
        weft_probe found = {0};
        run_check(&checks[i], wanted->verbose, &found);
        const char *required = who_requires(wanted, &checks[i]);
        const bool works = found.state == WEFT_PROBE_WORKS;
        healthy = healthy && (works || !required);
        needs_it = needs_it || (!works && checks[i].required);
        report_check(&report, &checks[i], &found, required, names_node);
    }
    weft_report_close(&report);
    weft_report_bool(&report, "healthy", healthy);
    weft_report_line(&report, "%s%s%s", names_node ? own_node : "", names_node ? ": " : "",
                     !healthy        ? needs_it ? "Something that Weft needs is missing."
                                                : "Something that was asked for is missing."
                     : wanted->names ? "All that was asked for works."
                                     : "All that Weft needs works.");
    if (weft_report_end(&report, WEFT_OK, stdout) != WEFT_OK)
        return weft_verb_fail("doctor");
    return healthy ? 0 : weft_status_exit_code(WEFT_DEVICE);
}

int weft_verb_doctor(int argc, char **argv, const weft_verb_given *given)
{
    (void)given;
    request wanted = {0};
    int code = parse(argc, argv, &wanted);
    if (code >= 0)
        return code;
    if (wanted.pair)
        return pair_main();
    if (wanted.nodes)
        return doctor_nodes(&nodes_options);
    int num_ranks = 1, local_rank = 0;
    if (weft_comm_launched(NULL, &num_ranks, &local_rank, NULL) && local_rank != 0)
        return 0; /* one report a node is enough */
    find_own_node();
    if (check_path(num_ranks > 1) != WEFT_OK)
        return weft_verb_fail("doctor");
    return doctor_checks(&wanted, num_ranks > 1);
}
