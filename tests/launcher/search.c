/* weft plan --search: its best plans are those that pricing every candidate finds, on small
 * problems drawn at random, and no bound is above what it bounds; what is emitted is the plan that
 * was found, and trains; what does not fit says by how many bytes; who has too many devices is
 * told. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "launcher/process/stop.h"
#include "launcher/searching/bound.h"
#include "launcher/searching/search.h"
#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"
#include "tests/launcher/problems.h"

/* --- every candidate ----------------------------------------------------------------------- */

enum { TOP = 3, LEAST_TOKENS = 16, MOST_CANDIDATES = 250 };

typedef struct priced {
    weft_candidate candidate;
    size_t index;
    double us;
    uint64_t bytes;
} priced;

typedef struct brute {
    const weft_search_space *space;
    weft_bounds *bounds;
    priced best[TOP];
    int num_best, num_plans, num_missed;
    uint64_t least_short; /* bytes */
} brute;

/* What the problems were about. */
static size_t tightened, ties, found_with_zero[4];
static size_t away_plans, away_priced; /* with experts beyond device memory */

static void keep(brute *b, const weft_candidate *c, size_t index, double us, uint64_t bytes)
{
    /* In the list's order: the first of those that tie stays. */
    for (int i = 0; i < b->num_best; i++)
        if (fabs(b->best[i].us - us) <= 1e-9 * us && b->best[i].bytes == bytes &&
            weft_candidate_differs_by_order(&b->best[i].candidate, c)) {
            ties++;
            return;
        }
    const bool full = b->num_best == TOP;
    int at = full ? TOP - 1 : b->num_best++;
    if (full && b->best[at].us <= us)
        return;
    for (; at > 0 && us < b->best[at - 1].us; at--)
        b->best[at] = b->best[at - 1];
    b->best[at] = (priced){*c, index, us, bytes};
}

static void check_bound(const brute *b, const weft_candidate *c, const weft_plan *plan,
                        const char *text)
{
    weft_bound bound;
    if (weft_bound_of(b->bounds, c, &bound) != WEFT_OK) {
        EXPECT(false, "%s: bound: %s", text, weft_error_get()->text);
        return;
    }
    EXPECT(bound.step_us * (1 - 1e-9) <= plan->step_us, "%s: form %d: a bound of %.9g us for %.9g",
           text, c->form, bound.step_us, plan->step_us);
    EXPECT(bound.fits || !plan->fits, "%s: form %d fits, whatever its bound says", text, c->form);
    if (!weft_bound_is_loose(b->bounds, c))
        return;
    const double loose_us = bound.step_us;
    if (weft_bound_tighten(b->bounds, c, &bound) != WEFT_OK) {
        EXPECT(false, "%s: tight bound: %s", text, weft_error_get()->text);
        return;
    }
    EXPECT(bound.step_us * (1 - 1e-9) <= plan->step_us,
           "%s: zero %d, form %d: a tight bound of %.9g us for %.9g", text, c->zero, c->form,
           bound.step_us, plan->step_us);
    EXPECT(bound.fits || !plan->fits, "%s: form %d fits, whatever its tight bound says", text,
           c->form);
    tightened += bound.step_us > loose_us * (1 + 1e-9);
}

static void try_all(brute *b, const weft_candidate *c, size_t index, const char *text)
{
    weft_arena arena = {0};
    weft_config config;
    weft_plan plan;
    int forms[WEFT_MAX_FORMS];
    weft_space_apply(b->space, c, &config);
    const weft_status status =
        weft_plan_make(&config, b->space->source, b->space->cluster, NULL, &arena, &plan);
    bool more = status == WEFT_CONFIG && c->form > 0;
    EXPECT(status == WEFT_OK || status == WEFT_CONFIG, "%s", weft_error_get()->text);
    if (status == WEFT_OK) {
        const bool repeats = weft_candidate_repeats(c, &plan.step.outline.layout);
        check_bound(b, c, &plan, text);
        more = !repeats && !plan.fits;
        if (!repeats && plan.fits) {
            keep(b, c, index, plan.step_us, plan.memory_bytes);
            b->num_plans++;
        }
        b->num_missed += more;
        if (more && plan.memory_bytes > plan.memory_limit_bytes &&
            plan.memory_bytes - plan.memory_limit_bytes < b->least_short)
            b->least_short = plan.memory_bytes - plan.memory_limit_bytes;
        weft_plan_release(&plan);
    }
    weft_arena_release(&arena);
    weft_error_clear();
    const int num = more ? weft_space_next_forms(b->space, c, forms) : 0;
    for (int i = 0; i < num; i++) {
        weft_candidate next = *c;
        next.form = forms[i];
        try_all(b, &next, index, text);
    }
}

/* Exact bytes: the plan of what was left out says the same. */
static void check_misses(const loaded *l, const weft_search_result *result)
{
    for (int i = 0; i < result->num_misses; i++) {
        const weft_missed *m = &result->misses[i];
        weft_arena arena = {0};
        weft_plan plan;
        EXPECT_OK(weft_plan_make(&m->config, &l->source, result->cluster, NULL, &arena, &plan));
        EXPECT(!plan.fits &&
                   (m->of_host ? plan.host_memory_bytes : plan.memory_bytes) == m->memory_bytes,
               "%s: planned bytes", m->mesh);
        EXPECT(m->memory_bytes - m->memory_limit_bytes == m->short_by_bytes, "%s: short by",
               m->mesh);
        EXPECT(i == 0 || m->short_by_bytes >= m[-1].short_by_bytes, "%s: its place", m->mesh);
        EXPECT(m->remedy && *m->remedy, "%s: nothing would make it fit", m->mesh);
        weft_plan_release(&plan);
        weft_arena_release(&arena);
    }
}

