/* SPDX-License-Identifier: Apache-2.0 */
/* Makes room: evicts pages so that frames become free. The functions need the lock. */
#ifndef SENTINELD_SHIM_VICTIMS_H
#define SENTINELD_SHIM_VICTIMS_H

#include "pages.h"

/* Begin to evict pages until `pages` frames are free or about to become free. Stray pages (in
   memory, but not planned to be there) are evicted first. */
void make_room(struct pager *pager, uint64_t pages);

/* Like make_room(), for pages that will probably be accessed soon. This function evicts fewer pages
   than make_room(): frames that the budget still allows count as free, although the pager does not
   have them yet. planned: whether planned pages, too, may be evicted; if not, this function evicts
   only stray pages, and of these only those that are not young (see arrivals.c). */
void make_room_ahead(struct pager *pager, uint64_t pages, bool planned);

/* Make sure that there is a free frame. If there is none, gets new frames within the budget: those
   of a huge page or, if that is not possible, up to `pages` single ones. Returns false if the budget
   is used up or the kernel gives no frame. */
bool frame_free(struct pager *pager, uint64_t pages);

/* Like frame_free(), but if there is still no free frame, begins to evict up to `pages` pages and
   returns false: the caller must wait for the end of a transit. If no page can be evicted and no
   transit is in use, gets one frame, even beyond the budget, and returns true. */
bool frame_ready(struct pager *pager, uint64_t pages);

#endif
