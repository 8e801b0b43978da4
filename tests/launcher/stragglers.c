/* Ranks that compute longer than their stage's others, and links that are slower than others:
 * judged by times written by hand, and in runs whose rank 1 sleeps behind its products (SLEEP_US),
 * or each of whose ranks stands for a node, of which that of rank 2 sleeps before it sends and
 * receives (LINK_MS). The test starts itself as that program. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <weft/weft.h>

#include "comm/mpi/mpi_comm.h"
#include "core/device/device.h"
#include "launcher/training/stragglers.h"
#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { NUM_RANKS = 7, STEPS = 20 };

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 54},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 20},\n"
    "\"checkpoint\": {\"no_save\": true}, \"data\": {\"mock_data\": true},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1, \"pace\": 1e8, \"pace_work\": "
    "\"all\"},\n"
    "\"reliability\": {\"straggler_steps\": 5}, \"log\": {\"trace_step\": 0, \"level\": "
    "\"warn\"}}\n";

/* The products of a rank. */
__typeof__(weft_pace_end) __real_weft_pace_end, __wrap_weft_pace_end;
void __wrap_weft_pace_end(int64_t start_ns, double flops)
{
    const char *us = getenv("SLEEP_US"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    struct timespec pause = {.tv_nsec = us ? 1000 * atol(us) : 0};
    __real_weft_pace_end(start_ns, flops);
    if (us && rank && strcmp(rank, "1") == 0 && flops > 0)
        nanosleep(&pause, NULL);
}

static int rank_of_job(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return rank ? atoi(rank) : 0;
}

__typeof__(gethostname) __real_gethostname, __wrap_gethostname;
int __wrap_gethostname(char *name, size_t bytes)
{
    if (!getenv("LINK_MS"))
        return __real_gethostname(name, bytes);
    snprintf(name, bytes, "node%d", rank_of_job());
    return 0;
}

__typeof__(weft_comm_send_host) __real_weft_comm_send_host, __wrap_weft_comm_send_host;
weft_status __wrap_weft_comm_send_host(weft_comm *comm, int peer, int tag, const void *buffer,
                                       size_t bytes)
{
    const char *ms = getenv("LINK_MS");
    struct timespec pause = {.tv_nsec = ms ? 1000000 * atol(ms) : 0};
    if (ms && strcmp(weft_comm_name(comm), "links") == 0 && bytes > 1 &&
        (rank_of_job() == 2 || weft_comm_world_rank(comm, peer) == 2))
        nanosleep(&pause, NULL);
    return __real_weft_comm_send_host(comm, peer, tag, buffer, bytes);
}

/* Measured each 20 steps besides: where other work delays the fastest link too, the share of the
 * run's time that measuring may take would allow it each minute alone. */
__typeof__(weft_links_look) __real_weft_links_look, __wrap_weft_links_look;
weft_status __wrap_weft_links_look(weft_links *l, int64_t step, double step_ms, bool *out_looked)
{
    if (step % 20 == 0)
        l->next_step = 0;
    return __real_weft_links_look(l, step, step_ms, out_looked);
}

/* Two stages of three ranks and one of a single rank, three steps in a row. */
static void check_judge(void)
{
    double ms[NUM_RANKS] = {10, 10.5, 9.5, 100, 101, 99, 1000}, sorted[NUM_RANKS];
    weft_straggler ranks[NUM_RANKS] = {{0}};
    weft_stragglers s = {.factor = 1.5,
                         .steps = 3,
                         .num_ranks = NUM_RANKS,
                         .ranks = ranks,
                         .ms = ms,
                         .sorted = sorted};
    char line[512] = "";
    int step = 0;
    for (int i = 0; i < NUM_RANKS; i++) {
        ranks[i].stage = i / 3;
        snprintf(ranks[i].node, sizeof ranks[i].node, "node%d", i);
    }
    for (int i = 0; i < 5; i++)
        EXPECT(weft_stragglers_judge(&s, ++step, line, sizeof line) < 0, "%s", line);
    EXPECT(s.slowest == 6 && sorted[0] == 9.5 && sorted[6] == 1000, "slowest %d", s.slowest);
    /* Two that are slow, one of them with a step amid in which it is not. */
    ms[2] = 15.8;
    ms[4] = 200;
    for (int i = 0; i < 5; i++) {
        ms[2] = i == 1 ? 10 : 15.8;
        int wanted = i == 2 ? 4 : i == 4 ? 2 : -1;
        int found = weft_stragglers_judge(&s, ++step, line, sizeof line);
        EXPECT(found == wanted, "step %d: %d, %s", i, found, line);
        EXPECT(i != 2 || (strstr(line, "step 8: rank 4 on node4 is slow: for 3 steps ") &&
                          strstr(line, "now 200 ms against 100 ms")),
               "%s", line);
    }
    /* Told once; again when it was well for as long. */
    for (int i = 0; i < 9; i++) {
        ms[2] = i < 3 || i > 5 ? 16 : 10;
        int found = weft_stragglers_judge(&s, ++step, line, sizeof line);
        EXPECT(found == (i == 8 ? 2 : -1), "step %d: %d, %s", i, found, line);
    }
    /* All of a stage become slow in one step: no median, nobody. Two in one: one after the other.
     */
    s.steps = 1;
    for (int i = 0; i < NUM_RANKS; i++) {
        ranks[i] = (weft_straggler){.stage = 0};
        ms[i] = i < 2 ? 20 : 10;
    }
    EXPECT(weft_stragglers_judge(&s, ++step, line, sizeof line) == 0, "%s", line);
    EXPECT(weft_stragglers_judge(&s, ++step, line, sizeof line) == 1, "%s", line);
    EXPECT(weft_stragglers_judge(&s, ++step, line, sizeof line) == -1, "%s", line);
}

/* A look at four nodes; the edge from each to the next. */
static int look(weft_links *l, int64_t step, double a, double b, double c, double d, char *line)
{
    const double ms[] = {a, b, c, d};
    memcpy(l->ring_ms, ms, sizeof ms);
    return weft_links_judge(l, step, line, 512);
}

static void check_links_judge(void)
{
    enum { NODES = 4 };
    double ring_ms[NODES], ms[NODES], sorted[NODES];
    weft_node_link nodes[NODES] = {
        {.node = "node0"}, {.node = "node1"}, {.node = "node2"}, {.node = "node3"}};
    weft_links l = {.factor = 1.5,
                    .steps = 40,
                    .num_nodes = NODES,
                    .nodes = nodes,
                    .ring_ms = ring_ms,
                    .ms = ms,
                    .sorted = sorted};
    char line[512] = "";
    int64_t step = 0;
    /* The edge alone between two nodes is no node's; a look amid in which a link is well counts. */
    for (int i = 0; i < 9; i++)
        EXPECT(look(&l, step += 10, 1, 9, 1, 1, line) < 0, "%s", line);
    for (int i = 0; i < 9; i++)
        EXPECT(look(&l, step += 10, 1, i == 4 ? 1.1 : 20, 20, 1, line) < 0, "look %d: %s", i, line);
    EXPECT(ms[2] == 20 && ms[1] == 1 && sorted[3] == 20, "%g ms, %g ms", ms[2], ms[1]);
    /* Told once, though another becomes slow, which is told of for itself. */
    for (int i = 0; i < 9; i++) {
        int found = look(&l, step += 10, 1, 20, 20, i < 2 ? 1 : 20, line);
        EXPECT(found == (i == 0 ? 2 : i == 6 ? 3 : -1), "look %d: %d, %s", i, found, line);
        EXPECT(i != 0 || (strstr(line, "step 190: the link of node node2 is slow: for 41 steps ") &&
                          strstr(line, "at least 20 ms, 20 times as long")),
               "%s", line);
    }
    /* Well for five looks, and then again. Five looks within a few steps do not do. */
    for (int i = 0; i < 16; i++) {
        const double slow = i < 5 ? 1 : 20;
        int found = look(&l, step += i < 7 ? 10 : 5, 1, slow, slow, 1, line);
        EXPECT(found == -1, "look %d: %d, %s", i, found, line);
    }
    for (int i = 0; i < 5; i++) {
        int found = look(&l, step += 10, 1, 20, 20, 1, line);
        EXPECT(found == (i == 3 ? 2 : -1), "look %d: %d, %s", i, found, line);
    }
    /* What other work on a healthy node makes of fast links, however many times as long. */
    for (int i = 0; i < 16; i++) {
        int found = look(&l, step += 10, 0.15, 0.47, 0.9, 0.15, line);
        EXPECT(found == -1, "look %d: %d, %s", i, found, line);
    }
}

static void run(child *c, const char *mesh, const char *set, const char *sleep_us)
{
    EXPECT(system("rm -rf run") == 0, "no rm");
    child_run(c,
              WORDS("train", "c.json", "--out", "run", "--mesh", mesh, "--set",
                    set ? set : "train.seed=1"),
              WORDS(sleep_us));
}

/* compute_ms of a rank, the least of all steps but the first; -1: a line has none. */
static double least_of(int rank)
{
    double least = -1;
    cJSON *lines = child_read_metrics("run");
    for (const cJSON *json = lines->child; json; json = json->next) {
        const cJSON *step = cJSON_GetObjectItem(json, "step");
        const cJSON *ms = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "compute_ms"), rank);
        double value = cJSON_IsNumber(ms) ? ms->valuedouble : -1;
        if (step && step->valueint == 2)
            least = value;
        else if (step && step->valueint > 2)
            least = fmin(least, value);
    }
    return least;
}

