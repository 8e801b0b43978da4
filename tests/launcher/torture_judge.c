/* What a life has left behind, and what it has said. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/launcher/torture.h"

#define LOSS_TOLERANCE 1e-5
#define ROUGH_TOLERANCE 3e-2 /* bf16 */
enum { MAX_NEW = 12, PATH_BYTES = 256 };

torture_counts torture_count;

static long long number_behind(const char *text, const char *key)
{
    const char *at = text ? strstr(text, key) : NULL;
    return at ? atoll(at + strlen(key)) : -1;
}

static void compare_manifest(const torture_state *state, int step)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/checkpoints/step-%d/manifest.json", state->run, step);
    char *text = child_read(path);
    long long tokens = number_behind(text, "\"consumed_tokens\": ");
    if (number_behind(text, "\"step\": ") != step ||
        tokens != (long long)step * TORTURE_BATCH * TORTURE_SEQ_LENGTH)
        torture_violation("step %d: its manifest says step %lld, %lld tokens", step,
                          number_behind(text, "\"step\": "), tokens);
}

uint64_t torture_mark(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return 0;
    uint64_t parts[] = {(uint64_t)info.st_ino, (uint64_t)info.st_size,
                        (uint64_t)info.st_mtim.tv_sec, (uint64_t)info.st_mtim.tv_nsec};
    return torture_hash(7, parts, sizeof parts);
}

torture_saved torture_look_at(const torture_state *state, int step)
{
    char path[PATH_BYTES];
    torture_saved saved = {0};
    snprintf(path, sizeof path, "%s/checkpoints/step-%d/manifest.json", state->run, step);
    saved.mark = torture_mark(path);
    saved.is_there = saved.mark != 0;
    return saved;
}

static int read_latest(const torture_state *state)
{
    char *text = child_read_in(state->run, "checkpoints/latest");
    int step = 0;
    if (text && (sscanf(text, "step-%d", &step) != 1 || step < 1 || step > state->steps)) {
        torture_violation("latest is \"%s\"", text);
        step = 0;
    }
    return step;
}

/* One that is gone must not be among those that are kept. */
static void check_gone(const torture_state *state, const torture_life *life, int step)
{
    int newer = 0;
    for (int s = step + 1; s <= state->latest; s++)
        newer += state->saved[s].is_there;
    if (step > state->latest || life->keep_latest_k < 1 || newer < life->keep_latest_k ||
        (life->save_retain_interval && step % life->save_retain_interval == 0))
        torture_violation("step-%d is gone; latest is %d, %d newer ones, keep_latest_k %d, "
                          "save_retain_interval %d",
                          step, state->latest, newer, life->keep_latest_k,
                          life->save_retain_interval);
}

static void judge_checkpoints(torture_state *state, const torture_life *life, int start)
{
    bool was_there[TORTURE_MAX_STEPS + 1] = {false};
    int num_new = 0;
    state->latest = read_latest(state);
    for (int s = state->steps; s >= 1; s--) {
        torture_saved *had = &state->saved[s], now = torture_look_at(state, s);
        was_there[s] = had->is_there;
        if (now.mark == had->mark)
            continue;
        *had = now;
        had->line = state->line[s];
        if (!now.is_there)
            continue;
        torture_count.saves++;
        if (s <= start)
            torture_violation("step-%d was saved anew by a start from step %d", s, start);
        compare_manifest(state, s);
        if (num_new++ < MAX_NEW)
            torture_compare(state, s);
    }
    for (int s = 1; s <= state->steps; s++)
        if (was_there[s] && !state->saved[s].is_there && !state->saved[s].is_damaged)
            check_gone(state, life, s);
    const torture_saved *named = &state->saved[state->latest];
    if (state->latest && !named->is_there && !named->is_damaged)
        torture_violation("latest names step-%d, which is not there", state->latest);
}

/* --- metrics -------------------------------------------------------------------------------- */

