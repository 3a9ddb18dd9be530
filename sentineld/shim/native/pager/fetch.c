// SPDX-License-Identifier: Apache-2.0
/* Fetches pages: reads them from the file into memory. Transits: see pages.h. */
#include "fetch.h"

#include <string.h>

#include "arrivals.h"
#include "births.h"
#include "checksum.h"
#include "evict.h"
#include "transit.h"
#include "victims.h"
#include "wanted.h"

/* frames_floor() is the budget divided by FLOOR_SHARE, but at most FLOOR_PAGES_MAX pages. */
#define FLOOR_SHARE 64u
#define FLOOR_PAGES_MAX 512u

uint64_t frames_floor(const struct pager *pager)
{
	uint64_t share = pager->budget / FLOOR_SHARE;

	return share < FLOOR_PAGES_MAX ? share : FLOOR_PAGES_MAX;
}

/* Number of free frames beyond `floor`. Frames that the budget allows, but that the pager does not have
   yet, count as free. pages: as for frame_free(). */
static uint64_t free_above(struct pager *pager, uint64_t floor, uint64_t pages)
{
	uint64_t free = pager->frames.homes.free_pages + frames_unused(pager);

	return free > floor && frame_free(pager, pages) ? free - floor : 0;
}

static uint64_t free_for_plan(struct pager *pager, uint64_t pages)
{
	return free_above(pager, frames_floor(pager), pages);
}

/* Number of frames that reading ahead may use. frames_floor() / 2 free frames are left for the
   first pages of other faults, which would otherwise evict planned pages. */
static uint64_t free_for_ahead(struct pager *pager, uint64_t pages)
{
	return free_above(pager, frames_floor(pager) / 2, pages);
}

static uint64_t all_ready(struct pager *pager, uint64_t pages)
{
	return frame_ready(pager, pages) ? pager->frames.homes.free_pages : 0;
}

const struct fetch_mode fetch_planned = {free_for_plan, TRANSIT_PAGES, SPARE_TRANSITS, JOB_PLANNED, false};
const struct fetch_mode fetch_demanded = {all_ready, READ_AHEAD_PAGES_MIN, 0, JOB_DEMANDED, false};
const struct fetch_mode fetch_faulted = {all_ready, READ_AHEAD_PAGES_MIN, 0, JOB_DEMANDED, true};
const struct fetch_mode fetch_ahead = {free_for_ahead, READ_AHEAD_PAGES_MIN, SPARE_TRANSITS, JOB_AHEAD,
				       false};

/* Read the transit's pages. Pages that are contiguous in the file are read together. Returns false
   if the job should go on later. */
static bool read_pages(struct transit *transit)
{
	struct pager *pager = transit->pager;

	while (transit->done < transit->count) {
		uint32_t i = transit->done;
		uint32_t run = transit_run(transit, i);
		int error;

		if (workers_yield(&pager->workers, &transit->job))
			return false;
		error = transit_transfer(transit, i, run, false);
		if (error)
			pager_fatal("cannot read pages back from the file: %s", strerror(-error));
		__atomic_fetch_add(&pager->counts.bytes_read, (uint64_t)run << pager->page_shift,
				   __ATOMIC_RELAXED);
		transit->done += run;
	}
	return true;
}

static void check_pages(const struct transit *transit)
{
	const struct pager *pager = transit->pager;

	for (uint32_t i = 0; i < transit->count; i++) {
		const char *page = transit_address(transit, i);

		if (checksum(page, 1ull << pager->page_shift) != transit->sum[i])
			pager_fatal("a page read back from the file is corrupt (file offset %llu)",
				    (unsigned long long)transit->file_page[i] << pager->page_shift);
	}
}

/* Move `run` pages of the transit, from page `first` on, to their addresses. */
static void place(struct transit *transit, uint32_t first, uint32_t run)
{
	struct pager *pager = transit->pager;
	struct paged_range *range = transit->of[first].range;
	uint64_t page = transit->of[first].page;
	int error = 0;

	if (frames_place(&pager->frames, transit->home + first, page_address(pager, range, page), run,
			 &error) < run)
		pager_fatal("a page cannot be moved to its address: %s", strerror(error));
	memcpy(range->home + page, transit->home + first, run * sizeof(*range->home));
	set_state(range, page, run, PAGE_IN);
	memset(range->recent + page, 1, run);
	begin_arrivals(pager);
	for (uint32_t i = 0; i < run; i++)
		range->arrival[page + i] = pager->arrivals++;
	memset(range->transit + page, 0, run);
	pager->resident += run;
}

/* Free the frame and the file page of page i, which was cut out of the transit (see pages.h). */
static void discard(struct transit *transit, uint32_t i)
{
	struct pager *pager = transit->pager;

	filespace_give(&pager->space, transit->file_page[i], 1);
	frames_free(&pager->frames, transit->home + i, 1);
}

static bool arrive(struct job *job)
{
	struct transit *transit = (struct transit *)job;
	struct pager *pager = transit->pager;

	if (!read_pages(transit))
		return true;
	check_pages(transit);
	pthread_mutex_lock(&pager->lock);
	for (uint32_t i = 0, run; i < transit->count; i += run) {
		run = 1;
		if (!transit->of[i].range) {
			discard(transit, i);
			continue;
		}
		while (i + run < transit->count && transit->of[i + run].range)
			run++;
		place(transit, i, run);
	}
	transit_close(transit);
	pthread_mutex_unlock(&pager->lock);
	return false;
}

