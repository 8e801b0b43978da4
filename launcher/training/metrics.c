#include "launcher/training/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "core/file.h"

double weft_metrics_number(const cJSON *line, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(line, key);
    return cJSON_IsNumber(value) ? value->valuedouble : NAN;
}

bool weft_metrics_is_evaluation(const cJSON *line)
{
    return cJSON_HasObjectItem(line, "validation_loss");
}

static weft_status read_lines(const char *path, FILE *file, weft_metrics_function visit,
                              void *context)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t bytes;
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && (bytes = getline(&line, &capacity, file)) > 0) {
        cJSON *json = cJSON_ParseWithLength(line, (size_t)bytes);
        if (weft_metrics_number(json, "step") >= 0)
            status = visit(context, json);
        cJSON_Delete(json);
    }
    free(line);
    if (status == WEFT_OK && ferror(file))
        status = WEFT_ERROR(WEFT_FILE, "%s: cannot read: %s", path, strerror(errno));
    return status;
}

weft_status weft_metrics_read(const char *run, weft_metrics_function visit, void *context)
{
    char path[4096];
    FILE *file;
    WEFT_TRY(weft_path_print(path, sizeof path, "%s/metrics.jsonl", run));
    if (access(path, F_OK) != 0)
        return WEFT_ERROR(WEFT_FILE, "%s: not a run's folder: %s: %s", run, path, strerror(errno));
    WEFT_TRY(weft_file_stream(path, &file));
    weft_status status = read_lines(path, file, visit, context);
    fclose(file);
    return status;
}
