/* SPDX-License-Identifier: Apache-2.0 */
/* Transits: see pages.h. transit_run(), transit_transfer() and transit_address() are for jobs, which call
   them without the lock. The other functions need the lock. */
#ifndef SENTINELD_SHIM_TRANSIT_H
#define SENTINELD_SHIM_TRANSIT_H

#include "pages.h"

/* Whether any transit is in use. */
bool pager_busy(const struct pager *pager);

/* Open a transit without pages; NULL if at most `spare` transits are unused. */
struct transit *transit_open(struct pager *pager, bool leaves, unsigned spare);

/* Close a transit that has no pages. */
void transit_cancel(struct transit *transit);

/* Close a transit and call pager->proceed. If the transit evicted pages, their frames become free. */
void transit_close(struct transit *transit);

/* Number of pages, from page i on, that are adjacent in the file, so that one request can read or
   write them; at most REQUEST_PAGES. */
uint32_t transit_run(const struct transit *transit, uint32_t i);

/* Read or write the file's copies of `run` pages, from page i on. Returns 0 or -errno. */
int transit_transfer(const struct transit *transit, uint32_t i, uint32_t run, bool write);

/* The address, in the staging memory, of page i of the transit. */
static inline char *transit_address(const struct transit *transit, uint32_t i)
{
	return frames_address(&transit->pager->frames, transit->home[i]);
}

/* The index of a page in its transit. */
uint32_t transit_index(const struct transit *transit, const struct paged_range *range, uint64_t page);

/* Remove a page from its transit. If the transit reads or writes the page's copy in the file, the
   page has no copy in the file afterwards. */
void transit_cut(struct pager *pager, struct paged_range *range, uint64_t page);

#endif
