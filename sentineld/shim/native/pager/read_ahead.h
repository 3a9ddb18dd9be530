/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many pages a fault fetches. A fault that continues a sequence of accesses
 * fetches twice as many pages as the sequence's previous fault, as in the kernel's
 * mm/readahead.c. If the previous fault had already fetched the page that is now
 * accessed, this page was evicted before its use. Then the new fault fetches half as
 * many pages as the previous one.
 *
 * The sequences, called streams, also tell which pages will be accessed soon, so that
 * these are not evicted.
 */
#ifndef SENTINELD_SHIM_READ_AHEAD_H
#define SENTINELD_SHIM_READ_AHEAD_H

#include <stdint.h>

#define READ_AHEAD_PAGES_MIN 32u
#define READ_AHEAD_PAGES_MAX 512u

/* An operator may access its tensors at many places in turn: batch normalization computes one
   channel of all images after the other. */
#define READ_AHEAD_STREAMS 64u

struct paged_range;

/* A sequence of accesses. The fault that reached furthest fetched the `pages` pages before page
   `next`. */
struct stream {
	struct paged_range *range; /* NULL: unused */
	uint64_t begin; /* page of the first fault */
	uint64_t next;
	/* pages from `next` on that the last fault would also have fetched if there had been frames */
	uint32_t owed;
	uint64_t end; /* the first page behind the tensor of page next - 1, or a page before it */
	uint32_t arrivals; /* pager->arrivals at the last fault */
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

/* The pages that a fault at the page should fetch. end: see struct stream, for this page.
   arrivals: pager->arrivals. Call read_ahead_began() next. */
struct read_ahead_window read_ahead_window(struct read_ahead *read_ahead, struct paged_range *range,
					   uint64_t page, uint64_t end, uint32_t arrivals);

/* Record that the fault at `page` fetches `pages` pages. end, owed: see struct stream; `end` is for
   the last of these pages. The last call of read_ahead_window() must have been for this fault. */
void read_ahead_began(struct read_ahead *read_ahead, uint64_t page, uint32_t pages, uint64_t end,
		      uint32_t owed);

/* The most recent stream with owed pages, or NULL. */
struct stream *read_ahead_owing(struct read_ahead *read_ahead);

/* Record that the fetch of `pages` owed pages has begun. */
void read_ahead_paid(struct stream *stream, uint32_t pages);

/* Number of pages from `page` on that a stream has yet to access, as far as is known: pages that its
   last fault fetched, and the pages behind them in the same tensor, up to the first page of another
   stream. Streams without a fault since `since`, a value of pager->arrivals, do not count. */
uint64_t read_ahead_rest(const struct read_ahead *read_ahead, const struct paged_range *range, uint64_t page,
			 uint32_t since);

/* Forget the range's streams. */
void read_ahead_forget(struct read_ahead *read_ahead, const struct paged_range *range);

#endif
