// SPDX-License-Identifier: Apache-2.0
/* Which pages are evicted if frames are needed or the budget is exceeded. */
#include <string.h>

#include "pages.h"

/* A stray page is in memory, but is not planned to be there. It is not evicted as a stray page while
   it is young, that is, among the young_pages() most recently fetched pages. An operator accesses
   pages of several tensors, and a fault fetches many pages of one tensor. If a fetch for one tensor
   evicted the pages just fetched for another, the operator would make no progress. young_pages() is
   the budget divided by YOUNG_SHARE, but at least YOUNG_PAGES_MIN, and at most the number of pages
   that all streams together can read ahead. It can be larger while pages are reused; see
   note_reuse(). */
#define YOUNG_PAGES_MIN 1024u
#define YOUNG_SHARE 16u

/* The distance of a reuse is the number of pages that arrive between two arrivals of the same page.
   For example, a matrix product reads one of its operands once for each block of the other operand;
   the distance is the size of the operand that is read repeatedly. Distances above REUSE_SHARE / 4 of
   the budget do not count, because the reused pages would not fit in memory beside the other pages.
   A distance stays in use until REUSE_TURNS times as many pages have arrived since the last reuse
   that note_reuse() recorded. An access to a reused page that is in memory causes no fault, so it
   is not recorded. */
#define REUSE_SHARE 3u
#define REUSE_TURNS 2u

static bool reusing(const struct pager *pager)
{
	return pager->arrivals - pager->reuse_at <= REUSE_TURNS * pager->reuse;
}

static uint64_t young_pages(const struct pager *pager)
{
	uint64_t share = pager->budget / YOUNG_SHARE, most = READ_AHEAD_STREAMS * READ_AHEAD_PAGES_MAX;

	if (share > most)
		share = most;
	if (share < YOUNG_PAGES_MIN)
		share = YOUNG_PAGES_MIN;
	return reusing(pager) && share < pager->reuse ? pager->reuse : share;
}

uint32_t since_young(const struct pager *pager)
{
	return pager->arrivals - (uint32_t)young_pages(pager);
}

void note_reuse(struct pager *pager, const struct paged_range *range, uint64_t page)
{
	uint32_t distance = pager->arrivals - range->arrival[page];

	if (distance > pager->budget / 4 * REUSE_SHARE)
		return;
	/* Add a quarter as a margin: before the next reuse, more pages may arrive, because pages are
	   also read ahead for other streams. */
	distance += distance / 4;
	if (!reusing(pager) || distance > pager->reuse)
		pager->reuse = distance;
	pager->reuse_at = pager->arrivals;
}

/* Advance the hand to the next page in memory or, if `stray` is set, to the next stray page. After
   the last range, returns false and resets the hand to the first range. If `stray` is set, skips
   ranges without stray pages to save time: before there is a plan, and often later, no page is
   stray. */
static bool next_page(struct pager *pager, bool stray)
{
	struct paged_range *range = pager->hand_range;

	while (range) {
		const uint8_t *table = stray ? range->stray : range->state, *found = NULL;

		if (pager->hand < range->top && (!stray || range->strays))
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

/* Number of pages from `page` on that a recent stream will probably access; see read_ahead_rest(). */
static uint64_t rest_of_stream(const struct pager *pager, const struct paged_range *range, uint64_t page)
{
	return read_ahead_rest(&pager->read_ahead, range, page, since_young(pager));
}

enum candidates {
	STRAYS, /* stray pages that are not young */
	NOT_AHEAD, /* pages that recent streams will probably not access; see read_ahead_rest() */
	ALL,
};

/* Whether a page can be evicted now. The clock algorithm decides, unless the candidates are strays. */
static bool can_go(const struct pager *pager, const struct paged_range *range, uint64_t page,
		   enum candidates candidates)
{
	if (candidates == STRAYS)
		return range->stray[page] && pager->arrivals - range->arrival[page] >= young_pages(pager);
	if (range->state[page] != PAGE_IN || range->recent[page])
		return false;
	return candidates == ALL || !rest_of_stream(pager, range, page);
}

/* Begin to evict candidates from the hand on, until `pages` frames are free or about to be free. */
static void evict_at_hand(struct pager *pager, uint64_t pages, enum candidates candidates)
{
	bool stray = candidates == STRAYS;
	/* A turn of the hand ends after the last range. To find stray pages, the hand needs one full
	   turn. To find other pages, it needs two full turns, because the first turn only clears
	   `recent`. The hand can start in the middle of a turn, so one more turn is allowed. */
	int turns = stray ? 2 : 3;

	while (pager->frames.homes.free_pages + pager->leaving < pages && turns && can_write(pager)) {
		struct paged_range *range;
		uint64_t first, run = 0, ahead = 0, left, done;

		if (!next_page(pager, stray)) {
			turns--;
			continue;
		}
		range = pager->hand_range;
		first = pager->hand;
		left = pages - pager->frames.homes.free_pages - pager->leaving;
		while (run < left && first + run < range->top &&
		       can_go(pager, range, first + run, candidates))
			run++;
		if (!run) {
			if (candidates == NOT_AHEAD && !range->recent[first])
				ahead = rest_of_stream(pager, range, first);
			if (!stray)
				range->recent[first] = 0;
			pager->hand += ahead ? ahead : 1;
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
	evict_at_hand(pager, pages, STRAYS);
	/* The search for stray pages must not advance the hand of the clock algorithm. */
	pager->hand_range = hand_range;
	pager->hand = hand;
}

void make_room(struct pager *pager, uint64_t pages)
{
	make_room_of_strays(pager, pages);
	evict_at_hand(pager, pages, NOT_AHEAD);
	evict_at_hand(pager, pages, ALL);
}

void make_room_ahead(struct pager *pager, uint64_t pages)
{
	uint64_t unused = frames_unused(pager);

	if (pages > unused)
		make_room(pager, pages - unused);
}
