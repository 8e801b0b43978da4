/* Slurm: a batch script that stops before its time is over, and queues itself again. */
#include <stdlib.h>
#include <string.h>

#include "launcher/jobs/internal.h"

/* --- what Slurm takes ---------------------------------------------------------------------- */

/* One or two digits below `end`; then `after`, or the end of the text, where *text stays. */
static bool read_part(const char **text, int end, char after, int64_t *out)
{
    const size_t digits = strspn(*text, "0123456789");
    if (digits < 1 || digits > 2 || ((*text)[digits] && (*text)[digits] != after))
        return false;
    *out = atoi(*text);
    *text += digits + ((*text)[digits] && after);
    return *out < end;
}

/* MM, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS, where the first number may be large. */
static bool read_time(const char *text, int64_t *out_s)
{
    int64_t first, hours = 0, minutes = 0, seconds = 0;
    const size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 6)
        return false;
    first = atoi(text);
    text += digits;
    if (*text == '\0') {
        *out_s = first * 60;
        return true;
    }
    const bool has_days = *text++ == '-';
    if (!has_days && text[-1] != ':')
        return false;
    if (has_days && !read_part(&text, 24, ':', &hours))
        return false;
    if ((!has_days || *text) && !read_part(&text, 60, ':', &minutes))
        return false;
    if ((!has_days || *text) && !read_part(&text, 60, '\0', &seconds))
        return false;
    *out_s = ((has_days ? first * 24 + hours : first) * 60 + minutes) * 60 + seconds;
    return *text == '\0';
}

/* To sbatch two numbers are minutes and seconds, to most people hours and minutes. */
static bool has_two_numbers(const char *text)
{
    const char *colon = strchr(text, ':');
    return colon && !strchr(text, '-') && !strchr(colon + 1, ':') && weft_job_is_word(text, ":") &&
           strspn(text, "0123456789:") == strlen(text);
}

/* Slurm signals up to a minute early. A job without time to train would queue itself for ever. */
static weft_status check_time(const char *time, int stop_s)
{
    int64_t s;
    if (!time)
        return WEFT_OK;
    if (has_two_numbers(time))
        return WEFT_ERROR(WEFT_CONFIG,
                          "--time %.60s: minutes and seconds to sbatch; write %.60s:00 for hours "
                          "and minutes, 00:%.60s for those",
                          time, time, time);
    if (!read_time(time, &s))
        return WEFT_ERROR(WEFT_CONFIG,
                          "--time %.60s: expected MM, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS", time);
    if (s <= stop_s + 60)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--time %.60s: too short: it stops %d s before its end "
                          "(train.stop_timeout_s), which Slurm may say 60 s early",
                          time, stop_s);
    return WEFT_OK;
}

/* What the script relies on, and how it is said instead. */
static const struct {
    char letter;
    const char *name, *instead;
} own_options[] = {
    {'N', "nodes", "--nodes says it"},
    {'n', "ntasks", "--mesh says it"},
    {0, "ntasks-per-node", "--mesh and --nodes say it"},
    {'t', "time", "--time says it"},
    {'a', "array", "each of its jobs would train in the same folder"},
    {0, "signal", "train.stop_timeout_s says it"},
    {0, "requeue", "the job has it"},
    {0, "no-requeue", "the job goes on by it"},
    {0, "open-mode", "a job that goes on appends"},
    {0, "wrap", "the job is a script"},
};

/* sbatch takes what follows a blank and a hyphen for an option of its own. */
static bool has_another_option(const char *text)
{
    const char *at = text;
    while ((at = strpbrk(at + 1, " \t")))
        if (at[1] == '-')
            return true;
    return false;
}