static void compare(const loaded *l, const weft_search_space *space,
                    const weft_candidate_list *list, const char *text)
{
    brute b = {.space = space, .least_short = UINT64_MAX};
    weft_arena arena = {0};
    weft_search_result found = {0};
    const weft_search_options options = {
        .top = TOP, .least_tokens = LEAST_TOKENS, .all_devices = true};
    EXPECT_OK(weft_bounds_create(space, &b.bounds));
    for (size_t i = 0; i < list->count; i++)
        try_all(&b, &list->values[i], i, text);
    const weft_status status =
        weft_search_run(&l->config, &l->source, l->cluster, &options, &arena, &found);
    if (status != WEFT_OK) {
        EXPECT(status == WEFT_CONFIG && b.num_plans + b.num_missed == 0, "%s: %s", text,
               weft_error_get()->text);
        weft_error_clear();
    } else {
        const weft_search_counts *c = &found.counts;
        EXPECT(found.num_plans == b.num_best, "%s: %d plans, not %d", text, found.num_plans,
               b.num_best);
        for (int i = 0; i < found.num_plans && i < b.num_best; i++)
            EXPECT(found.plans[i].step_us == b.best[i].us &&
                       found.plans[i].candidate.form == b.best[i].candidate.form,
                   "%s: plan %d: %.9g us of form %d, not %.9g of %d (%s)", text, i,
                   found.plans[i].step_us, found.plans[i].candidate.form, b.best[i].us,
                   b.best[i].candidate.form, found.plans[i].mesh);
        EXPECT(c->considered == c->illegal + c->memory + c->bound + c->priced + c->repeated,
               "%s: counts", text);
        for (int i = 0; i < found.num_plans; i++)
            found_with_zero[found.plans[i].candidate.zero]++;
        EXPECT(c->priced <= (size_t)b.num_plans, "%s: more priced than there are", text);
        const int experts = space->config.tier.experts;
        if (experts == WEFT_TIER_HOST || experts == WEFT_TIER_FILE) {
            away_plans += (size_t)b.num_plans;
            away_priced += c->priced;
        }
        EXPECT(b.num_missed == 0 || b.num_best > 0 || found.num_misses > 0, "%s: misses", text);
        check_misses(l, &found);
    }
    weft_bounds_destroy(b.bounds);
    weft_arena_release(&arena);
}

/* How many candidates it has; 0: too many to try them all. */
static size_t check_problem(const problem *p, const char *text)
{
    loaded l;
    weft_candidate_list list;
    size_t count = 0;
    if (!problem_load(p, &l))
        return 0;
    const weft_search_space space =
        weft_space_of(&l.config, &l.source, l.cluster, l.cluster->num_nodes, LEAST_TOKENS);
    EXPECT_OK(weft_space_list(&space, &list));
    if (list.count > 0 && list.count <= MOST_CANDIDATES) {
        compare(&l, &space, &list, text);
        count = list.count;
    }
    weft_candidate_list_release(&list);
    weft_arena_release(&l.arena);
    return count;
}

/* Where auto sends experts to host memory nothing of them is gathered under ZeRO-3, which a bound
 * may not count. */
static void check_auto(void)
{
    static const problem p = {
        .config = "{\"model\": {\"num_layers\": 1, \"hidden_size\": 256, "
                  "\"num_attention_heads\": 4, \"seq_length\": 256, \"vocab_size\": 1024, "
                  "\"num_experts\": 4, \"moe_layer_freq\": 2, \"swiglu\": true}, "
                  "\"train\": {\"global_batch_size\": 8, \"train_iters\": 1, "
                  "\"precision\": \"bf16\"}, \"parallel\": {\"ddp_bucket_size\": 524288}, "
                  "\"data\": {\"mock_data\": true}, \"device\": {\"kind\": \"cuda\"}}",
        .cluster = "{\"num_nodes\": 1, \"ranks_per_node\": 4, \"device\": {\"memory_bytes\": 3e8, "
                   "\"reserved_bytes\": 2.6e8, \"memory_bandwidth\": 2e12, \"launch_us\": 5, "
                   "\"multiprocessors\": 108, \"peak\": {\"fp32\": 2e13, \"bf16\": 3e14, "
                   "\"fp16\": 3e14}}, \"inside\": {\"bandwidth\": 1e10, \"latency_us\": 2}, "
                   "\"between\": {\"cards\": 1, \"bandwidth\": 1e10, \"latency_us\": 5}, "
                   "\"host\": {\"memory_bytes\": 1e11, \"memory_bandwidth\": 1e11, "
                   "\"link_bandwidth\": 2e10}}",
        .set = {"parallel.sequence_parallel=false",
                "parallel.data_parallel_sharding_strategy=optim_grads_params",
                "parallel.tensor_model_parallel_size=1", "parallel.pipeline_schedule=1f1b",
                "parallel.num_virtual_stages_per_pipeline_rank=1", "offload.experts=auto",
                "offload.kept=0.5"},
        .num_set = 7};
    EXPECT(check_problem(&p, "experts auto") > 0, "not tried");
}

/* What a bound may not count: of two experts on a rank the second one gets no rows, so that no pass
 * waits for its update; one alone may lie in its slot from pass to pass; what the host adds up, and
 * steps, may go on behind the last pass. */
