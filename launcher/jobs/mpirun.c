/* Open MPI's mpirun: a file of hosts and a script. */
#include <string.h>

#include "launcher/jobs/job_internal.h"
#include "launcher/jobs/quote.h"

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
        for (int i = 0; i < job->num_nodes + job->num_spares; i++)
            fprintf(out, "node%d slots=%d\n", i, job->ranks_per_node);
    }
}

/* Nodes that do not answer are left out; so are those on which a rank was killed or hung, as long
 * as there are others in their place. */
static const char choosing[] =
    "names=() left_out=() nodes=\n"
    "leave_out() {\n"
    "    echo \"weft: node $1 is left out: $2\" >&2\n"
    "    left_out+=(\"$1\")\n"
    "}\n"
    "is_left_out() { [[ \" ${left_out[*]} \" == *\" $1 \"* ]]; }\n"
    "# The nodes of the next start: as many as a mesh takes of those that are left.\n"
    "choose() {\n"
    "    local name before=$nodes all=()\n"
    "    while read -r name _; do\n"
    "        if [[ -n $name && $name != \\#* ]] && ! is_left_out \"$name\"; then\n"
    "            all+=(\"$name\")\n"
    "        fi\n"
    "    done <\"$run/hostfile\"\n"
    "    for nodes in $node_counts 0; do\n"
    "        if [ \"$nodes\" -le \"${#all[@]}\" ]; then break; fi\n"
    "    done\n"
    "    if [ \"$nodes\" -eq 0 ]; then\n"
    "        echo \"weft: no mesh fits the nodes that are left: ${all[*]:-none}\" >&2\n"
    "        exit \"${code:-2}\"\n"
    "    fi\n"
    "    if [ \"$nodes\" -ne \"${before:-${node_counts%% *}}\" ]; then\n"
    "        echo \"weft: goes on with $nodes of ${node_counts%% *} nodes: "
    "dp $((dp * ${before:-${node_counts%% *}} / ${node_counts%% *})) -> "
    "$((dp * nodes / ${node_counts%% *})), the global batch stays\" >&2\n"
    "    fi\n"
    "    names=(\"${all[@]:0:nodes}\") num_left=${#all[@]}\n"
    "    printf \"%s slots=$ranks_per_node\\n\" \"${names[@]}\" >\"$run/hostfile.now\"\n"
    "}\n"
    "# Those of the last start that failed.\n"
    "look() {\n"
    "    local name bad failed probe probes=()\n"
    "    if [ \"${#names[@]}\" -gt 1 ] || [ \"$num_left\" -gt 1 ]; then\n"
    "        for name in \"${names[@]}\"; do\n"
    "            timeout 5 mpirun -n 1 --host \"$name\" \"${options[@]}\" true \\\n"
    "                </dev/null >/dev/null 2>&1 &\n"
    "            probes+=($!)\n"
    "        done\n"
    "        for name in \"${names[@]}\"; do\n"
    "            probe=${probes[0]} probes=(\"${probes[@]:1}\")\n"
    "            if ! wait \"$probe\" && [ -z \"$asked\" ]; then\n"
    "                leave_out \"$name\" 'it does not answer' && num_left=$((num_left - 1))\n"
    "            fi\n"
    "        done\n"
    "    fi\n"
    "    failed=$(sed -n 's/.*process rank .* on node \\([^ ]*\\) exited on signal.*/\\1/p' "
    "\"$run/job.err\"\n"
    "        if [ \"$code\" -eq 9 ]; then\n"
    "            sed -n 's/.*\"nodes\": \\[\\([^]]*\\)\\].*/\\1/p' "
    "\"$run/flight/verdict.json\" | tr -d '\" ' | tr , '\\n'\n"
    "        fi)\n"
    "    for name in \"${names[@]}\"; do\n"
    "        for bad in $failed; do\n"
    "            if [ \"$num_left\" -gt \"$nodes\" ] && ! is_left_out \"$name\" &&\n"
    "                [[ $bad == \"$name\" || $bad == \"$name\".* || $name == \"$bad\".* ]]; then\n"
    "                leave_out \"$name\" 'a rank on it failed' && num_left=$((num_left - 1))\n"
    "            fi\n"
    "        done\n"
    "    done\n"
    "}\n";

/* The words of ranks and of mpirun go to a file too, whatever signals a terminal sends. Some mpirun
 * says that a rank was killed, or has none left, and never ends; none ends by itself where this
 * script was killed. mpirun and ranks that are not ready for SIGUSR1 yet do not die of it. */