static void judge_line(torture_state *state, char *line, int start)
{
    int step = 0;
    double loss = NAN;
    char *end = strstr(line, ", \"tokens\"");
    if (!end || sscanf(line, "{\"step\": %d, \"loss\": %lf", &step, &loss) != 2 ||
        step != state->last + 1 || step > state->steps) {
        torture_violation("metrics.jsonl after step %d: %.100s", state->last, line);
        return;
    }
    state->last = step;
    if (step <= start)
        return;
    double differs = fabs(loss / state->losses[step] - 1);
    bool is_rough = state->variant >= TORTURE_ROUGH;
    if (!is_rough)
        torture_count.worst_loss = fmax(torture_count.worst_loss, differs);
    if (!(differs <= (is_rough ? ROUGH_TOLERANCE : LOSS_TOLERANCE)))
        torture_violation("step %d: loss %.9g, on a single rank %.9g", step, loss,
                          state->losses[step]);
    bool is_known;
    if (!torture_agrees(state->line[step] * 2, torture_hash(7, line, (size_t)(end - line)),
                        &is_known))
        torture_violation("step %d: other bits than before from the same steps on the same "
                          "meshes: %.*s",
                          step, (int)(end - line), line);
    torture_count.same_losses += is_known;
    torture_count.compared_losses++;
    torture_count.steps++;
}

/* A last line without its end is of a step that the kill cut off. */
static void judge_metrics(torture_state *state, int start)
{
    char *text = child_read_in(state->run, "metrics.jsonl");
    state->last = 0;
    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        judge_line(state, line, start);
    }
    if (state->last < state->latest && !state->saved[state->latest].is_damaged)
        torture_violation("metrics.jsonl ends with step %d, latest is %d", state->last,
                          state->latest);
}

bool torture_reference_read(torture_state *state)
{
    char *text = child_read_in(state->reference, "metrics.jsonl");
    int found = 0;
    for (char *line = text; line && *line; line = strchr(line, '\n') + 1) {
        int step = 0;
        double loss;
        if (!strchr(line, '\n') ||
            sscanf(line, "{\"step\": %d, \"loss\": %lf", &step, &loss) != 2 || step != found + 1 ||
            step > state->steps)
            break;
        state->losses[++found] = loss;
    }
    return found == state->steps && torture_has_reference(state, found);
}

/* --- what it said --------------------------------------------------------------------------- */

int torture_expected_start(const torture_state *state)
{
    for (int s = state->latest ? state->latest : state->steps; s > 0; s--)
        if (state->saved[s].is_there && !state->saved[s].is_damaged)
            return s;
    return 0;
}

/* No start is behind a save that was reported before it. */
static void judge_said(const torture_state *state, const torture_life *life, int start,
                       const char *said)
{
    int reported = start, number = 0;
    for (const char *line = said; line && *line;) {
        int step = 0;
        const char *end = strchr(line, '\n'), *at;
        char text[256];
        snprintf(text, sizeof text, "%.*s", end ? (int)(end - line) : 0, line);
        if (strncmp(text, "starting from ", 14) == 0 && (at = strstr(text, "(step ")) &&
            sscanf(at, "(step %d)", &step) == 1) {
            torture_count.starts++;
            if (step < reported || (number == 0 && start > 0 && step != start))
                torture_violation("a start from step %d, where step %d was saved", step, reported);
            number++;
        } else if (strncmp(text, "checkpoint: ", 12) == 0 && (at = strstr(text, "/step-")) &&
                   sscanf(at, "/step-%d", &step) == 1 && step > reported) {
            reported = step;
        }
        line = end ? end + 1 : NULL;
    }
    if (reported > start && state->latest < reported)
        torture_violation("step %d was reported as saved, latest is %d", reported, state->latest);
    (void)life;
}

/* A save that training waits for is there before the next step is; one beside it before the next
 * one begins. */
static void judge_saves(const torture_state *state, const torture_life *life, int start,
                        bool lost_writer)
{
    int interval = life->save_interval, due = (state->last - 1) / interval * interval;
    if (life->async && (life->skips || lost_writer))
        return;
    if (life->async)
        due -= interval;
    /* A kill between the first checkpoint and `latest` leaves that without a name. */
    int newest = state->latest;
    for (int s = state->steps; !newest && s > 0; s--)
        newest = state->saved[s].is_there ? s : 0;
    if (due > start && newest < due)
        torture_violation("step %d is done, but latest is %d with a save every %d steps",
                          state->last, state->latest, interval);
}

/* A rank's own line of level error; mpirun's words about ranks that were killed are none. */
static bool has_error(const char *warned)
{
    for (const char *at = warned; (at = strstr(at, " rank ")); at++) {
        int length = 0;
        if (sscanf(at, " rank %*d error%n", &length) == 0 && length > 0)
            return true;
    }
    return false;
}