static void check_away(void)
{
    static const struct {
        const char *set[3], *host;
        int vocab_size;
    } rows[] = {
        {{"offload.kept=-1", "offload.optimizer=auto", "parallel.expert_model_parallel_size=2"},
         "\"memory_bandwidth\": 1e11, \"link_bandwidth\": 2e10",
         8192},
        {{"offload.kept=0", "offload.optimizer=auto", "parallel.expert_model_parallel_size=2"},
         "\"memory_bandwidth\": 3e9, \"link_bandwidth\": 2e10",
         65536},
        {{"offload.kept=0", "offload.optimizer=auto", "parallel.expert_model_parallel_size=4"},
         "\"memory_bandwidth\": 1e12, \"link_bandwidth\": 2e9",
         65536},
        {{"offload.kept=0", "offload.optimizer=after", "parallel.expert_model_parallel_size=1"},
         "\"memory_bandwidth\": 1e10, \"link_bandwidth\": 5e9",
         65536},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        problem p = {.set = {rows[i].set[0], rows[i].set[1], rows[i].set[2], "offload.experts=host",
                             "train.micro_batch_size=1", "parallel.context_parallel_size=1",
                             "parallel.sequence_parallel=false", "parallel.expert_binding=dp"},
                     .num_set = 8};
        snprintf(p.config, sizeof p.config,
                 "{\"model\": {\"num_layers\": 4, \"hidden_size\": 128, "
                 "\"num_attention_heads\": 2, \"seq_length\": 64, \"vocab_size\": %d, "
                 "\"num_experts\": 4}, \"train\": {\"global_batch_size\": 12, "
                 "\"train_iters\": 1, \"precision\": \"bf16\"}, "
                 "\"data\": {\"mock_data\": true}, \"device\": {\"kind\": \"cuda\"}}",
                 rows[i].vocab_size);
        snprintf(p.cluster, sizeof p.cluster,
                 "{\"num_nodes\": 1, \"ranks_per_node\": 4, \"device\": {\"memory_bytes\": 6e8, "
                 "\"reserved_bytes\": 2.6e8, \"memory_bandwidth\": 2e12, \"launch_us\": 4, "
                 "\"multiprocessors\": 108, \"peak\": {\"fp32\": 2e13, \"bf16\": 3e14, "
                 "\"fp16\": 3e14}}, "
                 "\"inside\": {\"bandwidth\": 1e11, \"latency_us\": 2}, "
                 "\"between\": {\"cards\": 1, \"bandwidth\": 1e11, \"latency_us\": 5}, "
                 "\"host\": {\"memory_bytes\": 1e11, %s}}",
                 rows[i].host);
        EXPECT(check_problem(&p, rows[i].set[2]) > 0, "row %zu: not tried", i);
    }
}

/* Two chunks of a stage lie elsewhere in a V than where they alternate, and a backward in halves
 * takes other time than a whole one: a bound of one is none of the other. */
static void check_v(void)
{
    static const problem p = {
        .config = "{\"model\": {\"num_layers\": 4, \"hidden_size\": 256, "
                  "\"num_attention_heads\": 2, \"seq_length\": 256, \"vocab_size\": 32768, "
                  "\"num_experts\": 2, \"moe_layer_freq\": 2}, "
                  "\"train\": {\"global_batch_size\": 6, \"train_iters\": 1, "
                  "\"precision\": \"bf16\"}, \"parallel\": {\"ddp_bucket_size\": 16384}, "
                  "\"data\": {\"mock_data\": true}, \"device\": {\"kind\": \"cuda\"}}",
        .cluster = "{\"num_nodes\": 2, \"ranks_per_node\": 1, \"device\": {\"memory_bytes\": 3e8, "
                   "\"reserved_bytes\": 2.6e8, \"memory_bandwidth\": 2e12, \"launch_us\": 3, "
                   "\"multiprocessors\": 108, \"peak\": {\"fp32\": 2e13, \"bf16\": 3e14, "
                   "\"fp16\": 3e14}}, \"inside\": {\"bandwidth\": 1e12, \"latency_us\": 2}, "
                   "\"between\": {\"cards\": 1, \"bandwidth\": 1e10, \"latency_us\": 5}, "
                   "\"host\": {\"memory_bytes\": 1e11, \"memory_bandwidth\": 1e11, "
                   "\"link_bandwidth\": 2e10}}",
        .set = {"train.micro_batch_size=1"},
        .num_set = 1};
    EXPECT(check_problem(&p, "stages in a V") > 0, "not tried");
}

static void check_problems(int count)
{
    int done = 0, drawn = 0;
    size_t candidates = 0;
    for (; done < count && drawn < 100 * count; drawn++) {
        problem p;
        char text[32];
        problem_draw(&p);
        snprintf(text, sizeof text, "problem %d", drawn);
        const size_t tried = check_problem(&p, text);
        candidates += tried;
        done += tried > 0;
        if (expect_failures > 20)
            return;
    }
    EXPECT(done == count, "%d problems of %d", done, count);
    fprintf(stderr,
            "%d problems with %zu candidates; of the plans found %zu, %zu, %zu and %zu with ZeRO 0 "
            "to 3; %zu bounds were tightened; with experts beyond device memory %zu of %zu plans "
            "were priced\n",
            done, candidates, found_with_zero[0], found_with_zero[1], found_with_zero[2],
            found_with_zero[3], tightened, away_priced, away_plans);
    EXPECT(count < 100 || ties > 0, "no orders tie");
    EXPECT(count < 100 || 5 * away_priced < 2 * away_plans,
           "bounds with experts elsewhere are loose");
    EXPECT(count < 100 || (tightened > 0 && found_with_zero[2] > 0 && found_with_zero[3] > 0),
           "no problem asks for ZeRO 2, or 3");
}

/* --- the verb ------------------------------------------------------------------------------ */

static const char small[] =
    "{\"model\": {\"num_layers\": 4, \"hidden_size\": 256, \"num_attention_heads\": 4, "
    "\"seq_length\": 2048, \"vocab_size\": 1024, \"num_experts\": 4}, "
    "\"train\": {\"global_batch_size\": 8, \"train_iters\": 1, \"precision\": \"bf16\"}, "
    "\"data\": {\"mock_data\": true}, \"device\": {\"kind\": \"cuda\"}}";

/* Of which a search on many nodes takes long. */
static const char large[] =
    "{\"model\": {\"num_layers\": 16, \"hidden_size\": 1024, \"num_attention_heads\": 16, "
    "\"seq_length\": 4096, \"vocab_size\": 32000, \"num_experts\": 8}, "
    "\"train\": {\"global_batch_size\": 512, \"train_iters\": 1, \"precision\": \"bf16\"}, "
    "\"data\": {\"mock_data\": true}, \"device\": {\"kind\": \"cuda\"}}";

