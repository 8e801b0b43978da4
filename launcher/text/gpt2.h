/* How GPT-2's files write bytes: those that print stand for themselves, the others are the
 * characters from 256 on, in order. */
#ifndef WEFT_LAUNCHER_TEXT_GPT2_H
#define WEFT_LAUNCHER_TEXT_GPT2_H

#include "launcher/text/bytes.h"

enum { WEFT_GPT2_CHARACTERS = 256 + 68 };

typedef struct weft_byte_map {
    int byte_of[WEFT_GPT2_CHARACTERS]; /* -1: stands for no byte */
} weft_byte_map;

weft_byte_map weft_byte_map_make(void);
/* The bytes that such characters stand for, in the arena; text NULL where one stands for none. */
weft_status weft_byte_map_read(const weft_byte_map *map, weft_bytes text, weft_arena *arena,
                               weft_bytes *out) WEFT_CHECKED;

/* GPT-2's split, in Oniguruma's words. */
extern const char weft_gpt2_pattern[];

#endif
