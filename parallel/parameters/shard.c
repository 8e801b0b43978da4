#include "parallel/parameters/shard.h"

#include <assert.h>

weft_box weft_shard_box(const weft_shard *shard, const weft_coords *coords)
{
    assert(shard->num_dims >= 0 && shard->num_dims <= WEFT_MAX_DIMS);
    weft_box box = {.num_dims = shard->num_dims};
    for (int d = 0; d < shard->num_dims; d++) {
        size_t global = shard->global_dims[d];
        bool split = shard->axis[d] != WEFT_AXIS_NONE;
        size_t parts = split ? (size_t)coords->size[shard->axis[d]] : 1;
        size_t part = split ? (size_t)coords->at[shard->axis[d]] : 0;
        size_t length = global / parts + (global % parts != 0);
        size_t start = part * length < global ? part * length : global;
        box.global_dims[d] = global;
        box.start[d] = start;
        box.local[d] = length;
        box.valid[d] = global - start < length ? global - start : length;
    }
    return box;
}

size_t weft_box_count(const weft_box *box)
{
    size_t count = 1;
    for (int d = 0; d < box->num_dims; d++)
        count *= box->local[d];
    return count;
}

bool weft_box_global_index(const weft_box *box, size_t local, size_t *out)
{
    size_t at[WEFT_MAX_DIMS];
    for (int d = box->num_dims; d-- > 0;) {
        at[d] = local % box->local[d];
        local /= box->local[d];
        if (at[d] >= box->valid[d])
            return false;
    }
    *out = 0;
    for (int d = 0; d < box->num_dims; d++)
        *out = *out * box->global_dims[d] + box->start[d] + at[d];
    return true;
}

typedef struct walk {
    const weft_box *box;
    weft_slab slab; /* dimensions above the current one are fixed to a single index */
    weft_slab_function visit;
    void *context;
} walk;

/* Visits elements [first, last) of the sub-tensor of dimensions d and below, which begins at local
 * offset `base`. Runs of whole rows go out as one slab where nothing below d is padded. */
static weft_status walk_from(walk *w, int d, size_t base, size_t first, size_t last)
{
    const weft_box *box = w->box;
    size_t row_count = 1;
    bool whole = true;
    for (int k = d + 1; k < box->num_dims; k++) {
        row_count *= box->local[k];
        whole = whole && box->valid[k] == box->local[k];
    }
    while (first < last && first / row_count < box->valid[d]) {
        size_t row = first / row_count;
        w->slab.start[d] = box->start[d] + row;
        if (whole && first % row_count == 0 && last - first >= row_count) {
            size_t rows = (last - first) / row_count;
            if (rows > box->valid[d] - row)
                rows = box->valid[d] - row;
            w->slab.count[d] = rows;
            for (int k = d + 1; k < box->num_dims; k++) {
                w->slab.start[k] = box->start[k];
                w->slab.count[k] = box->local[k];
            }
            w->slab.local_offset = base + first;
            WEFT_TRY(w->visit(w->context, &w->slab));
            first += rows * row_count;
        } else {
            size_t end = (row + 1) * row_count < last ? (row + 1) * row_count : last;
            w->slab.count[d] = 1;
            WEFT_TRY(walk_from(w, d + 1, base + row * row_count, first - row * row_count,
                               end - row * row_count));
            first = end;
        }
    }
    return WEFT_OK;
}

weft_status weft_box_visit(const weft_box *box, size_t first, size_t count,
                           weft_slab_function visit, void *context)
{
    size_t total = weft_box_count(box);
    if (first > total || count > total - first)
        return WEFT_ERROR(WEFT_INTERNAL, "elements %zu to %zu of a box of %zu", first,
                          first + count, total);
    if (!count)
        return WEFT_OK;
    walk w = {.box = box, .visit = visit, .context = context};
    if (!box->num_dims) /* a single number */
        return visit(context, &w.slab);
    return walk_from(&w, 0, 0, first, first + count);
}
