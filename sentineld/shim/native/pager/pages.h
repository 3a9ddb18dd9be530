/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pager's state, which its files share:
 *
 *   pages.c      this file's functions
 *   wanted.c     the queue of pages that accesses wait for
 *   transit.c    transits: see below
 *   children.c   forked children, and the pages of the backing file that they may read
 *   arrivals.c   which pages have arrived recently
 *   evict.c      pages leave memory
 *   read_ahead.c how many pages a fault fetches
 *   victims.c    which pages are evicted if frames are needed
 *   births.c     pages are born
 *   fetch.c      pages arrive in memory
 *   progress.c   the budget, and the work that continues when frames become free
 *   drops.c      pages are dropped
 *   ranges.c     ranges of managed memory are added and removed
 *   counts.c     counters
 *   fork.c       the pages that a forked child sees
 *   faults.c     accesses to pages that are not in memory
 *   lifecycle.c  start and stop
 *
 * A file of this list calls a function of another file of the list only if that file is above it.
 *
 * A page that is being evicted or fetched belongs to a transit: a job that writes or reads
 * up to TRANSIT_PAGES pages. A page is cut out of its transit if the page is dropped. A page
 * that is being evicted is recalled if it is accessed or has to be fetched: it is copied back
 * to its address, and is also cut out. If no frame is free for the copy, this happens when the
 * transit ends.
 *
 * The lock guards everything except atomic counters and three things that belong to
 * a transit's job: its pages in the staging memory (see frames.h), `done` and `sum`. The
 * transit's `home` and `file_page` do not change while the job reads or writes the file. The
 * lock is held while frames move, and never during a read or write of the file. Functions need
 * the lock unless their header says otherwise. pager_enter() takes the lock, and pager_fatal()
 * does not need it.
 */
#ifndef SENTINELD_SHIM_PAGES_H
#define SENTINELD_SHIM_PAGES_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "filespace.h"
#include "frames.h"
#include "pager.h"
#include "read_ahead.h"
#include "workers.h"

#define TRANSITS_MAX 128u
#define TRANSIT_PAGES 256u

/* Maximum number of births that are recorded for births_continue(). */
#define BIRTHS_MAX 16u

/* Planned moves and reading ahead leave this number of transits unused, for faults and births. */
#define SPARE_TRANSITS 16u

/* Maximum number of pages of one read or write: 256 KiB. With larger requests in flight, a read
   for which the program waits would be delayed too long. */
#define REQUEST_PAGES 64u

enum page_state {
	PAGE_ABSENT = 0,
	PAGE_IN = 1, /* in memory */
	PAGE_OUT = 2, /* in the file, or on the way to or from the file */
};

enum page_role {
	ROLE_NONE = 0,
	ROLE_STRAY = 1, /* in memory, but not planned to be there */
	ROLE_KEPT = 2, /* planned to be in memory, and not absent */
};

/* A mapping whose pages the pager manages, with tables by page. */
struct paged_range {
	struct paged_range *next;
	char *base;
	uint64_t pages;
	uint64_t top; /* first page above all pages that were ever in memory or pending */
	uint8_t *state; /* enum page_state */
	uint8_t *published; /* the table of pager_publish(), a copy of `state`; NULL: none */
	/* 1: the page is planned to be in memory. A page becomes planned at its birth (see
	   `born_out`), at pager_fetch(), and at pager_add() if it is in memory then; it stays
	   planned until pager_evict(). */
	uint8_t *planned;
	uint8_t *born_out; /* 1: the page's birth does not make it planned; see pager_born_out() */
	uint8_t *role; /* enum page_role */
	uint64_t strays; /* number of pages with ROLE_STRAY */
	uint64_t kept; /* number of pages with ROLE_KEPT */
	/* 1: the page was the first page of the last pager_born() call that included it, so a tensor
	   begins here */
	uint8_t *begins;
	uint8_t *pending; /* 1: the page is still absent: pager_born() gave it no frame */
	uint8_t *transit; /* 1 + index of the page's transit; 0: none */
	/* 1: the page is absent or out, and an access waits for it; the page is in pager->wanted or in a
	   transit */
	uint8_t *awaited;
	/* 1: the page arrived or was born since the hand of the clock algorithm last passed it */
	uint8_t *recent;
	uint32_t *home; /* home of the frame of a page in memory; see frames.h */
	uint32_t *file_page; /* number of the file page with the page's copy; 0: none */
	uint32_t *arrival; /* pager->arrivals when the page was last born, fetched or recalled */
	uint64_t *sum; /* checksum of the page's copy in the file */
};

