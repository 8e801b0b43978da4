#include "parallel/mesh/mesh.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/stage.h"
#include "core/text.h"

#define KEY "parallel.pipeline_model_parallel_layout"

enum { MOST_LAYERS = UINT16_MAX, MOST_DEPTH = 8, MOST_ATOMS = 1 << 20 };

int weft_layout_num_stages(const weft_layout *layout)
{
    return layout->num_ranks * layout->num_chunks;
}

void weft_layout_range(const weft_layout *layout, int rank, int chunk, int *first, int *end)
{
    const int stage = weft_stage_of(layout->is_v, layout->num_ranks, rank, chunk);
    *first = layout->first[stage];
    *end = layout->first[stage + 1];
}

const char *weft_layout_text(const weft_layout *layout, char *out, size_t capacity)
{
    size_t used = 0;
    for (int s = 0; s < weft_layout_num_stages(layout); s++) {
        for (int i = layout->first[s]; i < layout->first[s + 1] && used < capacity; i++)
            out[used++] = i == 0 ? 'E' : i == layout->num_layers - 1 ? 'L' : 't';
        if (s + 1 < weft_layout_num_stages(layout) && used < capacity)
            out[used++] = '|';
    }
    if (used < capacity)
        out[used] = '\0';
    else
        snprintf(out + capacity - 4, 4, "...");
    return out;
}

/* --- as written ---------------------------------------------------------------------------- */

/* The text while it is read: what each stage has is counted. */
typedef struct reader {
    const char *text;
    size_t at;
    int num_first, num_between, num_last;
    int stage;     /* the one being filled */
    int num_atoms; /* read, repeated ones too */
    weft_layout *out;
} reader;

static weft_status fail(const reader *r, const char *what)
{
    return WEFT_KEY_ERROR(KEY, "\"%s\", character %zu: %s", r->text, r->at + 1, what);
}

static weft_status take(reader *r, char letter)
{
    int before = r->num_first + r->num_between + r->num_last;
    if (letter == '|') {
        if (++r->stage == WEFT_MAX_STAGES)
            return fail(r, "there are too many stages");
        r->out->first[r->stage] = (uint16_t)before;
        return WEFT_OK;
    }
    if (before == MOST_LAYERS)
        return fail(r, "there are too many layers");
    if (letter == 'E' && before > 0)
        return fail(r, r->num_first ? "a second E" : "E is the first layer of the first stage");
    if (letter == 'E' && r->stage > 0)
        return fail(r, "E is on the first stage");
    if (letter != 'E' && r->num_first == 0)
        return fail(r, "the first layer is E");
    if (r->num_last > 0)
        return fail(r, letter == 'L' ? "a second L" : "nothing comes after L");
    *(letter == 'E' ? &r->num_first : letter == 't' ? &r->num_between : &r->num_last) += 1;
    return WEFT_OK;
}

/* "*6", or 1. */
static weft_status read_times(reader *r, long *out)
{
    *out = 1;
    if (r->text[r->at] != '*')
        return WEFT_OK;
    char *end;
    *out = strtol(r->text + ++r->at, &end, 10);
    if (!isdigit((unsigned char)r->text[r->at]) || *out < 1 || *out > MOST_LAYERS)
        return fail(r, "a number from 1 to 65535 comes after *");
    r->at = (size_t)(end - r->text);
    return WEFT_OK;
}

static weft_status read_sequence(reader *r, int depth);

/* A letter, or what stands in parentheses. */
static weft_status read_atom(reader *r, int depth)
{
    char c = r->text[r->at];
    if (++r->num_atoms > MOST_ATOMS)
        return fail(r, "this repeats too often");
    if (c == '(') {
        if (depth == MOST_DEPTH)
            return fail(r, "parentheses are nested too deep");
        r->at++;
        WEFT_TRY(read_sequence(r, depth + 1));
        if (r->text[r->at] != ')')
            return fail(r, "a parenthesis is not closed");
    } else if (c == 'E' || c == 't' || c == 'L' || c == '|') {
        WEFT_TRY(take(r, c));
    } else if (c == 'm') {
        return fail(r, "m, multi-token prediction, is no layer of this model");
    } else {
        return fail(r, "not one of E t L | ( ) * and ,");
    }
    r->at++;
    return WEFT_OK;
}

