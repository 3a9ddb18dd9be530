/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which pages and streams are recent, and detects that an operator accesses the same pages
   repeatedly. The functions need the lock. */
#ifndef SENTINELD_SHIM_ARRIVALS_H
#define SENTINELD_SHIM_ARRIVALS_H

#include "pages.h"

/* Call this before pager->arrivals is used or changed. If the program has begun another stretch,
   forgets the reuse that note_reuse() has recorded. */
void begin_arrivals(struct pager *pager);

/* The value that pager->arrivals had when the oldest recent arrival came; see recent_pages() in
   arrivals.c. A stream has ended if its last fault came before pager->arrivals reached this value. */
uint32_t since_recent(const struct pager *pager);

/* A stray page (in memory, but not planned to be there) counts as young if it is among this number
   of most recent arrivals. */
uint64_t young_pages(const struct pager *pager);

/* Note a fault on a page that is in the file. If few pages have arrived since this page last
   arrived, an operator is probably accessing the same pages again and again. Stray pages then stay
   young (see arrivals.c) for longer, so that the next accesses find them in memory. */
void note_reuse(struct pager *pager, const struct paged_range *range, uint64_t page);

#endif
