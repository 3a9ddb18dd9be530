/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planned arena: each slot of the layout lies at a fixed offset. A bitmap of
 * live pages is checked at each birth, so that two live tensors never share a
 * page, even if the plan is wrong. The caller of an arena function holds the shim's
 * lock, with two exceptions. An arena that no other thread uses yet needs no lock. The
 * thread that allocates or frees a tensor may call arena_populate, arena_find and
 * arena_drop for this tensor without the lock.
 */
#ifndef SENTINELD_SHIM_ARENA_H
#define SENTINELD_SHIM_ARENA_H

#include <stdbool.h>

#include "layout.h"

struct arena {
	struct arena *older; /* next arena in the list of former layouts' arenas */
	struct layout layout;
	char *base;
	uint64_t bytes;
	unsigned page_shift;
	uint64_t *live_map; /* one bit per page */
	uint32_t *slot_at; /* by page: 1 + slot of the live tensor that begins at the page; 0: none */
	uint32_t *birth_step; /* by slot: low 32 bits of the step number at its tensor's birth */
	uint64_t *born_bytes; /* by slot: size of its tensor, at most sentinel_slot.bytes */
	uint64_t live_tensors;
	uint64_t live_pages;
};

/* Map the arena, and set its ranges of huge pages and its memory policies. On success takes
   ownership of the layout and returns NULL; otherwise returns a description of the problem. */
const char *arena_new(struct arena **arena, struct layout *layout);

/* Unmap and free an arena that has no live tensors. */
void arena_delete(struct arena *arena);

static inline bool arena_owns(const struct arena *arena, const void *address)
{
	return (uintptr_t)address - (uintptr_t)arena->base < arena->bytes;
}

/* Mark the slot as holding a live tensor of `bytes` bytes, and return the tensor's address; NULL if
   a live tensor overlaps the slot. */
void *arena_take(struct arena *arena, uint32_t slot, uint64_t bytes, uint32_t step);

/* Fault in the pages of a newborn tensor if its slot has SENTINEL_SLOT_POPULATE. If the kernel does
   not support MADV_POPULATE_WRITE, each page is faulted in when it is first touched. */
void arena_populate(const struct arena *arena, uint32_t slot);

/* The slot of the live tensor that begins at address, or -1. */
int64_t arena_find(const struct arena *arena, const void *address);

/* Drop those pages of the slot that its flags select or, if `all` is true, all its pages. Call this
   while the slot is still marked live. */
void arena_drop(struct arena *arena, uint32_t slot, bool all);

/* Drop the pages that contain no live tensor. */
void arena_drop_dead(const struct arena *arena);

/* Mark the slot free. */
void arena_give(struct arena *arena, uint32_t slot);

/* Containers' seccomp profiles often forbid mbind(). */
#define MBIND_REFUSED "mbind was refused; in a container, it needs the capability SYS_NICE"

/* Make [address, address + bytes) prefer the node (mbind with MPOL_PREFERRED); node -1: default policy.
   Returns 0 or -errno. */
int memory_prefer(void *address, uint64_t bytes, int32_t node);

#endif
