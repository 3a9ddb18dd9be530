/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paged tiers: the pager manages the pages of the heap and of the arenas. This file
 * starts the pager, reports forks to it, and makes it carry out the moves of the layout and
 * the moves that the daemon queues. paged_memory.h reports births and drops. pager/pager.h
 * describes the pager itself.
 */
#ifndef SENTINELD_SHIM_PAGING_H
#define SENTINELD_SHIM_PAGING_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "emulate.h"
#include "heap.h"
#include "schedule.h"

struct paging_settings {
	int file; /* backing file, opened with O_DIRECT; -1 if the pager already runs */
	uint64_t bytes; /* size of the file; if the pager runs: size to which the file is enlarged */
	uint64_t bytes_max; /* maximum size to which a nearly full file is enlarged */
	int wake; /* eventfd to which the daemon writes after it has queued moves */
	uint64_t budget_pages; /* see paging_set_budget(); 0: no change (a new pager: no limit) */
};

/*
 * Start the pager and make it manage the heap, or give a running pager new settings. Needs the
 * shim's lock; call this between two steps. Takes ownership of the descriptors. Returns NULL, or a
 * description of the problem.
 */
const char *paging_start(const struct heap *heap, const struct paging_settings *settings);

/* If the pager runs, make it manage an arena. Returns NULL, or a description of the problem. */
const char *paging_add(const struct arena *arena);

/* From now on, use the residency segment of `emulation`, this arena, and the moves of the arena's
   layout. Each argument may be NULL, which means none. Needs the shim's lock. */
void paging_use(struct emulation *emulation, const struct arena *arena);

/* Report that the process has passed the boundary at this position, or does not follow the layout
   from now on (SCHEDULE_NOWHERE). has_moves: whether the layout has moves at this boundary; pass
   true with SCHEDULE_NOWHERE, so that serve_moves() wakes up and discards the moves that are due.
   Needs the shim's lock. */
void paging_pass(uint64_t position, bool has_moves);

/* Set the maximum number of page frames. */
void paging_set_budget(uint64_t pages);

/* Publish the pager's counters in the residency segment. */
void paging_publish(void);

/* Call these around fork(), with the shim's lock held. */
void paging_before_fork(void);
void paging_after_fork_in_parent(void);
void paging_after_fork_in_child(void);

#endif
