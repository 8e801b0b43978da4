/* What this process has one of, below all groups: MPI's words, limits, the engine and the gate, and
 * which ranks are near. */
#include "comm/mpi/mpi_comm.h"

#include <stdlib.h>

static struct {
    uint64_t num_sequences;
    weft_engine engine;
    weft_gate own_gate;
    weft_gate *gate; /* the node's, or the own one */
    int *near;       /* world ranks that share memory with this process, ascending */
    int rank, size, num_near;
} process;

const char *weft_mpi_error_text(int code, char text[MPI_MAX_ERROR_STRING + 1])
{
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, MPI_MAX_ERROR_STRING, "error %d", code);
    text[length] = '\0';
    return text;
}

weft_status weft_mpi_status(const char *file, int line, const char *function, const char *call,
                            int code)
{
    if (code == MPI_SUCCESS)
        return WEFT_OK;
    char text[MPI_MAX_ERROR_STRING + 1] = {0};
    int name_length = 0;
    while (call[name_length] && call[name_length] != '(')
        name_length++;
    return weft_error_set(file, line, function, WEFT_COMM, "%.*s: %s", name_length, call,
                          weft_mpi_error_text(code, text));
}

/* --- limits ---------------------------------------------------------------------------------- */

/* Why these, as measured with Open MPI 4.1 on two cores (bench/priority.c for the gate, on two
 * nodes at 1 Gbit/s; docs/communication.md):
 * - message_bytes: inside a node, 4 MiB as one message took 19 ms, since the driver naps while it
 *   sees nothing end; in messages of 512 KiB 0.41 ms, of 128 KiB or 1 MiB 0.6 ms;
 * - row_bytes: over TCP what is a little longer than 64 KiB leaves as a long segment and a short
 *   one, which queues behind other ranks' traffic once more: all-to-alls of 66 KiB rows on a busy
 *   link took twice the time of those of 60 KiB, and rows of 128 KiB gain a little when cut;
 * - background_bytes, window_bytes: two messages keep a link busy (about 90 % of its rate for a
 *   reduction); messages of 64 KiB lost a tenth of that;
 * - hold_ns: longer than the exchanges that matter. With 20 ms a 4 MiB all-to-all of 35 ms took
 *   1.15 to 1.19 times as long beside a reduction, with 50 ms 1.08 to 1.13. */
static const weft_mpi_limits default_limits = {
    .message_bytes = (size_t)512 << 10,
    .piece_bytes = (size_t)256 << 10,
    .row_bytes = (size_t)60 << 10,
    .direct_bytes = (size_t)32 << 10,
    .background_bytes = (size_t)128 << 10,
    .shared_bytes = 64, /* faster at every size measured, from there on */
    .gate = {.small_bytes = 4096,
             .window_bytes =
                 {[WEFT_GATE_INSIDE] = (size_t)512 << 10, [WEFT_GATE_BETWEEN] = (size_t)256 << 10},
             .hold_ns = 50000000,
             .quiet_ns = 20000000,
             .stall_ns = 1000000000},
};
static weft_mpi_limits limits;
static const weft_mpi_limits *current_limits = &default_limits;

void weft_mpi_set_limits(const weft_mpi_limits *new_limits)
{
    const weft_mpi_limits *fill = &default_limits;
    current_limits = fill;
    if (!new_limits)
        return;
    limits = *new_limits;
    weft_gate_limits *gate = &limits.gate;
    limits.message_bytes = limits.message_bytes ? limits.message_bytes : fill->message_bytes;
    limits.piece_bytes = limits.piece_bytes ? limits.piece_bytes : fill->piece_bytes;
    limits.row_bytes = limits.row_bytes ? limits.row_bytes : fill->row_bytes;
    limits.direct_bytes = limits.direct_bytes ? limits.direct_bytes : fill->direct_bytes;
    limits.background_bytes =
        limits.background_bytes ? limits.background_bytes : fill->background_bytes;
    limits.shared_bytes = limits.shared_bytes ? limits.shared_bytes : fill->shared_bytes;
    for (int i = 0; i < WEFT_GATE_LINKS; i++)
        if (gate->window_bytes[i] == 0)
            gate->window_bytes[i] = fill->gate.window_bytes[i];
    gate->small_bytes = gate->small_bytes ? gate->small_bytes : fill->gate.small_bytes;
    gate->hold_ns = gate->hold_ns ? gate->hold_ns : fill->gate.hold_ns;
    gate->quiet_ns = gate->quiet_ns ? gate->quiet_ns : fill->gate.quiet_ns;
    gate->stall_ns = gate->stall_ns ? gate->stall_ns : fill->gate.stall_ns;
    current_limits = &limits;
}

const weft_mpi_limits *weft_mpi_get_limits(void)
{
    return current_limits;
}

