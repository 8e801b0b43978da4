#include "launcher/process/job_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/log.h"
#include "core/text.h"

#define UNIQUE "XXXXXX" /* mkdtemp's */
enum { MAX_NAMES = 2, MAX_PATH = 128 };

/* One of the job's folders. The session's is no part of the first: /dev/shm is small in containers.
 */
typedef struct place {
    const char *parent;
    const char *names[MAX_NAMES]; /* what names it to Open MPI; a user's own choice stands */
    char path[MAX_PATH];
    int lock; /* -1: none */
} place;

static place places[] = {
    {.parent = "/dev/shm",
     .names = {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_osc_sm_backing_directory"},
     .lock = -1},
    {.parent = "/tmp", .names = {"OMPI_MCA_orte_tmpdir_base"}, .lock = -1},
};
enum { NUM_PLACES = sizeof places / sizeof *places };

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    remove(path);
    return 0;
}

static void remove_all(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Locks a folder of this user's that nobody else has locked; -1: it is none, or its job lives. */
static int lock_folder(const char *path)
{
    struct stat info, there;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (fd < 0)
        return -1;
    bool good = fstat(fd, &info) == 0 && info.st_uid == geteuid() &&
                flock(fd, LOCK_EX | LOCK_NB) == 0 && lstat(path, &there) == 0 &&
                there.st_ino == info.st_ino;
    if (good)
        return fd;
    close(fd);
    return -1;
}

static void remove_dead(const char *parent, const char *prefix)
{
    char path[MAX_PATH + 256];
    DIR *folder = opendir(parent);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0 ||
            strlen(entry->d_name) != strlen(prefix) + strlen(UNIQUE))
            continue; /* nobody else names a folder so */
        snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);
        int lock = lock_folder(path);
        if (lock < 0)
            continue;
        remove_all(path);
        close(lock);
    }
    if (folder)
        closedir(folder);
}

static void open_place(place *p)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "weft-job-%u-", (unsigned)geteuid());
    remove_dead(p->parent, prefix);
    /* Another start may take a folder for dead before it is locked. */
    for (int i = 0; i < 10 && p->lock < 0; i++) {
        int length = snprintf(p->path, sizeof p->path, "%s/%s" UNIQUE, p->parent, prefix);
        if (length >= MAX_PATH || !mkdtemp(p->path))
            return;
        p->lock = lock_folder(p->path);
    }
    /* mpirun has the lock too, so that it outlives a launcher that is killed. */
    for (int i = 0; p->lock >= 0 && i < MAX_NAMES && p->names[i]; i++)
        setenv(p->names[i], p->path, 0);
}

static void close_place(place *p)
{
    if (p->lock < 0)
        return;
    for (int i = 0; i < MAX_NAMES && p->names[i]; i++) {
        const char *value = getenv(p->names[i]);
        if (value && strcmp(value, p->path) == 0)
            unsetenv(p->names[i]);
    }
    remove_all(p->path);
    close(p->lock);
    p->lock = -1;
}

/* Of 4 ranks Open MPI's segments and windows take between 32 and 64 MiB. */
static void leave_small_memory(int num_ranks)
{
    const double rank_bytes = 16 << 20;
    struct statvfs info;
    if (getenv(places[0].names[0]) || statvfs(places[0].parent, &info) != 0)
        return;
    const double free_bytes = (double)info.f_bavail * (double)info.f_frsize;
    if (free_bytes >= rank_bytes * num_ranks)
        return;
    weft_log(WEFT_LOG_WARN, "%s has %s free, and %s may share %s: their memory lies under %s",
             places[0].parent, weft_bytes_text(free_bytes).text,
             weft_count_text(num_ranks, "rank").text, weft_bytes_text(rank_bytes * num_ranks).text,
             places[1].parent);
    places[0].parent = places[1].parent;
}

void weft_job_folder_open(int num_ranks)
{
    const char *temporary = getenv("TMPDIR");
    if (temporary && temporary[0] == '/')
        places[1].parent = temporary;
    leave_small_memory(num_ranks);
    for (int i = 0; i < NUM_PLACES; i++)
        open_place(&places[i]);
}

void weft_job_folder_close(void)
{
    for (int i = 0; i < NUM_PLACES; i++)
        close_place(&places[i]);
}
