#include "comm/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { NUM_INCLUDES = 2 };

/* Whether a list of names and a.b.c.d/bits, as Open MPI's btl_tcp_if_include, has the interface. */
static bool is_included(const char *list, const char *name, uint32_t address)
{
    char item[64];
    while (*list) {
        size_t bytes = strcspn(list, ",");
        snprintf(item, sizeof item, "%.*s", (int)bytes, list);
        list += bytes + (list[bytes] == ',');
        char *slash = strchr(item, '/');
        struct in_addr network;
        if (!slash && strcmp(item, name) == 0)
            return true;
        if (!slash)
            continue;
        *slash = '\0';
        int bits = atoi(slash + 1);
        uint32_t mask = bits <= 0 ? 0 : bits >= 32 ? UINT32_MAX : UINT32_MAX << (32 - bits);
        if (inet_pton(AF_INET, item, &network) == 1 &&
            ((ntohl(network.s_addr) ^ ntohl(address)) & mask) == 0)
            return true;
    }
    return false;
}

/* The network that MPI or NCCL is told to use, for what is cut there shall be silent here; else the
 * first. */
uint32_t weft_comm_own_address(void)
{
    static const char *const variables[NUM_INCLUDES] = {"OMPI_MCA_btl_tcp_if_include",
                                                        "NCCL_SOCKET_IFNAME"};
    struct ifaddrs *all;
    uint32_t best = 0;
    int best_grade = 0;
    if (getifaddrs(&all) != 0)
        return 0;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) ||
            (i->ifa_flags & IFF_LOOPBACK))
            continue;
        struct sockaddr_in address;
        memcpy(&address, i->ifa_addr, sizeof address);
        int grade =
            strncmp(i->ifa_name, "docker", 6) == 0 || strncmp(i->ifa_name, "virbr", 5) == 0 ? 1 : 2;
        for (int v = 0; v < NUM_INCLUDES; v++) {
            const char *list = getenv(variables[v]);
            if (list && is_included(list, i->ifa_name, address.sin_addr.s_addr))
                grade = 3 + NUM_INCLUDES - v;
        }
        if (grade > best_grade) {
            best_grade = grade;
            best = address.sin_addr.s_addr;
        }
    }
    freeifaddrs(all);
    return best;
}
