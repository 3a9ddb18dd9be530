// SPDX-License-Identifier: Apache-2.0
/* Evicts pages: moves them from memory to the file. For transits, see pages.h; for the homes of
   frames and the staging memory, see frames.h. */
#define _GNU_SOURCE
#include "evict.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../clock.h"
#include "arrivals.h"
#include "checksum.h"
#include "children.h"
#include "threads.h"
#include "transit.h"
#include "uffd.h"

/* Number of further tries to move a busy frame. They often succeed, because the kernel keeps a
   frame pinned only for a moment after a read or write of the file. If a page stays busy for all
   these tries, its frame may be pinned for a long time. For example, it may belong to a buffer that
   is registered with io_uring. Often many frames are pinned in this way, and the pager's lock is
   held during the tries. On an idle machine, all tries of a page take a few microseconds. On a busy
   machine, each sched_yield() between two tries can take several milliseconds. So if the tries that
   fail have taken longer than LONG_TRIES_NS within PINNED_NS, then for PINNED_NS the pager tries
   each busy page only once more. This one try is necessary: a page that a forked child shares cannot
   be moved at first. After the first failure, the pager writes to the page (stop_sharing()), and the
   next try can then move it. Tests set other times. */
#define BUSY_TRIES 8
#define BUSY_TRIES_LATER 1
#ifndef LONG_TRIES_NS
#define LONG_TRIES_NS 1000000u
#endif
#ifndef PINNED_NS
#define PINNED_NS 100000000u
#endif

/* Maximum number of pages whose eviction pager_evict() begins without releasing the lock. Beginning
   so many evictions takes less than a millisecond; a birth or fault may have to wait that long. */
#define LOCKED_PAGES 1024u

/* Write to the page without changing it. After fork() the parent shares its pages with the child,
   and a shared page cannot be moved. A write gives the parent a frame of its own. The write is an
   atomic operation (OR with 0), so it does not undo a store that another thread makes at the same
   time.

   The program may have dropped the page by madvise() since the pager tried to move it. Then a
   store by this thread would wait until the pager provides the page, and so would
   MADV_POPULATE_WRITE or process_vm_writev(). The wait would never end, because this thread holds
   the pager's lock, and can itself be the thread that serves faults. So the kernel makes the
   write, as a part of a futex operation. (No thread waits on these futexes.) If the futex is
   private, this operation never waits for userfaultfd: fault_in_user_writeable() in
   kernel/futex/core.c does not set FAULT_FLAG_ALLOW_RETRY, without which handle_userfault() in
   fs/userfaultfd.c fails immediately. So if the page is absent or cannot be written, the operation
   fails with EFAULT, and the next try to move the page finds out whether it is absent. */
static void stop_sharing(void *page)
{
	uint32_t unused = 0;

	syscall(SYS_futex, &unused, FUTEX_WAKE_OP_PRIVATE, 0, NULL, page,
		FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0));
}

static void get_own_frame(struct pager *pager, struct paged_range *range, uint64_t page)
{
	stop_sharing(page_address(pager, range, page));
	/* If the page was shared, it has another frame now, which is single. Count its frame as single
	   in any case, because it is not known whether the page was shared. */
	frames_forget(&pager->frames, range->home + page, 1);
}

/* Number of further tries to move a frame that is busy now. */
static int busy_tries(const struct pager *pager)
{
	return now_ns() < pager->pinned_until_ns ? BUSY_TRIES_LATER : BUSY_TRIES;
}

/* Add up the time of tries that have failed. began_ns: time of the first of them. */
static void note_failed_tries(struct pager *pager, uint64_t began_ns)
{
	uint64_t now = now_ns();

	if (now - pager->failing_since_ns > PINNED_NS) {
		pager->failing_since_ns = now;
		pager->failed_tries_ns = 0;
	}
	pager->failed_tries_ns += now - began_ns;
	if (pager->failed_tries_ns > LONG_TRIES_NS)
		pager->pinned_until_ns = now + PINNED_NS;
}

/* Move the frames of [page, page + pages) to their homes, and add the homes to the transit. Returns
   how many frames moved. If not all moved, sets *error to the reason why the next frame did not
   move, as frames_collect() does. */
static uint32_t collect(struct transit *transit, struct paged_range *range, uint64_t page, uint32_t pages,
			int *error)
{
	struct pager *pager = transit->pager;
	uint32_t *homes = transit->home + transit->count, moved = 0, busy = UINT32_MAX;
	uint64_t began_ns = 0; /* time of the first failure to move the busy page */
	int tried = 0;

	for (;;) {
		char *from = page_address(pager, range, page + moved);

		*error = 0;
		memcpy(homes + moved, range->home + page + moved, (pages - moved) * sizeof(*homes));
		moved += frames_collect(&pager->frames, from, homes + moved, pages - moved, error);
		if (moved == pages || *error != EBUSY)
			return moved;
		tried = moved == busy ? tried + 1 : 0;
		busy = moved;
		if (tried >= busy_tries(pager)) {
			if (tried == BUSY_TRIES)
				note_failed_tries(pager, began_ns);
			return moved;
		}
		if (tried) {
			sched_yield();
		} else {
			began_ns = now_ns();
			get_own_frame(pager, range, page + moved);
		}
	}
}

