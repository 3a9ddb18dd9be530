/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emulated tiers: on which tier each page would be on a two-tier machine, and
 * the delay that slow memory would cause. All memory of this machine has one
 * speed, so a map (struct sentinel_residency) takes the place of the page
 * table: this process writes births and drops, the daemon writes moves. Like
 * page tables the map outlives the daemon. At each boundary the stretch that
 * begins is charged for its slow pages in the map; the debt is paid, as real
 * time, before the next boundary.
 *
 * emulate.c creates the map, residency.c changes it, delay.c charges and pays.
 */
#ifndef SENTINELD_SHIM_EMULATE_H
#define SENTINELD_SHIM_EMULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "heap.h"
#include "layout.h"

/* The map's values for a slot's pages at birth. */
struct slot_birth {
	uint64_t pages; /* number of pages that are born with value `first` */
	uint8_t first;
	uint8_t rest; /* value of the other pages */
};

struct emulation {
	struct sentinel_residency *segment;
	uint64_t bytes;
	int fd; /* memfd of the segment */
	unsigned page_shift;
	uint8_t *arena; /* the arena's map, a byte per page: 0 absent, otherwise 1 + node */
	uint8_t *heap; /* the heap's map */
	struct slot_birth *slot_birth; /* by slot */
	uint8_t heap_birth; /* the map's value for pages born in the heap */
	const struct layout *layout; /* NULL: detached */
	uint32_t *first_access; /* by stretch: first row in layout->accesses; one entry more than stretches */
	uint64_t fast_limit; /* capacity of node 0 in pages; 0: unlimited */
	uint64_t fast_own; /* pages used on node 0, less segment->moved_fast */
	uint64_t owed_ps; /* since the process first had emulated tiers, as is paid_ns */
	int64_t paid_ns;
};

/* How a stretch's accesses are served. */
struct served {
	uint32_t accesses; /* touched pages */
	uint32_t fast; /* those in fast memory */
	uint64_t owed_ns; /* delay for the other ones */
};

/*
 * Create the map for an emulated layout's arena and for the heap. Needs the lock. Returns NULL, or
 * the problem.
 *   before: the former map, from which the heap's live blocks are copied; NULL: they are fast as
 *           far as the fast node has room.
 *   step:   the step that has just ended.
 */
const char *emulation_new(struct emulation **out, const struct layout *layout, const struct heap *heap,
			  const struct emulation *before, uint32_t step);

void emulation_delete(struct emulation *emulation);

/* Births and drops in the map. Need the lock; do nothing if emulation is NULL. */
void emulation_slot_born(struct emulation *emulation, uint32_t slot);
void emulation_slot_dropped(struct emulation *emulation, uint32_t slot);
void emulation_heap_born(struct emulation *emulation, uint64_t page, uint64_t pages);
void emulation_heap_dropped(struct emulation *emulation, uint64_t page, uint64_t pages);

/* Recount the fast pages of the arena and of the heap's first heap_pages, once per step: the running
   count drifts where this process and the daemon write the same page at once. Needs the lock. */
void emulation_recount(struct emulation *emulation, uint64_t heap_pages);

/* Charge the stretch that begins; call it after the barrier. */
struct served emulation_charge(struct emulation *emulation, uint32_t stretch);

/* Resident bytes in fast and in slow memory, of the arena and the heap's first heap_pages. */
void emulation_resident(const struct emulation *emulation, uint64_t heap_pages, uint64_t *fast_bytes,
			uint64_t *slow_bytes);

/* The debt to pay now, in ns: 0 if it is small, unless `all`. */
uint64_t emulation_due(const struct emulation *emulation, bool all);

/* Spend a delay: sleep, then spin. Returns the time to pass to emulation_paid(). */
uint64_t delay_spend(uint64_t delay_ns);

/* Subtract the time that was spent from the debt. */
void emulation_paid(struct emulation *emulation, uint64_t spent_ns);

#endif
