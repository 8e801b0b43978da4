/* Slurm: a batch script that stops before its time is over, and queues itself again. */
#include <string.h>

#include "launcher/jobs/internal.h"

/* In the run's folder, where Slurm's words for such a path are sure. */
static void print_output(const weft_job *job, FILE *out)
{
    if (strpbrk(job->run, "\"\\\n"))
        return;
    fprintf(out, "#SBATCH --output=\"");
    for (const char *c = job->run; *c; c++)
        fprintf(out, *c == '%' ? "%%%%" : "%c", *c);
    fprintf(out, "/slurm-%%j.out\"\n");
}

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
    print_output(job, out);
}

/* Slurm's own patience with a cancelled job is KillWait. */
static void print_warning(const weft_job *job, FILE *out)
{
    if (job->stop_s <= 30)
        return;
    fprintf(out,
            "trap 'echo \"weft: cancelled: Slurm kills it after KillWait (30 s), whatever "
            "train.stop_timeout_s (%d s) says; scancel --batch --signal=INT $SLURM_JOB_ID gives it "
            "the time to save\" >&2; pass_on TERM' TERM\n",
            job->stop_s);
}

/* srun waits for a node that is gone until Slurm takes it for down (SlurmdTimeout, 300 s and more).
 */
static const char watching[] =
    "# Once the watchdog has ended a step, nothing waits for who is missing: ranks that have "
    "not ended 5 s later are\n"
    "# killed; a srun that then does not end within 10 s waits for a node that is gone.\n"
    "watch() {\n"
    "    local end= over=\n"
    "    while sleep 1 && kill -0 \"$1\" 2>/dev/null; do\n"
    "        if [ -z \"$end\" ] && judged; then\n"
    "            end=$((SECONDS + 5)) over=$((SECONDS + 15))\n"
    "        elif [ -n \"$end\" ] && [ $SECONDS -ge $over ]; then\n"
    "            kill -KILL \"$1\"\n"
    "            return 3\n"
    "        elif [ -n \"$end\" ] && [ $SECONDS -ge $end ]; then\n"
    "            end=$over\n"
    "            kill_steps &\n"
    "        fi\n"
    "    done\n"
    "    return 0\n"
    "}\n"
    "kill_steps() {\n"
    "    local step\n"
    "    for step in $(squeue --noheader --steps --jobs=\"$SLURM_JOB_ID\" --format=%i "
    "2>/dev/null); do\n"
    "        if [[ $step != *.batch && $step != *.extern ]]; then\n"
    "            scancel --signal=KILL \"$step\" 2>/dev/null\n"
    "        fi\n"
    "    done\n"
    "}\n"
    "# Queues the job again without the nodes that the verdict names. Slurm would hold it "
    "back until it knows that\n"
    "# they are gone: they leave the job first.\n"
    "requeue_without() {\n"
    "    local name bad out= others= i\n"
    "    trap '' TERM USR1\n"
    "    for name in $(scontrol show hostnames \"$SLURM_JOB_NODELIST\"); do\n"
    "        for bad in $(named nodes | tr , ' ') ''; do\n"
    "            if [[ $bad == \"$name\" || $bad == \"$name\".* || $name == \"$bad\".* ]]; "
    "then break; fi\n"
    "        done\n"
    "        if [ -n \"$bad\" ]; then out+=,$name; else others+=,$name; fi\n"
    "    done\n"
    "    echo \"weft: no end of the step on ${out:1}: the job is queued again without "
    "(scontrol update JobId=$SLURM_JOB_ID ExcNodeList= lets it back)\" >&2\n"
    "    cd -- \"${TMPDIR:-/tmp}\"\n"
    "    if [ -n \"$out\" ] && [ -n \"$others\" ]; then\n"
    "        scontrol update JobId=\"$SLURM_JOB_ID\" ReqNodeList=\"${others:1}\" >/dev/null\n"
    "        rm -f \"slurm_job_${SLURM_JOB_ID}_resize.sh\" "
    "\"slurm_job_${SLURM_JOB_ID}_resize.csh\"\n"
    "    fi\n"
    "    scontrol requeue \"$SLURM_JOB_ID\"\n"
    "    # Slurm may need a moment; silent nodes it leaves out itself.\n"
    "    for ((i = 0; i < 20; i++)); do\n"
    "        if scontrol update JobId=\"$SLURM_JOB_ID\" ExcNodeList=\"${out:1}\" "
    "2>/dev/null; then break; fi\n"
    "        sleep 1\n"
    "    done\n"
    "}\n";

