/* Whatever a rank of a mesh enqueues in two steps, no two lanes touch the same bytes unordered,
 * even without the waits of the host for counts of rows.
 *
 * Then waits and records are dropped at random, one at a time. Each is named, or it is redundant:
 * the proof holds without it. Whoever drops a wait of an MoE layer's or an attention layer's
 * program, which schedule/'s checkers call necessary, is named. A chunk's passes wait for rings'
 * events beside their programs' waits: there two waits of a task may order the same, and the task
 * is named without both, unless its lane has waited for them before. Of experts beyond the device
 * and whole steps: tests/launcher/races_steps.c. */
#include <stdlib.h>
#include <string.h>

#include "layers/context/context.h"
#include "layers/tensor/tensor.h"
#include "tests/expect.h"
#include "tests/layers/note_model.h"

enum { MICRO_BATCHES = 3, STEPS = 2, DROPS = 2 };

#define SIZES                                                                                      \
    "\"num_layers\": 4, \"hidden_size\": 16, \"num_attention_heads\": 4, \"seq_length\": 16, "     \
    "\"vocab_size\": 32, \"ffn_hidden_size\": 32, "
#define DENSE SIZES "\"swiglu\": true, \"position_embedding_type\": \"rope\""
#define MOE                                                                                        \
    SIZES "\"num_experts\": 8, \"moe_router_topk\": 2, \"moe_ffn_hidden_size\": 16, "              \
          "\"moe_aux_loss_coeff\": 0.01, \"moe_shared_expert_intermediate_size\": 16"

static struct {
    size_t cases, notes, operations; /* ordered */
    size_t drops, named, redundant;
    size_t of_layers;                           /* waits of programs, all named */
    size_t chunks;                              /* tasks in bodies */
    size_t of_passes, alone, together, implied; /* waits of programs beside rings */
} sum;

/* --- waits that are missed -------------------------------------------------------------------- */

static size_t last_step; /* where its notes begin */
static uint64_t state = 1;
static size_t draw(size_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(state >> 33) % below;
}

/* Without the notes [first, end) of the lane, and without the host's waits. */
static bool races_without(const note_model *m, size_t first, size_t end, const weft_lane *lane)
{
    size_t count, kept = 0;
    const weft_noted *notes = weft_notes(m->device, &count);
    weft_noted *rest = malloc(count * sizeof *rest);
    weft_race race = {0};
    for (size_t i = 0; i < count; i++)
        if (notes[i].kind < WEFT_NOTED_HOST_WAIT &&
            (i < first || i >= end || notes[i].lane != lane))
            rest[kept++] = notes[i];
    EXPECT_OK(weft_race_find(rest, kept, weft_noted_ranges(m->device), &race));
    free(rest);
    return race.notes[0] != NULL;
}

static bool is_of(const weft_executor *executor, const weft_event *event)
{
    for (uint32_t i = 0; executor && i < executor->num_done; i++)
        if (executor->done[i] == event)
            return true;
    return false;
}

/* The waits of the lane around this one. */
static void waits_around(const weft_noted *notes, size_t count, size_t at, size_t *first,
                         size_t *end)
{
    *first = at;
    *end = at + 1;
    for (size_t i = at; i-- > 0;)
        if (notes[i].lane == notes[at].lane && notes[i].kind != WEFT_NOTED_WAIT)
            break;
        else if (notes[i].lane == notes[at].lane)
            *first = i;
    for (size_t i = at + 1; i < count; i++)
        if (notes[i].lane == notes[at].lane && notes[i].kind != WEFT_NOTED_WAIT)
            break;
        else if (notes[i].lane == notes[at].lane)
            *end = i + 1;
}

/* Whether the lane touches memory before it records an event. */
static bool does_something(const weft_noted *notes, size_t count, size_t from,
                           const weft_lane *lane)
{
    for (size_t i = from; i < count; i++)
        if (notes[i].lane == lane && notes[i].num_ranges > 0)
            return true;
        else if (notes[i].lane == lane && notes[i].kind == WEFT_NOTED_RECORD)
            return false;
    return false;
}

/* The lane that the wait is for; NULL: its own. */
static const weft_lane *waited_for(const weft_noted *notes, size_t at)
{
    for (size_t i = at; i-- > 0;)
        if (notes[i].kind == WEFT_NOTED_RECORD && notes[i].event == notes[at].event)
            return notes[i].lane != notes[at].lane ? notes[i].lane : NULL;
    return NULL;
}

