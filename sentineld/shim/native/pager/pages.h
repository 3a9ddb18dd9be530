/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pager's state, and the functions that its files share.
 *
 *   pager.c    start, stop, ranges of managed memory
 *   births.c   births and drops, the budget
 *   evict.c    pages leave memory
 *   fetch.c    pages arrive in memory
 *   faults.c   accesses to pages that are not in memory
 *   fork.c     what a forked child sees
 *
 * A page on its way belongs to a transit: a job that writes or reads up to a
 * tray of pages. A page that is dropped or accessed meanwhile is cut out of its
 * transit.
 *
 * The lock guards everything but the pages of a transit's tray, which belong to
 * the transit's job. The lock is held while frames move, and never during a read
 * or write of the file. All functions below need the lock.
 */
#ifndef SENTINELD_SHIM_PAGES_H
#define SENTINELD_SHIM_PAGES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "filespace.h"
#include "frames.h"
#include "pager.h"
#include "workers.h"

#define TRANSITS_MAX 64u

enum page_state {
	PAGE_ABSENT = 0,
	PAGE_IN = 1, /* in memory */
	PAGE_OUT = 2, /* in the file, or on the way to or from the file */
};

/* A mapping whose pages the pager manages, with tables by page. */
struct paged_range {
	struct paged_range *next;
	char *base;
	uint64_t pages;
	uint64_t top; /* no page from this one on was ever in memory */
	uint8_t *state; /* enum page_state */
	uint8_t *transit; /* 1 + index of the page's transit; 0: none */
	uint8_t *recent; /* 1: the page arrived after the eviction's hand had passed it */
	uint32_t *file_page; /* the page's copy in the file; 0: none */
	uint64_t *sum; /* checksum of this copy */
};

struct paged_page {
	struct paged_range *range; /* NULL: cut out of the transit */
	uint64_t page;
};

/* Pages that leave or arrive together. Page i of the transit is page first + i of the tray. */
struct transit {
	struct job job; /* must be the first member */
	struct pager *pager;
	bool used;
	bool leaves; /* false: the pages arrive */
	uint32_t tray;
	uint32_t first;
	uint32_t count;
	struct paged_page of[TRAY_PAGES];
	uint32_t file_page[TRAY_PAGES]; /* where the job reads or writes the page; 0: nowhere */
	uint64_t sum[TRAY_PAGES];
};

/* Pages to fetch as soon as there are frames. */
struct wanted {
	struct paged_range *range;
	uint64_t page;
	uint64_t pages;
};

struct pager {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a transit has ended, or frames are free */
	int uffd;
	int file;
	int stop_fd; /* eventfd that ends the thread of faults */
	int pagemap; /* /proc/self/pagemap */
	int children; /* epoll of the pipes that forked children hold */
	int fork_pipe[2]; /* of the fork that is under way */
	unsigned holders; /* forked children that may read the file */
	unsigned page_shift;
	uint64_t budget; /* pages */
	uint64_t resident; /* pages in memory, without those in trays */
	uint64_t leaving; /* pages in the trays of leaving transits */
	struct paged_range *ranges;
	struct paged_range *hand_range; /* the hand: the next page that may be evicted */
	uint64_t hand;
	struct frames frames;
	struct filespace space;
	struct workers workers;
	struct transit transits[TRANSITS_MAX];
	struct wanted *wanted; /* circular queue */
	uint64_t wanted_first;
	uint64_t wanted_count;
	uint64_t wanted_room;
	pthread_t thread; /* serves faults */
	bool has_thread;
	struct pager_counts counts; /* bytes_read and bytes_written are atomic */
};

static inline char *page_address(const struct pager *pager, const struct paged_range *range, uint64_t page)
{
	return range->base + (page << pager->page_shift);
}

static inline uint64_t page_number(const struct pager *pager, const struct paged_range *range,
				   const void *address)
{
	return ((uintptr_t)address - (uintptr_t)range->base) >> pager->page_shift;
}

/* All page frames. */
static inline uint64_t pager_frames(const struct pager *pager)
{
	return pager->resident + pager->frames.pages;
}

/* The range that contains the address, or NULL. */
struct paged_range *range_of(struct pager *pager, const void *address);

/* Whether a transit is in use. */
bool pager_busy(const struct pager *pager);

/* Open a transit without pages and without a tray; NULL if all transits are in use. */
struct transit *transit_open(struct pager *pager, bool leaves);

/* Close a transit and its tray, and continue what waited for it. */
void transit_close(struct transit *transit);

/* Cut a page on its way out of its transit. The page then has no copy in the file. */
void transit_cut(struct pager *pager, struct paged_range *range, uint64_t page);

/* Get a free frame: one that exists, or new ones for up to `pages` pages if the budget allows it.
   Otherwise begins to evict as many pages. Returns false if the caller must wait for the end of a
   transit. */
bool frame_ready(struct pager *pager, uint64_t pages);

/* Give frames to the absent pages of [page, end). Releases the lock while it waits. */
void pages_born(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t end);

/* Keep the budget, fetch what is wanted, and wake births. Call this when frames are free. */
void pages_continue(struct pager *pager);

/* Begin to evict [page, page + pages); returns the number of pages that leave. */
uint64_t pages_evict(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages);

/* Evict pages at the hand, until `pages` frames are free or will be. */
void make_room(struct pager *pager, uint64_t pages);

/* Copy a leaving page back to its place. */
void page_recall(struct pager *pager, struct paged_range *range, uint64_t page);

/* Begin to fetch [page, page + pages), as far as there are frames. Returns for how many of the first
   pages nothing is left to begin. */
uint64_t pages_fetch(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages);

/* The same; the pages without frames are queued. */
void pages_want(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages);

/* The thread that serves faults. */
void *serve_faults(void *pager);

/* Close the pipes of children that have ended. */
void forget_children(struct pager *pager);

/* End the process, because the content of a page is lost. */
__attribute__((noreturn, format(printf, 1, 2))) void pager_fatal(const char *format, ...);

#endif
