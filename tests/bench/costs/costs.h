/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the cost program share. It runs in a guest under -icount
 * shift=0, where the time stamp counter counts the instructions that the
 * machine's only CPU has executed, those of the kernel and of all processes.
 */
#ifndef COSTS_H
#define COSTS_H

#include <x86intrin.h>

#include "../../vm/kmod/check/check.h"

/* A round's figures of one kind: the instructions for each of so many pages. */
struct series {
	const char *name;
	unsigned int rounds;
	double *mean; /* by round, over the pages */
	double *median;
};

static inline uint64_t instructions(void)
{
	return __rdtsc();
}

void require_icount(void);

struct series series_new(const char *name);
/* Adds a round: what each page cost, the cost of looking at the counter included. */
void series_pages(struct series *series, uint32_t *cost, uint64_t pages);
/* Adds a round in which one call dealt with so many pages. */
void series_call(struct series *series, uint64_t instructions, uint64_t pages);
void series_print(const struct series *series);

char *map_fresh(uint64_t pages); /* nothing populated, no huge pages */
void unmap(char *memory, uint64_t pages);
/* Touches the first word of each page and notes what each costs. */
void read_each(char *memory, uint32_t *cost, uint64_t pages);
void write_each(char *memory, uint32_t *cost, uint64_t pages);

/* Ages pages of the sampler's range; how many had been accessed. */
uint64_t sampler_age(struct sampler *sampler, uint64_t start, uint64_t count);

void cost_plain(void);
void cost_armed(void);
void cost_observers(void);
void cost_hold(void);

extern unsigned int rounds;
extern uint64_t pages;

#endif
