/* The weft command with a fault: CRASH=RANK:STEP:TIMES:CODE:FILE. In that step that rank ends with
 * exit code CODE, 0: as by SIGKILL, at its first sum with others, so often; FILE counts how often
 * it has. Step 0: where it sets up. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <weft/weft.h>

#include "comm/comm.h"
#include "launcher/training/trainer.h"

static struct {
    int rank, times, code;
    long long step;
    char file[64];
} crash;

static bool is_near;

static void end_here(void)
{
    int count = 0;
    FILE *file = fopen(crash.file, "a+");
    while (file && fgetc(file) != EOF)
        count++;
    if (count < crash.times && file && fputc('x', file) != EOF && fclose(file) == 0) {
        if (crash.code)
            _exit(crash.code);
        raise(SIGKILL);
    }
    is_near = false;
}

__typeof__(weft_all_reduce) __real_weft_all_reduce, __wrap_weft_all_reduce;
weft_status __wrap_weft_all_reduce(weft_comm *comm, weft_lane *lane, void *buffer, size_t count,
                                   weft_dtype dtype, weft_reduce reduce)
{
    if (is_near && weft_comm_size(comm) > 1)
        end_here();
    return __real_weft_all_reduce(comm, lane, buffer, count, dtype, reduce);
}

/* What no mpirun has started is rank 0. */
static bool is_rank(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return (rank ? atoi(rank) : 0) == crash.rank;
}

__typeof__(weft_trainer_create) __real_weft_trainer_create, __wrap_weft_trainer_create;
weft_status __wrap_weft_trainer_create(weft_trainer *trainer, const weft_config *config,
                                       const weft_config_source *source, weft_comm *world,
                                       weft_arena *arena)
{
    if (crash.step == 0 && is_rank())
        end_here();
    return __real_weft_trainer_create(trainer, config, source, world, arena);
}

__typeof__(weft_trainer_step) __real_weft_trainer_step, __wrap_weft_trainer_step;
weft_status __wrap_weft_trainer_step(weft_trainer *trainer, weft_step_result *result)
{
    is_near = is_rank() && trainer->step + 1 == crash.step;
    weft_status status = __real_weft_trainer_step(trainer, result);
    if (is_near)
        end_here();
    return status;
}

int main(int argc, char **argv)
{
    const char *text = getenv("CRASH");
    if (text && sscanf(text, "%d:%lld:%d:%d:%63s", &crash.rank, &crash.step, &crash.times,
                       &crash.code, crash.file) != 5)
        return 99;
    return weft_main(argc, argv, NULL);
}
