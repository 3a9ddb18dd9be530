// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "frames.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "pagemap.h"
#include "uffd.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* Limit for large or unlimited budgets: 16 GiB of addresses, for free frames and for frames that are
   being written or read. */
#define TRAYS_MAX (1u << 14)

/* Extra trays, because open and partly filled trays have room for more frames than they hold. */
#define SPARE_TRAYS 256u

static uint64_t tray_bytes(const struct frames *frames)
{
	return (uint64_t)TRAY_PAGES << frames->page_shift;
}

static uint32_t pop(struct frames *frames, uint32_t *list)
{
	uint32_t tray = *list;

	if (tray != TRAY_NONE)
		*list = frames->trays[tray].next;
	return tray;
}

static void push(struct frames *frames, uint32_t *list, uint32_t tray)
{
	frames->trays[tray].next = *list;
	*list = tray;
}

const char *frames_init(struct frames *frames, uint64_t pages)
{
	uint64_t trays = pages / TRAY_PAGES * 2 + SPARE_TRAYS;
	char *base;

	frames->count = trays < TRAYS_MAX ? (uint32_t)trays : TRAYS_MAX;
	frames->filled = frames->empty = TRAY_NONE;
	frames->trays = calloc(frames->count, sizeof(*frames->trays));
	frames->bytes = (frames->count + 1) * tray_bytes(frames);
	base = mmap(NULL, frames->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		    -1, 0);
	if (base == MAP_FAILED || !frames->trays) {
		free(frames->trays);
		frames->trays = NULL;
		return "no memory for the staging area";
	}
	frames->nursery = base;
	frames->staging = base + tray_bytes(frames);
	/* A frame that a child process shares could not be moved. */
	madvise(base, frames->bytes, MADV_DONTFORK);
	madvise(base, frames->bytes, MADV_NOHUGEPAGE);
	for (uint32_t tray = frames->count; tray-- > 0;)
		push(frames, &frames->empty, tray);
	if (uffd_register(frames->uffd, frames->staging, frames->bytes - tray_bytes(frames))) {
		frames_destroy(frames);
		return "the staging area cannot be registered with userfaultfd";
	}
	return NULL;
}

void frames_destroy(struct frames *frames)
{
	if (!frames->trays)
		return;
	munmap(frames->nursery, frames->bytes);
	free(frames->trays);
	frames->trays = NULL;
}

/* Remove a tray from the list of filled trays: of those without borrowed frames, the one with the
   fewest frames. Returns TRAY_NONE if all have borrowed frames or the list is empty. */
static uint32_t pop_least(struct frames *frames)
{
	uint32_t *least = NULL;

	for (uint32_t *link = &frames->filled; *link != TRAY_NONE; link = &frames->trays[*link].next)
		if (!frames->trays[*link].borrowed &&
		    (!least || frames->trays[*link].present < frames->trays[*least].present))
			least = link;
	return least ? pop(frames, least) : TRAY_NONE;
}

static void unmap(struct frames *frames, uint32_t tray, uint32_t first, uint32_t pages)
{
	frames->pages -= pages;
	madvise(frames_address(frames, tray, first), (uint64_t)pages << frames->page_shift, MADV_DONTNEED);
}

uint32_t frames_open_empty(struct frames *frames)
{
	uint32_t tray = pop(frames, &frames->empty);

	if (tray != TRAY_NONE)
		return tray;
	/* This happens only if many trays are partly filled: empty the one with the fewest frames. */
	tray = pop_least(frames);
	if (tray == TRAY_NONE)
		return tray;
	frames->free_pages -= frames->trays[tray].present;
	unmap(frames, tray, 0, frames->trays[tray].present);
	frames->trays[tray].present = 0;
	return tray;
}

void frames_close(struct frames *frames, uint32_t tray)
{
	uint32_t present = frames->trays[tray].present;

	frames->free_pages += present;
	push(frames, present ? &frames->filled : &frames->empty, tray);
}

/* Number of consecutive pages, from the first one on, that exist at `to` and not at `from`. */
static uint32_t arrived(const struct frames *frames, const void *to, const void *from, uint32_t pages)
{
	bool there[PAGEMAP_BATCH], here[PAGEMAP_BATCH];
	int64_t known = pagemap_read(frames->pagemap, to, frames->page_shift, pages, there);
	uint32_t count = 0;

	if (known <= 0 ||
	    pagemap_read(frames->pagemap, from, frames->page_shift, (uint64_t)known, here) != known)
		return 0;
	while (count < known && there[count] && !here[count])
		count++;
	return count;
}

