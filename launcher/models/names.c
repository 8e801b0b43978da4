#include "launcher/models/names.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 512 };

/* The numbers in a name. */
typedef struct numbers {
    int64_t layer, expert; /* -1: none */
} numbers;

/* --- patterns ------------------------------------------------------------------------------ */

/* A number as it is written: no sign, no zero before it. Moves *at behind it. */
static bool take_number(const char **at, int64_t *out)
{
    const char *start = *at;
    int64_t value = 0;
    while (**at >= '0' && **at <= '9' && *at - start < 9)
        value = 10 * value + (*(*at)++ - '0');
    *out = value;
    return *at > start && (*start != '0' || *at - start == 1);
}

static bool match_pattern(const char *pattern, const char *name, numbers *out)
{
    static const char layer[] = "{layer}", expert[] = "{expert}";
    *out = (numbers){-1, -1};
    while (*pattern) {
        if (strncmp(pattern, layer, sizeof layer - 1) == 0) {
            pattern += sizeof layer - 1;
            if (!take_number(&name, &out->layer))
                return false;
        } else if (strncmp(pattern, expert, sizeof expert - 1) == 0) {
            pattern += sizeof expert - 1;
            if (!take_number(&name, &out->expert))
                return false;
        } else if (*pattern++ != *name++) {
            return false;
        }
    }
    return *name == '\0';
}

static bool match_name(const weft_family *family, const char *pattern, const char *name,
                       numbers *out)
{
    const size_t root = family->root ? strlen(family->root) : 0;
    if (match_pattern(pattern, name, out))
        return true;
    if (!family->other_root || strncmp(pattern, family->root, root) != 0 ||
        strncmp(name, family->other_root, strlen(family->other_root)) != 0)
        return false;
    return match_pattern(pattern + root, name + strlen(family->other_root), out);
}

/* False: it does not fit. */
static bool expand(const char *pattern, const numbers *n, char out[MAX_NAME])
{
    size_t used = 0;
    while (*pattern && used + 24 < MAX_NAME) {
        if (*pattern != '{') {
            out[used++] = *pattern++;
            continue;
        }
        used += (size_t)snprintf(out + used, MAX_NAME - used, "%" PRId64,
                                 pattern[1] == 'l' ? n->layer : n->expert);
        pattern += strcspn(pattern, "}") + 1;
    }
    out[used] = '\0';
    return !*pattern;
}

/* --- parameters ---------------------------------------------------------------------------- */

static int compare_listed(const void *a, const void *b)
{
    const weft_listed_parameter *x = a, *y = b;
    return strcmp(x->name, y->name);
}

size_t weft_listed_elements(const weft_listed_parameter *p)
{
    size_t elements = 1;
    for (int d = 0; d < p->num_dims; d++)
        elements *= p->dims[d];
    return elements;
}

/* Layers behind the model's last are depths of multi-token prediction, whose block has the names
 * of a decoder's. */
/* The index of a parameter; SIZE_MAX: none. */
static size_t find_name(const weft_names_model *m, const char *name)
{
    weft_listed_parameter key = {.num_dims = 0};
    if (strlen(name) >= sizeof key.name)
        return SIZE_MAX;
    strcpy(key.name, name);
    const weft_listed_parameter *found =
        bsearch(&key, m->listed, m->num_listed, sizeof key, compare_listed);
    return found ? (size_t)(found - m->listed) : SIZE_MAX;
}

static size_t find_of_row(const weft_names_model *m, const weft_family_name *row, const numbers *n)
{
    static const char mtp[] = "mtp.layers.{layer}.", decoder[] = "decoder.layers.{layer}.";
    const char *pattern = row->parameter;
    const numbers deep = {n->layer - m->options->num_layers, n->expert};
    char name[MAX_NAME], block[MAX_NAME];
    const bool is_mtp = strncmp(pattern, mtp, sizeof mtp - 1) == 0,
               is_block = strncmp(pattern, decoder, sizeof decoder - 1) == 0;
    if (deep.layer >= 0 && is_block)
        snprintf(block, sizeof block, "%stransformer_layer.%s", mtp, pattern + sizeof decoder - 1);
    else if (deep.layer < 0 && (is_mtp || (n->layer >= 0 && row->layout == WEFT_NAME_COPY)))
        return SIZE_MAX;
    const bool fits = deep.layer >= 0 ? expand(is_block ? block : pattern, &deep, name)
                                      : expand(pattern, n, name);
    return fits ? find_name(m, name) : SIZE_MAX;
}

