/* weft bench experts: one config's experts on the device and beyond it. */
#include <math.h>
#include <string.h>

#include "core/cluster/cluster.h"
#include "core/log.h"
#include "launcher/arguments/rows.h"
#include "launcher/measuring/bench.h"
#include "launcher/planning/plan.h"
#include "launcher/training/start.h"
#include "launcher/training/trainer.h"
#include "launcher/verbs/measure/measure.h"

enum { WARM_UP = 2, MAX_ROUNDS = 99, MAX_STEPS = 999, NUM_OWN_SETS = 4 };

/* Name, order, optimizer; the first: experts on the device. */
static const struct {
    const char *name, *order, *optimizer;
} forms[] = {{"resident", NULL, NULL},
             {"expert", "expert", "auto"},
             {"demand", "demand", "auto"},
             {"layer", "layer", "auto"},
             {"expert-after", "expert", "after"},
             {"demand-after", "demand", "after"},
             {"layer-after", "layer", "after"}};
enum { RESIDENT, NUM_FORMS = sizeof forms / sizeof *forms };

/* Lanes of the plan; computing is that of experts on the device. */
enum { COMPUTE, UP, DOWN, HOST, NUM_LANES };
static const char *const lane_names[NUM_LANES] = {"compute", "up", "down", "host"};

typedef struct measured {
    bool fits;
    int num_rounds;
    double step_ms[MAX_ROUNDS], wait_ms[MAX_ROUNDS], hidden[MAX_ROUNDS]; /* medians of rounds */
    double uploaded_bytes, read_bytes, written_bytes;                    /* of the last step */
    double planned_ms, busy_ms[NUM_LANES]; /* planned, but for COMPUTE; NAN: not */
} measured;

typedef struct bench {
    weft_config_source source;
    weft_string_list set;
    const char *cluster;
    int degree, steps; /* degree: 0 host, 1 file */
    unsigned forms;
    weft_bench_options common;
    weft_arena arena;
    weft_comm *world;
    measured of[NUM_FORMS];
} bench;

static bool is_asked(const bench *b, int form)
{
    return b->forms >> form & 1;
}

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, bench *b)
{
    static const char *const degrees[] = {"host", "file"};
    const char *names[NUM_FORMS];
    for (int i = 0; i < NUM_FORMS; i++)
        names[i] = forms[i].name;
    const weft_argument rows[] = {
        NAMED("degree", "NAME", &b->degree, degrees, 2,
              "where the others than resident have experts: host or file"),
        SET("forms", "NAME,...", &b->forms, names, NUM_FORMS,
            "resident, and an order (expert, demand, layer) alone or with -after: steps that end "
            "the "
            "step"),
        TEXT("cluster", "FILE", &b->cluster,
             "what operations cost, of weft calibrate: plans beside"),
        TEXTS("set", "KEY=VALUE", &b->set, "override a key of the config; may be repeated"),
        TEXT("mesh", "AXES", &b->source.mesh,
             "such as dp=2,ep=2,binding=dp: replaces the config's mesh"),
        SMALL("rounds", "N", &b->common.rounds, 1, MAX_ROUNDS, "of all forms, in turn and back"),
        SMALL("steps", "N", &b->steps, 1, MAX_STEPS, "of a form in a round, behind two of warm-up"),
        FLAG("json", &b->common.json,
             "all numbers as one JSON object on standard output instead of a table"),
    };
    const weft_arguments verb = {
        .verb = "bench experts",
        .operands = "CONFIG",
        .operand = &b->source.file,
        .about = "Trains CONFIG with its experts on the device, and from host memory or a file in "
                 "each order,\nwith the host's steps beside and behind the rest; nothing is saved. "
                 "The other keys of offload are\nthe config's. A mesh of more than one rank starts "
                 "mpirun, unless a launcher already has.\n",
        ROWS_OF(rows)};
    return weft_arguments_parse(&verb, argc, argv, &b->arena);
}

/* --- measuring ----------------------------------------------------------------------------- */

