/* An order of compute as CSV, behind a line of choices. What is read prints to the same order, and
 * is lowered to programs that the checker takes. */
#include "tests/fuzz/fuzz.h"
#include "tests/schedule/programs.h"

static void lower(fuzz_choices *choices, const weft_order_shape *shape, const weft_order *orders)
{
    bool host_waits[MAX_STAGES];
    for (int i = 0; i < MAX_STAGES; i++)
        host_waits[i] = fuzz_choose(choices, 3) == 1;
    program_set set = {.shape = {.num_stages = shape->num_ranks,
                                 .num_chunks = shape->num_chunks,
                                 .num_micro_batches = shape->num_micro_batches,
                                 .forward_only = fuzz_choose(choices, 5) == 1,
                                 .boundary_bytes = 8,
                                 .orders = orders,
                                 .host_waits = host_waits,
                                 .is_v = shape->is_v}};
    const weft_status status = weft_program_pipeline(&set.shape, &set.arena, set.programs);
    if (status == WEFT_OK)
        FUZZ_OK(check_set(&set));
    else if (strstr(weft_error_get()->text, "is not in its turn"))
        fuzz_refused(status);
    else
        FUZZ_OK(status);
    release_set(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_parts parts;
    weft_order read[MAX_STAGES], twice[MAX_STAGES];
    weft_arena arena = {0};
    const uint8_t *end = size > 0 ? memchr(data, '\n', size) : NULL;
    const size_t head = end ? (size_t)(end - data) : size;
    fuzz_choices choices = {(const char *)data, head};
    fuzz_cut(end ? end + 1 : data, end ? size - head - 1 : 0, 1, &parts);
    weft_order_shape shape = {.group_size = 0};
    shape.num_ranks = 1 + (int)fuzz_choose(&choices, 4);
    shape.num_chunks = 1 + (int)fuzz_choose(&choices, 3);
    shape.num_micro_batches = 1 + (int)fuzz_choose(&choices, 6);
    shape.is_v = weft_order_text_is_v(parts.at[0], shape.num_ranks);
    const weft_status status = weft_order_parse(parts.at[0], &shape, &arena, read);
    if (status == WEFT_OK) {
        char *text = order_text(&shape, read);
        FUZZ_OK(weft_order_parse(text, &shape, &arena, twice));
        FUZZ_CHECK(same_orders(&shape, read, twice), "%s", text);
        free(text);
        lower(&choices, &shape, read);
    } else {
        fuzz_refused(status);
    }
    weft_arena_release(&arena);
    fuzz_release(&parts);
    return 0;
}