/* Whether the tasks of programs inside layers alone run on the lane. */
static bool is_inside(const weft_model *model, const weft_lane *lane)
{
    weft_lane *lanes[WEFT_NUM_LANES] = {NULL};
    if (model->moe)
        memcpy(lanes, model->moe->lanes, sizeof lanes);
    if (model->context)
        weft_context_runtime_lanes(model->context, lanes);
    if (model->tensor)
        lanes[WEFT_LANE_TENSOR] = weft_tensor_runtime_lane(model->tensor);
    for (int i = 0; i < WEFT_NUM_LANES; i++)
        if (lanes[i] == lane)
            return true;
    return false;
}

/* The first step's are left out: slots are empty then. */
static void drop_of_pass(const note_model *m, const weft_noted *notes, size_t count, size_t at,
                         bool is_named)
{
    size_t first, end;
    const weft_lane *lane = notes[at].lane;
    sum.of_passes++;
    sum.alone += is_named;
    if (is_named)
        return;
    waits_around(notes, count, at, &first, &end);
    if (does_something(notes, count, end, lane) && !races_without(m, first, end, lane))
        sum.implied++;
    else
        sum.together++;
}

static void drop(const note_case *c, const note_model *m, size_t at)
{
    const weft_model *model = m->model;
    size_t count;
    const weft_noted *notes = weft_notes(m->device, &count);
    const weft_noted *note = &notes[at];
    const weft_lane *other = note->kind == WEFT_NOTED_WAIT ? waited_for(notes, at) : NULL;
    const bool is_of_body = other && is_of(&model->run.executors[0], note->event);
    const bool is_named = races_without(m, at, at + 1, note->lane);
    sum.drops++;
    sum.named += is_named;
    sum.redundant += !is_named;
    if (is_of_body && (is_inside(model, note->lane) || is_inside(model, other))) {
        sum.of_layers++;
        EXPECT(is_named || !does_something(notes, count, at + 1, note->lane),
               "%s on %s: nobody misses wait %zu on lane %s", c->name, c->mesh, at,
               weft_lane_name(note->lane));
    } else if (other && at >= last_step && is_of_body) {
        drop_of_pass(m, notes, count, at, is_named);
    }
}

static void drop_some(const note_case *c, const note_model *m)
{
    size_t count, num = 0;
    const weft_noted *notes = weft_notes(m->device, &count);
    for (size_t i = 0; i < count; i++)
        num += notes[i].kind == WEFT_NOTED_WAIT || notes[i].kind == WEFT_NOTED_RECORD;
    for (int k = 0; k < DROPS && num > 0; k++) {
        size_t at = 0, which = draw(num);
        while ((notes[at].kind != WEFT_NOTED_WAIT && notes[at].kind != WEFT_NOTED_RECORD) ||
               which-- > 0)
            at++;
        drop(c, m, at);
    }
}

/* --- a case ----------------------------------------------------------------------------------- */

/* A function of the host has its ranges ahead of it. */
static void check_functions(const note_case *c, const weft_noted *notes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        EXPECT(notes[i].kind != WEFT_NOTED_HOST ||
                   (i > 0 && notes[i - 1].kind == WEFT_NOTED_TOUCH &&
                    strcmp(notes[i - 1].label, notes[i].label) == 0),
               "%s: nobody knows what %s touches", c->name, notes[i].label);
}

static void run(const note_case *c)
{
    note_model m;
    weft_race race = {0};
    weft_status status = note_model_create(&m, c);
    for (int s = 0; s < STEPS && status == WEFT_OK; s++) {
        weft_notes(m.device, &last_step);
        status = note_model_step(&m, MICRO_BATCHES);
    }
    EXPECT(status == WEFT_OK, "%s: %s", c->name, weft_error_get()->text);
    if (status == WEFT_OK) {
        size_t count;
        const weft_noted *notes = weft_notes(m.device, &count);
        EXPECT_OK(weft_race_find(notes, count, weft_noted_ranges(m.device), &race));
        EXPECT(!race.notes[0], "%s on %s: %s", c->name, c->mesh, weft_race_text(&race).text);
        EXPECT(!races_without(&m, 0, 0, NULL), "%s on %s: the host's waits order lanes", c->name,
               c->mesh);
        sum.cases++;
        sum.notes += count;
        for (size_t i = 0; i < count; i++)
            sum.operations += notes[i].num_ranges > 0;
        check_functions(c, notes, count);
        if (!c->pairs) /* there a wait of one strand may order the other */
            drop_some(c, &m);
    }
    weft_error_clear();
    note_model_release(&m);
}