/* --- places -------------------------------------------------------------------------------- */

/* A row's tensor beside its parameter, both as matrices of one expert or of each. */
typedef struct matrix {
    size_t experts, each;  /* of the tensor: 1, or all; elements of one in the parameter */
    size_t rows, cols;     /* of the tensor, not transposed */
    bool is_vector;        /* it has no columns */
    size_t first;          /* of the parameter: where its expert begins */
    size_t in_row, in_col; /* strides of the tensor */
} matrix;

static bool is_gated(weft_name_layout layout)
{
    return layout == WEFT_NAME_GATE || layout == WEFT_NAME_UP || layout == WEFT_NAME_GATE_UP ||
           layout == WEFT_NAME_PAIRS;
}

/* The tensor's rows; those of the parameter are `all`. */
static size_t rows_of(const weft_names_model *m, weft_name_layout layout, size_t all)
{
    const size_t heads = (size_t)m->options->num_attention_heads,
                 groups = (size_t)m->options->num_query_groups,
                 dim = (size_t)m->options->kv_channels;
    switch (layout) {
    case WEFT_NAME_QUERY:
        return heads * dim;
    case WEFT_NAME_KEY:
    case WEFT_NAME_VALUE:
        return groups * dim;
    case WEFT_NAME_GATE:
    case WEFT_NAME_UP:
        return all / 2;
    case WEFT_NAME_WHOLE:
    case WEFT_NAME_QKV:
    case WEFT_NAME_GATE_UP:
    case WEFT_NAME_PAIRS:
    case WEFT_NAME_COPY:
        break;
    }
    return all;
}

static matrix matrix_of(const weft_names_model *m, const weft_family_name *row,
                        const weft_listed_parameter *p, const numbers *n)
{
    const int outer = p->by_expert ? 1 : 0, gate = is_gated(row->layout) ? 1 : 0;
    const size_t experts = outer ? p->dims[0] : 1;
    matrix x = {.experts = n->expert >= 0 ? 1 : experts,
                .each = weft_listed_elements(p) / experts,
                .is_vector = p->num_dims - outer - gate < 2};
    x.cols = x.is_vector ? 1 : p->dims[p->num_dims - 1];
    x.rows = rows_of(m, row->layout, x.each / x.cols);
    x.first = n->expert >= 0 ? (size_t)n->expert * x.each : 0;
    x.in_row = row->transposed ? 1 : x.cols;
    x.in_col = row->transposed ? x.rows : 1;
    return x;
}

/* Adds `count` blocks of `rows` rows: of the tensor the next ones from `file_row` on, of the
 * parameter one in every `stride` rows, from `first_row` on. */
static void add_blocks(const matrix *x, size_t count, size_t rows, size_t file_row, size_t stride,
                       size_t first_row, weft_map *map)
{
    weft_map_piece *piece = &map->pieces[map->num_pieces++];
    *piece = (weft_map_piece){.first = {file_row * x->in_row, x->first + first_row * x->cols}};
    weft_map_add_axis(piece, x->experts, x->rows * x->cols, x->each);
    weft_map_add_axis(piece, count, rows * x->in_row, stride * x->cols);
    weft_map_add_axis(piece, rows, x->in_row, x->cols);
    weft_map_add_axis(piece, x->cols, x->in_col, 1);
}

/* Queries, keys and values of packed QKV. */
static void add_qkv(const weft_names_model *m, const matrix *x, weft_name_layout layout,
                    weft_map *map)
{
    const size_t groups = (size_t)m->options->num_query_groups,
                 dim = (size_t)m->options->kv_channels,
                 queries = (size_t)m->options->num_attention_heads / groups * dim,
                 packed = queries + 2 * dim, all = layout == WEFT_NAME_QKV;
    if (all || layout == WEFT_NAME_QUERY)
        add_blocks(x, groups, queries, 0, packed, 0, map);
    if (all || layout == WEFT_NAME_KEY)
        add_blocks(x, groups, dim, all * groups * queries, packed, queries, map);
    if (all || layout == WEFT_NAME_VALUE)
        add_blocks(x, groups, dim, all * groups * (queries + dim), packed, queries + dim, map);
}

