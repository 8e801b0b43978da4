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

#endif