/* The config with a form's keys over it. */
static weft_status load(const bench *b, int form, weft_arena *arena, weft_config_source *source,
                        weft_config *out)
{
    const char **set;
    WEFT_TRY(WEFT_ARRAY(arena, b->set.count + NUM_OWN_SETS, &set));
    size_t count = 0;
    for (; count < b->set.count; count++)
        set[count] = b->set.values[count];
    set[count++] = form == RESIDENT ? "offload.experts=none"
                   : b->degree == 0 ? "offload.experts=host"
                                    : "offload.experts=file";
    if (form != RESIDENT) {
        WEFT_TRY(weft_arena_printf(arena, &set[count++], "offload.order=%s", forms[form].order));
        WEFT_TRY(
            weft_arena_printf(arena, &set[count++], "offload.optimizer=%s", forms[form].optimizer));
    }
    set[count++] = "log.trace_step=0";
    *source = b->source;
    source->set = set;
    source->num_set = count;
    return weft_config_load(source, arena, out);
}

static weft_status plan(const bench *b, const weft_config_source *source, const weft_config *ran,
                        weft_arena *arena, measured *out)
{
    weft_plan plan = {0};
    weft_config config = *ran;
    weft_cluster *cluster;
    WEFT_TRY(weft_plan_cluster("cluster", b->cluster, &config, arena, &cluster));
    const weft_status status = weft_lack_name_file(
        weft_plan_make(&config, source, cluster, NULL, arena, &plan), b->cluster);
    if (status == WEFT_OK) {
        out->planned_ms = plan.step_us / 1e3;
        for (int s = 0; s < plan.num_stages; s++)
            for (int lane = UP; lane < NUM_LANES; lane++)
                out->busy_ms[lane] =
                    fmax(out->busy_ms[lane], plan.stages[s].tier_us[lane - UP] / 1e3);
    }
    weft_plan_release(&plan);
    return status;
}

static weft_status measure_steps(const bench *b, weft_trainer *t, measured *out)
{
    double step_ms[MAX_STEPS], wait_ms[MAX_STEPS], hidden[MAX_STEPS];
    weft_step_result r = {0};
    int num_hidden = 0;
    for (int i = -WARM_UP; i < b->steps; i++) {
        WEFT_TRY(weft_trainer_step(t, &r));
        if (i < 0)
            continue;
        step_ms[i] = r.step_ms;
        wait_ms[i] = r.tier.wait_ms;
        if (isfinite(r.tier.optimizer_hidden))
            hidden[num_hidden++] = r.tier.optimizer_hidden;
    }
    out->step_ms[out->num_rounds] = weft_spread_of(step_ms, b->steps).median;
    out->wait_ms[out->num_rounds] =
        r.tier.on && isfinite(r.tier.wait_ms) ? weft_spread_of(wait_ms, b->steps).median : NAN;
    out->hidden[out->num_rounds] = num_hidden > 0 ? weft_spread_of(hidden, num_hidden).median : NAN;
    out->uploaded_bytes = r.tier.uploaded_bytes;
    out->read_bytes = r.tier.read_bytes;
    out->written_bytes = r.tier.written_bytes;
    out->num_rounds++;
    return WEFT_OK;
}

/* What has no room is told, not failed for. An error inside a step may be one rank's alone. */
static weft_status train(const bench *b, const weft_config_source *source,
                         const weft_config *config, weft_trainer *t, measured *out)
{
    weft_status status = weft_trainer_create(t, config, source, b->world, t->arena);
    if (status == WEFT_MEMORY) {
        weft_error_clear();
        out->fits = false;
        return WEFT_OK;
    }
    WEFT_TRY(status);
    WEFT_TRY(weft_trainer_start(t, NULL));
    status = measure_steps(b, t, out);
    if (status != WEFT_OK) {
        weft_log_error_record();
        weft_comm_abort(b->world, status);
    }
    return b->cluster && out->num_rounds == 1 ? plan(b, source, &t->config, t->arena, out)
                                              : WEFT_OK;
}