/* --- MoE layers ------------------------------------------------------------------------------- */

static void run_moe(void)
{
    static const char *const meshes[] = {"ep=4", "tp=2,ep=2", "tp=2,sp=1,ep=2,etp=2",
                                         "tp=2,ep=2,etp=1"};
    char name[96];
    for (size_t mesh = 0; mesh < sizeof meshes / sizeof *meshes; mesh++)
        for (int cut = 0; cut < 3; cut++) /* by tokens, peers, experts */
            for (int n = 1; n <= 5; n++)
                for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
                    for (int again = 0; again < 2; again++) {
                        note_case c = {.name = name,
                                       .model = MOE,
                                       .mesh = meshes[mesh],
                                       .world = 4,
                                       .rank = (n + reuse) % 4};
                        const int ep = mesh == 0 ? 4 : 2;
                        c.moe.pipeline = (weft_moe_pipeline){.num_partitions = n,
                                                             .reuse = (weft_reuse)reuse,
                                                             .by_experts = cut == 2};
                        if (cut == 1 && (reuse > 0 || n > ep || ep % n != 0))
                            continue;
                        if (cut == 1)
                            c.moe.pipeline = weft_moe_by_peers(ep, ep / n);
                        if (cut == 2 && n > 8 / ep)
                            continue;
                        if (again) {
                            c.recompute.granularity = WEFT_RECOMPUTE_SELECTIVE;
                            c.modules = "moe";
                        }
                        snprintf(name, sizeof name, "%s%s",
                                 weft_moe_pipeline_text(&c.moe.pipeline).text,
                                 again ? ", again" : "");
                        run(&c);
                    }
}

static void run_pairs(void)
{
    static const char *const meshes[] = {
        "ep=4",      "tp=2,ep=2,etp=1",  "tp=2,sp=1,ep=4,etp=1", "cp=2,ep=2",
        "pp=2,ep=2", "dp=4,ep=2,zero=2", "dp=4,ep=4,zero=3",     "pp=2,dp=2,ep=2,zero=3"};
    static const char *const modules[] = {NULL, NULL, "moe", "mlp", "core_attn"};
    for (size_t mesh = 0; mesh < sizeof meshes / sizeof *meshes; mesh++)
        for (size_t again = 0; again < sizeof modules / sizeof *modules; again++)
            for (int rank = 0; rank < 4; rank++) {
                note_case c = {.name = "pairs",
                               .model = MOE,
                               .mesh = meshes[mesh],
                               .world = 4,
                               .rank = rank,
                               .modules = modules[again],
                               .pairs = true};
                if (again > 0)
                    c.recompute = (weft_recompute_options){
                        .granularity = again == 1 ? WEFT_RECOMPUTE_FULL : WEFT_RECOMPUTE_SELECTIVE,
                        .num_layers = 1};
                run(&c);
                c.halves = true;
                run(&c);
            }
}

static void run_pairs_of_parts(void)
{
    char name[96];
    for (int cut = 0; cut < 3; cut++) /* by tokens, peers, experts */
        for (int n = 1; n <= 3; n++)
            for (int reuse = 0; reuse < WEFT_NUM_REUSES; reuse++)
                for (int halves = 0; halves < 2; halves++) {
                    note_case c = {.name = name,
                                   .model = MOE,
                                   .mesh = cut == 1 ? "ep=4" : "dp=4,ep=2",
                                   .world = 4,
                                   .rank = (n + reuse) % 4,
                                   .halves = halves,
                                   .pairs = true};
                    c.moe.pipeline = (weft_moe_pipeline){
                        .num_partitions = n, .reuse = (weft_reuse)reuse, .by_experts = cut == 2};
                    if (cut == 1 && (reuse > 0 || n == 3))
                        continue;
                    if (cut == 1)
                        c.moe.pipeline = weft_moe_by_peers(4, 4 / n);
                    snprintf(name, sizeof name, "pairs, %s%s",
                             weft_moe_pipeline_text(&c.moe.pipeline).text,
                             halves ? ", halves" : "");
                    run(&c);
                }
}

