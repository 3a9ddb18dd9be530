// SPDX-License-Identifier: Apache-2.0
/* Gives frames to born pages, drops pages and enforces the budget. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "pages.h"
#include "threads.h"
#include "uffd.h"

bool frame_free(struct pager *pager, uint64_t pages)
{
	uint64_t used = pager_frames(pager), room = used < pager->budget ? pager->budget - used : 0;

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

/* Free the frames of [page, page + pages), none of which is single. Returns how many were freed. */
static uint64_t free_frames(struct pager *pager, struct paged_range *range, uint64_t page, uint32_t pages)
{
	uint32_t *homes = range->home + page;
	int error;
	uint32_t freed =
		frames_collect(&pager->frames, page_address(pager, range, page), homes, pages, &error);

	frames_free(&pager->frames, homes, freed);
	memset(homes, 0, freed * sizeof(*homes));
	return freed;
}

/* Return the frames of [page, page + pages) to the kernel. */
static void return_frames(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages)
{
	madvise(page_address(pager, range, page), pages << pager->page_shift, MADV_DONTNEED);
	for (uint64_t i = page; i < page + pages; i++)
		frames_forget(&pager->frames, range->home + i);
}

/* Drop the pages [page, page + run), which are in memory. Returns single frames to the kernel, and
   other frames, too, while the pager has more frames than its budget. */
static void drop_run(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t run)
{
	/* Number of frames to return at once if the next frame cannot be moved, because the kernel
	   has pinned it or a forked child shares it. The number doubles each time, because often
	   many frames in a row cannot be moved. */
	uint32_t stuck = 1;

	for (uint64_t at = page, end = page + run, done; at < end; at += done) {
		bool single = !range->home[at];
		uint32_t some = 1;

		while (at + some < end && some < TRANSIT_PAGES && !range->home[at + some] == single)
			some++;
		done = some;
		if (single || pager_frames(pager) > pager->budget)
			return_frames(pager, range, at, some);
		else
			done = free_frames(pager, range, at, some);
		if (done) {
			stuck = 1;
		} else {
			done = stuck < some ? stuck : some;
			return_frames(pager, range, at, done);
			stuck *= 2;
		}
		pager->resident -= done;
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