/* Of a node that lost its power and is up again before Slurm calls it down, Slurm keeps the old
 * step's place for good, and srun waits for it; on one that is still silent srun's launch fails.
 * Slurm ends such steps with the job, and starts it where nodes answer. */
static const char requeueing[] =
    "# srun's own exit codes: 76 where a start that is not the first gets no place for 120 s, 233 "
    "where a node does\n"
    "# not answer. The job is queued again, five times at most without a new step.\n"
    "cannot_start() { [ \"$code\" -eq 76 ] || [ \"$code\" -eq 233 ]; }\n"
    "requeue_unstarted() {\n"
    "    local at times why\n"
    "    at=\"$SLURM_JOB_ID $(last_step)\"\n"
    "    why=\"weft: srun cannot start the ranks after step ${at#* }\"\n"
    "    times=$(cat -- \"$run/.requeued\" 2>/dev/null | grep -cx \"$at\")\n"
    "    if [ \"$times\" -ge 5 ] || ! echo \"$at\" >>\"$run/.requeued\"; then\n"
    "        echo \"$why, and the job was queued again $times times\" >&2\n"
    "        exit 5\n"
    "    fi\n"
    "    echo \"$why: the job is queued again ($((times + 1)) of 5)\" >&2\n"
    "    exec scontrol requeue \"$SLURM_JOB_ID\"\n"
    "}\n";

/* Slurm's other way (of 22.05) lets a node's ranks out of a fence without data before other nodes'
 * ranks have come: out of MPI_Init, while those still wait in its first fence. What they send then
 * meets no receiver, and Open MPI 4.1 calls NULL. */
static const char fencing[] = "export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}\n";

/* Ranks that end last may be killed by srun as soon as the first has ended with 75. */
static const char after[] =
    "wait \"$watcher\"\n"
    "gone=$?\n"
    "if [ \"$code\" -gt 128 ] && judged; then code=9; fi\n"
    "if [ -z \"$asked\" ] && [ \"$gone\" -eq 3 ]; then\n"
    "    requeue_without\n"
    "    exit \"$code\"\n"
    "fi\n"
    "if cannot_start; then\n"
    "    if [ -z \"$asked\" ]; then requeue_unstarted; fi\n"
    "    code=75\n"
    "fi\n"
    "if ! again; then break; fi\n"
    "# Ranks whose srun was killed train on: nobody hears them, or can ask them to stop.\n"
    "kill_steps\n"
    "limit=120\n"
    "export SLURM_EXIT_ERROR=76\n"
    "done\n"
    "# 75: stopped as asked, and saved. Slurm asks by USR1; whom its user asked to stop stays so.\n"
    "case \"$asked\" in TERM | INT | HUP) exit \"$code\" ;; esac\n"
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
    print_warning(job, out);
    fprintf(out, "run=");
    weft_shell_word(job->run, out);
    fprintf(out, "\n%s%s%s", weft_job_judging, watching, requeueing);
    weft_job_print_again(job, out);
    fputs(fencing, out);
    if (job->apptainer)
        fputs(weft_job_container_setting, out);
    fprintf(out, "limit=\nwhile :; do\nprepare\n"
                 "srun --mpi=pmix --kill-on-bad-exit=1 --distribution=block --cpu-bind=none "
                 "${limit:+--immediate=$limit}");
    if (job->num_threads > 0)
        fprintf(out, " --cpus-per-task=%d", job->num_threads);
    weft_job_print_container(job, out);
    fprintf(out, " \\\n   ");
    weft_job_words(job, weft_job_shell_word, out);
    fprintf(out, " &\njob=$!\nwatch \"$job\" &\nwatcher=$!\n%s%s", weft_job_waiting, after);
}
