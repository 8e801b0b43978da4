#include "schedule/pipeline/order_text.h"

#include <errno.h>
#include <string.h>

#include "core/text.h"
#include "schedule/pipeline/order_time.h"

#define PAIR_END "OVERLAP_F_B"

/* What a cell names. */
typedef enum word {
    WORD_F,
    WORD_B,
    WORD_I,
    WORD_W,
    WORD_BW,
    NUM_COMPUTE_WORDS,
} word;

/* Those of computes by their number; of other words only whether a micro-batch follows matters. */
static const struct {
    const char *text;
    bool has_micro_batch;
} words[] = {
    {"F", true},           {"B", true},           {"I", true},
    {"W", true},           {"BW", true},          {"SEND_F", true},
    {"RECV_F", true},      {"SEND_B", true},      {"RECV_B", true},
    {"UNSHARD", false},    {"RESHARD", false},    {"REDUCE_GRAD", false},
    {"WAIT_SEND_F", true}, {"WAIT_SEND_B", true}, {"WAIT_REDUCE_GRAD", false},
};

enum { ANY_BACKWARD = 1 << WORD_B | 1 << WORD_I | 1 << WORD_BW };

typedef struct reader {
    const weft_order_shape *shape;
    uint8_t *seen;         /* words, as bits: [virtual stage][micro-batch] */
    int row, line, column; /* row: the rank; lines count from 1, blank ones too */
    char cell[25];         /* for errors */
    int32_t *columns;      /* of the row's computes */
} reader;

#define AT "line %d, column %d, \"%s\": "
#define PLACE r->line, r->column + 1, r->cell

static uint8_t *seen_at(const reader *r, int stage, int m)
{
    return &r->seen[(size_t)stage * (size_t)r->shape->num_micro_batches + (size_t)m];
}

/* A number without sign or leading zero, below `bound`; -1: none. */
static int read_number(const char **text, const char *end, int bound)
{
    const char *at = *text;
    int number = 0;
    for (; at < end && *at >= '0' && *at <= '9' && number < bound; at++)
        number = 10 * number + *at - '0';
    if (at == *text || number >= bound || (**text == '0' && at > *text + 1))
        return -1;
    *text = at;
    return number;
}

/* For errors: bytes that are no text as '?'. */
static void show_cell(const char *text, const char *end, char out[25])
{
    const size_t length = end - text < 24 ? (size_t)(end - text) : 24;
    for (size_t i = 0; i < length; i++)
        out[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    out[length] = '\0';
}

/* The word at the text; -1: none. */
static int read_word(const char **text, const char *end)
{
    size_t length = 0;
    while (*text + length < end &&
           ((*text)[length] == '_' || ((*text)[length] >= 'A' && (*text)[length] <= 'Z')))
        length++;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].text) == length && memcmp(words[i].text, *text, length) == 0) {
            *text += length;
            return (int)i;
        }
    return -1;
}

static weft_status add_compute(reader *r, int stage, int what, int m, weft_order *order)
{
    static const uint8_t kinds[NUM_COMPUTE_WORDS] = {WEFT_COMPUTE_FORWARD, WEFT_COMPUTE_BACKWARD,
                                                     WEFT_COMPUTE_INPUT, WEFT_COMPUTE_WEIGHT,
                                                     WEFT_COMPUTE_BACKWARD};
    uint8_t *seen = seen_at(r, stage, m);
    const int twice = what == WORD_F   ? 1 << WORD_F
                      : what == WORD_W ? 1 << WORD_W | 1 << WORD_BW
                                       : ANY_BACKWARD;
    if (*seen & twice)
        return WEFT_ERROR(WEFT_CONFIG, AT "repeated", PLACE);
    if (what != WORD_F && !(*seen & 1 << WORD_F))
        return WEFT_ERROR(WEFT_CONFIG, AT "premature: %dF%d has not come", PLACE, stage, m);
    if (what == WORD_W && !(*seen & ANY_BACKWARD))
        return WEFT_ERROR(WEFT_CONFIG, AT "premature: neither %dI%d nor %dB%d has come", PLACE,
                          stage, m, stage, m);
    *seen = (uint8_t)(*seen | 1 << what);
    r->columns[order->count] = r->column + 1;
    order->computes[order->count++] =
        (weft_compute){m, (int16_t)(stage / r->shape->num_ranks), kinds[what], 0};
    return WEFT_OK;
}

