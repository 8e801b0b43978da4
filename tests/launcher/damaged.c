/* Damaged and foreign files of a dataset and of a checkpoint, as every verb that reads them meets
 * them: exit code 6, one line that names the file, nothing on stdout, nothing trained. And files
 * that fail under a run. */
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <hdf5.h>
#include <xxhash.h>

#include "launcher/text/known.h"
#include "tests/expect.h"
#include "tests/json.h"
#include "tests/launcher/child.h"

static const char config[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 4, "
    "\"seq_length\": 16},\n"
    " \"train\": {\"global_batch_size\": 2, \"train_iters\": 2, \"lr_decay_style\": \"constant\"}, "
    "\"data\": {\"data_path\": \"corpus\"}, \"checkpoint\": {\"fallback\": 0},\n"
    " \"device\": {\"peak_flops\": 1e9, \"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

typedef struct bytes {
    unsigned char *data;
    size_t count;
} bytes;

static bytes read_bytes(const char *path)
{
    bytes b = {NULL, 0};
    FILE *file = fopen(path, "rb");
    EXPECT(file != NULL, "%s: cannot read", path);
    if (!file)
        return b;
    fseek(file, 0, SEEK_END);
    b.count = (size_t)ftell(file);
    rewind(file);
    b.data = malloc(b.count + 4); /* room to grow */
    EXPECT(b.data && fread(b.data, 1, b.count, file) == b.count, "%s: cannot read", path);
    fclose(file);
    return b;
}

static void write_bytes(const char *path, const void *data, size_t count)
{
    FILE *file = fopen(path, "wb");
    bool good = file && fwrite(data, 1, count, file) == count;
    EXPECT(file && (fclose(file) == 0) & good, "%s: cannot write", path);
}

/* --- what is asked of the verbs ------------------------------------------------------------ */

static const char *const inspect_run[] = {"inspect", "run", NULL};
static const char *const resume[] = {"train",    "c.json", "--out",         "run",
                                     "--resume", "--set",  "train_iters=4", NULL};
static const char *const resume_pair[] = {"train",  "c.json", "--out", "run",           "--resume",
                                          "--mesh", "dp=2",   "--set", "train_iters=4", NULL};
static const char *const resume_longer[] = {"train",    "c.json", "--out",         "run",
                                            "--resume", "--set",  "train_iters=6", NULL};
static const char *const resume_longer_pair[] = {"train",         "c.json", "--out", "run",
                                                 "--resume",      "--mesh", "dp=2",  "--set",
                                                 "train_iters=6", NULL};
static const char *const generate[] = {"generate",     "run", "--prompt", "the",
                                       "--num-tokens", "2",   NULL};
static const char *const inspect_corpus[] = {"inspect", "corpus", NULL};
static const char *const train[] = {"train", "c.json", "--out", "fresh", NULL};
static const char *const train_pair[] = {"train",  "c.json", "--out", "fresh",
                                         "--mesh", "dp=2",   NULL};

static void refuse(const char *const *args, const char *file, const char *how)
{
    child c;
    child_run(&c, args, NULL);
    EXPECT(c.exit_code == 6, "%s %s: weft %s: exit %d: %s%s", file, how, args[0], c.exit_code,
           c.err, c.out);
    EXPECT(child_is_line(c.err) && strncmp(c.err, "weft ", 5) == 0 && strstr(c.err, file),
           "%s %s: weft %s says %s", file, how, args[0], c.err);
    /* `weft inspect` of a run begins with its time, which is whole. */
    const bool inspects = strcmp(args[0], "inspect") == 0 && strcmp(args[1], "run") == 0;
    EXPECT(c.out && (!*c.out || (inspects && strncmp(c.out, "time of ", 8) == 0 &&
                                 !strstr(c.out, "checkpoint "))),
           "%s %s: weft %s wrote %s", file, how, args[0], c.out);
    EXPECT(access("fresh", F_OK) != 0, "%s %s: made a run folder", file, how);
}

typedef const char *const *command;

/* --- damages ------------------------------------------------------------------------------- */

typedef enum damage_kind {
    OTHER_KIND,
    TEXT,
    EMPTY,
    CUT,
    CUT_BY_A_BYTE,
    LONGER,
    FLIPPED,
    MISSING,
    NUM_DAMAGES
} damage_kind;

static void do_damage(damage_kind kind, const char *path, bytes *b, size_t flip)
{
    switch (kind) {
    case OTHER_KIND:
        write_bytes(path, "{\"hello\": [1, 2, 3]}\n", 21);
        break;
    case TEXT:
        write_bytes(path, "hello\n", 6);
        break;
    case EMPTY:
        write_bytes(path, "", 0);
        break;
    case CUT:
        write_bytes(path, b->data, b->count / 2);
        break;
    case CUT_BY_A_BYTE:
        write_bytes(path, b->data, b->count - 1);
        break;
    case LONGER:
        memcpy(b->data + b->count, "abc", 3);
        write_bytes(path, b->data, b->count + 3);
        break;
    case FLIPPED:
        b->data[flip] ^= 4;
        write_bytes(path, b->data, b->count);
        b->data[flip] ^= 4;
        break;
    default:
        unlink(path);
    }
}

/* The first `num_damages`, met by one command after the other; then the file is as it was. `flip`:
 * the byte that gets one bit flipped. */
static void damage(const char *path, const char *name, size_t flip, int num_damages,
                   const command *commands, int num_commands)
{
    static const char *const how[NUM_DAMAGES] = {
        "of another kind", "of text", "empty",   "cut",
        "cut by a byte",   "longer",  "flipped", "missing"};
    bytes b = read_bytes(path);
    for (int i = 0; b.data && i < num_damages; i++) {
        do_damage((damage_kind)i, path, &b, flip);
        refuse(commands[i % num_commands], name, how[i]);
    }
    if (b.data)
        write_bytes(path, b.data, b.count);
    free(b.data);
}

/* The byte in the middle of a weight, by the manifest's word. */
static size_t offset_of_weight(const char *folder)
{
    char path[64];
    size_t offset = 0;
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    cJSON *json = child_read_json(path), *entry;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(json, "datasets"))
    {
        const cJSON *name = cJSON_GetObjectItem(entry, "name");
        const cJSON *at = cJSON_GetObjectItem(entry, "offset");
        if (cJSON_IsString(name) && cJSON_IsNumber(at) &&
            strcmp(name->valuestring, "model/decoder.layers.1.mlp.linear_fc1.weight") == 0)
            offset = (size_t)at->valuedouble + 64 * 16 * 2 + 1;
    }
    EXPECT(offset > 0, "%s names no such weight", path);
    return offset;
}

