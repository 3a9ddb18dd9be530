// SPDX-License-Identifier: Apache-2.0
/* Serves faults: accesses to pages that are not in memory. */
#define _GNU_SOURCE
#include "faults.h"

#include <poll.h>
#include <string.h>

#include "../clock.h"
#include "arrivals.h"
#include "births.h"
#include "evict.h"
#include "fetch.h"
#include "pagemap.h"
#include "transit.h"
#include "uffd.h"
#include "victims.h"

/* A read that takes longer than this is not counted in `fault_reads`: probably the process was stopped
   during the read, or the disk had stalled. */
#ifndef FAULT_READ_NS_MAX
#define FAULT_READ_NS_MAX 50000000u
#endif

/* Maximum number of pages to search for the beginning or end of a tensor. With this limit, a search
   takes at most a few microseconds. */
#define TENSOR_PAGES_MAX 65536u

/* Whether the page is in memory or in the kernel's swap; true also if pagemap cannot be read. */
static bool exists(const struct pager *pager, uintptr_t address)
{
	bool mapped;

	return pagemap_read(pager->pagemap, (void *)address, pager->page_shift, 1, &mapped) != 1 || mapped;
}

/* Number of consecutive pages from `page` on that are out, that is, in the file and not in transit;
   at most `most`. Beyond READ_AHEAD_PAGES_MIN pages, the run ends where another tensor begins. */
static uint32_t out_run(const struct paged_range *range, uint64_t page, uint32_t most)
{
	uint32_t run = 0;

	while (run < most && page + run < range->pages && is_out(range, page + run) &&
	       (run < READ_AHEAD_PAGES_MIN || !range->begins[page + run]))
		run++;
	return run;
}

/* The first page after the tensor that contains the page. The tensor counts as ended at the top of
   the range, or after TENSOR_PAGES_MAX pages beyond `page`. */
static uint64_t tensor_end(const struct paged_range *range, uint64_t page)
{
	uint64_t most = pages_below_top(range, page + 1, TENSOR_PAGES_MAX);
	const uint8_t *next = memchr(range->begins + page + 1, 1, most);

	return next ? (uint64_t)(next - range->begins) : page + 1 + most;
}

/* The first page of the tensor that contains the page, if it is at most TENSOR_PAGES_MAX pages before
   `page`; otherwise the page at this distance. */
static uint64_t tensor_begin(const struct paged_range *range, uint64_t page)
{
	uint64_t lowest = page > TENSOR_PAGES_MAX ? page - TENSOR_PAGES_MAX : 0;
	const uint8_t *begin = memrchr(range->begins + lowest, 1, page - lowest + 1);

	return begin ? (uint64_t)(begin - range->begins) : lowest;
}

/* Fetch [page, page + pages), unless other accesses wait for frames. Returns how many pages, from
   `page` on, need no further call. */
static uint32_t fetch_more(struct pager *pager, struct paged_range *range, uint64_t page, uint32_t pages)
{
	if (pager->wanted_count)
		return 0;
	return (uint32_t)pages_fetch(pager, range, page, pages, &fetch_ahead);
}

/* Fetch those pages of the window (see read_ahead.h) that are below the fault's page. Call this
   after the fetch of the window's other pages has begun. */
static void fetch_below(struct pager *pager, const struct read_ahead_fault *fault,
			struct read_ahead_window window)
{
	uint64_t page = fault->page, left = page - fault->tensor_begin, next = window.below + window.pages;
	uint64_t run = out_below(fault->range, page, left < window.below ? left : window.below);
	uint64_t now = pager->wanted_count ? 0 : pages_fetch_below(pager, fault->range, page, run);

	read_ahead_began_below(&pager->read_ahead, page - now, (uint32_t)(run - now));
	/* The stream's next fault will probably fetch about as many pages as this fault. */
	next += run - now;
	left -= now;
	pager->next_pages = out_below(fault->range, page - now, left < next ? left : next);
}