/* A machine that is busy is slower than the pace, and says so once. */
static void leave_out_pace(char *text)
{
    static const char end[] = "; lower the pace\n";
    char *at = strstr(text, end);
    if (!at)
        return;
    char *line = at;
    while (line > text && line[-1] != '\n')
        line--;
    at += strlen(end);
    memmove(line, at, strlen(at) + 1);
}

/* Trains until standard error has this text, and is stopped then. */
static bool run_until(child *c, const char *const *args, const char *sleeps, const char *told)
{
    if (!child_start(c, args, WORDS(sleeps)))
        return false;
    EXPECT(child_wait_for_text(c, c->err_path, told), "%s: not told", sleeps);
    if (c->pid)
        kill(c->pid, SIGTERM);
    EXPECT(child_wait(c, CHILD_PATIENCE_S) && c->exit_code == WEFT_EXIT_STOPPED, "exit %d: %s",
           c->exit_code, c->err);
    return true;
}

/* In the steps that the line is about. */
static void check_slowest(int last_step, int rank)
{
    int count = 0;
    const cJSON *json;
    cJSON_ArrayForEach(json, child_read_metrics("run"))
    {
        const cJSON *step = cJSON_GetObjectItem(json, "step"),
                    *who = cJSON_GetObjectItem(json, "slowest_rank");
        if (!step || step->valueint <= last_step - 5 || step->valueint > last_step)
            continue;
        EXPECT(who && who->valueint == rank, "step %d: not rank %d", step->valueint, rank);
        count++;
    }
    EXPECT(count == 5, "%d steps up to %d", count, last_step);
}

