/* Stage layouts: what is written, what is shared evenly, what is cut by work; and every refusal. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/mesh/mesh.h"
#include "tests/core/check.h"

typedef struct row {
    weft_parallel_options options;
    int pp, layers; /* between the first and the last */
    const char *text;
} row;

static void check_row(const row *r, const double *work)
{
    weft_layout layout;
    char text[256];
    assert_int_equal(weft_layout_build(&r->options, r->pp, r->layers + 2, work, &layout), WEFT_OK);
    assert_string_equal(weft_layout_text(&layout, text, sizeof text), r->text);
    assert_int_equal(layout.num_ranks, r->pp);
    /* Rank by rank and chunk by chunk, every layer stands once. */
    int seen = 0;
    for (int c = 0; c < layout.num_chunks; c++)
        for (int rank = 0; rank < r->pp; rank++) {
            int first, end;
            weft_layout_range(&layout, rank, c, &first, &end);
            assert_int_equal(first, seen);
            seen = end;
        }
    assert_int_equal(seen, r->layers + 2);
}

#define WRITTEN(value)                                                                             \
    {                                                                                              \
        .pipeline_model_parallel_layout = (value)                                                  \
    }

CASE(test_layouts)
{
    static const row rows[] = {
        {{0}, 1, 3, "EtttL"},
        {{0}, 2, 3, "Ett|tL"},
        {{0}, 4, 6, "Ett|tt|t|tL"},
        {{.num_virtual_stages_per_pipeline_rank = 2}, 2, 4, "Et|t|t|tL"},
        {{.num_virtual_stages_per_pipeline_rank = 2}, 2, 5, "Ett|t|t|tL"},
        {{.num_virtual_stages_per_pipeline_rank = 3}, 1, 3, "Et|t|tL"},
        {{.num_layers_per_virtual_pipeline_stage = 2}, 2, 8, "Ett|tt|tt|ttL"},
        {{.decoder_first_pipeline_num_layers = 1}, 3, 5, "Et|tt|ttL"},
        {{.decoder_last_pipeline_num_layers = 1}, 3, 6, "Ettt|tt|tL"},
        {{.decoder_first_pipeline_num_layers = 2,
          .decoder_last_pipeline_num_layers = 2,
          .num_virtual_stages_per_pipeline_rank = 2},
         3,
         8,
         "Et|tt|t|t|tt|tL"},
        {WRITTEN("Et|tL"), 2, 2, "Et|tL"},
        {WRITTEN("E|tttL"), 2, 3, "E|tttL"},
        {WRITTEN("E||tt|L"), 2, 2, "E||tt|L"},
        {WRITTEN("E|(tt|)*6tL"), 4, 13, "E|tt|tt|tt|tt|tt|tt|tL"},
        {WRITTEN("Et*3|(t|)*2,tL"), 2, 6, "Ettt|t|t|tL"},
        {WRITTEN("E(t(|t)*2)*2L"), 5, 6, "Et|t|tt|t|tL"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_row(&rows[i], NULL);
}

CASE(test_refusals)
{
    static const struct {
        row r;
        const char *part;
    } rows[] = {
        {{{0}, 4, 3, NULL}, "pipeline_model_parallel_size: 4 stages for 3 layers"},
        {{{.num_virtual_stages_per_pipeline_rank = 2}, 2, 3, NULL},
         "num_virtual_stages_per_pipeline_rank: 4 stages for 3 layers; 1 a rank have a layer each, "
         "and the layout auto leaves some empty"},
        {{{.num_virtual_stages_per_pipeline_rank = 2, .stages_in_v = true}, 4, 4, NULL},
         "pipeline_model_parallel_size: 4 ranks have 8 stages for 4 layers, as the schedule has 2 "
         "a "
         "rank, in a V: at most 2 fits, the layout auto leaves some empty, and 1f1b has 1 a rank"},
        {{{.num_layers_per_virtual_pipeline_stage = 2}, 2, 6, NULL},
         "6 layers are no multiple of 2 on each of 2 ranks"},
        {{{.num_layers_per_virtual_pipeline_stage = 1, .num_virtual_stages_per_pipeline_rank = 3},
          2,
          6,
          NULL},
         "says the same"},
        {{{.decoder_first_pipeline_num_layers = 5}, 2, 5, NULL}, "0 of 5 layers are left for 1"},
        {{{.decoder_last_pipeline_num_layers = 2}, 1, 5, NULL}, "one rank has all layers"},
        {{{.decoder_first_pipeline_num_layers = 3, .num_virtual_stages_per_pipeline_rank = 2},
          2,
          8,
          NULL},
         "3 layers do not divide into 2 virtual stages; 2 or 4 would"},
        {{{.decoder_first_pipeline_num_layers = 1, .decoder_last_pipeline_num_layers = 1},
          2,
          5,
          NULL},
         "3 of 5 layers are left for 0 stages"},
        {{WRITTEN("Et|tL"), 2, 3, NULL}, "has 2 layers (t), the model has 3"},
        {{WRITTEN("Et|t|tL"), 2, 3, NULL},
         "has 3 stages, which do not divide over 2 ranks; 2 or 4"},
        {{WRITTEN("EttL"), 2, 2, NULL}, "has 1 stage, which does not divide over 2 ranks; 2"},
        {{WRITTEN("t|tL"), 2, 2, NULL}, "character 1: the first layer is E"},
        {{WRITTEN("|EttL"), 2, 2, NULL}, "character 2: E is on the first stage"},
        {{WRITTEN("Et|Et|L"), 2, 2, NULL}, "character 4: a second E"},
        {{WRITTEN("Et|tLt"), 2, 3, NULL}, "character 6: nothing comes after L"},
        {{WRITTEN("Et|tLL"), 2, 3, NULL}, "a second L"},
        {{WRITTEN("Et|t"), 2, 2, NULL}, "has no L"},
        {{WRITTEN("EttL|"), 2, 2, NULL}, "L is on the last stage"},
        {{WRITTEN(" "), 2, 2, NULL}, "has no E"},
        {{WRITTEN("E(t|tL"), 2, 2, NULL}, "a parenthesis is not closed"},
        {{WRITTEN("Et)|tL"), 2, 2, NULL}, "character 3: this parenthesis closes nothing"},
        {{WRITTEN("Et*|tL"), 2, 2, NULL}, "character 4: a number from 1 to 65535 comes after *"},
        {{WRITTEN("Et*99999999999999999999|L"), 2, 2, NULL}, "a number from 1 to 65535"},
        {{WRITTEN("Et|tmL"), 2, 2, NULL}, "multi-token prediction"},
        {{WRITTEN("Et|xL"), 2, 2, NULL}, "character 4: not one of E t L"},
        {{WRITTEN("E((((((((((t))))))))))|L"), 2, 1, NULL}, "nested too deep"},
        {{WRITTEN("E(((()*65535)*65535)*65535)*65535|L"), 2, 0, NULL}, "repeats too often"},
        {{WRITTEN("E(|)*60000L"), 2, 0, NULL}, "too many stages"},
        {{WRITTEN("E((t)*60000)*9|L"), 2, 0, NULL}, "too many layers"},
        {{{.pipeline_model_parallel_layout = "Et|tL", .num_virtual_stages_per_pipeline_rank = 2},
          2,
          2,
          NULL},
         "num_virtual_stages_per_pipeline_rank: 2 on 2 ranks, but pipeline_model_parallel_layout "
         "has 2 stages"},
        {{{.pipeline_model_parallel_layout = "Et|tL", .decoder_first_pipeline_num_layers = 1},
          2,
          2,
          NULL},
         "decoder_first_pipeline_num_layers: pipeline_model_parallel_layout says it all"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        weft_layout layout;
        const row *r = &rows[i].r;
        weft_status status = weft_layout_build(&r->options, r->pp, r->layers + 2, NULL, &layout);
        if (status != WEFT_CONFIG || !strstr(weft_error_get()->text, rows[i].part))
            fail_msg("row %zu: status %d, \"%s\", not \"%s\"", i, (int)status,
                     weft_error_get()->text, rows[i].part);
        weft_error_clear();
    }
}

/* What the slowest stage has. */
static double slowest(const weft_layout *layout, const double *work)
{
    double most = 0;
    for (int s = 0; s < weft_layout_num_stages(layout); s++) {
        double sum = 0;
        for (int i = layout->first[s]; i < layout->first[s + 1]; i++)
            sum += work[i];
        most = fmax(most, sum);
    }
    return most;
}

/* The least that any cut of layers [from, n) into `stages` non-empty stages has. */
static double best_of(const double *work, int from, int n, int stages)
{
    double best = INFINITY, sum = 0;
    if (stages == 1) {
        for (int i = from; i < n; i++)
            sum += work[i];
        return sum;
    }
    for (int end = from + 1; end <= n - stages + 1; end++) {
        sum += work[end - 1];
        best = fmin(best, fmax(sum, best_of(work, end, n, stages - 1)));
    }
    return best;
}

CASE(test_auto)
{
    check_row(&(row){WRITTEN("auto"), 2, 4, "Ett|ttL"}, NULL);
    check_row(&(row){WRITTEN("auto"), 2, 4, "Ettt|tL"}, (double[]){0, 1, 1, 1, 1, 2});
    check_row(&(row){WRITTEN("auto"), 4, 2, "E|t|t|L"}, NULL);
    check_row(&(row){WRITTEN("auto"), 4, 1, "E|t||L"}, NULL);
    check_row(&(row){{.pipeline_model_parallel_layout = "auto",
                      .num_virtual_stages_per_pipeline_rank = 2},
                     3,
                     2,
                     "E|t|t|||L"},
              (double[]){1, 5, 5, 9});
    srand(7);
    for (int draw = 0; draw < 300; draw++) {
        double work[12];
        int n = 4 + rand() % 9, p = 1 + rand() % 4;
        weft_parallel_options o = WRITTEN("auto");
        weft_layout layout;
        for (int i = 0; i < n; i++)
            work[i] = rand() % 10;
        assert_int_equal(weft_layout_build(&o, p, n, work, &layout), WEFT_OK);
        for (int s = 0; s < p; s++)
            assert_true(layout.first[s] < layout.first[s + 1]);
        double made = slowest(&layout, work), best = best_of(work, 0, n, p);
        if (made > best * (1 + 1e-12))
            fail_msg("draw %d: the slowest stage has %g, and %g is possible", draw, made, best);
    }
}
