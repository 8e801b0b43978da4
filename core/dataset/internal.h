/* Megatron's index file, byte by byte, for the reader and the writer.
 *
 * All numbers are little-endian and unaligned: "MMIDIDX\0\0" (9 bytes), u64 version, u8 dtype,
 * u64 S sequences, u64 D document boundaries, i32[S] tokens of each sequence, i64[S] its byte
 * offset in the .bin, i64[D] document boundaries as sequence numbers (first 0, last S), and for
 * multimodal files i8[S] modes. The hosts that Weft runs on are little-endian. */
#ifndef WEFT_CORE_DATASET_INTERNAL_H
#define WEFT_CORE_DATASET_INTERNAL_H

#include <stdint.h>

#include "core/dataset/dataset.h"

/* True for datasets of weft_dataset_open_own. */
bool weft_dataset_is_own(const weft_dataset *dataset);
/* Fills the sample, whose vocab_size and own_options are the dataset's. */
weft_status weft_dataset_fill(const weft_dataset *dataset, const weft_sample *sample) WEFT_CHECKED;

enum { WEFT_INDEX_MAGIC_BYTES = 9, WEFT_INDEX_HEADER_BYTES = 34 };
#define WEFT_INDEX_MAGIC "MMIDIDX\0" /* the ninth byte is the literal's own NUL */
#define WEFT_INDEX_VERSION UINT64_C(1)
/* From this vocabulary size on tokens are i32 instead of u16. */
#define WEFT_INDEX_WIDE_VOCABULARY 65500

typedef enum weft_index_dtype {
    WEFT_INDEX_U8 = 1,
    WEFT_INDEX_I8 = 2,
    WEFT_INDEX_I16 = 3,
    WEFT_INDEX_I32 = 4,
    WEFT_INDEX_I64 = 5,
    WEFT_INDEX_F64 = 6,
    WEFT_INDEX_F32 = 7,
    WEFT_INDEX_U16 = 8,
} weft_index_dtype;

#endif
