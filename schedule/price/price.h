/* Pricing: a discrete-event simulation of a set of programs, one a stage.
 *
 * Lanes are FIFOs. Tasks wait as programs and hosts do; the step before is over. A message
 * takes its time on the receiver's RECEIVE lane from the moment both sides are ready (the SEND task
 * occupies its lane as long). A message that is buffered starts as soon as its SEND is ready; its
 * RECEIVE starts once it is ready and the message has left, and ends when the message is there: at
 * once, if it came before. Tasks in which ranks meet (schedule/walk.h) start when the last rank has
 * come. Tasks that run at once on a stage slow each other down in two ways. Interference (MPMoE
 * §II-C): beside work of another class a task goes on at alpha(its class, the other class) of its
 * speed, beside both other classes at alpha(its class, ALL). Links: tasks that together need more
 * of a link than it has go on at the same part of their speeds. A link carries as much each way at
 * once: a message loads its sender's link one way and its receiver's the other, and goes at the
 * speed of the slower end. An event costs the same however many stages there are. Pure. */
#ifndef WEFT_SCHEDULE_PRICE_PRICE_H
#define WEFT_SCHEDULE_PRICE_PRICE_H

#include "core/cluster/cluster.h"
#include "core/trace/trace.h"
#include "schedule/program.h"

/* Microseconds a task takes alone; for SEND and RECEIVE the transfer's time, asked once for each
 * matched pair (of the SEND). */
typedef double (*weft_task_cost)(const void *context, int stage, const weft_task *task);

/* Microseconds more that a task takes that starts then: what programs inside it wait for, which go
 * on from task to task. Asked once a task, as it starts. */
typedef double (*weft_task_inside)(const void *context, int stage, const weft_task *task,
                                   double start_us);

/* How much of that time the task needs each link of its stage, both ways; a message, one way at
 * each end. out_us comes as zeros. The caller says what the links are. */
enum { WEFT_MAX_LINKS = 4 };
typedef void (*weft_task_links)(const void *context, int stage, const weft_task *task,
                                double out_us[WEFT_MAX_LINKS]);

/* Whether a SEND's message is buffered. Messages of one flow to a stage are taken in the order in
 * which they are sent, as the checker proves. */
typedef bool (*weft_send_buffered)(const void *context, int stage, const weft_task *send);

/* The part of its time after which a task has passed a point that another one waits for: between 0
 * and 1, and not smaller than that of a layer's higher point; of a landing anything between 0 and
 * 1. Asked from the task's start on. */
typedef double (*weft_point_share)(const void *context, int stage, const weft_task *task, int point,
                                   const weft_task *waiting);

typedef struct weft_pricing {
    weft_task_cost cost;
    weft_task_inside inside;     /* NULL: nothing is */
    weft_send_buffered buffered; /* NULL: none is */
    weft_point_share point;      /* NULL: points pass at the task's end */
    weft_task_links links;       /* NULL: none is shared */
    const void *context;
    const weft_interference *interference; /* NULL: none */
    uint32_t runs_on;  /* bits of lanes that run on beside what follows (schedule/run.h) */
    weft_trace *trace; /* NULL: none; gets the lanes' names and a slice a task, rank = stage */
} weft_pricing;

typedef struct weft_span {
    double start_us, end_us;
} weft_span;

/* From the arena. */
typedef struct weft_price {
    double makespan_us;  /* until all lanes but those that run on are done */
    double end_us;       /* until all are */
    double *busy_us;     /* [num_stages]: the COMPUTE lane is occupied */
    double bubble_share; /* 1 - sum busy / (num_stages * makespan) over COMPUTE lanes */
    weft_span **spans;   /* [num_stages][num_tasks] */
} weft_price;

/* `programs`: well-formed, as built or parsed. Errors: WEFT_INTERNAL when the programs deadlock;
 * WEFT_CONFIG for an alpha that is not positive. */
weft_status weft_program_price(const weft_program *programs, int num_stages,
                               const weft_pricing *pricing, weft_arena *arena,
                               weft_price *out) WEFT_CHECKED;

/* The makespan of one program. Errors: likewise. */
weft_status weft_program_us(const weft_program *program, const weft_pricing *pricing,
                            double *out_us) WEFT_CHECKED;

/* Programs in a row, each asked of task by task, without events: for whom tasks do not slow each
 * other and send no messages, and a wait for a point is one for its task. */
typedef struct weft_lanes {
    double us[WEFT_NUM_LANES]; /* when each is free */
    double host_us;            /* when the host is, which enqueues tasks as they stand */
    bool host_goes_on;         /* it waits inside no task */
} weft_lanes;

/* When a task ends that may start then, as far as its program and lane say. */
typedef double (*weft_task_end)(void *context, const weft_task *task, double start_us);

/* Runs the program on the lanes, which go on from what ran there before. ends_us: [num_tasks]. */
void weft_program_in_order(const weft_program *program, weft_task_end end, void *context,
                           weft_lanes *lanes, double *ends_us);

/* Where a stage's COMPUTE lane loses time: to messages that its next task waits for; to tasks of
 * the REDUCE and GATHER lanes, or to the host's steps of experts, unless the next task waits for
 * another lane; the rest is bubble. With busy_us these sum to the makespan. */
typedef struct weft_idle {
    double message_us, reduce_us, host_us, bubble_us;
} weft_idle;
weft_idle weft_price_idle(const weft_program *program, const weft_price *price, int stage);

/* The class of work that a lane does; WEFT_NUM_WORK_CLASSES: none of the device's. */
weft_work_class weft_lane_work_class(int lane);

/* Gives the trace's legend the letters of flows. */
void weft_slices_explain(weft_trace *trace);
/* A flow's letters in a slice's name. */
const char *weft_flow_letters(int flow);
/* Fills a slice's lane, name, category, micro_batch and stage (of its chunk; core/stage.h) for a
 * task: measured and priced timelines look alike. Where there is no micro-batch the name has the
 * part, the expert or the bucket. Names: F3 and B3, or
 * Bi3 and Bw3 of its halves, s3 and r3 (a message's ends), sg3 and rg3 when
 * it is a gradient; R0, S0 and Gw0 of a bucket, sums At and Ae, N; of an MoE layer c, P3, D3, E3,
 * C3 with a g for gradients, M3, and Oi3, Om3, pi3, pm3 for T_DI and T_M offloaded and prefetched;
 * G3 and L3; of an expert Uw3, E3 and Eg3, dg3, +g3. The rest is zero. */
void weft_slice_of_task(const weft_task *task, int stage, int num_stages, bool is_v,
                        weft_slice *out);

enum { WEFT_NO_TRACK = -1 };

/* Fields of the slices of a program's tasks, from the level above. */
typedef struct weft_slice_context {
    int rank;
    int micro_batch;       /* for tasks without one; -1: none */
    bool backward;         /* " back" is appended to the category */
    const int *tracks;     /* [WEFT_NUM_LANES]: the slice's lane by the task's; WEFT_NO_TRACK: no
                              slice; NULL: the same */
    int stage, num_stages; /* the rank's number among the pipeline's */
    bool is_v;             /* as in weft_program */
} weft_slice_context;
/* The same for a task that runs within these. */
void weft_slice_within(const weft_slice_context *within, const weft_task *task, weft_slice *out);

#endif
