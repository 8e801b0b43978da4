/* A model whose experts train beyond device memory generates and is evaluated there, too: the same
 * text and loss wherever they are, and in device memory that holds some of them alone. */
#include <stdlib.h>
#include <string.h>

#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { MAX_SET = 4, MAX_ARGS = 24 };

/* 3 layers of 24 experts of 32 KiB in fp32: 2.25 MiB. */
static const char config[] =
    "{\"model\": {\"num_layers\": 3, \"hidden_size\": 32, \"ffn_hidden_size\": 128,\n"
    "  \"num_attention_heads\": 4, \"seq_length\": 16, \"vocab_size\": 300, \"num_experts\": 24,\n"
    "  \"moe_router_topk\": 2},\n"
    "\"train\": {\"micro_batch_size\": 2, \"global_batch_size\": 2, \"train_iters\": 3,\n"
    "  \"lr\": 1e-2, \"eval_iters\": 2},\n"
    "\"data\": {\"data_path\": \"corpus\", \"split\": \"8,2,0\"},\n"
    "\"offload\": {\"experts\": \"host\", \"kept\": 0.125},\n"
    "\"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";
#define LIMIT "device.memory_limit=1500000"

#define SETS(...) ((const char *const[MAX_SET]){__VA_ARGS__})

static child ask(const char *verb, const char *const sets[MAX_SET])
{
    const char *args[MAX_ARGS] = {verb, "run", "--json"};
    int count = 3;
    child c;
    if (strcmp(verb, "generate") == 0) {
        args[count++] = "--prompt";
        args[count++] = "the quick ";
        args[count++] = "--num-tokens";
        args[count++] = "9";
    }
    child_add_sets(args, sets, MAX_SET);
    child_run(&c, args, NULL);
    return c;
}

/* Says the same with these settings as `wanted`, what it says without any. */
static void same(const char *verb, const char *wanted, const char *const sets[MAX_SET])
{
    child c = ask(verb, sets);
    EXPECT(c.exit_code == 0 && c.out && strcmp(c.out, wanted) == 0,
           "%s with %s, %s: exit %d: %s%s, not %s", verb, sets[0], sets[1], c.exit_code, c.out,
           c.err, wanted);
}

/* Whether it says something in this device memory. */
static bool runs(const char *verb, const char *degree, int bytes, const char *says)
{
    char limit[48];
    snprintf(limit, sizeof limit, "device.memory_limit=%d", bytes);
    child c = ask(verb, SETS(degree, "offload.kept=0", limit));
    const bool fits = c.exit_code == 0 && (!says || strstr(c.err, says));
    EXPECT(c.exit_code == 0 || (c.exit_code == 3 && child_is_line(c.err)), "%s, %s: exit %d: %s",
           degree, limit, c.exit_code, c.err);
    return fits;
}

/* The least device memory in which it says something, to 256 bytes. */
static int least(const char *verb, const char *degree, const char *says)
{
    int below = 100000, fits = 8000000;
    while (fits - below > 256) {
        const int middle = (below + fits) / 2;
        *(runs(verb, degree, middle, says) ? &fits : &below) = middle;
    }
    return fits;
}

/* What fits is told by what this takes, not by what training does: the choice is `none` from where
 * `none` runs, and what is refused is so before anything is allocated. */
static void check_limits(const char *verb)
{
    static const char none[] = "offload.experts=none", open[] = "offload.experts=auto";
    const int resident = least(verb, none, NULL),
              chosen = least(verb, open, "experts: none (auto: the first that fits); device "),
              moved = least(verb, open, NULL);
    EXPECT(abs(resident - chosen) <= resident / 100 && moved < resident / 4,
           "%s: runs from %d bytes, chosen from %d, elsewhere from %d", verb, resident, chosen,
           moved);
    child c = ask(verb, SETS(open, "device.memory_limit=100000"));
    EXPECT(c.exit_code == 3 && child_is_line(c.err) &&
               strstr(c.err, ": device.memory_limit: out of memory: stage 0 of 1 takes "),
           "%s: exit %d: %s", verb, c.exit_code, c.err);
    c = ask(verb, SETS("offload.host_memory_limit=100000"));
    EXPECT(c.exit_code == 3 && child_is_line(c.err) &&
               strstr(c.err, ": offload.host_memory_limit: out of memory: "),
           "%s: exit %d: %s", verb, c.exit_code, c.err);
}

static void check(const char *verb)
{
    child c = ask(verb, SETS(NULL));
    EXPECT(c.exit_code == 0 && c.out && *c.out, "%s: exit %d: %s", verb, c.exit_code, c.err);
    if (c.exit_code == 0) {
        same(verb, c.out, SETS("offload.experts=none"));
        same(verb, c.out, SETS(LIMIT));
        same(verb, c.out, SETS(LIMIT, "offload.kept=0", "offload.slots=3"));
        same(verb, c.out, SETS("offload.experts=file", LIMIT));
        same(verb, c.out, SETS("offload.experts=file", "offload.cached=0", "offload.order=layer"));
        same(verb, c.out, SETS("offload.experts=auto", "offload.kept=-1"));
    }
    c = ask(verb, SETS("offload.experts=none", LIMIT));
    EXPECT(c.exit_code == 3 && child_is_line(c.err) && strstr(c.err, "memory"), "exit %d: %s",
           c.exit_code, c.err);
}

int main(void)
{
    child_begin();
    EXPECT(child_write("c.json", config), "no folder");
    child_make_corpus("corpus", 8000);
    CHILD_GOOD("train", "c.json", "--out", "run");
    check("generate");
    check("eval");
    check_limits("generate");
    check_limits("eval");
    return child_finish();
}
