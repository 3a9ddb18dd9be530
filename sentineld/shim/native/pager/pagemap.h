/* SPDX-License-Identifier: Apache-2.0 */
/* /proc/self/pagemap: which pages of this process exist (Documentation/admin-guide/mm/pagemap.rst in
   the kernel's sources). */
#ifndef SENTINELD_SHIM_PAGEMAP_H
#define SENTINELD_SHIM_PAGEMAP_H

#include <stdbool.h>
#include <stdint.h>

#define PAGEMAP_BATCH 512u

/* Open /proc/self/pagemap. Returns the descriptor, or -1. */
int pagemap_open(void);

/* Find out which of the `pages` pages from `address` on, at most PAGEMAP_BATCH, are in memory or in the
   kernel's swap. Writes the answers into mapped[]. Returns their number, which can be less than
   `pages`, or -errno; 0 only if `pages` is 0. */
int64_t pagemap_read(int pagemap, const void *address, unsigned page_shift, uint64_t pages, bool *mapped);

#endif
