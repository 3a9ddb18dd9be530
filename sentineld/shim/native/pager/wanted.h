/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of pages that accesses wait for. The functions need the lock. */
#ifndef SENTINELD_SHIM_WANTED_H
#define SENTINELD_SHIM_WANTED_H

#include "pages.h"

/* Queue pages that an access waits for. */
void wanted_add(struct pager *pager, struct wanted wanted);

/* Forget those entries of the queue, and of the list pager->births, whose pages lie in [page, end). The
   caller wakes the threads that wait for these pages. */
void wanted_forget(struct pager *pager, const struct paged_range *range, uint64_t page, uint64_t end);

#endif
