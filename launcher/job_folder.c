#include "launcher/job_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARENT "/dev/shm"

static struct {
    char path[64];
    int lock; /* -1: none */
} folder = {.lock = -1};

/* What names it to Open MPI; a user's own choice stands. */
static const char *const names[] = {"OMPI_MCA_btl_vader_backing_directory",
                                    "OMPI_MCA_osc_sm_backing_directory",
                                    "OMPI_MCA_orte_tmpdir_base"};
enum { NUM_NAMES = sizeof names / sizeof *names };

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

static void remove_dead(const char *prefix)
{
    char path[sizeof PARENT + 256];
    DIR *parent = opendir(PARENT);
    for (const struct dirent *entry; parent && (entry = readdir(parent));) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        snprintf(path, sizeof path, PARENT "/%s", entry->d_name);
        int lock = lock_folder(path);
        if (lock < 0)
            continue;
        remove_all(path);
        close(lock);
    }
    if (parent)
        closedir(parent);
}

void weft_job_folder_open(void)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "weft-%u-", (unsigned)geteuid());
    remove_dead(prefix);
    /* Another start may take a folder for dead before it is locked. */
    for (int i = 0; i < 10 && folder.lock < 0; i++) {
        snprintf(folder.path, sizeof folder.path, PARENT "/%sXXXXXX", prefix);
        if (!mkdtemp(folder.path))
            return;
        folder.lock = lock_folder(folder.path);
    }
    /* mpirun has the lock too, so that it outlives a launcher that is killed. */
    for (size_t i = 0; folder.lock >= 0 && i < NUM_NAMES; i++)
        setenv(names[i], folder.path, 0);
}

void weft_job_folder_close(void)
{
    if (folder.lock < 0)
        return;
    for (size_t i = 0; i < NUM_NAMES; i++) {
        const char *value = getenv(names[i]);
        if (value && strcmp(value, folder.path) == 0)
            unsetenv(names[i]);
    }
    remove_all(folder.path);
    close(folder.lock);
    folder.lock = -1;
}
