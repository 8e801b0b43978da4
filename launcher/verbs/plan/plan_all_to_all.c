/* weft plan all-to-all: what MoNTA's forms of one all-to-all take on a cluster, by Weft's equations
 * or by the paper's as printed. */
#include <math.h>

#include "core/cluster/cluster.h"
#include "core/text.h"
#include "launcher/arguments/rows.h"
#include "launcher/planning/plan.h"
#include "launcher/report/report.h"
#include "launcher/verbs/plan/plan.h"
#include "schedule/exchange/paper.h"

static const char verb_name[] = "plan all-to-all";

typedef struct arguments {
    int64_t bytes, minimal;
    int tp, ep;
    const char *cluster;
    bool paper, json;
} arguments;

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, arguments *a, weft_arena *arena)
{
    const weft_argument rows[] = {
        BYTES("bytes", "I", &a->bytes, 1, 17179869184.0,
              "that a rank sends in the baseline, its own block included: 64k, 4MiB",
              .required = true),
        SMALL("tp", "T", &a->tp, 1, 1e6, "ranks inside a node that hold the same tokens",
              .required = true),
        SMALL("ep", "E", &a->ep, 1, 1e6, "ranks that the tokens travel between", .required = true),
        TEXT("cluster", "FILE", &a->cluster, "from weft calibrate, or of data sheets",
             .required = true),
        BYTES("minimal", "I", &a->minimal, 1024, 17179869184.0,
              "the smallest slice of a chunk, I / (N T)"),
        FLAG("paper", &a->paper, "MoNTA's equations 8 to 11 and Algorithms 1 to 3 as printed"),
        FLAG("json", &a->json, "one JSON object"),
    };
    const weft_arguments verb = {
        .verb = verb_name,
        .about = "Says what one all-to-all of experts under tensor parallelism takes as one "
                 "exchange (baseline), as\ndrop, all-to-all and all-gather (o1), the same in "
                 "chunks (o2), and with copies beside the gathers\n(o3), with the best number of "
                 "chunks of each, and which is fastest. Needs no ranks.\n",
        ROWS_OF(rows)};
    *a = (arguments){.minimal = 64 << 10};
    return weft_arguments_parse(&verb, argc, argv, arena);
}

/* One way and its time. */
typedef struct way {
    const char *name;
    double us;      /* infinity: it cannot be */
    int64_t chunks; /* 0: of no chunks */
} way;
enum { BASELINE, O1, O2, O3, DIRECT, MAX_ROWS };

typedef struct outcome {
    way rows[MAX_ROWS];
    int num_rows;
    const char *choice;
    weft_source_class source;  /* not of the paper's */
    weft_exchange_paper paper; /* where it is the paper's */
} outcome;

static weft_exchange_shape shape_of(const arguments *a, const weft_cluster *cluster)
{
    const int near = cluster->ranks_per_node / a->tp;
    return (weft_exchange_shape){.bytes = (double)a->bytes,
                                 .t = a->tp,
                                 .e = a->ep,
                                 .e_near = near < a->ep ? near : a->ep,
                                 .minimal_bytes = (double)a->minimal};
}

static weft_status check_places(const arguments *a, const weft_cluster *cluster)
{
    const int64_t devices = (int64_t)cluster->num_nodes * cluster->ranks_per_node;
    if (a->tp > cluster->ranks_per_node)
        return WEFT_ERROR(WEFT_CONFIG,
                          "--tp %d: it must stay inside a node, and those of %s have %d", a->tp,
                          cluster->name, cluster->ranks_per_node);
    if ((int64_t)a->tp * a->ep > devices)
        return WEFT_ERROR(WEFT_CONFIG, "--tp %d --ep %d: the cluster %s has %lld devices", a->tp,
                          a->ep, cluster->name, (long long)devices);
    if (a->tp * (int64_t)a->ep > cluster->ranks_per_node && cluster->ranks_per_node % a->tp != 0)
        return WEFT_ERROR(
            WEFT_CONFIG,
            "--tp %d: nodes of %d devices cut tensor-parallel groups of %d; a divisor "
            "would do",
            a->tp, cluster->ranks_per_node, a->tp);
    return WEFT_OK;
}

static weft_source_class worse(weft_source_class a, weft_source_class b)
{
    return a > b ? a : b;
}

/* Names a figure that the file lacks, which the curves made of figures cannot. */
static weft_status find_source(const weft_cluster *cluster, const weft_exchange_shape *s,
                               weft_source_class *out)
{
    const weft_site site = {.cluster = cluster};
    const weft_group travel = {.size = s->e, .near = s->e_near, .stride = 1, .sharing = 1};
    const weft_group inside = {.size = s->t, .near = s->t, .stride = 1, .sharing = 1};
    weft_estimate estimate;
    WEFT_TRY(weft_work_us(&site, WEFT_COST_COPY, s->bytes, &estimate));
    *out = estimate.source;
    if (s->e > 1) {
        WEFT_TRY(
            weft_collective_us(&site, &travel, WEFT_COLLECTIVE_ALL_TO_ALL, s->bytes, &estimate));
        *out = worse(*out, estimate.source);
    }
    if (s->t > 1) {
        WEFT_TRY(
            weft_collective_us(&site, &inside, WEFT_COLLECTIVE_ALL_GATHER, s->bytes, &estimate));
        *out = worse(*out, estimate.source);
    }
    return WEFT_OK;
}

