// SPDX-License-Identifier: Apache-2.0
/* Drops pages: frees their frames and their copies in the file. */
#include <string.h>

#include "progress.h"
#include "transit.h"
#include "uffd.h"
#include "wanted.h"

/* Free the frames of [page, page + pages), none of which is single (see frames.h). Returns the
   number of frames freed. */
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
	frames_release(page_address(pager, range, page), pages << pager->page_shift);
	frames_forget(&pager->frames, range->home + page, pages);
}

/* Drop the pages [page, page + run), which are in memory. Gives their single frames (see frames.h)
   back to the kernel and, while the pager has more frames than its budget, their other frames,
   too. */
static void drop_run(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t run)
{
	/* If the next frame cannot be moved (the kernel has pinned it, or a forked child shares
	   it), this number of frames is returned to the kernel together. The number doubles each
	   time, because often many frames in a row cannot be moved. At most TRANSIT_PAGES frames
	   are returned together. */
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
			if (stuck < TRANSIT_PAGES)
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
	bool cut = false;

	pager_enter(pager);
	range = range_of(pager, address);
	if (!range) {
		pthread_mutex_unlock(&pager->lock);
		return false;
	}
	page = page_number(pager, range, address);
	end = page + pages_below_top(range, page, pages);
	memset(range->pending + page, 0, end - page);
	for (uint64_t at = page; at < end; at++) {
		uint64_t run = 0;

		if (range->transit[at]) {
			transit_cut(pager, range, at);
			cut = true;
		}
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
	wanted_forget(pager, range, page, end);
	/* No transit and no entry of the queue will bring these pages now. So wake the threads that wait
	   for them; they raise their faults again. */
	if (cut || pager->wanted_count)
		uffd_wake(pager->uffd, address, pages << pager->page_shift);
	pages_continue(pager);
	pthread_mutex_unlock(&pager->lock);
	return true;
}