static const char gpus[] =
    "{\"num_nodes\": 2, \"ranks_per_node\": 4, "
    "\"device\": {\"memory_bytes\": 1e10, \"reserved_bytes\": 1e9, \"memory_bandwidth\": 2e12, "
    "\"launch_us\": 3, \"multiprocessors\": 108, "
    "\"peak\": {\"fp32\": 2e13, \"bf16\": 3e14, \"fp16\": 3e14}}, "
    "\"inside\": {\"bandwidth\": 1e11, \"latency_us\": 2}, "
    "\"between\": {\"cards\": 1, \"bandwidth\": 2e10, \"latency_us\": 5}, "
    "\"host\": {\"memory_bytes\": 1e12, \"link_bandwidth\": 2e10}}";

static const char tiny[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 2, "
    "\"seq_length\": 32, \"vocab_size\": 64}, "
    "\"train\": {\"global_batch_size\": 4, \"train_iters\": 2}, "
    "\"data\": {\"mock_data\": true}}";

static const char cpus[] =
    "{\"num_nodes\": 1, \"ranks_per_node\": 2, "
    "\"device\": {\"memory_bytes\": 1e9, \"memory_bandwidth\": 1e10, \"launch_us\": 2, "
    "\"peak\": {\"fp32\": 5e10, \"bf16\": 5e10}}, "
    "\"inside\": {\"bandwidth\": 5e9, \"latency_us\": 2}, "
    "\"between\": {\"cards\": 1, \"bandwidth\": 1e9, \"latency_us\": 5}, "
    "\"host\": {\"memory_bytes\": 4e9}}";

/* Runs weft with these arguments; *out_json: the caller's. */
static int run(const char *const *args, cJSON **out_json, char *err, size_t capacity)
{
    child c;
    child_run(&c, args, NULL);
    const int code = c.exit_code;
    *out_json = child_parse(c.out);
    snprintf(err, capacity, "%s", c.err);
    EXPECT(code == 0 || child_is_line(c.err), "exit %d: \"%s\"", code, c.err);
    return code;
}

static void check_emitted(void)
{
    cJSON *json, *again;
    char err[1024];
    int code = run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--top", "4",
                         "--emit", "best.json", "--json"),
                   &json, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    const cJSON *plans = cJSON_GetObjectItem(json, "plans"), *first = plans ? plans->child : NULL;
    EXPECT(cJSON_GetArraySize(plans) == 4, "%d plans", cJSON_GetArraySize(plans));
    EXPECT(number_of(json, "num_devices") == 8 && number_of(json, "num_devices_used") == 8,
           "devices");
    if (!first)
        return;
    for (const cJSON *p = first->next; p; p = p->next)
        EXPECT(number_of(p, "step_time_s") >= number_of(p->prev, "step_time_s"), "not by time");
    EXPECT(cJSON_GetObjectItem(first, "overrides")->child != NULL, "nothing is overridden");
    EXPECT(!cJSON_GetObjectItem(first, "cost"), "nobody says what nodes cost");
    code = run(WORDS("plan", "best.json", "--cluster", "gpus.json", "--json"), &again, err,
               sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    const double step = number_of(first, "step_time_s");
    EXPECT_NEAR(number_of(again, "step_time_s"), step, 1e-9 * step);
    EXPECT(number_of(again, "memory_bytes") == number_of(first, "memory_bytes"), "memory");
    /* Of latents, too, it sets nothing that has no effect. */
    CHILD_GOOD("plan", "small.json", "--cluster", "gpus.json", "--search", "--set",
               "multi_latent_attention=true", "--set", "position_embedding_type=rope", "--set",
               "kv_lora_rank=32", "--emit", "latents.json");
    child_says(WORDS("plan", "latents.json", "--cluster", "gpus.json"), 0, NULL,
               WORDS("!no effect"));
    /* And where no tokens travel. */
    CHILD_GOOD("plan", "small.json", "--cluster", "gpus.json", "--search", "--set",
               "expert_binding=tp", "--emit", "whole.json");
    child_says(WORDS("plan", "whole.json", "--cluster", "gpus.json"), 0, NULL, WORDS("!no effect"));
}

/* A row's overrides are the whole plan: given by hand they take the same time. */
static void check_rows(void)
{
    cJSON *json, *again;
    char err[1024], section[32];
    int code = run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--json"),
                   &json, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    const cJSON *first = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "plans"), 0), *o;
    cJSON *config = child_parse(small);
    bool is_open = false;
    cJSON_ArrayForEach(o, cJSON_GetObjectItem(first, "overrides"))
    {
        const char *name = strchr(o->string, '.') + 1;
        snprintf(section, sizeof section, "%.*s", (int)(name - 1 - o->string), o->string);
        cJSON *part = cJSON_GetObjectItem(config, section);
        if (!part)
            part = cJSON_AddObjectToObject(config, section);
        cJSON_DeleteItemFromObject(part, name);
        cJSON_AddItemToObject(part, name, cJSON_Duplicate(o, true));
        is_open = is_open || (strcmp(name, "moe_num_partitions") == 0 && o->valueint == 0);
    }
    char *text = cJSON_Print(config);
    EXPECT(child_write("row.json", text), "row.json");
    free(text);
    code =
        run(WORDS("plan", "row.json", "--cluster", "gpus.json", "--json"), &again, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    EXPECT(!is_open, "the row leaves n to a choice");
    const double step = number_of(first, "step_time_s");
    EXPECT_NEAR(number_of(again, "step_time_s"), step, 1e-9 * step);
}