struct paged_page {
	struct paged_range *range; /* NULL: cut out of the transit */
	uint64_t page;
	bool recalled; /* true: copy the page back to its address when the transit ends */
};

/* Pages that are evicted or fetched together. Their frames are at home, in the staging memory. */
struct transit {
	struct job job; /* must be the first member */
	struct pager *pager;
	bool used;
	bool leaves; /* true: the pages are being evicted; false: fetched */
	uint32_t count;
	uint32_t done; /* number of pages that have been read */
	struct paged_page of[TRANSIT_PAGES];
	uint32_t home[TRANSIT_PAGES];
	uint32_t file_page[TRANSIT_PAGES]; /* file page that the job reads or writes; 0: none */
	uint64_t sum[TRANSIT_PAGES];
};

/* A run of pages that need frames. In pager->wanted: accesses wait for these pages. In pager->births:
   these pages of a recent birth have no frame yet. */
struct wanted {
	struct paged_range *range;
	uint64_t page;
	uint64_t pages;
	bool birth; /* used in pager->wanted only; true: the pages are absent, false: they are out */
};

struct pager {
	pthread_mutex_t gate; /* see pager_enter() */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a transit has ended, frames are free, or `serving` is now false */
	int uffd;
	int file;
	int stop_fd; /* eventfd that stops the thread that serves faults */
	int notify; /* pager_settings.notify */
	int pagemap; /* /proc/self/pagemap */
	struct child *children; /* see children.c */
	struct child *forking; /* the child of the fork() in progress */
	uint64_t forks; /* number of forks since the start */
	unsigned page_shift;
	uint64_t budget; /* pages */
	uint64_t resident; /* pages in memory, without those in the staging memory */
	uint64_t leaving; /* number of pages that are being evicted */
	struct paged_range *ranges;
	/* the hand of the clock algorithm (victims.c): range and number of the next page to consider
	   for eviction */
	struct paged_range *hand_range;
	uint64_t hand;
	struct frames frames;
	struct filespace space;
	struct workers workers;
	struct transit transits[TRANSITS_MAX];
	unsigned open_transits;
	struct wanted *wanted; /* circular queue */
	uint64_t wanted_first;
	uint64_t wanted_count;
	uint64_t wanted_room;
	/* the most recent births of which some pages have no frame yet, the oldest birth first */
	struct wanted births[BIRTHS_MAX];
	unsigned births_count;
	struct read_ahead read_ahead;
	struct job *kept_job; /* see fetch_faulted */
	/* whether kept_job reads READ_AHEAD_PAGES_MIN pages, and the fault that it serves reads no others */
	bool kept_alone;
	/* number of pages that will probably be fetched next for the last fault's stream (see
	   read_ahead.h) */
	uint64_t next_pages;
	bool next_planned; /* whether the last fault's page is planned to be in memory */
	uint64_t repeats; /* number of accesses to pages for which an access already waited */
	uint64_t fetches; /* number of pages whose fetch has begun since the start */
	/* number of pages that were fetched or recalled since the start, or were born although they are
	   not planned to be in memory */
	uint32_t arrivals;
	uint32_t stretches; /* atomic; number of calls of pager_pass() */
	uint32_t stretch; /* value of `stretches` at the last begin_arrivals() */
	uint32_t stretch_arrivals; /* value of `arrivals` when `stretch` last changed */
	uint32_t reuse; /* see note_reuse() */
	uint32_t reuse_at; /* value of `arrivals` when note_reuse() last recorded a reuse */
	/* see note_failed_tries() in evict.c */
	uint64_t failing_since_ns;
	uint64_t failed_tries_ns;
	uint64_t pinned_until_ns;
	bool file_full; /* true: counts.write_error is set because the file had no free page */
	/* a pager_evict() or pager_fetch() was incomplete, and `notify` has not been signalled since */
	bool incomplete;
	/* the thread that serves faults will take the lock again before it waits for the next fault */
	bool serving;
	pthread_t thread; /* serves faults */
	bool has_thread;
	void (*proceed)(struct pager *pager); /* pages_continue(), for transit_close() */
	struct pager_counts counts; /* bytes_read and bytes_written are atomic */
};