/* Number of pages that pager->kept_job (see fetch_faulted) reads; 0 if there is no such job. */
static uint32_t kept_pages(const struct pager *pager)
{
	const struct transit *kept = (const struct transit *)pager->kept_job;

	return kept ? kept->count : 0;
}

/* Fetch a page that is in the file, and the pages after it. Also fetches pages before it: those
   that its stream of faults (see read_ahead.h) has skipped or, if the stream descends, those that
   the stream will access next. */
static void fetch_run(struct pager *pager, struct paged_range *range, uint64_t page)
{
	struct read_ahead_fault fault = {
		.range = range,
		.page = page,
		.tensor_begin = tensor_begin(range, page),
		.tensor_end = tensor_end(range, page),
		.arrivals = pager->arrivals,
		.since = since_recent(pager),
	};
	struct read_ahead_window window = read_ahead_window(&pager->read_ahead, &fault);
	uint32_t run = out_run(range, page, window.pages);
	/* If the stream descends, fetch the rest of the row (see read_ahead.h) now, because it will
	   almost certainly be accessed. */
	uint32_t now = run < READ_AHEAD_PAGES_MIN || window.below ? run : READ_AHEAD_PAGES_MIN;
	uint64_t gap = page - window.skipped, before = pager->fetches;
	uint32_t owed;

	/* If the window has shrunk, this page was read ahead too early, and was evicted before its
	   use. The smaller window prevents that, so no reuse has to be noted. */
	if (!window.shrunk)
		note_reuse(pager, range, page);
	pager->next_planned = range->planned[page];
	pages_want(pager, range, page, now, &fetch_faulted);
	pager->kept_alone = false;
	if (window.below) {
		fetch_below(pager, &fault, window);
		return;
	}
	while (gap < page && !is_out(range, gap))
		gap++;
	fetch_more(pager, range, gap, out_run(range, gap, (uint32_t)(page - gap)));
	now += fetch_more(pager, range, page + now, run - now);
	owed = run - now;
	/* If few frames are free, kept_job reads only some of the pages, and the rest are queued. */
	pager->kept_alone =
		run == READ_AHEAD_PAGES_MIN && kept_pages(pager) == run && pager->fetches - before == run;
	read_ahead_began(&pager->read_ahead, page, now,
			 page + now > fault.tensor_end ? tensor_end(range, page + now - 1) : fault.tensor_end,
			 owed);
	/* If the window has grown, the stream is sequential, and its next fault will probably come
	   soon. */
	if (window.pages > READ_AHEAD_PAGES_MIN)
		pager->next_pages = out_run(range, page + now, owed + window.pages);
}

/* Evict pages, so that a stream's next fault finds `pages` free frames. planned: whether the last
   fault's page is planned to be in memory. If it is not, evicts only stray pages: those that are in
   memory, but not planned to be there. */
static void make_room_for_stream(struct pager *pager, uint64_t pages, bool planned)
{
	make_room_ahead(pager, pages + frames_floor(pager), false);
	make_room_ahead(pager, pages, planned);
}

/* Recall a page that is being evicted, and then the pages that follow it, as long as they are being
   evicted and there are frames for them. */
static void recall_run(struct pager *pager, struct paged_range *range, uint64_t page)
{
	uint64_t end = page + pages_below_top(range, page, READ_AHEAD_PAGES_MIN);
	struct transit *transit = transit_of(pager, range, page);

	while (transit && transit->leaves && page_recall(pager, range, page))
		transit = ++page < end ? transit_of(pager, range, page) : NULL;
}

