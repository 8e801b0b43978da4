/* Where Open MPI keeps the files of a job that this process starts: segments that ranks share in
 * /dev/shm, its sockets and notes in $TMPDIR or /tmp. A folder in each, locked for as long as the
 * job lives, so that the next start knows the folders of jobs that were killed and removes them. */
#ifndef WEFT_LAUNCHER_PROCESS_JOB_FOLDER_H
#define WEFT_LAUNCHER_PROCESS_JOB_FOLDER_H

/* Removes what dead jobs of this user have left, makes the folders and names them to mpirun in the
 * environment. Where one cannot be made Open MPI uses its own place. */
void weft_job_folder_open(void);
/* When mpirun has ended. */
void weft_job_folder_close(void);

#endif
