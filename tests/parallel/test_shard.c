/* Shards tile the global tensor, and the slabs of any cut of the local buffers tile it too. */
#include <stdlib.h>
#include <string.h>

#include "parallel/parameters/parameters.h"
#include "tests/core/check.h"

enum { MAX_ELEMENTS = 4096 };

static uint64_t random_state;

static size_t random_below(size_t bound)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (size_t)(random_state >> 33) % bound;
}

/* One rank's side of a round trip: what each local element must hold, and how often the global
 * elements were visited. */
typedef struct trip {
    const weft_box *box;
    size_t first, count; /* the range under way */
    size_t local_limit;  /* local offsets must rise */
    size_t visits_of_call;
    const size_t *expected; /* [local]: global index + 1, 0 for padding */
    int *visits;            /* [global] */
} trip;

/* Walks the slab element by element in row-major order, the plain way. */
static weft_status visit(void *context, const weft_slab *slab)
{
    trip *t = context;
    int dims = t->box->num_dims;
    size_t elements = 1;
    for (int d = 0; d < dims; d++) {
        elements *= slab->count[d];
        assert_true(slab->count[d] > 0);
        assert_true(slab->start[d] + slab->count[d] <= t->box->global_dims[d]);
    }
    assert_true(slab->local_offset >= t->local_limit);
    assert_true(slab->local_offset >= t->first);
    assert_true(slab->local_offset + elements <= t->first + t->count);
    t->local_limit = slab->local_offset + elements;
    for (size_t i = 0; i < elements; i++) {
        size_t rest = i, global = 0, stride = 1;
        for (int d = dims - 1; d >= 0; d--) {
            global += (slab->start[d] + rest % slab->count[d]) * stride;
            rest /= slab->count[d];
            stride *= t->box->global_dims[d];
        }
        assert_int_equal(t->expected[slab->local_offset + i], global + 1);
        t->visits[global]++;
    }
    t->visits_of_call++;
    return WEFT_OK;
}

/* By definition: local index i of dimension d is global index part * length + i. */
static size_t fill_expected(const weft_shard *shard, const weft_coords *coords, size_t *expected,
                            size_t *out_valid)
{
    size_t length[WEFT_MAX_DIMS], total = 1, valid = 0;
    for (int d = 0; d < shard->num_dims; d++) {
        size_t parts = (size_t)coords->size[shard->axis[d]];
        length[d] = (shard->global_dims[d] + parts - 1) / parts;
        total *= length[d];
    }
    assert_true(total <= MAX_ELEMENTS);
    for (size_t i = 0; i < total; i++) {
        size_t rest = i, global = 0, stride = 1;
        bool inside = true;
        for (int d = shard->num_dims - 1; d >= 0; d--) {
            size_t at = (size_t)coords->at[shard->axis[d]] * length[d] + rest % length[d];
            inside = inside && at < shard->global_dims[d];
            global += at * stride;
            rest /= length[d];
            stride *= shard->global_dims[d];
        }
        expected[i] = inside ? global + 1 : 0;
        valid += inside;
    }
    *out_valid = valid;
    return total;
}

/* Cuts [0, total) at random places, empty pieces included, and visits each. */
static void visit_in_pieces(trip *t, size_t total)
{
    size_t at = 0;
    while (at < total) {
        t->first = at;
        t->count = random_below(3) ? random_below(total - at + 1) : total - at;
        t->local_limit = at;
        assert_int_equal(weft_box_visit(t->box, t->first, t->count, visit, t), WEFT_OK);
        at += t->count;
    }
}

static void check_shard(const weft_shard *shard, const int *sizes)
{
    static int visits[MAX_ELEMENTS];
    static size_t expected[MAX_ELEMENTS];
    size_t global = 1;
    for (int d = 0; d < shard->num_dims; d++)
        global *= shard->global_dims[d];
    memset(visits, 0, sizeof visits);

    /* every combination of coordinates on the axes in use, once */
    weft_coords c = {0};
    for (int axis = 0; axis < WEFT_NUM_AXES; axis++)
        c.size[axis] = sizes[axis];
    int tp = 1, ep = 1, etp = 1;
    for (int d = 0; d < shard->num_dims; d++) {
        tp = shard->axis[d] == WEFT_AXIS_TP ? sizes[WEFT_AXIS_TP] : tp;
        ep = shard->axis[d] == WEFT_AXIS_EP ? sizes[WEFT_AXIS_EP] : ep;
        etp = shard->axis[d] == WEFT_AXIS_ETP ? sizes[WEFT_AXIS_ETP] : etp;
    }
    for (int code = 0; code < tp * ep * etp; code++) {
        size_t valid = 0;
        c.at[WEFT_AXIS_TP] = code % tp;
        c.at[WEFT_AXIS_EP] = code / tp % ep;
        c.at[WEFT_AXIS_ETP] = code / (tp * ep);
        size_t total = fill_expected(shard, &c, expected, &valid);
        weft_box box = weft_shard_box(shard, &c);
        assert_int_equal(weft_box_count(&box), total);
        size_t inside = 1;
        for (int d = 0; d < box.num_dims; d++)
            inside *= box.valid[d];
        assert_int_equal(inside, valid);
        trip t = {.box = &box, .expected = expected, .visits = visits};
        visit_in_pieces(&t, total);
    }
    for (size_t i = 0; i < global; i++)
        assert_int_equal(visits[i], 1);
}

