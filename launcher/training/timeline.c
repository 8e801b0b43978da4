#include "launcher/training/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include <weft/list.h>

#include "comm/comm.h"
#include "core/text.h"
#include "core/trace/trace.h"
#include "parallel/mesh/mesh.h"
#include "schedule/price/price.h"

enum { NAME_BYTES = 64 };

/* "rank 3: stage 1, tp 0": along axes of more than one rank. */
static void name_rank(const weft_mesh *mesh, int rank, char out[NAME_BYTES])
{
    static const struct {
        weft_axis axis;
        const char *text;
    } axes[] = {{WEFT_AXIS_PP, "stage"},
                {WEFT_AXIS_TP, "tp"},
                {WEFT_AXIS_CP, "cp"},
                {WEFT_AXIS_DP, "dp"},
                {WEFT_AXIS_EP, "ep"}};
    weft_coords at = weft_mesh_coords(mesh, rank);
    int used = snprintf(out, NAME_BYTES, "rank %d", rank), first = used;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
        if (at.size[axes[i].axis] > 1 && used < NAME_BYTES)
            used += snprintf(out + used, (size_t)(NAME_BYTES - used), "%s %s %d",
                             used == first ? ":" : ",", axes[i].text, at.at[axes[i].axis]);
}

/* Slices of one track do not overlap. */
static void measure(const weft_trace *trace, int ranks, double *out_us, double *out_bubble)
{
    const weft_slice *slices = weft_trace_slices(trace);
    double first = INFINITY, last = -INFINITY, busy = 0;
    for (size_t i = 0; i < weft_trace_count(trace); i++) {
        first = fmin(first, slices[i].start_us);
        last = fmax(last, slices[i].end_us);
        if (slices[i].lane == WEFT_LANE_COMPUTE)
            busy += slices[i].end_us - slices[i].start_us;
    }
    *out_us = last > first ? last - first : 0;
    *out_bubble = *out_us > 0 ? fmax(0, 1 - busy / (ranks * *out_us)) : 0;
}

bool weft_timeline_has(const weft_int_list *ranks, int rank)
{
    bool has = ranks->count == 0;
    for (size_t i = 0; i < ranks->count; i++)
        has = has || ranks->values[i] == rank;
    return has;
}

enum { SLICES_A_MESSAGE = 128, TRACE_TAG = 0 };

/* Sends slices in messages; one that is not full is the last. */
static weft_status send_slices(const weft_trace *trace, weft_comm *world)
{
    const weft_slice *slices = weft_trace_slices(trace);
    size_t count = weft_trace_count(trace), sent = 0, num;
    do {
        num = count - sent < SLICES_A_MESSAGE ? count - sent : SLICES_A_MESSAGE;
        int64_t size = (int64_t)num;
        WEFT_TRY(weft_comm_send_host(world, 0, TRACE_TAG, &size, sizeof size));
        WEFT_TRY(weft_comm_send_host(world, 0, TRACE_TAG, num ? slices + sent : NULL,
                                     num * sizeof *slices));
        sent += num;
    } while (num == SLICES_A_MESSAGE);
    return WEFT_OK;
}

/* After memory runs out, still receives, and drops, what the other rank sends. */
static weft_status receive_slices(weft_trace *trace, weft_comm *world, int rank, weft_status status)
{
    weft_slice slices[SLICES_A_MESSAGE];
    int64_t num;
    do {
        WEFT_TRY(weft_comm_recv_host(world, rank, TRACE_TAG, &num, sizeof num));
        WEFT_TRY(weft_comm_recv_host(world, rank, TRACE_TAG, slices, (size_t)num * sizeof *slices));
        for (int64_t i = 0; i < num && status == WEFT_OK; i++)
            status = weft_trace_add(trace, &slices[i]);
    } while (num == SLICES_A_MESSAGE);
    return status;
}

/* Adds the slices of these ranks to rank 0's, one rank after the other. Collective over the world;
 * the statuses of the ranks may differ. Errors: WEFT_MEMORY. */
static weft_status timeline_collect(weft_trace *trace, weft_comm *world, const weft_int_list *ranks)
{
    int own = weft_comm_rank(world);
    weft_status status = WEFT_OK;
    if (own > 0)
        return weft_timeline_has(ranks, own) ? send_slices(trace, world) : WEFT_OK;
    int64_t count = ranks->count ? (int64_t)ranks->count : weft_comm_size(world);
    for (int64_t i = 0; i < count; i++) {
        int rank = (int)(ranks->count ? ranks->values[i] : i);
        if (rank > 0)
            status = receive_slices(trace, world, rank, status);
    }
    return status;
}

