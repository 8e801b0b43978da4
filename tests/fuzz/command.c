/* A command line: words that end with a newline, the program's name left out, given to weft_main in
 * a folder that has the files it may name. What would start ranks or processes is refused; what it
 * writes lies in that folder, for no word can name another. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/weft.h>

#include "comm/comm.h"
#include "launcher/training/start.h"
#include "tests/fuzz/fuzz.h"
#include "tests/parallel/checkpoint_tiny.h"

enum { MOST_WORDS = 24, MOST_FILES = 64 };

/* --- what is not done: the linker puts these in place of the functions (tests.cmake) -----------
 */

weft_status __wrap_weft_start_ranks(weft_start *start, const weft_config *config,
                                    const weft_config_source *source, const weft_run_folder *folder,
                                    int argc, char **argv);
weft_status __wrap_weft_start_ranks(weft_start *start, const weft_config *config,
                                    const weft_config_source *source, const weft_run_folder *folder,
                                    int argc, char **argv)
{
    (void)start, (void)config, (void)source, (void)folder, (void)argc, (void)argv;
    return WEFT_ERROR(WEFT_COMM, "no ranks here");
}

weft_status __wrap_weft_launch_mpirun(int world, int argc, char **argv, const char *run,
                                      int *out_exit_code);
weft_status __wrap_weft_launch_mpirun(int world, int argc, char **argv, const char *run,
                                      int *out_exit_code)
{
    (void)world, (void)argc, (void)argv, (void)run, (void)out_exit_code;
    return WEFT_ERROR(WEFT_COMM, "no ranks here");
}

static bool at_work; /* a command line runs; else the target itself makes its files */
weft_status __real_weft_comm_create_self(weft_comm **out);
weft_status __wrap_weft_comm_create_self(weft_comm **out);
weft_status __wrap_weft_comm_create_self(weft_comm **out)
{
    return at_work ? WEFT_ERROR(WEFT_COMM, "no ranks here") : __real_weft_comm_create_self(out);
}

weft_status __wrap_weft_comm_create_world(weft_comm **out);
weft_status __wrap_weft_comm_create_world(weft_comm **out)
{
    (void)out;
    return WEFT_ERROR(WEFT_COMM, "no ranks here");
}

void __wrap_weft_stop_catch_signals(void);
void __wrap_weft_stop_catch_signals(void)
{
}

void __wrap_weft_stop_catch_wishes(void);
void __wrap_weft_stop_catch_wishes(void)
{
}

pid_t __real_fork(void);
pid_t __wrap_fork(void);
pid_t __wrap_fork(void)
{
    errno = EAGAIN;
    return at_work ? -1 : __real_fork();
}

/* --- the folder ------------------------------------------------------------------------------ */

static const char config_text[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4,\n"
    " \"seq_length\": 32, \"vocab_size\": 257},\n"
    " \"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 2},\n"
    " \"data\": {\"data_path\": \"tokens\"}}\n";
static const char moe_text[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4,\n"
    " \"seq_length\": 32, \"vocab_size\": 64, \"num_experts\": 4, \"moe_router_topk\": 2},\n"
    " \"parallel\": {\"expert_model_parallel_size\": 2},\n"
    " \"train\": {\"micro_batch_size\": 1, \"global_batch_size\": 4, \"train_iters\": 2},\n"
    " \"data\": {\"mock_data\": true}}\n";
static const char cluster_text[] =
    "{\"name\": \"two\", \"num_nodes\": 2, \"ranks_per_node\": 4,\n"
    " \"device\": {\"memory_bytes\": 8e10, \"memory_bandwidth\": 2e12,\n"
    "  \"peak\": {\"fp32\": 2e13, \"bf16\": 3e14}},\n"
    " \"inside\": {\"bandwidth\": 3e11, \"latency_us\": 3},\n"
    " \"between\": {\"bandwidth\": 2.5e10, \"latency_us\": 8, \"cards\": 4}}\n";
static const char record_text[] =
    "{\"rank\": 0, \"node\": \"n\", \"phase\": \"step\", \"step\": 3, \"groups\": [],\n"
    " \"operations\": [], \"in_flight\": []}\n";
static const char topology_text[] = "SwitchName=leaf1 Nodes=n[1-2]\n";

static struct {
    char *path, *data;
    size_t bytes;
    struct timespec changed;
} files[MOST_FILES];
static int num_files;

static int take_file(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)where;
    if (kind != FTW_F)
        return 0;
    FUZZ_CHECK(num_files < MOST_FILES, "%s", path);
    files[num_files].path = strdup(path);
    files[num_files].data = read_bytes(path, &files[num_files].bytes);
    files[num_files++].changed = info->st_mtim;
    return 0;
}

/* Removes what was not there in the beginning, and puts right what has changed. */
static bool seen[MOST_FILES];
static int tidy_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    if (kind == FTW_DP || kind == FTW_D) {
        if (where->level > 0)
            rmdir(path); /* where it is empty */
        return 0;
    }
    for (int i = 0; i < num_files; i++) {
        if (strcmp(files[i].path, path) != 0)
            continue;
        seen[i] = kind == FTW_F && (size_t)info->st_size == files[i].bytes &&
                  info->st_mtim.tv_sec == files[i].changed.tv_sec &&
                  info->st_mtim.tv_nsec == files[i].changed.tv_nsec;
        return 0;
    }
    remove(path);
    return 0;
}