/* The forms of the all-to-all between tensor-sharded experts are programs on two more lanes. */
static void run_forms(void)
{
    for (int form = 0; form <= WEFT_EXCHANGE_DIRECT; form++)
        for (int chunks = 1; chunks <= (form > WEFT_EXCHANGE_O1 ? 3 : 1); chunks++)
            for (int n = 1; n <= 3; n += 2) {
                note_case c = {.name = "a form of the exchange",
                               .model = MOE,
                               .mesh = n == 1 ? "tp=2,ep=2,etp=2" : "tp=2,sp=1,ep=2,etp=2",
                               .world = 4,
                               .rank = 1,
                               .moe = {.pipeline = {.num_partitions = n},
                                       .form = (weft_exchange_form)form,
                                       .num_chunks = chunks}};
                run(&c);
                c.name = "a form of the exchange, in pairs";
                c.pairs = true;
                run(&c);
                c.halves = true;
                run(&c);
            }
}

/* --- attention -------------------------------------------------------------------------------- */

static void run_attention(void)
{
    static const struct {
        const char *form;
        int cp;
    } forms[] = {{"p2p", 2}, {"p2p", 4}, {"all_gather", 4}, {"a2a", 2}, {"a2a", 4}, {"a2a+p2p", 4}};
    char parallel[160];
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int dtype = WEFT_F32; dtype <= WEFT_BF16; dtype++)
            for (int again = 0; again < 2; again++)
                for (int rank = 0; rank < forms[f].cp; rank += forms[f].cp - 1) {
                    const bool inner = strcmp(forms[f].form, "a2a+p2p") == 0;
                    snprintf(parallel, sizeof parallel, "\"cp_comm_type\": \"%s\"%s", forms[f].form,
                             inner ? ", \"hierarchical_context_parallel_sizes\": [2, 2]" : "");
                    note_case c = {.name = parallel,
                                   .model = DENSE,
                                   .mesh = forms[f].cp == 2 ? "cp=2" : "cp=4",
                                   .parallel = parallel,
                                   .world = forms[f].cp,
                                   .rank = rank,
                                   .dtype = (weft_dtype)dtype};
                    if (again) {
                        c.recompute.granularity = WEFT_RECOMPUTE_SELECTIVE;
                        c.modules = "core_attn";
                    }
                    run(&c);
                }
}

/* --- tensor-parallel products in chunks ---------------------------------------------------------
 */

#define CHUNKS "\"tp_comm_overlap\": true, \"tp_comm_overlap_chunks\": "

/* In a body the chunks are tasks on lanes of their own, behind a part of their own layer. */
static void check_body(const note_case *c, const weft_program *body)
{
    size_t num_chunks = 0;
    int layer = -1;
    for (uint32_t i = 0; i < body->num_tasks; i++) {
        const weft_task *task = &body->tasks[i];
        const bool travels = task->flow == WEFT_FLOW_TENSOR,
                   is_chunk = travels || task->kind == WEFT_TASK_PRODUCT;
        if (task->kind == WEFT_TASK_LAYER || task->kind == WEFT_TASK_RECOMPUTE)
            layer = task->layer;
        EXPECT(!is_chunk || (task->layer == layer &&
                             task->lane == (travels ? WEFT_LANE_TENSOR : WEFT_LANE_COMPUTE)),
               "%s on %s: task %u of layer %d on lane %s", c->name, c->mesh, i, task->layer,
               weft_lane_kind_text(task->lane));
        num_chunks += is_chunk;
    }
    sum.chunks += num_chunks;
}

static void check_bodies(const note_case *c)
{
    note_model m;
    EXPECT_OK(note_model_create(&m, c));
    const weft_bodies *b = m.model->run.bodies;
    for (int kind = 0; kind < WEFT_NUM_WHOLE_PASS_KINDS; kind++)
        check_body(c, &b->programs[kind]);
    if (b->leaving)
        check_body(c, b->leaving);
    note_model_release(&m);
}

/* Beside each strand's own, chunks of the other's. */
static void run_pairs_of_chunks(void)
{
    static const char *const meshes[] = {"tp=2,ep=2,etp=1", "tp=2,sp=1,ep=4,etp=1",
                                         "tp=2,sp=1,ep=2,etp=2"};
    for (size_t mesh = 0; mesh < sizeof meshes / sizeof *meshes; mesh++)
        for (int halves = 0; halves < 2; halves++)
            for (int rank = 0; rank < 4; rank++) {
                const note_case c = {.name = "pairs of chunks",
                                     .model = MOE,
                                     .mesh = meshes[mesh],
                                     .parallel = CHUNKS "2",
                                     .world = 4,
                                     .rank = rank,
                                     .halves = halves,
                                     .pairs = true};
                run(&c);
                check_bodies(&c);
            }
}