static void check_checkpoint(void)
{
    static const command readers[] = {inspect_run, resume, generate};
    static const char *const names[] = {"manifest.json", "model.h5", "shards.json", "config.json",
                                        "tokenizer.json"};
    static const char folder[] = "run/checkpoints/step-2";
    char path[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        size_t flip = i == 1 ? offset_of_weight(folder) : 40;
        damage(path, names[i], flip, NUM_DAMAGES, readers, 3);
    }

    /* HDF5, but somebody else's. */
    snprintf(path, sizeof path, "%s/model.h5", folder);
    bytes b = read_bytes(path);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    EXPECT(file >= 0 && H5Fclose(file) >= 0, "%s: cannot create", path);
    for (int i = 0; i < 3; i++)
        refuse(readers[i], "model.h5", "another's HDF5");
    /* Two ranks agree on it, and one speaks. */
    refuse(resume_pair, "model.h5", "another's HDF5, two ranks");
    write_bytes(path, b.data, b.count);
    free(b.data);
}

static void check_latest(void)
{
    static const char *const texts[] = {"", "hello\n", "step-99\n", "step-2x\n", "../step-2\n"};
    static const command readers[] = {inspect_run, generate};
    child c;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        EXPECT(child_write("run/checkpoints/latest", texts[i]), "latest");
        for (int j = 0; j < 2; j++)
            refuse(readers[j], "run/checkpoints/latest", texts[i]);
        /* Nor is the run started over. */
        CHILD_RUN(&c, "train", "c.json", "--out", "run");
        EXPECT(c.exit_code == 2 && child_is_line(c.err), "exit %d: %s", c.exit_code, c.err);
    }
    EXPECT(child_write("run/checkpoints/latest", "step-2\n"), "latest");
}