static uint32_t arriving_run(const struct paged_range *range, uint64_t page, uint64_t end, uint32_t room)
{
	uint32_t run = 0;

	while (run < room && page + run < end && is_out(range, page + run))
		run++;
	return run;
}

uint64_t out_below(const struct paged_range *range, uint64_t page, uint64_t pages)
{
	uint64_t run = 0;

	while (run < pages && page > run && is_out(range, page - run - 1))
		run++;
	return run;
}

/* Begin to read pages that are out and not in transit. Returns the number of pages whose read has
   begun; 0 if no frame or no transit is free. */
static uint32_t begin(struct pager *pager, struct paged_range *range, uint64_t page, uint32_t pages,
		      const struct fetch_mode *mode)
{
	uint64_t frames = mode->frames(pager, pages);
	struct transit *transit = frames ? transit_open(pager, false, mode->spare) : NULL;

	if (!transit)
		return 0;
	pages = frames_borrow(&pager->frames, pages < frames ? pages : (uint32_t)frames, transit->home);
	transit->count = pages;
	for (uint32_t i = 0; i < pages; i++) {
		transit->of[i].range = range;
		transit->of[i].page = page + i;
		transit->file_page[i] = range->file_page[page + i];
		transit->sum[i] = range->sum[page + i];
	}
	memset(range->transit + page, (int)(transit - pager->transits + 1), pages);
	pager->fetches += pages;
	transit->job.run = arrive;
	if (mode->keep && !pager->kept_job)
		pager->kept_job = &transit->job;
	else
		workers_add(&pager->workers, &transit->job, mode->kind);
	return pages;
}

uint64_t pages_fetch(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages,
		     const struct fetch_mode *mode)
{
	struct transit *transit;
	uint64_t done = 0;

	while (done < pages) {
		uint32_t run = arriving_run(range, page + done, page + pages, mode->pages);

		if (run) {
			run = begin(pager, range, page + done, run, mode);
			if (!run)
				break;
			done += run;
			continue;
		}
		transit = transit_of(pager, range, page + done);
		if (transit && transit->leaves)
			page_recall(pager, range, page + done);
		done++;
	}
	return done;
}

/* Begin to read, in one transit, a run of pages that ends directly before `page`. All pages of the
   run are out and not in transit. Its length is limited by `pages`, by fetch_ahead.pages, and by the
   number of frames that reading ahead may use. Returns the number of pages whose read has begun. */
static uint32_t begin_below(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages)
{
	uint64_t free = fetch_ahead.frames(pager, fetch_ahead.pages);
	uint64_t most = free < fetch_ahead.pages ? free : fetch_ahead.pages;
	uint32_t run = (uint32_t)out_below(range, page, pages < most ? pages : most);

	return run ? begin(pager, range, page - run, run, &fetch_ahead) : 0;
}

uint64_t pages_fetch_below(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages)
{
	uint64_t done = 0, run;

	while (done < pages && (run = begin_below(pager, range, page - done, pages - done)))
		done += run;
	return done;
}

void pages_want(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages,
		const struct fetch_mode *mode)
{
	uint64_t done = pager->wanted_count ? 0 : pages_fetch(pager, range, page, pages, mode);

	if (done < pages)
		wanted_add(pager,
			   (struct wanted){.range = range, .page = page + done, .pages = pages - done});
}

/* Begin to fetch some of the stream's owed pages (see struct stream). Returns the number of pages
   whose fetch has begun. */
static uint32_t continue_stream(struct pager *pager, const struct stream *stream)
{
	uint64_t next = stream->next;
	uint32_t run;

	if (stream->descends)
		return begin_below(pager, stream->range, stream->begin, stream->owed);
	run = arriving_run(stream->range, next, next + stream->owed, fetch_ahead.pages);
	return begin(pager, stream->range, next, run, &fetch_ahead);
}

void streams_continue(struct pager *pager)
{
	struct stream *stream;

	while (!pager->wanted_count && (stream = read_ahead_owing(&pager->read_ahead))) {
		uint64_t next = stream->descends ? stream->begin - 1 : stream->next;
		uint32_t run;

		if (!is_out(stream->range, next)) {
			stream->owed = 0; /* the next page was dropped, or fetched for another reason */
			continue;
		}
		run = continue_stream(pager, stream);
		if (!run)
			return;
		read_ahead_paid(stream, run);
	}
}

uint64_t pager_fetch(struct pager *pager, void *address, uint64_t pages, uint64_t *done)
{
	struct paged_range *range;
	uint64_t begun;

	*done = pages;
	pthread_mutex_lock(&pager->lock);
	begun = pager->fetches;
	range = range_of(pager, address);
	if (range) {
		uint64_t page = page_number(pager, range, address);
		uint64_t below = pages_below_top(range, page, pages);

		set_planned(range, page, below, true);
		*done = 0;
		if (!pager->wanted_count && births_continue(pager))
			*done = pages_fetch(pager, range, page, below, &fetch_planned);
		if (*done < below)
			make_room_ahead(pager, frames_floor(pager) + TRANSIT_PAGES, false);
		if (*done == below)
			*done = pages;
	}
	pager->incomplete |= *done < pages;
	begun = pager->fetches - begun;
	pthread_mutex_unlock(&pager->lock);
	return begun;
}
