/* SPDX-License-Identifier: Apache-2.0 */
/* Gives frames to born pages. If pager_born() gave a page no frame, the page is pending until it
   gets one. The functions need the lock. */
#ifndef SENTINELD_SHIM_BIRTHS_H
#define SENTINELD_SHIM_BIRTHS_H

#include "pages.h"

/* Give free frames to the pages of the births that pager_born() has recorded because not all of
   their pages got a frame. Skips pages that are not planned to be in memory. Returns false if a
   page that was not skipped still has no frame. */
bool births_continue(struct pager *pager);

/* Give frames to an absent page that is accessed and, if it is pending, to the pending pages that
   follow it. If no frame is free, queue the accessed page. If the accessed page is not pending, its
   frame is zeroed. Frames for pending pages are not zeroed: they can contain old data of this
   process. */
void page_born(struct pager *pager, struct paged_range *range, uint64_t page);

/* Give frames to an absent page and, if it is pending, to the pending pages that follow it. Make
   room for the next pending pages, which will probably be accessed soon. Returns false if there is
   no frame yet. */
bool birth_demanded(struct pager *pager, struct paged_range *range, uint64_t page);

#endif
