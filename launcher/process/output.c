#include "launcher/process/output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