/* One task: a cell, or half of a pair. */
static weft_status read_task(reader *r, const char *text, const char *end, weft_order *order)
{
    const int p = r->shape->num_ranks, num_stages = p * r->shape->num_chunks;
    const int stage = read_number(&text, end, num_stages);
    const int what = read_word(&text, end);
    const bool has_micro_batch = what < 0 || words[what].has_micro_batch;
    const int m = has_micro_batch ? read_number(&text, end, r->shape->num_micro_batches) : 0;
    if (stage < 0 || what < 0 || m < 0 || text != end)
        return WEFT_ERROR(WEFT_CONFIG,
                          AT "expected a stage below %d, F, B, I or W, and a micro-batch below %d",
                          PLACE, num_stages, r->shape->num_micro_batches);
    const int rank = weft_rank_of_stage(r->shape->is_v, p, stage);
    if (rank != r->row)
        return WEFT_ERROR(WEFT_CONFIG, AT "stage %d is rank %d's, whose line is %d", PLACE, stage,
                          rank, rank + 1);
    return what < NUM_COMPUTE_WORDS ? add_compute(r, stage, what, m, order) : WEFT_OK;
}

/* (0F7;7B3)OVERLAP_F_B, from behind its first letter. */
static weft_status read_pair(reader *r, const char *text, const char *end, weft_order *order)
{
    const size_t length = sizeof PAIR_END; /* of its end and the parenthesis */
    const bool is_long = (size_t)(end - text) > length;
    const char *close = is_long ? end - length : end;
    const char *middle = memchr(text, ';', (size_t)(close - text));
    if (!is_long || !middle || memcmp(close, ")" PAIR_END, length) != 0)
        return WEFT_ERROR(WEFT_CONFIG, AT "expected a pair as (0F1;1B0)" PAIR_END, PLACE);
    const uint32_t first = order->count;
    WEFT_TRY(read_task(r, text, middle, order));
    WEFT_TRY(read_task(r, middle + 1, close, order));
    weft_compute *c = &order->computes[first];
    const bool swaps = r->shape->pairs && order->count == first + 2 &&
                       c[1].kind == WEFT_COMPUTE_FORWARD; /* both begin at once */
    const bool is_pair =
        order->count == first + 2 &&
        (c[0].kind == WEFT_COMPUTE_FORWARD) != (c[1].kind == WEFT_COMPUTE_FORWARD) &&
        c[0].kind != WEFT_COMPUTE_WEIGHT && c[1].kind != WEFT_COMPUTE_WEIGHT &&
        (c[0].micro_batch != c[1].micro_batch || c[0].chunk != c[1].chunk);
    if (!is_pair)
        return WEFT_ERROR(WEFT_CONFIG,
                          AT "a pair is a forward and a backward of another stage or micro-batch",
                          PLACE);
    if (swaps) {
        const weft_compute backward = c[0];
        c[0] = c[1];
        c[1] = backward;
    }
    c->is_paired = 1;
    return WEFT_OK;
}

static weft_status read_cell(reader *r, const char *text, const char *end, weft_order *order)
{
    show_cell(text, end, r->cell);
    return *text == '(' ? read_pair(r, text + 1, end, order) : read_task(r, text, end, order);
}

/* Nothing is missing; a B beside a W is the input's half. */
static weft_status finish_row(const reader *r, weft_order *order)
{
    for (int chunk = 0; chunk < r->shape->num_chunks; chunk++)
        for (int m = 0; m < r->shape->num_micro_batches; m++) {
            const int stage = weft_stage_of(r->shape->is_v, r->shape->num_ranks, r->row, chunk);
            const int seen = *seen_at(r, stage, m);
            const char missing = !(seen & 1 << WORD_F)                         ? 'F'
                                 : !(seen & ANY_BACKWARD)                      ? 'B'
                                 : seen & 1 << WORD_I && !(seen & 1 << WORD_W) ? 'W'
                                                                               : '\0';
            if (missing)
                return WEFT_ERROR(WEFT_CONFIG, "line %d: %d%c%d is missing", r->line, stage,
                                  missing, m);
        }
    for (uint32_t i = 0; i < order->count; i++) {
        weft_compute *c = &order->computes[i];
        const int stage = weft_stage_of(r->shape->is_v, r->shape->num_ranks, r->row, c->chunk);
        if (c->kind == WEFT_COMPUTE_BACKWARD && *seen_at(r, stage, c->micro_batch) & 1 << WORD_W)
            c->kind = WEFT_COMPUTE_INPUT;
    }
    return WEFT_OK;
}

