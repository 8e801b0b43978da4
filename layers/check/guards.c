/* Bytes around the memory that a layer gets: they show a write beyond it. */
#include <stdlib.h>
#include <string.h>

#include "layers/check/internal.h"

enum { GUARD_BYTES = 256, STATE_GUARD_BYTES = 1024, PATTERN = 0xff }; /* a NaN in fp32 and bf16 */

weft_status weft_check_guards_take(weft_check_guards *g, const char *what, size_t bytes, void **out)
{
    if (g->count == g->capacity) {
        int capacity = g->capacity ? 2 * g->capacity : 16;
        weft_check_piece *pieces = realloc(g->pieces, (size_t)capacity * sizeof *pieces);
        if (!pieces)
            return WEFT_ERROR(WEFT_MEMORY, "out of memory for a check");
        g->pieces = pieces;
        g->capacity = capacity;
    }
    size_t all = weft_piece_bytes(WEFT_U8, bytes, 1) + 2 * GUARD_BYTES;
    char *base = aligned_alloc(64, all);
    if (!base)
        return WEFT_ERROR(WEFT_MEMORY, "out of memory for a check");
    memset(base, PATTERN, all);
    memset(base + GUARD_BYTES, g->fill, bytes);
    g->pieces[g->count++] = (weft_check_piece){what, base, bytes};
    *out = base + GUARD_BYTES;
    return WEFT_OK;
}

static bool is_whole(const char *guard, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)guard[i] != PATTERN)
            return false;
    return true;
}

/* The name of an overwritten guard, after all guards are restored; NULL: none. */
static const char *check_guards_broken(const weft_check_guards *g)
{
    const char *what = NULL;
    for (int i = 0; i < g->count; i++) {
        char *before = g->pieces[i].base, *behind = before + GUARD_BYTES + g->pieces[i].bytes;
        if (is_whole(before, GUARD_BYTES) && is_whole(behind, GUARD_BYTES))
            continue;
        what = what ? what : g->pieces[i].what;
        memset(before, PATTERN, GUARD_BYTES);
        memset(behind, PATTERN, GUARD_BYTES);
    }
    return what;
}

void weft_check_guards_poison(weft_check_guards *g)
{
    for (int i = 0; i < g->count; i++)
        memset(g->pieces[i].base, PATTERN, g->pieces[i].bytes + 2 * GUARD_BYTES);
}

void weft_check_guards_release(weft_check_guards *g)
{
    for (int i = 0; i < g->count; i++)
        free(g->pieces[i].base);
    free(g->pieces);
    memset(g, 0, sizeof *g);
}

/* --- the layers' state --------------------------------------------------------------------- */

static weft_status guard_states(weft_model *model)
{
    size_t bytes = 0;
    for (int m = 0; m < model->tree.num_members; m++) {
        size_t own = model->tree.members[m].layer->place->ops.state_bytes;
        model->tree.members[m].state_offset = bytes;
        bytes += weft_piece_bytes(WEFT_U8, own, 1) + STATE_GUARD_BYTES;
    }
    model->tree.states_bytes = bytes;
    for (int i = 0; i < model->setup.num_passes; i++) {
        free(model->memory.passes[i].states);
        model->memory.passes[i].states = calloc(1, bytes + 1);
        if (!model->memory.passes[i].states)
            return WEFT_ERROR(WEFT_MEMORY, "out of memory for a check");
    }
    return WEFT_OK;
}

static char *state_guard(const weft_pass *pass, int member)
{
    const weft_member *m = &pass->model->tree.members[member];
    return pass->states + m->state_offset + m->layer->place->ops.state_bytes;
}

void weft_check_clear_states(weft_pass *pass)
{
    memset(pass->states, 0, pass->model->tree.states_bytes);
    for (int m = 0; m < pass->model->tree.num_members; m++)
        memset(state_guard(pass, m), PATTERN, STATE_GUARD_BYTES);
}

static bool states_broken(const weft_pass *pass)
{
    for (int m = 0; m < pass->model->tree.num_members; m++)
        if (!is_whole(state_guard(pass, m), STATE_GUARD_BYTES))
            return true;
    return false;
}

/* --- a place ------------------------------------------------------------------------------- */

enum { GRADIENT = 4, STASH, SCRATCH, STATE, NUM_BEYOND };
const char *const weft_check_names[NUM_BEYOND] = {"x",
                                                  "y",
                                                  "dy",
                                                  "dx",
                                                  "a gradient",
                                                  "a piece of the stash",
                                                  "a piece of scratch",
                                                  "a layer's state: ops->state_bytes is too small"};

static weft_status give_stash(void *guards, size_t bytes, void **out)
{
    return weft_check_guards_take(guards, weft_check_names[STASH], bytes, out);
}

static weft_status give_scratch(void *guards, size_t bytes, void **out)
{
    return weft_check_guards_take(guards, weft_check_names[SCRATCH], bytes, out);
}

weft_status weft_check_guard(weft_check_place *p)
{
    weft_model *model = p->model;
    for (int u = 0; u < model->tree.num_uses; u++) {
        weft_parameter *parameter = model->tree.uses[u].parameter;
        void *grad;
        if (!model->tree.uses[u].declared || !parameter->grad)
            continue;
        WEFT_TRY(weft_check_guards_take(&p->given, weft_check_names[GRADIENT],
                                        weft_parameter_span(parameter) * sizeof(float), &grad));
        parameter->grad = grad;
    }
    for (int slot = 0; slot < 2; slot++) {
        model->memory.passes[slot].stash.give = give_stash;
        model->memory.passes[slot].stash.giver = &p->stash[slot];
    }
    model->memory.scratch.give = give_scratch;
    model->memory.scratch.giver = &p->scratch;
    return guard_states(model);
}

void weft_check_find_beyond(weft_check_place *p, int slot)
{
    const char *found[] = {check_guards_broken(&p->given), check_guards_broken(&p->stash[slot]),
                           check_guards_broken(&p->scratch),
                           states_broken(&p->model->memory.passes[slot]) ? weft_check_names[STATE]
                                                                         : NULL};
    for (int i = 0; i < 4; i++)
        for (int n = 0; n < NUM_BEYOND && found[i] && p->beyond <= 0; n++)
            if (found[i] == weft_check_names[n])
                p->beyond = 1 + n + (p->model->memory.passes[slot].backward ? NUM_BEYOND : 0);
}

void weft_check_beyond_text(double beyond, char out[96])
{
    int code = (int)beyond - 1;
    snprintf(out, 96, "%sward writes beyond %s", code < NUM_BEYOND ? "for" : "back",
             weft_check_names[code % NUM_BEYOND]);
}
