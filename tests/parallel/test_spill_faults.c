/* Spill files where the system refuses: every call fails once in every way; the file is cut or
 * changed by another process; no room, no O_DIRECT, no io_uring, no locked memory; killed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/parallel/spill_sample.h"

enum { NUM_RECORDS = 2, PART_BYTES = 40000, FAR = 1 << 20, NUM_WAYS = 4 };

/* Each way of I/O past and through the page cache. False: this machine has no such way. */
static bool way_options(int way, weft_spill_options *out)
{
    static const weft_spill_io io[NUM_WAYS] = {WEFT_SPILL_AUTO, WEFT_SPILL_URING,
                                               WEFT_SPILL_THREADS, WEFT_SPILL_THREADS};
    *out = spill_options(io[way]);
    out->buffered = way % 2;
    out->piece_bytes = 16384;
    return spill_io_works(io[way]);
}

static char *memory[NUM_RECORDS][2]; /* of the sample's records */

static weft_status transfer_all(weft_spill *spill, bool is_write)
{
    weft_spill_transfer transfers[2 * NUM_RECORDS];
    for (int i = 0; i < 2 * NUM_RECORDS; i++) {
        transfers[i] = (weft_spill_transfer){(size_t)i / 2, i % 2, is_write, memory[i / 2][i % 2]};
        if (is_write)
            spill_fill(memory[i / 2][i % 2], PART_BYTES, (uint64_t)i);
        else
            memset(memory[i / 2][i % 2], 0xee, PART_BYTES);
    }
    return weft_spill_run(spill, transfers, 2 * NUM_RECORDS);
}

/* What was read is what was written. */
static void check_read(const weft_spill_options *o)
{
    char wanted[PART_BYTES];
    for (int i = 0; i < 2 * NUM_RECORDS; i++) {
        spill_fill(wanted, PART_BYTES, (uint64_t)i);
        assert_memory_equal(memory[i / 2][i % 2], wanted, o->parts[i % 2].bytes);
    }
}

static void write_and_read(weft_spill *spill, const weft_spill_options *o)
{
    OK(transfer_all(spill, true));
    OK(transfer_all(spill, false));
    check_read(o);
}

static int count_entries(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count - 2;
}

/* --- every call fails once ----------------------------------------------------------------- */

static void check_words(int fault, bool is_io)
{
    const char *text = weft_error_get()->text;
    const char *words = fault == WEFT_SPILL_FAULT_FLIP ? "damaged: " : strerror(fault);
    if (!strstr(text, words) || !strstr(text, temporary_folder) || strchr(text, '\n') ||
        (is_io && (!strstr(text, "rank 1, layer 3, expert ") || !strstr(text, " at byte "))))
        fail_msg("\"%s\" lacks \"%s\" or the place", text, words);
    weft_error_clear();
}

/* True where the call was made. */
static bool fail_one(weft_spill_options o, int num_set_up, int n, int fault)
{
    weft_spill *spill = NULL;
    bool passes = fault == EINTR || fault == EAGAIN || fault == WEFT_SPILL_FAULT_SHORT;
    weft_spill_fail_after(n, fault);
    weft_status status = weft_spill_create(&o, &spill);
    if (status != WEFT_OK) {
        assert_in_range(n, 1, num_set_up);
        check_words(fault, false);
        return weft_spill_fail_after(0, 0) == 0;
    }
    status = transfer_all(spill, true);
    if (status == WEFT_OK) {
        status = transfer_all(spill, false);
        if (status == WEFT_OK)
            check_read(&o);
    }
    bool was_made = weft_spill_fail_after(0, 0) == 0;
    if (status != WEFT_OK) {
        assert_true(n > num_set_up && !passes);
        assert_int_equal(status, WEFT_FILE);
        check_words(fault, true);
        write_and_read(spill, &o); /* goes on when the cause is gone */
    } else {
        assert_true(!was_made || passes || n <= num_set_up || fault == WEFT_SPILL_FAULT_FLIP);
    }
    weft_spill_destroy(spill);
    return was_made;
}

