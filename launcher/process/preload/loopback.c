/* Preloaded into the mpirun that `weft train` starts. That mpirun listens on all interfaces for
 * daemons on other machines, of which there are none, and no option of Open MPI 4 prevents it: a
 * stranger's connection that sends one byte would make it wait for the rest for ever. This file
 * makes "all interfaces" the loopback alone. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
    if (address && address->sa_family == AF_INET && bytes == sizeof ipv4) {
        memcpy(&ipv4, address, sizeof ipv4);
        if (ipv4.sin_addr.s_addr == htonl(INADDR_ANY))
            ipv4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return (int)syscall(SYS_bind, fd, &ipv4, sizeof ipv4);
    }
    if (address && address->sa_family == AF_INET6 && bytes == sizeof ipv6) {
        memcpy(&ipv6, address, sizeof ipv6);
        if (IN6_IS_ADDR_UNSPECIFIED(&ipv6.sin6_addr))
            ipv6.sin6_addr = in6addr_loopback;
        return (int)syscall(SYS_bind, fd, &ipv6, sizeof ipv6);
    }
    return (int)syscall(SYS_bind, fd, address, bytes);
}
