/* Damages the newest checkpoint of a tortured run. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/launcher/torture.h"

enum { PATH_BYTES = 256 };

static const char *const files[] = {"model.h5", "model.h5", "manifest.json", "shards.json",
                                    "config.json"};
enum { NUM_FILES = 5, FLIP, CUT, REMOVE, GROW, OLDER, NUM_WAYS = 5 };

static bool shell(const char *command)
{
    return system(command) == 0;
}

static bool flip(const char *path, double at)
{
    struct stat info;
    FILE *file = fopen(path, "r+b");
    if (!file || fstat(fileno(file), &info) != 0 || info.st_size < 1) {
        if (file)
            fclose(file);
        return false;
    }
    long place = (long)(at * (double)info.st_size);
    fseek(file, place, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, place, SEEK_SET);
    fputc(byte ^ (1 << place % 8), file);
    return fclose(file) == 0;
}

bool torture_damage(torture_state *state, torture_chance *chance, char what[128])
{
    int newest = state->latest, before = newest - 1;
    const char *file = files[torture_below(chance, NUM_FILES)];
    int way = FLIP + torture_below(chance, NUM_WAYS);
    double at = torture_uniform(chance);
    bool takes_latest = torture_below(chance, 10) == 0;
    if (newest == state->steps) /* a run that is done looks no further */
        return false;
    while (before > 0 && (!state->saved[before].is_there || state->saved[before].is_damaged))
        before--;
    if (before < 1 || torture_expected_start(state) != newest)
        return false;
    char path[PATH_BYTES], command[3 * PATH_BYTES];
    if (takes_latest) {
        snprintf(path, sizeof path, "%s/checkpoints/latest", state->run);
        snprintf(what, 128, "latest is removed");
        state->latest = 0;
        return remove(path) == 0;
    }
    snprintf(path, sizeof path, "%s/checkpoints/step-%d/%s", state->run, newest, file);
    bool good = false;
    switch (way) {
    case FLIP:
        snprintf(what, 128, "step-%d/%s: a bit flips at %.4f of it", newest, file, at);
        good = flip(path, at);
        break;
    case CUT:
        snprintf(what, 128, "step-%d/%s is cut at %.4f of it", newest, file, at);
        snprintf(command, sizeof command, "truncate -s $(($(stat -c %%s %s) * %d / 10000)) %s",
                 path, (int)(1e4 * at), path);
        good = shell(command);
        break;
    case REMOVE:
        snprintf(what, 128, "step-%d/%s is removed", newest, file);
        good = remove(path) == 0;
        break;
    case GROW:
        snprintf(what, 128, "step-%d/%s has four bytes more", newest, file);
        snprintf(command, sizeof command, "printf 'more' >>%s", path);
        good = shell(command);
        break;
    default:
        snprintf(what, 128, "step-%d/model.h5 is that of step-%d", newest, before);
        snprintf(command, sizeof command,
                 "cp %s/checkpoints/step-%d/model.h5 %s/checkpoints/step-%d/model.h5", state->run,
                 before, state->run, newest);
        good = shell(command);
    }
    uint64_t line = state->saved[newest].line;
    state->saved[newest] = torture_look_at(state, newest);
    state->saved[newest].line = line;
    state->saved[newest].is_damaged = true;
    return good;
}
