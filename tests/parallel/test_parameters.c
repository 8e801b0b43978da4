/* The layout's properties on several meshes, the refusals, and the first values. */
#include "state_model.h"

/* Elements of a parameter that lie in a bucket, or in a run. */
static size_t elements_in(const weft_placed *p, const weft_bucket *bucket)
{
    size_t used = 0;
    for (size_t e = 0; e < p->count; e++) {
        const size_t at = p->offset + weft_parameter_place(&p->parameter, e);
        used += at >= bucket->offset && at < bucket->offset + bucket->count;
    }
    return used;
}

static void check_bucket(const state_model *m, int kind, int b)
{
    const weft_section *s = weft_parameters_section(m->parameters, (weft_section_kind)kind);
    const weft_bucket *bucket = &s->buckets[b];
    size_t shares = (size_t)weft_comm_size(s->group), used = 0;
    int parameters = 0, first_layer = 1000;

    EXPECT(weft_bucket_part(bucket) % (shares * 16) == 0 &&
               weft_bucket_part(bucket) * (size_t)weft_bucket_parts(bucket) == bucket->count,
           "section %d bucket %d: %zu elements for %zu", kind, b, bucket->count, shares);
    size_t start = b ? s->buckets[b - 1].offset + s->buckets[b - 1].count : 0;
    EXPECT(bucket->offset == start, "section %d bucket %d begins at %zu, not %zu", kind, b,
           bucket->offset, start);
    for (int i = 0; i < weft_parameters_count(m->parameters); i++) {
        const weft_placed *p = weft_parameters_at(m->parameters, i);
        const size_t own = (int)p->section == kind ? elements_in(p, bucket) : 0;
        if (own == 0)
            continue;
        parameters++;
        used += own;
        first_layer = p->layer < first_layer ? p->layer : first_layer;
        EXPECT(bucket->num_experts > 0 || own == p->count, "%s is not inside its bucket",
               p->parameter.name);
        EXPECT((bucket->num_experts > 0) == p->parameter.spec->by_expert,
               "%s, by expert %d, lies in bucket %d of %d experts", p->parameter.name,
               p->parameter.spec->by_expert, b, bucket->num_experts);
    }
    EXPECT(parameters > 0, "section %d bucket %d is empty", kind, b);
    EXPECT(parameters == 1 || bucket->num_experts > 0 || used <= STATE_BUCKET,
           "section %d bucket %d: %zu elements in %d", kind, b, used, parameters);
    EXPECT(bucket->num_experts <= (STATE_EXPERTS / m->groups.mesh.ep + 1) / 2 ||
               bucket->count <= STATE_BUCKET,
           "section %d run %d: %zu elements", kind, b, bucket->count);
    EXPECT(bucket->first_layer == first_layer, "section %d bucket %d: layer %d, not %d", kind, b,
           bucket->first_layer, first_layer);
}

/* Every element of a parameter has a place of its own, and views point where the layout says. */
static void check_places(const state_model *m)
{
    char *taken[WEFT_NUM_SECTIONS];
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        taken[kind] =
            calloc(weft_parameters_section(m->parameters, (weft_section_kind)kind)->count + 1, 1);
    for (int i = 0; i < weft_parameters_count(m->parameters); i++) {
        const weft_placed *p = weft_parameters_at(m->parameters, i);
        const weft_section *s = weft_parameters_section(m->parameters, p->section);
        size_t bytes = weft_dtype_bytes(weft_parameters_dtype(m->parameters)), twice = 0;
        EXPECT(p->parameter.grad == s->grads + p->offset, "%s's gradient", p->parameter.name);
        EXPECT(p->parameter.weight.data == (char *)s->weights + p->offset * bytes, "%s's weight",
               p->parameter.name);
        for (size_t e = 0; e < weft_placed_parts(p); e++)
            EXPECT((uintptr_t)weft_parameter_weight_of(&p->parameter, e) % 64 == 0,
                   "%s's weight of expert %zu at %p", p->parameter.name, e,
                   weft_parameter_weight_of(&p->parameter, e));
        EXPECT(weft_tensor_count(&p->parameter.weight) == p->count, "%s's shape",
               p->parameter.name);
        EXPECT(weft_parameters_find(m->parameters, p->parameter.name) == &p->parameter,
               "%s is not found", p->parameter.name);
        for (size_t e = 0; e < p->count; e++) {
            char *at = &taken[p->section][p->offset + weft_parameter_place(&p->parameter, e)];
            twice += (size_t)*at;
            *at = 1;
        }
        EXPECT(twice == 0, "%s lies over another in %zu elements", p->parameter.name, twice);
    }
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++)
        free(taken[kind]);
}