/*
 * Move frames as uffd_move() does; returns the number of pages.
 *
 * Linux 6.18 can move pages without counting them. If reclaim or migration holds a page, an attempt
 * to move it fails with EAGAIN, and move_pages() in mm/userfaultfd.c tries again. But move_pages()
 * keeps the error of the failed attempt, because it moves pages in batches. So it does not count
 * the pages that the next attempt moves, and the attempt after that fails with EEXIST.
 */
static uint32_t move(struct frames *frames, char *to, char *from, uint32_t pages, int *error)
{
	uint32_t done = 0, uncounted;

	for (;;) {
		uint64_t at = (uint64_t)done << frames->page_shift;
		uint64_t moved = uffd_move(frames->uffd, to + at, from + at,
					   (uint64_t)(pages - done) << frames->page_shift, error);

		done += (uint32_t)(moved >> frames->page_shift);
		if (done == pages || *error != EEXIST)
			return done;
		uncounted = arrived(frames, to + at + moved, from + at + moved, pages - done);
		if (!uncounted)
			return done;
		/* The kernel has woken only the threads that wait for counted pages. */
		uffd_wake(frames->uffd, to + at + moved, (uint64_t)uncounted << frames->page_shift);
		done += uncounted;
		*error = 0;
	}
}

uint32_t frames_collect(struct frames *frames, uint32_t tray, void *from, uint32_t pages, int *error)
{
	void *to = frames_address(frames, tray, frames->trays[tray].present);
	uint32_t moved = move(frames, to, from, pages, error);

	frames->trays[tray].present += moved;
	frames->pages += moved;
	return moved;
}

uint32_t frames_borrow(struct frames *frames, uint64_t pages, uint32_t *tray, uint32_t *first)
{
	struct tray *source;
	uint32_t some;

	*tray = frames->filled;
	source = &frames->trays[*tray];
	some = pages < source->present ? (uint32_t)pages : source->present;
	source->present -= some;
	source->borrowed += some;
	frames->free_pages -= some;
	*first = source->present;
	if (!source->present)
		pop(frames, &frames->filled);
	return some;
}

/* Update the tray, which has lost `pages` of its borrowed frames. */
static void lost(struct frames *frames, uint32_t tray, uint32_t pages)
{
	struct tray *source = &frames->trays[tray];

	source->borrowed -= pages;
	if (!source->borrowed && !source->present)
		push(frames, &frames->empty, tray);
}

void frames_discard(struct frames *frames, uint32_t tray, uint32_t first, uint32_t pages)
{
	unmap(frames, tray, first, pages);
	lost(frames, tray, pages);
}

uint32_t frames_place(struct frames *frames, uint32_t tray, uint32_t first, void *to, uint32_t pages,
		      int *error)
{
	char *from = frames_address(frames, tray, first);
	uint32_t moved = move(frames, to, from, pages, error);
	uint64_t done = (uint64_t)moved << frames->page_shift;

	if (moved == pages) {
		frames->pages -= pages;
		lost(frames, tray, pages);
		return pages;
	}
	/* The kernel can keep a frame pinned for a moment after the frame was read from the file. */
	if (*error == EBUSY)
		done += uffd_copy(frames->uffd, (char *)to + done, from + done,
				  (uint64_t)(pages - moved) << frames->page_shift, error);
	frames_discard(frames, tray, first, pages);
	return (uint32_t)(done >> frames->page_shift);
}

uint32_t frames_grow(struct frames *frames, uint32_t pages)
{
	uint32_t tray;
	int error;

	if (pages > TRAY_PAGES)
		pages = TRAY_PAGES;
	if (madvise(frames->nursery, (uint64_t)pages << frames->page_shift, MADV_POPULATE_WRITE))
		return 0;
	tray = frames_open_empty(frames);
	if (tray == TRAY_NONE)
		return 0;
	pages = frames_collect(frames, tray, frames->nursery, pages, &error);
	frames_close(frames, tray);
	return pages;
}

uint64_t frames_shrink(struct frames *frames, uint64_t pages)
{
	uint64_t done = 0;

	while (done < pages && frames->free_pages) {
		uint32_t tray, first, some = frames_borrow(frames, pages - done, &tray, &first);

		frames_discard(frames, tray, first, some);
		done += some;
	}
	return done;
}
