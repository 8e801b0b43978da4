/* Comparing ranks and nodes: judged by numbers written by hand, and by ranks of this machine, of
 * which one computes slowly (SLOW=1: rank 1). The test starts itself as that program. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <weft/kernels.h>
#include <weft/weft.h>

#include "launcher/measuring/nodes.h"
#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { TIMES = 20, LEAST_MS = 20, MOST = 64 };

/* Products and copies take their time without a core: other programs do not disturb the test. */
static weft_status sleep_ms(const void *args)
{
    const int ms = *(const int *)args;
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
    return WEFT_OK;
}

__typeof__(weft_gemm) __wrap_weft_gemm;
weft_status __wrap_weft_gemm(weft_lane *lane, const weft_gemm_args *args)
{
    const char *slow = getenv("SLOW"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    const int ms = slow && rank && strcmp(rank, slow) == 0 ? TIMES * LEAST_MS : LEAST_MS;
    (void)args;
    return weft_lane_submit(lane, "product", sleep_ms, &ms, sizeof ms);
}

__typeof__(weft_lane_copy) __wrap_weft_lane_copy;
weft_status __wrap_weft_lane_copy(weft_lane *lane, void *to, const void *from, size_t bytes)
{
    const int ms = LEAST_MS;
    (void)to, (void)from, (void)bytes;
    return weft_lane_submit(lane, "copy", sleep_ms, &ms, sizeof ms);
}

/* Each pair of nodes meets at most once, of up to eight nodes exactly once; nobody meets two at
 * once. */
static void check_rounds(void)
{
    for (int num = 1; num <= 20; num++) {
        int met[20][20] = {{0}};
        for (int round = 0; round < 30; round++)
            for (int node = 0; node < num; node++) {
                const int peer = weft_nodes_peer(node, num, round);
                EXPECT(peer < num && peer != node, "%d nodes, round %d: %d meets %d", num, round,
                       node, peer);
                EXPECT(peer < 0 || weft_nodes_peer(peer, num, round) == node,
                       "%d nodes, round %d: %d meets %d alone", num, round, node, peer);
                if (peer >= 0)
                    met[node][peer]++;
            }
        for (int i = 0; i < num; i++)
            for (int j = 0; j < num; j++)
                EXPECT(i == j || (num <= 8 ? met[i][j] == 1 : met[i][j] <= 1),
                       "%d nodes: %d and %d met %d times", num, i, j, met[i][j]);
    }
}

/* `num_nodes` nodes of two ranks, all alike, but for what is changed behind it. */
static void make(weft_nodes_rank ranks[MOST], int num_nodes)
{
    for (int rank = 0; rank < 2 * num_nodes; rank++) {
        weft_nodes_rank *r = &ranks[rank];
        *r = (weft_nodes_rank){.first_rank = rank / 2 * 2};
        snprintf(r->node, sizeof r->node, "node%d", rank / 2);
        r->value[WEFT_NODES_COMPUTE] = 1e11 * (1 + 0.1 * (rank % 3));
        r->value[WEFT_NODES_MEMORY] = 1e10;
        if (rank % 2 == 0) {
            r->value[WEFT_NODES_WRITE] = 5e8;
            r->value[WEFT_NODES_READ] = 1e9;
        }
        for (int i = 0; i < WEFT_NODES_MAX_ROUNDS; i++) {
            const int peer = weft_nodes_peer(rank / 2, num_nodes, i);
            r->links[i].peer = peer >= 0 && i % 2 == rank % 2 ? 2 * peer + rank % 2 : -1;
            r->links[i].bytes_per_s = 1e9;
            r->links[i].latency_us = 20 + i;
        }
    }
}

static void slow_link(weft_nodes_rank *ranks, int num_ranks, int a, int b, double by)
{
    for (int rank = 0; rank < num_ranks; rank++)
        for (int i = 0; i < WEFT_NODES_MAX_ROUNDS; i++) {
            weft_nodes_link *l = &ranks[rank].links[i];
            const int from = rank / 2, to = l->peer / 2;
            if (l->peer >= 0 &&
                ((from == a && (b < 0 || to == b)) || (to == a && (b < 0 || from == b)))) {
                l->bytes_per_s /= by;
                l->latency_us *= by;
            }
        }
}

static void check_judge(void)
{
    weft_nodes_rank ranks[MOST];
    weft_nodes_odd odd[MOST];
    for (int num = 1; num <= 9; num++) {
        make(ranks, num);
        EXPECT(weft_nodes_judge(ranks, 2 * num, 1.5, odd, MOST) == 0, "%d even nodes: %s, rank %d",
               num, weft_nodes_kind_text(odd[0].kind), odd[0].rank);
        if (num == 1)
            continue;
        ranks[3].value[WEFT_NODES_COMPUTE] = 4e10;
        ranks[2].value[WEFT_NODES_WRITE] = 2e8;
        int count = weft_nodes_judge(ranks, 2 * num, 1.5, odd, MOST);
        EXPECT(count == 2 && odd[0].kind == WEFT_NODES_COMPUTE && odd[0].rank == 3 &&
                   odd[0].peer < 0 && !odd[0].is_node && fabs(odd[0].factor - 2.75) < 0.3 &&
                   odd[1].kind == WEFT_NODES_WRITE && odd[1].rank == 2 && odd[1].is_node &&
                   fabs(odd[1].median - 5e8) < 1 && fabs(odd[1].factor - 2.5) < 1e-9,
               "%d nodes: %d odd", num, count);
        make(ranks, num);
        slow_link(ranks, 2 * num, 1, -1, 10);
        count = weft_nodes_judge(ranks, 2 * num, 1.5, odd, MOST);
        EXPECT(num == 2 ? count == 0
                        : count == 2 && odd[0].kind == WEFT_NODES_LINK && odd[0].rank == 2 &&
                              odd[0].is_node && odd[0].peer < 0 &&
                              odd[1].kind == WEFT_NODES_LATENCY && odd[1].rank == 2,
               "%d nodes, the links of one are slow: %d odd", num, count);
        if (num < 4)
            continue; /* of three nodes, two links of three */
        make(ranks, num);
        slow_link(ranks, 2 * num, 0, 3, 3);
        count = weft_nodes_judge(ranks, 2 * num, 1.5, odd, MOST);
        EXPECT(count == 1 && odd[0].kind == WEFT_NODES_LINK && odd[0].rank / 2 == 0 &&
                   odd[0].peer / 2 == 3 && !odd[0].is_node,
               "%d nodes, one link is slow, its latency 40 us longer: %d odd", num, count);
    }
    make(ranks, 3);
    snprintf(ranks[4].fault, sizeof ranks[4].fault, "/data: cannot write: I/O error");
    ranks[4].value[WEFT_NODES_WRITE] = ranks[4].value[WEFT_NODES_READ] = 0;
    EXPECT(weft_nodes_judge(ranks, 6, 1.5, odd, MOST) == 1 && odd[0].rank == 4 && odd[0].value == 0,
           "a disk that cannot be written");
    make(ranks, 3);
    snprintf(ranks[2].apart, sizeof ranks[2].apart, "/data is another folder");
    ranks[2].value[WEFT_NODES_WRITE] = ranks[2].value[WEFT_NODES_READ] = 0;
    EXPECT(weft_nodes_judge(ranks, 6, 1.5, odd, MOST) == 1 && odd[0].rank == 2 && odd[0].is_node &&
               odd[0].value == 0,
           "a folder that is another");
}

/* mpirun of this program as weft doctor. */
static void run(child *c, const char *slow, const char *const *more)
{
    const char *args[CHILD_MAX_ARGS] = {
        "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n",
        "4",      child_program,         "doctor",          "--nodes"};
    int num = 10;
    while (*more)
        args[num++] = *more++;
    child_run_other("/usr/bin/env", c, args, WORDS(slow));
}

static const char *const quick[] = {"--factor", "6", "--seconds", "30", NULL};

static void check_even(void)
{
    child c;
    run(&c, "SLOW=none", quick);
    EXPECT(c.exit_code == 0 && c.out &&
               strstr(c.out, "4 ranks of 1 node are even: none is 6 times") &&
               !strstr(c.out, "odd:") && strstr(c.out, "\n     3  ") &&
               strstr(c.out, "writes and syncs"),
           "exit %d: %s%s", c.exit_code, c.out, c.err);
}

/* -q: without mpirun's own words. */
static void check_no_gpu(void)
{
    const char *why;
    child c;
    if (weft_device_num_cuda(&why) > 0)
        return;
    run(&c, "OMPI_MCA_orte_execute_quiet=1", WORDS("--device", "cuda"));
    EXPECT(c.exit_code == 4 && child_is_line(c.err) &&
               !strncmp(c.err, "weft doctor: rank 0: node ", 26),
           "exit %d: %s%s", c.exit_code, c.out, c.err);
}

static void check_slow(void)
{
    child c;
    run(&c, "SLOW=1", quick);
    const char *odd = c.out ? strstr(c.out, "odd: ") : NULL;
    EXPECT(c.exit_code == 4 && odd && strstr(odd, ", rank 1: compute: ") && child_is_line(odd),
           "exit %d: %s%s", c.exit_code, c.out, c.err);
    run(&c, "SLOW=2", WORDS("--factor", "6", "--seconds", "30", "--json"));
    cJSON *json = child_parse(c.out);
    const cJSON *list = cJSON_GetObjectItem(json, "odd"), *first = cJSON_GetArrayItem(list, 0);
    const cJSON *factor = cJSON_GetObjectItem(first, "factor");
    EXPECT(c.exit_code == 4 && cJSON_GetArraySize(list) == 1 &&
               cJSON_IsFalse(cJSON_GetObjectItem(json, "even")) &&
               cJSON_GetObjectItem(first, "rank") &&
               cJSON_GetObjectItem(first, "rank")->valueint == 2 && factor &&
               factor->valuedouble > 6,
           "exit %d: %s%s", c.exit_code, c.out, c.err);
}

static void check_arguments(void)
{
    CHILD_REFUSED(2, "--path nowhere: cannot write: ", "doctor", "--nodes", "--path", "nowhere",
                  "--seconds", "10");
    CHILD_REFUSED(2, "--nodes measures", "doctor", "--nodes", "mpi");
    CHILD_REFUSED(2, "--factor", "doctor", "--nodes", "--factor", "1");
    CHILD_REFUSED(2, "--factor: needs --nodes", "doctor", "--factor", "2");
    CHILD_REFUSED(2, "--local: needs --nodes", "doctor", "--local");
    child_says(WORDS("doctor", "--nodes", "--seconds", "10"), 0,
               WORDS("One rank: there is nobody to compare it with."), NULL);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return weft_main(argc, argv, NULL);
    child_program = realpath(argv[0], NULL);
    child_begin();
    check_rounds();
    check_judge();
    check_arguments();
    check_even();
    check_no_gpu();
    check_slow();
    return child_finish();
}
