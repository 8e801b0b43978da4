/* The golden files of tests/oracle. */
#ifndef WEFT_TESTS_LAYERS_GOLDEN_FILE_H
#define WEFT_TESTS_LAYERS_GOLDEN_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "tests/expect.h"
#include "tests/layers/harness.h"

typedef struct golden {
    cJSON *header;
    float *data;
} golden;

static inline bool golden_open(const char *name, golden *out)
{
    char path[1024], *text = NULL;
    size_t bytes;
    uint64_t length;
    weft_arena arena = {0};
    snprintf(path, sizeof path, "%s/tests/oracle/golden/%s.golden", getenv("WEFT_SOURCE_DIR"),
             name);
    EXPECT_OK(weft_read_file(path, &arena, &text, &bytes));
    if (!text)
        return false;
    memcpy(&length, text, sizeof length);
    out->header = cJSON_ParseWithLength(text + 8, length);
    EXPECT(out->header != NULL, "%s", path);
    out->data = malloc(bytes);
    memcpy(out->data, text + 8 + length, bytes - 8 - length);
    weft_arena_release(&arena);
    return out->header != NULL;
}

static inline void golden_release(golden *g)
{
    cJSON_Delete(g->header);
    free(g->data);
}

static inline size_t golden_number(const golden *g, const char *key)
{
    return (size_t)cJSON_GetObjectItemCaseSensitive(g->header, key)->valuedouble;
}

/* The model that it is of. */
static inline weft_model_options golden_model(const golden *g, weft_arena *arena)
{
    weft_model_options options = {0};
    char *config = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(g->header, "config"));
    char text[2048];
    snprintf(text, sizeof text, "{\"model\": %s}", config);
    free(config);
    EXPECT_OK(harness_options(text, arena, &options));
    return options;
}

/* The data of a tensor, its element count in *count; NULL when there is none. */
static inline const float *golden_find(const golden *g, const char *kind, const char *name,
                                       size_t *count)
{
    char wanted[160];
    const cJSON *row, *dim;
    snprintf(wanted, sizeof wanted, "%s%s", kind, name);
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(g->header, "tensors"))
    {
        if (strcmp(cJSON_GetObjectItemCaseSensitive(row, "name")->valuestring, wanted) != 0)
            continue;
        *count = 1;
        cJSON_ArrayForEach(dim, cJSON_GetObjectItemCaseSensitive(row, "shape")) *count *=
            (size_t)dim->valuedouble;
        return g->data + (size_t)cJSON_GetObjectItemCaseSensitive(row, "offset")->valuedouble;
    }
    return NULL;
}

/* Every gradient within 1e-5 of its norm; what the file leaves out at a tensor's end is zero.
 * Returns the worst. */
static inline double golden_check_gradients(const golden *g, const char *name,
                                            weft_parameters *parameters)
{
    double worst = 0;
    for (int i = 0; i < weft_parameters_count(parameters); i++) {
        const weft_parameter *p = &weft_parameters_at(parameters, i)->parameter;
        size_t count = 0;
        const float *grad = golden_find(g, "grad/", p->name, &count);
        double difference = 0, norm = 0;
        for (size_t k = 0; grad && k < weft_tensor_count(&p->weight); k++) {
            const double wanted = k < count ? (double)grad[k] : 0;
            difference += pow((double)p->grad[weft_parameter_place(p, k)] - wanted, 2);
            norm += pow(wanted, 2);
        }
        double relative = sqrt(difference / norm);
        EXPECT(grad && count <= weft_tensor_count(&p->weight) && relative <= 1e-5,
               "%s: gradient of %s is off by %.3g", name, p->name, relative);
        worst = relative > worst ? relative : worst;
    }
    return worst;
}

#endif