/* A line's keys stay; several node counts are a curve. */
static void check_held(void)
{
    cJSON *json;
    char err[1024];
    int code =
        run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--mesh", "tp=2,sp=1",
                  "--set", "train.micro_batch_size=2", "--top", "100", "--json"),
            &json, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    const cJSON *plans = cJSON_GetObjectItem(json, "plans");
    for (const cJSON *p = plans ? plans->child : NULL; p; p = p->next) {
        const char *mesh = cJSON_GetObjectItem(p, "mesh")->valuestring;
        EXPECT(strncmp(mesh, "tp 2, ", 6) == 0, "%s", mesh);
        EXPECT(!cJSON_GetObjectItem(cJSON_GetObjectItem(p, "overrides"), "train.micro_batch_size"),
               "%s: another micro-batch", mesh);
    }
    code = run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--nodes", "1,2,4",
                     "--json"),
               &json, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    const cJSON *rows = cJSON_GetObjectItem(json, "scaling");
    EXPECT(cJSON_GetArraySize(rows) == 3, "%d rows", cJSON_GetArraySize(rows));
    const int devices[] = {4, 8, 16};
    for (int i = 0; i < cJSON_GetArraySize(rows) && i < 3; i++) {
        const cJSON *row = cJSON_GetArrayItem(rows, i),
                    *best = cJSON_GetObjectItem(row, "plans")->child;
        EXPECT(number_of(row, "num_devices") == devices[i], "row %d", i);
        EXPECT_NEAR(number_of(best, "tokens_per_s_per_device") *
                        number_of(row, "num_devices_used") / number_of(best, "tokens_per_s"),
                    1, 1e-12);
    }
}

/* With pairs MoE layers have one partition where the config leaves them to a choice, else its own;
 * plans are of meshes on which tokens travel. */
static void check_pairs(void)
{
    static const char pairs[] = "parallel.overlap_moe_expert_parallel_comm=true";
    static const char *const partitions[] = {"parallel.moe_partition_by=tokens",
                                             "parallel.moe_num_partitions=0",
                                             "parallel.moe_num_partitions=2"};
    for (int i = 0; i < 3; i++) {
        cJSON *json;
        char err[1024];
        const int code =
            run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--nodes", "1",
                      "--set", pairs, "--set", partitions[i], "--json"),
                &json, err, sizeof err);
        EXPECT(code == 0, "%s: exit %d: %s", partitions[i], code, err);
        const cJSON *plans = cJSON_GetObjectItem(json, "plans"), *p;
        EXPECT(cJSON_GetArraySize(plans) > 0, "%s: no plans", partitions[i]);
        cJSON_ArrayForEach(p, plans)
        {
            const char *mesh = cJSON_GetStringValue(cJSON_GetObjectItem(p, "mesh"));
            const cJSON *n = cJSON_GetObjectItem(cJSON_GetObjectItem(p, "overrides"),
                                                 "parallel.moe_num_partitions");
            EXPECT(mesh && strstr(mesh, " ep ") && !strstr(mesh, " ep 1 "), "%s", mesh);
            EXPECT(i == 1 ? n && n->valueint == 1 : !n, "%s: %s", partitions[i], mesh);
        }
    }
}

/* The winner's whole plan, what it would gain, its timeline and its page stand beside the table. */
static void check_best(void)
{
#ifdef WEFT_SANITIZED /* takes minutes there */
    return;
#endif
    const char *args[20] = {"plan",     "small.json", "--cluster", "gpus.json",
                            "--search", "--json",     "--what-if", "--trace",
                            "t.json",   "--html",     "best.html"};
    cJSON *json;
    char err[1024];
    EXPECT(run(args, &json, err, sizeof err) == 0, "%s", err);
    const cJSON *best = cJSON_GetObjectItem(json, "best"),
                *first = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "plans"), 0), *row;
    EXPECT_NEAR(number_of(best, "step_time_s") / number_of(first, "step_time_s"), 1, 1e-12);
    int num = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "what_if"))
    {
        const cJSON *searched = cJSON_GetObjectItem(row, "new_search");
        num++;
        EXPECT(cJSON_IsNull(searched) ? cJSON_IsString(cJSON_GetObjectItem(row, "without"))
                                      : number_of(searched, "gain") >= -1e-9 ||
                                            strcmp(cJSON_GetObjectItem(row, "name")->valuestring,
                                                   "nodes_x2") == 0, /* more nodes may be slower */
               "row %d", num);
    }
    EXPECT(num == 10, "%d rows", num);
    char *page = child_read("best.html"), *trace = child_read("t.json");
    EXPECT(page && strstr(page, "links between nodes x2") && trace && strstr(trace, "traceEvents"),
           "no page or no timeline");
}

/* ZeRO-2 and 3 are tried where memory does not ask for them: their reductions run beside passes. */
static void check_zero(void)
{
    cJSON *json, *again;
    char err[1024];
    int code = run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--set",
                         "parallel.pipeline_schedule=1f1b", "--json"),
                   &json, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    const cJSON *best = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "plans"), 0);
    const char *zero = cJSON_GetStringValue(cJSON_GetObjectItem(
        cJSON_GetObjectItem(best, "overrides"), "parallel.data_parallel_sharding_strategy"));
    EXPECT(zero && strncmp(zero, "optim_grads", 11) == 0, "%s", zero ? zero : "as it was");
    code = run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--mesh", "zero=1",
                     "--set", "parallel.pipeline_schedule=1f1b", "--json"),
               &again, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    EXPECT(number_of(cJSON_GetArrayItem(cJSON_GetObjectItem(again, "plans"), 0), "step_time_s") >
               1.1 * number_of(best, "step_time_s"),
           "not faster than ZeRO-1");
}

