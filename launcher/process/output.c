#include "launcher/process/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "launcher/process/stop.h"

static bool training, lost, gone;

void weft_output_open(bool trains)
{
    training = trains;
    signal(SIGXFSZ, SIG_IGN); /* `ulimit -f`: a write fails, and says so */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0)
            return;
}

static void failed(int error)
{
    if (training && error == EPIPE) {
        gone = true;
        weft_stop_ask();
    } else if (!lost) {
        lost = true;
        fprintf(stderr, "weft: cannot write standard output%s%s%s\n", error ? ": " : "",
                error ? strerror(error) : "", training ? "; training goes on" : "");
    }
}

void weft_output_flush(void)
{
    errno = 0;
    if (!gone && (fflush(stdout) != 0 || ferror(stdout)))
        failed(errno);
    clearerr(stdout);
}

size_t weft_output_pass_on(const char *text, size_t bytes)
{
    if (gone)
        return bytes;
    ssize_t written = write(STDOUT_FILENO, text, bytes);
    if (written >= 0)
        return (size_t)written;
    if (errno == EINTR || errno == EAGAIN)
        return 0;
    failed(errno);
    return bytes;
}

/* What failed has said so, a file that is full among it. */
int weft_output_close(int exit_code)
{
    if (exit_code == 0)
        weft_output_flush();
    else
        fflush(stdout);
    return lost && exit_code == 0 ? weft_status_exit_code(WEFT_FILE) : exit_code;
}

/* Where a file that is not there would be. */
static bool find_folder(const char *path, struct stat *out)
{
    char folder[PATH_MAX];
    const size_t bytes = (size_t)(weft_path_name(path) - path);
    if (bytes + 2 > sizeof folder)
        return false;
    snprintf(folder, sizeof folder, "%.*s.", (int)bytes, path);
    return stat(folder, out) == 0;
}

/* Both paths lead to one file, which may not be there yet; devices and pipes are none. */
static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    const bool has_a = stat(a, &x) == 0, has_b = stat(b, &y) == 0;
    if (has_a != has_b)
        return false;
    if (has_a)
        return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    return strcmp(weft_path_name(a), weft_path_name(b)) == 0 && find_folder(a, &x) &&
           find_folder(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

weft_status weft_output_check(const weft_line_file *files, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < count && files[i].is_output && files[i].path; k++)
            if (k != i && files[k].path && (k < i || !files[k].is_output) &&
                same_file(files[i].path, files[k].path))
                return WEFT_ERROR(WEFT_CONFIG, "%s %s: the same file as %s", files[i].option,
                                  files[i].path, files[k].option);
    return WEFT_OK;
}

weft_status weft_output_try(const char *path)
{
    weft_new_file file;
    if (!path)
        return WEFT_OK;
    WEFT_TRY(weft_new_file_open(path, &file));
    weft_new_file_drop(&file);
    return WEFT_OK;
}

weft_status weft_output_try_folder(const char *path)
{
    char parent[PATH_MAX];
    struct stat info;
    size_t bytes = strlen(path);
    const bool is_there = lstat(path, &info) == 0;
    if (is_there && stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        return WEFT_ERROR(WEFT_FILE, "%s: not a folder", path);
    if (is_there)
        return access(path, W_OK | X_OK) == 0
                   ? WEFT_OK
                   : WEFT_ERROR(WEFT_FILE, "%s: cannot write: %s", path, strerror(errno));
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    while (bytes > 0 && path[bytes - 1] != '/')
        bytes--;
    if (bytes + 2 > sizeof parent)
        return WEFT_ERROR(WEFT_FILE, "%.60s...: too long a path", path);
    snprintf(parent, sizeof parent, "%.*s.", (int)bytes, path);
    return access(parent, W_OK | X_OK) == 0
               ? WEFT_OK
               : WEFT_ERROR(WEFT_FILE, "%s: cannot make the folder: %s%s", path, strerror(errno),
                            errno == ENOENT ? ": make the one that it is in first" : "");
}

void weft_output_tell_written(const char *path, bool is_for_programs)
{
    if (path && !is_for_programs)
        printf("wrote %s\n", path);
}