CASE(every_call_fails_once)
{
    static const int faults[] = {
        EIO, ENOSPC, EINVAL, EINTR, EAGAIN, WEFT_SPILL_FAULT_SHORT, WEFT_SPILL_FAULT_FLIP};
    int num_descriptors = count_entries("/proc/self/fd");
    weft_log_set_level(WEFT_LOG_ERROR); /* fallbacks have a test of their own */
    for (int way = 0; way < NUM_WAYS; way++) {
        weft_spill_options o;
        weft_spill *spill;
        if (!way_options(way, &o))
            continue;
        weft_spill_fail_after(FAR, EIO);
        OK(weft_spill_create(&o, &spill));
        int num_set_up = FAR - weft_spill_fail_after(0, 0);
        weft_spill_fail_after(FAR, EIO);
        write_and_read(spill, &o);
        int num_io = FAR - weft_spill_fail_after(0, 0);
        weft_spill_destroy(spill);
        assert_int_equal(num_io, 2 * NUM_RECORDS * (2 + 3));
        for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
            int n = 1;
            while (fail_one(o, num_set_up, n, faults[f]))
                n++;
            /* Fewer only where a refusal changes what is called next. */
            assert_true(n > num_set_up + num_io);
        }
    }
    weft_log_set_level(WEFT_LOG_INFO);
    assert_int_equal(count_entries("/proc/self/fd"), num_descriptors);
    assert_int_equal(count_entries("/proc/self/task"), 1);
    assert_int_equal(count_entries(temporary_folder), 0);
}

CASE(every_allocation_fails_once)
{
    for (int io = WEFT_SPILL_AUTO; io <= WEFT_SPILL_THREADS; io++) {
        weft_spill_options o = spill_options((weft_spill_io)io);
        int n = 1;
        for (weft_status status = WEFT_MEMORY; status != WEFT_OK && spill_io_works(o.io); n++) {
            weft_spill *spill = NULL;
            weft_alloc_fail_after(n);
            status = weft_spill_create(&o, &spill);
            weft_alloc_fail_after(0);
            assert_true(status == WEFT_OK || status == WEFT_MEMORY);
            weft_error_clear();
            weft_spill_destroy(spill);
        }
    }
    assert_int_equal(count_entries("/proc/self/task"), 1);
}

/* --- another process ----------------------------------------------------------------------- */

/* Cuts the file, or flips a bit (cut < 0), as another process finds it under /proc. */
static void meddle(weft_spill *spill, off_t cut, off_t flip)
{
    char path[64], byte = 0;
    int status;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), weft_spill_descriptor(spill));
    pid_t child = fork();
    if (child == 0) {
        int fd = open(path, O_RDWR);
        if (cut >= 0)
            _exit(fd < 0 || ftruncate(fd, cut) != 0);
        bool good = fd >= 0 && pread(fd, &byte, 1, flip) == 1;
        byte ^= 4;
        _exit(!good || pwrite(fd, &byte, 1, flip) != 1 || fsync(fd) != 0);
    }
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

CASE(a_file_that_is_cut_is_told)
{
    /* Of record 1's second part: from 81920 to 122880, of which 40000 bytes count. */
    static const off_t cuts[] = {0, 81920, 82020, 82620, 82432, 86016, 90112, 106497, 121919};
    for (int way = 0; way < NUM_WAYS; way++) {
        weft_spill_options o;
        weft_spill *spill;
        if (!way_options(way, &o))
            continue;
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            char text[64];
            OK(weft_spill_create(&o, &spill));
            OK(transfer_all(spill, true));
            meddle(spill, cuts[i], 0);
            weft_spill_transfer transfer = {1, 1, false, memory[1][1]};
            snprintf(text, sizeof text, "rank 1, layer 3, expert 1: state: cannot read at byte ");
            FAILS(weft_spill_run(spill, &transfer, 1), WEFT_FILE, text);
            FAILS(weft_spill_run(spill, &transfer, 1), WEFT_FILE, "it was cut short and ends ");
            write_and_read(spill, &o); /* written anew it is there again */
            weft_spill_destroy(spill);
        }
    }
}