/* Up to the end of the text, or the parenthesis that closes. */
static weft_status read_sequence(reader *r, int depth)
{
    while (r->text[r->at] && r->text[r->at] != ')') {
        size_t start = r->at;
        long times;
        if (r->text[r->at] == ',' || r->text[r->at] == ' ') {
            r->at++;
            continue;
        }
        WEFT_TRY(read_atom(r, depth));
        WEFT_TRY(read_times(r, &times));
        size_t after = r->at;
        while (--times > 0) {
            r->at = start;
            WEFT_TRY(read_atom(r, depth));
        }
        r->at = after;
    }
    return WEFT_OK;
}

static weft_status read_text(const weft_parallel_options *o, const char *layout, weft_layout *out)
{
    reader r = {.text = layout, .out = out};
    const int pp = out->num_ranks, num_layers = out->num_layers;
    WEFT_TRY(read_sequence(&r, 0));
    if (r.text[r.at])
        return fail(&r, "this parenthesis closes nothing");
    int stages = r.stage + 1;
    weft_fits fits = weft_fits_multiples_near(pp, stages);
    char text[WEFT_FITS_TEXT_BYTES];
    if (r.num_first == 0 || r.num_last == 0)
        return WEFT_KEY_ERROR(KEY, "\"%s\" has no %s", r.text, r.num_first ? "L" : "E");
    if (r.num_between != num_layers - 2)
        return WEFT_KEY_ERROR(KEY, "\"%s\" has %d layers (t), the model has %d", r.text,
                              r.num_between, num_layers - 2);
    if (stages % pp != 0)
        return WEFT_KEY_ERROR(KEY, "\"%s\" has %s, which do%s not divide over %d ranks; %s would",
                              r.text, weft_count_text(stages, "stage").text,
                              stages == 1 ? "es" : "", pp, weft_fits_text(&fits, text));
    if (out->first[r.stage] == num_layers)
        return WEFT_KEY_ERROR(KEY, "\"%s\": L is on the last stage", r.text);
    int given = (int)o->num_virtual_stages_per_pipeline_rank;
    if (given > 0 && given * pp != stages)
        return WEFT_KEY_ERROR("parallel.num_virtual_stages_per_pipeline_rank",
                              "%d on %s, but pipeline_model_parallel_layout has %s", given,
                              weft_count_text(pp, "rank").text,
                              weft_count_text(stages, "stage").text);
    out->num_chunks = stages / pp;
    out->first[stages] = (uint16_t)num_layers;
    return WEFT_OK;
}

/* --- evenly -------------------------------------------------------------------------------- */

/* Of `count` layers over `num` stages, those of stage `index`. */
static int share(int count, int num, int index)
{
    return count / num + (index < count % num ? 1 : 0);
}

/* The list's first and last layer go with what their stages have between. */
static void cut_by_counts(weft_layout *out, const uint16_t *counts)
{
    int stages = weft_layout_num_stages(out), at = 1;
    out->first[0] = 0;
    for (int s = 0; s < stages; s++) {
        at += counts[s];
        out->first[s + 1] = (uint16_t)at;
    }
    out->first[stages] = (uint16_t)out->num_layers;
}

weft_layout weft_layout_even(int pp, int num_layers)
{
    weft_layout layout = {.num_ranks = pp, .num_chunks = 1, .num_layers = num_layers};
    uint16_t counts[WEFT_MAX_STAGES] = {0};
    for (int s = 0; s < pp; s++)
        counts[s] = (uint16_t)share(num_layers - 2, pp, s);
    cut_by_counts(&layout, counts);
    return layout;
}

static weft_status check_own_share(const char *key, int64_t count, int num_chunks)
{
    weft_fits fits = weft_fits_multiples_near(num_chunks, count);
    char text[WEFT_FITS_TEXT_BYTES];
    if (count % num_chunks == 0)
        return WEFT_OK;
    return WEFT_KEY_ERROR(key, "%lld layers do not divide into %d virtual stages; %s would",
                          (long long)count, num_chunks, weft_fits_text(&fits, text));
}

/* The first and the last rank have what was asked for, in equal chunks; the others share the rest
 * evenly over all their stages. */
