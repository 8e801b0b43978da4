/* A recording's calls, made again on the device that is measured. In every sweep all calls run
 * once, in order, so that each finds the choices and rows that it needs; those that differ are
 * timed there, in trains.
 *
 * A train's calls find bytes as a step's do. What is hot has one place. What is cold slides on with
 * each call, through memory that was not touched for long, so that no cache holds it; behind the
 * place where the calls in order find it. */
#include <math.h>
#include <string.h>

#include "core/log.h"
#include "core/text.h"
#include "kernels/kernels.h"
#include "kernels/note/note.h"
#include "launcher/measuring/measure_internal.h"
#include "launcher/measuring/own.h"

/* As schedule/cost/cost.c asks for it: one of the products that a launch of several groups has. */
static weft_product product_of(const weft_operation *o)
{
    const uint64_t groups = o->groups ? o->groups : 1;
    const bool by_k = groups > 1 && o->phase == WEFT_PHASE_WEIGHT_GRADIENT;
    const double part = (double)((by_k ? o->k : o->m) + groups - 1) / (double)groups;
    return (weft_product){.kind = weft_dtype_bytes(o->dtype) < 4 ? WEFT_COST_GEMM_BF16
                                                                 : WEFT_COST_GEMM_FP32,
                          .m = by_k ? (double)o->m : floor(part),
                          .n = (double)o->n,
                          .k = by_k ? floor(part) : (double)o->k,
                          .us = 0};
}

static weft_timed_operation timed_of(const weft_operation *o)
{
    weft_timed_operation timed = {
        .phase = o->phase,
        .dtype = o->dtype,
        .volume = (double)(o->kind == WEFT_OPERATION_GEMM ? o->flops : o->bytes)};
    snprintf(timed.module, sizeof timed.module, "%s", o->module);
    return timed;
}

/* Whether both have one entry in the file. */
static bool is_same(const weft_own_operation *a, const weft_own_operation *b)
{
    if (a->by_volume != b->by_volume)
        return false;
    if (a->by_volume) {
        const weft_timed_operation x = timed_of(&a->operation), y = timed_of(&b->operation);
        return x.phase == y.phase && x.dtype == y.dtype && x.volume == y.volume &&
               strcmp(x.module, y.module) == 0;
    }
    const weft_product x = product_of(&a->operation), y = product_of(&b->operation);
    return x.kind == y.kind && x.m == y.m && x.n == y.n && x.k == y.k;
}

/* The mean of all that are the same, by how often they run; those before `at` have had it. */
static double mean_us(const weft_own_operation *list, int count, int at)
{
    double us = 0, weight = 0;
    for (int i = 0; i < count; i++) {
        const double groups = list[i].operation.groups ? (double)list[i].operation.groups : 1;
        if (!(list[i].us > 0) || !is_same(&list[i], &list[at]))
            continue;
        if (i < at)
            return 0;
        us += list[i].weight * list[i].us;
        weight += list[i].weight * (list[i].by_volume ? 1 : groups);
    }
    return weight > 0 ? weft_measure_rounded(us / weight) : 0;
}

static weft_status keep_product(const weft_operation *o, double us, weft_cluster *cluster)
{
    if (cluster->num_products == WEFT_MAX_PRODUCTS)
        return WEFT_ERROR(WEFT_CONFIG, "the model has more than %d different products",
                          WEFT_MAX_PRODUCTS);
    weft_product *product = &cluster->products[cluster->num_products++];
    *product = product_of(o);
    product->us = us;
    return WEFT_OK;
}

static weft_status keep_operation(const weft_operation *o, double us, weft_cluster *cluster)
{
    if (strlen(o->module) >= sizeof cluster->operations[0].module)
        return WEFT_OK;
    if (cluster->num_operations == WEFT_MAX_TIMED_OPERATIONS)
        return WEFT_ERROR(WEFT_CONFIG, "the model has more than %d different operations",
                          WEFT_MAX_TIMED_OPERATIONS);
    weft_timed_operation *timed = &cluster->operations[cluster->num_operations++];
    *timed = timed_of(o);
    timed->us = us;
    return WEFT_OK;
}

