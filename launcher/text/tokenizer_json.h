/* Hugging Face's tokenizer.json: byte-pair encoding, of bytes or of characters with bytes behind
 * them, with the parts that language models' files are made of. What is not known is refused by its
 * path in the file, never left out. Ids are those of the library `tokenizers`. */
#ifndef WEFT_LAUNCHER_TEXT_TOKENIZER_JSON_H
#define WEFT_LAUNCHER_TEXT_TOKENIZER_JSON_H

#include "launcher/text/json_place.h"
#include "launcher/text/rules.h"

/* `text` is the file's, and outlives the rules. Rules that failed are released all the same.
 * WEFT_FILE: the file, the path to what is wrong or not known, and why. */
weft_status weft_tokenizer_json_read(const char *file, const char *text, weft_arena *arena,
                                     weft_rules *out) WEFT_CHECKED;
/* Its parts that are lists of steps; one that is null has none.
 * The normalizer's. */
weft_status weft_tokenizer_json_changes(const weft_json_place *normalizer, weft_arena *arena,
                                        weft_changes *out) WEFT_CHECKED;
/* The pre-tokenizer's: word_changes, splits and tables.is_of_bytes, which it ends in. */
weft_status weft_tokenizer_json_words(const weft_json_place *pre_tokenizer, weft_arena *arena,
                                      weft_rules *out) WEFT_CHECKED;
/* The decoder's: pieces, from the texts by id that the file has, and strip. */
weft_status weft_tokenizer_json_pieces(const weft_json_place *decoder, const weft_bytes *texts,
                                       weft_arena *arena, weft_rules *out) WEFT_CHECKED;

#endif
