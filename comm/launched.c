/* Reads from the environment what the launcher says about this process. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "comm/comm.h"

static bool read_number(const char *name, int *out)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return false;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (*end || errno || value < 0 || value > INT_MAX)
        return false;
    *out = (int)value;
    return true;
}

/* A launcher's variables, in the order rank, size, local rank, local size. */
typedef struct launcher {
    const char *names[4];
} launcher;

static const launcher mpi_launchers[] = {
    {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
      "OMPI_COMM_WORLD_LOCAL_SIZE"}},
    {{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}},
};

/* Slurm's tasks-per-node list, such as "4(x2),3": the number on the node with this index. */
static bool tasks_on_node(const char *list, int node, int *out)
{
    while (list && *list) {
        char *end;
        long tasks = strtol(list, &end, 10), times = 1;
        if (end == list || tasks <= 0)
            return false;
        if (end[0] == '(' && end[1] == 'x') {
            times = strtol(end + 2, &end, 10);
            if (*end == ')')
                end++;
        }
        if (node < times) {
            *out = (int)tasks;
            return true;
        }
        node -= (int)times;
        list = *end == ',' ? end + 1 : NULL;
    }
    return false;
}

/* srun's steps alone: a batch script, and the shell that salloc gives (steps numbered near the top
 * of 32 bits), see SLURM_NTASKS too but are one process. */
static bool slurm_step(int values[4])
{
    int step, node = 0;
    if (!read_number("SLURM_STEP_ID", &step) || !read_number("SLURM_PROCID", &values[0]))
        return false;
    if (!read_number("SLURM_STEP_NUM_TASKS", &values[1]) &&
        !read_number("SLURM_NTASKS", &values[1]))
        return false;
    if (!read_number("SLURM_LOCALID", &values[2]))
        values[2] = 0;
    values[3] = 1;
    read_number("SLURM_NODEID", &node);
    const char *list = getenv("SLURM_STEP_TASKS_PER_NODE");
    tasks_on_node(list ? list : getenv("SLURM_TASKS_PER_NODE"), node, &values[3]);
    return true;
}

bool weft_comm_launched(int *out_rank, int *out_size, int *out_local_rank, int *out_local_size)
{
    int values[4] = {0, 1, 0, 1};
    bool found = false;
    for (size_t i = 0; !found && i < sizeof mpi_launchers / sizeof mpi_launchers[0]; i++) {
        const launcher *from = &mpi_launchers[i];
        found = read_number(from->names[0], &values[0]) && read_number(from->names[1], &values[1]);
        if (found) {
            read_number(from->names[2], &values[2]);
            read_number(from->names[3], &values[3]);
        }
    }
    if (!found && !slurm_step(values))
        return false;
    int *outs[4] = {out_rank, out_size, out_local_rank, out_local_size};
    for (int i = 0; i < 4; i++)
        if (outs[i])
            *outs[i] = values[i];
    return true;
}
