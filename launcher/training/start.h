/* Starting the ranks of a verb that runs by a config: a launcher's, those of an mpirun that Weft
 * starts, or this process alone. Private to launcher/. */
#ifndef WEFT_LAUNCHER_TRAINING_START_H
#define WEFT_LAUNCHER_TRAINING_START_H

#include "comm/comm.h"
#include "launcher/planning/config.h"
#include "launcher/training/run_folder.h"
#include "parallel/checkpoint/checkpoint.h"

typedef struct weft_start {
    bool launched;    /* a launcher started this process, as one of `size` */
    int rank, size;   /* 0 and 1 where none did */
    weft_comm *world; /* the caller's; NULL: mpirun ran the ranks and gave exit_code */
    int exit_code;
    /* Of asynchronous saves, where the config asks for them and `folder` is not NULL: forked before
     * MPI begins. The caller's; NULL: none. */
    weft_checkpoint_writer *writer;
} weft_start;

/* Finds what a launcher says; the log names the rank from now on. */
weft_start weft_start_find(void);
/* Makes the world of a verb without a config: a launcher's ranks, or this process alone. */
weft_status weft_start_world(weft_start *start) WEFT_CHECKED;
/* The exit code of a verb whose ranks all ended with `status`: rank 0 says what is wrong. */
int weft_start_end(const weft_start *start, weft_status status, const char *verb);
/* Checks the config's mesh against the ranks and makes the world. Where no launcher started this
 * process and the mesh has several ranks, it checks what needs no ranks (device; unless source says
 * no_data, data and the model that trains; that `folder`, if not NULL, is free), runs mpirun with
 * argv and waits for its end; with a folder and reliability.max_restarts, also for one rank, and
 * again after faults. */
weft_status weft_start_ranks(weft_start *start, const weft_config *config,
                             const weft_config_source *source, const weft_run_folder *folder,
                             int argc, char **argv) WEFT_CHECKED;

/* Whether a job that ends so may go on: a rank was killed by a signal, the device, the
 * communication or a file failed (a disk that failed once reads the next time), ranks no longer got
 * on, or one computed wrongly. Not where the next start would meet the same (bad config, a
 * checkpoint of a newer Weft, memory that is short, divergence, a bug), and not at a stop. */
bool weft_restarts_is_fault(int exit_code);

/* In rank 0: the first step begins. Starts what could not be started. */
void weft_alive_enter_steps(const char *run);
/* The rank ends by itself, and others may yet have to. Waits for the file system. */
void weft_alive_end(void);

#endif
