// SPDX-License-Identifier: Apache-2.0
/* Reports the pager's counters. */
#include "pages.h"

void pager_read_counts(struct pager *pager, struct pager_counts *counts)
{
	pthread_mutex_lock(&pager->lock);
	*counts = pager->counts;
	counts->bytes_read = __atomic_load_n(&pager->counts.bytes_read, __ATOMIC_RELAXED);
	counts->bytes_written = __atomic_load_n(&pager->counts.bytes_written, __ATOMIC_RELAXED);
	counts->frames = pager_frames(pager);
	pthread_mutex_unlock(&pager->lock);
}

uint64_t pager_stalls(struct pager *pager)
{
	const struct pager_counts *counts = &pager->counts;
	uint64_t stalls;

	pthread_mutex_lock(&pager->lock);
	stalls = counts->faults + counts->births_by_fault + counts->waits + pager->repeats;
	pthread_mutex_unlock(&pager->lock);
	return stalls;
}

bool pager_file_low(struct pager *pager)
{
	bool low;

	pthread_mutex_lock(&pager->lock);
	low = pager->space.free_pages < PAGER_FILE_LOW;
	pthread_mutex_unlock(&pager->lock);
	return low;
}
