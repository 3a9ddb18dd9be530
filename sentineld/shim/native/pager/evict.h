/* SPDX-License-Identifier: Apache-2.0 */
/* Evicts pages: moves them from memory to the file. Transits: see pages.h. The functions need the
   lock. */
#ifndef SENTINELD_SHIM_EVICT_H
#define SENTINELD_SHIM_EVICT_H

#include "pages.h"

/* Begin to evict those pages of [page, page + pages) that are in memory. Returns the number of
   pages whose eviction this call has begun. spare: as for transit_open(). *done: see
   pager_evict(). */
uint64_t pages_evict(struct pager *pager, struct paged_range *range, uint64_t page, uint64_t pages,
		     unsigned spare, uint64_t *done);

/* Whether pages can be evicted. After a write has failed, for example on a full disk, no page is
   evicted any more. If no write has failed, but the file had no free page, eviction stops until the
   file has TRANSIT_PAGES free pages. */
bool can_write(struct pager *pager);

/* Cancel the eviction of a page: copy the page from the staging memory back to its address. If there is no
   frame for the copy, returns false, and the page is copied when the transit's job ends. */
bool page_recall(struct pager *pager, struct paged_range *range, uint64_t page);

#endif