/* Gate and up, whose rows alternate in the file. */
static void add_pairs(const matrix *x, weft_map *map)
{
    weft_map_piece *piece = &map->pieces[map->num_pieces++];
    *piece = (weft_map_piece){.first = {0, x->first}};
    weft_map_add_axis(piece, x->experts, x->rows * x->cols, x->each);
    weft_map_add_axis(piece, x->rows / 2, 2 * x->in_row, x->cols);
    weft_map_add_axis(piece, 2, x->in_row, x->rows / 2 * x->cols);
    weft_map_add_axis(piece, x->cols, x->in_col, 1);
}

static void place(const weft_names_model *m, const weft_family_name *row,
                  const weft_listed_parameter *p, const numbers *n, matrix *x, weft_map *map)
{
    *x = matrix_of(m, row, p, n);
    *map = (weft_map){0};
    switch (row->layout) {
    case WEFT_NAME_QUERY:
    case WEFT_NAME_KEY:
    case WEFT_NAME_VALUE:
    case WEFT_NAME_QKV:
        add_qkv(m, x, row->layout, map);
        return;
    case WEFT_NAME_UP:
        add_blocks(x, 1, x->rows, 0, 0, x->rows, map);
        return;
    case WEFT_NAME_PAIRS:
        add_pairs(x, map);
        return;
    case WEFT_NAME_WHOLE:
    case WEFT_NAME_GATE:
    case WEFT_NAME_GATE_UP:
    case WEFT_NAME_COPY:
        add_blocks(x, 1, x->rows, 0, 0, 0, map);
        return;
    }
}

/* The shape that the tensor has in the file. */
static int shape_of(const matrix *x, const weft_family_name *row, const numbers *n,
                    const weft_listed_parameter *p, size_t dims[WEFT_SAFETENSORS_MAX_DIMS])
{
    int count = 0;
    if (p->by_expert && n->expert < 0)
        dims[count++] = x->experts;
    dims[count++] = row->transposed ? x->cols : x->rows;
    if (!x->is_vector)
        dims[count++] = row->transposed ? x->rows : x->cols;
    return count;
}

static void print_shape(const size_t *dims, int count, char out[128])
{
    size_t used = 0;
    out[0] = '\0';
    for (int d = 0; d < count; d++)
        used += (size_t)snprintf(out + used, 128 - used, "%s%zu", d ? ", " : "", dims[d]);
}

static weft_status check_shape(const weft_safetensor *t, const size_t *dims, int count,
                               const char *where)
{
    char is[128], wanted[128];
    if (t->num_dims == count && memcmp(t->dims, dims, (size_t)count * sizeof *dims) == 0)
        return WEFT_OK;
    print_shape(t->dims, t->num_dims, is);
    print_shape(dims, count, wanted);
    return WEFT_ERROR(WEFT_FILE, "%s: %s has shape [%s], the model wants [%s]", where, t->name, is,
                      wanted);
}

/* --- matching ------------------------------------------------------------------------------ */

typedef struct matching {
    const weft_names_model *model;
    const weft_safetensor *tensors;
    size_t count;
    const char *where;
    weft_arena *arena;
    weft_names *out;
    const char **ignored;
} matching;

static bool is_ignored(const weft_family *family, const char *name)
{
    numbers n;
    for (size_t i = 0; i < family->num_ignored; i++)
        if (match_name(family, family->ignored[i], name, &n))
            return true;
    return false;
}

/* Whether it is of a layer behind the model's last one. */
static bool is_of_next_layer(const weft_names_model *m, const char *name)
{
    static const char before[] = "model.layers.";
    int64_t layer;
    if (strncmp(name, before, sizeof before - 1) != 0)
        return false;
    name += sizeof before - 1;
    return take_number(&name, &layer) && *name == '.' && layer >= m->options->num_layers &&
           layer < m->options->num_layers + m->next_layers;
}

