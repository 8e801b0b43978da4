/* Counter-based random numbers: Philox 4x32-10 (Salmon et al. 2011), from Random123.
 *
 * Nothing here has state. A number is a pure function of (seed, stream, counter). Counters are
 * *global* element indices, so every layout of a tensor over ranks gets the same numbers. */
#ifndef WEFT_CORE_RNG_H
#define WEFT_CORE_RNG_H

#include <stddef.h>
#include <stdint.h>

/* Each use has a stream of its own; a parameter's is weft_rng_stream_of(its global name). */
uint64_t weft_rng_stream_of(const char *name);
/* Mixes further identities (step, layer, micro-batch...) into a stream. */
uint64_t weft_rng_stream_mix(uint64_t stream, uint64_t value);

/* Four 32-bit words for block `counter` of (seed, stream). */
void weft_rng_block(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4]);
/* Uniform in [0, 1), element `index`: word index % 4 of block index / 4, top 24 bits. */
float weft_rng_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Standard normal, element `index`: Box-Muller on block b = index / 4. Elements 4b and 4b+1 use its
 * words 0 and 1 (cosine, sine), 4b+2 and 4b+3 its words 2 and 3. */
float weft_rng_normal(uint64_t seed, uint64_t stream, uint64_t index);
/* The image of `index` in a pseudo-random permutation of [0, n), n >= 1: a Feistel network on
 * Philox with cycle walking. Shuffling by it needs no memory. */
uint64_t weft_rng_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t index);

#endif
