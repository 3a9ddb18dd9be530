// SPDX-License-Identifier: Apache-2.0
/* Gives frames to born pages. If pager_born() gave a page no frame, the page is pending until it
   gets one. */
#include "births.h"

#include <errno.h>
#include <string.h>

#include "arrivals.h"
#include "victims.h"
#include "wanted.h"

/* Give free frames to the absent pages [page, page + pages), beginning with the first page. Returns the
   number of pages that got a frame. */
static uint64_t give_birth(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages,
			   bool zeroed)
{
	uint32_t *homes = range->home + page, count;
	uint64_t born;
	int error = 0;

	count = frames_borrow(&pager->frames, pages < TRANSIT_PAGES ? (uint32_t)pages : TRANSIT_PAGES, homes);
	for (uint32_t i = 0; i < count && zeroed; i++)
		memset(frames_address(&pager->frames, homes[i]), 0, 1ull << pager->page_shift);
	born = frames_place(&pager->frames, homes, page_address(pager, range, page), count, &error);
	if (born < count && error == EEXIST)
		pager_fatal("a page at %p is already in memory",
			    (void *)page_address(pager, range, page + born));
	if (!born)
		pager_fatal("a new page cannot be moved to its address: %s", strerror(error));
	memset(range->pending + page, 0, born);
	set_state(range, page, born, PAGE_IN);
	memset(range->recent + page, 1, born);
	begin_arrivals(pager);
	for (uint64_t i = page; i < page + born; i++)
		range->arrival[i] = range->planned[i] ? pager->arrivals : pager->arrivals++;
	pager->resident += born;
	return born;
}

/* Number of consecutive pending pages from `page` on, at most TRANSIT_PAGES. The run ends at the
   first page whose `planned` differs from that of `page`, because give_frames() and birth_demanded()
   treat planned pages and other pages differently. */
static uint64_t pending_run(const struct paged_range *range, uint64_t page)
{
	uint64_t most = pages_below_top(range, page, TRANSIT_PAGES), run = 0;

	while (run < most && range->pending[page + run] && range->planned[page + run] == range->planned[page])
		run++;
	return run;
}

/* Give free frames to the pending pages of [page, end), in order. Skips pages that are not planned to
   be in memory: they get frames only when they are accessed. Returns the first page that was not
   skipped and got no frame, or `end` if there is no such page. */
static uint64_t give_frames(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t end)
{
	while (page < end) {
		uint64_t run = range->planned[page] ? pending_run(range, page) : 0;

		if (!run) {
			page++;
			continue;
		}
		if (run > end - page)
			run = end - page;
		if (pager->wanted_count || !frame_free(pager, run))
			break;
		page += give_birth(pager, range, page, run, false);
	}
	return page;
}

bool births_continue(struct pager *pager)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < pager->births_count; i++) {
		struct wanted birth = pager->births[i];
		uint64_t end = birth.page + birth.pages;

		birth.page = give_frames(pager, birth.range, birth.page, end);
		birth.pages = end - birth.page;
		if (birth.pages)
			pager->births[kept++] = birth;
	}
	pager->births_count = kept;
	return !kept;
}

/* Record a birth for births_continue(). If too many births are recorded, the oldest one is
   forgotten; its pages get frames when they are accessed. */
static void record_birth(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t end)
{
	if (pager->births_count == BIRTHS_MAX) {
		pager->births_count--;
		memmove(pager->births, pager->births + 1, pager->births_count * sizeof(*pager->births));
	}
	pager->births[pager->births_count++] =
		(struct wanted){.range = range, .page = page, .pages = end - page};
}

/* Set `planned` of each of the newborn pages [page, end): to 0 if pager_born_out() was called for
   the page, else to 1. */
static void plan_births(struct paged_range *range, uint64_t page, uint64_t end)
{
	while (page < end) {
		uint8_t out = range->born_out[page];
		const uint8_t *next = memchr(range->born_out + page, !out, end - page);
		uint64_t run = next ? (uint64_t)(next - (range->born_out + page)) : end - page;

		set_planned(range, page, run, !out);
		page += run;
	}
}

void pager_born_out(struct pager *pager, void *address, uint64_t pages)
{
	struct paged_range *range;

	pager_enter(pager);
	range = range_of(pager, address);
	if (range)
		memset(range->born_out + page_number(pager, range, address), 1, pages);
	pthread_mutex_unlock(&pager->lock);
}

void pager_born(struct pager *pager, void *address, uint64_t pages)
{
	struct paged_range *range;

	pager_enter(pager);
	range = range_of(pager, address);
	if (range) {
		uint64_t page = page_number(pager, range, address), end = page + pages;

		memset(range->begins + page, 0, pages);
		range->begins[page] = 1;
		plan_births(range, page, end);
		if (range->top < end)
			range->top = end;
		for (uint64_t i = page; i < end; i++)
			range->pending[i] = range->state[i] == PAGE_ABSENT;
		page = give_frames(pager, range, page, end);
		if (page < end)
			record_birth(pager, range, page, end);
	}
	pthread_mutex_unlock(&pager->lock);
}

bool birth_demanded(struct pager *pager, struct paged_range *range, uint64_t page)
{
	bool planned = range->planned[page];
	uint64_t run, least;

	if (range->state[page] != PAGE_ABSENT)
		return true; /* the page was born while it was queued */
	run = pending_run(range, page);
	if (run > READ_AHEAD_PAGES_MIN && pager->wanted_count > 1)
		run = READ_AHEAD_PAGES_MIN; /* leave frames for the other accesses in the queue */
	least = run ? run : 1;
	if (!planned && run > READ_AHEAD_PAGES_MIN) {
		/* To make room for the whole run, evict stray pages only. To make room for its first
		   READ_AHEAD_PAGES_MIN pages, frame_ready() may also evict planned pages. */
		make_room_ahead(pager, run, false);
		least = READ_AHEAD_PAGES_MIN;
	}
	if (!frame_ready(pager, least))
		return false;
	page += give_birth(pager, range, page, run ? run : 1, !run);
	run = pending_run(range, page);
	make_room_ahead(pager, run, run && range->planned[page]);
	return true;
}

void page_born(struct pager *pager, struct paged_range *range, uint64_t page)
{
	if (range->top <= page)
		range->top = page + 1;
	if (!range->pending[page])
		range->planned[page] = true;
	if (!pager->wanted_count && birth_demanded(pager, range, page))
		return;
	pager->counts.waits++;
	wanted_add(pager, (struct wanted){.range = range, .page = page, .pages = 1, .birth = true});
}
