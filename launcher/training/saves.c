#include "launcher/training/saves.h"

#include <inttypes.h>
#include <string.h>

#include "comm/watch/watch.h"
#include "core/log.h"
#include "core/text.h"
#include "launcher/training/judge.h"
#include "launcher/training/setup.h"

static bool leads(const weft_saves *s)
{
    return weft_comm_rank(s->trainer->world) == 0;
}

static weft_checkpoint_keep keep_of(const weft_saves *s)
{
    const weft_checkpoint_options *c = &s->trainer->config.checkpoint;
    return (weft_checkpoint_keep){.latest_k = c->keep_latest_k,
                                  .retain_interval = c->save_retain_interval};
}

/* Rank 0 removes old checkpoints after a save; a failure only costs room. */
static void remove_old(const weft_saves *s)
{
    const weft_checkpoint_keep keep = keep_of(s);
    int removed;
    if (weft_checkpoint_prune(s->dir, &keep, &removed) == WEFT_OK)
        return;
    weft_log(WEFT_LOG_WARN, "old checkpoints stay: %s", weft_error_get()->text);
    weft_error_clear();
}

static const char not_saved[] = "not saved, the next save tries again: ",
                  not_copied[] = "not copied to other nodes' memory, the next copy tries again: ";

/* False for a state that is not finite, or lost ranks and devices. */
static weft_status warn(const weft_saves *s, const char *what, int64_t step, weft_status status)
{
    const weft_error *error = weft_error_get();
    if (status != WEFT_FILE && status != WEFT_MEMORY)
        return status;
    if (leads(s)) /* rank 0's own line need not name rank 0 */
        weft_log(WEFT_LOG_WARN, "step %" PRId64 ": %s%s", step, what,
                 error->text + (error->found_by == 0 ? error->own_at : 0));
    weft_error_clear();
    return WEFT_OK;
}

static weft_status save_now(weft_saves *s)
{
    WEFT_TRY(weft_trainer_save(s->trainer, s->dir));
    if (!leads(s))
        return WEFT_OK;
    s->published = s->trainer->step;
    weft_progress_note(s->progress, "checkpoint: %s/step-%" PRId64, s->dir, s->trainer->step);
    remove_old(s);
    return WEFT_OK;
}

/* --- beside training ----------------------------------------------------------------------- */

static bool has_writer(const weft_saves *s)
{
    return s->trainer->writer && !weft_checkpoint_writer_is_off(s->trainer->writer);
}

/* Known on all ranks. */
static weft_status check_nodes(const weft_trainer *t)
{
    const int64_t copies = t->config.checkpoint.peer_copies;
    if (copies < t->num_nodes)
        return WEFT_OK;
    return WEFT_KEY_ERROR("checkpoint.peer_copies", "%" PRId64 ": the ranks are on %s", copies,
                          weft_count_text(t->num_nodes, "node").text);
}

weft_status weft_saves_reserve(weft_trainer *t, const weft_config_source *source, bool goes_on)
{
    weft_status status;
    if (!t->writer)
        return WEFT_OK;
    if (!goes_on)
        WEFT_TRY(weft_config_locate(source, check_nodes(t)));
    status =
        weft_checkpoint_writer_reserve(t->writer, weft_model_parameters(t->model), t->optimizer,
                                       (size_t)t->config.checkpoint.staging_bytes);
    WEFT_TRY(weft_comm_agree(t->world, weft_config_locate(source, status)));
    if (t->config.reliability.watchdog)
        weft_checkpoint_writer_limit(t->writer, (double)t->config.reliability.save_limit_s);
    weft_log(WEFT_LOG_DEBUG, "asynchronous saves: %zu bytes of host memory",
             weft_checkpoint_writer_bytes(t->writer));
    return WEFT_OK;
}

static void tell(weft_saves *s)
{
    const weft_writer_report r = weft_checkpoint_writer_report(s->trainer->writer);
    if (!leads(s))
        return;
    s->published = r.step;
    weft_progress_note(s->progress, "checkpoint: %s/step-%" PRId64, s->dir, r.step);
    weft_log(WEFT_LOG_DEBUG,
             "checkpoint of step %" PRId64
             ": training waited %.3f ms, of that %.3f ms for the writer; %zu bytes were copied, "
             "written in %.3f ms, verified in %.3f ms",
             r.step, r.stalled_us / 1e3, r.waited_us / 1e3, r.bytes, r.written_us / 1e3,
             r.verified_us / 1e3);
}

