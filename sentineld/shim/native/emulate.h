/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emulated tiers: where each page would be on a machine with two of them, and
 * what the slow one would have cost. Here the process has but one kind of memory; the map
 * (struct sentinel_residency) is in the kernel's place: births and drops are
 * written by this process as they happen, moves by the daemon. It outlives the
 * daemon, as page tables do. At each boundary the stretch that begins is
 * charged for what the map says then; a debt is paid before the next one.
 */
#ifndef SENTINELD_SHIM_EMULATE_H
#define SENTINELD_SHIM_EMULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "heap.h"
#include "layout.h"

/* What a slot's pages become at birth: so many of them, and the rest. */
struct slot_birth {
	uint64_t pages;
	uint8_t first, rest;
};

struct emulation {
	struct sentinel_residency *segment;
	uint64_t bytes;
	int fd;
	unsigned page_shift;
	uint8_t *arena; /* a byte for each page: 0 absent, else 1 + node */
	uint8_t *heap;
	struct slot_birth *slot_birth; /* by slot */
	uint8_t heap_birth;
	const struct layout *layout; /* NULL: let go of */
	uint32_t *first_access; /* by stretch, and one more: rows of layout->accesses */
	uint64_t fast_limit; /* pages of node 0; 0: no end of them */
	uint64_t fast_own; /* taken of them, but for what the daemon moved (segment->moved_fast) */
	uint64_t owed_ps; /* since the first one was made, as is paid_ns */
	int64_t paid_ns;
};

/* What serves a stretch, in touched pages, and what it costs. */
struct served {
	uint32_t accesses;
	uint32_t fast;
	uint64_t owed_ns;
};

/*
 * A map for an emulated layout's arena and the heap; `before` (or NULL) tells where the heap's live
 * blocks are, else they are fast, as long as the fast node has pages. `step`: the one that has just
 * ended. Needs the lock. NULL, or what is wrong.
 */
const char *emulation_new(struct emulation **out, const struct layout *layout, const struct heap *heap,
			  const struct emulation *before, uint32_t step);

void emulation_delete(struct emulation *emulation);

/* Births and drops; they need the lock. NULL: no tiers are emulated. */
void emulation_slot_born(struct emulation *emulation, uint32_t slot);
void emulation_slot_dropped(struct emulation *emulation, uint32_t slot);
void emulation_heap_born(struct emulation *emulation, uint64_t page, uint64_t pages);
void emulation_heap_dropped(struct emulation *emulation, uint64_t page, uint64_t pages);

/* A step begins: count the fast node's pages anew, in the arena and in the heap's first pages. Two
   write the map, so that counting along errs by a page where both meet. Needs the lock. */
void emulation_recount(struct emulation *emulation, uint64_t heap_pages);

/* A stretch begins, all that it had to wait for is done: charge it. */
struct served emulation_charge(struct emulation *emulation, uint32_t stretch);

/* Bytes on the fast node and elsewhere, of the arena and the heap's first pages. */
void emulation_resident(const struct emulation *emulation, uint64_t heap_pages, uint64_t *fast_bytes,
			uint64_t *slow_bytes);

/* The debt that must be paid now, in ns; small ones wait, unless `all` must be. */
uint64_t emulation_due(const struct emulation *emulation, bool all);

/* Let time pass until the debt is paid: sleep, then spin. */
void emulation_pay(struct emulation *emulation);

#endif