static void check_dataset(void)
{
    static const command index_readers[] = {inspect_corpus, train, train_pair};
    static const command description_readers[] = {train, train_pair};
    bytes b = read_bytes("corpus.bin");
    /* A dataset that is not there at all is a mistake in the config. */
    damage("corpus.idx", "corpus.idx", 3, MISSING, index_readers, 3);
    damage("corpus.idx", "corpus.idx", 3, NUM_DAMAGES, index_readers, 1);
    /* A .bin has no header and no hash: what can be seen is that tokens are missing. */
    for (int i = 0; i < 3; i++) {
        write_bytes("corpus.bin", b.data, i == 0 ? 0 : i == 1 ? b.count / 2 : b.count - 1);
        for (int j = 0; j < 3; j++)
            refuse(index_readers[j], "corpus.bin", "cut");
    }
    unlink("corpus.bin");
    for (int j = 0; j < 3; j++)
        refuse(index_readers[j], "corpus.bin", "missing");
    write_bytes("corpus.bin", b.data, b.count);
    free(b.data);

    static const char *const texts[] = {"", "{\"hello\": 1}", "{", "hello"};
    b = read_bytes("corpus.json");
    for (int i = 0; i < 4; i++) {
        EXPECT(child_write("corpus.json", texts[i]), "corpus.json");
        for (int j = 0; j < 2; j++)
            refuse(description_readers[j], "corpus.json", texts[i]);
    }
    unlink("corpus.json");
    EXPECT(mkfifo("corpus.json", 0600) == 0, "no pipe");
    refuse(train, "corpus.json", "a pipe");
    unlink("corpus.json");
    write_bytes("corpus.json", b.data, b.count);
    free(b.data);
}

static void check_odd_name(void)
{
    child c;
    bytes idx = read_bytes("corpus.idx"), bin = read_bytes("corpus.bin");
    write_bytes("a \"b\" \xff.idx", idx.data, idx.count);
    write_bytes("a \"b\" \xff.bin", bin.data, bin.count);
    CHILD_RUN(&c, "inspect", "a \"b\" \xff", "--json");
    cJSON *json = child_parse(c.out);
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(json, "dataset"));
    EXPECT(name && strcmp(name, "a \"b\" \xef\xbf\xbd") == 0, "%s%s", c.out, c.err);
    free(idx.data);
    free(bin.data);
}

/* --- under a run --------------------------------------------------------------------------- */

static bool holds(const char *path, const char *wanted)
{
    const char *text = child_read(path);
    return text && strstr(text, wanted);
}

/* Numbers that no run counts to, in manifests whose hashes are right. */
static void check_forged(void)
{
    static const struct {
        const char *change, *said;
    } forged[] = {
        {"s/\"step\": 2,/\"step\": 9000000000000000000,/", "not a whole number that is possible"},
        {"s/\"step\": 2,/\"step\": 1234567,/",
         "manifest.json: is of step 1234567, and its folder of step 2"},
        {"s/\"consumed_tokens\": /&9000000000000000000/", "not a whole number that is possible"},
        {"s/\"datasets\"/\"faults\": {\"bad_steps\": 3, \"skipped_batches\": 3, \"loss_mean\": 1, "
         "\"loss_mean_steps\": 1},\\n&/",
         "more steps were skipped than done"}};
    static const char manifest[] = "run/checkpoints/step-2/manifest.json";
    bytes b = read_bytes(manifest);
    for (size_t i = 0; i < sizeof forged / sizeof *forged; i++) {
        char end[64];
        expect_shell("sed -i '%s' %s", forged[i].change, manifest);
        char *text = child_read(manifest), *hash = text ? strstr(text, ",\n  \"xxh64\": \"") : NULL;
        char *last = hash;
        while (last && (last = strstr(last + 1, ",\n  \"xxh64\": \"")))
            hash = last;
        EXPECT(hash, "%s", text);
        if (hash) {
            snprintf(end, sizeof end, ",\n  \"xxh64\": \"%016llx\"",
                     (unsigned long long)XXH64(text, (size_t)(hash - text), 0));
            memcpy(hash, end, strlen(end));
            EXPECT(child_write(manifest, text), "%s", manifest);
        }
        child_refused(resume, 6, forged[i].said);
        write_bytes(manifest, b.data, b.count);
    }
    free(b.data);
}

