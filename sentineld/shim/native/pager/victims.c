// SPDX-License-Identifier: Apache-2.0
/* Which pages are evicted if frames are needed or the budget is exceeded. */
#include <string.h>

#include "pages.h"

/* A stray page is in memory, but is not planned to be there. It is not evicted as a stray page while
   it is young, that is, among the young_pages() most recent arrivals. An operator accesses pages of
   several tensors, and a fault fetches many pages of one tensor. If a fetch for one tensor evicted
   the pages just fetched for another, the operator would make no progress. young_pages() is the
   number of frames that planned pages do not need, divided by YOUNG_ROOM_SHARE, within the limits
   YOUNG_PAGES_MIN and recent_pages(). So stray pages make room for each other, and planned pages
   stay. young_pages() can be larger while pages are reused; see note_reuse(). */
#define YOUNG_ROOM_SHARE 2u
#define YOUNG_PAGES_MIN 128u

/* A stream is recent if its last fault came within the recent_pages() most recent arrivals. This number
   is the budget divided by RECENT_SHARE, but at least RECENT_PAGES_MIN, and at most the number of
   pages that all streams together can read ahead. */
#define RECENT_SHARE 16u
#define RECENT_PAGES_MIN 1024u

/* The distance of a reuse is the number of pages that arrive between two arrivals of the same page.
   For example, a matrix product reads one of its operands once for each block of the other operand;
   the distance is the size of the operand that is read repeatedly. Distances above REUSE_SHARE / 4 of
   the budget do not count, because the reused pages would not fit in memory beside the other pages.
   A page that last arrived in an earlier stretch does not count either: nearly all pages that are
   out arrive again in the next step, and the plan has chosen the stretches in which they are in
   memory. A distance stays in use until the next stretch begins, or until REUSE_TURNS times as many
   pages have arrived since the last reuse that note_reuse() recorded. An access to a reused page
   that is in memory causes no fault, so it is not recorded. */
#define REUSE_SHARE 3u
#define REUSE_TURNS 2u

static bool reusing(const struct pager *pager)
{
	return pager->arrivals - pager->reuse_at <= REUSE_TURNS * pager->reuse;
}

/* `pages`, but at least `low` and at most `high`. */
static uint64_t limited(uint64_t pages, uint64_t low, uint64_t high)
{
	if (pages < low)
		return low;
	return pages < high ? pages : high;
}

/* `pages`, or the distance of the current reuse if that is larger. */
static uint64_t reused(const struct pager *pager, uint64_t pages)
{
	return reusing(pager) && pages < pager->reuse ? pager->reuse : pages;
}

static uint64_t recent_pages(const struct pager *pager)
{
	return limited(pager->budget / RECENT_SHARE, RECENT_PAGES_MIN,
		       READ_AHEAD_STREAMS * READ_AHEAD_PAGES_MAX);
}

/* Number of frames that the planned pages do not need, even if all of them are in memory. */
static uint64_t room_for_strays(const struct pager *pager)
{
	uint64_t kept = 0;

	for (const struct paged_range *range = pager->ranges; range; range = range->next)
		kept += range->kept;
	return kept < pager->budget ? pager->budget - kept : 0;
}

static uint64_t young_pages(const struct pager *pager)
{
	return reused(pager, limited(room_for_strays(pager) / YOUNG_ROOM_SHARE, YOUNG_PAGES_MIN,
				     recent_pages(pager)));
}

uint32_t since_recent(const struct pager *pager)
{
	return pager->arrivals - (uint32_t)reused(pager, recent_pages(pager));
}

void pager_pass(struct pager *pager)
{
	__atomic_fetch_add(&pager->stretches, 1, __ATOMIC_RELAXED);
}

void begin_arrivals(struct pager *pager)
{
	uint32_t stretch = __atomic_load_n(&pager->stretches, __ATOMIC_RELAXED);

	if (stretch == pager->stretch)
		return;
	pager->stretch = stretch;
	pager->stretch_arrivals = pager->arrivals;
	pager->reuse = 0;
}

void note_reuse(struct pager *pager, const struct paged_range *range, uint64_t page)
{
	uint32_t distance = pager->arrivals - range->arrival[page];

	begin_arrivals(pager);
	if (distance > pager->budget / 4 * REUSE_SHARE ||
	    distance >= pager->arrivals - pager->stretch_arrivals)
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

/* Number of pages from `page` on that a recent stream will probably access; see read_ahead_rest(). */
static uint64_t rest_of_stream(const struct pager *pager, const struct paged_range *range, uint64_t page)
{
	return read_ahead_rest(&pager->read_ahead, range, page, since_recent(pager));
}

enum candidates {
	STRAYS, /* stray pages that are not young */
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
