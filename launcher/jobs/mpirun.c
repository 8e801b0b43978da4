/* Open MPI's mpirun: a file of hosts and a script. */
#include <string.h>

#include "launcher/jobs/job_internal.h"

void weft_job_print_hosts(const weft_job *job, FILE *out)
{
    if (job->hosts) {
        for (const char *name = job->hosts; name;) {
            const int length = (int)strcspn(name, ",");
            fprintf(out, "%.*s slots=%d\n", length, name, job->ranks_per_node);
            name = name[length] ? name + length + 1 : NULL;
        }
    } else if (job->num_nodes == 1) {
        fprintf(out, "localhost slots=%d\n", job->ranks_per_node);
    } else {
        fprintf(out, "# Put the names of your nodes here.\n");
        for (int i = 0; i < job->num_nodes; i++)
            fprintf(out, "node%d slots=%d\n", i, job->ranks_per_node);
    }
}

/* Ranks are unbound: each takes its share of its node's cores (device.num_threads). */
void weft_job_print_mpirun(const weft_job *job, FILE *out)
{
    fprintf(
        out,
        "#!/usr/bin/env bash\n"
        "# Starts the run, or goes on with it. SIGTERM, SIGUSR1, SIGHUP and Ctrl-C make it stop "
        "and save.\n"
        "cd --");
    weft_job_shell_word(job->folder, out);
    fprintf(out, " || exit\n"
                 "options=()\n"
                 "if [ \"$(id -u)\" -eq 0 ]; then options+=(--allow-run-as-root); fi\n"
                 "for name in PATH LD_LIBRARY_PATH \"${!WEFT_@}\" \"${!CUDA_@}\" \"${!NCCL_@}\"; "
                 "do\n"
                 "    if [ -n \"${!name+given}\" ]; then options+=(-x \"$name\"); fi\n"
                 "done\n");
    /* In a group of its own: a terminal's signals reach the script alone. */
    fprintf(out, "%sset -m\n", weft_job_passing);
    fprintf(out, "mpirun -n %d --hostfile", job->num_nodes * job->ranks_per_node);
    weft_job_shell_word(job->run, out);
    fprintf(out, "/%s --map-by ppr:%d:node --bind-to none \"${options[@]}\" \\\n   ",
            weft_job_file_name(WEFT_JOB_MPIRUN, 0), job->ranks_per_node);
    weft_job_words(job, weft_job_shell_word, out);
    fprintf(out, " </dev/null &\n");
    fprintf(out, "%sexit \"$code\"\n", weft_job_waiting);
}