static weft_status cut_with_ends(const weft_parallel_options *o, weft_layout *out)
{
    const int p = out->num_ranks, v = out->num_chunks, between = out->num_layers - 2;
    int64_t first = o->decoder_first_pipeline_num_layers;
    int64_t last = o->decoder_last_pipeline_num_layers;
    uint16_t counts[WEFT_MAX_STAGES] = {0};
    WEFT_TRY(check_own_share("parallel.decoder_first_pipeline_num_layers", first, v));
    WEFT_TRY(check_own_share("parallel.decoder_last_pipeline_num_layers", last, v));
    int others = p - (first > 0) - (last > 0);
    int64_t rest = between - first - last;
    const char *key = first > 0 ? "parallel.decoder_first_pipeline_num_layers"
                                : "parallel.decoder_last_pipeline_num_layers";
    if (p == 1 && first + last > 0)
        return WEFT_KEY_ERROR(key, "one rank has all layers");
    if (rest < 0)
        return WEFT_KEY_ERROR(key, "%lld layers on the ranks at the ends, and there are %d",
                              (long long)(first + last), between);
    if ((rest < others * v && p * v > 1) || (others == 0 && rest > 0))
        return WEFT_KEY_ERROR(key, "%lld of %s are left for %s of the other ranks", (long long)rest,
                              weft_count_text(between, "layer").text,
                              weft_count_text(others * v, "stage").text);
    for (int s = 0, index = 0; s < p * v; s++) {
        const int rank = weft_rank_of_stage(out->is_v, p, s);
        bool is_first = first > 0 && rank == 0, is_last = last > 0 && rank == p - 1;
        counts[s] = (uint16_t)(is_first  ? first / v
                               : is_last ? last / v
                                         : share((int)rest, others * v, index++));
    }
    cut_by_counts(out, counts);
    return WEFT_OK;
}

/* --- by work ------------------------------------------------------------------------------- */

/* Whether layers fit into the stages where none has more than `most`. need [n + 1]: the least
 * number of stages that layers [i, n) take. *out_bound: what a stage really has, where they fit;
 * else nothing less than that, which is more than `most`, would do. */
static bool fits_in(const double *sums, int n, double most, int stages, int *need,
                    double *out_bound)
{
    double used = 0, next = INFINITY;
    need[n] = 0;
    for (int i = n - 1, end = n; i >= 0; i--) {
        for (; sums[end] - sums[i] > most; end--)
            next = fmin(next, sums[end] - sums[i]);
        if (end <= i) {
            *out_bound = next;
            return false;
        }
        need[i] = need[end] + 1;
        used = fmax(used, sums[end] - sums[i]);
    }
    *out_bound = need[0] <= stages ? used : next;
    return need[0] <= stages;
}

/* The bound is the least possible: it fits, and nothing below `low` does. A stage ends where it has
 * its share of what is left, unless the rest would not fit then, and leaves a layer for each stage
 * behind it. Of more stages than layers those before the last are empty. */
static void cut_by_work(weft_layout *out, const double *sums, int *need)
{
    const int n = out->num_layers, all = weft_layout_num_stages(out), stages = all < n ? all : n;
    double low = 0, high = sums[n], bound;
    while (low < high) {
        const double middle = low + (high - low) / 2; /* rounded to high, it may tell nothing new */
        if (fits_in(sums, n, middle < high ? middle : low, stages, need, &bound))
            high = bound;
        else
            low = bound;
    }
    (void)fits_in(sums, n, high, stages, need, &bound);
    out->first[0] = 0;
    for (int s = 0, at = 0; s < stages; s++) {
        int left = stages - s, end = at;
        double share = (sums[n] - sums[at]) / left;
        while (end < n && n - end - 1 >= left - 1 && sums[end + 1] - sums[at] <= high) {
            double with = sums[end + 1] - sums[at], without = sums[end] - sums[at];
            if (end > at && need[end] <= left - 1 && with - share > share - without)
                break;
            end++;
        }
        at = s == stages - 1 ? n : end;
        out->first[s + 1] = (uint16_t)at;
    }
    for (int s = stages; s < all; s++)
        out->first[s] = (uint16_t)(n - 1);
    out->first[all] = (uint16_t)n;
}

static weft_status cut_by_given_work(weft_layout *out, const double *work)
{
    int n = out->num_layers;
    double *sums = calloc((size_t)n + 1, sizeof *sums);
    int *need = calloc((size_t)n + 1, sizeof *need);
    if (sums && need) {
        for (int i = 0; i < n; i++)
            sums[i + 1] = sums[i] + (work ? work[i] : i > 0 && i < n - 1);
        cut_by_work(out, sums, need);
    }
    bool made = sums && need;
    free(sums);
    free(need);
    return made ? WEFT_OK : WEFT_ERROR(WEFT_MEMORY, "out of memory for the stage layout");
}

/* --- all of them --------------------------------------------------------------------------- */

