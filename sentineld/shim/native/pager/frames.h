/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pager's free page frames, and the staging memory: the buffers for writes and
 * reads of the backing file. When a page is evicted, its frame moves into the staging
 * memory. After the page is written, the frame is free for the next page that is read
 * or born. Planned moves neither zero nor copy the frame, unless the kernel keeps it
 * pinned; then the page is copied.
 *
 * The staging memory is divided into trays. The caller that has opened a tray fills
 * it with frames, for example those of evicted pages:
 *
 *     tray   | present | absent ...            |
 *
 * The frames of a closed tray are free. A fetch or birth borrows the last ones, as
 * many as it needs, and moves them to their new addresses in any order:
 *
 *     tray   | present | borrowed, or absent   | absent ... |
 *
 * Only a closed tray that has neither free nor borrowed frames is opened again. If there
 * is no such tray, the free frames of another tray are first returned to the kernel. All
 * functions except frames_address() need the pager's lock.
 */
#ifndef SENTINELD_SHIM_FRAMES_H
#define SENTINELD_SHIM_FRAMES_H

#include <stdbool.h>
#include <stdint.h>

#define TRAY_PAGES 256u
#define TRAY_NONE UINT32_MAX

struct tray {
	uint32_t present; /* frames, without borrowed ones */
	uint32_t borrowed;
	uint32_t next; /* in the list of closed trays */
};

struct frames {
	int uffd;
	int pagemap; /* /proc/self/pagemap */
	unsigned page_shift;
	char *staging; /* registered with uffd: UFFDIO_MOVE requires a registered destination */
	/* memory of the size of one tray, not registered with uffd: new frames are populated here */
	char *nursery;
	uint64_t bytes; /* of staging and nursery */
	struct tray *trays;
	uint32_t count;
	uint32_t filled; /* list of closed trays that have free frames */
	uint32_t empty; /* list of closed trays that have no frames, not even borrowed ones */
	uint64_t free_pages; /* frames in closed trays, without borrowed ones */
	uint64_t pages; /* frames in all trays, borrowed ones included */
};

/* The caller has set uffd, pagemap and page_shift; all else is zero. pages: the number of frames
   for which the trays should have room; there are at most TRAYS_MAX trays. Returns NULL, or a
   description of the problem. */
const char *frames_init(struct frames *frames, uint64_t pages);
void frames_destroy(struct frames *frames);

/*
 * Open a tray without frames. If no closed tray is empty, choose the one with the fewest frames
 * among the closed trays without borrowed frames, and discard its frames. Returns TRAY_NONE if
 * there is no such tray.
 */
uint32_t frames_open_empty(struct frames *frames);

/* Close a tray; its frames are free now. */
void frames_close(struct frames *frames, uint32_t tray);

static inline char *frames_address(const struct frames *frames, uint32_t tray, uint32_t page)
{
	return frames->staging + (((uint64_t)tray * TRAY_PAGES + page) << frames->page_shift);
}

/* Move `pages` frames from `from` into an open tray. Returns how many moved, and sets *error as
   uffd_move() does. */
uint32_t frames_collect(struct frames *frames, uint32_t tray, void *from, uint32_t pages, int *error);

/* Borrow up to `pages` free frames, and set *tray and *first to the position of the first one. There
   must be at least one free frame. Returns how many were borrowed. */
uint32_t frames_borrow(struct frames *frames, uint64_t pages, uint32_t *tray, uint32_t *first);

/* Move borrowed frames, from frame `first` on, to the absent range at `to`. If the kernel has pinned a
   frame, its content is copied instead. The tray loses all of these frames, even if not all pages
   arrive. Returns how many pages arrived, and sets *error as uffd_move() does. */
uint32_t frames_place(struct frames *frames, uint32_t tray, uint32_t first, void *to, uint32_t pages,
		      int *error);

/* Return borrowed frames to the kernel. */
void frames_discard(struct frames *frames, uint32_t tray, uint32_t first, uint32_t pages);

/* Get up to `pages` new frames from the kernel. Returns how many; 0: no memory or no tray. */
uint32_t frames_grow(struct frames *frames, uint32_t pages);

/* Return at most `pages` free frames to the kernel; returns how many. */
uint64_t frames_shrink(struct frames *frames, uint64_t pages);

#endif
