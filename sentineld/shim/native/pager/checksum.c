// SPDX-License-Identifier: Apache-2.0
#include "checksum.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LANES 32

/* Both multipliers are odd, so mix() is bijective in `state` for a fixed `word`, and in `word`
   for a fixed `state`. Therefore, two pages that differ in exactly one word never have the same
   checksum. The lanes' multiplier has 32 bits, because AVX2 cannot multiply larger numbers. */
#define MULTIPLIER 0x9e3779b97f4a7c15ull
#define LANE_MULTIPLIER 0x9e3779b1ull

/* mix() XORs each bit into the bit SHIFT positions lower. If a word changes only in bit 63 (the
   sign of an element of a tensor), exactly two bits of the state change: 63 and 63 - SHIFT. If
   SHIFT were a multiple of 8, these could be the positions of the signs of two elements in the
   lane's next word. If both of these signs changed, too, the state would be the same as without any
   change. With an odd SHIFT, the two positions are never those of the signs of two elements. */
#define SHIFT 29

static uint64_t mix(uint64_t state, uint64_t word, uint64_t multiplier)
{
	state = (state ^ word) * multiplier;
	return state ^ state >> SHIFT;
}

static uint64_t combine(const uint64_t *lanes, uint64_t bytes)
{
	uint64_t found = bytes;

	for (int lane = 0; lane < LANES; lane++)
		found = mix(found, lanes[lane], MULTIPLIER);
	return found;
}

uint64_t checksum_portable(const void *data, uint64_t bytes)
{
	const uint64_t *words = data;
	uint64_t lanes[LANES];

	for (int lane = 0; lane < LANES; lane++)
		lanes[lane] = (uint64_t)lane * MULTIPLIER;
	for (uint64_t word = 0; word < bytes / sizeof(*words); word += LANES)
		for (int lane = 0; lane < LANES; lane++)
			lanes[lane] = mix(lanes[lane], words[word + (uint64_t)lane], LANE_MULTIPLIER);
	return combine(lanes, bytes);
}

#if defined(__x86_64__)
#define VECTORS (LANES / 4)

/* The vectors do not depend on each other, so a core can process several at a time. */
__attribute__((target("avx2"))) static uint64_t checksum_avx2(const void *data, uint64_t bytes)
{
	const __m256i *from = data, multiplier = _mm256_set1_epi64x((long long)LANE_MULTIPLIER);
	__m256i state[VECTORS];
	uint64_t lanes[LANES];

	for (int lane = 0; lane < LANES; lane++)
		lanes[lane] = (uint64_t)lane * MULTIPLIER;
	for (int i = 0; i < VECTORS; i++)
		state[i] = _mm256_loadu_si256((const __m256i *)lanes + i);
	for (uint64_t at = 0; at < bytes / sizeof(*from); at += VECTORS) {
#pragma GCC unroll 8
		for (int i = 0; i < VECTORS; i++) {
			__m256i word = _mm256_xor_si256(state[i], _mm256_loadu_si256(from + at + i));
			__m256i high = _mm256_mul_epu32(_mm256_srli_epi64(word, 32), multiplier);
			__m256i low = _mm256_mul_epu32(word, multiplier);

			word = _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
			state[i] = _mm256_xor_si256(word, _mm256_srli_epi64(word, SHIFT));
		}
	}
	for (int i = 0; i < VECTORS; i++)
		_mm256_storeu_si256((__m256i *)lanes + i, state[i]);
	return combine(lanes, bytes);
}
#endif

uint64_t checksum(const void *data, uint64_t bytes)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2"))
		return checksum_avx2(data, bytes);
#endif
	return checksum_portable(data, bytes);
}