/* One form in one round. */
static weft_status measure(bench *b, int form)
{
    weft_arena arena = {0};
    weft_trainer t = {.arena = &arena};
    weft_config_source source;
    weft_config config;
    weft_status status = load(b, form, &arena, &source, &config);
    if (status == WEFT_OK)
        status = train(b, &source, &config, &t, &b->of[form]);
    weft_trainer_release(&t);
    weft_arena_release(&arena);
    return status;
}

/* The table comes at the end, and a form of a large model takes minutes. */
static void tell(const bench *b, int form, int round)
{
    const measured *m = &b->of[form];
    if (weft_comm_rank(b->world) > 0)
        return;
    fprintf(stderr, "weft bench: round %d of %d: %s", round + 1, b->common.rounds,
            forms[form].name);
    if (m->fits)
        fprintf(stderr, " %.2f ms a step\n", m->step_ms[m->num_rounds - 1]);
    else
        fprintf(stderr, " has no room\n");
}

static weft_status measure_all(bench *b)
{
    for (int round = 0; round < b->common.rounds; round++)
        for (int i = 0; i < NUM_FORMS; i++) {
            const int form = round % 2 ? NUM_FORMS - 1 - i : i;
            if (!is_asked(b, form) || !b->of[form].fits)
                continue;
            WEFT_TRY(measure(b, form));
            tell(b, form, round);
        }
    return WEFT_OK;
}

/* --- reporting ----------------------------------------------------------------------------- */

static weft_spread spread_of(const double *values, int count)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    return weft_spread_of(sorted, count);
}

/* Of the rounds' pairs. */
static double of_resident(const bench *b, const measured *m)
{
    const measured *resident = &b->of[RESIDENT];
    double ratios[MAX_ROUNDS];
    if (resident->num_rounds == 0)
        return NAN;
    for (int i = 0; i < m->num_rounds; i++)
        ratios[i] = resident->step_ms[i] / m->step_ms[i];
    return weft_spread_of(ratios, m->num_rounds).median;
}

/* Computing is busy for the step of experts that stay. -1: not known. */
static int find_busiest(const bench *b, measured *m)
{
    int most = -1;
    if (b->of[RESIDENT].num_rounds > 0)
        m->busy_ms[COMPUTE] = spread_of(b->of[RESIDENT].step_ms, m->num_rounds).median;
    if (m == &b->of[RESIDENT] || !isfinite(m->busy_ms[COMPUTE]) || !b->cluster)
        return -1;
    for (int lane = 0; lane < NUM_LANES; lane++)
        most = most < 0 || m->busy_ms[lane] > m->busy_ms[most] ? lane : most;
    return most;
}

static void report_lanes(weft_report *r, const bench *b, measured *m, double step_ms)
{
    const int busiest = find_busiest(b, m);
    weft_report_row(r, "planned_ms", "planned ms", WEFT_UNIT_FIXED, m->planned_ms);
    weft_report_row(r, NULL, "error", WEFT_UNIT_CHANGE, m->planned_ms / step_ms - 1);
    weft_report_open(r, WEFT_REPORT_OBJECT, "busy_ms");
    for (int lane = 0; lane < NUM_LANES; lane++)
        weft_report_value(r, lane_names[lane], m->busy_ms[lane]);
    weft_report_close(r);
    if (busiest < 0)
        return;
    weft_report_text(r, "busiest", "busiest lane", lane_names[busiest]);
    weft_report_row(r, "over_busiest", "x it", WEFT_UNIT_FIXED, step_ms / m->busy_ms[busiest]);
}

