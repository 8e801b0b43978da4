/* Experts beyond device memory: a layer's experts one after the other, their weights brought up
 * from the host and their gradients brought down (ES-MoE, Kim, Lim and Han 2024: experts are
 * computed one by one while the next ones travel). It is the body of an MoE layer's EXPERT task
 * (schedule/moe_layer.h).
 *
 * A program is made over positions: which expert stands where is data, filled in when the rows are
 * counted. Positions below num_kept hold experts that stay on the device. Forward takes positions
 * rising, backward falling, so that what is still in a slot need not come again. Every position
 * keeps its tasks, also where at run time there is nothing to do: its expert has no rows, or its
 * weights lie in the slot.
 *
 *   forward    write q, read q   file        of experts in a file (q >= num_kept): the place's last
 *                                            reader is over
 *              upload q          to_device   the weights are on the host; a slot's last reader is
 *                                            over (q >= num_kept)
 *              expert q          compute     the weights are there
 *   backward   write q, read q   file        likewise
 *              upload q          to_device   likewise
 *              expert q          compute     the weights are there; its gradient's slot was
 *                                            downloaded
 *              write q, read q   file        of experts in a file: a place for the gradient, and
 *                                            what micro-batches before have added up
 *              download q        to_host     behind expert q; to the host's gradients or, where
 *                                            micro-batches are added up, to staging
 *              accumulate q      host        adds what is in staging
 *
 *   order      what is up when an expert is computed
 *   expert     num_slots of them, the next ones on their way
 *   demand     its own alone: nothing is uploaded while an expert is computed
 *   layer      all of them: the first is computed when the last is up
 *
 * Of experts in a file the host has places for some (parallel/records.h). Which place an expert
 * gets is data, as which expert stands where: at run time by farthest next use. A program proves
 * itself with num_places of them, each position in its turn. `write q` frees the place that q gets:
 * what of the expert that lay there was changed goes to the file; `read q` fills it. What is there
 * already is neither written nor read.
 *
 * The optimizer steps experts on the host (schedule/update.h), perhaps beside the next step's
 * forward. So in forward an upload, of experts in a file the read ahead of it, and the computation
 * of an expert that is kept, carry WEFT_TASK_AFTER_STEP: at run time they wait for their own
 * expert's update of the step before. Backward needs none: the same expert stood in forward.
 *
 * Slots, by kind, the first two alike in both programs:
 *   expert_weights     on the device: those kept, then a ring of num_slots; position q in its own
 *                      or in q - num_kept modulo the ring. The ring outlives the program: who
 *                      runs it orders its first uses behind the last ones before it
 *   host_weights       one a position, or a ring of num_places
 *   expert_gradients   on the device: a ring of num_gradient_slots, position q in q modulo the ring
 *   host_gradients     likewise
 *   host_staging       a ring of two, if micro-batches are added up
 *
 * Partitions of an MoE layer by experts (schedule/moe_layer.h) are runs of positions. The program
 * is the same; the EXPERT task of each is a slice of it: the tasks of its positions, with order
 * layer in the first all uploads. Slices follow each other, and what travels comes between.
 *
 * The lanes host and to_device of these programs are FIFOs of their own, beside those of the
 * step's update: an accumulation does not stand behind a step. The lane file is one. Pure. */
#ifndef WEFT_SCHEDULE_EXPERTS_H
#define WEFT_SCHEDULE_EXPERTS_H

#include "core/cluster.h"
#include "core/trace.h"
#include "schedule/program.h"

#define WEFT_EXPERT_ORDER_LIST(X) X(EXPERT, "expert") X(DEMAND, "demand") X(LAYER, "layer")
typedef enum weft_expert_order {
#define WEFT_EXPERT_ORDER_ENUM(name, text) WEFT_EXPERT_ORDER_##name,
    WEFT_EXPERT_ORDER_LIST(WEFT_EXPERT_ORDER_ENUM)
#undef WEFT_EXPERT_ORDER_ENUM
        WEFT_NUM_EXPERT_ORDERS
} weft_expert_order;
const char *weft_expert_order_text(int order);

enum { WEFT_EXPERTS_MAX_POSITIONS = 8192, WEFT_EXPERTS_STAGING = 2 };

typedef struct weft_experts_shape {
    int num_positions; /* a rank's experts of a layer: 1 to
                          WEFT_EXPERTS_MAX_POSITIONS */
    int num_kept;      /* of them on the device for good: positions 0 to num_kept - 1 */
    int num_slots;     /* of the ring of weights; order layer: room for all that are not kept */
    int num_gradient_slots; /* of the ring of gradients */
    weft_expert_order order;
    bool accumulates; /* several micro-batches: gradients are added up on the host */
    int num_places;   /* of experts in a file: in host memory, at a time; 0: all are there */
} weft_experts_shape;

/* The number of the position's slot among those of its kind: one of the kinds above. */
int weft_experts_place(const weft_experts_shape *shape, weft_slot_kind holds, int position);

/* One direction's program. Errors: WEFT_CONFIG for a shape out of range; WEFT_MEMORY. */
weft_status weft_program_experts(const weft_experts_shape *shape, bool backward, weft_arena *arena,
                                 weft_program *out) WEFT_CHECKED;

/* The tasks [*out_first, *out_end) that are the slice of positions [first, end). Slices of runs
 * that follow each other, backward falling, do so too, and have all tasks. */
void weft_experts_slice(const weft_program *program, bool backward, int first, int end,
                        uint32_t *out_first, uint32_t *out_end);

/* Proves of a forward and a backward program (backward NULL: forward alone) that every position is
 * uploaded, computed, downloaded and added once and in order, with its own weights in its own
 * slots; that no slot is overwritten while it is needed; that the order is kept; and that forward
 * waits for the step before where it must. WEFT_INTERNAL with the task's index and text. */
weft_status weft_program_experts_check(const weft_experts_shape *shape, const weft_program *forward,
                                       const weft_program *backward) WEFT_CHECKED;

/* What a position's tasks take, in microseconds. */
typedef struct weft_expert_costs {
    double upload_us, download_us; /* the bytes of its weights, of its gradient, over the link */
    double accumulate_us;
    double read_us[2], write_us[2]; /* of the file: for weights, for a gradient */
    double launch_us;               /* of a computation, whatever its rows */
    double row_us[2];               /* of a row, forward and backward */
} weft_expert_costs;

/* Microseconds of a task. rows: [num_positions]. A position without rows takes none at all. */
double weft_experts_task_us(const weft_expert_costs *costs, const double *rows,
                            const weft_task *task);

/* A program's time, and what each of its lanes is busy. */
typedef struct weft_experts_price {
    double us;         /* until all lanes are done */
    double compute_us; /* until the last computation is over; what follows goes on beside others */
    double busy_us[WEFT_NUM_LANES];
} weft_experts_price;
/* By simulation (schedule/price.h). trace may be NULL. */
weft_status weft_program_experts_price(const weft_program *program, const weft_expert_costs *costs,
                                       const double *rows, const weft_interference *interference,
                                       weft_trace *trace, weft_experts_price *out) WEFT_CHECKED;

#endif
