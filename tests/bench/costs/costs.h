/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common declarations of the cost program. It runs in a guest under -icount
 * shift=0, where the time stamp counter counts the instructions executed by
 * the guest's only CPU, in the kernel and in all processes.
 */
#ifndef COSTS_H
#define COSTS_H

#include <x86intrin.h>

#include "../../vm/kmod/check/check.h"

/* The instructions that one operation takes per page, record or call, in each round. */
struct series {
	const char *name;
	unsigned int rounds;
	double *mean; /* one value per round: the mean over its pages */
	double *median;
};

static inline uint64_t instructions(void)
{
	return __rdtsc();
}

void require_icount(void);

struct series series_new(const char *name);
/*
 * Adds a round to the series, given the cost of each page. Each cost includes the instructions that
 * read the counter and access the page; this function subtracts them.
 */
void series_pages(struct series *series, uint32_t *cost, uint64_t pages);
/*
 * Adds a round to the series: one call processed `pages` pages or records in `instructions`
 * instructions. If the cost is per call, `pages` is 1.
 */
void series_call(struct series *series, uint64_t instructions, uint64_t pages);
void series_print(const struct series *series);

char *map_fresh(uint64_t pages); /* maps small pages, without populating them */
void unmap(char *memory, uint64_t pages);
/* Access the first word of each page and record each access's cost. */
void read_each(char *memory, uint32_t *cost, uint64_t pages);
void write_each(char *memory, uint32_t *cost, uint64_t pages);

/* Clears the accessed bits of pages in the sampler's range; returns how many bits were set. */
uint64_t sampler_age(struct sampler *sampler, uint64_t start, uint64_t count);

void cost_plain(void);
void cost_armed(void);
void cost_observers(void);
void cost_hold(void);

extern unsigned int rounds;
extern uint64_t pages;

#endif
