/* PyTorch's compute-only CSV. */
#include "schedule/pipeline/order_text.h"

#include <errno.h>
#include <string.h>

#include "schedule/pipeline/order_time.h"

typedef struct reader {
    const weft_order_shape *shape;
    bool *seen[2];         /* forwards, backwards: [virtual stage][micro-batch] */
    int row, line, column; /* row: the rank; lines count from 1, blank ones too */
    int32_t *columns;      /* of the row's computes */
} reader;

static bool *seen_at(const reader *r, int backward, int stage, int m)
{
    return &r->seen[backward][(size_t)stage * (size_t)r->shape->num_micro_batches + (size_t)m];
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

static weft_status read_cell(reader *r, const char *text, const char *end, weft_order *order)
{
    const int p = r->shape->num_ranks, num_stages = p * r->shape->num_chunks;
    char cell[25];
    show_cell(text, end, cell);
    const int stage = read_number(&text, end, num_stages);
    const char what = text < end ? *text++ : '\0';
    const int m = read_number(&text, end, r->shape->num_micro_batches);
#define AT "line %d, column %d, \"%s\": "
#define PLACE r->line, r->column + 1, cell
    if (stage < 0 || m < 0 || text != end || (what != 'F' && what != 'B'))
        return WEFT_ERROR(WEFT_CONFIG,
                          AT "expected a stage below %d, F or B, and a micro-batch below %d", PLACE,
                          num_stages, r->shape->num_micro_batches);
    const int rank = weft_rank_of_stage(r->shape->is_v, p, stage);
    if (rank != r->row)
        return WEFT_ERROR(WEFT_CONFIG, AT "stage %d is rank %d's, whose line is %d", PLACE, stage,
                          rank, rank + 1);
    const int backward = what == 'B';
    bool *seen = seen_at(r, backward, stage, m);
    if (*seen)
        return WEFT_ERROR(WEFT_CONFIG, AT "repeated", PLACE);
    if (backward && !*seen_at(r, 0, stage, m))
        return WEFT_ERROR(WEFT_CONFIG, AT "premature: %dF%d has not come", PLACE, stage, m);
#undef AT
#undef PLACE
    *seen = true;
    r->columns[order->count] = r->column + 1;
    order->computes[order->count++] =
        (weft_compute){m, stage / p, backward ? WEFT_COMPUTE_BACKWARD : WEFT_COMPUTE_FORWARD, 0};
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
    for (int chunk = 0; chunk < r->shape->num_chunks; chunk++)
        for (int m = 0; m < r->shape->num_micro_batches; m++)
            for (int backward = 0; backward < 2; backward++) {
                const int stage = weft_stage_of(r->shape->is_v, r->shape->num_ranks, r->row, chunk);
                if (!*seen_at(r, backward, stage, m))
                    return WEFT_ERROR(WEFT_CONFIG, "line %d: %d%c%d is missing", r->line, stage,
                                      backward ? 'B' : 'F', m);
            }
    return WEFT_OK;
}

weft_status weft_order_parse(const char *text, const weft_order_shape *shape, weft_arena *arena,
                             weft_order *orders)
{
    const int p = shape->num_ranks;
    const size_t all = (size_t)shape->num_chunks * (size_t)shape->num_micro_batches;
    reader r = {.shape = shape};
    void *memory;
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(weft_arena_alloc_array(arena, (size_t)p * all, sizeof(bool), &memory));
        r.seen[i] = memory;
    }
    text += strncmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* a byte-order mark */
    for (; *text;) {
        const char *newline = strchr(text, '\n'), *end = newline ? newline : text + strlen(text);
        r.line++;
        if (text + strspn(text, " \t\r") == end) { /* blank */
            text = newline ? newline + 1 : end;
            continue;
        }
        if (r.row == p)
            return WEFT_ERROR(WEFT_CONFIG, "line %d: more lines than the %d ranks", r.line, p);
        WEFT_TRY(weft_arena_alloc_array(arena, 2 * all, sizeof(weft_compute), &memory));
        orders[r.row] = (weft_order){.computes = memory};
        WEFT_TRY(weft_arena_alloc_array(arena, 2 * all, sizeof *r.columns, &memory));
        orders[r.row].columns = r.columns = memory;
        WEFT_TRY(read_row(&r, text, end, &orders[r.row]));
        r.row++;
        text = newline ? newline + 1 : end;
    }
    if (r.row < p)
        return WEFT_ERROR(WEFT_CONFIG, "%d line%s for %d ranks", r.row, r.row == 1 ? "" : "s", p);
    void *starts;
    WEFT_TRY(weft_arena_alloc_array(arena, (size_t)p, sizeof(int64_t *), &starts));
    return weft_order_time(shape, orders, arena, starts);
}

weft_status weft_order_print(const weft_order_shape *shape, const weft_order *orders, FILE *out)
{
    for (int rank = 0; rank < shape->num_ranks; rank++) {
        for (uint32_t i = 0; i < orders[rank].count; i++) {
            const weft_compute *c = &orders[rank].computes[i];
            fprintf(out, "%s%d%c%d", i ? "," : "",
                    weft_stage_of(shape->is_v, shape->num_ranks, rank, c->chunk),
                    weft_compute_letter(c->kind), c->micro_batch);
        }
        fputc('\n', out);
    }
    if (fflush(out) || ferror(out))
        return WEFT_ERROR(WEFT_FILE, "cannot write an order of compute: %s", strerror(errno));
    return WEFT_OK;
}
