/* SPDX-License-Identifier: Apache-2.0 */
/* Enforces the budget, and continues work for which no frames were free. */
#ifndef SENTINELD_SHIM_PROGRESS_H
#define SENTINELD_SHIM_PROGRESS_H

#include "pages.h"

/* Evict pages beyond the budget, serve the queue of pages that accesses wait for (wanted.h), and
   continue births and moves. Call this when frames have become free or the budget has changed.
   Needs the lock. */
void pages_continue(struct pager *pager);

/* Wait until no transit (see pages.h) is in use, no access waits for a frame, and the thread that
   serves faults will begin no transit before the next fault. Needs the lock. */
void wait_until_settled(struct pager *pager);

#endif
