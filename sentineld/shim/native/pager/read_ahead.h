/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many pages a fault fetches. A fault that continues a sequence of accesses
 * fetches twice as many pages as the sequence's previous fault, as in the kernel's
 * mm/readahead.c. If the previous fault had already fetched the page that is now
 * accessed, this page was evicted before its use. Then the new fault fetches half as
 * many pages as the previous one.
 */
#ifndef SENTINELD_SHIM_READ_AHEAD_H
#define SENTINELD_SHIM_READ_AHEAD_H

#include <stdint.h>

#define READ_AHEAD_PAGES_MIN 32u
#define READ_AHEAD_PAGES_MAX 512u
#define READ_AHEAD_STREAMS 16u

struct paged_range;

/* A sequence of accesses. The fault that reached furthest fetched the `pages` pages before page
   `next`. */
struct stream {
	const struct paged_range *range; /* NULL: unused */
	uint64_t next;
	uint32_t pages;
	uint32_t most; /* read_ahead_window.pages of the last fault */
};

struct read_ahead_window {
	uint32_t pages; /* maximum number of pages to fetch, beginning with the fault's page */
	uint32_t skipped; /* number of pages between the stream's `next` and this fault's page */
};

struct read_ahead {
	struct stream streams[READ_AHEAD_STREAMS]; /* the most recent one comes first */
};

/* The pages that a fault at the page should fetch. Call read_ahead_began() next. */
struct read_ahead_window read_ahead_window(struct read_ahead *read_ahead, const struct paged_range *range,
					   uint64_t page);

/* Record that the fault at `page` fetches `pages` pages. The last call of read_ahead_window() must
   have been for this fault. */
void read_ahead_began(struct read_ahead *read_ahead, uint64_t page, uint32_t pages);

/* Forget the range's streams. */
void read_ahead_forget(struct read_ahead *read_ahead, const struct paged_range *range);

#endif
