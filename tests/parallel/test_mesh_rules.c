/* What makes a mesh legal, what a refusal says, and the --mesh shorthand. */
#include <stdlib.h>
#include <string.h>

#include "layers/model/model.h"
#include "parallel/mesh/mesh.h"
#include "schedule/options.h"
#include "schedule/pipeline/pipeline.h"
#include "tests/core/check.h"

static weft_parallel_options plain(void)
{
    return (weft_parallel_options){.tensor_model_parallel_size = 1,
                                   .pipeline_model_parallel_size = 1,
                                   .context_parallel_size = 1,
                                   .expert_binding = WEFT_BINDING_DP,
                                   .order = "tp-cp-ep-dp-pp"};
}

typedef struct refusal {
    int world;
    int64_t num_experts;
    const char *text;
    weft_parallel_options options; /* fields left zero take plain()'s value */
} refusal;

static const refusal refusals[] = {
    {8, 0,
     "tensor_model_parallel_size 3 x pipeline 2 = 6 does not divide 8 ranks; tp 1, 2 or 4 would",
     .options.tensor_model_parallel_size = 3, .options.pipeline_model_parallel_size = 2},
    {8, 0,
     "pipeline_model_parallel_size 3 x tensor 1 = 3 does not divide 8 ranks; pp 1, 2, 4 or 8 would",
     .options.pipeline_model_parallel_size = 3},
    {8, 0,
     "tensor_model_parallel_size 3 x pipeline 3 = 9 does not divide 8 ranks; with pp 2, tp 1, 2 or "
     "4 would",
     .options.tensor_model_parallel_size = 3, .options.pipeline_model_parallel_size = 3},
    {4, 0,
     "tensor_model_parallel_size 2 x pipeline 4 = 8 does not divide 4 ranks; tp 1, or pp 1 or 2 "
     "would",
     .options.tensor_model_parallel_size = 2, .options.pipeline_model_parallel_size = 4},
    {4, 0, "tensor_model_parallel_size -2: at least 1", .options.tensor_model_parallel_size = -2},
    {4, 0, "data_parallel_size -1: at least 0", .options.data_parallel_size = -1},
    {4, 0, "is more than the 4 ranks", .options.tensor_model_parallel_size = INT64_MAX,
     .options.pipeline_model_parallel_size = INT64_MAX},
    {8, 0, "data_parallel_size 3: tensor 2 x context 1 x pipeline 1 leave 4 of 8 ranks; give 4",
     .options.tensor_model_parallel_size = 2, .options.data_parallel_size = 3},
    {8, 0,
     "context_parallel_size 3 x tensor 2 x pipeline 1 = 6 does not divide 8 ranks; cp 1, 2 or 4 "
     "would",
     .options.context_parallel_size = 3, .options.tensor_model_parallel_size = 2},
    {8, 0, "sequence_parallel has no effect with tensor_model_parallel_size 1; it needs tp above 1",
     .options.sequence_parallel = true},
    {8, 8,
     "expert_model_parallel_size 4: expert_binding tp puts the experts on the tensor-parallel "
     "ranks, so ep is tp, 2",
     .options.tensor_model_parallel_size = 2, .options.expert_binding = WEFT_BINDING_TP,
     .options.expert_model_parallel_size = 4},
    {8, 8, "expert_tensor_parallel_size 2: with expert_binding tp",
     .options.tensor_model_parallel_size = 2, .options.expert_binding = WEFT_BINDING_TP,
     .options.expert_tensor_parallel_size = 2},
    {8, 6,
     "tensor_model_parallel_size 4: expert_binding tp spreads num_experts 6 over the "
     "tensor-parallel ranks, which does not come out even (expert_binding dp need not); tp 1 or 2 "
     "would",
     .options.tensor_model_parallel_size = 4, .options.expert_binding = WEFT_BINDING_TP},
    {8, 8, "expert_tensor_parallel_size 2: 1 (experts whole) or tensor_model_parallel_size, 4",
     .options.tensor_model_parallel_size = 4, .options.expert_tensor_parallel_size = 2,
     .options.expert_binding = WEFT_BINDING_DP},
    {8, 6,
     "expert_model_parallel_size 3 x expert tensor 1 = 3 does not divide the 8 ranks of a pipeline "
     "stage; ep 1 or 2 would",
     .options.expert_model_parallel_size = 3, .options.expert_binding = WEFT_BINDING_DP},
    {8, 6, "expert_model_parallel_size 4 does not divide num_experts 6; ep 1 or 2 would",
     .options.expert_model_parallel_size = 4, .options.expert_binding = WEFT_BINDING_DP},
    {8, 6, "does not divide the 8 ranks of a pipeline stage",
     .options.expert_model_parallel_size = INT64_C(1) << 20,
     .options.expert_binding = WEFT_BINDING_DP},
    {8, 0, "expert_model_parallel_size 2: the model has no experts (num_experts 0)",
     .options.expert_model_parallel_size = 2, .options.expert_binding = WEFT_BINDING_DP},
    {8, 0, "expert_tensor_parallel_size 2: the model has no experts (num_experts 0)",
     .options.tensor_model_parallel_size = 2, .options.expert_tensor_parallel_size = 2,
     .options.expert_binding = WEFT_BINDING_DP},
    {8, 0, "order 'tp-dp-pp': each of tp, cp, ep, dp and pp once", .options.order = "tp-dp-pp"},
    {8, 0, "order 'tp-cp-ep-dp-dp': each of", .options.order = "tp-cp-ep-dp-dp"},
    {8, 0, "order 'tp-cp-ep-dp-xx': each of", .options.order = "tp-cp-ep-dp-xx"},
    {8, 0, "order 'tp_cp-ep-dp-pp': each of", .options.order = "tp_cp-ep-dp-pp"},
    {8, 0, "order '': each of", .options.order = ""},
    {8, 0, "each of", .options.order = "tp-cp-ep-dp-pp-pp-pp-pp-pp-pp-pp-pp"},
    {8, 8,
     "order tp-cp-ep-pp-dp: the dense grid (tp 2, cp 1, dp 2) and the expert grid (etp 1, ep 4, "
     "edp 1) would get different pipeline groups; put pp last",
     .options.tensor_model_parallel_size = 2, .options.pipeline_model_parallel_size = 2,
     .options.expert_model_parallel_size = 4, .options.expert_binding = WEFT_BINDING_DP,
     .options.order = "tp-cp-ep-pp-dp"},
    {8, 8,
     "order ep-tp-cp-dp-pp: with expert_tensor_parallel_size 2 the expert's shards would not lie "
     "on one tensor-parallel group; put tp first",
     .options.tensor_model_parallel_size = 2, .options.expert_model_parallel_size = 2,
     .options.expert_tensor_parallel_size = 2, .options.expert_binding = WEFT_BINDING_DP,
     .options.order = "ep-tp-cp-dp-pp"},
    {0, 0, "a mesh of 0 ranks", .options.order = NULL},
    {4, -1, "num_experts -1", .options.order = NULL},
};