/* Take the lock. While a thread waits here for the lock, threads that call this function later wait
   behind it. Without the gate, a thread that releases the lock and takes it again would be faster
   than a thread that sleeps until the lock is free. Threads of the program and the thread that
   serves faults call this function. So does pager_evict(), which releases the lock now and then so
   that these threads can go on. */
static inline void pager_enter(struct pager *pager)
{
	pthread_mutex_lock(&pager->gate);
	pthread_mutex_lock(&pager->lock);
	pthread_mutex_unlock(&pager->gate);
}

static inline char *page_address(const struct pager *pager, const struct paged_range *range, uint64_t page)
{
	return range->base + (page << pager->page_shift);
}

static inline uint64_t page_number(const struct pager *pager, const struct paged_range *range,
				   const void *address)
{
	return ((uintptr_t)address - (uintptr_t)range->base) >> pager->page_shift;
}

/* Whether the page is in the file and not on its way to or from it. */
static inline bool is_out(const struct paged_range *range, uint64_t page)
{
	return range->state[page] == PAGE_OUT && !range->transit[page];
}

/* The page's transit, or NULL. */
static inline struct transit *transit_of(struct pager *pager, const struct paged_range *range, uint64_t page)
{
	return range->transit[page] ? &pager->transits[range->transit[page] - 1] : NULL;
}

/* Number of all page frames that the pager holds, free ones included. */
static inline uint64_t pager_frames(const struct pager *pager)
{
	return pager->resident + pager->frames.pages;
}

/* Number of frames that the budget allows in addition to those that the pager holds. */
static inline uint64_t frames_unused(const struct pager *pager)
{
	uint64_t used = pager_frames(pager);

	return used < pager->budget ? pager->budget - used : 0;
}

static inline enum page_role role_of(const struct paged_range *range, uint64_t page)
{
	if (range->state[page] == PAGE_ABSENT)
		return ROLE_NONE;
	if (range->planned[page])
		return ROLE_KEPT;
	return range->state[page] == PAGE_IN ? ROLE_STRAY : ROLE_NONE;
}

static inline void set_roles(struct paged_range *range, uint64_t page, uint64_t pages)
{
	uint64_t before[ROLE_KEPT + 1] = {0}, after[ROLE_KEPT + 1] = {0};

	for (uint64_t i = page; i < page + pages; i++) {
		before[range->role[i]]++;
		range->role[i] = (uint8_t)role_of(range, i);
		after[range->role[i]]++;
	}
	range->strays += after[ROLE_STRAY] - before[ROLE_STRAY];
	range->kept += after[ROLE_KEPT] - before[ROLE_KEPT];
}

static inline void set_state(struct paged_range *range, uint64_t page, uint64_t pages, enum page_state state)
{
	memset(range->state + page, state, pages);
	memset(range->awaited + page, 0, pages);
	if (range->published)
		memset(range->published + page, state, pages);
	set_roles(range, page, pages);
}

/* Set `planned` of the pages. To save time, begins with the first page whose value changes. A call
   that continues an incomplete move usually changes no value, because the move's first call has set
   all of them. */
static inline void set_planned(struct paged_range *range, uint64_t page, uint64_t pages, bool planned)
{
	const uint8_t *first = memchr(range->planned + page, !planned, pages);
	uint64_t same;

	if (!first)
		return;
	same = (uint64_t)(first - (range->planned + page));
	memset(range->planned + page + same, planned, pages - same);
	set_roles(range, page + same, pages - same);
}

/* How many of the `pages` pages from `page` on are below range->top. All pages from range->top on
   are absent. */
static inline uint64_t pages_below_top(const struct paged_range *range, uint64_t page, uint64_t pages)
{
	uint64_t below = page < range->top ? range->top - page : 0;

	return pages < below ? pages : below;
}

/* The range that contains the address, or NULL. */
struct paged_range *range_of(struct pager *pager, const void *address);

/* Print an error and abort the process, because a page or its content cannot be provided. */
__attribute__((noreturn, format(printf, 1, 2))) void pager_fatal(const char *format, ...);

#endif