static const char starting[] =
    "# Whether mpirun has a process: ranks, or what starts them on other nodes; not tee.\n"
    "has_ranks() {\n"
    "    local child tee\n"
    "    read -r _ _ _ tee _ <\"/proc/$BASHPID/stat\"\n"
    "    for child in $(cat /proc/\"$1\"/task/*/children 2>/dev/null); do\n"
    "        if [ \"$child\" -ne \"$tee\" ]; then return; fi\n"
    "    done\n"
    "    return 1\n"
    "}\n"
    "watch() {\n"
    "    local line parent had= bare=0\n"
    "    while :; do\n"
    "        if read -r -t 1 line; then\n"
    "            if [[ $line == *'process rank '*' exited on signal '* ]]; then\n"
    "                read -r -d '' -t 20 line\n"
    "                if [ $? -gt 128 ] && kill -KILL \"$1\" 2>/dev/null; then\n"
    "                    echo 'weft: mpirun did not end within 20 s of that: killed' >&2\n"
    "                fi\n"
    "                return\n"
    "            fi\n"
    "        elif [ $? -le 128 ] || ! { read -r _ _ _ parent _ <\"/proc/$1/stat\"; } 2>/dev/null; "
    "then\n"
    "            return\n"
    "        elif [ \"$parent\" -ne $$ ]; then\n"
    "            kill -KILL \"$1\"\n"
    "            return\n"
    "        elif has_ranks \"$1\"; then\n"
    "            had=1 bare=0\n"
    "        elif [ -n \"$had\" ] && [ $((++bare)) -ge 20 ]; then\n"
    "            echo 'weft: no rank is left, and mpirun did not end within 20 s: killed' >&2\n"
    "            kill -KILL \"$1\" 2>/dev/null\n"
    "            return\n"
    "        fi\n"
    "    done\n"
    "}\n"
    "start() {\n"
    "    local pid=$BASHPID\n"
    "    exec </dev/null 2> >(trap '' INT TERM HUP USR1; "
    "exec tee -p \"$run/job.err\" >(watch \"$pid\") >&2)\n"
    "    trap '' USR1\n"
    "    exec mpirun \"$@\"\n"
    "}\n"
    "if [ ! -r \"$run/hostfile\" ]; then\n"
    "    echo \"weft: $run/hostfile is not there: weft launch writes it\" >&2\n"
    "    exit 6\n"
    "fi\n"
    "if ! grep -q '^[^#]' \"$run/hostfile\"; then\n"
    "    echo \"weft: $run/hostfile names no node\" >&2\n"
    "    exit 6\n"
    "fi\n"
    "set -m\n";

/* In the background. */
static void print_start(const weft_job *job, const char *count, const char *hosts, FILE *out)
{
    fprintf(out,
            "start -n %s --hostfile \"$run/%s\" --map-by ppr:%d:node --bind-to none "
            "\"${options[@]}\" \\\n    sh -c 'trap \"\" USR1; exec \"$0\" \"$@\"'",
            count, hosts, job->ranks_per_node);
    weft_job_words(job, weft_job_shell_word, out);
    fprintf(out, " &\n%s", weft_job_waiting);
}

static void print_restarting(const weft_job *job, FILE *out)
{
    weft_job_print_again(job, out);
    fprintf(out, "node_counts='%s' dp=%d ranks_per_node=%d\n%swhile :; do\nchoose\n",
            job->node_counts, job->dp, job->ranks_per_node, choosing);
    print_start(job, "$((nodes * ranks_per_node))", "hostfile.now", out);
    fprintf(out, "if ! again; then exit \"$code\"; fi\nlook\ndone\n");
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
    fputs(weft_job_passing, out);
    fprintf(out, "run=");
    weft_shell_word(job->run, out);
    /* In a group of its own: a terminal's signals reach the script alone. */
    fprintf(out, "\n%s", starting);
    if (job->max_restarts > 0) {
        print_restarting(job, out);
        return;
    }
    char ranks[16];
    snprintf(ranks, sizeof ranks, "%d", job->num_nodes * job->ranks_per_node);
    print_start(job, ranks, weft_job_file_name(WEFT_JOB_MPIRUN, 0), out);
    fprintf(out, "if [ -z \"$asked\" ] && [ \"$code\" -gt 128 ]; then\n"
                 "    echo \"weft: the job ended with exit code $code\" >&2\n"
                 "fi\n"
                 "exit \"$code\"\n");
}
