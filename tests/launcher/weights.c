#include "tests/launcher/weights.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hdf5.h>

#include "tests/world.h"

typedef struct comparison {
    hid_t other;
    const char *prefix;
    weights_difference *result;
} comparison;

static float *read_all(hid_t file, const char *path, size_t *count)
{
    if (H5Lexists(file, path, H5P_DEFAULT) <= 0)
        return NULL;
    hid_t set = H5Dopen2(file, path, H5P_DEFAULT);
    hid_t space = H5Dget_space(set);
    *count = (size_t)H5Sget_simple_extent_npoints(space);
    float *data = malloc((*count + 1) * sizeof *data);
    if (data && H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) {
        free(data);
        data = NULL;
    }
    H5Sclose(space);
    H5Dclose(set);
    return data;
}

static herr_t compare_one(hid_t file, const char *path, const H5O_info_t *info, void *context)
{
    comparison *c = context;
    weights_difference *r = c->result;
    if (info->type != H5O_TYPE_DATASET || strncmp(path, c->prefix, strlen(c->prefix)) != 0)
        return 0;
    size_t count = 0, other_count = 0;
    float *a = read_all(file, path, &count), *b = read_all(c->other, path, &other_count);
    double difference = 0, norm = 0, relative = NAN;
    if (a && b && count == other_count) {
        for (size_t i = 0; i < count; i++) {
            difference += pow((double)a[i] - (double)b[i], 2);
            norm += pow((double)b[i], 2);
        }
        relative = sqrt(difference / (norm + 1e-30));
        r->num_unequal += memcmp(a, b, count * sizeof *a) != 0;
    } else {
        r->num_unequal++;
    }
    if (!isnan(r->worst) && !(relative <= r->worst)) {
        r->worst = relative;
        snprintf(r->where, sizeof r->where, "%s", path);
    }
    r->count++;
    free(a);
    free(b);
    return 0;
}

weights_difference weights_compare(const char *a, const char *b, const char *prefix)
{
    weights_difference result = {0};
    char path[600];
    snprintf(path, sizeof path, "%s/model.h5", a);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    snprintf(path, sizeof path, "%s/model.h5", b);
    hid_t other = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    if (file >= 0 && other >= 0) {
        comparison c = {.other = other, .prefix = prefix, .result = &result};
        H5Ovisit(file, H5_INDEX_NAME, H5_ITER_NATIVE, compare_one, &c);
    }
    if (file >= 0)
        H5Fclose(file);
    if (other >= 0)
        H5Fclose(other);
    return result;
}

void weights_expect(const char *got, const char *wanted, int step, const char *prefix, double bound)
{
    char path[2][300];
    snprintf(path[0], sizeof path[0], "%s/%s/step-%d", world_folder, got, step);
    snprintf(path[1], sizeof path[1], "%s/%s/step-%d", world_folder, wanted, step);
    const weights_difference d = weights_compare(path[0], path[1], prefix);
    EXPECT(d.count > 20 && (bound > 0 ? d.worst <= bound : d.num_unequal == 0),
           "%s against %s: %d of %d datasets differ, %s most (%g)", got, wanted, d.num_unequal,
           d.count, d.where, d.worst);
}