/* A rank's line, without its end. */
static weft_status read_row(reader *r, const char *text, const char *end, weft_order *order)
{
    r->column = 0;
    for (const char *cell = text; cell <= end; r->column++) {
        const char *comma = memchr(cell, ',', (size_t)(end - cell)), *last = comma ? comma : end;
        const char *next = last + 1;
        while (cell < last && (*cell == ' ' || *cell == '\t'))
            cell++;
        while (last > cell && (last[-1] == ' ' || last[-1] == '\t' || last[-1] == '\r'))
            last--;
        if (last > cell)
            WEFT_TRY(read_cell(r, cell, last, order));
        cell = next;
    }
    return finish_row(r, order);
}

/* The next line that is not blank, without its end; false: there is none. *line counts blank ones
 * too. */
static bool next_line(const char **text, int *line, const char **start, const char **end)
{
    while (**text) {
        const char *newline = strchr(*text, '\n');
        *start = *text;
        *end = newline ? newline : *text + strlen(*text);
        *text = newline ? newline + 1 : *end;
        ++*line;
        if (*start + strspn(*start, " \t\r") < *end)
            return true;
    }
    return false;
}

static int count_lines(const char *text)
{
    const char *start, *end;
    int line = 0, count = 0;
    while (next_line(&text, &line, &start, &end))
        count++;
    return count;
}

static const char *behind_byte_order_mark(const char *text)
{
    return text + (strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0);
}

bool weft_order_text_is_v(const char *text, int num_ranks)
{
    const char *start, *end;
    text = behind_byte_order_mark(text);
    for (int line = 0, row = 0; row < num_ranks && next_line(&text, &line, &start, &end); row++)
        for (const char *at = start; at < end; at++) {
            at += strspn(at, " \t\r(");
            const int stage = read_number(&at, end, 1 << 20);
            const bool is_v = stage >= 0 && weft_rank_of_stage(true, num_ranks, stage) == row;
            if (stage >= 0 && is_v != (stage % num_ranks == row))
                return is_v;
            while (at < end && *at != ',' && *at != ';')
                at++;
        }
    return false;
}

weft_status weft_order_parse(const char *text, const weft_order_shape *shape, weft_arena *arena,
                             weft_order *orders)
{
    const int p = shape->num_ranks;
    const size_t all = (size_t)shape->num_chunks * (size_t)shape->num_micro_batches;
    reader r = {.shape = shape};
    const char *start, *end;
    void *memory;
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)p * all, &r.seen));
    text = behind_byte_order_mark(text);
    const int num_lines = count_lines(text);
    if (num_lines != p)
        return WEFT_ERROR(WEFT_CONFIG, "%s for %s", weft_count_text(num_lines, "line").text,
                          weft_count_text(p, "rank").text);
    for (; next_line(&text, &r.line, &start, &end); r.row++) {
        WEFT_TRY(weft_arena_alloc_array(arena, 3 * all, sizeof(weft_compute), &memory));
        orders[r.row] = (weft_order){.computes = memory};
        WEFT_TRY(weft_arena_alloc_array(arena, 3 * all, sizeof *r.columns, &memory));
        orders[r.row].columns = r.columns = memory;
        WEFT_TRY(read_row(&r, start, end, &orders[r.row]));
    }
    void *starts;
    WEFT_TRY(weft_order_check_weights(shape, orders));
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)p, sizeof(int32_t *), &starts));
    return weft_order_time(shape, orders, arena, starts);
}

static void print_compute(const weft_order_shape *shape, int rank, const weft_compute *c, FILE *out)
{
    fprintf(out, "%d%c%d", weft_stage_of(shape->is_v, shape->num_ranks, rank, c->chunk),
            weft_compute_letter(c->kind), c->micro_batch);
}

weft_status weft_order_print(const weft_order_shape *shape, const weft_order *orders, FILE *out)
{
    for (int rank = 0; rank < shape->num_ranks; rank++) {
        for (uint32_t i = 0; i < orders[rank].count; i++) {
            const weft_compute *c = &orders[rank].computes[i];
            fprintf(out, "%s%s", i ? "," : "", c->is_paired ? "(" : "");
            print_compute(shape, rank, c, out);
            if (!c->is_paired)
                continue;
            fputc(';', out);
            print_compute(shape, rank, c + 1, out);
            fputs(")" PAIR_END, out);
            i++;
        }
        fputc('\n', out);
    }
    if (fflush(out) || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "cannot write an order of compute: %s", strerror(errno));
    return WEFT_OK;
}
