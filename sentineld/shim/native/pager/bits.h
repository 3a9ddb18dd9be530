/* SPDX-License-Identifier: Apache-2.0 */
/* Bit maps of 64-bit words. */
#ifndef SENTINELD_SHIM_BITS_H
#define SENTINELD_SHIM_BITS_H

#include <stdbool.h>
#include <stdint.h>

/* Set or clear the `count` bits from `first` on. */
static inline void bits_set(uint64_t *words, uint32_t first, uint32_t count, bool on)
{
	while (count) {
		uint32_t shift = first % 64, some = 64 - shift < count ? 64 - shift : count;
		uint64_t mask = (some == 64 ? ~0ull : (1ull << some) - 1) << shift;

		if (on)
			words[first / 64] |= mask;
		else
			words[first / 64] &= ~mask;
		first += some;
		count -= some;
	}
}

/* The first bit from `first` on whose value is `set`, or the number of bits if there is none.
   count: number of words. */
static inline uint32_t bits_next(const uint64_t *words, uint32_t count, uint32_t first, bool set)
{
	for (uint32_t word = first / 64; word < count; word++) {
		uint64_t left = set ? words[word] : ~words[word];

		if (word == first / 64)
			left &= ~0ull << first % 64;
		if (left)
			return word * 64 + (uint32_t)__builtin_ctzll(left);
	}
	return count * 64;
}

/* Whether a run of `length` bits suits `wanted` bits better than a run of `other` bits. If the
   other run is too short, every longer run is better. Otherwise, a shorter run is better if it is
   long enough. */
static inline bool bits_better(uint32_t length, uint32_t other, uint32_t wanted)
{
	return other < wanted ? length > other : length >= wanted && length < other;
}

/* The shortest run of at least `wanted` set bits or, if there is none, the longest run. Sets *first
   to the run's first bit. Returns the run's length; 0: no bit is set. count: number of words. */
static inline uint32_t bits_best_run(const uint64_t *words, uint32_t count, uint32_t wanted, uint32_t *first)
{
	uint32_t best = 0;

	*first = 0;
	for (uint32_t at = bits_next(words, count, 0, true), end; at < count * 64;
	     at = bits_next(words, count, end, true)) {
		end = bits_next(words, count, at, false);
		if (bits_better(end - at, best, wanted)) {
			best = end - at;
			*first = at;
		}
	}
	return best;
}

#endif
