/* What a life has left, against the run without kills on one rank, and against every life that
 * computed the same from the same.
 *
 * How a state was computed is a chain of hashes: line[s] = h(line[s - 1], what decides the bits of
 * step s), so equal chains mean equal bits: of the metrics' lines, and of checkpoints. Other chains
 * agree to rounding: losses to 1e-5; and of each block of 16 elements of a dataset the difference
 * is a fiftieth, at most, of what one step changes there (and of a floor for what rounding alone
 * makes): a tensor, or a part of one, that is a step older or newer differs by all of it. In bf16
 * meshes part ways, so that bits alone tell: losses are compared to 3 %, datasets with those of the
 * same steps alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hdf5.h>

#include "tests/launcher/torture.h"

#define STEP_SHARE 0.02   /* of one step's change */
#define WEIGHT_FLOOR 2e-6 /* a thousandth of the learning rate */
#define MOMENT_FLOOR 1e-4 /* of the dataset's root mean square */
enum { BLOCK = 16, MAX_SETS = 256, TABLE_BITS = 20, PATH_BYTES = 256 };

/* --- datasets ----------------------------------------------------------------------------- */

typedef struct content {
    int num_sets;
    struct {
        char name[112];
        size_t first, count;
    } sets[MAX_SETS];
    size_t count;
    float *values; /* NULL: not read */
} content;

static herr_t read_one(hid_t file, const char *path, const H5O_info_t *info, void *context)
{
    content *c = context;
    if (info->type != H5O_TYPE_DATASET)
        return 0;
    if (c->num_sets == MAX_SETS)
        return -1;
    hid_t set = H5Dopen2(file, path, H5P_DEFAULT);
    hid_t space = H5Dget_space(set);
    size_t count = (size_t)H5Sget_simple_extent_npoints(space);
    float *values = realloc(c->values, (c->count + count + 1) * sizeof *values);
    herr_t status = -1;
    if (values) {
        c->values = values;
        status = H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values + c->count);
        snprintf(c->sets[c->num_sets].name, sizeof c->sets->name, "%s", path);
        c->sets[c->num_sets].first = c->count;
        c->sets[c->num_sets++].count = count;
        c->count += count;
    }
    H5Sclose(space);
    H5Dclose(set);
    return status;
}

static bool content_read(const char *folder, int step, content *out)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/checkpoints/step-%d/model.h5", folder, step);
    memset(out, 0, sizeof *out);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    bool good = file >= 0 && H5Ovisit(file, H5_INDEX_NAME, H5_ITER_INC, read_one, out) >= 0;
    if (file >= 0)
        H5Fclose(file);
    return good && out->count > 0;
}

static const content *reference_of(const torture_state *state, int step)
{
    static content *read[TORTURE_VARIANTS][TORTURE_MAX_STEPS + 1];
    content **at = &read[state->variant][step];
    if (*at)
        return *at;
    *at = malloc(sizeof **at);
    if (*at && !content_read(state->reference, step, *at)) {
        free(*at);
        *at = NULL;
    }
    return *at;
}

/* --- equal chains --------------------------------------------------------------------------- */

uint64_t torture_hash(uint64_t hash, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    return hash ^ (hash >> 29);
}

bool torture_has_reference(const torture_state *state, int step)
{
    return reference_of(state, step) != NULL;
}

bool torture_agrees(uint64_t chain, uint64_t hash, bool *out_known)
{
    static struct {
        uint64_t chain, hash;
    } table[1 << TABLE_BITS];
    static int used;
    size_t mask = ((size_t)1 << TABLE_BITS) - 1, at = chain * 0x9e3779b97f4a7c15u >> 20 & mask;
    while (table[at].chain && table[at].chain != chain)
        at = (at + 1) & mask;
    *out_known = table[at].chain == chain;
    if (*out_known)
        return table[at].hash == hash;
    if (used < (int)mask / 2) {
        used++;
        table[at].chain = chain;
        table[at].hash = hash;
    }
    return true;
}

/* --- a checkpoint --------------------------------------------------------------------------- */

static double norm_of(const float *a, const float *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        double difference = (double)a[i] - (b ? (double)b[i] : 0);
        sum += difference * difference;
    }
    return sqrt(sum / (double)count);
}

static void compare_set(const content *got, const content *wanted, const content *beside, int set,
                        int step)
{
    const char *name = got->sets[set].name;
    size_t first = got->sets[set].first, count = got->sets[set].count;
    bool is_weight = strncmp(name, "model/", 6) == 0;
    double floor = is_weight ? WEIGHT_FLOOR
                             : MOMENT_FLOOR * norm_of(wanted->values + first, NULL, count) + 1e-12;
    for (size_t i = 0; i < count; i += BLOCK) {
        size_t block = count - i < BLOCK ? count - i : BLOCK;
        const float *a = got->values + first + i, *b = wanted->values + first + i;
        double change = norm_of(b, beside->values + first + i, block);
        double limit = STEP_SHARE * change + floor, differs = norm_of(a, b, block);
        torture_count.worst_share = fmax(torture_count.worst_share, differs / limit);
        if (differs <= limit)
            continue;
        torture_violation("step %d: %s [%zu:%zu] differs by %.3g from the single rank's, one step "
                          "changes it by %.3g",
                          step, name, i, i + block, differs, change);
        return;
    }
}

void torture_compare(const torture_state *state, int step)
{
    content got;
    const content *wanted = reference_of(state, step);
    const content *beside = reference_of(state, step > 1 ? step - 1 : step + 1);
    if (!content_read(state->run, step, &got)) {
        torture_violation("step %d: model.h5 cannot be read", step);
    } else if (!wanted || !beside || got.num_sets != wanted->num_sets ||
               got.count != wanted->count) {
        torture_violation("step %d: other datasets than the single rank's", step);
    } else {
        long before = torture_count.violations;
        for (int i = 0; state->variant < TORTURE_ROUGH && i < got.num_sets &&
                        torture_count.violations == before;
             i++)
            compare_set(&got, wanted, beside, i, step);
        bool is_known;
        uint64_t hash = torture_hash(7, got.values, got.count * sizeof *got.values);
        if (!torture_agrees(state->line[step] * 2 + 1, hash, &is_known))
            torture_violation("step %d: the checkpoint has other bits than before from the same "
                              "steps on the same meshes",
                              step);
        torture_count.same_checkpoints += is_known;
        torture_count.compared_checkpoints++;
    }
    free(got.values);
}
