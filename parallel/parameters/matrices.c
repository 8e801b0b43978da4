/* Which matrices a parameter consists of, and how ranks hold them. */
#include "parallel/parameters/internal.h"

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t period_of(const weft_placed *placed)
{
    size_t rows = 0;
    for (int i = 0; i < WEFT_MAX_MATRIX_ROWS; i++)
        rows += placed->spec.matrix_rows[i];
    return rows;
}

/* Of a period: matrices whose rows it has. */
static size_t num_in_period(const weft_placed *placed)
{
    size_t count = 0;
    for (int i = 0; i < WEFT_MAX_MATRIX_ROWS; i++)
        count += placed->spec.matrix_rows[i] > 0;
    return count > 0 ? count : 1;
}

/* Rows and columns of the parameter's last two dimensions on this rank. */
static size_t local_dim(const weft_placed *placed, int from_end)
{
    return placed->box.local[placed->box.num_dims - from_end];
}

size_t weft_placed_num_matrices(const weft_placed *placed)
{
    if (!placed->spec.is_matrix)
        return 0;
    return weft_placed_part(placed) / (local_dim(placed, 2) * local_dim(placed, 1)) *
           num_in_period(placed);
}

weft_placed_matrix weft_placed_matrix_at(const weft_placed *placed, const weft_coords *coords,
                                         size_t index)
{
    const size_t each = num_in_period(placed), period = period_of(placed);
    const size_t rows = local_dim(placed, 2), cols = local_dim(placed, 1);
    const weft_axis *axis = &placed->shard.axis[placed->box.num_dims - 2];
    weft_placed_matrix m = {.first = index / each * rows * cols,
                            .rows = rows,
                            .cols = cols,
                            .run_rows = rows,
                            .run_stride = rows * cols,
                            .axis = axis[0] != WEFT_AXIS_NONE ? axis[0] : axis[1],
                            .by_cols = axis[0] == WEFT_AXIS_NONE && axis[1] != WEFT_AXIS_NONE,
                            .ranks = 1,
                            .sharers = 1};
    if (m.axis != WEFT_AXIS_NONE) {
        m.ranks = (size_t)coords->size[m.axis];
        m.place = (size_t)coords->at[m.axis];
        m.sharers = placed->rows.count > 0 ? (size_t)placed->rows.sharers : 1;
    }
    if (period == 0)
        return m;
    size_t before = 0, kind = 0;
    for (size_t left = index % each;; kind++) {
        if (placed->spec.matrix_rows[kind] > 0 && left-- == 0)
            break;
        before += placed->spec.matrix_rows[kind];
    }
    m.first += before * cols;
    m.run_rows = placed->spec.matrix_rows[kind];
    m.run_stride = period * cols;
    m.rows = rows / period * m.run_rows;
    return m;
}

static size_t round_up(size_t elements)
{
    return (elements + WEFT_ALIGN_ELEMENTS - 1) / WEFT_ALIGN_ELEMENTS * WEFT_ALIGN_ELEMENTS;
}

weft_matrix_room weft_placed_matrix_room(const weft_placed_matrix *m)
{
    const size_t block = m->rows * m->cols, blocks = weft_placed_matrix_blocks(m);
    const size_t side =
        m->by_cols ? smaller(m->rows, m->cols * blocks) : smaller(m->rows * blocks, m->cols);
    weft_matrix_room room = {.matrix = round_up(block * blocks),
                             .blocks = round_up(block * m->ranks),
                             .square = round_up(side * side)};
    room.bytes = (room.matrix + room.blocks + 2 * room.square) * sizeof(float) + sizeof(double);
    return room;
}

bool weft_parameters_by_muon(const weft_parameters *p, const weft_placed *placed)
{
    return p->residency.muon && placed->spec.is_matrix;
}

static weft_status check(const weft_placed *placed)
{
    const weft_parameter_spec *spec = &placed->spec;
    const size_t period = period_of(placed);
    const char *wrong = NULL;
    if (spec->num_dims < 2 || spec->is_embedding || spec->may_pad || spec->sign_rate > 0)
        wrong = "is_matrix is for parameters of two dimensions or more, no embeddings, padded rows "
                "or sign_rate";
    else if (placed->shard.axis[spec->num_dims - 2] != WEFT_AXIS_NONE &&
             placed->shard.axis[spec->num_dims - 1] != WEFT_AXIS_NONE)
        wrong = "a matrix is split by rows or by columns, not by both";
    else if (period > 0 && (local_dim(placed, 2) % period != 0 ||
                            placed->shard.axis[spec->num_dims - 1] != WEFT_AXIS_NONE))
        wrong = "each rank has whole periods of matrix_rows";
    return wrong ? WEFT_ERROR(WEFT_CONFIG, "parameter %s: %s", placed->parameter.name, wrong)
                 : WEFT_OK;
}

weft_status weft_placed_count_matrices(weft_placed *placed, const weft_coords *coords)
{
    weft_matrices *sum = &placed->matrices;
    if (!placed->spec.is_matrix)
        return WEFT_OK;
    WEFT_TRY(check(placed));
    const size_t num = weft_placed_num_matrices(placed);
    for (size_t i = 0; i < num; i++) {
        const weft_placed_matrix m = weft_placed_matrix_at(placed, coords, i);
        const weft_matrix_room room = weft_placed_matrix_room(&m);
        const double whole = (double)(m.rows * m.cols * weft_placed_matrix_blocks(&m));
        const double rows = m.by_cols ? (double)m.rows : whole / (double)m.cols,
                     cols = whole / rows, side = rows < cols ? rows : cols;
        sum->count++;
        sum->flops += 2 * side * (2 * whole + side * side);
        if (m.ranks > 1)
            sum->gathered_bytes += m.rows * m.cols * m.ranks * sizeof(float);
        if (room.bytes > sum->workspace_bytes)
            sum->workspace_bytes = room.bytes;
    }
    return WEFT_OK;
}
