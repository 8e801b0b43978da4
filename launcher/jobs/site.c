/* What a site wants of every job: lines before the program, variables, a network, files of output.
 */
#include <ctype.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/jobs/internal.h"

bool weft_job_is_word(const char *text, const char *marks)
{
    if (*text == '-') /* it would be an option */
        return false;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c >= 128 || (!isalnum(*c) && !strchr(marks, *c)))
            return false;
    return *text != '\0';
}

/* A name that a shell gives a variable. */
static weft_status check_variable(const char *text)
{
    const size_t length = strcspn(text, "=");
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] >= 128 || (!isalnum((unsigned char)text[i]) && text[i] != '_'))
            return WEFT_ERROR(WEFT_CONFIG, "--env %.60s: no name of a variable", text);
    if (length == 0 || isdigit((unsigned char)*text))
        return WEFT_ERROR(WEFT_CONFIG, "--env %.60s: no name of a variable", text);
    if (text[length] && strncmp(text, "SLURM_", 6) == 0)
        return WEFT_ERROR(WEFT_CONFIG, "--env %.60s: Slurm sets it, and the job asks by it", text);
    if (strncmp(text, "PATH=", 5) == 0)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--env %.60s: the job's launcher is found by it; a file for --setup can "
                          "export it",
                          text);
    return WEFT_OK;
}

static weft_status check_environment(const weft_string_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        const char *text = list->values[i];
        const size_t length = strcspn(text, "=");
        WEFT_TRY(check_variable(text));
        for (size_t k = 0; k < i; k++)
            if (strncmp(list->values[k], text, length) == 0 &&
                strcspn(list->values[k], "=") == length && strcmp(list->values[k], text) != 0)
                return WEFT_ERROR(WEFT_CONFIG, "--env %.60s: given twice, with \"%.60s\"", text,
                                  list->values[k]);
    }
    return WEFT_OK;
}

/* What bash says of a file that it would not read: its line of the file, cut to `capacity`. Empty
 * where it would, or is not here. */
