/* The network by which the ranks' processes talk beside MPI and NCCL. */
#ifndef WEFT_COMM_ADDRESS_H
#define WEFT_COMM_ADDRESS_H

#include <stdint.h>

/* This machine's IPv4 address in network order, on the network that OMPI_MCA_btl_tcp_if_include or
 * NCCL_SOCKET_IFNAME names, else on the first; 0: it has none but the loopback's. */
uint32_t weft_comm_own_address(void);

#endif