/* However slow this machine is, for some steps it is not: the run goes on until it is told. */
static void check_slow(const char *mesh)
{
    char wanted[160], host[64] = "";
    child c;
    EXPECT(system("rm -rf run") == 0, "no rm");
    gethostname(host, sizeof host - 1);
    snprintf(wanted, sizeof wanted, ": rank 1 on %s is slow: for 5 steps ", host);
    if (!run_until(&c,
                   WORDS("train", "c.json", "--out", "run", "--mesh", mesh, "--set",
                         "train.train_iters=1000000"),
                   "SLEEP_US=1500", wanted))
        return;
    leave_out_pace(c.err);
    const char *told = strstr(c.err, wanted), *line = told;
    while (line && line > c.err && line[-1] != '\n')
        line--;
    const char *step = line ? strstr(line, "step ") : NULL;
    EXPECT(told && line == c.err && strcmp(strchr(told, '\n'), "\n" CHILD_ASKED "\n") == 0,
           "%s: %s", mesh, c.err);
    check_slowest(step ? atoi(step + strlen("step ")) : 0, 1);
    const double others = least_of(0), own = least_of(1);
    EXPECT(others > 0 && own > 2 * others, "%s: %g ms against %g ms", mesh, own, others);
    child_release(&c);
}

/* The same. */
static void check_slow_link(void)
{
    child c;
    if (!run_until(&c,
                   WORDS("train", "c.json", "--out", "link", "--mesh", "dp=3", "--set",
                         "straggler_factor=3", "--set", "train.global_batch_size=3", "--set",
                         "train.train_iters=1000000"),
                   "LINK_MS=100", "the link of node node2 is slow: for "))
        return;
    EXPECT(!strstr(c.err, "node node0 is slow") && !strstr(c.err, "node node1 is slow"), "%s",
           c.err);
    char *text = child_read("link/metrics.jsonl");
    EXPECT(text && strstr(text, "\"slowest_link\": \"node2\"") && strstr(text, "\"link_ms\": ["),
           "no links in metrics.jsonl");
    child_release(&c);
}

/* A machine with other work may say that it cannot keep the pace. */
static bool names_nobody(const char *err)
{
    return err && (!*err || (child_is_line(err) && strstr(err, "device.pace ")));
}

static void check_quiet(void)
{
    child c;
    run(&c, "dp=2", "straggler_factor=3", "NONE=");
    EXPECT(c.exit_code == 0 && names_nobody(c.err), "exit %d: %s", c.exit_code, c.err);
    EXPECT(least_of(0) > 0 && least_of(1) > 0, "no times");
    run(&c, "dp=2", "straggler_factor=0", "SLEEP_US=500");
    EXPECT(c.exit_code == 0 && names_nobody(c.err), "exit %d: %s", c.exit_code, c.err);
    EXPECT(least_of(0) < 0, "times, but nobody looks");
    run(&c, "dp=2", "straggler_factor=1", "NONE=");
    EXPECT(c.exit_code == 2 && child_is_line(c.err) &&
               strstr(c.err, "reliability.straggler_factor: 1 is out of range: 0, or above 1\n"),
           "exit %d: %s", c.exit_code, c.err);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        if (getenv("LINK_MS"))
            weft_mpi_set_limits(&(weft_mpi_limits){.ranks_per_node = 1});
        return weft_main(argc, argv, NULL);
    }
    child_program = realpath(argv[0], NULL);
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    check_judge();
    check_links_judge();
    check_slow_link();
    check_slow("dp=4");
    check_slow("tp=2");
    check_quiet();
    return child_finish();
}