static void find_fault(const char *file, char *out, size_t capacity)
{
    char *const words[] = {(char *)"bash", (char *)"-n", (char *)(uintptr_t)file, NULL};
    posix_spawn_file_actions_t actions;
    char line[4400]; /* PATH_MAX and more */
    int ends[2], code = 0;
    pid_t child;
    *out = '\0';
    if (pipe(ends) != 0)
        return;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    const bool runs = posix_spawnp(&child, *words, &actions, NULL, words, environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    FILE *said = fdopen(ends[0], "r");
    while (said && fgets(line, sizeof line, said)) /* a warning of the locale may come first */
        if (!*out && strncmp(line, file, strlen(file)) == 0)
            snprintf(out, capacity, "%.*s", (int)strcspn(line, "\n"), line);
    if (said)
        fclose(said);
    else
        close(ends[0]);
    if (!runs || waitpid(child, &code, 0) != child || code == 0)
        *out = '\0';
}

static weft_status check_setup(const weft_job *job)
{
    char fault[300];
    if (!job->setup)
        return WEFT_OK;
    find_fault(job->setup, fault, sizeof fault);
    return *fault ? WEFT_ERROR(WEFT_CONFIG, "--setup: bash cannot read it: %s", fault) : WEFT_OK;
}

weft_status weft_job_check_site(const weft_job *job)
{
    WEFT_TRY(check_setup(job));
    WEFT_TRY(check_environment(&job->environment));
    if (job->interface && !weft_job_is_word(job->interface, "._-,"))
        return WEFT_ERROR(WEFT_CONFIG, "--interface %.60s: no name of a network interface",
                          job->interface);
    if (job->rank_output && strpbrk(job->run, "%\\:\n"))
        return WEFT_ERROR(WEFT_CONFIG,
                          "--rank-output: launchers take no file of a rank in %.200s, whose name "
                          "has a %%, \\, colon or newline",
                          job->run);
    return WEFT_OK;
}

/* The lines run in a shell of their own, which hands back at its very end what ranks get: its
 * environment, umask and limits, or what is wrong. Where it hands nothing back, another program
 * took its place, or a signal ended it. The trap EXIT meets DEBUG once more: the line before is the
 * one that ended it. A signal is remembered until there are ranks. */
static const char setting_up[] =
    "trap 'weft_asked=TERM' TERM\n"
    "for weft_name in USR1 INT HUP; do\n"
    "    trap \"weft_asked=\\${weft_asked:-$weft_name}\" \"$weft_name\"\n"
    "done\n"
    "weft_env=$(type -P env) weft_prlimit=$(type -P prlimit)\n"
    "weft_limits() { \"$weft_prlimit\" --raw --noheadings --output RESOURCE,SOFT,HARD; }\n"
    "weft_fail() {\n"
    "    printf %s \"$1\" >|\"$weft_back\"\n"
    "    exit 2\n"
    "}\n"
    "weft_had=$(weft_limits) weft_back=$(mktemp) || exit 6\n"
    "(\n"
    "    bash -n -- \"$weft_setup\" || weft_fail ': bash cannot read it'\n"
    "    trap : USR1 INT HUP TERM\n"
    "    trap '[[ ${BASH_SOURCE[0]} != \"$weft_setup\" ]] || weft_was=$weft_line "
    "weft_line=$LINENO' "
    "DEBUG\n"
    "    trap 'weft_code=$? weft_end=$weft_was; trap - DEBUG EXIT\n"
    "weft_fail \":$weft_end: it exits with $weft_code, where its last line should be reached\"' "
    "EXIT\n"
    "    set -T\n"
    "    . \"$weft_setup\"\n"
    "    weft_code=$?\n"
    "    trap - DEBUG EXIT RETURN ERR\n"
    "    set +eu\n"
    "    [ \"$weft_code\" -eq 0 ] || weft_fail \":$weft_line: its last command failed with "
    "$weft_code\"\n"
    "    builtin type -P \"$weft_starter\" >/dev/null || weft_fail \": its PATH has no "
    "$weft_starter\"\n"
    "    { \"$weft_env\" -0; printf '%s\\0' \"$(umask)\" \"$(weft_limits)\"; } >|\"$weft_back\"\n"
    ")\n"
    "weft_code=$?\n"
    "mapfile -d '' -t environment <\"$weft_back\"\n"
    "rm -f -- \"$weft_back\"\n"
    "weft_count=$((${#environment[@]} - 2))\n"
    "if [ \"$weft_count\" -lt 1 ]; then\n"
    "    echo \"weft: $weft_setup${environment:-: exec or a signal ended it ($weft_code) before "
    "its "
    "last line}: the job is not started\" >&2\n"
    "    exit 2\n"
    "fi\n"
    "umask \"${environment[weft_count]}\"\n"
    "if [ \"${environment[weft_count + 1]}\" != \"$weft_had\" ]; then\n"
    "    while read -r weft_name weft_soft weft_hard; do\n"
    "        prlimit --pid $$ \"--${weft_name,,}=$weft_soft:$weft_hard\" || exit\n"
    "    done <<<\"${environment[weft_count + 1]}\"\n"
    "fi\n"
    "environment=(-i \"${environment[@]:0:weft_count}\" \"PWD=$PWD\")\n";

/* The job's commands keep the environment that they found, and use variables of any name: what
 * ranks get stands in an array. */
void weft_job_print_setup(const weft_job *job, const char *setup, FILE *out)
{
    if (setup) {
        fprintf(out,
                "weft_starter=%s weft_setup=", job->kind == WEFT_JOB_SLURM ? "srun" : "mpirun");
        weft_shell_word(setup, out);
        fputc('\n', out);
        if (job->kind != WEFT_JOB_SLURM) /* srun passes all on */
            fputs("declare -A weft_before\n"
                  "while IFS= read -r -d '' weft_pair; do weft_before[$weft_pair]=1; done < <(env "
                  "-0)\n",
                  out);
        fputs(setting_up, out);
    } else {
        fputs("mapfile -d '' -t environment < <(env -0)\n"
              "environment=(-i \"${environment[@]}\")\n",
              out);
    }
    for (size_t i = 0; i < job->environment.count; i++) {
        if (!strchr(job->environment.values[i], '='))
            continue;
        fputs("environment+=(", out);
        weft_shell_word(job->environment.values[i], out);
        fputs(")\n", out);
    }
    if (job->interface)
        fprintf(out,
                "environment+=(NCCL_SOCKET_IFNAME='=%s' FI_TCP_IFACE=%s "
                "OMPI_MCA_btl_tcp_if_include=%s OMPI_MCA_oob_tcp_if_include=%s)\n",
                job->interface, job->interface, job->interface, job->interface);
    fputs(weft_job_passing, out);
}

/* Open MPI itself passes its own variables on, OMPI_MCA_* among them. */
void weft_job_print_passed(const weft_job *job, FILE *out)
{
    fputs("while IFS= read -r -d '' pair; do\n"
          "    name=${pair%%=*}\n"
          "    case $name in\n"
          "    PATH | LD_LIBRARY_PATH | WEFT_* | CUDA_* | NCCL_* | UCX_* | FI_* | OMP_*",
          out);
    for (size_t i = 0; i < job->environment.count; i++) {
        const char *text = job->environment.values[i];
        fprintf(out, " | %.*s", (int)strcspn(text, "="), text);
    }
    fputs(") ;;\n", out);
    if (job->setup)
        fputs("    _ | PWD | OLDPWD | SHLVL | OMPI_* | PMIX_* | *%%) continue ;;\n"
              "    *) if [ -n \"${weft_before[$pair]-}\" ]; then continue; fi ;;\n",
              out);
    else
        fputs("    *) continue ;;\n", out);
    fputs("    esac\n"
          "    options+=(-x \"$name\")\n"
          "done < <(env -0 \"${environment[@]}\")\n",
          out);
    if (job->rank_output)
        fputs("options+=(--output-filename \"$run/ranks\")\n", out);
}
