#include "launcher/models/map.h"

void weft_map_add_axis(weft_map_piece *piece, size_t extent, size_t in_file, size_t in_parameter)
{
    const int axis = piece->num_axes;
    if (extent == 1)
        return;
    piece->extent[axis] = extent;
    piece->stride[WEFT_MAP_FILE][axis] = in_file;
    piece->stride[WEFT_MAP_PARAMETER][axis] = in_parameter;
    piece->num_axes++;
}

static size_t piece_elements(const weft_map_piece *piece)
{
    size_t elements = 1;
    for (int a = 0; a < piece->num_axes; a++)
        elements *= piece->extent[a];
    return elements;
}

size_t weft_map_elements(const weft_map *map)
{
    size_t elements = 0;
    for (int p = 0; p < map->num_pieces; p++)
        elements += piece_elements(&map->pieces[p]);
    return elements;
}

static void swap(size_t *a, size_t *b)
{
    const size_t other = *a;
    *a = *b;
    *b = other;
}

/* The piece with its axes in the order of one side's strides, those that follow each other on both
 * sides as one. */
static weft_map_piece arrange(const weft_map_piece *piece, weft_map_side side)
{
    weft_map_piece sorted = *piece, out = {.first = {piece->first[0], piece->first[1]}};
    for (int a = 0; a < sorted.num_axes; a++)
        for (int b = a + 1; b < sorted.num_axes; b++) {
            if (sorted.stride[side][a] >= sorted.stride[side][b])
                continue;
            swap(&sorted.extent[a], &sorted.extent[b]);
            swap(&sorted.stride[0][a], &sorted.stride[0][b]);
            swap(&sorted.stride[1][a], &sorted.stride[1][b]);
        }
    for (int a = 0; a < sorted.num_axes; a++) {
        const int last = out.num_axes - 1;
        const size_t extent = sorted.extent[a];
        const bool follows = last >= 0 && out.stride[0][last] == extent * sorted.stride[0][a] &&
                             out.stride[1][last] == extent * sorted.stride[1][a];
        if (!follows) {
            weft_map_add_axis(&out, extent, sorted.stride[0][a], sorted.stride[1][a]);
            continue;
        }
        out.extent[last] *= extent;
        out.stride[0][last] = sorted.stride[0][a];
        out.stride[1][last] = sorted.stride[1][a];
    }
    return out;
}

bool weft_map_is_straight(const weft_map *map)
{
    for (int p = 0; p < map->num_pieces; p++) {
        const weft_map_piece piece = arrange(&map->pieces[p], WEFT_MAP_FILE);
        const int last = piece.num_axes - 1;
        if (last >= 0 && piece.stride[WEFT_MAP_PARAMETER][last] != 1)
            return false;
    }
    return true;
}

/* Of a run from `here` on, the part in [first, end). */
typedef struct range {
    size_t first, end, stride;
    weft_map_function visit;
    void *context;
} range;

static weft_status visit_run(const range *r, size_t here, size_t there, size_t count)
{
    const size_t before = here < r->first ? r->first - here : 0;
    if (before >= count || here + before >= r->end)
        return WEFT_OK;
    const size_t left = count - before, room = r->end - here - before;
    return r->visit(r->context, here + before, there + before * r->stride,
                    left < room ? left : room, r->stride);
}

/* Goes through the outer axes; the last one is a run. `at`: the sides' first elements. */
static weft_status visit_axes(const weft_map_piece *piece, weft_map_side side, int axis,
                              const size_t at[2], const range *r)
{
    const weft_map_side other = side == WEFT_MAP_FILE ? WEFT_MAP_PARAMETER : WEFT_MAP_FILE;
    if (axis == piece->num_axes - 1)
        return visit_run(r, at[side], at[other], piece->extent[axis]);
    const size_t step = piece->stride[side][axis];
    size_t from = 0, to = piece->extent[axis];
    if (at[side] < r->first) /* an index spans no more than a step */
        from = (r->first - at[side]) / step;
    if (at[side] + (to - 1) * step >= r->end)
        to = r->end > at[side] ? (r->end - at[side] + step - 1) / step : 0;
    for (size_t i = from; i < to; i++) {
        const size_t next[2] = {at[0] + i * piece->stride[0][axis],
                                at[1] + i * piece->stride[1][axis]};
        WEFT_TRY(visit_axes(piece, side, axis + 1, next, r));
    }
    return WEFT_OK;
}

weft_status weft_map_visit(const weft_map_piece *piece, weft_map_side side, size_t first,
                           size_t count, weft_map_function visit, void *context)
{
    weft_map_piece p = arrange(piece, side);
    if (p.num_axes == 0 || p.stride[side][p.num_axes - 1] != 1) { /* runs of one element */
        p.extent[p.num_axes] = 1;
        p.stride[0][p.num_axes] = p.stride[1][p.num_axes] = 1;
        p.num_axes++;
    }
    const weft_map_side other = side == WEFT_MAP_FILE ? WEFT_MAP_PARAMETER : WEFT_MAP_FILE;
    const range r = {.first = first,
                     .end = first + count,
                     .stride = p.stride[other][p.num_axes - 1],
                     .visit = visit,
                     .context = context};
    return visit_axes(&p, side, 0, p.first, &r);
}
