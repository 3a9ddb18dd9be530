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

/* read_ahead_rest() considers this number of streams, as many as an operator usually has tensors. */
#define READ_AHEAD_RECENT 4u

struct paged_range;

/* A sequence of accesses. The fault that reached furthest fetched the `pages` pages before page
   `next`. */
struct stream {
	const struct paged_range *range; /* NULL: unused */
	uint64_t next;
	uint64_t end; /* page behind the tensor of page next - 1 */
	uint32_t pages;
	uint32_t most; /* read_ahead_window.pages of the last fault */
};

struct read_ahead_window {
	uint32_t pages; /* maximum number of pages to fetch, beginning with the fault's page */
	uint32_t skipped; /* number of pages between the last fault's pages and this fault's page */
};

struct read_ahead {
	struct stream streams[READ_AHEAD_STREAMS]; /* the most recent one comes first */
};

/* The pages that a fault at the page should fetch. Call read_ahead_began() next. */
struct read_ahead_window read_ahead_window(struct read_ahead *read_ahead, const struct paged_range *range,
					   uint64_t page);

/* Record that the fault at `page` fetches `pages` pages. end: the first page behind the tensor of the
   last of these. The last call of read_ahead_window() must have been for this fault. */
void read_ahead_began(struct read_ahead *read_ahead, uint64_t page, uint32_t pages, uint64_t end);

/* Number of pages from `page` on that are ahead of a recent stream: the stream has not reached them,
   but they belong to the same tensor as the pages that it has reached last. */
uint64_t read_ahead_rest(const struct read_ahead *read_ahead, const struct paged_range *range, uint64_t page);

/* Forget the range's streams. */
void read_ahead_forget(struct read_ahead *read_ahead, const struct paged_range *range);

#endif
