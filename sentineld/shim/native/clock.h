/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the kernel's clocks. */
#ifndef SENTINELD_SHIM_CLOCK_H
#define SENTINELD_SHIM_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* The time on CLOCK_MONOTONIC, which all words and records of the control segment use. */
static inline uint64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

#endif
