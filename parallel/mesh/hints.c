/* What a refused mesh could be instead: found by trying, so that what is named fits and what is
 * left out does not. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/divisor.h"
#include "core/text.h"
#include "parallel/mesh/internal.h"

enum { MAX_TRIED = 256 }; /* of a size, where it says itself how many ranks there are */

typedef struct size_key {
    const char *key, *name;
    size_t offset;
} size_key;

static const size_key sizes[] = {
    {"parallel.tensor_model_parallel_size", "tp",
     offsetof(weft_parallel_options, tensor_model_parallel_size)},
    {"parallel.pipeline_model_parallel_size", "pp",
     offsetof(weft_parallel_options, pipeline_model_parallel_size)},
    {"parallel.context_parallel_size", "cp",
     offsetof(weft_parallel_options, context_parallel_size)},
    {"parallel.expert_model_parallel_size", "ep",
     offsetof(weft_parallel_options, expert_model_parallel_size)},
    {"parallel.expert_tensor_parallel_size", "etp",
     offsetof(weft_parallel_options, expert_tensor_parallel_size)},
};
enum { TP, PP, NUM_SIZES = sizeof sizes / sizeof *sizes };

static int64_t at_least_one(int64_t value)
{
    return value > 0 ? value : 1;
}

int weft_mesh_world(const weft_parallel_options *p)
{
    int64_t inner =
        at_least_one(p->tensor_model_parallel_size) * at_least_one(p->context_parallel_size);
    int64_t expert = 1, dp = p->data_parallel_size;
    if (p->expert_binding == WEFT_BINDING_DP)
        expert = at_least_one(p->expert_model_parallel_size) *
                 at_least_one(p->expert_tensor_parallel_size);
    if (dp == 0)
        dp = expert / weft_common_divisor(inner, expert);
    double world =
        (double)inner * (double)dp * (double)at_least_one(p->pipeline_model_parallel_size);
    return world < INT_MAX ? (int)world : INT_MAX; /* refused with the mesh */
}

static weft_status build(const weft_mesh_request *r, weft_mesh *out)
{
    int world = r->world ? r->world : weft_mesh_world(r->options);
    weft_mesh mesh;
    WEFT_TRY(weft_mesh_build_plain(r->options, world, r->num_experts, &mesh));
    if (r->check)
        WEFT_TRY(r->check(r->context, &mesh));
    *out = mesh;
    return WEFT_OK;
}

static int64_t *value_of(weft_parallel_options *options, const size_key *size)
{
    return (int64_t *)((char *)options + size->offset);
}

/* The values of one size with which the request is met, all else as it is. */
static weft_fits fits_of(const weft_mesh_request *r, const size_key *size)
{
    weft_parallel_options options = *r->options;
    weft_mesh_request trial = *r;
    weft_fits fits = {0};
    weft_mesh mesh;
    int64_t *value = value_of(&options, size);
    int most = r->world ? r->world : MAX_TRIED;
    trial.options = &options;
    for (*value = 1; *value <= most; ++*value)
        if ((!r->world || r->world % *value == 0) && build(&trial, &mesh) == WEFT_OK)
            weft_fits_add(&fits, *value);
    return fits;
}

/* Values of the refused size, or else of another one, or of two. */
static void find_hint(const weft_mesh_request *r, const size_key *refused, char *out,
                      size_t capacity)
{
    weft_parallel_options options = *r->options;
    char text[WEFT_FITS_TEXT_BYTES], also[WEFT_FITS_TEXT_BYTES];
    const size_key *other = refused == &sizes[TP]   ? &sizes[PP]
                            : refused == &sizes[PP] ? &sizes[TP]
                                                    : NULL;
    weft_fits fits = fits_of(r, refused), of_other = {0};
    if (other && *value_of(&options, other) > 1)
        of_other = fits_of(r, other);
    if (fits.count > 0 && of_other.count > 0)
        snprintf(out, capacity, "; %s %s, or %s %s would", refused->name,
                 weft_fits_text(&fits, text), other->name, weft_fits_text(&of_other, also));
    for (int i = -1; i < NUM_SIZES && !*out; i++) {
        const size_key *size = i < 0 ? refused : &sizes[i];
        if (i >= 0)
            fits = fits_of(r, size);
        if (fits.count > 0)
            snprintf(out, capacity, "; %s %s would", size->name, weft_fits_text(&fits, text));
    }
    weft_mesh_request trial = *r;
    trial.options = &options;
    int64_t *pp = value_of(&options, &sizes[PP]);
    int most = r->world ? r->world : MAX_TRIED;
    for (*pp = *pp < most ? *pp : most; *pp > 0 && !*out; --*pp) {
        if (r->world && r->world % *pp != 0)
            continue;
        fits = fits_of(&trial, &sizes[TP]);
        if (fits.count > 0)
            snprintf(out, capacity, "; with pp %lld, tp %s would", (long long)*pp,
                     weft_fits_text(&fits, text));
    }
}

/* The size that a refusal is about; NULL: something else is wrong. */
static const size_key *refused_size(const weft_error *refusal)
{
    for (int i = 0; i < NUM_SIZES; i++)
        if (strcmp(sizes[i].key, refusal->key) == 0)
            return &sizes[i];
    return NULL;
}

weft_status weft_mesh_build_for(const weft_mesh_request *request, weft_mesh *out)
{
    weft_status status = build(request, out);
    const size_key *size = status == WEFT_CONFIG ? refused_size(weft_error_get()) : NULL;
    if (!size)
        return status;
    weft_error refusal;
    char hint[2 * WEFT_FITS_TEXT_BYTES + 32] = "";
    weft_error_take(&refusal);
    find_hint(request, size, hint, sizeof hint);
    size_t used = strlen(refusal.text);
    snprintf(refusal.text + used, sizeof refusal.text - used, "%s", hint);
    return weft_error_put(&refusal);
}

weft_status weft_mesh_build(const weft_parallel_options *options, int world, int64_t num_experts,
                            weft_mesh *out)
{
    if (world < 1) /* a number of ranks, not the options' */
        return weft_mesh_build_plain(options, world, num_experts, out);
    return weft_mesh_build_for(
        &(weft_mesh_request){.options = options, .world = world, .num_experts = num_experts}, out);
}
