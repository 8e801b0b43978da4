/* The ranks that this one's own parent has started on this machine, before they know of each other.
 * Private to comm/. */
#ifndef WEFT_COMM_WATCH_SIBLINGS_H
#define WEFT_COMM_WATCH_SIBLINGS_H

enum { WEFT_MAX_STOPPED = 16 };

typedef struct weft_siblings {
    int first; /* the lowest rank that is not stopped; -1: none is known */
    int num_stopped;
    int stopped[WEFT_MAX_STOPPED]; /* by SIGSTOP, the first of them that were found */
} weft_siblings;

void weft_siblings_look(weft_siblings *out);

#endif