/* An expert bucket has fc1, fc2 and bias of one layer's local expert, in this order. */
static void check_experts(const state_model *m)
{
    static const char *const names[] = {"fc1", "fc2", "bias"};
    for (int i = 0; i + 3 < weft_parameters_count(m->parameters); i++) {
        const weft_placed *p = weft_parameters_at(m->parameters, i);
        size_t end = p->offset, elements = 0;
        if (!strstr(p->parameter.name, "experts.fc1"))
            continue;
        const weft_section *s = weft_parameters_section(m->parameters, p->section);
        for (int k = 0; k < 3; k++) {
            char name[WEFT_MAX_NAME_BYTES];
            snprintf(name, sizeof name, "%.*s%s", (int)strlen(p->parameter.name) - 3,
                     p->parameter.name, names[k]);
            const weft_placed *q = (const void *)weft_parameters_find(m->parameters, name);
            EXPECT(q && q->offset == end &&
                       q->parameter.expert_stride == p->parameter.expert_stride,
                   "%s does not lie behind the others of its expert", name);
            end += q ? (weft_placed_part(q) + 31) / 32 * 32 : 0;
        }
        elements = end - p->offset;
        const size_t align = 32 * (size_t)weft_comm_size(s->group);
        EXPECT(p->parameter.expert_stride == (elements + align - 1) / align * align,
               "experts of %zu elements are %zu apart", elements, p->parameter.expert_stride);
        EXPECT(p->experts == p->box.local[0], "%zu experts", p->experts);
        EXPECT(weft_parameter_grad_of(&p->parameter, p->experts - 1) ==
                   p->parameter.grad + (p->experts - 1) * p->parameter.expert_stride,
               "the last expert's gradient");
    }
}

/* Layouts agree in each gradient group, else reductions would add different parameters. */
static void check_agreement(const state_model *m)
{
    for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
        const weft_section *s = weft_parameters_section(m->parameters, (weft_section_kind)kind);
        uint64_t hash = s->count;
        for (int b = 0; b < s->num_buckets; b++)
            hash = hash * 31 + (s->buckets[b].offset ^ s->buckets[b].count << 20);
        int64_t low = (int64_t)(hash >> 1), high = low;
        EXPECT_OK(weft_comm_all_reduce_host(s->group, &low, 1, WEFT_I64, WEFT_REDUCE_MIN));
        EXPECT_OK(weft_comm_all_reduce_host(s->group, &high, 1, WEFT_I64, WEFT_REDUCE_MAX));
        EXPECT(low == high, "section %d differs between ranks", kind);
    }
}

static float first_value(const weft_placed *p, uint64_t index)
{
    const weft_parameter_spec *spec = p->parameter.spec;
    float normal = weft_rng_normal(STATE_SEED, weft_rng_stream_of(p->parameter.name), index);
    if (spec->init == WEFT_INIT_ZERO)
        return 0.0f;
    return spec->init == WEFT_INIT_ONE ? 1.0f : spec->init_std * normal;
}

static void check_values(state_model *m)
{
    EXPECT_OK(weft_parameters_initialize(m->parameters, m->compute, STATE_SEED));
    EXPECT_OK(weft_lane_sync(m->compute));
    for (int i = 0; i < weft_parameters_count(m->parameters); i++) {
        const weft_placed *p = weft_parameters_at(m->parameters, i);
        bool is_bf16 = weft_parameters_dtype(m->parameters) == WEFT_BF16;
        for (size_t e = 0; e < p->count; e++) {
            uint64_t index;
            float wanted = state_global_index(&p->box, e, &index) ? first_value(p, index) : 0.0f;
            /* vector code and the scalar reference may differ in the last bit */
            float slack = 4e-7f + (is_bf16 ? 0.008f * fabsf(wanted) : 0.0f);
            EXPECT(fabsf(state_weight(p, e) - wanted) <= slack, "%s[%zu] is %g, not %g",
                   p->parameter.name, e, (double)state_weight(p, e), (double)wanted);
        }
        EXPECT(p->parameter.valid_rows == p->box.valid[0], "%s: %zu rows", p->parameter.name,
               p->parameter.valid_rows);
    }
}

