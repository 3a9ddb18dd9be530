/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches pages: reads them from the file into memory. Transits: see pages.h. The functions need
   the lock. */
#ifndef SENTINELD_SHIM_FETCH_H
#define SENTINELD_SHIM_FETCH_H

#include "pages.h"

/* Number of free frames that planned fetches leave for faults. */
uint64_t frames_floor(const struct pager *pager);

/* How pages are fetched. */
struct fetch_mode {
	/* Returns how many free frames may be used. needed: number of pages to fetch; if no frame is
	   free, the function tries to get frames for them. */
	uint64_t (*frames)(struct pager *pager, uint64_t needed);
	uint32_t pages; /* maximum number of pages of one transit; the transit's pages arrive together */
	unsigned spare; /* number of transits to leave unused */
	enum job_kind kind;
	bool keep; /* keep the first job in pager->kept_job instead of adding it to `workers` */
};

/* fetch_faulted: for the thread that serves faults, which runs the kept job. */
extern const struct fetch_mode fetch_planned, fetch_demanded, fetch_faulted, fetch_ahead;

/* Begin to fetch the pages of [page, page + pages) that are out, in order, until there are no more
   frames or transits. Also recalls those pages that are being evicted. Returns the number of pages,
   counted from `page`, that need no further call. */
uint64_t pages_fetch(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages,
		     const struct fetch_mode *mode);

/* Number of pages directly before `page` that are out and not in transit, at most `pages`. */
uint64_t out_below(const struct paged_range *range, uint64_t page, uint64_t pages);

/* Begin to fetch at most `pages` pages directly before `page`, one run after another, the run
   nearest to `page` first. Stops at a page that is not out, or when there are no more frames or
   transits. Returns the number of pages whose fetch has begun. The mode is fetch_ahead. */
uint64_t pages_fetch_below(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages);

/* Like pages_fetch(), but queues the pages whose fetch cannot begin now. mode: fetch_demanded or
   fetch_faulted, which evict pages if necessary. */
void pages_want(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages,
		const struct fetch_mode *mode);

/* Fetch the pages that streams are still owed (see read_ahead.h), while frames are free and no access
   waits for a frame. */
void streams_continue(struct pager *pager);

#endif