/* Provide a page that is absent or out, or begin to do so. */
static void provide(struct pager *pager, struct paged_range *range, uint64_t page)
{
	struct transit *transit;

	if (range->state[page] == PAGE_ABSENT) {
		/* The page is pending (see births.h), the program itself has dropped it, or the
		   tensor was allocated before pager_add() and not used until now. In the last two
		   cases, page_born() zeroes the page, as the kernel would do without a pager. */
		pager->counts.births_by_fault++;
		page_born(pager, range, page);
		return;
	}
	pager->counts.faults++;
	transit = transit_of(pager, range, page);
	if (!transit)
		fetch_run(pager, range, page);
	else if (transit->leaves)
		recall_run(pager, range, page);
	else
		workers_hurry(&pager->workers, &transit->job);
}

/* Serve one fault. When the page arrives, UFFDIO_MOVE or UFFDIO_COPY wakes the threads that wait
   for it. */
static void serve(struct pager *pager, uintptr_t address)
{
	struct paged_range *range = range_of(pager, (void *)address);
	uint64_t page;

	if (!range)
		return;
	page = page_number(pager, range, (void *)address);
	if (range->state[page] == PAGE_IN) {
		if (exists(pager, address)) {
			/* The page has arrived since the fault was raised. */
			uffd_wake(pager->uffd, page_address(pager, range, page), 1ull << pager->page_shift);
			return;
		}
		/* The program itself has dropped the page by madvise(). */
		set_state(range, page, 1, PAGE_ABSENT);
		frames_forget(&pager->frames, range->home + page, 1);
		pager->resident--;
	}
	/* A signal interrupts the wait for a page: after the signal's handler, the kernel raises the fault
	   again. In a system call, the kernel even raises it again and again until the page arrives. */
	if (range->awaited[page]) {
		pager->repeats++;
		return;
	}
	/* provide() can evict the page after it has given it a frame. So set this before: set_state() ends
	   it at each of these changes. */
	range->awaited[page] = 1;
	provide(pager, range, page);
}

/* Set pager->serving, and wake the threads that wait for it to become false (wait_until_settled()). */
static void set_serving(struct pager *pager, bool serving)
{
	if (pager->serving && !serving)
		pthread_cond_broadcast(&pager->changed);
	pager->serving = serving;
}

/* Serve the faults that were raised. This thread itself reads the pages of the last fault, because
   waking another thread often takes longer than the read. Then it makes room for the next fault. */
static void serve_all(struct pager *pager)
{
	struct job *job = NULL;
	uint64_t began_ns = 0, spent_ns = 0, next_pages = 0;
	bool alone = false, planned = false, again = false;
	uintptr_t address;

	while (uffd_next_fault(pager->uffd, &address)) {
		if (job)
			workers_add(&pager->workers, job, JOB_DEMANDED);
		began_ns = now_ns();
		pager_enter(pager);
		serve(pager, address);
		job = pager->kept_job;
		alone = job && pager->kept_alone;
		if (pager->next_pages > next_pages) {
			next_pages = pager->next_pages;
			planned = pager->next_planned;
		}
		pager->kept_job = NULL;
		pager->next_pages = 0;
		again = alone || next_pages;
		set_serving(pager, again);
		pthread_mutex_unlock(&pager->lock);
	}
	if (job) {
		workers_run(&pager->workers, job);
		spent_ns = now_ns() - began_ns;
	}
	if (!again)
		return;
	pager_enter(pager);
	if (alone && spent_ns <= FAULT_READ_NS_MAX) {
		pager->counts.fault_reads++;
		pager->counts.fault_read_ns += spent_ns;
	}
	if (next_pages)
		make_room_for_stream(pager, next_pages, planned);
	set_serving(pager, false);
	pthread_mutex_unlock(&pager->lock);
}

void *serve_faults(void *argument)
{
	struct pager *pager = argument;
	struct pollfd polled[] = {
		{.fd = pager->uffd, .events = POLLIN},
		{.fd = pager->stop_fd, .events = POLLIN},
	};

	pthread_setname_np(pthread_self(), "sentineld-fault");
	while (!polled[1].revents) {
		if (poll(polled, 2, -1) < 0)
			continue;
		serve_all(pager);
	}
	return NULL;
}
