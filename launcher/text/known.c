/* What is kept is one line of JSON that is compared as text: nothing of it is believed unless all
 * is as it was written. */
#include "launcher/text/known.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <xxhash.h>

#include "core/file.h"

enum { CHUNK_TOKENS = 1 << 14, PATH_BYTES = 4096, TEXT_BYTES = 768 };

static weft_status part_path(const char *prefix, const char *suffix, char out[PATH_BYTES])
{
    return weft_path_print(out, PATH_BYTES, "%s%s", prefix, suffix);
}

/* As the names lead to them now. */
static weft_status take_stamps(const char *prefix, weft_dataset_stamps *out)
{
    static const char *const suffixes[] = {".bin", ".idx"};
    for (int i = 0; i < 2; i++) {
        char path[PATH_BYTES];
        weft_file file;
        WEFT_TRY(part_path(prefix, suffixes[i], path));
        WEFT_TRY(weft_file_open(path, &file));
        weft_status status = weft_file_take_stamp(&file, &out->of[i]);
        weft_file_close(&file);
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

static bool is_same(const weft_dataset_stamps *a, const weft_dataset_stamps *b)
{
    for (int i = 0; i < 2; i++) {
        const weft_file_stamp *x = &a->of[i], *y = &b->of[i];
        if (x->bytes != y->bytes || x->inode != y->inode || x->modified_ns != y->modified_ns ||
            x->changed_ns != y->changed_ns)
            return false;
    }
    return true;
}

/* Clocks of file systems stand still for some milliseconds: whoever writes within them leaves the
 * times as they are. Files that young are read a little later. */
static void wait_until_old(const weft_dataset_stamps *s)
{
    enum { OLD_NS = 100000000 };
    const struct timespec pause = {.tv_nsec = OLD_NS};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (now_ns - s->of[0].changed_ns < OLD_NS || now_ns - s->of[1].changed_ns < OLD_NS)
        nanosleep(&pause, NULL);
}

/* --- the line ------------------------------------------------------------------------------ */

static int print_known(const weft_dataset_stamps *s, uint64_t tokenizer, const weft_known *known,
                       char out[TEXT_BYTES])
{
    int used = snprintf(out, TEXT_BYTES, "{\"version\": 1");
    for (int i = 0; i < 2; i++)
        used += snprintf(out + used, (size_t)(TEXT_BYTES - used),
                         ", \"%s\": {\"bytes\": %" PRIu64 ", \"inode\": %" PRIu64
                         ", \"modified_ns\": %" PRId64 ", \"changed_ns\": %" PRId64 "}",
                         i ? "idx" : "bin", s->of[i].bytes, s->of[i].inode, s->of[i].modified_ns,
                         s->of[i].changed_ns);
    used += snprintf(out + used, (size_t)(TEXT_BYTES - used),
                     ", \"tokenizer_xxh64\": \"%016" PRIx64 "\", \"max_token\": ", tokenizer);
    const int head = used; /* what follows is what a reader wants to know */
    used +=
        snprintf(out + used, (size_t)(TEXT_BYTES - used),
                 "%" PRId32 ", \"data_xxh64\": \"%016" PRIx64 "\"", known->max_token, known->xxh64);
    snprintf(out + used, (size_t)(TEXT_BYTES - used), ", \"xxh64\": \"%016" PRIx64 "\"}\n",
             (uint64_t)XXH64(out, (size_t)used, 0));
    return head;
}

static weft_status recall(const weft_dataset *d, const char *prefix, const char *tokenizer,
                          bool *out_found, weft_known *out)
{
    char path[PATH_BYTES], head[TEXT_BYTES], whole[TEXT_BYTES], *text;
    const weft_dataset_stamps *now = weft_dataset_get_stamps(d);
    weft_known known = {0};
    weft_arena arena = {0};
    WEFT_TRY(part_path(prefix, WEFT_KNOWN_SUFFIX, path));
    weft_status status = weft_file_read_text(path, &arena, &text, NULL);
    if (status == WEFT_OK) {
        const uint64_t of_tokenizer = XXH64(tokenizer, strlen(tokenizer), 0);
        const int bytes = print_known(now, of_tokenizer, &known, head);
        if (strncmp(text, head, (size_t)bytes) == 0 &&
            sscanf(text + bytes, "%" SCNd32 ", \"data_xxh64\": \"%16" SCNx64 "\"", &known.max_token,
                   &known.xxh64) == 2) {
            print_known(now, of_tokenizer, &known, whole);
            *out_found = strcmp(text, whole) == 0;
        }
    }
    if (*out_found)
        *out = known;
    weft_arena_release(&arena);
    return status;
}

bool weft_known_recall(const weft_dataset *d, const char *spare, const char *tokenizer,
                       weft_known *out)
{
    const char *prefixes[] = {weft_dataset_name(d), spare};
    bool found = false;
    for (int i = 0; i < 2 && prefixes[i] && !found; i++)
        if (recall(d, prefixes[i], tokenizer, &found, out) != WEFT_OK)
            weft_error_clear(); /* as good as nothing kept */
    return found;
}

static weft_status keep(const char *prefix, const char *tokenizer, const weft_dataset_stamps *s,
                        const weft_known *known)
{
    char path[PATH_BYTES], text[TEXT_BYTES];
    weft_new_file file;
    WEFT_TRY(part_path(prefix, WEFT_KNOWN_SUFFIX, path));
    WEFT_TRY(weft_new_file_open(path, &file));
    print_known(s, XXH64(tokenizer, strlen(tokenizer), 0), known, text);
    fputs(text, file.file);
    return weft_new_file_close(&file, WEFT_OK);
}

weft_status weft_known_keep(const char *prefix, const char *tokenizer, const weft_known *known)
{
    weft_dataset_stamps now;
    WEFT_TRY(take_stamps(prefix, &now));
    return keep(prefix, tokenizer, &now, known);
}

/* --- reading ------------------------------------------------------------------------------- */

static weft_status scan(const weft_dataset *d, XXH64_state_t *state, int32_t *tokens,
                        int32_t *out_most)
{
    int32_t most = 0;
    const uint64_t num_tokens = weft_dataset_num_tokens(d);
    for (uint64_t first = 0; first < num_tokens; first += CHUNK_TOKENS) {
        const uint64_t left = num_tokens - first;
        const size_t count = left < CHUNK_TOKENS ? (size_t)left : CHUNK_TOKENS;
        WEFT_TRY(weft_dataset_read(d, first, count, tokens));
        for (size_t i = 0; i < count; i++)
            most = tokens[i] > most ? tokens[i] : most;
        XXH64_update(state, tokens, count * sizeof *tokens);
    }
    *out_most = most;
    return WEFT_OK;
}

weft_status weft_known_read(const weft_dataset *d, const char *tokenizer, weft_known *out)
{
    XXH64_state_t *state = XXH64_createState();
    int32_t *tokens = malloc(CHUNK_TOKENS * sizeof *tokens);
    weft_status status =
        state && tokens ? WEFT_OK
                        : WEFT_ERROR(WEFT_MEMORY, "%s: no memory to read it", weft_dataset_name(d));
    if (status == WEFT_OK) {
        XXH64_reset(state, 0);
        status = scan(d, state, tokens, &out->max_token);
    }
    if (status == WEFT_OK) {
        XXH64_update(state, tokenizer, strlen(tokenizer));
        out->xxh64 = XXH64_digest(state);
    }
    XXH64_freeState(state);
    free(tokens);
    return status;
}

weft_status weft_known_check(const char *prefix, int64_t vocab_size, const weft_known *known)
{
    if (vocab_size > 0 && known->max_token >= vocab_size)
        return WEFT_ERROR(WEFT_FILE,
                          "%s.bin: damaged: it holds token %" PRId32
                          ", outside the vocabulary of %" PRId64 " that %s.json describes",
                          prefix, known->max_token, vocab_size, prefix);
    return WEFT_OK;
}

weft_status weft_known_look(const weft_dataset *d, const char *spare, const char *tokenizer,
                            weft_known *out, bool *out_kept)
{
    const weft_dataset_stamps *before = weft_dataset_get_stamps(d);
    const char *prefix = weft_dataset_name(d);
    weft_dataset_stamps after;
    wait_until_old(before);
    WEFT_TRY(weft_known_read(d, tokenizer, out));
    /* Where somebody writes meanwhile, the next start reads again. */
    *out_kept = take_stamps(prefix, &after) == WEFT_OK && is_same(before, &after) &&
                (keep(prefix, tokenizer, before, out) == WEFT_OK ||
                 (spare && keep(spare, tokenizer, before, out) == WEFT_OK));
    weft_error_clear();
    return WEFT_OK;
}
