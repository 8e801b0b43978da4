/* Comparing two checkpoints as HDF5 sees them. */
#ifndef WEFT_TESTS_LAUNCHER_WEIGHTS_H
#define WEFT_TESTS_LAUNCHER_WEIGHTS_H

typedef struct weights_difference {
    double worst;    /* largest ||a - b|| / ||b|| of a dataset; NaN where one is missing */
    char where[160]; /* that dataset */
    int count;       /* datasets compared */
    int num_unequal; /* datasets with a differing bit */
} weights_difference;

/* Every dataset of step folder `a` whose path starts with `prefix` ("": weights and optimizer
 * state) against that of step folder `b`. count 0: a file cannot be read. */
weights_difference weights_compare(const char *a, const char *b, const char *prefix);

/* Compares what two runs in world_folder (tests/world.h) have saved after this step: each dataset
 * is within `bound`; 0: has the bits. */
void weights_expect(const char *got, const char *wanted, int step, const char *prefix,
                    double bound);

#endif