static const char *text_of(const weft_parallel_options *o)
{
    return o->pipeline_model_parallel_layout ? o->pipeline_model_parallel_layout : "";
}

static weft_status check_exclusive(const weft_parallel_options *o)
{
    const struct {
        const char *key;
        bool given;
    } others[] = {
        {"parallel.num_layers_per_virtual_pipeline_stage",
         o->num_layers_per_virtual_pipeline_stage > 0},
        {"parallel.decoder_first_pipeline_num_layers", o->decoder_first_pipeline_num_layers > 0},
        {"parallel.decoder_last_pipeline_num_layers", o->decoder_last_pipeline_num_layers > 0},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].given && text_of(o)[0])
            return WEFT_KEY_ERROR(others[i].key,
                                  "pipeline_model_parallel_layout says it all; give one");
    if (others[0].given && o->num_virtual_stages_per_pipeline_rank > 0)
        return WEFT_KEY_ERROR("parallel.num_layers_per_virtual_pipeline_stage",
                              "num_virtual_stages_per_pipeline_rank says the same; give one");
    return WEFT_OK;
}

/* Two stages a rank that the schedule has, whether a key says so or not. */
static weft_status too_few_for_v(int p, int between)
{
    char fewer[64] = "";
    if (between > 1)
        snprintf(fewer, sizeof fewer, "%s%d fits, ", between > 3 ? "at most " : "", between / 2);
    return WEFT_KEY_ERROR("parallel.pipeline_model_parallel_size",
                          "%d ranks have %d stages for %s, as the schedule has 2 a rank, in a V: "
                          "%sthe layout auto leaves some empty, and 1f1b has 1 a rank",
                          p, 2 * p, weft_count_text(between, "layer").text, fewer);
}

static weft_status find_num_chunks(const weft_parallel_options *o, bool is_auto, weft_layout *out)
{
    int64_t each = o->num_layers_per_virtual_pipeline_stage;
    int between = out->num_layers - 2, p = out->num_ranks;
    out->num_chunks = 1;
    if (o->num_virtual_stages_per_pipeline_rank > 0)
        out->num_chunks = (int)o->num_virtual_stages_per_pipeline_rank;
    if (each > 0 && between % (each * p) != 0)
        return WEFT_KEY_ERROR("parallel.num_layers_per_virtual_pipeline_stage",
                              "%d layers are no multiple of %lld on each of %d ranks", between,
                              (long long)each, p);
    if (each > 0)
        out->num_chunks = (int)(between / (each * p));
    const char *key = each > 0              ? "parallel.num_layers_per_virtual_pipeline_stage"
                      : out->num_chunks > 1 ? "parallel.num_virtual_stages_per_pipeline_rank"
                                            : "parallel.pipeline_model_parallel_size";
    int64_t stages = (int64_t)p * out->num_chunks;
    if (stages > WEFT_MAX_STAGES)
        return WEFT_KEY_ERROR(key, "%lld stages, and at most %d are possible", (long long)stages,
                              WEFT_MAX_STAGES);
    if (stages <= 1 || between >= stages || is_auto)
        return WEFT_OK;
    if (o->stages_in_v && out->num_chunks == 2)
        return too_few_for_v(p, between);
    if (out->num_chunks == 1 || between < p)
        return WEFT_KEY_ERROR(key, "%lld stages for %s", (long long)stages,
                              weft_count_text(between, "layer").text);
    return WEFT_KEY_ERROR(key,
                          "%lld stages for %s; %d a rank have a layer each, and the layout auto "
                          "leaves some empty",
                          (long long)stages, weft_count_text(between, "layer").text, between / p);
}

weft_status weft_layout_build(const weft_parallel_options *o, int pp, int num_layers,
                              const double *work, weft_layout *out)
{
    const char *text = text_of(o);
    bool is_auto = strcmp(text, "auto") == 0;
    memset(out, 0, sizeof *out);
    out->num_ranks = pp;
    out->num_layers = num_layers;
    out->is_v = o->stages_in_v && pp > 1;
    if (num_layers > MOST_LAYERS)
        return WEFT_ERROR(WEFT_CONFIG, "a model of %d layers: at most %d", num_layers, MOST_LAYERS);
    WEFT_TRY(check_exclusive(o));
    if (text[0] && !is_auto)
        return read_text(o, text, out);
    WEFT_TRY(find_num_chunks(o, is_auto, out));
    return is_auto ? cut_by_given_work(out, work) : cut_with_ends(o, out);
}
