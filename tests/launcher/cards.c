/* What is said of nodes that have other numbers of GPUs. */
#include <string.h>

#include "launcher/training/cards.h"
#include "tests/expect.h"

static void expect_text(const weft_rank_cards *ranks, int world, const char *wanted)
{
    char text[400];
    weft_cards_text(ranks, world, text, sizeof text);
    EXPECT(strcmp(text, wanted) == 0, "\"%s\", not \"%s\"", text, wanted);
}

int main(void)
{
    static const weft_rank_cards ranks[] = {{"a", 8, 8}, {"a", 8, 8}, {"b", 8, 8}, {"c", 1, 8},
                                            {"d", 1, 8}, {"e", 8, 1}, {"f", 2, 2}};
    expect_text(ranks, 1, "");
    expect_text(ranks, 3, "");
    expect_text(ranks, 5, "a has 8 GPUs for 8 ranks, c has 1 GPU for 8 ranks");
    expect_text(ranks, 7,
                "a has 8 GPUs for 8 ranks, c has 1 GPU for 8 ranks, e has 8 GPUs for 1 rank");
    return expect_finish();
}