/* Add pages that are in memory to a transit. Returns how many pages it has added. */
static uint32_t add(struct transit *transit, struct paged_range *range, uint64_t page, uint32_t pages)
{
	struct pager *pager = transit->pager;
	uint8_t mark = (uint8_t)(transit - pager->transits + 1);
	int error;
	uint32_t moved = collect(transit, range, page, pages, &error);

	for (uint32_t i = 0; i < moved; i++)
		transit->of[transit->count++] = (struct paged_page){.range = range, .page = page + i};
	set_state(range, page, moved, PAGE_OUT);
	memset(range->transit + page, mark, moved);
	memset(range->home + page, 0, moved * sizeof(*range->home));
	pager->resident -= moved;
	pager->leaving += moved;
	if (error == ENOENT) {
		/* The program itself has dropped the page by madvise(). */
		set_state(range, page + moved, 1, PAGE_ABSENT);
		frames_forget(&pager->frames, range->home + page + moved, 1);
		pager->resident--;
	}
	return moved;
}

/* Assign a page of the file to each page that has changed. Returns 0 or -ENOSPC. */
static int assign(struct transit *transit)
{
	struct pager *pager = transit->pager;
	uint32_t i = 0;

	if (pager->space.free_pages < PAGER_FILE_LOW)
		forget_children(pager);
	while (i < transit->count) {
		uint32_t run = 0;
		uint64_t first, got;

		for (; i + run < transit->count; run++) {
			struct paged_range *range = transit->of[i + run].range;
			uint64_t page = transit->of[i + run].page;

			if (!range || (range->file_page[page] && range->sum[page] == transit->sum[i + run]))
				break;
		}
		if (!run) {
			pager->counts.clean_pages += transit->of[i].range && !transit->of[i].recalled;
			transit->file_page[i++] = 0;
			continue;
		}
		got = filespace_take(&pager->space, run, &first);
		if (pager->space.free_pages < PAGER_FILE_LOW)
			event_signal(pager->notify);
		if (!got)
			return -ENOSPC;
		for (uint32_t k = 0; k < got; k++, i++) {
			struct paged_range *range = transit->of[i].range;
			uint64_t page = transit->of[i].page;

			if (range->file_page[page])
				filespace_give(&pager->space, range->file_page[page], 1);
			range->file_page[page] = transit->file_page[i] = (uint32_t)(first + k);
			range->sum[page] = transit->sum[i];
		}
	}
	return 0;
}

/* Write the transit's pages to the file, except those to which assign() has assigned no place in it:
   their content is in the file already, or is not needed. Pages whose places are contiguous are
   written together. Returns 0 or -errno. */
static int write_pages(struct transit *transit)
{
	struct pager *pager = transit->pager;
	uint32_t i = 0;

	while (i < transit->count) {
		uint32_t run;
		int error;

		if (!transit->file_page[i]) {
			i++;
			continue;
		}
		run = transit_run(transit, i);
		error = transit_transfer(transit, i, run, true);
		if (error)
			return error;
		__atomic_fetch_add(&pager->counts.bytes_written, (uint64_t)run << pager->page_shift,
				   __ATOMIC_RELAXED);
		i += run;
	}
	return 0;
}

/* Copy page i of the transit from the staging memory back to its address, into another frame. */
static void put_back(struct transit *transit, uint32_t i)
{
	struct pager *pager = transit->pager;
	struct paged_range *range = transit->of[i].range;
	uint64_t page = transit->of[i].page;
	int error = 0;

	if (!uffd_copy(pager->uffd, page_address(pager, range, page), transit_address(transit, i),
		       1ull << pager->page_shift, &error))
		pager_fatal("no memory for a page that was being evicted: %s", strerror(error));
	transit_cut(pager, range, page);
	set_state(range, page, 1, PAGE_IN);
	range->recent[page] = 1;
	begin_arrivals(pager);
	range->arrival[page] = pager->arrivals++;
	pager->resident++;
}

bool page_recall(struct pager *pager, struct paged_range *range, uint64_t page)
{
	struct transit *transit = transit_of(pager, range, page);
	uint32_t i = transit_index(transit, range, page);

	if (frames_unused(pager) || frames_shrink(&pager->frames, 1)) {
		put_back(transit, i);
		return true;
	}
	/* No frame is free for the copy until the transit ends and frees its frames. */
	transit->of[i].recalled = true;
	workers_hurry(&pager->workers, &transit->job);
	return false;
}

static void cannot_write(struct pager *pager, int error, bool file_full)
{
	pager->counts.write_error = error;
	pager->file_full = file_full;
}