CASE(test_refusals)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        weft_parallel_options o = refusals[i].options, base = plain();
        if (!o.tensor_model_parallel_size)
            o.tensor_model_parallel_size = base.tensor_model_parallel_size;
        if (!o.pipeline_model_parallel_size)
            o.pipeline_model_parallel_size = base.pipeline_model_parallel_size;
        if (!o.context_parallel_size)
            o.context_parallel_size = base.context_parallel_size;
        weft_mesh mesh = {.world = -7};
        assert_int_equal(weft_mesh_build(&o, refusals[i].world, refusals[i].num_experts, &mesh),
                         WEFT_CONFIG);
        if (!strstr(weft_error_get()->text, refusals[i].text))
            fail_msg("\"%s\" lacks \"%s\"", weft_error_get()->text, refusals[i].text);
        assert_null(strchr(weft_error_get()->text, '\n'));
        /* About the key that it begins with, but for the number of ranks, which no key gives. */
        size_t bytes = strlen(weft_error_get()->key);
        assert_int_equal(bytes == 0, strncmp(weft_error_get()->text, "a mesh of", 9) == 0);
        assert_memory_equal(weft_error_get()->text, weft_error_get()->key, bytes);
        assert_int_equal(mesh.world, -7); /* written on success only */
    }
}

/* Reads "NAME 1, 2 or 4" out of a refusal; returns how many numbers follow. */
static int suggestions(const char *text, const char *name, int64_t *out)
{
    const char *at = strstr(text, name);
    int count = 0;
    at = at ? at + strlen(name) : "";
    for (char *end; *at >= '0' && *at <= '9'; at = end) {
        out[count++] = strtoll(at, &end, 10);
        end += !strncmp(end, ", ", 2) ? 2 : !strncmp(end, " or ", 4) ? 4 : 0;
    }
    return count;
}