static void tell_copies(const weft_saves *s)
{
    const weft_writer_report r = weft_checkpoint_writer_report(s->trainer->writer);
    if (leads(s))
        weft_log(WEFT_LOG_DEBUG,
                 "copies of step %" PRId64
                 " are in memory: training waited %.3f ms; %zu bytes were sent in %.3f ms",
                 r.step, r.stalled_us / 1e3, r.bytes, r.written_us / 1e3);
}

/* The outcome of advancing a writer; its state if it had nothing to do. */
static weft_status take(weft_saves *s, bool was_busy, weft_status status, bool published)
{
    const weft_writer_report report = weft_checkpoint_writer_report(s->trainer->writer);
    if (published)
        tell(s);
    if (status == WEFT_OK)
        return WEFT_OK;
    return was_busy ? warn(s, report.copies ? not_copied : not_saved, report.step, status)
                    : warn(s, "", s->trainer->step, status);
}

weft_status weft_saves_advance(weft_saves *s, weft_writer_word word)
{
    bool published = false;
    if (!has_writer(s))
        return WEFT_OK;
    weft_checkpoint_writer *w = s->trainer->writer;
    const bool was_busy = weft_checkpoint_writer_is_busy(w);
    const bool copies = was_busy && weft_checkpoint_writer_report(w).copies;
    weft_status status = weft_checkpoint_advance(w, word, &published);
    if (copies && status == WEFT_OK && !weft_checkpoint_writer_is_busy(w))
        tell_copies(s);
    return take(s, was_busy, status, published);
}

/* Ends a save; waits for the writers of a failed one, too. */
static weft_status saves_finish(weft_saves *s)
{
    while (has_writer(s) && weft_checkpoint_writer_is_busy(s->trainer->writer)) {
        bool published = false;
        weft_status status = weft_checkpoint_finish(s->trainer->writer, &published);
        WEFT_TRY(take(s, true, status, published));
    }
    return WEFT_OK;
}

weft_status weft_saves_save(weft_saves *s)
{
    const weft_checkpoint_options *c = &s->trainer->config.checkpoint;
    weft_checkpoint_writer *w = s->trainer->writer;
    const weft_checkpoint_keep keep = keep_of(s);
    if (c->no_save)
        return WEFT_OK;
    weft_watch_enter(WEFT_WATCH_SAVE, s->trainer->step);
    WEFT_TRY(weft_trainer_verify_state(s->trainer));
    if (!has_writer(s))
        return warn(s, not_saved, s->trainer->step, save_now(s));
    if (weft_checkpoint_writer_is_busy(w) && !weft_checkpoint_writer_report(w).copies &&
        c->async_when_busy == WEFT_SAVE_SKIP) {
        s->num_skipped++;
        if (leads(s))
            weft_log(WEFT_LOG_WARN,
                     "step %" PRId64 ": not saved: the save of step %" PRId64
                     " is still under way; %s skipped so far",
                     s->trainer->step, weft_checkpoint_writer_report(w).step,
                     weft_count_text(s->num_skipped, "save").text);
        return WEFT_OK;
    }
    WEFT_TRY(saves_finish(s));
    if (!has_writer(s))
        return warn(s, not_saved, s->trainer->step, save_now(s));
    return warn(s, not_saved, s->trainer->step, weft_trainer_begin_save(s->trainer, s->dir, &keep));
}

weft_status weft_saves_end(weft_saves *s)
{
    weft_watch_enter(WEFT_WATCH_SAVE, s->trainer->step);
    WEFT_TRY(saves_finish(s));
    if (s->trainer->config.checkpoint.no_save)
        return WEFT_OK;
    WEFT_TRY(weft_trainer_verify_state(s->trainer));
    WEFT_TRY(save_now(s));
    if (s->trainer->writer)
        weft_copies_release(s->trainer->writer);
    return WEFT_OK;
}

/* --- copies in other nodes' memory --------------------------------------------------------- */

