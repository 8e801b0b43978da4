/* weft doctor: one screen that says what this machine has and whether it works. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "comm/comm.h"
#include "comm/probe.h"
#include "core/options/options.h"
#include "core/probe.h"
#include "kernels/kernels.h"
#include "kernels/probe.h"
#include "launcher/arguments/arguments.h"
#include "launcher/planning/reliability.h"
#include "launcher/process/launch.h"
#include "launcher/report/report.h"
#include "launcher/verbs/measure/doctor.h"
#include "launcher/verbs/measure/measure.h"
#include "parallel/probe.h"
#include "parallel/topology/topology.h"

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

static weft_doctor_nodes_options nodes_options = {.folder = ".", .seconds = 60};

static void probe_file_io(weft_probe *out)
{
    weft_probe_file_io(nodes_options.folder, out);
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
    {"huge pages", false, weft_probe_huge_pages},
    {"shared memory", false, weft_probe_shared_memory},
    {"file I/O", false, probe_file_io},
    {"CUDA", false, weft_probe_cuda},
    {"NCCL", false, weft_probe_nccl},
    {"GPU", false, weft_doctor_gpu},
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

static void report_check(weft_report *r, const struct check *check, const weft_probe *found)
{
    const bool lacks = check->required && found->state != WEFT_PROBE_WORKS;
    weft_report_record(r);
    weft_report_text(r, "name", "check", check->name);
    weft_report_bool(r, "required", check->required);
    weft_report_text(r, "state", "state", state_text(found->state));
    weft_report_cell(r, "version", "%s", *found->version ? found->version : "-");
    weft_report_text(r, "version", NULL, found->version);
    weft_report_cell(r, "note", "%s%s", found->note, lacks ? " (Weft needs it)" : "");
    weft_report_text(r, "note", NULL, found->note);
}

typedef struct request {
    bool json, verbose, pair, nodes;
    bool asked[NUM_CHECKS];
} request;

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
                              near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
        }
        asked[check] = true;
    }
    return WEFT_OK;
}

/* What is of --nodes, and what is not. */
static weft_status check_nodes(const request *given, bool names, int device)
{
    weft_doctor_nodes_options *o = &nodes_options;
    if (given->nodes && (names || given->verbose))
        return WEFT_ERROR(WEFT_CONFIG, "--nodes measures: %s is of checks",
                          names ? "a check's name" : "--verbose");
    if (!given->nodes && (o->factor > 0 || device >= 0))
        return WEFT_ERROR(WEFT_CONFIG, "--%s is of --nodes", device >= 0 ? "device" : "factor");
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
        {"json", NULL, "the same as one JSON object", .flag = &out->json},
        {"verbose", NULL, "let the libraries print what they have to say", .flag = &out->verbose},
        {"path", "FOLDER", "where file I/O is tried or measured, such as that of offloaded experts",
         .text = &nodes_options.folder},
        {"nodes", NULL,
         "compare all ranks and nodes instead, under mpirun or srun as training is started",
         .flag = &out->nodes},
        {"factor", "N", "with --nodes: so many times worse than the others' median is odd (1.5)",
         .number = &nodes_options.factor, .min = 1.01, .max = 1e6},
        {"seconds", "S", "with --nodes: the most in all; what does not answer by then ends it",
         .number = &nodes_options.seconds, .min = 2, .max = 3600},
        {"device", "NAME", "with --nodes: cpu or cuda, what computes", .choice = &device,
         .names = devices, .num_names = 2},
        {"pair", NULL, "what doctor starts under mpirun: two ranks add up a number",
         .flag = &out->pair},
    };
    const weft_arguments verb = {
        .verb = "doctor",
        .operands = "[NAME...]",
        .given = &given,
        .about = "Says what this machine has for Weft, tries each thing, and exits with 0 when all "
                 "that is required\nworks, else with 4. NAME: only these, as the first column has "
                 "them. With --nodes it measures what all\nranks compute and copy, the links "
                 "between nodes and their disks, and exits with 4 when one is odd.\n",
        .rows = rows,
        .num_rows = sizeof rows / sizeof *rows};
    int code = weft_arguments_parse(&verb, argc, argv, &arena);
    if (code < 0 && (find_checks(&given, out->asked) != WEFT_OK ||
                     check_nodes(out, given.count > 0, device) != WEFT_OK)) {
        int rank = 0;
        weft_comm_launched(&rank, NULL, NULL, NULL);
        code = rank == 0 ? weft_verb_fail("doctor") : weft_status_exit_code(WEFT_CONFIG);
    }
    weft_arena_release(&arena);
    return code;
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
        return weft_doctor_nodes(&nodes_options);
    int rank = 0;
    if (weft_comm_launched(&rank, NULL, NULL, NULL) && rank != 0)
        return 0; /* one report is enough */

    bool healthy = true;
    weft_report report;
    weft_report_begin(&report, wanted.json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_report_text(&report, "weft", NULL, WEFT_VERSION);
    weft_report_open(&report, WEFT_REPORT_TABLE, "checks");
    for (int i = 0; i < NUM_CHECKS; i++) {
        if (!wanted.asked[i])
            continue;
        weft_probe found = {0};
        run_check(&checks[i], wanted.verbose, &found);
        healthy = healthy && (found.state == WEFT_PROBE_WORKS || !checks[i].required);
        report_check(&report, &checks[i], &found);
    }
    weft_report_close(&report);
    weft_report_bool(&report, "healthy", healthy);
    weft_report_line(&report, healthy ? "All that Weft needs works."
                                      : "Something that Weft needs is missing.");
    if (weft_report_end(&report, WEFT_OK, stdout) != WEFT_OK)
        return weft_verb_fail("doctor");
    return healthy ? 0 : weft_status_exit_code(WEFT_DEVICE);
}
