// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "paged_memory.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include "whole_pages.h"

static struct pager *_Atomic running;
static unsigned page_shift; /* constant while the pager runs */

void paging_set_pager(struct pager *pager, unsigned shift)
{
	page_shift = shift;
	atomic_store_explicit(&running, pager, memory_order_release);
}

struct pager *paging_pager(void)
{
	return atomic_load_explicit(&running, memory_order_acquire);
}

bool paging_runs(void)
{
	return paging_pager() != NULL;
}

void paging_remove(void *base, uint64_t bytes)
{
	struct pager *pager = paging_pager();

	if (pager && bytes && pager_dropped(pager, base, bytes >> page_shift))
		pager_remove(pager, base);
}

uint64_t paging_stalls(void)
{
	struct pager *pager = paging_pager();

	return pager ? pager_stalls(pager) : 0;
}

bool paging_born(void *address, uint64_t bytes)
{
	struct pager *pager = paging_pager();

	if (pager)
		pager_born(pager, address, whole_pages(bytes, page_shift));
	return pager != NULL;
}

void memory_drop(void *address, uint64_t bytes)
{
	struct pager *pager = paging_pager();

	if (!pager || !pager_dropped(pager, address, whole_pages(bytes, page_shift)))
		madvise(address, bytes, MADV_DONTNEED);
}
