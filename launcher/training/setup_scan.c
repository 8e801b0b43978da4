#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "launcher/training/setup.h"

enum { CHUNK_TOKENS = 1 << 14 };

static weft_status scan(const weft_dataset *dataset, XXH64_state_t *state, int32_t *tokens,
                        int32_t *out_most)
{
    int32_t most = 0;
    uint64_t num_tokens = weft_dataset_num_tokens(dataset);
    for (uint64_t first = 0; first < num_tokens; first += CHUNK_TOKENS) {
        uint64_t left = num_tokens - first;
        size_t count = left < CHUNK_TOKENS ? (size_t)left : CHUNK_TOKENS;
        WEFT_TRY(weft_dataset_read(dataset, first, count, tokens));
        for (size_t i = 0; i < count; i++)
            most = tokens[i] > most ? tokens[i] : most;
        XXH64_update(state, tokens, count * sizeof *tokens);
    }
    *out_most = most;
    return WEFT_OK;
}

/* Not the paths of its files: a dataset may be moved. */
static weft_status add_tokenizer(XXH64_state_t *state, const weft_tokenizer_info *t,
                                 weft_arena *arena)
{
    const char *text;
    if (t->vocab_size == 0)
        return WEFT_OK;
    WEFT_TRY(weft_arena_printf(arena, &text, "%s %" PRId64 " %" PRId64 " %s %s",
                               weft_tokenizer_kind_name((weft_tokenizer_kind)t->kind),
                               t->vocab_size, t->eod,
                               t->vocab_file_xxh64 ? t->vocab_file_xxh64 : "",
                               t->merge_file_xxh64 ? t->merge_file_xxh64 : ""));
    XXH64_update(state, text, strlen(text));
    return WEFT_OK;
}

weft_status weft_setup_scan(const weft_dataset *dataset, const weft_tokenizer_info *tokenizer,
                            weft_arena *arena, int32_t *out_most, const char **out_hash)
{
    XXH64_state_t *state = XXH64_createState();
    int32_t *tokens = malloc(CHUNK_TOKENS * sizeof *tokens);
    weft_status status = state && tokens ? WEFT_OK
                                         : WEFT_ERROR(WEFT_MEMORY, "%s: no memory to read it",
                                                      weft_dataset_name(dataset));
    if (status == WEFT_OK) {
        XXH64_reset(state, 0);
        status = scan(dataset, state, tokens, out_most);
    }
    if (status == WEFT_OK)
        status = add_tokenizer(state, tokenizer, arena);
    if (status == WEFT_OK)
        status = weft_arena_printf(arena, out_hash, "%016" PRIx64, (uint64_t)XXH64_digest(state));
    XXH64_freeState(state);
    free(tokens);
    return status;
}
