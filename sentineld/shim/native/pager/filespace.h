/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps track of the free pages of the backing file. Pages are given out in runs of
 * consecutive pages (next fit). So one request can write or read pages that are
 * evicted together. Page 0 is never given out.
 */
#ifndef SENTINELD_SHIM_FILESPACE_H
#define SENTINELD_SHIM_FILESPACE_H

#include <stdbool.h>
#include <stdint.h>

/* The pages that one holder, a forked child, may read. */
struct filespace_hold {
	struct filespace_hold *next;
	uint64_t holder;
	uint64_t *pages; /* one bit per page */
};

struct filespace {
	uint64_t *used; /* one bit per page */
	uint64_t pages;
	struct filespace_hold *holds;
	uint64_t *held; /* one bit per page: the page is in a hold; NULL: no page is held */
	/* one bit per page: the page was given back while it was held; it becomes free when no hold
	   includes it any more */
	uint64_t *released;
	unsigned closed; /* number of holders that have no hold, because there was no memory for it */
	uint64_t free_pages;
	uint64_t next; /* where the next search begins */
};

/* Returns false if there is no memory. */
bool filespace_init(struct filespace *space, uint64_t pages);
void filespace_destroy(struct filespace *space);

/* Record that the file has grown to `pages` pages. Returns false if there is no memory. */
bool filespace_grow(struct filespace *space, uint64_t pages);

/* Take a run of at most `pages` pages. Returns the run's length, and sets *first to its first page.
   Returns 0 if the file is full. */
uint64_t filespace_take(struct filespace *space, uint64_t pages, uint64_t *first);

/* The number of pages that filespace_take() could give out now; 0 while the file counts as full. */
uint64_t filespace_available(const struct filespace *space);

/* Give back a run of pages. A held page becomes free only when no hold includes it any more. */
void filespace_give(struct filespace *space, uint64_t first, uint64_t pages);

/* Hold all pages that are in use, so that they are not given out again before
   filespace_release() is called for the holder. Pages that the holder already holds stay held. If
   there is no memory for the hold, the file counts as full until filespace_release(). holder: any
   number that identifies the holder. */
void filespace_hold(struct filespace *space, uint64_t holder);
void filespace_release(struct filespace *space, uint64_t holder);

#endif
