/* A call that one rank leaves out: each call of one step in turn, on meshes of two ranks, and the
 * right rank is named, never another, and never a bug.
 *   test_skipped WEFT-WITH-FAULTS [all]    all calls of both ranks, by messages and by shared
 *                                          memory; else some of them */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/status.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

static const char config[] =
    "{\"model\": {\"num_layers\": 1, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"seq_length\": 12, \"vocab_size\": 53},\n"
    "\"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 2, \"train_iters\": 6},\n"
    "\"data\": {\"mock_data\": true}, \"checkpoint\": {\"no_save\": true},\n"
    "\"reliability\": {\"exchange_limit_s\": 8, \"step_limit_s\": 30, \"limit_factor\": 1},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0, "
    "\"level\": \"warn\"}}\n";

typedef struct mesh {
    const char *axes, *set;
} mesh;
static const mesh meshes[] = {{"dp=2", "train.global_batch_size=4"},
                              {"tp=2", "train.global_batch_size=2"},
                              {"pp=2", "model.num_layers=2"},
                              {"dp=2,ep=2", "model.num_experts=4"}};

/* Whom a line blames; -1: nobody. */
static int blamed(const char *line)
{
    static const char *const words[] = {" has left out ", " is in another exchange",
                                        " is out of order", " is missing"};
    const char *open = NULL;
    for (size_t i = 0; i < sizeof words / sizeof *words && !open; i++)
        open = strstr(line, words[i]);
    const char *received = strstr(line, ", which has received ");
    if (!open && received)
        return received[-1] - '0';
    while (open && open > line && *open != '(')
        open--;
    return open && open > line + 1 ? open[-2] - '0' : -1;
}

/* False: the step has no such call. */
static bool skip(const mesh *m, bool windows, int rank, int number)
{
    char fault[64], run[64], mark[96], what[192];
    child c;
    snprintf(fault, sizeof fault, "FAULT=skip:any:%d:3:%d", rank, number);
    snprintf(run, sizeof run, "%s-%d-%d-%d", m->axes, windows, rank, number);
    snprintf(mark, sizeof mark, "FAULT_MARK=%s.mark", run);
    child_run(&c, WORDS("train", "c.json", "--out", run, "--mesh", m->axes, "--set", m->set),
              WORDS(fault, mark, windows ? "WEFT_SHARED_WINDOWS=1" : "WEFT_SHARED_WINDOWS=0"));
    char *call = child_read(mark + strlen("FAULT_MARK="));
    if (!call) {
        EXPECT(c.exit_code == 0, "%s: exit %d: %s", run, c.exit_code, c.err);
        return false;
    }
    snprintf(what, sizeof what, "%s, without %.80s", run, call);
    EXPECT(c.exit_code == weft_status_exit_code(WEFT_HUNG) ||
               c.exit_code == weft_status_exit_code(WEFT_COMM),
           "%s: exit %d", what, c.exit_code);
    int num_right = 0;
    char *text = strdup(c.err ? c.err : "");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        const int who = blamed(line);
        num_right += who == rank;
        EXPECT(who == rank || who < 0, "%s: blames rank %d: %s", what, who, line);
    }
    EXPECT(num_right > 0, "%s: %s", what, c.err);
    free(text);
    return true;
}

static bool all;

static void part(int i)
{
    for (int way = 0; way < (all ? 4 : 1); way++)
        for (int number = 0; skip(&meshes[i], way > 1, way % 2 == 0, number);)
            number += all ? 1 : 3;
}

int main(int argc, char **argv)
{
    all = argc > 2 && strcmp(argv[2], "all") == 0;
    if (argc > 1)
        child_program = argv[1];
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    child_side_by_side(part, sizeof meshes / sizeof *meshes, 4);
    return child_finish();
}
