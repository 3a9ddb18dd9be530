// SPDX-License-Identifier: Apache-2.0
/* Which pages are evicted if a birth or a fault needs frames. */
#include <string.h>

#include "pages.h"

/* A stray page (in memory, but not planned there) is not evicted as a stray while it is young: among a
   number of most recently fetched pages. An operator accesses pages of several tensors, and a fault
   fetches many pages of one tensor. If these pages evicted each other, the operator would never end.
   The number is at least YOUNG_PAGES_MIN. In larger budgets it is this share of the budget, up to
   what all sequences of faults can read ahead at once. */
#define YOUNG_PAGES_MIN 1024u
#define YOUNG_SHARE 16u

static uint64_t young_pages(const struct pager *pager)
{
	uint64_t share = pager->budget / YOUNG_SHARE, most = READ_AHEAD_STREAMS * READ_AHEAD_PAGES_MAX;

	if (share > most)
		share = most;
	return share > YOUNG_PAGES_MIN ? share : YOUNG_PAGES_MIN;
}

/* Advance the hand to the next page in memory, or to the next stray page. After the last range, returns
   false and resets the hand to the first range. */
static bool next_page(struct pager *pager, bool stray)
{
	struct paged_range *range = pager->hand_range;

	while (range) {
		const uint8_t *table = stray ? range->stray : range->state, *found = NULL;

		if (pager->hand < range->top)
			found = memchr(table + pager->hand, stray ? 1 : PAGE_IN, range->top - pager->hand);
		if (found) {
			pager->hand_range = range;
			pager->hand = (uint64_t)(found - table);
			return true;
		}
		range = range->next;
		pager->hand = 0;
	}
	pager->hand_range = pager->ranges;
	pager->hand = 0;
	return false;
}

/* Whether a page can be evicted now: an old stray page, or by the clock algorithm. */
static bool can_go(const struct pager *pager, const struct paged_range *range, uint64_t page, bool stray)
{
	if (stray)
		return range->stray[page] && pager->arrivals - range->arrival[page] >= young_pages(pager);
	return range->state[page] == PAGE_IN && !range->recent[page];
}

/* Like make_room(), but if `stray` is set, evicts old stray pages only. */
static void evict_at_hand(struct pager *pager, uint64_t pages, bool stray)
{
	/* The clock's first turn clears `recent`, so the second turn finds a page if there is one. The
	   turn under way ends at the last range. */
	int turns = stray ? 2 : 3;

	while (pager->frames.free_pages + pager->leaving < pages && turns && can_write(pager)) {
		struct paged_range *range;
		uint64_t first, run = 0, left, done;

		if (!next_page(pager, stray)) {
			turns--;
			continue;
		}
		range = pager->hand_range;
		first = pager->hand;
		left = pages - pager->frames.free_pages - pager->leaving;
		while (run < left && first + run < range->top && can_go(pager, range, first + run, stray))
			run++;
		if (!run) {
			if (!stray)
				range->recent[first] = 0;
			pager->hand++;
			continue;
		}
		pager->hand += run;
		if (!pages_evict(pager, range, first, run, 0, &done) && pager_busy(pager))
			break;
	}
}

void make_room_of_strays(struct pager *pager, uint64_t pages)
{
	struct paged_range *hand_range;
	uint64_t hand;

	if (!pager->hand_range) {
		pager->hand_range = pager->ranges;
		pager->hand = 0;
	}
	hand_range = pager->hand_range;
	hand = pager->hand;
	evict_at_hand(pager, pages, true);
	/* The clock goes on where it was. */
	pager->hand_range = hand_range;
	pager->hand = hand;
}

void make_room(struct pager *pager, uint64_t pages)
{
	make_room_of_strays(pager, pages);
	evict_at_hand(pager, pages, false);
}
