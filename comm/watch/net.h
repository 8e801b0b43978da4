/* Datagrams between the ranks' watchdogs. A datagram may be lost. Private to comm/. */
#ifndef WEFT_COMM_WATCH_NET_H
#define WEFT_COMM_WATCH_NET_H

#include "comm/comm.h"
#include "comm/watch/judge.h"

typedef enum weft_watch_word {
    WEFT_WORD_BEAT, /* I live; the receiver replies */
    WEFT_WORD_REPLY,
    WEFT_WORD_ALARM,   /* a limit of mine has passed */
    WEFT_WORD_QUERY,   /* where are you? */
    WEFT_WORD_COMPARE, /* where are you, and what have you issued under the number of mine? */
    WEFT_WORD_ANSWER,
    WEFT_WORD_END, /* write your record and leave */
    WEFT_WORD_WRITTEN,
    WEFT_WORD_GO,     /* all have written */
    WEFT_WORD_RECORD, /* write your record */
    WEFT_WORD_BYE,    /* my watchdog ends: silence is no sign from here on */
} weft_watch_word;

typedef struct weft_watch_net weft_watch_net;

/* Opens a socket and learns those of all ranks. Collective over the world. Errors: WEFT_COMM,
 * WEFT_MEMORY, alike on all ranks. */
weft_status weft_watch_net_open(weft_comm *world, weft_watch_net **out) WEFT_CHECKED;
void weft_watch_net_close(weft_watch_net *net);
/* The machines' names, [size]. */
const char *const *weft_watch_net_nodes(const weft_watch_net *net);
/* answer NULL: none. */
void weft_watch_net_send(weft_watch_net *net, int to, weft_watch_word word,
                         const weft_answer *answer);
/* Takes the next datagram of this job, where one is there within the time or `wake_fd` is not
 * readable by then. *answer is filled by an ANSWER and a COMPARE. False: there is none. */
bool weft_watch_net_receive(weft_watch_net *net, double seconds, int wake_fd, int *from,
                            weft_watch_word *word, weft_answer *answer);

#endif