/* What a refusal says would fit, fits; what it leaves out, does not. */
CASE(test_suggestions_hold)
{
    int refused = 0;
    for (int world = 1; world <= 24; world++)
        for (int tp = 1; tp <= 6; tp++)
            for (int ep = 1; ep <= 9; ep++) {
                weft_parallel_options o = plain();
                weft_mesh mesh;
                int64_t fits[64];
                o.tensor_model_parallel_size = tp;
                o.pipeline_model_parallel_size = 2;
                if (world % 2)
                    continue;
                if (weft_mesh_build(&o, world, 0, &mesh) != WEFT_OK) {
                    int count = suggestions(weft_error_get()->text, "; tp ", fits);
                    assert_true(count > 0);
                    for (int other = 1, i = 0; other <= world; other++) {
                        o.tensor_model_parallel_size = other;
                        bool builds = weft_mesh_build(&o, world, 0, &mesh) == WEFT_OK;
                        assert_int_equal(builds, i < count && fits[i] == other);
                        i += builds;
                    }
                    refused++;
                    continue;
                }
                o.expert_model_parallel_size = ep;
                o.expert_tensor_parallel_size = ep % 2 ? tp : 1;
                if (weft_mesh_build(&o, world, 12, &mesh) == WEFT_OK)
                    continue;
                int count = suggestions(weft_error_get()->text, "; ep ", fits);
                assert_true(count > 0);
                for (int other = 1, i = 0; other <= world; other++) {
                    o.expert_model_parallel_size = other;
                    bool builds = weft_mesh_build(&o, world, 12, &mesh) == WEFT_OK;
                    assert_int_equal(builds, i < count && fits[i] == other);
                    i += builds;
                }
                refused++;
            }
    assert_true(refused > 100);
}

static weft_status check_model(const void *context, const weft_mesh *mesh)
{
    const weft_model_options *o = context;
    weft_layout layout;
    WEFT_TRY(weft_layout_build(&(weft_parallel_options){0}, mesh->pp, (int)o->num_layers + 2, NULL,
                               &layout));
    return weft_model_check_mesh(o, mesh, o->num_layers, 1);
}

/* The same with a model on the mesh, and where the mesh says how many ranks there are (world 0). */
CASE(test_suggestions_fit_the_model)
{
    static const struct {
        const char *name;
        size_t offset;
    } sizes[] = {
        {"tp ", offsetof(weft_parallel_options, tensor_model_parallel_size)},
        {"pp ", offsetof(weft_parallel_options, pipeline_model_parallel_size)},
        {"cp ", offsetof(weft_parallel_options, context_parallel_size)},
        {"ep ", offsetof(weft_parallel_options, expert_model_parallel_size)},
        {"etp ", offsetof(weft_parallel_options, expert_tensor_parallel_size)},
    };
    weft_model_options model = {.num_layers = 3,
                                .hidden_size = 96,
                                .ffn_hidden_size = 60,
                                .num_attention_heads = 12,
                                .num_query_groups = 6,
                                .kv_channels = 8,
                                .seq_length = 12,
                                .num_experts = 12,
                                .moe_router_topk = 2,
                                .moe_ffn_hidden_size = 60};
    int refused = 0, hinted = 0;
    for (int i = 0; i < 4 * 6 * 5 * 5 * 2 * 2; i++) {
        static const int worlds[] = {0, 8, 12, 30};
        weft_parallel_options o = plain();
        weft_mesh_request request = {.options = &o,
                                     .world = worlds[i % 4],
                                     .num_experts = model.num_experts,
                                     .check = check_model,
                                     .context = &model};
        weft_mesh mesh;
        o.tensor_model_parallel_size = 1 + i / 4 % 6;
        o.pipeline_model_parallel_size = 1 + i / 24 % 5;
        o.expert_model_parallel_size = i / 120 % 5;
        o.expert_binding = i / 600 % 2 ? WEFT_BINDING_TP : WEFT_BINDING_DP;
        o.sequence_parallel = i / 1200 % 2;
        o.context_parallel_size = i % 13 < 12 ? 1 : 2;
        if (weft_mesh_build_for(&request, &mesh) == WEFT_OK)
            continue;
        refused++;
        char text[WEFT_ERROR_TEXT_BYTES];
        strcpy(text, weft_error_get()->text);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            char wanted[2][16]; /* a list begins either way */
            int64_t fits[64];
            snprintf(wanted[0], sizeof wanted[0], "; %s", sizes[s].name);
            snprintf(wanted[1], sizeof wanted[1], ", or %s", sizes[s].name);
            int count = suggestions(text, wanted[0], fits);
            if (count == 0)
                count = suggestions(text, wanted[1], fits);
            int64_t *value = (int64_t *)((char *)&o + sizes[s].offset), asked = *value;
            for (int other = 1, at = 0; count > 0 && other <= 30; other++) {
                *value = other;
                bool builds = weft_mesh_build_for(&request, &mesh) == WEFT_OK;
                if (builds != (at < count && fits[at] == other))
                    fail_msg("%s: %s%d", text, sizes[s].name, other);
                at += builds;
            }
            *value = asked;
            hinted += count > 0;
        }
    }
    if (refused < 500 || hinted < refused / 2)
        fail_msg("%d refused, %d with values", refused, hinted);
}

static weft_schedule_options schedule;

/* What --mesh may name besides the mesh. */
static weft_option_section schedule_rows(void)
{
    return (weft_option_section){
        .rows = weft_schedule_rows, .num_rows = weft_num_schedule_rows, .target = &schedule};
}

