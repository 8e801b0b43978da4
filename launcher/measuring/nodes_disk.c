/* A node's disk: pieces that are written and synced for a while, then read from the disk. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "launcher/measuring/nodes_internal.h"

enum { PIECE = 4 << 20, MAX_PIECES = 256 };

static void fail(weft_nodes_rank *own, const char *folder, const char *what)
{
    snprintf(own->fault, sizeof own->fault, "%.160s: cannot %s: %s", folder, what, strerror(errno));
}

/* A file without a name: it ends with this process. */
static int open_file(const char *folder)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/.weft-doctor-XXXXXX", folder) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    const int file = mkostemp(path, O_CLOEXEC);
    if (file >= 0)
        unlink(path);
    return file;
}

static bool transfer(int file, char *piece, off_t at, bool writes)
{
    for (size_t done = 0; done < PIECE;) {
        const ssize_t now = writes ? pwrite(file, piece + done, PIECE - done, at + (off_t)done)
                                   : pread(file, piece + done, PIECE - done, at + (off_t)done);
        if (now < 0 && errno == EINTR)
            continue;
        if (now == 0)
            errno = EIO;
        if (now <= 0)
            return false;
        done += (size_t)now;
    }
    return !writes || fdatasync(file) == 0;
}

/* Pieces from the file's begin, `most` of them or as many as the time allows; how many; -1: failed.
 */
static int run(int file, char *piece, bool writes, int most, double seconds, double *rate)
{
    const double start = weft_now_us();
    int num = 0;
    do {
        if (!transfer(file, piece, (off_t)num * PIECE, writes))
            return -1;
    } while (++num < most && weft_now_us() - start < seconds * 1e6);
    *rate = fmax(*rate, (double)num * PIECE / ((weft_now_us() - start) * 1e-6));
    return num;
}

void weft_nodes_measure_disk(const char *folder, double seconds, weft_nodes_rank *own)
{
    const int file = open_file(folder);
    char *piece = malloc(PIECE);
    uint64_t x = 88172645463325252; /* xorshift: nothing that a file system could compress */
    own->fault[0] = '\0';
    for (size_t i = 0; piece && i < PIECE; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        piece[i] = (char)x;
    }
    int num = -1;
    if (file >= 0 && piece)
        num = run(file, piece, true, MAX_PIECES, seconds / 2, &own->value[WEFT_NODES_WRITE]);
    if (num < 0) {
        fail(own, folder, "write");
    } else {
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        if (run(file, piece, false, num, seconds / 2, &own->value[WEFT_NODES_READ]) < 0)
            fail(own, folder, "read");
    }
    free(piece);
    if (file >= 0)
        close(file);
}
