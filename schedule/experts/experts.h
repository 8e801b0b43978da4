/* Experts beyond device memory: the device computes a layer's experts one by one, while the next
 * weights come up from the host and gradients go down (ES-MoE, Kim, Lim and Han 2024). Its tasks
 * stand in the place of an MoE layer's EXPERT tasks (schedule/moe/inside.h).
 *
 * A program names positions, not experts: the executor decides which expert stands at which
 * position once the rows are counted. Positions below num_kept hold experts that stay on the
 * device. Forward runs positions in rising order, backward in falling order, so that weights still
 * in a slot need no second upload. Every position has all its tasks, even if at run time a task has
 * nothing to do, because the expert has no rows or its weights already lie in the slot.
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
 * Host memory has places for some of the experts in a file (parallel/records/records.h). The
 * executor chooses an expert's place by farthest next use. The checker assumes num_places places
 * that positions use in rotation. `write q` frees the place for q: changed parts of the expert
 * there go to the file. `read q` fills the place. Parts that are there already are neither written
 * nor read.
 *
 * The host steps experts (schedule/pipeline/update.h), perhaps beside the next step's forward. So
 * forward's uploads, or the reads ahead of them, and the computations of kept experts wait for the
 * step before. Backward needs no such wait, because the same expert's forward has waited.
 *
 * Slots, by kind, the first two alike in both programs:
 *   expert_weights     on the device: those kept, then a ring of num_slots; position q in its own
 *                      or in q - num_kept modulo the ring. Layers use the ring in
 *                      turn, in one body and from body to body
 *   host_weights       one a position, or a ring of num_places
 *   expert_gradients   on the device: a ring of num_gradient_slots, position q in q modulo the ring
 *   host_gradients     likewise
 *   host_staging       a ring of two, if micro-batches are added up
 *
 * Partitions of an MoE layer by experts (schedule/moe/layer.h) are runs of positions. A partition
 * has a slice of the program: the tasks of its positions. With order layer the first slice has all
 * uploads. The layer's exchanges stand between slices.
 *
 * A body's lanes host and to_device are others than those of the step's update, so that an
 * accumulation never queues behind a step. Both have the same lane file. Pure. */
#ifndef WEFT_SCHEDULE_EXPERTS_EXPERTS_H
#define WEFT_SCHEDULE_EXPERTS_EXPERTS_H

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
    int num_kept;      /* positions 0 to num_kept - 1 stay on the device */
    int num_slots; /* the ring of weights; order layer: room for all experts that are not kept */
    int num_gradient_slots; /* the ring of gradients */
    weft_expert_order order;
    bool accumulates; /* several micro-batches: gradients are added up on the host */
    int num_places;   /* experts in a file: places in host memory; 0: no file */
} weft_experts_shape;

/* One direction's program. Errors: WEFT_CONFIG for a shape out of range; WEFT_MEMORY. */
weft_status weft_program_experts(const weft_experts_shape *shape, bool backward, weft_arena *arena,
                                 weft_program *out) WEFT_CHECKED;

/* The tasks [*out_first, *out_end) of positions [first, end). Slices of adjacent runs are adjacent
 * (backward: falling), and together have all tasks. */
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
    double upload_us, download_us; /* over the link: of the weights, of the gradient */
    double accumulate_us;
    double read_us[2], write_us[2]; /* of the file: [weights, a gradient] */
    double launch_us;               /* of a computation of any number of rows */
    double row_us[2];               /* per row: [forward, backward] */
} weft_expert_costs;

/* Microseconds of a task. rows: [num_positions]. A position without rows takes 0. */
double weft_experts_task_us(const weft_expert_costs *costs, const double *rows,
                            const weft_task *task);

#endif
