#include "launcher/planning/families.h"

#include <stdio.h>
#include <string.h>

#define ADDRESS(name) &weft_family_##name,
static const weft_family *const families[] = {WEFT_FAMILIES(ADDRESS)};

const weft_family *weft_family_at(const weft_application *application, size_t index)
{
    const size_t own = application ? application->num_families : 0;
    if (index < own)
        return application->families[index];
    return index - own < sizeof families / sizeof *families ? families[index - own] : NULL;
}

const weft_family *weft_family_named(const weft_application *application, const char *model_type,
                                     bool *out_own)
{
    const weft_family *family;
    for (size_t i = 0; (family = weft_family_at(application, i)) != NULL; i++)
        if (strcmp(family->model_type, model_type) == 0) {
            *out_own = application && i < application->num_families;
            return family;
        }
    return NULL;
}

const char *weft_families_text(const weft_application *application, bool architectures,
                               char out[WEFT_FAMILIES_TEXT_BYTES])
{
    const weft_family *family;
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; (family = weft_family_at(application, i)) && used < WEFT_FAMILIES_TEXT_BYTES;
         i++)
        used +=
            (size_t)snprintf(out + used, WEFT_FAMILIES_TEXT_BYTES - used, "%s%s", i > 0 ? ", " : "",
                             architectures ? family->architecture : family->model_type);
    return out;
}
