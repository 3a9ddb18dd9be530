// SPDX-License-Identifier: Apache-2.0
/* Decides which arrivals of pages in memory (see pager->arrivals) are recent, and detects that an
   operator accesses the same pages repeatedly. */
#include "arrivals.h"

/* A stray page is in memory, but is not planned to be there. Stray pages are evicted before other
   pages. Young ones, that is, those among the young_pages() most recent arrivals, are excepted: they
   are evicted only in the order of all pages (victims.c). The reason is that an operator accesses
   pages of several tensors, and a fault fetches many pages of one tensor. If a fetch for one tensor
   evicted the pages that were just fetched for another tensor, the operator would make no progress.
   young_pages() is the number of frames that planned pages do not need, divided by
   YOUNG_ROOM_SHARE, within the limits YOUNG_PAGES_MIN and recent_pages(). So some stray pages are
   not young: these are evicted to make room for new stray pages, and planned pages stay.
   young_pages() can be larger while pages are reused; see note_reuse(). */
#define YOUNG_ROOM_SHARE 2u
#define YOUNG_PAGES_MIN 128u

/* A stream (a sequence of accesses; see read_ahead.h) is recent if its last fault came within the
   recent_pages() most recent arrivals; this number, too, can be larger while pages are reused (see
   since_recent()). recent_pages() is the budget divided by RECENT_SHARE, but at least
   RECENT_PAGES_MIN, and at most the number of pages that all streams together can read ahead. */
#define RECENT_SHARE 16u
#define RECENT_PAGES_MIN 1024u

/* The distance of a reuse is the number of pages that arrive between two arrivals of the same
   page. For example, a matrix product reads one of its operands once for each block of the other
   operand; the distance is the size of the operand that is read repeatedly. Distances above
   REUSE_SHARE / 4 of the budget do not count, because the reused pages would not fit in memory
   beside the other pages. If a page last arrived in an earlier stretch, its new arrival does not
   count either: nearly all evicted pages arrive again in the next step, so this arrival does not
   show that an operator accesses the page repeatedly. The plan, not this file, decides in which
   stretches such pages are in memory. A recorded distance of D pages is valid until the next
   stretch begins, or until more than REUSE_TURNS * D pages have arrived since note_reuse() last
   recorded a reuse. It is valid that long because note_reuse() is not called for every reuse: an
   access to a page that is in memory causes no fault. */
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

uint64_t young_pages(const struct pager *pager)
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