/* Links among a run's files go or are refused; what they lead to stays as it is. */
static void check_links(void)
{
    static const char before[] =
        "rm -rf linked outside; mkdir outside linked; echo mine | tee outside/json outside/svg "
        "outside/ledger outside/rank-0.json outside/verdict.json >outside/metrics; "
        "ln -s ../outside/json linked/trace.json; ln -s ../outside/svg linked/trace.svg; "
        "ln -s ../outside/ledger linked/ledger.jsonl; ln -s ../outside linked/flight; "
        "ln -s ../outside/nothing linked/metrics.jsonl";
    static const char after[] = "test \"$(cat outside/*)\" = \"$(yes mine | head -n 6)\" && "
                                "test -f linked/trace.svg -a ! -L linked/trace.svg && "
                                "test -f linked/trace.json -a ! -L linked/trace.json";
    const char *const *args =
        WORDS("train", "c.json", "--out", "linked", "--mesh", "dp=2", "--set", "log.trace_step=1");
    EXPECT(system(before) == 0, "%s", before);
    refuse(args, "linked/metrics.jsonl: cannot write: ", "a link to nothing");
    EXPECT(unlink("linked/metrics.jsonl") == 0, "no link");
    child_refused(args, 0, "linked/ledger.jsonl: cannot write: ");
    EXPECT(system(after) == 0, "what links lead to has changed");
}

/* Others' bytes over it, in the midst of a run: they are no tokens of its vocabulary. */
static void check_overwritten_under_run(const char *run, const char *mesh)
{
    child c;
    int place = 0;
    bytes b = read_bytes("corpus.bin"), other = {malloc(b.count), b.count};
    memset(other.data, 0xfe, other.count);
    EXPECT(child_start(&c,
                       WORDS("train", "c.json", "--out", run, "--mesh", mesh, "--set",
                             "train_iters=1000000", "--set", "no_save=true"),
                       NULL),
           "no start");
    char path[64];
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    EXPECT(child_wait_for_text(NULL, path, "\"step\": 1,"), "no step");
    FILE *file = fopen("corpus.bin", "r+b");
    EXPECT(file && fwrite(other.data, 1, other.count, file) == other.count && fclose(file) == 0,
           "cannot write");
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "%s: goes on with others' bytes", mesh);
    const char *said = c.err ? strstr(c.err, "corpus.bin: token ") : NULL;
    EXPECT(c.exit_code == 6 && child_is_line(c.err) && said &&
               sscanf(said, "corpus.bin: token %d is 65278, outside a vocabulary of 257", &place) ==
                   1 &&
               place >= 0,
           "%s: exit %d: %s", mesh, c.exit_code, c.err);
    child_release(&c);
    write_bytes("corpus.bin", b.data, b.count);
    free(b.data);
    free(other.data);
}

static int count_of(const char *text, const char *wanted)
{
    int count = 0;
    for (const char *at = text; at && (at = strstr(at, wanted)); at++)
        count++;
    return count;
}

/* A file that fails once under a run that is to start again. */
static void check_fails_once(void)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    child c;
    bytes b = read_bytes("corpus.bin");
    EXPECT(child_start(&c,
                       WORDS("train", "c.json", "--out", "fails", "--mesh", "dp=2", "--set",
                             "train_iters=1000000", "--set", "max_restarts=2", "--set",
                             "restart_delay_s=1"),
                       NULL),
           "no start");
    EXPECT(child_wait_for_text(NULL, "fails/metrics.jsonl", "\"step\": 1,"), "no step");
    EXPECT(truncate("corpus.bin", 101) == 0, "cannot cut");
    EXPECT(child_wait_for_text(NULL, c.err_path, "the job ended with exit code 6 after step "),
           "goes on");
    write_bytes("corpus.bin", b.data, b.count);
    int starts = 0;
    for (int i = 0; i < 6000 && starts < 2; i++) {
        char *said = child_peek(c.out_path);
        starts = count_of(said, "share of peak: ");
        free(said);
        nanosleep(&pause, NULL);
    }
    EXPECT(starts == 2, "%d starts", starts);
    kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "does not stop");
    EXPECT(c.exit_code == 75 &&
               count_of(c.err, "corpus.bin: cut short: it ends before byte ") == 1 &&
               count_of(c.err,
                        ": it is started again in 1 s (1 of 2, reliability.max_restarts)\n") == 1,
           "exit %d: %s", c.exit_code, c.err);
    child_release(&c);
    free(b.data);
}

