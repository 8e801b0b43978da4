/* Files that are read in place, and files that take the place of others. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "tests/core/temporary.h"

static void has_text(const char *name, const char *wanted)
{
    weft_arena arena = {0};
    char *text;
    size_t bytes;
    OK(weft_file_read_text(temporary_path(name), &arena, &text, &bytes));
    assert_string_equal(text, wanted);
    assert_int_equal(bytes, strlen(wanted));
    weft_arena_release(&arena);
}

CASE(parts_are_read)
{
    weft_file file = {0};
    char part[4] = "";
    weft_file_close(&file);
    temporary_write(temporary_path("ten"), "0123456789", 10);
    OK(weft_file_open(temporary_path("ten"), &file));
    assert_int_equal(file.bytes, 10);
    OK(weft_file_read(&file, 7, part, 3));
    assert_string_equal(part, "789");
    OK(weft_file_read(&file, 99, part, 0));
    FAILS(weft_file_read(&file, 8, part, 3), WEFT_FILE, "ten: cut short: it ends before byte 10");
    weft_file_close(&file);
    weft_file_close(&file);
    has_text("ten", "0123456789");
    FAILS(weft_file_open(temporary_path("none"), &file), WEFT_FILE, "none: No such file");
    FAILS(weft_file_open(temporary_folder, &file), WEFT_FILE, "not a regular file");
    FAILS(weft_file_open("/dev/zero", &file), WEFT_FILE, "/dev/zero: not a regular file");
}

CASE(endless_texts_are_refused)
{
    weft_arena arena = {0};
    char *text;
    size_t bytes;
    temporary_write(temporary_path("hole"), "x", 1);
    assert_int_equal(truncate(temporary_path("hole"), (off_t)1 << 40), 0);
    FAILS(weft_file_read_text(temporary_path("hole"), &arena, &text, &bytes), WEFT_FILE,
          "hole: larger than 256 MiB");
    weft_arena_release(&arena);
}

/* Beside a link of its name that leads to somebody's file. */
CASE(a_new_file_takes_its_place_when_it_is_whole)
{
    weft_new_file file;
    char path[256];
    snprintf(path, sizeof path, "%s", temporary_path("new"));
    temporary_write(path, "old", 3);
    temporary_write(temporary_path("precious"), "mine", 4);
    assert_int_equal(symlink("precious", temporary_path("new.partial")), 0);
    OK(weft_new_file_open(path, &file));
    fputs("half", file.file);
    weft_status status = WEFT_ERROR(WEFT_MEMORY, "no more");
    assert_int_equal(weft_new_file_close(&file, status), WEFT_MEMORY);
    assert_string_equal(weft_error_get()->text, "no more");
    has_text("new", "old");
    assert_int_not_equal(access(temporary_path("new.partial"), F_OK), 0);
    OK(weft_new_file_open(path, &file));
    fputs("whole", file.file);
    has_text("new", "old");
    OK(weft_new_file_close(&file, WEFT_OK));
    has_text("new", "whole");
    has_text("precious", "mine");
    FAILS(weft_new_file_open(temporary_path("none/new"), &file), WEFT_FILE,
          "none/new: cannot write: No such file");
    assert_int_equal(mkdir(temporary_path("folder"), 0700), 0);
    snprintf(path, sizeof path, "%s", temporary_path("folder"));
    FAILS(weft_new_file_open(path, &file), WEFT_FILE, "folder: cannot write: Is a directory");
    /* It takes no device's and no FIFO's place. */
    struct stat info;
    const char *fifo = temporary_path("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    FAILS(weft_new_file_open(fifo, &file), WEFT_FILE, "fifo: cannot write: not a regular file");
    assert_true(stat(fifo, &info) == 0 && S_ISFIFO(info.st_mode));
    assert_int_not_equal(access(temporary_path("folder.partial"), F_OK), 0);
}

/* A disk without room is found out before the old one is gone. */
CASE(a_new_file_without_room_leaves_the_old)
{
    weft_new_file file;
    const char *path = temporary_path("kept");
    temporary_write(path, "old", 3);
    OK(weft_new_file_open(path, &file));
    FILE *full = freopen("/dev/full", "w", file.file);
    assert_non_null(full);
    fputs("text", full);
    FAILS(weft_new_file_close(&file, WEFT_OK), WEFT_FILE,
          "kept: cannot write: No space left on device");
    has_text("kept", "old");
}

/* In memory no page is made before it is written. */
CASE(room_is_asked_for)
{
    struct stat info;
    for (int memory = 0; memory < 2; memory++) {
        char path[] = "/dev/shm/weft-test-room-XXXXXX";
        int fd = memory ? mkstemp(path)
                        : open(temporary_path("room"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (memory && (fd < 0 || !weft_path_is_memory(path)))
            continue;
        assert_true(fd >= 0);
        const char *there = memory ? "/dev/shm/none/yet" : temporary_path("none/yet");
        FAILS(weft_file_reserve(fd, "wide", "a thing", UINT64_C(1) << 58), WEFT_FILE,
              "wide: no room for a thing of 288230376151711744 bytes: ");
        FAILS(weft_file_ask_room(there, "a thing", UINT64_C(1) << 58), WEFT_FILE,
              "none/yet: no room for a thing of 288230376151711744 bytes: No space left on device "
              "(");
        OK(weft_file_reserve(fd, "small", "a thing", 1 << 20));
        OK(weft_file_ask_room(there, "a thing", 1 << 20));
        assert_int_equal(fstat(fd, &info), 0);
        assert_true(!memory || info.st_blocks == 0);
        close(fd);
        if (memory)
            unlink(path);
    }
}

AROUND(.set_up = temporary_create, .tear_down = temporary_remove)