static void report_form(weft_report *r, const bench *b, measured *m)
{
    const weft_spread step = spread_of(m->step_ms, m->num_rounds);
    weft_report_row(r, "median_ms", "step ms", WEFT_UNIT_FIXED, step.median);
    weft_report_cell(r, "quartiles", "%.2f-%.2f", step.low, step.high);
    weft_report_numbers(r, "step_ms", m->step_ms, (size_t)m->num_rounds);
    weft_report_value(r, "low_ms", step.low);
    weft_report_value(r, "high_ms", step.high);
    weft_report_row(r, "of_resident", "of resident", WEFT_UNIT_SHARE, of_resident(b, m));
    if (b->cluster)
        report_lanes(r, b, m, step.median);
    weft_report_row(r, "wait_ms", "waits ms", WEFT_UNIT_FIXED,
                    spread_of(m->wait_ms, m->num_rounds).median);
    weft_report_row(r, "optimizer_hidden_share", "optimizer hidden", WEFT_UNIT_SHARE,
                    spread_of(m->hidden, m->num_rounds).median);
    weft_report_row(r, "uploaded_bytes", "uploaded", WEFT_UNIT_BYTES, m->uploaded_bytes);
    weft_report_row(r, "read_bytes", "read", WEFT_UNIT_BYTES, m->read_bytes);
    weft_report_row(r, "written_bytes", "written", WEFT_UNIT_BYTES, m->written_bytes);
}

static weft_status print(bench *b)
{
    weft_report r;
    weft_report_begin(&r, b->common.json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_report_text(&r, "degree", NULL, b->degree == 0 ? "host" : "file");
    weft_report_open(&r, WEFT_REPORT_TABLE, "forms");
    for (int i = 0; i < NUM_FORMS; i++) {
        if (!is_asked(b, i))
            continue;
        weft_report_record(&r);
        weft_report_text(&r, "form", "form", forms[i].name);
        weft_report_bool(&r, "fits", b->of[i].fits);
        if (b->of[i].fits)
            report_form(&r, b, &b->of[i]);
        else
            weft_report_cell(&r, "step ms", "has no room");
    }
    weft_report_close(&r);
    return weft_report_end(&r, WEFT_OK, stdout);
}

/* --- running ------------------------------------------------------------------------------- */

/* What needs no ranks; the config of experts beyond device memory, which the ranks start by. */
static weft_status check(bench *b, weft_config_source *source, weft_config *config)
{
    weft_cluster *cluster;
    WEFT_TRY(load(b, RESIDENT + 1, &b->arena, source, config));
    if (config->model.num_experts == 0)
        return WEFT_ERROR(WEFT_CONFIG, "%s: model.num_experts is 0: nothing to compare",
                          b->source.file);
    weft_config copy = *config;
    return b->cluster ? weft_plan_cluster("cluster", b->cluster, &copy, &b->arena, &cluster)
                      : WEFT_OK;
}

static weft_status run(bench *b, weft_start *start, int argc, char **argv)
{
    weft_config_source source;
    weft_config config;
    WEFT_TRY(check(b, &source, &config));
    weft_log_set_level(WEFT_LOG_WARN);
    WEFT_TRY(weft_start_ranks(start, &config, &source, NULL, argc + 1, argv - 1));
    if (!start->world) /* mpirun ran the ranks */
        return WEFT_OK;
    b->world = start->world;
    const weft_status status = measure_all(b);
    if (status != WEFT_OK || start->rank > 0)
        return status;
    WEFT_TRY(print(b));
    for (int i = 0; i < NUM_FORMS; i++)
        if (is_asked(b, i) && b->of[i].fits)
            return WEFT_OK;
    return WEFT_ERROR(WEFT_MEMORY, "no form has room: device.memory_limit or "
                                   "offload.host_memory_limit is too small; weft plan says by how "
                                   "much");
}

int weft_bench_experts(int argc, char **argv, const weft_verb_given *given)
{
    bench b = {.source.application = given->application,
               .steps = 4,
               .forms = (1u << NUM_FORMS) - 1,
               .common.rounds = 3};
    for (int i = 0; i < NUM_FORMS; i++) {
        b.of[i] = (measured){.fits = true, .planned_ms = NAN};
        b.of[i].busy_ms[COMPUTE] = NAN;
    }
    int code = parse(argc, argv, &b);
    if (code < 0) {
        weft_start start = weft_start_find();
        const weft_status status = run(&b, &start, argc, argv);
        code = status == WEFT_OK || start.world ? weft_start_end(&start, status, "bench experts")
                                                : weft_verb_fail_apart("bench experts");
        weft_comm_destroy(start.world);
    }
    weft_arena_release(&b.arena);
    return code;
}