static void check_mesh(weft_comm *world, const char *mesh, weft_dtype dtype)
{
    state_model m;
    int before = expect_failures;
    if (state_model_create(&m, world, mesh, dtype, NULL)) {
        for (int kind = 0; kind < WEFT_NUM_SECTIONS; kind++) {
            const weft_section *s = weft_parameters_section(m.parameters, (weft_section_kind)kind);
            for (int b = 0; b < s->num_buckets; b++)
                check_bucket(&m, kind, b);
        }
        check_places(&m);
        check_experts(&m);
        check_agreement(&m);
        check_values(&m);
    }
    EXPECT(before == expect_failures, "on mesh %s", mesh);
    state_model_release(&m);
}

static void check_refusals(weft_comm *world, const char *mesh)
{
    state_model m;
    weft_parameter *out;
    if (!state_model_create(&m, world, mesh, WEFT_F32, NULL)) {
        state_model_release(&m);
        return;
    }
    weft_parameters *p;
    EXPECT_OK(weft_parameters_create(&m.groups, m.device, WEFT_F32, &p));
    weft_parameter_spec spec = {
        .struct_bytes = sizeof spec, .name = "a", .num_dims = 1, .dims = {7}};
    EXPECT_OK(weft_parameters_declare(p, "x.", &spec, 0, &out));
    EXPECT_ERROR(weft_parameters_declare(p, "x.", &spec, 0, &out), WEFT_CONFIG,
                 "x.a is declared twice");
    EXPECT_ERROR(weft_parameters_declare(p, "x/", &spec, 0, &out), WEFT_CONFIG, "\"x/a\"");
    spec.init_std = -1;
    EXPECT_ERROR(weft_parameters_declare(p, "z.", &spec, 0, &out), WEFT_CONFIG,
                 "parameter z.a: init_std is -1");
    spec.init_std = 0;
    spec.split[0] = WEFT_SPLIT_TP;
    EXPECT_ERROR(weft_parameters_declare(p, "y.", &spec, 0, &out), WEFT_CONFIG,
                 "y.a: dimension 0 of size 7 does not divide over tp 2");
    spec.may_pad = true;
    EXPECT_OK(weft_parameters_declare(p, "y.", &spec, 0, &out));
    EXPECT(out->weight.dims[0] == 4 &&
               out->valid_rows == (m.groups.coords.at[WEFT_AXIS_TP] ? 3 : 4),
           "%zu rows, %zu valid", out->weight.dims[0], out->valid_rows);
    spec.split[0] = WEFT_SPLIT_EP;
    EXPECT_ERROR(weft_parameters_declare(p, "z.", &spec, 0, &out), WEFT_CONFIG, "not an expert");
    spec.is_expert = true;
    spec.sum_over_tp = true;
    EXPECT_ERROR(weft_parameters_declare(p, "z.", &spec, 0, &out), WEFT_CONFIG, "sum_over_tp");
    spec.sum_over_tp = false;
    spec.split[0] = WEFT_SPLIT_TP;
    EXPECT_ERROR(weft_parameters_declare(p, "z.", &spec, 0, &out), WEFT_CONFIG, "ep or etp");
    spec.by_expert = true;
    EXPECT_ERROR(weft_parameters_declare(p, "z.", &spec, 0, &out), WEFT_CONFIG, "by_expert");
    spec = WEFT_ARGS(weft_parameter_spec, .name = "b", .num_dims = 2, .dims = {3});
    EXPECT_ERROR(weft_parameters_declare(p, "", &spec, 0, &out), WEFT_CONFIG,
                 "dimension 1 has size 0");
    spec.num_dims = 5;
    EXPECT_ERROR(weft_parameters_declare(p, "", &spec, 0, &out), WEFT_CONFIG, "5 dimensions");
    EXPECT_OK(weft_parameters_allocate(p, &(weft_residency){0}, false));
    EXPECT(!weft_parameters_at(p, 0)->parameter.grad, "gradients that nobody asked for");
    weft_parameters_destroy(p);
    state_model_release(&m);
}

int main(void)
{
    weft_comm *world = world_begin(0);
    if (weft_comm_size(world) == 4) {
        check_mesh(world, "tp=2,dp=2", WEFT_F32);
        check_mesh(world, "tp=2,pp=2", WEFT_BF16);
        check_mesh(world, "tp=2,ep=2,binding=tp", WEFT_BF16);
        check_mesh(world, "pp=4", WEFT_F32);
        check_mesh(world, "dp=4,ep=4", WEFT_BF16);
        check_mesh(world, "tp=2,ep=2,etp=2", WEFT_F32);
        check_refusals(world, "tp=2");
    } else {
        check_mesh(world, "tp=1", WEFT_F32);
        check_mesh(world, "tp=1", WEFT_BF16);
    }
    return world_finish(world);
}
