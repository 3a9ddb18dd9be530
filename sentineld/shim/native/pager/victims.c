// SPDX-License-Identifier: Apache-2.0
/* Decides which pages are evicted if frames are needed or the budget is exceeded. */
#include "victims.h"

#include <string.h>

#include "arrivals.h"
#include "evict.h"
#include "transit.h"

/* Advance the hand of the clock algorithm to the next page in memory or, if `stray` is set, to the
   next stray page (in memory, but not planned to be there). After the last range, returns false
   and resets the hand to the first range. If `stray` is set, skips ranges without stray pages to
   save time: before there is a plan, and often later, no page is stray. */
static bool next_page(struct pager *pager, bool stray)
{
	struct paged_range *range = pager->hand_range;

	while (range) {
		const uint8_t *table = stray ? range->role : range->state, *found = NULL;

		if (pager->hand < range->top && (!stray || range->strays))
			found = memchr(table + pager->hand, stray ? ROLE_STRAY : PAGE_IN,
				       range->top - pager->hand);
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

/* Number of pages from `page` on that a recent stream (see arrivals.c) will probably access; see
   read_ahead_rest(). */
static uint64_t rest_of_stream(const struct pager *pager, const struct paged_range *range, uint64_t page)
{
	return read_ahead_rest(&pager->read_ahead, range, page, since_recent(pager));
}

enum candidates {
	STRAYS, /* stray pages that are not young (see arrivals.c) */
	NOT_AHEAD, /* pages that recent streams will probably not access; see read_ahead_rest() */
	ALL,
};

/* Whether a page can be evicted now. The clock algorithm decides, unless the candidates are strays. */
static bool can_go(const struct pager *pager, const struct paged_range *range, uint64_t page,
		   enum candidates candidates, uint64_t young)
{
	if (candidates == STRAYS)
		return range->role[page] == ROLE_STRAY && pager->arrivals - range->arrival[page] >= young;
	if (range->state[page] != PAGE_IN || range->recent[page])
		return false;
	return candidates == ALL || !rest_of_stream(pager, range, page);
}

/* Begin to evict candidates from the hand on, until `pages` frames are free or about to be free. */
static void evict_at_hand(struct pager *pager, uint64_t pages, enum candidates candidates)
{
	bool stray = candidates == STRAYS;
	uint64_t young = young_pages(pager);
	/* A turn of the hand ends after the last range. To find stray pages, the hand needs one full
	   turn. To find other pages, it needs two: if `recent` is set for all pages, the first turn
	   only clears it. The hand can start in the middle of a turn, so one more turn is allowed. */
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
		       can_go(pager, range, first + run, candidates, young))
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

static void make_room_by_strays(struct pager *pager, uint64_t pages)
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
	make_room_by_strays(pager, pages);
	evict_at_hand(pager, pages, NOT_AHEAD);
	evict_at_hand(pager, pages, ALL);
}

void make_room_ahead(struct pager *pager, uint64_t pages, bool planned)
{
	uint64_t unused = frames_unused(pager);

	if (pages <= unused)
		return;
	if (planned)
		make_room(pager, pages - unused);
	else
		make_room_by_strays(pager, pages - unused);
}

bool frame_free(struct pager *pager, uint64_t pages)
{
	uint64_t room = frames_unused(pager);

	return pager->frames.homes.free_pages || (room && frames_grow(&pager->frames, pages, room));
}

bool frame_ready(struct pager *pager, uint64_t pages)
{
	if (frame_free(pager, pages))
		return true;
	make_room(pager, pages < TRANSIT_PAGES ? pages : TRANSIT_PAGES);
	if (pager_busy(pager))
		return false;
	/* No page can be evicted. Exceeding the budget is better than blocking the training forever. */
	if (!frames_grow(&pager->frames, 1, 1))
		pager_fatal("no memory for a page, and no page can be evicted");
	pager->counts.overruns += pager_frames(pager) > pager->budget;
	return true;
}
