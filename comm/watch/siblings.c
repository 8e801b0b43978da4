#include "comm/watch/siblings.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ENVIRONMENT_BYTES = 1 << 16 };

/* -1: it has none. */
static int rank_of(int pid)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK=", "PMI_RANK=", "SLURM_PROCID="};
    char path[64];
    int rank = -1;
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(ENVIRONMENT_BYTES) : NULL;
    const size_t bytes = text ? fread(text, 1, ENVIRONMENT_BYTES - 1, file) : 0;
    if (text)
        text[bytes] = '\0';
    for (size_t n = 0; n < sizeof names / sizeof *names && rank < 0; n++)
        for (size_t at = 0; at < bytes && rank < 0; at += strlen(text + at) + 1)
            if (strncmp(text + at, names[n], strlen(names[n])) == 0)
                rank = atoi(text + at + strlen(names[n]));
    free(text);
    if (file)
        fclose(file);
    return rank;
}

/* As /proc/PID/stat has it: behind the name, which may have any character in it. */
static char state_of(int pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    const char *end = file && fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    if (file)
        fclose(file);
    return end && end[1] ? end[2] : '\0';
}

static void look_at(int pid, weft_siblings *out)
{
    const int rank = rank_of(pid);
    if (rank < 0)
        return;
    if (state_of(pid) != 'T') {
        out->first = out->first < 0 || rank < out->first ? rank : out->first;
    } else if (out->num_stopped < WEFT_MAX_STOPPED) {
        out->stopped[out->num_stopped++] = rank;
    }
}

void weft_siblings_look(weft_siblings *out)
{
    char path[96];
    const int parent = (int)getppid();
    *out = (weft_siblings){.first = -1};
    snprintf(path, sizeof path, "/proc/%d/task", parent);
    DIR *tasks = opendir(path);
    for (const struct dirent *task; tasks && (task = readdir(tasks));) {
        int pid;
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/children", parent, task->d_name);
        FILE *children = task->d_name[0] == '.' ? NULL : fopen(path, "re");
        while (children && fscanf(children, "%d", &pid) == 1)
            look_at(pid, out);
        if (children)
            fclose(children);
    }
    if (tasks)
        closedir(tasks);
}
