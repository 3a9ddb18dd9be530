// SPDX-License-Identifier: Apache-2.0
#include "checksum.h"

#define LANES 8

/* Odd, so that mix() is a bijection of `state` for a fixed `word`, and of `word` for a fixed
   `state`. Therefore, two pages that differ in exactly one word never have the same checksum. */
#define MULTIPLIER 0x9e3779b97f4a7c15ull

static uint64_t mix(uint64_t state, uint64_t word)
{
	state = (state ^ word) * MULTIPLIER;
	return state ^ state >> 32;
}

/* The lanes do not depend on each other, so a core can process several words at a time. */
uint64_t checksum(const void *data, uint64_t bytes)
{
	const uint64_t *words = data;
	uint64_t lanes[LANES], found = bytes;

	for (int lane = 0; lane < LANES; lane++)
		lanes[lane] = (uint64_t)lane * MULTIPLIER;
	for (uint64_t word = 0; word < bytes / sizeof(*words); word += LANES)
		for (int lane = 0; lane < LANES; lane++)
			lanes[lane] = mix(lanes[lane], words[word + (uint64_t)lane]);
	for (int lane = 0; lane < LANES; lane++)
		found = mix(found, lanes[lane]);
	return found;
}
