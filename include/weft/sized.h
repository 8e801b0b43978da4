/* Structs, and a library that grows.
 *
 * What a program fills and hands in by pointer begins with struct_bytes, the size that the program
 * was compiled with. A later library adds fields at the end and reads those that an older program
 * does not know as zero, which means what it meant before. A size of 0, one of struct_bytes alone,
 * one above what the library knows, or no multiple of a pointer's size is refused in one line
 * (WEFT_INTERNAL); any other is read as far as it goes. WEFT_ARGS sets it:
 *
 *     weft_gemm(lane, &WEFT_ARGS(weft_gemm_args, .m = rows, .n = columns, ...))
 *
 * What the library makes and a program reads through a pointer (weft_shape, weft_parameter,
 * weft_metrics, ...) may grow at its end: do not keep it by value or in arrays. What is passed by
 * value, stands in arrays or inside other structs (weft_tensor, weft_option_row,
 * weft_attention_shape, weft_error, ...) is fixed; the headers say which. */
#ifndef WEFT_SIZED_H
#define WEFT_SIZED_H

/* A compound literal of `type`, whose struct_bytes is set and whose other fields are given as
 * designated initializers. C alone. */
#define WEFT_ARGS(type, ...) ((type){.struct_bytes = sizeof(type), __VA_ARGS__})

#endif