size_t weft_mpi_message_bytes(const weft_comm *comm, size_t wanted)
{
    size_t most = current_limits->background_bytes;
    return weft_gate_is_background(comm->purpose) && wanted > most ? most : wanted;
}

/* --- engine, gate, near ranks ---------------------------------------------------------------- */

weft_engine *weft_mpi_engine(void)
{
    return &process.engine;
}

uint64_t weft_mpi_num_sequences(void)
{
    return process.num_sequences;
}

weft_gate *weft_mpi_gate(void)
{
    return process.gate;
}

static int compare_ranks(const void *a, const void *b)
{
    const int *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

weft_gate_link weft_mpi_link(const weft_comm *comm, int rank)
{
    int other = weft_comm_world_rank(comm, rank);
    int in_turn = weft_mpi_get_limits()->ranks_per_node;
    bool inside = in_turn > 0 ? process.rank / in_turn == other / in_turn
                              : bsearch(&other, process.near, (size_t)process.num_near,
                                        sizeof other, compare_ranks) != NULL;
    return inside ? WEFT_GATE_INSIDE : WEFT_GATE_BETWEEN;
}

/* The ranks in `to` of ranks of `from`. */
static weft_status translate(MPI_Comm from, MPI_Comm to, int count, const int *ranks, int *out)
{
    MPI_Group from_group, to_group;
    WEFT_TRY(WEFT_MPI(MPI_Comm_group(from, &from_group)));
    WEFT_TRY(WEFT_MPI(MPI_Comm_group(to, &to_group)));
    weft_status status =
        WEFT_MPI(MPI_Group_translate_ranks(from_group, count, ranks, to_group, out));
    MPI_Group_free(&from_group);
    MPI_Group_free(&to_group);
    return status;
}

weft_status weft_mpi_world_ranks(MPI_Comm handle, int size, int **out)
{
    int *ranks = malloc((size_t)size * 2 * sizeof *ranks);
    if (!ranks)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for a group of %d", size);
    for (int i = 0; i < size; i++)
        ranks[size + i] = i;
    weft_status status = translate(handle, MPI_COMM_WORLD, size, ranks + size, ranks);
    if (status != WEFT_OK) {
        free(ranks);
        return status;
    }
    *out = ranks;
    return WEFT_OK;
}

weft_status weft_mpi_near_ranks(MPI_Comm handle, int **out, int *out_count)
{
    int in_turn = weft_mpi_get_limits()->ranks_per_node, count = process.num_near, num = 0;
    int first = in_turn > 0 ? process.rank / in_turn * in_turn : 0;
    if (in_turn > 0)
        count = process.size - first < in_turn ? process.size - first : in_turn;
    int *ranks = calloc((size_t)count * 2, sizeof *ranks), *members = ranks + count;
    if (!ranks)
        return WEFT_ERROR(WEFT_MEMORY, "no memory for a node of %d ranks", count);
    for (int i = 0; i < count; i++)
        ranks[i] = in_turn > 0 ? first + i : process.near[i];
    weft_status status = translate(MPI_COMM_WORLD, handle, count, ranks, members);
    if (status != WEFT_OK) {
        free(ranks);
        return status;
    }
    for (int i = 0; i < count; i++)
        if (members[i] != MPI_UNDEFINED)
            ranks[num++] = members[i];
    qsort(ranks, (size_t)num, sizeof *ranks, compare_ranks);
    *out = ranks;
    *out_count = num;
    return WEFT_OK;
}

static weft_status find_num_sequences(void)
{
    int found, *upper_bound;
    WEFT_TRY(WEFT_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &upper_bound, &found)));
    int last = found ? *upper_bound : 32767; /* what the standard promises */
    process.num_sequences =
        (uint64_t)(last - WEFT_MPI_FIRST_COLLECTIVE_TAG) / WEFT_MPI_TAGS_PER_COLLECTIVE;
    return WEFT_OK;
}

void weft_mpi_use_gate(weft_gate *gate)
{
    process.gate = gate;
}

weft_status weft_mpi_process_start(MPI_Comm node)
{
    process.own_gate = (weft_gate){0};
    process.gate = &process.own_gate;
    WEFT_TRY(find_num_sequences());
    WEFT_TRY(WEFT_MPI(MPI_Comm_size(MPI_COMM_WORLD, &process.size)));
    WEFT_TRY(WEFT_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &process.rank)));
    WEFT_TRY(WEFT_MPI(MPI_Comm_size(node, &process.num_near)));
    /* In the order of `node`: ascending. */
    WEFT_TRY(weft_mpi_world_ranks(node, process.num_near, &process.near));
    WEFT_TRY(weft_engine_init(&process.engine));
    return WEFT_OK;
}

void weft_mpi_process_end(void)
{
    free(process.near);
    process.near = NULL;
    weft_engine_release(&process.engine);
}