CASE(test_random_shards)
{
    static const weft_axis choices[] = {WEFT_AXIS_NONE, WEFT_AXIS_TP, WEFT_AXIS_EP, WEFT_AXIS_ETP};
    random_state = 7;
    for (int trial = 0; trial < 4000; trial++) {
        weft_shard shard = {.num_dims = (int)random_below(WEFT_MAX_DIMS + 1)};
        bool used[WEFT_NUM_AXES] = {false};
        int sizes[WEFT_NUM_AXES];
        for (int axis = 0; axis < WEFT_NUM_AXES; axis++)
            sizes[axis] = axis == WEFT_AXIS_NONE ? 1 : 1 + (int)random_below(4);
        for (int d = 0; d < shard.num_dims; d++) {
            shard.global_dims[d] = random_below(20) ? 1 + random_below(7) : 0;
            shard.axis[d] = choices[random_below(4)];
            if (used[shard.axis[d]]) /* an axis splits one dimension */
                shard.axis[d] = WEFT_AXIS_NONE;
            used[shard.axis[d]] = true;
        }
        check_shard(&shard, sizes);
    }
}

/* A vocabulary of 10 over tp 4: parts of 3, the last of 1; of 5 over 4: the last is empty. */
CASE(test_short_and_empty_parts)
{
    weft_coords c = {0};
    for (int axis = 0; axis < WEFT_NUM_AXES; axis++)
        c.size[axis] = 1;
    c.size[WEFT_AXIS_TP] = 4;
    c.at[WEFT_AXIS_TP] = 3;
    weft_shard shard = {
        .num_dims = 2, .global_dims = {10, 8}, .axis = {WEFT_AXIS_TP, WEFT_AXIS_NONE}};
    weft_box box = weft_shard_box(&shard, &c);
    assert_int_equal(box.start[0], 9);
    assert_int_equal(box.local[0], 3);
    assert_int_equal(box.valid[0], 1);
    assert_int_equal(box.valid[1], 8);
    assert_int_equal(weft_box_count(&box), 24);
    shard.global_dims[0] = 5;
    box = weft_shard_box(&shard, &c);
    assert_int_equal(box.start[0], 5);
    assert_int_equal(box.local[0], 2);
    assert_int_equal(box.valid[0], 0);
    trip t = {.box = &box, .count = 16};
    assert_int_equal(weft_box_visit(&box, 0, 16, visit, &t), WEFT_OK);
    assert_int_equal(t.visits_of_call, 0);
}

typedef struct count {
    int calls;
    weft_slab last;
} count;

static weft_status count_slab(void *context, const weft_slab *slab)
{
    count *c = context;
    c->calls++;
    c->last = *slab;
    return WEFT_OK;
}

static weft_status stop(void *context, const weft_slab *slab)
{
    (void)slab;
    ++*(int *)context;
    return WEFT_ERROR(WEFT_FILE, "disk full");
}

/* A whole unpadded part is one slab, so that files are written in large pieces. */
CASE(test_whole_part_is_one_slab)
{
    weft_coords c = {0};
    for (int axis = 0; axis < WEFT_NUM_AXES; axis++)
        c.size[axis] = 2;
    c.size[WEFT_AXIS_NONE] = 1;
    c.at[WEFT_AXIS_EP] = 1;
    weft_shard shard = {.num_dims = 3,
                        .global_dims = {4, 6, 8},
                        .axis = {WEFT_AXIS_EP, WEFT_AXIS_ETP, WEFT_AXIS_NONE}};
    weft_box box = weft_shard_box(&shard, &c);
    count made = {0};
    assert_int_equal(weft_box_visit(&box, 0, 48, count_slab, &made), WEFT_OK);
    assert_int_equal(made.calls, 1);
    static const size_t start[] = {2, 0, 0}, length[] = {2, 3, 8};
    assert_memory_equal(made.last.start, start, sizeof start);
    assert_memory_equal(made.last.count, length, sizeof length);
}

CASE(test_errors)
{
    weft_box box = {.num_dims = 1, .global_dims = {4}, .local = {4}, .valid = {4}};
    count made = {0};
    int calls = 0;
    assert_int_equal(weft_box_visit(&box, 2, 3, count_slab, &made), WEFT_INTERNAL);
    assert_int_equal(weft_box_visit(&box, SIZE_MAX, 2, count_slab, &made), WEFT_INTERNAL);
    assert_int_equal(made.calls, 0);
    assert_int_equal(weft_box_visit(&box, 0, 4, stop, &calls), WEFT_FILE);
    assert_string_equal(weft_error_get()->text, "disk full");
    assert_int_equal(calls, 1);
}
