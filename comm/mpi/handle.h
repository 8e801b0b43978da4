/* The raw communicator, for parallel HDF5. The only permitted user is the checkpoint writer: every
 * other part of the project speaks to comm/comm.h. */
#ifndef WEFT_COMM_MPI_HANDLE_H
#define WEFT_COMM_MPI_HANDLE_H

#include <mpi.h>

#include "comm/comm.h"

/* Borrowed; valid while the world lives. For a self communicator: MPI_COMM_SELF when MPI runs and
 * MPI_COMM_NULL when it does not. */
MPI_Comm weft_comm_mpi_handle(const weft_comm *comm);

#endif