CASE(a_flipped_bit_is_told)
{
    for (int way = 0; way < NUM_WAYS; way++) {
        weft_spill_options o;
        weft_spill *spill;
        if (!way_options(way, &o))
            continue;
        OK(weft_spill_create(&o, &spill));
        for (off_t byte = 61440; byte < 61440 + 20001; byte += 2857) { /* record 1's weights */
            OK(transfer_all(spill, true));
            meddle(spill, -1, byte);
            FAILS(transfer_all(spill, false), WEFT_FILE,
                  "rank 1, layer 3, expert 1: weights: damaged: 20001 bytes at byte 61440 of the "
                  "experts' file in ");
            weft_spill_transfer state_of_it = {1, 1, false, memory[1][1]};
            OK(weft_spill_run(spill, &state_of_it, 1)); /* the other part is whole */
        }
        meddle(spill, -1, 61440 + 20001); /* behind the part */
        OK(transfer_all(spill, true));
        OK(transfer_all(spill, false));
        weft_spill_destroy(spill);
    }
}

/* --- no room ------------------------------------------------------------------------------- */

CASE(a_full_disk_is_told_with_numbers)
{
    weft_spill *spill;
    weft_spill_options o = spill_options(WEFT_SPILL_AUTO);
    o.labels = NULL;
    o.num_records = (size_t)1 << 46; /* no disk has 2^62 bytes */
    FAILS(weft_spill_create(&o, &spill), WEFT_FILE,
          "no room for the experts' file: 4323455642275676160 bytes wanted, ");
    o.num_records = 4;
    struct rlimit limit, old;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    limit = old;
    limit.rlim_cur = 8192;
    setrlimit(RLIMIT_FSIZE, &limit);
    weft_status status = weft_spill_create(&o, &spill);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(status, WEFT_FILE);
    const char *text = weft_error_get()->text;
    assert_non_null(strstr(text, ": 245760 bytes wanted, "));
    assert_non_null(strstr(text, " free: File too large"));
    weft_error_clear();
}

/* A file system of 64 pages, where the test may mount one. */
static bool mount_small(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("small", temporary_folder, "tmpfs", 0, "size=256k") == 0;
}

static void fill_up(const char *name)
{
    static char zeros[4096];
    int fd = open(temporary_path(name), O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    while (write(fd, zeros, sizeof zeros) > 0)
        continue;
    assert_int_equal(errno, ENOSPC);
    close(fd);
}

/* Full at the start it is told; full later, what was allocated can still be written. */
CASE(a_disk_fills_up)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        if (!mount_small())
            _exit(77);
        weft_spill *spill;
        weft_spill_options o = spill_options(WEFT_SPILL_AUTO);
        FAILS(weft_spill_create(&o, &spill), WEFT_FILE,
              ": 491520 bytes wanted, 262144 free: No space left on device");
        o.num_records = 3;
        OK(weft_spill_create(&o, &spill));
        fill_up("other");
        write_and_read(spill, &o);
        weft_spill_destroy(spill);
        fill_up("more");
        FAILS(weft_spill_create(&o, &spill), WEFT_FILE,
              ": 184320 bytes wanted, 0 free: No space left on device");
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        print_message("left out: no right to mount\n");
    else
        assert_int_equal(WEXITSTATUS(status), 0);
}

/* --- what falls back ----------------------------------------------------------------------- */

/* Creates and uses a file, and gives the log lines meanwhile. */
static void create_logged(const weft_spill_options *o, bool is_direct, weft_spill_io used,
                          char *log, size_t log_bytes)
{
    weft_spill *spill;
    FILE *file = tmpfile();
    int before = dup(STDERR_FILENO);
    assert_true(file && before >= 0);
    dup2(fileno(file), STDERR_FILENO);
    weft_status status = weft_spill_create(o, &spill);
    dup2(before, STDERR_FILENO);
    close(before);
    OK(status);
    rewind(file);
    size_t got = fread(log, 1, log_bytes - 1, file);
    log[got] = '\0';
    fclose(file);
    assert_int_equal(weft_spill_is_direct(spill), is_direct);
    assert_int_equal(weft_spill_io_used(spill), used);
    write_and_read(spill, o);
    weft_spill_destroy(spill);
}

