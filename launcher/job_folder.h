/* Where Open MPI keeps the files of a job that this process starts: segments that ranks share,
 * sockets, notes. A folder in /dev/shm, locked for as long as the job lives, so that the next start
 * knows the folders of jobs that were killed and removes them. */
#ifndef WEFT_LAUNCHER_JOB_FOLDER_H
#define WEFT_LAUNCHER_JOB_FOLDER_H

/* Removes what dead jobs of this user have left, makes a folder and names it to mpirun in the
 * environment. Without /dev/shm Open MPI uses its own places. */
void weft_job_folder_open(void);
/* When mpirun has ended. */
void weft_job_folder_close(void);

#endif
