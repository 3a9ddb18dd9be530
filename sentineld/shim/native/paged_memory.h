/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process's pager, if it runs, and the functions that report births and drops to it. paging.c
 * starts the pager.
 */
#ifndef SENTINELD_SHIM_PAGED_MEMORY_H
#define SENTINELD_SHIM_PAGED_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "pager/pager.h"

/* Set the pager; NULL in a forked child, in which no pager runs. */
void paging_set_pager(struct pager *pager, unsigned page_shift);

/* The pager, or NULL if it does not run. */
struct pager *paging_pager(void);

/* Whether the pager runs. A pager that has been started never stops. */
bool paging_runs(void);

/* Make the pager stop managing an arena's memory, which must have no live tensors. */
void paging_remove(void *base, uint64_t bytes);

/* A number that grows each time a thread has to wait for a page. */
uint64_t paging_stalls(void);

/* Give page frames to the pages of a new tensor (see pager_born()). Returns false if the pager does not
   run. */
bool paging_born(void *address, uint64_t bytes);

/* Drop the pages of [address, address + bytes), whether or not the pager manages them. */
void memory_drop(void *address, uint64_t bytes);

#endif
