/* A program as text, behind a line of choices: what level it is of, and the shapes there. What is
 * read prints as it was; the checkers and the pricing cope with it. */
#include "tests/fuzz/fuzz.h"
#include "tests/schedule/subjects.h"

static uint32_t next(void *context, uint32_t bound)
{
    return fuzz_choose(context, bound);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static subject s;
    fuzz_parts parts;
    const uint8_t *end = size > 0 ? memchr(data, '\n', size) : NULL;
    const size_t head = end ? (size_t)(end - data) : size;
    fuzz_choices choices = {(const char *)data, head};
    fuzz_cut(end ? end + 1 : data, end ? size - head - 1 : 0, 1, &parts);
    const uint32_t number = fuzz_choose(&choices, 4);
    make_subject(&(draws){next, &choices}, &s);
    weft_program *program = &s.programs[number % (uint32_t)s.num_programs];
    const weft_status status = weft_program_parse(parts.at[0], &s.arena, program);
    if (status == WEFT_OK) {
        char *printed = text_of(program);
        FUZZ_CHECK(strcmp(printed, parts.at[0]) == 0, "%s", printed);
        free(printed);
        const bool accepted = check_subject(&s) == WEFT_OK;
        price_subject(&s, accepted);
        weft_error_clear();
    } else {
        fuzz_refused(status);
    }
    release_subject(&s);
    fuzz_release(&parts);
    return 0;
}