/* Recomputing lets a micro-batch be larger, which may be worth it. */
static void check_larger_micro_batch(void)
{
    cJSON *json;
    char err[1024];
    const int code = run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--mesh",
                               "tp=1,pp=1,cp=1,ep=4,zero=1", "--set", "train.global_batch_size=16",
                               "--set", "device.memory_limit=150000000", "--json"),
                         &json, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    const cJSON *best = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "plans"), 0),
                *set = cJSON_GetObjectItem(best, "overrides");
    EXPECT(number_of(set, "train.micro_batch_size") == 2 &&
               cJSON_GetObjectItem(set, "train.recompute_granularity"),
           "the best has no micro-batch of 2 and recomputation");
    set =
        cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "plans"), 1), "overrides");
    EXPECT(!cJSON_GetObjectItem(set, "train.recompute_granularity"),
           "a micro-batch of 1 fits without");
}

static void check_refusals(void)
{
    static const char *const rows[][12] = {
        {"--search", "--against", "run"},
        {"--top", "3"},
        {"--nodes", "2"},
        {"--emit", "x.json"},
        {"--search", "--nodes", "1,2", "--emit", "x.json"},
        {"--search", "--kernels", "plain"},
        {"--search", "--mesh", "dp=5"},
        {"--search", "--mesh", "tp=3"},
        {"--search", "--nodes", "1,2,1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *args[20] = {"plan", "small.json", "--cluster", "gpus.json"};
        cJSON *json;
        char err[1024];
        for (int k = 0; rows[i][k]; k++)
            args[4 + k] = rows[i][k];
        const int code = run(args, &json, err, sizeof err);
        EXPECT(code == 2, "row %zu: exit %d: %s", i, code, err);
    }
}

/* The cluster of `text` without one piece of it. */
static void write_without(const char *path, const char *text, const char *piece)
{
    char cluster[1024];
    const char *at = strstr(text, piece);
    EXPECT(at != NULL, "no %s", piece);
    snprintf(cluster, sizeof cluster, "%.*s%s", (int)(at - text), text, at + strlen(piece));
    EXPECT(child_write(path, cluster), "%s", path);
}

/* Rows of more nodes alone ask for the links between nodes, where the plan lies on one. */
static void check_lacks_between(void)
{
    cJSON *json, *row;
    char err[1024];
    int num_lacking = 0;
    const int code =
        run(WORDS("plan", "small.json", "--cluster", "lacks.json", "--json", "--what-if"), &json,
            err, sizeof err);
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "what_if"))
    {
        const char *without = cJSON_GetStringValue(cJSON_GetObjectItem(row, "without"));
        const bool lacks = without && strstr(without, "between.latency_us is not known");
        num_lacking += lacks;
        EXPECT(lacks == (strncmp(cJSON_GetObjectItem(row, "name")->valuestring, "nodes", 5) == 0),
               "%s: %s", cJSON_GetObjectItem(row, "name")->valuestring, without);
    }
    EXPECT(code == 0 && num_lacking == 2, "exit %d, %d rows: %s", code, num_lacking, err);
    cJSON_Delete(json);
}

/* A figure that is missing is no rule: the line names it and the file. What only saves memory is
 * left out, and told. */
static void check_lacks(void)
{
    static const struct {
        const char *piece, *figure;
    } rows[] = {
        {"\"inside\": {\"bandwidth\": 1e11, \"latency_us\": 2}, ", "inside.latency_us"},
        {", \"latency_us\": 2", "inside.latency_us"},
        {"\"between\": {\"cards\": 1, \"bandwidth\": 2e10, \"latency_us\": 5}, ",
         "between.latency_us"},
    };
    static const char *const ways[] = {"--search", "--what-if"};
    cJSON *json;
    char err[1024];
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows - 1; i++) {
        write_without("lacks.json", gpus, rows[i / 2].piece);
        const int code =
            run(WORDS("plan", "small.json", "--cluster", "lacks.json", "--json", ways[i % 2]),
                &json, err, sizeof err);
        EXPECT(code == 2 && strstr(err, "lacks.json: ") && strstr(err, rows[i / 2].figure) &&
                   strstr(err, "is not known"),
               "without %s, %s: exit %d: %s", rows[i / 2].figure, ways[i % 2], code, err);
    }
    check_lacks_between();
    write_without("lacks.json", gpus,
                  ", \"host\": {\"memory_bytes\": 1e12, \"link_bandwidth\": "
                  "2e10}");
    const char *const *args = WORDS("plan", "small.json", "--cluster", "lacks.json", "--search",
                                    "--set", "device.memory_limit=150000000", "--json");
    const int code = run(args, &json, err, sizeof err);
    const char *why = cJSON_GetStringValue(cJSON_GetObjectItem(json, "left_out_reason"));
    EXPECT(code == 0 && why && strstr(why, "candidates are left out") && strstr(why, "host"),
           "exit %d, %s: %s", code, why ? why : "-", err);
}

/* Ctrl-C amid a search: the best plan so far, marked, and the exit code of what was stopped. */
static void check_stopped(void)
{
    cJSON *json = NULL;
    child c;
    int num_plans = 0;
    const char *const *args = WORDS("plan", "large.json", "--cluster", "gpus.json", "--search",
                                    "--nodes", "64", "--top", "10000", "--json");
    for (double seconds = 1; num_plans == 0 && seconds < 50; seconds *= 2) { /* to price a plan */
        EXPECT(child_start(&c, args, NULL), "no child");
        EXPECT(!child_wait(&c, seconds), "it is over: \"%.200s\"", c.err ? c.err : "");
        if (c.pid)
            kill(c.pid, SIGINT);
        EXPECT(child_wait(&c, CHILD_PATIENCE_S), "it goes on");
        json = child_parse(c.out);
        num_plans = cJSON_GetArraySize(cJSON_GetObjectItem(json, "plans"));
    }
    EXPECT(c.exit_code == 75 && cJSON_IsFalse(cJSON_GetObjectItem(json, "complete")) &&
               num_plans > 0,
           "exit %d: %.200s", c.exit_code, c.err);
    child_release(&c);
}

/* Stopped before anything is priced, it says how far it came, and not that nothing fits. The last:
 * this process stays stopped. */
