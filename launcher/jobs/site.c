/* What a site wants of every job: lines before the program, variables, a network, files of output.
 */
#include <ctype.h>
#include <string.h>

#include "launcher/jobs/internal.h"

bool weft_job_is_word(const char *text, const char *marks)
{
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
    return WEFT_OK;
}

weft_status weft_job_check_site(const weft_job *job)
{
    for (size_t i = 0; i < job->environment.count; i++)
        WEFT_TRY(check_variable(job->environment.values[i]));
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

void weft_job_print_setup(const weft_job *job, const char *setup, FILE *out)
{
    if (setup && job->kind != WEFT_JOB_SLURM) /* srun passes all on */
        fputs("declare -A before\n"
              "for name in $(compgen -e); do before[$name]=${!name}; done\n",
              out);
    if (setup) {
        fputs("setup=", out);
        weft_shell_word(setup, out);
        fputs("\n"
              "if ! . \"$setup\"; then\n"
              "    echo \"weft: $setup: its last line failed\" >&2\n"
              "    exit 2\n"
              "fi\n",
              out);
    }
    for (size_t i = 0; i < job->environment.count; i++) {
        const char *text = job->environment.values[i], *value = strchr(text, '=');
        if (!value)
            continue;
        fprintf(out, "export %.*s", (int)(value + 1 - text), text);
        weft_shell_word(value + 1, out);
        fputc('\n', out);
    }
    if (job->interface)
        fprintf(out,
                "export NCCL_SOCKET_IFNAME='=%s' FI_TCP_IFACE=%s OMPI_MCA_btl_tcp_if_include=%s "
                "OMPI_MCA_oob_tcp_if_include=%s\n",
                job->interface, job->interface, job->interface, job->interface);
}

/* Open MPI itself passes its own variables on, OMPI_MCA_* among them. */
void weft_job_print_passed(const weft_job *job, FILE *out)
{
    fputs("for name in $(compgen -e); do\n"
          "    case $name in\n"
          "    PATH | LD_LIBRARY_PATH | WEFT_* | CUDA_* | NCCL_* | UCX_* | FI_* | OMP_*",
          out);
    for (size_t i = 0; i < job->environment.count; i++) {
        const char *text = job->environment.values[i];
        fprintf(out, " | %.*s", (int)strcspn(text, "="), text);
    }
    fputs(") ;;\n", out);
    if (job->setup)
        fputs("    _ | PWD | OLDPWD | SHLVL | OMPI_* | PMIX_*) continue ;;\n"
              "    *) if [ \"${before[$name]-}\" = \"${!name}\" ]; then continue; fi ;;\n",
              out);
    else
        fputs("    *) continue ;;\n", out);
    fputs("    esac\n"
          "    options+=(-x \"$name\")\n"
          "done\n",
          out);
    if (job->rank_output)
        fputs("options+=(--output-filename \"$run/ranks\")\n", out);
}
