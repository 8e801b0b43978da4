/* What an unknown key may stand for. */
#include <stdlib.h>
#include <string.h>

#include "core/options/options.h"

/* Every row's key, section after section. */
typedef struct rows {
    const weft_option_section *sections;
    const char **names;
    size_t count;
} rows;

static const weft_option_section *section_of(const rows *r, size_t index)
{
    const weft_option_section *section = r->sections;
    for (; index >= section->num_rows; section++)
        index -= section->num_rows;
    return section;
}

static size_t nearest(const rows *r, size_t first, const char *key, size_t count, size_t *out)
{
    const char *near = weft_nearest_name(key, r->names + first, count);
    for (size_t i = first; near && i < first + count; i++)
        if (r->names[i] == near) {
            *out = i;
            return 1;
        }
    return 0;
}

/* What means the same before what is spelled much the same; of these the section's own first, which
 * rows [first, first + own) are. */
static size_t find(const rows *r, const char *key, size_t first, size_t own,
                   size_t out[WEFT_LIKELY_NAMES])
{
    size_t count = weft_likely_names(key, r->names, r->count, first, own, out), all[1];
    if (count > 0)
        return count;
    count = nearest(r, first, key, own, out);
    if (nearest(r, 0, key, r->count, all) == 0)
        return count;
    /* The earlier of equally near ones wins. */
    const char *const both[] = {count ? r->names[*out] : r->names[*all], r->names[*all]};
    if (count == 0 || weft_nearest_name(key, both, 2) != both[0])
        *out = *all;
    return 1;
}

weft_status weft_options_near(const weft_option_section *sections, size_t num_sections,
                              const char *section, const char *key, weft_arena *arena,
                              weft_string_list *out)
{
    rows r = {.sections = sections};
    size_t first = 0, own = 0, at = 0, found[WEFT_LIKELY_NAMES];
    void *memory;
    for (size_t i = 0; i < num_sections; r.count += sections[i++].num_rows)
        if (section && strcmp(sections[i].name, section) == 0) {
            first = r.count;
            own = sections[i].num_rows;
        }
    WEFT_TRY(weft_arena_alloc_array(arena, r.count + WEFT_LIKELY_NAMES, sizeof(char *), &memory));
    const char **keys = memory;
    r.names = keys + WEFT_LIKELY_NAMES;
    for (size_t i = 0; i < num_sections; i++)
        for (size_t j = 0; j < sections[i].num_rows; j++)
            r.names[at++] = sections[i].rows[j].key;
    const size_t count = find(&r, key, first, own, found);
    for (size_t i = 0; i < count; i++)
        WEFT_TRY(weft_arena_printf(arena, &keys[i], "%s.%s", section_of(&r, found[i])->name,
                                   r.names[found[i]]));
    *out = (weft_string_list){.values = keys, .count = count};
    return WEFT_OK;
}

weft_status weft_options_near_text(const weft_string_list *near, const char *before,
                                   const char *after, weft_arena *arena, const char **out)
{
    *out = "";
    for (size_t i = 0; i < near->count; i++) {
        const char *between = i == 0 ? "" : i + 1 == near->count ? " or " : ", ";
        WEFT_TRY(weft_arena_printf(arena, out, "%s%s%s%s%s", *out, between, before, near->values[i],
                                   after));
    }
    return WEFT_OK;
}