/* A start believes what is kept beside the data and reads none of them; `weft inspect` reads them
 * all. */
static void check_known(void)
{
    static const char tokenizer[] = "bytes 257 256  ",
                      forged[] = "\"data_xxh64\": \"0123456789abcdef\"";
    const weft_known known = {256, UINT64_C(0x0123456789abcdef)};
    EXPECT(weft_known_keep("corpus", tokenizer, &known) == WEFT_OK, "corpus.xxh64.json");
    CHILD_GOOD("train", "c.json", "--out", "believes");
    EXPECT(holds("believes/config.json", forged), "the start has read the dataset");
    refuse(inspect_corpus, "corpus.bin", "of another hash");
    EXPECT(system("touch corpus.bin") == 0, "touch");
    CHILD_GOOD("train", "c.json", "--out", "reads");
    EXPECT(!holds("reads/config.json", forged), "the start has not read the dataset");
    child_good(inspect_corpus);
    CHILD_REFUSED(2, "data.data_xxh64", "train", "c.json", "--out", "believes", "--resume", "--set",
                  "train_iters=3");
    child_says(WORDS("eval", "believes", "--split", "all"), 0, NULL,
               WORDS("corpus: no longer the data of the run"));
    /* Where nothing can be written beside the data, the run has it. */
    EXPECT(system("rm corpus.xxh64.json; mkdir corpus.xxh64.json") == 0, "mkdir");
    CHILD_GOOD("train", "c.json", "--out", "reads", "--resume", "--set", "train_iters=3");
    EXPECT(holds("reads/data.xxh64.json", "\"max_token\": "), "not kept");
    EXPECT(system("rmdir corpus.xxh64.json") == 0 &&
               weft_known_keep("corpus", tokenizer, &known) == WEFT_OK &&
               system("mv corpus.xxh64.json reads/data.xxh64.json; mkdir corpus.xxh64.json") == 0,
           "mv");
    CHILD_REFUSED(2, "data.data_xxh64", "train", "c.json", "--out", "reads", "--resume", "--set",
                  "train_iters=4");
    EXPECT(system("rm -r believes reads corpus.xxh64.json") == 0, "rm");
}

/* A token that the dataset's own description does not know, in files that are whole otherwise. */
static void check_unknown_token(void)
{
    EXPECT(system("cp -r corpus.bin other.bin; cp corpus.idx other.idx; cp corpus.json other.json; "
                  "printf '\\377\\377' | dd of=other.bin bs=2 seek=7 conv=notrunc status=none") ==
               0,
           "other");
    refuse(WORDS("inspect", "other"), "other.bin", "with token 65535");
    refuse(WORDS("train", "c.json", "--out", "fresh", "--set", "data.data_path=other"), "other.bin",
           "with token 65535");
    EXPECT(system("rm other.*") == 0, "rm");
}

/* Each line is whole, their steps rise; returns how many are left out. */
static int count_gaps(const char *run)
{
    int last = 0;
    cJSON *lines = child_read_metrics(run);
    const int count = cJSON_GetArraySize(lines);
    for (const cJSON *line = lines->child; line; line = line->next) {
        const int step = (int)number_of(line, "step");
        EXPECT(step > last, "%s: step %d after step %d", run, step, last);
        last = step;
    }
    return last - count;
}

/* A disk on which files cannot grow (but for a limit of this kind a test would need one of its
 * own), and then can again: the run trains on, says each once and counts what is missing. */
