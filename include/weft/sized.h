/* How structs grow without breaking programs that were compiled before.
 *
 * A struct that a program fills and passes by pointer begins with struct_bytes, the size that the
 * program was compiled with. A later library adds fields at the end. It reads the fields that an
 * older program does not have as zero, and zero keeps the old behaviour. The library refuses
 * (WEFT_INTERNAL) a size that is 0, covers struct_bytes alone, exceeds the size it knows, or is no
 * multiple of a pointer's size. WEFT_ARGS sets the size:
 *
 *     weft_gemm(lane, &WEFT_ARGS(weft_gemm_args, .m = rows, .n = columns, ...))
 *
 * Structs that the library makes and a program reads through a pointer (weft_shape, weft_parameter,
 * weft_metrics, ...) may grow at their end: do not keep them by value or in arrays. Structs that
 * are passed by value, or stand in arrays or other structs (weft_tensor, weft_option_row,
 * weft_attention_shape, weft_error, ...), are fixed; the headers say which. */
#ifndef WEFT_SIZED_H
#define WEFT_SIZED_H

/* A compound literal of `type` with struct_bytes set; the other fields are given as designated
 * initializers. C only. */
#define WEFT_ARGS(type, ...) ((type){.struct_bytes = sizeof(type), __VA_ARGS__})

#endif
