/* A model of a parameter or two on one rank, whose state is known by its step, for tests of what a
 * checkpoint's files and folders go through. */
#ifndef WEFT_TESTS_PARALLEL_CHECKPOINT_TINY_H
#define WEFT_TESTS_PARALLEL_CHECKPOINT_TINY_H

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/rng.h"
#include "parallel/checkpoint/checkpoint.h"
#include "tests/expect.h"

/* What the model of a test looks like. */
typedef enum variant { PLAIN, EXTRA, LACKING, OTHER_SHAPE, LARGE } variant;

typedef struct tiny {
    weft_comm *world;
    weft_groups groups;
    weft_device *device;
    weft_lane *lane;
    weft_parameters *parameters;
    weft_optimizer *optimizer;
} tiny;

static inline void declare(tiny *t, const char *name, int num_dims, size_t d0, size_t d1)
{
    weft_parameter *out;
    weft_parameter_spec spec = {
        .struct_bytes = sizeof spec, .name = name, .num_dims = num_dims, .dims = {d0, d1}};
    EXPECT_OK(weft_parameters_declare(t->parameters, "", &spec, 0, &out));
}

static inline bool tiny_create(tiny *t, variant v)
{
    weft_parallel_options parallel = {.tensor_model_parallel_size = 1,
                                      .pipeline_model_parallel_size = 1,
                                      .context_parallel_size = 1,
                                      .expert_binding = WEFT_BINDING_DP,
                                      .order = "tp-cp-ep-dp-pp"};
    weft_mesh mesh;
    weft_optimizer_options options = {.sharding = WEFT_SHARD_OPTIM};
    int before = expect_failures;
    memset(t, 0, sizeof *t);
    EXPECT_OK(weft_mesh_build(&parallel, 1, 0, &mesh));
    EXPECT_OK(weft_comm_create_self(&t->world));
    EXPECT_OK(weft_device_create_cpu(1, 0, &t->device));
    EXPECT_OK(weft_groups_create(t->world, &mesh, NULL, &t->groups));
    EXPECT_OK(weft_lane_create(t->device, 0, "test", &t->lane));
    EXPECT_OK(weft_parameters_create(&t->groups, t->device, WEFT_F32, &t->parameters));
    if (expect_failures != before)
        return false;
    declare(t, "alpha", 2, v == OTHER_SHAPE ? 6 : 5, v == LARGE ? 100000 : 7);
    if (v != LACKING)
        declare(t, "beta", 1, 3, 0);
    if (v == EXTRA)
        declare(t, "gamma", 1, 2, 0);
    EXPECT_OK(weft_parameters_allocate(t->parameters, &(weft_residency){0}, true));
    EXPECT_OK(weft_optimizer_create(t->parameters, &options, &t->optimizer));
    return expect_failures == before;
}

static inline void tiny_release(tiny *t)
{
    weft_lane_destroy(t->lane);
    weft_optimizer_destroy(t->optimizer);
    weft_parameters_destroy(t->parameters);
    weft_groups_release(&t->groups);
    weft_device_destroy(t->device);
    weft_comm_destroy(t->world);
}

/* Sets the state of step `step`, or counts what differs from it. */
static inline size_t visit_state(tiny *t, int64_t step, bool set)
{
    size_t unlike = 0;
    for (int i = 0; i < weft_optimizer_num_pieces(t->optimizer); i++) {
        weft_state_piece piece = weft_optimizer_piece(t->optimizer, i);
        for (int kind = 0; kind < WEFT_NUM_STATES; kind++) {
            for (size_t e = 0; e < piece.count; e++) {
                float value = weft_rng_uniform((uint64_t)step, (uint64_t)kind, e);
                unlike += piece.data[kind][e] != value;
                if (set)
                    piece.data[kind][e] = value;
            }
        }
    }
    return unlike;
}

static inline weft_checkpoint_info info_of_step(int64_t step)
{
    return (weft_checkpoint_info){step,     4 * step, UINT64_MAX - 1, {1.0 / 3, step, 1, step / 4},
                                  2 * step, step / 2, {2.0 / 3, 7}};
}

/* The state as it is. */
static inline weft_status save_state(tiny *t, const char *dir, int64_t step)
{
    const weft_checkpoint_info info = info_of_step(step);
    return weft_checkpoint_save(dir, &info, t->parameters, t->optimizer, "{\"model\": {}}",
                                "{\"kind\": \"bytes\"}");
}

static inline weft_status save_step(tiny *t, const char *dir, int64_t step)
{
    visit_state(t, step, true);
    return save_state(t, dir, step);
}

static inline weft_status load(tiny *t, const char *folder)
{
    return weft_checkpoint_load(folder, t->parameters, t->optimizer, t->lane);
}

static inline int count_entries(const char *path)
{
    DIR *dir = opendir(path);
    int count = 0;
    for (const struct dirent *entry; dir && (entry = readdir(dir));)
        count += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    if (dir)
        closedir(dir);
    return count;
}

static inline void remove_tree(const char *path)
{
    expect_shell("rm -rf '%s'", path);
}

static inline char *read_bytes(const char *path, size_t *out)
{
    FILE *file = fopen(path, "rb");
    fseek(file, 0, SEEK_END);
    *out = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*out + 1);
    EXPECT(fread(bytes, 1, *out, file) == *out, "%s", path);
    fclose(file);
    return bytes;
}

static inline void write_bytes(const char *path, const char *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    EXPECT(fwrite(bytes, 1, count, file) == count, "%s", path);
    fclose(file);
}

#endif
