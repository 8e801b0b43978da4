/* Whatever a rank of a mesh enqueues in two steps, no two lanes touch the same bytes unordered. */
#include <stdlib.h>
#include <string.h>

#include "tests/expect.h"
#include "tests/layers/note_model.h"

enum { MICRO_BATCHES = 4, STEPS = 2 };

#define SIZES                                                                                      \
    "\"num_layers\": 4, \"hidden_size\": 16, \"num_attention_heads\": 4, \"seq_length\": 16, "     \
    "\"vocab_size\": 32, \"ffn_hidden_size\": 32, "
#define DENSE SIZES "\"swiglu\": true, \"position_embedding_type\": \"rope\""
#define MOE                                                                                        \
    SIZES "\"num_experts\": 8, \"moe_router_topk\": 2, \"moe_ffn_hidden_size\": 16, "              \
          "\"moe_aux_loss_coeff\": 0.01, \"moe_shared_expert_intermediate_size\": 16"

static size_t num_cases, num_notes, num_touched;

static void run(const note_case *c, void (*then)(const note_case *c, note_model *m))
{
    note_model m;
    weft_race race = {0};
    weft_status status = note_model_create(&m, c);
    for (int s = 0; s < STEPS && status == WEFT_OK; s++)
        status = note_model_step(&m, MICRO_BATCHES);
    EXPECT(status == WEFT_OK, "%s: %s", c->name, weft_error_get()->text);
    if (status == WEFT_OK) {
        size_t count;
        const weft_noted *notes = weft_notes(m.device, &count);
        EXPECT_OK(weft_race_find(notes, count, weft_noted_ranges(m.device), &race));
        EXPECT(!race.notes[0], "%s on %s: %s", c->name, c->mesh, weft_race_text(&race).text);
        num_cases++;
        num_notes += count;
        for (size_t i = 0; i < count; i++)
            num_touched += notes[i].num_ranges > 0;
        if (then)
            then(c, &m);
    }
    weft_error_clear();
    note_model_release(&m);
}

/* --- MoE layers ------------------------------------------------------------------------------- */

static void run_moe(void (*then)(const note_case *c, note_model *m))
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
                        run(&c, then);
                    }
}

/* The forms of the all-to-all between tensor-sharded experts are programs on two more lanes. */
static void run_forms(void (*then)(const note_case *c, note_model *m))
{
    for (int form = 0; form <= WEFT_EXCHANGE_DIRECT; form++)
        for (int chunks = 1; chunks <= (form > WEFT_EXCHANGE_O1 ? 3 : 1); chunks++)
            for (int n = 1; n <= 3; n += 2) {
                const note_case c = {.name = "a form of the exchange",
                                     .model = MOE,
                                     .mesh = "tp=2,ep=2,etp=2",
                                     .world = 4,
                                     .rank = 1,
                                     .moe = {.pipeline = {.num_partitions = n},
                                             .form = (weft_exchange_form)form,
                                             .num_chunks = chunks}};
                run(&c, then);
            }
}

/* --- attention -------------------------------------------------------------------------------- */

static void run_attention(void (*then)(const note_case *c, note_model *m))
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
                    run(&c, then);
                }
}

/* --- a chunk's passes ------------------------------------------------------------------------- */

static void run_passes(void (*then)(const note_case *c, note_model *m))
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
                        run(&c, then);
                    }
}

/* --- experts beyond the device ---------------------------------------------------------------- */

static void run_tier(void (*then)(const note_case *c, note_model *m))
{
    static const char *const meshes[] = {"ep=1", "ep=2", "ep=2,dp=4"};
    static const int worlds[] = {1, 2, 4};
    for (size_t mesh = 0; mesh < sizeof meshes / sizeof *meshes; mesh++)
        for (int slots = 2; slots <= 3; slots++)
            for (int kept = 0; kept < 3; kept++)
                for (int order = 0; order < WEFT_NUM_EXPERT_ORDERS; order++)
                    for (int n = 1; n <= 3; n += 2) {
                        note_case c = {.name = "experts on the host",
                                       .model = MOE,
                                       .mesh = meshes[mesh],
                                       .world = worlds[mesh],
                                       .tier = {.experts = WEFT_TIER_HOST,
                                                .slots = slots,
                                                .kept = kept / 2.0,
                                                .order = order,
                                                .replicas = 1}};
                        c.moe.pipeline =
                            (weft_moe_pipeline){.num_partitions = n, .by_experts = n > 1};
                        run(&c, then);
                    }
}

int main(void)
{
    run_moe(NULL);
    run_forms(NULL);
    run_attention(NULL);
    run_passes(NULL);
    run_tier(NULL);
    fprintf(stderr, "%zu cases, %zu notes, %zu operations\n", num_cases, num_notes, num_touched);
    return expect_finish();
}