static weft_status by_weft(const weft_exchange_shape *shape, weft_cluster *cluster, outcome *out)
{
    static const weft_exchange_form forms[MAX_ROWS] = {WEFT_EXCHANGE_BASELINE, WEFT_EXCHANGE_O1,
                                                       WEFT_EXCHANGE_O2, WEFT_EXCHANGE_O3,
                                                       WEFT_EXCHANGE_DIRECT};
    weft_exchange_choice all;
    unsigned allowed = 0;
    WEFT_TRY(find_source(cluster, shape, &out->source));
    weft_cost_complete(cluster);
    for (int i = 0; i < MAX_ROWS; i++)
        allowed |= 1u << forms[i];
    WEFT_TRY(weft_choose_exchange(cluster, shape, allowed, &all));
    for (int i = 0; i < MAX_ROWS; i++)
        out->rows[i] = (way){weft_exchange_text((int)forms[i]), all.best_us[forms[i]],
                             forms[i] >= WEFT_EXCHANGE_O2 ? all.best_chunks[forms[i]] : 0};
    out->num_rows = MAX_ROWS;
    out->choice = weft_exchange_text((int)all.form);
    return WEFT_OK;
}

static weft_status by_paper(const weft_exchange_shape *shape, const weft_cluster *cluster,
                            outcome *out)
{
    weft_exchange_paper *p = &out->paper;
    WEFT_TRY(weft_exchange_paper_of(cluster, shape, p));
    out->rows[BASELINE] = (way){"baseline", p->baseline_us, 0};
    out->rows[O1] = (way){"o1", p->o1_us, 0};
    out->rows[O2] = (way){"o2", p->o2_us, p->o2_chunks};
    out->rows[O3] = (way){"o3", p->o3_us, p->o3_chunks};
    out->num_rows = DIRECT;
    out->choice = weft_exchange_text((int)p->choice);
    return WEFT_OK;
}

/* For people a table; in JSON keys of the root that begin with a form's name. */
static void report_rows(const outcome *answer, weft_report *r)
{
    char key[32];
    weft_report_open(r, WEFT_REPORT_TABLE, NULL);
    for (int i = 0; i < answer->num_rows; i++) {
        const way *row = &answer->rows[i];
        weft_report_record(r);
        weft_report_cell(r, "form", "%s", row->name);
        if (row->chunks > 0 && isfinite(row->us))
            weft_report_row(r, NULL, "chunks", WEFT_UNIT_COUNT, row->chunks);
        else
            weft_report_text(r, NULL, "chunks", "");
        weft_report_cell(r, "time", "%s",
                         isfinite(row->us) ? weft_seconds_text(row->us / 1e6).text : "too small");
    }
    weft_report_close(r);
    for (int i = 0; i < answer->num_rows; i++) {
        const way *row = &answer->rows[i];
        snprintf(key, sizeof key, "%s_s", row->name);
        weft_report_value(r, key, row->us / 1e6);
        snprintf(key, sizeof key, "%s_chunks", row->name);
        if (i >= O2)
            weft_report_value(r, key, row->chunks);
    }
}

static void report_paper(const weft_exchange_paper *paper, weft_report *r)
{
    const double *b = paper->rates, *s = paper->shares;
    char key[32];
    weft_report_line(r,
                     "B1 %.4g, B2 %.4g, B3 %.4g bytes/s; with one chunk r1 %.4g, r2 %.4g, "
                     "r3 %.4g",
                     b[0], b[1], b[2], s[0], s[1], s[2]);
    weft_report_open(r, WEFT_REPORT_OBJECT, "paper");
    for (int i = 0; i < WEFT_NUM_PAPER_RATES; i++) {
        snprintf(key, sizeof key, "b%d", i + 1);
        weft_report_value(r, key, b[i]);
        snprintf(key, sizeof key, "r%d", i + 1);
        weft_report_value(r, key, s[i]);
    }
    weft_report_close(r);
}

static weft_status print(const arguments *a, const weft_cluster *cluster, const outcome *answer)
{
    weft_report r;
    weft_report_begin(&r, a->json ? WEFT_REPORT_JSON : WEFT_REPORT_TEXT);
    weft_report_line(&r, "an all-to-all of %s a rank, tp %d, ep %d, on %s%s\n",
                     weft_count_text(a->bytes, "byte").text, a->tp, a->ep, cluster->name,
                     a->paper ? ", by MoNTA's equations as printed" : "");
    weft_report_value(&r, "bytes", a->bytes);
    weft_report_value(&r, "tp", a->tp);
    weft_report_value(&r, "ep", a->ep);
    report_rows(answer, &r);
    weft_report_line(&r, "\nchoice: %s", answer->choice);
    weft_report_text(&r, "choice", NULL, answer->choice);
    if (a->paper) {
        report_paper(&answer->paper, &r);
    } else {
        weft_report_line(&r, "The worst of the numbers behind it is %s.",
                         weft_source_class_text(answer->source));
        weft_report_text(&r, "source", NULL, weft_source_class_text(answer->source));
    }
    return weft_report_end(&r, WEFT_OK, stdout);
}

static weft_status run(const arguments *a, weft_arena *arena)
{
    weft_cluster *cluster;
    outcome answer = {.num_rows = 0};
    WEFT_TRY(weft_plan_read_cluster("cluster", a->cluster, arena, &cluster));
    WEFT_TRY(check_places(a, cluster));
    const weft_exchange_shape shape = shape_of(a, cluster);
    WEFT_TRY(a->paper ? by_paper(&shape, cluster, &answer) : by_weft(&shape, cluster, &answer));
    return print(a, cluster, &answer);
}

int weft_plan_all_to_all(int argc, char **argv, const weft_verb_given *given)
{
    (void)given;
    arguments a;
    weft_arena arena = {0};
    int code = parse(argc, argv, &a, &arena);
    if (code < 0)
        code = weft_lack_name_file(run(&a, &arena), a.cluster) == WEFT_OK
                   ? 0
                   : weft_verb_fail(verb_name);
    weft_arena_release(&arena);
    return code;
}