/* Writes measured times into the cluster: products by shape, all else by module, phase and volume.
 * WEFT_CONFIG where there is no room. Pure. */
static weft_status own_keep(const weft_own_operation *list, int count, weft_cluster *cluster)
{
    for (int i = 0; i < count; i++) {
        const double us = mean_us(list, count, i);
        if (us > 0 && list[i].by_volume)
            WEFT_TRY(keep_operation(&list[i].operation, us, cluster));
        else if (us > 0)
            WEFT_TRY(keep_product(&list[i].operation, us, cluster));
    }
    return WEFT_OK;
}

enum { MAX_SWEEPS = 9, MIN_SWEEPS = 3, MOST_IN_TRAIN = 256, FEWEST_IN_TRAIN = 4 };
#define TRAIN_US 10e3    /* a train, about */
#define LONG_US 100e3    /* a call that is a train of its own, with nothing before it */
#define VERY_LONG_US 1e6 /* one that is measured once: no moment's noise is a share of it */

static const char what[] = "calibration";

typedef struct operand {
    size_t offset;
    int region;  /* -1: host memory, or none */
    bool slides; /* it is cold, and no index */
    bool apart;  /* hot, and one before it is the same: a train in place would wear numbers down to
                    denormal ones, which are slow */
} operand;

/* Of a kernel or, without one, a copy. */
typedef struct call {
    const weft_noted *first, *next; /* of a step's first micro-batch, and of another */
    const weft_kernel_again *kernel;
    void *args; /* while it is made */
    int layer, num_operations, num_operands;
    operand operands[WEFT_KERNEL_MAX_POINTERS];
    int like; /* the call whose time it has: itself, or an earlier one */
    bool runs;
    int length, num_sweeps;
    double us[MAX_SWEEPS], typical_us, scatter;
} call;

typedef struct place {
    char *memory;
    size_t bytes, used; /* used: a step's, whole lines */
} place;

typedef struct rig {
    const weft_own_model *model;
    weft_comm *world;
    weft_device *device;
    weft_lane *lane;
    weft_arena arena;
    weft_recording recording;
    place places[WEFT_MAX_REGIONS];
    bool has_indices[WEFT_MAX_REGIONS]; /* while calls are listed: a kernel has made some there */
    size_t slid_bytes;
    bool quick;
    call *calls;
    int num_calls;
} rig;

/* --- calls --------------------------------------------------------------------------------- */

static int region_of(const rig *r, const void *at)
{
    for (int i = 0; i < r->recording.num_regions; i++) {
        const weft_region *region = &r->recording.regions[i];
        if ((const char *)at >= region->start && (const char *)at < region->start + region->bytes)
            return i;
    }
    return -1;
}

/* Whether the address is a host's, or a recording's. */
static bool is_reached(const rig *r, const void *at)
{
    return !weft_note_has(at) || region_of(r, at) >= 0;
}

static const void *pointer_in(const void *args, size_t offset)
{
    const void *at;
    memcpy(&at, (const char *)args + offset, sizeof at);
    return at;
}

/* The piece of memory that a call's operand lies in. */
static const void *piece_of(const rig *r, const call *c, const operand *o)
{
    const weft_recorded_layer *layer = &r->recording.layers[c->layer];
    const char *at = pointer_in(c->first->args, o->offset),
               *start = r->recording.regions[o->region].start;
    for (size_t i = layer->first; i < layer->next; i++) {
        const char *piece = r->recording.notes[i].to;
        if (r->recording.notes[i].kind == WEFT_NOTED_PIECE && piece > start && piece <= at)
            start = piece;
    }
    return start;
}

static bool touches(const rig *r, const call *c, const void *piece)
{
    for (int i = 0; i < c->num_operands; i++)
        if (c->operands[i].region >= 0 && piece_of(r, c, &c->operands[i]) == piece)
            return true;
    return false;
}

static bool is_forward(const call *c)
{
    return c->first->operation.phase == WEFT_PHASE_FORWARD;
}

/* before: the call before it in its layer; NULL: it is the first, whose input was just made.
 * Between a layer's forward and its backward others run. */