static void run_tensor(void)
{
    static const struct {
        const char *mesh, *modules;
        int world;
    } of[] = {{"tp=2", NULL, 2},
              {"tp=2,sp=1", NULL, 2},
              {"tp=4,sp=1", "mlp", 4},
              {"tp=2,sp=1,cp=2", "core_attn", 4},
              {"tp=2,sp=1,dp=2,zero=3", NULL, 4}};
    char parallel[96];
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (int chunks = 2; chunks <= 4; chunks *= 2)
            for (int gelu = 0; gelu < 2; gelu++)
                for (int again = 0; again < 2; again++) {
                    snprintf(parallel, sizeof parallel, CHUNKS "%d", chunks);
                    note_case c = {.name = parallel,
                                   .model = gelu ? SIZES "\"num_query_groups\": 4" : DENSE,
                                   .mesh = of[i].mesh,
                                   .parallel = parallel,
                                   .world = of[i].world,
                                   .rank = chunks % of[i].world,
                                   .dtype = gelu ? WEFT_F32 : WEFT_BF16};
                    if (again && of[i].modules) {
                        c.recompute.granularity = WEFT_RECOMPUTE_SELECTIVE;
                        c.modules = of[i].modules;
                    }
                    run(&c);
                    check_bodies(&c);
                    c.halves = true;
                    run(&c);
                }
}

/* --- a chunk's passes ------------------------------------------------------------------------- */

static void run_passes(void)
{
    static const char *const meshes[] = {"dp=4", "dp=2,tp=2,sp=1", "dp=2,pp=2", "dp=2,cp=2"};
    static const char *const modules[] = {NULL, "block", "core_attn", "mlp"};
    char parallel[96];
    for (size_t mesh = 0; mesh < sizeof meshes / sizeof *meshes; mesh++)
        for (int zero = 0; zero < 4; zero++)
            for (int again = 0; again < 3; again++)
                for (size_t offload = 0; offload < sizeof modules / sizeof *modules; offload++)
                    for (int moe = 0; moe < 2; moe++) {
                        static const char *const sharding[] = {"no_shard", "optim", "optim_grads",
                                                               "optim_grads_params"};
                        snprintf(parallel, sizeof parallel,
                                 "\"data_parallel_sharding_strategy\": \"%s\"", sharding[zero]);
                        note_case c = {.name = parallel,
                                       .model = moe ? MOE : DENSE,
                                       .mesh = meshes[mesh],
                                       .parallel = parallel,
                                       .world = 4,
                                       .rank = (int)(zero + offload) % 4,
                                       .dtype = WEFT_BF16};
                        if (again > 0 && offload > 0)
                            continue;
                        if (again > 0)
                            c.recompute = (weft_recompute_options){
                                .granularity = WEFT_RECOMPUTE_FULL,
                                .method =
                                    again == 1 ? WEFT_RECOMPUTE_UNIFORM : WEFT_RECOMPUTE_BLOCK,
                                .num_layers = 1};
                        c.offloads = offload > 0;
                        c.modules = modules[offload];
                        run(&c);
                        c.halves = true;
                        run(&c);
                    }
}

int main(void)
{
    run_moe();
    run_pairs();
    run_pairs_of_parts();
    run_forms();
    run_attention();
    run_tensor();
    run_pairs_of_chunks();
    run_passes();
    printf("%zu cases of %zu notes, %zu operations: all ordered\n", sum.cases, sum.notes,
           sum.operations);
    printf("%zu waits and records dropped: %zu named, %zu redundant\n", sum.drops, sum.named,
           sum.redundant);
    printf(
        "of them %zu of layers' programs, and %zu of passes: %zu named alone, %zu with the rings' "
        "or before nothing, %zu implied\n",
        sum.of_layers, sum.of_passes, sum.alone, sum.together, sum.implied);
    EXPECT(sum.chunks >= 1000, "only %zu chunks are tasks of bodies", sum.chunks);
    EXPECT(sum.drops >= 1000 && sum.named >= 300 && sum.of_layers >= 100 &&
               4 * sum.implied <= sum.of_passes,
           "another kind of drops");
    return expect_finish();
}