static void put_back(int i)
{
    struct stat info;
    char above[4096];
    snprintf(above, sizeof above, "%s", files[i].path);
    for (char *slash = above + 2; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        if (mkdir(above, 0700) != 0 && errno != EEXIST)
            FUZZ_CHECK(false, "%s", above);
        *slash = '/';
    }
    remove(files[i].path);
    fuzz_write(files[i].path, files[i].data, files[i].bytes);
    FUZZ_CHECK(stat(files[i].path, &info) == 0, "%s", files[i].path);
    files[i].changed = info.st_mtim;
}

static void tidy(void)
{
    memset(seen, 0, sizeof seen);
    FUZZ_CHECK(nftw(".", tidy_one, 8, FTW_DEPTH | FTW_PHYS) == 0, "the folder");
    for (int i = 0; i < num_files; i++)
        if (!seen[i])
            put_back(i);
}

static void run(int count, char **words)
{
    static char name[] = "weft";
    char *argv[MOST_WORDS + 2] = {name};
    memcpy(argv + 1, words, (size_t)count * sizeof *words);
    weft_error_clear();
    at_work = true;
    const int code = weft_main(count + 1, argv, NULL);
    at_work = false;
    FUZZ_CHECK(code >= 0 && code <= 10 && code != weft_status_exit_code(WEFT_INTERNAL),
               "exit code %d: %s", code, weft_error_get()->text);
    FUZZ_CHECK(code == 0 || !strchr(weft_error_get()->text, '\n'), "\"%s\"",
               weft_error_get()->text);
    fflush(stdout);
}

static void start(void)
{
    static char prepare[] = "prepare", text[] = "text.txt", out[] = "--out", prefix[] = "tokens";
    char book[2000];
    tiny model;
    for (size_t i = 0; i < sizeof book; i++)
        book[i] = "the cat sat on a mat.\n"[i % 22];
    FUZZ_CHECK(chdir(fuzz_folder()) == 0, "%s", fuzz_folder());
    FUZZ_CHECK(mkdir("run", 0700) == 0 && mkdir("run/flight", 0700) == 0, "run");
    fuzz_write("text.txt", book, sizeof book);
    fuzz_write("config.json", config_text, strlen(config_text));
    fuzz_write("moe.json", moe_text, strlen(moe_text));
    fuzz_write("cluster.json", cluster_text, strlen(cluster_text));
    fuzz_write("topology.conf", topology_text, strlen(topology_text));
    fuzz_write("run/config.json", config_text, strlen(config_text));
    fuzz_write("run/flight/rank-0.json", record_text, strlen(record_text));
    FUZZ_CHECK(tiny_create(&model, PLAIN), "the model");
    visit_state(&model, 1, true);
    const weft_checkpoint_info info = {.step = 1, .consumed_tokens = 128, .seed = 1};
    FUZZ_OK(weft_checkpoint_save("run/checkpoints", &info, model.parameters, model.optimizer,
                                 config_text, "{\"tokenizer\": {\"kind\": \"bytes\"}}"));
    tiny_release(&model);
    run(4, (char *[]){prepare, text, out, prefix});
    FUZZ_CHECK(access("tokens.idx", F_OK) == 0, "weft prepare");
    FUZZ_CHECK(nftw(".", take_file, 8, FTW_PHYS) == 0, "the folder");
}

/* No word names a path outside the folder: "/" stands behind a letter or digit, ".." nowhere. */
static void confine(char *word)
{
    for (char *c = word; *c; c++) {
        const bool named = c > word && ((c[-1] >= '0' && c[-1] <= '9') ||
                                        (c[-1] >= 'a' && c[-1] <= 'z') || c[-1] == '_');
        if ((c[0] == '/' && !named) || (c[0] == '.' && c[1] == '.'))
            *c = '_';
        if (c[0] == '\\') /* an escape of JSON would hide them */
            *c = '_';
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    const int in = open("/dev/null", O_RDONLY);
    FUZZ_CHECK(in >= 0 && dup2(in, STDIN_FILENO) == STDIN_FILENO, "standard input");
    FUZZ_CHECK(freopen("/dev/null", "w", stdout), "standard output");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *words[MOST_WORDS];
    int count = 0;
    fuzz_parts parts;
    if (num_files == 0)
        start();
    fuzz_cut(data, size, 2, &parts);
    for (char *word = parts.at[0]; *word && count < MOST_WORDS;) {
        const size_t length = strcspn(word, "\n");
        const bool more = word[length] == '\n';
        words[count] = strndup(word, length);
        FUZZ_CHECK(words[count], "no memory");
        confine(words[count++]);
        word += length + more;
    }
    run(count, words);
    for (int i = 0; i < count; i++)
        free(words[i]);
    tidy();
    fuzz_release(&parts);
    return 0;
}