/* sbatch takes the beginning of a name for all of it. */
static weft_status check_option(const char *text)
{
    const bool is_long = text[0] == '-' && text[1] == '-';
    const char *name = text + 1 + is_long;
    const size_t length = strcspn(name, "= \t");
    if (text[0] != '-' || length == 0 || weft_job_has_control(text))
        return WEFT_ERROR(WEFT_CONFIG,
                          "--sbatch %.60s: expected an option of sbatch on one line, such as "
                          "--sbatch=--constraint=h100",
                          weft_job_has_control(text) ? "with a control character" : text);
    if (has_another_option(text))
        return WEFT_ERROR(WEFT_CONFIG, "--sbatch %.60s: one option each; --sbatch may be repeated",
                          text);
    for (size_t i = 0; i < sizeof own_options / sizeof *own_options; i++)
        if (is_long ? strncmp(name, own_options[i].name, length) == 0
                    : *name == own_options[i].letter)
            return WEFT_ERROR(WEFT_CONFIG, "--sbatch %.60s: %s", text, own_options[i].instead);
    return WEFT_OK;
}

weft_status weft_job_check_slurm(const weft_job *job)
{
    const struct {
        const char *name, *value;
    } words[] = {{"account", job->slurm.account},
                 {"partition", job->slurm.partition},
                 {"qos", job->slurm.qos}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].value && !weft_job_is_word(words[i].value, "._-+,@:/="))
            return WEFT_ERROR(WEFT_CONFIG, "--%s %.60s: no name that Slurm gives one",
                              words[i].name, words[i].value);
    for (size_t i = 0; i < job->slurm.sbatch.count; i++)
        WEFT_TRY(check_option(job->slurm.sbatch.values[i]));
    return check_time(job->slurm.time, job->stop_s);
}

/* --- the script ---------------------------------------------------------------------------- */

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

/* A site's own words for GPUs, such as --gres=gpu:h100:8, replace ours. */
static bool asks_for_gpus(const weft_string_list *sbatch)
{
    bool asks = false;
    for (size_t i = 0; i < sbatch->count; i++)
        asks |= strncmp(sbatch->values[i], "--gres=gpu", 10) == 0 ||
                strncmp(sbatch->values[i], "--gpus", 6) == 0 ||
                strncmp(sbatch->values[i], "-G", 2) == 0;
    return asks;
}

