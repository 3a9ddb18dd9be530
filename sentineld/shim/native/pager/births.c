// SPDX-License-Identifier: Apache-2.0
/* Gives frames to born pages, drops pages and enforces the budget. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "pages.h"
#include "threads.h"
#include "uffd.h"

/* Shorter runs of dropped pages are given back to the kernel: for few pages, madvise() is faster
   than UFFDIO_MOVE. */
#define RECYCLED_PAGES_MIN 16u

bool frame_free(struct pager *pager, uint64_t pages)
{
	uint64_t used = pager_frames(pager), room = used < pager->budget ? pager->budget - used : 0;

	if (pager->frames.free_pages)
		return true;
	if (pages > TRAY_PAGES)
		pages = TRAY_PAGES;
	return room && frames_grow(&pager->frames, (uint32_t)(pages < room ? pages : room));
}

bool frame_ready(struct pager *pager, uint64_t pages)
{
	if (frame_free(pager, pages))
		return true;
	make_room(pager, pages < TRAY_PAGES ? pages : TRAY_PAGES);
	if (pager_busy(pager))
		return false;
	/* No page can be evicted. Exceeding the budget is better than blocking the training forever. */
	if (!frames_grow(&pager->frames, 1))
		pager_fatal("no memory for a page, and no page can be evicted");
	pager->counts.overruns += pager_frames(pager) > pager->budget;
	return true;
}

/* Give the frames of one tray to the absent pages [page, page + pages), beginning with the first page.
   Returns the number of pages that got a frame. */
static uint64_t give_birth(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages,
			   bool zeroed)
{
	uint32_t tray, first, count;
	uint64_t born;
	int error = 0;

	count = frames_borrow(&pager->frames, pages, &tray, &first);
	if (zeroed)
		memset(frames_address(&pager->frames, tray, first), 0, (size_t)count << pager->page_shift);
	born = frames_place(&pager->frames, tray, first, page_address(pager, range, page), count, &error);
	if (born < count && error == EEXIST)
		pager_fatal("a page at %p is already in memory",
			    (void *)page_address(pager, range, page + born));
	memset(range->planned + page, true, born);
	set_state(range, page, born, PAGE_IN);
	memset(range->recent + page, 1, born);
	pager->resident += born;
	return born;
}

static uint64_t absent_run(const struct paged_range *range, uint64_t page, uint64_t end)
{
	uint64_t run = 0;

	while (page + run < end && range->state[page + run] == PAGE_ABSENT)
		run++;
	return run;
}

/* Signal that incomplete moves can go on. */
static void resume_moves(struct pager *pager)
{
	if (pager->incomplete && pager->notify >= 0) {
		event_signal(pager->notify);
		pager->incomplete = false;
	}
}

void pages_born(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t end, bool zeroed)
{
	bool waited = false;

	if (range->top < end)
		range->top = end;
	while (page < end) {
		uint64_t run = absent_run(range, page, end);

		if (!run) {
			page++;
		} else if (!pager->wanted_count && frame_ready(pager, run)) {
			page += give_birth(pager, range, page, run, zeroed);
		} else {
			/* Wait for free frames. Queued fetches get them first. */
			pager->counts.waits += !waited;
			waited = true;
			pager->births_waiting++;
			pthread_cond_wait(&pager->changed, &pager->lock);
			pager->births_waiting--;
		}
	}
	/* While this birth waited, pager_fetch() took no frames. Some frames may be free now. */
	if (waited && !pager->births_waiting)
		resume_moves(pager);
}

void pager_born(struct pager *pager, void *address, uint64_t pages)
{
	struct paged_range *range;

	pager_enter(pager);
	range = range_of(pager, address);
	if (range) {
		uint64_t page = page_number(pager, range, address);

		memset(range->begins + page, 0, pages);
		range->begins[page] = 1;
		pages_born(pager, range, page, page + pages, false);
	}
	pthread_mutex_unlock(&pager->lock);
}

/* Drop the pages [page, page + run), which are in memory. */
static void drop_run(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t run)
{
	uint64_t kept = 0;

	while (run - kept >= RECYCLED_PAGES_MIN && pager_frames(pager) <= pager->budget) {
		uint32_t tray = frames_open_empty(&pager->frames);
		uint32_t some = run - kept < TRAY_PAGES ? (uint32_t)(run - kept) : TRAY_PAGES;
		int error = 0;

		if (tray == TRAY_NONE)
			break;
		some = frames_collect(&pager->frames, tray, page_address(pager, range, page + kept), some,
				      &error);
		frames_close(&pager->frames, tray);
		pager->resident -= some;
		kept += some;
		if (error)
			break;
	}
	if (kept < run) {
		madvise(page_address(pager, range, page + kept), (run - kept) << pager->page_shift,
			MADV_DONTNEED);
		pager->resident -= run - kept;
	}
	set_state(range, page, run, PAGE_ABSENT);
}

static void forget_file_pages(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t end)
{
	while (page < end) {
		uint64_t run = 1;

		if (!range->file_page[page]) {
			page++;
			continue;
		}
		while (page + run < end && range->file_page[page + run] == range->file_page[page] + run)
			run++;
		filespace_give(&pager->space, range->file_page[page], run);
		memset(range->file_page + page, 0, run * sizeof(*range->file_page));
		page += run;
	}
}

bool pager_dropped(struct pager *pager, void *address, uint64_t pages)
{
	struct paged_range *range;
	uint64_t page, end;

	pager_enter(pager);
	range = range_of(pager, address);
	if (!range) {
		pthread_mutex_unlock(&pager->lock);
		return false;
	}
	page = page_number(pager, range, address);
	end = page + pages;
	for (uint64_t at = page; at < end; at++) {
		uint64_t run = 0;

		if (range->transit[at])
			transit_cut(pager, range, at);
		while (at + run < end && range->state[at + run] == PAGE_IN)
			run++;
		if (run) {
			drop_run(pager, range, at, run);
			at += run - 1;
		} else {
			set_state(range, at, 1, PAGE_ABSENT);
		}
	}
	forget_file_pages(pager, range, page, end);
	pages_continue(pager);
	pthread_mutex_unlock(&pager->lock);
	return true;
}

void pages_continue(struct pager *pager)
{
	uint64_t used;

	while (pager->wanted_count) {
		struct wanted *next = &pager->wanted[pager->wanted_first];
		uint64_t some = pages_fetch(pager, next->range, next->page, next->pages, &fetch_demanded);

		next->page += some;
		next->pages -= some;
		if (next->pages)
			break;
		pager->wanted_first = (pager->wanted_first + 1) % pager->wanted_room;
		pager->wanted_count--;
	}
	used = pager_frames(pager);
	if (used > pager->budget)
		used -= frames_shrink(&pager->frames, used - pager->budget);
	if (used > pager->budget)
		make_room(pager, used - pager->budget);
	pthread_cond_broadcast(&pager->changed);
	resume_moves(pager);
}

void pager_set_budget(struct pager *pager, uint64_t pages)
{
	pthread_mutex_lock(&pager->lock);
	pager->budget = pages;
	pages_continue(pager);
	pthread_mutex_unlock(&pager->lock);
}

void pager_settle(struct pager *pager)
{
	pthread_mutex_lock(&pager->lock);
	while (pager_busy(pager) || pager->wanted_count)
		pthread_cond_wait(&pager->changed, &pager->lock);
	pthread_mutex_unlock(&pager->lock);
}

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
	stalls = counts->faults + counts->births_by_fault + counts->waits;
	pthread_mutex_unlock(&pager->lock);
	return stalls;
}