static bool slides(const rig *r, const call *c, const call *before, const operand *o)
{
    switch (r->recording.regions[o->region].use) {
    case WEFT_REGION_COLD:
        return true;
    case WEFT_REGION_LEFT:
        return before &&
               (is_forward(before) != is_forward(c) || !touches(r, before, piece_of(r, c, o)));
    default:
        return false;
    }
}

/* Finds where the operands lie. A call cannot run on memory of the layer's own, or on indices that
 * no call has made, nor with addresses that it does not have itself. */
static void find_operands(rig *r, call *c, const call *before)
{
    const weft_kernel_pointer *all = c->kernel->pointers;
    c->num_operands = c->kernel->num_pointers;
    for (int i = 0; i < c->num_operands; i++) {
        const void *at = pointer_in(c->first->args, all[i].offset);
        operand *o = &c->operands[i];
        *o = (operand){.offset = all[i].offset, .region = region_of(r, at)};
        if (o->region < 0) {
            c->runs =
                c->runs && is_reached(r, at) && (!at || all[i].kind != WEFT_POINTER_ADDRESSES);
            continue;
        }
        const weft_region_use use = r->recording.regions[o->region].use;
        const bool given = use == WEFT_REGION_TOKENS || use == WEFT_REGION_POSITIONS;
        if (all[i].kind == WEFT_POINTER_MADE_INDEX)
            r->has_indices[o->region] = true;
        else if (all[i].kind == WEFT_POINTER_INDEX && !given && !r->has_indices[o->region])
            c->runs = false;
        o->slides = all[i].kind == WEFT_POINTER_NUMBERS && slides(r, c, before, o);
        for (int k = 0; k < i && use == WEFT_REGION_HOT; k++)
            o->apart = o->apart || pointer_in(c->first->args, all[k].offset) == at;
    }
}

static bool is_same_operation(const weft_operation *a, const weft_operation *b)
{
    return a->phase == b->phase && a->dtype == b->dtype && a->m == b->m && a->n == b->n &&
           a->k == b->k && a->groups == b->groups && a->flops == b->flops && a->bytes == b->bytes &&
           strcmp(a->module, b->module) == 0;
}

/* The first call of this work; itself where it is. */
static int first_like(const rig *r, const call *c)
{
    int i = 0;
    while (i < r->num_calls &&
           (r->calls[i].kernel != c->kernel || !r->calls[i].runs ||
            !is_same_operation(&r->calls[i].first->operation, &c->first->operation)))
        i++;
    return i;
}

static weft_status list_layer(rig *r, int index)
{
    const weft_recorded_layer *layer = &r->recording.layers[index];
    const weft_noted *notes = r->recording.notes;
    const size_t num = layer->next - layer->first;
    const size_t apart = layer->end - layer->next == num ? num : 0;
    const call *before = NULL;
    memset(r->has_indices, 0, sizeof r->has_indices);
    for (size_t i = layer->first; i < layer->next; i++) {
        call *c = &r->calls[r->num_calls];
        *c = (call){.first = &notes[i],
                    .next = &notes[i + apart],
                    .kernel = notes[i].kernel ? weft_kernel_again_of(notes[i].kernel) : NULL,
                    .layer = index,
                    .like = -1,
                    .runs = true};
        if (notes[i].kind == WEFT_NOTED_COPY) {
            c->runs = is_reached(r, c->first->to) && is_reached(r, c->first->from);
            r->num_calls++;
        }
        if (notes[i].kind != WEFT_NOTED_OPERATION || !c->kernel)
            continue;
        while (i + 1 < layer->next && notes[i + 1].args == c->first->args)
            i++;
        c->num_operations = (int)(&notes[i] - c->first) + 1;
        if (!c->next->kernel || strcmp(c->next->kernel, c->kernel->name) != 0)
            c->next = c->first;
        WEFT_TRY(weft_arena_alloc(&r->arena, c->kernel->args_bytes, &c->args));
        find_operands(r, c, before);
        c->like = c->runs ? first_like(r, c) : -1;
        r->num_calls++;
        before = c;
    }
    return WEFT_OK;
}