static void print_options(const weft_job *job, FILE *out)
{
    const struct {
        const char *name, *value;
    } words[] = {{"account", job->slurm.account},
                 {"partition", job->slurm.partition},
                 {"qos", job->slurm.qos},
                 {"time", job->slurm.time}};
    char name[WEFT_JOB_NAME_BYTES];
    weft_job_name(job->run, name);
    fprintf(out,
            "#SBATCH --job-name=%s\n"
            "#SBATCH --nodes=%d\n"
            "#SBATCH --ntasks-per-node=%d\n",
            name, job->num_nodes, job->ranks_per_node);
    if (job->gpus_per_node > 0 && !asks_for_gpus(&job->slurm.sbatch))
        fprintf(out, "#SBATCH --gpus-per-node=%d\n", job->gpus_per_node);
    if (job->num_threads > 0)
        fprintf(out, "#SBATCH --cpus-per-task=%d\n", job->num_threads);
    if (job->whole_nodes)
        fprintf(out, "#SBATCH --exclusive\n");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].value)
            fprintf(out, "#SBATCH --%s=%s\n", words[i].name, words[i].value);
    fprintf(out,
            "#SBATCH --signal=B:USR1@%d\n"
            "#SBATCH --requeue\n"
            "#SBATCH --open-mode=append\n",
            job->stop_s);
    print_output(job, out);
    for (size_t i = 0; i < job->slurm.sbatch.count; i++)
        fprintf(out, "#SBATCH %s\n", job->slurm.sbatch.values[i]);
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
    "# Slurm's programs may be those of the site's modules.\n"
    "site() { env \"${environment[@]}\" \"$@\"; }\n"
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
    "    for step in $(site squeue --noheader --steps --jobs=\"$SLURM_JOB_ID\" --format=%i "
    "2>/dev/null); do\n"
    "        if [[ $step != *.batch && $step != *.extern ]]; then\n"
    "            site scancel --signal=KILL \"$step\" 2>/dev/null\n"
    "        fi\n"
    "    done\n"
    "}\n"
    "# Queues the job again without the nodes that the verdict names. Slurm would hold it "
    "back until it knows that\n"
    "# they are gone: they leave the job first.\n"
    "requeue_without() {\n"
    "    local name bad out= others= i\n"
    "    trap '' TERM USR1\n"
    "    for name in $(site scontrol show hostnames \"$SLURM_JOB_NODELIST\"); do\n"
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
    "        site scontrol update JobId=\"$SLURM_JOB_ID\" ReqNodeList=\"${others:1}\" >/dev/null\n"
    "        rm -f \"slurm_job_${SLURM_JOB_ID}_resize.sh\" "
    "\"slurm_job_${SLURM_JOB_ID}_resize.csh\"\n"
    "    fi\n"
    "    site scontrol requeue \"$SLURM_JOB_ID\"\n"
    "    # Slurm may need a moment; silent nodes it leaves out itself.\n"
    "    for ((i = 0; i < 20; i++)); do\n"
    "        if site scontrol update JobId=\"$SLURM_JOB_ID\" ExcNodeList=\"${out:1}\" "
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
    "# not answer; 0 too where it gives up while it launches: a run that is over says so itself "
    "(a program without\n"
    "# a run says nothing). The job is queued again, five times at most without a new step.\n"
    "cannot_start() {\n"
    "    local phase=\n"
    "    if [ \"$code\" -eq 0 ] && ! read -r _ phase 2>/dev/null <\"$run/.alive\"; then\n"
    "        if [ ! -e \"$run/ledger.jsonl\" ]; then phase=end; fi\n"
    "    fi\n"
    "    [ \"$code\" -eq 76 ] || [ \"$code\" -eq 233 ] || { [ \"$code\" -eq 0 ] && [ \"$phase\" != "
    "end ]; }\n"
    "}\n"
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
    "    exec env \"${environment[@]}\" scontrol requeue \"$SLURM_JOB_ID\"\n"
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
    "environment+=(SLURM_EXIT_ERROR=76)\n"
    "done\n"
    "# 75: stopped as asked, and saved. Slurm asks by USR1; whom its user asked to stop stays so.\n"
    "case \"$asked\" in TERM | INT | HUP) exit \"$code\" ;; esac\n"
    "if [ \"$code\" -eq 75 ] || { [ -n \"$asked\" ] && [ \"$code\" -ge 128 ]; }; then\n"
    "    exec env \"${environment[@]}\" scontrol requeue \"$SLURM_JOB_ID\"\n"
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
    fputs(" || exit\n", out);
    fputs(fencing, out);
    if (job->container.apptainer)
        fputs(weft_job_container_setting, out);
    weft_job_print_setup(job, job->setup, out);
    print_warning(job, out);
    fprintf(out, "run=");
    weft_shell_word(job->run, out);
    fprintf(out, "\n%s%s%s", weft_job_judging, watching, requeueing);
    weft_job_print_again(job, out);
    /* srun inherits no --cpus-per-task, and of a job with --export=NONE no variables. */
    fprintf(out,
            "limit=\nwhile :; do\nprepare\n%s"
            "env \"${environment[@]}\" srun --mpi=pmix --kill-on-bad-exit=1 --distribution=block "
            "--cpu-bind=none "
            "--export=ALL ${limit:+--immediate=$limit}",
            job->rank_output ? "mkdir -p -- \"$run/ranks\"\n" : "");
    if (job->num_threads > 0)
        fprintf(out, " --cpus-per-task=%d", job->num_threads);
    else
        fputs(" ${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}", out);
    if (job->rank_output)
        fputs(" --output=\"$run/ranks/rank-%t.out\" --open-mode=append", out);
    weft_job_print_container(job, out);
    fprintf(out, " \\\n   ");
    weft_job_words(job, weft_job_shell_word, out);
    fprintf(out, " &\njob=$!\nwatch \"$job\" &\nwatcher=$!\n%s%s", weft_job_waiting, after);
}
