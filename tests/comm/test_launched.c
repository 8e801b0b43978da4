/* What the launchers' variables mean. */
#include <stdlib.h>

#include "comm/comm.h"
#include "tests/core/check.h"

static const char *const names[] = {
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_TASKS_PER_NODE",
};

/* `pairs`: name, value, ..., NULL. The rest of the variables is unset. */
static bool launched(const char *const *pairs, int out[4])
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    for (; *pairs; pairs += 2)
        setenv(pairs[0], pairs[1], 1);
    for (int i = 0; i < 4; i++)
        out[i] = -7;
    return weft_comm_launched(&out[0], &out[1], &out[2], &out[3]);
}

#define EXPECT_LAUNCHED(rank, size, local_rank, local_size, ...)                                   \
    do {                                                                                           \
        int got[4];                                                                                \
        assert_true(launched((const char *const[]){__VA_ARGS__, NULL}, got));                      \
        assert_int_equal(got[0], rank);                                                            \
        assert_int_equal(got[1], size);                                                            \
        assert_int_equal(got[2], local_rank);                                                      \
        assert_int_equal(got[3], local_size);                                                      \
    } while (0)

#define EXPECT_ALONE(...)                                                                          \
    do {                                                                                           \
        int got[4];                                                                                \
        assert_false(launched((const char *const[]){__VA_ARGS__, NULL}, got));                     \
        assert_int_equal(got[1], -7);                                                              \
    } while (0)

CASE(test_mpirun)
{
    EXPECT_LAUNCHED(5, 8, 1, 4, "OMPI_COMM_WORLD_RANK", "5", "OMPI_COMM_WORLD_SIZE", "8",
                    "OMPI_COMM_WORLD_LOCAL_RANK", "1", "OMPI_COMM_WORLD_LOCAL_SIZE", "4");
    EXPECT_LAUNCHED(5, 8, 1, 2, "PMI_RANK", "5", "PMI_SIZE", "8", "MPI_LOCALRANKID", "1",
                    "MPI_LOCALNRANKS", "2");
    EXPECT_LAUNCHED(0, 2, 0, 1, "OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2");
    assert_true(weft_comm_launched(NULL, NULL, NULL, NULL));
}

CASE(test_slurm)
{
    EXPECT_LAUNCHED(9, 11, 1, 3, "SLURM_PROCID", "9", "SLURM_STEP_ID", "0", "SLURM_NTASKS", "11",
                    "SLURM_LOCALID", "1", "SLURM_NODEID", "2", "SLURM_TASKS_PER_NODE", "4(x2),3");
    /* A step of fewer tasks than the job. */
    EXPECT_LAUNCHED(1, 2, 1, 2, "SLURM_PROCID", "1", "SLURM_STEP_ID", "3", "SLURM_NTASKS", "16",
                    "SLURM_STEP_NUM_TASKS", "2", "SLURM_LOCALID", "1", "SLURM_NODEID", "0",
                    "SLURM_TASKS_PER_NODE", "8(x2)", "SLURM_STEP_TASKS_PER_NODE", "2");
}

CASE(test_alone)
{
    EXPECT_ALONE(NULL);
    /* A batch script, and salloc's shell, are one process however many tasks the job has. */
    EXPECT_ALONE("SLURM_PROCID", "0", "SLURM_NTASKS", "8");
    EXPECT_ALONE("SLURM_PROCID", "0", "SLURM_NTASKS", "8", "SLURM_STEP_ID", "4294967290");
    EXPECT_ALONE("OMPI_COMM_WORLD_RANK", "x", "OMPI_COMM_WORLD_SIZE", "8");
    EXPECT_ALONE("OMPI_COMM_WORLD_RANK", "", "OMPI_COMM_WORLD_SIZE", "8");
}