static void check_stopped_at_once(void)
{
    loaded l = {.source = {.file = "small.json", .no_data = true}};
    weft_search_result result;
    weft_report report;
    char *text = NULL;
    size_t bytes;
    EXPECT_OK(weft_plan_load(&l.source, NULL, &l.arena, &l.config));
    EXPECT_OK(weft_plan_cluster("cluster", "gpus.json", &l.config, &l.arena, &l.cluster));
    weft_stop_ask();
    EXPECT_OK(weft_search_run(&l.config, &l.source, l.cluster, &(weft_search_options){.top = 5},
                              &l.arena, &result));
    EXPECT(result.is_stopped && result.num_plans == 0, "%d plans", result.num_plans);
    FILE *out = open_memstream(&text, &bytes);
    weft_report_begin(&report, WEFT_REPORT_TEXT);
    EXPECT_OK(weft_report_end(&report, weft_search_report(&report, &result, &l.config), out));
    fclose(out);
    EXPECT(strncmp(text, "Stopped before a plan was priced: ", 34) == 0 &&
               strstr(text, " looked at, ") && strchr(text, '\n') == strrchr(text, '\n'),
           "%s", text);
    free(text);
    weft_arena_release(&l.arena);
}

/* A plan that leaves less than a twentieth of the memory is marked, as weft plan marks it. */
static void check_tight(void)
{
    cJSON *json;
    child c;
    char err[1024], limit[64];
    run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--json"), &json, err,
        sizeof err);
    const cJSON *plan = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "plans"), 0);
    snprintf(limit, sizeof limit, "device.memory_limit=%.0f",
             1.001 * number_of(plan, "memory_bytes"));
    cJSON_Delete(json);
    const char *const *args =
        WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--set", limit, "--json");
    const int code = run(args, &json, err, sizeof err);
    int num_tight = 0;
    cJSON_ArrayForEach(plan, cJSON_GetObjectItem(json, "plans"))
    {
        const double part = number_of(plan, "memory_bytes") / number_of(plan, "memory_limit_bytes");
        const bool tight = cJSON_IsTrue(cJSON_GetObjectItem(plan, "tight"));
        EXPECT(tight == (part > 0.95), "%g of the memory", part);
        num_tight += tight;
    }
    EXPECT(code == 0 && num_tight > 0, "exit %d, %d tight: %s", code, num_tight, err);
    cJSON_Delete(json);
    child_run(&c, WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--set", limit),
              NULL);
    EXPECT(strstr(c.out, "B, tight  ") && strstr(c.out, "\ntight: it fits with no margin; "), "%s",
           c.out);
    child_release(&c);
    child_run(&c,
              WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--nodes", "1,2",
                    "--set", limit),
              NULL);
    EXPECT(strstr(c.out, "B, tight  ") && strstr(c.out, "\ntight: it fits with no margin; "), "%s",
           c.out);
    child_release(&c);
}

/* Of more nodes than any mesh has, the most that one has are found at once, not counted down by all
 * divisors. */
static void check_many_nodes(void)
{
    cJSON *json;
    char err[1024];
    const int code = run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search",
                               "--nodes", "99991", "--json"),
                         &json, err, sizeof err);
    EXPECT(code == 0 && number_of(json, "num_devices_used") > 0, "exit %d: %s", code, err);
    EXPECT(cJSON_IsTrue(cJSON_GetObjectItem(json, "complete")), "incomplete");
}

/* 5 ranks of one device each: a batch of 4 and 2 layers have no use for 5. */
static void check_unused(void)
{
    cJSON *json;
    char err[1024], cluster[1024];
    snprintf(cluster, sizeof cluster, "%s", cpus);
    memcpy(strstr(cluster, "\"num_nodes\": 1"), "\"num_nodes\": 5", 14);
    memcpy(strstr(cluster, "\"ranks_per_node\": 2"), "\"ranks_per_node\": 1", 19);
    EXPECT(child_write("five.json", cluster), "five.json");
    int code = run(WORDS("plan", "tiny.json", "--cluster", "five.json", "--search", "--json"),
                   &json, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    const cJSON *why = cJSON_GetObjectItem(json, "devices_unused_reason");
    EXPECT(number_of(json, "num_devices") == 5 && number_of(json, "num_devices_used") == 4,
           "devices");
    EXPECT(cJSON_IsString(why) && strstr(why->valuestring, "5 devices"), "no reason: %s",
           why ? why->valuestring : "-");
    code = run(WORDS("plan", "tiny.json", "--cluster", "five.json", "--search", "--nodes", "4,5",
                     "--json"),
               &json, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    const cJSON *rows = cJSON_GetObjectItem(json, "scaling");
    EXPECT(!cJSON_GetObjectItem(cJSON_GetArrayItem(rows, 0), "devices_unused_reason") &&
               cJSON_GetObjectItem(cJSON_GetArrayItem(rows, 1), "devices_unused_reason"),
           "the rows' reasons");
    child c;
    child_run(&c,
              WORDS("plan", "tiny.json", "--cluster", "five.json", "--search", "--nodes", "4,5",
                    "--html", "five.html"),
              NULL);
    char *page = child_read("five.html");
    EXPECT(strstr(c.out, "5 nodes: 4 of 5 devices are used: no mesh of 5 devices is legal"), "%s",
           c.out);
    EXPECT(page && strstr(page, "5 nodes: 4 of 5 devices are used: no mesh of 5 devices"),
           "the page does not say why");
}

/* A batch of 60 on one rank: all divisors up to 16, and the largest. */
static void check_micro_batches(void)
{
    static const int expected[] = {1, 2, 3, 4, 5, 6, 10, 12, 15, 60};
    loaded l = {.source = {.file = "tiny.json", .no_data = true}};
    static const char *const set[] = {"train.global_batch_size=60"};
    weft_candidate_list list;
    size_t at = 0;
    l.source.set = set;
    l.source.num_set = 1;
    EXPECT_OK(weft_plan_load(&l.source, NULL, &l.arena, &l.config));
    EXPECT_OK(weft_plan_cluster("cluster", "cpus.json", &l.config, &l.arena, &l.cluster));
    l.cluster->ranks_per_node = 1;
    const weft_search_space space = weft_space_of(&l.config, &l.source, l.cluster, 1, LEAST_TOKENS);
    EXPECT_OK(weft_space_list(&space, &list));
    for (size_t i = 0; i < list.count; i++) {
        if (i > 0 && list.values[i].micro_batch == list.values[i - 1].micro_batch)
            continue;
        EXPECT(at < sizeof expected / sizeof *expected &&
                   list.values[i].micro_batch == expected[at],
               "micro-batch %d", list.values[i].micro_batch);
        at++;
    }
    EXPECT(at == sizeof expected / sizeof *expected, "%zu micro-batches", at);
    weft_candidate_list_release(&list);
    weft_arena_release(&l.arena);
}

/* A load of experts is of the meshes that are searched: where it is above a mesh's worst, that. */
static void check_load(void)
{
    cJSON *json, *again;
    char err[1024];
    int code = run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search",
                         "--expert-load", "3", "--mesh", "ep=2", "--json"),
                   &json, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    code = run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--expert-load",
                     "2", "--mesh", "ep=2", "--json"),
               &again, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    EXPECT(cJSON_Compare(cJSON_GetObjectItem(json, "plans"), cJSON_GetObjectItem(again, "plans"),
                         true),
           "other plans above the worst load than at it");
    code = run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--mesh", "ep=2",
                     "--json"),
               &again, err, sizeof err);
    EXPECT(code == 0 &&
               number_of(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "plans"), 0), "step_time_s") >
                   number_of(cJSON_GetArrayItem(cJSON_GetObjectItem(again, "plans"), 0),
                             "step_time_s"),
           "a load takes no time");
}