/* The first row whose parameter the model has; NULL: none. */
static const weft_family_name *find_row(const weft_names_model *m, const char *name, numbers *n,
                                        size_t *parameter)
{
    for (size_t i = 0; i < m->family->num_names; i++) {
        const weft_family_name *row = &m->family->names[i];
        if (!match_name(m->family, row->file, name, n))
            continue;
        *parameter = find_of_row(m, row, n);
        if (*parameter < m->num_listed && n->expert < m->options->num_experts)
            return row;
    }
    return NULL;
}

static weft_status match_tensor(matching *x, size_t index)
{
    const weft_safetensor *t = &x->tensors[index];
    const weft_names_model *m = x->model;
    weft_names *out = x->out;
    numbers n;
    matrix shape;
    size_t dims[WEFT_SAFETENSORS_MAX_DIMS], parameter;
    if (t->is_scales)
        return WEFT_OK;
    if (is_ignored(m->family, t->name) || is_of_next_layer(m, t->name)) {
        x->ignored[out->ignored.count++] = t->name;
        return WEFT_OK;
    }
    const weft_family_name *row = find_row(m, t->name, &n, &parameter);
    if (!row)
        return WEFT_ERROR(WEFT_FILE, "%s: %s: no parameter of this %s model takes it", x->where,
                          t->name, m->family->name);
    const bool is_copy = row->layout == WEFT_NAME_COPY;
    weft_name_use *use = is_copy ? &out->copies[out->num_copies++] : &out->uses[out->num_uses++];
    use->tensor = index;
    use->parameter = parameter;
    place(m, row, &m->listed[parameter], &n, &shape, &use->map);
    const int count = shape_of(&shape, row, &n, &m->listed[parameter], dims);
    if (!t->can_read)
        return WEFT_ERROR(WEFT_FILE,
                          "%s: %s has dtype %s; Weft reads F32, BF16, F16 and, with scales of "
                          "blocks, F8_E4M3 and MXFP4",
                          x->where, t->name, t->dtype_text);
    return check_shape(t, dims, count, x->where);
}

static int compare_uses(const void *a, const void *b)
{
    const weft_name_use *x = a, *y = b;
    if (x->parameter != y->parameter)
        return x->parameter < y->parameter ? -1 : 1;
    const size_t from_x = x->map.pieces[0].first[WEFT_MAP_PARAMETER],
                 from_y = y->map.pieces[0].first[WEFT_MAP_PARAMETER];
    return from_x < from_y ? -1 : from_x > from_y;
}

/* Two that fill one element begin at the same one: parts of a parameter are apart or one holds the
 * other's beginning. */
static weft_status check_twice(const matching *x)
{
    for (size_t i = 1; i < x->out->num_uses; i++) {
        const weft_name_use *a = &x->out->uses[i - 1], *b = &x->out->uses[i];
        if (compare_uses(a, b) == 0)
            return WEFT_ERROR(WEFT_FILE, "%s: %s and %s fill the same part of %s", x->where,
                              x->tensors[a->tensor].name, x->tensors[b->tensor].name,
                              x->model->listed[a->parameter].name);
    }
    return WEFT_OK;
}

static weft_status name_missing(const matching *x, size_t parameter)
{
    weft_safetensor *wanted;
    size_t count;
    const weft_names_model one = {.family = x->model->family,
                                  .options = x->model->options,
                                  .listed = &x->model->listed[parameter],
                                  .num_listed = 1};
    WEFT_TRY(weft_names_list(&one, x->arena, &wanted, &count));
    for (size_t i = 0; i < count; i++) {
        bool is_there = false;
        for (size_t t = 0; !is_there && t < x->count; t++)
            is_there = strcmp(x->tensors[t].name, wanted[i].name) == 0;
        if (!is_there)
            return WEFT_ERROR(WEFT_FILE, "%s: lacks %s, which fills %s", x->where, wanted[i].name,
                              one.listed->name);
    }
    return WEFT_ERROR(WEFT_FILE, "%s: nothing there fills %s whole", x->where, one.listed->name);
}

