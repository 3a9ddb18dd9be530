/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pager holds at most `budget_pages` page frames for tensors (for exceptions see
 * `overruns`). It keeps the content of all other pages in a file. The pager runs in the
 * training process, because UFFDIO_MOVE works only within one address space, and
 * because the process still needs its pages after the daemon has ended.
 *
 * A page is absent (never born, or dropped), in memory, or out (in the file):
 *
 *     born      free frames ---UFFDIO_MOVE---> page
 *     evicted   page ---UFFDIO_MOVE---> home ---write---> file; the frames are free
 *     fetched   file ---read---> free frames ---UFFDIO_MOVE---> page
 *     dropped   page ---UFFDIO_MOVE---> home; the frames are free
 *
 * frames.h explains the homes of frames. If the frame of a dropped page has no home,
 * the frame goes back to the kernel.
 * An access to a page that is out fetches this page and some pages next to it.
 * A page that has not changed since it was last written to the file is evicted without
 * another write. Faults evict pages if frames are scarce. pager_born() evicts no pages, and
 * pager_fetch() evicts only pages that are not planned to be in memory. All functions may be
 * called by any thread.
 */
#ifndef SENTINELD_SHIM_PAGER_H
#define SENTINELD_SHIM_PAGER_H

#include <stdbool.h>
#include <stdint.h>

struct pager;

struct pager_settings {
	int device; /* an open /dev/userfaultfd; -1: the pager opens it */
	int file; /* backing file, opened with O_DIRECT; the caller keeps it open */
	uint64_t file_pages; /* size of the file in pages */
	uint64_t budget_pages;
	unsigned requests; /* maximum number of reads and writes in flight, 1 to 32 */
	/* eventfd, written when an incomplete pager_evict() or pager_fetch() can go on, or when the file
	   is nearly full; -1: none */
	int notify;
};

/* Counted since the pager's start, except `frames` and `write_error`. An access to a page for which
   another access already waits is not counted. */
struct pager_counts {
	uint64_t bytes_read;
	uint64_t bytes_written;
	uint64_t faults; /* accesses to pages that were out, or being fetched or evicted */
	uint64_t births_by_fault; /* accesses to absent pages, and to born pages without a frame */
	uint64_t clean_pages; /* pages that were evicted without a write */
	uint64_t waits; /* accesses counted in births_by_fault that waited for a frame */
	/* Reads of 128 KiB by the thread that serves faults, and the sum of their times. The time of a
	   read begins when the thread has read the fault's event, and ends when the pages have
	   arrived. A read is not counted if its fault also reads other pages ahead, or if the read
	   took longer than 50 ms. */
	uint64_t fault_reads, fault_read_ns;
	uint64_t overruns; /* frames taken beyond the budget, because no page could be evicted */
	uint64_t frames; /* page frames held now, including free ones */
	/* -errno of a failed write, or -ENOSPC if the file had no free page; 0: no error. While
	   write_error is not 0, no page is evicted. */
	int write_error;
};

/* Returns NULL, or a description of the problem. */
const char *pager_start(struct pager **pager, const struct pager_settings *settings);

/* Fetch all pages, stop managing them, and free the pager. */
void pager_stop(struct pager *pager);

/* Manage the pages of a private anonymous mapping, of which the process has used at most the first
   `used_bytes`. Returns NULL, or a description of the problem. */
const char *pager_add(struct pager *pager, void *base, uint64_t bytes, uint64_t used_bytes);

/* Stop managing a mapping. Its pages must be in memory or dropped. */
void pager_remove(struct pager *pager, void *base);

/* From now on, write the state of each page of the mapping into a table: 0 absent, 1 in memory, 2 out.
   Each call replaces the former table; NULL: no table. */
void pager_publish(struct pager *pager, void *base, uint8_t *table);

/* Whether the file has fewer than PAGER_FILE_LOW free pages. */
#define PAGER_FILE_LOW 16384u
bool pager_file_low(struct pager *pager);

/* Report that the file has grown to this number of pages. Returns false if there is no memory. */
bool pager_file_grown(struct pager *pager, uint64_t pages);

/* Give frames to those of the `pages` pages at `address` that are absent. The content of these
   pages is then undefined. Does not wait: a page for which no frame is free gets one later, at the
   latest when it is accessed. */
void pager_born(struct pager *pager, void *address, uint64_t pages);

/* Usually, a page is planned to be in memory from its birth on. After this call, births on these
   pages no longer make them planned: these pages get frames only when they are accessed, and may be
   evicted as soon as other pages need frames. */
void pager_born_out(struct pager *pager, void *address, uint64_t pages);

/* Make the pages absent. Returns false if the pager does not manage the mapping. */
bool pager_dropped(struct pager *pager, void *address, uint64_t pages);

/* Begin to evict those of the `pages` pages at `address` that are in memory. Returns the number of
   pages whose eviction this call has begun. Pages that the kernel has pinned stay in memory. *done:
   number of pages, counted from `address`, that need no further call; less than `pages` if too many
   pages are already being evicted or fetched, so that the other pages have to wait. */
uint64_t pager_evict(struct pager *pager, void *address, uint64_t pages, uint64_t *done);

/* Begin to fetch those of the `pages` pages at `address` that are out, as long as frames are free
   and no born or accessed page lacks a frame. Returns the number of pages whose fetch this call has
   begun. *done: number of pages, counted from `address`, that need no further call. */
uint64_t pager_fetch(struct pager *pager, void *address, uint64_t pages, uint64_t *done);

/* Change the budget, and begin to evict pages if the new budget is exceeded. */
void pager_set_budget(struct pager *pager, uint64_t pages);

/* Wait until no page is being evicted or fetched, and no access waits for a page. */
void pager_settle(struct pager *pager);

void pager_read_counts(struct pager *pager, struct pager_counts *counts);

/* Report that the program begins another stretch. */
void pager_pass(struct pager *pager);

/* A number that grows each time a thread has to wait for a page. */
uint64_t pager_stalls(struct pager *pager);

/* Call these functions around fork(). pager_before_fork() waits, as pager_settle() does. */
void pager_before_fork(struct pager *pager);
void pager_after_fork_in_parent(struct pager *pager);
void pager_after_fork_in_child(struct pager *pager);

#endif