static bool leave(struct job *job)
{
	struct transit *transit = (struct transit *)job;
	struct pager *pager = transit->pager;
	bool writes;
	int error;

	for (uint32_t i = 0; i < transit->count; i++)
		transit->sum[i] = checksum(transit_address(transit, i), 1ull << pager->page_shift);
	pthread_mutex_lock(&pager->lock);
	error = pager->counts.write_error;
	if (!error) {
		error = assign(transit);
		if (error)
			cannot_write(pager, error, true);
	}
	writes = !error;
	pthread_mutex_unlock(&pager->lock);
	if (writes)
		error = write_pages(transit);
	pthread_mutex_lock(&pager->lock);
	if (writes && error)
		cannot_write(pager, error, false);
	for (uint32_t i = 0; i < transit->count; i++) {
		struct paged_range *range = transit->of[i].range;

		if (!range) {
			if (transit->file_page[i])
				filespace_give(&pager->space, transit->file_page[i], 1);
		} else if (error || transit->of[i].recalled) {
			put_back(transit, i);
			if (transit->file_page[i])
				filespace_give(&pager->space, transit->file_page[i], 1);
		} else {
			range->transit[transit->of[i].page] = 0;
		}
	}
	pager->leaving -= transit->count;
	transit_close(transit);
	pthread_mutex_unlock(&pager->lock);
	return false;
}

static void submit(struct transit *transit)
{
	transit->job.run = leave;
	workers_add(&transit->pager->workers, &transit->job, JOB_WRITE);
}

static uint32_t leaving_run(const struct paged_range *range, uint64_t page, uint64_t end, uint32_t room)
{
	uint32_t run = 0;

	while (run < room && page + run < end && range->state[page + run] == PAGE_IN)
		run++;
	return run;
}

bool can_write(struct pager *pager)
{
	if (pager->file_full)
		forget_children(pager);
	if (pager->file_full && filespace_available(&pager->space) >= TRANSIT_PAGES) {
		pager->file_full = false;
		pager->counts.write_error = 0;
	}
	return !pager->counts.write_error;
}

uint64_t pages_evict(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages,
		     unsigned spare, uint64_t *done)
{
	uint64_t first = page, end = page + pages, begun = 0;
	struct transit *transit = NULL;

	while (page < end && can_write(pager)) {
		uint32_t run, moved;

		run = leaving_run(range, page, end, TRANSIT_PAGES - (transit ? transit->count : 0));
		if (!run) {
			page++;
			continue;
		}
		if (!transit) {
			transit = transit_open(pager, true, spare);
			if (!transit)
				break;
		}
		moved = add(transit, range, page, run);
		begun += moved;
		/* If only some of the pages moved, skip the first one that did not: for example, the
		   kernel has pinned its frame, or the program has dropped the page. */
		page += moved < run ? moved + 1 : moved;
		if (transit->count == TRANSIT_PAGES) {
			submit(transit);
			transit = NULL;
		}
	}
	if (transit && transit->count)
		submit(transit);
	else if (transit)
		transit_cancel(transit);
	*done = page - first;
	return begun;
}

/* Mark the pages as no longer planned to be in memory. */
static void plan_out(struct pager *pager, const void *address, uint64_t pages)
{
	struct paged_range *range;

	pager_enter(pager);
	range = range_of(pager, address);
	if (range) {
		uint64_t page = page_number(pager, range, address);

		set_planned(range, page, pages_below_top(range, page, pages), false);
	}
	pthread_mutex_unlock(&pager->lock);
}

/* Do the work of pager_evict() for a part of its pages, at most LOCKED_PAGES. */
static uint64_t evict_part(struct pager *pager, const void *address, uint64_t pages, uint64_t *done)
{
	struct paged_range *range;
	uint64_t begun = 0;

	*done = pages;
	pager_enter(pager);
	range = range_of(pager, address);
	if (range) {
		uint64_t page = page_number(pager, range, address);
		uint64_t below = pages_below_top(range, page, pages);

		begun = pages_evict(pager, range, page, below, SPARE_TRANSITS, done);
		if (*done == below)
			*done = pages;
	}
	/* While write_error is set, no page is evicted, so a further call would be useless. */
	if (pager->counts.write_error)
		*done = pages;
	pager->incomplete |= *done < pages;
	pthread_mutex_unlock(&pager->lock);
	return begun;
}

uint64_t pager_evict(struct pager *pager, void *address, uint64_t pages, uint64_t *done)
{
	uint64_t begun = 0, part, here;

	plan_out(pager, address, pages);
	*done = 0;
	do {
		part = pages - *done < LOCKED_PAGES ? pages - *done : LOCKED_PAGES;
		begun += evict_part(pager, (char *)address + (*done << pager->page_shift), part, &here);
		*done += here;
	} while (here == part && *done < pages);
	return begun;
}
