/* Open MPI's mpirun: a file of hosts and a script. */
#include <string.h>

#include "launcher/jobs/internal.h"

void weft_job_print_hosts(const weft_job *job, FILE *out)
{
    if (job->hosts.names) {
        for (const char *name = job->hosts.names; name;) {
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

/* Nodes that do not answer are left out, before anything is trained only where spares take their
 * place; so are those on which a rank was killed or hung, as long as there are others in their
 * place. A probe has no terminal at which ssh could ask for something. */
static const char choosing[] =
    "names=() left_out=() suspects=' ' nodes=\n"
    ": >\"$run/.absent\"\n"
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
    "        exit \"${code:-5}\"\n"
    "    fi\n"
    "    if [ \"$nodes\" -ne \"${before:-${node_counts%% *}}\" ]; then\n"
    "        echo \"weft: goes on with $nodes of ${node_counts%% *} nodes: dp $((dp * "
    "${before:-${node_counts%% *}} / ${node_counts%% *})) -> $((dp * nodes / ${node_counts%% "
    "*})), the global batch stays\" >&2\n"
    "    fi\n"
    "    names=(\"${all[@]:0:nodes}\") num_left=${#all[@]}\n"
    "    printf \"%s slots=$ranks_per_node\\n\" \"${names[@]}\" >\"$run/hostfile.now\"\n"
    "}\n"
    "# Prints which of these nodes do not answer: at three tries, each longer, few at a time, "
    "since\n"
    "# this machine may be busy; those that failed at the first, where there is a\n"
    "# spare.\n"
    "absent() {\n"
    "    local limit name i at_once=$((2 * $(nproc))) probes failed gone=() pending=(\"$@\")\n"
    "    for limit in 5 10 20; do\n"
    "        failed=()\n"
    "        for ((i = 0; i < ${#pending[@]}; i += at_once)); do\n"
    "            probes=()\n"
    "            for name in \"${pending[@]:i:at_once}\"; do\n"
    "                setsid -w timeout -k 1 \"$limit\" env \"${environment[@]}\" mpirun -n 1 "
    "--host \"$name\" \\\n"
    "                    \"${options[@]}\" true </dev/null >/dev/null "
    "2>\"$run/.probe.$name\" &\n"
    "                probes+=($!)\n"
    "            done\n"
    "            for name in \"${pending[@]:i:at_once}\"; do\n"
    "                if wait \"${probes[0]}\"; then\n"
    "                    rm -f -- \"$run/.probe.$name\"\n"
    "                elif [ \"$num_left\" -gt \"$nodes\" ] && [[ $suspects == *\" $name \"* ]]; "
    "then\n"
    "                    gone+=(\"$name\")\n"
    "                else\n"
    "                    failed+=(\"$name\")\n"
    "                fi\n"
    "                probes=(\"${probes[@]:1}\")\n"
    "            done\n"
    "        done\n"
    "        pending=(\"${failed[@]}\")\n"
    "        if [ ${#pending[@]} -eq 0 ]; then break; fi\n"
    "    done\n"
    "    for name in \"${gone[@]}\" \"${pending[@]}\"; do echo \"$name\"; done\n"
    "}\n";

static const char looking[] =
    "# What a node's probe said, as \": WORDS\": ssh's last line, which stands among "
    "mpirun's of [HOST:PID]\n"
    "# before its block; else the block's first.\n"
    "words() {\n"
    "    local line last=\n"
    "    while IFS= read -r line; do\n"
    "        line=${line%$'\\r'}\n"
    "        if [[ $line == -----* ]]; then\n"
    "            if [ -n \"$last\" ]; then break; fi\n"
    "            read -r last\n"
    "            break\n"
    "        fi\n"
    "        if [[ $line != '['*:*']'* ]]; then last=${line:-$last}; fi\n"
    "    done <\"$run/.probe.$1\"\n"
    "    echo \"${last:+: $last}\"\n"
    "    rm -f -- \"$run/.probe.$1\"\n"
    "} 2>/dev/null\n"
    "# Whether nothing is trained yet, by this script or before.\n"
    "is_first() {\n"
    "    [ -z \"$code\" ] && [ ! -e \"$run/checkpoints/latest\" ] && [ \"$(last_step)\" -eq 0 "
    "]\n"
    "}\n"
    "refuse() {\n"
    "    local name said\n"
    "    for name in \"$@\"; do\n"
    "        said=$(words \"$name\")\n"
    "        echo \"weft: node $name cannot be reached, and no spare takes its "
    "place${said:-: no answer}\" >&2\n"
    "    done\n"
    "    echo \"weft: a run does not begin without all of its nodes, which $run/hostfile "
    "names\" >&2\n"
    "    exit 5\n"
    "}\n"
    "# Whether all nodes of the next start answer; those that do not are left out.\n"
    "look() {\n"
    "    local name gone=()\n"
    "    if [ \"$num_left\" -le 1 ] && { [ \"${names[0]}\" = localhost ] || ! is_first; }; then "
    "return; fi\n"
    "    absent \"${names[@]}\" >\"$run/.absent\" &\n"
    "    wait $!\n"
    "    if [ -n \"$asked\" ]; then return; fi\n"
    "    while read -r name; do gone+=(\"$name\"); done <\"$run/.absent\"\n"
    "    if [ ${#gone[@]} -eq 0 ]; then return; fi\n"
    "    if [ $((num_left - ${#gone[@]})) -lt \"$nodes\" ] && is_first; then refuse "
    "\"${gone[@]}\"; fi\n"
    "    for name in \"${gone[@]}\"; do leave_out \"$name\" \"it does not answer$(words "
    "\"$name\")\"; done\n"
    "    return 1\n"
    "}\n"
    "# Leaves out the nodes that failed, by mpirun's words and the verdict, as long as there are\n"
    "# others in their place.\n"
    "judge() {\n"
    "    local name bad\n"
    "    while read -r name; do\n"
    "        if ! is_left_out \"$name\"; then\n"
    "            leave_out \"$name\" \"it does not answer$(words \"$name\")\" && "
    "num_left=$((num_left - 1))\n"
    "        fi\n"
    "    done <\"$run/.absent\"\n"
    "    suspects=' '\n"
    "    for bad in $(sed -n -e 's/.*process rank .* on node \\([^ ]*\\) exited on signal.*/\\1/p' "
    "\\\n"
    "        -e 's/.*Remote daemon: .* on node \\([^ ]*\\).*/\\1/p' \"$run/job.err\") \\\n"
    "        $(named nodes | tr , ' '); do\n"
    "        for name in \"${names[@]}\"; do\n"
    "            if [[ $bad != \"$name\" && $bad != \"$name\".* && $name != \"$bad\".* ]]; then "
    "continue; fi\n"
    "            suspects+=\"$name \"\n"
    "            if [ \"$num_left\" -gt \"$nodes\" ] && ! is_left_out \"$name\"; then\n"
    "                leave_out \"$name\" 'a rank on it failed' && num_left=$((num_left - 1))\n"
    "            fi\n"
    "        done\n"
    "    done\n"
    "}\n";

/* Open MPI's blocks about a rank that ended say less than Weft's own lines. */
static const char saying[] =
    "# What the script passes on of the job's words: of Open MPI's blocks what Weft does not say, "
    "none behind a\n"
    "# verdict. .said: all of them.\n"
    "relay() {\n"
    "    sed -u '/^-\\{60,\\}$/{\n"
    "        :more\n"
    "        N\n"
    "        /\\n-\\{60,\\}$/!b more\n"
    "        /exited on signal/d\n"
    "        /Primary job  terminated normally/d\n"
    "        /exited with non-zero status/d\n"
    "        /MPI_ABORT was invoked/d\n"
    "    }\n"
    "    /; the job ends (weft inspect --flight /{\n"
    "        :rest\n"
    "        n\n"
    "        :check\n"
    "        /^-\\{60,\\}$/!b rest\n"
    "        :skip\n"
    "        N\n"
    "        /\\n-\\{60,\\}$/!b skip\n"
    "        $d\n"
    "        N\n"
    "        s/.*\\n//\n"
    "        b check\n"
    "    }' >&2\n"
    "    : >\"$run/.said\"\n"
    "}\n"
    "# Sets $killed: the rank that a signal ended, and where the verdict says that it was.\n"
    "find_killed() {\n"
    "    local i rank node signal missing place\n"
    "    killed=\n"
    "    for ((i = 0; i < 40; i++)); do\n"
    "        if [ -e \"$run/.said\" ]; then break; fi\n"
    "        sleep 0.05\n"
    "    done\n"
    "    read -r rank node signal < <(sed -n 's/.*process rank \\([0-9]*\\) with PID [0-9]* on "
    "node "
    "\\([^ ]*\\) exited on signal \\([^.]*\\).*/\\1 \\2 \\3/p' \"$run/job.err\")\n"
    "    if [ -z \"$rank\" ]; then return; fi\n"
    "    killed=\"rank $rank on $node was killed by signal $signal\"\n"
    "    if [ \"$(mark)\" = \"$marked\" ]; then return; fi\n"
    "    IFS='|' read -r missing place < <(sed -n 's/.*\"missing\": \\[\\([^]]*\\)\\].*\"place\": "
    "\"\\([^\"]*\\)\".*/\\1|\\2/p' \"$verdict\")\n"
    "    if [[ \", $missing,\" == *\", $rank,\"* ]]; then killed+=\" $place\"; fi\n"
    "} 2>/dev/null\n";

/* The words of ranks and of mpirun go to a file too, whatever signals a terminal sends. Some mpirun
 * says that a rank was killed, or loses all of its ranks or a node's daemon, and never ends; none
 * ends by itself where this script was killed. mpirun's own processes say nothing about its ranks:
 * daemons may have detached themselves. mpirun and ranks that are not ready for SIGUSR1 yet do not
 * die of it. */
static const char starting[] =
    "# Whether rank 0 has locked .alive. Where a file system has no locks, it has not.\n"
    "is_held() {\n"
    "    flock -sn -- \"$run/.alive\" true\n"
    "    [ $? -eq 1 ]\n"
    "} 2>/dev/null\n"
    "# Whether rank 0 may live: no, where its beat stands still and nobody holds the lock, "
    "for 20 looks; for 300\n"
    "# where it was never seen to hold it, or has come to its end.\n"
    "lives() {\n"
    "    local now= limit=300\n"
    "    read -r now phase 2>/dev/null <\"$run/.alive\"\n"
    "    if [ \"$now\" != \"$beat\" ]; then\n"
    "        beat=$now silent=0\n"
    "        if [ -z \"$held\" ] && is_held; then held=1; fi\n"
    "    elif [ -z \"$beat\" ] || is_held; then\n"
    "        silent=0\n"
    "    else\n"
    "        silent=$((silent + 1))\n"
    "    fi\n"
    "    if [ -n \"$held\" ] && [ \"$phase\" != end ]; then limit=20; fi\n"
    "    [ \"$silent\" -lt \"$limit\" ]\n"
    "}\n"
    "# Sets $parent; empty: the process has ended.\n"
    "find_parent() {\n"
    "    parent=\n"
    "    read -r _ _ _ parent _ <\"/proc/$1/stat\"\n"
    "} 2>/dev/null\n"
    "# With what starts ranks on other nodes, but for tee.\n"
    "put_down() {\n"
    "    local child parent\n"
    "    find_parent \"$1\"\n"
    "    if [ \"$parent\" != $$ ]; then return; fi\n"
    "    echo \"weft: $2: killed\" >&2\n"
    "    for child in $(cat /proc/\"$1\"/task/*/children); do\n"
    "        if [ \"$child\" -ne \"$tee\" ]; then kill -KILL \"$child\"; fi\n"
    "    done 2>/dev/null\n"
    "    kill -KILL \"$1\"\n"
    "}\n"
    "# Ends a start one of whose nodes is gone.\n"
    "seek_dead() {\n"
    "    local gone phase=\n"
    "    gone=$(absent \"${names[@]}\")\n"
    "    read -r _ phase 2>/dev/null <\"$run/.alive\"\n"
    "    if [ -n \"$gone\" ] && [[ $phase != steps && $phase != end ]]; then\n"
    "        echo \"$gone\" >\"$run/.absent\"\n"
    "        put_down \"$1\" \"${gone//$'\\n'/, }: no answer, and no step has begun\"\n"
    "    fi\n"
    "}\n"
    "# Ends an mpirun that waits for what is dead.\n"
    "watch() {\n"
    "    local line parent tee beat= phase= held= silent=0 end= why= heard= at=$SECONDS "
    "next=$((SECONDS + 30))\n"
    "    read -r _ _ _ tee _ <\"/proc/$BASHPID/stat\"\n"
    "    while :; do\n"
    "        if read -r -t 1 line; then\n"
    "            case $line in\n"
    "            *'process rank '*' exited on signal '*)\n"
    "                if [ -z \"$end\" ]; then end=$((SECONDS + 20)) why='20 s of that'; fi\n"
    "                ;;\n"
    "            *'; the job ends (weft inspect --flight '*) heard=1 ;;\n"
    "            esac\n"
    "        elif [ $? -le 128 ]; then\n"
    "            return\n"
    "        fi\n"
    "        if [ $SECONDS -eq $at ]; then continue; fi\n"
    "        at=$SECONDS\n"
    "        find_parent \"$1\"\n"
    "        if [ \"$parent\" != $$ ]; then\n"
    "            if [ -n \"$parent\" ]; then kill -KILL \"$1\"; fi\n"
    "            return\n"
    "        fi\n"
    "        if [ \"$why\" != '10 s of the verdict' ] && { [ -n \"$heard\" ] || judged; }; "
    "then\n"
    "            end=$((SECONDS + 10)) why='10 s of the verdict'\n"
    "        fi\n"
    "        if [ -n \"$end\" ] && [ $SECONDS -ge \"$end\" ]; then\n"
    "            put_down \"$1\" \"mpirun did not end within $why\"\n"
    "            return\n"
    "        elif ! lives; then\n"
    "            put_down \"$1\" 'rank 0 is dead, and mpirun did not end'\n"
    "            return\n"
    "        elif [[ $phase != steps && $phase != end ]] && [ ${#names[@]} -gt 1 ] && [ "
    "$SECONDS -ge $next ]; then\n"
    "            next=$((SECONDS + 90))\n"
    "            seek_dead \"$1\" &\n"
    "        fi\n"
    "    done\n"
    "}\n"
    "start() {\n"
    "    local pid=$BASHPID\n"
    "    exec </dev/null 2> >(trap '' INT TERM HUP USR1; exec tee -p \"$run/job.err\" "
    ">(watch \"$pid\") > >(relay))\n"
    "    trap '' USR1\n"
    "    exec env \"${environment[@]}\" mpirun \"$@\"\n"
    "}\n"
    "# What ended it, where that is not said by how mpirun ended.\n"
    "settle() {\n"
    "    local i\n"
    "    if [ \"$code\" -gt 128 ] && judged; then\n"
    "        code=9\n"
    "    fi\n"
    "    # tee may still be writing what mpirun said last.\n"
    "    for ((i = 0; i < 20 && code == 1; i++)); do\n"
    "        if grep -q 'ORTE ' \"$run/job.err\"; then code=5; else sleep 0.05; fi\n"
    "    done\n"
    "    find_killed\n"
    "    if [ \"$code\" -gt 128 ]; then killed=${killed:-mpirun was killed by signal $((code - "
    "128))}; fi\n"
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
            "prepare\n"
            "start -n %s --hostfile \"$run/%s\" --map-by ppr:%d:node --bind-to none "
            "\"${options[@]}\" \\\n    sh -c 'trap \"\" USR1; exec \"$0\" \"$@\"'",
            count, hosts, job->ranks_per_node);
    weft_job_words(job, weft_job_shell_word, out);
    fprintf(out, " &\njob=$!\n%ssettle\n", weft_job_waiting);
}

static void print_restarting(const weft_job *job, FILE *out)
{
    weft_job_print_again(job, out);
    fprintf(out,
            "node_counts='%s' dp=%d ranks_per_node=%d\n%s%s"
            "while :; do\nuntil choose && look; do :; done\n"
            "if [ -n \"$asked\" ]; then exit \"${code:-75}\"; fi\n",
            job->restarts.node_counts, job->restarts.dp, job->ranks_per_node, choosing, looking);
    print_start(job, "$((nodes * ranks_per_node))", "hostfile.now", out);
    fprintf(out, "if ! again; then exit \"$code\"; fi\njudge\ndone\n");
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
    fputs(" || exit\n", out);
    if (job->container.apptainer)
        fputs(weft_job_container_setting, out);
    weft_job_print_setup(job, job->setup, out);
    fputs("run=", out);
    weft_shell_word(job->run, out);
    fputs("\noptions=()\n"
          "if [ \"$(id -u)\" -eq 0 ]; then options+=(--allow-run-as-root); fi\n",
          out);
    weft_job_print_passed(job, out);
    /* In a group of its own: a terminal's signals reach the script alone. */
    fprintf(out, "%s%s%s", weft_job_judging, saying, starting);
    if (job->restarts.max > 0) {
        print_restarting(job, out);
        return;
    }
    char ranks[16];
    snprintf(ranks, sizeof ranks, "%d", job->num_nodes * job->ranks_per_node);
    print_start(job, ranks, weft_job_file_name(WEFT_JOB_MPIRUN, 0), out);
    fprintf(out, "if [ -z \"$asked\" ] && [ \"$code\" -gt 128 ]; then\n"
                 "    echo \"weft: $killed: the job ended with exit code $code; it is not started "
                 "again (reliability.max_restarts is 0)\" >&2\n"
                 "fi\n"
                 "exit \"$code\"\n");
}