static void judge_warned(bool falls, bool had_latest, bool has_steps, const char *warned)
{
    bool fell = strstr(warned, " is taken");
    torture_count.falls += fell;
    if (fell && !falls && (had_latest || !strstr(warned, "/latest names no checkpoint: ")))
        torture_violation("it fell back where nothing was damaged: %s", warned);
    if (!fell && falls && has_steps)
        torture_violation("it went on from an older checkpoint and said nothing: %s", warned);
    if (has_error(warned))
        torture_violation("an error: %s", warned);
}

/* After a life that ended by itself: nothing but what belongs there. */
static void judge_folder(const char *path, const char *const *names)
{
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        int step;
        char more;
        bool belongs = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
                       sscanf(entry->d_name, "step-%d%c", &step, &more) == 1;
        for (int i = 0; names[i] && !belongs; i++)
            belongs = strcmp(entry->d_name, names[i]) == 0;
        if (!belongs)
            torture_violation("%s/%s was left behind", path, entry->d_name);
    }
    if (folder)
        closedir(folder);
}

static void judge_kept(const torture_state *state, const torture_life *life)
{
    int kept = 0;
    for (int s = 1; s <= state->latest; s++)
        kept += state->saved[s].is_there &&
                !(life->save_retain_interval && s % life->save_retain_interval == 0);
    if (life->keep_latest_k > 0 && kept > life->keep_latest_k)
        torture_violation("%d checkpoints are kept, keep_latest_k is %d", kept,
                          life->keep_latest_k);
}

void torture_judge_control(torture_state *state, const char *run, int start, int last)
{
    const char *had = state->run;
    const int had_last = state->last, had_latest = state->latest;
    state->run = run;
    torture_compare(state, last);
    judge_metrics(state, start);
    if (state->last != last)
        torture_violation("%s ends with step %d, not %d", run, state->last, last);
    state->run = had;
    state->last = had_last;
    state->latest = had_latest;
}

/* Whether a life that begins with `start` has to say that this is not what `latest` names. A single
 * checkpoint without `latest` is of a first save that was killed before its last rename: the newest
 * there is. */
static bool is_fallback(const torture_state *state, int start)
{
    int count = 0;
    for (int s = 1; s <= state->steps; s++)
        count += state->saved[s].is_there || state->saved[s].is_damaged;
    return start < state->latest || (!state->latest && start && count > 1);
}

void torture_judge(torture_state *state, const torture_life *life, int start, int exit_code,
                   bool lost_writer, const char *said, const char *warned)
{
    static const char *const in_run[] = {
        "config.json", "metrics.jsonl", "ledger.jsonl", "checkpoints", "memory.json", "flight",
        ".lock",       ".alive",        "trace.json",   "trace.svg",   NULL};
    static const char *const in_checkpoints[] = {"latest", NULL};
    bool falls = is_fallback(state, start);
    int latest = state->latest, last = state->last;
    char path[PATH_BYTES];
    if (start > 0)
        state->line[start] = state->saved[start].line;
    for (int s = start + 1; s <= state->steps; s++)
        state->line[s] = torture_hash(state->line[s - 1], life->same, strlen(life->same));
    judge_checkpoints(state, life, start);
    snprintf(path, sizeof path, "%s/metrics.jsonl", state->run);
    bool has_begun = torture_mark(path) != state->metrics; /* it has cut what is behind its start */
    state->metrics = torture_mark(path);
    if (has_begun)
        judge_metrics(state, start);
    judge_said(state, life, start, said);
    if (has_begun && state->last > start) {
        judge_saves(state, life, start, lost_writer);
        torture_count.steps_again += last > start ? last - start : 0;
    }
    judge_warned(falls, latest != 0, state->latest != latest, warned ? warned : "");
    bool did_nothing = said && strstr(said, ": finished: step ");
    if ((exit_code != 0 && exit_code != 75) || did_nothing)
        return;
    if (state->latest != state->last)
        torture_violation("it ended with step %d, latest is %d", state->last, state->latest);
    judge_kept(state, life);
    judge_folder(state->run, in_run);
    snprintf(path, sizeof path, "%s/checkpoints", state->run);
    judge_folder(path, in_checkpoints);
}