static weft_copies_place place_of(const weft_saves *s, const weft_checkpoint_options *c)
{
    return (weft_copies_place){.dir = s->dir, .path = c->peer_path};
}

static void tell_found(const weft_saves *s, const weft_copies_found *f, int64_t newer_than)
{
    char instead[64] = "goes on without";
    if (f->step >= 0) {
        weft_log(WEFT_LOG_WARN,
                 "resume: step %" PRId64
                 " is taken from the nodes' memory: %s of %s, now %s/step-%" PRId64,
                 f->step, weft_bytes_text((double)f->bytes).text,
                 weft_count_text(f->num_ranks, "rank").text, s->dir, f->step);
        return;
    }
    if (newer_than >= 0)
        snprintf(instead, sizeof instead, "goes on from the checkpoint of step %" PRId64,
                 newer_than);
    if (f->newest >= 0)
        weft_log(WEFT_LOG_WARN,
                 "resume: step %" PRId64 " is not whole in the nodes' memory, which lacks the "
                 "state of rank %d: %s",
                 f->newest, f->missing, instead);
    else
        weft_log(WEFT_LOG_WARN, "resume: the nodes' memory has no newer step: %s", instead);
}

weft_status weft_saves_restore(const weft_saves *s, weft_comm *world, const weft_run_folder *folder,
                               const weft_run_start *start, const weft_checkpoint_options *c,
                               bool *out_found)
{
    const weft_copies_place place = place_of(s, c);
    const bool wanted = folder->resume && !folder->from;
    const int64_t newer_than = start->checkpoint ? start->step : -1;
    weft_copies_found found;
    weft_watch_enter(WEFT_WATCH_LOAD, 0);
    WEFT_TRY(weft_copies_restore(world, &place, wanted ? newer_than : INT64_MAX, &found));
    if (wanted && weft_comm_rank(world) == 0)
        tell_found(s, &found, newer_than);
    *out_found = found.step >= 0;
    weft_watch_enter(WEFT_WATCH_SETUP, 0);
    return WEFT_OK;
}

weft_status weft_saves_reserve_copies(weft_saves *s, const weft_config_source *source, bool goes_on)
{
    weft_trainer *t = s->trainer;
    const weft_checkpoint_options *c = &t->config.checkpoint;
    const weft_copies_place place = place_of(s, c);
    const char *tokenizer = NULL, *config;
    weft_arena arena = {0};
    if (!t->writer || c->peer_copies == 0)
        return WEFT_OK;
    if (goes_on && c->peer_copies >= t->num_nodes) {
        if (leads(s))
            weft_log(
                WEFT_LOG_WARN,
                "checkpoint.peer_copies: no copies in other nodes' memory: the ranks are on %s",
                weft_count_text(t->num_nodes, "node").text);
        return WEFT_OK;
    }
    weft_status status = weft_config_text(&t->config, &arena, &config);
    if (status == WEFT_OK)
        status = weft_setup_tokenizer_text(&t->config, &arena, &tokenizer);
    const size_t bytes =
        status == WEFT_OK ? strlen(config) + (tokenizer ? strlen(tokenizer) : 0) : 0;
    weft_arena_release(&arena);
    WEFT_TRY(weft_comm_agree(t->world, status));
    status = weft_copies_reserve(t->writer, &place, (int)c->peer_copies, bytes,
                                 weft_model_parameters(t->model), t->optimizer);
    WEFT_TRY(weft_config_locate(source, status));
    weft_log(WEFT_LOG_DEBUG, "copies in nodes' memory: %zu bytes", weft_copies_bytes(t->writer));
    return WEFT_OK;
}

weft_status weft_saves_copy(weft_saves *s)
{
    weft_checkpoint_writer *w = s->trainer->writer;
    if (!has_writer(s) || weft_copies_bytes(w) == 0 || weft_checkpoint_writer_is_busy(w))
        return WEFT_OK;
    weft_watch_enter(WEFT_WATCH_SAVE, s->trainer->step);
    WEFT_TRY(weft_trainer_verify_state(s->trainer));
    return warn(s, not_copied, s->trainer->step, weft_trainer_begin_save(s->trainer, NULL, NULL));
}

