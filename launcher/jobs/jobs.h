/* A job: what starts a run on a cluster, as the files that a launcher reads.
 *
 * The files of a job lie in the run's folder. Whatever a path or an argument holds (blanks, quotes,
 * $), the program gets it as it is. A job starts the run or goes on with it (--resume), so that it
 * may be started again. Nothing here talks to a launcher but weft_job_start. */
#ifndef WEFT_LAUNCHER_JOBS_JOBS_H
#define WEFT_LAUNCHER_JOBS_JOBS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <weft/list.h>
#include <weft/status.h>

#include "core/arena.h"

/* name, text, what starts it */
#define WEFT_JOB_LIST(X)                                                                           \
    X(MPIRUN, "mpirun", "bash")                                                                    \
    X(SLURM, "slurm", "sbatch")                                                                    \
    X(KUBERNETES, "kubernetes", "kubectl")
typedef enum weft_job_kind {
#define WEFT_JOB_ENUM(name, text, starter) WEFT_JOB_##name,
    WEFT_JOB_LIST(WEFT_JOB_ENUM)
#undef WEFT_JOB_ENUM
        WEFT_NUM_JOBS
} weft_job_kind;
const char *weft_job_text(int kind);

/* Nodes by their names. */
typedef struct weft_job_hosts {
    const char *names;  /* "a,b" */
    const char *option; /* that named them: hosts, hostfile */
    int count;
    int least_slots, most_slots; /* of a node; least 0: not all lines say */
} weft_job_hosts;
/* Reads a list, "node[01-16,20],login.x", or, unless it is NULL, a file with a host a line, as Open
 * MPI ("a slots=8"), DeepSpeed (the same) and MPICH ("a:8") read it. WEFT_CONFIG: no names, a name
 * twice; WEFT_FILE: no such file. */
weft_status weft_job_read_hosts(const char *list, const char *file, weft_arena *arena,
                                weft_job_hosts *out) WEFT_CHECKED;

/* reliability's, of mpirun and slurm. */
typedef struct weft_job_restarts {
    int64_t max, delay_s; /* max 0: a fault ends the job */
    /* mpirun: the numbers of nodes that a mesh fits, falling, num_nodes first; and num_nodes' data
     * parallelism. */
    const char *node_counts;
    int dp;
} weft_job_restarts;

typedef struct weft_job_slurm {
    const char *time; /* "HH:MM:SS", or another of Slurm's forms; NULL: the partition's */
    const char *account, *partition, *qos; /* NULL: the user's own */
    weft_string_list sbatch;               /* further options, as they stand behind #SBATCH */
} weft_job_slurm;

/* Which has `program`: of Slurm's plugin pyxis, with more mounts or NULL, or, with mpirun too, of
 * apptainer; NULL: on the node itself. */
typedef struct weft_job_container {
    const char *image, *mounts, *apptainer;
} weft_job_container;

typedef struct weft_job_kubernetes {
    const char *image;
    const char *name_space, *queue; /* NULL: kubectl's, none */
    weft_string_list resources;     /* NAME=AMOUNT: what each worker gets beside its GPUs */
    weft_string_list pod;           /* FIELD=JSON or FIELD=TEXT: fields of the pods' spec */
    int user;                       /* whose number the containers run as; -1: the image's, root */
    const char *claim;       /* a volume claim that holds the run; NULL: the nodes' own folder */
    const char *config_text; /* of the job's config */
} weft_job_kubernetes;

/* Borrows all of its texts. Paths are absolute. */
typedef struct weft_job {
    weft_job_kind kind;
    const char *program; /* what trains: a path, or a name that PATH finds */
    bool has_program;    /* somebody named it */
    const char *folder;  /* where relative paths of the config begin */
    const char *config, *run;
    weft_string_list settings; /* further arguments: --set, KEY=VALUE, ... */
    int num_nodes, ranks_per_node;
    int gpus_per_node;              /* 0: none */
    int num_threads;                /* a rank's cores; 0: nobody says */
    bool whole_nodes;               /* the job has its nodes for itself */
    int stop_s;                     /* what a run may take to stop and save */
    const char *setup, *setup_text; /* a file of shell lines that stand before the program, and
                                       they; NULL: none */
    weft_string_list environment;   /* NAME=VALUE, or NAME: ranks get what the job has there */
    const char *interface; /* of the network, for what opens sockets; NULL: theirs to find */
    bool rank_output;      /* ranks' words go to files of their own, RUN/ranks */
    weft_job_restarts restarts;
    weft_job_hosts hosts; /* of mpirun; without names: this machine, or names to be filled in */
    int num_spares;       /* likewise: further nodes, for those that fail */
    weft_job_slurm slurm;
    weft_job_container container;
    weft_job_kubernetes kubernetes;
    weft_string_list mounts; /* kubernetes, containers: folders of the nodes that the job reads */
} weft_job;

/* Refuses with WEFT_CONFIG what the job's launcher cannot take: too few hosts, a time, what would
 * add a line to a script, an image's or claim's name, paths that cannot be mounted, texts that are
 * not UTF-8. */
weft_status weft_job_check(const weft_job *job) WEFT_CHECKED;
/* Whether its program runs in a container, which has one by the same name. */
bool weft_job_is_contained(const weft_job *job);
/* The name of a file of the job, "job.sh"; the last is what is started. NULL: no more files. */
const char *weft_job_file_name(weft_job_kind kind, int file);

/* Makes the run's folder where it is missing, and puts its own path into *out, from the arena.
 * Errors of all below: WEFT_FILE, WEFT_MEMORY. */
weft_status weft_job_make_folder(const char *run, weft_arena *arena, const char **out) WEFT_CHECKED;
/* Prints all files of the job, of several each behind a line with its path. */
weft_status weft_job_show(const weft_job *job, FILE *out) WEFT_CHECKED;
/* Writes all files of the job. WEFT_CONFIG without `force`: one of them is there with another text;
 * then none is written. *written: bit i: file i was, and was not there with this text. */
weft_status weft_job_write(const weft_job *job, bool force, weft_arena *arena,
                           unsigned *written) WEFT_CHECKED;
/* Removes these files of the job. */
void weft_job_remove(const weft_job *job, unsigned written);

/* One word of a bash script, on one line: as it is, between single quotes, or with control
 * characters escaped. */
void weft_shell_word(const char *text, FILE *out);

/* The command that starts the job, NULL at the end. */
enum { WEFT_JOB_MAX_WORDS = 5 };
weft_status weft_job_command(const weft_job *job, weft_arena *arena,
                             const char *out[WEFT_JOB_MAX_WORDS]) WEFT_CHECKED;
/* Whether it can be started here: WEFT_CONFIG names the program that is missing, or asks for hosts.
 */
weft_status weft_job_check_start(const weft_job *job) WEFT_CHECKED;
/* Hands the job to its launcher, whose exit code is *exit_code; a job of mpirun: becomes that
 * command. WEFT_COMM: it cannot be started. */
weft_status weft_job_start(const weft_job *job, weft_arena *arena, int *exit_code) WEFT_CHECKED;

#endif