CASE(no_o_direct_is_logged)
{
    char log[1000];
    weft_spill_options o = spill_options(WEFT_SPILL_THREADS);
    for (int call = 1; call <= 3; call += 2) { /* open, or the first write */
        weft_spill_fail_after(call, EINVAL);
        create_logged(&o, false, WEFT_SPILL_THREADS, log, sizeof log);
        assert_int_equal(weft_spill_fail_after(0, 0), 0);
        const char *line = strstr(log, "no O_DIRECT there (Invalid argument): the experts' file ");
        assert_non_null(line);
        assert_string_equal(strchr(line, '\n'), "\n"); /* one line */
    }
    o.buffered = true;
    create_logged(&o, false, WEFT_SPILL_THREADS, log, sizeof log);
    assert_string_equal(log, "");
}

/* As on a file system that makes no files without a name. */
CASE(a_name_is_gone_at_once)
{
    weft_spill *spill;
    weft_spill_options o = spill_options(WEFT_SPILL_THREADS);
    weft_spill_fail_after(1, EOPNOTSUPP);
    OK(weft_spill_create(&o, &spill));
    assert_int_equal(weft_spill_fail_after(0, 0), 0);
    assert_int_equal(count_entries(temporary_folder), 0);
    write_and_read(spill, &o);
    weft_spill_destroy(spill);
}

static void forbid_io_uring(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

/* In a process of its own, which stays forbidden. */
CASE(forbidden_io_uring_is_logged)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        char log[1000];
        weft_spill *spill;
        weft_spill_options o = spill_options(WEFT_SPILL_AUTO);
        forbid_io_uring();
        create_logged(&o, true, WEFT_SPILL_THREADS, log, sizeof log);
        const char *line = strstr(log, "the experts' file is read and written by threads: no ");
        assert_non_null(line);
        assert_string_equal(strchr(line, '\n'), "\n");
        assert_true(strstr(line, "io_uring: Operation not permitted") || strstr(line, "liburing"));
        o.io = WEFT_SPILL_URING;
        FAILS(weft_spill_create(&o, &spill), WEFT_CONFIG,
              "the experts' file cannot use io_uring: ");
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Without room for locked memory, nor the right to pass over it: either way of I/O, the same bytes.
 */
CASE(no_locked_memory)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct rights[2];
        struct rlimit none = {0, 0};
        weft_spill *spill;
        weft_spill_options o = spill_options(WEFT_SPILL_AUTO);
        assert_int_equal(syscall(SYS_capget, &header, rights), 0);
        rights[0].effective &= ~(1U << CAP_IPC_LOCK);
        assert_int_equal(syscall(SYS_capset, &header, rights), 0);
        assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &none), 0);
        OK(weft_spill_create(&o, &spill));
        print_message("memlock 0: %s\n", weft_spill_io_text(weft_spill_io_used(spill)));
        write_and_read(spill, &o);
        weft_spill_destroy(spill);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* --- ends ---------------------------------------------------------------------------------- */

CASE(nothing_is_left_of_who_is_killed)
{
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0)
            for (;;) {
                weft_spill *spill;
                weft_spill_options o =
                    spill_options(round % 2 ? WEFT_SPILL_AUTO : WEFT_SPILL_THREADS);
                OK(weft_spill_create(&o, &spill));
                OK(transfer_all(spill, true));
                weft_spill_destroy(spill);
            }
        nanosleep(&(struct timespec){.tv_nsec = 3000000 + round * 1700000}, NULL);
        int status;
        kill(child, SIGKILL);
        assert_true(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        assert_int_equal(count_entries(temporary_folder), 0);
    }
}

CASE(a_wrong_folder_is_told)
{
    weft_spill *spill;
    weft_spill_options o = spill_options(WEFT_SPILL_AUTO);
    o.folder = temporary_path("none");
    FAILS(weft_spill_create(&o, &spill), WEFT_FILE,
          "none: cannot make the experts' file: No such file");
    o.folder = "/proc";
    FAILS(weft_spill_create(&o, &spill), WEFT_FILE, "/proc: cannot make the experts' file: ");
}

AROUND(.set_up = temporary_create, .tear_down = temporary_remove)

int main(void)
{
    for (int i = 0; i < 2 * NUM_RECORDS; i++)
        memory[i / 2][i % 2] = spill_memory(PART_BYTES);
    int failures = run_cases();
    for (int i = 0; i < 2 * NUM_RECORDS; i++)
        free(memory[i / 2][i % 2]);
    return failures;
}