void weft_saves_forget_copies(weft_saves *s)
{
    weft_error error;
    weft_error_take(&error);
    if (s->trainer->writer && weft_copies_clear(s->trainer->writer) != WEFT_OK)
        weft_log(WEFT_LOG_WARN, "copies in this node's memory stay: %s", weft_error_get()->text);
    weft_error_put(&error);
}

/* --- back to a checkpoint ------------------------------------------------------------------- */

weft_status weft_saves_find_damage(weft_comm *world, const char *checkpoint, bool *out)
{
    weft_error error;
    int64_t damaged = 0;
    weft_error_take(&error);
    if (weft_comm_rank(world) == 0)
        damaged = weft_checkpoint_verify(checkpoint) != WEFT_OK;
    WEFT_TRY(weft_comm_broadcast_host(world, &damaged, sizeof damaged, 0));
    *out = damaged != 0;
    weft_error_put(&error);
    return WEFT_OK;
}

static weft_status check_any_before(const weft_saves *s, int64_t below)
{
    weft_arena arena = {0};
    int64_t *steps;
    size_t count;
    weft_status status = weft_checkpoint_list(s->dir, &arena, &steps, &count);
    if (status == WEFT_OK && (count == 0 || steps[0] >= below))
        status = WEFT_ERROR(WEFT_DIVERGED,
                            "step %" PRId64 ": a bad step, and no checkpoint yet to go back to",
                            s->trainer->step + 1);
    weft_arena_release(&arena);
    return status;
}

/* Rank 0: the newest checkpoint before step `below` with undamaged texts. *start has those skipped
 * before. */
static weft_status find_before(const weft_saves *s, const weft_run_folder *folder,
                               weft_arena *arena, weft_run_start *start,
                               char path[WEFT_SAVES_PATH_BYTES])
{
    weft_run_start found;
    if (start->num_damaged == 0)
        WEFT_TRY(check_any_before(s, folder->below));
    weft_status status = weft_run_find_start(folder, arena, &found);
    if (status == WEFT_FILE && start->num_damaged > 0) /* names the newest skipped one */
        return weft_run_check_fallback(folder, start, 0);
    WEFT_TRY(status);
    if (start->num_damaged > 0) {
        found.damaged = start->damaged;
        found.damage = start->damage;
        found.num_damaged += start->num_damaged;
    }
    *start = found;
    snprintf(path, WEFT_SAVES_PATH_BYTES, "%s", start->checkpoint);
    return weft_run_check_fallback(folder, start, weft_run_fallback(&s->trainer->config));
}

static weft_status load_newest(weft_saves *s, const char *run, weft_arena *arena,
                               weft_run_start *start, char path[WEFT_SAVES_PATH_BYTES])
{
    weft_comm *world = s->trainer->world;
    weft_run_folder folder = {.path = run, .resume = true, .below = s->trainer->step + 1};
    for (bool damaged = true; damaged; folder.below = start->step) {
        weft_status status = leads(s) ? find_before(s, &folder, arena, start, path) : WEFT_OK;
        WEFT_TRY(weft_comm_agree(world, status));
        WEFT_TRY(weft_comm_broadcast_host(world, path, WEFT_SAVES_PATH_BYTES, 0));
        status = weft_trainer_rewind(s->trainer, path);
        if (status != WEFT_FILE)
            return status;
        WEFT_TRY(weft_saves_find_damage(world, path, &damaged));
        if (damaged)
            WEFT_TRY(weft_run_pass_over(start));
    }
    return weft_error_get()->status;
}

weft_status weft_saves_rewind(weft_saves *s, const char *run, char path[WEFT_SAVES_PATH_BYTES])
{
    weft_checkpoint_writer *w = s->trainer->writer;
    weft_arena arena = {0};
    weft_run_start start = {0};
    char when[48];
    snprintf(when, sizeof when, "step %" PRId64, s->trainer->step + 1);
    memset(path, 0, WEFT_SAVES_PATH_BYTES);
    WEFT_TRY(saves_finish(s));
    WEFT_TRY(weft_comm_agree(s->trainer->world, w ? weft_copies_clear(w) : WEFT_OK));
    weft_status status = load_newest(s, run, &arena, &start, path);
    if (status == WEFT_OK && leads(s))
        weft_run_tell_damage(&start, when);
    weft_arena_release(&arena);
    return status;
}
