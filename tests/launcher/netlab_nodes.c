/* Run on an emulated cluster: netlab_nodes RANKS-A-NODE. The ranks that share memory are those of
 * one host name, as many as stated, and data reaches every rank whole. */
#include <string.h>
#include <unistd.h>

#include "tests/comm/comm_test.h"

enum { HOST_BYTES = 64, MAX_RANKS = 16, BLOCK_WORDS = 1 << 15 };

static void check_nodes(test_setup *t, int ranks_a_node)
{
    char hosts[MAX_RANKS][HOST_BYTES], own[HOST_BYTES] = {0};
    EXPECT(gethostname(own, HOST_BYTES - 1) == 0, "no host name");
    setup_must(weft_comm_all_gather_host(t->comm, own, hosts, HOST_BYTES));
    int on_host = 0;
    for (int rank = 0; rank < t->size; rank++)
        on_host += strcmp(hosts[rank], own) == 0;
    EXPECT(on_host == ranks_a_node, "%d ranks on %s", on_host, own);

    weft_comm *node;
    setup_must(weft_comm_split_node(t->comm, &node));
    EXPECT(weft_comm_size(node) == ranks_a_node, "%d ranks share memory on %s",
           weft_comm_size(node), own);
    for (int i = 0; i < weft_comm_size(node); i++) {
        int rank = weft_comm_world_rank(node, i);
        EXPECT(strcmp(hosts[rank], own) == 0, "rank %d of %s shares memory with %s", rank,
               hosts[rank], own);
    }
    weft_comm_destroy(node);
}

static void check_data(test_setup *t)
{
    static uint64_t send[MAX_RANKS][BLOCK_WORDS], recv[MAX_RANKS][BLOCK_WORDS];
    size_t bytes[MAX_RANKS];
    for (int peer = 0; peer < t->size; peer++) {
        bytes[peer] = sizeof send[peer];
        for (uint64_t i = 0; i < BLOCK_WORDS; i++)
            send[peer][i] = test_hash((uint64_t)t->rank, (uint64_t)peer << 32 | i);
    }
    EXPECT_OK(weft_all_to_all(t->comm, t->lanes[0], send, bytes, recv, bytes));
    EXPECT_OK(weft_lane_sync(t->lanes[0]));
    for (int peer = 0; peer < t->size; peer++) {
        size_t wrong = 0;
        for (uint64_t i = 0; i < BLOCK_WORDS; i++)
            wrong += recv[peer][i] != test_hash((uint64_t)peer, (uint64_t)t->rank << 32 | i);
        EXPECT(wrong == 0, "%zu words from rank %d", wrong, peer);
    }
}

int main(int argc, char **argv)
{
    test_setup t;
    test_setup_init(&t);
    if (argc != 2 || t.size > MAX_RANKS) {
        fprintf(stderr, "usage: netlab_nodes RANKS-A-NODE, on at most %d ranks\n", MAX_RANKS);
        weft_comm_abort(t.comm, WEFT_CONFIG);
    }
    check_nodes(&t, atoi(argv[1]));
    check_data(&t);
    return test_setup_finish(&t);
}