static void check_full(void)
{
    struct rlimit before, full;
    int said = 0;
    child c;
    getrlimit(RLIMIT_FSIZE, &before);
    full = before;
    full.rlim_cur = 9000; /* config.json has room, the timeline's files have not */
    setrlimit(RLIMIT_FSIZE, &full);
    const bool started =
        child_start(&c,
                    WORDS("train", "c.json", "--out", "full", "--set", "train_iters=1000000",
                          "--set", "no_save=true", "--set", "log.trace_step=2", "--set",
                          "log_interval=1", "--set", "model.num_layers=16"),
                    NULL);
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT(started, "no start");
    EXPECT(child_wait_for_text(NULL, c.err_path,
                               "full/metrics.jsonl: cannot write: File too large; training "
                               "goes on, and the next line is tried again\n"),
           "no warning");
    EXPECT(access("full/trace.json", F_OK) != 0 || access("full/trace.svg", F_OK) != 0,
           "the timeline has room");
    EXPECT(started && prlimit(c.pid, RLIMIT_FSIZE, &before, NULL) == 0, "no room");
    EXPECT(child_wait_for_text(NULL, "full/trace.svg", "</svg>"), "no timeline");
    if (started)
        kill(c.pid, SIGTERM);
    EXPECT(child_wait(&c, CHILD_PATIENCE_S), "goes on");
    EXPECT(c.exit_code == 75 && c.out && strstr(c.out, "full/trace.svg\n"), "exit %d: %s%s",
           c.exit_code, c.out, c.err);
    EXPECT(count_of(c.err, "full/metrics.jsonl: cannot write: ") == 1 &&
               count_of(c.err, "warn step 2: full/trace.") == 1 &&
               count_of(c.err, ": cannot write: File too large; training goes on, and the timeline "
                               "is tried again\n") == 1,
           "%s", c.err);
    const char *end = c.err ? strstr(c.err, "warn full/metrics.jsonl: ") : NULL;
    EXPECT(end && sscanf(end, "warn full/metrics.jsonl: %d line", &said) == 1 && said > 0 &&
               said == count_gaps("full"),
           "%d lines are missing: %s", count_gaps("full"), c.err);
    child_release(&c);
}

/* A start for whose files there is no room: one line, and no file without a byte. What it says goes
 * through a pipe, which has room. */
static void check_full_start(void)
{
    static const struct {
        const char *before, *more, *says;
        int blocks;
    } rooms[] = {{"rm -rf bare", "--set no_save=false",
                  "weft train: bare/.lock: cannot write: File too large\n", 0},
                 {"rm -rf bare", "--set no_save=true",
                  "weft train: bare/config.json: cannot write: File too large\n", 1},
                 {"mkdir bare", "--set no_save=true",
                  "weft train: bare/config.json: cannot write: File too large\n", 1},
                 {"rm -rf bare", "--set no_save=false",
                  "weft train: bare/checkpoints: no room for a checkpoint of 369088 bytes: File "
                  "too large (8192 "
                  "bytes are the most)\n",
                  16},
                 {"rm -rf bare", "--set no_save=false --dry-run",
                  "weft train: bare/checkpoints: no room for a checkpoint of 369088 bytes: File "
                  "too large (8192 "
                  "bytes are the most)\n",
                  16}};
#ifdef __clang__ /* its OpenMP writes a file itself, in memory, and falls without room */
    return;
#endif
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        char line[300];
        child c;
        snprintf(line, sizeof line,
                 "%s; { (ulimit -f %d; $WEFT_BINARY_DIR/weft train c.json --out bare "
                 "%s); echo $? >code; } 2>&1 | cat; test ! -e bare -o -z \"$(find "
                 "bare -size 0)\" && "
                 "exit $(cat code)",
                 rooms[i].before, rooms[i].blocks, rooms[i].more);
        child_run_other("/bin/sh", &c, WORDS("-c", line), NULL);
        EXPECT(c.exit_code == 6 && c.out && strcmp(c.out, rooms[i].says) == 0, "exit %d: %s%s",
               c.exit_code, c.out, c.err);
        EXPECT((access("bare", F_OK) == 0) == (rooms[i].before[0] == 'm'), "%s", rooms[i].says);
    }
}

/* A folder that cannot be removed lies in the way of one save: amid a run it is tried again, at its
 * end it is the run's exit code. */
static void check_failing_saves(void)
{
    static const struct {
        const char *run, *mesh, *blocked;
        int exit_code;
        const char *said, *latest;
    } cases[] = {
        {"amid", "dp=2", "2", 0, "warn step 2: not saved, the next save tries again: ", "step-5\n"},
        {"last", "dp=1", "5", 6, "weft train: last/", "step-4\n"}};
    for (int i = 0; i < 2; i++) {
        char path[64];
        child c;
        snprintf(path, sizeof path, "%s/checkpoints/.step-%s.saving", cases[i].run,
                 cases[i].blocked);
        expect_shell("mkdir -p %s/deep", path);
        CHILD_RUN(&c, "train", "c.json", "--out", cases[i].run, "--mesh", cases[i].mesh, "--set",
                  "train_iters=5", "--set", "save_interval=2");
        EXPECT(c.exit_code == cases[i].exit_code && child_is_line(c.err) &&
                   strstr(c.err, cases[i].said) && strstr(c.err, path) &&
                   !strstr(c.err, ": rank 0: "),
               "%s: exit %d: %s", cases[i].run, c.exit_code, c.err);
        child_expect_latest(cases[i].run, cases[i].latest);
    }
}

