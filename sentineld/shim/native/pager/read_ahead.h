/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides how many pages a fault fetches. A fault that continues a sequence of accesses
 * fetches twice as many pages as the sequence's previous fault, as in the kernel's
 * mm/readahead.c. If the previous fault had already fetched the page that is now
 * accessed, the page was evicted before its use. In this case, the new fault fetches
 * half as many pages as the previous fault.
 *
 * A sequence can also descend. For example, the backward pass of a recurrent network
 * goes through the time steps in reverse. It accesses the pages of each time step,
 * called a row, in ascending order. So if a fault occurs a short distance before the
 * first page of a sequence, the fault fetches the pages up to that first page. Unless
 * the distance is only a small part of a row, it also fetches some rows before the
 * accessed page.
 *
 * The sequences, called streams, also tell which pages will be accessed soon, so that
 * these are not evicted.
 */
#ifndef SENTINELD_SHIM_READ_AHEAD_H
#define SENTINELD_SHIM_READ_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#define READ_AHEAD_PAGES_MIN 32u
#define READ_AHEAD_PAGES_MAX 512u

/* Maximum number of streams to remember. An operator can access its tensors at many places in turn.
   Batch normalization, for example, computes one channel after another, and for each channel goes
   through all images. */
#define READ_AHEAD_STREAMS 64u

struct paged_range;

/* A sequence of accesses. If the stream descends, [begin, next) are the pages that its most recent
   faults have fetched, and `pages` is their number. Otherwise, [next - pages, next) are the pages that
   were fetched for one fault: the one for which the stream's highest page so far was fetched. */
struct stream {
	struct paged_range *range; /* NULL: unused */
	uint64_t begin; /* page of the first fault; if the stream descends, the lowest page fetched */
	uint64_t next;
	/* number of pages from `next` on, or before `begin` if the stream descends, that the last fault
	   would also have fetched if there had been free frames */
	uint32_t owed;
	/* the first page after the tensor that contains page next - 1; if the stream descends, the first
	   page of the tensor that contains page `begin`. `end` can be nearer to the stream than this
	   page, because the search for it is limited (TENSOR_PAGES_MAX in faults.c). */
	uint64_t end;
	uint32_t arrivals; /* pager->arrivals at the last fault */
	uint32_t pages;
	uint32_t most; /* window of the last fault, in pages */
	uint32_t row; /* if the stream descends, number of pages of a row (see above) */
	bool descends;
};

struct read_ahead_window {
	uint32_t pages; /* maximum number of pages to fetch, beginning with the fault's page */
	uint32_t skipped; /* number of pages between the stream's `next` and this fault's page */
	uint32_t below; /* maximum number of pages to fetch before the fault's page; 0: none */
	/* whether the fault's page had been fetched ahead and evicted before its use, and therefore
	   `pages` is less than the window of the stream's previous fault */
	bool shrunk;
};

struct read_ahead {
	struct stream streams[READ_AHEAD_STREAMS]; /* ordered by their last fault, the most recent first */
};

struct read_ahead_fault {
	struct paged_range *range;
	uint64_t page;
	/* The first page of the tensor that contains the page, and the first page after this tensor. The
	   search for each is limited (TENSOR_PAGES_MAX in faults.c); if it stops at the limit, the value
	   is nearer to the page than the tensor's beginning or end. */
	uint64_t tensor_begin, tensor_end;
	uint32_t arrivals; /* pager->arrivals */
	/* A stream has ended if its last fault came before pager->arrivals reached this value.
	   Nevertheless, a fault at the page `next` of an ended stream, or a little after this page,
	   continues the stream, unless the stream descends. */
	uint32_t since;
};

/* The pages that a fault should fetch. Call read_ahead_began() next or, if the window's `below` is not
   0, read_ahead_began_below(). */
struct read_ahead_window read_ahead_window(struct read_ahead *read_ahead,
					   const struct read_ahead_fault *fault);

/* Record that the fault at `page` fetches `pages` pages. end, owed: see struct stream; `end` is the end
   of the tensor that contains the last of these pages. The last call of read_ahead_window() must have
   been for this fault. */
void read_ahead_began(struct read_ahead *read_ahead, uint64_t page, uint32_t pages, uint64_t end,
		      uint32_t owed);

/* Like read_ahead_began(), for a fault whose window's `below` is not 0. Record that this fault fetches
   all pages from `begin` up to, but not including, the page that was the stream's first page before
   the fault. owed: see struct stream. The last call of read_ahead_window() must have been for this
   fault. */
void read_ahead_began_below(struct read_ahead *read_ahead, uint64_t begin, uint32_t owed);

/* The most recent stream whose `owed` is not 0, or NULL. */
struct stream *read_ahead_owing(struct read_ahead *read_ahead);

/* Record that the fetch of `pages` of the stream's owed pages has begun. */
void read_ahead_paid(struct stream *stream, uint32_t pages);

/* Number of consecutive pages from `page` on that a stream will probably access soon. A stream that
   ascends probably accesses the pages that its last fault fetched and the following pages, up to the end
   of the tensor or the first page of another stream. A stream that descends probably accesses the pages
   that its faults fetched and the pages before them, down to the beginning of the tensor. A stream does
   not count if its last fault came before pager->arrivals reached `since`. */
uint64_t read_ahead_rest(const struct read_ahead *read_ahead, const struct paged_range *range, uint64_t page,
			 uint32_t since);

/* Forget the range's streams. */
void read_ahead_forget(struct read_ahead *read_ahead, const struct paged_range *range);

#endif
