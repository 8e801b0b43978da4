/* The ranks of a test under MPI, and a folder of theirs. */
#ifndef WEFT_TESTS_WORLD_H
#define WEFT_TESTS_WORLD_H

#include "comm/comm.h"
#include "tests/expect.h"

/* One for all files of a program. */
__attribute__((weak)) char world_folder[64];

/* Ends the world's ranks where the call has failed. */
static inline void world_must(weft_comm *world, weft_status status, const char *what)
{
    EXPECT(status == WEFT_OK, "%s: %s", what, weft_error_get()->text);
    if (status != WEFT_OK)
        weft_comm_abort(world, status);
}

/* Of so many ranks; 0: of any number. */
static inline weft_comm *world_begin(int num_ranks)
{
    weft_comm *world;
    if (weft_comm_create_world(&world) != WEFT_OK) {
        fprintf(stderr, "%s\n", weft_error_get()->text);
        exit(1);
    }
    EXPECT(num_ranks == 0 || weft_comm_size(world) == num_ranks, "run with %d ranks", num_ranks);
    return world;
}

/* Makes world_folder, under /tmp, the same on all ranks. Collective. */
static inline void world_make_folder(weft_comm *world)
{
    if (weft_comm_rank(world) == 0) {
        snprintf(world_folder, sizeof world_folder, "/tmp/weft-world-XXXXXX");
        EXPECT(mkdtemp(world_folder) != NULL, "no folder");
    }
    EXPECT_OK(weft_comm_broadcast_host(world, world_folder, sizeof world_folder, 0));
}

/* The first num_ranks ranks, for weft_comm_destroy; on others NULL. Collective. */
static inline weft_comm *world_part(weft_comm *world, int num_ranks)
{
    weft_comm *part = NULL;
    const int rank = weft_comm_rank(world);
    EXPECT_OK(weft_comm_split(world, rank < num_ranks ? 0 : -1, rank, "part", WEFT_PURPOSE_CONTROL,
                              &part));
    return part;
}

/* The end of main: waits for all ranks, and removes their folder. Returns the exit code. */
static inline int world_finish(weft_comm *world)
{
    EXPECT_OK(weft_comm_barrier(world));
    if (weft_comm_rank(world) == 0 && *world_folder)
        expect_shell("rm -rf %s", world_folder);
    weft_comm_destroy(world);
    return expect_finish();
}

#endif
