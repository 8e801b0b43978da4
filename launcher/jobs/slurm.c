/* Slurm: a batch script that stops before its time is over, and queues itself again. */
#include "launcher/jobs/job_internal.h"
#include "launcher/jobs/quote.h"

static void print_options(const weft_job *job, FILE *out)
{
    char name[WEFT_JOB_NAME_BYTES];
    weft_job_name(job->run, name);
    fprintf(out,
            "#SBATCH --job-name=%s\n"
            "#SBATCH --nodes=%d\n"
            "#SBATCH --ntasks-per-node=%d\n",
            name, job->num_nodes, job->ranks_per_node);
    if (job->gpus_per_node > 0)
        fprintf(out, "#SBATCH --gpus-per-node=%d\n", job->gpus_per_node);
    if (job->num_threads > 0)
        fprintf(out, "#SBATCH --cpus-per-task=%d\n", job->num_threads);
    if (job->whole_nodes)
        fprintf(out, "#SBATCH --exclusive\n");
    if (job->time)
        fprintf(out, "#SBATCH --time=%s\n", job->time);
    fprintf(out,
            "#SBATCH --signal=B:USR1@%d\n"
            "#SBATCH --requeue\n"
            "#SBATCH --open-mode=append\n",
            job->stop_s);
}

/* Ranks that end last may be killed by srun as soon as the first has ended with 75. */
static const char after[] =
    "# 75: stopped as asked, and saved. Cancelled jobs stay so.\n"
    "if [ \"$asked\" = TERM ]; then exit \"$code\"; fi\n"
    "if [ \"$code\" -eq 75 ] || { [ -n \"$asked\" ] && [ \"$code\" -ge 128 ]; }; then\n"
    "    exec scontrol requeue \"$SLURM_JOB_ID\"\n"
    "fi\n"
    "exit \"$code\"\n";

void weft_job_print_slurm(const weft_job *job, FILE *out)
{
    fprintf(out, "#!/usr/bin/env bash\n");
    print_options(job, out);
    fprintf(out,
            "# Starts the run, or goes on with it. %d s before its time is over it stops, "
            "saves and queues itself again.\n"
            "cd --",
            job->stop_s);
    weft_job_shell_word(job->folder, out);
    /* Slurm's USR1 is for the batch shell alone. */
    fprintf(out, " || exit\n%s", weft_job_passing);
    if (job->max_restarts > 0) {
        weft_job_print_again(job, out);
        fprintf(out, "while :; do\n");
    }
    fprintf(out, "srun --mpi=pmix --kill-on-bad-exit=1 --distribution=block --cpu-bind=none");
    if (job->num_threads > 0)
        fprintf(out, " --cpus-per-task=%d", job->num_threads);
    fprintf(out, " \\\n   ");
    weft_job_words(job, weft_job_shell_word, out);
    fprintf(out, " &\n%s", weft_job_waiting);
    if (job->max_restarts > 0)
        fprintf(out, "if ! again; then break; fi\ndone\n");
    fputs(after, out);
}