/* The step that a timeline is of. */
typedef struct traced {
    const weft_mesh *mesh;
    const weft_int_list *ranks;
    int64_t step, start; /* the start's number; 0: nobody knows */
} traced;

static weft_status write_svg(const weft_trace *trace, const traced *of, const char *path)
{
    char title[96], subtitle[256], axes[128], chosen[32] = "", start[48] = "";
    const weft_mesh *mesh = of->mesh;
    double us, bubble;
    int num_ranks = of->ranks->count ? (int)of->ranks->count : mesh->world;
    measure(trace, num_ranks, &us, &bubble);
    if (num_ranks < mesh->world)
        snprintf(chosen, sizeof chosen, "%d of ", num_ranks);
    weft_mesh_print(mesh, axes, sizeof axes);
    if (of->start > 1)
        snprintf(start, sizeof start, ", start %" PRId64, of->start);
    snprintf(title, sizeof title, "Step %" PRId64 ": %.4g %s, bubble %.0f %%", of->step,
             us < 1e6 ? us / 1e3 : us / 1e6, us < 1e6 ? "ms" : "s", 100 * bubble);
    snprintf(subtitle, sizeof subtitle, "%s%s: %s%s", chosen,
             weft_count_text(mesh->world, "rank").text, axes, start);
    return weft_trace_write_file(trace, path, title, subtitle);
}

/* A later start may have another mesh and trace no step: the file says what it is of. */
static weft_status write_json(weft_trace *trace, const traced *of, const char *path)
{
    char step[24], start[24], mesh[128];
    const weft_trace_fact facts[] = {{"step", step}, {"mesh", mesh}, {"start", start}};
    snprintf(step, sizeof step, "%" PRId64, of->step);
    snprintf(start, sizeof start, "%" PRId64, of->start);
    weft_mesh_print(of->mesh, mesh, sizeof mesh);
    weft_trace_tell(trace, facts, of->start > 0 ? 3 : 2);
    const weft_status status = weft_trace_write_file(trace, path, NULL, NULL);
    weft_trace_tell(trace, NULL, 0);
    return status;
}

/* Writes DIR/trace.json and DIR/trace.svg of the slices of these ranks: each rank by its place on
 * the mesh, and in the title how long the step took and the bubble, the share of that time in which
 * the ranks' compute lanes stood idle. Errors: WEFT_FILE, WEFT_MEMORY. */
static weft_status timeline_write(weft_trace *trace, const traced *of, const char *dir)
{
    const weft_mesh *mesh = of->mesh;
    weft_arena scratch = {0};
    const char **names = NULL;
    weft_status status = WEFT_ARRAY(&scratch, (size_t)mesh->world, &names);
    for (int i = 0; status == WEFT_OK && i < mesh->world; i++) {
        char name[NAME_BYTES];
        name_rank(mesh, i, name);
        status = weft_arena_strdup(&scratch, name, &names[i]);
    }
    weft_trace_name_ranks(trace, names, status == WEFT_OK ? mesh->world : 0);
    weft_slices_explain(trace);
    for (int svg = 0; svg < 2 && status == WEFT_OK; svg++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/trace.%s", dir, svg ? "svg" : "json");
        status = svg ? write_svg(trace, of, path) : write_json(trace, of, path);
    }
    weft_trace_name_ranks(trace, NULL, 0);
    weft_arena_release(&scratch);
    return status;
}

weft_status weft_trainer_collect_trace(weft_trainer *t)
{
    WEFT_TRY(weft_executor_drain(&t->executor)); /* lanes that run on stamp their slices, too */
    WEFT_TRY(weft_model_drain_tier(t->model));
    return weft_comm_agree(t->world,
                           timeline_collect(t->trace, t->world, &t->config.log.trace_ranks));
}

weft_status weft_trainer_write_trace(const weft_trainer *t, int64_t start, const char *dir)
{
    const weft_log_options *log = &t->config.log;
    const traced of = {.mesh = &t->groups.mesh,
                       .ranks = &log->trace_ranks,
                       .step = log->trace_step,
                       .start = start};
    return timeline_write(t->trace, &of, dir);
}