static weft_status check_filled(const matching *x)
{
    size_t use = 0;
    for (size_t p = 0; p < x->model->num_listed; p++) {
        size_t filled = 0;
        for (; use < x->out->num_uses && x->out->uses[use].parameter == p; use++)
            filled += weft_map_elements(&x->out->uses[use].map);
        if (filled != weft_listed_elements(&x->model->listed[p]))
            return name_missing(x, p);
    }
    return WEFT_OK;
}

weft_status weft_names_match(const weft_names_model *model, const weft_safetensor *tensors,
                             size_t count, const char *where, weft_arena *arena, weft_names *out)
{
    matching x = {.model = model,
                  .tensors = tensors,
                  .count = count,
                  .where = where,
                  .arena = arena,
                  .out = out};
    *out = (weft_names){.num_uses = 0};
    WEFT_TRY(WEFT_ARRAY(arena, count + 1, &out->uses));
    WEFT_TRY(WEFT_ARRAY(arena, count + 1, &out->copies));
    WEFT_TRY(WEFT_ARRAY(arena, count + 1, &x.ignored));
    out->ignored.values = x.ignored;
    for (size_t i = 0; i < count; i++)
        WEFT_TRY(match_tensor(&x, i));
    qsort(out->uses, out->num_uses, sizeof *out->uses, compare_uses);
    WEFT_TRY(check_twice(&x));
    return check_filled(&x);
}

/* --- listing ------------------------------------------------------------------------------- */

typedef struct listing {
    const weft_names_model *model;
    weft_arena *arena;
    weft_safetensor *items;
    size_t count, capacity;
    size_t *filled; /* by parameter */
} listing;

static weft_status add_item(listing *l, const weft_safetensor *item)
{
    WEFT_TRY(WEFT_ARENA_GROW(l->arena, l->items, l->capacity, l->count + 1));
    l->items[l->count++] = *item;
    return WEFT_OK;
}

/* Where the parameter has it, and no row before fills it. */
static weft_status list_tensor(listing *l, const weft_family_name *row, const numbers *n)
{
    const size_t parameter = find_of_row(l->model, row, n);
    char name[MAX_NAME];
    weft_safetensor item = {0};
    matrix x;
    weft_map map;
    if (parameter == SIZE_MAX || !expand(row->file, n, name))
        return WEFT_OK;
    const weft_listed_parameter *p = &l->model->listed[parameter];
    if (l->filled[parameter] == weft_listed_elements(p))
        return WEFT_OK;
    place(l->model, row, p, n, &x, &map);
    l->filled[parameter] += weft_map_elements(&map);
    WEFT_TRY(weft_arena_strdup(l->arena, name, &item.name));
    item.num_dims = shape_of(&x, row, n, p, item.dims);
    item.can_read = true;
    return add_item(l, &item);
}

/* Once, or for each expert. */
static weft_status list_row(listing *l, const weft_family_name *row, int64_t layer)
{
    numbers n = {layer, -1};
    if (find_of_row(l->model, row, &n) == SIZE_MAX)
        return WEFT_OK;
    if (!strstr(row->file, "{expert}"))
        return list_tensor(l, row, &n);
    for (n.expert = 0; n.expert < l->model->options->num_experts; n.expert++)
        WEFT_TRY(list_tensor(l, row, &n));
    return WEFT_OK;
}

weft_status weft_names_list(const weft_names_model *model, weft_arena *arena, weft_safetensor **out,
                            size_t *out_count)
{
    listing l = {.model = model, .arena = arena};
    const weft_family *family = model->family;
    WEFT_TRY(WEFT_ARRAY(arena, model->num_listed + 1, &l.filled));
    const int64_t num_layers = model->options->num_layers + model->options->mtp_num_layers;
    for (int64_t layer = -1; layer < num_layers; layer++)
        for (size_t i = 0; i < family->num_names; i++) {
            const weft_family_name *row = &family->names[i];
            const bool in_layer = strstr(row->file, "{layer}") != NULL;
            if (in_layer == (layer >= 0) && row->layout != WEFT_NAME_COPY)
                WEFT_TRY(list_row(&l, row, layer));
        }
    *out = l.items;
    *out_count = l.count;
    return WEFT_OK;
}