/* Which others a run has that may be gone on from: those that it has not abandoned. The newest is
 * damaged already (tests/launcher/fallback.c has more of these). */
static void check_other(void)
{
    bytes newest = read_bytes("run/checkpoints/step-4/model.h5");
    do_damage(FLIPPED, "run/checkpoints/step-4/model.h5", &newest,
              offset_of_weight("run/checkpoints/step-4"));
    free(newest.data);
    CHILD_REFUSED(2,
                  "weft train: --resume-from step-3: run has no such checkpoint; it has step-4, "
                  "step-2\n",
                  "train", "--out", "run", "--resume-from", "step-3");
    /* What a run that went on from an earlier step has abandoned is not advised. */
    EXPECT(child_write("run/checkpoints/latest", "step-2\n"), "latest");
    bytes b = read_bytes("run/checkpoints/step-2/model.h5");
    CHILD_GOOD("train", "c.json", "--out", "other", "--set", "train_iters=9", "--set",
               "save_interval=1");
    EXPECT(system("cp -r other/checkpoints/step-[19] run/checkpoints") == 0, "no copy");
    do_damage(FLIPPED, "run/checkpoints/step-2/model.h5", &b,
              offset_of_weight("run/checkpoints/step-2"));
    child_refused(resume_longer, 6, "; step-1 is whole: go on from it");
    write_bytes("run/checkpoints/step-2/model.h5", b.data, b.count);
    free(b.data);
    EXPECT(system("rm -r run/checkpoints/step-1 run/checkpoints/step-9") == 0, "not removed");
    CHILD_GOOD("train", "--out", "run", "--resume-from", "2");
    child_good(inspect_run); /* step 4 has been saved anew */
}

/* Metrics that never end, or that nobody writes: neither read nor waited for. One line too long to
 * be one of ours goes, and its neighbours stay. */
static void check_metrics(void)
{
    char *before = child_read("run/metrics.jsonl");
    EXPECT(before && rename("run/metrics.jsonl", "metrics") == 0, "no metrics");
    for (int i = 0; i < 2; i++) {
        EXPECT((i ? mkfifo("run/metrics.jsonl", 0600)
                  : symlink("/dev/full", "run/metrics.jsonl")) == 0,
               "no pipe");
        refuse(i ? resume_longer_pair : resume_longer, "run/metrics.jsonl: not a regular file",
               "no file");
        unlink("run/metrics.jsonl");
    }
    EXPECT(system("{ echo '{\"step\": 1, \"long\": 0}'; head -c 3000000 /dev/zero | tr '\\0' ' '; "
                  "echo '{\"step\": 2, \"long\": 1}'; cat metrics; } >run/metrics.jsonl") == 0,
           "no metrics");
    child_good(resume_longer);
    char *now = child_read("run/metrics.jsonl");
    EXPECT(now && strncmp(now, "{\"step\": 1, \"long\": 0}\n", 23) == 0 &&
               !strstr(now, "\"long\": 1") && before && strstr(now, before),
           "metrics: %.300s", now);
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    child_begin();
    EXPECT(child_write("c.json", config), "no files");
    child_make_corpus("corpus", 1199);
    CHILD_GOOD("train", "c.json", "--out", "run");
    check_dataset();
    check_checkpoint();
    check_latest();
    check_forged();
    check_odd_name();
    check_known();
    check_unknown_token();
    check_overwritten_under_run("over1", "dp=1");
    check_overwritten_under_run("over2", "tp=2");
    check_fails_once();
    check_links();
    check_full();
    check_full_start();
    check_failing_saves();
    /* Nothing of all that has changed the files: they are good again. */
    child_good(inspect_run);
    child_good(inspect_corpus);
    child_good(generate);
    child_good(resume);
    check_other();
    check_metrics();
    return child_finish();
}
