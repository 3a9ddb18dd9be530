// SPDX-License-Identifier: Apache-2.0
/* Counts the stray pages of the first range, and the pager's searches (calls of memchr()) of this
   range's table of roles. The role of a page is stray (in memory, but not planned to be there), kept
   (planned to be in memory, and not absent) or none. Link this file with -Wl,--wrap=memchr. */
#include "pages.h"

static const uint8_t *table;
static uint64_t table_bytes;
static int searches;

void *__real_memchr(const void *bytes, int value, size_t count);
void *__wrap_memchr(const void *bytes, int value, size_t count);
int test_strays(struct pager *pager);
int test_searches(struct pager *pager);

void *__wrap_memchr(const void *bytes, int value, size_t count)
{
	if ((uintptr_t)bytes - (uintptr_t)table < table_bytes)
		searches++;
	return __real_memchr(bytes, value, count);
}

/* Returns the number of stray pages, or -1 if the range's table of roles or one of its two counts of
   pages (strays, kept) is wrong. */
int test_strays(struct pager *pager)
{
	uint64_t kept = 0;
	int found = 0;

	pthread_mutex_lock(&pager->lock);
	for (uint64_t page = 0; page < pager->ranges->pages; page++) {
		const struct paged_range *range = pager->ranges;
		bool stray = range->state[page] == PAGE_IN && !range->planned[page];
		bool is_kept = range->state[page] != PAGE_ABSENT && range->planned[page];

		kept += is_kept;
		found = stray == (range->role[page] == ROLE_STRAY) &&
					is_kept == (range->role[page] == ROLE_KEPT) && found >= 0
				? found + stray
				: -1;
	}
	if ((uint64_t)found != pager->ranges->strays || kept != pager->ranges->kept)
		found = -1;
	pthread_mutex_unlock(&pager->lock);
	return found;
}

/* Returns the number of searches since the last call; the first call returns 0. */
int test_searches(struct pager *pager)
{
	int since;

	pthread_mutex_lock(&pager->lock);
	since = searches;
	searches = 0;
	table = pager->ranges->role;
	table_bytes = pager->ranges->pages;
	pthread_mutex_unlock(&pager->lock);
	return since;
}
