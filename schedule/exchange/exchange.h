/* The all-to-all of experts under tensor parallelism, as programs and as formulas (MoNTA,
 * "Pipelining" and "Network-traffic-aware").
 *
 * I: bytes that a rank sends in the baseline. t: ranks inside a node that hold the same bytes. e:
 * ranks that exchange the bytes.
 *
 *   form      what happens
 *   baseline  every rank sends all of I between nodes
 *   o1_paper  drop, all-to-all of I / t, all-gather of everything, copies into place
 *   o1        the same, gathering only what came from elsewhere
 *   o2        in N chunks along the rows: chunk i's all-gather and copy beside chunk i + 1's
 *             all-to-all
 *   o3        as o2, chunk i's copy also beside chunk i + 1's all-gather
 *   direct    as o3 without copies: ranks forward what arrives straight to its final place
 *
 * Programs: a task's part is a chunk. dispatch (lane expert) waits only for its lane and its
 * staging area; gather (lane gather) reads what dispatch wrote; place (lane gather in o1 and o2,
 * lane place in o3) reads what gather wrote. The baseline's dispatch and direct's gather write rows
 * to their final place, which is no slot. Pure. */
#ifndef WEFT_SCHEDULE_EXCHANGE_EXCHANGE_H
#define WEFT_SCHEDULE_EXCHANGE_EXCHANGE_H

#include "core/cluster/cluster.h"
#include "core/trace/trace.h"
#include "schedule/choose.h"
#include "schedule/program.h"

#define WEFT_EXCHANGE_LIST(X)                                                                      \
    X(BASELINE, "baseline")                                                                        \
    X(O1_PAPER, "o1_paper") X(O1, "o1") X(O2, "o2") X(O3, "o3") X(DIRECT, "direct")
typedef enum weft_exchange_form {
#define WEFT_EXCHANGE_ENUM(name, text) WEFT_EXCHANGE_##name,
    WEFT_EXCHANGE_LIST(WEFT_EXCHANGE_ENUM)
#undef WEFT_EXCHANGE_ENUM
        WEFT_NUM_EXCHANGES
} weft_exchange_form;
const char *weft_exchange_text(int form);

enum { WEFT_EXCHANGE_MAX_CHUNKS = 256 };
/* The most chunks of a form: 1 where it sends all at once. */
int weft_exchange_max_chunks(weft_exchange_form form);

typedef struct weft_exchange_shape {
    double bytes;         /* I: what a rank would send in the baseline, all blocks together */
    int t, e;             /* ranks inside; ranks that the tokens travel between */
    int e_near;           /* how many of the e ranks are on the rank's own node; 0: 1 */
    double minimal_bytes; /* I_minimal: no chunk has a smaller slice (I / (N t)); > 0 */
    int num_chunks;       /* N of the chunked forms; 0: chosen */
} weft_exchange_shape;

/* The program of a form in num_parts chunks (1 for baseline and both o1). Slots: two staging areas
 * of kind arrived and two of kind gathered (one each for a single chunk), where the form needs
 * them. Errors: WEFT_CONFIG, WEFT_MEMORY. */
weft_status weft_program_exchange(weft_exchange_form form, int num_parts, weft_arena *arena,
                                  weft_program *out) WEFT_CHECKED;
/* Proves that every chunk is dispatched, gathered and placed once, in order, and that no staging
 * area is read before it is written or overwritten while it is needed. WEFT_INTERNAL with the
 * task's index and text. */
weft_status weft_program_exchange_check(weft_exchange_form form, int num_parts,
                                        const weft_program *program) WEFT_CHECKED;

/* MoNTA eq. 8-10 for one of N chunks. AA: all-to-all, AG: all-gather, D2D: copy; microseconds. AG
 * and D2D count the bytes that the form really moves. */
typedef struct weft_exchange_costs {
    double all_to_all_us, all_gather_us, copy_us;
} weft_exchange_costs;
weft_exchange_costs weft_exchange_costs_of(const weft_cluster *cluster,
                                           const weft_exchange_shape *shape,
                                           weft_exchange_form form, int num_chunks);
/* Eq. 11 and the copies into place for both o1; T of Algorithm 1 for o2, of Algorithm 2 for o3 and
 * direct. Algorithm 2's also covers copies that take longer than a chunk's all-gather and
 * all-to-all: it is the time of the form's program. The cluster may lack costs that are 0 here (one
 * node, t = 1). */
double weft_exchange_us(const weft_cluster *cluster, const weft_exchange_shape *shape,
                        weft_exchange_form form, int num_chunks);

typedef struct weft_exchange_choice {
    weft_exchange_form form;
    int num_chunks;
    double us;
    /* of each form allowed: the best number of chunks and its time; else 0 */
    int best_chunks[WEFT_NUM_EXCHANGES];
    double best_us[WEFT_NUM_EXCHANGES];
    char reason[WEFT_CHOICE_REASON_BYTES]; /* one line for the log */
} weft_exchange_choice;
/* Algorithms 1 and 2 (lines 18-19 read as: T_min = T, keep N) for every chunked form, and Algorithm
 * 3 over the forms in `allowed` (bit i: form i; 0: all). Equal times go to fewer chunks and to the
 * form that comes first. One chunk, and a given number of chunks, are candidates whatever their
 * size. WEFT_CONFIG for an impossible shape; also, with its name, for a cost that an allowed form
 * needs and the cluster lacks. */
weft_status weft_choose_exchange(const weft_cluster *cluster, const weft_exchange_shape *shape,
                                 unsigned allowed, weft_exchange_choice *out) WEFT_CHECKED;

#endif
