/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emulated tiers: keeps track of the tier on which each page would be on a two-tier
 * machine, and of the delay that slow memory would cause. All memory of this machine has
 * one speed, so a map (struct sentinel_residency) takes the place of the page table.
 * This process writes births and drops into the map. The daemon moves pages in batches, one
 * page after another. While a batch moves, this process records in the map which pages have
 * already arrived (flight.c). When the batch ends, the daemon records those arrived pages
 * that this process has not recorded. Like a page table, the map outlives the daemon.
 *
 * At each boundary, a stretch begins. The shim computes the delay that this stretch owes for
 * its slow pages, and adds this delay to the debt. Before the next boundary, the shim pays
 * the debt by waiting, unless the debt is small.
 *
 * emulate.c creates the map, residency.c and flight.c change it, delay.c computes and pays the debt.
 */
#ifndef SENTINELD_SHIM_EMULATE_H
#define SENTINELD_SHIM_EMULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "heap.h"
#include "layout.h"
#include "protocol.h"

/* The map's values for a slot's pages at birth. */
struct slot_birth {
	uint64_t pages; /* number of pages that are born with value `first` */
	uint8_t first;
	uint8_t rest; /* value of the other pages */
};

/* A copy of struct sentinel_flight, and the progress of recording its pages in the map. */
struct flight {
	uint64_t sequence; /* sentinel_flight.sequence of the copy; odd: there is no copy */
	uint64_t begin_ns;
	uint64_t page_ps;
	uint32_t count;
	uint8_t value; /* the map's value for pages that have arrived */
	uint32_t range, page; /* the next page to arrive: range, and index within the range */
	uint64_t arrived; /* number of pages whose arrival time has passed, absent ones included */
	uint64_t arrived_fast; /* number of pages that flight_arrive() has put on node 0 */
	struct sentinel_page_range ranges[SENTINEL_FLIGHT_RANGES];
};

struct emulation {
	struct sentinel_residency *segment;
	uint64_t bytes;
	int fd; /* memfd of the segment */
	bool paged; /* whether the pager writes the maps */
	unsigned page_shift;
	uint8_t *arena; /* the arena's map, a byte per page: 0 absent, otherwise 1 + node */
	uint8_t *heap; /* the heap's map */
	/* The segment has the next three numbers, too, but the daemon can overwrite them there. */
	uint64_t arena_pages;
	uint64_t heap_pages;
	uint64_t flight_offset;
	struct slot_birth *slot_birth; /* by slot */
	/* by slot: number of pages of the slot's latest tensor (0 if the step skipped the slot);
	   before the first tensor, number of pages of the slot */
	uint64_t *born_pages;
	uint8_t heap_birth; /* the map's value for pages born in the heap */
	const struct layout *layout; /* NULL: detached */
	/* by stretch: first row in layout->accesses; the additional last entry is the table's end */
	uint32_t *first_access;
	bool defers; /* whether any access has SENTINEL_ACCESS_AFTER */
	/* 1 + stretch whose accesses with SENTINEL_ACCESS_AFTER are not counted yet; 0: none */
	uint32_t deferred;
	uint64_t fast_limit; /* capacity of node 0 in pages; 0: unlimited */
	uint64_t fast_own; /* number of pages used on node 0, minus segment->moved_fast */
	struct flight *flight; /* NULL: the pager runs */
	/* delay that the current stretch's computation can still hide; see SENTINEL_ACCESS_HIDES */
	uint64_t hidden_ps;
	/* total delay owed, and total delay paid, since the process first had emulated tiers */
	uint64_t owed_ps;
	int64_t paid_ns;
};

/* The part of the segment that only paged tiers use. */
static inline struct sentinel_paging *emulation_paging(const struct emulation *emulation)
{
	return (void *)((char *)emulation->segment + emulation->segment->paging_offset);
}