static weft_status list_calls(rig *r)
{
    const weft_recording *recording = &r->recording;
    const weft_recorded_layer *last = &recording->layers[recording->num_layers - 1];
    WEFT_TRY(WEFT_ARRAY(&r->arena, last->end + 1, &r->calls));
    for (int i = 0; i < recording->num_layers; i++)
        WEFT_TRY(list_layer(r, i));
    return WEFT_OK;
}

/* --- making them again ----------------------------------------------------------------------- */

static size_t whole_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* At least what an operand of the call has. */
static size_t operand_bytes(const call *c)
{
    size_t most = 64;
    for (int i = 0; i < c->num_operations; i++) {
        const weft_operation *o = &c->first[i].operation;
        const size_t groups = o->groups ? o->groups : 1;
        const size_t bytes =
            o->kind == WEFT_OPERATION_MEMORY
                ? o->bytes
                : sizeof(float) * o->count * (o->m * o->k + o->m * o->n + o->k * o->n) * groups;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Where the `number`-th call of a train finds what slides. */
static size_t slid(const rig *r, const call *c, int region, size_t number)
{
    const size_t used = r->places[region].used, bytes = whole_lines(operand_bytes(c));
    const size_t step = bytes < used ? bytes : used;
    return used + number % (r->slid_bytes / step + 1) * step;
}

static void *place_of(const rig *r, const void *at)
{
    const int region = region_of(r, at);
    return region < 0
               ? (void *)at /* NOLINT */
               : r->places[region].memory + ((const char *)at - r->recording.regions[region].start);
}

/* number: in a train; -1: in order. */
static weft_status make(const rig *r, const call *c, int number)
{
    const weft_noted *noted =
        number < 0 || number % r->model->num_micro_batches == 0 ? c->first : c->next;
    if (!c->kernel)
        return weft_lane_copy(r->lane, place_of(r, noted->to), place_of(r, noted->from),
                              noted->operation.bytes);
    memcpy(c->args, noted->args, c->kernel->args_bytes);
    for (int i = 0; i < c->num_operands; i++) {
        const operand *o = &c->operands[i];
        if (o->region < 0)
            continue;
        char *at = place_of(r, pointer_in(noted->args, o->offset));
        if (number >= 0 && o->slides)
            at += slid(r, c, o->region, (size_t)number);
        else if (number >= 0 && o->apart)
            at += r->places[o->region].used;
        memcpy((char *)c->args + o->offset, &at, sizeof at);
    }
    return c->kernel->run(r->lane, c->args);
}

/* --- memory -------------------------------------------------------------------------------- */

static weft_status fill_indices(const rig *r, const place *p, bool tokens)
{
    void *memory;
    uint64_t random = 1;
    WEFT_TRY(weft_device_alloc(r->device, WEFT_SPACE_PINNED, p->bytes, what, &memory));
    int32_t *all = memory;
    for (size_t i = 0; i < p->bytes / sizeof *all; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        all[i] = (int32_t)(tokens ? (random >> 33) % (uint64_t)r->model->options->vocab_size : i);
    }
    weft_status status = weft_lane_copy(r->lane, p->memory, all, p->bytes);
    if (status == WEFT_OK)
        status = weft_lane_sync(r->lane);
    weft_device_free(r->device, WEFT_SPACE_PINNED, memory, p->bytes);
    return status;
}

/* Random numbers of the activations' type, which make finite fp32, too. */
static weft_status take_place(rig *r, const weft_region *region, place *out)
{
    const bool cold = region->use == WEFT_REGION_COLD || region->use == WEFT_REGION_LEFT;
    const weft_dtype dtype = r->model->shape->dtype;
    void *memory;
    out->used = whole_lines(region->bytes + 64);
    out->bytes = 2 * out->used + (cold ? r->slid_bytes : 0);
    WEFT_TRY(weft_device_alloc(r->device, WEFT_SPACE_DEVICE, out->bytes, what, &memory));
    out->memory = memory;
    const bool tokens = region->use == WEFT_REGION_TOKENS;
    if (tokens || region->use == WEFT_REGION_POSITIONS)
        return fill_indices(r, out, tokens);
    const size_t count = out->bytes / weft_dtype_bytes(dtype);
    return weft_random_normal(r->lane,
                              &WEFT_ARGS(weft_random_normal_args, .num_dims = 1,
                                         .global_dims = {count}, .local_dims = {count}, .seed = 1,
                                         .std = 0.5f, .dtype = dtype, .x = memory));
}

static weft_status prepare(rig *r)
{
    const weft_own_model *m = r->model;
    WEFT_TRY(weft_record_model(m->options, m->own_options, m->shape, m->build, r->device,
                               &r->recording));
    WEFT_TRY(list_calls(r));
    WEFT_TRY(weft_lane_create(r->device, 0, what, &r->lane));
    for (int i = 0; i < r->recording.num_regions; i++)
        WEFT_TRY(take_place(r, &r->recording.regions[i], &r->places[i]));
    return weft_lane_sync(r->lane);
}

static void release(rig *r)
{
    for (int i = 0; i < r->recording.num_regions; i++)
        if (r->places[i].memory)
            weft_device_free(r->device, WEFT_SPACE_DEVICE, r->places[i].memory, r->places[i].bytes);
    weft_lane_destroy(r->lane);
    weft_recording_release(&r->recording);
    weft_arena_release(&r->arena);
}

/* --- trains -------------------------------------------------------------------------------- */

/* Microseconds of one of `num` calls back to back behind some that are not timed; of the slowest
 * rank. */
static weft_status train(const rig *r, const call *c, int before, int num, double *out_us)
{
    double start_us = 0, end_us = 0;
    WEFT_TRY(weft_comm_barrier(r->world));
    for (int i = 0; i < before; i++)
        WEFT_TRY(make(r, c, i));
    WEFT_TRY(weft_measure_stamp(r->lane, &start_us));
    for (int i = 0; i < num; i++)
        WEFT_TRY(make(r, c, i));
    WEFT_TRY(weft_measure_stamp(r->lane, &end_us));
    WEFT_TRY(weft_lane_sync(r->lane));
    *out_us = fmax((end_us - start_us) / num, 1e-3);
    return weft_comm_all_reduce_host(r->world, out_us, 1, WEFT_F64, WEFT_REDUCE_MAX);
}

/* As many micro-batches' gradients are overwritten as in a step. */
static int train_length(const rig *r, double us)
{
    const int period = r->model->num_micro_batches;
    double num = ceil((r->quick ? TRAIN_US / 20 : TRAIN_US) / fmax(us, 0.1));
    num = fmin(fmax(num, us < LONG_US ? FEWEST_IN_TRAIN : 1), MOST_IN_TRAIN);
    return (int)ceil(num / period) * period;
}

static weft_status time_call(const rig *r, call *c, int sweep)
{
    double us;
    if (sweep >= 0 && sweep >= c->num_sweeps)
        return WEFT_OK;
    const int num = sweep < 0 ? 1 : c->length;
    WEFT_TRY(train(r, c, sweep < 0 ? 1 : num > 1 ? (num + 3) / 4 : 0, num, &us));
    if (sweep < 0) {
        c->length = train_length(r, us);
        c->num_sweeps = us > VERY_LONG_US ? 1 : r->quick ? MIN_SWEEPS : MAX_SWEEPS;
    } else {
        c->us[sweep] = us;
    }
    return WEFT_OK;
}

/* All calls in turn, again and again, as curves are measured. */
static weft_status measure(rig *r)
{
    int count = 0, most = 0; /* sweeps */
    for (int i = 0; i < r->num_calls; i++)
        count += r->calls[i].like == i;
    for (int sweep = -1; sweep < most; sweep++) {
        if (sweep < 0)
            weft_log(WEFT_LOG_INFO, "operations of the model: %d, a first time", count);
        else
            weft_log(WEFT_LOG_INFO, "operations of the model: sweep %d of %d", sweep + 1, most);
        for (int i = 0; i < r->num_calls; i++) {
            call *c = &r->calls[i];
            if (c->runs)
                WEFT_TRY(make(r, c, -1));
            if (c->like == i)
                WEFT_TRY(time_call(r, c, sweep));
            most = c->num_sweeps > most ? c->num_sweeps : most;
        }
        WEFT_TRY(weft_lane_sync(r->lane));
    }
    for (int i = 0; i < r->num_calls; i++) {
        call *c = &r->calls[i];
        if (c->like != i)
            continue;
        c->typical_us = weft_measure_typical_us(c->us, c->num_sweeps);
        c->scatter = weft_measure_scatter(c->us, c->num_sweeps);
    }
    return WEFT_OK;
}

/* --- operations ------------------------------------------------------------------------------ */

/* Adds a call's time to the entries of its layer's description: several share it by FLOPs. */
static void spread(const rig *r, const call *c, weft_own_operation *of_layer)
{
    const call *like = &r->calls[c->like];
    double flops = 0;
    for (int i = 0; i < c->num_operations; i++)
        flops += (double)c->first[i].operation.flops;
    for (int i = 0; i < c->num_operations; i++) {
        weft_own_operation *own = &of_layer[c->first[i].entry];
        const double share =
            c->num_operations > 1 ? (double)c->first[i].operation.flops / flops : 1;
        own->us += like->typical_us * share;
        own->scatter = like->scatter;
        own->by_volume = c->num_operations > 1 || own->operation.kind == WEFT_OPERATION_MEMORY;
    }
}

static int of_layer(const rig *r, int index, weft_own_operation *out)
{
    const weft_recorded_layer *layer = &r->recording.layers[index];
    const weft_description *d = &layer->description;
    int count = 0;
    for (int i = 0; i < d->num_operations; i++)
        out[i] = (weft_own_operation){.operation = d->operations[i]};
    for (int i = 0; i < r->num_calls; i++)
        if (r->calls[i].layer == index && r->calls[i].like >= 0)
            spread(r, &r->calls[i], out);
    for (int i = 0; i < d->num_operations; i++) {
        weft_own_operation own = out[i];
        weft_operation *o = &own.operation;
        const double num = (double)o->count;
        if (o->repeated || !(own.us > 0)) /* forward's, or not measured */
            continue;
        o->flops /= o->count;
        o->bytes /= o->count;
        o->count = 1;
        own.us /= num;
        own.weight = num * layer->count;
        out[count++] = own;
    }
    return count;
}

static weft_status list_operations(rig *r, weft_own_operation **out, int *out_count)
{
    size_t most = 1;
    for (int i = 0; i < r->recording.num_layers; i++)
        most += (size_t)r->recording.layers[i].description.num_operations;
    WEFT_TRY(WEFT_ARRAY(&r->arena, most, out));
    *out_count = 0;
    for (int i = 0; i < r->recording.num_layers; i++)
        *out_count += of_layer(r, i, *out + *out_count);
    return WEFT_OK;
}

/* The spread of products, and of all else: the mean. */
static void say_sources(const weft_own_operation *list, int count, weft_cluster *cluster)
{
    double scatter[2] = {0, 0};
    int num[2] = {0, 0};
    for (int i = 0; i < count; i++) {
        scatter[list[i].by_volume] += list[i].scatter;
        num[list[i].by_volume]++;
    }
    if (num[0] > 0)
        weft_measure_say_source(cluster, "products", scatter[0] / num[0]);
    if (num[1] > 0)
        weft_measure_say_source(cluster, "operations", scatter[1] / num[1]);
    weft_log(WEFT_LOG_INFO, "%s of the model",
             weft_count_text(cluster->num_products + cluster->num_operations, "operation").text);
}

weft_status weft_measure_own(weft_comm *world, weft_device *device, const weft_own_model *model,
                             bool quick, weft_cluster *cluster)
{
    rig r = {.model = model,
             .world = world,
             .device = device,
             .slid_bytes = (size_t)(quick ? 1 : 96) << 20,
             .quick = quick};
    weft_own_operation *list = NULL;
    int count = 0;
    weft_status status = weft_comm_agree(world, prepare(&r));
    if (status == WEFT_OK)
        status = measure(&r);
    if (status == WEFT_OK)
        status = list_operations(&r, &list, &count);
    if (status == WEFT_OK)
        status = own_keep(list, count, cluster);
    if (status == WEFT_OK)
        say_sources(list, count, cluster);
    release(&r);
    return status;
}
