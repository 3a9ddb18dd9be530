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
   first page whose `planned` differs from that of `page`, because give_frames() and give_demanded()
   treat planned pages and other pages differently. */
static uint64_t pending_run(const struct paged_range *range, uint64_t page)
{
	uint64_t most = pages_below_top(range, page, TRANSIT_PAGES), run = 0;

	while (run < most && range->pending[page + run] && range->planned[page + run] == range->planned[page])
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

/* Give free frames to the pending pages of [page, end), in order. Skips pages that are not planned to
   be in memory: they get frames only when they are accessed. Returns the first page, apart from
   skipped ones, that got no frame; `end` if all got one. */
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

/* Set `planned` of the newborn pages [page, end): 1, or 0 for pages of pager_born_out(). */
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

/* Give frames to an absent page and to the pending pages that follow it, and make room for the next
   pending pages, which will probably be accessed soon. Returns false if there is no frame yet. */
static bool give_demanded(struct pager *pager, struct paged_range *range, uint64_t page)
{
	bool planned = range->planned[page];
	uint64_t run, least;

	if (range->state[page] != PAGE_ABSENT)
		return true; /* the page was born meanwhile */
	run = pending_run(range, page);
	if (run > READ_AHEAD_PAGES_MIN && pager->wanted_count > 1)
		run = READ_AHEAD_PAGES_MIN; /* other accesses wait for frames, too */
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
	if (!pager->wanted_count && give_demanded(pager, range, page))
		return;
	pager->counts.waits++;
	wanted_add(pager, (struct wanted){.range = range, .page = page, .pages = 1, .birth = true});
}

/* Free the frames of [page, page + pages), none of which is single. Returns the number of frames
   freed. */
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

/* Drop the pages [page, page + run), which are in memory. Gives single frames (see frames.h) back
   to the kernel and, while the pager has more frames than its budget, all other frames, too. */
static void drop_run(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t run)
{
	/* Number of frames to return together to the kernel if the next frame cannot be moved,
	   because the kernel has pinned it or a forked child shares it. The number doubles each time,
	   because often many frames in a row cannot be moved. */
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
	memset(range->pending + page, 0, pages);
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
	wanted_forget(pager, range, page, end);
	pages_continue(pager);
	pthread_mutex_unlock(&pager->lock);
	return true;
}

void pages_continue(struct pager *pager)
{
	uint64_t used = pager_frames(pager);

	if (used > pager->budget)
		used -= frames_shrink(&pager->frames, used - pager->budget);
	if (used > pager->budget)
		make_room(pager, used - pager->budget);
	while (pager->wanted_count) {
		struct wanted *next = &pager->wanted[pager->wanted_first];
		uint64_t some = next->pages;

		if (!next->birth)
			some = pages_fetch(pager, next->range, next->page, next->pages, &fetch_demanded);
		else if (some && !give_demanded(pager, next->range, next->page))
			some = 0;
		next->page += some;
		next->pages -= some;
		if (next->pages)
			break;
		pager->wanted_first = (pager->wanted_first + 1) % pager->wanted_room;
		pager->wanted_count--;
	}
	if (births_continue(pager))
		streams_continue(pager);
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

void wait_until_settled(struct pager *pager)
{
	while (pager_busy(pager) || pager->wanted_count || pager->serving)
		pthread_cond_wait(&pager->changed, &pager->lock);
}

void pager_settle(struct pager *pager)
{
	pthread_mutex_lock(&pager->lock);
	wait_until_settled(pager);
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
