/* Where Open MPI keeps the files of a job that this process starts: segments that ranks share in
 * /dev/shm, sockets and notes in $TMPDIR or /tmp. The job has a folder in each and locks it as long
 * as it lives, so that the next start can remove the folders of jobs that were killed. */
#ifndef WEFT_LAUNCHER_PROCESS_JOB_FOLDER_H
#define WEFT_LAUNCHER_PROCESS_JOB_FOLDER_H

/* Removes what dead jobs of this user left, makes the folders and names them to mpirun in the
 * environment. Where it cannot make one, Open MPI uses its own place. Where /dev/shm has no room
 * for what `num_ranks` share (containers often have little, and Open MPI then hangs), that lies in
 * the other folder, and one line says so. */
void weft_job_folder_open(int num_ranks);
/* Removes the folders; call it when mpirun has ended. */
void weft_job_folder_close(void);

#endif
