/* A config, and behind it, each after a NUL, what --set says, or --mesh where it begins with '@'.
 * What is taken is JSON to another parser too, is written, and read back to the same. */
#include <cjson/cJSON.h>

#include "launcher/planning/config.h"
#include "tests/fuzz/fuzz.h"

static weft_status mesh_of(const weft_config *config, const weft_config_source *source)
{
    weft_mesh mesh;
    return weft_config_mesh(config, source, 0, &mesh);
}

static void check_taken(char *given, const weft_config *config, weft_arena *arena)
{
    const char *text, *again;
    weft_config back;
    cJSON_Minify(given); /* comments */
    cJSON *json = cJSON_ParseWithOpts(given, NULL, true);
    FUZZ_CHECK(json, "cJSON refuses %s", given);
    cJSON_Delete(json);
    FUZZ_OK(weft_config_text(config, arena, &text));
    const weft_config_source written = {.file = "written.json", .text = text, .no_data = true};
    FUZZ_OK(weft_config_load(&written, arena, &back));
    FUZZ_OK(weft_config_text(&back, arena, &again));
    FUZZ_CHECK(strcmp(text, again) == 0, "%s\nbecame\n%s", text, again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_parts parts;
    const char *set[FUZZ_MAX_PARTS];
    weft_arena arena = {0};
    weft_config config;
    fuzz_cut(data, size, 8, &parts);
    weft_config_source source = {
        .file = "given.json", .text = parts.at[0], .set = set, .no_data = true};
    for (int i = 1; i < parts.count; i++) {
        if (parts.at[i][0] == '@')
            source.mesh = parts.at[i] + 1;
        else
            set[source.num_set++] = parts.at[i];
    }
    weft_status status = weft_config_load(&source, &arena, &config);
    if (status == WEFT_OK) {
        check_taken(parts.at[0], &config, &arena);
        status = mesh_of(&config, &source);
    }
    if (status != WEFT_OK)
        fuzz_refused(status);
    weft_arena_release(&arena);
    fuzz_release(&parts);
    return 0;
}