CASE(test_alias)
{
    weft_arena arena = {0};
    weft_option_section all = schedule_rows();
    weft_parallel_options o = plain();
    o.tensor_model_parallel_size = 2;
    o.pipeline_model_parallel_size = 3;
    o.expert_model_parallel_size = 2;
    o.data_parallel_size = 5;
    o.sequence_parallel = true;
    o.expert_binding = WEFT_BINDING_TP;
    assert_int_equal(weft_mesh_apply_alias("tp=1", &arena, &o, NULL), WEFT_OK);
    assert_int_equal(o.tensor_model_parallel_size, 1);
    assert_int_equal(o.pipeline_model_parallel_size, 1);
    assert_int_equal(o.expert_model_parallel_size, 0);
    assert_int_equal(o.data_parallel_size, 0);
    assert_false(o.sequence_parallel);
    assert_int_equal(o.expert_binding, WEFT_BINDING_TP); /* not a size: stays */

    assert_int_equal(weft_mesh_apply_alias("tp=4,pp=2,cp=1,ep=8,etp=4,dp=3,binding=dp,sp=1,zero=0,"
                                           "schedule=gpipe,order=tp-cp-ep-pp-dp",
                                           &arena, &o, &all),
                     WEFT_OK);
    assert_int_equal(o.tensor_model_parallel_size, 4);
    assert_int_equal(o.pipeline_model_parallel_size, 2);
    assert_int_equal(o.context_parallel_size, 1);
    assert_int_equal(o.expert_model_parallel_size, 8);
    assert_int_equal(o.expert_tensor_parallel_size, 4);
    assert_int_equal(o.data_parallel_size, 3);
    assert_int_equal(o.expert_binding, WEFT_BINDING_DP);
    assert_true(o.sequence_parallel);
    assert_false(o.use_distributed_optimizer);
    assert_int_equal(schedule.pipeline_schedule, WEFT_PIPELINE_GPIPE);
    assert_string_equal(o.order, "tp-cp-ep-pp-dp");

    assert_int_equal(weft_mesh_apply_alias("tp=4,sp=false", &arena, &o, NULL), WEFT_OK);
    assert_false(o.sequence_parallel);
    assert_int_equal(weft_mesh_apply_alias("tp=4,sp=true", &arena, &o, NULL), WEFT_OK);
    assert_true(o.sequence_parallel);

    /* a layout has commas of its own */
    assert_int_equal(weft_mesh_apply_alias("layout=Et,t|t,L,tp=4,pp=2", &arena, &o, &all), WEFT_OK);
    assert_string_equal(o.pipeline_model_parallel_layout, "Et,t|t,L");
    assert_int_equal(o.pipeline_model_parallel_size, 2);

    /* a larger tp keeps the file's sequence_parallel */
    assert_int_equal(weft_mesh_apply_alias("tp=2", &arena, &o, NULL), WEFT_OK);
    assert_true(o.sequence_parallel);
    weft_arena_release(&arena);
}

CASE(test_alias_refusals)
{
    static const struct {
        const char *alias, *text;
    } rows[] = {
        {"tp=0", "tensor_model_parallel_size is a whole number from 1 to"},
        {"tp=two", "--mesh tp=two: tensor_model_parallel_size is a whole number"},
        {"tp=2x", "--mesh tp=2x:"},
        {"tp= 2", "--mesh tp= 2:"},
        {"tp=-1", "--mesh tp=-1:"},
        {"tp=99999999999999999999", "--mesh tp=99999999999999999999:"},
        {"tp", "--mesh 'tp': not name=value"},
        {"tp=", "--mesh 'tp=': not name=value"},
        {"", "--mesh '': not name=value"},
        {"tp=2,,pp=2", "--mesh '': not name=value"},
        {"tp=2,tp=2", "--mesh tp: given twice"},
        {"bindin=tp", "--mesh bindin: unknown name; did you mean binding?"},
        {"sp=yes", "--mesh sp=yes: sequence_parallel is true, false, 1 or 0"},
        {"binding=pp", "--mesh binding=pp: expert_binding is one of tp|dp"},
        {"schedule=1f", "--mesh schedule=1f: pipeline_schedule is one of 1f1b|gpipe"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        weft_arena arena = {0};
        weft_option_section all = schedule_rows();
        weft_parallel_options o = plain(), before = o;
        assert_int_equal(weft_mesh_apply_alias(rows[i].alias, &arena, &o, &all), WEFT_CONFIG);
        weft_arena_release(&arena);
        if (!strstr(weft_error_get()->text, rows[i].text))
            fail_msg("\"%s\" lacks \"%s\"", weft_error_get()->text, rows[i].text);
        assert_memory_equal(&o, &before, sizeof o);
    }
}

int main(void)
{
    return run_cases(NULL, NULL);
}