/* The part of the segment that only emulated tiers use. */
static inline struct sentinel_flight *emulation_flight(const struct emulation *emulation)
{
	return (void *)((char *)emulation->segment + emulation->flight_offset);
}

/* Accesses counted when a stretch begins (see emulation_charge()), and their delay. */
struct served {
	uint32_t accesses; /* touched pages */
	uint32_t fast; /* touched pages in fast memory */
	uint64_t owed_ns; /* delay that these accesses add to the debt */
};

/*
 * Create the map for the heap and for the arena of a layout with SENTINEL_LAYOUT_EMULATED. Needs
 * the shim's lock. Returns NULL, or a description of the problem.
 *   paged:  the pager runs, so it will write the maps.
 *   before: the former map, from which the residency of the heap's live blocks is copied. NULL:
 *           these blocks' pages count as fast while the fast node has room.
 *   step:   number of the step that has just ended (see copy_heap_residency()).
 */
const char *emulation_new(struct emulation **out, const struct layout *layout, const struct heap *heap,
			  bool paged, const struct emulation *before, uint32_t step);

void emulation_delete(struct emulation *emulation);

/* Record the size of a tensor that is about to be born in the slot; bytes is 0 if the step skips the
   slot. Needs the shim's lock. Does nothing if emulation is NULL. */
void emulation_slot_sized(struct emulation *emulation, uint32_t slot, uint64_t bytes);

/* Forget the accesses that were to be counted when the next stretch begins, because the step has
   diverged. Needs the shim's lock. Does nothing if emulation is NULL. */
void emulation_diverged(struct emulation *emulation);

/* Whether emulation->flight, which must not be NULL, is a copy of the batch that the daemon has
   published last. */
static inline bool flight_current(const struct emulation *emulation)
{
	return emulation->flight->sequence ==
	       __atomic_load_n(&emulation_flight(emulation)->sequence, __ATOMIC_ACQUIRE);
}

/* Whether pages may be in flight. False if emulation is NULL. */
bool flight_active(const struct emulation *emulation);

/* Record in the map which pages of the batch in flight have arrived by now_ns (CLOCK_MONOTONIC).
   If flight_active(), call this before you call a function below that reads the map or records
   births. Needs the shim's lock. */
void flight_arrive(struct emulation *emulation, uint64_t now_ns);

/* Record births and drops in the map. All four functions need the shim's lock. They do nothing if
   emulation is NULL or emulation->paged is set. */
void emulation_slot_born(struct emulation *emulation, uint32_t slot);
void emulation_slot_dropped(struct emulation *emulation, uint32_t slot);
void emulation_heap_born(struct emulation *emulation, uint64_t page, uint64_t pages);
void emulation_heap_dropped(struct emulation *emulation, uint64_t page, uint64_t pages);

/* Recount the fast pages of the arena and of the heap's first heap_pages pages. Call this once per
   step, because the running count drifts if this process and the daemon write a page's entry at the
   same time. Needs the shim's lock. */
void emulation_recount(struct emulation *emulation, uint64_t heap_pages);

/* Add two delays to the debt: that of the previous stretch's accesses that have
   SENTINEL_ACCESS_AFTER, and that of the new stretch's accesses that do not have it. Call this after
   the new stretch's barrier. */
struct served emulation_charge(struct emulation *emulation, uint32_t stretch);

/* Resident bytes of the arena and of the heap's first heap_pages pages, in fast and slow memory. */
void emulation_resident(const struct emulation *emulation, uint64_t heap_pages, uint64_t *fast_bytes,
			uint64_t *slow_bytes);

/* The debt to pay now, in ns: 0 if the debt is small, unless `all` is set. */
uint64_t emulation_due(const struct emulation *emulation, bool all);

/* Wait for delay_ns: sleep, then spin. Returns the time that counts as paid (emulation_paid()). */
uint64_t delay_spend(uint64_t delay_ns);

/* Reduce the debt by the time that was spent. */
void emulation_paid(struct emulation *emulation, uint64_t spent_ns);

#endif
