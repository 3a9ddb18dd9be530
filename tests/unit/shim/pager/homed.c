// SPDX-License-Identifier: Apache-2.0
/* Counts pages whose frames have homes; see frames.h. Link this file with the pager. */
#include "pages.h"

int test_homed_pages(struct pager *pager);

/* Returns the number of pages of the first range that are in memory and whose frames have homes. */
int test_homed_pages(struct pager *pager)
{
	const struct paged_range *range = pager->ranges;
	int found = 0;

	pthread_mutex_lock(&pager->lock);
	for (uint64_t page = 0; page < range->top; page++)
		found += range->state[page] == PAGE_IN && range->home[page] != HOME_NONE;
	pthread_mutex_unlock(&pager->lock);
	return found;
}
