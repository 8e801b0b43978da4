#include "core/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int log_level = WEFT_LOG_INFO;
static atomic_int log_rank = 0;

static const char *const level_names[] = {
    [WEFT_LOG_ERROR] = "error", [WEFT_LOG_WARN] = "warn",   [WEFT_LOG_INFO] = "info",
    [WEFT_LOG_DEBUG] = "debug", [WEFT_LOG_TRACE] = "trace",
};

void weft_log_set_level(weft_log_level level)
{
    atomic_store(&log_level, (int)level);
}

void weft_log_set_rank(int rank)
{
    atomic_store(&log_rank, rank);
}

int weft_log_rank(void)
{
    return atomic_load(&log_rank);
}

static void write_all(const char *line, size_t length)
{
    while (length > 0) {
        ssize_t written = write(STDERR_FILENO, line, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return; /* nowhere left to complain */
        line += written;
        length -= (size_t)written;
    }
}

void weft_log(weft_log_level level, const char *format, ...)
{
    if ((int)level > atomic_load(&log_level))
        return;
    int rank = atomic_load(&log_rank);
    if (level == WEFT_LOG_INFO && rank != 0)
        return;

    char line[2048];
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    int start =
        snprintf(line, sizeof line, "%02d:%02d:%02d.%03ld rank %d %s ", local.tm_hour, local.tm_min,
                 local.tm_sec, now.tv_nsec / 1000000, rank, level_names[level]);
    va_list args;
    va_start(args, format);
    int rest = vsnprintf(line + start, sizeof line - (size_t)start, format, args);
    va_end(args);

    size_t length = (size_t)start + (rest > 0 ? (size_t)rest : 0);
    if (length > sizeof line - 1) {
        length = sizeof line - 1;
        memcpy(line + length - 3, "...", 3);
    }
    line[length] = '\n';
    write_all(line, length + 1);
}

void weft_log_error_record(void)
{
    const weft_error *error = weft_error_get();
    if (error->status == WEFT_OK)
        return;
    weft_log(WEFT_LOG_ERROR, "%s", error->text);
    for (int i = 0; i < error->num_frames; i++)
        weft_log(WEFT_LOG_DEBUG, "  at %s:%d %s", error->frames[i].file, error->frames[i].line,
                 error->frames[i].function);
}
