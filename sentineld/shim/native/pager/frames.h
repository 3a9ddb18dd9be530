/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pager's page frames, and the staging memory: the buffers for writes and reads of the
 * backing file. When a page is evicted, its frame moves into the staging memory. After the page
 * is written to the file, the frame is free for the next page that is read or born. Planned
 * moves do not zero frames, and they copy a page only if its frame cannot be moved (see
 * frames_place()).
 *
 * The speed of a disk can depend on the number of physically contiguous segments of a request.
 * Virtual disks, for example, can be several times as fast with segments of 16 pages as with
 * segments of one page. So the pager gets frames from the kernel as huge pages, whose frames
 * are physically adjacent, and keeps these frames together. Each frame of a huge page has a
 * home: a page of the staging memory, next to the homes of the adjacent frames. While the
 * frame is lent to a page, no other frame uses its home. When the page gives up the frame,
 * the frame returns to its home:
 *
 *     block  | free | free | lent | lent | free ...      the 512 homes of a huge page's frames
 *                            |      |
 *                            page   page
 *
 * A page is evicted to its frame's home. Free frames with adjacent homes are lent together, to
 * consecutive pages if possible. Frames that were lent to separate pages are next to each other
 * again when they have returned to their homes.
 *
 * Other frames are single: the frames of pages that existed before the pager started, of
 * copied pages, and of pages that were in memory at a fork() (see fork.c). The pager also gets
 * single frames from the kernel when the budget has no room for a huge page, or the kernel has
 * no huge page. A single frame has a home only while it is
 * in the staging memory; this home is in one of the blocks for single frames. If there are
 * enough other free frames, single ones are returned to the kernel, so that the budget has room
 * for huge pages. Unless stated otherwise, the functions need the pager's lock.
 */
#ifndef SENTINELD_SHIM_FRAMES_H
#define SENTINELD_SHIM_FRAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "homes.h"

struct frames {
	int uffd;
	int pagemap; /* /proc/self/pagemap */
	unsigned page_shift;
	char *staging; /* registered with uffd: UFFDIO_MOVE requires a registered destination */
	/* New frames are populated in one of these two areas, which are not registered with uffd, and
	   are then moved to their homes. The first area has the size of a huge page; the second is for
	   single frames. */
	char *huge_nursery, *nursery;
	void *memory; /* the mapping that contains the staging memory and both areas */
	uint64_t bytes; /* size of `memory` */
	struct homes homes;
	uint64_t pages; /* frames in the staging memory, free or not */
};

/* Map the staging memory and the areas for new frames. The caller has set uffd, pagemap and
   page_shift, and zeroed the other fields. pages: the number of frames for which there should be
   homes. Returns NULL, or a description of the problem. Neither this function nor frames_destroy()
   needs the lock. */
const char *frames_init(struct frames *frames, uint64_t pages);
void frames_destroy(struct frames *frames);

/* The address of a home. Homes are numbered from 1. Does not need the lock. */
static inline char *frames_address(const struct frames *frames, uint32_t home)
{
	return frames->staging + ((uint64_t)(home - 1) << frames->page_shift);
}

/* Move the frames of `pages` pages at `from` to their homes. homes: the home of each page's frame.
   If an entry is HOME_NONE, the frame is single, and this function stores the frame's new home there;
   to have a home for it, the function may return free frames to the kernel. Returns how many pages
   moved. If not all moved, sets *error as uffd_move() does, or to ENOSPC if there is no home for a
   single frame. */
uint32_t frames_collect(struct frames *frames, char *from, uint32_t *homes, uint32_t pages, int *error);

/* Mark these frames as free. They must be at home and must not be free yet. If there are enough
   other free frames, returns single frames to the kernel instead. */
void frames_free(struct frames *frames, const uint32_t *homes, uint32_t pages);

/* Borrow up to `pages` free frames, and store their homes in homes[]. Returns how many. */
uint32_t frames_borrow(struct frames *frames, uint32_t pages, uint32_t *homes);

/* Move borrowed frames to the absent pages at `to`. If the kernel has pinned a frame, or the
   program has locked its destination by mlock() or protected it by mprotect(), the frame's content
   is copied instead. The homes[] entries of single frames, of copies and of pages that did not
   arrive become HOME_NONE. Returns how many pages arrived, and sets *error as uffd_move() does. */
uint32_t frames_place(struct frames *frames, uint32_t *homes, char *to, uint32_t pages, int *error);

/* Return the frames of these pages to the kernel, even if the program has locked them by mlock(). Does
   not need the lock. */
void frames_release(void *address, uint64_t bytes);

/* Record that `pages` pages have lost their frames, for example because the pages were dropped. Sets the
   entries of homes[] to HOME_NONE. */
void frames_forget(struct frames *frames, uint32_t *homes, uint64_t pages);

/* Get at most `room` new frames from the kernel when no frame is free: those of a huge page if
   `room` is large enough and the kernel has one, otherwise up to `pages` single frames. Returns the
   number of new frames; 0: no memory or no homes. */
uint32_t frames_grow(struct frames *frames, uint64_t pages, uint64_t room);

/* Return the free frames of incomplete blocks for huge pages to the kernel. */
void frames_return_rests(struct frames *frames);

/* Return at most `pages` free frames to the kernel; returns how many. */
uint64_t frames_shrink(struct frames *frames, uint64_t pages);

#endif