/* A row says where experts are, where that is not the device. */
static void check_place(void)
{
    char cluster[1024];
    snprintf(cluster, sizeof cluster, "%.*s, \"memory_bandwidth\": 1e11}}", (int)strlen(gpus) - 2,
             gpus);
    EXPECT(child_write("hosts.json", cluster), "hosts.json");
    child_says(WORDS("plan", "small.json", "--cluster", "hosts.json", "--search", "--top", "1",
                     "--set", "offload.experts=host"),
               0, WORDS(", experts in host memory"), NULL);
    child_says(
        WORDS("plan", "small.json", "--cluster", "hosts.json", "--search", "--top", "1", "--set",
              "offload.experts=file"),
        0, WORDS(", experts in a file", "experts in a file: reads and writes take no time here"),
        NULL);
    child_says(WORDS("plan", "small.json", "--cluster", "hosts.json", "--search", "--top", "1",
                     "--json", "--mesh", "tp=1,pp=1,cp=1", "--set", "train.micro_batch_size=1",
                     "--set", "offload.experts=auto", "--set", "device.memory_limit=60000000"),
               0, WORDS("\"experts\": \"host\""), NULL);
    child_says(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--top", "1"), 0,
               WORDS("!experts in"), NULL);
}

static void check_nothing_fits(void)
{
    cJSON *json;
    char err[1024];
    int code = run(WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--set",
                         "device.memory_limit=100000", "--json"),
                   &json, err, sizeof err);
    EXPECT(code == 3 && strstr(err, "nothing fits 8 devices; nearest: tp") &&
               strstr(err, "iB of 97.7 KiB"),
           "exit %d: %s", code, err);
    EXPECT(strstr(err, " (b 1, zero 3") && strstr(err, "offload block"),
           "which micro-batch, ZeRO stage and form? %s", err);
    const cJSON *rows = cJSON_GetObjectItem(json, "rejected"), *first = rows ? rows->child : NULL;
    EXPECT(first && number_of(first, "memory_bytes") - 100000 == number_of(first, "short_by_bytes"),
           "bytes");
    child c;
    child_run(&c,
              WORDS("plan", "small.json", "--cluster", "gpus.json", "--search", "--set",
                    "device.memory_limit=100000", "--html", "none.html"),
              NULL);
    char *page = child_read("none.html");
    const char *line = strstr(c.out, "does not fit by");
    EXPECT(line && strstr(line, "; b 1, zero "), "%s", c.out);
    EXPECT(page && strstr(page, "No mesh fits; what comes nearest") &&
               strstr(page, "; b 1, zero ") && !strstr(page, "speed over memory"),
           "the page of what does not fit");
}

/* What is emitted for this machine's kind trains. */
static void check_trains(void)
{
    cJSON *json;
    char err[1024];
    int code = run(WORDS("plan", "tiny.json", "--cluster", "cpus.json", "--search", "--emit",
                         "trains.json", "--json"),
                   &json, err, sizeof err);
    EXPECT(code == 0, "exit %d: %s", code, err);
    child_good(WORDS("train", "trains.json", "--out", "run"));
}

int main(int argc, char **argv)
{
    const int count = argc > 1 ? atoi(argv[1]) : 200;
    child_begin();
    EXPECT(child_write("small.json", small) && child_write("gpus.json", gpus) &&
               child_write("tiny.json", tiny) && child_write("cpus.json", cpus) &&
               child_write("large.json", large),
           "files");
    check_emitted();
    check_rows();
    check_held();
    check_pairs();
    check_best();
    check_zero();
    check_larger_micro_batch();
    check_refusals();
    check_unused();
    check_lacks();
    check_stopped();
    check_tight();
    check_many_nodes();
    check_micro_batches();
    check_load();
    check_place();
    check_nothing_fits();
    check_trains();
    check_auto();
    check_away();
    check_v();
    check_problems(count);
    check_stopped_at_once();
    return child_finish();
}
